//! HTTP/1.x on the wire: strict about what it accepts, exact about what it passes on.
//!
//! hyper keeps neither the case of header names nor interim responses where only one side of a proxy is its own, and
//! its client hands over one chunk per poll; so both sides of an HTTP/1 exchange are ours. A [`head`] keeps its fields
//! as the bytes they came in and says how its body is framed; [`body`] undoes and puts on that framing.
//!
//! What is refused, because two parties could read it differently: a bare CR or LF, a folded line, white space before
//! a colon, two lengths, a length beside a transfer coding, any coding but `chunked`, a chunk size that is not plain
//! hexadecimal, no or several `Host`.

pub mod body;
mod framing;
mod grpc;
pub mod head;
pub mod head_scan;
mod known_headers;
mod sim_header;

pub use body::BodyDecoder;
pub use framing::Framing;
pub use head::{Head, HeadError};
pub use known_headers::KnownHeader;
