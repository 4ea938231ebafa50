//! Why a body was forwarded but not understood.

use super::framing::FramingError;
use super::framing::coding::DecodeError;
use super::work_budget::OutOfBudget;

/// Why a body was forwarded but not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnreadReason {
    /// Its `Content-Encoding` or `grpc-encoding` is unknown, or the bytes do not follow it.
    Coding,
    /// An event outgrew the bound.
    TooLarge,
    /// It is not JSON.
    Malformed,
    /// Understanding more of it would have cost more than its bytes allow: see [`budget`](super::budget).
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
    /// The name it is exported by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Coding => "coding",
            Self::TooLarge => "too_large",
            Self::Malformed => "malformed",
            Self::Budget => "budget",
        }
    }
}
