//! RAGPulse's JSON Lines: seconds as text, and prompts as lists of chunks of any length. Tables beside the trace have
//! the chunk lengths. With the tables, the chunks of a prompt become blocks of 16 tokens. Without them, ids are
//! unusable unless the user specifies one length for all chunks.
//!
//! Rows do not name the parts of a prompt, and one output file cannot include tables. The writer therefore writes all
//! blocks as chunks of one part and one length.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use serde::{Deserialize as _, Serialize};

use super::super::blocks::{BlockRehasher, BlockRule, hash_text, mooncake_scheme};
use super::super::entry_fields::EntryFields;
use super::super::json::{NestedRow, parse, row};
use super::super::json_values::{LenientCount, LenientNumber, StringOrNumber};
use super::super::session_table::SessionTable;
use super::super::{Error, Trace, TraceProblem};
use super::required_lengths::RequiredLengths;
use super::{
    ConversionLosses, FormatWriter, InputSource, ReadOptions, ScaledTime, TraceFormat, TraceOutput, WriteError,
    has_keys, nanos, rows, stream,
};
use crate::stats::hash::combine;
use crate::trace_file::header::{LastBlock, TraceHeader};
use crate::trace_file::row::{PromptShape, TraceEntry};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "ragpulse",
    aliases: &[],
    about: "RAGPulse: JSON Lines, prompts of chunks whose lengths stand in tables beside the file",
    time_unit: "seconds",
    detected_by: "rows whose `hash_ids` are an object of lists",
    keys: &["timestamp", "input_length", "output_length", "hash_ids", "session_id"],
    detect: |source| {
        let InputSource::Stream(stream) = source else { return false };
        let first = stream.sample_lines().next();
        has_keys(source, &["hash_ids", "session_id"], &["chat_id"])
            && first.is_some_and(|line| {
                let row: Result<Row, _> = parse(line, &ConversionLosses::default());
                row.is_ok_and(|row| row.hash_ids.is_some())
            })
    },
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
/// Maximum chunks whose lengths are held.
const MAX_CHUNKS: usize = 1 << 21;
/// Maximum tokens of one prompt that become blocks.
const MAX_PROMPT_TOKENS: u64 = 1 << 24;

row!(Row {
    timestamp: LenientNumber,
    input_length: u64,
    output_length: u64,
    hash_ids: NestedRow<Chunks>,
    session_id: StringOrNumber,
});
row!(Chunks {
    sys_prompt: Vec<u64>,
    passages_ids: Vec<u64>,
    history: Vec<u64>,
    web_search: Vec<u64>,
    user_input: Vec<u64>,
});

/// Parts of a prompt in order, and the prefix of the id column in the table of each.
const PART_PREFIXES: [&str; 5] = ["sys", "passage", "history", "web", "user"];

fn read(source: InputSource, options: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = ConversionLosses::default();
    let lengths = match options.block_size {
        Some(size) => ChunkLengths::Uniform(size),
        None => ChunkLengths::Tables(stream.folder.as_deref().map(read_tables).unwrap_or_default()),
    };
    let mut header = TraceHeader::new(FORMAT.name);
    if lengths.is_empty() {
        losses.count("hash_ids: no tables with the lengths of chunks lie beside the file");
    } else {
        let blocks = mooncake_scheme(BLOCK_TOKENS);
        header.blocks = Some(crate::trace_file::header::BlockScheme { last: LastBlock::Dropped, ..blocks });
    }
    let counted = losses.clone();
    let mut turns: SessionTable<u32> = SessionTable::new(&losses);
    let entries = rows(stream.lines(), move |line| {
        let row: Row = parse(line, &counted)?;
        let at = row.timestamp.ok_or_else(|| TraceProblem::missing("timestamp"))?;
        let tokens = row.input_length.ok_or_else(|| TraceProblem::missing("input_length"))?;
        let mut entry = TraceEntry {
            at: nanos("timestamp", at, 1e9)?,
            output_tokens: row.output_length,
            prompt: PromptShape { tokens: Some(tokens), ..PromptShape::default() },
            ..TraceEntry::default()
        };
        if let Some(StringOrNumber(session)) = row.session_id {
            entry.turn = Some(turns.next_turn(&session));
            entry.session = Some(session);
        }
        if let Some(NestedRow(chunks)) = row.hash_ids.filter(|_| !lengths.is_empty()) {
            entry.prompt.blocks = block_ids(&chunks, &lengths, tokens, &counted);
        }
        Ok(Some(entry))
    });
    Ok(Trace { header, entries, losses })
}

/// Lengths of chunks in tokens.
enum ChunkLengths {
    /// Lengths by part and id.
    Tables(HashMap<(u8, u64), u32>),
    /// One length for all chunks.
    Uniform(u32),
}

impl ChunkLengths {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Tables(tables) if tables.is_empty())
    }

    fn length(&self, part: usize, chunk: u64) -> Option<u32> {
        match self {
            Self::Tables(tables) => tables.get(&(part as u8, chunk)).copied(),
            Self::Uniform(length) => Some(*length),
        }
    }
}

/// Reads the chunk lengths from every table in the folder.
fn read_tables(folder: &Path) -> HashMap<(u8, u64), u32> {
    let mut lengths = HashMap::new();
    let files = fs::read_dir(if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    for path in files.into_iter().flatten().filter_map(|file| file.ok()).map(|file| file.path()) {
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            continue;
        }
        let Ok(InputSource::Stream(stream)) = InputSource::open(&path) else { continue };
        let Some(part) = stream.sample_lines().next().and_then(table_part) else { continue };
        let mut lines = stream.lines();
        while let Some(Ok(line)) = lines.next_line() {
            let Some((id, length)) = parse_chunk(line) else { continue };
            if lengths.len() < MAX_CHUNKS {
                lengths.insert((part, id), length);
            }
        }
    }
    lengths
}

/// The part that a table describes, by the name of its id column; `None` if the line is from no table.
fn table_part(line: &[u8]) -> Option<u8> {
    let keys = super::keys_of(line);
    let id = keys.iter().find(|key| key.contains("id")).filter(|_| keys.iter().any(|key| key == "token_length"))?;
    PART_PREFIXES.iter().position(|part| id.starts_with(part)).map(|part| part as u8)
}

fn parse_chunk(line: &[u8]) -> Option<(u64, u32)> {
    let row: HashMap<String, serde_json::Value> = serde_json::from_slice(line).ok()?;
    let LenientCount(length) = LenientCount::deserialize(row.get("token_length")?).ok()?;
    let id = row.iter().find(|(key, _)| key.contains("id"))?.1.as_u64()?;
    Some((id, length))
}

/// Block ids of a prompt of chunks. Each id depends on everything before the end of its block, to the token.
fn block_ids(chunks: &Chunks, lengths: &ChunkLengths, tokens: u64, losses: &ConversionLosses) -> Vec<u64> {
    let parts = [&chunks.sys_prompt, &chunks.passages_ids, &chunks.history, &chunks.web_search, &chunks.user_input];
    let (mut ids, mut before, mut filled, mut total) = (Vec::new(), hash_text("ragpulse"), 0_u32, 0_u64);
    for (part, list) in parts.into_iter().enumerate() {
        for chunk in list.iter().flatten() {
            let Some(length) = lengths.length(part, *chunk) else {
                losses.count("chunks that are in no table; what follows them in a prompt has no ids");
                return ids;
            };
            let mut taken = 0;
            while taken < length && total < tokens.min(MAX_PROMPT_TOKENS) {
                let step = (BLOCK_TOKENS - filled).min(length - taken);
                (taken, filled, total) = (taken + step, filled + step, total + u64::from(step));
                if filled == BLOCK_TOKENS && total <= tokens {
                    ids.push(combine(combine(before, combine(part as u64, *chunk)), u64::from(taken)));
                    filled = 0;
                }
            }
            before = combine(combine(before, combine(part as u64, *chunk)), u64::from(length));
        }
    }
    ids
}

#[derive(Serialize)]
struct RagpulseLine<'a> {
    timestamp: String,
    input_length: u64,
    output_length: u64,
    hash_ids: RagpulseParts,
    session_id: Cow<'a, str>,
}

#[derive(Default, Serialize)]
struct RagpulseParts {
    sys_prompt: [u64; 0],
    passages_ids: [u64; 0],
    history: Vec<u64>,
    web_search: [u64; 0],
    user_input: [u64; 0],
}

struct RagpulseWriter {
    out: TraceOutput,
    blocks: Option<BlockRehasher>,
    notes: Vec<String>,
    rows: u64,
    lengths: RequiredLengths,
}

fn write(header: &TraceHeader, out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
    let rule = BlockRule { size: None, last: LastBlock::Kept };
    let mut notes = Vec::new();
    let blocks = BlockRehasher::new_or_note(header.blocks.as_ref(), rule, &mut notes);
    if let Some(blocks) = &blocks {
        let size = blocks.to.size;
        notes.push(format!(
            "a trace does not know a prompt's parts: every block is a chunk of `history`, and no tables are written; a \
             chunk has {size} tokens, so that `trace --block-size {size}` reads them again"
        ));
    }
    Ok(Box::new(RagpulseWriter { out, blocks, notes, rows: 0, lengths: RequiredLengths::default() }))
}

impl FormatWriter for RagpulseWriter {
    fn write(&mut self, entry: &TraceEntry) -> Result<(), WriteError> {
        let tokens = self.lengths.input(entry)?;
        self.rows += 1;
        // The format requires a session in every row.
        let session = entry.session.as_deref().map(Cow::Borrowed);
        super::write_line(
            &mut self.out,
            &RagpulseLine {
                timestamp: ScaledTime::secs(entry.at).value().to_string(),
                input_length: tokens,
                output_length: self.lengths.output(entry),
                hash_ids: RagpulseParts {
                    history: self.blocks.as_mut().map(|blocks| blocks.ids(entry, tokens)).unwrap_or_default(),
                    ..RagpulseParts::default()
                },
                session_id: session.unwrap_or_else(|| Cow::Owned(format!("request-{}", self.rows))),
            },
        )
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.out.flush()?;
        self.notes.extend(self.lengths.notes());
        Ok(self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_blocks_as_far_as_their_chunks_are_the_same_to_the_token() {
        let lengths = ChunkLengths::Tables(HashMap::from([((0, 1), 20), ((1, 7), 30), ((1, 8), 30), ((4, 9), 10)]));
        let prompt = |passage| Chunks {
            sys_prompt: Some(vec![1]),
            passages_ids: Some(vec![passage]),
            user_input: Some(vec![9]),
            ..Chunks::default()
        };
        let of = |passage| block_ids(&prompt(passage), &lengths, 70, &ConversionLosses::default());
        let (a, b) = (of(7), of(8));
        // 60 tokens are three full blocks, of which the system prompt of 20 tokens fills one.
        assert_eq!((a.len(), b.len()), (3, 3));
        assert_eq!(a.iter().zip(&b).take_while(|(a, b)| a == b).count(), 1);
        assert_eq!(of(7), a);
    }
}
