//! Reports in the formats of other tools.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::measure::slo::Slos;
use crate::measure::time::Gap;
use crate::report::accumulate::{Accumulator, AccumulatorSettings, verdicts};
use crate::report::aiperf::time_slices::AiperfTimeSlices;
use crate::report::definitions::Definitions;
use crate::report::filter::RequestFilter;
use crate::report::source_reader::{SourceReader, for_each_request};

/// Format of another tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ReportFormat {
    /// llm-d's Benchmark Report 0.2.1
    Llmd,
    /// AIPerf's profile_export_aiperf_timeslices.json; needs --slice
    AiperfTimeslices,
    /// AIPerf's profile_export_aiperf_timeslices.csv; needs --slice
    AiperfTimeslicesCsv,
}

impl ReportFormat {
    pub(super) fn needs_slices(self) -> bool {
        self != Self::Llmd
    }
}

/// Renders AIPerf's files of time slices. It reads the requests again: the slices begin at the first send, which only
/// `fold` of all requests knows.
pub(super) fn aiperf_time_slices(
    format: ReportFormat,
    paths: &[PathBuf],
    slice: Gap,
    fold: &Accumulator,
    filter: RequestFilter,
) -> anyhow::Result<String> {
    let opened = paths.iter().map(|path| SourceReader::open(path)).collect::<Result<Vec<_>, _>>()?;
    let slos: Slos = fold.settings.slos.clone();
    let settings = AccumulatorSettings { definitions: Definitions::Aiperf, slos, filter, ..Default::default() };
    let mut slices = AiperfTimeSlices::new(fold.total.first_sent.unwrap_or_default(), slice);
    let sources = for_each_request(opened, |request, counts| {
        if counts && settings.filter.accepts(&request) {
            let is_good = verdicts(&request, &settings).iter().all(|verdict| verdict.met == Some(true));
            slices.add(&request, is_good);
        }
        Ok(())
    })?;
    let has_slo = settings.slos.iter().count() == 1;
    Ok(match format {
        ReportFormat::AiperfTimeslicesCsv => slices.csv(&sources, has_slo),
        _ => slices.json(&sources, has_slo),
    })
}
