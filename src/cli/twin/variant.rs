//! One variant of a twin's run, and the run that it writes.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::figures::{TwinFigures, judging};
use super::run::{RunArgs, context};
use crate::cli::runner::{artifacts, metadata};
use crate::measure::record::LaterTurns;
use crate::measure::time::Window;
use crate::replay::plan::schedule::RowError;
use crate::replay::result::output::{RunOutput, write_run};
use crate::report::request_view::RequestView;
use crate::report::run_file::VERSION;
use crate::trace_file::gaps;
use crate::trace_file::header::TraceHeader;
use crate::twin::fleet::FleetOptions;
use crate::twin::operations::Operations;
use crate::twin::simulation::{Simulation, SimulationTotals};

/// A fleet for the traffic.
#[derive(Debug)]
pub(super) struct Variant {
    /// Router, as typed.
    pub(super) router: String,
    /// Replicas over all models.
    pub(super) replicas: u32,
    pub(super) fleets: Vec<FleetOptions>,
    pub(super) operations: Operations,
    /// The only one of its command.
    pub(super) is_alone: bool,
}

/// Its result.
#[derive(Debug)]
pub(super) struct VariantResult {
    pub(super) label: String,
    pub(super) router: String,
    pub(super) replicas: u32,
    pub(super) figures: TwinFigures,
    pub(super) totals: SimulationTotals,
}

impl Variant {
    /// Name of its folder.
    pub(super) fn name(&self) -> String {
        let router: String = self.router.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        format!("{}-{router}", self.replicas)
    }

    /// Simulates the traffic; with `--out`, writes the run.
    pub(super) fn run(&self, args: &RunArgs, digest: Option<&str>) -> anyhow::Result<VariantResult> {
        let source = args.open()?;
        let (header, rows) = (source.header, source.rows);
        let (scheme, started) = (header.blocks.clone(), header.started_unix_ns.unwrap_or(0));
        let folder = args.folder(self);
        let mut output = match &folder {
            Some(folder) => {
                let header = TraceHeader { blocks: scheme.clone(), simulated: true, ..header };
                let output = RunOutput::new(folder, header).and_then(|output| output.begin(started));
                Some(output.with_context(|| context(folder))?)
            }
            None => None,
        };
        let judging = judging(&args.slos)?;
        let mut figures = TwinFigures::new(&args.slos, &self.fleets);
        let simulation = Simulation::new(self.fleets.clone(), scheme, &self.operations);
        let totals = simulation.run(rows, |response| {
            figures.add(&response);
            if output.is_none() && args.slos.is_empty() {
                return Ok(());
            }
            let (row, events) = response.into_row();
            if !args.slos.is_empty() {
                let rounded = gaps::rounded(&events);
                figures.judge(&RequestView::with_events(row.clone(), rounded, 0, None), &judging);
            }
            match &mut output {
                Some(output) => output.row(row, &events).map_err(RowError::from),
                None => Ok(()),
            }
        });
        let totals = totals.map_err(anyhow::Error::from_boxed)?;
        if let (Some(output), Some(folder)) = (output, &folder) {
            output.end().with_context(|| context(folder))?;
            self.finish(args, folder, digest, (&totals, &figures)).with_context(|| context(folder))?;
        }
        let label = format!("{} x {}", self.replicas, self.router);
        Ok(VariantResult { label, router: self.router.clone(), replicas: self.replicas, figures, totals })
    }

    /// Writes `run.json` and the files that derive from the rows.
    fn finish(
        &self,
        args: &RunArgs,
        folder: &Path,
        digest: Option<&str>,
        (totals, figures): (&SimulationTotals, &TwinFigures),
    ) -> anyhow::Result<()> {
        write_run(folder, &self.run_file(args, digest, totals, figures)?)?;
        fs::copy(&args.twin, folder.join("twin.json"))
            .map_err(|error| io::Error::new(error.kind(), format!("cannot copy {}: {error}", args.twin.display())))?;
        artifacts::write(folder, &[], &args.slos)
    }

    fn run_file(
        &self,
        args: &RunArgs,
        digest: Option<&str>,
        totals: &SimulationTotals,
        figures: &TwinFigures,
    ) -> anyhow::Result<Value> {
        let scale = args.scale.map(|scale| scale.0);
        let rate = scale.map(|scale| format!("{scale}x of the trace"));
        Ok(json!({
            "streamgauge_run": VERSION,
            "version": env!("CARGO_PKG_VERSION"),
            "command": metadata::own_command(),
            "machine": metadata::machine(),
            "simulated": {
                "twin": args.twin.display().to_string(),
                "replicas": self.replicas,
                "max_replicas": totals.max_replicas,
                "router": self.router,
                "skipped_rows": totals.skipped,
                "overloaded": totals.overloaded,
                "figures": figures.summary(&args.slos),
            },
            "targets": [format!("SIMULATED: {} replicas of {}, {}", self.replicas, args.twin.display(), self.router)],
            "trace": args.traffic.display().to_string(),
            "trace_digest": digest,
            "trace_window": Window::default(),
            "load": { "rate": rate, "arrivals": "trace" },
            "seed": args.seed,
            "stretch": 1.0,
            "closed_loop": false,
            "slos": args.slos.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "stopped": false,
            "sent": figures.requests,
            "valid": true,
            "invalid_because": Vec::<String>::new(),
            "summary": {
                "measured": Window::default(),
                "outside_window": 0,
                "held_back": 0,
                "later_turns": LaterTurns::default(),
                "errors": serde_json::Map::new(),
            },
        }))
    }
}
