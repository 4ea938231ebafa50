//! A capture's folder: segments that are begun, filled, closed and in the end removed.
//!
//! Segments are called `00000017-20261121T101500Z.jsonl.zst`: their number, by which they are in order, and the moment
//! they were begun. A segment is only ever added to, frame by frame. It is closed at [`SEGMENT_BYTES`] or
//! [`SEGMENT_AGE`], or at an eighth of what is kept where that is less, for only whole segments are removed; and when
//! writing fails: what may be torn then stays behind, and the next frame begins another.
//! So it is when somebody removes the segment that is open, who needs its room: what a file without a name takes is lost.
//!
//! # When is it on disk?
//! A frame is handed to the system with one write, and from then on outlives the process, however that ends. A segment
//! is synced when it is closed; a machine that loses its power loses what the system had not written by itself.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::clock;
use crate::measure::time::Gap;

/// A segment is closed at this size.
pub const SEGMENT_BYTES: u64 = 64 << 20;
/// A segment is closed at this age, so that retention by age and backups have something to take.
pub const SEGMENT_AGE: Gap = Gap::from_millis(3_600_000);

const LOCK: &str = "capture.lock";
const END: &str = ".jsonl.zst";
/// Digits of a segment's number, at least.
const NUMBER: usize = 8;
/// Letters of the moment at which a segment was begun.
const BEGUN: usize = 16;

/// What is kept, and of that a segment is at most an eighth.
const PARTS: u64 = 8;

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Bytes of all segments, the room that the open one may still take among them.
    pub bytes: u64,
    /// Age of a segment, by its last change.
    pub age: Gap,
}

impl Retention {
    fn segment_bytes(self) -> u64 {
        SEGMENT_BYTES.min(self.bytes / PARTS)
    }

    fn segment_age(self) -> u64 {
        SEGMENT_AGE.as_nanos().min(self.age.as_nanos() / PARTS)
    }
}

/// See the module.
pub struct Folder {
    path: PathBuf,
    retention: Retention,
    open: Option<Segment>,
    next: u64,
    _lock: File,
}

struct Segment {
    path: PathBuf,
    file: File,
    bytes: u64,
    frames: u64,
    begun: u64,
}

impl Folder {
    /// Opens a folder, which is made if it is not there, for this process alone.
    ///
    /// # Errors
    /// When it cannot be made or written, or another process captures into it.
    pub fn open(path: &Path, retention: Retention) -> io::Result<Self> {
        fs::create_dir_all(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                io::Error::new(error.kind(), "it is, or lies in, a file; remedy: name a folder")
            }
            _ => error,
        })?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path.join(LOCK))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::new(io::ErrorKind::ResourceBusy, "another process captures into it"),
            TryLockError::Error(error) => error,
        })?;
        let next = segments(path)?.last().map_or(0, |last| last.number + 1);
        Ok(Self { path: path.to_owned(), retention, open: None, next, _lock: lock })
    }

    /// The number of the frame that is written next, in its segment: 0 is a new segment, and needs a header.
    pub fn next_frame(&self) -> u64 {
        self.open.as_ref().map_or(0, |segment| segment.frames)
    }

    /// Whether the segment that is open should be closed before more is written.
    pub fn is_due(&self, unix_nanos: u64) -> bool {
        let is_due = |open: &Segment| {
            open.bytes >= self.retention.segment_bytes()
                || unix_nanos.saturating_sub(open.begun) >= self.retention.segment_age()
        };
        self.open.as_ref().is_some_and(is_due)
    }

    /// Writes a frame at `unix_nanos`; begins a segment if none is open.
    ///
    /// # Errors
    /// When it cannot be written. The segment is closed then, and the frame can be tried again as the first of another.
    pub fn write(&mut self, frame: &[u8], unix_nanos: u64) -> io::Result<()> {
        let mut segment = match self.open.take() {
            Some(segment) => segment,
            None => self.begin(unix_nanos)?,
        };
        if segment.file.metadata()?.nlink() == 0 {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the segment that was being written has been removed"));
        }
        if let Err(error) = segment.file.write_all(frame) {
            // Half a frame would be skipped by every reader; it only takes room, where there may be none.
            // Of a segment that has nothing else the name is too much: a disk may be full for days.
            let _cut = match segment.bytes {
                0 => fs::remove_file(&segment.path).is_ok(),
                whole => segment.file.set_len(whole).is_ok(),
            };
            return Err(error);
        }
        segment.bytes += frame.len() as u64;
        segment.frames += 1;
        self.open = Some(segment);
        Ok(())
    }

    fn begin(&mut self, unix_nanos: u64) -> io::Result<Segment> {
        let path = self.path.join(format!("{:0NUMBER$}-{}{END}", self.next, clock::moment(unix_nanos)));
        let file = OpenOptions::new().create_new(true).append(true).open(&path)?;
        self.next += 1;
        Ok(Segment { path, file, bytes: 0, frames: 0, begun: unix_nanos })
    }

    /// Closes the segment that is open, and syncs it.
    ///
    /// # Errors
    /// When it cannot be synced. It is closed all the same.
    pub fn close(&mut self) -> io::Result<()> {
        self.open.take().map_or(Ok(()), |segment| segment.file.sync_data())
    }

    /// Removes the oldest segments, as far as retention asks for it.
    ///
    /// # Errors
    /// When the folder cannot be read, or a segment cannot be removed; those that can be are.
    pub fn tidy(&self, unix_nanos: u64) -> io::Result<()> {
        let mut segments = segments(&self.path)?;
        // The one that is being written stays.
        if self.open.is_some() {
            segments.pop();
        }
        let mut kept = self.retention.segment_bytes();
        let mut tidy = |segment: &Named| {
            let about = fs::metadata(&segment.path)?;
            kept += about.len();
            let age = unix_nanos.saturating_sub(clock::changed(&about)?);
            let goes = kept > self.retention.bytes || age > self.retention.age.as_nanos();
            if goes { fs::remove_file(&segment.path) } else { Ok(()) }
        };
        // One that cannot be removed keeps none of the older ones.
        segments.iter().rev().map(&mut tidy).fold(Ok(()), io::Result::and)
    }
}

struct Named {
    number: u64,
    path: PathBuf,
}

/// The segments of a folder, in order. What else lies there is somebody's own, and is not ours to remove.
fn segments(folder: &Path) -> io::Result<Vec<Named>> {
    let mut segments = Vec::new();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(END)?.split_once('-'));
        let name =
            name.filter(|(number, begun)| number.len() >= NUMBER && begun.len() == BEGUN && begun.ends_with('Z'));
        let number = name.and_then(|(number, _)| number.parse().ok());
        segments.extend(number.map(|number| Named { number, path }));
    }
    segments.sort_by_key(|segment| segment.number);
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Retention = Retention { bytes: u64::MAX, age: Gap::from_nanos(u64::MAX) };

    fn names(folder: &Path) -> Vec<String> {
        let name = |segment: &Named| segment.path.file_name().unwrap().to_str().unwrap().to_owned();
        segments(folder).unwrap().iter().map(name).collect()
    }

    #[test]
    fn segments_are_numbered_on_and_say_when_they_were_begun() {
        let folder = tempfile::tempdir().unwrap();
        for unix in [1_763_720_100, 1_763_720_200] {
            let mut open = Folder::open(folder.path(), ALL).unwrap();
            assert_eq!(open.next_frame(), 0);
            open.write(b"one", unix * 1_000_000_000).unwrap();
            open.write(b"two", unix * 1_000_000_000).unwrap();
            assert_eq!(open.next_frame(), 2);
            assert!(!open.is_due((unix + 3_599) * 1_000_000_000) && open.is_due((unix + 3_600) * 1_000_000_000));
            open.close().unwrap();
        }
        assert_eq!(
            names(folder.path()),
            ["00000000-20251121T101500Z.jsonl.zst", "00000001-20251121T101640Z.jsonl.zst"]
        );
    }

    #[test]
    fn a_segment_is_due_at_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let mut open = Folder::open(folder.path(), ALL).unwrap();
        let half = vec![7; SEGMENT_BYTES as usize / 2];
        open.write(&half, 1).unwrap();
        assert!(!open.is_due(1));
        open.write(&half, 1).unwrap();
        assert!(open.is_due(1));
    }

    #[test]
    fn where_little_is_kept_segments_are_small() {
        let folder = tempfile::tempdir().unwrap();
        let mut open = Folder::open(folder.path(), Retention { bytes: 800, age: Gap::from_nanos(80) }).unwrap();
        open.write(&[7; 99], 1).unwrap();
        assert!(!open.is_due(10) && open.is_due(11));
        open.write(&[7; 1], 1).unwrap();
        assert!(open.is_due(1));
    }

    #[test]
    fn a_folder_is_one_processes() {
        let folder = tempfile::tempdir().unwrap();
        let first = Folder::open(folder.path(), ALL).unwrap();
        let second = Folder::open(folder.path(), ALL).err().unwrap();
        assert_eq!(second.to_string(), "another process captures into it");
        drop(first);
        assert!(Folder::open(folder.path(), ALL).is_ok());
    }

    #[test]
    fn the_oldest_segments_go_when_there_is_too_much_or_they_are_too_old() {
        let folder = tempfile::tempdir().unwrap();
        let mut open = Folder::open(folder.path(), Retention { bytes: 25, ..ALL }).unwrap();
        // Room for another of three bytes is kept free.
        for _ in 0..4 {
            open.write(&[7; 10], 1).unwrap();
            open.close().unwrap();
        }
        open.tidy(1).unwrap();
        assert_eq!(names(folder.path()).len(), 2);
        assert!(names(folder.path())[0].starts_with("00000002"));
        open.retention = Retention { bytes: 100, age: Gap::from_millis(1_000) };
        open.write(&[7; 10], 1).unwrap();
        open.tidy(u64::MAX).unwrap();
        assert_eq!(names(folder.path()).len(), 1, "the open one stays");
    }

    #[test]
    fn what_is_no_segment_is_never_removed_and_what_cannot_be_removed_keeps_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let mut open = Folder::open(folder.path(), Retention { bytes: 25, ..ALL }).unwrap();
        for name in ["2025-traffic.jsonl.zst", "00000000-busy.jsonl.zst", "1-20251121T101500Z.jsonl.zst"] {
            fs::write(folder.path().join(name), [7; 99]).unwrap();
        }
        for _ in 0..4 {
            open.write(&[7; 10], 1).unwrap();
            open.close().unwrap();
        }
        let second = folder.path().join(&names(folder.path())[1]);
        fs::remove_file(&second).unwrap();
        fs::create_dir(&second).unwrap();
        assert!(open.tidy(1).is_err());
        assert!(!folder.path().join("00000000-19700101T000000Z.jsonl.zst").exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3 + 3 + 1, "the lock, and what was not ours");
    }

    #[test]
    fn what_cannot_be_written_can_be_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("capture");
        let mut open = Folder::open(&inner, ALL).unwrap();
        fs::remove_dir_all(&inner).unwrap();
        assert!(open.write(b"one", 1).is_err());
        fs::create_dir(&inner).unwrap();
        open.write(b"one", 1).unwrap();
        assert_eq!((names(&inner).len(), open.next_frame()), (1, 1));
    }

    #[test]
    fn a_segment_that_was_removed_takes_nothing_more() {
        let folder = tempfile::tempdir().unwrap();
        let mut open = Folder::open(folder.path(), ALL).unwrap();
        open.write(b"one", 1).unwrap();
        fs::remove_file(folder.path().join(&names(folder.path())[0])).unwrap();
        let lost = open.write(b"two", 1).unwrap_err();
        assert_eq!(lost.to_string(), "the segment that was being written has been removed");
        open.write(b"three", 1).unwrap();
        assert_eq!(fs::read(folder.path().join(&names(folder.path())[0])).unwrap(), b"three");
    }
}
