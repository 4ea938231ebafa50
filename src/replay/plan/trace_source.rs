//! Opens a trace in any format that [`crate::trace`] reads, with its rows in order of time. A capture stores rows in
//! the order of their ends, and in some formats sessions start at zero, one after another.

use std::path::Path;

use super::schedule::{RowError, TraceRows};
use crate::trace::Trace;
use crate::trace::conversion_loss::ConversionLosses;
use crate::trace::format::{ReadOptions, TraceFormat, detect};
use crate::trace::input::InputSource;
use crate::trace::merge::{ClockAlignment, merge};
use crate::trace::respace::respace;
use crate::trace::scale::{RateScale, scale_rate};
use crate::trace::session_starts::{SessionStarts, shift_sessions};
use crate::trace::whole_turns::expand_turns;
use crate::trace_file::header::TraceHeader;

/// Options for reading a trace.
#[derive(Clone, Copy, Default)]
pub struct TraceReadOptions {
    /// Format; `None` detects it from the content.
    pub format: Option<&'static TraceFormat>,
    /// Tokens per block, if the format does not define it.
    pub block_size: Option<u32>,
    /// Seed for spreading batches in time; `None` leaves them.
    pub respace_seed: Option<u64>,
    /// Session starts and the seed of their draws; `None` keeps the trace's own.
    pub session_starts: Option<(SessionStarts, u64)>,
    /// Factor on the request rate; `None` keeps it.
    pub rate: Option<RateScale>,
}

/// An opened trace, ready to send.
pub struct TraceSource {
    /// Header of the rows below.
    pub header: TraceHeader,
    /// Rows in order of time.
    pub rows: TraceRows,
    /// Fields lost in conversion; complete once all rows have been read.
    pub losses: ConversionLosses,
    /// The detected or given format.
    pub format: &'static TraceFormat,
    /// The file's own header. Its turns may hold only the added text; the rows above always hold complete prompts.
    pub source_header: TraceHeader,
}

/// Opens a trace.
///
/// # Errors
/// The file cannot be read, its format is unknown, or it has no batches to spread.
pub fn open(path: &Path, reading: TraceReadOptions) -> Result<TraceSource, RowError> {
    let (trace, format, read) = open_unsorted(path, &reading)?;
    let mut trace = expand_turns(trace);
    if let Some((starts, seed)) = reading.session_starts {
        let shifts = starts.shifts(open_unsorted(path, &reading)?.0.entries, seed)?;
        trace = shift_sessions(trace, shifts);
    }
    if let Some(rate) = reading.rate {
        trace = scale_rate(rate, || Ok::<_, RowError>(expand_turns(open_unsorted(path, &reading)?.0)))?;
    }
    let shown = path.display().to_string();
    let mut trace = merge(vec![(shown.clone(), trace)], ClockAlignment::Start)?;
    if let Some(seed) = reading.respace_seed {
        (trace, _) = respace(trace, &shown, None, seed)?;
    }
    let rows = Box::new(trace.entries.map(|row| row.map_err(RowError::from)));
    Ok(TraceSource { header: trace.header, rows, losses: trace.losses, format, source_header: read })
}

/// Returns the trace in file order, its format, and its own header.
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
