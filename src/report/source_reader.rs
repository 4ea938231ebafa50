//! Reads a report's sources: captures, run directories and shards of one run, one after the other.
//!
//! Times of all sources share one timeline, which starts at the first source's wall-clock start. Every value is kept,
//! so several sources give exactly the result of one source with all their rows.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::accumulate::{Accumulator, TooManySlices};
use super::peer_files::{self, PeerContent, PeerRun};
use super::request_view::RequestView;
use super::servers::ServerScrapes;
use super::source::ReportSource;
use super::source_error::SourceError;
use crate::measure::time::{Stamp, Window, extend_span};
use crate::trace_file::reader::TraceReader;
use crate::trace_file::run_files::open_part;
use crate::trace_file::segment_list::{RECORDS_FILE, RUN_FILE};
use crate::trace_file::server_metrics;
use crate::trace_file::server_metrics::{SERVER_METRICS_FILE, Scrape, ScrapesHeader};

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
