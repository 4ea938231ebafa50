// Cells of time and value, the darker the more values they hold. The scale is logarithmic: rare values stay visible.
kinds.heat = (figure) => {
  const [fromX, toX, fromY, toY, count] = parsed(figure, "data");
  const most = Math.max(1, ...count);
  const heat = colour("heat");
  const middle = (low, high) => Math.sqrt(low * high);
  return {
    height: 320,
    x: [extent(fromX)[0], extent(toX)[1]],
    y: [extent(fromY)[0], extent(toY)[1]],
    rows: count.length,
    place: (row) => [(fromX[row] + toX[row]) / 2, middle(fromY[row], toY[row])],
    legend: [{ name: `1 to ${number(most)} values in a cell, logarithmic`, heat }],
    paint(u, context) {
      for (let row = 0; row < count.length; row++) {
        const share = most > 1 ? Math.log(count[row]) / Math.log(most) : 1;
        const [left, right] = [fromX[row], toX[row]].map((value) => Math.round(u.valToPos(value, "x", true)));
        const [bottom, top] = [fromY[row], toY[row]].map((value) => Math.round(u.valToPos(value, "y", true)));
        context.fillStyle = `rgba(${heat}, ${0.12 + 0.88 * share})`;
        context.fillRect(left, top, Math.max(1, right - left), Math.max(1, bottom - top));
      }
    },
  };
};
