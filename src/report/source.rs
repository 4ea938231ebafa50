//! Reads a report's sources: captures, run directories and shards of one run, one after the other.
//!
//! Times of all sources share one timeline, which starts at the first source's wall-clock start. Every value is kept,
//! so several sources give exactly the result of one source with all their rows.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::accumulate::{Accumulator, TooManySlices};
use super::context::LoadDescription;
use super::peer_files::detect::PeerFormat;
use super::peer_files::facts::PeerFacts;
use super::peer_files::{self, PeerContent, PeerRun};
use super::request_view::RequestView;
use super::servers::ServerScrapes;
pub use super::source_error::SourceError;
use crate::measure::record::LaterTurns;
use crate::measure::time::{Stamp, Window, extend_span};
use crate::trace_file::reader::TraceReader;
use crate::trace_file::run_files::open_part;
use crate::trace_file::segment_list::{RECORDS_FILE, RUN_FILE};
use crate::trace_file::server_metrics;
use crate::trace_file::server_metrics::{SERVER_METRICS_FILE, Scrape, ScrapesHeader};

/// Version of the run file's format. Files with an older version remain readable.
pub const VERSION: u64 = 1;

/// The part of a run file that reports use.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RunFile {
    streamgauge_run: u64,
    targets: Vec<String>,
    closed_loop: bool,
    valid: Option<bool>,
    invalid_because: Vec<String>,
    slos: Vec<String>,
    slots: Option<u32>,
    seed: Option<u64>,
    arrivals: Value,
    version: Option<String>,
    command: Vec<String>,
    machine: Value,
    meta: BTreeMap<String, String>,
    engines: BTreeMap<String, Value>,
    trace: Option<String>,
    stretch: Option<f64>,
    load: LoadDescription,
    shard: Option<ShardOfRun>,
    simulated: Option<Value>,
    stopped: bool,
    warm_prefixes: bool,
    audit: Option<SelfTestResult>,
    trace_digest: Option<String>,
    trace_window: Window,
    summary: RunFileSummary,
}

/// One part of a plan that several machines send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShardOfRun {
    /// Number of the part, from 1.
    pub index: u64,
    /// Number of parts.
    pub count: u64,
}

/// Result of the run's self-test.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct SelfTestResult {
    #[serde(alias = "doubts")]
    uncertain: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct RunFileSummary {
    measured: Window,
    #[serde(alias = "held")]
    held_back: u64,
    later_turns: LaterTurns,
    #[serde(alias = "troubles")]
    errors: BTreeMap<String, u64>,
}

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
        if !document.is_object() {
            return Err(serde_json::Error::custom("expected an object"));
        }
        let run: RunFile = serde_json::from_value(document)?;
        if run.streamgauge_run > VERSION {
            return Err(serde_json::Error::custom(format_args!(
                "it is of version {}, and this Streamgauge reads them up to {VERSION}: use a newer one",
                run.streamgauge_run
            )));
        }
        let measured = run.summary.measured;
        let shard = shard_of_command(&run.command);
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
            shard: run.shard.or(shard),
            ..Self::default()
        };
        Ok((source, measured))
    }

    /// Builds a source from what a file of another tool reports.
    fn from_peer(path: String, format: PeerFormat, facts: PeerFacts) -> Self {
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
    fn difference_of_plan<'a>(&self, other: &Self, mut before: impl Iterator<Item = &'a Self>) -> Option<String> {
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

/// The shard in a command line: runs before version 0.2 recorded it nowhere else.
fn shard_of_command(command: &[String]) -> Option<ShardOfRun> {
    let at = command.iter().position(|word| word == "--shard" || word.starts_with("--shard="))?;
    let text = command[at].strip_prefix("--shard=").or_else(|| command.get(at + 1).map(String::as_str))?;
    let (index, count) = text.split_once('/')?;
    Some(ShardOfRun { index: index.parse().ok()?, count: count.parse().ok()? })
}

/// An opened source.
pub struct SourceReader {
    /// Facts known before the rows are read.
    pub source: ReportSource,
    path: PathBuf,
    rows: RowReader,
    scrapes: Option<RunScrapes>,
    measured: Window,
}

/// The samples that a run scraped from servers.
type RunScrapes = (ScrapesHeader, Vec<Scrape>);

/// Rows of a source.
enum RowReader {
    Trace(Box<TraceReader>),
    Peer(Box<PeerRun>),
}

impl SourceReader {
    /// Opens a capture, a run directory, a file of rows or a result of another tool.
    ///
    /// # Errors
    /// Returns an error if the path is none of these.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let run = path.join(RUN_FILE);
        let wrong = |reason: String| SourceError::Run { path: run.clone(), reason };
        let run_file = open_part(&run).map_err(|error| wrong(error.to_string()))?;
        let mut source = ReportSource { path: path.display().to_string(), ..ReportSource::default() };
        let (mut measured, mut rows, mut scrapes) = (Window::default(), path.to_owned(), None);
        if let Some(mut file) = run_file {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
            let document = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
            (source, measured) =
                ReportSource::from_run_file(source.path, document).map_err(|error| wrong(error.to_string()))?;
            rows = path.join(RECORDS_FILE);
            scrapes = read_scrapes(path)?;
        } else if !path.join(RECORDS_FILE).is_file()
            && let Some(content) = peer_files::open(path)?
        {
            return Self::of_peer(path, source.path, content);
        }
        let reader = TraceReader::open(&rows)?;
        (source.started_unix_ns, source.sample) = (reader.header().started_unix_ns, reader.header().sample);
        source.simulated |= reader.header().simulated;
        Ok(Self { source, path: path.to_owned(), rows: RowReader::Trace(Box::new(reader)), scrapes, measured })
    }

    fn of_peer(path: &Path, name: String, content: PeerContent) -> Result<Self, SourceError> {
        let run = match content {
            PeerContent::Run(run) => run,
            PeerContent::Summary(summary) => return Err(SourceError::OnlySummary(Box::new(summary))),
        };
        let source = ReportSource::from_peer(name, run.format, run.facts.clone());
        let rows = RowReader::Peer(Box::new(run));
        Ok(Self { source, path: path.to_owned(), rows, scrapes: None, measured: Window::default() })
    }

    /// Passes each request to the callback with `true` if it counts and `false` if it belongs to the warm-up. Returns
    /// the completed source. `zero` is the wall-clock time of the shared timeline's start.
    fn read(
        mut self,
        take: &mut impl FnMut(RequestView, bool) -> Result<(), TooManySlices>,
        zero: u64,
    ) -> Result<ReportSource, SourceError> {
        let shift = self.source.started_unix_ns.map_or(0, |started| started.saturating_sub(zero));
        let mut reader = match self.rows {
            RowReader::Trace(reader) => reader,
            RowReader::Peer(run) => return read_peer(*run, self.source, take, shift),
        };
        let blocks = reader.header().blocks.clone();
        let mut window = None;
        for row in reader.by_ref() {
            let row = row?;
            self.source.rows += 1;
            self.source.without_run |= !self.source.run && row.planned.is_some();
            let at = row.planned.unwrap_or(row.at);
            let counts = self.measured.has(at);
            self.source.outside_window += u64::from(!counts);
            if !counts && at >= self.measured.from {
                continue;
            }
            let number = self.source.rows;
            let request = RequestView::from_row(row, shift, blocks.as_ref()).map_err(|reason| SourceError::Gaps {
                path: self.path.clone(),
                number,
                reason,
            })?;
            if counts {
                let started = request.started();
                window = Some(extend_span(window, started, request.ended.unwrap_or(started)));
            }
            take(request, counts)?;
        }
        if let Some(scrapes) = &self.scrapes {
            self.source.servers = scrapes_of_window(scrapes, shift, window);
        }
        self.source.truncated = reader.damage().iter().map(ToString::to_string).collect();
        Ok(self.source)
    }
}

/// Reads what servers reported during the run in this folder, for requests whose first start and last end are `window`.
///
/// # Errors
/// Returns an error if the file of the scrapes cannot be read.
pub fn read_servers(folder: &Path, window: Option<(Stamp, Stamp)>) -> Result<Vec<ServerScrapes>, SourceError> {
    let scrapes = read_scrapes(folder)?;
    Ok(scrapes.map_or_else(Vec::new, |scrapes| scrapes_of_window(&scrapes, 0, window)))
}

/// `None` if the run scraped no server.
fn read_scrapes(folder: &Path) -> Result<Option<RunScrapes>, SourceError> {
    let path = folder.join(SERVER_METRICS_FILE);
    server_metrics::read(&path).map_err(|error| SourceError::Scrapes { path, reason: error.to_string() })
}

/// The scrapes of each server. `shift` moves them to the shared timeline.
fn scrapes_of_window((header, scrapes): &RunScrapes, shift: u64, window: Option<(Stamp, Stamp)>) -> Vec<ServerScrapes> {
    let of = |(number, url): (usize, &String)| {
        let scrapes = || scrapes.iter().filter(|scrape| scrape.server == number);
        let times = scrapes().map(|scrape| scrape.at.saturating_add_unsigned(shift));
        let counts = covering(window, times);
        ServerScrapes::from_scrapes(url.clone(), scrapes(), shift, counts)
    };
    header.servers.iter().enumerate().map(of).collect()
}

/// Accepts the scrapes within the window of the figures, and the first one after it. `times` are those of one server.
fn covering(window: Option<(Stamp, Stamp)>, times: impl Iterator<Item = i64>) -> impl Fn(i64) -> bool {
    let nanos = |at: Stamp| i64::try_from(at.as_nanos()).unwrap_or(i64::MAX);
    let window = window.map(|(first, last)| (nanos(first), nanos(last)));
    let after = window.and_then(|(_, last)| times.filter(|at| *at >= last).min());
    move |at| window.is_some_and(|(first, last)| at >= first && at <= after.unwrap_or(last))
}

/// Passes each request of another tool to the callback, as [`SourceReader::read`] does.
fn read_peer(
    run: PeerRun,
    mut source: ReportSource,
    take: &mut impl FnMut(RequestView, bool) -> Result<(), TooManySlices>,
    shift: u64,
) -> Result<ReportSource, SourceError> {
    let PeerRun { facts, requests, in_flight, .. } = run;
    for request in requests {
        let request = request?;
        source.rows += 1;
        source.outside_window += u64::from(request.warm_up);
        let (counts, others) = (!request.warm_up, in_flight.others_at(request.at));
        take(request.view(shift, facts.model.as_deref(), facts.dialect, Some(others)), counts)?;
    }
    Ok(source)
}

/// Aggregates the requests of all sources: captures, or shards of one plan.
///
/// # Errors
/// Returns an error if a source cannot be read, or if the sources are runs of different plans.
pub fn read(opened: Vec<SourceReader>, fold: &mut Accumulator) -> Result<Vec<ReportSource>, SourceError> {
    ensure_one_plan(&opened)?;
    fold.zero_unix_ns = opened.iter().filter_map(|opened| opened.source.started_unix_ns).min();
    for_each_request(opened, |request, counts| match counts {
        true => fold.add(&request),
        false => {
            fold.add_warm_up(&request);
            Ok(())
        }
    })
}

/// Rejects sources whose merged figures would describe no experiment: runs of different plans, or runs and captures.
fn ensure_one_plan(opened: &[SourceReader]) -> Result<(), SourceError> {
    let Some((first, others)) = opened.split_first() else { return Ok(()) };
    for (number, other) in others.iter().enumerate() {
        let before = opened[..=number].iter().map(|before| &before.source);
        if let Some(reason) = first.source.difference_of_plan(&other.source, before) {
            let (first, other) = (first.source.path.clone(), other.source.path.clone());
            return Err(SourceError::NotOnePlan { first, other, reason });
        }
    }
    Ok(())
}

/// Passes the requests of all sources to the callback, except those in cool-down. The flag is `false` for warm-up
/// requests.
///
/// # Errors
/// Returns an error if a source cannot be read.
pub fn for_each_request(
    opened: Vec<SourceReader>,
    mut take: impl FnMut(RequestView, bool) -> Result<(), TooManySlices>,
) -> Result<Vec<ReportSource>, SourceError> {
    let zero = opened.iter().filter_map(|opened| opened.source.started_unix_ns).min().unwrap_or(0);
    opened.into_iter().map(|opened| opened.read(&mut take, zero)).collect()
}
