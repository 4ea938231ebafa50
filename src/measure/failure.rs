//! Whose fault it is that a request failed.

use super::record::{Ending, Outcome, RequestRecord};

/// Whose fault it is that a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureOrigin {
    /// The server cannot be reached, breaks off, or reports an error.
    Upstream,
    /// A limit of ours, or our stopping.
    Proxy,
    /// The client asks for what cannot be had, or leaves before the end.
    Client,
}

impl FailureOrigin {
    /// All origins, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Upstream, Self::Proxy, Self::Client];

    /// The name under which the origin is exported.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Upstream => "upstream",
            Self::Proxy => "proxy",
            Self::Client => "client",
        }
    }
}

impl RequestRecord {
    /// Whose fault the failure is; `None` if the request did not fail.
    ///
    /// A local reply knows its origin. Otherwise a status counts before the way the bytes stopped: a client that leaves
    /// in the middle of a 503 is not why the request failed.
    pub fn failure_origin(&self) -> Option<FailureOrigin> {
        match (self.outcome, self.ending, self.status) {
            _ if self.local_reply.is_some() => self.local_reply,
            (Outcome::Success, ..) => None,
            (_, _, Some(500..)) => Some(FailureOrigin::Upstream),
            (_, _, Some(400..=499)) | (_, Ending::DownstreamGone, _) => Some(FailureOrigin::Client),
            (_, Ending::TimedOut, _) => Some(FailureOrigin::Proxy),
            (_, Ending::UpstreamFailed | Ending::Complete, _) => Some(FailureOrigin::Upstream),
        }
    }
}
