//! Dynamo's `dynamo.request.trace.v1`: JSON Lines of events with wall-clock milliseconds, of which the ends of requests
//! are the trace; rows stand in the order in which requests ended.

use std::io::Write as _;

use serde::Serialize;

use super::super::blocks::{Reblocked, Rule};
use super::super::fields::Fields;
use super::super::json::{Content, Id, Number, Object, parse, row};
use super::super::sessions::Sessions;
use super::super::{Error, Problem, Trace};
use super::counted::Counted;
use super::{Format, Losses, Options, Output, Source, Time, WriteError, Writer, nanos, rows, stream};
use crate::capture::format::{Entry, Header, LastBlock, Prompt};

pub(super) const FORMAT: Format = Format {
    name: "dynamo",
    aliases: &["dynamo.request.trace.v1"],
    about: "Dynamo request traces (dynamo.request.trace.v1): JSON Lines",
    times: "milliseconds of the wall clock",
    by: "rows with that `schema`",
    recognise: |source| {
        let Source::Stream(stream) = source else { return false };
        stream.sample_lines().next().is_some_and(|line| event(line, &Losses::default()).is_ok_and(|e| is_ours(&e)))
    },
    read: Some(read),
    write: Some(write),
    but: "",
    holds: Fields::MODEL
        .and(Fields::PROMPT_TOKENS)
        .and(Fields::CACHED)
        .and(Fields::BLOCKS)
        .and(Fields::OUTPUT)
        .and(Fields::FIRST_TOKEN)
        .and(Fields::ENDED)
        .and(Fields::SESSION)
        .and(Fields::TURN),
    clock: true,
    delta: None,
};

const SCHEMA: &str = "dynamo.request.trace.v1";
const END: &str = "request_end";

// Some sinks wrap every event.
row!(Wrapped { event: Object<Event>, timestamp: Content, schema: String });
row!(Event {
    schema: String,
    event_type: String,
    event_time_unix_ms: Number,
    event_source: String,
    request: Object<Request>,
    agent_context: Object<Agent>,
});
row!(Agent { session_id: Id });
row!(Request {
    model: String,
    input_tokens: u64,
    output_tokens: u64,
    cached_tokens: u64,
    request_received_ms: Number,
    ttft_ms: Number,
    total_time_ms: Number,
    replay: Object<Replay>,
});
row!(Replay { trace_block_size: u32, input_length: u64, input_sequence_hashes: Vec<u64> });

fn event(line: &[u8], losses: &Losses) -> Result<Event, Problem> {
    // Which of both it is shows in the keys; the second reading is of wrapped rows only.
    if memchr::memmem::find(&line[..line.len().min(256)], b"\"event\"").is_some() {
        let wrapped: Wrapped = parse(line, losses)?;
        return wrapped.event.map(|Object(event)| event).ok_or_else(|| Problem::missing("event"));
    }
    parse(line, losses)
}

fn is_ours(event: &Event) -> bool {
    event.schema.as_deref() == Some(SCHEMA)
}

/// When a request came, in nanoseconds since 1970.
fn received(event: &Event, request: &Request) -> Result<u64, Problem> {
    if let Some(at) = request.request_received_ms {
        return nanos("request.request_received_ms", at, 1e6);
    }
    let (Some(end), Some(took)) = (event.event_time_unix_ms, request.total_time_ms) else {
        return Err(Problem::missing("request.request_received_ms"));
    };
    nanos("event_time_unix_ms", Number(end.0 - took.0), 1e6)
}

fn read(source: Source, options: &Options) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = Losses::default();
    let mut header = Header::new(FORMAT.name);
    let mut size = options.block_size;
    // Rows stand in the order of ends: the first to come is among the first to end.
    for line in stream.sample_lines() {
        let Ok(event) = event(line, &Losses::default()) else { continue };
        let Some(Object(request)) = &event.request else { continue };
        if let Ok(at) = received(&event, request) {
            header.started_unix_ns = Some(header.started_unix_ns.map_or(at, |first| first.min(at)));
        }
        size = size.or(request.replay.as_ref().and_then(|Object(replay)| replay.trace_block_size));
    }
    header.blocks = size.map(super::mooncake::blocks);
    let (zero, counted) = (header.started_unix_ns.unwrap_or(0), losses.clone());
    let mut turns: Sessions<u32> = Sessions::new(&losses);
    let entries = rows(stream.lines(), move |line| {
        let event = event(line, &counted)?;
        if !is_ours(&event) {
            return Err(Problem::of("schema", format!("expected {SCHEMA}")));
        }
        let request = match event.request {
            Some(Object(ref request)) if event.event_type.as_deref() == Some(END) => request,
            _ => {
                counted.count("events that are no ends of requests");
                return Ok(None);
            }
        };
        let wall = received(&event, request)?;
        if wall < zero {
            counted.count("rows before the first, taken to come at 0");
        }
        let replay = request.replay.as_ref().map(|Object(replay)| replay);
        let tokens = request.input_tokens.or_else(|| replay.and_then(|replay| replay.input_length));
        let mut entry = Entry {
            at: wall.saturating_sub(zero),
            model: request.model.clone(),
            output_tokens: request.output_tokens,
            prompt: Prompt { tokens, cached: request.cached_tokens, ..Prompt::default() },
            ..Entry::default()
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
        if let Some(Id(session)) = event.agent_context.and_then(|Object(agent)| agent.session_id) {
            let turn = turns.last(&session).map_or(0, |turn| turn.saturating_add(1));
            turns.tell(&session, turn);
            (entry.session, entry.turn) = (Some(session), Some(turn));
        }
        Ok(Some(entry))
    });
    Ok(Trace { header, entries, losses })
}

#[derive(Serialize)]
struct Line<'a> {
    schema: &'static str,
    event_type: &'static str,
    event_time_unix_ms: u64,
    event_source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_context: Option<AgentLine<'a>>,
    request: RequestLine<'a>,
}

#[derive(Serialize)]
struct AgentLine<'a> {
    session_id: &'a str,
}

#[derive(Serialize)]
struct RequestLine<'a> {
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    input_tokens: u64,
    output_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u64>,
    request_received_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft_ms: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_time_ms: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<ReplayLine>,
}

#[derive(Serialize)]
struct ReplayLine {
    trace_block_size: u32,
    input_length: u64,
    input_sequence_hashes: Vec<u64>,
}

/// Dynamo refuses a file with a request that lacks its output's length, or one id for each block of its prompt, and one in
/// which some requests have a session and others none.
struct Events {
    out: Output,
    zero: u64,
    /// Whether requests have a session: whether the first has.
    sessions: Option<bool>,
    /// Requests that have it another way.
    other: u64,
    blocks: Option<Reblocked>,
    notes: Vec<String>,
    requests: u64,
    counted: Counted,
}

fn write(header: &Header, out: Output) -> Result<Box<dyn Writer>, Problem> {
    let rule = Rule { size: None, last: LastBlock::Kept };
    let mut notes = vec!["times are whole milliseconds".to_owned()];
    let blocks = Reblocked::noted(header.blocks.as_ref(), rule, &mut notes);
    if header.started_unix_ns.is_none() {
        notes.push("the trace does not say when it began: times are from 1970-01-01 on".to_owned());
    }
    if blocks.is_none() {
        notes.push("Dynamo replays no request without the ids of its blocks".to_owned());
    }
    let zero = header.started_unix_ns.unwrap_or(0);
    let (sessions, counted) = (None, Counted::default());
    Ok(Box::new(Events { out, zero, sessions, other: 0, blocks, notes, requests: 0, counted }))
}

impl Writer for Events {
    fn write(&mut self, entry: &Entry) -> Result<(), WriteError> {
        let tokens = self.counted.input(entry)?;
        if tokens == 0 {
            return Err(WriteError::Unfit("requests with an empty prompt, left out"));
        }
        self.requests += 1;
        let request_id = format!("request-{}", self.requests);
        let session = entry.session.as_deref();
        let sessions = *self.sessions.get_or_insert(session.is_some());
        self.other += u64::from(sessions != session.is_some());
        let session = sessions.then(|| session.unwrap_or(&request_id));
        let received = self.zero.saturating_add(entry.at);
        let ended = received.saturating_add(entry.timing.ended.unwrap_or(0));
        let ids = self.blocks.as_mut().map(|blocks| (blocks.to.size, blocks.ids(entry, tokens)));
        let replay = ids.filter(|(_, ids)| !ids.is_empty()).map(|(size, ids)| ReplayLine {
            trace_block_size: size,
            input_length: tokens,
            input_sequence_hashes: ids,
        });
        super::write_line(
            &mut self.out,
            &Line {
                schema: SCHEMA,
                event_type: END,
                event_time_unix_ms: ended / 1_000_000,
                event_source: "streamgauge",
                agent_context: session.map(|session_id| AgentLine { session_id }),
                request: RequestLine {
                    request_id: &request_id,
                    model: entry.model.as_deref(),
                    input_tokens: tokens,
                    output_tokens: self.counted.output(entry),
                    cached_tokens: entry.prompt.cached,
                    request_received_ms: received / 1_000_000,
                    ttft_ms: entry.timing.first_token.map(Time::millis),
                    total_time_ms: entry.timing.ended.map(Time::millis),
                    replay,
                },
            },
        )
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.out.flush()?;
        self.notes.extend(self.counted.notes());
        if self.other > 0 {
            let (other, all_or_none) = (self.other, "Dynamo takes no file in which only some have one");
            self.notes.push(match self.sessions {
                Some(true) => format!("{other} requests without a session have one of their own: {all_or_none}"),
                _ => format!("{other} requests have lost their session, for the first has none: {all_or_none}"),
            });
        }
        Ok(self.notes)
    }
}
