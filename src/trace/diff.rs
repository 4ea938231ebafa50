//! Compares two traces: the statistics of each, and the differences between joined rows.
//!
//! The private module `join` decides which rows correspond.
//!
//! # Formulas
//! Times count from the first row of each trace. If a shift skips rows, they count from the first joined rows. The
//! arrival error of a pair is `|b - a|`. The KS distance covers all rows of both traces
//! ([`crate::stats::deviation`]).

use schemars::JsonSchema;
use serde::Serialize;

use super::Trace;
use super::blocks::prompt_tokens;
use super::error::Error;
use super::info::{InfoCollector, TraceInfo};
pub use super::join::MOMENT_NANOS;
use super::join::{JoinRow, JoinTotals, RowJoiner, TraceSide};
use super::merge::{ClockAlignment, merge};
use super::rng::name_hash;
use crate::stats::deviation::{ArrivalWindows, Deviation};
use crate::stats::length_histogram::{DurationSummary, LengthHistogram};
use crate::trace_file::gaps;
use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::TraceEntry;

/// Comparison of two traces.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TraceDiff {
    /// The first trace.
    pub a: DiffSide,
    /// The second trace.
    pub b: DiffSide,
    /// Number of joined rows.
    pub joined: u64,
    /// Rows among these joined by session and turn.
    pub joined_by_turn: u64,
    /// First rows of each trace without a counterpart.
    pub skipped: [u64; 2],
    /// Arrival error of joined rows in milliseconds; absent if no row is joined.
    pub arrival_error: Option<DurationSummary>,
    /// Arrivals over time.
    pub over_time: ArrivalWindows,
    /// Prompt tokens (ISL); absent if one trace has none.
    pub input: Option<Deviation>,
    /// Output tokens (OSL); absent if one trace has none.
    pub output: Option<Deviation>,
}

/// Statistics of one trace.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DiffSide {
    /// The fields of `trace info --json`.
    #[serde(flatten)]
    pub info: TraceInfo,
    /// Cached prompt tokens reported by the server, as a share of all prompt tokens of the requests with such a report.
    pub cached_share: Option<f64>,
    /// From the end of the previous reply to the next turn of a session.
    pub think: Option<DurationSummary>,
    /// Time to first token (TTFT), from the planned send time if there is one.
    pub ttft: Option<DurationSummary>,
    /// Gaps between token events, divided by the tokens of the later event (ITL).
    pub itl: Option<DurationSummary>,
}

/// Reads two traces to their ends. The names appear in errors.
pub fn diff(a: (String, Trace), b: (String, Trace)) -> Result<TraceDiff, Error> {
    let fold = |(name, trace)| -> Result<_, Error> {
        // Sorts the rows of one trace by time.
        let Trace { header, entries, .. } = merge(vec![(name, trace)], ClockAlignment::Clock)?;
        Ok((SideAccumulator::new(&header), entries))
    };
    let ((mut a, mut a_rows), (mut b, mut b_rows)) = (fold(a)?, fold(b)?);
    let mut joiner = RowJoiner::new();
    while let Some(which) = joiner.next_side() {
        let row = match which {
            TraceSide::A => a.next_row(&mut a_rows)?,
            TraceSide::B => b.next_row(&mut b_rows)?,
        };
        joiner.push(which, row);
    }
    let JoinTotals { joined, by_turn, skipped, arrivals, input, output, seconds } = joiner.sums;
    let input = input.finish(&a.pass.input, &b.pass.input);
    let output = output.finish(&a.pass.output, &b.pass.output);
    let over_time = match &seconds {
        Some([a, b]) => ArrivalWindows::of(a, b),
        None => ArrivalWindows::of(&a.pass.arrivals.seconds, &b.pass.arrivals.seconds),
    };
    let arrival_error = arrivals.times();
    let (a, b) = (a.finish(), b.finish());
    Ok(TraceDiff { a, b, joined, joined_by_turn: by_turn, skipped, arrival_error, over_time, input, output })
}

struct SideAccumulator {
    pass: InfoCollector,
    first: Option<u64>,
    cached: (u64, u64),
    think: LengthHistogram,
    ttft: LengthHistogram,
    itl: LengthHistogram,
}

impl SideAccumulator {
    fn new(header: &TraceHeader) -> Self {
        let (think, ttft, itl) =
            (LengthHistogram::of_times(), LengthHistogram::of_times(), LengthHistogram::of_times());
        Self { pass: InfoCollector::for_comparison(header), first: None, cached: (0, 0), think, ttft, itl }
    }

    fn next_row(&mut self, rows: &mut super::TraceEntries) -> Result<Option<JoinRow>, Error> {
        rows.next().transpose().map(|entry| entry.map(|entry| self.add(entry)))
    }

    fn add(&mut self, mut entry: TraceEntry) -> JoinRow {
        let late = entry.planned.map_or(0, |planned| entry.at.saturating_sub(planned));
        // Rows are sorted by time, except those that came far too late.
        entry.at = entry.at.saturating_sub(*self.first.get_or_insert(entry.at));
        self.pass.add(&entry);
        if let (Some(cached), Some(tokens)) = (entry.prompt.cached, entry.prompt.tokens) {
            self.cached = (self.cached.0.saturating_add(cached), self.cached.1.saturating_add(tokens));
        }
        entry.think.inspect(|think| self.think.take(*think));
        entry.timing.first_token.inspect(|first| self.ttft.take(first.saturating_add(late)));
        for gap in entry.timing.gaps.as_deref().and_then(|packed| gaps::unpack(packed).ok()).unwrap_or_default() {
            self.itl.take(gap.latency().0.as_nanos());
        }
        JoinRow {
            at: entry.at,
            input: prompt_tokens(&entry),
            output: entry.output_tokens,
            session: entry.session.as_deref().map(name_hash),
            turn: entry.turn,
        }
    }

    fn finish(self) -> DiffSide {
        let (cached, of) = self.cached;
        DiffSide {
            cached_share: (of > 0).then(|| cached as f64 / of as f64),
            think: self.think.times(),
            ttft: self.ttft.times(),
            itl: self.itl.times(),
            info: self.pass.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::conversion_loss::ConversionLosses;
    use super::*;

    const MS: u64 = 1_000_000;

    fn trace(rows: &[(u64, u64, u64)]) -> (String, Trace) {
        let row = |&(at, input, output): &(u64, u64, u64)| {
            let mut entry = TraceEntry { at: at * MS, output_tokens: Some(output), ..TraceEntry::default() };
            entry.prompt.tokens = Some(input);
            Ok(entry)
        };
        let entries: Vec<_> = rows.iter().map(row).collect();
        let trace = Trace {
            header: TraceHeader::new("t"),
            entries: Box::new(entries.into_iter()),
            losses: ConversionLosses::default(),
        };
        ("t".to_owned(), trace)
    }

    #[test]
    fn a_trace_does_not_differ_from_itself_whatever_the_order_of_its_file() {
        let rows = [(0, 10, 1), (0, 20, 2), (5_000, 30, 3)];
        let of = diff(trace(&rows), trace(&[rows[2], rows[1], rows[0]])).unwrap();
        let same = Deviation { compared: 3, exact_share: 1.0, mean_error: 0.0, mean_absolute_error: 0.0, ks: 0.0 };
        assert_eq!((of.joined, of.input, of.output), (3, Some(same), Some(same)));
        assert_eq!((of.arrival_error.unwrap().max_ms, of.over_time.displaced_share), (0.0, 0.0));
    }

    #[test]
    fn figures_are_those_that_were_reckoned_by_hand() {
        // B begins 100 ms later on its own clock, which is no error. Its second row comes 30 ms late, its fourth 10 ms
        // early.
        let a = trace(&[(0, 100, 5), (1_000, 200, 5), (2_000, 300, 5), (3_000, 400, 5)]);
        let b = trace(&[(100, 100, 5), (1_130, 210, 4), (2_100, 300, 4), (3_090, 370, 4)]);
        let of = diff(a, b).unwrap();
        let errors = of.arrival_error.unwrap();
        assert_eq!((errors.count, errors.mean_ms, errors.max_ms), (4, 10.0, 30.0));
        assert!((errors.p50_ms - 5.0).abs() < 1e-3, "between 0 and 10: {}", errors.p50_ms);
        // Input: b - a is 0, 10, 0, -30. The distribution functions differ most between 200 and 210, and between 370
        // and 400: 1 of 4.
        let input = Deviation { compared: 4, exact_share: 0.5, mean_error: -5.0, mean_absolute_error: 10.0, ks: 0.25 };
        // Output: up to 4 tokens are three quarters of B and none of A.
        let output =
            Deviation { compared: 4, exact_share: 0.25, mean_error: -0.75, mean_absolute_error: 0.75, ks: 0.75 };
        assert_eq!((of.input, of.output), (Some(input), Some(output)));
        // The last row of B falls into the second before its counterpart's: one of four requests.
        assert_eq!(
            of.over_time,
            ArrivalWindows { window_s: 1, a: vec![1; 4], b: vec![1, 1, 2], displaced_share: 0.25 }
        );
    }

    #[test]
    fn rows_of_one_moment_are_joined_by_length() {
        let of = diff(trace(&[(0, 10, 1), (0, 20, 1)]), trace(&[(0, 22, 1), (1, 12, 1)])).unwrap();
        let input = of.input.unwrap();
        assert_eq!((input.mean_error, input.mean_absolute_error), (2.0, 2.0));
        // Two milliseconds apart is no longer one moment.
        let of = diff(trace(&[(0, 10, 1), (2, 20, 1)]), trace(&[(0, 22, 1), (2, 12, 1)])).unwrap();
        assert_eq!(of.input.unwrap().mean_absolute_error, 10.0);
    }

    #[test]
    fn a_shorter_trace_is_joined_as_far_as_it_goes_and_an_empty_one_has_no_figures() {
        let long = [(0, 10, 1), (1_000, 10, 1), (2_000, 40, 1)];
        for (a, b) in [(&long[..], &long[..2]), (&long[..2], &long[..])] {
            let of = diff(trace(a), trace(b)).unwrap();
            assert_eq!((of.joined, of.input.unwrap().exact_share), (2, 1.0));
            assert!((of.input.unwrap().ks - 1.0 / 3.0).abs() < 1e-12);
            assert_eq!((of.a.info.requests, of.b.info.requests), (a.len() as u64, b.len() as u64));
            // One of five requests has no counterpart.
            assert_eq!(of.over_time.displaced_share, 0.2);
        }
        let of = diff(trace(&long), trace(&[])).unwrap();
        assert_eq!((of.joined, of.arrival_error, of.input), (0, None, None));
    }

    /// Rows of (milliseconds, session, turn, output).
    fn sessions(rows: &[(u64, &str, u32, u64)]) -> (String, Trace) {
        let row = |&(at, session, turn, output): &(u64, &str, u32, u64)| {
            let session = Some(session.to_owned()).filter(|name| !name.is_empty());
            let turn = session.as_ref().map(|_| turn);
            Ok(TraceEntry { at: at * MS, session, turn, output_tokens: Some(output), ..TraceEntry::default() })
        };
        let entries: Vec<_> = rows.iter().map(row).collect();
        let entries = Box::new(entries.into_iter());
        ("t".to_owned(), Trace { header: TraceHeader::new("t"), entries, losses: ConversionLosses::default() })
    }

    fn exact_outputs(of: &TraceDiff) -> (u64, u64, f64) {
        (of.joined, of.joined_by_turn, of.output.map_or(0.0, |output| output.exact_share))
    }

    #[test]
    fn turns_that_drift_are_joined_by_the_first_turns_of_their_sessions() {
        let a =
            [(0, "x", 0, 1), (20, "y", 0, 2), (100, "x", 1, 3), (110, "y", 1, 4), (120, "z", 3, 5), (130, "z", 5, 6)];
        // Sessions have new names. Because of long replies, turns arrive in another order, and one is missing.
        let b = [
            (0, "q", 0, 1),
            (20, "r", 0, 2),
            (119, "p", 3, 5),
            (990, "r", 1, 4),
            (1_500, "q", 1, 3),
            (3_000, "p", 5, 6),
        ];
        assert_eq!(exact_outputs(&diff(sessions(&a), sessions(&b)).unwrap()), (6, 3, 1.0));
        assert_eq!(exact_outputs(&diff(sessions(&b), sessions(&a)).unwrap()), (6, 3, 1.0));
        let lost = diff(sessions(&a), sessions(&b[..5])).unwrap();
        assert_eq!((exact_outputs(&lost), lost.a.info.requests), ((5, 2, 1.0), 6));
    }

    #[test]
    fn sessions_of_the_same_names_are_joined_by_them_whenever_they_came() {
        let a = [(0, "x", 0, 1), (20, "y", 0, 2), (100, "x", 1, 3), (110, "y", 1, 4), (115, "", 0, 9)];
        let b = [(0, "y", 0, 2), (20, "x", 0, 1), (60, "y", 1, 4), (70, "", 0, 9), (800, "x", 1, 3)];
        assert_eq!(exact_outputs(&diff(sessions(&a), sessions(&b)).unwrap()), (5, 4, 1.0));
    }

    #[test]
    fn what_only_one_trace_has_at_its_beginning_shifts_the_other() {
        let rows: Vec<(u64, u64, u64)> = (0..50).map(|n| (n * 37 + n % 7, 100 + n % 13, n % 11)).collect();
        let later: Vec<(u64, u64, u64)> =
            rows.iter().map(|(at, input, output)| (at + 3_000, *input, *output)).collect();
        let probed = [&[(0, 34, 1), (40, 134, 1)][..], &later].concat();
        for swap in [false, true] {
            let (a, b) = (trace(&rows), trace(&probed));
            let of = if swap { diff(b, a) } else { diff(a, b) }.unwrap();
            assert_eq!((of.joined, of.skipped), (50, if swap { [2, 0] } else { [0, 2] }));
            let exact = |of: Option<Deviation>| of.map(|of| of.exact_share);
            assert_eq!((exact(of.input), exact(of.output)), (Some(1.0), Some(1.0)));
            assert_eq!(of.arrival_error.unwrap().max_ms, 0.0);
            assert_eq!(of.over_time.displaced_share, 2.0 / 102.0);
        }
    }

    #[test]
    fn rows_that_one_trace_lacks_in_between_cost_no_others() {
        let rows: Vec<(u64, u64, u64)> = (0..400).map(|n| (n * 37 + n % 7, 100 + n % 13, n % 11)).collect();
        let lost: Vec<_> = rows.iter().enumerate().filter(|(n, _)| n % 100 != 50).map(|(_, row)| *row).collect();
        for (a, b) in [(&rows, &lost), (&lost, &rows)] {
            let of = diff(trace(a), trace(b)).unwrap();
            assert_eq!((of.joined, of.input.unwrap().exact_share, of.arrival_error.unwrap().max_ms), (396, 1.0, 0.0));
        }
    }

    #[test]
    fn a_session_of_many_turns_and_a_moment_of_many_rows_are_joined() {
        let rows: Vec<(u64, u64, u64)> = (0..20_000).map(|n| (n / 9_000, 1, n)).collect();
        let of = diff(trace(&rows), trace(&rows)).unwrap();
        assert_eq!(exact_outputs(&of), (20_000, 0, 1.0));
        let of_session = |name, from: u64| (0..20_000).map(move |n| (from + n, name, n as u32, n)).collect::<Vec<_>>();
        let (a, b) = (of_session("x", 0), of_session("y", 7));
        assert_eq!(exact_outputs(&diff(sessions(&a), sessions(&b)).unwrap()), (20_000, 19_999, 1.0));
    }

    #[test]
    fn times_of_the_answers_are_from_the_planned_moment_and_gaps_are_per_token() {
        use crate::measure::time::Gap;
        use crate::measure::timeline::TokenEvent;
        let (name, mut with) = trace(&[(10, 1, 1)]);
        let mut entry = with.entries.next().unwrap().unwrap();
        (entry.planned, entry.think, entry.prompt.cached) = (Some(7 * MS), Some(2 * MS), Some(1));
        entry.timing.first_token = Some(5 * MS);
        let gap = |ms, tokens| TokenEvent::new(Gap::from_millis(ms), Some(tokens));
        entry.timing.gaps = Some(gaps::pack(&[gap(10, 1), gap(30, 2)]));
        with.entries = Box::new([Ok(entry)].into_iter());
        let of = diff((name, with), trace(&[(0, 1, 1)])).unwrap();
        let near = |times: Option<DurationSummary>, expected: f64| (times.unwrap().mean_ms - expected).abs() < 1e-9;
        assert!(near(of.a.ttft, 8.0) && near(of.a.think, 2.0) && near(of.a.itl, 12.5), "{:?}", of.a);
        assert_eq!((of.a.cached_share, of.b.cached_share), (Some(1.0), None));
        assert_eq!((of.b.ttft, of.b.think, of.b.itl), (None, None, None));
    }
}
