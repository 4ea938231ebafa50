//! The cost of decoding, from steps that compute no prompt.

use std::collections::BTreeMap;

use super::Residual;
use super::robust::{COLUMNS, PlaneFit, Point, ROUNDS, fit_plane_to};
use super::steps::EngineStep;
use crate::twin::model::{Estimate, Parameter};

/// Steps that a regression uses; of more, evenly spaced ones.
const MAX_POINTS: usize = 20_000;
/// Steps without any prompt in sight that suffice.
const MIN_PURE_STEPS: usize = 100;
/// Relative standard error above which a coefficient is a range.
pub(super) const MAX_RELATIVE_ERROR: f64 = 0.1;
/// Share of the time that a cost must be able to reach to matter.
const MIN_SHARE: f64 = 0.01;

/// Cost of a decode step: base, per sequence, per context token.
#[derive(Clone, Debug)]
pub(super) struct DecodeFit {
    plane: PlaneFit,
    /// Largest columns among the points, and the median time.
    largest: [f64; COLUMNS],
    typical: f64,
}

fn columns(step: &EngineStep) -> [f64; COLUMNS] {
    [1.0, f64::from(step.decoding), step.context, 0.0]
}

impl DecodeFit {
    /// Fits the steps; `None` without a decode step.
    pub(super) fn of(steps: &[EngineStep]) -> Option<Self> {
        let pure: Vec<&EngineStep> = steps.iter().filter(|step| step.is_pure_decode()).collect();
        let decodes = || steps.iter().filter(|step| step.is_decode());
        // Under a queue most steps leave requests waiting, and those with a chunk of a prompt are outliers.
        let chosen = if pure.len() < MIN_PURE_STEPS { decodes().collect() } else { pure };
        let stride = chosen.len().div_ceil(MAX_POINTS).max(1);
        let points: Vec<Point> =
            chosen.iter().step_by(stride).filter_map(|step| Some((columns(step), step.gap?))).collect();
        let mut times: Vec<f64> = points.iter().map(|(_, gap)| *gap).collect();
        times.sort_unstable_by(f64::total_cmp);
        let typical = *times.get(times.len() / 2)?;
        let mut largest = [0.0; COLUMNS];
        for (columns, _) in &points {
            largest.iter_mut().zip(columns).for_each(|(largest, column)| *largest = column.max(*largest));
        }
        // Sequences of one length, or always the same number of them, determine fewer coefficients.
        let kept =
            [[true; COLUMNS], [true, true, false, false], [true, false, true, false], [true, false, false, false]];
        let plane = kept.into_iter().find_map(|kept| fit_plane_to(&points, kept, ROUNDS))?;
        Some(Self { plane, largest, typical })
    }

    /// Time of a step with these numbers of sequences and context tokens, in nanoseconds.
    pub(super) fn time(&self, seqs: f64, context: f64) -> f64 {
        self.plane.predict(&[1.0, seqs, context, 0.0])
    }

    pub(super) fn predict(&self, step: &EngineStep) -> f64 {
        self.plane.predict(&columns(step))
    }

    /// True if most steps take the time that the fit states, within this share.
    pub(super) fn is_within(&self, tolerance: f64, steps: &[EngineStep]) -> bool {
        let pure = steps.iter().filter(|step| step.is_pure_decode());
        let (mut close, mut all) = (0_usize, 0_usize);
        for (step, gap) in pure.filter_map(|step| Some((step, step.gap?))) {
            all += 1;
            close += usize::from((gap / self.predict(step) - 1.0).abs() < tolerance);
        }
        2 * close > all
    }

    pub(super) fn write(&self, parameters: &mut BTreeMap<Parameter, Estimate>) {
        for (column, parameter) in
            [Parameter::StepBase, Parameter::StepPerSeq, Parameter::KvToken].into_iter().enumerate()
        {
            let estimate = estimate_of(&self.plane, column, self.largest[column], self.typical);
            parameters.insert(parameter, estimate);
        }
    }

    /// Residuals of the steps, by the size of the batch.
    pub(super) fn residuals(&self, steps: &[EngineStep]) -> Vec<Residual> {
        let pure: Vec<&EngineStep> = steps.iter().filter(|step| step.is_pure_decode()).collect();
        let regimes = [(1, 1), (2, 4), (5, 16), (17, 64), (65, u32::MAX)];
        let of = |(from, to): (u32, u32)| {
            let pairs: Vec<(f64, f64)> = pure
                .iter()
                .filter(|step| (from..=to).contains(&step.decoding))
                .filter_map(|step| Some((step.gap?, self.predict(step))))
                .collect();
            let name = match (from, to) {
                (1, 1) => "decode, 1 sequence".to_owned(),
                (from, u32::MAX) => format!("decode, {from} sequences or more"),
                (from, to) => format!("decode, {from} to {to} sequences"),
            };
            Residual::of(name, &pairs)
        };
        regimes.into_iter().filter_map(of).collect()
    }
}

/// The estimate of a coefficient: a value if its standard error is small, or if the cost cannot matter; else a range.
pub(super) fn estimate_of(plane: &PlaneFit, column: usize, largest: f64, typical: f64) -> Estimate {
    let (value, error) = (plane.coefficients[column], plane.errors[column]);
    let (low, high) = ((value - 2.0 * error).max(0.0), value + 2.0 * error);
    if error.is_finite() && error <= MAX_RELATIVE_ERROR * value {
        return Estimate { value: Some(value), low: Some(low), high: Some(high), assumed: None };
    }
    if largest == 0.0 {
        return Estimate::range(Some(0.0), None, 0.0);
    }
    // The cost that would show in the residuals.
    let visible = (2.0 * plane.residual / largest).max(if error.is_finite() { high } else { 0.0 });
    match visible * largest <= MIN_SHARE * typical {
        true => Estimate { value: Some(value), low: Some(0.0), high: Some(visible), assumed: None },
        false => Estimate::range(Some(low), Some(visible), value),
    }
}
