//! Builds the report of a finished run from its figures.

use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use super::figures::{RunFigures, RunTotals};
use crate::cli::production::production_baseline;
use crate::cli::terminal::eprint_line;
use crate::measure::time::Stamp;
use crate::replay::sender::run::RunOutcome;
use crate::report::definitions::Definitions;
use crate::report::servers::ServerScrapes;
use crate::report::source::ReportSource;
use crate::report::source_reader::read_servers;
use crate::report::{PERCENTILES, Report};

/// The report, with the captured results of the trace `production` if it has any. `run` is the content of `run.json`.
pub(super) fn build_report(
    figures: &RunFigures,
    folder: Option<&Path>,
    run: Value,
    ended: &RunOutcome,
    production: Option<&Path>,
) -> anyhow::Result<Report> {
    let path = folder.map_or_else(|| "this run".to_owned(), |folder| folder.display().to_string());
    let (mut source, _) = ReportSource::from_run_file(path, run).context("a run cannot say what it is")?;
    source.started_unix_ns = Some(ended.started_unix_ns);
    let part = source.trace_window;
    let report = figures.read(|RunTotals { requests, counts, .. }| {
        (source.rows, source.outside_window) = (counts.ended, counts.outside_window);
        source.servers = folder.map_or_else(Vec::new, |folder| servers(folder, requests.total.window));
        Report::of(requests, vec![source], &PERCENTILES)
    });
    let Some(trace) = production else { return Ok(report) };
    match production_baseline(trace, part, Definitions::default()) {
        Ok((mut production, _)) => {
            Ok(report.with_production(trace.display().to_string(), &mut production, &PERCENTILES))
        }
        Err(error) => {
            eprint_line(&format!("note: the report lacks the results of the capture: {error:#}"));
            Ok(report)
        }
    }
}

/// Reads the server metrics from the folder, as `report` does.
fn servers(folder: &Path, window: Option<(Stamp, Stamp)>) -> Vec<ServerScrapes> {
    read_servers(folder, window).unwrap_or_else(|error| {
        eprint_line(&format!("note: the report lacks the figures of the servers: {error}"));
        Vec::new()
    })
}
