//! `/api/state`: version, open requests and recent requests.
//!
//! ```json
//! {
//!   "version": "0.1.0", "config_digest": "…", "started_unix_ms": 1750000000000, "uptime_s": 12.5, "ready": true,
//!   "upstream": {"url": "http://127.0.0.1:8000", "state": "reachable"},
//!   "in_flight": {"requests": 3, "waiting": 1, "streaming": 2, "by_model": {"tiny": 3},
//!     "streams_by_model": {"tiny": {"waiting": 1, "streaming": 2}}},
//!   "upstream_connections": {"idle": 1, "active": 3},
//!   "recent": [{
//!     "ended_unix_ms": 1750000012345, "model": "tiny", "route": "/v1/chat/completions", "status": 200,
//!     "outcome": "success", "local_reply": false, "fault": null, "ttft_ms": 12.3, "duration_ms": 456.7, "output_tokens": 64, "output_tokens_from": "usage",
//!     "malformed_events": 0, "unread": null, "request_unread": null, "write_blocked_ms": 0.0
//!   }]
//! }
//! ```
//!
//! In a run (`streamgauge replay`, `load`) it also contains `replay` as in `/api/history`.
//!
//! `recent` starts with the latest request; an unknown value is `null`. `local_reply` is true if the proxy answered
//! instead of the server. `fault` names the party at fault (`upstream`, `proxy`, `client`). `malformed_events` counts
//! events that were invalid in a known dialect. `unread` is the reason why the rest of a reply was not parsed
//! (`coding`, `too_large`, `malformed`, `budget`), and `request_unread` that for the request. During `write_blocked_ms`
//! the client accepted no bytes, so the client caused those gaps. `state` is `unknown`, `reachable` or `unreachable`.

use schemars::JsonSchema;
use serde::Serialize;

use crate::export::control::live_view::InFlight;
use crate::export::control::run_status;
use crate::export::control::state::{ControlState, RecentRequest};
use crate::export::registry::gauges::UpstreamHealth;
use crate::measure::record::UnreadReason;
use crate::measure::time::Gap;

/// The response of `/api/state`.
#[derive(Serialize, JsonSchema)]
pub struct StateResponse<'a> {
    version: &'static str,
    config_digest: String,
    started_unix_ms: u64,
    uptime_s: f64,
    ready: bool,
    upstream: UpstreamState<'a>,
    in_flight: InFlight,
    upstream_connections: ConnectionCounts,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<run_status::RunView<'a>>,
    recent: Vec<RecentRequestView>,
}

#[derive(Serialize, JsonSchema)]
struct UpstreamState<'a> {
    url: Option<&'a str>,
    state: &'static str,
}

#[derive(Serialize, JsonSchema)]
struct ConnectionCounts {
    idle: i64,
    active: i64,
}

#[derive(Serialize, JsonSchema)]
struct RecentRequestView {
    ended_unix_ms: u64,
    model: Option<Box<str>>,
    route: &'static str,
    status: Option<u16>,
    outcome: &'static str,
    local_reply: bool,
    fault: Option<&'static str>,
    ttft_ms: Option<f64>,
    duration_ms: f64,
    output_tokens: Option<u64>,
    output_tokens_from: Option<&'static str>,
    malformed_events: u32,
    unread: Option<&'static str>,
    request_unread: Option<&'static str>,
    write_blocked_ms: f64,
}

impl<'a> StateResponse<'a> {
    pub(super) fn of(telemetry: &'a ControlState, upstream: Option<&'a str>) -> Self {
        let recent = telemetry.recent();
        let (idle, active) = telemetry.gauges.connections();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            config_digest: telemetry.config_digest(),
            started_unix_ms: telemetry.started.unix / 1_000_000,
            uptime_s: telemetry.clock.now().since(telemetry.started.stamp).as_secs(),
            ready: telemetry.gauges.ready(),
            upstream: UpstreamState { url: upstream, state: telemetry.gauges.upstream().name() },
            in_flight: telemetry.in_flight(),
            upstream_connections: ConnectionCounts { idle, active },
            replay: telemetry.run_view(),
            recent: recent.into_iter().map(RecentRequestView::of).collect(),
        }
    }
}

impl RecentRequestView {
    fn of(recent: RecentRequest) -> Self {
        Self {
            ended_unix_ms: recent.unix / 1_000_000,
            model: recent.model.as_deref().map(Into::into),
            route: recent.route,
            status: recent.status,
            outcome: recent.outcome,
            local_reply: recent.local_reply,
            fault: recent.fault,
            ttft_ms: recent.ttft.map(Gap::as_millis),
            duration_ms: recent.duration.as_millis(),
            output_tokens: recent.output_tokens.map(|count| count.tokens),
            output_tokens_from: recent.output_tokens.map(|count| count.source.name()),
            malformed_events: recent.quality.malformed_events,
            unread: recent.quality.unread.map(UnreadReason::name),
            request_unread: recent.quality.request_unread.map(UnreadReason::name),
            write_blocked_ms: recent.quality.write_blocked.as_millis(),
        }
    }
}

impl UpstreamHealth {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Reachable => "reachable",
            Self::Unreachable => "unreachable",
        }
    }
}
