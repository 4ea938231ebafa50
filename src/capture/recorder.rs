//! The proxy's side of the capture: hands requests to the writer thread (`writer_thread.rs`), which makes rows.
//!
//! A stream's task gets a [`CaptureHandle`] when a request begins. It passes the body as it is sent, and the gaps of a
//! long stream as they are drained. After the request, the control thread counts the record and passes it to
//! [`CaptureRecorder::end_request`]. No step waits: if the queue is full, the record is lost and counted
//! ([`RecordOutcome`]), and the stream is not affected.
//!
//! # Memory
//! Bodies are held until the writer thread has hashed them: at most [`MAX_BODY_BYTES`] each and [`MAX_BUFFERED_BYTES`]
//! in total. In addition, bodies of at most [`MAX_INLINE_BODY_BYTES`] are held until the request ends, because one
//! message costs half as much as two. Each stream holds at most [`MAX_STREAM_GAPS`] gaps, and the queue at most
//! [`MAX_QUEUED_MESSAGES`] messages.

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
use crate::capture::prefetch;
use crate::capture::prefetch::Prefetch;
use crate::clock::{Clock, ClockReading};
use crate::measure::dialect::Dialect;
use crate::measure::record::RequestRecord;
use crate::measure::time::Gap;
use crate::measure::timeline::TokenEvent;
use crate::trace_file::PROBE_HEADER;

/// Largest request body whose prompt is hashed, in bytes, both as sent and decoded: about two million tokens of text.
pub const MAX_BODY_BYTES: usize = 8 << 20;
/// Maximum body bytes held at one time.
pub const MAX_BUFFERED_BYTES: usize = 64 << 20;
/// Maximum bytes of a body that is handed over together with the request's end.
pub const MAX_INLINE_BODY_BYTES: usize = 2 << 10;
/// Maximum gaps held per stream (512 KiB).
pub const MAX_STREAM_GAPS: usize = 65_536;
/// Maximum queued messages: one second of the busiest proxy measured.
pub const MAX_QUEUED_MESSAGES: usize = 8_192;
/// Maximum time that shutdown waits for the disk.
pub const SHUTDOWN_TIMEOUT: Gap = Gap::from_millis(3_000);

/// Settings of a capture.
#[derive(Clone, Debug)]
pub struct CaptureSettings {
    /// The capture folder.
    pub folder: PathBuf,
    /// Maximum time between a request's end and the write of its row.
    pub flush: Gap,
    /// Times are rounded to multiples of this; zero disables rounding.
    pub round: Gap,
    /// Key file to use instead of the folder's own key.
    pub key: Option<PathBuf>,
    /// Derive a new key each day.
    pub rotate: bool,
    /// Block length, in tokens if there is a tokenizer, else in bytes.
    pub block: usize,
    /// Successes before a model name is written.
    pub names: usize,
    /// Where requests carry their session id.
    pub session: Option<SessionField>,
    /// Limits on stored segments.
    pub retention: Retention,
}

/// Where requests carry their session id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionField {
    /// In the header of this name.
    Header(String),
    /// In this field of the body, a path of keys.
    Body(String),
}

/// Receives requests from the proxy and passes them to the writer thread. Shared by all streams.
pub struct CaptureRecorder {
    queue: SyncSender<CaptureMessage>,
    stats: Arc<CaptureStats>,
    bodies: Arc<BodyMemory>,
    /// Maximum bytes of a body handed over with the request's end; 0 hands every body over as soon as it is sent.
    max_inline_body: usize,
    folder: PathBuf,
    flush: Gap,
    session: Option<SessionField>,
    clock: Clock,
    stop: Arc<AtomicBool>,
    /// Disconnects when the thread exits.
    ended: Mutex<Receiver<()>>,
}

impl fmt::Debug for CaptureRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("folder", &self.folder).finish_non_exhaustive()
    }
}

pub(super) enum CaptureMessage {
    /// The body of a request that has been sent.
    RequestBody {
        body: Vec<u8>,
        room: MemoryReservation,
        encoding: Vec<u8>,
        dialect: &'static Dialect,
        answer: Arc<OnceLock<RequestDigest>>,
    },
    RequestEnded(Box<dyn CapturedRequest>),
    /// Write everything that is queued, then exit.
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

/// A finished request, passed on by the thread that counted it.
pub trait CapturedRequest: Send {
    /// The capture handle and the record; `None` if the capture did not follow the request.
    fn parts(&mut self) -> Option<(&mut CaptureHandle, &RequestRecord)>;
}

impl<R: Borrow<RequestRecord> + Send> CapturedRequest for (CaptureHandle, R) {
    fn parts(&mut self) -> Option<(&mut CaptureHandle, &RequestRecord)> {
        Some((&mut self.0, self.1.borrow()))
    }
}

/// Bytes of all held bodies, and of those among them that wait for the writer thread.
#[derive(Default)]
struct BodyMemory {
    held: AtomicUsize,
    backlog: AtomicUsize,
}

/// A body's share of the common memory limit, returned on drop.
pub(super) struct MemoryReservation {
    bodies: Arc<BodyMemory>,
    reserved: usize,
    /// The body's share of the backlog, in bytes, once it is queued.
    queued_bytes: usize,
}

/// Maximum delay before a request reaches the capture: a tenth of the flush interval.
pub(super) fn handover_delay(flush: Gap) -> Gap {
    Gap::from_nanos(flush.as_nanos() / 10)
}

/// Minimum backlog bytes per prompt, because even a small prompt takes time.
const MIN_BACKLOG_BYTES: usize = 4 << 10;

impl MemoryReservation {
    fn enqueue(&mut self, length: usize) {
        self.queued_bytes = length.max(MIN_BACKLOG_BYTES);
        self.bodies.backlog.fetch_add(self.queued_bytes, Ordering::Relaxed);
    }

    /// Bytes of the prompts queued behind this one.
    pub(super) fn backlog(&self) -> usize {
        self.bodies.backlog.load(Ordering::Relaxed).saturating_sub(self.queued_bytes)
    }

    /// Reserves memory for a body of `needed` bytes; false if the limit is reached.
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

/// Capture state of one request.
#[derive(Default)]
pub struct CaptureHandle {
    /// Body bytes received so far, until they are handed over.
    pub(super) body: Vec<u8>,
    /// Set for a body that is handed over before the end.
    reservation: Option<MemoryReservation>,
    /// True once the request was sent completely.
    pub(super) sent: bool,
    pub(super) encoding: Vec<u8>,
    /// Session id from the request header.
    pub(super) session: Option<Vec<u8>>,
    pub(super) in_flight: u32,
    /// Gaps drained before the request's end, and the number of gaps beyond the limit.
    pub(super) gaps: Vec<TokenEvent>,
    pub(super) lost_gaps: u64,
    /// The writer thread stores here the digest of a body that was handed over before the end.
    pub(super) digest_slot: Option<Arc<OnceLock<RequestDigest>>>,
    /// The body exceeds a memory limit.
    pub(super) oversize: bool,
    /// The client marked the request with [`PROBE_HEADER`].
    is_probe: bool,
}

impl fmt::Debug for CaptureHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The body must not reach a log.
        f.debug_struct("Following").finish_non_exhaustive()
    }
}

impl CaptureHandle {
    /// Adds gaps of a running stream, up to [`MAX_STREAM_GAPS`]; counts the rest as lost.
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
    /// Opens the folder and starts the writer thread. With `tokens`, blocks are cut in tokens.
    ///
    /// # Errors
    /// If the folder or the key cannot be used; the error names the folder.
    pub fn start(
        settings: CaptureSettings,
        tokens: Option<PromptTokenizer>,
        clock: Clock,
    ) -> Result<Self, CaptureError> {
        Self::start_in(CaptureFolder::open, settings, tokens, clock)
    }

    /// Starts in a folder that the predecessor of this process still writes to.
    ///
    /// # Errors
    /// As [`start`](Self::start), except that the predecessor's lock is no error.
    pub fn take_over(
        settings: CaptureSettings,
        tokens: Option<PromptTokenizer>,
        clock: Clock,
    ) -> Result<Self, CaptureError> {
        Self::start_in(CaptureFolder::take_over, settings, tokens, clock)
    }

    /// Checks that a capture can start in this folder with this key, and leaves nothing behind. Another process that
    /// captures there is no error.
    ///
    /// # Errors
    /// If the folder cannot be created or written, or the key cannot be read.
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
        // Tokenizing takes time, so queued bodies must be counted as backlog. With daily keys, ids belong to the day of
        // sending.
        let short = if tokens.is_some() || settings.rotate { 0 } else { MAX_INLINE_BODY_BYTES };
        let counted = Arc::clone(&counts);
        let mut writer =
            WriterThread::new(settings.clone(), folder, (key, tokens), counted, clock.clone()).map_err(failed)?;
        let stopping = Arc::clone(&stop);
        let (alive, ended) = sync_channel(0);
        let body = move || {
            writer.run(&notes, &stopping);
            // The lock on the folder must be released before `ended` disconnects.
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

    /// Maximum interval at which callers must hand over finished requests, as a share of the flush interval.
    pub fn handover_interval(&self) -> Gap {
        handover_delay(self.flush)
    }

    /// Counters of record outcomes.
    pub fn stats(&self) -> &Arc<CaptureStats> {
        &self.stats
    }

    /// Starts following a request. `header` reads one of its header fields; `in_flight` is the number of other open
    /// requests.
    pub fn begin_request<'h>(&self, header: impl Fn(&str) -> Option<&'h [u8]>, in_flight: usize) -> CaptureHandle {
        let session = match &self.session {
            // An empty value names no session.
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

    /// Adds a piece of the request body.
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

    /// Marks the request as completely sent, and hands a long body over.
    pub fn finish_body(&self, following: &mut CaptureHandle, dialect: Option<&'static Dialect>) {
        following.sent = true;
        let Some(mut room) = following.reservation.take() else { return };
        let (body, encoding) = (std::mem::take(&mut following.body), std::mem::take(&mut following.encoding));
        let Some(dialect) = dialect else { return };
        room.enqueue(body.len());
        let answer = Arc::clone(following.digest_slot.get_or_insert_default());
        // The row then has no prompt. The record's own outcome is counted at its end.
        if self.queue.try_send(CaptureMessage::RequestBody { body, room, encoding, dialect, answer }).is_err() {
            following.oversize = true;
        }
    }

    /// Queues a request that has ended and been counted.
    pub fn end_request(&self, mut ended: Box<dyn CapturedRequest>) {
        // Plain HTTP is no model traffic.
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

    /// Counts a finished request that was lost before it reached the capture.
    pub fn count_lost(&self) {
        self.stats.add(RecordOutcome::QueueFull, 1);
        // The writer thread itself may hang, so losses are logged here.
        if let Some(lost) = self.stats.unlogged_losses(self.clock.now()) {
            log_losses(&self.folder, &lost, None);
        }
    }

    /// Writes everything handed over, then stops. Waits for the disk for at most [`SHUTDOWN_TIMEOUT`]; unwritten
    /// records are counted as lost and logged.
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
