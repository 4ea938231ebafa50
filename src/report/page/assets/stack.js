// Parts of each named row, one upon the other; a part below zero hangs from it.
kinds.stack = (figure) => {
  const parts = parsed(figure, "data");
  // The end of a long name differs from that of others.
  const labels = rowNames(figure).map((name) => (name.length > 24 ? `…${name.slice(-23)}` : name));
  const count = parts[0].length;
  const sum = (row, sign) => parts.reduce((all, part) => all + Math.max(0, sign * (part[row] ?? 0)), 0);
  const rows = [...Array(count).keys()];
  const tops = rows.map((row) => sum(row, 1));
  const [least, most] = [-Math.max(0, ...rows.map((row) => sum(row, -1))), Math.max(...tops)];
  const wanted = Math.max(1, Math.ceil((9 * Math.max(...labels.map((label) => label.length)) * count) / Math.max(1, figure.clientWidth - 80)));
  return {
    x: [-0.5, count - 0.5],
    y: [least * 1.06, most > 0 ? most * 1.06 : 1],
    xAxis: {
      splits: (_, __, from, to) => rows.filter((row) => row % wanted === 0 && row >= from && row <= to),
      values: (_, splits) => splits.map((row) => labels[row] ?? ""),
      grid: { show: false },
    },
    rows: count,
    place: (row) => [row, tops[row]],
    tell: (row) => `${rowNames(figure)[row]}: ${parts.map((part, at) => `${short(names(figure)[at])} ${format(part[row], figure.dataset.yUnit)}`).join(", ")}`,
    legend: parts.map((_, at) => ({ name: short(names(figure)[at]), colour: inks()[at], shape: "bar" })),
    paint(u, context) {
      const ratio = devicePixelRatio;
      for (const row of rows) {
        const [left, right] = [row - 0.4, row + 0.4].map((edge) => u.valToPos(edge, "x", true));
        const ends = { 1: 0, [-1]: 0 };
        parts.forEach((part, at) => {
          const value = part[row] ?? 0;
          if (value === 0) return;
          const sign = Math.sign(value);
          const [from, to] = [ends[sign], (ends[sign] += value)].map((end) => u.valToPos(end, "y", true));
          context.fillStyle = inks()[at];
          // A line of the card between two parts shows the border without color.
          context.fillRect(left, Math.min(from, to), Math.max(ratio, right - left), Math.max(ratio, Math.abs(to - from) - ratio));
        });
      }
    },
  };
};
