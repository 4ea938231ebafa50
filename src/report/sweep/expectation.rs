//! The expectation of a matrix row, and whether its runs confirm it.
//!
//! `ttft.p95 < baseline + 10%` is about the change against the baseline row, in the words and by the intervals of
//! `compare`. `ttft.p95<=1s` is about the row alone, in the words of `--fail-if`.

use std::path::Path;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Serialize;

use super::SweepError;
use super::file::{SweepFile, SweepLevel};
use crate::measure::slo::Slos;
use crate::report::accumulate::AccumulatorSettings;
use crate::report::compare::{ChangeCondition, ComparedRun, Comparison, ComparisonSettings, DEFAULT_MARGIN};
use crate::report::condition::Condition;
use crate::report::source_error::SourceError;
use crate::report::source_reader::SourceReader;
use crate::stats::change::Verdict;

/// The word for the baseline row.
const BASELINE: &str = "baseline";

/// An expectation of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Expectation {
    /// Of the change against the baseline row. The condition states what would refute it.
    Change(ChangeCondition),
    /// Of the row alone.
    Row(Vec<Condition>),
}

impl FromStr for Expectation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((left, change)) = text.split_once(BASELINE) else {
            return Condition::parse_all(text).map(Self::Row).map_err(|error| error.to_string());
        };
        let wrong = || {
            format!(
                "expected a figure, < or >, `baseline` and a change, as in `ttft.p95 < baseline + 10%`, not `{text}`"
            )
        };
        let left = left.trim().trim_end_matches('=');
        let sign = left.chars().last().filter(|sign| ['<', '>'].contains(sign)).ok_or_else(wrong)?;
        let figure = left[..left.len() - 1].trim();
        let change = match change.trim() {
            "" => "+0%".to_owned(),
            change => change.split_whitespace().collect::<String>(),
        };
        // A change refutes the expectation with the opposite sign.
        let refuted = if sign == '<' { '>' } else { '<' };
        format!("{figure} {refuted} {change}").parse().map(Self::Change).map_err(|_| wrong())
    }
}

impl Expectation {
    /// True if it is about the baseline row.
    pub fn needs_baseline(&self) -> bool {
        matches!(self, Self::Change(_))
    }
}

/// Whether the runs of a row confirm its expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExpectationVerdict {
    /// The whole interval is where it is expected; of a row alone, the figure is.
    Confirmed,
    /// The whole interval is elsewhere; of a row alone, the figure is.
    Refuted,
    /// The interval contains the limit, or a row has no valid run.
    Undecided,
}

/// The result of one row.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ExpectationResult {
    /// Name of the row.
    pub level: String,
    /// The expectation as written.
    pub expect: String,
    /// Verdict.
    pub verdict: ExpectationVerdict,
    /// The evidence in words.
    pub evidence: String,
}

/// Judges the expectations of all rows.
pub(super) fn expectations(folder: &Path, file: &SweepFile, slos: &Slos) -> Result<Vec<ExpectationResult>, SweepError> {
    let baseline = file.plan.levels.iter().find(|level| level.baseline);
    let mut results = Vec::new();
    for level in &file.plan.levels {
        let Some(text) = &level.expect else { continue };
        let read = |level: &SweepLevel| -> Result<Vec<ComparedRun>, SourceError> {
            let settings = || AccumulatorSettings { slos: slos.clone(), ..AccumulatorSettings::default() };
            let runs = file.level_runs(folder, &level.name, 0);
            runs.iter().map(|run| ComparedRun::read(SourceReader::open(run)?, settings())).collect()
        };
        let mut runs = read(level)?;
        let (verdict, evidence) = match text.parse::<Expectation>() {
            _ if runs.is_empty() => (ExpectationVerdict::Undecided, "the row has no valid run".to_owned()),
            Ok(Expectation::Row(conditions)) => row_verdict(&conditions, &mut runs),
            Ok(Expectation::Change(refuting)) => match baseline.map(read).transpose()? {
                Some(mut before) if !before.is_empty() => change_verdict(refuting, &mut before, &mut runs),
                _ => (ExpectationVerdict::Undecided, "the baseline has no valid run".to_owned()),
            },
            Err(error) => (ExpectationVerdict::Undecided, error),
        };
        results.push(ExpectationResult { level: level.name.clone(), expect: text.clone(), verdict, evidence });
    }
    Ok(results)
}

fn row_verdict(conditions: &[Condition], runs: &mut [ComparedRun]) -> (ExpectationVerdict, String) {
    let mut evidence = Vec::new();
    let mut fails = false;
    for run in runs {
        for condition in conditions {
            let result = condition.evaluate(&mut run.fold);
            fails |= result.fails;
            evidence.push(format!("{condition} is {}", result.value));
        }
    }
    let verdict = if fails { ExpectationVerdict::Refuted } else { ExpectationVerdict::Confirmed };
    (verdict, evidence.join("; "))
}

fn change_verdict(
    refuting: ChangeCondition,
    before: &mut [ComparedRun],
    after: &mut [ComparedRun],
) -> (ExpectationVerdict, String) {
    let settings =
        ComparisonSettings { margin: DEFAULT_MARGIN, although_different: true, conditions: vec![refuting.clone()] };
    let comparison = Comparison::of(before, after, &settings);
    let evidence = comparison.condition_evidence(&refuting);
    let verdict = comparison.conditions.first().map(|result| result.verdict);
    match verdict {
        Some(Verdict::Worse) => (ExpectationVerdict::Refuted, evidence),
        Some(Verdict::NotWorse) => (ExpectationVerdict::Confirmed, evidence),
        Some(Verdict::Undecided { data_factor: Some(factor) }) => {
            let more =
                format!("{evidence}; about {:.1} times as much data would decide", (factor * 10.0).ceil() / 10.0);
            (ExpectationVerdict::Undecided, more)
        }
        Some(Verdict::Undecided { data_factor: None }) | None => (ExpectationVerdict::Undecided, evidence),
    }
}

impl ExpectationResult {
    /// Describes the result.
    pub(super) fn text(&self) -> String {
        let verdict = match self.verdict {
            ExpectationVerdict::Confirmed => "confirmed",
            ExpectationVerdict::Refuted => "REFUTED",
            ExpectationVerdict::Undecided => "undecided",
        };
        format!("{}: {}: {verdict} ({})", self.level, self.expect, self.evidence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expectation_is_refuted_by_the_opposite_change() {
        let refuting = |text: &str| match text.parse::<Expectation>() {
            Ok(Expectation::Change(condition)) => condition.to_string(),
            other => format!("{other:?}"),
        };
        assert_eq!(refuting("ttft.p95 < baseline + 10%"), "ttft.p95 > +10%");
        assert_eq!(refuting("ttft.p95<=baseline"), "ttft.p95 > +0%");
        assert_eq!(refuting("output_tokens_per_second >= baseline - 5 %"), "output_tokens_per_second < -5%");
        assert!(matches!("ttft.p95<=1s goodput>=95%".parse(), Ok(Expectation::Row(rows)) if rows.len() == 2));
        for wrong in ["baseline", "ttft < baseline", "ttft.p95 = baseline", "ttft.p95 < baseline 10%", "ttft.p95<=1"] {
            assert!(wrong.parse::<Expectation>().unwrap_err().starts_with("expected "), "{wrong}");
        }
    }
}
