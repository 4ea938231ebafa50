//! Reads a trace, row by row: a file of frames, any `.jsonl` or `.jsonl.zst`, or a capture's folder.
//!
//! # What is forgiven
//! A writer that was killed, or a disk that was full, leaves a torn end; a bad disk leaves a damaged frame. Either costs
//! what it hit and no row before it, and is told by [`Reader::damage`]. A line that is no row is an error that names
//! it, and reading may go on after it.
//!
//! # A folder
//! That of a run has one file of rows, [`RECORDS`], and files of other kinds beside it. In any other every `.jsonl` and
//! `.jsonl.zst` is a segment.
//!
//! Its segments are read in the order of their names, which is the order in which they were begun. Each segment has its
//! own header; times are moved onto the line of the first one, by the wall clock that the headers tell.
//!
//! # A part
//! Who wants the rows of some time alone ([`Reader::only`]) unpacks the frames that have such rows, by what their heads
//! say, and the first of each segment, which has the header. The others are passed over unread.
//!
//! # Memory
//! One frame at a time ([`MAX_FRAME`](super::frame::MAX_FRAME)), or one line ([`MAX_ROW`](super::format::MAX_ROW)).

use std::fs;
use std::io::{self, BufRead};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fmt, vec};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::line_reader::LineReader;
use super::row::{HeaderError, TraceEntry, TraceHeader, VERSION};
use crate::measure::json_walker::as_whole_number;

/// The file that makes a folder a run's.
pub const RUN_FILE: &str = "run.json";

/// The rows of a run, in its folder.
pub const RECORDS_FILE: &str = "records.jsonl.zst";

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file or folder cannot be opened or read.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A folder without segments.
    #[error("{} has no trace in it: expected files that end in .jsonl or .jsonl.zst", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// Something else.
    #[error(
        "{} is no trace of Streamgauge's: its first line is no header. `streamgauge trace convert` reads the public \
         formats",
        path.display()
    )]
    NotATrace {
        /// The file.
        path: PathBuf,
    },
    /// A file of which nothing can be read.
    #[error("no row can be read: {0}")]
    Damaged(TraceDamage),
    /// A later version's.
    #[error(
        "{} is a trace of version {version}, and this Streamgauge reads them up to {VERSION}: use a newer one",
        path.display()
    )]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u64,
    },
    /// A line that is no row.
    #[error("{}, line {line}: not a row of a trace: {reason}. Take the line out, or write the trace again", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Several traces in one file.
    #[error("{}, line {line}: another trace begins here. Put each into a file of its own, in one folder", path.display())]
    SecondHeader {
        /// The file.
        path: PathBuf,
        /// The line of its header, from 1.
        line: u64,
    },
    /// Segments of a folder that mean different things by a block.
    #[error(
        "{} has other blocks than the segments before it (--capture-block was changed): read the segments one by one",
        path.display()
    )]
    BlockMismatch {
        /// The first segment that differs.
        path: PathBuf,
    },
}

/// What is missing from a trace that could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceDamage {
    /// The file.
    pub path: PathBuf,
    /// The frame, from 0; `None` where the file has none.
    pub frame: Option<u64>,
    /// What happened to it.
    pub what: String,
}

impl fmt::Display for TraceDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.frame {
            Some(frame) => write!(f, "{}, frame {frame}: {}", self.path.display(), self.what),
            None => write!(f, "{}: {}", self.path.display(), self.what),
        }
    }
}

/// See the module. Iterates over the rows.
pub struct TraceReader {
    header: TraceHeader,
    segments: vec::IntoIter<PathBuf>,
    open: Option<SegmentReader>,
    damage: Vec<TraceDamage>,
    times: Range<u64>,
}

/// Said of a segment that is later in the folder and earlier by the wall clock, which was set back meanwhile.
const STARTS_BEFORE_FIRST_SEGMENT: &str = "it began before the first segment: rows from before that are put at zero";

/// Every time.
const ALL_TIMES: Range<u64> = 0..u64::MAX;

impl TraceReader {
    /// Opens a file or a folder, and reads the header.
    ///
    /// # Errors
    /// When there is no trace at `path`, or one of a later version.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let mut segments = segments(path)?.into_iter();
        let mut damage = Vec::new();
        while let Some(file) = segments.next() {
            let mut segment = SegmentReader::open(file)?;
            match segment.header(&mut damage)? {
                Some(header) => return Ok(Self { header, segments, open: Some(segment), damage, times: ALL_TIMES }),
                // Whoever made it was killed before its first row.
                None => damage.push(segment.lines.damage("it has no whole row")),
            }
        }
        Err(damage.pop().map_or_else(|| ReadError::NotATrace { path: path.to_owned() }, ReadError::Damaged))
    }

    /// Reads what comes on a stream, unpacked, as a file of that name.
    ///
    /// # Errors
    /// When it is no trace, or one of a later version.
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

    /// What holds for every row; a folder's first header, on whose line the times of all segments are.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// From now on only rows that arrived at one of these times, in nanoseconds on the trace's line (`u64::MAX` is no
    /// end).
    pub fn set_time_range(&mut self, times: Range<u64>) {
        self.times = times;
        if let Some(open) = &mut self.open {
            open.set_time_range(&self.times);
        }
    }

    /// The line of the row that was read last.
    pub fn last_line(&self) -> &[u8] {
        self.open.as_ref().map_or(b"", |segment| &segment.line)
    }

    /// What was found to be missing, as far as has been read.
    pub fn damage(&self) -> &[TraceDamage] {
        &self.damage
    }

    /// The next segment, if there is one.
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

/// The files of a trace.
fn segments(path: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let failed = |error| ReadError::Io { path: path.to_owned(), error };
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    // The result of a run, beside which other tools' files may lie.
    let records = path.join(RECORDS_FILE);
    if records.is_file() {
        return Ok(vec![records]);
    }
    let mut files = Vec::new();
    for file in fs::read_dir(path).map_err(failed)? {
        let file = file.map_err(failed)?.path();
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".jsonl") || name.ends_with(".jsonl.zst") {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() { Err(ReadError::Empty { path: path.to_owned() }) } else { Ok(files) }
}

/// One file.
struct SegmentReader {
    lines: LineReader,
    /// The last that was a row.
    line: Vec<u8>,
    /// From its line of time to the trace's.
    shift: i128,
}

impl SegmentReader {
    fn open(path: PathBuf) -> Result<Self, ReadError> {
        Ok(Self::new(LineReader::open(path)?))
    }

    const fn new(lines: LineReader) -> Self {
        Self { lines, line: Vec::new(), shift: 0 }
    }

    /// Its header; `None` where it has none because it is torn or damaged.
    fn header(&mut self, damage: &mut Vec<TraceDamage>) -> Result<Option<TraceHeader>, ReadError> {
        let held = damage.len();
        let line = loop {
            let Some(line) = self.lines.next_line(damage).transpose()? else { return Ok(None) };
            // An editor may have left a byte order mark, and blank lines.
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

    /// A time of its line on the trace's.
    fn shift_time(&self, at: u64) -> u64 {
        u64::try_from(i128::from(at) + self.shift).unwrap_or_default()
    }

    /// Passes over what has none of these times of the trace.
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
                // One that does not say when it came has not come at 0.
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
                // What serde says may quote the row.
                Err(error) => {
                    return Some(Err(self.invalid_row(format!("it makes no sense from column {} on", error.column()))));
                }
            }
        }
    }

    /// The line that was read last is no row.
    fn invalid_row(&self, reason: String) -> ReadError {
        ReadError::Line { path: self.lines.path.clone(), line: self.lines.number, reason }
    }
}

/// A row whose whole numbers are written as data frames do it, `10.0` for 10: to the schema they are the same.
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

/// What a row cannot be without.
#[derive(Deserialize)]
struct ArrivalField {
    #[serde(rename = "at")]
    _at: IgnoredAny,
}
