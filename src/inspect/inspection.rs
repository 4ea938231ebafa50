//! The meaning of one recorded response body, event by event.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::recording::RecordedResponse;
use crate::inspect::first_token_rules::{FirstTokenRule, PEERS};
use crate::measure::dialect::event_fields::EventFields;
use crate::measure::dialect::{Delta, OutputKind, TokenIncrement};
use crate::measure::event_observer::EventObserver;
use crate::measure::framing::Event;
use crate::measure::observer::StreamObserver;
use crate::measure::record::{Choice, CountSource, Outcome, RequestRecord, StampSource, UnreadReason, Usage};
use crate::measure::reply_body::ResponseHead;
use crate::measure::shape::RequestShape;
use crate::measure::time::{Gap, Stamp};
use crate::measure::timeline::TokenEvent;

/// A recorded exchange, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct RecordedExchange<'a> {
    /// Properties of the request that its head states.
    pub head: RequestShape,
    /// The request body; empty if it was not kept.
    pub request: &'a [u8],
    /// The response's `Content-Type`.
    pub content_type: &'a str,
    /// The response's `Content-Encoding`; empty for none.
    pub content_encoding: &'a str,
}

/// The answer of `inspect --json`. Events are counted from 0.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Inspection {
    /// The dialect's name; `null` for plain HTTP.
    pub dialect: Option<&'static str>,
    /// Events dispatched.
    pub events: u64,
    /// Comment lines.
    pub comments: u64,
    /// First event with generated text.
    pub first_token_event: Option<u64>,
    /// First event that proves a token.
    pub first_evidence_event: Option<u64>,
    /// First event with generated text that is not reasoning.
    pub first_output_event: Option<u64>,
    /// Last event with generated text.
    pub last_token_event: Option<u64>,
    /// Events with generated text.
    pub token_events: u64,
    /// Events that prove a token.
    pub evidence_events: u64,
    /// Output tokens.
    pub output_tokens: Option<u64>,
    /// Source of the count.
    pub output_tokens_from: Option<&'static str>,
    /// Tokens by event, for the events that count them.
    pub tokens_by_event: Option<BTreeMap<u64, u64>>,
    /// Prompt tokens.
    pub input_tokens: Option<u64>,
    /// Prompt tokens from a cache.
    pub cached_tokens: Option<u64>,
    /// Output tokens that were reasoning.
    pub reasoning_tokens: Option<u64>,
    /// Why each choice finished.
    pub finish: Vec<ChoiceFinish>,
    /// The server's error.
    pub error: Option<ReportedError>,
    /// True without an error, if the response finished by its dialect's rules.
    pub complete: bool,
    /// When things happened; of a recording with times only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<InspectionTimes>,
    /// The event with the first token by the rule of each other tool that speaks the dialect, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers_first: Option<BTreeMap<&'static str, Option<u64>>>,
}

/// When things happened, in seconds since the request was sent.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct InspectionTimes {
    /// The response head.
    pub headers: f64,
    /// First byte of the body.
    pub first_byte: Option<f64>,
    /// First proof of a token.
    pub ttft_evidence: Option<f64>,
    /// First generated text.
    pub ttft: Option<f64>,
    /// First generated text that is not reasoning.
    pub ttfo: Option<f64>,
    /// Last generated text.
    pub last_token: Option<f64>,
    /// The end of the response.
    pub end: f64,
    /// Time per output token.
    pub tpot: Option<f64>,
    /// Time between each two token events (inter-chunk latency).
    pub gaps: Vec<f64>,
    /// The same, each shared out over the tokens of the later event where they are known (inter-token latency).
    pub itl: Vec<f64>,
}

/// Why one choice finished.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ChoiceFinish {
    /// The choice's index.
    pub choice: u32,
    /// In the one vocabulary.
    pub reason: &'static str,
    /// In the server's word.
    pub raw: String,
}

/// An error that the server reported inside the reply.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ReportedError {
    /// The event that carried it.
    pub event: u64,
    /// The server's message.
    pub message: Option<String>,
    /// Its class.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Its code, a number or a string.
    pub code: Option<Value>,
}

/// One event and what it meant, for the timeline.
#[derive(Clone, Debug, Default)]
pub struct InspectedEvent {
    /// When it was whole.
    pub at: Stamp,
    /// The `event:` field.
    pub name: String,
    /// The payload.
    pub data: String,
    /// The event's meanings, in words.
    pub meanings: Vec<String>,
    /// It has generated text.
    pub token: bool,
    /// It proves a token.
    pub evidence: bool,
    /// It has generated text that is not reasoning.
    pub output: bool,
    /// Tokens, if the event counts them.
    pub tokens: Option<u64>,
    /// The field that proves its token, in words.
    pub proof: Option<String>,
    /// Its usage was taken.
    pub usage: bool,
    /// It is the dialect's terminal event.
    pub done: bool,
    /// Its fields that other tools look at.
    pub facts: EventFields,
}

/// Reads a response body through the observer, in the reads given. The answer, each event, and why the body was not
/// read to its end, if it was not.
pub fn inspect<'a>(
    exchange: &RecordedExchange<'_>,
    reads: impl IntoIterator<Item = &'a [u8]>,
) -> (Inspection, Vec<InspectedEvent>, Option<UnreadReason>) {
    let untimed = RecordedResponse::default();
    let reads = reads.into_iter().map(|read| (Stamp::default(), read));
    let (record, watched) = observe(exchange, &untimed, reads);
    (Inspection::new(&record, &watched), watched.events, record.quality.unread)
}

/// As [`inspect`], with the times of a recording.
pub fn inspect_timed(
    exchange: &RecordedExchange<'_>,
    recording: &RecordedResponse,
) -> (Inspection, Vec<InspectedEvent>, Option<UnreadReason>) {
    let reads = recording.reads.iter().map(|(at, read)| (*at, &read[..]));
    let (record, watched) = observe(exchange, recording, reads);
    let mut inspection = Inspection::new(&record, &watched);
    inspection.times = Some(InspectionTimes::new(&record, &watched.events));
    (inspection, watched.events, record.quality.unread)
}

fn observe<'a>(
    exchange: &RecordedExchange<'_>,
    recording: &RecordedResponse,
    reads: impl Iterator<Item = (Stamp, &'a [u8])>,
) -> (RequestRecord, EventCollector) {
    let mut observer = StreamObserver::begin(exchange.head.clone(), b"", None, Stamp::default());
    observer.request(exchange.request);
    let head = ResponseHead {
        status: recording.status,
        content_type: exchange.content_type.as_bytes(),
        content_encoding: exchange.content_encoding.as_bytes(),
    };
    observer.head(recording.head, head, StampSource::Read);
    let mut watched = EventCollector::default();
    for (at, read) in reads {
        watched.now = at;
        observer.bytes_watched(at, read, &mut watched);
    }
    watched.now = recording.ended;
    let record = observer.end_watched(recording.ended, recording.ending, &mut watched);
    (record, watched)
}

#[derive(Default)]
struct EventCollector {
    now: Stamp,
    events: Vec<InspectedEvent>,
    error: Option<ReportedError>,
}

impl EventObserver for EventCollector {
    fn event(&mut self, _: u64, event: &Event<'_>) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.events.push(InspectedEvent {
            at: self.now,
            name: text(event.name),
            data: text(event.data),
            facts: EventFields::of(event.data),
            ..InspectedEvent::default()
        });
    }

    fn delta(&mut self, choice: u32, delta: &Delta<'_>) {
        if let Delta::Fault { message, kind, code } = *delta {
            let text = |text: Option<&str>| text.map(unescape);
            let code = code.map(|code| serde_json::from_str(code).unwrap_or_else(|_| Value::from(code)));
            let event = (self.events.len() as u64).saturating_sub(1);
            self.error.get_or_insert(ReportedError { event, message: text(message), kind: text(kind), code });
        }
        let Some(seen) = self.events.last_mut() else { return };
        if let Delta::Output { tokens, .. } | Delta::Evidence { tokens } = *delta {
            seen.evidence = true;
            seen.proof.get_or_insert_with(|| describe_delta(choice, delta));
            if let Some(counted) = tokens {
                seen.tokens = Some(seen.tokens.unwrap_or(0) + u64::from(counted.tokens));
            }
        }
        if *delta == Delta::NoToken {
            seen.tokens = seen.tokens.or(Some(0));
        }
        if let Delta::Output { kind, .. } = *delta {
            seen.token = true;
            seen.output |= kind != OutputKind::Reasoning;
        }
        seen.usage |= matches!(delta, Delta::Usage(_) | Delta::Total(_));
        seen.done |= *delta == Delta::Done;
        seen.meanings.push(describe_delta(choice, delta));
    }
}

impl InspectionTimes {
    fn new(record: &RequestRecord, seen: &[InspectedEvent]) -> Self {
        let since = |at: Stamp| at.since(record.times.received).as_secs();
        let tokens: Vec<&InspectedEvent> = seen.iter().filter(|seen| seen.token).collect();
        // The record's gaps are in a fixed-size buffer that the proxy drains; here all gaps are at hand.
        let gaps = tokens.windows(2).map(|pair| {
            let tokens = pair[1].tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
            TokenEvent::new(pair[1].at.since(pair[0].at), tokens)
        });
        let (gaps, itl) = gaps.map(|event| (event.gap().as_secs(), event.latency().0.as_secs())).unzip();
        Self {
            headers: since(record.times.head.unwrap_or_default()),
            first_byte: record.times.first_byte.map(since),
            ttft_evidence: record.ttft_evidence().map(Gap::as_secs),
            ttft: record.ttft().map(Gap::as_secs),
            ttfo: record.ttfo().map(Gap::as_secs),
            last_token: record.times.last_token.map(since),
            end: record.duration().as_secs(),
            tpot: record.tpot().map(Gap::as_secs),
            gaps,
            itl,
        }
    }
}

/// A JSON string's text, from what stood between its quotes.
fn unescape(raw: &str) -> String {
    serde_json::from_str(&format!("\"{raw}\"")).unwrap_or_else(|_| raw.to_owned())
}

fn describe_delta(choice: u32, delta: &Delta<'_>) -> String {
    let of = if choice == 0 { String::new() } else { format!(" (choice {choice})") };
    match *delta {
        Delta::Output { kind, tokens } => {
            let kind = match kind {
                OutputKind::Text => "text",
                OutputKind::Reasoning => "reasoning",
                OutputKind::Tool => "tool call",
                OutputKind::Refusal => "refusal",
                OutputKind::Audio => "audio",
            };
            match tokens {
                Some(counted) => format!("{kind}, {} by {}{of}", format_tokens(counted), counted.source.name()),
                None => format!("{kind}{of}"),
            }
        }
        Delta::Evidence { tokens: Some(counted) } => {
            format!("{} without text, by {}{of}", format_tokens(counted), counted.source.name())
        }
        Delta::Evidence { tokens: None } => format!("a token with its text held back{of}"),
        Delta::NoToken => "no token".to_owned(),
        Delta::Total(total) => format!("running total {total}{of}"),
        Delta::Usage(Usage { input: Some(input), output: None, .. }) => format!("prompt of {input} tokens"),
        Delta::Usage(Usage { input, output, .. }) => {
            let number = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
            format!("usage: {} in, {} out", number(input), number(output))
        }
        Delta::Prefill(prefill) => format!("prefill of {prefill} by the engine"),
        Delta::Finish(reason, raw) => format!("finished: {} ({raw}){of}", reason.name()),
        Delta::Fault { message, .. } => format!("error: {}", message.unwrap_or("no message")),
        Delta::Id(_) => "names the reply".to_owned(),
        Delta::Model(_) => "names the model".to_owned(),
        Delta::Dialect(dialect) => format!("tells the dialect: {}", dialect.name),
        Delta::Done => "end of stream".to_owned(),
        Delta::Malformed => "not understood".to_owned(),
    }
}

fn format_tokens(counted: TokenIncrement) -> String {
    let tokens = counted.tokens;
    format!("{tokens} token{}", if tokens == 1 { "" } else { "s" })
}

/// Why each choice finished, by its index: a record has the choices in the order in which they began.
fn finish(choices: &[Choice]) -> Vec<ChoiceFinish> {
    let finished = choices.iter().filter_map(|choice| {
        let (reason, raw) = choice.finish.as_ref()?;
        Some(ChoiceFinish { choice: choice.index, reason: reason.name(), raw: raw.to_string() })
    });
    let mut finished: Vec<ChoiceFinish> = finished.collect();
    finished.sort_by_key(|finish| finish.choice);
    finished
}

impl Inspection {
    fn new(record: &RequestRecord, watched: &EventCollector) -> Self {
        let dialect = record.shape.dialect;
        let place = |fits: fn(&InspectedEvent) -> bool| watched.events.iter().position(fits).map(|at| at as u64);
        let by_event: BTreeMap<u64, u64> =
            watched.events.iter().zip(0..).filter_map(|(seen, at)| Some((at, seen.tokens?))).collect();
        Self {
            dialect: dialect.map(|dialect| dialect.name),
            events: record.events,
            comments: record.comments,
            first_token_event: place(|seen| seen.token),
            first_evidence_event: place(|seen| seen.evidence),
            first_output_event: place(|seen| seen.output),
            last_token_event: watched.events.iter().rposition(|seen| seen.token).map(|at| at as u64),
            token_events: record.token_events,
            evidence_events: record.evidence_events,
            output_tokens: record.output_tokens.map(|count| count.tokens),
            output_tokens_from: record.output_tokens.map(|count| match count.source {
                CountSource::Usage => dialect.map_or(count.source.name(), |dialect| dialect.final_count),
                CountSource::ContinuousUsage => "cumulative",
                source => source.name(),
            }),
            tokens_by_event: Some(by_event).filter(|by_event| !by_event.is_empty()),
            input_tokens: record.usage.input,
            cached_tokens: record.usage.cached,
            reasoning_tokens: record.usage.reasoning,
            finish: finish(&record.choices),
            error: watched.error.clone(),
            complete: record.outcome == Outcome::Success && record.quality.unread.is_none(),
            times: None,
            peers_first: None,
        }
    }

    /// Adds the first token by the rules of others.
    pub fn with_peer_rules(mut self, events: &[InspectedEvent]) -> Self {
        let dialect = self.dialect.unwrap_or_default();
        let first = |seen: &[InspectedEvent], rule: FirstTokenRule| {
            rule.first(seen.iter().map(|seen| seen.facts)).map(|(at, _)| at)
        };
        let firsts = PEERS.iter().filter_map(|peer| Some((peer.key, first(events, peer.rule(dialect)?))));
        self.peers_first = Some(firsts.collect());
        self
    }
}
