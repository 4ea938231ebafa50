//! Why a capture cannot begin.

use std::io;
use std::path::{Path, PathBuf};

/// Why there can be no capture.
#[derive(Debug, thiserror::Error)]
#[error("cannot capture into {} (--capture): {error}", folder.display())]
pub struct CaptureError {
    folder: PathBuf,
    error: io::Error,
}

impl CaptureError {
    pub(super) fn new(folder: &Path, error: io::Error) -> Self {
        Self { folder: folder.to_owned(), error }
    }

    /// Whether another process captures there, which may end.
    pub fn is_busy(&self) -> bool {
        self.error.kind() == io::ErrorKind::ResourceBusy
    }
}
