// A lane for each session or request: the wait for the planned send, the wait for the first token, and the stream.
const OUTCOMES = ["failed", "success", "cancelled"];
kinds.lanes = (figure) => {
  const [lane, planned, sent, first, end, outcome] = parsed(figure, "data");
  const lanes = Math.max(...lane) + 1;
  const [wait, prefill, stream, bad] = ["soft", "s1", "s0", "bad"].map(colour);
  return {
    height: Math.max(180, Math.min(560, 60 + 12 * lanes)),
    x: [extent(planned)[0], extent([...end, ...sent])[1]],
    y: [-0.5, lanes - 0.5],
    yAxis: { values: (_, splits) => splits.map((value) => (Number.isInteger(value) ? number(value + 1) : "")), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000] },
    rows: lane.length,
    place: (row) => [sent[row], lane[row]],
    tell: (row) =>
      `lane ${lane[row] + 1}, sent ${format(sent[row], "s")}${sent[row] > planned[row] ? `, ${format(1000 * (sent[row] - planned[row]), "ms")} after its planned time` : ""}, first token after ${first[row] === null ? "–" : format(1000 * (first[row] - sent[row]), "ms")}, end after ${end[row] === null ? "–" : format(1000 * (end[row] - sent[row]), "ms")}, ${OUTCOMES[outcome[row]]}`,
    legend: [
      { name: "planned, not sent", colour: wait, dash: [2, 2] },
      { name: "wait for the first token (narrow)", colour: prefill, dash: [] },
      { name: "stream (broad)", colour: stream, shape: "bar" },
      { name: "end without a complete response", colour: bad, shape: "cross" },
    ],
    paint(u, context) {
      const ratio = devicePixelRatio;
      const step = Math.abs(u.valToPos(1, "y", true) - u.valToPos(0, "y", true));
      const broad = Math.max(ratio, step * 0.7);
      const bar = (from, to, y, height, ink) => {
        const [left, right] = [from, to].map((value) => u.valToPos(value, "x", true));
        context.fillStyle = ink;
        context.fillRect(left, y - height / 2, Math.max(ratio, right - left), height);
      };
      for (let row = 0; row < lane.length; row++) {
        const y = u.valToPos(lane[row], "y", true);
        const [begin, last] = [sent[row], end[row] ?? sent[row]];
        if (planned[row] < begin) bar(planned[row], begin, y, Math.max(ratio, broad / 5), wait);
        bar(begin, first[row] ?? last, y, Math.max(ratio, broad / 2.5), prefill);
        if (first[row] !== null) bar(first[row], last, y, broad, stream);
        if (outcome[row] !== 1) {
          context.strokeStyle = bad;
          marker(context, "cross", u.valToPos(last, "x", true), y, Math.min(4 * ratio, Math.max(2 * ratio, broad / 2)));
        }
      }
    },
  };
};
