//! Flags for the verdict on a run.

use crate::cli::values::parse_positive_duration;
use crate::measure::slo::criteria::Criteria;
use crate::measure::slo::{Slo, SloError};
use crate::measure::time::Gap;
use crate::report::condition::Condition;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct EvaluationArgs {
    /// Count goodput by these objectives, e.g. 'chat: ttft<=500ms tpot<=50ms'; may be repeated
    #[arg(long = "slo", value_name = "SLO", help_heading = "Evaluation")]
    pub(in crate::cli) slos: Vec<Slo>,

    /// Exit with status 1 unless these hold, e.g. 'ttft.p95<=1s goodput>=95%'; may be repeated
    ///
    /// A condition may also state what must not hold, e.g. 'goodput<95%'. A failed request counts as slower than any limit.
    #[arg(long, value_name = "CONDITIONS", value_parser = conditions, help_heading = "Evaluation")]
    pub(in crate::cli) fail_if: Vec<Conditions>,

    /// Skip the 2.5 s self-test of this machine before the run; the result records that
    #[arg(long, help_heading = "Evaluation")]
    pub(in crate::cli) no_audit: bool,

    /// Send nothing and exit with status 3 if the self-test finds this machine too slow for the plan
    #[arg(long, conflicts_with = "no_audit", help_heading = "Evaluation")]
    pub(in crate::cli) strict: bool,

    /// Exit with status 3 if late sends add more than this to TTFT p50, p90 or p99: the run is then not valid
    ///
    /// E2E counts if nothing streams. A percentile counts if at least one whole request lies beyond it.
    #[arg(long, value_name = "DURATION", default_value = "10ms", value_parser = parse_positive_duration, help_heading = "Evaluation")]
    pub(in crate::cli) max_lag: Gap,
}

/// The conditions of one `--fail-if`.
pub(in crate::cli) type Conditions = Vec<Condition>;

pub(in crate::cli) fn conditions(text: &str) -> Result<Conditions, SloError> {
    Condition::parse_all(text)
}

/// The goals of every level of a sweep, if conditions state them.
pub(in crate::cli) fn sweep_goals(conditions: &[Conditions]) -> anyhow::Result<Option<Criteria>> {
    let given = conditions.concat();
    if given.is_empty() {
        return Ok(None);
    }
    let text = given.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let goals = text.parse().map_err(|error| {
        anyhow::anyhow!(
            "--fail-if: {error}\nA sweep is judged by shares of requests; remedy: name one of its runs for other figures"
        )
    });
    goals.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_a_sweep_can_judge_are_its_goals() {
        let goals = |text: &str| sweep_goals(&[conditions(text).unwrap()]).map(|goals| goals.unwrap().to_string());
        assert_eq!(goals("goodput < 95%  ttft.p95 <= 1s").unwrap(), "goodput>=95% ttft.p95<=1s");
        assert!(goals("osl.avg>=40").unwrap_err().to_string().contains("A sweep is judged by shares of requests"));
        assert!(conditions("ttft<5%").is_err());
    }
}
