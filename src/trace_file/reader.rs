//! Reads a trace row by row: a file of frames, any `.jsonl` or `.jsonl.zst`, or a capture folder.
//!
//! # Damage
//! A killed writer or a full disk leaves a torn end; a bad disk leaves a damaged frame. The reader loses the damaged
//! part and no earlier row, and reports it through [`TraceReader::damage`]. A line that is no row is an error with its
//! line number, and reading can continue after it.
//!
//! # Segments
//! The folder of a run has one file of rows, [`RECORDS_FILE`](super::segment_list::RECORDS_FILE), and files of other kinds beside it. In any other folder
//! every `.jsonl`, `.jsonl.zst` and `.parquet` is a segment. Each segment has its own header. The reader shifts the
//! times of later segments to the time zero of the first, by the wall clocks in the headers.
//!
//! Segments are read in the order of their names, which is the order in which they were started. The names of a bucket
//! begin with that time, and many instances write at once. There the reader opens a segment when the rows have come to
//! its start. It always returns the row of the open segments that arrived first. So the rows of all instances come in
//! one order of time. It is as exact as that of one instance, which writes a row when its request ends.
//!
//! # Time ranges
//! With [`TraceReader::set_time_range`] the reader unpacks only the frames whose heads overlap the range. It also
//! unpacks the first frame of each segment, which has the header.
//!
//! # Memory
//! Of each open segment one frame ([`MAX_FRAME_BYTES`](super::frame::MAX_FRAME_BYTES)) or one line
//! ([`MAX_ROW_BYTES`](super::row::MAX_ROW_BYTES)), a part of an object, and one row. At most [`MAX_OPEN_SEGMENTS`] are
//! open; if more instances write at once, the rows of further ones come later, which is reported as damage.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::iter::Peekable;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::vec;

use super::header::TraceHeader;
use super::line_reader::{HeldMemory, LineReader};
pub use super::read_error::{ReadError, TraceDamage};
use super::row::TraceEntry;
use super::segment_list::{segments, start_of};
use super::segment_reader::SegmentReader;

/// Maximum segments that are open at once.
pub const MAX_OPEN_SEGMENTS: usize = 512;

/// Iterates over the rows of a trace.
pub struct TraceReader {
    header: TraceHeader,
    segments: Peekable<vec::IntoIter<PathBuf>>,
    /// The segment of the last row returned.
    last: Option<SegmentCursor>,
    /// Other open segments, by the time of their next row and their number.
    waiting: BTreeMap<(u64, u64), SegmentCursor>,
    opened: u64,
    /// [`TOO_MANY_OPEN`] has been reported.
    is_over_limit: bool,
    /// What other readers may hold.
    others: HeldMemory,
    damage: Vec<TraceDamage>,
    times: Range<u64>,
}

struct SegmentCursor {
    number: u64,
    reader: Box<SegmentReader>,
    /// The row that was read and not returned.
    row: Option<TraceEntry>,
}

/// Damage of a segment that could not be opened in time.
const TOO_MANY_OPEN: &str =
    "more instances write at once than segments can be open: from it on, rows may come after later ones";

/// Damage of a segment with a larger or smaller share of the sessions.
const OTHER_SAMPLE: &str =
    "it has another share of the sessions than the first segment: counts of the two are not comparable";

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
        Self::of_segments(path, segments(path)?, 1)
    }

    /// Opens these segments, in their order; `path` appears only in messages. So many `readers` are open at once, which
    /// share the memory of one.
    ///
    /// # Errors
    /// If they are no trace, or a newer version wrote it.
    pub fn of_segments(path: &Path, segments: Vec<PathBuf>, readers: usize) -> Result<Self, ReadError> {
        let others = HeldMemory::of_others(readers);
        let mut segments = segments.into_iter().peekable();
        let mut damage = Vec::new();
        while let Some(file) = segments.next() {
            let mut segment = SegmentReader::open(file, others)?;
            match segment.header(&mut damage)? {
                Some(header) => return Ok(Self { others, ..Self::starting_with(segment, header, segments, damage) }),
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
            Some(header) => Ok(Self::starting_with(segment, header, Vec::new().into_iter().peekable(), damage)),
            None => Err(ReadError::NotATrace { path: name.to_owned() }),
        }
    }

    fn starting_with(
        segment: SegmentReader,
        header: TraceHeader,
        segments: Peekable<vec::IntoIter<PathBuf>>,
        damage: Vec<TraceDamage>,
    ) -> Self {
        let last = Some(SegmentCursor { number: 0, reader: Box::new(segment), row: None });
        Self {
            header,
            segments,
            last,
            waiting: BTreeMap::new(),
            opened: 1,
            is_over_limit: false,
            others: HeldMemory::default(),
            damage,
            times: ALL_TIMES,
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
        let open = self.last.iter_mut().chain(self.waiting.values_mut());
        open.for_each(|segment| segment.reader.set_time_range(&self.times));
    }

    /// The line of the last row returned.
    pub fn last_line(&self) -> &[u8] {
        self.last.as_ref().map_or(b"", |segment| &segment.reader.line)
    }

    /// The segment of the last row returned.
    pub fn last_segment(&self) -> Option<&Path> {
        self.last.as_ref().map(|segment| &*segment.reader.lines.path)
    }

    /// Damage found so far.
    pub fn damage(&self) -> &[TraceDamage] {
        &self.damage
    }

    /// Opens the next segment that has a row, or a header at least.
    fn open_next(&mut self) -> Result<Option<SegmentReader>, ReadError> {
        let bytes = self.waiting.values().map(|segment| segment.reader.lines.held_bytes).sum();
        let held = self.others.with(self.waiting.len(), bytes);
        for file in self.segments.by_ref() {
            let mut segment = SegmentReader::open(file, held)?;
            let Some(header) = segment.header(&mut self.damage)? else {
                self.damage.push(segment.lines.damage("it has no whole row"));
                continue;
            };
            let meaning = |header: &TraceHeader| {
                header.blocks.clone().map(|blocks| super::header::BlockScheme { key: None, ..blocks })
            };
            if meaning(&header) != meaning(&self.header) {
                return Err(ReadError::BlockMismatch { path: segment.lines.path });
            }
            if header.sample != self.header.sample {
                self.damage.push(segment.lines.damage(OTHER_SAMPLE));
            }
            if let (Some(here), Some(there)) = (header.started_unix_ns, self.header.started_unix_ns) {
                segment.shift = i128::from(here) - i128::from(there);
            }
            segment.set_time_range(&self.times);
            return Ok(Some(segment));
        }
        Ok(None)
    }

    /// True if the rows have come to the start of the next segment: all others wait for a row after it.
    fn is_next_due(&mut self) -> bool {
        let Some(next) = self.segments.peek() else { return false };
        let Some(((first, _), _)) = self.waiting.first_key_value() else { return true };
        let zero = self.header.started_unix_ns.unwrap_or_default();
        start_of(next).is_some_and(|start| start <= zero.saturating_add(*first))
    }

    /// Reads the next row of a segment and lets it wait for its turn; a segment without one is closed.
    fn advance(&mut self, mut segment: SegmentCursor) -> Result<(), ReadError> {
        let row = segment.reader.row(&mut self.damage);
        match row {
            None => Ok(()),
            Some(Ok(row)) => {
                let key = (row.at, segment.number);
                self.waiting.insert(key, SegmentCursor { row: Some(row), ..segment });
                Ok(())
            }
            Some(Err(error)) => {
                // Reading can continue after the row.
                self.last = Some(segment);
                Err(error)
            }
        }
    }

    /// The next row in order of time.
    fn next_row(&mut self) -> Result<Option<TraceEntry>, ReadError> {
        if let Some(segment) = self.last.take() {
            self.advance(segment)?;
        }
        while self.is_next_due() {
            if self.waiting.len() == MAX_OPEN_SEGMENTS {
                let late = self.segments.peek().filter(|_| !self.is_over_limit).cloned();
                let damage = |path| TraceDamage { path, frame: None, what: TOO_MANY_OPEN.to_owned() };
                self.damage.extend(late.map(damage));
                self.is_over_limit = true;
                break;
            }
            let opened = self.open_next();
            if opened.is_err() {
                // The segments before it agree, those after it may not.
                (self.segments, self.waiting) = (Vec::new().into_iter().peekable(), BTreeMap::new());
            }
            let Some(reader) = opened? else { break };
            let number = self.opened;
            self.opened += 1;
            self.advance(SegmentCursor { number, reader: Box::new(reader), row: None })?;
        }
        let Some((_, mut segment)) = self.waiting.pop_first() else { return Ok(None) };
        let row = segment.row.take();
        self.last = Some(segment);
        Ok(row)
    }
}

impl Iterator for TraceReader {
    type Item = Result<TraceEntry, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let row = self.next_row().transpose()?;
            let is_in_range = |row: &TraceEntry| {
                row.at >= self.times.start && (row.at < self.times.end || self.times.end == u64::MAX)
            };
            if row.as_ref().is_ok_and(|row| !is_in_range(row)) {
                continue;
            }
            return Some(row);
        }
    }
}
