//! Agent sessions of kv-cache-tester, which AIPerf, GuideLLM and inference-perf read as `weka`: a JSON document per
//! session, seconds, 64-token blocks without the last partial one, ids of the session.
//!
//! A folder is read session by session; each begins at zero, for they have no common clock. A subagent's requests are
//! a session of their own. Where its times begin before its own start they count from that.
//!
//! It is past 400 lines, for what is written has to be read again: the document stands beside both ways.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use super::super::blocks::{Reblocked, Rule, of_text};
use super::super::fields::Fields;
use super::super::input::Lines;
use super::super::json::{Content, Id, Number, Object, parse, row};
use super::super::merge::held;
use super::super::{Entries, Error, Problem, Trace};
use super::counted::Counted;
use super::{Format, Losses, Options, Output, Source, Time, WriteError, Writer, has_keys, nanos};
use crate::capture::format::{BlockIds, Blocks, Entry, Header, LastBlock, Prompt, Scope};
use crate::measure::dialect::finish_reason;
use crate::measure::record::FinishReason;

pub(super) const FORMAT: Format = Format {
    name: "weka",
    aliases: &["kv-cache-tester", "weka_trace"],
    about: "kv-cache-tester, AIPerf weka_trace: a JSON document per session, 64-token blocks",
    times: "seconds",
    by: "a document with `requests`",
    recognise,
    read: Some(read),
    write: Some(write),
    but: "",
    holds: Fields::MODEL
        .and(Fields::STREAM)
        .and(Fields::PROMPT_TOKENS)
        .and(Fields::BLOCKS)
        .and(Fields::SESSION)
        .and(Fields::TURN)
        .and(Fields::THINK)
        .and(Fields::FINISH)
        .and(Fields::OUTPUT)
        .and(Fields::FIRST_TOKEN)
        .and(Fields::ENDED),
    clock: false,
    delta: None,
};

const BLOCK: u32 = 64;
/// Requests of one session; the longest of the 739 published ones has some thousands.
const MOST_REQUESTS: usize = 1 << 20;
/// Subagents of subagents.
const DEEPEST: usize = 8;

row!(Session {
    id: Id,
    models: Content,
    block_size: u32,
    hash_id_scope: String,
    requests: Vec<Object<Request>>,
    totals: Content,
});

row!(Request {
    t: Number,
    kind = "type": String,
    model: String,
    input = "in": u64,
    output = "out": u64,
    hash_ids: Vec<u64>,
    stop: String,
    api_time: Number,
    think_time: Number,
    ttft: Number,
    agent_id: Id,
    models: Content,
    requests: Vec<Object<Request>>,
});

fn recognise(source: &Source) -> bool {
    match source {
        Source::Folder(path) => documents(path)
            .ok()
            .and_then(|mut paths| paths.pop())
            .is_some_and(|path| Source::open(&path).is_ok_and(|source| recognise(&source))),
        Source::Stream(stream) => {
            let begins = stream.sample.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
            let has = |key: &str| memchr::memmem::find(&stream.sample, key.as_bytes()).is_some();
            has_keys(source, &["requests", "block_size"], &[])
                || begins && has("\"requests\"") && has("\"block_size\"") && has("\"hash_ids\"")
        }
    }
}

/// The documents in a folder, last one first.
fn documents(folder: &PathBuf) -> Result<Vec<PathBuf>, Error> {
    let error = |error: std::io::Error| {
        Problem::new(format!("cannot be read: {error}")).at(&folder.display().to_string(), None)
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // ServeGen's folders have documents as well.
        if name.ends_with(".json") && !name.ends_with("-dataset.json") && name != "LICENSE.json" {
            paths.push(path);
        }
    }
    paths.sort_unstable_by(|a, b| b.cmp(a));
    Ok(paths)
}

/// A session, with its file and line.
type Placed = (Session, String, Option<u64>);

/// Where sessions come from.
enum Documents {
    /// One per line.
    Lines(Lines),
    /// One that is read whole.
    One(Option<(String, Vec<u8>)>),
    /// One per file; the next is the last.
    Files(Vec<PathBuf>),
}

impl Documents {
    fn of(source: Source) -> Result<Self, Error> {
        Ok(match source {
            Source::Folder(path) => Self::Files(documents(&path)?),
            Source::Stream(stream) => {
                let first = stream.sample_lines().next().map(super::keys_of).unwrap_or_default();
                if first.iter().any(|key| key == "requests") {
                    Self::Lines(stream.lines())
                } else {
                    let name = stream.name.clone();
                    Self::One(Some((name, stream.whole()?)))
                }
            }
        })
    }

    fn next(&mut self, losses: &Losses) -> Option<Result<Placed, Error>> {
        match self {
            Self::Lines(lines) => {
                let session = match lines.next_line()? {
                    Ok(line) => parse(line, losses),
                    Err(error) => return Some(Err(error)),
                };
                // The place is only needed for an error.
                let at = lines.error(Problem::new(""));
                Some(session.map(|session| (session, at.file.clone(), at.line)).map_err(|p| p.at(&at.file, at.line)))
            }
            Self::One(document) => {
                let (name, bytes) = document.take()?;
                let session = parse(&bytes, losses).map_err(|problem| problem.at(&name, None));
                Some(session.map(|session| (session, name, None)))
            }
            Self::Files(paths) => {
                let path = paths.pop()?;
                let read = Source::open(&path).and_then(|source| match source {
                    Source::Stream(stream) => stream.whole(),
                    Source::Folder(_) => Ok(Vec::new()),
                });
                let name = path.display().to_string();
                Some(read.and_then(|bytes| {
                    let session = parse(&bytes, losses).map_err(|problem| problem.at(&name, None));
                    session.map(|session| (session, name, None))
                }))
            }
        }
    }
}

fn read(source: Source, options: &Options) -> Result<Trace, Error> {
    let losses = Losses::default();
    let folder = matches!(source, Source::Folder(_));
    let mut documents = Documents::of(source)?;
    let first = documents.next(&losses).transpose()?;
    let size = first.as_ref().and_then(|(session, ..)| session.block_size).or(options.block_size).unwrap_or(BLOCK);
    let global = first.as_ref().is_some_and(|(session, ..)| session.hash_id_scope.as_deref() == Some("global"));
    let scope = if global { Scope::Trace } else { Scope::Session };
    let mut header = Header::new(FORMAT.name);
    header.blocks =
        Some(Blocks { last: LastBlock::Dropped, ids: BlockIds::Chained, scope, ..super::mooncake::blocks(size) });
    if folder {
        losses.add("sessions have no common clock: each begins at 0", u64::from(first.is_some()));
    }
    let counted = losses.clone();
    let mut waiting = VecDeque::new();
    let (mut first, mut number, mut failed) = (first, 0_u64, false);
    let entries: Entries = Box::new(std::iter::from_fn(move || {
        while waiting.is_empty() && !failed {
            let (session, file, line) = match first.take().map(Ok).or_else(|| documents.next(&counted))? {
                Ok(session) => session,
                Err(error) => {
                    failed = true;
                    return Some(Err(error));
                }
            };
            number += 1;
            if session.block_size.is_some_and(|other| other != size) {
                counted.count("sessions with blocks of another size, whose ids are left out");
            }
            match requests(session, size, number) {
                Ok(requests) => waiting = requests,
                Err(problem) => {
                    failed = true;
                    return Some(Err(problem.at(&file, line)));
                }
            }
        }
        waiting.pop_front().map(Ok)
    }));
    Ok(Trace { header, entries, losses })
}

/// The requests of a session and its subagents, in order of time.
fn requests(session: Session, size: u32, number: u64) -> Result<VecDeque<Entry>, Problem> {
    let name = session.id.map_or_else(|| format!("session-{number}"), |Id(id)| id);
    let same_size = session.block_size.is_none_or(|other| other == size);
    let list = session.requests.ok_or_else(|| Problem::missing("requests"))?;
    let mut entries = Vec::new();
    take(list, &name, same_size, 0, 0, &mut entries)?;
    entries.sort_by_key(|entry| entry.at);
    Ok(entries.into())
}

fn take(
    list: Vec<Object<Request>>,
    session: &str,
    with_ids: bool,
    start: u64,
    depth: usize,
    entries: &mut Vec<Entry>,
) -> Result<(), Problem> {
    let time = |field, number: Option<Number>| number.map(|number| nanos(field, number, 1e9)).transpose();
    let first = time("requests.t", list.first().and_then(|request| request.0.t))?.unwrap_or(0);
    let from = if first < start { start } else { 0 };
    let (mut turn, mut agents) = (0, 0);
    for Object(request) in list {
        let at = request.t.ok_or_else(|| Problem::missing("requests.t"))?;
        let at = nanos("requests.t", at, 1e9)?.saturating_add(from);
        if let Some(list) = request.requests {
            if depth == DEEPEST {
                return Err(Problem::of("requests", format!("subagents nested more than {DEEPEST} deep")));
            }
            agents += 1;
            let agent = request.agent_id.map_or_else(|| format!("agent-{agents}"), |Id(id)| id);
            take(list, &format!("{session}/{agent}"), with_ids, at, depth + 1, entries)?;
            continue;
        }
        if entries.len() == MOST_REQUESTS {
            return Err(Problem::of("requests", format!("more than {MOST_REQUESTS} in one session")));
        }
        let input = request.input.ok_or_else(|| Problem::missing("requests.in"))?;
        let mut entry = Entry {
            at,
            model: request.model.filter(|model| !model.is_empty()),
            stream: match request.kind.as_deref() {
                Some("s") => Some(true),
                Some("n") => Some(false),
                _ => None,
            },
            session: Some(session.to_owned()),
            turn: Some(turn),
            think: time("requests.think_time", request.think_time)?,
            finish: request.stop.as_deref().and_then(finish_reason),
            output_tokens: request.output,
            prompt: Prompt { tokens: Some(input), ..Prompt::default() },
            ..Entry::default()
        };
        entry.prompt.blocks = request.hash_ids.filter(|_| with_ids).unwrap_or_default();
        entry.timing.ended = time("requests.api_time", request.api_time)?;
        entry.timing.first_token = time("requests.ttft", request.ttft)?;
        entries.push(entry);
        turn += 1;
    }
    Ok(())
}

#[derive(Serialize)]
struct Line<'a> {
    t: Time,
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
    api_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    think_time: Option<Time>,
}

#[derive(Serialize)]
struct Document<'a> {
    id: &'a str,
    models: BTreeSet<&'a str>,
    block_size: u32,
    hash_id_scope: &'static str,
    requests: Vec<Line<'a>>,
}

/// Writes a line per session, of rows that may stand among those of others: a session waits for more of them until all that
/// wait hold too much, and it has waited longest.
struct Documents_ {
    out: Output,
    blocks: Option<Reblocked>,
    open: HashMap<u64, Open>,
    /// The sessions that are open, by the number of their last row.
    waiting: BTreeMap<u64, u64>,
    held: usize,
    rows: u64,
    notes: Vec<String>,
    counted: Counted,
    documents: u64,
    split: u64,
    /// Requests of which nobody knows whether they were streamed.
    unknown: u64,
    written: HashSet<u64>,
}

/// A session that is not written yet.
#[derive(Default)]
struct Open {
    /// The numbers of its first row and its last.
    first: u64,
    last: u64,
    held: usize,
    rows: Vec<Waiting>,
}

/// A row that waits, apart for a list moves what it holds, and the ids of its blocks.
type Waiting = (Box<Entry>, Vec<u64>);

/// What the rows that wait may hold together, and those of one session, whose line is to be read again, in bytes.
const MOST_HELD: (usize, usize) = (64 << 20, 4 << 20);

fn write(header: &Header, out: Output) -> Result<Box<dyn Writer>, Problem> {
    let rule = Rule { size: Some(BLOCK), last: LastBlock::Dropped };
    let mut notes = vec![
        "one session per line; AIPerf and kv-cache-tester want a file each: split --lines 1 --additional-suffix .json"
            .into(),
        "when sessions began, and which blocks one shares with another, has no place".into(),
    ];
    let blocks = Reblocked::noted(header.blocks.as_ref(), rule, &mut notes);
    let written = HashSet::new();
    Ok(Box::new(Documents_ {
        out,
        blocks,
        open: HashMap::new(),
        waiting: BTreeMap::new(),
        held: 0,
        rows: 0,
        notes,
        counted: Counted::default(),
        documents: 0,
        split: 0,
        unknown: 0,
        written,
    }))
}

/// Whether it was answered as a stream, as far as that is known: only such a one has a TTFT there.
fn streams(entry: &Entry) -> bool {
    entry.stream.unwrap_or(entry.timing.first_token.is_some())
}

impl Documents_ {
    /// Writes a session that is open.
    fn close(&mut self, key: u64) -> Result<(), WriteError> {
        let Open { last, held, rows, .. } = self.open.remove(&key).unwrap_or_default();
        self.waiting.remove(&last);
        self.held -= held;
        if self.written.len() < super::super::sessions::MOST {
            self.split += u64::from(!self.written.insert(key));
        }
        self.document(rows)
    }

    fn document(&mut self, mut rows: Vec<Waiting>) -> Result<(), WriteError> {
        // A capture's rows stand in the order of ends.
        rows.sort_by_key(|(entry, _)| entry.at);
        let Some((first, _)) = rows.first() else { return Ok(()) };
        let zero = first.at;
        self.documents += 1;
        let lone = format!("request-{}", self.documents);
        let line = |(entry, ids): &'_ Waiting| Line {
            t: Time::secs(entry.at - zero),
            kind: if streams(entry) { "s" } else { "n" },
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
            api_time: entry.timing.ended.map(Time::secs),
            ttft: entry.timing.first_token.filter(|_| streams(entry)).map(Time::secs),
            think_time: entry.think.map(Time::secs),
        };
        let models = rows.iter().filter_map(|(entry, _)| entry.model.as_deref()).collect();
        let requests =
            rows.iter().map(|row| Line { model: row.0.model.as_deref().unwrap_or_default(), ..line(row) }).collect();
        let id = first.session.as_deref().unwrap_or(&lone);
        super::write_line(&mut self.out, &Document { id, models, block_size: BLOCK, hash_id_scope: "local", requests })
    }
}

impl Writer for Documents_ {
    fn write(&mut self, entry: &Entry) -> Result<(), WriteError> {
        let tokens = self.counted.input(entry)?;
        let ids = self.blocks.as_mut().map(|blocks| blocks.ids(entry, tokens)).unwrap_or_default();
        self.unknown += u64::from(entry.stream.is_none() && entry.timing.first_token.is_none());
        let mut entry = Box::new(entry.clone());
        (entry.prompt.tokens, entry.output_tokens) = (Some(tokens), Some(self.counted.output(&entry)));
        (entry.prompt.blocks, entry.timing.gaps) = (Vec::new(), None);
        self.rows += 1;
        let Some(key) = entry.session.as_deref().map(of_text) else { return self.document(vec![(entry, ids)]) };
        let holds = held(&entry) + ids.capacity() * size_of::<u64>();
        if self.open.get(&key).is_some_and(|open| open.held + holds > MOST_HELD.1) {
            self.close(key)?;
        }
        let open = self.open.entry(key).or_insert_with(|| Open { first: self.rows, ..Open::default() });
        self.waiting.remove(&open.last);
        self.waiting.insert(self.rows, key);
        (open.last, open.held, self.held) = (self.rows, open.held + holds, self.held + holds);
        open.rows.push((entry, ids));
        while self.held > MOST_HELD.0
            && let Some((_, oldest)) = self.waiting.pop_first()
        {
            self.close(oldest)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        let mut open: Vec<(u64, u64)> = self.open.iter().map(|(key, open)| (open.first, *key)).collect();
        open.sort_unstable();
        open.into_iter().try_for_each(|(_, key)| self.close(key))?;
        self.out.flush()?;
        self.notes.extend(self.counted.notes());
        if self.unknown > 0 {
            let unknown = self.unknown;
            self.notes
                .push(format!("{unknown} requests do not say whether they were streamed, and were written as not"));
        }
        if self.split > 0 {
            let split = self.split;
            self.notes.push(format!(
                "{split} lines go on with a session of an earlier line: its rows are too far apart, or too many"
            ));
        }
        Ok(self.notes)
    }
}
