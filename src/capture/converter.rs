//! Rewrites closed segments as Parquet, on a thread of its own.
//!
//! A segment is written in frames first, as without Parquet, so a kill loses as little. When it is closed, this thread
//! writes its rows to `NAME.parquet.part`, syncs and renames that file, and removes the frames. A segment that a kill or
//! an error leaves in frames stays readable, and the next start rewrites it.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::measure::time::Gap;
use crate::trace_file::parquet::ParquetWriter;
use crate::trace_file::reader::TraceReader;
use crate::trace_file::segment_list::parquet_of;

/// Maximum segments that wait. Further ones are rewritten at the next start.
const MAX_QUEUED_SEGMENTS: usize = 1_024;
/// Maximum time that a shutdown waits for the last segment: less than the recorder waits for the disk.
const SHUTDOWN_TIMEOUT: Gap = Gap::from_millis(2_000);
const PART_SUFFIX: &str = "parquet.part";

/// Hands closed segments to the thread.
pub(super) struct SegmentConverter {
    queue: Option<SyncSender<PathBuf>>,
    /// Disconnects when the thread exits.
    ended: Receiver<()>,
}

impl SegmentConverter {
    /// Starts the thread, and rewrites segments that an earlier process has left.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(left: Vec<PathBuf>) -> io::Result<Self> {
        let (queue, segments) = sync_channel::<PathBuf>(MAX_QUEUED_SEGMENTS);
        let (alive, ended) = sync_channel::<()>(0);
        let body = move || {
            for segment in left.into_iter().chain(segments) {
                if let Err(error) = convert(&segment) {
                    tracing::warn!(segment = %segment.display(), %error, "a segment of the capture stays in JSON Lines");
                }
            }
            drop(alive);
        };
        thread::Builder::new().name("capture-parquet".to_owned()).spawn(body)?;
        Ok(Self { queue: Some(queue), ended })
    }

    /// Rewrites a closed segment.
    pub(super) fn push(&self, segment: PathBuf) {
        if let Some(queue) = &self.queue
            && queue.try_send(segment).is_err()
        {
            tracing::warn!("too many segments of the capture wait for their rewrite; the next start rewrites this one");
        }
    }
}

impl Drop for SegmentConverter {
    fn drop(&mut self) {
        self.queue = None;
        let _is_late = self.ended.recv_timeout(SHUTDOWN_TIMEOUT.into()).is_ok();
    }
}

/// Rewrites one segment.
pub(super) fn convert(segment: &Path) -> io::Result<()> {
    let Some(parquet) = parquet_of(segment) else { return Ok(()) };
    if !parquet.exists() {
        let part = parquet.with_extension(PART_SUFFIX);
        if let Err(error) = write(segment, &part) {
            let _is_gone = fs::remove_file(&part).is_ok();
            return Err(error);
        }
        fs::rename(&part, &parquet)?;
        File::open(parquet.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    }
    fs::remove_file(segment)
}

fn write(segment: &Path, part: &Path) -> io::Result<()> {
    let mut rows = TraceReader::open(segment).map_err(io::Error::other)?;
    let out = BufWriter::new(File::create(part)?);
    let mut writer = ParquetWriter::new(rows.header(), out).map_err(io::Error::other)?;
    for row in rows.by_ref() {
        writer.write(&row.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    for damage in rows.damage() {
        tracing::warn!(%damage, "a part of a segment was lost before its rewrite");
    }
    let out = writer.finish().map_err(io::Error::other)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace_file::header::TraceHeader;
    use crate::trace_file::row::TraceEntry;

    fn segment(folder: &Path, rows: u64) -> PathBuf {
        let path = folder.join("00000000-20261121T101500Z.jsonl.zst");
        let mut frame = crate::trace_file::frame::FrameBuilder::new().unwrap();
        frame.push_header(&TraceHeader::new("streamgauge test")).unwrap();
        (0..rows).for_each(|at| frame.push_row(&TraceEntry { at, ..TraceEntry::default() }).unwrap());
        fs::write(&path, frame.close(0).unwrap()).unwrap();
        path
    }

    #[test]
    fn a_segment_that_was_left_is_rewritten_and_one_that_cannot_be_read_stays() {
        let folder = tempfile::tempdir().unwrap();
        let segment = segment(folder.path(), 3);
        let broken = folder.path().join("00000001-20261121T101500Z.jsonl.zst");
        fs::write(&broken, "no segment").unwrap();
        drop(SegmentConverter::start(vec![broken.clone(), segment.clone()]).unwrap());
        let parquet = parquet_of(&segment).unwrap();
        assert_eq!(TraceReader::open(&parquet).unwrap().count(), 3);
        let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
        names.sort();
        assert_eq!(names, [parquet, broken]);
    }

    #[test]
    fn a_kill_between_the_rename_and_the_removal_doubles_no_row() {
        let folder = tempfile::tempdir().unwrap();
        let frames = segment(folder.path(), 3);
        write(&frames, &parquet_of(&frames).unwrap()).unwrap();
        assert_eq!(TraceReader::open(folder.path()).unwrap().count(), 3);
        convert(&frames).unwrap();
        assert!(!frames.exists());
        assert_eq!(TraceReader::open(folder.path()).unwrap().count(), 3);
    }
}
