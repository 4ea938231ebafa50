//! Settings of a capture: folder, key, blocks, sessions, limits.

use std::path::PathBuf;

use super::retention::Retention;
use super::upload_target::UploadTarget;
use crate::measure::sample_share::SampleShare;
use crate::measure::time::Gap;

/// Settings of a capture.
#[derive(Clone, Debug)]
pub struct CaptureSettings {
    /// The capture folder.
    pub folder: PathBuf,
    /// Maximum time between a request's end and the write of its row.
    pub flush: Gap,
    /// Times are rounded to multiples of this; zero disables rounding.
    pub round: Gap,
    /// Key file to use instead of the folder's own key.
    pub key: Option<PathBuf>,
    /// Derive a new key each day.
    pub rotate: bool,
    /// Block length, in tokens if there is a tokenizer, else in bytes.
    pub block: usize,
    /// Successes before a model name is written.
    pub names: usize,
    /// Share of sessions to keep.
    pub sample: SampleShare,
    /// Where requests carry their session id.
    pub session: Option<SessionField>,
    /// True if closed segments are rewritten as Parquet.
    pub parquet: bool,
    /// Where closed segments are uploaded; `None` keeps them in the folder.
    pub upload: Option<UploadTarget>,
    /// Limits on stored segments.
    pub retention: Retention,
}

/// Where requests carry their session id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionField {
    /// In the header of this name.
    Header(String),
    /// In this field of the body, a path of keys.
    Body(String),
}

/// Maximum delay before a request reaches the capture: a tenth of the flush interval.
pub(super) fn handover_delay(flush: Gap) -> Gap {
    Gap::from_nanos(flush.as_nanos() / 10)
}
