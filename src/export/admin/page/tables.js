// Shows the values of one moment as tables.

import { bad, fill, number, percent } from "./dom.js";
import { LATENCIES, QUANTILES, Window, phases } from "./figures.js";

export const NAMES = { ttft: "TTFT", itl: "ITL", tpot: "TPOT" };

// Returns the cell of a quantile: bad if it shows that more values are above a limit than the limit's SLO allows.
export function quantileCell(value, quantile, limits) {
  const broken = value === null ? undefined : limits.find(({ limit_ms: limit, allowed }) => value > limit && quantile <= 1 - allowed + 1e-9);
  return broken ? bad(number(value), `over ${broken.text}`) : number(value);
}

const targetText = (target) => `${Number((100 * target).toFixed(3))} %`;

// Returns the cell of an SLO's share: bad if it is below the target.
export function metCell([met, missed], target) {
  const text = percent(met, met + missed);
  const isBelow = met + missed > 0 && met / (met + missed) < target;
  return isBelow ? bad(text, `below the target of ${targetText(target)}`) : text;
}

export const limitsOf = (slos, id) => slos.flatMap(({ limits }) => limits).filter(({ metric }) => metric === id);

export class Tables {
  constructor() {
    for (const id of ["latency", "traffic", "slos", "responses", "endings"]) this[id] = document.getElementById(id);
    this.ofRun = document.getElementById("run");
  }

  // Shows the result of a run; `run` is undefined in a proxy.
  run(run) {
    this.ofRun.hidden = !run;
    if (!run) return;
    const rows = [
      ["planned", run.planned === null ? "–" : number(run.planned)],
      ["sent", number(run.sent)],
      ["in flight", number(run.in_flight)],
      ["ended", number(run.ended)],
      ["not successful", number(run.failed)],
      ["send lag p99, ms", run.lag_ms ? number(run.lag_ms.p99) : "–"],
      ["seconds", `${number(Math.floor(run.age_s))}${run.length_s === null ? "" : ` of ${number(Math.round(run.length_s))}`}`],
    ];
    fill(this.ofRun, rows.map(([name, cell]) => ({ name, cells: [cell] })));
  }

  // `window` ends with `second`; `all` covers all shown seconds; `slos` are those of slosOf().
  update(window, second, all, slos) {
    const latency = (id) => {
      const limits = limitsOf(slos, id);
      const quantiles = window.quantiles(id).map((value, at) => quantileCell(value, QUANTILES[at][1], limits));
      return { name: NAMES[id], cells: [...quantiles, number(window.count(id))] };
    };
    fill(this.latency, LATENCIES.map(latency));
    const [waiting, streaming, others] = phases(second).map(number);
    fill(this.traffic, [
      { name: "requests", cells: [number(window.perSecond(window.requests)), "waiting", waiting], headings: [1] },
      { name: "tokens", cells: [number(window.perSecond(window.tokens)), "streaming", streaming], headings: [1] },
      { name: "", cells: ["", "not streamed", others], headings: [1] },
    ]);
    const goodput = ({ name, text, target }) => {
      const [met, missed, , tokens] = window.verdicts(name);
      return {
        name,
        about: text.replace(`${name}: `, "").replace(`${name}[`, "["),
        cells: [metCell([met, missed], target), number(window.perSecond(met)), number(window.perSecond(tokens)), targetText(target)],
      };
    };
    fill(this.slos, slos.map(goodput), "No SLO is set: --slo 'chat: ttft<=500ms' sets one.");
    const count = (counts, name, why) => (key) => {
      const now = number(window[counts].get(key) ?? 0);
      return { name: name(key), cells: [why(key) && now !== "0" ? bad(now, why(key)) : now, number(all[counts].get(key) ?? 0)] };
    };
    const status = (of) => (of === "none" ? "no status" : of);
    const error = (key) => {
      const [of, fault] = key.split(" ");
      return `failed, ${status(of)}: ${fault}`;
    };
    fill(this.responses, [
      ...[...all.responses.keys()].sort().map(count("responses", status, () => "")),
      ...[...all.errors.keys()].sort().map(count("errors", error, (key) => (key.endsWith(" client") ? "" : "a failure"))),
    ], "None has ended yet.");
    const hows = [...all.ended.keys()].sort((a, b) => (b === "done") - (a === "done") || a.localeCompare(b));
    fill(this.endings, hows.map(count("ended", (how) => how, (how) => (["done", "client_disconnect"].includes(how) ? "" : "a failure"))), "None has ended yet.");
  }
}

// Returns the sum of all seconds.
export function sumOf(seconds) {
  const sum = new Window();
  for (const second of seconds) sum.add(second);
  return sum;
}
