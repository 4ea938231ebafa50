//! The proxy's side of the capture: hands requests to the writer thread (`writer_thread.rs`), which makes rows.
//!
//! A stream's task gets a [`CaptureHandle`] when a request begins. It passes the body as it is sent, and the gaps of a
//! long stream as they are drained. After the request, the control thread counts the record and passes it to
//! [`CaptureRecorder::end_request`]. No step waits: if the queue is full, the record is lost and counted
//! ([`RecordOutcome`]), and the stream is not affected.
//!
//! # Memory
//! Bodies are held until the writer thread has hashed them: at most
//! [`MAX_BODY_BYTES`](super::body_memory::MAX_BODY_BYTES) each and
//! [`MAX_BUFFERED_BYTES`](super::body_memory::MAX_BUFFERED_BYTES) in total. In addition, bodies of at most
//! [`MAX_INLINE_BODY_BYTES`] are held until the request ends, because one message costs half as much as two. Each stream
//! holds at most [`MAX_STREAM_GAPS`](super::message::MAX_STREAM_GAPS) gaps, and the queue at most
//! [`MAX_QUEUED_MESSAGES`] messages.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::agent_headers::session_and_parent;
use super::body_memory::{BodyMemory, MemoryReservation};
pub use super::error::CaptureError;
use super::key::CaptureKey;
use super::live_sessions::{LiveSessions, LiveSessionsView};
use super::message::{CaptureHandle, CaptureMessage, CapturedRequest};
use super::retention::Retention;
use super::segments::CaptureFolder;
use super::settings::{CaptureSettings, SessionField, handover_delay};
use super::stats::{CaptureStats, RecordOutcome};
use super::tokenizer::PromptTokenizer;
use super::writer_thread::{WriterThread, log_losses};
use crate::clock::{Clock, ClockReading};
use crate::measure::dialect::Dialect;
use crate::measure::time::Gap;
use crate::trace_file::PROBE_HEADER;

/// Maximum bytes of a body that is handed over together with the request's end.
pub const MAX_INLINE_BODY_BYTES: usize = 2 << 10;
/// Maximum queued messages: one second of the busiest proxy measured.
pub const MAX_QUEUED_MESSAGES: usize = 8_192;
/// Maximum time that shutdown waits for the disk.
pub const SHUTDOWN_TIMEOUT: Gap = Gap::from_millis(3_000);

/// Receives requests from the proxy and passes them to the writer thread. Shared by all streams.
pub struct CaptureRecorder {
    queue: SyncSender<CaptureMessage>,
    stats: Arc<CaptureStats>,
    /// The writer thread holds the lock for one request, a reader for one view.
    sessions: Arc<Mutex<LiveSessions>>,
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
        let mut folder = open(&settings.folder, settings.retention, ClockReading::now(&clock)).map_err(failed)?;
        let counts = Arc::<CaptureStats>::default();
        match &settings.upload {
            Some(target) => {
                folder.upload(target, settings.parquet, Arc::clone(&counts), clock.clone()).map_err(failed)?;
            }
            None if settings.parquet => folder.write_parquet().map_err(failed)?,
            None => {}
        }
        let key = CaptureKey::load_or_create(&settings.folder, settings.key.as_deref()).map_err(failed)?;
        let (queue, notes) = sync_channel(MAX_QUEUED_MESSAGES);
        let stop = Arc::<AtomicBool>::default();
        let (session, directory, flush) = (settings.session.clone(), settings.folder.clone(), settings.flush);
        // Tokenizing takes time, so queued bodies must be counted as backlog. With daily keys, ids belong to the day of
        // sending.
        let short = if tokens.is_some() || settings.rotate { 0 } else { MAX_INLINE_BODY_BYTES };
        let sessions = Arc::<Mutex<LiveSessions>>::default();
        let shared = (Arc::clone(&counts), Arc::clone(&sessions));
        let mut writer =
            WriterThread::new(settings.clone(), folder, (key, tokens), shared, clock.clone()).map_err(failed)?;
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
            sessions,
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

    /// The sessions of the last quarter of an hour; `None` without any.
    pub fn live_sessions(&self) -> Option<LiveSessionsView> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).view(self.clock.now())
    }

    /// Counters of record outcomes.
    pub fn stats(&self) -> &Arc<CaptureStats> {
        &self.stats
    }

    /// Starts following a request. `header` reads one of its header fields; `in_flight` is the number of other open
    /// requests.
    pub fn begin_request<'h>(&self, header: impl Fn(&str) -> Option<&'h [u8]>, in_flight: usize) -> CaptureHandle {
        let (session, parent) = match &self.session {
            Some(SessionField::Header(name)) => session_and_parent(name, &header),
            _ => (None, None),
        };
        CaptureHandle {
            encoding: header("content-encoding").unwrap_or_default().to_vec(),
            session,
            parent,
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
            let reservation = following.reservation.get_or_insert_with(|| MemoryReservation::new(&self.bodies));
            if !reservation.grow(&mut following.body, needed) {
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
