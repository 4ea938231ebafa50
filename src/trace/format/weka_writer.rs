//! Writes the sessions of `weka`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::Write as _;

use serde::Serialize;

use super::super::TraceProblem;
use super::super::blocks::{BlockRehasher, BlockRule, hash_text};
use super::super::merge::held_bytes;
use super::required_lengths::RequiredLengths;
use super::weka::BLOCK_TOKENS;
use super::{FormatWriter, ScaledTime, TraceOutput, WriteError};
use crate::measure::record::FinishReason;
use crate::trace_file::header::{LastBlock, TraceHeader};
use crate::trace_file::row::TraceEntry;

#[derive(Serialize)]
struct WekaLine<'a> {
    t: ScaledTime,
    #[serde(rename = "type")]
    kind: &'static str,
    model: &'a str,
    #[serde(rename = "in")]
    input: u64,
    #[serde(rename = "out")]
    output: u64,
    hash_ids: Vec<u64>,
    stop: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_time: Option<ScaledTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft: Option<ScaledTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    think_time: Option<ScaledTime>,
}

#[derive(Serialize)]
struct WekaDocument<'a> {
    id: &'a str,
    models: BTreeSet<&'a str>,
    block_size: u32,
    hash_id_scope: &'static str,
    requests: Vec<WekaLine<'a>>,
}

/// Writes one line per session. Rows of several sessions may interleave, so sessions stay open. When all open sessions
/// exceed the memory limit, the session that has waited longest is written.
struct WekaWriter {
    out: TraceOutput,
    blocks: Option<BlockRehasher>,
    open: HashMap<u64, OpenSession>,
    /// Open sessions, by the number of their last row.
    by_last_row: BTreeMap<u64, u64>,
    held_bytes: usize,
    rows: u64,
    notes: Vec<String>,
    lengths: RequiredLengths,
    documents: u64,
    continued_lines: u64,
    /// Requests that may or may not have been streamed.
    unknown_stream: u64,
    written: HashSet<u64>,
}

#[derive(Default)]
struct OpenSession {
    first: u64,
    last: u64,
    held_bytes: usize,
    rows: Vec<PendingRow>,
}

/// A waiting row and its block ids. Boxed, because a list moves its elements.
type PendingRow = (Box<TraceEntry>, Vec<u64>);

/// Maximum bytes of all waiting rows, and of the rows of one session, whose line must be readable again.
const MAX_PENDING_BYTES: (usize, usize) = (64 << 20, 4 << 20);

/// Starts a file, and notes what it cannot hold.
pub(super) fn write(header: &TraceHeader, out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
    let rule = BlockRule { size: Some(BLOCK_TOKENS), last: LastBlock::Dropped };
    let mut notes = vec![
        "one session per line; AIPerf and kv-cache-tester want a file each: split --lines 1 --additional-suffix .json"
            .into(),
        "when sessions began, and which blocks one shares with another, has no place".into(),
    ];
    let blocks = BlockRehasher::new_or_note(header.blocks.as_ref(), rule, &mut notes);
    let written = HashSet::new();
    Ok(Box::new(WekaWriter {
        out,
        blocks,
        open: HashMap::new(),
        by_last_row: BTreeMap::new(),
        held_bytes: 0,
        rows: 0,
        notes,
        lengths: RequiredLengths::default(),
        documents: 0,
        continued_lines: 0,
        unknown_stream: 0,
        written,
    }))
}

/// True if the reply is known to be a stream. In this format only streams have a TTFT.
fn is_streamed(entry: &TraceEntry) -> bool {
    entry.stream.unwrap_or(entry.timing.first_token.is_some())
}

impl WekaWriter {
    fn write_session(&mut self, key: u64) -> Result<(), WriteError> {
        let OpenSession { last, held_bytes: held, rows, .. } = self.open.remove(&key).unwrap_or_default();
        self.by_last_row.remove(&last);
        self.held_bytes -= held;
        if self.written.len() < super::super::session_table::MAX_SESSIONS {
            self.continued_lines += u64::from(!self.written.insert(key));
        }
        self.write_document(rows)
    }

    fn write_document(&mut self, mut rows: Vec<PendingRow>) -> Result<(), WriteError> {
        // The rows of a capture are in completion order.
        rows.sort_by_key(|(entry, _)| entry.at);
        let Some((first, _)) = rows.first() else { return Ok(()) };
        let zero = first.at;
        self.documents += 1;
        let lone = format!("request-{}", self.documents);
        let line = |(entry, ids): &'_ PendingRow| WekaLine {
            t: ScaledTime::secs(entry.at - zero),
            kind: if is_streamed(entry) { "s" } else { "n" },
            model: "",
            input: entry.prompt.tokens.unwrap_or(0),
            output: entry.output_tokens.unwrap_or(0),
            hash_ids: ids.clone(),
            stop: match entry.finish {
                None => "",
                Some(FinishReason::Stop) => "end_turn",
                Some(FinishReason::Tool) => "tool_use",
                Some(FinishReason::Length) => "max_tokens",
                Some(other) => other.name(),
            },
            api_time: entry.timing.ended.map(ScaledTime::secs),
            ttft: entry.timing.first_token.filter(|_| is_streamed(entry)).map(ScaledTime::secs),
            think_time: entry.think.map(ScaledTime::secs),
        };
        let models = rows.iter().filter_map(|(entry, _)| entry.model.as_deref()).collect();
        let requests = rows
            .iter()
            .map(|row| WekaLine { model: row.0.model.as_deref().unwrap_or_default(), ..line(row) })
            .collect();
        let id = first.session.as_deref().unwrap_or(&lone);
        super::write_line(
            &mut self.out,
            &WekaDocument { id, models, block_size: BLOCK_TOKENS, hash_id_scope: "local", requests },
        )
    }
}

impl FormatWriter for WekaWriter {
    fn write(&mut self, entry: &TraceEntry) -> Result<(), WriteError> {
        let tokens = self.lengths.input(entry)?;
        let ids = self.blocks.as_mut().map(|blocks| blocks.ids(entry, tokens)).unwrap_or_default();
        self.unknown_stream += u64::from(entry.stream.is_none() && entry.timing.first_token.is_none());
        let mut entry = Box::new(entry.clone());
        (entry.prompt.tokens, entry.output_tokens) = (Some(tokens), Some(self.lengths.output(&entry)));
        (entry.prompt.blocks, entry.timing.gaps) = (Vec::new(), None);
        self.rows += 1;
        let Some(key) = entry.session.as_deref().map(hash_text) else { return self.write_document(vec![(entry, ids)]) };
        let holds = held_bytes(&entry) + ids.capacity() * size_of::<u64>();
        if self.open.get(&key).is_some_and(|open| open.held_bytes + holds > MAX_PENDING_BYTES.1) {
            self.write_session(key)?;
        }
        let open = self.open.entry(key).or_insert_with(|| OpenSession { first: self.rows, ..OpenSession::default() });
        self.by_last_row.remove(&open.last);
        self.by_last_row.insert(self.rows, key);
        (open.last, open.held_bytes, self.held_bytes) = (self.rows, open.held_bytes + holds, self.held_bytes + holds);
        open.rows.push((entry, ids));
        while self.held_bytes > MAX_PENDING_BYTES.0
            && let Some((_, oldest)) = self.by_last_row.pop_first()
        {
            self.write_session(oldest)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        let mut open: Vec<(u64, u64)> = self.open.iter().map(|(key, open)| (open.first, *key)).collect();
        open.sort_unstable();
        open.into_iter().try_for_each(|(_, key)| self.write_session(key))?;
        self.out.flush()?;
        self.notes.extend(self.lengths.notes());
        if self.unknown_stream > 0 {
            let unknown = self.unknown_stream;
            self.notes.push(format!(
                "{unknown} requests do not state whether they were streamed, and were written as not streamed"
            ));
        }
        if self.continued_lines > 0 {
            let split = self.continued_lines;
            self.notes.push(format!(
                "{split} lines go on with a session of an earlier line: its rows are too far apart, or too many"
            ));
        }
        Ok(self.notes)
    }
}
