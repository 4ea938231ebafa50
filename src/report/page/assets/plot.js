"use strict";
// The frame of every chart: axes, zoom, the selected row, the legend and the copy of the data. A figure holds its drawing
// instructions as attributes, its numbers in a data block, and its names in the table of its data.

// Draws each kind of chart: (figure) => what `build` takes.
const kinds = {};
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
// Dash patterns and marks distinguish series without color.
const DASHES = [[], [8, 4], [2, 3], [12, 3, 2, 3], [5, 2], [1, 5]];
const SHAPES = ["circle", "square", "diamond", "triangle", "cross"];
const PAPER_WIDTH = 640;
const SECOND_STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800];

const WHOLE_STEPS = [1, 2, 5].flatMap((step) => [...Array(9).keys()].map((power) => step * 10 ** power)).sort((a, b) => a - b);

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const inks = () => [0, 1, 2, 3, 4, 5].map((at) => colour(`s${at}`));

// Three significant digits, or more if the integer part has more.
function number(value) {
  if (value === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(digits, 12) });
}

function format(value, unit) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (unit === "ms") {
    if (value === 0) return "0";
    if (size >= 1000) return `${number(value / 1000)} s`;
    return size >= 1 ? `${number(value)} ms` : size >= 1e-3 ? `${number(value * 1000)} µs` : `${number(value * 1e6)} ns`;
  }
  if (unit === "s") {
    if (size >= 7200) return `${number(value / 3600)} h`;
    return size >= 600 ? `${number(value / 60)} min` : `${number(value)} s`;
  }
  return unit === "%" ? `${number(value)} %` : number(value);
}

function element(name, parent, text) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

const parsed = (figure, name) => {
  const block = figure.querySelector(`script.${name}`);
  return block ? JSON.parse(block.textContent) : null;
};
// Names of the columns, without their unit; names of the rows, if they have any.
const names = (figure) => [...figure.querySelectorAll("thead th.value")].map((cell) => cell.textContent);
const short = (name) => name.replace(/ \([^)]*\)$/, "");
const rowNames = (figure) => [...figure.querySelectorAll("tbody th")].map((cell) => cell.textContent);

// Least and greatest of the finite numbers.
function extent(values) {
  let [least, most] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    if (value < least) least = value;
    if (value > most) most = value;
  }
  return least > most ? [0, 1] : [least, most];
}

// The range of an axis that begins at zero, or of a logarithmic one.
function range(values, log, room = 1.06) {
  const [least, most] = extent(log ? values.filter((value) => value > 0) : values);
  // A mark at an end needs the same room on every scale: a share of its decades.
  const part = Math.max(1.1, (most / least) ** 0.06);
  if (log) return least === most ? [least / 2, most * 2] : [least / part, most * part];
  return [Math.min(0, least), most > 0 ? most * room : 1];
}

// Round positions of a logarithmic axis: 1, 2, 5, or fewer of each power of ten where labels would touch.
function logSplits(least, most, labelsOfDecade) {
  const steps = labelsOfDecade >= 4 ? [1, 2, 5] : labelsOfDecade >= 2 ? [1, 3] : [1];
  const splits = [];
  for (let power = Math.floor(Math.log10(least)); power <= Math.ceil(Math.log10(most)); power++) {
    for (const step of steps) splits.push(Number((step * 10 ** power).toPrecision(3)));
  }
  return splits.filter((value) => value >= least && value <= most);
}

function marker(context, shape, x, y, size, filled = true) {
  context.beginPath();
  if (shape === "circle") context.arc(x, y, size, 0, 2 * Math.PI);
  if (shape === "square") context.rect(x - size * 0.9, y - size * 0.9, size * 1.8, size * 1.8);
  if (shape === "diamond" || shape === "triangle") {
    context.moveTo(x, y - size * 1.3);
    context.lineTo(x + size * 1.2, shape === "diamond" ? y : y + size);
    if (shape === "diamond") context.lineTo(x, y + size * 1.3);
    context.lineTo(x - size * 1.2, shape === "diamond" ? y : y + size);
    context.closePath();
  }
  if (shape === "cross") {
    context.moveTo(x - size, y - size);
    context.lineTo(x + size, y + size);
    context.moveTo(x + size, y - size);
    context.lineTo(x - size, y + size);
  }
  if (filled && shape !== "cross") context.fill();
  context.stroke();
}

function joined(u, context, points, dash) {
  context.setLineDash(dash.map((part) => part * devicePixelRatio));
  context.beginPath();
  for (const [x, y] of points) context.lineTo(u.valToPos(x, "x", true), u.valToPos(y, "y", true));
  context.stroke();
  context.setLineDash([]);
}

// Limits of the SLO across a chart.
const LIMIT_DASH = [16, 4];
function paintLimits(u, context, limits) {
  context.strokeStyle = colour("bad");
  context.lineWidth = 2 * devicePixelRatio;
  for (const limit of limits) joined(u, context, [[u.scales.x.min, limit], [u.scales.x.max, limit]], LIMIT_DASH);
}
const legendOfLimits = (limits) => (limits.length ? [{ name: "SLO", colour: colour("bad"), dash: LIMIT_DASH }] : []);

// A sample of a line or mark for the legend.
function sample(parent, { colour, dash, shape, filled, heat }) {
  const canvas = element("canvas", parent);
  const ratio = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [30 * ratio, 12 * ratio];
  canvas.style.cssText = "width:30px;height:12px";
  canvas.setAttribute("aria-hidden", "true");
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.strokeStyle = context.fillStyle = colour ?? "";
  if (heat) {
    const gradient = context.createLinearGradient(0, 0, 30, 0);
    gradient.addColorStop(0, `rgba(${heat}, 0.12)`);
    gradient.addColorStop(1, `rgba(${heat}, 1)`);
    context.fillStyle = gradient;
    context.fillRect(0, 1, 30, 10);
    return;
  }
  context.lineWidth = 2;
  if (dash) {
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(0, 6);
    context.lineTo(30, 6);
    context.stroke();
    context.setLineDash([]);
  }
  if (shape) {
    context.lineWidth = 1.5;
    if (shape === "bar") context.fillRect(4, 1, 22, 10);
    else marker(context, shape, 15, 6, 4, filled ?? true);
  }
}

// Builds the plot of a figure. A chart has
//   x, y        ranges
//   xAxis, yAxis  settings of an axis, where rows have names
//   lines       [{ values, colour, dash, stepped, fill, points }] that uPlot draws over `at`, the positions
//   paint       (uPlot, context): draws anything else
//   legend      [{ name, colour, dash, shape, filled, heat }]
//   rows        number of rows that can be selected
//   place       (row) => [x, y]; y is null for a whole column
//   tell        (row) => text of a row; by default every column with its name
function build(figure) {
  const { dataset } = figure;
  const chart = kinds[dataset.kind](figure);
  const plot = figure.querySelector(".plot");
  plot.replaceChildren();
  const axis = { stroke: colour("soft"), font: FONT, ticks: { stroke: colour("line"), size: 4 }, grid: { stroke: colour("line"), width: 1 }, labelFont: FONT };
  const labels = (unit) => (_, splits) => splits.map((value) => (value === null ? "" : format(value, unit)));
  const phone = plot.clientWidth < 480;
  const round = (name, space, side) => (dataset[name] === undefined ? {} : { splits: (u, _, least, most) => logSplits(least, most, u.bbox[side] / devicePixelRatio / space / Math.log10(most / least)), filter: (_, splits) => splits });
  const [xLog, yLog] = ["xLog", "yLog"].map((name) => dataset[name] !== undefined);
  const options = {
    width: Math.max(200, document.documentElement.classList.contains("paper") ? Math.min(plot.clientWidth, PAPER_WIDTH) : plot.clientWidth),
    height: chart.height ?? 250,
    legend: { show: false },
    padding: [10, phone ? 14 : 22, 0, 0],
    scales: {
      x: { time: false, distr: xLog ? 3 : 1, range: (_, least, most) => (least < most ? [least, most] : chart.x) },
      y: { distr: yLog ? 3 : 1, range: () => chart.y },
    },
    axes: [
      { ...axis, space: phone ? 58 : 70, size: 28, gap: 4, label: dataset.xLabel, labelSize: 18, labelGap: 0, values: labels(dataset.xUnit), ...round("xLog", 58, "width"), ...(dataset.xUnit === "s" && { incrs: SECOND_STEPS }), ...(dataset.xWhole !== undefined && { incrs: WHOLE_STEPS }), ...chart.xAxis },
      { ...axis, space: 34, size: 62, gap: 4, values: labels(dataset.yUnit), ...round("yLog", 22, "height"), ...(dataset.yWhole !== undefined && { incrs: WHOLE_STEPS }), ...chart.yAxis },
    ],
    // Charts of one time window share the cursor and the zoom.
    cursor: { y: false, drag: { x: true, y: false, dist: 6 }, points: { show: false }, ...(dataset.xFrom !== undefined && { sync: { key: "time", scales: ["x", null] } }) },
    series: [{}, ...(chart.lines ?? [{ values: [] }]).map((line) => ({
      stroke: line.colour,
      width: 2,
      dash: line.dash,
      fill: line.fill,
      paths: line.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: line.points ?? false, size: 5 },
    }))],
    hooks: {
      draw: [(u) => {
        if (!chart.paint) return;
        const { ctx } = u;
        ctx.save();
        ctx.beginPath();
        ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
        ctx.clip();
        ctx.lineWidth = 1.5 * devicePixelRatio;
        chart.paint(u, ctx);
        ctx.restore();
      }],
      setCursor: [(u) => u.cursor.left >= 0 && select(nearest(u.cursor.left, u.cursor.top))],
      setScale: [(u) => u.status === 1 && selected !== null && select(selected)],
    },
  };
  const data = chart.lines ? [chart.at, ...chart.lines.map((line) => line.values)] : [chart.x, [null, null]];
  const u = new uPlot(options, data, plot);
  const mark = element("div", u.over);
  mark.className = "mark";
  mark.hidden = true;
  const readout = figure.querySelector(".readout");
  let selected = null;
  const columns = parsed(figure, "data");
  const headings = names(figure);
  const tell = chart.tell ?? ((row) => columns.map((column, at) => `${short(headings[at])} ${format(column[row], figure.querySelectorAll("thead th.value")[at].dataset.unit)}`).join(", "));

  const where = (row) => {
    const [x, y] = chart.place(row);
    return [u.valToPos(x, "x"), y === null ? null : u.valToPos(y, "y")];
  };
  function nearest(left, top) {
    let [best, least] = [0, Infinity];
    for (let row = 0; row < chart.rows; row++) {
      const [x, y] = where(row);
      const distance = (x - left) ** 2 + (y === null ? 0 : (y - top) ** 2);
      if (distance < least) [best, least] = [row, distance];
    }
    return best;
  }
  function select(row) {
    if (row === null || !(row < chart.rows)) return;
    selected = row;
    const [x, y] = where(row);
    mark.hidden = !(x >= 0 && x <= u.over.clientWidth);
    mark.classList.toggle("line", y === null);
    mark.style.left = `${x}px`;
    mark.style.top = y === null ? "0" : `${y}px`;
    const text = tell(row);
    if (readout.textContent !== text) readout.textContent = text;
  }
  plot.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || chart.rows === 0) return;
    event.preventDefault();
    const from = selected ?? (step > 0 ? -1 : chart.rows);
    select(Math.max(0, Math.min(chart.rows - 1, from + step)));
  };

  const legend = figure.querySelector(".legend");
  legend.replaceChildren();
  for (const entry of chart.legend ?? []) {
    const item = element("li", legend);
    sample(item, entry);
    element("span", item, entry.name);
  }
  figure.dataset.drawn = "";
  return u;
}
