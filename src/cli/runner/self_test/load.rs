//! The offered load of a plan, and the part of it that the self-test runs. Pure.
//!
//! Before any response, one token every [`TOKEN_INTERVAL`] is assumed. This interval gives an open loop its number of
//! concurrent streams, and a closed loop its rate. (If slots limit the streams, the server must be faster.) The
//! self-test sends requests at the plan's rate, with outputs short enough to end within the test. Held streams stand in
//! for the longer outputs: they open before the measurement and last to its end. Together they produce the planned
//! events: every open stream emits one per interval. Above [`MAX_EVENTS_PER_SECOND`] the interval grows, and the rest
//! of the plan is extrapolated.

use schemars::JsonSchema;
use serde::Serialize;

use crate::measure::time::Gap;
use crate::replay::plan::schedule::{RowError, ScheduledRequest};
use crate::trace_file::row::{PromptShape, TraceEntry};

/// Duration of the measurement.
const MEASUREMENT_TIME: Gap = Gap::from_millis(2_000);
/// Minimum warm-up, in which connections are opened.
const MIN_WARM_UP: Gap = Gap::from_millis(500);
/// Longest response, so that it ends within the test.
const MAX_REPLY_TIME: Gap = Gap::from_millis(1_000);
/// Interval between a stream's events if the plan does not determine it.
const TOKEN_INTERVAL: Gap = Gap::from_millis(20);
/// Shortest interval, if slots limit the streams.
const MIN_TOKEN_INTERVAL: Gap = Gap::from_millis(1);
/// Prompt length.
const PROMPT_TOKENS: u64 = 32;
/// Event rate at which the in-process server keeps its interval.
const MAX_EVENTS_PER_SECOND: f64 = 20_000.0;
/// Request rate of the in-process server.
const MAX_REQUESTS_PER_SECOND: f64 = 5_000.0;
/// Limit on open streams: 24 KiB each, including the server's side.
const MAX_STREAMS: f64 = 10_000.0;
/// Rate at which held streams are opened.
const STREAM_OPENS_PER_SECOND: f64 = 4_000.0;
/// Minimum rate, so that percentiles are meaningful.
const MIN_REQUESTS_PER_SECOND: f64 = 20.0;
/// Descriptors per stream: both ends, and one for an idle connection.
const DESCRIPTORS_PER_STREAM: u64 = 3;
/// Descriptors reserved for other uses.
const RESERVED_DESCRIPTORS: u64 = 256;

/// Average load of a plan or a self-test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub(in crate::cli::runner) struct OfferedLoad {
    /// Sent requests per second.
    pub(super) requests_per_second: f64,
    /// Tokens per second; each is one event.
    pub(super) events_per_second: f64,
    /// Concurrent open streams.
    pub(super) streams: f64,
}

impl OfferedLoad {
    /// Load of an open loop whose last request is sent at `last`; `slots` limits the open streams.
    pub(in crate::cli::runner) fn open(requests: u64, last: Gap, tokens: u64, slots: Option<u32>) -> Self {
        let seconds = last.as_secs();
        let rate = if seconds > 0.0 { requests.saturating_sub(1) as f64 / seconds } else { requests as f64 };
        let most = slots.map_or(requests, |slots| requests.min(slots.into())) as f64;
        let events = rate * tokens_per_request(requests, tokens);
        Self {
            requests_per_second: rate,
            events_per_second: events,
            streams: most.min(events * TOKEN_INTERVAL.as_secs()),
        }
    }

    /// Load of a closed loop whose slots stay full while there are requests.
    pub(in crate::cli::runner) fn closed(slots: Option<u32>, requests: u64, tokens: u64) -> Self {
        let streams = requests.min(slots.unwrap_or(1).into()) as f64;
        let events = streams / TOKEN_INTERVAL.as_secs();
        Self { requests_per_second: events / tokens_per_request(requests, tokens), events_per_second: events, streams }
    }

    /// Mean output tokens.
    fn tokens(&self) -> f64 {
        if self.requests_per_second > 0.0 { self.events_per_second / self.requests_per_second } else { 1.0 }
    }
}

/// Mean output tokens; at least one, because every response has an event.
fn tokens_per_request(requests: u64, tokens: u64) -> f64 {
    (tokens as f64 / requests.max(1) as f64).max(1.0)
}

/// Parameters of the self-test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SelfTestLoad {
    /// Requests per second.
    pub(super) rate: f64,
    /// Output tokens of these requests.
    pub(super) tokens: u64,
    /// Streams open from the start to the end.
    pub(super) held_streams: u64,
    /// Interval between a stream's events.
    pub(super) token_interval: Gap,
}

impl SelfTestLoad {
    /// The part of `load` that fits the limits and the available descriptors.
    pub(super) fn of(load: &OfferedLoad, descriptors: u64) -> Self {
        let rate = load.requests_per_second.clamp(MIN_REQUESTS_PER_SECOND, MAX_REQUESTS_PER_SECOND);
        let sockets = descriptors.saturating_sub(RESERVED_DESCRIPTORS) / DESCRIPTORS_PER_STREAM;
        let streams = load.streams.min(MAX_STREAMS).min(sockets as f64);
        // Open streams are the event rate times the interval, whatever the output lengths.
        let events = load.events_per_second.min(MAX_EVENTS_PER_SECOND);
        let beat =
            if events > 0.0 { (streams / events).max(MIN_TOKEN_INTERVAL.as_secs()) } else { TOKEN_INTERVAL.as_secs() };
        let in_time = MAX_REPLY_TIME.as_secs() / beat;
        let tokens = load.tokens().min(in_time).min(MAX_EVENTS_PER_SECOND / rate).max(1.0).floor();
        let held = (streams - rate * tokens * beat).max(0.0).floor();
        Self {
            rate,
            tokens: tokens as u64,
            held_streams: held as u64,
            token_interval: Gap::from_nanos((beat * 1e9) as u64),
        }
    }

    /// The self-test's own load.
    pub(super) fn load(&self) -> OfferedLoad {
        let (events, beat) = (self.rate * self.tokens as f64, self.token_interval.as_secs());
        OfferedLoad {
            requests_per_second: self.rate,
            events_per_second: events + self.held_streams as f64 / beat,
            streams: events * beat + self.held_streams as f64,
        }
    }

    /// The measured interval, since the start.
    pub(super) fn measured_interval(&self) -> (Gap, Gap) {
        let from = self.ramp_up_nanos() + MIN_WARM_UP.max(self.reply_time()).as_nanos();
        (Gap::from_nanos(from), Gap::from_nanos(from + MEASUREMENT_TIME.as_nanos()))
    }

    /// Time until the held streams are open, in nanoseconds.
    fn ramp_up_nanos(&self) -> u64 {
        (self.held_streams as f64 / STREAM_OPENS_PER_SECOND * 1e9) as u64
    }

    /// Duration of a response.
    fn reply_time(&self) -> Gap {
        Gap::from_nanos(self.tokens * self.token_interval.as_nanos())
    }

    /// The requests in order of time: the held streams, then those at the rate.
    pub(super) fn schedule(self) -> impl Iterator<Item = Result<ScheduledRequest, RowError>> {
        let (opened, end) = (self.ramp_up_nanos(), self.measured_interval().1.as_nanos());
        let last = end + self.reply_time().as_nanos();
        let held = (0..self.held_streams).map(move |number| {
            let at = opened * number / self.held_streams;
            (at, (last - at).div_ceil(self.token_interval.as_nanos()))
        });
        let moments = (0_u64..).map(move |number| opened + (number as f64 / self.rate * 1e9) as u64);
        let short = moments.take_while(move |at| *at < end).map(move |at| (at, self.tokens));
        held.chain(short).zip(0..).map(|((at, tokens), number)| {
            let entry = TraceEntry {
                at,
                stream: Some(true),
                prompt: PromptShape { tokens: Some(PROMPT_TOKENS), ..PromptShape::default() },
                output_tokens: Some(tokens),
                ..TraceEntry::default()
            };
            Ok(ScheduledRequest { at: Gap::from_nanos(at), number, pass: 0, entry })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIPTORS: u64 = 1 << 20;

    fn tried(load: &OfferedLoad) -> (f64, u64, u64, u64) {
        let trial = SelfTestLoad::of(load, DESCRIPTORS);
        (trial.rate, trial.tokens, trial.held_streams, trial.token_interval.as_nanos() / 1_000_000)
    }

    fn load(requests_per_second: f64, events_per_second: f64, streams: f64) -> OfferedLoad {
        OfferedLoad { requests_per_second, events_per_second, streams }
    }

    #[test]
    fn a_plan_has_a_rate_events_and_open_streams() {
        let seconds = |seconds: u64| Gap::from_millis(seconds * 1_000);
        // 101 requests in ten seconds, of 500 tokens and so ten seconds each.
        assert_eq!(OfferedLoad::open(101, seconds(10), 50_500, None), load(10.0, 5_000.0, 100.0));
        let few = OfferedLoad::open(101, seconds(10), 50_500, Some(50));
        assert_eq!(few, load(10.0, 5_000.0, 50.0), "fifty at a time");
        assert_eq!(tried(&few), (20.0, 100, 30, 10), "at a server of twice the speed");
        assert_eq!(OfferedLoad::open(101, seconds(10), 0, None), load(10.0, 10.0, 0.2), "a reply is an event");
        assert_eq!(OfferedLoad::closed(Some(64), 1_000, 200_000), load(16.0, 3_200.0, 64.0));
        assert_eq!(OfferedLoad::closed(Some(64), 8, 1_600), load(2.0, 400.0, 8.0), "eight requests fill eight slots");
        assert_eq!(OfferedLoad::open(0, Gap::ZERO, 0, None), load(0.0, 0.0, 0.0));
    }

    #[test]
    fn short_replies_are_tried_as_they_are_and_long_ones_as_streams_that_stay_open() {
        assert_eq!(tried(&load(40.0, 200.0, 4.0)), (40.0, 5, 0, 20));
        // Of 200 streams of 500 tokens, requests of 50 tokens run at the full rate, 20 at a time.
        let long = load(20.0, 10_000.0, 200.0);
        assert_eq!(tried(&long), (20.0, 50, 180, 20));
        assert_eq!(SelfTestLoad::of(&long, DESCRIPTORS).load(), long, "all of it is tried");
        assert_eq!(tried(&load(0.5, 5.0, 0.1)), (20.0, 10, 0, 20), "at least twenty requests a second");
        assert_eq!(tried(&load(0.0, 0.0, 0.0)), (20.0, 1, 0, 20));
    }

    #[test]
    fn what_is_too_much_is_tried_with_its_streams_at_a_slower_beat() {
        // 100,000 events per second on 2,000 streams: all streams at a fifth of the events.
        let many = load(100.0, 100_000.0, 2_000.0);
        assert_eq!(tried(&many), (100.0, 10, 1_900, 100));
        assert_eq!(SelfTestLoad::of(&many, DESCRIPTORS).load(), load(100.0, 20_000.0, 2_000.0));
        // 16,000 slots, of which the self-test runs 10,000.
        let closed = OfferedLoad::closed(Some(16_000), 100_000, 100_000_000);
        assert_eq!(closed, load(800.0, 800_000.0, 16_000.0));
        assert_eq!(tried(&closed), (800.0, 2, 9_200, 500));
        assert_eq!(SelfTestLoad::of(&closed, DESCRIPTORS).load(), load(800.0, 20_000.0, 10_000.0));
        assert_eq!(tried(&load(9_000.0, 9_000.0, 180.0)), (5_000.0, 1, 80, 20), "five thousand requests a second");
        // 1,756 descriptors allow 500 streams.
        let few = SelfTestLoad::of(&many, 1_756);
        assert_eq!((few.load().streams, few.load().events_per_second), (500.0, 20_000.0));
    }

    #[test]
    fn streams_that_are_held_are_open_before_what_is_measured_and_until_its_end() {
        let trial = SelfTestLoad { rate: 100.0, tokens: 10, held_streams: 1_000, token_interval: Gap::from_millis(50) };
        let (from, to) = trial.measured_interval();
        assert_eq!((from.as_millis(), to.as_millis()), (750.0, 2_750.0));
        let rows: Vec<ScheduledRequest> = trial.schedule().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 1_000 + 250);
        assert!(rows.is_sorted_by_key(|row| row.at) && (0..).zip(&rows).all(|(number, row)| row.number == number));
        for row in &rows[..1_000] {
            let ends = row.at.as_millis() + row.entry.output_tokens.unwrap() as f64 * 50.0;
            assert!(row.at < Gap::from_millis(250) && (3_250.0..3_300.0).contains(&ends), "{ends}");
        }
        let first = &rows[1_000];
        assert_eq!((first.at, first.entry.output_tokens), (Gap::from_millis(250), Some(10)));
        let measured = rows[1_000..].iter().filter(|row| (from..to).contains(&row.at)).count();
        assert_eq!(measured, 200, "two seconds of a hundred");
    }
}
