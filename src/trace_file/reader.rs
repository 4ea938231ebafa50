//! Reads a trace row by row: a file of frames, any `.jsonl` or `.jsonl.zst`, or a capture folder.
//!
//! # Damage
//! A killed writer or a full disk leaves a torn end; a bad disk leaves a damaged frame. The reader loses the damaged
//! part and no earlier row, and reports it through [`TraceReader::damage`]. A line that is no row is an error with its
//! line number, and reading can continue after it.
//!
//! # Folders
//! The folder of a run has one file of rows, [`RECORDS_FILE`], and files of other kinds beside it. In any other folder
//! every `.jsonl`, `.jsonl.zst` and `.parquet` is a segment.
//!
//! Segments are read in the order of their names, which is the order in which they were started. Each segment has its
//! own header. The reader shifts the times of later segments to the time zero of the first, by the wall clocks in the
//! headers.
//!
//! # Time ranges
//! With [`TraceReader::set_time_range`] the reader unpacks only the frames whose heads overlap the range. It also
//! unpacks the first frame of each segment, which has the header.
//!
//! # Memory
//! One frame at a time ([`MAX_FRAME_BYTES`](super::frame::MAX_FRAME_BYTES)), or one line
//! ([`MAX_ROW_BYTES`](super::row::MAX_ROW_BYTES)).

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::vec;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::line_reader::LineReader;
pub use super::read_error::{ReadError, TraceDamage};
use super::row::{HeaderError, TraceEntry, TraceHeader};
use crate::config::StorageUrl;
use crate::measure::whole_number::as_whole_number;
use crate::storage::find_objects;

/// Its presence marks a folder as the folder of a run.
pub const RUN_FILE: &str = "run.json";

/// File name of a run's rows.
pub const RECORDS_FILE: &str = "records.jsonl.zst";

/// Iterates over the rows of a trace.
pub struct TraceReader {
    header: TraceHeader,
    segments: vec::IntoIter<PathBuf>,
    open: Option<SegmentReader>,
    damage: Vec<TraceDamage>,
    times: Range<u64>,
}

/// Damage of a segment that is later by name but earlier by the wall clock, because the clock was set back.
const STARTS_BEFORE_FIRST_SEGMENT: &str = "it began before the first segment: rows from before that are put at zero";

/// Damage of a segment with a larger or smaller share of the sessions.
const OTHER_SAMPLE: &str =
    "it has another share of the sessions than the first segment: counts of the two are not comparable";

/// End of the name of a segment in Parquet.
pub const PARQUET_SUFFIX: &str = ".parquet";
/// End of the name of a segment in frames of JSON Lines.
pub const SEGMENT_SUFFIX: &str = ".jsonl.zst";

/// The path of a segment's rows as Parquet; `None` if the file is no segment in frames.
pub fn parquet_of(segment: &Path) -> Option<PathBuf> {
    let name = segment.file_name()?.to_str()?.strip_suffix(SEGMENT_SUFFIX)?;
    Some(segment.with_file_name(format!("{name}{PARQUET_SUFFIX}")))
}

/// Number of rows of a segment that a capture has closed, without unpacking them.
///
/// # Errors
/// If the file cannot be read, or is no such segment.
pub fn count_rows(segment: &Path) -> io::Result<u64> {
    super::line_reader::count_rows(segment)
}

const ALL_TIMES: Range<u64> = 0..u64::MAX;

impl TraceReader {
    /// Opens a file or a folder, and reads the header.
    ///
    /// # Errors
    /// If there is no trace at `path`, or a newer version wrote it.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let mut segments = segments(path)?.into_iter();
        let mut damage = Vec::new();
        while let Some(file) = segments.next() {
            let mut segment = SegmentReader::open(file)?;
            match segment.header(&mut damage)? {
                Some(header) => return Ok(Self { header, segments, open: Some(segment), damage, times: ALL_TIMES }),
                // The writer was killed before its first row.
                None => damage.push(segment.lines.damage("it has no whole row")),
            }
        }
        Err(damage.pop().map_or_else(|| ReadError::NotATrace { path: path.to_owned() }, ReadError::Damaged))
    }

    /// Reads an uncompressed stream; `name` appears only in messages.
    ///
    /// # Errors
    /// If the stream is no trace, or a newer version wrote it.
    pub fn from_stream(name: &Path, stream: Box<dyn BufRead + Send>) -> Result<Self, ReadError> {
        let mut damage = Vec::new();
        let mut segment = SegmentReader::new(LineReader::from_stream(name.to_owned(), stream));
        match segment.header(&mut damage)? {
            Some(header) => {
                Ok(Self { header, segments: Vec::new().into_iter(), open: Some(segment), damage, times: ALL_TIMES })
            }
            None => Err(ReadError::NotATrace { path: name.to_owned() }),
        }
    }

    /// Properties of all rows. For a folder, the header of its first segment, whose time zero applies to all rows.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Restricts further rows to arrivals in this range, in nanoseconds from the trace's time zero. An end of
    /// `u64::MAX` is unbounded.
    pub fn set_time_range(&mut self, times: Range<u64>) {
        self.times = times;
        if let Some(open) = &mut self.open {
            open.set_time_range(&self.times);
        }
    }

    /// The line of the last row returned.
    pub fn last_line(&self) -> &[u8] {
        self.open.as_ref().map_or(b"", |segment| &segment.line)
    }

    /// Damage found so far.
    pub fn damage(&self) -> &[TraceDamage] {
        &self.damage
    }

    fn next_segment(&mut self) -> Result<Option<SegmentReader>, ReadError> {
        for file in self.segments.by_ref() {
            let mut segment = SegmentReader::open(file)?;
            let Some(header) = segment.header(&mut self.damage)? else {
                self.damage.push(segment.lines.damage("it has no whole row"));
                continue;
            };
            let meaning = |header: &TraceHeader| {
                header.blocks.clone().map(|blocks| super::row::BlockScheme { key: None, ..blocks })
            };
            if meaning(&header) != meaning(&self.header) {
                return Err(ReadError::BlockMismatch { path: segment.lines.path });
            }
            if header.sample != self.header.sample {
                self.damage.push(segment.lines.damage(OTHER_SAMPLE));
            }
            if let (Some(here), Some(there)) = (header.started_unix_ns, self.header.started_unix_ns) {
                segment.shift = i128::from(here) - i128::from(there);
                if segment.shift < 0 {
                    self.damage.push(segment.lines.damage(STARTS_BEFORE_FIRST_SEGMENT));
                }
            }
            segment.set_time_range(&self.times);
            return Ok(Some(segment));
        }
        Ok(None)
    }
}

impl Iterator for TraceReader {
    type Item = Result<TraceEntry, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.open.as_mut()?.row(&mut self.damage) {
                let wanted = |row: &TraceEntry| {
                    row.at >= self.times.start && (row.at < self.times.end || self.times.end == u64::MAX)
                };
                if row.as_ref().is_ok_and(|row| !wanted(row)) {
                    continue;
                }
                return Some(row);
            }
            match self.next_segment() {
                Ok(next) => self.open = next,
                Err(error) => {
                    self.open = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// The files of a trace, in reading order.
fn segments(path: &Path) -> Result<Vec<PathBuf>, ReadError> {
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

struct SegmentReader {
    lines: LineReader,
    /// The last line that was a row.
    line: Vec<u8>,
    /// Nanoseconds to add to a time of this segment to get a time of the trace.
    shift: i128,
}

impl SegmentReader {
    fn open(path: PathBuf) -> Result<Self, ReadError> {
        Ok(Self::new(LineReader::open(path)?))
    }

    const fn new(lines: LineReader) -> Self {
        Self { lines, line: Vec::new(), shift: 0 }
    }

    /// `None` if the header is torn or damaged.
    fn header(&mut self, damage: &mut Vec<TraceDamage>) -> Result<Option<TraceHeader>, ReadError> {
        let held = damage.len();
        let line = loop {
            let Some(line) = self.lines.next_line(damage).transpose()? else { return Ok(None) };
            // Editors may add a byte order mark and blank lines.
            let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line).trim_ascii();
            if !line.is_empty() {
                break line.to_vec();
            }
        };
        let path = || self.lines.path.clone();
        match TraceHeader::read(&line) {
            Ok(header) => Ok(Some(header)),
            Err(HeaderError::UnsupportedVersion(version)) => {
                Err(ReadError::UnsupportedVersion { path: path(), version })
            }
            Err(HeaderError::NotAHeader) if damage.len() > held => Ok(None),
            Err(HeaderError::NotAHeader) => Err(ReadError::NotATrace { path: path() }),
            Err(HeaderError::Invalid(error)) => {
                Err(self.invalid_row(format!("its header makes no sense from column {} on", error.column())))
            }
        }
    }

    /// Converts a time of this segment to a time of the trace.
    fn shift_time(&self, at: u64) -> u64 {
        u64::try_from(i128::from(at) + self.shift).unwrap_or_default()
    }

    /// Skips frames outside this range of trace times.
    fn set_time_range(&mut self, times: &Range<u64>) {
        let here = |at: u64| match at {
            0 | u64::MAX => at,
            at => u64::try_from((i128::from(at) - self.shift).max(0)).unwrap_or(u64::MAX),
        };
        let times = here(times.start)..here(times.end);
        self.lines.set_time_range(times);
    }

    fn row(&mut self, damage: &mut Vec<TraceDamage>) -> Option<Result<TraceEntry, ReadError>> {
        loop {
            let line = match self.lines.next_line(damage)? {
                Ok(line) => line,
                Err(error) => return Some(Err(error)),
            };
            if line.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice::<TraceEntry>(&line).or_else(|error| parse_with_floats(&line).ok_or(error)) {
                // A missing `at` must not be read as 0.
                Ok(entry) if entry.at == 0 && serde_json::from_slice::<ArrivalField>(&line).is_err() => {
                    let (path, number) = (self.lines.path.clone(), self.lines.number);
                    let another = TraceHeader::read(&line).is_ok();
                    let another = another.then_some(ReadError::SecondHeader { path, line: number });
                    return Some(Err(another.unwrap_or_else(|| self.invalid_row("at is missing".to_owned()))));
                }
                Ok(mut entry) => {
                    entry.at = self.shift_time(entry.at);
                    entry.planned = entry.planned.map(|planned| self.shift_time(planned));
                    entry.correct_abort();
                    self.line = line;
                    return Some(Ok(entry));
                }
                Err(_) if !line.ends_with(b"\n") => {
                    damage.push(self.lines.damage("its last line is torn"));
                    return None;
                }
                // The message from serde may quote the row.
                Err(error) => {
                    return Some(Err(self.invalid_row(format!("it makes no sense from column {} on", error.column()))));
                }
            }
        }
    }

    fn invalid_row(&self, reason: String) -> ReadError {
        ReadError::Line { path: self.lines.path.clone(), line: self.lines.number, reason }
    }
}

/// Accepts whole numbers as data frames write them, `10.0` for 10. The JSON Schema accepts both.
fn parse_with_floats(line: &[u8]) -> Option<TraceEntry> {
    fn to_integers(value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(to_integers),
            Value::Object(fields) => fields.values_mut().for_each(to_integers),
            Value::Number(number) if number.is_f64() => {
                if let Some(number) = number.as_f64().and_then(as_whole_number) {
                    *value = number.into();
                }
            }
            _ => {}
        }
    }
    let mut row = serde_json::from_slice(line).ok()?;
    to_integers(&mut row);
    serde_json::from_value(row).ok()
}

/// The only required field of a row.
#[derive(Deserialize)]
struct ArrivalField {
    #[serde(rename = "at")]
    _at: IgnoredAny,
}
