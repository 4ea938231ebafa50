//! The cost of decoding, from steps or windows that compute no prompt.

use std::collections::BTreeMap;

use super::Residual;
use super::context_cost::ContextCost;
use super::estimate::{EQUAL_RESIDUAL, PlaneColumn, estimate_of};
use super::observation::Observation;
use super::robust::{COLUMNS, PlaneFit, ROUNDS, fit_plane_to, median};
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
/// Batches after which a sequence may have another cost, to begin the search with.
const KNEES: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
/// Points on each side of a knee that show it.
const MIN_SIDE_POINTS: usize = 30;
/// A knee is accepted if it reduces the residual to this share.
const MIN_GAIN: f64 = 0.95;
/// Residuals below this share of a step show no knee.
const MIN_RESIDUAL: f64 = 0.01;

/// A plane over the points: base, per sequence up to a knee, per context token, per sequence beyond the knee.
#[derive(Clone, Copy, Debug)]
struct BentPlane {
    plane: PlaneFit,
    /// Infinite if all sequences cost the same.
    knee: f64,
}

/// Cost of a decode step.
#[derive(Clone, Debug)]
pub(super) struct DecodeFit {
    chosen: BentPlane,
    /// Other planes that explain the points about as well.
    others: Vec<BentPlane>,
    points: Vec<DecodePoint>,
    /// Median time of the points.
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
        let context = ContextCost::of(&points);
        let points = balanced(points);
        let typical = median(points.iter().map(|point| point.time))?;
        let chosen = best_plane(&points, context, typical)?;
        Some(Self { chosen, others: equal_planes(&points, context, chosen), points, typical })
    }

    /// Time of a step with these numbers of sequences and context tokens, in nanoseconds.
    pub(super) fn time(&self, seqs: f64, context: f64) -> f64 {
        self.chosen.plane.predict(&columns(seqs, context, self.chosen.knee))
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
        let is_bent = self.chosen.is_bent();
        let planes = || std::iter::once(&self.chosen).chain(&self.others);
        for (column, parameter) in costs.into_iter().enumerate().take(if is_bent { 4 } else { 3 }) {
            let planes: Vec<PlaneColumn> =
                planes().map(|bent| (bent.plane, bent.largest(column, &self.points))).collect();
            parameters.insert(parameter, estimate_of(&planes, column, self.typical));
        }
        if is_bent {
            let low = planes().map(|bent| bent.knee).fold(f64::INFINITY, f64::min);
            let high = planes().map(|bent| bent.knee).fold(0.0, f64::max);
            let knee = self.chosen.knee;
            let estimate = match low == high {
                true => ParameterEstimate::between(low, knee, high),
                false => ParameterEstimate::range(Some(low), Some(high), knee),
            };
            parameters.insert(Parameter::BatchKnee, estimate);
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

impl BentPlane {
    /// Fits what the context does not cost.
    fn fit(points: &[DecodePoint], has_seqs: bool, context: ContextCost, knee: f64) -> Option<Self> {
        let used = [true, has_seqs, false, knee.is_finite()];
        let less = |point: &DecodePoint| {
            (columns(point.seqs, point.context, knee), point.time - context.nanos * point.context)
        };
        let mut plane = fit_plane_to(&points.iter().map(less).collect::<Vec<_>>(), used, ROUNDS)?;
        (plane.coefficients[2], plane.errors[2]) = (context.nanos, context.error);
        Some(Self { plane, knee })
    }

    /// A plane with this knee, if enough points lie on each side of it.
    fn bent(points: &[DecodePoint], context: ContextCost, knee: f64) -> Option<Self> {
        let below = points.iter().filter(|point| point.seqs <= knee).count();
        let is_shown = knee >= 1.0 && below.min(points.len() - below) >= MIN_SIDE_POINTS;
        if is_shown { Self::fit(points, true, context, knee) } else { None }
    }

    fn is_bent(&self) -> bool {
        self.knee.is_finite()
    }

    fn total_residual(&self) -> f64 {
        self.plane.total_residual
    }

    /// The largest value of a column among the points.
    fn largest(&self, column: usize, points: &[DecodePoint]) -> f64 {
        points.iter().map(|point| columns(point.seqs, point.context, self.knee)[column]).fold(0.0, f64::max)
    }
}

/// The simplest plane that explains the points: a knee only if it shows.
fn best_plane(points: &[DecodePoint], context: ContextCost, typical: f64) -> Option<BentPlane> {
    let Some(straight) = BentPlane::fit(points, true, context, f64::INFINITY) else {
        // Always the same number of sequences.
        return BentPlane::fit(points, false, context, f64::INFINITY);
    };
    let is_noisy = straight.total_residual() > MIN_RESIDUAL * typical;
    let bent = if is_noisy { best_bend(points, context) } else { None };
    Some(bent.filter(|bent| bent.total_residual() < MIN_GAIN * straight.total_residual()).unwrap_or(straight))
}

/// The plane with the knee that explains the points best: the best of [`KNEES`], then the integers around it in steps
/// that halve.
fn best_bend(points: &[DecodePoint], context: ContextCost) -> Option<BentPlane> {
    let fit = |knee: f64| BentPlane::bent(points, context, knee);
    let better = |a: &BentPlane, b: &BentPlane| a.total_residual().total_cmp(&b.total_residual());
    let mut best = KNEES.into_iter().filter_map(fit).min_by(better)?;
    let mut step = (best.knee / 2.0).floor();
    while step >= 1.0 {
        let around = [best.knee - step, best.knee + step].into_iter().filter_map(fit);
        best = std::iter::once(best).chain(around).min_by(better)?;
        step = (step / 2.0).floor();
    }
    Some(best)
}

/// Planes that explain the points about as well as the chosen one: with the least and the greatest cost of context, and
/// with the knees around its own.
fn equal_planes(points: &[DecodePoint], context: ContextCost, chosen: BentPlane) -> Vec<BentPlane> {
    let is_equal = |bent: &BentPlane| bent.total_residual() <= EQUAL_RESIDUAL * chosen.total_residual();
    let has_seqs = chosen.plane.errors[1].is_finite();
    let other = |context: ContextCost| BentPlane::fit(points, has_seqs, context, chosen.knee);
    let mut planes: Vec<BentPlane> = context.limits().into_iter().filter_map(other).collect();
    if chosen.is_bent() {
        let fit = |knee: f64| BentPlane::bent(points, context, knee).filter(is_equal);
        planes.extend((1..).map_while(|step| fit(chosen.knee - f64::from(step))));
        planes.extend((1..).map_while(|step| fit(chosen.knee + f64::from(step))));
    }
    planes
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;
    use rand_distr::{Distribution as _, Normal};

    use super::*;

    /// Steps of 10 ms, 1 ms for each of six sequences and 0.3 ms for each further one, with this noise in milliseconds.
    fn bent(deviation: f64) -> BTreeMap<Parameter, ParameterEstimate> {
        let (mut random, noise) = (StdRng::seed_from_u64(5), Normal::new(0.0, deviation).unwrap());
        let points = (0..800_u32).map(|number| {
            let seqs = f64::from(1 + number % 16);
            let time = 10.0 + seqs.min(6.0) + 0.3 * (seqs - 6.0).max(0.0) + noise.sample(&mut random);
            DecodePoint { seqs, context: f64::from(number * 37 % 1_000), time: time * 1e6 }
        });
        let mut parameters = BTreeMap::new();
        DecodeFit::of_points(points.collect()).unwrap().write(&mut parameters);
        parameters
    }

    #[test]
    fn a_knee_that_several_batches_explain_is_a_range_with_the_truth_in_it() {
        let knee = |deviation| bent(deviation)[&Parameter::BatchKnee];
        let exact = knee(0.2);
        assert_eq!((exact.value, exact.low, exact.high), (Some(6.0), Some(6.0), Some(6.0)));
        let noisy = knee(1.2);
        let (low, high) = (noisy.low.unwrap(), noisy.high.unwrap());
        assert!(noisy.value.is_none() && low < high && (low..=high).contains(&6.0), "{noisy:?}");
        // The costs span the knees.
        let costs = bent(1.2);
        for (parameter, truth) in
            [(Parameter::StepBase, 10e6), (Parameter::StepPerSeq, 1e6), (Parameter::StepPerFurtherSeq, 0.3e6)]
        {
            let ParameterEstimate { low, high, .. } = costs[&parameter];
            assert!((low.unwrap()..=high.unwrap()).contains(&truth), "{parameter:?}: {:?}", costs[&parameter]);
        }
    }

    /// Batches of one to four sequences of 50 to 500 tokens, whose times are off by a quarter, as a busy machine's are.
    fn noisy(nanos_per_token: f64) -> ParameterEstimate {
        let (mut random, noise) = (StdRng::seed_from_u64(7), Normal::new(1.0, 0.25).unwrap());
        let points = (0..800_u32).map(|number| {
            let seqs = f64::from(1 + number % 4);
            let context = seqs * f64::from(50 + number * 131 % 450);
            let time = 150_000.0 + 350_000.0 * seqs + nanos_per_token * context;
            DecodePoint { seqs, context, time: time * noise.sample(&mut random) }
        });
        let mut parameters = BTreeMap::new();
        DecodeFit::of_points(points.collect()).unwrap().write(&mut parameters);
        parameters[&Parameter::KvToken]
    }

    #[test]
    fn a_cost_of_context_that_noise_is_larger_than_is_fitted_and_none_is_invented() {
        let shown = noisy(300.0);
        let (low, assumed, high) = (shown.low.unwrap(), shown.value.or(shown.assumed).unwrap(), shown.high.unwrap());
        assert!((low..=high).contains(&300.0) && (assumed / 300.0 - 1.0).abs() < 0.3, "{shown:?}");
        let none = noisy(0.0);
        assert_eq!((none.low, none.value.or(none.assumed)), (Some(0.0), Some(0.0)), "{none:?}");
    }

    /// A further sequence costs ever less, by a curve that no knee draws, and brings its context with it.
    #[test]
    fn a_curve_over_the_batches_is_no_cost_of_context() {
        let (mut random, noise) = (StdRng::seed_from_u64(3), Normal::new(1.0, 0.05).unwrap());
        let points = (0..3_000_u32).map(|number| {
            let seqs = f64::from(1 + number % 100);
            let context = seqs * f64::from(100 + number * 131 % 40);
            let time = (10e6 + 2e6 * seqs.powf(0.7)) * noise.sample(&mut random);
            DecodePoint { seqs, context, time }
        });
        let mut parameters = BTreeMap::new();
        DecodeFit::of_points(points.collect()).unwrap().write(&mut parameters);
        let cost = parameters[&Parameter::KvToken];
        assert_eq!(cost.value.or(cost.assumed), Some(0.0), "{cost:?}");
    }
}
