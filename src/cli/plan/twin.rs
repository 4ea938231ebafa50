//! `plan --twin`: simulates fleets until every window of the traffic keeps the SLO.

use std::path::Path;

use crate::cli::parallel::parallel;
use crate::cli::twin::{COPY_OFFSET, held_out};
use crate::measure::time::Stamp;
use crate::replay::plan::schedule::RowError;
use crate::replay::plan::trace_source::{self, TraceReadOptions};
use crate::report::plan::Traffic;
use crate::report::plan::fleet::ReplicaCost;
use crate::report::plan::objective::PlanObjective;
use crate::report::plan::replicas::Reserves;
use crate::report::plan::simulated::goals::{SimulatedGoals, TwinErrors, TwinView};
use crate::report::plan::simulated::need::NeedSearch;
use crate::report::plan::simulated::windows::{SimulatedRequest, SimulatedWindows};
use crate::report::plan::simulated::{FittedLimits, PlanTwin, SimulatedNeeds, SimulatedPlan, headroom_factor};
use crate::report::request_view::RequestView;
use crate::trace::scale::{MAX_COPIES, RateScale};
use crate::trace_file::gaps;
use crate::twin::fleet::FleetOptions;
use crate::twin::model::TwinModel;
use crate::twin::operations::{Operations, ScheduledReplicas};
use crate::twin::response::TwinOutcome;
use crate::twin::router::Router;
use crate::twin::simulation::Simulation;

/// Batches per replica that may be in flight before further requests are turned away. A queue of three batches waits
/// three whole responses, so a window's backlog stays short.
const MAX_BATCHES: u32 = 4;
/// Passes that add replicas after windows that leave too much behind.
const MAX_PASSES: u32 = 16;

/// The question, ready to be simulated.
#[derive(Debug)]
pub(super) struct TwinQuestion<'a> {
    path: &'a Path,
    traffic: &'a Traffic,
    fleet: FleetOptions,
    goals: SimulatedGoals,
    twin: PlanTwin,
    reserves: Reserves,
}

impl<'a> TwinQuestion<'a> {
    /// Reads the twin, and checks that it can answer.
    pub(super) fn new(
        (twin, router): (&Path, &str),
        (path, traffic): (&'a Path, &'a Traffic),
        objectives: &[PlanObjective],
        reserves: Reserves,
    ) -> anyhow::Result<Self> {
        anyhow::ensure!(
            traffic.mix.is_some(),
            "--traffic {}: a rate has no requests to simulate; remedy: name a capture or a trace, or plan with --measured",
            traffic.source
        );
        let parsed: Router = router.parse().map_err(|why| anyhow::anyhow!("--router: {why}"))?;
        anyhow::ensure!(
            parsed.replicas().is_none(),
            "--router {router}: it fixes the replicas, which a plan looks for; remedy: compare pools with `streamgauge twin run`"
        );
        anyhow::ensure!(
            traffic.times() * headroom_factor(&reserves) <= MAX_COPIES,
            "--traffic {}: the sample is too small to be simulated in at most {MAX_COPIES} copies; remedy: capture a larger share, or plan with --measured",
            traffic.source
        );
        let model = TwinModel::read(twin)?;
        let fleets = model.fleets(&[], None, parsed).map_err(anyhow::Error::msg)?;
        let count = fleets.len();
        let fleet = fleets.into_iter().next().filter(|_| count == 1).ok_or_else(|| {
            anyhow::anyhow!(
                "--twin {}: it has engines of {count} models; remedy: fit a twin to the traffic of one model, with `trace cut --models`",
                twin.display()
            )
        })?;
        let error = |metric| model.error_of(metric);
        let errors = TwinErrors { ttft: error("ttft"), itl: error("itl"), e2e: error("e2e") };
        let goals = SimulatedGoals::new(objectives, errors).map_err(|error| anyhow::anyhow!("--slo: {error}"))?;
        let limits = |of: crate::twin::model::FittedLoad| FittedLimits {
            batch: of.max_in_flight.into(),
            context: of.max_context_tokens as f64,
            rate: of.rate,
        };
        let batch = fleet.engines.iter().map(|engine| engine.max_num_seqs).max().unwrap_or(1);
        let twin = PlanTwin {
            path: twin.display().to_string(),
            router: router.to_owned(),
            held_out: held_out(&model),
            fitted: model.fitted(&fleet).map(limits),
            admission: batch.saturating_mul(MAX_BATCHES),
        };
        Ok(Self { path, traffic, fleet, goals, twin, reserves })
    }

    /// Simulates until the replicas of every window are known.
    pub(super) fn answer(self, cost: ReplicaCost) -> anyhow::Result<SimulatedPlan> {
        let factor = headroom_factor(&self.reserves);
        let mut search = NeedSearch::default();
        loop {
            let sizes = search.next_sizes();
            if sizes.is_empty() {
                break;
            }
            for (size, result) in sizes.iter().zip(parallel(&sizes, |size| self.simulate(*size, Vec::new(), factor))) {
                let result = result?;
                search.add(*size, result.shortfalls(&self.goals), result.refused);
            }
        }
        let mut needed = search.needs(TwinView::Expected);
        let mut outcome = self.simulate_timeline(&needed, factor)?;
        for _ in 0..MAX_PASSES {
            if !search.raise(&mut needed, &outcome.shortfalls(&self.goals)) {
                break;
            }
            outcome = self.simulate_timeline(&needed, factor)?;
        }
        if factor > 1.0 {
            outcome = self.simulate_timeline(&needed, 1.0)?;
        }
        let needs = SimulatedNeeds { search, needed, outcome };
        Ok(SimulatedPlan::of(self.twin, &self.goals, self.traffic, &needs, (self.reserves, cost)))
    }

    /// The traffic on replicas that change with the windows.
    fn simulate_timeline(&self, needed: &[u64], factor: f64) -> anyhow::Result<SimulatedWindows> {
        let count = |need: &u64| u32::try_from(*need).unwrap_or(u32::MAX);
        let mut schedule: Vec<ScheduledReplicas> = Vec::new();
        let mut from_s = 0.0;
        for (window, need) in self.traffic.arrivals.windows.iter().zip(needed) {
            let replicas = count(need);
            if schedule.last().is_none_or(|last| last.replicas != replicas) {
                schedule.push(ScheduledReplicas { at: Stamp::from_nanos((from_s * 1e9) as u64), replicas });
            }
            from_s += window.seconds;
        }
        self.simulate(needed.first().map_or(1, count), schedule, factor)
    }

    fn simulate(
        &self,
        replicas: u32,
        schedule: Vec<ScheduledReplicas>,
        factor: f64,
    ) -> anyhow::Result<SimulatedWindows> {
        let factor = factor * self.traffic.times();
        let rate = (factor > 1.0).then_some(RateScale { factor, offset: COPY_OFFSET.as_nanos(), seed: 0 });
        let source = trace_source::open(self.path, TraceReadOptions { rate, ..TraceReadOptions::default() });
        let source = source.map_err(anyhow::Error::from_boxed)?;
        let most = schedule.iter().map(|of| of.replicas).chain([replicas]).max().unwrap_or(1);
        let operations =
            Operations { admission: Some(self.twin.admission.saturating_mul(most)), schedule, ..Operations::default() };
        let mut windows = SimulatedWindows::new(&self.traffic.arrivals, &self.goals);
        let fleet = FleetOptions { replicas, ..self.fleet.clone() };
        let simulation = Simulation::new(vec![fleet], source.header.blocks.clone(), &operations);
        let done = simulation.run(source.rows, |response| -> Result<(), RowError> {
            let of = SimulatedRequest {
                at_s: response.request.at.as_nanos() as f64 / 1e9,
                in_flight: response.in_flight,
                context_tokens: response.request.kv_tokens(),
                is_refused: matches!(response.outcome, TwinOutcome::NotAdmitted | TwinOutcome::Overloaded),
            };
            let (row, events) = response.into_row();
            windows.add(&RequestView::with_events(row, gaps::rounded(&events), 0, None), of, &self.goals);
            Ok(())
        });
        done.map_err(anyhow::Error::from_boxed)?;
        Ok(windows)
    }
}
