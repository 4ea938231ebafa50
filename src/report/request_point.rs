//! One request of a report in fixed space, in the order of its time: the input of intervals, charts and diagnosis.

use super::definitions::Definitions;
use super::metric::ReportMetric;
use super::request_view::RequestView;
use super::saturation::LoadSample;
use crate::measure::record::Outcome;
use crate::measure::session::{MAX_SESSION_SLOS, SessionRequest};
use crate::measure::time::{Gap, Stamp};
use crate::trace_file::blocks::hash_text;

/// SLOs whose verdicts a point holds.
pub const MAX_POINT_SLOS: usize = MAX_SESSION_SLOS;
/// No value. A latency of 584 years is none either.
const NONE: u64 = u64::MAX;
const NONE_TOKENS: u32 = u32::MAX;
/// Positions in a session from this one on are one.
const MAX_TURN: u16 = u16::MAX;

/// One request. Times are in nanoseconds. Points sort by their start, and the same whatever order the records came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestPoint {
    /// Moment from which a user waits, on the shared timeline: the planned send time, or the first byte.
    pub started: u64,
    /// Send time minus the planned time; 0 without a plan.
    pub lag: u64,
    ttft: u64,
    second: u64,
    worst_gap: u64,
    tpot: u64,
    e2e: u64,
    /// To the end of the response, complete or not.
    duration: u64,
    isl: u32,
    osl: u32,
    cached: u32,
    in_flight: u32,
    /// SLOs that apply, and those that were met, by bit.
    counted: u16,
    met: u16,
    /// The response is complete.
    pub success: bool,
    /// The client left.
    pub cancelled: bool,
    /// Position in the session, from 0.
    turn: u16,
    /// Hash of the session's id.
    session: u64,
}

impl RequestPoint {
    /// Extracts the values of a request. Latencies are absent unless the response is complete.
    pub(super) fn of(request: &RequestView, definitions: Definitions, verdicts: &[Option<bool>]) -> Self {
        let started = definitions.start(request);
        let success = request.succeeded();
        let times = definitions.times(request, started);
        let nanos = |gap: Option<Gap>| gap.filter(|_| success).map_or(NONE, Gap::as_nanos);
        let tokens =
            |count: Option<u64>| count.map_or(NONE_TOKENS, |count| count.min(u64::from(NONE_TOKENS) - 1) as u32);
        let bits = |holds: fn(&Option<bool>) -> bool| {
            let bit = |(at, verdict): (usize, &Option<bool>)| u16::from(holds(verdict)) << at;
            verdicts.iter().take(MAX_POINT_SLOS).enumerate().map(bit).fold(0, |bits, bit| bits | bit)
        };
        Self {
            started: started.as_nanos(),
            // Definitions that only know the planned moment have no lag.
            lag: if definitions.use_planned_time() { request.sent.since(started).as_nanos() } else { 0 },
            ttft: nanos(times.ttft),
            second: nanos(request.events.first().map(|event| event.gap())),
            worst_gap: nanos(request.events.iter().map(|event| event.gap()).max()),
            tpot: nanos(times.tpot),
            e2e: nanos(times.e2e),
            duration: request.ended.map_or(NONE, |ended| ended.since(started).as_nanos()),
            isl: tokens(request.input),
            osl: tokens(definitions.tokens(request).filter(|_| success)),
            cached: tokens(request.cached),
            in_flight: request.in_flight.unwrap_or(NONE_TOKENS),
            counted: bits(Option::is_some),
            met: bits(|verdict| *verdict == Some(true)),
            success,
            cancelled: request.outcome == Some(Outcome::Cancelled),
            turn: request.session.as_ref().map_or(0, |(_, turn)| (*turn).min(MAX_TURN.into()) as u16),
            session: request.session.as_ref().map_or(NONE, |(session, _)| session_hash(session)),
        }
    }

    /// Returns the value of a metric in its internal unit. `None` for metrics with many values per request.
    pub fn value(&self, metric: ReportMetric) -> Option<u64> {
        let known = |nanos: u64| (nanos != NONE).then_some(nanos);
        let from_sent = |nanos: u64| known(nanos).map(|nanos| nanos.saturating_sub(self.lag));
        match metric {
            ReportMetric::TtftFromPlanned => known(self.ttft),
            ReportMetric::Ttft => from_sent(self.ttft),
            ReportMetric::SecondToken => known(self.second),
            ReportMetric::WorstGap => known(self.worst_gap),
            ReportMetric::Tpot => known(self.tpot),
            ReportMetric::E2eFromPlanned => known(self.e2e),
            ReportMetric::E2e => from_sent(self.e2e),
            ReportMetric::Input => self.isl().filter(|_| self.success),
            ReportMetric::Output => self.osl(),
            ReportMetric::Lag => Some(self.lag),
            ReportMetric::Ttfo
            | ReportMetric::Itl
            | ReportMetric::Gap
            | ReportMetric::UserRate
            | ReportMetric::TokensPerChunk => None,
        }
    }

    /// Hash of the session's id.
    pub fn session(&self) -> Option<u64> {
        (self.session != NONE).then_some(self.session)
    }

    /// Position in the session, from 0, and at most 65,535.
    pub fn turn(&self) -> u32 {
        self.turn.into()
    }

    /// The request as its session counts it.
    pub(super) fn of_session(&self) -> SessionRequest {
        let (started, ended) = (self.started, self.ended().unwrap_or(self.started));
        let [started, ended] = [started, ended].map(Stamp::from_nanos);
        SessionRequest { started, ended, counted: self.counted, met: self.met }
    }

    /// Prompt tokens.
    pub fn isl(&self) -> Option<u64> {
        (self.isl != NONE_TOKENS).then_some(self.isl.into())
    }

    /// Output tokens of a complete response.
    pub fn osl(&self) -> Option<u64> {
        (self.osl != NONE_TOKENS).then_some(self.osl.into())
    }

    /// Prompt tokens from the server's cache.
    pub fn cached(&self) -> Option<u64> {
        (self.cached != NONE_TOKENS).then_some(self.cached.into())
    }

    /// Requests in flight when this one was sent, itself included.
    pub fn in_flight(&self) -> Option<u64> {
        (self.in_flight != NONE_TOKENS).then(|| u64::from(self.in_flight) + 1)
    }

    /// Send time on the shared timeline.
    pub fn sent(&self) -> u64 {
        self.started.saturating_add(self.lag)
    }

    /// First token of a complete response, on the shared timeline.
    pub fn first_token(&self) -> Option<u64> {
        (self.ttft != NONE).then(|| self.started.saturating_add(self.ttft))
    }

    /// End of the response, complete or not, on the shared timeline.
    pub fn ended(&self) -> Option<u64> {
        (self.duration != NONE).then(|| self.started.saturating_add(self.duration))
    }

    /// The request's contribution to the load curve, if it recorded how many were in flight.
    pub(super) fn load_sample(&self) -> Option<LoadSample> {
        let sent = Stamp::from_nanos(self.sent());
        let took = self.ended().map(|ended| Stamp::from_nanos(ended).since(sent));
        (self.in_flight != NONE_TOKENS).then(|| LoadSample::new(sent, self.in_flight, took))
    }

    /// Verdict of the SLO with this index; `None` if it does not apply.
    pub fn meets(&self, slo: usize) -> Option<bool> {
        let has = |bits: u16| slo < MAX_POINT_SLOS && bits >> slo & 1 == 1;
        has(self.counted).then(|| has(self.met))
    }
}

/// Hash of a session's id, which is never that of no session.
pub(super) fn session_hash(session: &str) -> u64 {
    hash_text(session).min(NONE - 1)
}
