//! Page of a sweep: latency against load with the SLO, and the Pareto front.

use super::super::metric::ReportMetric;
use super::super::page::Page;
use super::super::page::chart::{Chart, slo_limits};
use super::super::page::load_latency::{self, LevelPercentile, LevelPoint, LoadLatency};
use super::super::page::pareto::{self, ParetoPoint};
use super::Sweep;
use super::level_intervals::{METRICS, PERCENTILES};
use super::level_runs::LevelRuns;
use super::level_summary::{LevelSummary, workloads};
use super::text::{lines, more_tables, table, warning_text};
use crate::measure::slo::Slo;
use crate::measure::slo::criteria::Criteria;

/// Data of the page beyond the levels.
#[derive(Debug, Default)]
pub(super) struct SweepChartFacts {
    /// Limits of the SLO in milliseconds, in the order of the metrics.
    limits: [Vec<f64>; METRICS.len()],
    /// GPUs of a target, by `--meta gpu_count`.
    gpus: Option<f64>,
}

impl SweepChartFacts {
    pub(super) fn of(all: &[LevelRuns], goals: Option<&Criteria>) -> Self {
        let own = all.iter().flat_map(|level| level.slos.iter());
        let slos: Vec<&Slo> = own.chain(goals.into_iter().flat_map(Criteria::slos)).collect();
        let limits = METRICS.map(|(_, metric)| slo_limits(slos.iter().copied(), |of| of == metric));
        let count = |level: &LevelRuns| level.sources.iter().find_map(|run| run.meta.get("gpu_count")?.parse().ok());
        Self { limits, gpus: all.iter().find_map(count).filter(|gpus| *gpus > 0.0) }
    }
}

/// Renders the page.
pub fn render(sweep: &Sweep) -> String {
    let mut page = Page::new(&format!("Streamgauge sweep: {}", sweep.path));
    page.lines(sweep.context.lines());
    page.lines(lines(sweep));
    for doubt in &sweep.warnings {
        page.warning(&doubt.warning, &warning_text(doubt));
    }
    let against_load = METRICS.iter().zip(&sweep.chart_facts.limits);
    page.charts("Latency against load", against_load.map(|((metric, _), limits)| curve(sweep, *metric, limits)));
    page.charts("Throughput against speed", [front(sweep)]);
    page.table("Levels", &table(sweep));
    for more in more_tables(sweep) {
        page.table("Comparison", &more);
    }
    page.finish()
}

fn is_sound(level: &LevelSummary) -> bool {
    level.growth.is_none() && level.not_valid.is_empty()
}

fn curve(sweep: &Sweep, metric: ReportMetric, limits: &[f64]) -> Option<Chart> {
    let point = |(at, level): (usize, &LevelSummary)| {
        let percentile = |percent: f64| -> LevelPercentile {
            let confidence = level.intervals.iter().find(|(of, _)| *of == metric).map(|(_, confidence)| confidence);
            let known = confidence.and_then(|of| of.percentiles.iter().find(|(of, _)| *of == percent));
            Some((level.percentile(metric, percent)?, known.and_then(|(_, interval)| interval.ok())))
        };
        LevelPoint {
            name: level.name(),
            rate: level.summary.throughput.requests,
            p50: percentile(PERCENTILES[0]),
            p99: percentile(PERCENTILES[1]),
            is_sound: is_sound(level),
            series: sweep.series.iter().position(|series| series.places.contains(&at)).unwrap_or_default(),
        }
    };
    let levels: Vec<LevelPoint> = sweep.levels.iter().enumerate().map(point).collect();
    let names: Vec<String> = sweep.series.iter().map(|series| series.label(&sweep.levels)).collect();
    let label = metric.label(false).trim_end_matches(" from planned");
    load_latency::chart(&LoadLatency { label, levels: &levels, series: &names, limits })
}

fn front(sweep: &Sweep) -> Option<Chart> {
    let workloads = workloads(&sweep.levels);
    let point = |(at, level): (usize, &LevelSummary)| {
        Some(ParetoPoint {
            name: level.name(),
            throughput: level.summary.throughput.output_tokens,
            speed: level.median(ReportMetric::UserRate)?,
            is_front: level.front,
            is_knee: level.knee,
            is_sound: is_sound(level),
            workload: workloads.iter().position(|workload| workload.contains(&at)).unwrap_or_default(),
        })
    };
    let points: Vec<ParetoPoint> = sweep.levels.iter().enumerate().filter_map(point).collect();
    pareto::chart(&points, sweep.chart_facts.gpus)
}
