//! The cost of prefill, from requests that met an idle engine, and from steps in which first tokens came.

use std::collections::BTreeMap;

use super::Residual;
use super::decode::DecodeFit;
use super::estimate::{EQUAL_RESIDUAL, PlaneColumn, estimate_of};
use super::observation::{Observation, ObservedRequest};
use super::robust::{COLUMNS, COMPARISON_ROUNDS, PlaneFit, Point, ROUNDS, fit_plane, fit_plane_to, median, stride};
use super::steps::EngineStep;
use crate::twin::parameter::{Parameter, ParameterEstimate};

/// Points that suffice to choose a token budget.
const MAX_BUDGET_POINTS: usize = 400;
/// A token budget is accepted if it reduces the residual to this share.
const BUDGET_GAIN: f64 = 0.5;
/// Least mean effect of a token budget, as a share of a step.
const MIN_BUDGET_EFFECT: f64 = 0.005;
/// A step within this share of the time of its prompts has computed all of them.
const WHOLE_TOLERANCE: f64 = 0.05;
/// Least points of each kind.
const MIN_POINTS: usize = 8;

/// Cost of prompts.
#[derive(Clone, Debug, Default)]
pub(super) struct PrefillFit {
    plane: Option<PlaneFit>,
    /// Another plane that explains the points about as well.
    other: Option<PlaneFit>,
    largest: [f64; COLUMNS],
    typical: f64,
    budget: TokenBudget,
    /// Requests that met an idle engine.
    isolated: usize,
    pub(super) residuals: Vec<Residual>,
}

/// What is known of the tokens per step.
#[derive(Clone, Copy, Debug, Default)]
struct TokenBudget {
    /// The most tokens that a step has had.
    low: f64,
    /// Fewer than this; unknown if no prompt was split.
    high: Option<f64>,
}

impl TokenBudget {
    fn chunks(self, tokens: f64) -> f64 {
        match self.high {
            Some(_) => (tokens / self.round()).ceil().max(1.0),
            None => 1.0,
        }
    }

    /// The roundest number between the limits: servers are configured with such.
    fn round(self) -> f64 {
        let high = self.high.unwrap_or(f64::INFINITY);
        let mut unit = 65_536.0;
        while unit > 1.0 {
            let next = (self.low / unit).ceil() * unit;
            if next >= self.low && next < high {
                return next;
            }
            unit /= 2.0;
        }
        self.low.ceil()
    }
}

impl PrefillFit {
    pub(super) fn of(seen: Observation<'_>, steps: &[EngineStep], decode: &DecodeFit) -> Self {
        let requests = seen.requests;
        let mut isolated = isolated(requests);
        isolated.retain(|request| request.at >= seen.from);
        let loaded = loaded(requests, steps, decode);
        let alone = decode.time(1.0, 0.0);
        let mut budget = budget_of(&isolated, alone);
        let point = |request: &&ObservedRequest| {
            let ttft = (request.first()? - request.at) as f64;
            let tokens = request.computed();
            let columns = [1.0, tokens, request.squares(), request.cached.unwrap_or(0).into()];
            Some((columns, ttft - budget.chunks(tokens) * alone))
        };
        let mut points: Vec<Point> = Vec::new();
        points.extend(isolated.iter().step_by(stride(isolated.len())).filter_map(point));
        let split = |(columns, _): &&Point| budget.high.is_none() || columns[1] <= budget.round() / 2.0;
        points.extend(loaded.iter().filter(split).step_by(stride(loaded.len())));
        let mut largest = [0.0; COLUMNS];
        for (columns, _) in &points {
            largest.iter_mut().zip(columns).for_each(|(largest, column)| *largest = column.max(*largest));
        }
        let plane = plane_of(&points);
        if let (None, Some(plane)) = (budget.high, &plane) {
            budget.low = largest_step(&points, plane);
        }
        let residuals = plane.iter().flat_map(|plane| {
            let pairs = |alone_only: bool| {
                let chosen = points.iter().filter(move |(columns, _)| (columns[0] == 1.0) == alone_only);
                chosen.map(|(columns, time)| (time + alone, plane.predict(columns) + alone)).collect::<Vec<_>>()
            };
            [Residual::of("prefill, idle engine", &pairs(true)), Residual::of("prefill beside decoding", &pairs(false))]
        });
        Self {
            residuals: residuals.flatten().collect(),
            plane,
            other: plane.and_then(|plane| other_plane(&points, &plane)),
            largest,
            typical: median(points.iter().map(|(_, time)| time + alone)).unwrap_or_default(),
            budget,
            isolated: isolated.len(),
        }
    }

    /// Delay before the scheduler, in nanoseconds.
    pub(super) fn front_end(&self) -> f64 {
        self.plane.map_or(0.0, |plane| plane.coefficients[0])
    }

    /// Nanoseconds per prompt token, if known and without attention.
    pub(super) fn token_time(&self) -> Option<f64> {
        self.plane.filter(|plane| plane.coefficients[2] == 0.0).map(|plane| plane.coefficients[1])
    }

    /// True if an idle engine has split prompts, so that its token budget is known.
    pub(super) fn knows_budget(&self) -> bool {
        self.budget.high.is_some()
    }

    pub(super) fn write(&self, parameters: &mut BTreeMap<Parameter, ParameterEstimate>) {
        let Some(plane) = &self.plane else { return };
        let of = |column: usize| {
            let planes = std::iter::once(plane).chain(&self.other);
            let planes: Vec<PlaneColumn> = planes.map(|plane| (*plane, self.largest[column])).collect();
            estimate_of(&planes, column, self.typical)
        };
        let front_end = match self.isolated >= MIN_POINTS {
            true => of(0),
            false => ParameterEstimate::range(Some(0.0), None, 0.0),
        };
        parameters.insert(Parameter::FrontEnd, front_end);
        let rate = |time: f64| (1e9 / time).clamp(1.0, f64::from(u32::MAX));
        let cost = of(1);
        let inverse = |time: Option<f64>| time.filter(|time| *time > 0.0).map(rate);
        let estimate = ParameterEstimate {
            value: inverse(cost.value),
            low: inverse(cost.high),
            high: inverse(cost.low),
            assumed: inverse(cost.assumed),
        };
        parameters.insert(Parameter::PrefillRate, estimate);
        parameters.insert(Parameter::PrefillSquare, of(2));
        parameters.insert(Parameter::CachedToken, of(3));
        let TokenBudget { low, high } = self.budget;
        let budget = match high {
            Some(high) if high <= 1.1 * low => ParameterEstimate::between(low, self.budget.round(), high),
            Some(high) => ParameterEstimate::range(Some(low), Some(high), self.budget.round()),
            // vLLM's default for servers, unless a step had more.
            None => ParameterEstimate::range(Some(low), None, low.max(2_048.0)),
        };
        parameters.insert(Parameter::MaxBatchedTokens, budget);
    }
}

/// The cost of prompts. A cost of attention or of cached tokens that the points do not show is left out: its accidental
/// value would be multiplied by longer prompts and larger caches than were seen.
fn plane_of(points: &[Point]) -> Option<PlaneFit> {
    let fit = |used| fit_plane_to(points, used, ROUNDS).filter(|plane| plane.coefficients[1] > 0.0);
    let candidates =
        [[true; COLUMNS], [true, true, false, true], [true, true, false, false], [false, true, false, false]];
    let (mut used, mut plane) = candidates.into_iter().find_map(|used| Some((used, fit(used)?)))?;
    for column in [3, 2] {
        let (cost, error) = (plane.coefficients[column], plane.errors[column]);
        // To find a token in the cache costs no more than to compute it.
        let is_shown = cost > 2.0 * error && (column == 2 || cost < plane.coefficients[1]);
        let without = std::array::from_fn(|other| used[other] && other != column);
        if !is_shown && let Some(simpler) = fit(without).filter(|_| used[column]) {
            (used, plane) = (without, simpler);
        }
    }
    Some(plane)
}

/// The plane with the cost of squares that `plane` leaves out, or without the one that it has, if that explains the points
/// about as well: prompts of like lengths do not tell one from the other.
fn other_plane(points: &[Point], plane: &PlaneFit) -> Option<PlaneFit> {
    let mut used = plane.errors.map(f64::is_finite);
    used[2] = !used[2];
    fit_plane_to(points, used, ROUNDS).filter(|other| other.total_residual <= EQUAL_RESIDUAL * plane.total_residual)
}

/// The most prompt tokens of a step that took the time of all of them: a prompt that was split took another.
fn largest_step(points: &[Point], plane: &PlaneFit) -> f64 {
    let whole = points.iter().filter(|(columns, time)| (time / plane.predict(columns) - 1.0).abs() < WHOLE_TOLERANCE);
    whole.map(|(columns, _)| columns[1]).fold(1.0, f64::max)
}

/// Requests that were alone from their arrival to their first token.
fn isolated(requests: &[ObservedRequest]) -> Vec<&ObservedRequest> {
    let mut busy_until = 0;
    let mut alone = Vec::new();
    for (number, request) in requests.iter().enumerate() {
        let next = requests.get(number + 1).map_or(u64::MAX, |next| next.at);
        if let Some(first) = request.first()
            && request.at > busy_until
            && next > first
        {
            alone.push(request);
        }
        busy_until = busy_until.max(request.ended);
    }
    alone
}

/// Points of the steps in which first tokens came beside decoding. A prompt that had begun in an earlier step is an
/// outlier.
fn loaded(requests: &[ObservedRequest], steps: &[EngineStep], decode: &DecodeFit) -> Vec<Point> {
    let point = |(number, step): (usize, &EngineStep)| {
        if step.firsts.is_empty() {
            return None;
        }
        let arrived = step.firsts.iter().map(|request| requests[*request].at).max()?;
        // Without decoding beside it, the step began at the end of the one before, if its requests waited for that.
        let before = number.checked_sub(1).map(|before| steps[before].at).filter(|before| arrived < *before);
        let others = steps.get(number + 1).is_some_and(|next| next.seen as usize > step.firsts.len());
        let apart = before.filter(|_| others && step.seen == 0).map(|before| (step.at - before) as f64);
        let gap = step.gap.or(apart)?;
        let mut columns = [0.0; COLUMNS];
        for request in step.firsts.iter().map(|request| &requests[*request]) {
            columns[1] += request.computed();
            columns[2] += request.squares();
            columns[3] += f64::from(request.cached.unwrap_or(0));
        }
        // A step that only computed prompts has no decoding sequence.
        let (decoding, context) = if apart.is_some() { (0, 0.0) } else { (step.decoding, step.context) };
        Some((columns, gap - decode.time(f64::from(decoding) + step.firsts.len() as f64, context)))
    };
    steps.iter().enumerate().filter_map(point).filter(|(_, time)| *time > 0.0).collect()
}

/// The token budget that explains best how many steps the prompts of an idle engine took.
fn budget_of(isolated: &[&ObservedRequest], alone: f64) -> TokenBudget {
    let stride = isolated.len().div_ceil(MAX_BUDGET_POINTS).max(1);
    let times: Vec<([f64; COLUMNS], f64)> = isolated
        .iter()
        .step_by(stride)
        .filter_map(|request| {
            let columns = [1.0, request.computed(), request.squares(), request.cached.unwrap_or(0).into()];
            Some((columns, (request.first()? - request.at) as f64))
        })
        .collect();
    if times.len() < MIN_POINTS {
        return TokenBudget::default();
    }
    let longest = times.iter().map(|(columns, _)| columns[1]).fold(0.0, f64::max);
    let residual = |budget: f64| {
        let less = |(columns, time): &Point| (*columns, time - (columns[1] / budget).ceil().max(1.0) * alone);
        fit_plane(&times.iter().map(less).collect::<Vec<_>>(), COMPARISON_ROUNDS).map(|plane| plane.total_residual)
    };
    let Some(whole) = residual(f64::INFINITY) else { return TokenBudget::default() };
    let grid = (1..=128).map(|n| f64::from(n) * 16.0).chain((17..=128).map(|n| f64::from(n) * 128.0));
    let candidates = grid.filter(|budget| *budget < longest);
    let tried = candidates.filter_map(|budget| Some((residual(budget)?, budget)));
    let Some((best, budget)) = tried.min_by(|a, b| a.0.total_cmp(&b.0)) else { return TokenBudget::default() };
    if best > BUDGET_GAIN * whole || whole < MIN_BUDGET_EFFECT * alone {
        return TokenBudget::default();
    }
    // All budgets that give every prompt the same number of steps.
    let (mut low, mut high) = (1.0_f64, f64::INFINITY);
    for (columns, _) in &times {
        let steps = (columns[1] / budget).ceil().max(1.0);
        low = low.max(columns[1] / steps);
        if steps > 1.0 {
            high = high.min(columns[1] / (steps - 1.0));
        }
    }
    TokenBudget { low, high: Some(high) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A template's few cached tokens do not show what a cached prefix costs, however late some of them came.
    #[test]
    fn a_cost_of_cached_tokens_that_the_points_do_not_show_is_left_out() {
        let points = |late: f64| -> Vec<Point> {
            let point = |number: u32| {
                let (tokens, cached) = (f64::from(50 + number % 40 * 10), f64::from(7 + number % 3));
                let noise = if number.is_multiple_of(2) { 2e6 } else { -2e6 };
                ([1.0, tokens, 0.0, cached], 5e6 + 50_000.0 * tokens + noise + late * cached)
            };
            (0..60).map(point).collect()
        };
        let plane = plane_of(&points(100_000.0)).unwrap();
        assert_eq!(plane.coefficients[3], 0.0, "{plane:?}");
        assert!((plane.coefficients[1] / 50_000.0 - 1.0).abs() < 0.05, "{plane:?}");
        // Dearer than computing them: something else came with them.
        assert_eq!(plane_of(&points(3e6)).unwrap().coefficients[3], 0.0);
    }

    #[test]
    fn the_roundest_budget_between_the_limits_is_taken() {
        let round = |low, high| TokenBudget { low, high: Some(high) }.round();
        assert_eq!(round(2_001.0, 2_060.0), 2_048.0);
        assert_eq!(round(700.0, 800.0), 768.0);
        assert_eq!(round(99.5, 101.0), 100.0);
    }
}
