//! The proxy's side of the capture: what the configuration asks for, started; and its counts among the telemetry.

pub use crate::capture::recorder::{CaptureHandle, CaptureRecorder, CapturedRequest};

use crate::capture::recorder::{CaptureError, CaptureSettings, SessionField};
use crate::capture::segments::Retention;
use crate::capture::stats::{CaptureStats, RecordOutcome};
use crate::clock::Clock;
use crate::config::{self, SessionKey};

use super::catalog::Id;
use super::snapshot::{PointValue, Snapshot};
use super::token_counter::{TokenizerError, load_capture_tokenizer};

/// Why there is no capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureStartError {
    /// The folder or its key cannot be used.
    #[error(transparent)]
    Folder(#[from] CaptureError),
    /// The tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// Begins to capture, if that is configured; as a `successor` beside the process that it takes over from.
///
/// # Errors
/// When the folder, its key or the tokenizer cannot be used.
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

/// Whether the capture that is configured could be written, tokenizer aside. Nothing is left behind.
///
/// # Errors
/// When the folder or its key cannot be used.
pub fn check(config: &config::CaptureConfig) -> Result<(), CaptureStartError> {
    let Some(folder) = &config.folder else { return Ok(()) };
    Ok(CaptureRecorder::check(folder, config.key.as_deref())?)
}

/// Adds the counts to a snapshot: all of them from the start, so that the first loss is an increase.
pub(super) fn observe(counts: &CaptureStats, snapshot: &mut Snapshot, created: u64) {
    for ((outcome, reason), records) in RecordOutcome::LABELS.into_iter().zip(counts.records()) {
        snapshot.observe(Id::CaptureRecords, [outcome.into(), reason.into()], created, PointValue::Count(records));
    }
    snapshot.observe(Id::CaptureSize, [], created, PointValue::Count(counts.bytes()));
    let waiting = i64::try_from(counts.queued()).unwrap_or(i64::MAX);
    snapshot.observe(Id::CaptureQueue, [], created, PointValue::Gauge(waiting));
}
