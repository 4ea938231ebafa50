// The phases of one request, and their bars.

import { element, number } from "./dom.js";

// Returns the phases of a request as {id, name, from, to} in ms after its first byte. Where the queue ends and the prefill
// begins, only the engine knows. A stamp that is missing, or before the one before it, makes an empty phase.
export function phasesOf({ phases_ms: at, duration_ms: end, engine_prefill_ms: prefill }) {
  const ends = [["send", "request sent", at.sent]];
  if (at.first_token === null) {
    ends.push(["wait", "wait for the response", at.head], ["end", "response", end]);
  } else {
    if (prefill === null) ends.push(["wait", "queue and prefill", at.first_token]);
    else ends.push(["queue", "queue", at.first_token - prefill], ["wait", "prefill, by the engine", at.first_token]);
    if (at.first_output === null) ends.push(["reason", "reasoning", at.last_token]);
    else ends.push(["reason", "reasoning", at.first_output], ["tokens", "tokens", at.last_token]);
    ends.push(["end", "end of the stream", end]);
  }
  let before = 0;
  const phases = ends.map(([id, name, stamp]) => {
    const from = before;
    before = Math.min(end, Math.max(before, stamp ?? before));
    return { id, name, from, to: before };
  });
  return phases.filter(({ id, from, to }) => to > from || id === "wait");
}

// Fills `place` with the bars of a request on an axis of `length` ms.
export function bars(place, phases, length) {
  place.replaceChildren();
  for (const { id, from, to } of phases) {
    const bar = element("i", place, undefined, `phase ${id}`);
    bar.style.left = `${(100 * from) / length}%`;
    bar.style.width = `${(100 * (to - from)) / length}%`;
  }
}

// Shows one request in the panel: its ids and figures, and one row per phase.
export function showRequest(panel, request) {
  panel.hidden = !request;
  if (!request) return;
  const phases = phasesOf(request);
  const tokens = request.output_tokens === null ? "–" : `${number(request.output_tokens)} (${request.output_tokens_from})`;
  const facts = [
    ["Response id", request.response_id ?? "–"],
    ["Trace id", request.trace_id ?? "–"],
    ["Model, route", `${request.model ?? "–"}, ${request.route || "–"}`],
    ["Outcome", [request.outcome, request.status ?? "no status", request.fault && `by the ${request.fault}`, request.local_reply && "answered by the proxy"].filter(Boolean).join(", ")],
    ["SLOs missed", request.missed_slos.join(", ") || "none"],
    ["TTFT, TPOT, longest gap", `${number(request.ttft_ms)}, ${number(request.tpot_ms)}, ${number(request.longest_gap_ms)} ms`],
    ["Input tokens", request.input_tokens === null ? "–" : `${number(request.input_tokens)}${request.cached_tokens === null ? "" : `, ${number(request.cached_tokens)} cached`}`],
    ["Output tokens", tokens],
    ["Client took no bytes for", `${number(request.write_blocked_ms)} ms`],
  ];
  const list = panel.querySelector("dl");
  list.replaceChildren();
  for (const [name, text] of facts) {
    element("dt", list, name);
    element("dd", list, text);
  }
  const body = panel.querySelector("tbody");
  body.replaceChildren();
  for (const phase of phases) {
    const row = element("tr", body);
    element("th", row, phase.name).scope = "row";
    for (const value of [phase.from, phase.to - phase.from]) element("td", row, number(value));
    const place = element("div", element("td", row, undefined, "fall"), undefined, "bars");
    bars(place, [phase], request.duration_ms || 1);
    place.setAttribute("aria-hidden", "true");
  }
}
