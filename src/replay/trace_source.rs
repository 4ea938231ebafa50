//! Where rows come from: a trace in any format that [`crate::trace`] reads, put in the order of its times. A capture has
//! its rows in the order in which they ended, and sessions of some formats begin at zero one after the other.

use std::path::Path;

use super::schedule::{RowError, TraceRows};
use crate::capture::row::TraceHeader;
use crate::trace::Trace;
use crate::trace::conversion_loss::ConversionLosses;
use crate::trace::format::{ReadOptions, TraceFormat, detect};
use crate::trace::input::InputSource;
use crate::trace::merge::{ClockAlignment, merge};
use crate::trace::respace::respace;
use crate::trace::session_starts::{SessionStarts, shift_sessions};
use crate::trace::whole_turns::expand_turns;

/// How a trace is to be read.
#[derive(Clone, Copy, Default)]
pub struct TraceReadOptions {
    /// Its format; without it its content tells.
    pub format: Option<&'static TraceFormat>,
    /// Tokens of a block, where the format leaves it open.
    pub block_size: Option<u32>,
    /// The seed by which its batches are spread.
    pub respace_seed: Option<u64>,
    /// When its sessions begin, and the seed of what is drawn for that; without it where the trace has them.
    pub session_starts: Option<(SessionStarts, u64)>,
}

/// A trace whose rows can be sent.
pub struct TraceSource {
    /// What holds for every row.
    pub header: TraceHeader,
    /// Its rows, in the order of their times.
    pub rows: TraceRows,
    /// What of it is lost, which is known when the rows have been read.
    pub losses: ConversionLosses,
    /// What it was taken for.
    pub format: &'static TraceFormat,
    /// What it says of itself; its turns may hold only what was added, which the rows here never do.
    pub source_header: TraceHeader,
}

/// Opens a trace.
///
/// # Errors
/// When it cannot be read, its format is not known, or batches are to be spread and there are none.
pub fn open(path: &Path, reading: TraceReadOptions) -> Result<TraceSource, RowError> {
    let (trace, format, read) = open_unsorted(path, &reading)?;
    let mut trace = expand_turns(trace);
    if let Some((starts, seed)) = reading.session_starts {
        let shifts = starts.shifts(open_unsorted(path, &reading)?.0.entries, seed)?;
        trace = shift_sessions(trace, shifts);
    }
    let shown = path.display().to_string();
    let mut trace = merge(vec![(shown.clone(), trace)], ClockAlignment::Start)?;
    if let Some(seed) = reading.respace_seed {
        (trace, _) = respace(trace, &shown, None, seed)?;
    }
    let rows = Box::new(trace.entries.map(|row| row.map_err(RowError::from)));
    Ok(TraceSource { header: trace.header, rows, losses: trace.losses, format, source_header: read })
}

/// The trace as it is, its format, and what it says of itself.
fn open_unsorted(
    path: &Path,
    reading: &TraceReadOptions,
) -> Result<(Trace, &'static TraceFormat, TraceHeader), RowError> {
    let source = InputSource::open(path)?;
    let shown = path.display();
    let format = reading.format.map_or_else(|| detect(&source), Ok).map_err(|what| format!("{shown}: {what}"))?;
    let read =
        format.read.ok_or_else(|| format!("{shown}: {} cannot be read: {}", format.name, format.unsupported_reason))?;
    let trace = read(source, &ReadOptions { block_size: reading.block_size, ..ReadOptions::default() })?;
    let header = trace.header.clone();
    Ok((trace, format, header))
}
