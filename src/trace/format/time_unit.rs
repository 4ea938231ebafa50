//! Whether rows of Mooncake's fields count time in milliseconds or in seconds, and how long their blocks are.
//!
//! Mooncake, AIPerf and vLLM's `timed_trace` share their fields. The evidence, strongest first:
//!
//! 1. `type` in a row, which AIPerf knows and our writers put into the first row.
//! 2. Fields of AIPerf's, whose times are milliseconds.
//! 3. Timestamps without a fraction are milliseconds, unless that is an absurd rate.
//! 4. Timestamps with a fraction are seconds, unless that is an absurd rate or span.
//!
//! The evidence is of the whole file: its first rows, and of a file on disk rows from all over it. The size of blocks only
//! moves the limits: vLLM's default is 16 tokens, Mooncake's is 512.

use super::super::blocks::expected_ids;
use super::super::conversion_loss::ConversionLosses;
use super::super::input::InputStream;
use super::super::json::{LenientNumber, StringOrNumber, TextSize, WrittenNumber, parse, row};
use super::mooncake::block_scheme;
use super::{mooncake, timed_trace};

/// What a timestamp counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeUnit {
    Milliseconds,
    Seconds,
}

/// Rows from which a rate is taken for one.
const MIN_RATE_ROWS: u64 = 10;
/// No trace of requests is longer, in seconds: 60 days.
const MAX_SPAN_S: f64 = 60.0 * 86_400.0;

row!(Row {
    kind = "type": String,
    timestamp: WrittenNumber,
    input_length: u64,
    hash_ids: Vec<u64>,
    session_id: StringOrNumber,
    delay: LenientNumber,
    text_input: TextSize,
    messages: TextSize,
    payload: TextSize,
});

/// What the rows of a file tell of their unit of time and of their blocks.
pub(super) struct TimeUnitEvidence {
    /// What a row says that it is of.
    declared_unit: Option<TimeUnit>,
    /// Whether a row has a field that only AIPerf's have.
    has_aiperf_fields: bool,
    has_fraction: bool,
    rows: u64,
    /// Neighbouring rows, and the time that they span together, in units.
    neighbours: u64,
    neighbour_span: f64,
    bounds: Option<(f64, f64)>,
    /// Rows with block ids, and those of them that blocks of each size would fit.
    with_ids: u64,
    fitting: [u64; BLOCK_SIZES.len()],
}

/// Sizes of blocks that are looked for.
const BLOCK_SIZES: [u32; 9] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048];

impl TimeUnitEvidence {
    /// Looks at rows of a file.
    pub(super) fn from_stream(stream: &InputStream) -> Self {
        let mut evidence = Self {
            declared_unit: None,
            has_aiperf_fields: false,
            has_fraction: false,
            rows: 0,
            neighbours: 0,
            neighbour_span: 0.0,
            bounds: None,
            with_ids: 0,
            fitting: [0; BLOCK_SIZES.len()],
        };
        evidence.add_lines(stream.sample_lines());
        if evidence.declared_unit.is_none() {
            for part in stream.sample_parts() {
                evidence.add_lines(part.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()));
            }
        }
        evidence
    }

    /// Takes in rows that stand one after the other.
    fn add_lines<'a>(&mut self, lines: impl Iterator<Item = &'a [u8]>) {
        let (mut part, mut rows): (Option<(f64, f64)>, u64) = (None, 0);
        let widened = |bounds: Option<(f64, f64)>, at: f64| {
            let (first, last) = bounds.unwrap_or((at, at));
            Some((first.min(at), last.max(at)))
        };
        for line in lines {
            let Ok(row) = parse::<Row>(line, &ConversionLosses::default()) else { continue };
            self.add_row(&row);
            if let Some(at) = row.timestamp.filter(|at| at.value.is_finite()) {
                rows += 1;
                part = widened(part, at.value);
                self.bounds = widened(self.bounds, at.value);
                self.has_fraction |= at.has_fraction;
            }
        }
        self.rows += rows;
        self.neighbours += rows.saturating_sub(1);
        self.neighbour_span += part.map_or(0.0, |(first, last)| last - first);
    }

    fn add_row(&mut self, row: &Row) {
        let marked = match row.kind.as_deref() {
            Some(kind) if kind == timed_trace::FORMAT.name => Some(TimeUnit::Seconds),
            Some(mooncake::TYPE_TAG) => Some(TimeUnit::Milliseconds),
            _ => None,
        };
        self.declared_unit = self.declared_unit.or(marked);
        let texts = [&row.text_input, &row.messages, &row.payload];
        self.has_aiperf_fields |=
            row.session_id.is_some() || row.delay.is_some() || texts.iter().any(|text| text.is_some());
        let ids = row.hash_ids.as_ref().map(|ids| ids.len() as u64).filter(|ids| *ids > 0);
        if let Some((ids, length)) = ids.zip(row.input_length) {
            self.with_ids += 1;
            for (fitting, size) in self.fitting.iter_mut().zip(BLOCK_SIZES) {
                *fitting += u64::from(expected_ids(&block_scheme(size), length) == ids);
            }
        }
    }

    /// Rows that blocks of this size fit.
    fn fitting(&self, size: u32) -> u64 {
        BLOCK_SIZES.iter().position(|known| *known == size).map_or(0, |at| self.fitting[at])
    }

    /// The size of blocks: the format's usual one, unless only another fits all rows.
    pub(super) fn block_size(&self, usual: u32) -> u32 {
        let fits_all = |size: &u32| self.fitting(*size) == self.with_ids;
        if fits_all(&usual) { usual } else { BLOCK_SIZES.into_iter().find(fits_all).unwrap_or(usual) }
    }

    /// What its timestamps count.
    pub(super) fn unit(&self) -> TimeUnit {
        if let Some(marked) = self.declared_unit {
            return marked;
        }
        if self.has_aiperf_fields {
            return TimeUnit::Milliseconds;
        }
        let as_vllm = self.fitting(timed_trace::BLOCK_TOKENS) > self.fitting(mooncake::BLOCK_TOKENS);
        let rate = self.neighbours as f64 / self.neighbour_span;
        let has_rate = self.rows >= MIN_RATE_ROWS && rate.is_finite();
        let span = self.bounds.map_or(0.0, |(first, last)| last - first);
        let seconds = match (self.has_fraction, has_rate) {
            // Milliseconds would be more than so many requests in a second.
            (false, true) => rate * 1e3 > if as_vllm { 500.0 } else { 5_000.0 },
            (false, false) => false,
            // Seconds would be less than one request in 50 seconds, or in five.
            (true, true) => span <= MAX_SPAN_S && rate >= if as_vllm { 0.02 } else { 0.2 },
            (true, false) => span <= MAX_SPAN_S && self.fitting(mooncake::BLOCK_TOKENS) < self.with_ids,
        };
        if seconds { TimeUnit::Seconds } else { TimeUnit::Milliseconds }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// What is found of rows at these times, as they are written, with a prompt of 1,000 tokens in blocks of that size.
    fn found(times: impl IntoIterator<Item = String>, block: u32) -> (TimeUnit, u32) {
        let ids: Vec<u32> = (0..1_000_u32.div_ceil(block)).collect();
        let row = |at: String| format!("{{\"timestamp\": {at}, \"input_length\": 1000, \"hash_ids\": {ids:?}}}\n");
        let text: String = times.into_iter().map(row).collect();
        let evidence =
            TimeUnitEvidence::from_stream(&InputStream::new("t", Box::new(Cursor::new(text.into_bytes()))).unwrap());
        (evidence.unit(), evidence.block_size(mooncake::BLOCK_TOKENS))
    }

    #[test]
    fn the_unit_is_told_by_fractions_and_rate_whatever_the_size_of_blocks() {
        use TimeUnit::{Milliseconds, Seconds};
        let every = |step: f64, digits: usize| (0..100).map(move |n| format!("{:.digits$}", f64::from(n) * step));
        for block in [16, 64, 512] {
            // One request in 300 ms, in whole milliseconds and in fractions of both units.
            assert_eq!(found(every(300.0, 0), block), (Milliseconds, block));
            assert_eq!(found(every(300.25, 2), block), (Milliseconds, block));
            assert_eq!(found(every(0.3, 3), block), (Seconds, block));
            assert_eq!(found(every(1.0, 1), block), (Seconds, block), "whole seconds, written with a fraction");
        }
        // Whole seconds without a fraction: a thousand requests per millisecond-second is none.
        assert_eq!(found(every(1.0, 0), 16).0, Seconds);
        // One request an hour for 100 hours, in seconds; in milliseconds, a request in four seconds.
        assert_eq!(found(every(3_600.5, 1), 512).0, Milliseconds);
    }

    #[test]
    fn rows_too_few_for_a_rate_are_told_by_their_fraction_and_their_blocks() {
        use TimeUnit::{Milliseconds, Seconds};
        let few = |times: &[&str], block| found(times.iter().map(|at| (*at).to_owned()), block).0;
        assert_eq!((few(&["1.5"], 16), few(&["1.5"], 512), few(&["1"], 16)), (Seconds, Milliseconds, Milliseconds));
        assert_eq!(few(&["0", "0", "0"], 16), Milliseconds);
    }

    #[test]
    fn what_a_row_says_that_it_is_goes_before_all_else() {
        for (kind, unit) in [("mooncake_trace", TimeUnit::Milliseconds), ("timed_trace", TimeUnit::Seconds)] {
            let text = format!("{{\"type\": \"{kind}\", \"timestamp\": 7, \"input_length\": 9}}\n");
            let stream = InputStream::new("t", Box::new(Cursor::new(text.into_bytes()))).unwrap();
            assert_eq!(TimeUnitEvidence::from_stream(&stream).unit(), unit, "{kind}");
        }
    }
}
