//! Conditions on changes: `ttft.p99 > +5%`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Serialize;

use super::figure::metric_named;
use super::{ComparedFigure, FigureChange};
use crate::measure::slo::term::{ConditionTerm, Sign, Statistic};
use crate::stats::change::{Change, Verdict};
use crate::stats::interval::NotEnoughData;

const EXPECTED: &str = "expected a figure, > or <, and a change with its sign, as in `ttft.p99 > +5%` or \
                        `goodput < -2%`; figures: goodput, success_rate, output_tokens_per_second, and ttft, itl, tpot \
                        and e2e with a percentile, as .p95";

/// A change that fails the comparison, if the data supports it.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeCondition {
    text: String,
    figure: FigureName,
    is_above: bool,
    /// Relative change, or difference of a share: 0.05 is 5 % or 5 points more.
    limit: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum FigureName {
    /// Of every SLO.
    Goodput,
    One(ComparedFigure),
}

/// Result of a condition. *Worse* means that the whole interval fulfills the condition.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ChangeConditionResult {
    /// The condition as written.
    pub condition: String,
    /// Whether the data supports it.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Why no amount of data decides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<ConditionObstacle>,
}

/// Why a condition stays undecided, whatever the amount of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConditionObstacle {
    /// A side has no value of the figure.
    NotMeasured,
    /// The workloads differ, so the load explains any change.
    Withheld,
}

impl ChangeCondition {
    /// The figure that the condition reads beyond the family of every comparison.
    pub(super) fn figure(&self) -> Option<ComparedFigure> {
        match self.figure {
            FigureName::Goodput => None,
            FigureName::One(figure) => Some(figure),
        }
    }

    /// Evaluates the condition; of several SLOs, the worst decides. Without enough data, or where the verdict is
    /// withheld, it is undecided.
    pub(super) fn evaluate(&self, changes: &[FigureChange], is_withheld: bool) -> ChangeConditionResult {
        let is_meant = |change: &&FigureChange| match self.figure {
            FigureName::Goodput => matches!(change.figure, ComparedFigure::Goodput(_)),
            FigureName::One(figure) => change.figure == figure,
        };
        let missing = |missing: NotEnoughData| Verdict::Undecided { data_factor: Some(missing.factor()) };
        let verdict =
            |change: &FigureChange| change.change.map_or_else(missing, |known| self.verdict(change.figure, known));
        let verdicts: Vec<Verdict> = changes.iter().filter(is_meant).map(verdict).collect();
        let undecided = verdicts.iter().copied().find(|verdict| matches!(verdict, Verdict::Undecided { .. }));
        let obstacle = match (verdicts.is_empty(), is_withheld) {
            (true, _) => Some(ConditionObstacle::NotMeasured),
            (false, true) => Some(ConditionObstacle::Withheld),
            (false, false) => None,
        };
        let verdict = match verdicts.contains(&Verdict::Worse) {
            _ if obstacle.is_some() => Verdict::Undecided { data_factor: None },
            true => Verdict::Worse,
            false => undecided.unwrap_or(Verdict::NotWorse),
        };
        ChangeConditionResult { condition: self.text.clone(), verdict, obstacle }
    }

    fn verdict(&self, figure: ComparedFigure, change: Change) -> Verdict {
        match self.is_above {
            true => change.verdict(self.limit),
            false if figure.is_share() => change.reversed().verdict(-self.limit),
            // A fall below −2 % is a rise of the reversed change above 1 ÷ 0.98 − 1.
            false => change.reversed().verdict(1.0 / (1.0 + self.limit) - 1.0),
        }
    }
}

impl fmt::Display for ChangeCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for ChangeCondition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{EXPECTED}, not `{}`", text.chars().take(60).collect::<String>().escape_debug());
        let terms = ConditionTerm::parse_all(text, EXPECTED).map_err(|_| wrong())?;
        let [term] = &terms[..] else { return Err(wrong()) };
        let is_above = match term.sign {
            Sign::Above => true,
            Sign::Below => false,
            Sign::AtMost | Sign::AtLeast => return Err(wrong()),
        };
        let percent = term.limit.strip_suffix('%').filter(|percent| percent.starts_with(['+', '-']));
        let percent: f64 = percent.ok_or_else(wrong)?.parse().map_err(|_| wrong())?;
        let limit = Some(percent / 100.0).filter(|limit| limit.is_finite() && *limit > -1.0).ok_or_else(wrong)?;
        let figure = match (term.figure, term.metric()) {
            ("goodput", _) => FigureName::Goodput,
            ("success_rate", _) => FigureName::One(ComparedFigure::SuccessRate),
            ("output_tokens_per_second", _) => FigureName::One(ComparedFigure::OutputTokenRate),
            (_, Some((metric, Statistic::Percentile(percent)))) => {
                let metric = metric_named(metric).ok_or_else(wrong)?;
                FigureName::One(ComparedFigure::Percentile(metric, percent))
            }
            _ => return Err(wrong()),
        };
        Ok(Self { text: text.trim().to_owned(), figure, is_above, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_names_a_figure_a_direction_and_a_signed_change() {
        let read = |text: &str| text.parse::<ChangeCondition>();
        let rise = read("ttft.p99 > +5%").unwrap();
        assert_eq!((rise.is_above, rise.limit), (true, 0.05));
        assert_eq!(read("goodput<-2%").unwrap().limit, -0.02);
        for wrong in ["ttft.p99>5%", "ttft.p101>+5%", "ttft>+5%", "x.p50>+5%", "ttft.p99>+5", "", "goodput<-100%"] {
            assert!(read(wrong).unwrap_err().starts_with("expected a figure"), "{wrong}");
        }
    }
}
