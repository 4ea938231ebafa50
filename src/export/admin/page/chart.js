// A chart: a <figure> with a heading, a legend with the selected moment's values, and a uPlot plot.

import { clock, element, number } from "./dom.js";
import { secondsOfMark } from "./figures.js";

const HEIGHT = 210;
const LEAST_SECONDS = 60;
// Shorter drags are clicks, in pixels.
const LEAST_DRAG = 8;
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
// Dash patterns that distinguish lines without color.
export const DASHES = [[], [8, 4], [2, 3], [12, 3, 2, 3], [5, 2], [1, 5]];

const style = getComputedStyle(document.documentElement);
export const colour = (name) => style.getPropertyValue(`--${name}`).trim();

// Draws a short sample of a line for the legend.
function sample(parent, stroke, dash) {
  const svg = document.getElementById("sample").content.firstElementChild.cloneNode(true);
  svg.firstElementChild.setAttribute("stroke", stroke);
  svg.firstElementChild.setAttribute("stroke-dasharray", dash.join(" "));
  parent.append(svg);
}

// The chart over which the pointer was pressed last.
let dragged = null;

export class Chart {
  // Calls `on.pointed` with the time under the pointer in ms, or with null, and `on.zoomed` with the ends of a selection.
  constructor(parent, id, [title, unit], on) {
    this.id = id;
    this.on = on;
    this.figure = element("figure", parent);
    this.figure.id = `chart-${id}`;
    const heading = element("h3", this.figure, `${title} `);
    element("small", heading, unit);
    this.legend = element("ul", this.figure, undefined, "legend");
    this.place = element("div", this.figure, undefined, "plot");
    this.place.setAttribute("role", "img");
    this.place.setAttribute("aria-label", `Chart: ${title}, ${unit}, over the last minutes. The tables have its figures.`);
    this.empty = element("div", this.place, undefined, "empty");
    this.unit = unit;
    this.key = null;
    this.marks = [];
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.place);
  }

  size() {
    return { width: Math.max(200, this.place.clientWidth), height: this.height ?? HEIGHT };
  }

  // `lines` is [{name, colour, dash}]. The plot is rebuilt only if these or its other inputs change.
  lines(lines, others = null) {
    const key = JSON.stringify([lines, others]);
    if (key === this.key) return;
    this.key = key;
    this.plot?.destroy();
    const scale = { range: () => this.range ?? [0, 1] };
    const axis = { stroke: colour("soft"), font: FONT, ticks: { stroke: colour("line"), size: 4 }, grid: { stroke: colour("line"), width: 1 } };
    const options = {
      ...this.size(),
      legend: { show: false },
      padding: [8, 30, 0, 0],
      scales: { x: { time: true, range: () => this.span ?? [0, LEAST_SECONDS] }, y: scale },
      axes: [
        { ...axis, space: 74, size: 24, gap: 3, label: "time, h:min:s", labelSize: 17, labelFont: FONT, labelGap: 0, values: (_, at) => at.map((s) => clock(1000 * s)) },
        { ...axis, size: 52, label: this.unit.split(" that ")[0], labelSize: 18, labelFont: FONT, labelGap: 0, ...this.axis() },
      ],
      cursor: { y: false, drag: { x: true, y: false, setScale: false }, sync: { key: "streamgauge" }, points: { show: false } },
      series: [{}, ...lines.map((line) => ({ stroke: line.colour, width: 2, dash: line.dash, points: { show: false } }))],
      hooks: {
        drawAxes: [(u) => this.under(u)],
        draw: [(u) => this.over(u)],
        setCursor: [(u) => u.cursor.event && this.on.pointed(u.cursor.left >= 0 ? this.timeAt(u.cursor.left) : null)],
        setSelect: [(u) => this.selected(u)],
      },
    };
    this.plot = new uPlot(options, [[], ...lines.map(() => [])], this.place);
    this.plot.over.addEventListener("mousedown", () => (dragged = this));
    this.legend.replaceChildren();
    this.values = lines.map((line) => {
      const item = element("li", this.legend);
      sample(item, line.colour, line.dash);
      element("span", item, line.name);
      return element("b", item, "–");
    });
    this.addKeys();
  }

  timeAt(left) {
    return 1000 * this.plot.posToVal(left, "x");
  }

  // The charts share their selection: only the one that was dragged over answers.
  selected(u) {
    const { left, width } = u.select;
    const ends = [this.timeAt(left), this.timeAt(left + width)];
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    if (dragged === this && width >= LEAST_DRAG) this.on.zoomed(...ends);
  }

  addKeys() {}
  axis() {
    return { values: (_, at) => at.map((value) => number(value)) };
  }
  under() {}

  // Draws a triangle at the top for each of `this.marks`, which are times in seconds.
  over(u) {
    const { ctx, bbox } = u;
    const size = 5 * devicePixelRatio;
    ctx.save();
    ctx.fillStyle = colour("bad");
    for (const at of this.marks) {
      const x = u.valToPos(at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x - size, bbox.top + 1.6 * size);
      ctx.lineTo(x + size, bbox.top + 1.6 * size);
      ctx.fill();
    }
    ctx.restore();
  }

  // Marks the groups of seconds for which `isBad` holds; `has` marks the seconds with data.
  mark(has, isBad) {
    this.marks = [];
    this.groups(has, (rows, from, to) => isBad(rows) && this.marks.push((from + to) / 2));
    this.place.dataset.marks = String(this.marks.length);
  }

  // Adds the legend's entry for marks.
  addMarkKey(text) {
    const item = element("li", this.legend);
    element("span", item, "▲", "bad").setAttribute("aria-hidden", "true");
    element("span", item, text);
  }

  // Takes the visible rows, and the two ends of the time axis in seconds.
  setRows(rows, span) {
    this.rows = rows;
    this.span = [Math.min(span[0], span[1] - LEAST_SECONDS / 4), span[1]];
    // For tests.
    [this.place.dataset.from, this.place.dataset.to] = this.span.map(String);
  }

  draw(columns, isEmpty, why) {
    this.empty.textContent = isEmpty ? why : "";
    this.plot.setData([this.rows.map((row) => row.unix_ms / 1000), ...columns]);
  }

  // Shows a moment's values in the legend and marks its position.
  show(row, values, isMarked) {
    values.forEach((value, i) => {
      const text = number(value);
      if (this.values[i].textContent !== text) this.values[i].textContent = text;
    });
    if (this.plot.cursor.event && this.plot.cursor.left >= 0 && this.figure.matches(":hover")) return;
    const left = isMarked ? this.plot.valToPos(row.unix_ms / 1000, "x") : -10;
    this.plot.setCursor({ left, top: left < 0 ? -10 : 0 }, false, false);
  }

  // Calls `each` with the rows of each group of seconds and the group's two ends in seconds. Groups start at fixed
  // times, so that they do not flicker. `has` marks the seconds with data.
  groups(has, each) {
    const seconds = this.span[1] - this.span[0];
    const length = secondsOfMark(seconds, this.rows.filter(has).length, this.plot.over.clientWidth || 300);
    let group = [];
    const done = () => {
      if (group.length === 0) return;
      const first = group[0];
      each(group, (first.unix_ms - first.length_ms) / 1000, group.at(-1).unix_ms / 1000);
      group = [];
    };
    let of = null;
    for (const row of this.rows) {
      const now = Math.floor(row.unix_ms / 1000 / length);
      if (now !== of) done();
      of = now;
      group.push(row);
    }
    done();
  }
}
