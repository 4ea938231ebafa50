//! Merges several traces in order of time, and sorts the rows of a single trace.
//!
//! Rows wait for earlier ones in a heap of limited size. A row that arrives too late for the heap stays in its place
//! and is counted.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::conversion_loss::ConversionLosses;
use super::error::{Error, TraceProblem};
use super::{Trace, TraceEntries};
use crate::stats::hash::combine;
use crate::trace_file::header::{BlockScheme, TraceHeader};
use crate::trace_file::row::{PromptPart, TraceEntry};

/// Maximum rows that wait for earlier ones.
pub const MAX_HEAP_ROWS: usize = 1 << 16;
/// Maximum bytes of all waiting rows. A comparison of two traces uses twice as much.
const MAX_HEAP_BYTES: usize = 40 << 20;

/// Alignment of the times of several traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockAlignment {
    /// By the wall-clock starts in their headers.
    Clock,
    /// All traces start at zero.
    Start,
}

/// Merges traces. Block and session ids from different keys are kept distinct.
pub fn merge(traces: Vec<(String, Trace)>, align: ClockAlignment) -> Result<Trace, Error> {
    let losses = ConversionLosses::default();
    let starts: Vec<Option<u64>> = traces.iter().map(|(_, trace)| trace.header.started_unix_ns).collect();
    let clock = align == ClockAlignment::Clock && starts.iter().all(Option::is_some);
    let zero = starts.iter().flatten().min().copied().filter(|_| clock);
    if align == ClockAlignment::Clock && !clock {
        let known = starts.iter().flatten().count() as u64;
        losses.add("wall-clock starts, for not all traces have one: all begin at zero", known);
    }
    let mut header = TraceHeader::new(joined_sources(&traces));
    let alone = traces.len() == 1;
    header.started_unix_ns = zero.or_else(|| starts.iter().flatten().min().copied().filter(|_| alone));
    let mut all = Vec::new();
    for (number, (name, trace)) in traces.into_iter().enumerate() {
        let Trace { header: one, entries, losses: of_one } = trace;
        if number == 0 {
            header.turns = one.turns;
            (header.blocks, header.sample) = (one.blocks.clone(), one.sample);
        } else {
            unify_blocks(&mut header, &one).map_err(|problem| problem.at_line(&name, None))?;
        }
        header.simulated |= one.simulated;
        if one.sample != header.sample {
            losses.add("header.sample, for the traces are of different samples", 1);
            header.sample = None;
        }
        let shift = one.started_unix_ns.zip(zero).map_or(0, |(start, zero)| start - zero);
        let shared = alone || one.blocks.as_ref().is_some_and(|blocks| blocks.key.is_some());
        let told_apart = (!shared).then_some(number as u64);
        all.push((with_own_ids(entries, shift, told_apart), of_one));
    }
    let entries = Box::new(MergedRows::new(all, losses.clone()));
    Ok(Trace { header, entries, losses })
}

fn joined_sources(traces: &[(String, Trace)]) -> String {
    let mut sources: Vec<&str> = traces.iter().map(|(_, trace)| trace.header.source.as_str()).collect();
    sources.dedup();
    sources.truncate(8);
    sources.join(" + ")
}

/// Adds the block scheme of another trace, if one header can describe both.
fn unify_blocks(header: &mut TraceHeader, other: &TraceHeader) -> Result<(), TraceProblem> {
    const REMEDY: &str = "convert one of them first, so that both have blocks of one kind";
    if header.turns != other.turns {
        return Err(TraceProblem::new(
            "its later turns are whole requests, and those of the first trace are not, or the \
            reverse",
        ));
    }
    let Some(blocks) = &mut header.blocks else {
        header.blocks.clone_from(&other.blocks);
        return Ok(());
    };
    let Some(theirs) = &other.blocks else { return Ok(()) };
    let alike = |blocks: &BlockScheme| BlockScheme { key: None, ..blocks.clone() };
    if alike(blocks) != alike(theirs) {
        return Err(TraceProblem::new("its blocks are not of the kind that the first trace has").with_remedy(REMEDY));
    }
    if blocks.key != theirs.key {
        if blocks.key.is_some() && theirs.key.is_some() {
            return Err(TraceProblem::new("its block ids were made with another key than those of the first trace")
                .with_remedy("`trace anonymize` gives each ids without a key, and leaves out when it began"));
        }
        blocks.key = None;
    }
    Ok(())
}

/// Shifts a trace by `shift` nanoseconds, and makes its ids distinct from those of other traces.
fn with_own_ids(entries: TraceEntries, shift: u64, number: Option<u64>) -> TraceEntries {
    Box::new(entries.map(move |entry| {
        let mut entry = entry?;
        entry.at = entry.at.saturating_add(shift);
        entry.planned = entry.planned.map(|planned| planned.saturating_add(shift));
        if let Some(number) = number.filter(|number| *number > 0) {
            rename_copy(&mut entry, number);
        }
        Ok(entry)
    }))
}

/// Gives a request the ids of copy number `copy`: distinct from other copies, equal where they were equal.
pub(super) fn rename_copy(entry: &mut TraceEntry, copy: u64) {
    entry.prompt.blocks.iter_mut().for_each(|id| *id = combine(copy.wrapping_mul(0x5851_f42d_4c95_7f2d), *id));
    for session in [&mut entry.session, &mut entry.parent].into_iter().flatten() {
        session.push_str(&format!("#{copy}"));
    }
}

/// Memory of a waiting row, in bytes.
pub(super) fn held_bytes(entry: &TraceEntry) -> usize {
    let TraceEntry { route, dialect, model, session, parent, upstream, timing, .. } = entry;
    let texts = [route, dialect, model, session, parent, upstream, &timing.gaps];
    let texts: usize = texts.into_iter().flatten().map(String::capacity).sum();
    let ids = entry.prompt.blocks.capacity() * size_of::<u64>();
    size_of::<HeapRow>()
        + size_of::<TraceEntry>()
        + texts
        + ids
        + entry.prompt.parts.capacity() * size_of::<PromptPart>()
}

struct HeapRow {
    at: u64,
    /// Rows with equal times stay in the order of traces, and of rows in the file.
    trace: usize,
    row: u64,
    /// Boxed, because a heap moves its elements repeatedly.
    entry: Box<TraceEntry>,
}

impl PartialEq for HeapRow {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for HeapRow {}

impl PartialOrd for HeapRow {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for HeapRow {
    /// Reversed, because `BinaryHeap` pops the greatest element.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.trace, other.row).cmp(&(self.at, self.trace, self.row))
    }
}

/// Rows of several streams in order of time. Each stream may be out of order within the heap's limits.
pub(super) struct MergedRows {
    /// Rows, number of waiting rows, and losses of each trace.
    traces: Vec<(TraceEntries, usize, ConversionLosses)>,
    heap: BinaryHeap<HeapRow>,
    held_bytes: usize,
    max_held_bytes: usize,
    last: u64,
    row: u64,
    losses: ConversionLosses,
    failed: bool,
}

impl MergedRows {
    pub(super) fn new(traces: Vec<(TraceEntries, ConversionLosses)>, losses: ConversionLosses) -> Self {
        Self::with_limit(MAX_HEAP_BYTES, traces, losses)
    }

    /// With a limit on the bytes of all waiting rows.
    pub(super) fn with_limit(
        most_held: usize,
        traces: Vec<(TraceEntries, ConversionLosses)>,
        losses: ConversionLosses,
    ) -> Self {
        let traces = traces.into_iter().map(|(entries, of_one)| (entries, 0, of_one)).collect();
        Self {
            traces,
            heap: BinaryHeap::new(),
            held_bytes: 0,
            max_held_bytes: most_held,
            last: 0,
            row: 0,
            losses,
            failed: false,
        }
    }

    /// Reads until every unfinished trace has its share of waiting rows.
    fn fill_heap(&mut self) -> Result<(), Error> {
        let share = (MAX_HEAP_ROWS / self.traces.len().max(1)).max(1);
        let mut ended = Vec::new();
        for (number, (entries, waiting, _)) in self.traces.iter_mut().enumerate() {
            while *waiting < share && (*waiting == 0 || self.held_bytes < self.max_held_bytes) {
                match entries.next() {
                    Some(entry) => {
                        let entry = entry?;
                        (*waiting, self.row) = (*waiting + 1, self.row + 1);
                        self.held_bytes += held_bytes(&entry);
                        let entry = Box::new(entry);
                        self.heap.push(HeapRow { at: entry.at, trace: number, row: self.row, entry });
                    }
                    None => {
                        ended.push(number);
                        break;
                    }
                }
            }
        }
        for number in ended {
            let (entries, waiting, lost) = &mut self.traces[number];
            *entries = Box::new(std::iter::empty());
            *waiting = usize::MAX / 2;
            std::mem::take(lost).list().iter().for_each(|(name, count)| self.losses.add(name, *count));
        }
        Ok(())
    }
}

impl Iterator for MergedRows {
    type Item = Result<TraceEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        if let Err(error) = self.fill_heap() {
            self.failed = true;
            return Some(Err(error));
        }
        let HeapRow { at, trace, entry, .. } = self.heap.pop()?;
        self.traces[trace].1 -= 1;
        self.held_bytes -= held_bytes(&entry);
        if at < self.last {
            self.losses.count("rows too far out of order to be put in order");
        }
        self.last = self.last.max(at);
        Some(Ok(*entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(header: TraceHeader, times: &[u64]) -> Trace {
        let entries: Vec<_> = times
            .iter()
            .map(|at| {
                let mut entry = TraceEntry { at: *at, session: Some("s".to_owned()), ..TraceEntry::default() };
                entry.prompt.blocks = vec![1, 2];
                Ok(entry)
            })
            .collect();
        Trace { header, entries: Box::new(entries.into_iter()), losses: ConversionLosses::default() }
    }

    fn merged(traces: Vec<Trace>, align: ClockAlignment) -> Vec<TraceEntry> {
        let traces = traces.into_iter().map(|trace| ("t".to_owned(), trace)).collect();
        merge(traces, align).unwrap().entries.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn rows_come_in_order_and_ids_of_two_traces_are_told_apart() {
        let rows = merged(
            vec![trace(TraceHeader::new("a"), &[5, 1, 9]), trace(TraceHeader::new("b"), &[2, 9])],
            ClockAlignment::Clock,
        );
        assert_eq!(rows.iter().map(|row| row.at).collect::<Vec<_>>(), [1, 2, 5, 9, 9]);
        assert_eq!(rows[0].prompt.blocks, [1, 2]);
        assert_ne!(rows[1].prompt.blocks, [1, 2]);
        assert_eq!((rows[0].session.as_deref(), rows[1].session.as_deref()), (Some("s"), Some("s#1")));
    }

    #[test]
    fn wall_clocks_are_heeded_where_all_have_one() {
        let at = |start| TraceHeader { started_unix_ns: start, ..TraceHeader::new("a") };
        let times = |starts: [Option<u64>; 2], align| {
            let rows = merged(vec![trace(at(starts[0]), &[0]), trace(at(starts[1]), &[0])], align);
            rows.iter().map(|row| row.at).collect::<Vec<_>>()
        };
        assert_eq!(times([Some(100), Some(40)], ClockAlignment::Clock), [0, 60]);
        assert_eq!(times([Some(100), Some(40)], ClockAlignment::Start), [0, 0]);
        assert_eq!(times([Some(100), None], ClockAlignment::Clock), [0, 0]);
        let losses = |starts: [Option<u64>; 2], align| {
            let traces = starts.map(|start| ("t".to_owned(), trace(at(start), &[0])));
            merge(traces.into(), align).unwrap().losses.list()
        };
        let lost = "wall-clock starts, for not all traces have one: all begin at zero".to_owned();
        assert_eq!(losses([Some(100), None], ClockAlignment::Clock), [(lost, 1)]);
        assert_eq!(losses([Some(100), None], ClockAlignment::Start), []);
        assert_eq!(
            (losses([None, None], ClockAlignment::Clock), losses([Some(1), Some(2)], ClockAlignment::Clock)),
            (vec![], vec![])
        );
    }

    #[test]
    fn traces_with_blocks_of_two_kinds_are_not_mixed() {
        use super::super::blocks::mooncake_scheme;
        let of = |size| TraceHeader { blocks: Some(mooncake_scheme(size)), ..TraceHeader::new("a") };
        let traces = [16, 512].map(|size| (format!("t{size}"), trace(of(size), &[0])));
        let error = merge(traces.into(), ClockAlignment::Clock).err().unwrap().to_string();
        assert!(error.starts_with("t512: its blocks are not of the kind that the first trace has; convert"), "{error}");
    }
}
