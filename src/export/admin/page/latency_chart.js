// A latency: its distribution as a heat map, its quantiles and the limits of SLOs as lines, on a logarithmic scale.

import { Chart, DASHES, colour } from "./chart.js";
import { element, number } from "./dom.js";
import { QUANTILES, bound, buckets, shareOver } from "./figures.js";

// Share of the shortest latencies that are drawn at the bottom of the chart and not to scale.
const SHORTEST = 0.05;

export class LatencyChart extends Chart {
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
    element("span", item, "few", "few");
    element("span", item, undefined, "scale");
    element("span", item, "many");
    if (this.limits.length > 0) this.addMarkKey("more over a limit than its SLO allows");
  }

  // `limits` are the SLOs' limits of this latency, as {slo, limit_ms, allowed, text}.
  update(rows, span, limits) {
    this.setRows(rows, span);
    this.limits = limits;
    this.lines(QUANTILES.map(([name], at) => ({ name, colour: colour(name), dash: DASHES[at] })), limits);
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
    for (const { limit_ms: limit } of limits) {
      ends[0] = Math.min(ends[0], Math.log10(limit) - 0.1);
      ends[1] = Math.max(ends[1], Math.log10(limit) + 0.1);
    }
    const middle = (ends[0] + ends[1]) / 2;
    this.range = [Math.min(ends[0], middle - 0.2), Math.max(ends[1], middle + 0.2)];
    [this.place.dataset.low, this.place.dataset.high] = this.range.map((power) => String(10 ** power));
    this.mark((row) => row.figures?.[this.id], (group) => limits.some(({ limit_ms: limit, allowed }) => shareOver(group.map((row) => row.figures?.[this.id]), limit) > allowed));
    const column = (at) => rows.map((row) => (row[this.id][at] === null ? null : Math.log10(row[this.id][at])));
    this.draw(QUANTILES.map((_, at) => column(at)), isEmpty, "nothing measured in this time");
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

  // Puts a line with its name at each limit. The lines are elements, so that their names can be read and wrapped.
  over(u) {
    super.over(u);
    const known = [...u.over.querySelectorAll(".limit")];
    this.limits.forEach(({ limit_ms: limit, text }, at) => {
      const line = known[at] ?? element("div", u.over, undefined, "limit");
      if (!line.firstChild) element("span", line);
      if (line.firstChild.textContent !== text) line.firstChild.textContent = text;
      line.style.top = `${u.valToPos(Math.log10(limit), "y")}px`;
    });
    for (const line of known.slice(this.limits.length)) line.remove();
  }
}
