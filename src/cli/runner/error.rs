//! Why a run did not start.

use crate::cli::exit_code::{EXIT_INVALID_RUN, EXIT_USAGE};

/// Why nothing was sent.
pub(in crate::cli) enum SetupError {
    Usage(anyhow::Error),
    Unreachable(String),
    Machine(String),
}

impl SetupError {
    /// The error message and the exit code.
    pub(in crate::cli) fn message_and_exit_code(&self) -> (String, u8) {
        match self {
            Self::Usage(error) => (format!("error: {error:#}"), EXIT_USAGE),
            Self::Unreachable(message) | Self::Machine(message) => (format!("error: {message}"), EXIT_INVALID_RUN),
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for SetupError {
    fn from(error: E) -> Self {
        Self::Usage(error.into())
    }
}
