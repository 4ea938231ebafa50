//! Starts the configured capture.

use std::io;

use crate::capture::key::CaptureKey;
use crate::capture::recorder::{CaptureError, CaptureRecorder};
use crate::capture::retention::Retention;
use crate::capture::settings::{CaptureSettings, SessionField};
use crate::capture::upload_target::UploadTarget;
use crate::clock::Clock;
use crate::config::{self, SessionKey};
use crate::storage::Bucket;

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

/// Starts the capture if one is configured. `instance` names this process in a bucket. A `successor` writes beside the
/// process that it replaces.
///
/// # Errors
/// Returns an error if the folder, its key or the tokenizer is unusable.
pub fn start(
    config: &config::CaptureConfig,
    instance: &str,
    clock: Clock,
    successor: bool,
) -> Result<Option<CaptureRecorder>, CaptureStartError> {
    let Some(folder) = config.folder().map(Into::into) else { return Ok(None) };
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
        sample: config.sample,
        parquet: config.format == config::CaptureFormat::Parquet,
        upload: config.bucket().map(|url| UploadTarget { url: url.clone(), instance: instance.to_owned() }),
        session,
        retention: Retention { bytes: config.keep_bytes as u64, age: config.keep_age },
    };
    let start = if successor { CaptureRecorder::take_over } else { CaptureRecorder::start };
    Ok(Some(start(settings, tokens, clock)?))
}

/// Returns the key for digests of API keys: the capture's, else a random one. Labels and captured rows then agree
/// between instances that share a key file.
///
/// # Errors
/// Returns an error if the key is unusable.
pub fn class_key(config: &config::ProxyConfig) -> Result<CaptureKey, CaptureStartError> {
    let capture = &config.capture;
    match capture.folder() {
        Some(folder) if config.classes.needs_key() => {
            let load = CaptureKey::load_or_create(folder, capture.key.as_deref());
            Ok(load.map_err(|error| CaptureError::new(folder, error))?)
        }
        _ => Ok(CaptureKey::random()),
    }
}

/// Checks that the configured capture could be written, except for its tokenizer. Leaves no files behind.
///
/// # Errors
/// Returns an error if the folder or its key is unusable.
pub fn check(config: &config::CaptureConfig) -> Result<(), CaptureStartError> {
    let Some(folder) = config.folder() else { return Ok(()) };
    if let Some(url) = config.bucket() {
        Bucket::open(url).map_err(|error| CaptureError::new(&url.to_path(), io::Error::other(error)))?;
    }
    Ok(CaptureRecorder::check(folder, config.key.as_deref())?)
}
