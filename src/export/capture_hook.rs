//! Starts the configured capture and exports its counters.

pub use crate::capture::recorder::{CaptureHandle, CaptureRecorder, CapturedRequest};

use crate::capture::recorder::{CaptureError, CaptureSettings, SessionField};
use crate::capture::segments::Retention;
use crate::capture::stats::{CaptureStats, RecordOutcome};
use crate::clock::Clock;
use crate::config::{self, SessionKey};

use super::catalog::Id;
use super::snapshot::{PointValue, Snapshot};
use super::token_counter::{TokenizerError, load_capture_tokenizer};

/// Reason why the capture cannot start.
#[derive(Debug, thiserror::Error)]
pub enum CaptureStartError {
    /// The folder or its key is unusable.
    #[error(transparent)]
    Folder(#[from] CaptureError),
    /// The tokenizer is unusable.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// Starts the capture if one is configured. A `successor` writes beside the process that it replaces.
///
/// # Errors
/// Returns an error if the folder, its key or the tokenizer is unusable.
pub fn start(
    config: &config::CaptureConfig,
    clock: Clock,
    successor: bool,
) -> Result<Option<CaptureRecorder>, CaptureStartError> {
    let Some(folder) = config.folder.clone() else { return Ok(None) };
    let tokens = config.tokenizer.as_deref().map(load_capture_tokenizer).transpose()?;
    let session = match &config.session {
        SessionKey::Inferred => None,
        SessionKey::Header(name) => Some(SessionField::Header(name.clone())),
        SessionKey::Body(path) => Some(SessionField::Body(path.clone())),
    };
    let settings = CaptureSettings {
        folder,
        flush: config.flush,
        round: config.round,
        key: config.key.clone(),
        rotate: config.rotate,
        block: config.block,
        names: config.names,
        session,
        retention: Retention { bytes: config.keep_bytes as u64, age: config.keep_age },
    };
    let start = if successor { CaptureRecorder::take_over } else { CaptureRecorder::start };
    Ok(Some(start(settings, tokens, clock)?))
}

/// Checks that the configured capture could be written, except for its tokenizer. Leaves no files behind.
///
/// # Errors
/// Returns an error if the folder or its key is unusable.
pub fn check(config: &config::CaptureConfig) -> Result<(), CaptureStartError> {
    let Some(folder) = &config.folder else { return Ok(()) };
    Ok(CaptureRecorder::check(folder, config.key.as_deref())?)
}

/// Adds the counters to a snapshot. All exist from the start, so that the first loss is a visible increase.
pub(super) fn observe(counts: &CaptureStats, snapshot: &mut Snapshot, created: u64) {
    for ((outcome, reason), records) in RecordOutcome::LABELS.into_iter().zip(counts.records()) {
        snapshot.observe(Id::CaptureRecords, [outcome.into(), reason.into()], created, PointValue::Count(records));
    }
    snapshot.observe(Id::CaptureSize, [], created, PointValue::Count(counts.bytes()));
    let waiting = i64::try_from(counts.queued()).unwrap_or(i64::MAX);
    snapshot.observe(Id::CaptureQueue, [], created, PointValue::Gauge(waiting));
}
