//! The cursor of a reader that polls: a process, and a position in its data.

use std::fmt;

/// Written as `RUN-POSITION`, where `RUN` is the start of the process in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) run: u64,
    pub(super) at: u64,
}

impl Cursor {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (run, at) = text.split_once('-')?;
        Some(Self { run: run.parse().ok()?, at: at.parse().ok()? })
    }

    /// Returns the position, unless the cursor is of another process.
    pub(super) fn of_run(self, run: u64) -> Option<u64> {
        (self.run == run).then_some(self.at)
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.run, self.at)
    }
}
