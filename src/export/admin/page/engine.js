// The engine's own figures, beside what the proxy measures.

import { RatesChart } from "./count_charts.js";
import { DASHES, colour } from "./chart.js";
import { bad, byId, fill, number, percent } from "./dom.js";

// Returns the increase per second of a counter between two samples; null after a restart of the engine.
const rate = (now, before, name) => {
  const [a, b] = [now?.figures[name], before?.figures[name]];
  return a === undefined || b === undefined || a < b ? null : (1000 * (a - b)) / (now.unix_ms - before.unix_ms);
};

// Returns the mean time in ms of the requests that were counted between two samples.
const mean = (now, before, of) => {
  const [seconds, requests] = [rate(now, before, `${of}_seconds`), rate(now, before, `${of}_requests`)];
  return seconds !== null && requests > 0 ? (1000 * seconds) / requests : null;
};

export class Engine {
  constructor(on) {
    [this.table, this.section] = [byId("engine"), byId("engine-charts")];
    this.queue = new RatesChart(this.section, "engine-queue", ["Engine: queue", "requests"], on);
    this.share = new RatesChart(this.section, "engine-cache", ["Engine: KV cache", "%"], on);
    this.samples = [];
    this.url = null;
    // Colors are read when a plot is built.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      [this.queue.key, this.share.key] = [null, null];
    });
  }

  // Takes a reply of /api/engine.
  take({ url, failed, interval_ms: interval, samples }) {
    [this.url, this.failed, this.interval] = [url, failed, interval];
    this.samples = samples;
    this.table.hidden = url === null;
    this.section.hidden = url === null;
  }

  // Returns the index of the last sample at a time or before; -1 if it is too old.
  at(unix_ms) {
    const at = this.samples.findLastIndex((sample) => sample.unix_ms <= unix_ms);
    return at >= 0 && unix_ms - this.samples[at].unix_ms < 3 * this.interval ? at : -1;
  }

  update({ rows, span }) {
    if (this.url === null) return;
    const of = rows.map(({ unix_ms }) => this.samples[this.at(unix_ms)]);
    const column = (name, scale = 1) => of.map((sample) => (sample?.figures[name] === undefined ? null : scale * sample.figures[name]));
    const line = (name, at) => ({ name, colour: colour(["accent", "p90"][at]), dash: DASHES[at] });
    this.drawn = [[column("waiting"), column("running")], [column("kv_usage", 100)]];
    const why = this.failed ? `no figures: ${this.failed}` : "nothing waited or ran";
    this.queue.update(rows, span, ["waiting", "running"].map(line), this.drawn[0], why);
    this.share.update(rows, span, [line("used", 0)], this.drawn[1], this.failed ? why : "the cache is empty, or the engine does not report it");
  }

  // Shows the values of the visible row `at`.
  show(row, at, isMarked) {
    if (this.url === null) return;
    const value = (column) => column[at] ?? null;
    this.queue.show(row, this.drawn[0].map(value), isMarked);
    this.share.show(row, this.drawn[1].map(value), isMarked);
    const index = this.at(row.unix_ms);
    const [now, before] = [this.samples[index], this.samples[index - 1]];
    const figure = (name) => now?.figures[name];
    const hits = [rate(now, before, "prefix_hits"), rate(now, before, "prefix_queries")];
    const preemptions = rate(now, before, "preemptions");
    const rows = [
      ["waiting", number(figure("waiting"))],
      ["of these, deferred", number(figure("waiting_deferred"))],
      ["running", number(figure("running"))],
      ["KV cache used", figure("kv_usage") === undefined ? "–" : percent(figure("kv_usage"), 1)],
      ["prefix tokens hit", hits[0] === null || hits[1] === null ? "–" : percent(...hits)],
      ["preemptions/s", preemptions > 0 ? bad(number(preemptions), "requests were interrupted for lack of cache") : number(preemptions)],
      ["queue, mean ms", number(mean(now, before, "queue"))],
      ["prefill, mean ms", number(mean(now, before, "prefill"))],
      ["decode, mean ms", number(mean(now, before, "decode"))],
      ["prompt tokens/s", number(rate(now, before, "prompt_tokens"))],
      ["generated tokens/s", number(rate(now, before, "generation_tokens"))],
    ];
    fill(this.table, rows.map(([name, cell]) => ({ name, cells: [cell] })));
  }
}
