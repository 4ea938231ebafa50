// Bars between two edges, with marked percentiles.
kinds.bars = (figure) => {
  const { dataset } = figure;
  const [from, to, count] = parsed(figure, "data");
  const marks = parsed(figure, "marks") ?? [];
  const [fill, line] = [colour("s0"), colour("ink")];
  const soft = colour("soft");
  return {
    x: [from[0], Math.max(to[to.length - 1], ...marks.map(([, value]) => value))],
    y: [0, Math.max(1, ...count) * 1.3],
    rows: count.length,
    place: (row) => [dataset.xLog !== undefined ? Math.sqrt(from[row] * to[row]) : (from[row] + to[row]) / 2, count[row]],
    legend: [
      { name: short(names(figure)[2]), colour: fill, shape: "bar" },
      { name: "percentiles", colour: line, dash: [3, 3] },
    ],
    paint(u, context) {
      const ratio = devicePixelRatio;
      const bottom = u.valToPos(0, "y", true);
      context.fillStyle = fill;
      count.forEach((value, row) => {
        if (value === 0) return;
        const [left, right] = [from[row], to[row]].map((edge) => u.valToPos(edge, "x", true));
        const top = Math.min(u.valToPos(value, "y", true), bottom - 1.5 * ratio);
        context.fillRect(left, top, Math.max(ratio, right - left - ratio), bottom - top);
      });
      context.font = FONT.replace("12px", `${12 * ratio}px`);
      [context.textAlign, context.textBaseline] = ["left", "top"];
      const ends = [];
      for (const [percent, value] of marks) {
        const x = u.valToPos(value, "x", true);
        const label = `p${percent} ${format(value, dataset.xUnit)}`;
        const width = context.measureText(label).width;
        const left = Math.min(x + 3 * ratio, u.bbox.left + u.bbox.width - width - 2 * ratio);
        // Labels that would touch stand in rows.
        let row = 0;
        while (ends[row] !== undefined && left < ends[row] + 6 * ratio) row++;
        ends[row] = left + width;
        const top = u.bbox.top + (2 + 15 * row) * ratio;
        context.strokeStyle = line;
        context.setLineDash([3 * ratio, 3 * ratio]);
        context.beginPath();
        context.moveTo(x, top);
        context.lineTo(x, bottom);
        context.stroke();
        context.fillStyle = colour("card");
        context.fillRect(left - ratio, top, width + 2 * ratio, 14 * ratio);
        context.fillStyle = soft;
        context.fillText(label, left, top);
      }
    },
  };
};
