//! Warnings about a trace that is wrong or may mislead a replay. Each warning has advice.

use schemars::JsonSchema;
use serde::Serialize;

use super::TraceInfo;
use super::arrivals::ArrivalStats;
use crate::measure::time::Gap;
use crate::trace_file::header::{SIMULATED, TraceHeader};

/// A warning; [`text`](Self::text) describes it and [`advice`](Self::advice) names a remedy.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "warning", rename_all = "snake_case")]
pub enum TraceWarning {
    /// Timestamps are those of batches.
    BatchGrid {
        /// Interval between batches in nanoseconds.
        step_ns: u64,
        /// Share of gaps that are zero.
        zero_gaps: f64,
    },
    /// The rate is implausible, so the times may have another unit.
    AbsurdRate {
        /// Requests per second.
        per_second: f64,
    },
    /// Rows are not sorted by time.
    Unsorted {
        /// Rows with an earlier time than the row before.
        rows: u64,
    },
    /// The number of block ids does not match the prompt length.
    ImpossibleLengths {
        /// Number of such rows.
        rows: u64,
        /// The first such row, from 1.
        first: u64,
        /// A block size that fits every row.
        fitting_block_size: Option<u32>,
    },
    /// Prompts without a token count.
    EstimatedTokens {
        /// Number of such rows.
        rows: u64,
    },
    /// The capture kept only a share of sessions.
    Sampled {
        /// The share, above 0 and below 1.
        share: f64,
    },
    /// A twin predicted the results.
    Simulated,
    /// The trace has no rows.
    Empty,
}

impl TraceWarning {
    /// Describes the problem in one sentence.
    pub fn text(&self) -> String {
        match self {
            Self::BatchGrid { step_ns, zero_gaps } => format!(
                "arrivals come in batches every {}: {:.0} % of the gaps are zero; the burstiness above is the grid's",
                Gap::from_nanos(*step_ns),
                zero_gaps * 100.0
            ),
            Self::AbsurdRate { per_second } if *per_second > 1.0 => {
                format!(
                    "{per_second:.0} requests per second are more than any server has; are the times of another unit?"
                )
            }
            Self::AbsurdRate { per_second } => format!(
                "{:.0} s from one request to the next are longer than in any traffic; are the times of another unit?",
                1.0 / per_second
            ),
            Self::Unsorted { rows } => {
                format!("{rows} rows come earlier than the row above them; what caches have follows the order of rows")
            }
            Self::ImpossibleLengths { rows, first, fitting_block_size } => {
                let fits =
                    fitting_block_size.map(|size| format!("; blocks of {size} tokens would fit all, and are taken"));
                let fits = fits.unwrap_or_default();
                format!(
                    "{rows} rows have another number of block ids than their length asks for, first row {first}{fits}"
                )
            }
            Self::EstimatedTokens { rows } => {
                format!("{rows} prompts have bytes and no tokens; a token is taken for four bytes")
            }
            Self::Sampled { share } => {
                format!(
                    "the capture kept {} % of the sessions: counts and rates are those of the sample",
                    share * 100.0
                )
            }
            Self::Simulated => format!("its results are {SIMULATED}"),
            Self::Empty => "there are no requests".to_owned(),
        }
    }

    /// The recommended action.
    pub const fn advice(&self) -> &'static str {
        match self {
            Self::BatchGrid { .. } => "`trace spread` moves each arrival to a place of its own inside its batch",
            Self::AbsurdRate { .. } => "name the format with --input-format, which decides the unit",
            Self::Unsorted { .. } => "`trace merge` with this one file puts them in order",
            Self::ImpossibleLengths { fitting_block_size: Some(_), .. } => "set the size with --block-size",
            Self::ImpossibleLengths { .. } => "check the size of blocks (--block-size) and how lengths were counted",
            Self::EstimatedTokens { .. } => "capture with a tokenizer, or where the server reports its usage",
            Self::Sampled { .. } => {
                "divide counts and rates by the share; a cache sees fewer sessions than in production, so it hits less often"
            }
            Self::Simulated => "read the twin's held-out error (`streamgauge twin fit`) beside each figure",
            Self::Empty => "check that this is the file you mean",
        }
    }
}

/// Minimum requests to compute a rate from.
const MIN_RATE_REQUESTS: u64 = 10;
/// Highest plausible rate, in requests per second.
const MAX_RATE: f64 = 1_000.0;
/// Lowest plausible rate, in requests per second: one request in 17 minutes.
const MIN_RATE: f64 = 0.001;

/// Warns about an implausible rate in a trace that this program did not record.
pub fn absurd_rate(header: &TraceHeader, requests: u64, span_s: f64) -> Option<TraceWarning> {
    let per_second = requests as f64 / span_s;
    let known = requests >= MIN_RATE_REQUESTS && per_second.is_finite() && !header.is_in_completion_order();
    let absurd = known && !(MIN_RATE..=MAX_RATE).contains(&per_second);
    absurd.then_some(TraceWarning::AbsurdRate { per_second })
}

/// Collects the warnings. `misfits` is the number of rows with impossible lengths, the first of them, and a block size
/// that would fit.
pub(super) fn collect(
    header: &TraceHeader,
    info: &TraceInfo,
    arrivals: &ArrivalStats,
    misfits: Option<(u64, u64, Option<u32>)>,
) -> Vec<TraceWarning> {
    let grid = arrivals.batch_step().zip(info.burstiness);
    let warnings = [
        absurd_rate(header, info.requests, info.span_s),
        grid.map(|(step_ns, burstiness)| TraceWarning::BatchGrid { step_ns, zero_gaps: burstiness.zero_gaps }),
        (arrivals.unsorted > 0).then_some(TraceWarning::Unsorted { rows: arrivals.unsorted }),
        misfits.map(|(rows, first, fits)| TraceWarning::ImpossibleLengths { rows, first, fitting_block_size: fits }),
        (info.input_estimated > 0).then_some(TraceWarning::EstimatedTokens { rows: info.input_estimated }),
        header.sample.map(|share| TraceWarning::Sampled { share }),
        header.simulated.then_some(TraceWarning::Simulated),
        (info.requests == 0).then_some(TraceWarning::Empty),
    ];
    warnings.into_iter().flatten().collect()
}
