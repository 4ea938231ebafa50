//! Agent sessions of kv-cache-tester, which AIPerf, GuideLLM and inference-perf read as `weka`. One JSON document per
//! session, seconds, 64-token blocks without a partial last one, ids valid within the session.
//!
//! A folder is read session by session. Each session begins at zero, because sessions have no common clock. The
//! requests of a subagent form a session of their own. If a subagent's times begin before its own start, they count
//! from that start.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use super::super::blocks::{BlockRehasher, BlockRule, hash_text, mooncake_scheme};
use super::super::entry_fields::EntryFields;
use super::super::input::NumberedLines;
use super::super::json::{LenientNumber, NestedRow, StringOrNumber, TextSize, parse, row};
use super::super::merge::held_bytes;
use super::super::{Error, Trace, TraceEntries, TraceProblem};
use super::required_lengths::RequiredLengths;
use super::{
    ConversionLosses, FormatWriter, InputSource, ReadOptions, ScaledTime, TraceFormat, TraceOutput, WriteError,
    has_keys, nanos,
};
use crate::measure::dialect::finish_reason;
use crate::measure::record::FinishReason;
use crate::trace_file::header::{BlockIds, BlockScheme, BlockScope, LastBlock, TraceHeader};
use crate::trace_file::row::{PromptShape, TraceEntry};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "weka",
    aliases: &["kv-cache-tester", "weka_trace"],
    about: "kv-cache-tester, AIPerf weka_trace: a JSON document per session, 64-token blocks",
    time_unit: "seconds",
    detected_by: "a document with `requests`",
    keys: &["requests", "block_size"],
    detect,
    read: Some(read),
    write: Some(write),
    unsupported_reason: "",
    fields: EntryFields::MODEL
        .union(EntryFields::STREAM)
        .union(EntryFields::PROMPT_TOKENS)
        .union(EntryFields::BLOCKS)
        .union(EntryFields::SESSION)
        .union(EntryFields::TURN)
        .union(EntryFields::THINK)
        .union(EntryFields::FINISH)
        .union(EntryFields::OUTPUT)
        .union(EntryFields::FIRST_TOKEN)
        .union(EntryFields::ENDED),
    has_wall_clock: false,
    delta_fields: None,
};

const BLOCK_TOKENS: u32 = 64;
/// Maximum requests of one session; the longest of the 739 published ones has a few thousand.
const MAX_SESSION_REQUESTS: usize = 1 << 20;
const MAX_AGENT_DEPTH: usize = 8;

row!(Session {
    id: StringOrNumber,
    models: TextSize,
    block_size: u32,
    hash_id_scope: String,
    requests: Vec<NestedRow<Request>>,
    totals: TextSize,
});

row!(Request {
    t: LenientNumber,
    kind = "type": String,
    model: String,
    input = "in": u64,
    output = "out": u64,
    hash_ids: Vec<u64>,
    stop: String,
    api_time: LenientNumber,
    think_time: LenientNumber,
    ttft: LenientNumber,
    agent_id: StringOrNumber,
    models: TextSize,
    requests: Vec<NestedRow<Request>>,
});

fn detect(source: &InputSource) -> bool {
    match source {
        InputSource::Folder(path) => document_paths(path)
            .ok()
            .and_then(|mut paths| paths.pop())
            .is_some_and(|path| InputSource::open(&path).is_ok_and(|source| detect(&source))),
        InputSource::Stream(stream) => {
            let begins = stream.sample.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
            let has = |key: &str| memchr::memmem::find(&stream.sample, key.as_bytes()).is_some();
            has_keys(source, &["requests", "block_size"], &[])
                || begins && has("\"requests\"") && has("\"block_size\"") && has("\"hash_ids\"")
        }
    }
}

/// The documents in a folder, in reverse order.
fn document_paths(folder: &PathBuf) -> Result<Vec<PathBuf>, Error> {
    let error = |error: std::io::Error| {
        TraceProblem::new(format!("cannot be read: {error}")).at_line(&folder.display().to_string(), None)
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // ServeGen's folders also contain JSON files.
        if name.ends_with(".json") && !name.ends_with("-dataset.json") && name != "LICENSE.json" {
            paths.push(path);
        }
    }
    paths.sort_unstable_by(|a, b| b.cmp(a));
    Ok(paths)
}

type LocatedSession = (Session, String, Option<u64>);

enum DocumentReader {
    /// One document per line.
    Lines(NumberedLines),
    /// One document, read completely.
    Single(Option<(String, Vec<u8>)>),
    /// One document per file, popped from the end.
    Files(Vec<PathBuf>),
}

impl DocumentReader {
    fn open(source: InputSource) -> Result<Self, Error> {
        Ok(match source {
            InputSource::Folder(path) => Self::Files(document_paths(&path)?),
            InputSource::Stream(stream) => {
                let first = stream.sample_lines().next().map(super::keys_of).unwrap_or_default();
                if first.iter().any(|key| key == "requests") {
                    Self::Lines(stream.lines())
                } else {
                    let name = stream.name.clone();
                    Self::Single(Some((name, stream.read_all()?)))
                }
            }
        })
    }

    fn next_session(&mut self, losses: &ConversionLosses) -> Option<Result<LocatedSession, Error>> {
        match self {
            Self::Lines(lines) => {
                let session = match lines.next_line()? {
                    Ok(line) => parse(line, losses),
                    Err(error) => return Some(Err(error)),
                };
                // Only an error uses the location.
                let at = lines.error_at_line(TraceProblem::new(""));
                Some(
                    session
                        .map(|session| (session, at.file.clone(), at.line))
                        .map_err(|p| p.at_line(&at.file, at.line)),
                )
            }
            Self::Single(document) => {
                let (name, bytes) = document.take()?;
                let session = parse(&bytes, losses).map_err(|problem| problem.at_line(&name, None));
                Some(session.map(|session| (session, name, None)))
            }
            Self::Files(paths) => {
                let path = paths.pop()?;
                let read = InputSource::open(&path).and_then(|source| match source {
                    InputSource::Stream(stream) => stream.read_all(),
                    InputSource::Folder(_) => Ok(Vec::new()),
                });
                let name = path.display().to_string();
                Some(read.and_then(|bytes| {
                    let session = parse(&bytes, losses).map_err(|problem| problem.at_line(&name, None));
                    session.map(|session| (session, name, None))
                }))
            }
        }
    }
}

fn read(source: InputSource, options: &ReadOptions) -> Result<Trace, Error> {
    let losses = ConversionLosses::default();
    let folder = matches!(source, InputSource::Folder(_));
    let mut documents = DocumentReader::open(source)?;
    let first = documents.next_session(&losses).transpose()?;
    let size =
        first.as_ref().and_then(|(session, ..)| session.block_size).or(options.block_size).unwrap_or(BLOCK_TOKENS);
    let global = first.as_ref().is_some_and(|(session, ..)| session.hash_id_scope.as_deref() == Some("global"));
    let scope = if global { BlockScope::Trace } else { BlockScope::Session };
    let mut header = TraceHeader::new(FORMAT.name);
    header.blocks =
        Some(BlockScheme { last: LastBlock::Dropped, ids: BlockIds::Chained, scope, ..mooncake_scheme(size) });
    if folder {
        losses.add("sessions have no common clock: each begins at 0", u64::from(first.is_some()));
    }
    let counted = losses.clone();
    let mut waiting = VecDeque::new();
    let (mut first, mut number, mut failed) = (first, 0_u64, false);
    let entries: TraceEntries = Box::new(std::iter::from_fn(move || {
        while waiting.is_empty() && !failed {
            let (session, file, line) = match first.take().map(Ok).or_else(|| documents.next_session(&counted))? {
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
                    return Some(Err(problem.at_line(&file, line)));
                }
            }
        }
        waiting.pop_front().map(Ok)
    }));
    Ok(Trace { header, entries, losses })
}

/// The requests of a session and its subagents, in order of time.
fn requests(session: Session, size: u32, number: u64) -> Result<VecDeque<TraceEntry>, TraceProblem> {
    let name = session.id.map_or_else(|| format!("session-{number}"), |StringOrNumber(id)| id);
    let same_size = session.block_size.is_none_or(|other| other == size);
    let list = session.requests.ok_or_else(|| TraceProblem::missing("requests"))?;
    let mut entries = Vec::new();
    flatten_requests(list, &name, same_size, 0, 0, &mut entries)?;
    entries.sort_by_key(|entry| entry.at);
    Ok(entries.into())
}

fn flatten_requests(
    list: Vec<NestedRow<Request>>,
    session: &str,
    with_ids: bool,
    start: u64,
    depth: usize,
    entries: &mut Vec<TraceEntry>,
) -> Result<(), TraceProblem> {
    let time = |field, number: Option<LenientNumber>| number.map(|number| nanos(field, number, 1e9)).transpose();
    let first = time("requests.t", list.first().and_then(|request| request.0.t))?.unwrap_or(0);
    let from = if first < start { start } else { 0 };
    let (mut turn, mut agents) = (0, 0);
    for NestedRow(request) in list {
        let at = request.t.ok_or_else(|| TraceProblem::missing("requests.t"))?;
        let at = nanos("requests.t", at, 1e9)?.saturating_add(from);
        if let Some(list) = request.requests {
            if depth == MAX_AGENT_DEPTH {
                return Err(TraceProblem::in_field(
                    "requests",
                    format!("subagents nested more than {MAX_AGENT_DEPTH} deep"),
                ));
            }
            agents += 1;
            let agent = request.agent_id.map_or_else(|| format!("agent-{agents}"), |StringOrNumber(id)| id);
            flatten_requests(list, &format!("{session}/{agent}"), with_ids, at, depth + 1, entries)?;
            continue;
        }
        if entries.len() == MAX_SESSION_REQUESTS {
            return Err(TraceProblem::in_field("requests", format!("more than {MAX_SESSION_REQUESTS} in one session")));
        }
        let input = request.input.ok_or_else(|| TraceProblem::missing("requests.in"))?;
        let mut entry = TraceEntry {
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
            prompt: PromptShape { tokens: Some(input), ..PromptShape::default() },
            ..TraceEntry::default()
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

fn write(header: &TraceHeader, out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
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
