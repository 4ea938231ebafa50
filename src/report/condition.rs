//! Conditions on the figures of a report: `ttft.p95<=1s e2e.p99<=15s goodput>=95%`.
//!
//! The language is that of [`crate::measure::slo::term`]. A condition states what must hold (`ttft.p95<=1s`, `goodput>=95%`)
//! or what must not (`ttft.p95>1s`, `goodput<95%`): each figure has a better direction, so both are unambiguous.
//!
//! # Failed requests
//! `ttft.p95<=1s` requires that at least 95 % of the requests have a TTFT of at most 1 s. A request without a complete
//! response has none, and counts as slower than any limit. The mean, the minimum and the maximum are those of the
//! successes.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::accumulate::Accumulator;
use super::metric::{MetricUnit, ReportMetric};
use super::{SloGoodput, slo_goodput};
use crate::measure::slo::SloError;
use crate::measure::slo::term::{ConditionTerm, Sign, Statistic};
use crate::measure::time::Gap;

const EXPECTED: &str = "expected METRIC.STATISTIC, <=, <, >= or >, and a limit, as in ttft.p95<=1s, itl.avg<=40ms, goodput>=95%, \
                        error_rate<=1% or output_tokens_per_second>=500";

/// One condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    figure: Figure,
    operator: Sign,
    /// In the unit of the figure: nanoseconds, tokens, a share of 1, or a rate per second.
    limit: f64,
}

/// Figure of a report that a condition reads.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    /// Share of requests that meet the SLOs; the lowest of several.
    Goodput,
    /// Share of requests without a complete response; cancelled requests do not count.
    ErrorRate,
    /// Successful requests per second.
    RequestRate,
    /// Output tokens of successes per second.
    OutputTokenRate,
    /// Statistic of a metric.
    Metric(ReportMetric, Statistic),
}

impl Figure {
    fn parse(term: &ConditionTerm<'_>) -> Option<Self> {
        Some(match term.figure {
            "goodput" => Self::Goodput,
            "error_rate" => Self::ErrorRate,
            "requests_per_second" => Self::RequestRate,
            "output_tokens_per_second" => Self::OutputTokenRate,
            _ => {
                let (metric, statistic) = term.metric()?;
                Self::Metric(ReportMetric::ALL.into_iter().find(|of| of.key() == metric)?, statistic)
            }
        })
    }

    /// True if lower values are better.
    const fn is_cost(self) -> bool {
        match self {
            Self::Goodput | Self::RequestRate | Self::OutputTokenRate => false,
            Self::ErrorRate => true,
            Self::Metric(metric, _) => metric.is_cost(),
        }
    }

    fn limit(self, text: &str) -> Option<f64> {
        let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        match self {
            Self::Goodput | Self::ErrorRate => Some(number(text.strip_suffix('%')?)? / 100.0),
            Self::RequestRate | Self::OutputTokenRate => number(text),
            Self::Metric(metric, _) => match metric.unit() {
                MetricUnit::Time => text.parse::<Gap>().ok().map(|gap| gap.as_nanos() as f64),
                MetricUnit::Tokens => number(text),
                MetricUnit::Rate => number(text).map(|rate| rate * 1e6),
            },
        }
    }
}

/// A condition's value and verdict.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ConditionResult {
    /// The condition as written.
    pub condition: String,
    /// The value for people; `none` if no request has one.
    pub value: String,
    /// True if the run fails because of it.
    pub fails: bool,
}

impl Condition {
    /// Parses several conditions, separated by spaces.
    ///
    /// # Errors
    /// The expected term, and its position.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, SloError> {
        ConditionTerm::parse_all(text, EXPECTED)?.iter().map(Self::of).collect()
    }

    fn of(term: &ConditionTerm<'_>) -> Result<Self, SloError> {
        let figure = Figure::parse(term).ok_or_else(|| term.wrong_figure(EXPECTED))?;
        let limit = figure.limit(term.limit).ok_or_else(|| term.wrong_limit(EXPECTED))?;
        Ok(Self { text: term.compact(), figure, operator: term.sign, limit })
    }

    /// Returns `true` if the condition needs SLOs.
    pub fn needs_slos(&self) -> bool {
        self.figure == Figure::Goodput
    }

    /// Evaluates the condition. Sorts the samples in place.
    pub fn evaluate(&self, fold: &mut Accumulator) -> ConditionResult {
        let (holds, value) = match self.figure {
            Figure::Metric(metric, Statistic::Percentile(percent)) => self.percentile(metric, percent, fold),
            figure => {
                let value = value(figure, fold);
                let holds = value.map(|value| self.operator.holds(value, self.limit));
                (holds, value.map(|value| format_figure(figure, value)))
            }
        };
        let states_requirement = self.figure.is_cost() == self.operator.is_upper_bound();
        // A figure that no request has meets no requirement, and shows no violation.
        let fails = holds.map_or(states_requirement, |holds| holds != states_requirement);
        ConditionResult { condition: self.text.clone(), value: value.unwrap_or_else(|| "none".to_owned()), fails }
    }

    /// A percentile among the requests that have a value and those that failed before they had one.
    fn percentile(&self, metric: ReportMetric, percent: f64, fold: &mut Accumulator) -> (Option<bool>, Option<String>) {
        let figure = Figure::Metric(metric, Statistic::Percentile(percent));
        let failed = if counts_failures(metric) { fold.total.requests() - fold.total.successes() } else { 0 };
        let Some(sorted) = fold.total.samples[metric as usize].sorted() else {
            return (None, None);
        };
        let all = sorted.count() + failed;
        let value = sorted.percentile(percent);
        let shown = format_figure(figure, value);
        if failed == 0 {
            return (Some(self.operator.holds(value, self.limit)), Some(shown));
        }
        let up_to = sorted.up_to(self.limit as u64) as f64 / all as f64;
        let holds = if self.operator.is_upper_bound() { up_to * 100.0 >= percent } else { up_to * 100.0 < percent };
        let text = format!(
            "{shown} among the successes; {:.2} % of all {all} requests are within the limit, {failed} failed",
            up_to * 100.0
        );
        (Some(holds), Some(text))
    }
}

/// True if a failed request counts as slower than any limit. Gaps and lengths exist only where there is a response.
const fn counts_failures(metric: ReportMetric) -> bool {
    use ReportMetric::{E2e, E2eFromPlanned, Tpot, Ttfo, Ttft, TtftFromPlanned};
    matches!(metric, Ttft | TtftFromPlanned | Ttfo | Tpot | E2e | E2eFromPlanned)
}

fn value(figure: Figure, fold: &mut Accumulator) -> Option<f64> {
    let seconds = fold.total.window.map_or(0.0, |(first, last)| last.since(first).as_secs());
    let per_second = |count: f64| (seconds > 0.0).then(|| count / seconds);
    match figure {
        Figure::Goodput => {
            let shares = slo_goodput(&fold.total, seconds, &fold.settings.slos).into_iter();
            // An SLO that applies to no request is not met.
            shares.map(|SloGoodput { share, .. }| share.unwrap_or(0.0)).reduce(f64::min)
        }
        Figure::ErrorRate => {
            let (all, good) = (fold.total.requests(), fold.total.successes());
            let cancelled = fold.total.outcomes.get("cancelled").copied().unwrap_or(0);
            let counted = all - cancelled;
            (counted > 0).then(|| (counted - good) as f64 / counted as f64)
        }
        Figure::RequestRate => per_second(fold.total.successes() as f64),
        Figure::OutputTokenRate => per_second(fold.total.samples[ReportMetric::Output as usize].sum() as f64),
        Figure::Metric(metric, statistic) => {
            let sorted = fold.total.samples[metric as usize].sorted()?;
            Some(match statistic {
                Statistic::Average => sorted.mean(),
                Statistic::Min => sorted.min() as f64,
                Statistic::Max => sorted.max() as f64,
                Statistic::Percentile(percent) => sorted.percentile(percent),
            })
        }
    }
}

fn format_figure(figure: Figure, value: f64) -> String {
    match figure {
        Figure::Goodput | Figure::ErrorRate => format!("{:.2} %", value * 100.0),
        Figure::RequestRate | Figure::OutputTokenRate => format!("{value:.2}/s"),
        Figure::Metric(metric, _) => super::ascii_plot::format_value(metric.unit().to_display(value), metric.unit()),
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::record::Outcome;
    use crate::measure::time::Stamp;
    use crate::report::accumulate::RequestStats;

    fn fold(ttft_millis: &[u64], failed: u64) -> Accumulator {
        let mut total = RequestStats::default();
        let successes = ttft_millis.len() as u64;
        total.outcomes = [(Outcome::Success.name(), successes), (Outcome::Failed.name(), failed)].into();
        total.window = Some((Stamp::default(), Stamp::from_nanos(10_000_000_000)));
        ttft_millis.iter().for_each(|millis| total.samples[ReportMetric::Ttft as usize].push(millis * 1_000_000));
        (0..successes).for_each(|_| total.samples[ReportMetric::Output as usize].push(40));
        Accumulator { total, ..Accumulator::default() }
    }

    fn fails(text: &str, fold: &mut Accumulator) -> bool {
        Condition::parse_all(text).unwrap()[0].evaluate(fold).fails
    }

    #[test]
    fn a_condition_states_what_must_hold_or_what_must_not() {
        let mut fold = fold(&[100, 200, 300, 400], 0);
        for (text, expected) in [
            ("ttft.p50<=250ms", false),
            ("ttft.p50<=249ms", true),
            ("ttft.p50>250ms", false),
            ("ttft.p50>249ms", true),
            ("ttft.max<=400ms", false),
            ("ttft.avg<0.25s", true),
            ("ttft.min>=100ms", true),
            ("requests_per_second>=0.4", false),
            ("output_tokens_per_second>=16.1", true),
            ("output_tokens_per_second<16.1", true),
            ("osl.avg>=40", false),
            ("error_rate<=0%", false),
        ] {
            assert_eq!(fails(text, &mut fold), expected, "{text}");
        }
    }

    #[test]
    fn a_failed_request_is_slower_than_any_limit() {
        let all_fast = [100; 95];
        assert!(!fails("ttft.p95<=100ms", &mut fold(&all_fast, 5)));
        assert!(fails("ttft.p95<=100ms", &mut fold(&all_fast, 6)));
        assert!(fails("error_rate<=5%", &mut fold(&all_fast, 6)));
        let result = Condition::parse_all("ttft.p99<=1s").unwrap()[0].evaluate(&mut fold(&all_fast, 5));
        assert_eq!(
            result.value,
            "100ms among the successes; 95.00 % of all 100 requests are within the limit, 5 failed"
        );
    }

    #[test]
    fn a_figure_that_nothing_has_meets_no_requirement() {
        let mut none = fold(&[], 0);
        assert!(fails("ttft.p95<=1s", &mut none) && fails("goodput>=95%", &mut none));
        assert!(!fails("ttft.p95>1s", &mut none));
    }

    #[test]
    fn several_conditions_may_have_spaces_around_their_signs() {
        let read = |text: &str| {
            Condition::parse_all(text).map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join("|"))
        };
        assert_eq!(read("ttft.p95 <= 1s  goodput>=95%").unwrap(), "ttft.p95<=1s|goodput>=95%");
        for wrong in ["", "ttft<=1s", "ttft.p95<=1", "ttft.p101<=1s", "goodput>=0.95", "itl.p50=5ms", "x.p50<=1s"] {
            assert!(read(wrong).unwrap_err().to_string().starts_with("expected "), "{wrong}");
        }
    }
}
