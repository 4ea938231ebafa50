//! The proxy's side of the capture: what the configuration asks for, started; and its counts among the telemetry.

pub use crate::capture::recorder::{Capture, Followed, Following};

use crate::capture::counts::{Counts, Fate};
use crate::capture::recorder::{CaptureError, SessionField, Settings};
use crate::capture::segments::Retention;
use crate::clock::Clock;
use crate::config::{self, SessionKey};

use super::catalog::Id;
use super::snapshot::{Data, Snapshot};
use super::tokenizing::{TokenizerError, of_capture};

/// Why there is no capture.
#[derive(Debug, thiserror::Error)]
pub enum CannotCapture {
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
pub fn start(config: &config::Capture, clock: Clock, successor: bool) -> Result<Option<Capture>, CannotCapture> {
    let Some(folder) = config.folder.clone() else { return Ok(None) };
    let tokens = config.tokenizer.as_deref().map(of_capture).transpose()?;
    let session = match &config.session {
        SessionKey::Inferred => None,
        SessionKey::Header(name) => Some(SessionField::Header(name.clone())),
        SessionKey::Body(path) => Some(SessionField::Body(path.clone())),
    };
    let settings = Settings {
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
    let start = if successor { Capture::take_over } else { Capture::start };
    Ok(Some(start(settings, tokens, clock)?))
}

/// Whether the capture that is configured could be written, tokenizer aside. Nothing is left behind.
///
/// # Errors
/// When the folder or its key cannot be used.
pub fn check(config: &config::Capture) -> Result<(), CannotCapture> {
    let Some(folder) = &config.folder else { return Ok(()) };
    Ok(Capture::check(folder, config.key.as_deref())?)
}

/// Adds the counts to a snapshot: all of them from the start, so that the first loss is an increase.
pub(super) fn observe(counts: &Counts, snapshot: &mut Snapshot, created: u64) {
    for ((outcome, reason), records) in Fate::NAMES.into_iter().zip(counts.records()) {
        snapshot.observe(Id::CaptureRecords, [outcome.into(), reason.into()], created, Data::Count(records));
    }
    snapshot.observe(Id::CaptureSize, [], created, Data::Count(counts.bytes()));
    let waiting = i64::try_from(counts.waiting()).unwrap_or(i64::MAX);
    snapshot.observe(Id::CaptureQueue, [], created, Data::Level(waiting));
}
