//! A trace by windows of equal length: requests, lengths and cache hits over time.
//!
//! The windows start at one second and double whenever the trace outgrows [`MAX_WINDOWS`] of them, so that one pass in
//! fixed memory suffices.

use schemars::JsonSchema;
use serde::Serialize;

const SECOND: u64 = 1_000_000_000;
/// Maximum windows of the table.
const MAX_WINDOWS: usize = 16;

/// One window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TraceWindow {
    /// Start, in seconds since the first row.
    pub from_s: u64,
    /// Requests.
    pub requests: u64,
    /// Requests per second.
    pub rate: f64,
    /// Mean prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_mean: Option<f64>,
    /// Mean output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_mean: Option<f64>,
    /// Share of prompt tokens that an unlimited cache has, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_rate: Option<f64>,
}

/// Sums over a window's requests.
#[derive(Clone, Copy, Debug, Default)]
struct WindowSums {
    requests: u64,
    /// Sum and count.
    input: (u64, u64),
    output: (u64, u64),
    /// Tokens that hit, and all of them.
    hits: (f64, f64),
}

impl WindowSums {
    fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        for (all, more) in [(&mut self.input, other.input), (&mut self.output, other.output)] {
            *all = (all.0.saturating_add(more.0), all.1 + more.1);
        }
        self.hits = (self.hits.0 + other.hits.0, self.hits.1 + other.hits.1);
    }
}

/// Collects the windows of a trace.
#[derive(Clone, Debug)]
pub(super) struct WindowCollector {
    first: Option<u64>,
    seconds: u64,
    windows: Vec<WindowSums>,
}

impl Default for WindowCollector {
    fn default() -> Self {
        Self { first: None, seconds: 1, windows: Vec::new() }
    }
}

impl WindowCollector {
    /// Adds a row; `hit_share` is its share of cached tokens, if it has blocks. A row before the first counts as first.
    pub(super) fn add(&mut self, at: u64, input: Option<u64>, output: Option<u64>, hit_share: Option<f64>) {
        let since = at.saturating_sub(*self.first.get_or_insert(at)) / SECOND;
        while since / self.seconds >= MAX_WINDOWS as u64 {
            self.seconds = self.seconds.saturating_mul(2);
            let pairs = self.windows.chunks(2).map(|pair| {
                let mut sums = pair[0];
                pair[1..].iter().for_each(|other| sums.merge(other));
                sums
            });
            self.windows = pairs.collect();
        }
        let place = (since / self.seconds) as usize;
        if self.windows.len() <= place {
            self.windows.resize(place + 1, WindowSums::default());
        }
        let one = |value: Option<u64>| (value.unwrap_or(0), u64::from(value.is_some()));
        let tokens = input.unwrap_or(0) as f64;
        let hits = hit_share.map_or((0.0, 0.0), |share| (share * tokens, tokens));
        self.windows[place].merge(&WindowSums { requests: 1, input: one(input), output: one(output), hits });
    }

    /// The windows; the last one ends with the trace, after `span_s` seconds.
    pub(super) fn finish(&self, span_s: f64) -> Vec<TraceWindow> {
        let mean = |(sum, count): (u64, u64)| (count > 0).then(|| sum as f64 / count as f64);
        let of = |(at, sums): (usize, &WindowSums)| {
            let from_s = at as u64 * self.seconds;
            let length = (self.seconds as f64).min(span_s - from_s as f64);
            TraceWindow {
                from_s,
                requests: sums.requests,
                // The last row of a trace may stand at the start of its window.
                rate: sums.requests as f64 / if length > 0.0 { length } else { self.seconds as f64 },
                input_mean: mean(sums.input),
                output_mean: mean(sums.output),
                hit_rate: (sums.hits.1 > 0.0).then(|| sums.hits.0 / sums.hits.1),
            }
        };
        self.windows.iter().enumerate().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_double_until_the_trace_fits_and_keep_its_sums() {
        let mut windows = WindowCollector::default();
        for second in 0..40 {
            windows.add(second * SECOND, Some(100 + second), (second % 2 == 0).then_some(10), Some(0.25));
        }
        let found = windows.finish(39.0);
        let starts: Vec<(u64, u64)> = found.iter().map(|of| (of.from_s, of.requests)).collect();
        assert_eq!(starts, (0..10).map(|at| (at * 4, 4)).collect::<Vec<_>>(), "more than 32 s need windows of 4 s");
        assert_eq!(
            (found[0].input_mean, found[0].output_mean, found[0].hit_rate),
            (Some(101.5), Some(10.0), Some(0.25))
        );
        assert_eq!((found[0].rate, found[9].rate), (1.0, 4.0 / 3.0), "the last window ends with the trace");
        assert_eq!(WindowCollector::default().finish(0.0), []);
    }
}
