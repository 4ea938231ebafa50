//! A run's progress: a block updated in place on a terminal, lines elsewhere.

use super::figures::ProgressFigures;
use super::spec::PlannedTotal;
use crate::measure::time::Gap;
use crate::replay::sender::run::RunProgress;
use crate::report::SloGoodput;

/// Counts of sent requests, and their figures.
type ProgressSnapshot = (RunProgress, ProgressFigures);

/// The progress in one line.
pub(super) fn status_line(now: &ProgressSnapshot, whole: PlannedTotal) -> String {
    let lines = [counts(now, whole), rates(&now.1), latencies(&now.1), goodput(&now.1)].concat();
    format!("{}: {}", time(now, whole), lines.join(", "))
}

/// The progress in several lines, for a terminal.
pub(super) fn status_block(now: &ProgressSnapshot, whole: PlannedTotal) -> String {
    let mut text = time(now, whole);
    for line in [counts(now, whole), rates(&now.1), latencies(&now.1), goodput(&now.1)] {
        text += if line.is_empty() { "" } else { "\n" };
        text += &line.join("   ");
    }
    text + "\n"
}

fn time(now: &ProgressSnapshot, whole: PlannedTotal) -> String {
    let of = whole.length.map_or(String::new(), |length| format!(" of {:.0} s", length.as_secs()));
    let left = time_left(now, whole).map_or(String::new(), |left| format!(", {:.0} s to go", left.as_secs()));
    format!("{:.0} s{of}{left}", now.0.age.as_secs())
}

/// Estimated time left: from the plan, or from the pace so far.
fn time_left((now, figures): &ProgressSnapshot, whole: PlannedTotal) -> Option<Gap> {
    if let Some(length) = whole.length {
        return Some(Gap::from_nanos(length.as_nanos().saturating_sub(now.age.as_nanos())));
    }
    let (done, planned) = (figures.ended, whole.requests?);
    let each = now.age.as_nanos().checked_div(done)?;
    Some(Gap::from_nanos(each.saturating_mul(planned.saturating_sub(done))))
}

fn counts((now, figures): &ProgressSnapshot, whole: PlannedTotal) -> Vec<String> {
    let planned = whole.requests.map(|requests| format!("{requests} planned"));
    let counts = [
        format!("{} sent", now.sent),
        format!("{} in flight", now.in_flight),
        format!("{} done", figures.ended),
        format!("{} not successful", figures.not_successful),
    ];
    planned.into_iter().chain(counts).collect()
}

fn rates(figures: &ProgressFigures) -> Vec<String> {
    let rate = figures.sent_rate.map_or("-".to_owned(), |rate| format!("{rate:.2}"));
    vec![format!("{rate} requests/s sent"), format!("{:.0} tokens/s", figures.output_rate)]
}

fn latencies(figures: &ProgressFigures) -> Vec<String> {
    let gap = |nanos: f64| Gap::from_nanos(nanos.round() as u64).to_string();
    let of = |name: &str, latency: Option<(f64, f64)>| {
        let (p50, p99) = latency.map_or(("-".to_owned(), "-".to_owned()), |(p50, p99)| (gap(p50), gap(p99)));
        format!("{name} p50 {p50} p99 {p99}")
    };
    vec![of("TTFT from planned", figures.ttft_from_planned), of("ITL", figures.itl), of("lag", figures.lag)]
}

fn goodput(figures: &ProgressFigures) -> Vec<String> {
    let of = |SloGoodput { slo, met, counted, requests_per_second, .. }: &SloGoodput| {
        format!("{slo}: {met} of {counted} met ({requests_per_second:.2}/s)")
    };
    figures.goodput.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> ProgressSnapshot {
        let figures = ProgressFigures {
            ended: 26,
            not_successful: 3,
            sent_rate: Some(2.5),
            output_rate: 320.0,
            ttft_from_planned: Some((5_000_000.0, 70_000_000.0)),
            goodput: vec![SloGoodput {
                slo: "chat".to_owned(),
                text: String::new(),
                met: 20,
                counted: 24,
                share: None,
                share_interval: None,
                successes: 24,
                share_of_successes: None,
                missed: Default::default(),
                requests_per_second: 1.5,
                tokens_per_second: 0.0,
            }],
            ..ProgressFigures::default()
        };
        (RunProgress { age: Gap::from_millis(12_000), rows_read: 100, sent: 30, in_flight: 4 }, figures)
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
