// Starts the page and redraws it after new data or after a change of the selected moment.

import { Charts, clock } from "./charts.js";
import { Feed } from "./feed.js";
import { LATENCIES, WINDOW_SECONDS, phases, windowAt } from "./figures.js";
import { Tables, sumOf } from "./tables.js";

const ALL = "All models";
const byId = (id) => document.getElementById(id);
const [model, moment, told, toNow, banners] = ["model", "moment", "moment-told", "to-now", "banners"].map(byId);

// Selected moment in ms since 1970; null is now. The pointer's moment has precedence over the chosen one.
let [chosen, pointedAt] = [null, null];
// Cached results per second.
const computed = new WeakMap();
let [rows, lastNames] = [[], null];

const tables = new Tables();
const charts = new Charts(byId("charts"), (at) => {
  pointedAt = at === null ? null : (rows[at]?.unix_ms ?? null);
  showMoment();
});
const feed = new Feed(update);

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
  showConnection(lost, state);
  if (!state) return;
  byId("upstream").textContent = state.upstream.url ?? "an upstream";
  setText(byId("role"), state.replay ? `sending ${state.replay.name} to` : "in front of");
  tables.run(state.replay);
  byId("version").textContent = `Streamgauge ${state.version}.`;
  showModels();
  if (document.hidden) return;
  rows = feed.seconds.map(rowOf);
  showFailures(lost);
  charts.update(rows, Object.keys(state.slos));
  moment.min = String(1 - Math.max(2, rows.length));
  showMoment();
  // Number of redraws, for tests.
  document.body.dataset.seconds = String(rows.length);
}

function showMoment() {
  const last = rows.length - 1;
  if (last < 0) return;
  const at = pointedAt ?? chosen;
  let index = last;
  if (at !== null) {
    index = rows.findIndex((row) => row.unix_ms >= at);
    // The history does not contain the moment: show the latest second.
    if (index < 0) index = last;
  }
  const isPast = at !== null && index < last;
  const row = rows[index];
  const ago = Math.round((rows[last].unix_ms - row.unix_ms) / 1000);
  if (document.activeElement !== moment || chosen !== null) moment.value = String(chosen === null ? 0 : index - last);
  const text = isPast ? `${clock(row.unix_ms)}, ${ago} s ago` : "now";
  setText(told, text);
  moment.setAttribute("aria-valuetext", text);
  toNow.disabled = chosen === null;
  setText(byId("figures-of"), `${model.selectedOptions[0]?.textContent ?? ALL}, the ${WINDOW_SECONDS} s before ${clock(row.unix_ms)}${isPast ? "" : " (now)"}`);
  charts.show(index, isPast);
  tables.update(windowAt(feed.seconds, index), feed.seconds[index], sumOf(feed.seconds), Object.entries(feed.state.slos), feed.state.slo_targets);
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Problems to show. Screen readers announce each when it begins, not every second.
function showConnection(lost, state) {
  const connection = byId("connection");
  connection.className = lost ? "lost" : state ? "live" : "connecting";
  setText(connection, lost ? "Disconnected" : state ? "Live" : "Connecting");
  document.body.classList.toggle("stale", lost !== null);
  document.title = `${lost ? "Disconnected: " : ""}Streamgauge${state?.upstream.url ? `, ${state.upstream.url}` : ""}`;
  const { upstream } = state ?? {};
  const since = (ms) => (ms ? ` since ${clock(ms)}` : "");
  banner("disconnected", "down", lost && ["Disconnected", `${since(lost.since)}: ${state?.replay ? "the run has ended, or its admin port does not answer" : "the proxy's admin port does not answer"}. What is shown is old; trying again every second.`]);
  banner("upstream-down", "down", !lost && upstream?.state === "unreachable" && ["Upstream down", `${since(upstream.since_unix_ms)}: ${upstream.reason ?? "it cannot be reached"}.`]);
  banner("not-ready", "down", !lost && state && !state.ready && (state.replay ? ["Ending", ": nothing more is sent; open requests may end."] : ["Not ready", ": the proxy takes no requests; it is starting or stopping."]));
  banner("simulated", "simulated", state?.simulated && ["Simulated", ": the server is simulated. Its times are of a cost model and say nothing about any hardware; the measurements are real."]);
  banner("left-out", "note", state?.models_left_out > 0 && ["Many models", `: ${state.models_left_out} of them have no history of their own and count only in ${ALL}.`]);
}

// Current failures, independent of the selected moment; a client's own failures are left out. The texts contain no
// numbers, because screen readers announce a banner whenever it changes. The table of responses has the counts.
function showFailures(lost) {
  const { failures } = windowAt(feed.seconds, feed.seconds.length - 1);
  const [upstream, proxy] = ["upstream", "proxy"].map((fault) => !lost && failures.has(fault));
  if (upstream || proxy) {
    const connection = byId("connection");
    connection.className = "failing";
    setText(connection, "Failing");
  }
  banner("upstream-fails", "down", upstream && ["Upstream fails", `: requests failed in the last ${WINDOW_SECONDS} s because it cannot be reached, answers 5xx, or breaks off. See Responses.`]);
  banner("proxy-fails", "down", proxy && ["Proxy rejects", `: requests failed in the last ${WINDOW_SECONDS} s by a limit of the proxy; the header x-streamgauge-error of its answers says which.`]);
}

function banner(id, kind, told) {
  let place = byId(id);
  if (!told) {
    place?.remove();
    return;
  }
  if (!place) {
    place = document.createElement("p");
    place.id = id;
    place.className = `banner ${kind}`;
    place.append(document.createElement("b"), document.createElement("span"));
    banners.append(place);
  }
  setText(place.firstChild, told[0]);
  setText(place.lastChild, told[1]);
}

function showModels() {
  const names = [...feed.models];
  // The selected model stays in the list even after long inactivity.
  if (feed.model !== null && !names.includes(feed.model)) names.push(feed.model);
  const key = JSON.stringify(names);
  if (key === lastNames) return;
  lastNames = key;
  const option = (text, value) => Object.assign(document.createElement("option"), { textContent: text, value });
  // The prefix keeps model names apart from the value for all models.
  model.replaceChildren(option(ALL, "all"), ...names.map((name) => option(name, `=${name}`)));
  model.value = feed.model === null ? "all" : `=${feed.model}`;
}

model.addEventListener("change", () => {
  const name = model.value === "all" ? null : model.value.slice(1);
  history.replaceState(null, "", name === null ? location.pathname : `#model=${encodeURIComponent(name)}`);
  feed.look(name);
});

moment.addEventListener("input", () => {
  const index = rows.length - 1 + Number(moment.value);
  chosen = index >= rows.length - 1 ? null : (rows[Math.max(0, index)]?.unix_ms ?? null);
  showMoment();
});

toNow.addEventListener("click", () => {
  chosen = null;
  moment.focus();
  showMoment();
});

function modelOfAddress() {
  try {
    const [, name] = location.hash.match(/^#model=(.+)$/) ?? [];
    return name === undefined ? null : decodeURIComponent(name);
  } catch {
    return null;
  }
}

feed.look(modelOfAddress());
