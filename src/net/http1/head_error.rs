//! Reasons for rejecting a message head, and its limits.

/// Maximum size of a head, in bytes. Inference clients send a token and a few identifiers; the rest is for gateways'
/// cookies and signed credentials.
pub const MAX_HEAD: usize = 64 * 1024;
/// Maximum number of fields in a head or a trailer section. Parsing takes 32 bytes of stack per field.
pub const MAX_FIELDS: usize = 1_024;

/// Reason for rejecting a head. The text names the problem and never quotes the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// The head exceeds [`MAX_HEAD`] or [`MAX_FIELDS`].
    #[error("the head is larger than {MAX_HEAD} bytes or has more than {MAX_FIELDS} fields")]
    TooLarge,
    /// The head is not strict HTTP/1.x.
    #[error("malformed head: {0}")]
    Malformed(&'static str),
    /// The body's length is ambiguous.
    #[error("ambiguous body length: {0}")]
    Ambiguous(&'static str),
    /// The transfer coding is not `chunked`.
    #[error("a transfer coding other than `chunked`")]
    UnknownCoding,
}

pub(super) fn malformed(error: httparse::Error) -> HeadError {
    HeadError::Malformed(match error {
        httparse::Error::TooManyHeaders => return HeadError::TooLarge,
        httparse::Error::HeaderName => "a field name that is not a token, or a folded line",
        httparse::Error::HeaderValue => "a control character in a field value",
        httparse::Error::NewLine => "a line that does not end with CR LF",
        httparse::Error::Status => "a status that is not a number",
        httparse::Error::Token => "a method that is not a token, or a target with a forbidden character",
        httparse::Error::Version => "a version that is not HTTP/1.0 or HTTP/1.1",
    })
}
