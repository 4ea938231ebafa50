//! The cost of decoding, from steps or windows that compute no prompt.

use std::collections::BTreeMap;

use super::Residual;
use super::observation::Observation;
use super::robust::{COLUMNS, PlaneFit, Point, ROUNDS, fit_plane_to};
use super::steps::EngineStep;
use super::windows::{DecodePoint, decode_windows};
use crate::twin::parameter::{Parameter, ParameterEstimate};

/// Steps without any prompt in sight that suffice.
const MIN_PURE_STEPS: usize = 100;
/// A step within this share of its decode cost has computed no prompt.
const DECODE_TOLERANCE: f64 = 0.03;
/// Points of the batches from one power of two to the next. A light load, which gives most points, must not outvote the
/// large batches.
const MAX_OCTAVE_POINTS: usize = 200;
/// Relative standard error above which a coefficient is a range.
pub(super) const MAX_RELATIVE_ERROR: f64 = 0.1;
/// Share of the time that a cost must be able to reach to matter.
const MIN_SHARE: f64 = 0.01;
/// Batches after which a sequence may have another cost.
const KNEES: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
/// Points on each side of a knee that show it.
const MIN_SIDE_POINTS: usize = 30;
/// A knee, or a cost of context, is accepted if it reduces the residual to this share.
const MIN_GAIN: f64 = 0.95;
/// Residuals below this share of a step show no knee.
const MIN_RESIDUAL: f64 = 0.01;

/// Cost of a decode step: base, per sequence up to a knee, per context token, per sequence beyond the knee.
#[derive(Clone, Debug)]
pub(super) struct DecodeFit {
    plane: PlaneFit,
    /// Infinite if all sequences cost the same.
    knee: f64,
    points: Vec<DecodePoint>,
    /// Largest columns among the points, and the median time.
    largest: [f64; COLUMNS],
    typical: f64,
}

fn point_of(step: &EngineStep) -> Option<DecodePoint> {
    Some(DecodePoint { seqs: step.decoding.into(), context: step.context, time: step.gap? })
}

fn columns(seqs: f64, context: f64, knee: f64) -> [f64; COLUMNS] {
    [1.0, seqs.min(knee), context, (seqs - knee).max(0.0)]
}

impl DecodeFit {
    /// Fits the steps, or windows where the steps are not clear; `None` without a decode step.
    pub(super) fn of(seen: Observation<'_>, steps: &[EngineStep], front_end: f64) -> Option<Self> {
        let pure: Vec<&EngineStep> = steps.iter().filter(|step| step.is_pure_decode()).collect();
        let decodes = || steps.iter().filter(|step| step.is_decode());
        // Under a queue most steps leave requests waiting, and those with a chunk of a prompt are outliers.
        let chosen = if pure.len() < MIN_PURE_STEPS { decodes().collect() } else { pure };
        let of_steps = Self::of_points(chosen.into_iter().filter_map(point_of).collect())?;
        if of_steps.is_clear(steps) {
            return Some(of_steps);
        }
        let windows = decode_windows(seen, front_end);
        if windows.len() < MIN_PURE_STEPS { Some(of_steps) } else { Self::of_points(windows) }
    }

    fn of_points(points: Vec<DecodePoint>) -> Option<Self> {
        let points = balanced(points);
        let mut times: Vec<f64> = points.iter().map(|point| point.time).collect();
        times.sort_unstable_by(f64::total_cmp);
        let typical = *times.get(times.len() / 2)?;
        let (plane, knee) = best_plane(&points, typical)?;
        let mut largest = [0.0; COLUMNS];
        for point in &points {
            let columns = columns(point.seqs, point.context, knee);
            largest.iter_mut().zip(columns).for_each(|(largest, column)| *largest = column.max(*largest));
        }
        Some(Self { plane, knee, points, largest, typical })
    }

    /// Time of a step with these numbers of sequences and context tokens, in nanoseconds.
    pub(super) fn time(&self, seqs: f64, context: f64) -> f64 {
        self.plane.predict(&columns(seqs, context, self.knee))
    }

    pub(super) fn predict(&self, step: &EngineStep) -> f64 {
        self.time(step.decoding.into(), step.context)
    }

    /// True if the step takes the time of decoding alone.
    pub(super) fn explains(&self, step: &EngineStep) -> bool {
        step.gap.is_some_and(|gap| (gap / self.predict(step) - 1.0).abs() < DECODE_TOLERANCE)
    }

    /// True if most steps take the time that the fit states.
    pub(super) fn is_clear(&self, steps: &[EngineStep]) -> bool {
        let (mut close, mut all) = (0_usize, 0_usize);
        for step in steps.iter().filter(|step| step.is_pure_decode()) {
            all += 1;
            close += usize::from(self.explains(step));
        }
        2 * close > all
    }

    pub(super) fn write(&self, parameters: &mut BTreeMap<Parameter, ParameterEstimate>) {
        let costs = [Parameter::StepBase, Parameter::StepPerSeq, Parameter::KvToken, Parameter::StepPerFurtherSeq];
        let is_bent = self.knee.is_finite();
        for (column, parameter) in costs.into_iter().enumerate().take(if is_bent { 4 } else { 3 }) {
            let estimate = estimate_of(&self.plane, column, self.largest[column], self.typical);
            parameters.insert(parameter, estimate);
        }
        if is_bent {
            parameters.insert(Parameter::BatchKnee, ParameterEstimate::value(self.knee));
        }
    }

    /// Residuals of the points, by the size of the batch.
    pub(super) fn residuals(&self) -> Vec<Residual> {
        let regimes = [(0, 1), (1, 4), (4, 16), (16, 64), (64, u32::MAX)];
        let of = |(above, to): (u32, u32)| {
            let is_in = |point: &&DecodePoint| f64::from(above) < point.seqs && point.seqs <= f64::from(to);
            let pair = |point: &DecodePoint| (point.time, self.time(point.seqs, point.context));
            let pairs: Vec<(f64, f64)> = self.points.iter().filter(is_in).map(pair).collect();
            let name = match (above + 1, to) {
                (1, 1) => "decode, 1 sequence".to_owned(),
                (from, u32::MAX) => format!("decode, {from} sequences or more"),
                (from, to) => format!("decode, {from} to {to} sequences"),
            };
            Residual::of(name, &pairs)
        };
        regimes.into_iter().filter_map(of).collect()
    }
}

/// At most [`MAX_OCTAVE_POINTS`] evenly spaced points of each octave of batches.
fn balanced(points: Vec<DecodePoint>) -> Vec<DecodePoint> {
    let octave = |point: &DecodePoint| point.seqs.max(1.0).log2() as usize;
    let mut counts = [0_usize; 33];
    points.iter().for_each(|point| counts[octave(point).min(32)] += 1);
    let strides = counts.map(|count| count.div_ceil(MAX_OCTAVE_POINTS).max(1));
    let mut seen = [0_usize; 33];
    let mut is_kept = |point: &DecodePoint| {
        let at = octave(point).min(32);
        seen[at] += 1;
        (seen[at] - 1).is_multiple_of(strides[at])
    };
    points.into_iter().filter(|point| is_kept(point)).collect()
}

/// The simplest plane that explains the points: a cost of context and a knee only if they show. Sequences of like lengths
/// do not tell context from their number, and an accidental cost of it would be multiplied by longer contexts.
fn best_plane(points: &[DecodePoint], typical: f64) -> Option<(PlaneFit, f64)> {
    let fit = |has_seqs: bool, has_context: bool, knee: f64| {
        let kept = [true, has_seqs, has_context, knee.is_finite()];
        Some((fit_plane_to(&drawn(points, knee), kept, ROUNDS)?, knee))
    };
    let has_sides = |knee: &f64| {
        let below = points.iter().filter(|point| point.seqs <= *knee).count();
        below.min(points.len() - below) >= MIN_SIDE_POINTS
    };
    let best = |has_context: bool| {
        let (straight, knee) = fit(true, has_context, f64::INFINITY)?;
        let is_noisy = straight.total_residual > MIN_RESIDUAL * typical;
        let knees = KNEES.into_iter().filter(|_| is_noisy).filter(has_sides);
        let bent =
            knees.filter_map(|knee| fit(true, has_context, knee)).min_by(|a, b| residual(a).total_cmp(&residual(b)));
        Some(bent.filter(|bent| residual(bent) < MIN_GAIN * straight.total_residual).unwrap_or((straight, knee)))
    };
    let (with, without) = (best(true), best(false));
    let simplest = match (with, without) {
        (Some(with), Some(without)) => {
            Some(if residual(&with) < MIN_GAIN * residual(&without) { with } else { without })
        }
        (with, without) => with.or(without),
    };
    // Always the same number of sequences.
    simplest.or_else(|| fit(false, true, f64::INFINITY)).or_else(|| fit(false, false, f64::INFINITY))
}

fn residual((plane, _): &(PlaneFit, f64)) -> f64 {
    plane.total_residual
}

fn drawn(points: &[DecodePoint], knee: f64) -> Vec<Point> {
    points.iter().map(|point| (columns(point.seqs, point.context, knee), point.time)).collect()
}

/// The estimate of a coefficient: a value if its standard error is small, or if the cost cannot matter; else a range.
pub(super) fn estimate_of(plane: &PlaneFit, column: usize, largest: f64, typical: f64) -> ParameterEstimate {
    let (value, error) = (plane.coefficients[column], plane.errors[column]);
    let (low, high) = ((value - 2.0 * error).max(0.0), value + 2.0 * error);
    if error.is_finite() && error <= MAX_RELATIVE_ERROR * value {
        return ParameterEstimate { value: Some(value), low: Some(low), high: Some(high), assumed: None };
    }
    if largest == 0.0 {
        return ParameterEstimate::range(Some(0.0), None, 0.0);
    }
    // The cost that would show in the residuals.
    let visible = (2.0 * plane.residual / largest).max(if error.is_finite() { high } else { 0.0 });
    match visible * largest <= MIN_SHARE * typical {
        true => ParameterEstimate { value: Some(value), low: Some(0.0), high: Some(visible), assumed: None },
        false => ParameterEstimate::range(Some(low), Some(visible), value),
    }
}
