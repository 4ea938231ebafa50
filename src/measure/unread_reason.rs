//! Reasons why a body was forwarded but not read.

use super::framing::FramingError;
use super::framing::coding::DecodeError;
use super::work_budget::OutOfBudget;

/// Reason why a body was forwarded but not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnreadReason {
    /// Its `Content-Encoding` or `grpc-encoding` is unknown, or the bytes violate it.
    Coding,
    /// An event exceeded the size limit.
    TooLarge,
    /// It is not JSON.
    Malformed,
    /// Reading it would have exceeded its [`work_budget`](super::work_budget).
    Budget,
}

impl From<OutOfBudget> for UnreadReason {
    fn from(_: OutOfBudget) -> Self {
        Self::Budget
    }
}

impl From<DecodeError> for UnreadReason {
    fn from(undecodable: DecodeError) -> Self {
        match undecodable {
            DecodeError::Malformed => Self::Coding,
            DecodeError::OutOfBudget => Self::Budget,
        }
    }
}

impl From<FramingError> for UnreadReason {
    fn from(lost: FramingError) -> Self {
        match lost {
            FramingError::TooLarge => Self::TooLarge,
            FramingError::Malformed => Self::Malformed,
            FramingError::Coding => Self::Coding,
            FramingError::OutOfBudget => Self::Budget,
        }
    }
}

impl UnreadReason {
    /// Exported name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Coding => "coding",
            Self::TooLarge => "too_large",
            Self::Malformed => "malformed",
            Self::Budget => "budget",
        }
    }
}
