//! A head that is still coming: where it ends, and whether it can.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::head::{HeadError, malformed};

/// The place after the empty line that ends a head; `None` if it has not come. `searched` bytes need not be looked at
/// again.
pub fn end_of_head(bytes: &[u8], searched: usize) -> Option<usize> {
    /// To make it takes longer than to find the end of a head.
    static END: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\n\r\n"));
    let from = searched.saturating_sub(3);
    END.find(&bytes[from..]).map(|at| from + at + 4)
}

/// What is wrong already with a request head of which not all has come. Its end may never come: to wait for it would
/// leave the client without a word. `searched` bytes need not be looked at again.
///
/// # Errors
/// [`HeadError::Malformed`].
pub fn check_partial_request(bytes: &[u8], searched: usize) -> Result<(), HeadError> {
    // A CR may yet become an empty line; anything else that is not a method may be TLS.
    if bytes.first().is_some_and(|first| !first.is_ascii_graphic() && *first != b'\r') {
        return Err(malformed(httparse::Error::Token));
    }
    check_partial_lines(bytes, searched)
}

/// The same of a response head, for which a client would wait.
///
/// # Errors
/// [`HeadError::Malformed`].
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

/// What a server of TLS says to a request in clear.
const TLS_ALERT: &[u8] = &[21, 3];

const BARE_CR_OR_LF: HeadError = HeadError::Malformed("a bare CR or LF");

/// Every CR is followed by an LF, and every LF is preceded by a CR.
pub(super) fn check_line_ends(bytes: &[u8]) -> Result<(), HeadError> {
    if has_bare_cr_or_lf(bytes) || bytes.first() == Some(&b'\n') || bytes.last() == Some(&b'\r') {
        return Err(BARE_CR_OR_LF);
    }
    Ok(())
}

/// Whether two bytes that follow each other are a CR without its LF, or an LF without its CR.
fn has_bare_cr_or_lf(bytes: &[u8]) -> bool {
    let pairs = bytes.iter().zip(bytes.get(1..).unwrap_or_default());
    // Without a way out of the loop many bytes are looked at in one step.
    pairs.fold(false, |bare, (one, next)| bare | ((*one == b'\r') != (*next == b'\n')))
}
