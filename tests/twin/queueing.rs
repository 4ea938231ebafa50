//! The twin against formulas of queueing theory: an engine that serves one request at a time is a single server.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Exp};
use streamgauge::engine::{CostModel, EngineOptions};
use streamgauge::measure::time::Gap;
use streamgauge::trace_file::row::{PromptShape, TraceEntry};
use streamgauge::twin::operations::Operations;
use streamgauge::twin::router::Router;

use crate::traffic::{fleet, simulate};

const REQUESTS: usize = 150_000;
/// A step of one sequence, in seconds, and its prefill of 100 tokens.
const STEP: f64 = 0.010_1;
const PREFILL: f64 = 0.005;

/// Poisson arrivals at this utilization, each with a number of tokens.
fn rows(utilization: f64, mean_service: f64, mut tokens: impl FnMut(&mut StdRng) -> u64) -> Vec<TraceEntry> {
    let mut random = StdRng::seed_from_u64(11);
    let gap = Exp::new(utilization / mean_service).unwrap();
    let mut at = 0.0;
    let rows = (0..REQUESTS).map(|_| {
        at += gap.sample(&mut random);
        let prompt = PromptShape { tokens: Some(100), ..PromptShape::default() };
        let output_tokens = Some(tokens(&mut random));
        TraceEntry { at: (at * 1e9) as u64, prompt, output_tokens, ..TraceEntry::default() }
    });
    rows.collect()
}

/// Mean wait before service, in seconds, and the mean and second moment of the service time.
fn wait(rows: Vec<TraceEntry>) -> (f64, f64, f64) {
    let engine = EngineOptions { max_num_seqs: 1, ..EngineOptions::default() };
    let cost = CostModel::default();
    assert_eq!(cost.step_base.as_nanos() + cost.step_per_seq.as_nanos(), Gap::from_nanos(10_100_000).as_nanos());
    let (responses, _) = simulate(fleet(engine, 1, Router::RoundRobin), &Operations::default(), rows);
    let count = responses.len() as f64;
    let service = |tokens: u32| PREFILL + STEP * f64::from(tokens);
    let sum = |of: &dyn Fn(f64, f64) -> f64| {
        responses.iter().map(|response| of(response.e2e().as_secs(), service(response.generated))).sum::<f64>() / count
    };
    (sum(&|e2e, service| e2e - service), sum(&|_, service| service), sum(&|_, service| service * service))
}

#[test]
fn requests_of_equal_length_wait_as_in_an_m_d_1_queue() {
    let service = PREFILL + STEP * 3.0;
    for utilization in [0.5, 0.8] {
        let (wait, ..) = wait(rows(utilization, service, |_| 3));
        let expected = utilization * service / (2.0 * (1.0 - utilization));
        assert!((wait / expected - 1.0).abs() < 0.03, "{utilization}: {wait} instead of {expected}");
    }
}

#[test]
fn requests_of_different_lengths_wait_as_in_an_m_g_1_queue() {
    // One of ten requests is twenty times as long: Pollaczek and Khinchine.
    let mean = PREFILL + STEP * (0.9 * 2.0 + 0.1 * 40.0);
    let rows = rows(0.6, mean, |random| if random.random_range(0..10) == 0 { 40 } else { 2 });
    let span = rows.last().map_or(0.0, |row| row.at as f64 / 1e9);
    let (wait, mean, square) = wait(rows);
    let rate = REQUESTS as f64 / span;
    let expected = rate * square / (2.0 * (1.0 - rate * mean));
    assert!((wait / expected - 1.0).abs() < 0.04, "{wait} instead of {expected}");
}
