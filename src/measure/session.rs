//! Sessions: the requests of one conversation or one agent. Pure.
//!
//! | number | definition |
//! |---|---|
//! | **turns** | requests of the session |
//! | **model time** | sum of their E2E |
//! | **tool time** | time between the first start and the last end in which no request of the session was open: tools, people, and the client itself |
//! | **time to last turn** | from the first start to the last end |
//! | **session goodput** | sessions of which every request meets the SLO; requests that it does not apply to decide nothing |
//! | **cache by turn** | cached ÷ prompt tokens of the successes whose server reports both, by position in the session |
//!
//! Requests of one session may overlap. Then model time exceeds the time in which the session waited for the model, and
//! tool time stays the time without any request. Added by their starts, tool time is exact. Added by their ends, as they
//! end live, a request that began before an earlier pause and ended after it does not shorten that pause.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::time::{Gap, Stamp, extend_span};

/// SLOs whose verdicts a session holds; the configuration allows no more.
pub const MAX_SESSION_SLOS: usize = 16;

/// One request of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRequest {
    /// Moment from which the user waits.
    pub started: Stamp,
    /// End of the response.
    pub ended: Stamp,
    /// SLOs that apply, by bit.
    pub counted: u16,
    /// SLOs that the request met, by bit.
    pub met: u16,
}

/// Turns and times of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Requests.
    pub turns: u64,
    /// Sum of their E2E.
    pub model: Gap,
    /// Time without an open request, from the first start to the last end.
    pub tool: Gap,
    span: Option<(Stamp, Stamp)>,
    counted: u16,
    missed: u16,
}

impl SessionStats {
    /// Adds a request.
    pub fn add(&mut self, request: SessionRequest) {
        let SessionRequest { started, ended, counted, met } = request;
        let sum = |a: Gap, b: Gap| Gap::from_nanos(a.as_nanos().saturating_add(b.as_nanos()));
        self.turns += 1;
        self.model = sum(self.model, ended.since(started));
        if let Some((_, last)) = self.span {
            self.tool = sum(self.tool, started.since(last));
        }
        self.span = Some(extend_span(self.span, started, ended));
        self.counted |= counted;
        self.missed |= counted & !met;
    }

    /// From the first start to the last end.
    pub fn time_to_last_turn(&self) -> Gap {
        self.span.map_or(Gap::ZERO, |(first, last)| last.since(first))
    }

    /// Last end.
    pub fn ended(&self) -> Stamp {
        self.span.map_or_else(Stamp::default, |(_, last)| last)
    }

    /// Whether every request met the SLO with this index; `None` if it applies to none.
    pub fn meets(&self, slo: usize) -> Option<bool> {
        let has = |bits: u16| slo < MAX_SESSION_SLOS && bits >> slo & 1 == 1;
        has(self.counted).then(|| !has(self.missed))
    }
}

/// Positions in a session that are counted together: 0, 1, 2, 3, and then powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TurnBucket(u8);

impl TurnBucket {
    /// The bucket of a position, from 0.
    pub const fn of(turn: u32) -> Self {
        match turn {
            0..4 => Self(turn as u8),
            _ => Self(turn.ilog2() as u8 + 2),
        }
    }

    /// The session's first request.
    pub const fn is_first(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for TurnBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..4 => write!(f, "{}", self.0),
            bucket => {
                let low = 1_u64 << (bucket - 2);
                write!(f, "{low}-{}", low * 2 - 1)
            }
        }
    }
}

/// Requests at some positions of their sessions, and what their servers' caches held of their prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnCache {
    /// Requests.
    pub requests: u64,
    /// Prompt tokens of the successes whose server reports what it had cached.
    pub input: u64,
    /// Prompt tokens among them from the cache.
    pub cached: u64,
}

impl TurnCache {
    /// Adds a request; `tokens` are a success's prompt tokens and those of them from the cache.
    pub fn add(&mut self, tokens: Option<(u64, u64)>) {
        self.requests += 1;
        if let Some((input, cached)) = tokens {
            self.input = self.input.saturating_add(input);
            self.cached = self.cached.saturating_add(cached);
        }
    }

    /// Adds the requests at other positions.
    pub fn merge(&mut self, other: Self) {
        self.requests += other.requests;
        self.input = self.input.saturating_add(other.input);
        self.cached = self.cached.saturating_add(other.cached);
    }

    /// Cached share of the prompt tokens; `None` if no server reports it.
    pub fn share(self) -> Option<f64> {
        (self.input > 0).then(|| self.cached as f64 / self.input as f64)
    }
}

/// Sessions that met an SLO.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SessionGoodput {
    /// Name of the SLO.
    pub slo: String,
    /// Sessions of which every request met it.
    pub met: u64,
    /// Sessions that it applies to.
    pub counted: u64,
    /// `met` ÷ `counted`.
    pub share: f64,
}

impl SessionGoodput {
    /// Goodput of the SLO with this index over `sessions`; `None` if it applies to none.
    pub fn of<'a>(name: &str, slo: usize, sessions: impl Iterator<Item = &'a SessionStats>) -> Option<Self> {
        let count = |(met, counted), session: &SessionStats| match session.meets(slo) {
            Some(meets) => (met + u64::from(meets), counted + 1),
            None => (met, counted),
        };
        let (met, counted) = sessions.fold((0, 0), count);
        (counted > 0).then(|| Self { slo: name.to_owned(), met, counted, share: met as f64 / counted as f64 })
    }
}

/// Requests at some positions of their sessions.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TurnFigures {
    /// Position, from 0; from 4 on, powers of two, as in `4-7`.
    pub turn: String,
    /// Requests.
    pub requests: u64,
    /// Prompt tokens of the successes whose server reports what it had cached.
    pub input_tokens: u64,
    /// Prompt tokens among them from the cache.
    pub cached_tokens: u64,
    /// `cached_tokens` ÷ `input_tokens`; absent if no server reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_share: Option<f64>,
}

impl TurnFigures {
    /// The figures of these positions.
    pub fn new(turn: TurnBucket, cache: TurnCache) -> Self {
        let TurnCache { requests, input: input_tokens, cached: cached_tokens } = cache;
        Self { turn: turn.to_string(), requests, input_tokens, cached_tokens, cached_share: cache.share() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request([started, ended]: [u64; 2], [counted, met]: [u16; 2]) -> SessionRequest {
        let at = |millis: u64| Stamp::from_nanos(millis * 1_000_000);
        SessionRequest { started: at(started), ended: at(ended), counted, met }
    }

    fn session(requests: &[SessionRequest]) -> SessionStats {
        let mut session = SessionStats::default();
        requests.iter().for_each(|request| session.add(*request));
        session
    }

    #[test]
    fn pauses_between_turns_are_tool_time_and_turns_are_model_time() {
        let session = session(&[[100, 300], [1_000, 1_500], [1_700, 1_800]].map(|times| request(times, [0, 0])));
        assert_eq!((session.turns, session.model, session.tool), (3, Gap::from_millis(800), Gap::from_millis(900)));
        assert_eq!(session.time_to_last_turn(), Gap::from_millis(1_700));
    }

    #[test]
    fn requests_that_overlap_leave_only_the_time_without_any_as_tool_time() {
        // Open from 0 to 500, from 800 to 900.
        let session = session(&[[0, 400], [100, 500], [200, 300], [800, 900]].map(|times| request(times, [0, 0])));
        assert_eq!((session.model, session.tool), (Gap::from_millis(1_000), Gap::from_millis(300)));
        assert_eq!(session.time_to_last_turn(), Gap::from_millis(900));
    }

    #[test]
    fn a_session_meets_an_slo_if_each_of_its_requests_does_that_the_slo_applies_to() {
        let session = session(&[request([0, 1], [0b011, 0b011]), request([2, 3], [0b001, 0b000])]);
        assert_eq!([0, 1, 2, 99].map(|slo| session.meets(slo)), [Some(false), Some(true), None, None]);
    }

    #[test]
    fn positions_above_three_are_counted_in_powers_of_two() {
        let shown = [0, 3, 4, 7, 8, u32::MAX].map(|turn| TurnBucket::of(turn).to_string());
        assert_eq!(shown, ["0", "3", "4-7", "4-7", "8-15", "2147483648-4294967295"]);
        assert!(TurnBucket::of(9) < TurnBucket::of(16) && TurnBucket::of(3) < TurnBucket::of(4));
    }

    #[test]
    fn the_cached_share_is_of_the_tokens_whose_servers_report_it() {
        let mut turn = TurnCache::default();
        assert_eq!(turn.share(), None);
        [Some((100, 80)), None, Some((300, 20))].into_iter().for_each(|tokens| turn.add(tokens));
        assert_eq!((turn.requests, turn.share()), (3, Some(0.25)));
    }
}
