//! HTTP/1.x on the wire: strict in parsing, exact in forwarding.
//!
//! hyper drops header case and interim responses unless both sides of a proxy use it, and its client returns one chunk
//! per poll. Therefore both sides of an HTTP/1 exchange are implemented here. A [`head`] keeps its fields as received
//! and determines the body's framing; [`body`] decodes and applies that framing.
//!
//! The parser rejects everything that two parties could read differently:
//!
//! * a bare CR or LF, a folded line, white space before a colon;
//! * two lengths, or a length beside a transfer coding;
//! * any coding except `chunked`, or a chunk size that is not plain hexadecimal;
//! * a missing or repeated `Host`.

pub mod body;
mod framing;
mod grpc;
pub mod head;
pub mod head_error;
pub mod head_scan;
mod known_headers;
mod sim_header;

pub use body::BodyDecoder;
pub use framing::Framing;
pub use head::Head;
pub use head_error::HeadError;
pub use known_headers::KnownHeader;
