//! One run of a sweep, added up.

use std::path::{Path, PathBuf};

use super::super::fold::{Figures, Fold, Settings};
use super::super::growth::{Growth, growth};
use super::super::metric::Metric;
use super::super::secs;
use super::super::source::{Opened, Source, SourceError, read};
use crate::measure::slo::goals::Goals;
use crate::measure::slo::{Slo, Slos};
use crate::measure::time::Gap;

/// Why there is no report of a sweep.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A run cannot be read.
    #[error(transparent)]
    Run(#[from] SourceError),
    /// An objective of a run cannot be read, or two have one name.
    #[error("{}: {reason}", path.display())]
    Slo {
        /// The run.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// One run, added up.
#[derive(Debug)]
pub struct Measured {
    pub(super) figures: Figures,
    pub(super) seconds: f64,
    pub(super) slos: Slos,
    pub(super) source: Source,
    /// Whether the load grew.
    pub growth: Option<Growth>,
}

/// Adds up a run, judged by these objectives, or by its own where there are none.
///
/// # Errors
/// When it cannot be read.
pub fn measured(run: &Path, slos: &[Slo]) -> Result<Measured, SweepError> {
    let opened = Opened::open(run)?;
    let wrong = |reason: String| SweepError::Slo { path: run.to_owned(), reason };
    let own = || opened.source.slos.iter().map(|text| text.parse()).collect::<Result<Vec<Slo>, _>>();
    let list = if slos.is_empty() { own().map_err(|error| wrong(error.to_string()))? } else { slos.to_vec() };
    let slos = Slos::new(list).map_err(wrong)?;
    let mut fold = Fold::new(Settings { slos: slos.clone(), ..Settings::default() });
    let source = read(vec![opened], &mut fold)?.remove(0);
    let mut figures = fold.whole;
    let (first, last) = figures.window.unwrap_or_default();
    let duration = figures.samples[Metric::E2e as usize].sorted().map_or(0.0, |sorted| sorted.mean());
    let growth = growth(&figures.load, Gap::from_nanos(duration as u64)).filter(|_| !source.closed_loop);
    Ok(Measured { figures, seconds: secs(last) - secs(first), slos, source, growth })
}

impl Measured {
    /// For each SLO that is a goal the requests that met it, those that count, and the share that must.
    pub fn counts(&self, goals: &Goals) -> Vec<(u64, u64, f64)> {
        let judged = self.slos.iter().zip(&self.figures.goodput);
        judged.filter_map(|(slo, good)| Some((good.met, good.counted, goals.share_of(slo.name())?))).collect()
    }

    /// Why the run is not valid.
    pub fn not_valid(&self) -> &[String] {
        &self.source.not_valid
    }

    /// Requests that were answered in full, per second.
    pub fn successes_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.figures.successes() as f64 / self.seconds } else { 0.0 }
    }
}
