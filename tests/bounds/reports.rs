//! Bounds of a report of very many requests: its memory, and the size of its page.

use streamgauge::measure::record::{CountSource, Outcome};
use streamgauge::measure::time::Gap;
use streamgauge::measure::timeline::TokenEvent;
use streamgauge::report::accumulate::{Accumulator, AccumulatorSettings};
use streamgauge::report::page::run::{RunCharts, gaps_over_time, render};
use streamgauge::report::request_view::RequestView;
use streamgauge::report::source::ReportSource;
use streamgauge::report::{PERCENTILES, Report};
use streamgauge::trace_file::row::{Timing, TraceEntry};

use crate::counting_allocator;

/// A release is fast enough for the sizes that the manual states.
const REQUESTS: u64 = if cfg!(debug_assertions) { 24_000 } else { 1_000_000 };
const GAPS: u64 = if cfg!(debug_assertions) { 20 } else { 200 };
/// Gaps of the requests of a page: a chart of gaps has as many cells whatever their number.
const PAGE_GAPS: u64 = 10;
/// Tables and bins that do not grow with the run.
const FIXED: usize = 60 << 20;
const MAX_PAGE: usize = 10_000_000;

/// A number from 0 to 1 that follows from `n` alone.
fn share(n: u64) -> f64 {
    let mut bits = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ bits >> 31) >> 11) as f64 / (1_u64 << 53) as f64
}

/// One of 500 requests per second. Gaps are from 6 to 60 ms, most of them short; one in 64 has two tokens.
fn request(number: u64, gaps: u64) -> RequestView {
    let gap = |at: u64| {
        let draw = share(number * gaps + at);
        let nanos = 6e6 * 10_f64.powf(draw * draw);
        TokenEvent::new(Gap::from_nanos(nanos as u64), Some(if at % 64 == 63 { 2 } else { 1 }))
    };
    let events: Vec<TokenEvent> = (0..gaps).map(gap).collect();
    let first = 50_000_000 + (share(number) * 3e9) as u64;
    let ended = first + events.iter().map(|event| event.gap().as_nanos()).sum::<u64>();
    let tokens = 1 + events.iter().filter_map(|event| event.tokens()).map(u64::from).sum::<u64>();
    let mut row = TraceEntry {
        at: number * 2_000_000,
        planned: Some(number * 2_000_000),
        stream: Some(true),
        status: Some(200),
        outcome: Some(Outcome::Success),
        output_tokens: Some(tokens),
        output_source: Some(CountSource::Usage),
        in_flight: Some((share(number + 7) * 900.0) as u32),
        session: Some(format!("s{}", number / 4)),
        timing: Timing {
            sent: Some(0),
            evidence: Some(first),
            first_token: Some(first),
            first_output: Some(first),
            ended: Some(ended),
            first_tokens: Some(1),
            ..Timing::default()
        },
        ..TraceEntry::default()
    };
    row.prompt.tokens = Some(100 + (share(number + 3) * 8e3) as u64);
    RequestView::with_events(row, events, 0, None)
}

/// The page of a report of so many requests.
fn page(requests: u64, gaps: u64) -> String {
    let settings = AccumulatorSettings { keeps_lanes: true, ..AccumulatorSettings::default() };
    let mut fold = Accumulator::new(settings);
    (0..requests).for_each(|number| fold.add(&request(number, gaps)).unwrap());
    let columns = gaps_over_time(&fold);
    let source = ReportSource { path: "run".to_owned(), run: true, rows: requests, ..ReportSource::default() };
    let report = Report::of(&mut fold, vec![source], &PERCENTILES);
    render(&report, &mut RunCharts::new(&mut fold, columns), &PERCENTILES)
}

#[test]
fn a_report_holds_at_most_5_bytes_for_two_gaps_and_300_for_a_request() {
    let held = counting_allocator::most_held(|| drop(page(REQUESTS, GAPS)));
    let gaps = (REQUESTS * GAPS) as usize;
    assert!(held <= FIXED + 5 * gaps / 2 + 300 * REQUESTS as usize, "{held} bytes were held for {gaps} gaps");
}

#[test]
fn the_page_of_a_report_does_not_grow_with_its_requests() {
    let (some, many) = (page(REQUESTS / 3, PAGE_GAPS), page(REQUESTS, PAGE_GAPS));
    assert!(many.len() <= MAX_PAGE, "{} bytes", many.len());
    // A sample of swim lanes has from half of its limit to the whole.
    assert!(many.len() <= 2 * some.len(), "{} bytes, {} of a third as many", many.len(), some.len());
    for chart in
        ["TTFT against ISL", "ITL heat map over time", "Sessions and their requests", "TTFT from planned over time"]
    {
        assert!(many.contains(chart), "the page has the chart {chart}");
    }
}
