//! The party that caused a request to fail: the upstream, the proxy or the client.

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
