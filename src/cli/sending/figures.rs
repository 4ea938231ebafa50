//! The figures of a run, by the fold of `report`, from its rows as requests end.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use serde_json::Value;

use super::prepare::Wanted;
use crate::capture::format::{Blocks, Entry};
use crate::cli::report::production;
use crate::measure::slo::Slos;
use crate::measure::time::Window;
use crate::replay::measured::Measured;
use crate::replay::output::Each;
use crate::replay::run::Ended;
use crate::report::definitions::Definitions;
use crate::report::fold::{Fold, Settings};
use crate::report::request::Request;
use crate::report::source::Source;
use crate::report::{PERCENTILES, Report};

/// See the module.
pub(super) struct Figures {
    kept: Arc<Mutex<Kept>>,
    measured: Measured,
    blocks: Option<Blocks>,
    production: Option<PathBuf>,
}

#[derive(Default)]
struct Kept {
    fold: Fold,
    rows: u64,
    /// Whole answers.
    answers: u64,
    /// Of these, without a token, a count of tokens, or an end that the dialect knows.
    empty: u64,
}

impl Figures {
    pub(super) fn new(slos: Slos, measured: Measured, wanted: &Wanted) -> Self {
        let fold = Fold::new(Settings { slos, ..Settings::default() });
        Self {
            kept: Arc::new(Mutex::new(Kept { fold, ..Kept::default() })),
            measured,
            blocks: wanted.header.blocks.clone(),
            production: wanted.production.clone(),
        }
    }

    /// Which sends count.
    pub(super) fn measured(&self) -> Window {
        self.measured.window()
    }

    /// Takes rows in.
    pub(super) fn each(&self) -> Each {
        let (kept, blocks, measured) = (Arc::clone(&self.kept), self.blocks.clone(), self.measured.clone());
        Box::new(move |row: Entry| {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.rows += 1;
            let at = row.planned.unwrap_or(row.at);
            let finished = row.finish.is_some();
            // Gaps that were packed here can be unpacked, and there are no slices to be too many.
            let Ok(request) = Request::of(row, 0, blocks.as_ref()) else { return };
            kept.answers += u64::from(request.succeeded());
            kept.empty += u64::from(request.succeeded() && !finished && request.is_silent());
            let measured = measured.window();
            if measured.has(at) {
                _ = kept.fold.add(&request);
            } else if at < measured.from {
                kept.fold.add_of_warm_up(&request);
            }
        })
    }

    /// That whatever answers is no model, where nothing else came.
    pub(super) fn without_output(&self) -> Option<String> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        (kept.empty > 0 && kept.empty == kept.answers).then(|| {
            format!(
                "no answer has any output, of {}; look at --target and --dialect, and with `streamgauge inspect` at what \
                 the server sends",
                kept.answers
            )
        })
    }

    /// What they came to, with what the trace itself came to if it tells. `run` is what the run says of itself.
    pub(super) fn report(&self, folder: Option<&Path>, run: Value, ended: &Ended) -> anyhow::Result<Report> {
        let path = folder.map_or_else(|| "this run".to_owned(), |folder| folder.display().to_string());
        let (mut source, _) = Source::of_run(path, run).context("a run cannot say what it is")?;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        (source.rows, source.outside) = (kept.rows, ended.summary.outside);
        source.started_unix_ns = Some(ended.began_unix_ns);
        let part = source.trace_window;
        let report = Report::of(&mut kept.fold, vec![source], &PERCENTILES);
        let Some(trace) = &self.production else { return Ok(report) };
        match production(trace, part, Definitions::default()) {
            Ok((mut production, _)) => Ok(report.beside(trace.display().to_string(), &mut production, &PERCENTILES)),
            Err(error) => {
                crate::cli::say(&format!("note: production does not stand beside the run: {error:#}"));
                Ok(report)
            }
        }
    }
}
