//! Figures of both sides, and their change.

use super::super::confidence::{BOOTSTRAP_SEED, MetricEstimates, goodput, metric_slices};
use super::super::metric::ReportMetric;
use super::super::request_point::RequestPoint;
use super::figure::METRICS;
use super::{ComparedFigure, ComparedRun, ComparisonMethod, FigureChange};
use crate::stats::bootstrap::BlockBootstrap;
use crate::stats::change::Change;
use crate::stats::estimate::{Estimate, proportion, rate};
use crate::stats::hypothesis::{
    geometric_mean, hedges_g, hedges_g_relative, paired, paired_relative, welch, welch_relative,
};
use crate::stats::interval::NotEnoughData;

/// Slices of time for a rate.
const RATE_SLICES: usize = 240;

/// One figure of one side.
#[derive(Debug)]
pub(super) struct SideFigure {
    /// Value in each run that has one.
    values: Vec<f64>,
    /// Of a side with one run, compared by bootstrap.
    estimate: Option<Estimate>,
    /// Mean and standard deviation of single values, of a side with one run.
    moments: Option<(f64, f64)>,
}

impl SideFigure {
    /// True if no run of the side has a value.
    pub(super) fn is_missing(&self) -> bool {
        self.values.is_empty()
    }
}

/// The figures of a side. Two runs that are paired share the seed of their resamples.
pub(super) fn side(
    runs: &mut [ComparedRun],
    figures: &[ComparedFigure],
    method: ComparisonMethod,
    is_before: bool,
) -> Vec<SideFigure> {
    let values = |runs: &mut [ComparedRun], figure| runs.iter_mut().filter_map(|run| value(figure, run)).collect();
    let [run] = runs else {
        return figures
            .iter()
            .map(|figure| SideFigure { values: values(runs, *figure), estimate: None, moments: None })
            .collect();
    };
    let offset = u64::from(!is_before && method != ComparisonMethod::PairedBootstrap) << 32;
    let bootstrap = BlockBootstrap::new(BOOTSTRAP_SEED + offset);
    let is_bootstrap = matches!(method, ComparisonMethod::Bootstrap | ComparisonMethod::PairedBootstrap);
    let metrics = if is_bootstrap { metric_estimates(run, figures, &bootstrap) } else { Vec::new() };
    let mut of = |figure: &ComparedFigure| SideFigure {
        values: value(*figure, run).into_iter().collect(),
        estimate: is_bootstrap.then(|| estimate(*figure, &run.fold.points, &metrics, &bootstrap, method)).flatten(),
        moments: moments(*figure, run),
    };
    figures.iter().map(&mut of).collect()
}

/// The value that a report prints.
pub(super) fn value(figure: ComparedFigure, run: &mut ComparedRun) -> Option<f64> {
    let share = |part: u64, all: u64| (all > 0).then(|| part as f64 / all as f64);
    match figure {
        ComparedFigure::Goodput(slo) => {
            let counts = run.fold.total.goodput.get(slo)?;
            share(counts.met, counts.counted)
        }
        ComparedFigure::SuccessRate => {
            let counted = || run.fold.points.iter().filter(|point| !point.cancelled);
            share(counted().filter(|point| point.success).count() as u64, counted().count() as u64)
        }
        ComparedFigure::OutputTokenRate => {
            let (tokens, seconds) = output_tokens(&run.fold.points, RequestPoint::ended)?;
            Some(tokens.iter().sum::<f64>() / seconds.iter().sum::<f64>())
        }
        ComparedFigure::Percentile(metric, percent) => {
            let metric = metric_of_samples(run, metric);
            Some(run.fold.total.samples[metric as usize].sorted()?.percentile(percent))
        }
    }
}

/// All percentiles of a metric at once: they share its slices and its variance inflation.
fn metric_estimates(
    run: &mut ComparedRun,
    figures: &[ComparedFigure],
    bootstrap: &BlockBootstrap,
) -> Vec<(ReportMetric, MetricEstimates)> {
    let percentile = |figure: &ComparedFigure| match figure {
        ComparedFigure::Percentile(_, percent) => Some(*percent),
        _ => None,
    };
    let mut percentiles: Vec<f64> = figures.iter().filter_map(percentile).collect();
    percentiles.sort_by(f64::total_cmp);
    percentiles.dedup();
    let gaps = std::mem::take(&mut run.fold.gaps).finish();
    let of = |metric| match metric {
        ReportMetric::Itl => MetricEstimates::of(&gaps, &percentiles, bootstrap),
        metric => MetricEstimates::of(&metric_slices(&run.fold.points, metric), &percentiles, bootstrap),
    };
    METRICS.into_iter().filter_map(|metric| Some((metric, of(metric)?))).collect()
}

fn estimate(
    figure: ComparedFigure,
    points: &[RequestPoint],
    metrics: &[(ReportMetric, MetricEstimates)],
    bootstrap: &BlockBootstrap,
    method: ComparisonMethod,
) -> Option<Estimate> {
    match figure {
        ComparedFigure::Goodput(slo) => goodput(points, slo, bootstrap),
        ComparedFigure::SuccessRate => {
            let counted = points.iter().filter(|point| !point.cancelled);
            proportion(&counted.map(|point| point.success).collect::<Vec<_>>(), 1.0, bootstrap)
        }
        ComparedFigure::OutputTokenRate => {
            let (tokens, seconds) = match method {
                ComparisonMethod::PairedBootstrap => output_tokens(points, |point| Some(point.started))?,
                _ => output_tokens(points, RequestPoint::ended)?,
            };
            rate(&tokens, &seconds, bootstrap)
        }
        ComparedFigure::Percentile(metric, percent) => {
            let (_, estimates) = metrics.iter().find(|(of, _)| *of == metric)?;
            estimates.percentile(percent).cloned()
        }
    }
}

/// Output tokens of successes by the moment of their requests, and the seconds, in equal slices up to the last moment.
fn output_tokens(
    points: &[RequestPoint],
    moment: impl Fn(&RequestPoint) -> Option<u64>,
) -> Option<(Vec<f64>, Vec<f64>)> {
    let first = points.iter().map(|point| point.started).min()?;
    let last = points.iter().filter_map(RequestPoint::ended).max()?;
    let length = |end: u64| end.saturating_sub(first).max(1) as f64;
    let sliced = length(points.iter().filter_map(&moment).max()?);
    let mut tokens = vec![0.0; RATE_SLICES];
    for point in points {
        if let (Some(moment), Some(osl)) = (moment(point), point.osl()) {
            let slice = ((moment - first) as f64 / sliced * RATE_SLICES as f64) as usize;
            tokens[slice.min(RATE_SLICES - 1)] += osl as f64;
        }
    }
    Some((tokens, vec![length(last) / 1e9 / RATE_SLICES as f64; RATE_SLICES]))
}

/// The change of one figure; `None` if a side has no value.
pub(super) fn change(
    figure: ComparedFigure,
    label: String,
    (before, after): (&SideFigure, &SideFigure),
    method: ComparisonMethod,
) -> Option<FigureChange> {
    let (is_share, resolution) = (figure.is_share(), figure.resolution());
    // The mean whose change is tested, or both could contradict each other.
    let mean = |values: &[f64]| match values {
        [] => None,
        [value] => Some(*value),
        _ if is_share || values.iter().all(|value| *value < resolution) => {
            Some(values.iter().sum::<f64>() / values.len() as f64)
        }
        _ => Some(geometric_mean(values, resolution)),
    };
    let (value_before, value_after) = (mean(&before.values)?, mean(&after.values)?);
    let change: Result<Change, NotEnoughData> = match method {
        ComparisonMethod::Bootstrap | ComparisonMethod::PairedBootstrap => {
            let (before, after) = (before.estimate.as_ref()?, after.estimate.as_ref()?);
            match is_share {
                true => after.difference_from(before),
                false => after.relative_change_from(before, resolution),
            }
        }
        ComparisonMethod::PairedRuns if is_share => paired(&before.values, &after.values),
        ComparisonMethod::PairedRuns => paired_relative(&before.values, &after.values, resolution),
        ComparisonMethod::Runs if is_share => welch(&before.values, &after.values),
        ComparisonMethod::Runs => welch_relative(&before.values, &after.values, resolution),
    };
    let effect_size = match before.moments.zip(after.moments) {
        Some((before, after)) => cohens_d(before, after),
        None if is_share => hedges_g(&before.values, &after.values),
        None => hedges_g_relative(&before.values, &after.values, resolution),
    };
    Some(FigureChange {
        figure,
        label,
        before: figure.to_display(value_before),
        after: figure.to_display(value_after),
        change,
        effect_size,
        verdict: None,
        better: false,
    })
}

fn moments(figure: ComparedFigure, run: &mut ComparedRun) -> Option<(f64, f64)> {
    let ComparedFigure::Percentile(metric, _) = figure else { return None };
    let metric = metric_of_samples(run, metric);
    run.fold.total.samples[metric as usize].sorted().map(|sorted| (sorted.mean(), sorted.deviation()))
}

/// Difference of the means in pooled standard deviations of single values.
fn cohens_d((mean_before, sd_before): (f64, f64), (mean_after, sd_after): (f64, f64)) -> Option<f64> {
    let pooled = ((sd_before.powi(2) + sd_after.powi(2)) / 2.0).sqrt();
    (pooled > 0.0).then(|| (mean_after - mean_before) / pooled)
}

/// A capture has no planned moments, so its TTFT and E2E are from the first byte.
pub(super) fn metric_of_samples(run: &ComparedRun, metric: ReportMetric) -> ReportMetric {
    let from_sent = match metric {
        ReportMetric::TtftFromPlanned => ReportMetric::Ttft,
        ReportMetric::E2eFromPlanned => ReportMetric::E2e,
        metric => metric,
    };
    if run.fold.total.samples[metric as usize].is_empty() { from_sent } else { metric }
}
