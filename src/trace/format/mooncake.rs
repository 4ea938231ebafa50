//! Mooncake's JSON Lines, which AIPerf reads as `mooncake_trace`: milliseconds, blocks of 512 tokens, chained ids, the
//! last block kept.
//!
//! AIPerf's rows may have a session, and a `delay` after the answer before; the later rows of such a session hold only
//! what was added, unless they are messages, which repeat what was said, or say so themselves.

use std::io::Write as _;

use serde::Serialize;

use super::super::blocks::{Reblocked, Rule};
use super::super::fields::Fields;
use super::super::json::{Content, Id, Number, parse, row};
use super::super::sessions::Sessions;
use super::super::{Entries, Error, Problem, Trace};
use super::counted::{Counted, asks_for_its_limit};
use super::time_unit::Evidence;
use super::{Format, Losses, Options, Output, Source, Time, WriteError, Writer, has_keys, nanos, rows, stream};
use crate::capture::format::{BlockIds, BlockUnit, Blocks, Entry, Header, LastBlock, Prompt, Scope, Turns};

pub(super) const FORMAT: Format = Format {
    name: "mooncake",
    aliases: &["mooncake_trace"],
    about: "Mooncake, AIPerf mooncake_trace: JSON Lines, chained ids of 512-token blocks",
    times: "milliseconds",
    by: "rows with `input_length` or a prompt of AIPerf's",
    recognise: |source| {
        let timed = |prompt| ["timestamp", "delay"].iter().any(|time| has_keys(source, &[prompt, time], &[]));
        let has = |key| has_keys(source, &[key], &[]);
        has("input_length") || has("text_input") || timed("messages") || timed("payload")
    },
    read: Some(read),
    write: Some(write),
    but: "",
    holds: HOLDS,
    clock: false,
    delta: Some(Fields::THINK),
};

const HOLDS: Fields =
    Fields::PROMPT_TOKENS.and(Fields::OUTPUT).and(Fields::BLOCKS).and(Fields::SESSION).and(Fields::TURN);

pub(super) const BLOCK: u32 = 512;
/// AIPerf's `type` of these rows, by which the unit of their times is known.
pub(super) const MARK: &str = "mooncake_trace";

row!(Row {
    kind = "type": String,
    timestamp: Number,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
    session_id: Id,
    delay: Number,
    text_input: Content,
    messages: Content,
    payload: Content,
    tools: Content,
    message_mode: String,
    context_mode: String,
});

impl Row {
    /// Whether AIPerf says it after what its session said before.
    fn adds(&self) -> bool {
        let whole = match (self.context_mode.as_deref(), self.message_mode.as_deref()) {
            (Some(mode), _) => mode.starts_with("message_array"),
            (None, Some(mode)) => mode != "delta" && self.messages.is_some(),
            (None, None) => self.messages.is_some() || self.payload.is_some(),
        };
        self.session_id.is_some() && !whole
    }
}

/// Blocks as Mooncake has them, of that size.
pub(in crate::trace) const fn blocks(size: u32) -> Blocks {
    Blocks {
        size,
        unit: BlockUnit::Tokens,
        last: LastBlock::Kept,
        ids: BlockIds::Chained,
        scope: Scope::Trace,
        key: None,
    }
}

fn read(source: Source, options: &Options) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = Losses::default();
    let mut header = Header::new(FORMAT.name);
    for line in stream.sample_lines() {
        let Ok(row) = parse::<Row>(line, &Losses::default()) else { continue };
        if row.hash_ids.is_some() {
            let block_size = || Evidence::of(&stream).block_size(BLOCK);
            header.blocks.get_or_insert_with(|| blocks(options.block_size.unwrap_or_else(block_size)));
        }
        if row.adds() {
            header.turns = Turns::Delta;
        }
    }
    let entries = lengths(stream, 1e6, header.blocks.is_some(), &losses);
    Ok(Trace { header, entries, losses })
}

/// Rows of lengths, and ids if they are known to have some, with a time in units of so many nanoseconds.
pub(super) fn lengths(stream: super::Stream, unit: f64, ids: bool, losses: &Losses) -> Entries {
    let losses = losses.clone();
    let mut turns: Sessions<(u64, u32)> = Sessions::new(&losses);
    rows(stream.lines(), move |line| {
        let row: Row = parse(line, &losses)?;
        let bytes = [row.text_input, row.messages, row.payload].into_iter().flatten().map(|text| text.bytes);
        let bytes = bytes.reduce(|a, b| a + b);
        if row.input_length.is_none() && bytes.is_none() {
            return Err(Problem::missing("input_length"));
        }
        let blocks = row.hash_ids.unwrap_or_default();
        let blocks = if ids || blocks.is_empty() {
            blocks
        } else {
            losses.count("hash_ids, of which the first rows have none");
            Vec::new()
        };
        let mut entry = Entry { output_tokens: row.output_length, ..Entry::default() };
        entry.prompt = Prompt { tokens: row.input_length, bytes, blocks, ..Prompt::default() };
        entry.params.tools = row.tools.map(|_| true);
        entry.think = row.delay.map(|delay| nanos("delay", delay, 1e6)).transpose()?;
        let at = row.timestamp.map(|at| nanos("timestamp", at, unit)).transpose()?;
        if let Some(Id(session)) = row.session_id {
            let before = turns.last(&session).copied();
            entry.turn = Some(before.map_or(0, |(_, turn)| turn.saturating_add(1)));
            let earliest = before.map_or(0, |(at, _)| at).saturating_add(entry.think.unwrap_or(0));
            entry.at = at.unwrap_or(earliest);
            turns.tell(&session, (entry.at, entry.turn.unwrap_or(0)));
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
struct Line<'a> {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<Time>,
    input_length: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_length: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hash_ids: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<Time>,
}

/// Writes rows of lengths and ids.
pub(super) struct Lengths {
    out: Output,
    /// What the first row says that it is, so that nobody has to guess the unit of times.
    mark: Option<&'static str>,
    unit: fn(u64) -> Time,
    /// Whether a row says which session it is of.
    sessions: bool,
    /// Those of which a row was written.
    begun: Sessions<()>,
    blocks: Option<Reblocked>,
    notes: Vec<String>,
    /// Whether a row cannot be without an output length.
    needs_output: bool,
    /// Tokens that a chat template adds to each prompt.
    overhead: u64,
    /// What is noted once a row has one, and it is left out.
    without_sessions: Option<&'static str>,
    counted: Counted,
}

fn write(header: &Header, out: Output) -> Result<Box<dyn Writer>, Problem> {
    // AIPerf takes the later rows of a session for what was added: rows that are whole must not say their session.
    let mut lengths = Lengths::new(header, out, MARK, Time::millis, header.turns == Turns::Delta);
    if header.turns == Turns::Full {
        lengths.without_sessions =
            Some("sessions are left out: AIPerf takes the later rows of one for what was added, and these are whole");
    }
    if let Some(blocks) = lengths.blocks.as_ref().filter(|blocks| blocks.to.size != BLOCK) {
        let size = blocks.to.size;
        lengths.notes.push(format!("blocks are of {size} tokens: AIPerf needs --isl-block-size {size}"));
    }
    Ok(Box::new(lengths))
}

impl Lengths {
    pub(super) fn new(header: &Header, out: Output, mark: &'static str, unit: fn(u64) -> Time, sessions: bool) -> Self {
        let rule = Rule { size: None, last: LastBlock::Kept };
        let mut notes = Vec::new();
        let blocks = Reblocked::noted(header.blocks.as_ref(), rule, &mut notes);
        let begun = Sessions::new(&Losses::default());
        let (counted, without_sessions) = (Counted::default(), None);
        let mark = Some(mark);
        Self {
            out,
            mark,
            unit,
            sessions,
            begun,
            blocks,
            notes,
            needs_output: false,
            overhead: 0,
            without_sessions,
            counted,
        }
    }

    pub(super) fn block_size(&self) -> Option<u32> {
        self.blocks.as_ref().map(|blocks| blocks.to.size)
    }

    /// For a tool that fails where a row has no output length.
    pub(super) const fn need_output(&mut self) {
        self.needs_output = true;
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }
}

impl Writer for Lengths {
    fn write(&mut self, entry: &Entry) -> Result<(), WriteError> {
        let tokens = self.counted.input(entry)?;
        if tokens == 0 {
            return Err(WriteError::Unfit("requests with an empty prompt, left out"));
        }
        let output_length = self.counted.requested(entry, self.needs_output)?;
        let overhead = if entry.prompt.tokens.is_some() { self.overhead } else { 0 };
        let written = tokens.saturating_sub(overhead).max(1);
        if entry.session.is_some() {
            self.notes.extend(self.without_sessions.take().map(str::to_owned));
        }
        let session = entry.session.as_deref().filter(|_| self.sessions);
        // AIPerf heeds no delay beside a time, and the first row of a session has to have one, whichever turn it is.
        let delay = entry.think.filter(|_| session.is_some_and(|session| self.begun.last(session).is_some()));
        session.iter().for_each(|session| self.begun.tell(session, ()));
        super::write_line(
            &mut self.out,
            &Line {
                kind: self.mark.take(),
                timestamp: delay.is_none().then(|| (self.unit)(entry.at)),
                input_length: written,
                output_length,
                hash_ids: self
                    .blocks
                    .as_mut()
                    .map(|blocks| blocks.ids_of_part(entry, tokens, written))
                    .unwrap_or_default(),
                session_id: session,
                delay: delay.map(Time::millis),
            },
        )
    }

    fn tells(&self, entry: &Entry) -> Fields {
        if asks_for_its_limit(entry) { Fields::MAX_TOKENS } else { Fields::NONE }
    }

    fn leave_room(&mut self, overhead: u64) -> bool {
        // vLLM's prompts have no template.
        self.overhead = overhead;
        !self.needs_output
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.out.flush()?;
        self.notes.extend(self.counted.notes());
        Ok(self.notes)
    }
}
