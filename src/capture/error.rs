//! The error of a capture that cannot start.

use std::io;
use std::path::{Path, PathBuf};

/// The capture cannot start in `folder`.
#[derive(Debug, thiserror::Error)]
#[error("cannot capture into {} (--capture): {error}", folder.display())]
pub struct CaptureError {
    folder: PathBuf,
    error: io::Error,
}

impl CaptureError {
    /// The folder is unusable because of `error`.
    pub fn new(folder: &Path, error: io::Error) -> Self {
        Self { folder: folder.to_owned(), error }
    }

    /// True if another process holds the folder's lock. A retry may succeed after that process exits.
    pub fn is_busy(&self) -> bool {
        self.error.kind() == io::ErrorKind::ResourceBusy
    }
}
