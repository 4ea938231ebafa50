//! The folder of a capture: creates, fills, closes and finally evicts segments.
//!
//! Segments are named `00000017-20261121T101500Z.jsonl.zst`: a number, which defines their order, and their start time.
//! A segment is append-only, frame by frame. It is closed at `MAX_SEGMENT_BYTES` or `MAX_SEGMENT_AGE`, or at an
//! eighth of the retention limit if that is less, because only whole segments are evicted. A failed write also closes
//! it, because its end may be torn. If an operator deletes the open segment, it is closed too, because bytes written to
//! a deleted file are lost. If the folder is deleted, the next segment creates it again. Retention measures age by the
//! monotonic clock and the segments' modification times (`segment_ages`), so a jump of the wall clock evicts nothing.
//!
//! # Durability
//! Each frame is one write to the operating system, and then survives the end of the process. A segment is synced when
//! it is closed. After a power failure, unsynced data that the system had not written is lost.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::libc::{EINVAL, EISDIR, EOPNOTSUPP, O_TMPFILE};
use nix::unistd::{AccessFlags, access};

use super::converter::SegmentConverter;
use super::folder_lock::{FolderLock, NOT_A_FOLDER};
use super::retention::Retention;
use super::segment_ages::SegmentAges;
use super::segment_files::{MIN_NUMBER_DIGITS, segments};
use super::stats::CaptureStats;
use super::upload_target::UploadTarget;
use super::uploader::SegmentUploader;
use crate::clock::{Clock, ClockReading};
use crate::measure::calendar::moment;
use crate::trace_file::segment_list::{SEGMENT_SUFFIX, parquet_of};

/// Size at which a segment is closed that is to be uploaded: the uploader holds one in memory.
const MAX_UPLOADED_SEGMENT_BYTES: u64 = 16 << 20;
const HOUR_NANOS: u64 = 3_600_000_000_000;

/// An open capture folder and its current segment.
pub struct CaptureFolder {
    path: PathBuf,
    retention: Retention,
    open_segment: Option<OpenSegment>,
    next: u64,
    ages: SegmentAges,
    lock: FolderLock,
    /// Closed segments in frames that an earlier process has left.
    left: Vec<PathBuf>,
    converter: Option<SegmentConverter>,
    uploader: Option<SegmentUploader>,
}

struct OpenSegment {
    path: PathBuf,
    file: File,
    bytes: u64,
    frames: u64,
    started: ClockReading,
}

impl CaptureFolder {
    /// Checks that a folder, or its nearest existing parent, is writable. Leaves nothing behind.
    ///
    /// # Errors
    /// If it is not writable.
    pub fn check(path: &Path) -> io::Result<()> {
        let in_place = |path: &Path| if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() };
        // A path that cannot be inspected is assumed to exist.
        let is_there = |path: &PathBuf| !matches!(path.try_exists(), Ok(false));
        let Some(there) = path.ancestors().map(in_place).find(is_there) else { return Ok(()) };
        match fs::metadata(&there) {
            Ok(about) if about.is_dir() => {}
            Err(error) if error.kind() != io::ErrorKind::NotADirectory => return Err(error),
            _ => return Err(io::Error::new(io::ErrorKind::NotADirectory, NOT_A_FOLDER)),
        }
        // A file created with `O_TMPFILE` disappears when it is closed.
        let without_name = OpenOptions::new().write(true).custom_flags(O_TMPFILE).open(&there);
        match without_name.map_err(|error| error.raw_os_error()) {
            Ok(_) => Ok(()),
            // Some file systems do not support `O_TMPFILE`.
            Err(Some(EOPNOTSUPP | EISDIR | EINVAL)) => Ok(access(&there, AccessFlags::W_OK | AccessFlags::X_OK)?),
            Err(code) => Err(code.map_or(io::ErrorKind::Other.into(), io::Error::from_raw_os_error)),
        }
    }

    /// Opens a folder for this process alone, and creates it if missing.
    ///
    /// # Errors
    /// If the folder cannot be created or written, or another process captures to it.
    pub fn open(path: &Path, retention: Retention, now: ClockReading) -> io::Result<Self> {
        let mut folder = Self::open_with(FolderLock::acquire(path)?, path, retention, now)?;
        folder.left = segments(path)?.into_iter().map(|segment| segment.path).collect();
        Ok(folder)
    }

    /// Rewrites closed segments as Parquet from now on, and those that an earlier process has left.
    ///
    /// # Errors
    /// If the thread that does it cannot be started.
    pub fn write_parquet(&mut self) -> io::Result<()> {
        let left = std::mem::take(&mut self.left);
        let in_frames = left.into_iter().filter(|path| parquet_of(path).is_some()).collect();
        self.converter = Some(SegmentConverter::start(in_frames)?);
        Ok(())
    }

    /// Uploads closed segments to a bucket from now on, and those that an earlier process has left.
    ///
    /// # Errors
    /// If the storage cannot be used as configured, or the thread that uploads cannot be started.
    pub fn upload(
        &mut self,
        target: &UploadTarget,
        parquet: bool,
        stats: Arc<CaptureStats>,
        clock: Clock,
    ) -> io::Result<()> {
        self.uploader = Some(SegmentUploader::start(&self.path, target, parquet, stats, clock)?);
        Ok(())
    }

    /// Opens a folder that the predecessor of this process still captures to. Each process writes its own segments.
    /// This process acquires the lock when the predecessor exits.
    ///
    /// # Errors
    /// If the folder cannot be created or written.
    pub fn take_over(path: &Path, retention: Retention, now: ClockReading) -> io::Result<Self> {
        Self::open_with(FolderLock::take_over(path)?, path, retention, now)
    }

    fn open_with(lock: FolderLock, path: &Path, retention: Retention, now: ClockReading) -> io::Result<Self> {
        let found = segments(path)?;
        let next = found.last().map_or(0, |last| last.number + 1);
        let changed = found
            .iter()
            .map(|segment| Ok((segment.path.clone(), segment.modified_unix_ns()?)))
            .collect::<io::Result<Vec<_>>>()?;
        let (ages, disbelieved) = SegmentAges::from_segments(&changed, now, retention.age);
        if let Some(step) = disbelieved {
            tracing::warn!(
                folder = %path.display(), days = step.as_nanos() / 86_400_000_000_000,
                "a step in the times of the capture's segments is longer than capture_keep_age; it may be the machine's \
                 clock that jumped, and ages nothing"
            );
        }
        Ok(Self {
            path: path.to_owned(),
            retention,
            open_segment: None,
            next,
            ages,
            lock,
            left: Vec::new(),
            converter: None,
            uploader: None,
        })
    }

    /// Number of the next frame in its segment. 0 starts a new segment, which needs a header.
    pub fn next_frame(&self) -> u64 {
        self.open_segment.as_ref().map_or(0, |segment| segment.frames)
    }

    /// True if the open segment must be closed before the next write.
    pub fn is_due(&self, now: ClockReading) -> bool {
        let (most, hourly) = match self.uploader {
            Some(_) => (self.retention.segment_bytes().min(MAX_UPLOADED_SEGMENT_BYTES), true),
            None => (self.retention.segment_bytes(), false),
        };
        let is_due = |open: &OpenSegment| {
            open.bytes >= most
                || now.stamp.since(open.started.stamp) >= self.retention.segment_age()
                || hourly && now.unix_nanos / HOUR_NANOS != open.started.unix_nanos / HOUR_NANOS
        };
        self.open_segment.as_ref().is_some_and(is_due)
    }

    /// Writes a frame; starts a segment if none is open.
    ///
    /// # Errors
    /// If the write fails. The segment is then closed, and the caller can retry the frame as the first of another
    /// segment.
    pub fn write(&mut self, frame: &[u8], now: ClockReading) -> io::Result<()> {
        let mut segment = match self.open_segment.take() {
            Some(segment) => segment,
            None => self.begin_segment(now)?,
        };
        self.ages.set(&segment.path, now.stamp);
        if segment.file.metadata()?.nlink() == 0 {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the segment that was being written has been removed"));
        }
        if let Err(error) = segment.file.write_all(frame) {
            // Readers would skip half a frame, and it uses space on a disk that may be full. A segment with nothing
            // else is removed completely, because a disk may stay full for days.
            let _cut = match segment.bytes {
                0 => fs::remove_file(&segment.path).is_ok(),
                whole => segment.file.set_len(whole).is_ok(),
            };
            return Err(error);
        }
        segment.bytes += frame.len() as u64;
        segment.frames += 1;
        self.open_segment = Some(segment);
        Ok(())
    }

    fn begin_segment(&mut self, now: ClockReading) -> io::Result<OpenSegment> {
        let mut made = false;
        loop {
            let path =
                self.path.join(format!("{:0MIN_NUMBER_DIGITS$}-{}{SEGMENT_SUFFIX}", self.next, moment(now.unix_nanos)));
            let opened = OpenOptions::new().create_new(true).append(true).open(&path);
            match opened {
                // The predecessor or successor has created this segment in the same second.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.next += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound && !made => {
                    // The lock that this process holds lies in the deleted folder.
                    (self.lock, made) = (FolderLock::acquire(&self.path)?, true);
                    tracing::warn!(folder = %self.path.display(), "the capture's folder was removed, and is made again");
                }
                opened => {
                    let file = opened?;
                    self.next += 1;
                    if self.uploader.is_some() {
                        // The uploader leaves a segment alone that is locked, or empty.
                        file.lock()?;
                    }
                    return Ok(OpenSegment { path, file, bytes: 0, frames: 0, started: now });
                }
            }
        }
    }

    /// Closes the open segment and syncs it.
    ///
    /// # Errors
    /// If the sync fails. The segment is closed in any case.
    pub fn close(&mut self) -> io::Result<()> {
        let Some(segment) = self.open_segment.take() else { return Ok(()) };
        let synced = segment.file.sync_data();
        if let Some(converter) = &self.converter {
            converter.push(segment.path);
        }
        if let Some(uploader) = &self.uploader {
            // A child process between its fork and its exec has a copy of the file, and a close would leave it locked.
            let _unlocked = segment.file.unlock().is_ok();
            uploader.wake();
        }
        synced
    }

    /// Removes the oldest segments beyond the retention limits. Logs a jump of the wall clock, which evicts nothing.
    ///
    /// # Errors
    /// If the folder cannot be read, or a segment cannot be removed. All other segments are still removed.
    pub fn evict(&mut self, now: ClockReading) -> io::Result<()> {
        if let Some(jump) = self.ages.clock_jump(now) {
            let seconds = jump / 1_000_000_000;
            tracing::warn!(
                seconds,
                "the machine's clock has jumped, or it slept; no segment of the capture ages by that"
            );
        }
        let mut segments = match segments(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            segments => segments?,
        };
        let there: BTreeSet<&Path> = segments.iter().map(|segment| &*segment.path).collect();
        self.ages.retain(|path| there.contains(path));
        // The open segment is never removed.
        if let Some(open) = &self.open_segment {
            segments.retain(|segment| segment.path != open.path);
        }
        self.retention.evict(&segments, &mut self.ages, now.stamp, |path| match &self.uploader {
            Some(uploader) => uploader.lose(path),
            None => fs::remove_file(path),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::capture::retention::MAX_SEGMENT_BYTES;
    use crate::capture::segment_files::SegmentFile;
    use crate::config::StorageUrl;
    use crate::measure::time::{Gap, Stamp};

    const ALL: Retention = Retention { bytes: u64::MAX, age: Gap::from_nanos(u64::MAX) };

    /// Both clocks at the same number.
    fn at(nanos: u64) -> ClockReading {
        ClockReading { stamp: Stamp::from_nanos(nanos), unix_nanos: nanos }
    }

    fn names(folder: &Path) -> Vec<String> {
        let name = |segment: &SegmentFile| segment.path.file_name().unwrap().to_str().unwrap().to_owned();
        segments(folder).unwrap().iter().map(name).collect()
    }

    #[test]
    fn segments_are_numbered_on_and_say_when_they_were_begun() {
        let folder = tempfile::tempdir().unwrap();
        for unix in [1_763_720_100, 1_763_720_200] {
            let mut open = CaptureFolder::open(folder.path(), ALL, at(1)).unwrap();
            assert_eq!(open.next_frame(), 0);
            open.write(b"one", at(unix * 1_000_000_000)).unwrap();
            open.write(b"two", at(unix * 1_000_000_000)).unwrap();
            assert_eq!(open.next_frame(), 2);
            assert!(
                !open.is_due(at((unix + 3_599) * 1_000_000_000)) && open.is_due(at((unix + 3_600) * 1_000_000_000))
            );
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
        let mut open = CaptureFolder::open(folder.path(), ALL, at(1)).unwrap();
        let half = vec![7; MAX_SEGMENT_BYTES as usize / 2];
        open.write(&half, at(1)).unwrap();
        assert!(!open.is_due(at(1)));
        open.write(&half, at(1)).unwrap();
        assert!(open.is_due(at(1)));
    }

    #[test]
    fn where_little_is_kept_segments_are_small() {
        let folder = tempfile::tempdir().unwrap();
        let mut open =
            CaptureFolder::open(folder.path(), Retention { bytes: 800, age: Gap::from_nanos(80) }, at(1)).unwrap();
        open.write(&[7; 99], at(1)).unwrap();
        assert!(!open.is_due(at(10)) && open.is_due(at(11)));
        open.write(&[7; 1], at(1)).unwrap();
        assert!(open.is_due(at(1)));
    }

    #[test]
    fn a_folder_is_one_processes() {
        let folder = tempfile::tempdir().unwrap();
        let first = CaptureFolder::open(folder.path(), ALL, at(1)).unwrap();
        let second = CaptureFolder::open(folder.path(), ALL, at(1)).err().unwrap();
        assert_eq!(second.to_string(), "another process captures into it");
        drop(first);
        assert!(CaptureFolder::open(folder.path(), ALL, at(1)).is_ok());
    }

    #[test]
    fn a_successor_captures_beside_its_predecessor_into_segments_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = CaptureFolder::open(folder.path(), ALL, at(1)).unwrap();
        first.write(b"one", at(1_000_000_000)).unwrap();
        let mut second = CaptureFolder::take_over(folder.path(), ALL, at(1)).unwrap();
        first.close().unwrap();
        first.write(b"two", at(1_000_000_000)).unwrap();
        second.write(b"three", at(1_000_000_000)).unwrap();
        assert_eq!(names(folder.path()).len(), 3);
        assert!(CaptureFolder::open(folder.path(), ALL, at(1)).is_err(), "a third process does not fit");
        drop(first);
        // The waiting lock thread belongs to the successor alone.
        drop(second);
    }

    #[test]
    fn a_closed_segment_is_uploaded_though_a_child_process_still_has_a_copy_of_its_file() {
        let (folder, lake) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let url = StorageUrl::parse(&format!("file://{}/c", lake.path().display())).unwrap().unwrap();
        let mut open = CaptureFolder::open(folder.path(), ALL, at(1)).unwrap();
        let target = UploadTarget { url, instance: "pod-1".to_owned() };
        open.upload(&target, false, Arc::default(), Clock::Monotonic).unwrap();
        open.write(b"one", at(1)).unwrap();
        let _copy = open.open_segment.as_ref().unwrap().file.try_clone().unwrap();
        open.close().unwrap();
        for _ in 0..1_000 {
            if names(folder.path()).is_empty() {
                return;
            }
            thread::sleep(Gap::from_millis(10).into());
        }
        panic!("the segment stays in the spool");
    }

    #[test]
    fn the_oldest_segments_go_when_there_is_too_much_or_they_are_too_old() {
        let folder = tempfile::tempdir().unwrap();
        let mut open = CaptureFolder::open(folder.path(), Retention { bytes: 25, ..ALL }, at(1)).unwrap();
        // Space for another segment of three bytes is reserved.
        for _ in 0..4 {
            open.write(&[7; 10], at(1)).unwrap();
            open.close().unwrap();
        }
        open.evict(at(1)).unwrap();
        assert_eq!(names(folder.path()).len(), 2);
        assert!(names(folder.path())[0].starts_with("00000002"));
        open.retention = Retention { bytes: 100, age: Gap::from_millis(1_000) };
        open.write(&[7; 10], at(1)).unwrap();
        open.evict(at(u64::MAX)).unwrap();
        assert_eq!(names(folder.path()).len(), 1, "the open one stays");
    }

    #[test]
    fn a_wall_clock_that_jumps_removes_nothing_and_time_that_passes_does() {
        const DAY: u64 = 86_400_000_000_000;
        let folder = tempfile::tempdir().unwrap();
        let retention = Retention { age: Gap::from_nanos(7 * DAY), ..ALL };
        let start = crate::clock::changed(&fs::metadata(folder.path()).unwrap()).unwrap();
        let reading = |days: u64, jumped_days: u64| ClockReading {
            stamp: Stamp::from_nanos(days * DAY),
            unix_nanos: start + (days + jumped_days) * DAY,
        };
        let mut open = CaptureFolder::open(folder.path(), retention, reading(1, 0)).unwrap();
        for _ in 0..3 {
            open.write(b"rows", reading(1, 0)).unwrap();
            open.close().unwrap();
        }
        open.evict(reading(1, 400)).unwrap();
        assert_eq!(names(folder.path()).len(), 3, "a jump in a running process");
        drop(open);
        let mut open = CaptureFolder::open(folder.path(), retention, reading(1, 400)).unwrap();
        open.evict(reading(1, 400)).unwrap();
        assert_eq!(names(folder.path()).len(), 3, "and before it started");
        open.write(b"rows", reading(3, 400)).unwrap();
        open.close().unwrap();
        open.evict(reading(7, 400)).unwrap();
        assert_eq!(names(folder.path()).len(), 4, "not older than a week");
        open.evict(reading(9, 400)).unwrap();
        assert_eq!(names(folder.path()).len(), 1, "a week and a day have passed");
    }

    #[test]
    fn what_is_no_segment_is_never_removed_and_what_cannot_be_removed_keeps_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let mut open = CaptureFolder::open(folder.path(), Retention { bytes: 25, ..ALL }, at(1)).unwrap();
        for name in ["2025-traffic.jsonl.zst", "00000000-busy.jsonl.zst", "1-20251121T101500Z.jsonl.zst"] {
            fs::write(folder.path().join(name), [7; 99]).unwrap();
        }
        for _ in 0..4 {
            open.write(&[7; 10], at(1)).unwrap();
            open.close().unwrap();
        }
        let second = folder.path().join(&names(folder.path())[1]);
        fs::remove_file(&second).unwrap();
        fs::create_dir(&second).unwrap();
        assert!(open.evict(at(1)).is_err());
        assert!(!folder.path().join("00000000-19700101T000000Z.jsonl.zst").exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3 + 3 + 1, "the lock, and what was not ours");
    }

    #[test]
    fn what_cannot_be_written_can_be_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("capture");
        let mut open = CaptureFolder::open(&inner, ALL, at(1)).unwrap();
        fs::remove_dir_all(&inner).unwrap();
        fs::write(&inner, "a file").unwrap();
        assert!(open.write(b"one", at(1)).is_err());
        fs::remove_file(&inner).unwrap();
        open.write(b"one", at(1)).unwrap();
        assert_eq!((names(&inner).len(), open.next_frame()), (1, 1));
    }

    #[test]
    fn a_folder_that_was_removed_is_made_again_and_locked() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/capture");
        let mut open = CaptureFolder::open(&inner, ALL, at(1)).unwrap();
        open.write(b"one", at(1)).unwrap();
        fs::remove_dir_all(folder.path().join("a")).unwrap();
        open.evict(at(1)).unwrap();
        assert!(open.write(b"two", at(1)).is_err(), "its segment is gone");
        open.write(b"three", at(1)).unwrap();
        let names = names(&inner);
        assert!(names.len() == 1 && names[0].starts_with("00000001-"), "{names:?}");
        assert_eq!(fs::read(inner.join(&names[0])).unwrap(), b"three");
        assert!(CaptureFolder::open(&inner, ALL, at(1)).is_err(), "another process keeps out");
    }

    #[test]
    fn a_segment_that_was_removed_takes_nothing_more() {
        let folder = tempfile::tempdir().unwrap();
        let mut open = CaptureFolder::open(folder.path(), ALL, at(1)).unwrap();
        open.write(b"one", at(1)).unwrap();
        fs::remove_file(folder.path().join(&names(folder.path())[0])).unwrap();
        let lost = open.write(b"two", at(1)).unwrap_err();
        assert_eq!(lost.to_string(), "the segment that was being written has been removed");
        open.write(b"three", at(1)).unwrap();
        assert_eq!(fs::read(folder.path().join(&names(folder.path())[0])).unwrap(), b"three");
    }
}
