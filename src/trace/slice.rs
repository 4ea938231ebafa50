//! Selects a part of a trace by time and model.

use super::Trace;
use super::error::Error;
use super::session_table::SessionTable;
use crate::trace_file::row::{TraceEntry, TurnContent};

/// Loss reported for delta turns whose earlier turns were cut off.
const LOST_HISTORY: &str = "what was said before the cut in turns that hold only what was added";

/// The rows to keep.
#[derive(Clone, Debug, Default)]
pub struct TraceSlice {
    /// Start time in nanoseconds, inclusive.
    pub from: u64,
    /// End time in nanoseconds, exclusive.
    pub to: Option<u64>,
    /// Models to keep; empty keeps all. `*` matches any characters.
    pub models: Vec<String>,
}

impl TraceSlice {
    fn contains(&self, entry: &TraceEntry) -> bool {
        let in_time = entry.at >= self.from && self.to.is_none_or(|to| entry.at < to);
        let wanted = |model: &String| entry.model.as_deref().is_some_and(|name| matches_pattern(name, model));
        in_time && (self.models.is_empty() || self.models.iter().any(wanted))
    }
}

/// Keeps the selected rows; time zero moves to the start of the range.
pub fn slice(trace: Trace, cut: TraceSlice) -> Trace {
    let Trace { mut header, entries, losses } = trace;
    header.started_unix_ns = header.started_unix_ns.map(|start| start.saturating_add(cut.from));
    let (mut begun, counted) = (SessionTable::new(&losses), losses.clone());
    let added = header.turns == TurnContent::Delta;
    let entries = entries.filter_map(move |entry| {
        let keep = |mut entry: TraceEntry| {
            cut.contains(&entry).then(|| {
                if let Some(session) = entry.session.as_deref().filter(|_| added) {
                    match entry.turn {
                        Some(1..) if begun.get(session).is_none() => counted.count(LOST_HISTORY),
                        _ => begun.insert(session, ()),
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

/// True if the name matches a pattern in which `*` stands for any characters.
fn matches_pattern(name: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything_and_nothing_else_does() {
        for (name, pattern, expected) in [
            ("gpt-4", "gpt-4", true),
            ("gpt-4", "gpt-*", true),
            ("gpt-4", "*-4", true),
            ("gpt-4", "g*t*4", true),
            ("gpt-4", "*", true),
            ("gpt-4", "gpt", false),
            ("gpt-4", "*5", false),
            ("ab", "ab*ab", false),
        ] {
            assert_eq!(matches_pattern(name, pattern), expected, "{name} {pattern}");
        }
    }
}
