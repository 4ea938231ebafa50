//! Attributes a failed request to the upstream, the proxy or the client.

use super::record::{Ending, Outcome, RequestRecord};

/// The component that caused a request to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureOrigin {
    /// The server is unreachable, breaks off, or reports an error.
    Upstream,
    /// The proxy hit one of its limits or was shutting down.
    Proxy,
    /// The client sent an unacceptable request or disconnected before the end.
    Client,
}

impl FailureOrigin {
    /// All origins, ordered by discriminant.
    pub const ALL: [Self; 3] = [Self::Upstream, Self::Proxy, Self::Client];

    /// Exported name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Upstream => "upstream",
            Self::Proxy => "proxy",
            Self::Client => "client",
        }
    }
}

impl RequestRecord {
    /// The origin of the failure; `None` if the request did not fail.
    ///
    /// A local reply has its own origin. Otherwise the status takes precedence over the ending: a client that
    /// disconnects during a 503 did not cause the failure.
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
