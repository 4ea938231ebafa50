//! Qwen-Bailian's JSON Lines, which AIPerf reads as `bailian_trace`: seconds, 16-token blocks, ids that hash each block
//! alone, turns linked by `parent_chat_id`.

use std::io::Write as _;

use serde::Serialize;
use serde::de::IgnoredAny;

use super::super::blocks::{BlockRehasher, BlockRule, mooncake_scheme};
use super::super::entry_fields::EntryFields;
use super::super::json::{parse, row};
use super::super::json_values::{LenientNumber, StringOrNumber};
use super::super::session_table::SessionTable;
use super::super::{Error, Trace, TraceProblem};
use super::required_lengths::RequiredLengths;
use super::{
    ConversionLosses, FormatWriter, InputSource, ReadOptions, ScaledTime, TraceFormat, TraceOutput, WriteError,
    has_keys, nanos, rows, stream,
};
use crate::trace_file::header::{BlockIds, BlockScheme, LastBlock, TraceHeader};
use crate::trace_file::row::{PromptShape, TraceEntry};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "bailian",
    aliases: &["bailian_trace", "qwen-bailian"],
    about: "Qwen-Bailian, AIPerf bailian_trace: JSON Lines, ids of single 16-token blocks",
    time_unit: "seconds",
    detected_by: "rows with `chat_id`",
    keys: &["chat_id", "timestamp", "input_length", "output_length"],
    detect: |source| has_keys(source, &["chat_id"], &[]),
    read: Some(read),
    write: Some(write),
    unsupported_reason: "",
    fields: EntryFields::PROMPT_TOKENS
        .union(EntryFields::OUTPUT)
        .union(EntryFields::BLOCKS)
        .union(EntryFields::SESSION)
        .union(EntryFields::TURN),
    has_wall_clock: false,
    delta_fields: None,
};

const BLOCK_TOKENS: u32 = 16;

row!(Row {
    chat_id: StringOrNumber,
    parent_chat_id: StringOrNumber,
    timestamp: LenientNumber,
    input_length: u64,
    output_length: u64,
    kind = "type": IgnoredAny,
    turn: u32,
    hash_ids: Vec<u64>,
});

/// Bailian's block scheme with this block size.
fn single_block_scheme(size: u32) -> BlockScheme {
    BlockScheme { ids: BlockIds::Single, ..mooncake_scheme(size) }
}

fn read(source: InputSource, options: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = ConversionLosses::default();
    let mut header = TraceHeader::new(FORMAT.name);
    let size = options.block_size.unwrap_or(BLOCK_TOKENS);
    header.blocks = Some(single_block_scheme(size));
    let counted = losses.clone();
    // Maps every chat to its session, the first chat of the conversation.
    let mut roots: SessionTable<String> = SessionTable::new(&losses);
    let entries = rows(stream.lines(), move |line| {
        let row: Row = parse(line, &counted)?;
        // Every row has a `type`. A declared field keeps the row on the fast parser.
        if row.kind.is_some() {
            counted.count("type");
        }
        let StringOrNumber(chat) = row.chat_id.ok_or_else(|| TraceProblem::missing("chat_id"))?;
        let at = row.timestamp.ok_or_else(|| TraceProblem::missing("timestamp"))?;
        let root = match row.parent_chat_id {
            Some(StringOrNumber(parent)) if parent != "-1" => roots.get(&parent).cloned().unwrap_or(parent),
            _ => chat.clone(),
        };
        roots.insert(&chat, root.clone());
        Ok(Some(TraceEntry {
            at: nanos("timestamp", at, 1e9)?,
            session: Some(root),
            turn: row.turn.map(|turn| turn.saturating_sub(1)),
            output_tokens: row.output_length,
            prompt: PromptShape {
                tokens: Some(row.input_length.ok_or_else(|| TraceProblem::missing("input_length"))?),
                blocks: row.hash_ids.unwrap_or_default(),
                ..PromptShape::default()
            },
            ..TraceEntry::default()
        }))
    });
    Ok(Trace { header, entries, losses })
}

#[derive(Serialize)]
struct BailianLine {
    chat_id: u64,
    parent_chat_id: i64,
    timestamp: ScaledTime,
    input_length: u64,
    output_length: u64,
    #[serde(rename = "type")]
    kind: &'static str,
    turn: u32,
    hash_ids: Vec<u64>,
}

struct BailianWriter {
    out: TraceOutput,
    /// True if the trace already has ids of single blocks, which may repeat at other positions.
    same_scheme: bool,
    blocks: Option<BlockRehasher>,
    notes: Vec<String>,
    /// The last chat of each session and its turn.
    last_chat: SessionTable<(u64, u32)>,
    forgotten: ConversionLosses,
    chats: u64,
    lengths: RequiredLengths,
}

fn write(header: &TraceHeader, out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
    let rule = BlockRule { size: Some(BLOCK_TOKENS), last: LastBlock::Kept };
    let mut notes = Vec::new();
    let blocks = BlockRehasher::new_or_note(header.blocks.as_ref(), rule, &mut notes);
    let forgotten = ConversionLosses::default();
    let last = SessionTable::new(&forgotten);
    let alike = header
        .blocks
        .as_ref()
        .is_some_and(|from| BlockScheme { key: None, ..from.clone() } == single_block_scheme(BLOCK_TOKENS));
    Ok(Box::new(BailianWriter {
        out,
        same_scheme: alike,
        blocks,
        notes,
        last_chat: last,
        forgotten,
        chats: 0,
        lengths: RequiredLengths::default(),
    }))
}

impl FormatWriter for BailianWriter {
    fn write(&mut self, entry: &TraceEntry) -> Result<(), WriteError> {
        let tokens = self.lengths.input(entry)?;
        self.chats += 1;
        let before = entry.session.as_deref().and_then(|session| self.last_chat.get(session).copied());
        let turn = before.map_or_else(|| entry.turn.unwrap_or(0), |(_, turn)| turn.saturating_add(1));
        if let Some(session) = &entry.session {
            self.last_chat.insert(session, (self.chats, turn));
        }
        super::write_line(
            &mut self.out,
            &BailianLine {
                chat_id: self.chats,
                parent_chat_id: before.and_then(|(chat, _)| i64::try_from(chat).ok()).unwrap_or(-1),
                timestamp: ScaledTime::secs(entry.at),
                input_length: tokens,
                output_length: self.lengths.output_for_aiperf(entry),
                kind: "text",
                turn: turn.saturating_add(1),
                hash_ids: match &mut self.blocks {
                    _ if self.same_scheme => entry.prompt.blocks.clone(),
                    blocks => blocks.as_mut().map(|blocks| blocks.ids(entry, tokens)).unwrap_or_default(),
                },
            },
        )
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.out.flush()?;
        self.notes.extend(self.lengths.notes());
        self.notes.extend(self.forgotten.list().into_iter().map(|(what, count)| format!("{count} {what}")));
        Ok(self.notes)
    }
}
