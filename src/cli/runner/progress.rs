//! A run's progress: a block updated in place on a terminal, lines elsewhere.

use crate::measure::time::Gap;
use crate::replay::result::summary::{LatencyStats, ReplayGoodput, ReplaySummary};
use crate::replay::sender::run::RunProgress;

/// Planned requests and length, as far as they are known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlannedTotal {
    pub(super) requests: Option<u64>,
    pub(super) length: Option<Gap>,
}

/// The progress in one line.
pub(super) fn status_line(now: &RunProgress, whole: PlannedTotal) -> String {
    let lines = [counts(now, whole), rates(now), latencies(now), goodput(now)].concat();
    format!("{}: {}", time(now, whole), lines.join(", "))
}

/// The progress in several lines, for a terminal.
pub(super) fn status_block(now: &RunProgress, whole: PlannedTotal) -> String {
    let mut text = time(now, whole);
    for line in [counts(now, whole), rates(now), latencies(now), goodput(now)] {
        text += if line.is_empty() { "" } else { "\n" };
        text += &line.join("   ");
    }
    text + "\n"
}

fn time(now: &RunProgress, whole: PlannedTotal) -> String {
    let of = whole.length.map_or(String::new(), |length| format!(" of {:.0} s", length.as_secs()));
    let left = time_left(now, whole).map_or(String::new(), |left| format!(", {:.0} s to go", left.as_secs()));
    format!("{:.0} s{of}{left}", now.age.as_secs())
}

/// Estimated time left: from the plan, or from the pace so far.
fn time_left(now: &RunProgress, whole: PlannedTotal) -> Option<Gap> {
    if let Some(length) = whole.length {
        return Some(Gap::from_nanos(length.as_nanos().saturating_sub(now.age.as_nanos())));
    }
    let (done, planned) = (ended_requests(&now.summary), whole.requests?);
    let each = now.age.as_nanos().checked_div(done)?;
    Some(Gap::from_nanos(each.saturating_mul(planned.saturating_sub(done))))
}

fn counts(now: &RunProgress, whole: PlannedTotal) -> Vec<String> {
    let planned = whole.requests.map(|requests| format!("{requests} planned"));
    let counts = [
        format!("{} sent", now.sent),
        format!("{} in flight", now.in_flight),
        format!("{} done", ended_requests(&now.summary)),
        format!("{} not successful", failed_requests(&now.summary)),
    ];
    planned.into_iter().chain(counts).collect()
}

fn rates(now: &RunProgress) -> Vec<String> {
    let summary = &now.summary;
    let rate = summary.sent_rate.map_or("-".to_owned(), |rate| format!("{rate:.2}"));
    vec![format!("{rate} requests/s sent"), format!("{:.0} tokens/s", summary.output_rate)]
}

fn latencies(now: &RunProgress) -> Vec<String> {
    let summary = &now.summary;
    let of = |name: &str, spread: Option<LatencyStats>| {
        let (middle, high) =
            (format_percentile(spread, |spread| spread.p50), format_percentile(spread, |spread| spread.p99));
        format!("{name} p50 {middle} p99 {high}")
    };
    vec![of("TTFT from planned", summary.ttft_from_planned), of("ITL", summary.itl), of("lag", summary.lag)]
}

fn goodput(now: &RunProgress) -> Vec<String> {
    let of = |goodput: &ReplayGoodput| {
        let ReplayGoodput { slo, met, counted, per_second } = goodput;
        format!("{slo}: {met} of {counted} met ({per_second:.2}/s)")
    };
    now.summary.goodput.iter().map(of).collect()
}

/// Includes warm-up and cool-down.
fn ended_requests(summary: &ReplaySummary) -> u64 {
    summary.requests + summary.outside_window
}

/// Excludes warm-up and cool-down.
fn failed_requests(summary: &ReplaySummary) -> u64 {
    summary.requests - summary.outcomes.get("success").copied().unwrap_or(0)
}

fn format_percentile(spread: Option<LatencyStats>, which: fn(LatencyStats) -> u64) -> String {
    spread.map_or("-".to_owned(), |spread| Gap::from_nanos(which(spread)).to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::measure::time::Stamp;
    use crate::replay::plan::measurement_window::MeasurementWindow;
    use crate::replay::result::summary::ReplayAccumulator;

    fn progress() -> RunProgress {
        let fold = ReplayAccumulator::new(Stamp::default(), Arc::default(), MeasurementWindow::default());
        let good = ReplayGoodput { slo: "chat".to_owned(), met: 20, counted: 24, per_second: 1.5 };
        let spread =
            LatencyStats { count: 9, mean: 0.0, min: 0, p50: 5_000_000, p90: 0, p99: 70_000_000, p999: 0, max: 0 };
        let summary = ReplaySummary {
            requests: 24,
            outside_window: 2,
            outcomes: [("success", 21), ("failed", 3)].into(),
            sent_rate: Some(2.5),
            output_rate: 320.0,
            ttft_from_planned: Some(spread),
            goodput: vec![good],
            ..fold.summary(None)
        };
        RunProgress { age: Gap::from_millis(12_000), rows_read: 100, sent: 30, in_flight: 4, summary }
    }

    #[test]
    fn a_line_and_a_block_say_the_same() {
        let whole = PlannedTotal { requests: Some(162), length: Some(Gap::from_millis(57_000)) };
        let line = status_line(&progress(), whole);
        assert_eq!(
            line,
            "12 s of 57 s, 45 s to go: 162 planned, 30 sent, 4 in flight, 26 done, 3 not successful, 2.50 requests/s sent, \
             320 tokens/s, TTFT from planned p50 5.00ms p99 70.0ms, ITL p50 - p99 -, lag p50 - p99 -, \
             chat: 20 of 24 met (1.50/s)"
        );
        let words =
            |text: &str| text.replace([':', ','], " ").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let block = status_block(&progress(), whole);
        assert_eq!((words(&block), block.lines().count()), (words(&line), 5));
    }

    #[test]
    fn what_is_left_of_a_closed_load_goes_by_its_pace() {
        let whole = PlannedTotal { requests: Some(78), length: None };
        assert_eq!(time_left(&progress(), whole).map(|left| left.as_secs().round()), Some(24.0));
        assert_eq!(time_left(&progress(), PlannedTotal::default()), None);
        assert!(status_line(&progress(), PlannedTotal::default()).starts_with("12 s: 30 sent, "));
    }
}
