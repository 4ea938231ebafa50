// Problems to show. Screen readers announce each when it begins, not every second.

import { byId, clock, element, setText } from "./dom.js";
import { WINDOW_SECONDS, windowAt } from "./figures.js";

export class Banners {
  connection(lost, state) {
    const connection = byId("connection");
    connection.className = lost ? "lost" : state ? "live" : "connecting";
    setText(connection, lost ? "Disconnected" : state ? "Live" : "Connecting");
    document.body.classList.toggle("stale", lost !== null);
    document.title = `${lost ? "Disconnected: " : ""}Streamgauge${state?.upstream.url ? `, ${state.upstream.url}` : ""}`;
    const { upstream } = state ?? {};
    const since = (ms) => (ms ? ` since ${clock(ms)}` : "");
    this.show("disconnected", "down", lost && ["Disconnected", `${since(lost.since)}: ${state?.replay ? "the run has ended, or its admin port does not answer" : "the proxy's admin port does not answer"}. What is shown is old; trying again every second.`]);
    this.show("upstream-down", "down", !lost && upstream?.state === "unreachable" && ["Upstream down", `${since(upstream.since_unix_ms)}: ${upstream.reason ?? "it cannot be reached"}.`]);
    this.show("not-ready", "down", !lost && state && !state.ready && (state.replay ? ["Ending", ": nothing more is sent; open requests may end."] : ["Not ready", ": the proxy takes no requests; it is starting or stopping."]));
    this.show("simulated", "simulated", state?.simulated && ["Simulated", ": the server is simulated. Its times are of a cost model and say nothing about any hardware; the measurements are real."]);
    this.show("left-out", "note", state?.models_left_out > 0 && ["Many models", `: ${state.models_left_out} of them have no history of their own and count only in All models.`]);
  }

  // Current failures, independent of the selected moment; a client's own failures are left out. The texts contain no
  // numbers, because screen readers announce a banner whenever it changes. The table of responses has the counts.
  failures(lost, seconds) {
    const { failures } = windowAt(seconds, seconds.length - 1);
    const [upstream, proxy] = ["upstream", "proxy"].map((fault) => !lost && failures.has(fault));
    if (upstream || proxy) {
      const connection = byId("connection");
      connection.className = "failing";
      setText(connection, "Failing");
    }
    this.show("upstream-fails", "down", upstream && ["Upstream fails", `: requests failed in the last ${WINDOW_SECONDS} s because it cannot be reached, answers 5xx, or breaks off. See Responses.`]);
    this.show("proxy-fails", "down", proxy && ["Proxy rejects", `: requests failed in the last ${WINDOW_SECONDS} s by a limit of the proxy; the header x-streamgauge-error of its answers says which.`]);
  }

  show(id, kind, message) {
    let place = byId(id);
    if (!message) {
      place?.remove();
      return;
    }
    if (!place) {
      place = element("p", undefined, undefined, `banner ${kind}`);
      place.id = id;
      element("b", place);
      element("span", place);
      byId("banners").append(place);
    }
    setText(place.firstChild, message[0]);
    setText(place.lastChild, message[1]);
  }
}
