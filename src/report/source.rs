//! What a report is read from: captures, run directories and shards of one run, one after the other.
//!
//! Times of all are moved onto one line, which begins where the first source began by the wall clock. Since every value
//! is kept, several sources come to exactly what one that holds all their rows would.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::accumulate::{Accumulator, TooManySlices};
use super::request_view::RequestView;
use super::servers::ServerScrapes;
use crate::capture::gaps::GapsError;
use crate::capture::reader::{RECORDS_FILE, RUN_FILE, ReadError, TraceReader};
use crate::capture::server_metrics::{self, SERVER_METRICS_FILE, Scrape, ScrapesHeader};
use crate::measure::record::LaterTurns;
use crate::measure::time::Window;

/// The version of what it says that is written. Whatever was written by an older one can be read.
pub const VERSION: u64 = 1;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The rows cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What a run says of itself cannot be read.
    #[error("cannot read {}: {reason}. Without the file the records can still be read: name {RECORDS_FILE} itself", path.display())]
    Run {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// What servers said of themselves cannot be read.
    #[error("cannot read {}: {reason}. Without the file there is a report of the requests alone", path.display())]
    Scrapes {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A row whose gaps make no sense.
    #[error("{}, request {number}: {reason}. Take the row out, or write the trace again", path.display())]
    Gaps {
        /// The source.
        path: PathBuf,
        /// The row, from 1, the header left out.
        number: u64,
        /// What is wrong.
        reason: GapsError,
    },
    /// There are too many slices.
    #[error(transparent)]
    Slices(#[from] TooManySlices),
}

/// What a run's file says that a report needs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RunFile {
    streamgauge_run: u64,
    targets: Vec<String>,
    closed_loop: bool,
    valid: Option<bool>,
    invalid_because: Vec<String>,
    slos: Vec<String>,
    slots: Option<u32>,
    seed: Option<u64>,
    arrivals: Value,
    command: Vec<String>,
    stopped: bool,
    warm_prefixes: bool,
    audit: Option<SelfTestResult>,
    trace_digest: Option<String>,
    trace_window: Window,
    summary: RunFileSummary,
}

/// What the machine was found to be worth before the run.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SelfTestResult {
    doubts: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RunFileSummary {
    measured: Window,
    held: u64,
    later_turns: LaterTurns,
    troubles: BTreeMap<String, u64>,
}

/// One source, as a report names it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReportSource {
    /// As it was named.
    pub path: String,
    /// Whether it is the result of a run.
    pub run: bool,
    /// Its rows.
    pub rows: u64,
    /// Of these, those in warm-up or cool-down, which are in no figure.
    pub outside: u64,
    /// Where its requests went, as the run says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// Whether slots and no times decided when requests were sent.
    pub closed_loop: bool,
    /// Whether a warm-up was left out.
    pub warmed_up: bool,
    /// Whether the machine that sent was tried before.
    pub audited: bool,
    /// What of the figures that machine would spoil.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<String>,
    /// Why the run is not valid, if it is not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_valid: Vec<String>,
    /// Requests that a lack of slots held back.
    pub held: u64,
    /// What later turns of sessions said of the past.
    pub later_turns: LaterTurns,
    /// Requests without a whole answer, by why, where no status says it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub troubles: BTreeMap<String, u64>,
    /// What was found to be missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damage: Vec<String>,
    /// When its time zero was, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_unix_ns: Option<u64>,
    /// Rows that a run sent, where nothing says of which.
    #[serde(skip)]
    pub without_run: bool,
    /// What servers said of themselves.
    #[serde(skip)]
    pub servers: Vec<ServerScrapes>,
    /// Requests in flight at most.
    #[serde(skip)]
    pub slots: Option<u32>,
    /// What decided texts and draws.
    #[serde(skip)]
    pub seed: Option<u64>,
    /// The rates that were asked for: `stages[]` with `from` and `to`, and `burstiness`.
    #[serde(skip)]
    pub arrivals: Value,
    /// As it was typed.
    #[serde(skip)]
    pub command: Vec<String>,
    /// Whether the run was stopped before its end.
    #[serde(skip)]
    pub stopped: bool,
    /// Whether what prompts share was sent before the run.
    #[serde(skip)]
    pub warm_prefixes: bool,
    /// The trace that was sent, by its bytes.
    #[serde(skip)]
    pub trace_digest: Option<String>,
    /// The part of it that is in the figures.
    #[serde(skip)]
    pub trace_window: Window,
    /// The SLOs that the run was judged by.
    #[serde(skip)]
    pub slos: Vec<String>,
}

impl ReportSource {
    /// A run, by what its file says; and which of its planned times are in the figures.
    ///
    /// # Errors
    /// When the file says something else.
    pub fn from_run_file(path: String, told: Value) -> serde_json::Result<(Self, Window)> {
        if !told.is_object() {
            return Err(serde_json::Error::custom("expected an object"));
        }
        let told: RunFile = serde_json::from_value(told)?;
        if told.streamgauge_run > VERSION {
            return Err(serde_json::Error::custom(format_args!(
                "it is of version {}, and this Streamgauge reads them up to {VERSION}: use a newer one",
                told.streamgauge_run
            )));
        }
        let measured = told.summary.measured;
        let source = Self {
            path,
            run: true,
            targets: told.targets,
            closed_loop: told.closed_loop,
            warmed_up: measured.from > 0,
            audited: told.audit.is_some(),
            doubts: told.audit.unwrap_or_default().doubts,
            not_valid: if told.valid == Some(false) { told.invalid_because } else { Vec::new() },
            held: told.summary.held,
            later_turns: told.summary.later_turns,
            troubles: told.summary.troubles,
            slots: told.slots,
            seed: told.seed,
            arrivals: told.arrivals,
            command: told.command,
            stopped: told.stopped,
            warm_prefixes: told.warm_prefixes,
            slos: told.slos,
            trace_digest: told.trace_digest,
            trace_window: told.trace_window,
            ..Self::default()
        };
        Ok((source, measured))
    }
}

/// A source that has been opened.
pub struct SourceReader {
    /// What is known of it before its rows are read.
    pub source: ReportSource,
    path: PathBuf,
    reader: TraceReader,
    scrapes: Option<(ScrapesHeader, Vec<Scrape>)>,
    measured: Window,
}

impl SourceReader {
    /// Opens a capture, a run directory or a file of rows.
    ///
    /// # Errors
    /// When it is none.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let run = path.join(RUN_FILE);
        let mut source = ReportSource { path: path.display().to_string(), ..ReportSource::default() };
        let (mut measured, mut rows, mut scrapes) = (Window::default(), path.to_owned(), None);
        if run.is_file() {
            let wrong = |reason: String| SourceError::Run { path: run.clone(), reason };
            let bytes = fs::read(&run).map_err(|error| wrong(error.to_string()))?;
            let told = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
            (source, measured) =
                ReportSource::from_run_file(source.path, told).map_err(|error| wrong(error.to_string()))?;
            rows = path.join(RECORDS_FILE);
            let path = path.join(SERVER_METRICS_FILE);
            scrapes = server_metrics::read(&path)
                .map_err(|error| SourceError::Scrapes { path, reason: error.to_string() })?;
        }
        let reader = TraceReader::open(&rows)?;
        source.started_unix_ns = reader.header().started_unix_ns;
        Ok(Self { source, path: path.to_owned(), reader, scrapes, measured })
    }

    /// Hands out its requests, each with whether it counts or was of the warm-up, and says what they were. `zero` is the wall clock's time at the beginning of the shared line.
    fn read(
        mut self,
        take: &mut impl FnMut(RequestView, bool) -> Result<(), TooManySlices>,
        zero: u64,
    ) -> Result<ReportSource, SourceError> {
        let shift = self.source.started_unix_ns.map_or(0, |started| started.saturating_sub(zero));
        let blocks = self.reader.header().blocks.clone();
        for row in self.reader.by_ref() {
            let row = row?;
            self.source.rows += 1;
            self.source.without_run |= !self.source.run && row.planned.is_some();
            let at = row.planned.unwrap_or(row.at);
            let counts = self.measured.has(at);
            self.source.outside += u64::from(!counts);
            if !counts && at >= self.measured.from {
                continue;
            }
            let number = self.source.rows;
            let request = RequestView::from_row(row, shift, blocks.as_ref()).map_err(|reason| SourceError::Gaps {
                path: self.path.clone(),
                number,
                reason,
            })?;
            take(request, counts)?;
        }
        if let Some((header, scrapes)) = &self.scrapes {
            let measured = self.measured;
            // Without a warm-up what a server said before time zero is where its counters begin.
            let counts = |at: i64| {
                let at = at.max(0).unsigned_abs();
                at >= measured.from && measured.to.is_none_or(|to| at < to)
            };
            let of = |(number, url): (usize, &String)| {
                let scrapes = scrapes.iter().filter(|scrape| scrape.server == number);
                ServerScrapes::from_scrapes(url.clone(), scrapes, shift, counts)
            };
            self.source.servers = header.servers.iter().enumerate().map(of).collect();
        }
        self.source.damage = self.reader.damage().iter().map(ToString::to_string).collect();
        Ok(self.source)
    }
}

/// Adds all requests of all sources up.
///
/// # Errors
/// When one of them cannot be read.
pub fn read(opened: Vec<SourceReader>, fold: &mut Accumulator) -> Result<Vec<ReportSource>, SourceError> {
    for_each_request(opened, |request, counts| match counts {
        true => fold.add(&request),
        false => {
            fold.add_warm_up(&request);
            Ok(())
        }
    })
}

/// Hands out all requests of all sources but for those in cool-down, each with whether it counts or was of the warm-up.
///
/// # Errors
/// When one of them cannot be read.
pub fn for_each_request(
    opened: Vec<SourceReader>,
    mut take: impl FnMut(RequestView, bool) -> Result<(), TooManySlices>,
) -> Result<Vec<ReportSource>, SourceError> {
    let zero = opened.iter().filter_map(|opened| opened.source.started_unix_ns).min().unwrap_or(0);
    opened.into_iter().map(|opened| opened.read(&mut take, zero)).collect()
}
