//! Why a body was forwarded but not understood.

use super::budget::OutOfBudget;
use super::framing::Unframed;
use super::framing::coding::Undecodable;

/// Why a body was forwarded but not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unread {
    /// Its `Content-Encoding` or `grpc-encoding` is unknown, or the bytes do not follow it.
    Coding,
    /// An event outgrew the bound.
    TooLarge,
    /// It is not JSON.
    Malformed,
    /// Understanding more of it would have cost more than its bytes allow: see [`budget`](super::budget).
    Budget,
}

impl From<OutOfBudget> for Unread {
    fn from(_: OutOfBudget) -> Self {
        Self::Budget
    }
}

impl From<Undecodable> for Unread {
    fn from(undecodable: Undecodable) -> Self {
        match undecodable {
            Undecodable::Malformed => Self::Coding,
            Undecodable::OutOfBudget => Self::Budget,
        }
    }
}

impl From<Unframed> for Unread {
    fn from(lost: Unframed) -> Self {
        match lost {
            Unframed::TooLarge => Self::TooLarge,
            Unframed::Malformed => Self::Malformed,
            Unframed::Coding => Self::Coding,
            Unframed::OutOfBudget => Self::Budget,
        }
    }
}

impl Unread {
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
