//! The files of runs, in folders or as objects below a prefix.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::segment_list::RUN_FILE;
use crate::config::StorageUrl;
use crate::storage::{ObjectReader, find_objects};

/// Opens a file or an object; `None` if there is none of this name.
///
/// # Errors
/// If it cannot be read.
pub fn open_part(path: &Path) -> io::Result<Option<Box<dyn Read>>> {
    match StorageUrl::of_path(path) {
        Some(url) => {
            let object = ObjectReader::open(&url.map_err(io::Error::other)?).map_err(io::Error::other)?;
            Ok(object.map(|object| Box::new(object) as Box<dyn Read>))
        }
        None => match File::open(path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            file => Ok(Some(Box::new(file?))),
        },
    }
}

/// The runs below a prefix of object storage, sorted by name. Empty for a path that is no such prefix, or has no run.
///
/// # Errors
/// If the storage does not answer, or refuses.
pub fn runs_below(path: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(url) = StorageUrl::of_path(path) else { return Ok(Vec::new()) };
    let objects = find_objects(&url.map_err(io::Error::other)?).map_err(io::Error::other)?;
    let paths = objects.iter().map(|object| object.url().to_path());
    Ok(paths.filter(|path| path.ends_with(RUN_FILE)).filter_map(|path| path.parent().map(Path::to_owned)).collect())
}
