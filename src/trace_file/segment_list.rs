//! The segments of a trace: the files of a folder, or the objects below a prefix.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::read_error::ReadError;
use crate::config::StorageUrl;
use crate::measure::calendar::of_moment;
use crate::storage::find_objects;

/// Its presence marks a folder as the folder of a run.
pub const RUN_FILE: &str = "run.json";

/// File name of a run's rows.
pub const RECORDS_FILE: &str = "records.jsonl.zst";

/// Begin of the name of an instance's folder in a bucket.
pub const INSTANCE_PREFIX: &str = "instance=";
/// End of the name of a segment in Parquet.
pub const PARQUET_SUFFIX: &str = ".parquet";
/// End of the name of a segment in frames of JSON Lines.
pub const SEGMENT_SUFFIX: &str = ".jsonl.zst";

/// The path of a segment's rows as Parquet; `None` if the file is no segment in frames.
pub fn parquet_of(segment: &Path) -> Option<PathBuf> {
    let name = segment.file_name()?.to_str()?.strip_suffix(SEGMENT_SUFFIX)?;
    Some(segment.with_file_name(format!("{name}{PARQUET_SUFFIX}")))
}

/// The path of the frames that a segment in Parquet was made of; `None` if the file is no such segment.
pub fn frames_of(parquet: &Path) -> Option<PathBuf> {
    let name = parquet.file_name()?.to_str()?.strip_suffix(PARQUET_SUFFIX)?;
    Some(parquet.with_file_name(format!("{name}{SEGMENT_SUFFIX}")))
}

/// The start that the name of a segment in a bucket begins with, in nanoseconds since 1970.
pub(super) fn start_of(segment: &Path) -> Option<u64> {
    of_moment(segment.file_name()?.to_str()?.split_once('-')?.0)
}

/// Name of the instance whose folder in a bucket has this segment.
pub fn instance_of(segment: &Path) -> Option<&str> {
    segment.parent()?.file_name()?.to_str()?.strip_prefix(INSTANCE_PREFIX)
}

/// The segments below a prefix of a bucket, in reading order, if each is in the folder of an instance; else none.
///
/// # Errors
/// If the storage does not answer, or nothing is there.
pub fn segments_of_instances(path: &Path) -> Result<Vec<PathBuf>, ReadError> {
    if StorageUrl::of_path(path).is_none() {
        return Ok(Vec::new());
    }
    let found = segments(path)?;
    Ok(if found.iter().all(|segment| instance_of(segment).is_some()) { found } else { Vec::new() })
}

/// The segments of each instance below a prefix of a bucket, by the instance's name, if they are of several.
///
/// # Errors
/// If the storage does not answer, or nothing is there.
pub fn instances(path: &Path) -> Result<BTreeMap<String, Vec<PathBuf>>, ReadError> {
    let mut found = BTreeMap::<String, Vec<PathBuf>>::new();
    for segment in segments_of_instances(path)? {
        let instance = instance_of(&segment).unwrap_or_default().to_owned();
        found.entry(instance).or_default().push(segment);
    }
    Ok(if found.len() > 1 { found } else { BTreeMap::new() })
}

/// The files of a trace, in reading order.
pub(super) fn segments(path: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let failed = |error| ReadError::Io { path: path.to_owned(), error };
    if let Some(url) = StorageUrl::of_path(path) {
        // The text of an invalid URL may hold credentials.
        let invalid = |error| ReadError::Io { path: "the URL".into(), error: io::Error::other(error) };
        return objects(path, &url.map_err(invalid)?);
    }
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    // Files of other tools may lie beside the records of a run.
    let records = path.join(RECORDS_FILE);
    if records.is_file() {
        return Ok(vec![records]);
    }
    let mut files = Vec::new();
    for file in fs::read_dir(path).map_err(failed)? {
        let file = file.map_err(failed)?.path();
        if is_segment(&file) {
            files.push(file);
        }
    }
    files = without_doubles(files);
    files.sort();
    if files.is_empty() { Err(ReadError::Empty { path: path.to_owned() }) } else { Ok(files) }
}

/// The objects of a trace, in the order of their names, which begin with the start of a segment: instances interleave.
fn objects(path: &Path, url: &StorageUrl) -> Result<Vec<PathBuf>, ReadError> {
    let found = find_objects(url);
    let found = found.map_err(|error| ReadError::Io { path: path.to_owned(), error: io::Error::other(error) })?;
    // One object may have any name.
    if let [one] = &*found
        && one.key == url.key()
    {
        return Ok(vec![path.to_owned()]);
    }
    let files = found.iter().map(|object| object.url().to_path()).filter(|file| is_segment(file)).collect();
    let mut files = without_doubles(files);
    files.sort_by_cached_key(|file| (file.file_name().map(ToOwned::to_owned), file.clone()));
    if files.is_empty() { Err(ReadError::Empty { path: path.to_owned() }) } else { Ok(files) }
}

fn is_segment(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.ends_with(".jsonl") || name.ends_with(".jsonl.zst") || name.ends_with(PARQUET_SUFFIX)
}

fn without_doubles(mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    // A capture removes a segment after it has written it as Parquet, and may be killed in between.
    let as_parquet: BTreeSet<PathBuf> =
        files.iter().filter(|file| file.extension().is_some_and(|e| e == "parquet")).cloned().collect();
    files.retain(|file| parquet_of(file).is_none_or(|parquet| !as_parquet.contains(&parquet)));
    files
}
