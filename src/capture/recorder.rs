//! What the proxy hands over to the capture, whose thread makes rows of it (`thread.rs`).
//!
//! A stream's task makes a [`Following`] when a request begins, and gives it the body as it is sent and the gaps of a long
//! stream as they are drained. When the request has ended it goes with the record to whoever counts that, and from there
//! to the capture ([`Capture::ended`]). None of that waits: what finds the queue full is lost and counted ([`Fate`]), and
//! the stream never knows.
//!
//! # Memory
//! Bodies are held until the thread has digested them, [`MAX_BODY`] each and [`MAX_BODIES`] of all, and besides them what
//! is no longer than [`SHORT`] until the request has ended: one note is half the price of two. Gaps are held up to
//! [`MAX_GAPS`] per stream, and [`WAITING`] notes in the queue.

use std::borrow::Borrow;
use std::fmt;
use std::hint::black_box;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

pub use super::error::CaptureError;
use super::key::CaptureKey;
use super::row_builder::RequestDigest;
use super::segments::{CaptureFolder, Retention};
use super::stats::{CaptureStats, RecordOutcome};
use super::tokenizer::PromptTokenizer;
use super::writer_thread::{WriterThread, log_losses};
use crate::clock::{Clock, ClockReading};
use crate::measure::dialect::Dialect;
use crate::measure::prefetch::{self, Prefetch};
use crate::measure::record::RequestRecord;
use crate::measure::time::Gap;
use crate::measure::timeline::TokenEvent;

/// The largest request body whose prompt is digested, in bytes, as sent and decoded: two million tokens of text.
pub const MAX_BODY_BYTES: usize = 8 << 20;
/// Bodies that are held at one time, in bytes.
pub const MAX_BUFFERED_BYTES: usize = 64 << 20;
/// A body up to this length is handed over with the request's end, in bytes.
pub const MAX_INLINE_BODY_BYTES: usize = 2 << 10;
/// Gaps that are kept of one stream; 512 KiB.
pub const MAX_STREAM_GAPS: usize = 65_536;
/// Notes that may wait: a second of the busiest proxy that was measured.
pub const MAX_QUEUED_MESSAGES: usize = 8_192;
/// Header of a request that a load generator sends to learn about the server, and not as part of its load: `1`. The
/// capture skips it and counts it; a trace that had it would not be the load.
pub const PROBE_HEADER: &str = "x-streamgauge-probe";
/// How long the end of the process waits for the disk.
pub const SHUTDOWN_TIMEOUT: Gap = Gap::from_millis(3_000);

/// How to capture.
#[derive(Clone, Debug)]
pub struct CaptureSettings {
    /// The folder.
    pub folder: PathBuf,
    /// How long what has ended may wait to be written.
    pub flush: Gap,
    /// Times are rounded to multiples of this; zero leaves them.
    pub round: Gap,
    /// A file that has the key, instead of the folder's own.
    pub key: Option<PathBuf>,
    /// Whether each day has a key of its own.
    pub rotate: bool,
    /// Length of a block: in tokens where there is a tokenizer, else in bytes.
    pub block: usize,
    /// Successes before a model's name is written.
    pub names: usize,
    /// Where requests name their session.
    pub session: Option<SessionField>,
    /// What is kept.
    pub retention: Retention,
}

/// Where requests name their session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionField {
    /// In a header.
    Header(String),
    /// In a field of the body, a path of keys.
    Body(String),
}

/// Where the proxy hands requests over. See the module.
pub struct CaptureRecorder {
    queue: SyncSender<CaptureMessage>,
    stats: Arc<CaptureStats>,
    bodies: Arc<BodyMemory>,
    /// Bodies up to this length are handed over with the request's end.
    max_inline_body: usize,
    folder: PathBuf,
    flush: Gap,
    session: Option<SessionField>,
    clock: Clock,
    stop: Arc<AtomicBool>,
    /// Disconnected when the thread has ended.
    ended: Mutex<Receiver<()>>,
}

impl fmt::Debug for CaptureRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("folder", &self.folder).finish_non_exhaustive()
    }
}

pub(super) enum CaptureMessage {
    /// A request was sent.
    RequestBody {
        body: Vec<u8>,
        room: MemoryReservation,
        encoding: Vec<u8>,
        dialect: &'static Dialect,
        answer: Arc<OnceLock<RequestDigest>>,
    },
    /// A request has ended.
    RequestEnded(Box<dyn CapturedRequest>),
    /// Write what there is.
    Stop,
}

impl Prefetch for CaptureMessage {
    fn fetch(&mut self) {
        if let Self::RequestEnded(ended) = self
            && let Some((following, record)) = ended.parts()
        {
            black_box((following.sent, following.in_flight, following.gaps.len(), following.session.is_some()));
            black_box(following.body.iter().step_by(64).fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
            prefetch::record(record);
        }
    }
}

/// A request that has ended, as whoever counted it hands it on.
pub trait CapturedRequest: Send {
    /// What was followed of it, and what it came to; `None` where nobody followed it.
    fn parts(&mut self) -> Option<(&mut CaptureHandle, &RequestRecord)>;
}

impl<R: Borrow<RequestRecord> + Send> CapturedRequest for (CaptureHandle, R) {
    fn parts(&mut self) -> Option<(&mut CaptureHandle, &RequestRecord)> {
        Some((&mut self.0, self.1.borrow()))
    }
}

/// Bodies that are held, and those of them that wait for the thread, in bytes.
#[derive(Default)]
struct BodyMemory {
    held: AtomicUsize,
    backlog: AtomicUsize,
}

/// What a body takes of the room that all have.
pub(super) struct MemoryReservation {
    bodies: Arc<BodyMemory>,
    reserved: usize,
    /// What of the backlog it is, once it waits.
    queued_bytes: usize,
}

/// How much of the time in which a request is to be written it may be on its way to the capture.
pub(super) fn handover_delay(flush: Gap) -> Gap {
    Gap::from_nanos(flush.as_nanos() / 10)
}

/// What a small prompt counts among those that wait, in bytes: it takes time of its own.
const MIN_BACKLOG_BYTES: usize = 4 << 10;

impl MemoryReservation {
    fn enqueue(&mut self, length: usize) {
        self.queued_bytes = length.max(MIN_BACKLOG_BYTES);
        self.bodies.backlog.fetch_add(self.queued_bytes, Ordering::Relaxed);
    }

    /// Bytes of the prompts that wait behind it.
    pub(super) fn backlog(&self) -> usize {
        self.bodies.backlog.load(Ordering::Relaxed).saturating_sub(self.queued_bytes)
    }

    /// Room for a body that grows to so many bytes; false where there is none.
    fn grow(&mut self, body: &mut Vec<u8>, needed: usize) -> bool {
        if needed > MAX_BODY_BYTES {
            return false;
        }
        if needed <= self.reserved {
            return true;
        }
        let grown = needed.next_power_of_two();
        let before = self.bodies.held.fetch_add(grown - self.reserved, Ordering::Relaxed);
        let grew = grown - std::mem::replace(&mut self.reserved, grown);
        let fits = before + grew <= MAX_BUFFERED_BYTES;
        if fits {
            body.reserve_exact(grown - body.len());
        }
        fits
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.bodies.held.fetch_sub(self.reserved, Ordering::Relaxed);
        if self.queued_bytes > 0 {
            self.bodies.backlog.fetch_sub(self.queued_bytes, Ordering::Relaxed);
        }
    }
}

/// One request, for the capture.
#[derive(Default)]
pub struct CaptureHandle {
    /// What has come of its body, until that is handed over.
    pub(super) body: Vec<u8>,
    /// Of a body that is not short.
    reservation: Option<MemoryReservation>,
    /// Whether it was sent whole.
    pub(super) sent: bool,
    pub(super) encoding: Vec<u8>,
    /// What a header says of its session.
    pub(super) session: Option<Vec<u8>>,
    pub(super) in_flight: u32,
    /// Gaps that were drained before the end, and how many besides were not kept.
    pub(super) gaps: Vec<TokenEvent>,
    pub(super) lost_gaps: u64,
    /// Where the thread puts what it found in a body that was handed over before the end.
    pub(super) digest_slot: Option<Arc<OnceLock<RequestDigest>>>,
    /// Its body was too large.
    pub(super) oversize: bool,
    /// Its client says that it is a probe ([`PROBE_HEADER`]).
    is_probe: bool,
}

impl fmt::Debug for CaptureHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of what was said.
        f.debug_struct("Following").finish_non_exhaustive()
    }
}

impl CaptureHandle {
    /// Gaps of a stream that goes on.
    pub fn push_gaps(&mut self, gaps: &[TokenEvent]) {
        let room = (MAX_STREAM_GAPS - self.gaps.len()).min(gaps.len());
        self.gaps.extend_from_slice(&gaps[..room]);
        self.lost_gaps += (gaps.len() - room) as u64;
    }

    fn drop_body(&mut self) {
        (self.body, self.reservation, self.oversize) = (Vec::new(), None, true);
    }
}

impl CaptureRecorder {
    /// Opens the folder, and begins to write. Blocks are of `tokens`, where there is a tokenizer.
    ///
    /// # Errors
    /// When the folder or the key cannot be used; the error names the folder.
    pub fn start(
        settings: CaptureSettings,
        tokens: Option<PromptTokenizer>,
        clock: Clock,
    ) -> Result<Self, CaptureError> {
        Self::start_in(CaptureFolder::open, settings, tokens, clock)
    }

    /// Begins to write into a folder that the process which this one takes over from still writes into.
    ///
    /// # Errors
    /// As [`start`](Self::start), but for the other process.
    pub fn take_over(
        settings: CaptureSettings,
        tokens: Option<PromptTokenizer>,
        clock: Clock,
    ) -> Result<Self, CaptureError> {
        Self::start_in(CaptureFolder::take_over, settings, tokens, clock)
    }

    /// Whether a capture could begin in this folder with this key. Nothing is left behind; that another process captures
    /// there is no fault.
    ///
    /// # Errors
    /// When the folder could not be made or written, or the key cannot be read.
    pub fn check(folder: &Path, key: Option<&Path>) -> Result<(), CaptureError> {
        let failed = |error| CaptureError::new(folder, error);
        CaptureFolder::check(folder).map_err(failed)?;
        key.map_or(Ok(()), |key| CaptureKey::load_or_create(folder, Some(key)).map(drop).map_err(failed))
    }

    fn start_in(
        open: impl FnOnce(&Path, Retention, ClockReading) -> io::Result<CaptureFolder>,
        settings: CaptureSettings,
        tokens: Option<PromptTokenizer>,
        clock: Clock,
    ) -> Result<Self, CaptureError> {
        let failed = |error| CaptureError::new(&settings.folder, error);
        let folder = open(&settings.folder, settings.retention, ClockReading::now(&clock)).map_err(failed)?;
        let key = CaptureKey::load_or_create(&settings.folder, settings.key.as_deref()).map_err(failed)?;
        let (queue, notes) = sync_channel(MAX_QUEUED_MESSAGES);
        let (counts, stop) = (Arc::<CaptureStats>::default(), Arc::<AtomicBool>::default());
        let (session, directory, flush) = (settings.session.clone(), settings.folder.clone(), settings.flush);
        // Tokens take long, so that what waits for them is counted; ids are of the day on which a request was sent.
        let short = if tokens.is_some() || settings.rotate { 0 } else { MAX_INLINE_BODY_BYTES };
        let counted = Arc::clone(&counts);
        let mut writer =
            WriterThread::new(settings.clone(), folder, (key, tokens), counted, clock.clone()).map_err(failed)?;
        let stopping = Arc::clone(&stop);
        let (alive, ended) = sync_channel(0);
        let body = move || {
            writer.run(&notes, &stopping);
            // The folder is free before anybody hears of the end.
            drop(writer);
            drop::<SyncSender<()>>(alive);
        };
        thread::Builder::new().name("capture".to_owned()).spawn(body).map_err(failed)?;
        let ended = Mutex::new(ended);
        Ok(Self {
            queue,
            stats: counts,
            bodies: Arc::default(),
            max_inline_body: short,
            folder: directory,
            flush,
            session,
            clock,
            stop,
            ended,
        })
    }

    /// How often it is to be given what has ended, at least: that is a part of the time in which it is to be written.
    pub fn handover_interval(&self) -> Gap {
        handover_delay(self.flush)
    }

    /// What became of the records.
    pub fn stats(&self) -> &Arc<CaptureStats> {
        &self.stats
    }

    /// A request begins. `header` reads one of its header fields; `in_flight` others are open.
    pub fn begin_request<'h>(&self, header: impl Fn(&str) -> Option<&'h [u8]>, in_flight: usize) -> CaptureHandle {
        let session = match &self.session {
            // Without a value it is the name of nobody's session.
            Some(SessionField::Header(name)) => header(name).filter(|name| !name.is_empty()).map(<[u8]>::to_vec),
            _ => None,
        };
        CaptureHandle {
            encoding: header("content-encoding").unwrap_or_default().to_vec(),
            session,
            in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
            is_probe: header(PROBE_HEADER).is_some(),
            ..CaptureHandle::default()
        }
    }

    /// A piece of the request's body.
    pub fn push_body(&self, following: &mut CaptureHandle, piece: &[u8]) {
        if following.oversize || following.sent || following.is_probe {
            return;
        }
        let needed = following.body.len() + piece.len();
        if needed > self.max_inline_body {
            let new = || MemoryReservation { bodies: Arc::clone(&self.bodies), reserved: 0, queued_bytes: 0 };
            if !following.reservation.get_or_insert_with(new).grow(&mut following.body, needed) {
                return following.drop_body();
            }
        }
        following.body.extend_from_slice(piece);
    }

    /// The request was sent whole.
    pub fn finish_body(&self, following: &mut CaptureHandle, dialect: Option<&'static Dialect>) {
        following.sent = true;
        let Some(mut room) = following.reservation.take() else { return };
        let (body, encoding) = (std::mem::take(&mut following.body), std::mem::take(&mut following.encoding));
        let Some(dialect) = dialect else { return };
        room.enqueue(body.len());
        let answer = Arc::clone(following.digest_slot.get_or_insert_default());
        // Without it the row has no prompt; the record's own fate is counted when it ends.
        if self.queue.try_send(CaptureMessage::RequestBody { body, room, encoding, dialect, answer }).is_err() {
            following.oversize = true;
        }
    }

    /// The request has ended, and has been counted.
    pub fn end_request(&self, mut ended: Box<dyn CapturedRequest>) {
        // Plain HTTP is no traffic of a model.
        let Some((following, _)) = ended.parts().filter(|(_, record)| record.shape.dialect.is_some()) else { return };
        if following.is_probe {
            return self.stats.add(RecordOutcome::Probe, 1);
        }
        self.stats.inc_queued();
        if self.queue.try_send(CaptureMessage::RequestEnded(ended)).is_err() {
            self.stats.dec_queued(1);
            self.count_lost();
        }
    }

    /// A request that has ended will not get here: there was no room on the way.
    pub fn count_lost(&self) {
        self.stats.add(RecordOutcome::QueueFull, 1);
        // The thread may be what hangs, so that it cannot tell.
        if let Some(lost) = self.stats.unlogged_losses(self.clock.now()) {
            log_losses(&self.folder, &lost, None);
        }
    }

    /// Writes what has been handed over, and ends. Waits for the disk, but not longer than [`FINISH`]: what it has not
    /// taken by then is lost and logged.
    pub fn shutdown(&self) {
        self.stop.store(true, Ordering::Release);
        let _waits_already = self.queue.try_send(CaptureMessage::Stop).is_err();
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(SHUTDOWN_TIMEOUT.into()) == Err(RecvTimeoutError::Timeout) {
            let (folder, lost) = (self.folder.display(), self.stats.queued());
            self.stats.add(RecordOutcome::Disk, lost);
            tracing::warn!(%folder, lost, "the disk of the capture hangs: what it has not taken is lost");
        }
    }
}
