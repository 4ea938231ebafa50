//! Mooncake's JSON Lines, which AIPerf reads as `mooncake_trace`: milliseconds, blocks of 512 tokens, chained ids,
//! including a partial last block.
//!
//! AIPerf's rows may have a session, and a `delay` after the previous reply. Later rows of such a session are delta
//! turns. Exceptions are rows with messages, which repeat the history, and rows that declare themselves complete.

use std::io::Write as _;

use serde::Serialize;

use super::super::blocks::{BlockRehasher, BlockRule, mooncake_scheme};
use super::super::entry_fields::EntryFields;
use super::super::json::{parse, row};
use super::super::json_values::{LenientNumber, StringOrNumber, TextSize};
use super::super::session_table::SessionTable;
use super::super::{Error, Trace, TraceEntries, TraceProblem};
use super::required_lengths::{RequiredLengths, uses_limit_as_length};
use super::time_unit::{MOONCAKE_BLOCK_TOKENS, MOONCAKE_TYPE, TimeUnitEvidence};
use super::{
    ConversionLosses, FormatWriter, InputSource, ReadOptions, ScaledTime, TraceFormat, TraceOutput, WriteError,
    has_keys, nanos, rows, stream,
};
use crate::trace_file::header::{LastBlock, TraceHeader, TurnContent};
use crate::trace_file::row::{PromptShape, TraceEntry};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "mooncake",
    aliases: &["mooncake_trace"],
    about: "Mooncake, AIPerf mooncake_trace: JSON Lines, chained ids of 512-token blocks",
    time_unit: "milliseconds",
    detected_by: "rows with `input_length` or a prompt of AIPerf's",
    keys: &["timestamp", "input_length", "output_length"],
    detect: |source| {
        let timed = |prompt| ["timestamp", "delay"].iter().any(|time| has_keys(source, &[prompt, time], &[]));
        let has = |key| has_keys(source, &[key], &[]);
        has("input_length") || has("text_input") || timed("messages") || timed("payload")
    },
    read: Some(read),
    write: Some(write),
    unsupported_reason: "",
    fields: SUPPORTED_FIELDS,
    has_wall_clock: false,
    delta_fields: Some(EntryFields::THINK),
};

const SUPPORTED_FIELDS: EntryFields = EntryFields::PROMPT_TOKENS
    .union(EntryFields::OUTPUT)
    .union(EntryFields::BLOCKS)
    .union(EntryFields::SESSION)
    .union(EntryFields::TURN);

row!(Row {
    kind = "type": String,
    timestamp: LenientNumber,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
    session_id: StringOrNumber,
    delay: LenientNumber,
    text_input: TextSize,
    messages: TextSize,
    payload: TextSize,
    tools: TextSize,
    message_mode: String,
    context_mode: String,
});

impl Row {
    /// True if AIPerf appends this row to the history of its session.
    fn is_delta(&self) -> bool {
        let whole = match (self.context_mode.as_deref(), self.message_mode.as_deref()) {
            (Some(mode), _) => mode.starts_with("message_array"),
            (None, Some(mode)) => mode != "delta" && self.messages.is_some(),
            (None, None) => self.messages.is_some() || self.payload.is_some(),
        };
        self.session_id.is_some() && !whole
    }
}

fn read(source: InputSource, options: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = ConversionLosses::default();
    let mut header = TraceHeader::new(FORMAT.name);
    for line in stream.sample_lines() {
        let Ok(row) = parse::<Row>(line, &ConversionLosses::default()) else { continue };
        if row.hash_ids.is_some() {
            let block_size = || TimeUnitEvidence::from_stream(&stream).block_size(MOONCAKE_BLOCK_TOKENS);
            header.blocks.get_or_insert_with(|| mooncake_scheme(options.block_size.unwrap_or_else(block_size)));
        }
        if row.is_delta() {
            header.turns = TurnContent::Delta;
        }
    }
    let entries = read_rows(stream, 1e6, header.blocks.is_some(), &losses);
    Ok(Trace { header, entries, losses })
}

/// Reads rows of lengths. `unit` is the time unit in nanoseconds; `ids` is true if rows are known to have block ids.
pub(super) fn read_rows(stream: super::InputStream, unit: f64, ids: bool, losses: &ConversionLosses) -> TraceEntries {
    let losses = losses.clone();
    let mut turns: SessionTable<(u64, u32)> = SessionTable::new(&losses);
    rows(stream.lines(), move |line| {
        let row: Row = parse(line, &losses)?;
        let bytes = [row.text_input, row.messages, row.payload].into_iter().flatten().map(|text| text.bytes);
        let bytes = bytes.reduce(|a, b| a + b);
        if row.input_length.is_none() && bytes.is_none() {
            return Err(TraceProblem::missing("input_length"));
        }
        let blocks = row.hash_ids.unwrap_or_default();
        let blocks = if ids || blocks.is_empty() {
            blocks
        } else {
            losses.count("hash_ids, of which the first rows have none");
            Vec::new()
        };
        let mut entry = TraceEntry { output_tokens: row.output_length, ..TraceEntry::default() };
        entry.prompt = PromptShape { tokens: row.input_length, bytes, blocks, ..PromptShape::default() };
        entry.params.tools = row.tools.map(|_| true);
        entry.think = row.delay.map(|delay| nanos("delay", delay, 1e6)).transpose()?;
        let at = row.timestamp.map(|at| nanos("timestamp", at, unit)).transpose()?;
        if let Some(StringOrNumber(session)) = row.session_id {
            let before = turns.get(&session).copied();
            entry.turn = Some(before.map_or(0, |(_, turn)| turn.saturating_add(1)));
            let earliest = before.map_or(0, |(at, _)| at).saturating_add(entry.think.unwrap_or(0));
            entry.at = at.unwrap_or(earliest);
            turns.insert(&session, (entry.at, entry.turn.unwrap_or(0)));
            entry.session = Some(session);
        } else {
            if at.is_none() {
                losses.count("rows without a time, taken to come at 0");
            }
            entry.at = at.unwrap_or(0);
        }
        Ok(Some(entry))
    })
}

#[derive(Serialize)]
struct MooncakeLine<'a> {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<ScaledTime>,
    input_length: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_length: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hash_ids: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<ScaledTime>,
}

pub(super) struct MooncakeWriter {
    out: TraceOutput,
    /// `type` of the first row, so that readers need not guess the unit of times.
    type_tag: Option<&'static str>,
    unit: fn(u64) -> ScaledTime,
    /// True if rows have a session field.
    sessions: bool,
    /// Sessions with at least one written row.
    started_sessions: SessionTable<()>,
    blocks: Option<BlockRehasher>,
    notes: Vec<String>,
    needs_output: bool,
    /// Tokens that a chat template adds to each prompt.
    overhead: u64,
    /// Note added once a session is dropped.
    no_sessions_note: Option<&'static str>,
    lengths: RequiredLengths,
}

fn write(header: &TraceHeader, out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
    // AIPerf treats later rows of a session as delta turns, so complete turns must be written without a session.
    let mut lengths =
        MooncakeWriter::new(header, out, MOONCAKE_TYPE, ScaledTime::millis, header.turns == TurnContent::Delta);
    if header.turns == TurnContent::Full {
        lengths.no_sessions_note =
            Some("sessions are left out: AIPerf takes the later rows of one for what was added, and these are whole");
    }
    if let Some(blocks) = lengths.blocks.as_ref().filter(|blocks| blocks.to.size != MOONCAKE_BLOCK_TOKENS) {
        let size = blocks.to.size;
        lengths.notes.push(format!("blocks are of {size} tokens: AIPerf needs --isl-block-size {size}"));
    }
    Ok(Box::new(lengths))
}

impl MooncakeWriter {
    pub(super) fn new(
        header: &TraceHeader,
        out: TraceOutput,
        mark: &'static str,
        unit: fn(u64) -> ScaledTime,
        sessions: bool,
    ) -> Self {
        let rule = BlockRule { size: None, last: LastBlock::Kept };
        let mut notes = Vec::new();
        let blocks = BlockRehasher::new_or_note(header.blocks.as_ref(), rule, &mut notes);
        let started_sessions = SessionTable::new(&ConversionLosses::default());
        let (counted, without_sessions) = (RequiredLengths::default(), None);
        let mark = Some(mark);
        Self {
            out,
            type_tag: mark,
            unit,
            sessions,
            started_sessions,
            blocks,
            notes,
            needs_output: false,
            overhead: 0,
            no_sessions_note: without_sessions,
            lengths: counted,
        }
    }

    pub(super) fn block_size(&self) -> Option<u32> {
        self.blocks.as_ref().map(|blocks| blocks.to.size)
    }

    /// For tools that fail on rows without an output length.
    pub(super) const fn require_output(&mut self) {
        self.needs_output = true;
    }

    pub(super) fn add_note(&mut self, note: String) {
        self.notes.push(note);
    }
}

impl FormatWriter for MooncakeWriter {
    fn write(&mut self, entry: &TraceEntry) -> Result<(), WriteError> {
        let tokens = self.lengths.input(entry)?;
        if tokens == 0 {
            return Err(WriteError::Unrepresentable("requests with an empty prompt, left out"));
        }
        let output_length = self.lengths.requested_output(entry, self.needs_output)?;
        let overhead = if entry.prompt.tokens.is_some() { self.overhead } else { 0 };
        let written = tokens.saturating_sub(overhead).max(1);
        if entry.session.is_some() {
            self.notes.extend(self.no_sessions_note.take().map(str::to_owned));
        }
        let session = entry.session.as_deref().filter(|_| self.sessions);
        // AIPerf ignores a delay beside a timestamp. The first row of a session needs a timestamp, whatever its turn
        // number.
        let delay = entry.think.filter(|_| session.is_some_and(|session| self.started_sessions.get(session).is_some()));
        session.iter().for_each(|session| self.started_sessions.insert(session, ()));
        super::write_line(
            &mut self.out,
            &MooncakeLine {
                kind: self.type_tag.take(),
                timestamp: delay.is_none().then(|| (self.unit)(entry.at)),
                input_length: written,
                output_length,
                hash_ids: self
                    .blocks
                    .as_mut()
                    .map(|blocks| blocks.prefix_ids(entry, tokens, written))
                    .unwrap_or_default(),
                session_id: session,
                delay: delay.map(ScaledTime::millis),
            },
        )
    }

    fn derived_fields(&self, entry: &TraceEntry) -> EntryFields {
        if uses_limit_as_length(entry) { EntryFields::MAX_TOKENS } else { EntryFields::NONE }
    }

    fn reserve_overhead(&mut self, overhead: u64) -> bool {
        // vLLM sends these prompts without a template.
        self.overhead = overhead;
        !self.needs_output
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.out.flush()?;
        self.notes.extend(self.lengths.notes());
        Ok(self.notes)
    }
}
