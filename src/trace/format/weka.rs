//! Agent sessions of kv-cache-tester, which AIPerf, GuideLLM and inference-perf read as `weka`. One JSON document per
//! session, seconds, 64-token blocks without a partial last one, ids valid within the session.
//!
//! A folder is read session by session. Each session begins at zero, because sessions have no common clock. The
//! requests of a subagent form a session of their own. If a subagent's times begin before its own start, they count
//! from that start.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;

use super::super::blocks::mooncake_scheme;
use super::super::entry_fields::EntryFields;
use super::super::input::NumberedLines;
use super::super::json::{NestedRow, parse, row};
use super::super::json_values::{LenientNumber, StringOrNumber, TextSize};
use super::super::{Error, Trace, TraceEntries, TraceProblem};
use super::{ConversionLosses, InputSource, ReadOptions, TraceFormat, has_keys, nanos, weka_writer};
use crate::measure::dialect::finish_reason;
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
    write: Some(weka_writer::write),
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

pub(super) const BLOCK_TOKENS: u32 = 64;
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
