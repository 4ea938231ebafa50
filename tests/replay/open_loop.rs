//! The load is open-loop: the trace decides when requests are sent, and a stalled server changes only latencies.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use streamgauge::measure::record::Outcome;
use streamgauge::replay::sender::run::LoopMode;
use streamgauge::report::metric::ReportMetric;

use crate::support::replay::{Settings, replay, row};
use crate::support::upstream::Upstream;

const ANSWER: &str =
    "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n";

fn answer() -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{ANSWER}", ANSWER.len())
}

fn completions() -> Settings {
    Settings { dialect: Some("openai.completions"), ..Settings::default() }
}

fn millis(nanos: u64) -> u64 {
    nanos / 1_000_000
}

#[test]
fn a_stalled_server_does_not_slow_arrivals_and_the_wait_lands_in_the_latency() {
    const REQUESTS: usize = 40;
    // No request is answered before all have arrived: a client that waits for answers would wait for ever.
    let arrived = Arc::new((Mutex::new(0), Condvar::new()));
    let upstream = Upstream::start(move |mut conn| {
        while conn.request().is_some() {
            let (count, changed) = &*arrived;
            let mut count = count.lock().unwrap();
            *count += 1;
            changed.notify_all();
            let limit = Duration::from_secs(15);
            let (count, late) = changed.wait_timeout_while(count, limit, |count| *count < REQUESTS).unwrap();
            drop(count);
            if late.timed_out() || !conn.send(answer()) {
                return;
            }
        }
    });
    let rows = (0..REQUESTS as u64).map(|number| row(number * 10, 1)).collect();
    let (ended, rows) = replay(rows, upstream.addr, completions());
    assert_eq!(ended.count(Outcome::Success), REQUESTS as u64, "{:?}", ended.totals.counts.errors);
    let planned: Vec<u64> = rows.iter().map(|row| millis(row.planned.unwrap())).collect();
    assert_eq!(planned, (0..REQUESTS as u64).map(|number| number * 10).collect::<Vec<_>>());
    let latencies: Vec<u64> =
        rows.iter().map(|row| row.at + row.timing.first_token.unwrap() - row.planned.unwrap()).collect();
    for (number, latency) in latencies.iter().enumerate() {
        assert!(millis(*latency) >= (REQUESTS - 1 - number) as u64 * 10, "request {number} felt {latency} ns");
    }
}

#[test]
fn a_server_that_hangs_up_in_the_last_moment_before_a_request_costs_it_nothing() {
    const EVERY: u64 = 150;
    // Ten milliseconds before the next request is due, when its connection has been chosen.
    let patience = Duration::from_millis(EVERY - 10);
    let mut attempts = Vec::new();
    let tried = |_| {
        let upstream = Upstream::start(move |mut conn| {
            while conn.request().is_some() {
                if !conn.send(answer()) {
                    return;
                }
                conn.stream.set_read_timeout(Some(patience)).unwrap();
                if conn.stream.peek(&mut [0]).is_err() {
                    return;
                }
            }
        });
        let rows = (0..12).map(|number| row(number * EVERY, 1)).collect();
        let (ended, _) = replay(rows, upstream.addr, completions());
        let succeeded = ended.count(Outcome::Success);
        attempts.push((succeeded, upstream.connections(), ended.totals.counts.errors));
        // A server that is preempted between its check and its close loses requests in between, whatever the client.
        succeeded >= 11 && upstream.connections() >= 6
    };
    // If threads are more than those ten milliseconds late, no connection is closed, and the test repeats.
    assert!((0..5).any(tried), "requests were lost, or it never hung up: {attempts:?}");
}

/// Milliseconds that an answer takes: requests that are due at once all come before the first has one.
const WORK: u64 = 100;

/// An upstream that takes a while for an answer, and the most requests that it had at once.
fn slow() -> (Upstream, Arc<AtomicUsize>) {
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let upstream = Upstream::start(move |mut conn| {
        while conn.request().is_some() {
            most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(WORK));
            open.fetch_sub(1, Ordering::SeqCst);
            if !conn.send(answer()) {
                return;
            }
        }
    });
    (upstream, seen)
}

#[test]
fn what_a_limit_holds_back_stays_planned_and_is_counted_and_its_wait_is_in_the_latency() {
    let (upstream, most) = slow();
    let rows = (0..10).map(|number| row(number, 1)).collect();
    let (ended, rows) = replay(rows, upstream.addr, Settings { slots: Some(1), ..completions() });
    assert_eq!((ended.totals.counts.held_back, most.load(Ordering::SeqCst)), (9, 1));
    for (number, row) in rows.iter().enumerate() {
        assert_eq!(millis(row.planned.unwrap()), number as u64);
        let latency = row.at + row.timing.ended.unwrap() - row.planned.unwrap();
        assert!(millis(latency) >= WORK * (number as u64 + 1) - number as u64, "request {number} felt {latency} ns");
    }
    let mut samples = ended.totals.requests.total.samples;
    let planned = samples[ReportMetric::E2eFromPlanned as usize].sorted().unwrap().max();
    let sent = samples[ReportMetric::E2e as usize].sorted().unwrap().mean();
    assert!(millis(planned) >= 10 * WORK - 10 && sent * 2.0 < planned as f64, "{planned} {sent}");
}

#[test]
fn a_closed_load_keeps_its_slots_full_and_no_fuller() {
    let (upstream, most) = slow();
    let rows = (0..12).map(|number| row(number * 1_000_000, 1)).collect();
    let settings = Settings { arrivals: LoopMode::Closed, slots: Some(3), ..completions() };
    let (ended, rows) = replay(rows, upstream.addr, settings);
    assert_eq!((rows.len(), most.load(Ordering::SeqCst), ended.totals.counts.held_back), (12, 3, 0));
    assert!(rows.iter().all(|row| row.outcome == Some(Outcome::Success)));
}
