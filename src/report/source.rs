//! What a report states about its sources.

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::context::LoadDescription;
use super::peer_files::detect::PeerFormat;
use super::peer_files::facts::PeerFacts;
use super::run_file::{RunFile, ShardOfRun};
use super::servers::ServerScrapes;
use crate::measure::record::LaterTurns;
use crate::measure::time::Window;
use crate::trace_file::segment_list::{RECORDS_FILE, RUN_FILE};

/// One source in the report.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct ReportSource {
    /// Path as given on the command line.
    pub path: String,
    /// `true` for the result of a run.
    pub run: bool,
    /// The tool that wrote the file, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The format of that tool's file.
    #[serde(skip)]
    pub format: Option<PeerFormat>,
    /// Number of rows.
    pub rows: u64,
    /// Rows in warm-up or cool-down, which count nowhere else.
    pub outside_window: u64,
    /// Target URLs of the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// `true` if slots, not planned times, decided when requests were sent.
    pub closed_loop: bool,
    /// `true` if a warm-up was excluded.
    pub warmed_up: bool,
    /// `true` if the run is the prediction of a twin and no measurement.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// `true` if a self-test ran before the run.
    pub audited: bool,
    /// Metrics that the load generator itself would distort.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uncertain: Vec<String>,
    /// Reasons why the run is invalid.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_valid: Vec<String>,
    /// Requests delayed because no slot was free.
    pub held_back: u64,
    /// Origin of the history in later turns of sessions.
    pub later_turns: LaterTurns,
    /// Incomplete responses by cause, where no status shows it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    /// Data found to be missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub truncated: Vec<String>,
    /// Wall-clock time of the source's time zero, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_unix_ns: Option<u64>,
    /// Share of sessions that the capture kept; absent if it kept all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<f64>,
    /// `true` for a run's rows without the run file.
    #[serde(skip)]
    pub without_run: bool,
    /// Metrics that servers reported.
    #[serde(skip)]
    pub servers: Vec<ServerScrapes>,
    /// Maximum number of requests in flight.
    #[serde(skip)]
    pub slots: Option<u32>,
    /// Seed of texts and random draws.
    #[serde(skip)]
    pub seed: Option<u64>,
    /// Requested rates: `stages[]` with `from` and `to`, and `burstiness`.
    #[serde(skip)]
    pub arrivals: Value,
    /// Command line as typed.
    #[serde(skip)]
    pub command: Vec<String>,
    /// `true` if the run was stopped early.
    #[serde(skip)]
    pub stopped: bool,
    /// `true` if shared prefixes were sent before the run.
    #[serde(skip)]
    pub warm_prefixes: bool,
    /// Digest of the replayed trace's bytes.
    #[serde(skip)]
    pub trace_digest: Option<String>,
    /// Measured part of the trace.
    #[serde(skip)]
    pub trace_window: Window,
    /// SLOs that the run was judged by.
    #[serde(skip)]
    pub slos: Vec<String>,
    /// Version of Streamgauge that wrote it.
    #[serde(skip)]
    pub version: Option<String>,
    /// The load generator's machine.
    #[serde(skip)]
    pub machine: Value,
    /// `--meta` of the run.
    #[serde(skip)]
    pub meta: BTreeMap<String, String>,
    /// Each target's report about itself, by endpoint.
    #[serde(skip)]
    pub engines: BTreeMap<String, Value>,
    /// Trace that was sent; absent for synthetic load.
    #[serde(skip)]
    pub trace: Option<String>,
    /// Run time per trace time.
    #[serde(skip)]
    pub stretch: Option<f64>,
    /// The load, as the flags describe it.
    #[serde(skip)]
    pub load: LoadDescription,
    /// The part of the plan that the run sent.
    #[serde(skip)]
    pub shard: Option<ShardOfRun>,
}

impl ReportSource {
    /// Builds a source from a run file's content. Also returns the window of planned times to measure.
    ///
    /// # Errors
    /// Returns an error if the content is not a run file.
    pub fn from_run_file(path: String, document: Value) -> serde_json::Result<(Self, Window)> {
        let run = RunFile::read(document)?;
        let measured = run.summary.measured;
        let shard = run.sent_shard();
        let source = Self {
            path,
            run: true,
            targets: run.targets,
            closed_loop: run.closed_loop,
            warmed_up: measured.from > 0,
            simulated: run.simulated.is_some(),
            audited: run.audit.is_some(),
            uncertain: run.audit.unwrap_or_default().uncertain,
            not_valid: if run.valid == Some(false) { run.invalid_because } else { Vec::new() },
            held_back: run.summary.held_back,
            later_turns: run.summary.later_turns,
            errors: run.summary.errors,
            slots: run.slots,
            seed: run.seed,
            arrivals: run.arrivals,
            command: run.command,
            stopped: run.stopped,
            warm_prefixes: run.warm_prefixes,
            slos: run.slos,
            trace_digest: run.trace_digest,
            trace_window: run.trace_window,
            version: run.version,
            machine: run.machine,
            meta: run.meta,
            engines: run.engines,
            trace: run.trace,
            stretch: run.stretch,
            load: run.load,
            shard,
            ..Self::default()
        };
        Ok((source, measured))
    }

    /// Builds a source from what a file of another tool reports.
    pub(super) fn from_peer(path: String, format: PeerFormat, facts: PeerFacts) -> Self {
        let PeerFacts { arrivals, rate, concurrency, isl, osl, .. } = facts;
        Self {
            path,
            tool: Some(facts.tool),
            format: Some(format),
            targets: facts.targets,
            closed_loop: facts.closed_loop,
            warmed_up: facts.warmed_up,
            truncated: facts.truncated,
            started_unix_ns: facts.started_unix_ns,
            slots: concurrency,
            seed: facts.seed,
            load: LoadDescription { arrivals, rate, concurrency, isl, osl, ..LoadDescription::default() },
            ..Self::default()
        }
    }

    /// True for the records of a run, or their folder, without its run file. They look like a capture.
    fn has_lost_run_file(&self) -> bool {
        let path = Path::new(&self.path);
        !self.run && (path.ends_with(RECORDS_FILE) || path.join(RECORDS_FILE).is_file())
    }

    /// The first reason why `other` is no further shard of this run's plan. `before` are the sources merged so far.
    /// Captures have no plan: those of several instances merge.
    pub(super) fn difference_of_plan<'a>(
        &self,
        other: &Self,
        mut before: impl Iterator<Item = &'a Self>,
    ) -> Option<String> {
        if let Some(tool) = self.tool.as_ref().or(other.tool.as_ref()) {
            return Some(format!("results of {tool} have no shards"));
        }
        if let Some(lost) = [self, other].into_iter().find(|source| source.has_lost_run_file()) {
            return Some(format!(
                "{} has the records of a run without its {RUN_FILE}, so its plan is unknown",
                lost.path
            ));
        }
        if !self.run && !other.run {
            return None;
        }
        let different = |what: &str| Some(format!("their {what} differs"));
        match () {
            () if self.run != other.run => Some("one is a run and the other is a capture".to_owned()),
            () if self.load != other.load || self.stretch != other.stretch || self.slots != other.slots => {
                different("load")
            }
            () if self.trace != other.trace || self.trace_digest != other.trace_digest => different("trace"),
            () if self.seed != other.seed => different("seed"),
            () if self.targets != other.targets => different("target"),
            () => match (self.shard, other.shard) {
                (Some(first), Some(shard)) if first.count == shard.count => before
                    .any(|before| before.shard == other.shard)
                    .then(|| format!("shard {}/{} is given twice", shard.index, shard.count)),
                (Some(_), Some(_)) => different("number of shards"),
                _ => Some("they were not sent with --shard".to_owned()),
            },
        }
    }
}
