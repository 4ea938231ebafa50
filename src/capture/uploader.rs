//! Uploads closed segments from the spool to object storage, on a thread of its own.
//!
//! The spool is the folder of a capture. Its writer locks the open segment, so every segment without a lock is closed,
//! also one that a killed process has left. The thread uploads them oldest first, and removes each after the storage
//! has it. It repeats failed uploads with a growing pause. No thread waits for it. Retention removes segments beyond
//! the spool's limit and counts them as lost.
//!
//! # Layout
//! ```text
//! PREFIX/dt=2026-11-25/hour=10/instance=pod-1/20261125T101500Z-00000017-1a2b3c4d.jsonl.zst
//! PREFIX/dt=2026-11-25/hour=10/instance=pod-1/_manifest-20261125T10Z-00000017-1a2b3c4d.json
//! ```
//! Names sort by the segment's start, then by its number. The last part is the spool's own random id, so two spools
//! never mean the same object. No object is replaced: if the key exists with other content, the name gets a suffix. A
//! segment ends with its hour (UTC). When an hour is over and the spool has none of its segments, the thread writes its
//! [`manifest`](super::manifest): the instance's hour is then complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;

use bytes::Bytes;
use rand::RngExt as _;

use super::converter::convert;
use super::manifest::{UploadJournal, UploadedFile, manifests_due};
use super::segment_files::{SegmentFile, segments};
use super::stats::{CaptureStats, RecordOutcome};
use super::upload_target::UploadTarget;
use crate::clock::Clock;
use crate::measure::calendar::moment;
use crate::measure::time::{Gap, Stamp};
use crate::storage::{Bucket, StorageError};
use crate::trace_file::reader::count_rows;
use crate::trace_file::segment_list::{PARQUET_SUFFIX, SEGMENT_SUFFIX, frames_of, parquet_of};

/// File name of the spool's own id.
const SPOOL_ID_FILE: &str = "spool.id";
/// Pause after the first failed attempt, and the longest; it doubles.
const FIRST_PAUSE: Gap = Gap::from_millis(1_000);
const MAX_PAUSE: Gap = Gap::from_millis(60_000);
/// Interval of looks at the spool without a closed segment, for those of a predecessor.
const LOOK_INTERVAL: Gap = Gap::from_millis(30_000);
/// Maximum time that a shutdown waits for the last segment: less than the recorder waits for the disk.
const SHUTDOWN_TIMEOUT: Gap = Gap::from_millis(2_000);
/// Minimum time between two log lines about failed attempts.
const LOG_INTERVAL: Gap = Gap::from_millis(60_000);
/// Names that are tried if objects with other content have them.
const MAX_NAMES: u32 = 8;
const HOUR_NANOS: u64 = 3_600_000_000_000;

/// The running thread.
pub(super) struct SegmentUploader {
    stats: Arc<CaptureStats>,
    wake: SyncSender<()>,
    stop: Arc<AtomicBool>,
    /// Disconnects when the thread exits.
    ended: Receiver<()>,
}

impl SegmentUploader {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the storage cannot be used as configured, the spool has no id, or the thread cannot be started.
    pub(super) fn start(
        spool: &Path,
        target: &UploadTarget,
        parquet: bool,
        stats: Arc<CaptureStats>,
        clock: Clock,
    ) -> io::Result<Self> {
        stats.begin_uploads();
        let bucket = Bucket::open(&target.url).map_err(io::Error::other)?;
        let mut thread = UploadThread {
            bucket,
            prefix: target.url.key().to_owned(),
            instance: target.instance.clone(),
            spool: spool.to_owned(),
            spool_id: spool_id(spool)?,
            parquet,
            stats: Arc::clone(&stats),
            clock,
            unwritten: Vec::new(),
            pause: FIRST_PAUSE,
            logged: None,
        };
        let (wake, woken) = sync_channel(1);
        let (alive, ended) = sync_channel::<()>(0);
        let stop = Arc::<AtomicBool>::default();
        let stopping = Arc::clone(&stop);
        let body = move || {
            thread.run(&woken, &stopping);
            drop(alive);
        };
        thread::Builder::new().name("capture-upload".to_owned()).spawn(body)?;
        Ok(Self { stats, wake, stop, ended })
    }

    /// Looks at the spool now.
    pub(super) fn wake(&self) {
        let _is_awake = self.wake.try_send(()).is_err();
    }

    /// Removes a segment that is not in the bucket yet, and counts its records as lost. One that is being uploaded
    /// stays.
    ///
    /// # Errors
    /// If the segment cannot be opened or removed.
    pub(super) fn lose(&self, path: &Path) -> io::Result<()> {
        let Some(_locked) = open_closed(path)? else { return Ok(()) };
        let records = count_rows(path).unwrap_or_default();
        fs::remove_file(path)?;
        self.stats.add(RecordOutcome::Spool, records);
        tracing::warn!(segment = %path.display(), records, "the spool of the capture is full or too old; a segment is lost before its upload");
        Ok(())
    }
}

impl Drop for SegmentUploader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
        // Remaining segments stay in the spool for the next start.
        let _is_late = self.ended.recv_timeout(SHUTDOWN_TIMEOUT.into()).is_ok();
    }
}

struct UploadThread {
    bucket: Bucket,
    prefix: String,
    instance: String,
    spool: PathBuf,
    spool_id: String,
    parquet: bool,
    stats: Arc<CaptureStats>,
    clock: Clock,
    /// Uploads of which the journal has no line, because the disk is full: their hour, number and file.
    unwritten: Vec<(u64, u64, UploadedFile)>,
    pause: Gap,
    logged: Option<Stamp>,
}

/// Reason why a pass over the spool ended early.
enum UploadError {
    Spool(io::Error),
    Storage(StorageError),
}

impl From<io::Error> for UploadError {
    fn from(error: io::Error) -> Self {
        Self::Spool(error)
    }
}

impl From<StorageError> for UploadError {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

impl UploadThread {
    fn run(&mut self, woken: &Receiver<()>, stop: &AtomicBool) {
        loop {
            let last = stop.load(Ordering::Acquire);
            let passed = self.upload_closed();
            self.stats.set_spool_bytes(spool_bytes(&self.spool));
            if last {
                break;
            }
            let wait = match passed {
                Ok(()) => {
                    self.pause = FIRST_PAUSE;
                    (LOOK_INTERVAL, true)
                }
                Err(error) => {
                    self.report(&error);
                    // Half of the pause is random, so that many instances do not return at once.
                    let jitter = rand::rng().random_range(0.5..1.0);
                    let pause = Gap::from_nanos((self.pause.as_nanos() as f64 * jitter) as u64);
                    self.pause = Gap::from_nanos(self.pause.as_nanos() * 2).min(MAX_PAUSE);
                    (pause, false)
                }
            };
            if !self.rest(wait, woken, stop) {
                break;
            }
        }
    }

    /// Waits; false if every handle to the thread is gone. A closed segment ends the wait only after success.
    fn rest(&self, (wait, by_segment): (Gap, bool), woken: &Receiver<()>, stop: &AtomicBool) -> bool {
        let until = self.clock.now().after(wait);
        loop {
            match woken.recv_timeout(until.since(self.clock.now()).into()) {
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
                Ok(()) if by_segment || stop.load(Ordering::Acquire) => return true,
                Ok(()) => {}
            }
        }
    }

    /// Uploads every closed segment, oldest first, then the manifests of hours that are over.
    fn upload_closed(&mut self) -> Result<(), UploadError> {
        for segment in segments(&self.spool)? {
            self.upload(&segment)?;
        }
        self.write_journal()?;
        let hour = self.clock.unix_nanos(self.clock.now()) / HOUR_NANOS;
        let left: Vec<u64> = segments(&self.spool)?.iter().map(|segment| segment.started() / HOUR_NANOS).collect();
        for due in manifests_due(&self.spool, hour, &left)? {
            let name = format!("_manifest-{}-{:08}-{}.json", due.hour_name(), due.first_number(), self.spool_id);
            let key = self.key(due.hour() * HOUR_NANOS, &name);
            let _is_stored = self.create(&key, &due.manifest(&self.instance)?.into())?;
            due.remove()?;
        }
        Ok(())
    }

    fn upload(&mut self, segment: &SegmentFile) -> Result<(), UploadError> {
        // A kill has left the frames beside their Parquet: they are next, and become the same object.
        if frames_of(&segment.path).is_some_and(|frames| frames.exists()) {
            return Ok(());
        }
        let Some(file) = open_closed(&segment.path)? else { return Ok(()) };
        let frames = segment.path.to_string_lossy().ends_with(SEGMENT_SUFFIX);
        let path = match parquet_of(&segment.path).filter(|parquet| frames && (self.parquet || parquet.exists())) {
            Some(parquet) => match convert(&segment.path) {
                Ok(()) => parquet,
                Err(error) => {
                    tracing::warn!(segment = %segment.path.display(), %error, "a segment of the capture stays in JSON Lines");
                    segment.path.clone()
                }
            },
            None => segment.path.clone(),
        };
        let bytes = match fs::read(&path) {
            // The retention, or another process, was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            read => Bytes::from(read?),
        };
        let rows = count_rows(&path).unwrap_or_default();
        let (name, size) = (self.put_segment(segment, &path, &bytes)?, bytes.len() as u64);
        let digest = blake3::hash(&bytes).to_hex().to_string();
        let uploaded = UploadedFile { name, rows, bytes: size, blake3: digest };
        tracing::debug!(segment = uploaded.name, rows, "a segment of the capture is in the bucket");
        self.unwritten.push((segment.started() / HOUR_NANOS, segment.number, uploaded));
        // A full disk has room for the line once the segment is gone.
        if let Err(error) = self.write_journal()
            && error.kind() != io::ErrorKind::StorageFull
        {
            self.unwritten.pop();
            return Err(error.into());
        }
        fs::remove_file(&path)?;
        drop(file);
        Ok(())
    }

    /// Adds the uploads to the journal that are not in it yet.
    fn write_journal(&mut self) -> io::Result<()> {
        while let Some((hour, number, file)) = self.unwritten.first() {
            UploadJournal::append(&self.spool, *hour, *number, file)?;
            self.unwritten.remove(0);
        }
        Ok(())
    }

    /// Creates the object of a segment, and returns its name.
    fn put_segment(&self, segment: &SegmentFile, path: &Path, bytes: &Bytes) -> Result<String, UploadError> {
        let suffix = if path.to_string_lossy().ends_with(PARQUET_SUFFIX) { PARQUET_SUFFIX } else { SEGMENT_SUFFIX };
        let started = segment.started();
        let base = format!("{}-{:08}-{}", moment(started), segment.number, self.spool_id);
        for attempt in 0..MAX_NAMES {
            let again = if attempt == 0 { String::new() } else { format!("-{attempt}") };
            let name = format!("{base}{again}{suffix}");
            let key = self.key(started, &name);
            if self.create(&key, bytes)? {
                return Ok(name);
            }
            tracing::warn!(object = %self.bucket.url_of(&key), "an object with other content has the name of a segment; it stays");
        }
        Err(UploadError::Spool(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "objects with other content have its names",
        )))
    }

    /// Creates an object, and counts the attempt; false if one with other content has the key.
    fn create(&self, key: &str, bytes: &Bytes) -> Result<bool, UploadError> {
        let is_stored = self.bucket.create(key, bytes);
        self.stats.count_attempt(matches!(is_stored, Ok(true)));
        Ok(is_stored?)
    }

    /// Key of a file that belongs to the hour of this wall time.
    fn key(&self, unix_nanos: u64, name: &str) -> String {
        let moment = crate::measure::calendar::utc(unix_nanos);
        let (date, hour) = (&moment[..10], &moment[11..13]);
        let folder = format!("dt={date}/hour={hour}/instance={}/{name}", self.instance);
        if self.prefix.is_empty() { folder } else { format!("{}/{folder}", self.prefix) }
    }

    /// Logs a failed pass, at most once a minute.
    fn report(&mut self, error: &UploadError) {
        let now = self.clock.now();
        if self.logged.is_some_and(|at| now.since(at) < LOG_INTERVAL) {
            return;
        }
        self.logged = Some(now);
        let (bucket, spool) = (self.bucket.url_of(&self.prefix), self.spool.display());
        match error {
            UploadError::Storage(error) => {
                tracing::warn!(%bucket, %spool, %error, "segments of the capture wait in the spool; the upload goes on trying");
            }
            UploadError::Spool(error) => {
                tracing::warn!(%bucket, %spool, %error, "the spool of the capture cannot be used; the upload goes on trying");
            }
        }
    }
}

/// Opens and locks a closed segment. `None` if another process writes or uploads it, or if it is empty.
fn open_closed(path: &Path) -> io::Result<Option<File>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let is_free = file.try_lock().is_ok();
    Ok((is_free && file.metadata()?.len() > 0).then_some(file))
}

fn spool_bytes(spool: &Path) -> u64 {
    let sizes = segments(spool).unwrap_or_default();
    sizes.iter().filter_map(|segment| fs::metadata(&segment.path).ok()).map(|about| about.len()).sum()
}

/// Reads the spool's id, or makes one.
fn spool_id(spool: &Path) -> io::Result<String> {
    let path = spool.join(SPOOL_ID_FILE);
    let is_id = |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Ok(id) = fs::read_to_string(&path)
        && is_id(id.trim())
    {
        return Ok(id.trim().to_owned());
    }
    let id = format!("{:016x}", rand::rng().random::<u64>());
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
    writeln!(file, "{id}")?;
    file.sync_all()?;
    Ok(id)
}
