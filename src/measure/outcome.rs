//! How a byte stream ended, and what that means for the request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the byte stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The upstream body ended according to its framing.
    Complete,
    /// The client disconnected first.
    DownstreamGone,
    /// The upstream was unreachable, or closed or reset the connection before the end of the body.
    UpstreamFailed,
    /// A time limit of the proxy ended it, or the process stopped.
    TimedOut,
}

impl Ending {
    /// Written name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::DownstreamGone => "downstream_gone",
            Self::UpstreamFailed => "upstream_failed",
            Self::TimedOut => "timed_out",
        }
    }
}

/// Outcome of a request, decided by [`Outcome::decide`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The client received a complete answer.
    Success,
    /// The upstream stopped before the reply was finished.
    Truncated,
    /// The client disconnected before the reply was finished.
    Cancelled,
    /// Rejected with a 4xx status.
    Refused,
    /// A 5xx status, an error within the stream, or no response.
    Failed,
}

impl Outcome {
    /// Decides the outcome. `status` is `None` without a response head. `declared` means that the reply marked its
    /// own end: a finish reason for every choice, or the dialect's terminal event. `finished` is also true for a
    /// reply without such marks whose framing ended cleanly.
    ///
    /// A client that closes after that mark has its complete answer. OpenAI's client closes at `[DONE]` without
    /// waiting for the end of the body; others close at the finish reason.
    pub fn decide(ending: Ending, status: Option<u16>, fault: bool, finished: bool, declared: bool) -> Self {
        match (ending, status) {
            (Ending::DownstreamGone, Some(200..=299)) if declared && !fault => Self::Success,
            (Ending::DownstreamGone, _) => Self::Cancelled,
            (Ending::TimedOut, _) | (_, None | Some(500..)) => Self::Failed,
            (_, Some(400..=499)) => Self::Refused,
            _ if fault => Self::Failed,
            (Ending::UpstreamFailed, _) => Self::Truncated,
            (Ending::Complete, _) if finished => Self::Success,
            (Ending::Complete, _) => Self::Truncated,
        }
    }

    /// Exported name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Truncated => "truncated",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_follows_the_table() {
        use Ending::*;
        use Outcome::*;
        let decide = Outcome::decide;
        assert_eq!(decide(Complete, Some(200), false, true, true), Success);
        assert_eq!(decide(Complete, Some(200), false, true, false), Success);
        assert_eq!(decide(Complete, Some(200), false, false, false), Truncated);
        assert_eq!(decide(Complete, Some(200), true, true, true), Failed);
        assert_eq!(decide(Complete, Some(404), true, true, false), Refused);
        assert_eq!(decide(Complete, Some(503), true, true, false), Failed);
        assert_eq!(decide(UpstreamFailed, Some(200), false, false, false), Truncated);
        assert_eq!(decide(UpstreamFailed, None, false, false, false), Failed);
        assert_eq!(decide(DownstreamGone, Some(200), false, true, false), Cancelled);
        assert_eq!(decide(DownstreamGone, Some(200), false, true, true), Success);
        assert_eq!(decide(DownstreamGone, Some(200), true, true, true), Cancelled);
        assert_eq!(decide(DownstreamGone, None, false, false, false), Cancelled);
        assert_eq!(decide(TimedOut, None, false, false, false), Failed);
    }
}
