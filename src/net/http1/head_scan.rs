//! Scans a partially received head for its end and for early errors.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::head_error::{HeadError, malformed};

/// Returns the position after the empty line that ends a head, or `None` if it has not arrived. The first `searched`
/// bytes were scanned before.
pub fn end_of_head(bytes: &[u8], searched: usize) -> Option<usize> {
    /// Building a finder costs more than one search.
    static END: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\n\r\n"));
    let from = searched.saturating_sub(3);
    END.find(&bytes[from..]).map(|at| from + at + 4)
}

/// Rejects a partial request head that can never become valid. Without the check the client would wait for a reply that
/// never comes. The first `searched` bytes were scanned before.
///
/// # Errors
/// Returns [`HeadError::Malformed`] for the first error.
pub fn check_partial_request(bytes: &[u8], searched: usize) -> Result<(), HeadError> {
    // A CR may start an empty line; any other byte that cannot start a method may be TLS.
    if bytes.first().is_some_and(|first| !first.is_ascii_graphic() && *first != b'\r') {
        return Err(malformed(httparse::Error::Token));
    }
    check_partial_lines(bytes, searched)
}

/// Rejects a partial response head that can never become valid. The first `searched` bytes were scanned before.
///
/// # Errors
/// Returns [`HeadError::Malformed`] for the first error.
pub fn check_partial_response(bytes: &[u8], searched: usize) -> Result<(), HeadError> {
    let is_http = bytes.iter().zip(b"HTTP/1.").all(|(byte, expected)| byte == expected);
    if bytes.starts_with(TLS_ALERT) {
        return Err(HeadError::Malformed("it is of TLS: try https://"));
    }
    if !is_http && bytes.first() != Some(&b'\r') {
        return Err(malformed(httparse::Error::Version));
    }
    check_partial_lines(bytes, searched)
}

fn check_partial_lines(bytes: &[u8], searched: usize) -> Result<(), HeadError> {
    let fresh = bytes.get(searched.saturating_sub(1)..).unwrap_or_default();
    if has_bare_cr_or_lf(fresh) { Err(BARE_CR_OR_LF) } else { Ok(()) }
}

/// A TLS server's alert in reply to a plain-text request.
const TLS_ALERT: &[u8] = &[21, 3];

const BARE_CR_OR_LF: HeadError = HeadError::Malformed("a bare CR or LF");

/// Requires an LF after every CR and a CR before every LF.
pub(super) fn check_line_ends(bytes: &[u8]) -> Result<(), HeadError> {
    if has_bare_cr_or_lf(bytes) || bytes.first() == Some(&b'\n') || bytes.last() == Some(&b'\r') {
        return Err(BARE_CR_OR_LF);
    }
    Ok(())
}

/// Returns `true` if adjacent bytes hold a CR without its LF or an LF without its CR.
fn has_bare_cr_or_lf(bytes: &[u8]) -> bool {
    let pairs = bytes.iter().zip(bytes.get(1..).unwrap_or_default());
    // A loop without an early exit is vectorized.
    pairs.fold(false, |bare, (one, next)| bare | ((*one == b'\r') != (*next == b'\n')))
}
