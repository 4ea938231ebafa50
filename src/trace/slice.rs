//! Selects a part of a trace by time, model and class.

use super::Trace;
use super::error::Error;
use super::selection::TraceSelection;
use super::session_table::SessionTable;
use crate::trace_file::header::TurnContent;
use crate::trace_file::row::TraceEntry;

/// Loss reported for delta turns whose earlier turns were cut off.
const LOST_HISTORY: &str = "the history before the cut of turns that hold only what was added";

/// The rows to keep.
#[derive(Clone, Debug, Default)]
pub struct TraceSlice {
    /// Start time in nanoseconds, inclusive.
    pub from: u64,
    /// End time in nanoseconds, exclusive.
    pub to: Option<u64>,
    /// Models and classes to keep.
    pub selection: TraceSelection,
}

impl TraceSlice {
    fn contains(&self, entry: &TraceEntry) -> bool {
        let in_time = entry.at >= self.from && self.to.is_none_or(|to| entry.at < to);
        in_time && self.selection.contains(entry)
    }
}

/// Keeps the selected rows; time zero moves to the start of the range.
pub fn slice(trace: Trace, cut: TraceSlice) -> Trace {
    let Trace { mut header, entries, losses } = trace;
    header.started_unix_ns = header.started_unix_ns.map(|start| start.saturating_add(cut.from));
    let (mut sessions, counted) = (SessionTable::new(&losses), losses.clone());
    let added = header.turns == TurnContent::Delta;
    let entries = entries.filter_map(move |entry| {
        let keep = |mut entry: TraceEntry| {
            cut.contains(&entry).then(|| {
                if let Some(session) = entry.session.as_deref().filter(|_| added) {
                    match entry.turn {
                        Some(1..) if sessions.get(session).is_none() => counted.count(LOST_HISTORY),
                        _ => sessions.insert(session, ()),
                    }
                }
                entry.at -= cut.from;
                entry.planned = entry.planned.map(|planned| planned.saturating_sub(cut.from));
                entry
            })
        };
        entry.map(keep).transpose()
    });
    let entries: Box<dyn Iterator<Item = Result<TraceEntry, Error>>> = Box::new(entries);
    Trace { header, entries, losses }
}
