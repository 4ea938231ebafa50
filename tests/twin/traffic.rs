//! Traffic for the tests, and its simulation on a fleet.

use std::convert::Infallible;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Exp, LogNormal, Normal};
use streamgauge::engine::{EngineOptions, PrefillMode};
use streamgauge::measure::time::Gap;
use streamgauge::measure::timeline::TokenEvent;
use streamgauge::trace_file::gaps::{pack, unpack};
use streamgauge::trace_file::header::{BlockIds, BlockScheme, BlockScope, BlockUnit, LastBlock};
use streamgauge::trace_file::row::{PromptShape, TraceEntry};
use streamgauge::twin::fleet::FleetOptions;
use streamgauge::twin::operations::Operations;
use streamgauge::twin::response::TwinResponse;
use streamgauge::twin::router::Router;
use streamgauge::twin::simulation::{Simulation, SimulationTotals};

/// A load with Poisson arrivals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) requests: usize,
    /// Requests per second.
    pub(crate) rate: f64,
    /// Median prompt and output tokens; lengths are log-normal.
    pub(crate) isl: f64,
    pub(crate) osl: f64,
    /// Sigma of the logarithm of prompt and output lengths.
    pub(crate) spread: f64,
    pub(crate) osl_spread: f64,
    /// Number of families that share the first half of their prompts; 0 for rows without block ids.
    pub(crate) families: u64,
    pub(crate) seed: u64,
}

pub(crate) const LOAD: Load =
    Load { requests: 1_500, rate: 4.0, isl: 300.0, osl: 30.0, spread: 0.9, osl_spread: 0.5, families: 0, seed: 7 };

pub(crate) const SCHEME: BlockScheme = BlockScheme {
    size: 16,
    unit: BlockUnit::Tokens,
    last: LastBlock::Dropped,
    ids: BlockIds::Chained,
    scope: BlockScope::Trace,
    key: None,
};

impl Load {
    pub(crate) fn rows(self) -> Vec<TraceEntry> {
        let mut random = StdRng::seed_from_u64(self.seed);
        let gap = Exp::new(self.rate).unwrap();
        let isl = LogNormal::new(self.isl.ln(), self.spread).unwrap();
        let osl = LogNormal::new(self.osl.ln(), self.osl_spread).unwrap();
        let mut at = 0.0;
        let rows = (0..self.requests as u64).map(|number| {
            at += gap.sample(&mut random);
            let tokens = (isl.sample(&mut random) as u64).clamp(20, 30_000);
            let family = random.random_range(0..self.families.max(1));
            let block = |block: u64| match block < tokens / 32 {
                true => 1 << 40 | family << 16 | block,
                false => number << 16 | block,
            };
            let blocks = (0..tokens / 16).filter(|_| self.families > 0).map(block).collect();
            TraceEntry {
                at: (at * 1e9) as u64,
                model: Some("m".to_owned()),
                stream: Some(true),
                prompt: PromptShape { tokens: Some(tokens), blocks, ..PromptShape::default() },
                output_tokens: Some((osl.sample(&mut random) as u64).max(2)),
                ..TraceEntry::default()
            }
        });
        rows.collect()
    }
}

/// A fleet of equal engines for any model.
pub(crate) fn fleet(engine: EngineOptions, replicas: u32, router: Router) -> FleetOptions {
    FleetOptions { model: None, engines: vec![EngineOptions { max_waiting: u32::MAX, ..engine }], replicas, router }
}

pub(crate) fn simulate(
    fleet: FleetOptions,
    operations: &Operations,
    rows: Vec<TraceEntry>,
) -> (Vec<TwinResponse>, SimulationTotals) {
    let simulation = Simulation::new(vec![fleet], Some(SCHEME), operations);
    let mut responses = Vec::new();
    let Ok(totals) = simulation.run(rows.into_iter().map(Ok::<_, Infallible>), |response| {
        responses.push(response);
        Ok(())
    });
    (responses, totals)
}

/// What a capture in front of one such engine would hold.
pub(crate) fn capture(engine: EngineOptions, load: Load) -> Vec<TraceEntry> {
    let (responses, _) = simulate(fleet(engine, 1, Router::RoundRobin), &Operations::default(), load.rows());
    let rows = responses.into_iter().map(|response| {
        let (mut row, gaps) = response.into_row();
        row.timing.gaps = (!gaps.is_empty()).then(|| pack(&gaps));
        row
    });
    rows.collect()
}

/// The rows as a busy observer sees them: tokens of one step arrive up to a few milliseconds apart, and every two seconds
/// the reader stalls for 80 ms.
pub(crate) fn seen_by_a_busy_reader(rows: Vec<TraceEntry>) -> Vec<TraceEntry> {
    const PERIOD: u64 = 2_000_000_000;
    const STALL: u64 = 80_000_000;
    let (mut random, late) = (StdRng::seed_from_u64(3), Exp::new(1.0 / 400_000.0).unwrap());
    retimed(rows, |at| {
        let at = at + late.sample(&mut random) as u64;
        if at % PERIOD < STALL { at / PERIOD * PERIOD + STALL } else { at }
    })
}

/// The rows of an engine whose steps take longer or shorter at random, with this standard deviation of a step in
/// nanoseconds. The tokens of one step still come together.
pub(crate) fn with_jitter(rows: Vec<TraceEntry>, deviation: f64) -> Vec<TraceEntry> {
    // A step lies between two ends, and each of them moves.
    let moved = Normal::new(0.0, deviation / f64::sqrt(2.0)).unwrap();
    retimed(rows, |at| at.saturating_add_signed(moved.sample(&mut StdRng::seed_from_u64(at)) as i64))
}

/// The rows with each token at the time that `seen` gives it.
fn retimed(rows: Vec<TraceEntry>, mut seen: impl FnMut(u64) -> u64) -> Vec<TraceEntry> {
    let rows = rows.into_iter().map(|mut row| {
        let Some(first) = row.timing.first_token else { return row };
        let mut at = row.at + first;
        let mut before = seen(at);
        row.timing.first_token = Some(before - row.at);
        let gaps = row.timing.gaps.as_deref().map_or_else(Vec::new, |gaps| unpack(gaps).unwrap());
        let gaps: Vec<TokenEvent> = gaps
            .into_iter()
            .map(|gap| {
                at += gap.gap().as_nanos();
                let now = seen(at).max(before);
                TokenEvent::new(Gap::from_nanos(now - std::mem::replace(&mut before, now)), gap.tokens())
            })
            .collect();
        row.timing.gaps = (!gaps.is_empty()).then(|| pack(&gaps));
        row.timing.ended = row.timing.ended.map(|ended| ended.max(before - row.at));
        row
    });
    rows.collect()
}

pub(crate) fn prefill_first() -> EngineOptions {
    EngineOptions { prefill_mode: PrefillMode::First, max_batched_tokens: 8_192, ..EngineOptions::default() }
}
