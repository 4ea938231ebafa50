//! The engine's counters as plain fields.

use super::finish::EngineFinish;
use crate::measure::time::Gap;

#[derive(Debug, Default)]
pub(crate) struct EngineStats {
    /// Sequences in the batch.
    pub(crate) running: u64,
    /// Sequences in the queue.
    pub(crate) waiting: u64,
    /// Share of the KV cache in use, 0 to 1.
    pub(crate) kv_usage: f64,
    /// Requests rejected because the queue was full.
    pub(crate) refused: u64,
    /// Prompt tokens of sequences that reached their first token.
    pub(crate) prompt_tokens: u64,
    pub(crate) generation_tokens: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub(crate) cache_queries: u64,
    /// Prompt tokens found in the prefix cache.
    pub(crate) cache_hits: u64,
    /// Sequences that lost their blocks to another and started over.
    pub(crate) preemptions: u64,
    /// Ended sequences, in the order of [`EngineFinish::ALL`].
    finished: [u64; EngineFinish::ALL.len()],
    /// Arrival to first token.
    pub(crate) ttft: EngineHistogram<{ TTFT_BOUNDS.len() }>,
    /// Time between two outputs of one sequence.
    pub(crate) itl: EngineHistogram<{ ITL_BOUNDS.len() }>,
    /// Arrival to last token.
    pub(crate) e2e: EngineHistogram<{ E2E_BOUNDS.len() }>,
    /// Arrival to first scheduling.
    pub(crate) queue: EngineHistogram<{ E2E_BOUNDS.len() }>,
    /// First scheduling to first token.
    pub(crate) prefill: EngineHistogram<{ E2E_BOUNDS.len() }>,
}

impl EngineStats {
    pub(crate) fn finish(&mut self, reason: EngineFinish) {
        self.finished[reason as usize] += 1;
    }

    /// Counts a gap between two outputs, as often as `times`.
    pub(crate) fn observe_gaps(&mut self, gap: Gap, times: u64) {
        self.itl.observe_times(&ITL_BOUNDS, gap, times);
    }

    pub(crate) fn finished(&self, reason: EngineFinish) -> u64 {
        self.finished[reason as usize]
    }
}

/// vLLM's bounds of `time_to_first_token_seconds`, in seconds.
pub(crate) const TTFT_BOUNDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];

/// vLLM's bounds of `inter_token_latency_seconds`, in seconds.
pub(crate) const ITL_BOUNDS: [f64; 19] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];

/// vLLM's bounds of `e2e_request_latency_seconds`, `request_queue_time_seconds` and `request_prefill_time_seconds`, in
/// seconds.
pub(crate) const E2E_BOUNDS: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];

/// A histogram with fixed bounds in seconds. Counts are per bucket, not cumulative.
#[derive(Debug)]
pub(crate) struct EngineHistogram<const N: usize> {
    pub(crate) counts: [u64; N],
    /// Observations, including those above the last bound.
    pub(crate) count: u64,
    /// Sum of the observations.
    pub(crate) sum: Gap,
    latest: LatestBucket,
}

/// Bucket of the latest observation: the sequences of a step have equal gaps.
#[derive(Clone, Copy, Default)]
struct LatestBucket {
    gap: Gap,
    bucket: Option<usize>,
}

impl std::fmt::Debug for LatestBucket {
    /// Shows nothing, because it is no property of the histogram.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("_")
    }
}

impl<const N: usize> Default for EngineHistogram<N> {
    fn default() -> Self {
        Self { counts: [0; N], count: 0, sum: Gap::ZERO, latest: LatestBucket { gap: Gap::ZERO, bucket: Some(0) } }
    }
}

impl<const N: usize> EngineHistogram<N> {
    /// Adds `gap` to the first bucket whose bound is at least `gap`.
    pub(crate) fn observe(&mut self, bounds: &[f64; N], gap: Gap) {
        self.observe_times(bounds, gap, 1);
    }

    /// Adds `gap` as often as `times`.
    pub(crate) fn observe_times(&mut self, bounds: &[f64; N], gap: Gap, times: u64) {
        self.count += times;
        self.sum = Gap::from_nanos(self.sum.as_nanos().saturating_add(gap.as_nanos().saturating_mul(times)));
        if gap != self.latest.gap {
            let seconds = gap.as_secs();
            self.latest = LatestBucket { gap, bucket: bounds.iter().position(|bound| seconds <= *bound) };
        }
        if let Some(at) = self.latest.bucket {
            self.counts[at] += times;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_on_a_bound_belongs_to_that_bound() {
        let mut ttft = EngineHistogram::default();
        ttft.observe(&TTFT_BOUNDS, Gap::from_millis(5));
        ttft.observe(&TTFT_BOUNDS, Gap::from_nanos(5_000_001));
        ttft.observe(&TTFT_BOUNDS, Gap::from_millis(2_560_001));
        assert_eq!(ttft.counts[1], 1);
        assert_eq!(ttft.counts[2], 1);
        assert_eq!(ttft.counts.iter().sum::<u64>(), 2);
        assert_eq!(ttft.count, 3);
    }

    #[test]
    fn ends_are_counted_by_reason() {
        let mut stats = EngineStats::default();
        stats.finish(EngineFinish::Abort);
        assert_eq!(EngineFinish::ALL.map(|reason| stats.finished(reason)), [0, 0, 1, 0]);
    }
}
