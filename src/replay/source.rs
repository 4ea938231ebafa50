//! Where rows come from: a trace in any format that [`crate::trace`] reads, put in the order of its times. A capture has
//! its rows in the order in which they ended, and sessions of some formats begin at zero one after the other.

use std::path::Path;

use super::schedule::{RowError, Rows};
use crate::capture::format::Header;
use crate::trace::Trace;
use crate::trace::format::{Format, Options, recognised};
use crate::trace::input::Source;
use crate::trace::losses::Losses;
use crate::trace::merge::{Align, merge};
use crate::trace::session_starts::{SessionStarts, begin_sessions};
use crate::trace::spread::spread;
use crate::trace::whole_turns::whole_turns;

/// How a trace is to be read.
#[derive(Clone, Copy, Default)]
pub struct Reading {
    /// Its format; without it its content tells.
    pub format: Option<&'static Format>,
    /// Tokens of a block, where the format leaves it open.
    pub block_size: Option<u32>,
    /// The seed by which its batches are spread.
    pub spread_by: Option<u64>,
    /// When its sessions begin, and the seed of what is drawn for that; without it where the trace has them.
    pub sessions_at: Option<(SessionStarts, u64)>,
}

/// A trace whose rows can be sent.
pub struct TraceSource {
    /// What holds for every row.
    pub header: Header,
    /// Its rows, in the order of their times.
    pub rows: Rows,
    /// What of it is lost, which is known when the rows have been read.
    pub losses: Losses,
    /// What it was taken for.
    pub format: &'static Format,
    /// What it says of itself; its turns may hold only what was added, which the rows here never do.
    pub read: Header,
}

/// Opens a trace.
///
/// # Errors
/// When it cannot be read, its format is not known, or batches are to be spread and there are none.
pub fn open(path: &Path, reading: Reading) -> Result<TraceSource, RowError> {
    let (trace, format, read) = opened(path, &reading)?;
    let mut trace = whole_turns(trace);
    if let Some((starts, seed)) = reading.sessions_at {
        let shifts = starts.shifts(opened(path, &reading)?.0.entries, seed)?;
        trace = begin_sessions(trace, shifts);
    }
    let shown = path.display().to_string();
    let mut trace = merge(vec![(shown.clone(), trace)], Align::Start)?;
    if let Some(seed) = reading.spread_by {
        (trace, _) = spread(trace, &shown, None, seed)?;
    }
    let rows = Box::new(trace.entries.map(|row| row.map_err(RowError::from)));
    Ok(TraceSource { header: trace.header, rows, losses: trace.losses, format, read })
}

/// The trace as it is, its format, and what it says of itself.
fn opened(path: &Path, reading: &Reading) -> Result<(Trace, &'static Format, Header), RowError> {
    let source = Source::open(path)?;
    let shown = path.display();
    let format = reading.format.map_or_else(|| recognised(&source), Ok).map_err(|what| format!("{shown}: {what}"))?;
    let read = format.read.ok_or_else(|| format!("{shown}: {} cannot be read: {}", format.name, format.but))?;
    let trace = read(source, &Options { block_size: reading.block_size, ..Options::default() })?;
    let header = trace.header.clone();
    Ok((trace, format, header))
}
