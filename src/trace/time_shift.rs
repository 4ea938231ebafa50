//! Moves rows in time, and keeps the order of the trace.

use super::conversion_loss::ConversionLosses;
use super::merge::MergedRows;
use super::selection::TraceSelection;
use super::{Trace, TraceEntries};
use crate::measure::time::Gap;

/// How far rows move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeShift {
    /// To a later time.
    Later(Gap),
    /// To an earlier time. Time 0 of the trace moves with the rows, so that no row comes before it.
    Earlier(Gap),
}

/// Moves the selected rows. `copy` opens the trace again; it is called twice, for the rows that move and those that stay.
///
/// # Errors
/// Those of `copy`.
pub fn shift<E>(
    by: TimeShift,
    selection: &TraceSelection,
    mut copy: impl FnMut() -> Result<Trace, E>,
) -> Result<Trace, E> {
    let (moves, stays) = match by {
        TimeShift::Later(by) => (by.as_nanos(), 0),
        TimeShift::Earlier(by) => (0, by.as_nanos()),
    };
    let mut part = |is_moved: bool| -> Result<(Trace, TraceEntries), E> {
        let Trace { header, entries, losses } = copy()?;
        let (selection, shift) = (selection.clone(), if is_moved { moves } else { stays });
        let rows =
            entries.filter(move |entry| entry.as_ref().map_or(is_moved, |row| selection.contains(row) == is_moved));
        let rows: TraceEntries = Box::new(rows.map(move |entry| {
            let mut entry = entry?;
            entry.at = entry.at.saturating_add(shift);
            entry.planned = entry.planned.map(|planned| planned.saturating_add(shift));
            Ok(entry)
        }));
        Ok((Trace { header, entries: Box::new(std::iter::empty()), losses }, rows))
    };
    let (moved, moved_rows) = part(true)?;
    let (_, other_rows) = part(false)?;
    let Trace { mut header, losses, .. } = moved;
    header.started_unix_ns = header.started_unix_ns.map(|start| start.saturating_sub(stays));
    // Both parts have the same losses, so only the first counts them.
    let parts = vec![(moved_rows, losses), (other_rows, ConversionLosses::default())];
    let losses = ConversionLosses::default();
    Ok(Trace { header, entries: Box::new(MergedRows::new(parts, losses.clone())), losses })
}
