//! Stands in for the converter without the cargo feature `parquet`.

use std::io;
use std::path::{Path, PathBuf};

pub(super) struct SegmentConverter;

impl SegmentConverter {
    /// # Errors
    /// Always.
    pub(super) fn start(_: Vec<PathBuf>) -> io::Result<Self> {
        let problem = "this program was built without the cargo feature `parquet`; remedy: capture as jsonl";
        Err(io::Error::new(io::ErrorKind::Unsupported, problem))
    }

    pub(super) fn push(&self, _: PathBuf) {}
}

/// # Errors
/// Always.
pub(super) fn convert(_: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
