//! Forecast of a sweep's duration, before it begins and while it runs. Pure.

use crate::measure::slo::criteria::{Criteria, min_requests};
use crate::measure::time::Gap;
use crate::replay::plan::max_load_search::MaxLoadSearch;
use crate::report::sweep::file::LoadAxis;

/// Self-test and calibration before each run, in seconds.
const SETUP_S: f64 = 3.0;
/// Long runs of a search whose answer does not last the first time; more are rare.
const LONG_RUNS: f64 = 3.0;

/// Planned lengths of a search's runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct SearchForecast<'a> {
    pub(super) search: &'a MaxLoadSearch,
    pub(super) goals: &'a Criteria,
    pub(super) by: LoadAxis,
    /// Seconds of a short run, if it ends by its duration.
    pub(super) run_s: Option<f64>,
    /// Requests of a short run, if it ends by them.
    pub(super) requests: Option<u64>,
    pub(super) sustain_s: f64,
}

impl SearchForecast<'_> {
    /// How many levels and how long at most, and what the percentiles need.
    pub(super) fn lines(&self) -> Vec<String> {
        let bounds = self.search.bounds();
        let each = match (self.run_s, self.requests) {
            (Some(seconds), _) => format!("runs of {}", span(seconds)),
            (None, Some(requests)) => format!("runs of {requests} requests"),
            (None, None) => "runs of the trace".to_owned(),
        };
        let total = self.run_s.map_or_else(String::new, |seconds| {
            let all = bounds.trials as f64 * (seconds + SETUP_S) + LONG_RUNS * (self.sustain_s + SETUP_S);
            format!(": {} at most", span(all))
        });
        let sustain = span(self.sustain_s);
        let mut lines = vec![format!(
            "search: at most {} levels in {} {each}, and {sustain} to confirm the answer{total}",
            bounds.levels, bounds.trials
        )];
        lines.extend(self.needed_requests());
        lines
    }

    fn needed_requests(&self) -> Option<String> {
        let share = self.goals.max_share();
        let Some(needed) = min_requests(share) else {
            return Some(
                "search: no number of requests proves a share of 100 %; the answer will not be sure".to_owned(),
            );
        };
        let needs = format!("search: {} % need {needed} requests to be sure", (share * 1e4).round() / 1e2);
        let start = self.search.start;
        match (self.requests, self.run_s) {
            (Some(requests), _) if requests >= needed => None,
            (Some(requests), _) => Some(format!("{needs}, and a run has {requests}; use --requests {needed}")),
            (None, Some(seconds)) if self.by == LoadAxis::Rate => {
                let has = (start * seconds).floor() as u64;
                let duration = span((needed as f64 / start).ceil());
                (has < needed).then(|| {
                    format!("{needs}, and a run at {start}/s has {has}; --duration {duration} is enough from there on")
                })
            }
            _ => Some(needs),
        }
    }
}

/// Time left, from the planned seconds of the remaining runs; `None` if one has none.
pub(super) fn time_left(runs: impl Iterator<Item = Option<f64>>, pause: Gap) -> Option<String> {
    let seconds: Vec<f64> = runs.collect::<Option<_>>()?;
    let pauses = seconds.len().saturating_sub(1) as f64 * pause.as_secs();
    Some(format!("about {} to go", span(seconds.iter().map(|run| run + SETUP_S).sum::<f64>() + pauses)))
}

/// A time as flags take it, in whole seconds, without a blank.
fn span(seconds: f64) -> String {
    let whole = std::time::Duration::from_secs(seconds.round().max(0.0) as u64);
    humantime::format_duration(whole).to_string().replace(' ', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(goals: &str, run_s: Option<f64>, requests: Option<u64>) -> Vec<String> {
        let search = MaxLoadSearch { start: 8.0, max_level: 256.0, integer_levels: false };
        let goals: Criteria = goals.parse().unwrap();
        let forecast =
            SearchForecast { search: &search, goals: &goals, by: LoadAxis::Rate, run_s, requests, sustain_s: 60.0 };
        forecast.lines()
    }

    #[test]
    fn a_search_tells_how_long_it_takes_at_most_and_what_its_percentile_needs() {
        // 45 runs of 33 s, and three of 63 s.
        assert_eq!(
            lines("ttft.p99<=500ms", Some(30.0), None),
            [
                "search: at most 15 levels in 45 runs of 30s, and 1m to confirm the answer: 27m54s at most",
                "search: 99 % need 381 requests to be sure, and a run at 8/s has 240; --duration 48s is enough from there on"
            ]
        );
        assert_eq!(lines("ttft.p95<=500ms", Some(30.0), None).len(), 1, "73 are needed");
        assert_eq!(
            lines("ttft.p99<=500ms", None, Some(100))[1],
            "search: 99 % need 381 requests to be sure, and a run has 100; use --requests 381"
        );
        assert!(lines("ttft.p100<=500ms", Some(30.0), None)[1].contains("no number of requests proves"));
    }

    #[test]
    fn the_time_left_is_that_of_the_runs_with_their_setup_and_pauses() {
        let left = |runs: &[Option<f64>]| time_left(runs.iter().copied(), Gap::from_millis(10_000));
        assert_eq!(left(&[Some(30.0), Some(30.0)]).as_deref(), Some("about 1m16s to go"));
        assert_eq!(left(&[Some(30.0), None]), None);
    }
}
