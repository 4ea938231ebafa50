//! The decision record of a matrix: what was tried, what was learned, what comes next. Markdown.

use super::Sweep;
use super::expectation::ExpectationVerdict;
use crate::report::markdown::escaped;

/// Renders the record; `None` if no row has a hypothesis or an expectation.
pub(super) fn record(sweep: &Sweep) -> Option<String> {
    let levels = &sweep.plan.levels;
    if levels.iter().all(|level| level.hypothesis.is_none() && level.expect.is_none()) {
        return None;
    }
    let section = |title: &str, lines: Vec<String>| {
        let lines = if lines.is_empty() { vec!["nothing".to_owned()] } else { lines };
        let items: String = lines.iter().map(|line| format!("- {}\n", escaped(line))).collect();
        format!("\n### {title}\n\n{items}")
    };
    let tried = levels.iter().map(|level| {
        let baseline = if level.baseline { " (baseline)" } else { "" };
        let hypothesis = level.hypothesis.as_ref().map_or_else(String::new, |text| format!(": {text}"));
        let expect = level.expect.as_ref().map_or_else(String::new, |text| format!("; expected: {text}"));
        format!("{}{baseline} at {}{hypothesis}{expect}", level.name, level.offered())
    });
    let learned = sweep.expectations.iter().map(super::expectation::ExpectationResult::text);
    let learned = learned.chain(sweep.objectives.iter().map(super::ObjectiveLimit::text));
    Some(format!(
        "\n## Decision record: {}\n{}{}{}",
        escaped(&sweep.path),
        section("What was tried", tried.collect()),
        section("What was learned", learned.collect()),
        section("What next", next_steps(sweep))
    ))
}

fn next_steps(sweep: &Sweep) -> Vec<String> {
    let mut steps = Vec::new();
    for result in &sweep.expectations {
        match result.verdict {
            ExpectationVerdict::Undecided => {
                steps.push(format!(
                    "measure {} and the baseline longer, or in several passes: {}",
                    result.level, result.evidence
                ));
            }
            ExpectationVerdict::Refuted => {
                steps.push(format!("find out why {} is not as expected, and state a new hypothesis", result.level));
            }
            ExpectationVerdict::Confirmed => {}
        }
    }
    let not_measured = sweep.levels.iter().filter(|level| level.not_measured);
    steps.extend(not_measured.map(|level| format!("repeat {} from a machine that can send it", level.name())));
    let is_run = |name: &str| sweep.levels.iter().any(|level| level.level.name == name);
    let missing = sweep.plan.levels.iter().filter(|level| !is_run(&level.name));
    steps.extend(missing.map(|level| format!("run {}, which has no result yet", level.name)));
    steps
}
