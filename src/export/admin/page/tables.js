// Shows the values of one moment as tables. Only changed cells are updated.

import { number } from "./charts.js";
import { LATENCIES, Window, phases } from "./figures.js";

const NAMES = { ttft: "TTFT", itl: "ITL", tpot: "TPOT" };
// Labels of the party at fault, by metric name.
const FAULTS = { upstream: "failed: upstream", proxy: "failed: proxy", client: "failed: client" };
const percent = (part, of) => (of > 0 ? `${number((100 * part) / of)} %` : "–");

// Fills a table's body with rows. Each row has a heading, optionally with a second line, and cells; a cell that begins
// with # is a heading too.
function fill(table, rows, nothing) {
  const body = table.tBodies[0];
  if (rows.length === 0) {
    if (body.dataset.rows === "none") return;
    body.dataset.rows = "none";
    const cell = document.createElement("td");
    cell.className = "none";
    cell.colSpan = table.tHead.rows[0].cells.length;
    cell.textContent = nothing;
    const row = document.createElement("tr");
    row.append(cell);
    body.replaceChildren(row);
    return;
  }
  const shape = JSON.stringify(rows.map(({ name, about }) => [name, about]));
  if (body.dataset.rows !== shape) {
    body.dataset.rows = shape;
    body.replaceChildren(...rows.map(line));
  }
  rows.forEach(({ cells }, at) => {
    const of = body.rows[at].cells;
    cells.forEach((text, column) => {
      if (of[column + 1].textContent !== text) of[column + 1].textContent = text;
    });
  });
}

function line({ name, about, cells, headings = [] }) {
  const row = document.createElement("tr");
  const heading = document.createElement("th");
  heading.scope = "row";
  heading.textContent = name;
  if (about) {
    const small = document.createElement("small");
    small.textContent = about;
    heading.append(small);
  }
  row.append(heading, ...cells.map((_, at) => {
    const cell = document.createElement(headings.includes(at) ? "th" : "td");
    if (headings.includes(at)) cell.scope = "row";
    return cell;
  }));
  return row;
}

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

  // `window` ends with `second`; `all` covers all shown models; `slos` maps names to objectives,
  // and `targets` to the share that should meet them.
  update(window, second, all, slos, targets) {
    const latency = (id) => ({
      name: NAMES[id],
      cells: [...window.quantiles(id).map(number), number(window.count(id))],
    });
    fill(this.latency, LATENCIES.map(latency));
    const [waiting, streaming, others] = phases(second).map(number);
    fill(this.traffic, [
      { name: "requests", cells: [number(window.perSecond(window.requests)), "waiting", waiting], headings: [1] },
      { name: "tokens", cells: [number(window.perSecond(window.tokens)), "streaming", streaming], headings: [1] },
      { name: "", cells: ["", "not streamed", others], headings: [1] },
    ]);
    const goodput = ([name, text]) => {
      const [met, missed, , tokens] = window.verdicts(name);
      // A word says what is bad, not only a colour.
      const isBelow = met + missed > 0 && met / (met + missed) < targets[name];
      return {
        name,
        about: text.replace(`${name}: `, "").replace(`${name}[`, "["),
        cells: [percent(met, met + missed), number(window.perSecond(met)), number(window.perSecond(tokens)),
          `${isBelow ? "below " : ""}${Number((100 * targets[name]).toFixed(3))} %`],
      };
    };
    fill(this.slos, slos.map(goodput), "No SLO is set: --slo 'chat: ttft<=500ms' sets one.");
    const count = (counts, name) => (key) => ({ name: name(key), cells: [number(window[counts].get(key) ?? 0), number(all[counts].get(key) ?? 0)] });
    const classes = [...all.responses.keys()].sort();
    const faults = ["upstream", "proxy", "client"].filter((fault) => all.failures.has(fault));
    fill(this.responses, [
      ...classes.map(count("responses", (of) => (of === "none" ? "no status" : of))),
      ...faults.map(count("failures", (fault) => FAULTS[fault])),
    ], "None has ended yet.");
    const hows = [...all.ended.keys()].sort((a, b) => (b === "done") - (a === "done") || a.localeCompare(b));
    const ending = (how) => ({ name: how, cells: [number(window.ended.get(how) ?? 0), number(all.ended.get(how))] });
    fill(this.endings, hows.map(ending), "None has ended yet.");
  }
}

// Returns the sum of all seconds.
export function sumOf(seconds) {
  const sum = new Window();
  for (const second of seconds) sum.add(second);
  return sum;
}
