//! Qwen-Bailian's JSON Lines, which AIPerf reads as `bailian_trace`: seconds, 16-token blocks, every block hashed by
//! itself, turns linked by `parent_chat_id`.

use std::io::Write as _;

use serde::Serialize;
use serde::de::IgnoredAny;

use super::super::blocks::{Reblocked, Rule};
use super::super::fields::Fields;
use super::super::json::{Id, Number, parse, row};
use super::super::sessions::Sessions;
use super::super::{Error, Problem, Trace};
use super::counted::Counted;
use super::{Format, Losses, Options, Output, Source, Time, WriteError, Writer, has_keys, nanos, rows, stream};
use crate::capture::format::{BlockIds, Blocks, Entry, Header, LastBlock, Prompt};

pub(super) const FORMAT: Format = Format {
    name: "bailian",
    aliases: &["bailian_trace", "qwen-bailian"],
    about: "Qwen-Bailian, AIPerf bailian_trace: JSON Lines, ids of single 16-token blocks",
    times: "seconds",
    by: "rows with `chat_id`",
    recognise: |source| has_keys(source, &["chat_id"], &[]),
    read: Some(read),
    write: Some(write),
    but: "",
    holds: Fields::PROMPT_TOKENS.and(Fields::OUTPUT).and(Fields::BLOCKS).and(Fields::SESSION).and(Fields::TURN),
    clock: false,
    delta: None,
};

const BLOCK: u32 = 16;

row!(Row {
    chat_id: Id,
    parent_chat_id: Id,
    timestamp: Number,
    input_length: u64,
    output_length: u64,
    kind = "type": IgnoredAny,
    turn: u32,
    hash_ids: Vec<u64>,
});

/// Blocks as Bailian has them, of that size.
fn single(size: u32) -> Blocks {
    Blocks { ids: BlockIds::Single, ..super::mooncake::blocks(size) }
}

fn read(source: Source, options: &Options) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = Losses::default();
    let mut header = Header::new(FORMAT.name);
    let size = options.block_size.unwrap_or(BLOCK);
    header.blocks = Some(single(size));
    let counted = losses.clone();
    // The session of every chat: the chat that it began with.
    let mut roots: Sessions<String> = Sessions::new(&losses);
    let entries = rows(stream.lines(), move |line| {
        let row: Row = parse(line, &counted)?;
        // Every row has one, and is read as fast as others where it is known.
        if row.kind.is_some() {
            counted.count("type");
        }
        let Id(chat) = row.chat_id.ok_or_else(|| Problem::missing("chat_id"))?;
        let at = row.timestamp.ok_or_else(|| Problem::missing("timestamp"))?;
        let root = match row.parent_chat_id {
            Some(Id(parent)) if parent != "-1" => roots.last(&parent).cloned().unwrap_or(parent),
            _ => chat.clone(),
        };
        roots.tell(&chat, root.clone());
        Ok(Some(Entry {
            at: nanos("timestamp", at, 1e9)?,
            session: Some(root),
            turn: row.turn.map(|turn| turn.saturating_sub(1)),
            output_tokens: row.output_length,
            prompt: Prompt {
                tokens: Some(row.input_length.ok_or_else(|| Problem::missing("input_length"))?),
                blocks: row.hash_ids.unwrap_or_default(),
                ..Prompt::default()
            },
            ..Entry::default()
        }))
    });
    Ok(Trace { header, entries, losses })
}

#[derive(Serialize)]
struct Line {
    chat_id: u64,
    parent_chat_id: i64,
    timestamp: Time,
    input_length: u64,
    output_length: u64,
    #[serde(rename = "type")]
    kind: &'static str,
    turn: u32,
    hash_ids: Vec<u64>,
}

struct Chats {
    out: Output,
    /// Whether the ids of the trace are such as these: of single blocks, which may come again at other places.
    alike: bool,
    blocks: Option<Reblocked>,
    notes: Vec<String>,
    /// The chat that each session came to last, and its turn.
    last: Sessions<(u64, u32)>,
    forgotten: Losses,
    chats: u64,
    counted: Counted,
}

fn write(header: &Header, out: Output) -> Result<Box<dyn Writer>, Problem> {
    let rule = Rule { size: Some(BLOCK), last: LastBlock::Kept };
    let mut notes = Vec::new();
    let blocks = Reblocked::noted(header.blocks.as_ref(), rule, &mut notes);
    let forgotten = Losses::default();
    let last = Sessions::new(&forgotten);
    let alike = header.blocks.as_ref().is_some_and(|from| Blocks { key: None, ..from.clone() } == single(BLOCK));
    Ok(Box::new(Chats { out, alike, blocks, notes, last, forgotten, chats: 0, counted: Counted::default() }))
}

impl Writer for Chats {
    fn write(&mut self, entry: &Entry) -> Result<(), WriteError> {
        let tokens = self.counted.input(entry)?;
        self.chats += 1;
        let before = entry.session.as_deref().and_then(|session| self.last.last(session).copied());
        let turn = before.map_or_else(|| entry.turn.unwrap_or(0), |(_, turn)| turn.saturating_add(1));
        if let Some(session) = &entry.session {
            self.last.tell(session, (self.chats, turn));
        }
        super::write_line(
            &mut self.out,
            &Line {
                chat_id: self.chats,
                parent_chat_id: before.and_then(|(chat, _)| i64::try_from(chat).ok()).unwrap_or(-1),
                timestamp: Time::secs(entry.at),
                input_length: tokens,
                output_length: self.counted.output_for_aiperf(entry),
                kind: "text",
                turn: turn.saturating_add(1),
                hash_ids: match &mut self.blocks {
                    _ if self.alike => entry.prompt.blocks.clone(),
                    blocks => blocks.as_mut().map(|blocks| blocks.ids(entry, tokens)).unwrap_or_default(),
                },
            },
        )
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.out.flush()?;
        self.notes.extend(self.counted.notes());
        self.notes.extend(self.forgotten.list().into_iter().map(|(what, count)| format!("{count} {what}")));
        Ok(self.notes)
    }
}
