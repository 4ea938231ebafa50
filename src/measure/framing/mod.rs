//! Framing: bytes in, borrowed events out.
//!
//! A framer knows where one event ends and the next begins, and nothing of what an event means (that is
//! [`dialect`](super::dialect)). It is fed whatever the transport delivered, cut anywhere, and gives the same events
//! for every cut. It never fails: bytes that cannot be an event make none, and an event larger than
//! [`MAX_EVENT`] ends the reading of that stream, never its forwarding.
//!
//! * [`Sse`]: the WHATWG event stream (LF, CRLF, CR; comments; `data` in several lines).
//! * [`coding`]: `Content-Encoding` undone on the copy, in front of a framer.
//!
//! A reply that is one JSON document needs no framer: [`scan`](super::scan) reads it as it passes.

pub mod coding;
pub mod sse;

pub use sse::Sse;

/// The largest event that is understood, in bytes. Log probabilities and inlined images make events of hundreds of
/// kilobytes; a stream whose event grows past this is forwarded but no longer read.
pub const MAX_EVENT: usize = 1 << 20;

/// One dispatched event, borrowed from the read it came in or from the framer's carry buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `event:` field; empty when the stream gave none.
    pub name: &'a [u8],
    /// The payload, without the framing.
    pub data: &'a [u8],
}

/// The stream outgrew [`MAX_EVENT`]: nothing after this point is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;
