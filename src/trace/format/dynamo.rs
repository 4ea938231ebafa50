//! Dynamo's `dynamo.request.trace.v1`: JSON Lines of events with wall-clock milliseconds. Only the end events of
//! requests form the trace, so rows are in completion order.

use std::io::Write as _;

use serde::Serialize;

use super::super::blocks::{BlockRehasher, BlockRule, mooncake_scheme};
use super::super::entry_fields::EntryFields;
use super::super::json::{NestedRow, parse, row};
use super::super::json_values::{LenientNumber, StringOrNumber, TextSize};
use super::super::session_table::SessionTable;
use super::super::{Error, Trace, TraceProblem};
use super::required_lengths::RequiredLengths;
use super::time_zero::TimeZero;
use super::{
    ConversionLosses, FormatWriter, InputSource, ReadOptions, ScaledTime, TraceFormat, TraceOutput, WriteError, nanos,
    rows, stream,
};
use crate::trace_file::header::{LastBlock, TraceHeader};
use crate::trace_file::row::{PromptShape, TraceEntry};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "dynamo",
    aliases: &["dynamo.request.trace.v1"],
    about: "Dynamo request traces (dynamo.request.trace.v1): JSON Lines",
    time_unit: "milliseconds of the wall clock",
    detected_by: "rows with that `schema`",
    keys: &["schema", "event_type", "request"],
    detect: |source| {
        let InputSource::Stream(stream) = source else { return false };
        stream
            .sample_lines()
            .next()
            .is_some_and(|line| event(line, &ConversionLosses::default()).is_ok_and(|e| has_schema(&e)))
    },
    read: Some(read),
    write: Some(write),
    unsupported_reason: "",
    fields: EntryFields::MODEL
        .union(EntryFields::PROMPT_TOKENS)
        .union(EntryFields::CACHED)
        .union(EntryFields::BLOCKS)
        .union(EntryFields::OUTPUT)
        .union(EntryFields::FIRST_TOKEN)
        .union(EntryFields::ENDED)
        .union(EntryFields::SESSION)
        .union(EntryFields::PARENT)
        .union(EntryFields::TURN),
    has_wall_clock: true,
    delta_fields: None,
};

const SCHEMA: &str = "dynamo.request.trace.v1";
const REQUEST_END: &str = "request_end";

// Some sinks wrap every event.
row!(Wrapped { event: NestedRow<Event>, timestamp: TextSize, schema: String });
row!(Event {
    schema: String,
    event_type: String,
    event_time_unix_ms: LenientNumber,
    event_source: String,
    request: NestedRow<Request>,
    agent_context: NestedRow<Agent>,
});
row!(Agent { session_id: StringOrNumber, parent_session_id: StringOrNumber });
row!(Request {
    model: String,
    input_tokens: u64,
    output_tokens: u64,
    cached_tokens: u64,
    request_received_ms: LenientNumber,
    ttft_ms: LenientNumber,
    total_time_ms: LenientNumber,
    replay: NestedRow<Replay>,
});
row!(Replay { trace_block_size: u32, input_length: u64, input_sequence_hashes: Vec<u64> });

fn event(line: &[u8], losses: &ConversionLosses) -> Result<Event, TraceProblem> {
    // The keys distinguish the two forms. Only wrapped rows are parsed twice.
    if memchr::memmem::find(&line[..line.len().min(256)], b"\"event\"").is_some() {
        let wrapped: Wrapped = parse(line, losses)?;
        return wrapped.event.map(|NestedRow(event)| event).ok_or_else(|| TraceProblem::missing("event"));
    }
    parse(line, losses)
}

fn has_schema(event: &Event) -> bool {
    event.schema.as_deref() == Some(SCHEMA)
}

/// Arrival of a request, in nanoseconds since 1970.
fn received(event: &Event, request: &Request) -> Result<u64, TraceProblem> {
    if let Some(at) = request.request_received_ms {
        return nanos("request.request_received_ms", at, 1e6);
    }
    let (Some(end), Some(took)) = (event.event_time_unix_ms, request.total_time_ms) else {
        return Err(TraceProblem::missing("request.request_received_ms"));
    };
    nanos("event_time_unix_ms", LenientNumber(end.0 - took.0), 1e6)
}

fn read(source: InputSource, options: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = ConversionLosses::default();
    let mut header = TraceHeader::new(FORMAT.name);
    let mut size = options.block_size;
    // Rows are in completion order; the earliest arrival is among the first rows.
    for line in stream.sample_lines() {
        let Ok(event) = event(line, &ConversionLosses::default()) else { continue };
        let Some(NestedRow(request)) = &event.request else { continue };
        if let Ok(at) = received(&event, request) {
            header.started_unix_ns = Some(header.started_unix_ns.map_or(at, |first| first.min(at)));
        }
        size = size.or(request.replay.as_ref().and_then(|NestedRow(replay)| replay.trace_block_size));
    }
    header.blocks = size.map(mooncake_scheme);
    let (zero, counted) = (TimeZero::new(header.started_unix_ns, &losses), losses.clone());
    let mut turns: SessionTable<u32> = SessionTable::new(&losses);
    let entries = rows(stream.lines(), move |line| {
        let event = event(line, &counted)?;
        if !has_schema(&event) {
            return Err(TraceProblem::in_field("schema", format!("expected {SCHEMA}")));
        }
        let request = match event.request {
            Some(NestedRow(ref request)) if event.event_type.as_deref() == Some(REQUEST_END) => request,
            _ => {
                counted.count("events that are no ends of requests");
                return Ok(None);
            }
        };
        let wall = received(&event, request)?;
        let replay = request.replay.as_ref().map(|NestedRow(replay)| replay);
        let tokens = request.input_tokens.or_else(|| replay.and_then(|replay| replay.input_length));
        let mut entry = TraceEntry {
            at: zero.since(wall),
            model: request.model.clone(),
            output_tokens: request.output_tokens,
            prompt: PromptShape { tokens, cached: request.cached_tokens, ..PromptShape::default() },
            ..TraceEntry::default()
        };
        if let Some(replay) = replay {
            if replay.trace_block_size == size {
                entry.prompt.blocks = replay.input_sequence_hashes.clone().unwrap_or_default();
            } else {
                counted.count("requests with blocks of another size, whose ids are left out");
            }
        }
        entry.timing.first_token = request.ttft_ms.map(|ms| nanos("request.ttft_ms", ms, 1e6)).transpose()?;
        entry.timing.ended = request.total_time_ms.map(|ms| nanos("request.total_time_ms", ms, 1e6)).transpose()?;
        if let Some(NestedRow(Agent { session_id: Some(StringOrNumber(session)), parent_session_id })) =
            event.agent_context
        {
            entry.turn = Some(turns.next_turn(&session));
            entry.session = Some(session);
            entry.parent = parent_session_id.map(|StringOrNumber(parent)| parent);
        }
        Ok(Some(entry))
    });
    Ok(Trace { header, entries, losses })
}

#[derive(Serialize)]
struct DynamoLine<'a> {
    schema: &'static str,
    event_type: &'static str,
    event_time_unix_ms: u64,
    event_source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_context: Option<DynamoAgentLine<'a>>,
    request: DynamoRequestLine<'a>,
}

#[derive(Serialize)]
struct DynamoAgentLine<'a> {
    session_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_session_id: Option<&'a str>,
}

#[derive(Serialize)]
struct DynamoRequestLine<'a> {
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    input_tokens: u64,
    output_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u64>,
    request_received_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft_ms: Option<ScaledTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_time_ms: Option<ScaledTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<DynamoReplayLine>,
}

#[derive(Serialize)]
struct DynamoReplayLine {
    trace_block_size: u32,
    input_length: u64,
    input_sequence_hashes: Vec<u64>,
}

/// Writes Dynamo's format. Dynamo rejects a file if a request lacks its output length, or one id per block of its
/// prompt. It also rejects a file in which only some requests have a session.
struct DynamoWriter {
    out: TraceOutput,
    zero: u64,
    /// True if requests have sessions; determined by the first request.
    sessions: Option<bool>,
    /// Requests that differ from the first one in this.
    session_mismatches: u64,
    blocks: Option<BlockRehasher>,
    notes: Vec<String>,
    requests: u64,
    lengths: RequiredLengths,
}

fn write(header: &TraceHeader, out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
    let rule = BlockRule { size: None, last: LastBlock::Kept };
    let mut notes = vec!["times are whole milliseconds".to_owned()];
    let blocks = BlockRehasher::new_or_note(header.blocks.as_ref(), rule, &mut notes);
    if header.started_unix_ns.is_none() {
        notes.push("the trace does not state when it began: times start at 1970-01-01".to_owned());
    }
    if blocks.is_none() {
        notes.push("Dynamo replays no request without the ids of its blocks".to_owned());
    }
    let zero = header.started_unix_ns.unwrap_or(0);
    let (sessions, counted) = (None, RequiredLengths::default());
    Ok(Box::new(DynamoWriter {
        out,
        zero,
        sessions,
        session_mismatches: 0,
        blocks,
        notes,
        requests: 0,
        lengths: counted,
    }))
}

impl FormatWriter for DynamoWriter {
    fn write(&mut self, entry: &TraceEntry) -> Result<(), WriteError> {
        let tokens = self.lengths.input(entry)?;
        if tokens == 0 {
            return Err(WriteError::Unrepresentable("requests with an empty prompt, left out"));
        }
        self.requests += 1;
        let request_id = format!("request-{}", self.requests);
        let session = entry.session.as_deref();
        let sessions = *self.sessions.get_or_insert(session.is_some());
        self.session_mismatches += u64::from(sessions != session.is_some());
        let session = sessions.then(|| session.unwrap_or(&request_id));
        let received = self.zero.saturating_add(entry.at);
        let ended = received.saturating_add(entry.timing.ended.unwrap_or(0));
        let ids = self.blocks.as_mut().map(|blocks| (blocks.to.size, blocks.ids(entry, tokens)));
        let replay = ids.filter(|(_, ids)| !ids.is_empty()).map(|(size, ids)| DynamoReplayLine {
            trace_block_size: size,
            input_length: tokens,
            input_sequence_hashes: ids,
        });
        super::write_line(
            &mut self.out,
            &DynamoLine {
                schema: SCHEMA,
                event_type: REQUEST_END,
                event_time_unix_ms: ended / 1_000_000,
                event_source: "streamgauge",
                agent_context: session
                    .map(|session_id| DynamoAgentLine { session_id, parent_session_id: entry.parent.as_deref() }),
                request: DynamoRequestLine {
                    request_id: &request_id,
                    model: entry.model.as_deref(),
                    input_tokens: tokens,
                    output_tokens: self.lengths.output(entry),
                    cached_tokens: entry.prompt.cached,
                    request_received_ms: received / 1_000_000,
                    ttft_ms: entry.timing.first_token.map(ScaledTime::millis),
                    total_time_ms: entry.timing.ended.map(ScaledTime::millis),
                    replay,
                },
            },
        )
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.out.flush()?;
        self.notes.extend(self.lengths.notes());
        if self.session_mismatches > 0 {
            let (other, all_or_none) = (self.session_mismatches, "Dynamo takes no file in which only some have one");
            self.notes.push(match self.sessions {
                Some(true) => format!("{other} requests without a session have one of their own: {all_or_none}"),
                _ => format!("{other} requests have lost their session, for the first has none: {all_or_none}"),
            });
        }
        Ok(self.notes)
    }
}
