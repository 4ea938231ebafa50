// The interval of each change, with its verdict as a mark.
const VERDICTS = [
  { name: "undecided", shape: "circle", filled: false, ink: "s5" },
  { name: "not worse", shape: "circle", filled: true, ink: "s0" },
  { name: "WORSE", shape: "square", filled: true, ink: "bad" },
  { name: "better", shape: "diamond", filled: true, ink: "good" },
  { name: "no interval: too few values", shape: "cross", filled: false, ink: "s5" },
];
kinds.forest = (figure) => {
  const [, , change, low, high, verdict] = parsed(figure, "data");
  const [margin, limit] = [figure.dataset.margin, figure.dataset.limit].map(Number);
  const drawn = (end) => (end === null ? null : Math.max(-limit, Math.min(limit, end)));
  const figures = rowNames(figure);
  const [least, most] = extent([...change.map(drawn), ...low.map(drawn), ...high.map(drawn), margin, -margin, 0]);
  const room = (most - least) * 0.05;
  const place = (row) => change.length - 1 - row;
  const phone = figure.clientWidth < 480;
  return {
    height: 70 + 24 * change.length,
    x: [least - room, most + room],
    y: [-0.6, change.length - 0.4],
    yAxis: {
      size: Math.min(phone ? 120 : 220, 16 + 7 * Math.max(...figures.map((name) => name.length))),
      splits: () => change.map((_, at) => at),
      values: (_, splits) => splits.map((at) => figures[change.length - 1 - at] ?? "").map((name) => (phone ? name.replace("output_tokens_per_second", "output tok/s") : name)),
      grid: { show: false },
    },
    rows: change.length,
    place: (row) => [drawn(change[row]), place(row)],
    tell: (row) => `${figures[row]}: ${format(change[row], "%")} (${low[row] === null ? "no interval" : `${format(low[row], "%")} to ${format(high[row], "%")}`}), ${VERDICTS[verdict[row]].name}`,
    legend: VERDICTS.filter((_, at) => verdict.includes(at)).map(({ name, shape, filled, ink }) => ({ name, shape, filled, colour: colour(ink) })),
    paint(u, context) {
      const ratio = devicePixelRatio;
      const vertical = (value, dash, ink) => {
        const x = u.valToPos(value, "x", true);
        context.strokeStyle = ink;
        context.setLineDash(dash.map((part) => part * ratio));
        context.beginPath();
        context.moveTo(x, u.bbox.top);
        context.lineTo(x, u.bbox.top + u.bbox.height);
        context.stroke();
        context.setLineDash([]);
      };
      vertical(0, [], colour("soft"));
      if (margin > 0) for (const side of [-margin, margin]) vertical(side, [4, 4], colour("soft"));
      change.forEach((value, row) => {
        const { shape, filled, ink } = VERDICTS[verdict[row]];
        context.strokeStyle = context.fillStyle = colour(ink);
        const y = u.valToPos(place(row), "y", true);
        if (low[row] !== null) {
          context.lineWidth = 2 * ratio;
          context.beginPath();
          const ends = [low[row], high[row]];
          const [left, right] = ends.map((end) => u.valToPos(drawn(end), "x", true));
          context.moveTo(left, y);
          context.lineTo(right, y);
          // An end that is cut has no mark.
          for (const end of ends.filter((end) => drawn(end) === end).map((end) => u.valToPos(end, "x", true))) {
            context.moveTo(end, y - 4 * ratio);
            context.lineTo(end, y + 4 * ratio);
          }
          context.stroke();
        }
        const x = u.valToPos(drawn(value), "x", true);
        if (drawn(value) !== value) {
          const isHigh = value > 0;
          context.font = FONT.replace("12px", `${12 * ratio}px`);
          context.textAlign = isHigh ? "right" : "left";
          context.textBaseline = "bottom";
          context.fillText(isHigh ? `${format(value, "%")} →` : `← ${format(value, "%")}`, x + (isHigh ? -10 : 10) * ratio, y - ratio);
        }
        if (!filled) context.fillStyle = colour("card");
        marker(context, shape, x, y, 4.5 * ratio);
      });
    },
  };
};
