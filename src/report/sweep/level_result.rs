//! Aggregates one run of a sweep.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::super::accumulate::{Accumulator, AccumulatorSettings, RequestStats};
use super::super::metric::ReportMetric;
use super::super::request_point::RequestPoint;
use super::super::saturation::{LoadGrowth, request_growth};
use super::super::secs;
use super::super::source::ReportSource;
use super::super::source_error::SourceError;
use super::super::source_reader::{SourceReader, read};
use crate::measure::slo::criteria::{Criteria, ObservedShare};
use crate::measure::slo::{Slo, Slos};

/// Reason why a sweep cannot be reported.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A run cannot be read.
    #[error(transparent)]
    Run(#[from] SourceError),
    /// A run's SLO cannot be parsed, or two SLOs share a name.
    #[error("{}: {reason}", path.display())]
    Slo {
        /// Path of the run.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
}

/// Aggregate of one run.
#[derive(Debug)]
pub struct LevelResult {
    pub(in crate::report) figures: RequestStats,
    pub(in crate::report) seconds: f64,
    pub(in crate::report) slos: Slos,
    /// Each objective of the SLOs alone; its counts follow those of the SLOs.
    pub(in crate::report) objectives: Vec<Slo>,
    pub(in crate::report) source: ReportSource,
    /// Models that requests named.
    pub(in crate::report) models: BTreeSet<String>,
    pub(in crate::report) points: Vec<RequestPoint>,
    /// Growth of the load, if it grew.
    pub growth: Option<LoadGrowth>,
}

/// Aggregates a run with the given SLOs, or with the run's own if there are none, and with those of the goals.
///
/// # Errors
/// Returns an error if the run cannot be read.
pub fn read_run(run: &Path, slos: &[Slo], goals: &Criteria) -> Result<LevelResult, SweepError> {
    let opened = SourceReader::open(run)?;
    let wrong = |reason: String| SweepError::Slo { path: run.to_owned(), reason };
    let own = || opened.source.slos.iter().map(|text| text.parse()).collect::<Result<Vec<Slo>, _>>();
    let mut list = if slos.is_empty() { own().map_err(|error| wrong(error.to_string()))? } else { slos.to_vec() };
    for slo in goals.slos() {
        if list.iter().all(|own| own.name() != slo.name()) {
            list.push(slo.clone());
        }
    }
    let slos = Slos::new(list).map_err(wrong)?;
    let objectives: Vec<Slo> = slos.iter().flat_map(Slo::objectives).collect();
    let judged = slos.iter().cloned().chain(objectives.iter().cloned()).collect();
    let judged = Slos::new(judged).map_err(wrong)?;
    let mut fold = Accumulator::new(AccumulatorSettings { slos: judged, ..AccumulatorSettings::default() });
    let source = read(vec![opened], &mut fold)?.remove(0);
    let growth = request_growth(&fold.load_samples(), fold.warm_up.first_sent).filter(|_| !source.closed_loop);
    let Accumulator { total: figures, points, models, .. } = fold;
    let (first, last) = figures.window.unwrap_or_default();
    Ok(LevelResult { figures, seconds: secs(last) - secs(first), slos, objectives, source, models, points, growth })
}

impl LevelResult {
    /// Returns the observed share of each goal.
    pub fn goal_results(&mut self, goals: &Criteria) -> Vec<ObservedShare> {
        goal_results(&mut self.figures, &self.slos, goals)
    }

    /// Returns the reasons why the run is invalid.
    pub fn not_valid(&self) -> &[String] {
        &self.source.not_valid
    }

    /// Returns complete responses per second.
    pub fn successes_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.figures.successes() as f64 / self.seconds } else { 0.0 }
    }
}

/// Returns the observed share of each goal. An SLO counts requests. A limit on gaps counts good gaps, over the requests
/// that have gaps, plus the requests without a complete response.
pub(in crate::report) fn goal_results(figures: &mut RequestStats, slos: &Slos, goals: &Criteria) -> Vec<ObservedShare> {
    let of_requests = slos.iter().zip(&figures.goodput).filter_map(|(slo, good)| {
        Some(ObservedShare { good: good.met as f64, of: good.counted as f64, share: goals.share_of(slo.name())? })
    });
    let mut seen: Vec<ObservedShare> = of_requests.collect();
    let with_gaps = figures.samples[ReportMetric::WorstGap as usize].len() as f64;
    let without_answer = (figures.requests() - figures.successes()) as f64;
    for (limit, share) in goals.gaps() {
        let gaps = figures.samples[ReportMetric::Itl as usize].sorted();
        let within = gaps.map_or(0.0, |gaps| gaps.up_to(limit.as_nanos()) as f64 / gaps.count() as f64);
        seen.push(ObservedShare { good: within * with_gaps, of: with_gaps + without_answer, share });
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::accumulate::UNKNOWN_OUTCOME;

    #[test]
    fn of_gaps_as_much_is_seen_as_requests_have_any_and_those_without_an_answer_have_no_good_ones() {
        let mut figures = RequestStats::default();
        // Three requests with 10 gaps, 9 of them up to 5 ms, a one-token success and a failure.
        (1..=9).chain([50]).for_each(|gap| figures.samples[ReportMetric::Itl as usize].push(gap * 500_000));
        (0..3).for_each(|_| figures.samples[ReportMetric::WorstGap as usize].push(1));
        figures.outcomes = [("success", 4), (UNKNOWN_OUTCOME, 1)].into();
        let goals = "itl.p99<=5ms".parse().unwrap();
        let seen = goal_results(&mut figures, &Slos::default(), &goals);
        assert_eq!(seen, [ObservedShare { good: 0.9 * 3.0, of: 4.0, share: 0.99 }]);
    }
}
