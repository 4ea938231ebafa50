//! A cold start: an engine that has just begun compiles kernels and fills caches, and its first steps take longer than
//! any later one. Together with the rest they would show a cost or a knee that the engine does not have.

use super::decode::DecodeFit;
use super::observation::Observation;
use super::robust::median;
use super::steps::EngineStep;
use crate::measure::time::Gap;

/// Time of which the median step is taken, in nanoseconds.
const BLOCK: u64 = 5_000_000_000;
/// Least steps of a block.
const MIN_BLOCK_STEPS: usize = 10;
/// A block is cold if its steps take this many times as long as the later ones predict.
const MIN_FACTOR: f64 = 1.25;
/// Share of the steps that may be cold. Beyond, the engine has changed, and no part is its start.
const MAX_SHARE: f64 = 0.25;

/// The start of the rows that the fit leaves out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColdStart {
    /// Its end, in nanoseconds on the line of the sources.
    pub(super) until: u64,
    /// Its length.
    pub length: Gap,
    /// How many times as long as later ones its first steps took.
    pub factor: f64,
}

/// The cold start of these steps; `None` if they take as long as later ones from the beginning.
pub(super) fn cold_start(seen: Observation<'_>, steps: &[EngineStep]) -> Option<ColdStart> {
    let (early, later) = steps.split_at((steps.len() as f64 * MAX_SHARE) as usize);
    let (begin, from) = (early.first()?.at, later.first()?.at);
    let warm = DecodeFit::of(Observation { from, ..seen }, later, 0.0)?;
    // The later steps say nothing of larger batches than theirs.
    let most = later.iter().map(|step| step.decoding).max()?;
    let usual = median_ratio(&warm, later, most)?;
    let factors = early
        .chunk_by(|before, after| block_of(begin, before) == block_of(begin, after))
        .map(|block| (block_of(begin, &block[0]), median_ratio(&warm, block, most).map(|ratio| ratio / usual)));
    let is_cold = |(_, factor): &(u64, Option<f64>)| factor.is_some_and(|factor| factor > MIN_FACTOR);
    let cold: Vec<(u64, f64)> =
        factors.take_while(is_cold).filter_map(|(block, factor)| Some((block, factor?))).collect();
    let ((_, factor), (last, _)) = (*cold.first()?, *cold.last()?);
    let length = (last + 1).saturating_mul(BLOCK);
    let until = begin.saturating_add(length);
    // If no block of the early steps is warm, nothing tells a start from another engine.
    (until < from).then_some(ColdStart { until, length: Gap::from_nanos(length), factor })
}

fn block_of(begin: u64, step: &EngineStep) -> u64 {
    (step.at - begin) / BLOCK
}

/// The median of the times of the steps, relative to what the fit predicts.
fn median_ratio(fit: &DecodeFit, steps: &[EngineStep], most: u32) -> Option<f64> {
    let pure = steps.iter().filter(|step| step.is_pure_decode() && step.decoding <= most);
    let ratios: Vec<f64> = pure.filter_map(|step| Some(step.gap? / fit.predict(step))).collect();
    median(ratios.iter().copied()).filter(|_| ratios.len() >= MIN_BLOCK_STEPS)
}
