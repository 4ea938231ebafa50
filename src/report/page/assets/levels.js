// Levels of a sweep: percentiles with their intervals against the load, and throughput against speed.
function series(rows, of) {
  const groups = new Map();
  for (let row = 0; row < rows; row++) {
    if (!groups.has(of[row])) groups.set(of[row], []);
    groups.get(of[row]).push(row);
  }
  return [...groups.values()];
}

// Names of points, where they do not cover one another. `sizes` are the radii of the marks.
function labels(u, context, points, texts, sizes) {
  const ratio = devicePixelRatio;
  const taken = [];
  context.font = FONT.replace("12px", `${11 * ratio}px`);
  [context.textAlign, context.textBaseline] = ["left", "middle"];
  context.fillStyle = colour("soft");
  points.forEach(([x, y], row) => {
    const width = context.measureText(texts[row]).width;
    const right = u.bbox.left + u.bbox.width;
    const [px, py] = [u.valToPos(x, "x", true), u.valToPos(y, "y", true)];
    const space = (sizes[row] + 4) * ratio;
    const left = px + space + width > right ? px - space - width : px + space;
    for (const top of [py - 9 * ratio, py + 9 * ratio]) {
      const box = [left, top - 7 * ratio, left + width, top + 7 * ratio];
      if (taken.some((of) => box[0] < of[2] && box[2] > of[0] && box[1] < of[3] && box[3] > of[1])) continue;
      taken.push(box);
      context.fillText(texts[row], left, top);
      break;
    }
  });
}

kinds.levels = (figure) => {
  const [rate, p50, low50, high50, p99, low99, high99, counts, group] = parsed(figure, "data");
  const [limits] = parsed(figure, "limits");
  const { dataset } = figure;
  const levels = rowNames(figure);
  const log = dataset.yLog !== undefined;
  const titles = names(figure);
  const curves = [
    { values: p50, low: low50, high: high50, title: short(titles[1]), dash: [], ink: "s0", shape: "circle" },
    { values: p99, low: low99, high: high99, title: short(titles[4]), dash: [8, 4], ink: "s1", shape: "square" },
  ];
  // One series has a color and a mark for each percentile; of several, each has its own.
  const groups = dataset.series ? JSON.parse(dataset.series) : [];
  const own = (at) => ({ ink: `s${at % 6}`, shape: SHAPES[at % SHAPES.length] });
  const look = (curve, row) => (groups.length ? own(group[row]) : curve);
  const top = (row) => p99[row] ?? p50[row];
  return {
    height: 320,
    x: [0, Math.max(...rate) * 1.06],
    y: range([...p50, ...p99, ...high50, ...high99, ...low50, ...low99, ...limits], log, 1.1),
    rows: rate.length,
    place: (row) => [rate[row], top(row)],
    tell: (row) => `${levels[row]}${groups.length ? ` (${groups[group[row]]})` : ""}: ${format(rate[row])} requests/s, p50 ${format(p50[row], "ms")} (${format(low50[row], "ms")} to ${format(high50[row], "ms")}), p99 ${format(p99[row], "ms")} (${format(low99[row], "ms")} to ${format(high99[row], "ms")})${counts[row] ? "" : ", saturated or not valid"}`,
    legend: [
      ...groups.map((name, at) => ({ name, colour: colour(own(at).ink), shape: own(at).shape })),
      ...curves.map(({ title, dash, ink, shape }) => (groups.length ? { name: title, colour: colour("soft"), dash } : { name: title, colour: colour(ink), dash, shape })),
      ...legendOfLimits(limits),
      ...(counts.includes(0) ? [{ name: "hollow: saturated or not valid", colour: colour("soft"), shape: "circle", filled: false }] : []),
    ],
    paint(u, context) {
      const ratio = devicePixelRatio;
      paintLimits(u, context, limits);
      for (const curve of curves) {
        const { values, low, high, dash } = curve;
        context.lineWidth = 2 * ratio;
        for (const rows of series(rate.length, group)) {
          context.strokeStyle = colour(look(curve, rows[0]).ink);
          const known = rows.filter((row) => values[row] !== null).sort((a, b) => rate[a] - rate[b]);
          joined(u, context, known.map((row) => [rate[row], values[row]]), dash);
        }
        rate.forEach((x, row) => {
          if (values[row] === null) return;
          const { ink, shape } = look(curve, row);
          context.strokeStyle = colour(ink);
          const at = u.valToPos(x, "x", true);
          if (low[row] !== null) {
            context.lineWidth = 1.5 * ratio;
            context.beginPath();
            const [bottom, top] = [low[row], high[row]].map((end) => u.valToPos(end, "y", true));
            context.moveTo(at, bottom);
            context.lineTo(at, top);
            for (const end of [bottom, top]) {
              context.moveTo(at - 4 * ratio, end);
              context.lineTo(at + 4 * ratio, end);
            }
            context.stroke();
          }
          context.fillStyle = colour(counts[row] ? ink : "card");
          marker(context, shape, at, u.valToPos(values[row], "y", true), 4 * ratio);
        });
      }
    },
  };
};

kinds.pareto = (figure) => {
  const [total, speed, front, knee, counts, workload] = parsed(figure, "data");
  const levels = rowNames(figure);
  const { dataset } = figure;
  // A level that no other one can be compared with is on no front, and no other does better.
  const compared = new Set(workload.filter((_, row) => front[row]));
  const alone = (row) => counts[row] && !compared.has(workload[row]);
  return {
    height: 320,
    x: [0, Math.max(...total) * 1.1],
    y: [0, Math.max(...speed) * 1.15],
    rows: total.length,
    place: (row) => [total[row], speed[row]],
    tell: (row) => `${levels[row]}: ${format(total[row])} ${dataset.xLabel}, ${format(speed[row])} tokens/s per user${front[row] ? ", on the front" : ""}${knee[row] ? ", the knee" : ""}`,
    legend: [
      { name: "on the Pareto front", colour: colour("s0"), dash: [], shape: "diamond" },
      ...(front.some((is, row) => !is && counts[row] && !alone(row)) ? [{ name: "another level does better", colour: colour("s5"), shape: "circle" }] : []),
      ...(counts.some((_, row) => alone(row)) ? [{ name: "no other level sends its requests", colour: colour("s4"), shape: "square" }] : []),
      ...(counts.includes(0) ? [{ name: "saturated or not valid", colour: colour("s5"), shape: "circle", filled: false }] : []),
      ...(knee.includes(1) ? [{ name: "knee", colour: colour("s1"), shape: "square", filled: false }] : []),
    ],
    paint(u, context) {
      const ratio = devicePixelRatio;
      const rows = total.map((_, row) => row);
      context.strokeStyle = colour("s0");
      context.lineWidth = 2 * ratio;
      for (const group of series(rows.length, workload)) {
        const best = group.filter((row) => front[row]).sort((a, b) => total[a] - total[b]);
        joined(u, context, best.map((row) => [total[row], speed[row]]), []);
      }
      for (const row of rows) {
        const [x, y] = [u.valToPos(total[row], "x", true), u.valToPos(speed[row], "y", true)];
        context.strokeStyle = colour(front[row] ? "s0" : alone(row) ? "s4" : "s5");
        context.fillStyle = counts[row] ? context.strokeStyle : colour("card");
        marker(context, front[row] ? "diamond" : alone(row) ? "square" : "circle", x, y, 4.5 * ratio);
        if (!knee[row]) continue;
        context.strokeStyle = colour("s1");
        context.strokeRect(x - 9 * ratio, y - 9 * ratio, 18 * ratio, 18 * ratio);
      }
      labels(u, context, rows.map((row) => [total[row], speed[row]]), levels, knee.map((is) => (is ? 10 : 5)));
    },
  };
};
