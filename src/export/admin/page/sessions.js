// The sessions of the last quarter of an hour, which a capture finds: turns and times, cache by turn, the latest ones.

import { bad, byId, fill, number, percent } from "./dom.js";

const seconds = (milliseconds) => number(milliseconds / 1000);
const share = (value) => percent(value ?? NaN, 1);

// `sessions` is undefined without a capture, and until a session has ended its first turn.
export function showSessions(sessions) {
  byId("sessions").hidden = !sessions;
  if (!sessions) return;
  const { sessions: count, sub_agents: agents, removed, model_share: model } = sessions;
  const parts = [
    `${number(count)} with a turn in the last 15 minutes`,
    agents > 0 ? `${number(agents)} of them sub-agents` : "",
    model === null ? "" : `${share(model)} of their time in the model, ${share(1 - model)} in tools and pauses`,
    removed > 0 ? `${number(removed)} left out for lack of room` : "",
  ];
  byId("sessions-of").textContent = `${parts.filter(Boolean).join("; ")}.`;
  const { turns } = sessions;
  const time = (name, of) => ({ name, cells: [of.mean_ms, of.p50_ms, of.p90_ms, of.max_ms].map(seconds) });
  fill(byId("session-times"), [
    { name: "turns", cells: [turns.mean, turns.p50, turns.p90, turns.max].map(number) },
    time("model time, s", sessions.model),
    time("tool time, s", sessions.tool),
    time("time to last turn, s", sessions.time_to_last_turn),
  ]);
  const turn = ({ turn: name, requests, input_tokens: tokens, cached_share: cached }) => ({
    name,
    cells: [number(requests), tokens > 0 ? number(tokens) : "–", share(cached)],
  });
  fill(byId("session-cache"), sessions.by_turn.map(turn), "No request of a session has ended yet.");
  const goodput = ({ slo, met, counted, share: of }) => ({ name: slo, cells: [share(of), number(met), number(counted)] });
  fill(byId("session-goodput"), sessions.goodput.map(goodput), "No SLO applies.");
  const row = (session) => ({
    name: session.session,
    about: session.parent ? `sub-agent of ${session.parent}` : undefined,
    cells: [
      number(session.turns),
      seconds(session.model_ms),
      seconds(session.tool_ms),
      seconds(session.time_to_last_turn_ms),
      share(session.cached_share),
      session.missed_slos.length ? bad(session.missed_slos.join(", "), "missed in a turn") : "–",
      seconds(session.idle_ms),
    ],
  });
  fill(byId("latest-sessions"), sessions.latest.map(row), "None.");
}
