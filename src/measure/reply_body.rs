//! How the body of a reply is read: its framing by content type, and where its events and fields go.

use super::dialect::{self, DialectReader, ReplyField, field, leads};
use super::event_observer::EventObserver;
use super::framing::coding::Decoder;
use super::framing::{
    Event, EventReader, EventStreamFramer, Framer, GrpcFramer, JsonArrayFramer, NdjsonFramer, SseFramer,
};
use super::json_scanner::{JsonScanner, Scalar, ScanFields};
use super::record::RecordTimes;
use super::shape::RequestShape;
use super::stream_stats::{EventEffect, StreamStats};
use super::text_collector::TextCollector;
use super::time::{Gap, Stamp};
use super::timeline::TokenTimeline;
use super::work_budget::{WorkBudget, price};

/// The relevant parts of the response head. Values are raw bytes; empty if the header is absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseHead<'a> {
    /// Status code.
    pub status: u16,
    /// `Content-Type`.
    pub content_type: &'a [u8],
    /// `Content-Encoding`, or `grpc-encoding` for a gRPC [`content_type`](Self::content_type).
    pub content_encoding: &'a [u8],
}

impl ResponseHead<'_> {
    /// True if the body is one JSON document.
    pub(super) fn is_json(&self) -> bool {
        is_json(media_type(self.content_type))
    }
}

/// How the response body is read.
pub(super) enum ReplyBodyState {
    /// Not at all: plain HTTP, or the observer has stopped reading.
    Opaque,
    Events {
        decoder: Option<Box<Decoder>>,
        framer: Framer,
        reader: Box<dyn DialectReader>,
    },
    Document {
        decoder: Option<Box<Decoder>>,
        scan: Box<JsonScanner>,
        fields: &'static [(&'static str, ReplyField)],
        reply: Box<dialect::ReplyDocument>,
    },
}

/// Takes the events of a reply that arrived at `at`.
pub(super) struct ReplyEvents<'a, W> {
    pub(super) reader: &'a mut dyn DialectReader,
    pub(super) at: Stamp,
    pub(super) watch: &'a mut W,
    pub(super) tally: &'a mut StreamStats,
    pub(super) times: &'a mut RecordTimes,
    pub(super) timeline: Option<&'a mut TokenTimeline>,
    pub(super) limits: &'a [Gap],
    pub(super) text: &'a mut Option<Box<TextCollector>>,
}

impl<W: EventObserver> EventReader for ReplyEvents<'_, W> {
    fn event(&mut self, event: Event<'_>, budget: &mut WorkBudget) {
        let meaning = self.tally.event(&event, self.at, self.reader, self.watch);
        self.note(meaning);
        if meaning.is_token() {
            self.collect(&event, budget);
        }
    }

    fn recognize(&mut self, bytes: &[u8]) -> Option<usize> {
        self.reader.recognize(bytes)
    }
}

impl<W> ReplyEvents<'_, W> {
    /// Updates the times for one event.
    fn note(&mut self, meaning: EventEffect) {
        let (at, times) = (self.at, &mut *self.times);
        if meaning.evidence {
            times.first_evidence.get_or_insert(at);
        }
        if meaning.reasoning {
            times.first_reasoning.get_or_insert(at);
        }
        if meaning.output {
            times.first_output.get_or_insert(at);
        }
        if meaning.is_token() {
            times.first_token.get_or_insert(at);
            times.last_token = Some(at);
            if let Some(timeline) = &mut self.timeline {
                timeline.push(at, meaning.tokens, self.limits);
            }
        }
    }

    /// Collects the text of an event. Collection stops when it exceeds its bounds.
    fn collect(&mut self, event: &Event<'_>, budget: &mut WorkBudget) {
        if let Some(collector) = self.text
            && (budget.charge_bytes(event.data.len(), price::EVENT_BYTE).is_err()
                || collector.event(event.data).is_err())
        {
            *self.text = None;
        }
    }
}

/// The wanted fields of a reply in one JSON document.
pub(super) struct ReplyFields<'a, W> {
    pub(super) fields: &'static [(&'static str, ReplyField)],
    pub(super) reply: &'a mut dialect::ReplyDocument,
    pub(super) tally: &'a mut StreamStats,
    pub(super) watch: &'a mut W,
}

impl<W: EventObserver> ScanFields for ReplyFields<'_, W> {
    fn wants(&self, path: &[u8]) -> bool {
        field(self.fields, path).is_some()
    }

    fn is_prefix_of_wanted(&self, path: &[u8]) -> bool {
        leads(self.fields, path)
    }

    fn scalar(&mut self, path: &[u8], index: u32, scalar: Scalar<'_>) {
        if let Some(field) = field(self.fields, path) {
            self.tally.scalar(self.reply, field, index, scalar, self.watch);
        }
    }
}

/// A `Content-Type` without its parameters.
fn media_type(content_type: &[u8]) -> &[u8] {
    let end = memchr::memchr(b';', content_type).unwrap_or(content_type.len());
    content_type[..end].trim_ascii()
}

fn is_json(essence: &[u8]) -> bool {
    let ends = |suffix: &[u8]| {
        essence.len() >= suffix.len() && essence[essence.len() - suffix.len()..].eq_ignore_ascii_case(suffix)
    };
    ends(b"/json") || ends(b"+json")
}

/// The framer of a stream; `None` for other bodies.
pub(super) fn framer(shape: &RequestShape, head: ResponseHead<'_>) -> Option<Framer> {
    match (media_type(head.content_type), shape.dialect) {
        (b"", Some(dialect)) if shape.stream == Some(true) => framer_of(dialect.content_type.as_bytes(), shape, head),
        (essence, _) => framer_of(essence, shape, head),
    }
}

fn framer_of(essence: &[u8], shape: &RequestShape, head: ResponseHead<'_>) -> Option<Framer> {
    let is = |name: &str| essence.eq_ignore_ascii_case(name.as_bytes());
    let loose_json = shape.dialect.is_some_and(|dialect| dialect.loose_json);
    if is("text/event-stream") {
        Some(Framer::Sse(if loose_json { SseFramer::with_bare_json() } else { SseFramer::new() }))
    } else if is("application/x-ndjson") || is("application/ndjson") || is("application/jsonl") {
        Some(Framer::Lines(NdjsonFramer::default()))
    } else if is("application/vnd.amazon.eventstream") {
        Some(Framer::EventStream(EventStreamFramer::default()))
    } else if is("application/grpc") || is("application/grpc+proto") {
        // Without a dialect, the messages of a call have no known meaning.
        shape.dialect.map(|_| Framer::Grpc(GrpcFramer::encoded(head.content_encoding)))
    } else if loose_json && is_json(essence) && shape.stream == Some(true) && matches!(head.status, 200..=299) {
        Some(Framer::Elements(JsonArrayFramer::default()))
    } else {
        None
    }
}
