//! Why a trace cannot be read, and which of its rows are lost.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::header::VERSION;

/// The trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file or folder cannot be opened or read.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The folder has no segments.
    #[error("{} has no trace in it: expected files that end in .jsonl, .jsonl.zst or .parquet", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// The first line is no header.
    #[error(
        "{} is no trace of Streamgauge's: its first line is no header. `streamgauge trace convert` reads the public \
         formats",
        path.display()
    )]
    NotATrace {
        /// The file.
        path: PathBuf,
    },
    /// The damage leaves no readable row.
    #[error("no row can be read: {0}")]
    Damaged(TraceDamage),
    /// A newer version wrote the trace.
    #[error(
        "{} is a trace of version {version}, and this Streamgauge reads them up to {VERSION}: use a newer one",
        path.display()
    )]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// The version in its header.
        version: u64,
    },
    /// A line is not a valid row.
    #[error("{}, line {line}: not a row of a trace: {reason}. Take the line out, or write the trace again", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// The problem; never quotes a value of the row.
        reason: String,
    },
    /// The file contains a second trace.
    #[error("{}, line {line}: another trace begins here. Put each into a file of its own, in one folder", path.display())]
    SecondHeader {
        /// The file.
        path: PathBuf,
        /// Line number of the second header, from 1.
        line: u64,
    },
    /// The segments of a folder have different block schemes.
    #[error(
        "{} has other blocks than the segments before it (--capture-block was changed): read the segments one by one",
        path.display()
    )]
    BlockMismatch {
        /// The first segment that differs.
        path: PathBuf,
    },
}

/// Lost rows of a trace that is otherwise readable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceDamage {
    /// The file.
    pub path: PathBuf,
    /// Number of the frame, from 0; `None` if the file has no frames.
    pub frame: Option<u64>,
    /// The problem.
    pub what: String,
}

impl fmt::Display for TraceDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.frame {
            Some(frame) => write!(f, "{}, frame {frame}: {}", self.path.display(), self.what),
            None => write!(f, "{}: {}", self.path.display(), self.what),
        }
    }
}
