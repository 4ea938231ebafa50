//! Builds a run's report from its rows as requests end, with the aggregation of `report`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use serde_json::Value;

use super::plan::WorkloadSpec;
use crate::cli::report::production_baseline;
use crate::measure::slo::Slos;
use crate::measure::time::Window;
use crate::replay::plan::measurement_window::MeasurementWindow;
use crate::replay::result::output::RowCallback;
use crate::replay::sender::run::RunOutcome;
use crate::report::accumulate::{Accumulator, AccumulatorSettings};
use crate::report::definitions::Definitions;
use crate::report::request_view::RequestView;
use crate::report::source::ReportSource;
use crate::report::{PERCENTILES, Report};
use crate::trace_file::row::{BlockScheme, TraceEntry};

/// Aggregates a run's rows.
pub(super) struct RunReportBuilder {
    totals: Arc<Mutex<RunTotals>>,
    measured: MeasurementWindow,
    blocks: Option<BlockScheme>,
    production: Option<PathBuf>,
}

#[derive(Default)]
struct RunTotals {
    fold: Accumulator,
    rows: u64,
    /// Complete responses.
    answers: u64,
    /// Complete responses without a token, a token count, or an end that the dialect recognizes.
    empty: u64,
}

impl RunReportBuilder {
    pub(super) fn new(slos: Slos, measured: MeasurementWindow, wanted: &WorkloadSpec) -> Self {
        let fold = Accumulator::new(AccumulatorSettings { slos, ..AccumulatorSettings::default() });
        Self {
            totals: Arc::new(Mutex::new(RunTotals { fold, ..RunTotals::default() })),
            measured,
            blocks: wanted.header.blocks.clone(),
            production: wanted.production.clone(),
        }
    }

    /// The measurement window.
    pub(super) fn measured(&self) -> Window {
        self.measured.window()
    }

    /// The callback that receives the rows.
    pub(super) fn row_callback(&self) -> RowCallback {
        let (kept, blocks, measured) = (Arc::clone(&self.totals), self.blocks.clone(), self.measured.clone());
        Box::new(move |row: TraceEntry| {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.rows += 1;
            let at = row.planned.unwrap_or(row.at);
            let finished = row.finish.is_some();
            // Neither this nor `add` can fail: this process packed the gaps, and the report has no time slices.
            let Ok(request) = RequestView::from_row(row, 0, blocks.as_ref()) else { return };
            kept.answers += u64::from(request.succeeded());
            kept.empty += u64::from(request.succeeded() && !finished && request.has_no_output());
            let measured = measured.window();
            if measured.has(at) {
                _ = kept.fold.add(&request);
            } else if at < measured.from {
                kept.fold.add_warm_up(&request);
            }
        })
    }

    /// The warning if every complete response was empty, so that the server is probably no model.
    pub(super) fn no_output_reason(&self) -> Option<String> {
        let kept = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        (kept.empty > 0 && kept.empty == kept.answers).then(|| {
            format!(
                "none of {} responses contained output; check --target and --dialect, and inspect a response with \
                 `streamgauge inspect`",
                kept.answers
            )
        })
    }

    /// The report, with the trace's captured results if it has any. `run` is the content of `run.json`.
    pub(super) fn report(&self, folder: Option<&Path>, run: Value, ended: &RunOutcome) -> anyhow::Result<Report> {
        let path = folder.map_or_else(|| "this run".to_owned(), |folder| folder.display().to_string());
        let (mut source, _) = ReportSource::from_run_file(path, run).context("a run cannot say what it is")?;
        let mut kept = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        (source.rows, source.outside_window) = (kept.rows, ended.summary.outside_window);
        source.started_unix_ns = Some(ended.started_unix_ns);
        let part = source.trace_window;
        let report = Report::of(&mut kept.fold, vec![source], &PERCENTILES);
        let Some(trace) = &self.production else { return Ok(report) };
        match production_baseline(trace, part, Definitions::default()) {
            Ok((mut production, _)) => {
                Ok(report.with_production(trace.display().to_string(), &mut production, &PERCENTILES))
            }
            Err(error) => {
                crate::cli::eprint_line(&format!("note: production does not stand beside the run: {error:#}"));
                Ok(report)
            }
        }
    }
}
