//! Where rows come from: a trace in any format that [`crate::trace`] reads, put in the order of its times. A capture has
//! its rows in the order in which they ended, and sessions of some formats begin at zero one after the other.

use std::path::Path;

use super::schedule::{RowError, Rows};
use crate::capture::format::Header;
use crate::trace::format::{Options, recognised};
use crate::trace::input::Source;
use crate::trace::losses::Losses;
use crate::trace::merge::{Align, merge};
use crate::trace::spread::spread;

/// Opens a trace, whose format its content tells. Its batches are spread where there is a seed to draw places from. What of
/// it is lost is known when its rows have been read.
///
/// # Errors
/// When it cannot be read, its format is not known, or batches are to be spread and there are none.
pub fn open(path: &Path, spread_by: Option<u64>) -> Result<(Header, Rows, Losses), RowError> {
    let source = Source::open(path)?;
    let shown = path.display();
    let format = recognised(&source).map_err(|what| format!("{shown}: {what}"))?;
    let read = format.read.ok_or_else(|| format!("{shown}: {} cannot be read: {}", format.name, format.but))?;
    let trace = read(source, &Options::default())?;
    let mut trace = merge(vec![(shown.to_string(), trace)], Align::Start)?;
    if let Some(seed) = spread_by {
        (trace, _) = spread(trace, &shown.to_string(), None, seed)?;
    }
    let rows = Box::new(trace.entries.map(|row| row.map_err(RowError::from)));
    Ok((trace.header, rows, trace.losses))
}
