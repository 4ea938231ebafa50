//! Framing: bytes in, borrowed events out.
//!
//! A framer finds the boundaries of events; their meaning is the task of [`dialect`](super::dialect). Its input may
//! be split anywhere, and every split gives the same events. Bytes that cannot be an event are skipped. An event
//! larger than [`MAX_EVENT`] ends the reading of that stream, never its forwarding.
//!
//! * [`SseFramer`] reads the WHATWG event stream (LF, CRLF, CR; comments; multi-line `data`).
//! * [`NdjsonFramer`] reads NDJSON.
//! * [`JsonArrayFramer`] reads the elements of one JSON array that arrives in pieces.
//! * [`EventStreamFramer`], [`GrpcFramer`] read length-prefixed frames.
//! * [`coding`] decodes `Content-Encoding` on the copy, before a framer, and `grpc-encoding` within one.
//!
//! [`Framer`] is one of them, selected by the response's content type.
//!
//! A reply that is one JSON document needs no framer: [`json_scanner`](super::json_scanner) reads it as it streams
//! through.

pub mod coding;
mod eventstream;
mod grpc;
mod json_array;
mod length_prefixed;
mod ndjson;
pub mod sse;

pub use eventstream::EventStreamFramer;
pub use grpc::GrpcFramer;
pub use json_array::JsonArrayFramer;
pub use ndjson::NdjsonFramer;
pub use sse::SseFramer;

use self::coding::MAX_INPUT_BYTES;
use super::work_budget::{OutOfBudget, WorkBudget, price};

/// Largest event to parse, in bytes. Log probabilities and inlined images make events of hundreds of kilobytes. If an
/// event exceeds this, the stream is forwarded but no longer read.
pub const MAX_EVENT: usize = 1 << 20;

/// One event, borrowed from the current read or from the framer's carry buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `event:` field, or the name in a frame's headers; empty without one.
    pub name: &'a [u8],
    /// The payload without framing.
    pub data: &'a [u8],
    /// The payload's kind according to the framing.
    pub mark: PayloadKind,
}

/// Kind of a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PayloadKind {
    /// An ordinary event.
    #[default]
    Plain,
    /// An ordinary event whose payload has just been [recognized](EventReader::recognize).
    Recognized,
    /// An exception (Amazon event stream).
    Exception,
}

/// Takes the events of one stream.
pub trait EventReader {
    /// Takes one event, which the budget has paid for.
    fn event(&mut self, event: Event<'_>, budget: &mut WorkBudget);

    /// Length of the payload at the start of `bytes`, if the reader knows it without a search. The payload then differs
    /// from an earlier payload only in single values. It has no line ends.
    fn recognize(&mut self, _bytes: &[u8]) -> Option<usize> {
        None
    }
}

impl<F: FnMut(Event<'_>, &mut WorkBudget)> EventReader for F {
    fn event(&mut self, event: Event<'_>, budget: &mut WorkBudget) {
        self(event, budget);
    }
}

/// Reason why nothing after this point can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramingError {
    /// An event exceeds [`MAX_EVENT`].
    TooLarge,
    /// The framing is invalid, so the start of the next event is unknown.
    Malformed,
    /// An event's compression is unknown or invalid.
    Coding,
    /// Further reading would exceed the work budget.
    OutOfBudget,
}

impl From<OutOfBudget> for FramingError {
    fn from(_: OutOfBudget) -> Self {
        Self::OutOfBudget
    }
}

/// The framer of one stream.
#[derive(Debug)]
pub enum Framer {
    /// Server-sent events.
    Sse(SseFramer),
    /// NDJSON.
    Lines(NdjsonFramer),
    /// One JSON array.
    Elements(JsonArrayFramer),
    /// An Amazon event stream.
    EventStream(EventStreamFramer),
    /// gRPC messages.
    Grpc(GrpcFramer),
}

impl Framer {
    /// Processes one read; passes to `reader` in order every completed event that the budget covers.
    ///
    /// # Errors
    /// If the framing is invalid or the budget is exhausted. All later reads fail too.
    pub fn push(
        &mut self,
        bytes: &[u8],
        budget: &mut WorkBudget,
        reader: &mut impl EventReader,
    ) -> Result<(), FramingError> {
        budget.charge_bytes(bytes.len(), price::FRAMED_BYTE)?;
        let lines = match self {
            Self::Sse(sse) => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    rest = match sse.split_recognized(rest, |payload| reader.recognize(payload)) {
                        Some((event, rest)) => {
                            pass_paid(event, budget, reader);
                            rest
                        }
                        None => sse.push_event(rest, |event| pass_paid(event, budget, reader))?,
                    };
                }
                sse.take_lines()
            }
            Self::Lines(lines) => {
                lines.push(bytes, |event| pass_paid(event, budget, reader))?;
                lines.take_lines()
            }
            Self::Elements(elements) => elements.push(bytes, |event| pass_paid(event, budget, reader)).map(|()| 0)?,
            Self::EventStream(frames) => {
                frames.push(bytes, budget, |event, budget| pass_paid(event, budget, reader)).map(|()| 0)?
            }
            Self::Grpc(messages) => {
                messages.push(bytes, budget, |event, budget| pass_paid(event, budget, reader)).map(|()| 0)?
            }
        };
        Ok(budget.charge(lines * price::LINE)?)
    }

    /// Bytes that are pushed between two looks at the budget's slice. A message of a few bytes may cost a decoder.
    pub(super) fn piece_bytes(&self) -> usize {
        match self {
            Self::Grpc(_) => 128,
            _ => MAX_INPUT_BYTES,
        }
    }

    /// Ends a cleanly closed body. Returns an event that lacks its end marker if `complete` accepts it. A frame
    /// shorter than its own length is never returned.
    pub fn finish(&mut self, complete: impl Fn(&[u8]) -> bool) -> Option<Event<'_>> {
        match self {
            Self::Sse(sse) => sse.finish(complete),
            Self::Lines(lines) => lines.finish(complete),
            Self::Elements(_) | Self::EventStream(_) | Self::Grpc(_) => None,
        }
    }

    /// True if a length-prefixed frame has started and is incomplete.
    pub fn is_inside_frame(&self) -> bool {
        match self {
            Self::Sse(_) | Self::Lines(_) => false,
            Self::Elements(elements) => elements.is_inside(),
            Self::EventStream(frames) => frames.is_inside(),
            Self::Grpc(messages) => messages.is_inside(),
        }
    }

    /// Comment lines so far.
    pub fn comments(&self) -> u64 {
        if let Self::Sse(sse) = self { sse.comments() } else { 0 }
    }
}

/// Passes an event on if the budget covers it.
fn pass_paid(event: Event<'_>, budget: &mut WorkBudget, reader: &mut impl EventReader) {
    if budget.charge(price::EVENT + event.data.len() as u64 * price::EVENT_BYTE).is_ok() {
        reader.event(event, budget);
    }
}
