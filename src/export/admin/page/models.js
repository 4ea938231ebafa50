// The models side by side: one row each, of the ten seconds before the moment.

import { bad, byId, fill, number } from "./dom.js";
import { Window } from "./figures.js";
import { limitsOf, metCell, quantileCell } from "./tables.js";

// `select` is called with a model's name.
export function showModels(seconds, slos, select) {
  const windows = new Map();
  for (const { length_ms, by_model: models = {} } of seconds) {
    for (const [name, figures] of Object.entries(models)) {
      if (!windows.has(name)) windows.set(name, { window: new Window(), open: [0, 0, 0] });
      const of = windows.get(name);
      of.window.add({ length_ms: 0, figures });
      of.open = length_ms && models === seconds.at(-1).by_model ? (figures.open ?? [0, 0, 0]) : [0, 0, 0];
    }
  }
  const milliseconds = seconds.reduce((sum, { length_ms }) => sum + length_ms, 0);
  const row = ([name, { window, open }]) => {
    window.milliseconds = milliseconds;
    const of = (id) => window.quantiles(id);
    const [ttft, itl, tpot] = ["ttft", "itl", "tpot"].map(of);
    const cell = (id, values, at, q) => quantileCell(values[at], q, limitsOf(slos, id));
    const errors = [...window.failures].filter(([fault]) => fault !== "client").reduce((sum, [, count]) => sum + count, 0);
    const verdicts = slos.map((slo) => [slo, window.verdicts(slo.name)]).filter(([, [met, missed]]) => met + missed > 0);
    // The SLO that the fewest requests met.
    const worst = verdicts.sort(([, a], [, b]) => a[0] / (a[0] + a[1]) - b[0] / (b[0] + b[1]))[0];
    return {
      name,
      pressed: () => select(name),
      cells: [
        number(window.perSecond(window.requests)),
        number(window.perSecond(window.tokens)),
        number(open[0]),
        cell("ttft", ttft, 0, 0.5),
        cell("ttft", ttft, 2, 0.99),
        cell("itl", itl, 2, 0.99),
        cell("tpot", tpot, 0, 0.5),
        worst ? metCell(worst[1], worst[0].target) : "–",
        errors > 0 ? bad(number(errors), "failures of the server or the proxy") : "0",
      ],
    };
  };
  fill(byId("models"), [...windows].sort(([a], [b]) => a.localeCompare(b)).map(row), "No model was active.");
}
