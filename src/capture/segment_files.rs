//! The files of a capture's folder that are segments.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::clock;
use crate::measure::calendar::of_moment;
use crate::measure::time::Gap;
use crate::trace_file::segment_list::{PARQUET_SUFFIX, SEGMENT_SUFFIX};

/// Age at which a segment is closed, so that retention by age and backups have closed segments to work with.
pub(super) const MAX_SEGMENT_AGE: Gap = Gap::from_millis(3_600_000);
/// Digits of a segment's number, at least.
pub(super) const MIN_NUMBER_DIGITS: usize = 8;
/// Length of the start time in a segment's name, in characters.
const TIMESTAMP_CHARS: usize = 16;

pub(super) struct SegmentFile {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    /// Start time from the file name, in nanoseconds since 1970.
    started_unix_ns: Option<u64>,
}

impl SegmentFile {
    /// Start time from the file name, in nanoseconds since 1970.
    pub(super) fn started(&self) -> u64 {
        self.started_unix_ns.unwrap_or_default()
    }

    /// Last modification, in nanoseconds since 1970. A copied file has the time of the copy, so the result is limited
    /// to [`MAX_SEGMENT_AGE`] after the start in its name.
    pub(super) fn modified_unix_ns(&self) -> io::Result<u64> {
        let by_name =
            self.started_unix_ns.map_or(u64::MAX, |started| started.saturating_add(MAX_SEGMENT_AGE.as_nanos()));
        Ok(clock::changed(&fs::metadata(&self.path)?)?.min(by_name))
    }
}

/// Segments of a folder, in order. Other files belong to the user and are never removed.
pub(super) fn segments(folder: &Path) -> io::Result<Vec<SegmentFile>> {
    let mut segments = Vec::new();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        let name = path.file_name().and_then(|name| {
            let name = name.to_str()?;
            name.strip_suffix(SEGMENT_SUFFIX).or_else(|| name.strip_suffix(PARQUET_SUFFIX))?.split_once('-')
        });
        let name = name.filter(|(number, started)| {
            number.len() >= MIN_NUMBER_DIGITS && started.len() == TIMESTAMP_CHARS && started.ends_with('Z')
        });
        let numbered = name.and_then(|(number, started)| Some((number.parse().ok()?, of_moment(started))));
        segments.extend(numbered.map(|(number, started)| SegmentFile { number, path, started_unix_ns: started }));
    }
    segments.sort_by_key(|segment| segment.number);
    Ok(segments)
}
