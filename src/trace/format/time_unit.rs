//! Detects whether rows with Mooncake's fields count time in milliseconds or seconds, and their block size.
//!
//! Mooncake, AIPerf and vLLM's `timed_trace` share their fields. The evidence, strongest first:
//!
//! 1. `type` in a row: AIPerf defines it, and Streamgauge writes it into the first row.
//! 2. Fields specific to AIPerf, whose times are milliseconds.
//! 3. Timestamps without a fraction are milliseconds, unless the rate would be absurd.
//! 4. Timestamps with a fraction are seconds, unless the rate or the span would be absurd.
//!
//! The evidence covers the whole file: its first rows, and for a file on disk rows from all parts. The block size only
//! adjusts the limits: vLLM's default is 16 tokens, Mooncake's is 512.

use super::super::blocks::{expected_ids, mooncake_scheme};
use super::super::conversion_loss::ConversionLosses;
use super::super::input::InputStream;
use super::super::json::{parse, row};
use super::super::json_values::{LenientNumber, StringOrNumber, TextSize, WrittenNumber};

/// Mooncake's block size.
pub(super) const MOONCAKE_BLOCK_TOKENS: u32 = 512;
/// vLLM's default block size of `timed_trace`.
pub(super) const TIMED_TRACE_BLOCK_TOKENS: u32 = 16;
/// AIPerf's `type` of Mooncake's rows, which determines the unit of their times.
pub(super) const MOONCAKE_TYPE: &str = "mooncake_trace";
/// `type` of rows in seconds.
pub(super) const TIMED_TRACE_TYPE: &str = "timed_trace";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeUnit {
    Milliseconds,
    Seconds,
}

const MIN_RATE_ROWS: u64 = 10;
/// Maximum span of a plausible trace, in seconds: 60 days.
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

pub(super) struct TimeUnitEvidence {
    /// Unit declared by the `type` of a row.
    declared_unit: Option<TimeUnit>,
    /// True if a row has a field specific to AIPerf.
    has_aiperf_fields: bool,
    has_fraction: bool,
    rows: u64,
    /// Pairs of adjacent rows, and the sum of the times between them, in timestamp units.
    neighbours: u64,
    neighbour_span: f64,
    bounds: Option<(f64, f64)>,
    /// Rows with block ids, and for each block size the rows that fit it.
    with_ids: u64,
    fitting: [u64; BLOCK_SIZES.len()],
}

/// Block sizes that are tried.
const BLOCK_SIZES: [u32; 9] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048];

impl TimeUnitEvidence {
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

    /// Adds consecutive rows.
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
            Some(TIMED_TRACE_TYPE) => Some(TimeUnit::Seconds),
            Some(MOONCAKE_TYPE) => Some(TimeUnit::Milliseconds),
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
                *fitting += u64::from(expected_ids(&mooncake_scheme(size), length) == ids);
            }
        }
    }

    fn fitting(&self, size: u32) -> u64 {
        BLOCK_SIZES.iter().position(|known| *known == size).map_or(0, |at| self.fitting[at])
    }

    /// Block size: `usual`, unless only another size fits all rows.
    pub(super) fn block_size(&self, usual: u32) -> u32 {
        let fits_all = |size: &u32| self.fitting(*size) == self.with_ids;
        if fits_all(&usual) { usual } else { BLOCK_SIZES.into_iter().find(fits_all).unwrap_or(usual) }
    }

    /// The most probable unit of timestamps.
    pub(super) fn unit(&self) -> TimeUnit {
        if let Some(marked) = self.declared_unit {
            return marked;
        }
        if self.has_aiperf_fields {
            return TimeUnit::Milliseconds;
        }
        let as_vllm = self.fitting(TIMED_TRACE_BLOCK_TOKENS) > self.fitting(MOONCAKE_BLOCK_TOKENS);
        let rate = self.neighbours as f64 / self.neighbour_span;
        let has_rate = self.rows >= MIN_RATE_ROWS && rate.is_finite();
        let span = self.bounds.map_or(0.0, |(first, last)| last - first);
        let seconds = match (self.has_fraction, has_rate) {
            // As milliseconds, the rate would exceed this many requests per second.
            (false, true) => rate * 1e3 > if as_vllm { 500.0 } else { 5_000.0 },
            (false, false) => false,
            // As seconds, the rate would be less than one request in 50 or in 5 seconds.
            (true, true) => span <= MAX_SPAN_S && rate >= if as_vllm { 0.02 } else { 0.2 },
            (true, false) => span <= MAX_SPAN_S && self.fitting(MOONCAKE_BLOCK_TOKENS) < self.with_ids,
        };
        if seconds { TimeUnit::Seconds } else { TimeUnit::Milliseconds }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// Detects unit and block size of rows with these timestamps and prompts of 1,000 tokens.
    fn found(times: impl IntoIterator<Item = String>, block: u32) -> (TimeUnit, u32) {
        let ids: Vec<u32> = (0..1_000_u32.div_ceil(block)).collect();
        let row = |at: String| format!("{{\"timestamp\": {at}, \"input_length\": 1000, \"hash_ids\": {ids:?}}}\n");
        let text: String = times.into_iter().map(row).collect();
        let evidence =
            TimeUnitEvidence::from_stream(&InputStream::new("t", Box::new(Cursor::new(text.into_bytes()))).unwrap());
        (evidence.unit(), evidence.block_size(MOONCAKE_BLOCK_TOKENS))
    }

    #[test]
    fn the_unit_is_told_by_fractions_and_rate_whatever_the_size_of_blocks() {
        use TimeUnit::{Milliseconds, Seconds};
        let every = |step: f64, digits: usize| (0..100).map(move |n| format!("{:.digits$}", f64::from(n) * step));
        for block in [16, 64, 512] {
            // One request every 300 ms, in whole milliseconds and in fractions of both units.
            assert_eq!(found(every(300.0, 0), block), (Milliseconds, block));
            assert_eq!(found(every(300.25, 2), block), (Milliseconds, block));
            assert_eq!(found(every(0.3, 3), block), (Seconds, block));
            assert_eq!(found(every(1.0, 1), block), (Seconds, block), "whole seconds, written with a fraction");
        }
        // Whole seconds without a fraction: as milliseconds, they would be 1,000 requests per second.
        assert_eq!(found(every(1.0, 0), 16).0, Seconds);
        // One request per hour for 100 hours, in seconds; in milliseconds, one request every four seconds.
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
