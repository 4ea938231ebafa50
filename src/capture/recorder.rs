//! What the proxy hands over to the capture, whose thread makes rows of it (`thread.rs`).
//!
//! A stream's task makes a [`Following`] when a request begins, gives it the body as it is sent, the gaps of a long
//! stream as they are drained, and in the end the record. None of that waits: what finds the queue full is lost and
//! counted ([`Fate`]), and the stream never knows.
//!
//! # Memory
//! Bodies are held until the thread has digested them, [`MAX_BODY`] each and [`MAX_BODIES`] of all; gaps up to
//! [`MAX_GAPS`] per stream; [`WAITING`] notes in the queue.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use super::counts::{Counts, Fate};
use super::key::Key;
use super::row::{Asked, Ended};
use super::segments::{Folder, Retention};
use super::thread::{Writer, log_losses};
use super::tokens::Tokens;
use crate::clock::Clock;
use crate::measure::dialect::Dialect;
use crate::measure::record::RequestRecord;
use crate::measure::time::Gap;
use crate::measure::timeline::TokenEvent;

/// The largest request body whose prompt is digested, in bytes, as sent and decoded: two million tokens of text.
pub const MAX_BODY: usize = 8 << 20;
/// Bodies that are held at one time, in bytes.
pub const MAX_BODIES: usize = 64 << 20;
/// Gaps that are kept of one stream; 512 KiB.
pub const MAX_GAPS: usize = 65_536;
/// Notes that may wait: a second of the busiest proxy that was measured.
pub const WAITING: usize = 8_192;
/// How long the end of the process waits for the disk.
pub const FINISH: Gap = Gap::from_millis(3_000);

/// How to capture.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder.
    pub folder: PathBuf,
    /// How long a row may wait to be written.
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

/// Why there can be no capture.
#[derive(Debug, thiserror::Error)]
#[error("cannot capture into {} (--capture): {error}", folder.display())]
pub struct CaptureError {
    folder: PathBuf,
    error: io::Error,
}

/// Where the proxy hands requests over. See the module.
pub struct Capture {
    queue: SyncSender<Note>,
    counts: Arc<Counts>,
    held: Arc<AtomicUsize>,
    backlog: Arc<AtomicUsize>,
    folder: PathBuf,
    session: Option<SessionField>,
    clock: Clock,
    stop: Arc<AtomicBool>,
    /// Disconnected when the thread has ended.
    ended: Mutex<Receiver<()>>,
}

pub(super) enum Note {
    /// A request was sent.
    Asked { body: Held, encoding: Vec<u8>, dialect: &'static Dialect, answer: Arc<OnceLock<Asked>> },
    /// A request has ended.
    Ended(Box<Gone>),
    /// Write what there is.
    Stop,
}

/// A request that has ended.
pub(super) struct Gone {
    pub(super) ended: Ended,
    /// What a header says of its session.
    pub(super) session: Option<Vec<u8>>,
    pub(super) asked: Arc<OnceLock<Asked>>,
    pub(super) oversize: bool,
}

/// A body that is held, within the bounds of all.
pub(super) struct Held {
    pub(super) bytes: Vec<u8>,
    reserved: usize,
    all: Arc<AtomicUsize>,
    /// All that waits for the thread, and what of it this is, once it does.
    backlog: Arc<AtomicUsize>,
    waits: usize,
}

/// What a small prompt counts among those that wait, in bytes: it takes time of its own.
const LEAST_WORK: usize = 4 << 10;

impl Held {
    fn wait(&mut self) {
        self.waits = self.bytes.len().max(LEAST_WORK);
        self.backlog.fetch_add(self.waits, Ordering::Relaxed);
    }

    /// Bytes of the prompts that wait behind it.
    pub(super) fn backlog(&self) -> usize {
        self.backlog.load(Ordering::Relaxed).saturating_sub(self.waits)
    }

    fn push(&mut self, more: &[u8]) -> Result<(), ()> {
        let needed = self.bytes.len() + more.len();
        if needed > MAX_BODY {
            return Err(());
        }
        if needed > self.reserved {
            let grown = needed.next_power_of_two();
            let before = self.all.fetch_add(grown - self.reserved, Ordering::Relaxed);
            let grew = grown - self.reserved;
            self.reserved = grown;
            if before + grew > MAX_BODIES {
                return Err(());
            }
            self.bytes.reserve_exact(grown - self.bytes.len());
        }
        self.bytes.extend_from_slice(more);
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.reserved, Ordering::Relaxed);
        self.backlog.fetch_sub(self.waits, Ordering::Relaxed);
    }
}

/// One request, for the capture.
pub struct Following {
    body: Option<Held>,
    encoding: Vec<u8>,
    session: Option<Vec<u8>>,
    in_flight: u32,
    gaps: Vec<TokenEvent>,
    lost: u64,
    answer: Arc<OnceLock<Asked>>,
    /// Its body was too large.
    oversize: bool,
}

impl Following {
    /// A piece of the request's body.
    pub fn request(&mut self, piece: &[u8]) {
        if let Some(body) = &mut self.body
            && body.push(piece).is_err()
        {
            self.body = None;
            self.oversize = true;
        }
    }

    /// Gaps of a stream that goes on.
    pub fn progress(&mut self, gaps: &[TokenEvent]) {
        let room = (MAX_GAPS - self.gaps.len()).min(gaps.len());
        self.gaps.extend_from_slice(&gaps[..room]);
        self.lost += (gaps.len() - room) as u64;
    }
}

impl Capture {
    /// Opens the folder, and begins to write. Blocks are of `tokens`, where there is a tokenizer.
    ///
    /// # Errors
    /// When the folder or the key cannot be used; the error names the folder.
    pub fn start(settings: Settings, tokens: Option<Tokens>, clock: Clock) -> Result<Self, CaptureError> {
        let failed = |error| CaptureError { folder: settings.folder.clone(), error };
        let folder = Folder::open(&settings.folder, settings.retention).map_err(failed)?;
        let key = Key::of_folder(&settings.folder, settings.key.as_deref()).map_err(failed)?;
        let (queue, notes) = sync_channel(WAITING);
        let (counts, stop) = (Arc::<Counts>::default(), Arc::<AtomicBool>::default());
        let (session, directory) = (settings.session.clone(), settings.folder.clone());
        let counted = Arc::clone(&counts);
        let mut writer =
            Writer::new(settings.clone(), folder, (key, tokens), counted, clock.clone()).map_err(failed)?;
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
            counts,
            held: Arc::default(),
            backlog: Arc::default(),
            folder: directory,
            session,
            clock,
            stop,
            ended,
        })
    }

    /// What became of the records.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// A request begins. `header` reads one of its header fields; `in_flight` others are open.
    pub fn follow<'h>(&self, header: impl Fn(&str) -> Option<&'h [u8]>, in_flight: usize) -> Following {
        let session = match &self.session {
            Some(SessionField::Header(name)) => header(name).map(<[u8]>::to_vec),
            _ => None,
        };
        Following {
            body: Some(Held {
                bytes: Vec::new(),
                reserved: 0,
                all: Arc::clone(&self.held),
                backlog: Arc::clone(&self.backlog),
                waits: 0,
            }),
            encoding: header("content-encoding").unwrap_or_default().to_vec(),
            session,
            in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
            gaps: Vec::new(),
            lost: 0,
            answer: Arc::default(),
            oversize: false,
        }
    }

    /// The request was sent whole.
    pub fn sent(&self, following: &mut Following, dialect: Option<&'static Dialect>) {
        let (Some(mut body), Some(dialect)) = (following.body.take(), dialect) else { return };
        body.wait();
        let answer = Arc::clone(&following.answer);
        let encoding = std::mem::take(&mut following.encoding);
        // Without it the row has no prompt; the record's own fate is counted when it ends.
        if self.queue.try_send(Note::Asked { body, encoding, dialect, answer }).is_err() {
            following.oversize = true;
        }
    }

    /// The request has ended.
    pub fn ended(&self, following: Following, record: &RequestRecord) {
        // Plain HTTP is no traffic of a model.
        if record.shape.dialect.is_none() {
            return;
        }
        let Following { gaps, lost, in_flight, session, answer: asked, oversize, .. } = following;
        let ended = Ended::of(record, gaps, lost, in_flight);
        let gone = Gone { ended, session, asked, oversize };
        self.counts.joined();
        if self.queue.try_send(Note::Ended(Box::new(gone))).is_err() {
            self.counts.left(1);
            self.counts.add(Fate::QueueFull, 1);
            // The thread may be what hangs, so that it cannot tell.
            if let Some(lost) = self.counts.untold(self.clock.now()) {
                log_losses(&self.folder, &lost);
            }
        }
    }

    /// Writes what has been handed over, and ends. Waits for the disk, but not longer than [`FINISH`]: what it has not
    /// taken by then is lost and logged.
    pub fn finish(&self) {
        self.stop.store(true, Ordering::Release);
        let _waits_already = self.queue.try_send(Note::Stop).is_err();
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(FINISH.into()) == Err(RecvTimeoutError::Timeout) {
            let (folder, lost) = (self.folder.display(), self.counts.waiting());
            self.counts.add(Fate::Disk, lost);
            tracing::warn!(%folder, lost, "the disk of the capture hangs: what it has not taken is lost");
        }
    }
}
