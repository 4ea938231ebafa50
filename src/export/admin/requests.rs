//! `/api/requests`: the last 500 requests, without their text.
//!
//! `/api/requests?after=CURSOR` returns only requests after an earlier reply's `next`. A cursor that is too old, or from
//! another process, returns all.
//!
//! ```json
//! {"next": "1750000000000-912", "whole": true, "requests": [R]}
//! ```
//! where R is one request; an unknown value is `null`:
//! ```json
//! R = {
//!   "ended_unix_ms": 1750000012345, "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "response_id": "chatcmpl-1",
//!   "model": "tiny", "route": "/v1/chat/completions", "status": 200, "outcome": "success", "local_reply": false,
//!   "fault": null, "missed_slos": ["chat"], "ttft_ms": 12.3, "tpot_ms": 5.1, "longest_gap_ms": 20.2, "duration_ms": 456.7,
//!   "phases_ms": {"sent": 0.4, "head": 9.8, "first_token": 12.3, "first_output": 12.3, "last_token": 450.1},
//!   "engine_prefill_ms": 8.9, "input_tokens": 210, "cached_tokens": 128, "output_tokens": 64,
//!   "output_tokens_from": "usage",
//!   "malformed_events": 0, "unread": null, "request_unread": null, "write_blocked_ms": 0.0
//! }
//! ```
//!
//! `requests` starts with the latest request. `local_reply` is true if the proxy answered instead of the server.
//! `fault` names the party at fault (`upstream`, `proxy`, `client`). `phases_ms` counts from the first byte of the
//! request at the proxy. It ends at the request's last byte, the response head, the first token, the first token that
//! is not reasoning, and the last token. `engine_prefill_ms` is the time from the start of the prefill to the first
//! token, by the engine's own clock: vLLM (`--enable-per-request-metrics`) and llama.cpp report it. `malformed_events`
//! counts events that were invalid in a known dialect. `unread` is the reason why the rest of a reply was not parsed
//! (`coding`, `too_large`, `malformed`, `budget`), and `request_unread` that for the request. During `write_blocked_ms`
//! the client accepted no bytes, so the client caused those gaps.

use schemars::JsonSchema;
use serde::Serialize;

use super::cursor::Cursor;
use crate::export::control::recent_requests::{RecentRequest, RecentSince};
use crate::export::control::state::ControlState;
use crate::export::registry::models::escape_invisible;
use crate::measure::record::{RecordTimes, UnreadReason};
use crate::measure::time::{Gap, Stamp};

/// The response of `/api/requests`.
#[derive(Serialize, JsonSchema)]
pub struct RequestsResponse {
    next: String,
    whole: bool,
    requests: Vec<RecentRequestView>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct RecentRequestView {
    ended_unix_ms: u64,
    trace_id: Option<String>,
    response_id: Option<String>,
    model: Option<Box<str>>,
    route: &'static str,
    status: Option<u16>,
    outcome: &'static str,
    local_reply: bool,
    fault: Option<&'static str>,
    missed_slos: Vec<Box<str>>,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
    longest_gap_ms: Option<f64>,
    duration_ms: f64,
    phases_ms: PhasesView,
    engine_prefill_ms: Option<f64>,
    input_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    output_tokens: Option<u64>,
    output_tokens_from: Option<&'static str>,
    malformed_events: u32,
    unread: Option<&'static str>,
    request_unread: Option<&'static str>,
    write_blocked_ms: f64,
}

/// Ends of the phases of a request, in ms after its first byte.
#[derive(Serialize, JsonSchema)]
struct PhasesView {
    sent: Option<f64>,
    head: Option<f64>,
    first_token: Option<f64>,
    first_output: Option<f64>,
    last_token: Option<f64>,
}

impl RequestsResponse {
    /// Answers a query of a URL; invalid parts are ignored.
    pub(super) fn of(telemetry: &ControlState, query: &str) -> Self {
        let run = telemetry.started.unix / 1_000_000;
        let after = query.split('&').find_map(|pair| Cursor::parse(pair.strip_prefix("after=")?)?.of_run(run));
        let RecentSince { requests, added, whole } = telemetry.recent_since(after);
        Self {
            next: Cursor { run, at: added }.to_string(),
            whole,
            requests: requests.into_iter().map(RecentRequestView::of).collect(),
        }
    }
}

impl RecentRequestView {
    pub(super) fn of(recent: RecentRequest) -> Self {
        Self {
            ended_unix_ms: recent.unix / 1_000_000,
            trace_id: recent.trace_id.map(|id| id.to_string()),
            response_id: recent.response_id.as_deref().map(|id| escape_invisible(id).into_owned()),
            missed_slos: recent.missed_slos().map(Into::into).collect(),
            model: recent.model.as_deref().map(Into::into),
            route: recent.route,
            status: recent.status,
            outcome: recent.outcome,
            local_reply: recent.local_reply,
            fault: recent.fault,
            ttft_ms: recent.ttft.map(Gap::as_millis),
            tpot_ms: recent.tpot.map(Gap::as_millis),
            longest_gap_ms: recent.longest_gap.map(Gap::as_millis),
            duration_ms: recent.duration.as_millis(),
            phases_ms: PhasesView::of(&recent.times),
            engine_prefill_ms: recent.engine_prefill.map(Gap::as_millis),
            input_tokens: recent.usage.input,
            cached_tokens: recent.usage.cached,
            output_tokens: recent.output_tokens.map(|count| count.tokens),
            output_tokens_from: recent.output_tokens.map(|count| count.source.name()),
            malformed_events: recent.quality.malformed_events,
            unread: recent.quality.unread.map(UnreadReason::name),
            request_unread: recent.quality.request_unread.map(UnreadReason::name),
            write_blocked_ms: recent.quality.write_blocked.as_millis(),
        }
    }
}

impl PhasesView {
    fn of(times: &RecordTimes) -> Self {
        let after = |at: Option<Stamp>| at.map(|at| at.since(times.received).as_millis());
        Self {
            sent: after(times.sent),
            head: after(times.head),
            first_token: after(times.first_token),
            first_output: after(times.first_output),
            last_token: after(times.last_token),
        }
    }
}
