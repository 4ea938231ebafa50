//! Statistics of samples, lengths and prefixes. Pure, and independent of where the numbers come from.
//!
//! # How sure a figure is
//! A run's values are cut into slices of time, from single values ([`time_slices::ValueSlices`]) or, for gaps between
//! tokens, from counts ([`slice_histogram::SliceHistogram`]). One [`bootstrap::BlockBootstrap`] serves all figures:
//!
//! ```
//! use streamgauge::stats::bootstrap::BlockBootstrap;
//! use streamgauge::stats::change::Verdict;
//! use streamgauge::stats::percentile_estimate::percentiles;
//! use streamgauge::stats::time_slices::ValueSlices;
//!
//! // TTFT in seconds, in the order in which requests were sent.
//! let before: Vec<f64> = (0..2_000).map(|n| 0.2 + (n * 37 % 101) as f64 / 1e3).collect();
//! let after: Vec<f64> = before.iter().map(|ttft| ttft * 1.2).collect();
//! // Independent runs have seeds of their own.
//! let a = percentiles(&ValueSlices::of_values(&before), &[50.0, 99.0, 99.9], &BlockBootstrap::new(1));
//! let b = percentiles(&ValueSlices::of_values(&after), &[50.0, 99.0, 99.9], &BlockBootstrap::new(2));
//! assert!(a[0].interval().unwrap().contains(a[0].value));
//! assert_eq!(
//!     a[2].interval().unwrap_err().to_string(),
//!     "not enough data: 2 of 20 values beyond the percentile; remedy: measure 10.0 times as much"
//! );
//! let change = b[0].relative_change_from(&a[0], 1e-9).unwrap();
//! assert!((change.value() - 0.2).abs() < 1e-9);
//! assert_eq!(change.verdict(0.05), Verdict::Worse);
//! ```
//!
//! With several runs on each side, the figures of the runs are the values: [`hypothesis`]. Of a family of figures,
//! [`change::verdicts`] judges all at once.
//!
//! | question | answer |
//! |---|---|
//! | mean, tokens per second, goodput, with intervals | [`estimate`] |
//! | percentiles, with intervals | [`percentile_estimate`] |
//! | did a figure change, and is it worse | [`change`], [`hypothesis`] |
//! | does it drift over a run | [`trend`] |
//! | where does the steady state begin | [`warm_up`] |
//! | at which run of a history did it change | [`change_points`] |
//! | how does TTFT grow with prompts | [`regression`] |
//! | were both sides sent the same mix | [`similarity`], [`deviation`] |

pub mod autocorrelation;
mod block_id_set;
pub mod bootstrap;
pub mod change;
pub mod change_points;
pub mod deviation;
mod distributions;
pub mod estimate;
#[cfg(test)]
mod fixtures;
pub mod growing_list;
pub mod hash;
pub mod hypothesis;
pub mod interval;
pub mod length_histogram;
pub mod locality_hash;
pub mod percentile_estimate;
pub mod prefix_cache;
pub mod regression;
mod sample_bucket;
pub mod samples;
pub mod session_histograms;
pub mod similarity;
pub mod slice_histogram;
mod theil_sen;
pub mod time_slices;
pub mod trend;
pub mod warm_up;
