// Charts of counts: gauges and rates as lines, rare events as rows of bars.

import { Chart, colour } from "./chart.js";
import { averaged, secondsOfPoint } from "./figures.js";

// Gauges and rates, with an axis from zero.
export class RatesChart extends Chart {
  // `values` has one array of values per line. Seconds in which `isBad` holds are marked.
  update(rows, span, lines, values, why, isBad) {
    this.setRows(rows, span);
    this.lines(lines, this.markText ?? null);
    const length = secondsOfPoint(span[1] - span[0]);
    const columns = values.map((column) => averaged(column, length));
    let most = 0;
    for (const column of columns) for (const value of column) most = Math.max(most, value ?? 0);
    this.range = [0, most > 0 ? most * 1.08 : 1];
    if (isBad) this.mark((row) => row.figures?.slos, isBad);
    this.draw(columns, columns.length === 0 || most === 0, why);
  }

  addKeys() {
    if (this.markText) this.addMarkKey(this.markText);
  }
}

// One row of bars per kind of event, so that rare ones stay visible beside common ones. `kindsOf` returns a second's
// counts by kind, and `colourOf` the colour of a kind: `good`, `third` or `bad`. Bad kinds have a triangle.
export class EventsChart extends Chart {
  constructor(parent, id, titles, on, { kindsOf, colourOf, why }) {
    super(parent, id, titles, on);
    Object.assign(this, { kindsOf, colourOf, why });
    this.figure.classList.add("wide");
    this.height = 120;
    this.kinds = [];
  }

  axis() {
    return {
      splits: () => this.kinds.map((_, at) => at),
      values: () => this.kinds.map((kind) => (this.colourOf(kind) === "bad" ? `▲ ${kind}` : kind)),
      size: 34 + 7 * Math.max(4, ...this.kinds.map((kind) => kind.length)),
      label: undefined,
      grid: { show: false },
    };
  }

  update(rows, span) {
    this.setRows(rows, span);
    const kinds = new Set();
    for (const row of rows) for (const kind of Object.keys(this.kindsOf(row))) kinds.add(kind);
    // The first row is at the bottom, so the normal kind is there.
    this.kinds = [...kinds].sort((a, b) => (this.colourOf(b) === "good") - (this.colourOf(a) === "good") || a.localeCompare(b));
    this.height = 66 + 30 * Math.max(1, this.kinds.length);
    this.lines([], this.kinds);
    this.range = [-0.5, Math.max(1, this.kinds.length) - 0.5];
    this.draw([], this.kinds.length === 0, this.why);
  }

  under(u) {
    if (!this.rows) return;
    const bars = [];
    const most = new Map();
    this.groups((row) => Object.keys(this.kindsOf(row)).length > 0, (rows, from, to) => {
      const counts = new Map();
      for (const row of rows) {
        for (const [kind, count] of Object.entries(this.kindsOf(row))) counts.set(kind, (counts.get(kind) ?? 0) + count);
      }
      for (const [kind, count] of counts) {
        most.set(kind, Math.max(most.get(kind) ?? 0, count));
        bars.push([kind, count, from, to]);
      }
    });
    const { ctx } = u;
    ctx.save();
    for (const [kind, count, from, to] of bars) {
      const row = this.kinds.indexOf(kind);
      const [left, right] = [from, to].map((s) => u.valToPos(s, "x", true));
      const base = u.valToPos(row - 0.4, "y", true);
      const height = (base - u.valToPos(row + 0.4, "y", true)) * Math.max(0.18, count / most.get(kind));
      ctx.fillStyle = colour(this.colourOf(kind));
      ctx.fillRect(left, base - height, Math.max(1.5 * devicePixelRatio, right - left - 1), height);
    }
    ctx.restore();
  }
}
