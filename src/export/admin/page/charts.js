// Charts. Each is a <figure> with a heading, a legend with the selected moment's values, and a uPlot plot.

import { LATENCIES, QUANTILES, averaged, bound, buckets, secondsOfMark, secondsOfPoint } from "./figures.js";

const HEIGHT = 210;
const LEAST_SECONDS = 60;
const MOST_SECONDS = 900;
// Share of the shortest latencies that are drawn at the bottom of the chart and not to scale.
const SHORTEST = 0.05;
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
// Dash patterns that distinguish lines without color.
const DASHES = [[], [8, 4], [2, 3], [12, 3, 2, 3], [5, 2], [1, 5]];

const TITLES = {
  ttft: ["Time to first token", "TTFT, ms"],
  itl: ["Inter-token latency", "ITL, ms"],
  tpot: ["Time per output token", "TPOT, ms"],
};

const style = getComputedStyle(document.documentElement);
const colour = (name) => style.getPropertyValue(`--${name}`).trim();
const time = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
export const clock = (milliseconds) => time.format(milliseconds);

// Formats three significant digits, or more if the integer part has more.
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(digits, 3), useGrouping: value >= 10000 });
}

function element(name, parent, text) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

// Draws a short sample of a line for the legend.
function sample(parent, stroke, dash) {
  const svg = document.getElementById("sample").content.firstElementChild.cloneNode(true);
  svg.firstElementChild.setAttribute("stroke", stroke);
  svg.firstElementChild.setAttribute("stroke-dasharray", dash.join(" "));
  parent.append(svg);
}

class Chart {
  // Calls `pointed` with the index of the second under the pointer, or with null.
  constructor(parent, id, [title, unit], pointed) {
    this.id = id;
    this.pointed = pointed;
    this.figure = element("figure", parent);
    this.figure.id = `chart-${id}`;
    const heading = element("h3", this.figure, `${title} `);
    element("small", heading, unit);
    this.legend = element("ul", this.figure);
    this.legend.className = "legend";
    this.place = element("div", this.figure);
    this.place.className = "plot";
    this.place.setAttribute("role", "img");
    this.place.setAttribute("aria-label", `Chart: ${title}, ${unit}, over the last minutes. The tables have its figures.`);
    this.empty = element("div", this.place);
    this.empty.className = "empty";
    this.title = title;
    this.unit = unit;
    this.key = null;
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
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "streamgauge" }, points: { show: false } },
      series: [{}, ...lines.map((line) => ({ stroke: line.colour, width: 2, dash: line.dash, points: { show: false } }))],
      hooks: {
        drawAxes: [(u) => this.under(u)],
        setCursor: [(u) => u.cursor.event && this.pointed(u.cursor.left >= 0 ? u.cursor.idx : null)],
      },
    };
    this.plot = new uPlot(options, [[], ...lines.map(() => [])], this.place);
    this.legend.replaceChildren();
    this.values = lines.map((line) => {
      const item = element("li", this.legend);
      sample(item, line.colour, line.dash);
      element("span", item, line.name);
      return element("b", item, "–");
    });
    this.addKeys();
  }

  addKeys() {}
  axis() {
    return { values: (_, at) => at.map((value) => number(value)) };
  }
  under() {}

  draw(rows, columns, isEmpty, why) {
    this.rows = rows;
    this.empty.textContent = isEmpty ? why : "";
    const x = rows.map((row) => row.unix_ms / 1000);
    const last = x.at(-1) ?? Date.now() / 1000;
    this.span = [last - Math.min(MOST_SECONDS, Math.max(LEAST_SECONDS, last - (x[0] ?? last))), last];
    this.plot.setData([x, ...columns]);
  }

  // Shows a moment's values in the legend and marks its position.
  show(at, told, isPast) {
    told.forEach((value, i) => {
      const text = number(value);
      if (this.values[i].textContent !== text) this.values[i].textContent = text;
    });
    if (this.plot.cursor.event && this.plot.cursor.left >= 0 && this.figure.matches(":hover")) return;
    const left = isPast && this.rows[at] ? this.plot.valToPos(this.rows[at].unix_ms / 1000, "x") : -10;
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

// A latency: its distribution as a heat map and its quantiles as lines, on a logarithmic scale.
class Latency extends Chart {
  axis() {
    return { splits: () => this.ticks(), values: (_, at) => at.map((power) => number(10 ** power)) };
  }

  ticks() {
    const [low, high] = this.range ?? [0, 1];
    const steps = high - low > 3 ? [1] : high - low > 0.9 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
    const ticks = [];
    for (let power = Math.floor(low); power <= high; power++) {
      for (const step of steps) ticks.push(power + Math.log10(step));
    }
    return ticks.filter((tick) => tick >= low && tick <= high);
  }

  addKeys() {
    const item = element("li", this.legend);
    element("span", item, "few").className = "few";
    element("span", item).className = "scale";
    element("span", item, "many");
  }

  update(rows) {
    this.lines(QUANTILES.map(([name], at) => ({ name, colour: colour(name), dash: DASHES[at] })));
    const counts = new Map();
    for (const row of rows) {
      buckets(row.figures?.[this.id], (bucket, count) => counts.set(bucket, (counts.get(bucket) ?? 0) + count));
    }
    const sorted = [...counts].sort(([a], [b]) => a - b);
    let below = sorted.reduce((sum, [, count]) => sum + count, 0) * SHORTEST;
    // Tokens that arrived together have nearly no time between them and would fill half of the chart.
    [this.lowest] = sorted.find(([, count]) => (below -= count) < 0) ?? [];
    const isEmpty = sorted.length === 0;
    const ends = isEmpty ? [0, 3] : [Math.log10(bound(this.lowest - 3)), Math.log10(bound(sorted.at(-1)[0] + 2))];
    const middle = (ends[0] + ends[1]) / 2;
    this.range = [Math.min(ends[0], middle - 0.2), Math.max(ends[1], middle + 0.2)];
    const column = (at) => rows.map((row) => (row[this.id][at] === null ? null : Math.log10(row[this.id][at])));
    this.draw(rows, QUANTILES.map((_, at) => column(at)), isEmpty, "nothing measured in this time");
  }

  under(u) {
    if (!this.rows) return;
    const [columns, heat] = [[], colour("heat")];
    let most = 1;
    this.groups((row) => row.figures?.[this.id], (rows, from, to) => {
      const counts = new Map();
      for (const row of rows) {
        buckets(row.figures?.[this.id], (bucket, count) => {
          const at = Math.max(bucket, this.lowest - 2);
          counts.set(at, (counts.get(at) ?? 0) + count);
        });
      }
      for (const count of counts.values()) most = Math.max(most, count);
      columns.push([counts, from, to]);
    });
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const [counts, from, to] of columns) {
      const left = Math.round(u.valToPos(from, "x", true));
      const width = Math.max(1, Math.round(u.valToPos(to, "x", true)) - left);
      for (const [bucket, count] of counts) {
        const top = Math.round(u.valToPos(Math.log10(bound(bucket)), "y", true));
        const height = Math.max(1, Math.round(u.valToPos(Math.log10(bound(bucket - 1)), "y", true)) - top);
        ctx.fillStyle = `rgba(${heat}, ${(0.14 + 0.86 * (count / most) ** 0.35).toFixed(2)})`;
        ctx.fillRect(left, top, width, height);
      }
    }
    ctx.restore();
  }
}

// Gauges and rates, with an axis from zero.
class Rates extends Chart {
  // `told` has one array of values per line.
  update(rows, lines, told, why) {
    this.lines(lines);
    const seconds = rows.length > 0 ? (rows.at(-1).unix_ms - rows[0].unix_ms) / 1000 : 0;
    const length = secondsOfPoint(Math.min(seconds, MOST_SECONDS));
    const columns = told.map((column) => averaged(column, length));
    let most = 0;
    for (const column of columns) for (const value of column) most = Math.max(most, value ?? 0);
    this.range = [0, most > 0 ? most * 1.08 : 1];
    this.draw(rows, columns, columns.length === 0 || most === 0, why);
  }
}

// One row of bars per termination, so that rare ones stay visible beside common ones.
class Endings extends Chart {
  constructor(...of) {
    super(...of);
    this.figure.classList.add("wide");
    this.height = 120;
    this.hows = [];
  }

  axis() {
    return {
      splits: () => this.hows.map((_, at) => at),
      values: () => this.hows,
      size: 22 + 7 * Math.max(4, ...this.hows.map((how) => how.length)),
      label: undefined,
      grid: { show: false },
    };
  }

  update(rows) {
    const hows = new Set();
    for (const row of rows) for (const how of Object.keys(row.figures?.ended ?? {})) hows.add(how);
    // The first row is at the bottom, so the normal termination is there.
    this.hows = [...hows].sort((a, b) => (b === "done") - (a === "done") || a.localeCompare(b));
    this.height = 66 + 30 * Math.max(1, this.hows.length);
    this.lines([], this.hows);
    this.range = [-0.5, Math.max(1, this.hows.length) - 0.5];
    this.draw(rows, [], this.hows.length === 0, "no stream has ended in this time");
  }

  under(u) {
    if (!this.rows) return;
    const bars = [];
    const most = new Map();
    this.groups((row) => Object.keys(row.figures?.ended ?? {}).length > 0, (rows, from, to) => {
      const counts = new Map();
      for (const row of rows) {
        for (const [how, count] of Object.entries(row.figures?.ended ?? {})) counts.set(how, (counts.get(how) ?? 0) + count);
      }
      for (const [how, count] of counts) {
        most.set(how, Math.max(most.get(how) ?? 0, count));
        bars.push([how, count, from, to]);
      }
    });
    const { ctx } = u;
    ctx.save();
    for (const [how, count, from, to] of bars) {
      const row = this.hows.indexOf(how);
      const [left, right] = [from, to].map((s) => u.valToPos(s, "x", true));
      const base = u.valToPos(row - 0.4, "y", true);
      const height = (base - u.valToPos(row + 0.4, "y", true)) * Math.max(0.18, count / most.get(how));
      ctx.fillStyle = colour(how === "done" ? "good" : how === "client_disconnect" ? "third" : "bad");
      ctx.fillRect(left, base - height, Math.max(1.5 * devicePixelRatio, right - left - 1), height);
    }
    ctx.restore();
  }
}

export class Charts {
  constructor(parent, pointed) {
    this.latencies = LATENCIES.map((id) => new Latency(parent, id, TITLES[id], pointed));
    this.goodput = new Rates(parent, "goodput", ["Goodput", "requests/s that met the SLO"], pointed);
    this.open = new Rates(parent, "in-flight", ["In flight", "requests"], pointed);
    this.tokens = new Rates(parent, "tokens", ["Output", "tokens/s"], pointed);
    this.endings = new Endings(parent, "endings", ["Streams that ended", "count, each row to its own scale"], pointed);
    this.all = [...this.latencies, this.goodput, this.open, this.tokens, this.endings];
    // Colors are read when a plot is built.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const chart of this.all) chart.key = null;
      if (this.drawn) this.update(...this.drawn);
    });
  }

  update(rows, slos) {
    this.drawn = [rows, slos];
    for (const chart of this.latencies) chart.update(rows);
    const inks = ["accent", "p90", "p99", "third", "good"].map(colour);
    const line = (name, at) => ({ name, colour: inks[at % inks.length], dash: DASHES[at % DASHES.length] });
    const all = { name: "all requests", colour: colour("soft"), dash: [1, 4] };
    const met = slos.map((slo) => rows.map((row) => row.goodput[slo] ?? 0));
    this.goodput.update(
      rows,
      slos.length ? [...slos.map(line), all] : [],
      slos.length ? [...met, rows.map((row) => row.requests)] : [],
      slos.length ? "no request was judged in this time" : "no SLO is set: --slo 'chat: ttft<=500ms'",
    );
    const phase = (at) => rows.map((row) => row.phases[at]);
    this.open.update(rows, ["waiting", "streaming", "not streamed"].map(line), [0, 1, 2].map(phase), "nothing was open");
    this.tokens.update(rows, [line("tokens/s", 0)], [rows.map((row) => row.tokens)], "no token came");
    this.endings.update(rows);
  }

  // Shows the values of the second `at`.
  show(at, isPast) {
    const row = this.drawn[0][at];
    if (!row) return;
    for (const chart of this.latencies) chart.show(at, row[chart.id], isPast);
    const slos = this.drawn[1];
    this.goodput.show(at, slos.length ? [...slos.map((slo) => row.goodput[slo] ?? 0), row.requests] : [], isPast);
    this.open.show(at, row.phases, isPast);
    this.tokens.show(at, [row.tokens], isPast);
    this.endings.show(at, [], isPast);
  }
}
