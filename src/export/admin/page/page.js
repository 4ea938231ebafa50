// Starts the page and redraws it after new data or after a change of what is selected.

import { Banners } from "./banners.js";
import { Charts } from "./charts.js";
import { byId, clock, setText } from "./dom.js";
import { Engine } from "./engine.js";
import { Feed } from "./feed.js";
import { LATENCIES, WINDOW_SECONDS, phases, slosOf, windowAt } from "./figures.js";
import { Instance } from "./instance.js";
import { showModels } from "./models.js";
import { Requests } from "./requests.js";
import { Selection } from "./selection.js";
import { showSessions } from "./sessions.js";
import { Tables, sumOf } from "./tables.js";
import { View } from "./view.js";

const ALL = "All models";
const [moment, momentText, toNow, range] = ["moment", "moment-text", "to-now", "range"].map(byId);

// Selected moment in ms since 1970; null is the end of what is visible. The pointer's moment has precedence.
let [chosen, pointedAt] = [null, null];
// Cached results per second.
const computed = new WeakMap();
// All rows, and the indexes of the visible ones.
let [rows, visible] = [[], { first: 0, end: -1 }];

const view = new View();
const tables = new Tables();
const banners = new Banners();
const requests = new Requests();
const instance = new Instance();
const on = {
  pointed: (at) => {
    pointedAt = at;
    showMoment();
  },
  zoomed: (from, to) => {
    view.select(from, to);
    redraw();
  },
};
const charts = new Charts(byId("charts"), on);
const engine = new Engine(on);
const feed = new Feed(update);
const selection = new Selection((change) => {
  if (change === "model") feed.look(selection.model);
  else update();
});

function rowOf(second, at, seconds) {
  let row = computed.get(second);
  if (!row) {
    const window = windowAt(seconds, at);
    row = { ...second, phases: phases(second), goodput: {} };
    row.requests = window.perSecond(window.requests);
    row.tokens = window.perSecond(window.tokens);
    for (const id of LATENCIES) row[id] = window.quantiles(id);
    for (const slo of window.slos.keys()) row.goodput[slo] = window.perSecond(window.verdicts(slo)[0]);
    computed.set(second, row);
  }
  return row;
}

function update() {
  const { state, lost } = feed;
  banners.connection(lost, state);
  if (!state) return;
  byId("upstream").textContent = state.upstream.url ?? "an upstream";
  setText(byId("role"), state.replay ? `sending ${state.replay.name} to` : "in front of");
  tables.run(state.replay);
  byId("version").textContent = `Streamgauge ${state.version}.`;
  instance.update(state);
  selection.offer(feed.models, Object.keys(state.slos));
  if (document.hidden) return;
  rows = feed.seconds.map(rowOf);
  engine.take(feed.engine);
  banners.failures(lost, feed.seconds);
  requests.update(feed.requests, selection.model, selection.slo);
  showModels(feed.byModel, slosOf(state, selection.slo), (name) => selection.choose(name));
  showSessions(feed.sessions);
  redraw();
  // Number of redraws, for tests.
  document.body.dataset.seconds = String(rows.length);
}

// Draws the visible rows.
function redraw() {
  if (rows.length === 0) return;
  visible = view.of(rows);
  const shown = { rows: rows.slice(visible.first, visible.end + 1), span: visible.span, slos: slosOf(feed.state, selection.slo) };
  charts.update(shown);
  engine.update(shown);
  moment.min = String(-Math.max(1, visible.end - visible.first));
  range.value = view.selection ? "" : String(view.seconds);
  byId("whole").disabled = !view.selection;
  showMoment();
}

function showMoment() {
  if (rows.length === 0) return;
  const at = pointedAt ?? chosen;
  let index = visible.end;
  if (at !== null) {
    index = rows.findIndex((row) => row.unix_ms >= at);
    // What is visible does not contain the moment: show its end.
    if (index < visible.first || index > visible.end) index = visible.end;
  }
  const [row, last] = [rows[index], rows.at(-1)];
  const isPast = row !== last;
  const ago = Math.round((last.unix_ms - row.unix_ms) / 1000);
  if (document.activeElement !== moment || chosen !== null) moment.value = String(chosen === null ? 0 : index - visible.end);
  const text = isPast ? `${clock(row.unix_ms)}, ${ago} s ago` : "now";
  setText(momentText, text);
  moment.setAttribute("aria-valuetext", text);
  toNow.disabled = chosen === null && !view.selection;
  const when = `the ${WINDOW_SECONDS} s before ${clock(row.unix_ms)}${isPast ? "" : " (now)"}`;
  setText(byId("figures-of"), `${selection.model ?? ALL}, ${when}`);
  charts.show(row, index < visible.end);
  engine.show(row, index - visible.first, index < visible.end);
  tables.update(windowAt(feed.seconds, index), feed.seconds[index], sumOf(feed.seconds), slosOf(feed.state, selection.slo));
  feed.until = chosen === null && !view.selection ? null : row.unix_ms;
  setText(byId("models-of"), `Each in ${feed.until === null ? `the ${WINDOW_SECONDS} s before now` : when}.`);
}

moment.addEventListener("input", () => {
  chosen = Number(moment.value) >= 0 ? null : (rows[Math.max(0, visible.end + Number(moment.value))]?.unix_ms ?? null);
  showMoment();
});

toNow.addEventListener("click", () => {
  chosen = null;
  if (view.selection) view.last(view.seconds);
  moment.focus();
  redraw();
});

range.addEventListener("change", () => {
  view.last(Number(range.value));
  chosen = null;
  redraw();
});

for (const [id, factor] of [["zoom-in", 0.5], ["zoom-out", 2]]) {
  byId(id).addEventListener("click", () => {
    if (rows.length === 0) return;
    view.zoom(factor, chosen ?? rows[visible.end].unix_ms, rows);
    redraw();
  });
}

byId("whole").addEventListener("click", () => {
  view.last(900);
  chosen = null;
  range.focus();
  redraw();
});

feed.look(selection.model);
