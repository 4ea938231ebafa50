//! Measurements of each level of a sweep: its real rate, and whether it held the SLO.
//!
//! The rate of a level is that of the requests that were sent, (n − 1) ÷ (last − first), and not the rate in its name. A
//! closed loop has no arrivals, so its rate is that of its complete responses.

use schemars::JsonSchema;
use serde::Serialize;

use super::load_mix::LoadMix;
use crate::measure::server_metrics::ServerMetric;
use crate::measure::slo::criteria::Criteria;
use crate::measure::slo::{Slo, Slos};
use crate::measure::time::Stamp;
use crate::report::accumulate::{RequestStats, SloCounts};
use crate::report::metric::ReportMetric;
use crate::report::servers::{ServerSummary, Trend};
use crate::report::sweep::LevelResult;
use crate::report::sweep::level_result::goal_results;
use crate::report::sweep::level_verdict::LevelVerdict;
use crate::stats::length_histogram::LengthHistogram;
use crate::stats::samples::Samples;

/// One level of a sweep: its valid runs together.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct MeasuredLevel {
    /// Name in the sweep.
    pub name: String,
    /// Requests per second that were sent.
    pub rate: f64,
    /// Complete responses per second.
    pub throughput: f64,
    /// Requests of its valid runs.
    pub requests: u64,
    /// Whether it held the SLO.
    pub verdict: LevelVerdict,
    /// Share of requests that missed an SLO: of several, those that missed at least one. Absent if the SLO limits gaps only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_share: Option<f64>,
    /// Output tokens of complete responses per second.
    pub output_tokens_per_second: f64,
    /// Output tokens per request that met the SLO; of several SLOs, the one with fewest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub good_tokens_per_request: Option<f64>,
    /// Mean power of all scraped GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// The mix of requests that was sent.
    #[serde(skip)]
    pub mix: LoadMix,
}

impl MeasuredLevel {
    /// The rate from which the verdict is true. A saturated server answers its throughput, so its queue grows at any
    /// higher rate.
    pub fn verdict_rate(&self) -> f64 {
        if self.verdict == LevelVerdict::Saturated { self.throughput.min(self.rate) } else { self.rate }
    }
}

/// A level that shows nothing about the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LevelWithoutResult {
    /// Name in the sweep.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// Adds up the runs of one level.
#[derive(Debug, Default)]
pub(super) struct LevelFold {
    figures: RequestStats,
    seconds: f64,
    /// Gaps between sends, and their sum in seconds.
    send_gaps: (f64, f64),
    slos: Slos,
    is_closed_loop: bool,
    is_saturated: bool,
    sustained: Option<LevelVerdict>,
    watts: Vec<f64>,
    /// Requests that an SLO judges, and those of them that missed one.
    judged: (u64, u64),
    later_turns: u64,
    left_out: Vec<String>,
}

impl LevelFold {
    /// Adds a run. Runs that are not valid only leave their reasons.
    pub(super) fn add(&mut self, mut run: LevelResult, is_sustained: bool, goals: &Criteria) {
        if !run.not_valid().is_empty() {
            self.left_out.extend(run.not_valid().iter().cloned());
            return;
        }
        if is_sustained {
            self.sustained = LevelVerdict::of(&run.goal_results(goals), run.growth.is_some());
        }
        let sent = || run.points.iter().map(|request| Stamp::from_nanos(request.started.saturating_add(request.lag)));
        if let (Some(first), Some(last)) = (sent().min(), sent().max()) {
            self.send_gaps.0 += (run.points.len() - 1) as f64;
            self.send_gaps.1 += last.since(first).as_secs();
        }
        self.figures.merge(&run.figures);
        self.seconds += run.seconds;
        self.is_closed_loop |= run.source.closed_loop;
        self.is_saturated |= run.growth.is_some();
        self.later_turns += run.points.iter().filter(|request| request.turn() > 0).count() as u64;
        self.watts.extend(watts(&run));
        let counts = |slo: &Slo| goals.share_of(slo.name()).is_some();
        let slos: Vec<usize> = run.slos.iter().enumerate().filter(|(_, slo)| counts(slo)).map(|(at, _)| at).collect();
        for request in &run.points {
            let verdicts = || slos.iter().filter_map(|slo| request.meets(*slo));
            self.judged.0 += u64::from(verdicts().next().is_some());
            self.judged.1 += u64::from(verdicts().any(|met| !met));
        }
        self.slos = run.slos;
    }

    pub(super) fn is_closed_loop(&self) -> bool {
        self.is_closed_loop
    }

    /// The level, or the reason why it shows nothing about the server.
    pub(super) fn finish(mut self, name: String, goals: &Criteria) -> Result<MeasuredLevel, LevelWithoutResult> {
        let per_second = |count: f64| if self.seconds > 0.0 { count / self.seconds } else { 0.0 };
        let throughput = per_second(self.figures.successes() as f64);
        let rate = match self.send_gaps {
            (gaps, seconds) if !self.is_closed_loop && seconds > 0.0 => gaps / seconds,
            _ => throughput,
        };
        let requests = self.figures.requests();
        let observed = goal_results(&mut self.figures, &self.slos, goals);
        let verdict = match (LevelVerdict::of(&observed, self.is_saturated), self.sustained) {
            // A pass that holds by chance may outweigh the longer run that does not.
            (Some(whole), Some(sustained)) if whole.holds() && !sustained.holds() => sustained,
            (Some(whole), _) => whole,
            (None, _) => {
                let reason = self.left_out.into_iter().next();
                let reason = reason.unwrap_or_else(|| "the SLO judges none of its requests".to_owned());
                return Err(LevelWithoutResult { name, reason });
            }
        };
        let judged: Vec<SloCounts> = self
            .slos
            .iter()
            .zip(&self.figures.goodput)
            .filter(|(slo, counts)| goals.share_of(slo.name()).is_some() && counts.counted > 0)
            .map(|(_, counts)| *counts)
            .collect();
        let miss_share = (self.judged.0 > 0).then(|| self.judged.1 as f64 / self.judged.0 as f64);
        let good_tokens = judged.iter().map(|of| of.tokens).min();
        let samples = &mut self.figures.samples;
        let output_tokens_per_second = per_second(samples[ReportMetric::Output as usize].sum() as f64);
        let [input, output] = [ReportMetric::Input, ReportMetric::Output].map(|of| lengths(&mut samples[of as usize]));
        let reports_cache = self.figures.cached > 0;
        Ok(MeasuredLevel {
            name,
            rate,
            throughput,
            requests,
            verdict,
            miss_share,
            output_tokens_per_second,
            good_tokens_per_request: good_tokens.map(|tokens| tokens as f64 / requests.max(1) as f64),
            watts: (!self.watts.is_empty()).then(|| self.watts.iter().sum::<f64>() / self.watts.len() as f64),
            mix: LoadMix {
                input,
                output,
                requests,
                later_turns: self.later_turns,
                cached_tokens: reports_cache.then_some(self.figures.cached),
            },
        })
    }
}

/// Mean power of all GPUs of a run's servers; `None` if none was scraped.
fn watts(run: &LevelResult) -> Option<f64> {
    let power = |server| match ServerSummary::summarize(server, &|_| true).figures.get(&ServerMetric::GpuPower) {
        Some(Trend::Level { avg, .. }) => Some(*avg),
        _ => None,
    };
    run.source.servers.iter().filter_map(power).reduce(|all, one| all + one)
}

fn lengths(samples: &mut Samples) -> LengthHistogram {
    let mut lengths = LengthHistogram::default();
    if let Some(sorted) = samples.sorted() {
        sorted.for_each(|value, times| (0..times).for_each(|_| lengths.take(value)));
    }
    lengths
}
