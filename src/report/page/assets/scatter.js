// One point for each row, and the medians of all requests as a line.
kinds.scatter = (figure) => {
  const { dataset } = figure;
  const [x, y] = parsed(figure, "data");
  const curve = parsed(figure, "curve");
  const [point, line] = [colour("s0"), colour("s1")];
  const [left, right] = range([...x, ...(curve?.[0] ?? [])], dataset.xLog !== undefined, 1.03);
  return {
    x: [left, right],
    y: range([...y, ...(curve?.[1] ?? [])], dataset.yLog !== undefined),
    height: 300,
    rows: x.length,
    place: (row) => [x[row], y[row]],
    legend: [
      { name: "a request", colour: point, shape: "circle" },
      ...(curve ? [{ name: "median of all requests", colour: line, dash: [8, 4] }] : []),
    ],
    paint(u, context) {
      const ratio = devicePixelRatio;
      context.globalAlpha = x.length > 1000 ? 0.3 : x.length > 200 ? 0.5 : 0.8;
      context.fillStyle = point;
      for (let row = 0; row < x.length; row++) {
        context.beginPath();
        context.arc(u.valToPos(x[row], "x", true), u.valToPos(y[row], "y", true), 2.4 * ratio, 0, 2 * Math.PI);
        context.fill();
      }
      context.globalAlpha = 1;
      if (!curve) return;
      context.strokeStyle = line;
      context.lineWidth = 2.5 * ratio;
      context.setLineDash([8 * ratio, 4 * ratio]);
      context.beginPath();
      curve[0].forEach((value, at) => context.lineTo(u.valToPos(value, "x", true), u.valToPos(curve[1][at], "y", true)));
      context.stroke();
    },
  };
};
