//! When a request's client leaves.

use crate::measure::time::Gap;

/// The point at which the client disconnects before the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClientAbort {
    /// After this many output tokens.
    Tokens(u64),
    /// This long after the request was sent.
    After(Gap),
}
