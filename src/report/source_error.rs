//! Why a report's source cannot be read.

use std::path::PathBuf;

use super::accumulate::TooManySlices;
use super::peer_files::error::PeerFileError;
use super::peer_files::summary::PeerSummary;
use crate::trace_file::gaps::GapsError;
use crate::trace_file::reader::ReadError;
use crate::trace_file::segment_list::RECORDS_FILE;

/// Reason why a source cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The rows cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The run file cannot be read.
    #[error("cannot read {}: {reason}. Without the file the records can still be read: name {RECORDS_FILE} itself", path.display())]
    Run {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
    /// The server metrics cannot be read.
    #[error("cannot read {}: {reason}. Without the file there is a report of the requests alone", path.display())]
    Scrapes {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
    /// A row's gaps cannot be decoded.
    #[error("{}, request {number}: {reason}. Take the row out, or write the trace again", path.display())]
    Gaps {
        /// Path of the source.
        path: PathBuf,
        /// Row number from 1, without the header.
        number: u64,
        /// Cause.
        reason: GapsError,
    },
    /// Two runs are not shards of one plan.
    #[error(
        "{other} is no shard of the plan of {first}: {reason}. `streamgauge compare {first} -- {other}` compares them"
    )]
    NotOnePlan {
        /// Path of the first source.
        first: String,
        /// Path of the other source.
        other: String,
        /// The first difference.
        reason: String,
    },
    /// The report would have too many slices.
    #[error(transparent)]
    Slices(#[from] TooManySlices),
    /// A result file of another tool cannot be read.
    #[error(transparent)]
    Peer(#[from] PeerFileError),
    /// A result file has figures without requests.
    #[error("{}: it is only a summary, with no distribution; remedy: {}", .0.path, .0.remedy)]
    OnlySummary(Box<PeerSummary>),
}
