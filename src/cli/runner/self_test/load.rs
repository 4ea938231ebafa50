//! What a plan asks of the machine that sends, and how much of it is tried. Pure.
//!
//! A server gives a token every [`BEAT`], as far as anybody knows before it was asked: by that a rate has so many streams
//! open as begin while one lasts, and slots have a rate. (Where fewer may be open the server must be faster.) Requests
//! come at the plan's rate, with replies that end within the trial; the streams that longer replies would have open
//! besides are opened before, and last to its end. All together give as many events as planned: open streams, each with
//! one a beat. Where that is more than [`MOST_EVENTS`] the beat is slower, and the rest of the plan is left to arithmetic.

use serde::Serialize;

use crate::capture::row::{PromptShape, TraceEntry};
use crate::measure::time::Gap;
use crate::replay::schedule::{RowError, ScheduledRequest};

/// What is measured.
const MEASUREMENT_TIME: Gap = Gap::from_millis(2_000);
/// What comes before at least: connections are made in it.
const MIN_WARM_UP: Gap = Gap::from_millis(500);
/// How long a reply may take, so that it ends in time.
const MAX_REPLY_TIME: Gap = Gap::from_millis(1_000);
/// Between two events of a stream, where the plan does not say.
const TOKEN_INTERVAL: Gap = Gap::from_millis(20);
/// The same where few streams may be open for the events of a plan.
const MIN_TOKEN_INTERVAL: Gap = Gap::from_millis(1);
/// Tokens of a prompt.
const PROMPT_TOKENS: u64 = 32;
/// Events a second that the server in this process keeps its beat with.
const MAX_EVENTS_PER_SECOND: f64 = 20_000.0;
/// Requests a second that it answers.
const MAX_REQUESTS_PER_SECOND: f64 = 5_000.0;
/// Streams that are open: 24 KiB each, with the server's half of it.
const MAX_STREAMS: f64 = 10_000.0;
/// Streams a second that are opened to be held.
const STREAM_OPENS_PER_SECOND: f64 = 4_000.0;
/// Requests a second that are tried at least, for there to be a percentile.
const MIN_REQUESTS_PER_SECOND: f64 = 20.0;
/// Descriptors of a stream: its two ends, and one for connections that wait for their request.
const DESCRIPTORS_PER_STREAM: u64 = 3;
/// Descriptors that are not for streams.
const RESERVED_DESCRIPTORS: u64 = 256;

/// The load of a plan, or of what is tried of it; on average.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(in crate::cli::runner) struct OfferedLoad {
    /// Requests a second.
    pub(super) requests_per_second: f64,
    /// Tokens a second, each an event of its own.
    pub(super) events_per_second: f64,
    /// Streams open at a time.
    pub(super) streams: f64,
}

impl OfferedLoad {
    /// Requests at their own times, the last of them at `last`, of which as many as there are slots may be open.
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

    /// So many slots that are never empty while there are requests.
    pub(in crate::cli::runner) fn closed(slots: Option<u32>, requests: u64, tokens: u64) -> Self {
        let streams = requests.min(slots.unwrap_or(1).into()) as f64;
        let events = streams / TOKEN_INTERVAL.as_secs();
        Self { requests_per_second: events / tokens_per_request(requests, tokens), events_per_second: events, streams }
    }

    /// Tokens of a reply.
    fn tokens(&self) -> f64 {
        if self.requests_per_second > 0.0 { self.events_per_second / self.requests_per_second } else { 1.0 }
    }
}

/// Tokens of a reply. Every reply has an event.
fn tokens_per_request(requests: u64, tokens: u64) -> f64 {
    (tokens as f64 / requests.max(1) as f64).max(1.0)
}

/// How much of a plan is tried, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SelfTestLoad {
    /// Requests a second.
    pub(super) rate: f64,
    /// Tokens of their replies.
    pub(super) tokens: u64,
    /// Streams that are open from the start to the end.
    pub(super) held_streams: u64,
    /// Between two events of a stream.
    pub(super) token_interval: Gap,
}

impl SelfTestLoad {
    /// As much of `load` as fits, with so many descriptors.
    pub(super) fn of(load: &OfferedLoad, descriptors: u64) -> Self {
        let rate = load.requests_per_second.clamp(MIN_REQUESTS_PER_SECOND, MAX_REQUESTS_PER_SECOND);
        let sockets = descriptors.saturating_sub(RESERVED_DESCRIPTORS) / DESCRIPTORS_PER_STREAM;
        let streams = load.streams.min(MAX_STREAMS).min(sockets as f64);
        // Open streams are events a second and beat, whatever their lengths.
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

    /// What it comes to.
    pub(super) fn load(&self) -> OfferedLoad {
        let (events, beat) = (self.rate * self.tokens as f64, self.token_interval.as_secs());
        OfferedLoad {
            requests_per_second: self.rate,
            events_per_second: events + self.held_streams as f64 / beat,
            streams: events * beat + self.held_streams as f64,
        }
    }

    /// What is measured of it, in time since its start.
    pub(super) fn measured_interval(&self) -> (Gap, Gap) {
        let from = self.ramp_up_nanos() + MIN_WARM_UP.max(self.reply_time()).as_nanos();
        (Gap::from_nanos(from), Gap::from_nanos(from + MEASUREMENT_TIME.as_nanos()))
    }

    /// When the streams that are held are open, in nanoseconds.
    fn ramp_up_nanos(&self) -> u64 {
        (self.held_streams as f64 / STREAM_OPENS_PER_SECOND * 1e9) as u64
    }

    /// How long a reply takes.
    fn reply_time(&self) -> Gap {
        Gap::from_nanos(self.tokens * self.token_interval.as_nanos())
    }

    /// Its requests in the order of their times: first the streams that are held, then those of the rate.
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
        // Of 200 streams of 500 tokens 50 tokens long are tried at their rate, and are 20 at a time.
        let long = load(20.0, 10_000.0, 200.0);
        assert_eq!(tried(&long), (20.0, 50, 180, 20));
        assert_eq!(SelfTestLoad::of(&long, DESCRIPTORS).load(), long, "all of it is tried");
        assert_eq!(tried(&load(0.5, 5.0, 0.1)), (20.0, 10, 0, 20), "at least twenty requests a second");
        assert_eq!(tried(&load(0.0, 0.0, 0.0)), (20.0, 1, 0, 20));
    }

    #[test]
    fn what_is_too_much_is_tried_with_its_streams_at_a_slower_beat() {
        // 100,000 events a second of 2,000 streams: all streams at a fifth of the events.
        let many = load(100.0, 100_000.0, 2_000.0);
        assert_eq!(tried(&many), (100.0, 10, 1_900, 100));
        assert_eq!(SelfTestLoad::of(&many, DESCRIPTORS).load(), load(100.0, 20_000.0, 2_000.0));
        // 16,000 slots, of which 10,000 are tried.
        let closed = OfferedLoad::closed(Some(16_000), 100_000, 100_000_000);
        assert_eq!(closed, load(800.0, 800_000.0, 16_000.0));
        assert_eq!(tried(&closed), (800.0, 2, 9_200, 500));
        assert_eq!(SelfTestLoad::of(&closed, DESCRIPTORS).load(), load(800.0, 20_000.0, 10_000.0));
        assert_eq!(tried(&load(9_000.0, 9_000.0, 180.0)), (5_000.0, 1, 80, 20), "five thousand requests a second");
        // 1,756 descriptors are 500 streams.
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
