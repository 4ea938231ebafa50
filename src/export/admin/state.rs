//! `/api/state`: version, open requests and recent requests.
//!
//! ```json
//! {
//!   "version": "0.1.0", "config_digest": "…", "started_unix_ms": 1750000000000, "uptime_s": 12.5, "ready": true,
//!   "upstream": {"url": "http://127.0.0.1:8000", "state": "reachable"},
//!   "in_flight": {"requests": 3, "waiting": 1, "streaming": 2, "by_model": {"tiny": 3},
//!     "streams_by_model": {"tiny": {"waiting": 1, "streaming": 2}}},
//!   "upstream_connections": {"idle": 1, "active": 3},
//!   "recent": [R]
//! }
//! ```
//!
//! In a run (`streamgauge replay`, `load`) it also contains `replay` as in `/api/history`.
//!
//! With a capture it contains the sessions that had a turn in the last 15 minutes
//! ([`LiveSessionsView`]; [`crate::measure::session`] has the definitions):
//! ```json
//! "sessions": {
//!   "sessions": 12, "removed": 0, "sub_agents": 3, "turns": {"mean": 4.2, "p50": 4, "p90": 7, "max": 9},
//!   "model": D, "tool": D, "time_to_last_turn": D, "model_share": 0.62,
//!   "goodput": [{"slo": "chat", "met": 9, "counted": 12, "share": 0.75}],
//!   "by_turn": [{"turn": "0", "requests": 12, "input_tokens": 9000, "cached_tokens": 0, "cached_share": 0.0}],
//!   "latest": [{"session": "9183623af61ad68f", "parent": null, "turns": 3, "model_ms": 900.0, "tool_ms": 4000.0,
//!     "time_to_last_turn_ms": 4900.0, "cached_share": 0.4, "missed_slos": [], "idle_ms": 100.0}]
//! }
//! ```
//! where D has `count`, `mean_ms`, `p50_ms`, `p90_ms`, `p99_ms` and `max_ms`, and `latest` at most 20 sessions.
//!
//! `recent` has the last 50 requests, each as R of [`requests`](super::requests). `state` is `unknown`, `reachable` or
//! `unreachable`.

use schemars::JsonSchema;
use serde::Serialize;

use super::requests::RecentRequestView;
use crate::capture::live_sessions::LiveSessionsView;
use crate::export::control::live_view::InFlight;
use crate::export::control::run_status;
use crate::export::control::state::ControlState;
use crate::export::registry::gauges::UpstreamHealth;

/// Maximum number of recent requests; `/api/requests` has more.
const MAX_RECENT: usize = 50;

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
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<LiveSessionsView>,
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

impl<'a> StateResponse<'a> {
    pub(super) fn of(telemetry: &'a ControlState, upstream: Option<&'a str>) -> Self {
        let recent = telemetry.recent(MAX_RECENT);
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
            sessions: telemetry.live_sessions(),
            recent: recent.into_iter().map(RecentRequestView::of).collect(),
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
