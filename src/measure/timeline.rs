//! The token timeline: first, last, every gap and tokens per event, in a fixed-size buffer.
//!
//! # Overflow
//! The buffer stores [`CAPACITY`] gaps. The observer's owner drains it once a second, or when it is nearly full
//! ([`TokenTimeline::wants_draining`]). A gap that finds the buffer full is counted as lost. First, last, the counts,
//! the longest gap and the counts above each limit do not depend on the buffer.

use super::bounded_vec::BoundedVec;
use super::time::{Gap, Stamp};

/// Gaps stored between two drains; 2 KiB.
pub const CAPACITY: usize = 256;
/// Drain threshold, which leaves room for the events of one read.
const NEARLY_FULL: usize = CAPACITY * 3 / 4;
/// Maximum drain interval while tokens arrive, so that counters advance during a stream.
const DRAIN_EVERY: Gap = Gap::from_millis(1_000);

const TOKEN_BITS: u32 = 20;
/// In nanoseconds, rounded down to whole microseconds so that it survives writing and reading back.
const MAX_GAP_NS: u64 = ((1 << (64 - TOKEN_BITS)) - 1) / 1_000 * 1_000;

/// The gap before one token event, and the tokens of that event. Eight bytes.
///
/// Gaps saturate at 4.8 hours (2^44 ns), tokens at 2^20 − 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenEvent(u64);

impl TokenEvent {
    /// Creates an event `gap` after the previous one, with its token count if known.
    pub fn new(gap: Gap, tokens: Option<u32>) -> Self {
        let gap = gap.as_nanos().min(MAX_GAP_NS);
        let tokens = tokens.map_or(0, |n| u64::from(n.min((1 << TOKEN_BITS) - 2)) + 1);
        Self(gap << TOKEN_BITS | tokens)
    }

    /// Time since the previous token event.
    pub const fn gap(self) -> Gap {
        Gap::from_nanos(self.0 >> TOKEN_BITS)
    }

    /// Tokens of this event; `None` if unknown.
    pub const fn tokens(self) -> Option<u32> {
        ((self.0 & ((1 << TOKEN_BITS) - 1)) as u32).checked_sub(1)
    }

    /// One inter-token latency: the gap divided by the event's tokens, and the method used.
    pub fn latency(self) -> (Gap, GapMethod) {
        match self.tokens() {
            Some(n @ 2..) => (self.gap().divided_by(u64::from(n)), GapMethod::Split),
            Some(_) => (self.gap(), GapMethod::Exact),
            None => (self.gap(), GapMethod::Chunk),
        }
    }
}

/// Derivation of an inter-token latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GapMethod {
    /// The event contains exactly one token.
    Exact,
    /// The event contains several tokens that share its gap.
    Split,
    /// The event's token count is unknown.
    Chunk,
}

impl GapMethod {
    /// All methods.
    pub const ALL: [Self; 3] = [Self::Exact, Self::Split, Self::Chunk];

    /// Exported name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Split => "split",
            Self::Chunk => "chunk",
        }
    }
}

/// Arrival times of one stream's tokens.
#[derive(Debug)]
pub struct TokenTimeline {
    gaps: BoundedVec<TokenEvent, CAPACITY>,
    first: Option<Stamp>,
    last: Option<Stamp>,
    drained: Stamp,
    stall: Gap,
    totals: TimelineTotals,
}

/// Totals that do not depend on the buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimelineTotals {
    /// Gaps so far.
    pub gaps: u64,
    /// The longest.
    pub longest: Option<Gap>,
    /// Number of latencies above each limit.
    pub over: Box<[u64]>,
    /// Gaps over the stall threshold since the last drain.
    pub stalls: u32,
    /// Gaps dropped because the buffer was full.
    pub lost: u32,
}

impl TokenTimeline {
    /// Creates an empty timeline that counts gaps above `stall`, and latencies above `limits` limits.
    pub fn new(begin: Stamp, stall: Gap, limits: usize) -> Self {
        Self {
            gaps: BoundedVec::default(),
            first: None,
            last: None,
            drained: begin,
            stall,
            totals: TimelineTotals { over: vec![0; limits].into_boxed_slice(), ..TimelineTotals::default() },
        }
    }

    /// Adds a token event at `at`.
    pub fn push(&mut self, at: Stamp, tokens: Option<u32>, limits: &[Gap]) {
        self.first.get_or_insert(at);
        let Some(before) = self.last.replace(at) else { return };
        let event = TokenEvent::new(at.since(before), tokens);
        let totals = &mut self.totals;
        totals.gaps += 1;
        totals.longest = totals.longest.max(Some(event.gap()));
        totals.stalls += u32::from(event.gap() > self.stall);
        for (over, limit) in totals.over.iter_mut().zip(limits) {
            *over += u64::from(event.latency().0 > *limit);
        }
        if !self.gaps.push(event) {
            totals.lost = totals.lost.saturating_add(1);
        }
    }

    /// Counts the wait for a token that did not come before the stream broke off at `at`, if it is a stall.
    pub fn break_off(&mut self, at: Stamp) {
        self.totals.stalls += u32::from(self.last.is_some_and(|last| at.since(last) > self.stall));
    }

    /// First token event.
    pub fn first(&self) -> Option<Stamp> {
        self.first
    }

    /// Last token event.
    pub fn last(&self) -> Option<Stamp> {
        self.last
    }

    /// Totals that do not depend on the buffer.
    pub fn totals(&self) -> &TimelineTotals {
        &self.totals
    }

    /// True if a drain is due.
    pub fn wants_draining(&self, at: Stamp) -> bool {
        let held = self.gaps.len();
        held >= NEARLY_FULL || (held > 0 && at.since(self.drained) >= DRAIN_EVERY)
    }

    /// Removes and returns the gaps and the stall count since the last drain.
    pub fn drain(&mut self, at: Stamp) -> (Box<[TokenEvent]>, u32) {
        self.drained = at;
        (self.gaps.take(), std::mem::take(&mut self.totals.stalls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Stamp {
        Stamp::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn an_event_keeps_its_gap_and_tokens_in_eight_bytes() {
        assert_eq!(size_of::<TokenEvent>(), 8);
        for (gap, tokens) in [(0, None), (1, Some(0)), (20_000_000, Some(3)), (1 << 43, Some(1 << 19))] {
            let event = TokenEvent::new(Gap::from_nanos(gap), tokens);
            assert_eq!((event.gap(), event.tokens()), (Gap::from_nanos(gap), tokens));
        }
        let held = TokenEvent::new(Gap::from_nanos(u64::MAX), Some(u32::MAX));
        assert_eq!((held.gap().as_nanos(), held.tokens()), (MAX_GAP_NS, Some((1 << 20) - 2)));
    }

    #[test]
    fn a_gap_is_shared_out_over_the_tokens_of_the_later_event() {
        let latency = |tokens| TokenEvent::new(Gap::from_millis(30), tokens).latency();
        assert_eq!(latency(Some(3)), (Gap::from_millis(10), GapMethod::Split));
        assert_eq!(latency(Some(1)), (Gap::from_millis(30), GapMethod::Exact));
        assert_eq!(latency(None), (Gap::from_millis(30), GapMethod::Chunk));
        assert_eq!(latency(Some(0)), (Gap::from_millis(30), GapMethod::Exact));
    }

    #[test]
    fn one_token_has_no_gap_and_two_at_once_have_a_gap_of_zero() {
        let mut timeline = TokenTimeline::new(at(0), Gap::from_millis(100), 0);
        timeline.push(at(5), None, &[]);
        assert_eq!(timeline.drain(at(5)), (Box::default(), 0));
        timeline.push(at(5), None, &[]);
        assert_eq!(timeline.drain(at(5)).0[..], [TokenEvent::new(Gap::ZERO, None)]);
        assert_eq!((timeline.first(), timeline.last()), (Some(at(5)), Some(at(5))));
    }

    #[test]
    fn limits_and_stalls_are_counted_and_a_full_buffer_loses_only_gaps() {
        let limits = [Gap::from_millis(10), Gap::from_millis(150)];
        let mut timeline = TokenTimeline::new(at(0), Gap::from_millis(100), 2);
        let mut now = 0;
        for gap in std::iter::once(0).chain((0..300).map(|i| if i % 100 == 99 { 200 } else { 10 })) {
            now += gap;
            timeline.push(at(now), Some(1), &limits);
        }
        let totals = timeline.totals().clone();
        assert_eq!((totals.gaps, totals.lost, totals.stalls), (300, 44, 3));
        assert_eq!(totals.over[..], [3, 3]);
        assert_eq!(totals.longest, Some(Gap::from_millis(200)));
        let (gaps, stalls) = timeline.drain(at(now));
        assert_eq!((gaps.len(), stalls), (CAPACITY, 3));
    }

    #[test]
    fn a_wait_for_a_token_that_never_came_is_a_stall_if_one_came_before() {
        let stalls = |last: Option<u64>, end: u64| {
            let mut timeline = TokenTimeline::new(at(0), Gap::from_millis(100), 0);
            last.iter().for_each(|last| timeline.push(at(*last), None, &[]));
            timeline.break_off(at(end));
            timeline.totals().stalls
        };
        assert_eq!([stalls(Some(50), 151), stalls(Some(50), 150), stalls(None, 151)], [1, 0, 0]);
    }

    #[test]
    fn draining_is_due_after_a_second_or_when_nearly_full() {
        let mut timeline = TokenTimeline::new(at(0), Gap::from_millis(100), 0);
        assert!(!timeline.wants_draining(at(5_000)), "nothing to drain");
        timeline.push(at(1), None, &[]);
        timeline.push(at(2), None, &[]);
        assert!(!timeline.wants_draining(at(999)));
        assert!(timeline.wants_draining(at(1_000)));
        for _ in 0..NEARLY_FULL {
            timeline.push(at(3), None, &[]);
        }
        assert!(timeline.wants_draining(at(3)));
    }
}
