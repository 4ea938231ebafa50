//! Two traces side by side: the figures of each, and how far the rows of one are from those of the other.
//!
//! # Which row is which
//! Rows are put in order of time, and joined by it: the first with the first, and so on to the end of the shorter trace.
//! Rows of the first trace that come within [`MOMENT`] have no order that a second trace could keep: for lengths they
//! are joined with as many rows of the second by length, the shortest with the shortest.
//!
//! # Formulas
//! Times count from the first row of each trace. The arrival error of a pair is `|b - a|`. The KS distance is
//! that of all rows of both ([`crate::measure::difference`]).

use serde::Serialize;

use super::Trace;
use super::blocks::prompt_tokens;
use super::error::Error;
use super::info::{Info, Pass};
use super::merge::{Align, merge};
use crate::capture::format::{Entry, Header};
use crate::capture::gaps;
use crate::measure::difference::{Difference, Errors, OverTime};
use crate::measure::lengths::{Lengths, Times};

/// Rows this close, in nanoseconds, come in one moment.
pub const MOMENT: u64 = 1_000_000;
/// Rows of one moment that are joined by length.
const MOST_OF_MOMENT: usize = 1 << 12;

/// Two traces side by side.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// The first trace.
    pub a: Side,
    /// The second.
    pub b: Side,
    /// Rows that were joined: as many as the shorter trace has.
    pub joined: u64,
    /// How far the arrivals of joined rows are apart, in milliseconds; absent where no row is joined.
    pub arrival_error: Option<Times>,
    /// Arrivals over time.
    pub over_time: OverTime,
    /// Prompt tokens (ISL); absent where one trace has none.
    pub input: Option<Difference>,
    /// Output tokens (OSL), likewise.
    pub output: Option<Difference>,
}

/// The figures of one trace.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// What `trace info --json` says of it.
    #[serde(flatten)]
    pub info: Info,
    /// Prompt tokens that the server said it had cached, as a share of the prompts that it said so of.
    pub cached_share: Option<f64>,
    /// From the answer before to the next turn of a session.
    pub think: Option<Times>,
    /// To the first token (TTFT), from the planned moment where there is one.
    pub ttft: Option<Times>,
    /// Gaps between events of tokens, divided by the tokens of the later one (ITL).
    pub itl: Option<Times>,
}

/// Reads two traces to their ends. `names` are for errors.
pub fn diff(a: (String, Trace), b: (String, Trace)) -> Result<Diff, Error> {
    let fold = |(name, trace)| -> Result<_, Error> {
        // Of one trace: its rows in order.
        let Trace { header, entries, .. } = merge(vec![(name, trace)], Align::Clock)?;
        Ok((Folded::new(&header), entries))
    };
    let ((mut a, mut a_rows), (mut b, mut b_rows)) = (fold(a)?, fold(b)?);
    let mut joined = Joined::default();
    let (mut moment, mut next) = (Vec::new(), None);
    loop {
        let first = match next.take() {
            Some(row) => Some(row),
            None => a.next(&mut a_rows)?,
        };
        let Some(first) = first else { break };
        let from = first.at;
        moment.push(first);
        while moment.len() < MOST_OF_MOMENT {
            match a.next(&mut a_rows)? {
                Some(row) if row.at.abs_diff(from) <= MOMENT => moment.push(row),
                other => {
                    next = other;
                    break;
                }
            }
        }
        let mut others = Vec::with_capacity(moment.len());
        while others.len() < moment.len() {
            let Some(row) = b.next(&mut b_rows)? else { break };
            others.push(row);
        }
        joined.take(&mut moment, &mut others);
        moment.clear();
    }
    while b.next(&mut b_rows)?.is_some() {}
    Ok(joined.finish(a, b))
}

/// What is kept of a row until it is joined.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// From the first row on.
    at: u64,
    input: Option<u64>,
    output: Option<u64>,
}

/// The figures of one trace, as far as it has been read.
struct Folded {
    pass: Pass,
    first: Option<u64>,
    cached: (u64, u64),
    think: Lengths,
    ttft: Lengths,
    itl: Lengths,
}

impl Folded {
    fn new(header: &Header) -> Self {
        let (think, ttft, itl) = (Lengths::of_times(), Lengths::of_times(), Lengths::of_times());
        Self { pass: Pass::beside_another(header), first: None, cached: (0, 0), think, ttft, itl }
    }

    fn next(&mut self, rows: &mut super::Entries) -> Result<Option<Row>, Error> {
        rows.next().transpose().map(|entry| entry.map(|entry| self.take(entry)))
    }

    fn take(&mut self, mut entry: Entry) -> Row {
        let late = entry.planned.map_or(0, |planned| entry.at.saturating_sub(planned));
        // Its rows are in order, but for those that came far too late.
        entry.at = entry.at.saturating_sub(*self.first.get_or_insert(entry.at));
        self.pass.take(&entry);
        if let (Some(cached), Some(tokens)) = (entry.prompt.cached, entry.prompt.tokens) {
            self.cached = (self.cached.0.saturating_add(cached), self.cached.1.saturating_add(tokens));
        }
        entry.think.inspect(|think| self.think.take(*think));
        entry.timing.first_token.inspect(|first| self.ttft.take(first.saturating_add(late)));
        for gap in entry.timing.gaps.as_deref().and_then(|packed| gaps::unpack(packed).ok()).unwrap_or_default() {
            self.itl.take(gap.latency().0.as_nanos());
        }
        Row { at: entry.at, input: prompt_tokens(&entry), output: entry.output_tokens }
    }

    fn finish(self) -> Side {
        let (cached, of) = self.cached;
        Side {
            cached_share: (of > 0).then(|| cached as f64 / of as f64),
            think: self.think.times(),
            ttft: self.ttft.times(),
            itl: self.itl.times(),
            info: self.pass.finish(),
        }
    }
}

/// How far joined rows are apart.
struct Joined {
    rows: u64,
    arrivals: Lengths,
    input: Errors,
    output: Errors,
}

impl Default for Joined {
    fn default() -> Self {
        let arrivals = Lengths::of_times();
        Self { rows: 0, arrivals, input: Errors::default(), output: Errors::default() }
    }
}

impl Joined {
    /// Joins the rows of a moment with as many of the other trace, or with all that it still has.
    fn take(&mut self, moment: &mut [Row], others: &mut [Row]) {
        for (a, b) in moment.iter().zip(others.iter()) {
            self.rows += 1;
            self.arrivals.take(a.at.abs_diff(b.at));
        }
        // Where the other trace ends, the rows that have none of it are the last ones.
        let moment = &mut moment[..others.len()];
        for rows in [&mut *moment, &mut *others] {
            rows.sort_by_key(|row| (row.input, row.output));
        }
        for (a, b) in moment.iter().zip(others.iter()) {
            self.input.take(a.input, b.input);
            self.output.take(a.output, b.output);
        }
    }

    fn finish(self, a: Folded, b: Folded) -> Diff {
        let input = self.input.finish(&a.pass.input, &b.pass.input);
        let output = self.output.finish(&a.pass.output, &b.pass.output);
        let over_time = OverTime::of(&a.pass.arrivals.seconds, &b.pass.arrivals.seconds);
        let arrival_error = self.arrivals.times();
        Diff { a: a.finish(), b: b.finish(), joined: self.rows, arrival_error, over_time, input, output }
    }
}

#[cfg(test)]
mod tests {
    use super::super::losses::Losses;
    use super::*;

    const MS: u64 = 1_000_000;

    fn trace(rows: &[(u64, u64, u64)]) -> (String, Trace) {
        let row = |&(at, input, output): &(u64, u64, u64)| {
            let mut entry = Entry { at: at * MS, output_tokens: Some(output), ..Entry::default() };
            entry.prompt.tokens = Some(input);
            Ok(entry)
        };
        let entries: Vec<_> = rows.iter().map(row).collect();
        let trace =
            Trace { header: Header::new("t"), entries: Box::new(entries.into_iter()), losses: Losses::default() };
        ("t".to_owned(), trace)
    }

    #[test]
    fn a_trace_does_not_differ_from_itself_whatever_the_order_of_its_file() {
        let rows = [(0, 10, 1), (0, 20, 2), (5_000, 30, 3)];
        let of = diff(trace(&rows), trace(&[rows[2], rows[1], rows[0]])).unwrap();
        let same = Difference { compared: 3, exact_share: 1.0, mean_error: 0.0, mean_absolute_error: 0.0, ks: 0.0 };
        assert_eq!((of.joined, of.input, of.output), (3, Some(same), Some(same)));
        assert_eq!((of.arrival_error.unwrap().max_ms, of.over_time.moved_share), (0.0, 0.0));
    }

    #[test]
    fn figures_are_those_that_were_reckoned_by_hand() {
        // B begins 100 ms later on its own clock, which is no error; its second row comes 30 ms late, its fourth 10 early.
        let a = trace(&[(0, 100, 5), (1_000, 200, 5), (2_000, 300, 5), (3_000, 400, 5)]);
        let b = trace(&[(100, 100, 5), (1_130, 210, 4), (2_100, 300, 4), (3_090, 370, 4)]);
        let of = diff(a, b).unwrap();
        let errors = of.arrival_error.unwrap();
        assert_eq!((errors.count, errors.mean_ms, errors.max_ms), (4, 10.0, 30.0));
        assert!((errors.p50_ms - 5.0).abs() < 1e-3, "between 0 and 10: {}", errors.p50_ms);
        // Input: b - a is 0, 10, 0, -30. The functions are furthest apart between 200 and 210, and 370 and 400: 1 of 4.
        let input = Difference { compared: 4, exact_share: 0.5, mean_error: -5.0, mean_absolute_error: 10.0, ks: 0.25 };
        // Output: at 4 three quarters of B and none of A.
        let output =
            Difference { compared: 4, exact_share: 0.25, mean_error: -0.75, mean_absolute_error: 0.75, ks: 0.75 };
        assert_eq!((of.input, of.output), (Some(input), Some(output)));
        // The last row of B is in the second before its own: one of four requests.
        assert_eq!(of.over_time, OverTime { window_s: 1, a: vec![1; 4], b: vec![1, 1, 2], moved_share: 0.25 });
    }

    #[test]
    fn rows_of_one_moment_are_joined_by_length() {
        let of = diff(trace(&[(0, 10, 1), (0, 20, 1)]), trace(&[(0, 22, 1), (1, 12, 1)])).unwrap();
        let input = of.input.unwrap();
        assert_eq!((input.mean_error, input.mean_absolute_error), (2.0, 2.0));
        // Two milliseconds later it is another moment.
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
            assert_eq!(of.over_time.moved_share, 0.2);
        }
        let of = diff(trace(&long), trace(&[])).unwrap();
        assert_eq!((of.joined, of.arrival_error, of.input), (0, None, None));
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
        let near = |times: Option<Times>, expected: f64| (times.unwrap().mean_ms - expected).abs() < 1e-9;
        assert!(near(of.a.ttft, 8.0) && near(of.a.think, 2.0) && near(of.a.itl, 12.5), "{:?}", of.a);
        assert_eq!((of.a.cached_share, of.b.cached_share), (Some(1.0), None));
        assert_eq!((of.b.ttft, of.b.think, of.b.itl), (None, None, None));
    }
}
