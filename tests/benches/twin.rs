//! Speed of a twin on one core, in CPU time: short requests per second, and tokens per second.
//!
//! `cargo bench --bench twin` prints both, and the time of a scenario in which no step can be applied in bulk.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::convert::Infallible;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use streamgauge::engine::{CostModel, EngineOptions};
use streamgauge::trace_file::row::{PromptShape, TraceEntry};
use streamgauge::twin::fleet::FleetOptions;
use streamgauge::twin::operations::Operations;
use streamgauge::twin::router::Router;
use streamgauge::twin::simulation::Simulation;

/// `count` requests, one each `gap`, with lengths around `isl` and `osl`.
fn rows(count: u64, gap: u64, isl: u64, osl: u64) -> impl Iterator<Item = Result<TraceEntry, Infallible>> {
    let near = |mean: u64, number: u64| mean / 2 + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % mean.max(1);
    (0..count).map(move |number| {
        let prompt = PromptShape { tokens: Some(near(isl, number)), ..PromptShape::default() };
        let output_tokens = Some(near(osl, number ^ 0x5555).max(1));
        Ok(TraceEntry { at: number * gap, prompt, output_tokens, ..TraceEntry::default() })
    })
}

/// CPU time of this process: other processes do not slow it.
fn cpu_seconds() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF).unwrap().user_time().num_microseconds() as f64 / 1e6
}

fn measure(name: &str, replicas: u32, router: Router, rows: impl Iterator<Item = Result<TraceEntry, Infallible>>) {
    let cost = CostModel { prefill_per_second: 100_000, kv_token_ns: 0.5, ..CostModel::default() };
    let engine = EngineOptions { cost, max_waiting: u32::MAX, kv_blocks: 1 << 17, ..EngineOptions::default() };
    let fleet = FleetOptions { model: None, engines: vec![engine], replicas, router };
    let simulation = Simulation::new(vec![fleet], None, &Operations::default());
    let (begin, mut checksum) = (cpu_seconds(), 0_u64);
    let Ok(totals) = simulation.run(rows, |response| {
        checksum ^= response.ended.as_nanos() ^ response.events.len() as u64;
        Ok(())
    });
    let seconds = cpu_seconds() - begin;
    println!(
        "{name:<34} {:>9.0} requests/s {:>6.1} M tokens/s  {:>8.0} virtual s  ({checksum:x})",
        totals.rows as f64 / seconds,
        totals.tokens as f64 / seconds / 1e6,
        totals.ended.as_nanos() as f64 / 1e9,
    );
}

fn main() {
    for _ in 0..2 {
        measure("short: 100 in, 16 out, 1 replica", 1, Router::RoundRobin, rows(1_000_000, 5_000_000, 100, 16));
        measure("short, 8 replicas, least loaded", 8, Router::LeastLoaded, rows(1_000_000, 1_000_000, 100, 16));
        measure("long: 500 in, 500 out, 1 replica", 1, Router::RoundRobin, rows(100_000, 80_000_000, 500, 500));
        measure("long, 8 replicas, least loaded", 8, Router::LeastLoaded, rows(100_000, 10_000_000, 500, 500));
        measure("overload: a full queue, 1 replica", 1, Router::RoundRobin, rows(100_000, 1_000_000, 500, 200));
    }
}
