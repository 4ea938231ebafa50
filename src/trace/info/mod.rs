//! Summarizes a trace in one pass, in memory that does not grow with its length.

mod arrivals;
mod cardinality;
mod warnings;
mod windows;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::Trace;
use super::blocks::{block_tokens, chained_ids, expected_ids, hash_text, prompt_tokens};
use super::conversion_loss::ConversionLosses;
use super::error::Error;
use super::merge::MergedRows;
use crate::measure::record::{CountSource, Outcome};
use crate::stats::length_histogram::LengthHistogram;
use crate::stats::prefix_cache::{PrefixLookup, PrefixReuse};
use crate::trace_file::header::{BlockIds, BlockScheme, BlockScope, BlockUnit, TraceHeader};
use crate::trace_file::row::TraceEntry;
pub(super) use arrivals::ArrivalStats;
use cardinality::CardinalityEstimator;

pub use crate::stats::length_histogram::LengthSummary;
pub use crate::stats::prefix_cache::{MAX_CACHE_BLOCKS, PrefixCacheStats};
pub use arrivals::Burstiness;
pub use warnings::{TraceWarning, absurd_rate};
pub use windows::TraceWindow;
use windows::WindowCollector;

const MAX_MODELS: usize = 64;
/// Maximum windows in the rate chart.
pub const MAX_RATE_WINDOWS: usize = 96;

/// Block sizes that are tried if the trace's own does not fit.
const BLOCK_SIZES: [u32; 9] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048];

/// Summary of a trace.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct TraceInfo {
    /// Number of requests.
    pub requests: u64,
    /// Seconds from the first arrival to the last.
    pub span_s: f64,
    /// Requests per second of the span; absent if the span is zero.
    pub rate: Option<f64>,
    /// Prompt tokens (ISL).
    pub input: Option<LengthSummary>,
    /// Requests with prompt tokens estimated from bytes.
    pub input_estimated: u64,
    /// Output tokens (OSL).
    pub output: Option<LengthSummary>,
    /// Prompt and output tokens of the requests that have both.
    pub total: Option<LengthSummary>,
    /// Burstiness of arrivals.
    pub burstiness: Option<Burstiness>,
    /// Share of cached tokens of single requests in the unlimited cache, in percent; absent without blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_percent: Option<LengthSummary>,
    /// Requests, lengths and hits over time.
    pub windows: Vec<TraceWindow>,
    /// Hit rates of simulated prefix caches.
    pub reuse: Vec<PrefixCacheStats>,
    /// Block size used for `reuse`, in the trace's unit; absent if the trace's own size fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fitting_block_size: Option<u32>,
    /// Sessions and their requests.
    pub sessions: Option<SessionCounts>,
    /// Requests by model.
    pub models: BTreeMap<String, u64>,
    /// Requests by outcome, if known.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Requests aborted by their client.
    pub aborted: u64,
    /// Problems and possible pitfalls.
    pub warnings: Vec<TraceWarning>,
    /// Requests per window, from the second of the first arrival on; the last window may be incomplete.
    pub rate_over_time: Vec<u64>,
    /// Length of these windows in seconds.
    pub rate_window_s: u64,
    /// Requests by prompt tokens; each bucket ends at a power of two, inclusive.
    pub input_histogram: Vec<(u64, u64)>,
    /// Requests by output tokens; each bucket ends at a power of two, inclusive.
    pub output_histogram: Vec<(u64, u64)>,
}

/// Session counts.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct SessionCounts {
    /// Number of sessions; estimated beyond 262,144.
    pub count: u64,
    /// Requests that belong to a session.
    pub requests: u64,
    /// True if `count` is an estimate.
    pub estimated: bool,
}

/// Collects the summary of a trace, row by row.
pub struct InfoCollector {
    header: TraceHeader,
    info: TraceInfo,
    pub(super) arrivals: ArrivalStats,
    pub(super) input: LengthHistogram,
    pub(super) output: LengthHistogram,
    total: LengthHistogram,
    /// Hit shares of single requests, in percent.
    hits: LengthHistogram,
    windows: WindowCollector,
    reuse: Option<PrefixReuse>,
    sessions: CardinalityEstimator,
    session_requests: u64,
    ids: Vec<u64>,
    /// Rows whose number of ids does not match their length: how many, and the first.
    mismatched_rows: Option<(u64, u64)>,
    /// Block sizes that fit all rows so far.
    fitting_sizes: Vec<u32>,
}

impl InfoCollector {
    /// Creates a collector. `cache_blocks` adds a simulated cache of this many blocks.
    pub fn new(header: &TraceHeader, cache_blocks: Option<usize>) -> Self {
        let tokens_of = |blocks: &BlockScheme, size: u32| block_tokens(&BlockScheme { size, ..blocks.clone() });
        let reuse = header.blocks.as_ref().map(|blocks| {
            PrefixReuse::new(cache_blocks).with_sizes(BLOCK_SIZES.into_iter().map(|size| tokens_of(blocks, size)))
        });
        Self {
            header: header.clone(),
            info: TraceInfo::default(),
            arrivals: ArrivalStats::default(),
            input: LengthHistogram::default(),
            output: LengthHistogram::default(),
            total: LengthHistogram::default(),
            hits: LengthHistogram::default(),
            windows: WindowCollector::default(),
            reuse,
            sessions: CardinalityEstimator::default(),
            session_requests: 0,
            ids: Vec::new(),
            mismatched_rows: None,
            fitting_sizes: BLOCK_SIZES.to_vec(),
        }
    }

    /// For one of two traces that are read side by side.
    pub(in crate::trace) fn for_comparison(header: &TraceHeader) -> Self {
        let mut pass = Self::new(header, None);
        pass.reuse = pass.reuse.map(PrefixReuse::for_comparison);
        pass
    }

    /// Adds a request.
    pub fn add(&mut self, entry: &TraceEntry) {
        self.info.requests += 1;
        self.arrivals.add(entry.at);
        let tokens = prompt_tokens(entry);
        if let Some(tokens) = tokens {
            self.info.input_estimated += u64::from(entry.prompt.tokens.is_none());
            self.input.take(tokens);
        }
        if let Some(tokens) = entry.output_tokens {
            self.output.take(tokens);
            if let Some(input) = prompt_tokens(entry) {
                self.total.take(input.saturating_add(tokens));
            }
        }
        if let Some(session) = &entry.session {
            self.session_requests += 1;
            self.sessions.add(hash_text(session));
        }
        if let Some(model) = &entry.model {
            let models = &mut self.info.models;
            if let Some(count) = models.get_mut(model) {
                *count += 1;
            } else {
                let name = if models.len() < MAX_MODELS { model } else { "(others)" };
                *models.entry(name.to_owned()).or_default() += 1;
            }
        }
        if let Some(outcome) = entry.outcome {
            *self.info.outcomes.entry(outcome.name()).or_default() += 1;
        }
        let left = entry.outcome == Some(Outcome::Cancelled) || entry.is_aborted();
        self.info.aborted += u64::from(left || entry.abort_tokens.is_some());
        let hit_share = self.add_blocks(entry, tokens);
        if let Some(share) = hit_share {
            self.hits.take((share * 100.0).round() as u64);
        }
        self.windows.add(entry.at, tokens, entry.output_tokens, hit_share);
    }

    /// Returns the share of cached tokens.
    fn add_blocks(&mut self, entry: &TraceEntry, tokens: Option<u64>) -> Option<f64> {
        let (Some(blocks), Some(reuse)) = (&self.header.blocks, &mut self.reuse) else { return None };
        let ids = entry.prompt.blocks.len() as u64;
        let length = match blocks.unit {
            // Servers also count the chat template, which the block ids may not cover.
            BlockUnit::Tokens if entry.prompt.source == Some(CountSource::Usage) => None,
            BlockUnit::Tokens => entry.prompt.tokens,
            BlockUnit::Bytes => entry.prompt.bytes,
        };
        if let Some(length) = length.filter(|_| ids > 0) {
            if expected_ids(blocks, length) != ids {
                let (count, first) = self.mismatched_rows.unwrap_or((0, self.info.requests));
                self.mismatched_rows = Some((count + 1, first));
            }
            self.fitting_sizes.retain(|size| {
                let blocks = BlockScheme { size: *size, ..blocks.clone() };
                expected_ids(&blocks, length) == ids
            });
        }
        let as_they_are = blocks.ids == BlockIds::Chained && blocks.scope == BlockScope::Trace;
        let ids = if as_they_are {
            &entry.prompt.blocks
        } else {
            self.ids.clear();
            self.ids.extend(chained_ids(blocks, entry));
            &self.ids
        };
        Some(reuse.take(&PrefixLookup { ids, block: block_tokens(blocks), tokens }))
    }

    /// Returns the summary.
    pub fn finish(mut self) -> TraceInfo {
        let mut info = std::mem::take(&mut self.info);
        self.arrivals.settle(usize::MAX);
        info.span_s = self.arrivals.seconds.span_s();
        info.rate = (info.span_s > 0.0).then(|| info.requests as f64 / info.span_s);
        info.burstiness = self.arrivals.burstiness();
        (info.rate_window_s, info.rate_over_time) = self.arrivals.rate_windows(MAX_RATE_WINDOWS);
        (info.input, info.input_histogram) = (self.input.distribution(), self.input.histogram());
        (info.output, info.output_histogram) = (self.output.distribution(), self.output.histogram());
        info.total = self.total.distribution();
        info.hit_percent = self.hits.distribution();
        info.windows = self.windows.finish(info.span_s);
        info.reuse = self.reuse.as_ref().map(PrefixReuse::caches).unwrap_or_default();
        info.sessions = (self.session_requests > 0).then(|| SessionCounts {
            count: self.sessions.count(),
            requests: self.session_requests,
            estimated: self.sessions.is_estimate(),
        });
        let fits = self.fitting_sizes.first().copied().filter(|_| self.mismatched_rows.is_some());
        // A block size that is known not to fit must not determine the reuse.
        if let (Some(size), Some(blocks), Some(reuse)) = (fits, &self.header.blocks, &self.reuse) {
            let tokens = block_tokens(&BlockScheme { size, ..blocks.clone() });
            info.reuse = reuse.caches_with(tokens).unwrap_or_default();
            info.fitting_block_size = Some(size);
        }
        info.warnings = warnings::collect(
            &self.header,
            &info,
            &self.arrivals,
            self.mismatched_rows.map(|(n, first)| (n, first, fits)),
        );
        info
    }
}

/// Capacity in blocks of a cache with `tokens` tokens.
pub fn cache_blocks(header: &TraceHeader, tokens: u64) -> Option<usize> {
    let blocks = header.blocks.as_ref()?;
    usize::try_from(tokens / block_tokens(blocks)).ok()
}

/// Maximum bytes of rows held for sorting; the largest cache leaves no memory for more.
const MAX_HEAP_BYTES: usize = 8 << 20;

/// Reads a trace to its end and summarizes it. A cache of limited size sees rows in order of arrival, even if the file
/// is in completion order.
pub fn info(trace: &mut Trace, cache_blocks: Option<usize>) -> Result<TraceInfo, Error> {
    let mut pass = InfoCollector::new(&trace.header, cache_blocks);
    let in_order_of_ends = trace.header.is_in_completion_order();
    if in_order_of_ends && cache_blocks.is_some() {
        let rows = std::mem::replace(&mut trace.entries, Box::new(std::iter::empty()));
        trace.entries = Box::new(MergedRows::with_limit(
            MAX_HEAP_BYTES,
            vec![(rows, ConversionLosses::default())],
            trace.losses.clone(),
        ));
    }
    for entry in trace.entries.by_ref() {
        pass.add(&entry?);
    }
    let mut info = pass.finish();
    // Completion order is correct for such a trace.
    info.warnings.retain(|warning| !(in_order_of_ends && matches!(warning, TraceWarning::Unsorted { .. })));
    Ok(info)
}
