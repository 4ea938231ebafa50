//! Framing: bytes in, borrowed events out.
//!
//! A framer knows where one event ends and the next begins, and nothing of what an event means (that is
//! [`dialect`](super::dialect)). It is fed whatever the transport delivered, cut anywhere, and gives the same events
//! for every cut. It never fails: bytes that cannot be an event make none, and an event larger than
//! [`MAX_EVENT`] ends the reading of that stream, never its forwarding.
//!
//! * [`Sse`]: the WHATWG event stream (LF, CRLF, CR; comments; `data` in several lines).
//! * [`Lines`], which are NDJSON.
//! * [`Elements`]: the elements of one JSON array that is sent piece by piece.
//! * [`EventStream`], [`Grpc`]: frames that begin with their length.
//! * [`coding`]: `Content-Encoding` undone on the copy, in front of a framer; gRPC's `grpc-encoding` within one.
//!
//! [`Framer`] is one of them, chosen by the response's content type.
//!
//! A reply that is one JSON document needs no framer: [`scan`](super::scan) reads it as it passes.

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

use super::work_budget::{OutOfBudget, WorkBudget, price};

/// The largest event that is understood, in bytes. Log probabilities and inlined images make events of hundreds of
/// kilobytes; a stream whose event grows past this is forwarded but no longer read.
pub const MAX_EVENT: usize = 1 << 20;

/// One dispatched event, borrowed from the read it came in or from the framer's carry buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `event:` field, or the name that a frame's headers give; empty when the stream gave none.
    pub name: &'a [u8],
    /// The payload, without the framing.
    pub data: &'a [u8],
    /// What the framing says of the payload.
    pub mark: PayloadKind,
}

/// What the framing says of a payload, beside its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PayloadKind {
    /// Nothing.
    #[default]
    Plain,
    /// It is an exception (Amazon event stream).
    Exception,
}

/// Why nothing after this point is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramingError {
    /// An event outgrew [`MAX_EVENT`].
    TooLarge,
    /// The bytes are not framed as they should be, and where the next event begins is unknown.
    Malformed,
    /// An event is compressed in a way that is not known, or does not follow it.
    Coding,
    /// Reading more would cost too much.
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
    /// Feeds one read; `each` is called for every event that it completes and the budget can pay for, in order.
    ///
    /// # Errors
    /// Once the bytes cannot be followed or paid for, and for every read after that.
    pub fn push(
        &mut self,
        bytes: &[u8],
        budget: &mut WorkBudget,
        mut each: impl FnMut(Event<'_>, &mut WorkBudget),
    ) -> Result<(), FramingError> {
        budget.charge_bytes(bytes.len(), price::FRAMED_BYTE)?;
        let mut paid = |event: Event<'_>, budget: &mut WorkBudget| {
            if budget.charge(price::EVENT + event.data.len() as u64 * price::EVENT_BYTE).is_ok() {
                each(event, budget);
            }
        };
        match self {
            Self::Sse(sse) => sse.push(bytes, |event| paid(event, budget)),
            Self::Lines(lines) => lines.push(bytes, |event| paid(event, budget)),
            Self::Elements(elements) => elements.push(bytes, |event| paid(event, budget)),
            Self::EventStream(frames) => frames.push(bytes, budget, paid),
            Self::Grpc(messages) => messages.push(bytes, budget, paid),
        }?;
        if budget.is_exhausted() { Err(FramingError::OutOfBudget) } else { Ok(()) }
    }

    /// The body ended cleanly: the event that its end cut short, if it is `complete` for all that. A frame that says
    /// how long it is, and is shorter, never is.
    pub fn finish(&mut self, complete: impl Fn(&[u8]) -> bool) -> Option<Event<'_>> {
        match self {
            Self::Sse(sse) => sse.finish(complete),
            Self::Lines(lines) => lines.finish(complete),
            Self::Elements(_) | Self::EventStream(_) | Self::Grpc(_) => None,
        }
    }

    /// Whether a frame has begun that says how long it is, and is not whole.
    pub fn is_inside_frame(&self) -> bool {
        match self {
            Self::Sse(_) | Self::Lines(_) => false,
            Self::Elements(elements) => elements.is_inside(),
            Self::EventStream(frames) => frames.is_inside(),
            Self::Grpc(messages) => messages.is_inside(),
        }
    }

    /// Comment lines seen so far.
    pub fn comments(&self) -> u64 {
        if let Self::Sse(sse) = self { sse.comments() } else { 0 }
    }
}
