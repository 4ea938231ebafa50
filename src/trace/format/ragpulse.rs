//! RAGPulse's JSON Lines: seconds as texts, and prompts as lists of chunks of any length, whose lengths stand in tables
//! beside the trace. With them a prompt's chunks become blocks of 16 tokens. Without them its ids cannot be used, unless
//! it is told that all chunks are as long as each other.
//!
//! A trace does not know the parts of a prompt, and no file can hold tables beside itself: what is written has all blocks
//! as chunks of one part, all of one length.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use serde::{Deserialize as _, Serialize};

use super::super::blocks::{Reblocked, Rule, mixed, of_text};
use super::super::fields::Fields;
use super::super::json::{Count, Id, Number, Object, parse, row};
use super::super::sessions::Sessions;
use super::super::{Error, Problem, Trace};
use super::counted::Counted;
use super::{Format, Losses, Options, Output, Source, Time, WriteError, Writer, has_keys, nanos, rows, stream};
use crate::capture::format::{Entry, Header, LastBlock, Prompt};

pub(super) const FORMAT: Format = Format {
    name: "ragpulse",
    aliases: &[],
    about: "RAGPulse: JSON Lines, prompts of chunks whose lengths stand in tables beside the file",
    times: "seconds",
    by: "rows whose `hash_ids` are an object of lists",
    recognise: |source| {
        let Source::Stream(stream) = source else { return false };
        let first = stream.sample_lines().next();
        has_keys(source, &["hash_ids", "session_id"], &["chat_id"])
            && first.is_some_and(|line| {
                let row: Result<Row, _> = parse(line, &Losses::default());
                row.is_ok_and(|row| row.hash_ids.is_some())
            })
    },
    read: Some(read),
    write: Some(write),
    but: "",
    holds: Fields::PROMPT_TOKENS.and(Fields::OUTPUT).and(Fields::BLOCKS).and(Fields::SESSION).and(Fields::TURN),
    clock: false,
    delta: None,
};

const BLOCK: u32 = 16;
/// Chunks whose lengths are held.
const MOST_CHUNKS: usize = 1 << 21;
/// Tokens of one prompt that are made into blocks.
const MOST_TOKENS: u64 = 1 << 24;

row!(Row {
    timestamp: Number,
    input_length: u64,
    output_length: u64,
    hash_ids: Object<Chunks>,
    session_id: Id,
});
row!(Chunks {
    sys_prompt: Vec<u64>,
    passages_ids: Vec<u64>,
    history: Vec<u64>,
    web_search: Vec<u64>,
    user_input: Vec<u64>,
});

/// The parts of a prompt in their order, and how the table of each begins to name its ids.
const PARTS: [&str; 5] = ["sys", "passage", "history", "web", "user"];

fn read(source: Source, options: &Options) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = Losses::default();
    let lengths = match options.block_size {
        Some(size) => Lengths::Same(size),
        None => Lengths::Tables(stream.folder.as_deref().map(tables).unwrap_or_default()),
    };
    let mut header = Header::new(FORMAT.name);
    if lengths.are_unknown() {
        losses.count("hash_ids: no tables with the lengths of chunks lie beside the file");
    } else {
        let blocks = super::mooncake::blocks(BLOCK);
        header.blocks = Some(crate::capture::format::Blocks { last: LastBlock::Dropped, ..blocks });
    }
    let counted = losses.clone();
    let mut turns: Sessions<u32> = Sessions::new(&losses);
    let entries = rows(stream.lines(), move |line| {
        let row: Row = parse(line, &counted)?;
        let at = row.timestamp.ok_or_else(|| Problem::missing("timestamp"))?;
        let tokens = row.input_length.ok_or_else(|| Problem::missing("input_length"))?;
        let mut entry = Entry {
            at: nanos("timestamp", at, 1e9)?,
            output_tokens: row.output_length,
            prompt: Prompt { tokens: Some(tokens), ..Prompt::default() },
            ..Entry::default()
        };
        if let Some(Id(session)) = row.session_id {
            let turn = turns.last(&session).map_or(0, |turn| turn.saturating_add(1));
            turns.tell(&session, turn);
            (entry.session, entry.turn) = (Some(session), Some(turn));
        }
        if let Some(Object(chunks)) = row.hash_ids.filter(|_| !lengths.are_unknown()) {
            entry.prompt.blocks = blocks(&chunks, &lengths, tokens, &counted);
        }
        Ok(Some(entry))
    });
    Ok(Trace { header, entries, losses })
}

/// How long chunks are.
enum Lengths {
    /// By part and id.
    Tables(HashMap<(u8, u64), u32>),
    /// All as long as each other.
    Same(u32),
}

impl Lengths {
    fn are_unknown(&self) -> bool {
        matches!(self, Self::Tables(tables) if tables.is_empty())
    }

    fn of(&self, part: usize, chunk: u64) -> Option<u32> {
        match self {
            Self::Tables(tables) => tables.get(&(part as u8, chunk)).copied(),
            Self::Same(length) => Some(*length),
        }
    }
}

/// The lengths of chunks by part and id, from every table in the folder.
fn tables(folder: &Path) -> HashMap<(u8, u64), u32> {
    let mut lengths = HashMap::new();
    let files = fs::read_dir(if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    for path in files.into_iter().flatten().filter_map(|file| file.ok()).map(|file| file.path()) {
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            continue;
        }
        let Ok(Source::Stream(stream)) = Source::open(&path) else { continue };
        let Some(part) = stream.sample_lines().next().and_then(part) else { continue };
        let mut lines = stream.lines();
        while let Some(Ok(line)) = lines.next_line() {
            let Some((id, length)) = chunk(line) else { continue };
            if lengths.len() < MOST_CHUNKS {
                lengths.insert((part, id), length);
            }
        }
    }
    lengths
}

/// Which part a table is of, by the name of its ids; none where it is no table.
fn part(line: &[u8]) -> Option<u8> {
    let keys = super::keys_of(line);
    let id = keys.iter().find(|key| key.contains("id")).filter(|_| keys.iter().any(|key| key == "token_length"))?;
    PARTS.iter().position(|part| id.starts_with(part)).map(|part| part as u8)
}

/// A table's row: an id and a length.
fn chunk(line: &[u8]) -> Option<(u64, u32)> {
    let row: HashMap<String, serde_json::Value> = serde_json::from_slice(line).ok()?;
    let Count(length) = Count::deserialize(row.get("token_length")?).ok()?;
    let id = row.iter().find(|(key, _)| key.contains("id"))?.1.as_u64()?;
    Some((id, length))
}

/// Blocks of a prompt made of chunks: each hangs on everything before its end, to the token.
fn blocks(chunks: &Chunks, lengths: &Lengths, tokens: u64, losses: &Losses) -> Vec<u64> {
    let parts = [&chunks.sys_prompt, &chunks.passages_ids, &chunks.history, &chunks.web_search, &chunks.user_input];
    let (mut ids, mut before, mut filled, mut total) = (Vec::new(), of_text("ragpulse"), 0_u32, 0_u64);
    for (part, list) in parts.into_iter().enumerate() {
        for chunk in list.iter().flatten() {
            let Some(length) = lengths.of(part, *chunk) else {
                losses.count("chunks that are in no table; what follows them in a prompt has no ids");
                return ids;
            };
            let mut taken = 0;
            while taken < length && total < tokens.min(MOST_TOKENS) {
                let step = (BLOCK - filled).min(length - taken);
                (taken, filled, total) = (taken + step, filled + step, total + u64::from(step));
                if filled == BLOCK && total <= tokens {
                    ids.push(mixed(mixed(before, mixed(part as u64, *chunk)), u64::from(taken)));
                    filled = 0;
                }
            }
            before = mixed(mixed(before, mixed(part as u64, *chunk)), u64::from(length));
        }
    }
    ids
}

#[derive(Serialize)]
struct Line<'a> {
    timestamp: String,
    input_length: u64,
    output_length: u64,
    hash_ids: Parts,
    session_id: Cow<'a, str>,
}

#[derive(Default, Serialize)]
struct Parts {
    sys_prompt: [u64; 0],
    passages_ids: [u64; 0],
    history: Vec<u64>,
    web_search: [u64; 0],
    user_input: [u64; 0],
}

struct Requests {
    out: Output,
    blocks: Option<Reblocked>,
    notes: Vec<String>,
    rows: u64,
    counted: Counted,
}

fn write(header: &Header, out: Output) -> Result<Box<dyn Writer>, Problem> {
    let rule = Rule { size: None, last: LastBlock::Kept };
    let mut notes = Vec::new();
    let blocks = Reblocked::noted(header.blocks.as_ref(), rule, &mut notes);
    if let Some(blocks) = &blocks {
        let size = blocks.to.size;
        notes.push(format!(
            "a trace does not know a prompt's parts: every block is a chunk of `history`, and no tables are written; a \
             chunk has {size} tokens, so that `trace --block-size {size}` reads them again"
        ));
    }
    Ok(Box::new(Requests { out, blocks, notes, rows: 0, counted: Counted::default() }))
}

impl Writer for Requests {
    fn write(&mut self, entry: &Entry) -> Result<(), WriteError> {
        let tokens = self.counted.input(entry)?;
        self.rows += 1;
        // Every row has a session there.
        let session = entry.session.as_deref().map(Cow::Borrowed);
        super::write_line(
            &mut self.out,
            &Line {
                timestamp: Time::secs(entry.at).value().to_string(),
                input_length: tokens,
                output_length: self.counted.output(entry),
                hash_ids: Parts {
                    history: self.blocks.as_mut().map(|blocks| blocks.ids(entry, tokens)).unwrap_or_default(),
                    ..Parts::default()
                },
                session_id: session.unwrap_or_else(|| Cow::Owned(format!("request-{}", self.rows))),
            },
        )
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.out.flush()?;
        self.notes.extend(self.counted.notes());
        Ok(self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_blocks_as_far_as_their_chunks_are_the_same_to_the_token() {
        let lengths = Lengths::Tables(HashMap::from([((0, 1), 20), ((1, 7), 30), ((1, 8), 30), ((4, 9), 10)]));
        let prompt = |passage| Chunks {
            sys_prompt: Some(vec![1]),
            passages_ids: Some(vec![passage]),
            user_input: Some(vec![9]),
            ..Chunks::default()
        };
        let of = |passage| blocks(&prompt(passage), &lengths, 70, &Losses::default());
        let (a, b) = (of(7), of(8));
        // 60 tokens are three full blocks, of which the system prompt of 20 fills one.
        assert_eq!((a.len(), b.len()), (3, 3));
        assert_eq!(a.iter().zip(&b).take_while(|(a, b)| a == b).count(), 1);
        assert_eq!(of(7), a);
    }
}
