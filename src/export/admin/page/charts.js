// All charts of the page.

import { DASHES, colour } from "./chart.js";
import { EventsChart, RatesChart } from "./count_charts.js";
import { LATENCIES } from "./figures.js";
import { LatencyChart } from "./latency_chart.js";

const TITLES = {
  ttft: ["Time to first token", "TTFT, ms"],
  itl: ["Inter-token latency", "ITL, ms"],
  tpot: ["Time per output token", "TPOT, ms"],
};
const ENDINGS = {
  kindsOf: (row) => row.figures?.ended ?? {},
  colourOf: (how) => (how === "done" ? "good" : how === "client_disconnect" ? "third" : "bad"),
  why: "no stream has ended in this time",
};
// A client's own failure says nothing about the server.
const ERRORS = {
  kindsOf: (row) => row.figures?.errors ?? {},
  colourOf: (kind) => (kind.endsWith(" client") ? "third" : "bad"),
  why: "no request has failed in this time",
};

export class Charts {
  constructor(parent, on) {
    this.latencies = LATENCIES.map((id) => new LatencyChart(parent, id, TITLES[id], on));
    this.goodput = new RatesChart(parent, "goodput", ["Goodput", "requests/s that met the SLO"], on);
    this.open = new RatesChart(parent, "in-flight", ["In flight", "requests"], on);
    this.tokens = new RatesChart(parent, "tokens", ["Output", "tokens/s"], on);
    this.endings = new EventsChart(parent, "endings", ["Streams that ended", "count, each row to its own scale"], on, ENDINGS);
    this.errors = new EventsChart(parent, "errors", ["Failed requests", "by status and party at fault; each row to its own scale"], on, ERRORS);
    this.all = [...this.latencies, this.goodput, this.open, this.tokens, this.endings, this.errors];
    // Colors are read when a plot is built.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const chart of this.all) chart.key = null;
      if (this.drawn) this.update(this.drawn);
    });
  }

  // `shown` has the visible rows, the two ends of the time axis in seconds, and the SLOs as {name, target, limits}.
  update(shown) {
    this.drawn = shown;
    const { rows, span, slos } = shown;
    for (const chart of this.latencies) chart.update(rows, span, slos.flatMap(({ limits }) => limits).filter(({ metric }) => metric === chart.id));
    const inks = ["accent", "p90", "p99", "third", "good"].map(colour);
    const line = (name, at) => ({ name, colour: inks[at % inks.length], dash: DASHES[at % DASHES.length] });
    const all = { name: "all requests", colour: colour("soft"), dash: [1, 4] };
    const met = slos.map(({ name }) => rows.map((row) => row.goodput[name] ?? 0));
    this.goodput.markText = slos.length ? "below a target" : undefined;
    this.goodput.update(
      rows,
      span,
      slos.length ? [...slos.map(({ name }, at) => line(name, at)), all] : [],
      slos.length ? [...met, rows.map((row) => row.requests)] : [],
      slos.length ? "no request was judged in this time" : "no SLO is set: --slo 'chat: ttft<=500ms'",
      (group) => slos.some(({ name, target }) => isBelow(group, name, target)),
    );
    const phase = (at) => rows.map((row) => row.phases[at]);
    this.open.update(rows, span, ["waiting", "streaming", "not streamed"].map(line), [0, 1, 2].map(phase), "nothing was open");
    this.tokens.update(rows, span, [line("tokens/s", 0)], [rows.map((row) => row.tokens)], "no token came");
    this.endings.update(rows, span);
    this.errors.update(rows, span);
  }

  // Shows the values of a visible row, and marks its time if `isMarked`.
  show(row, isMarked) {
    for (const chart of this.latencies) chart.show(row, row[chart.id], isMarked);
    const { slos } = this.drawn;
    this.goodput.show(row, slos.length ? [...slos.map(({ name }) => row.goodput[name] ?? 0), row.requests] : [], isMarked);
    this.open.show(row, row.phases, isMarked);
    this.tokens.show(row, [row.tokens], isMarked);
    for (const chart of [this.endings, this.errors]) chart.show(row, [], isMarked);
  }
}

// Returns whether fewer of the requests in these seconds met an SLO than its target demands.
function isBelow(rows, slo, target) {
  let [met, missed] = [0, 0];
  for (const row of rows) {
    const counts = row.figures?.slos?.[slo];
    if (counts) [met, missed] = [met + counts[0], missed + counts[1]];
  }
  return met + missed > 0 && met / (met + missed) < target;
}
