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

use super::counts::{Counts, Fate};
pub use super::error::CaptureError;
use super::key::Key;
use super::row::Asked;
use super::segments::{Folder, Retention};
use super::thread::{Writer, log_losses};
use super::tokens::Tokens;
use crate::clock::{Clock, ClockReading};
use crate::measure::dialect::Dialect;
use crate::measure::fetch::{self, Fetch};
use crate::measure::record::RequestRecord;
use crate::measure::time::Gap;
use crate::measure::timeline::TokenEvent;

/// The largest request body whose prompt is digested, in bytes, as sent and decoded: two million tokens of text.
pub const MAX_BODY: usize = 8 << 20;
/// Bodies that are held at one time, in bytes.
pub const MAX_BODIES: usize = 64 << 20;
/// A body up to this length is handed over with the request's end, in bytes.
pub const SHORT: usize = 2 << 10;
/// Gaps that are kept of one stream; 512 KiB.
pub const MAX_GAPS: usize = 65_536;
/// Notes that may wait: a second of the busiest proxy that was measured.
pub const WAITING: usize = 8_192;
/// Header of a request that a load generator sends to learn about the server, and not as part of its load: `1`. The
/// capture skips it and counts it; a trace that had it would not be the load.
pub const PROBE_HEADER: &str = "x-streamgauge-probe";
/// How long the end of the process waits for the disk.
pub const FINISH: Gap = Gap::from_millis(3_000);

/// How to capture.
#[derive(Clone, Debug)]
pub struct Settings {
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
pub struct Capture {
    queue: SyncSender<Note>,
    counts: Arc<Counts>,
    bodies: Arc<Bodies>,
    /// Bodies up to this length are handed over with the request's end.
    short: usize,
    folder: PathBuf,
    flush: Gap,
    session: Option<SessionField>,
    clock: Clock,
    stop: Arc<AtomicBool>,
    /// Disconnected when the thread has ended.
    ended: Mutex<Receiver<()>>,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("folder", &self.folder).finish_non_exhaustive()
    }
}

pub(super) enum Note {
    /// A request was sent.
    Asked { body: Vec<u8>, room: Room, encoding: Vec<u8>, dialect: &'static Dialect, answer: Arc<OnceLock<Asked>> },
    /// A request has ended.
    Ended(Box<dyn Followed>),
    /// Write what there is.
    Stop,
}

impl Fetch for Note {
    fn fetch(&mut self) {
        if let Self::Ended(ended) = self
            && let Some((following, record)) = ended.parts()
        {
            black_box((following.sent, following.in_flight, following.gaps.len(), following.session.is_some()));
            black_box(following.body.iter().step_by(64).fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
            fetch::record(record);
        }
    }
}

/// A request that has ended, as whoever counted it hands it on.
pub trait Followed: Send {
    /// What was followed of it, and what it came to; `None` where nobody followed it.
    fn parts(&mut self) -> Option<(&mut Following, &RequestRecord)>;
}

impl<R: Borrow<RequestRecord> + Send> Followed for (Following, R) {
    fn parts(&mut self) -> Option<(&mut Following, &RequestRecord)> {
        Some((&mut self.0, self.1.borrow()))
    }
}

/// Bodies that are held, and those of them that wait for the thread, in bytes.
#[derive(Default)]
struct Bodies {
    held: AtomicUsize,
    backlog: AtomicUsize,
}

/// What a body takes of the room that all have.
pub(super) struct Room {
    bodies: Arc<Bodies>,
    reserved: usize,
    /// What of the backlog it is, once it waits.
    waits: usize,
}

/// How much of the time in which a request is to be written it may be on its way to the capture.
pub(super) fn on_the_way(flush: Gap) -> Gap {
    Gap::from_nanos(flush.as_nanos() / 10)
}

/// What a small prompt counts among those that wait, in bytes: it takes time of its own.
const LEAST_WORK: usize = 4 << 10;

impl Room {
    fn wait(&mut self, length: usize) {
        self.waits = length.max(LEAST_WORK);
        self.bodies.backlog.fetch_add(self.waits, Ordering::Relaxed);
    }

    /// Bytes of the prompts that wait behind it.
    pub(super) fn backlog(&self) -> usize {
        self.bodies.backlog.load(Ordering::Relaxed).saturating_sub(self.waits)
    }

    /// Room for a body that grows to so many bytes; false where there is none.
    fn grow(&mut self, body: &mut Vec<u8>, needed: usize) -> bool {
        if needed > MAX_BODY {
            return false;
        }
        if needed <= self.reserved {
            return true;
        }
        let grown = needed.next_power_of_two();
        let before = self.bodies.held.fetch_add(grown - self.reserved, Ordering::Relaxed);
        let grew = grown - std::mem::replace(&mut self.reserved, grown);
        let fits = before + grew <= MAX_BODIES;
        if fits {
            body.reserve_exact(grown - body.len());
        }
        fits
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.bodies.held.fetch_sub(self.reserved, Ordering::Relaxed);
        if self.waits > 0 {
            self.bodies.backlog.fetch_sub(self.waits, Ordering::Relaxed);
        }
    }
}

/// One request, for the capture.
#[derive(Default)]
pub struct Following {
    /// What has come of its body, until that is handed over.
    pub(super) body: Vec<u8>,
    /// Of a body that is not short.
    room: Option<Room>,
    /// Whether it was sent whole.
    pub(super) sent: bool,
    pub(super) encoding: Vec<u8>,
    /// What a header says of its session.
    pub(super) session: Option<Vec<u8>>,
    pub(super) in_flight: u32,
    /// Gaps that were drained before the end, and how many besides were not kept.
    pub(super) gaps: Vec<TokenEvent>,
    pub(super) lost: u64,
    /// Where the thread puts what it found in a body that was handed over before the end.
    pub(super) answer: Option<Arc<OnceLock<Asked>>>,
    /// Its body was too large.
    pub(super) oversize: bool,
    /// Its client says that it is a probe ([`PROBE_HEADER`]).
    is_probe: bool,
}

impl fmt::Debug for Following {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of what was said.
        f.debug_struct("Following").finish_non_exhaustive()
    }
}

impl Following {
    /// Gaps of a stream that goes on.
    pub fn progress(&mut self, gaps: &[TokenEvent]) {
        let room = (MAX_GAPS - self.gaps.len()).min(gaps.len());
        self.gaps.extend_from_slice(&gaps[..room]);
        self.lost += (gaps.len() - room) as u64;
    }

    fn forget_body(&mut self) {
        (self.body, self.room, self.oversize) = (Vec::new(), None, true);
    }
}

impl Capture {
    /// Opens the folder, and begins to write. Blocks are of `tokens`, where there is a tokenizer.
    ///
    /// # Errors
    /// When the folder or the key cannot be used; the error names the folder.
    pub fn start(settings: Settings, tokens: Option<Tokens>, clock: Clock) -> Result<Self, CaptureError> {
        Self::start_in(Folder::open, settings, tokens, clock)
    }

    /// Begins to write into a folder that the process which this one takes over from still writes into.
    ///
    /// # Errors
    /// As [`start`](Self::start), but for the other process.
    pub fn take_over(settings: Settings, tokens: Option<Tokens>, clock: Clock) -> Result<Self, CaptureError> {
        Self::start_in(Folder::take_over, settings, tokens, clock)
    }

    /// Whether a capture could begin in this folder with this key. Nothing is left behind; that another process captures
    /// there is no fault.
    ///
    /// # Errors
    /// When the folder could not be made or written, or the key cannot be read.
    pub fn check(folder: &Path, key: Option<&Path>) -> Result<(), CaptureError> {
        let failed = |error| CaptureError::new(folder, error);
        Folder::check(folder).map_err(failed)?;
        key.map_or(Ok(()), |key| Key::of_folder(folder, Some(key)).map(drop).map_err(failed))
    }

    fn start_in(
        open: impl FnOnce(&Path, Retention, ClockReading) -> io::Result<Folder>,
        settings: Settings,
        tokens: Option<Tokens>,
        clock: Clock,
    ) -> Result<Self, CaptureError> {
        let failed = |error| CaptureError::new(&settings.folder, error);
        let folder = open(&settings.folder, settings.retention, ClockReading::now(&clock)).map_err(failed)?;
        let key = Key::of_folder(&settings.folder, settings.key.as_deref()).map_err(failed)?;
        let (queue, notes) = sync_channel(WAITING);
        let (counts, stop) = (Arc::<Counts>::default(), Arc::<AtomicBool>::default());
        let (session, directory, flush) = (settings.session.clone(), settings.folder.clone(), settings.flush);
        // Tokens take long, so that what waits for them is counted; ids are of the day on which a request was sent.
        let short = if tokens.is_some() || settings.rotate { 0 } else { SHORT };
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
        Ok(Self { queue, counts, bodies: Arc::default(), short, folder: directory, flush, session, clock, stop, ended })
    }

    /// How often it is to be given what has ended, at least: that is a part of the time in which it is to be written.
    pub fn wants_every(&self) -> Gap {
        on_the_way(self.flush)
    }

    /// What became of the records.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// A request begins. `header` reads one of its header fields; `in_flight` others are open.
    pub fn follow<'h>(&self, header: impl Fn(&str) -> Option<&'h [u8]>, in_flight: usize) -> Following {
        let session = match &self.session {
            // Without a value it is the name of nobody's session.
            Some(SessionField::Header(name)) => header(name).filter(|name| !name.is_empty()).map(<[u8]>::to_vec),
            _ => None,
        };
        Following {
            encoding: header("content-encoding").unwrap_or_default().to_vec(),
            session,
            in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
            is_probe: header(PROBE_HEADER).is_some(),
            ..Following::default()
        }
    }

    /// A piece of the request's body.
    pub fn request(&self, following: &mut Following, piece: &[u8]) {
        if following.oversize || following.sent || following.is_probe {
            return;
        }
        let needed = following.body.len() + piece.len();
        if needed > self.short {
            let new = || Room { bodies: Arc::clone(&self.bodies), reserved: 0, waits: 0 };
            if !following.room.get_or_insert_with(new).grow(&mut following.body, needed) {
                return following.forget_body();
            }
        }
        following.body.extend_from_slice(piece);
    }

    /// The request was sent whole.
    pub fn sent(&self, following: &mut Following, dialect: Option<&'static Dialect>) {
        following.sent = true;
        let Some(mut room) = following.room.take() else { return };
        let (body, encoding) = (std::mem::take(&mut following.body), std::mem::take(&mut following.encoding));
        let Some(dialect) = dialect else { return };
        room.wait(body.len());
        let answer = Arc::clone(following.answer.get_or_insert_default());
        // Without it the row has no prompt; the record's own fate is counted when it ends.
        if self.queue.try_send(Note::Asked { body, room, encoding, dialect, answer }).is_err() {
            following.oversize = true;
        }
    }

    /// The request has ended, and has been counted.
    pub fn ended(&self, mut ended: Box<dyn Followed>) {
        // Plain HTTP is no traffic of a model.
        let Some((following, _)) = ended.parts().filter(|(_, record)| record.shape.dialect.is_some()) else { return };
        if following.is_probe {
            return self.counts.add(Fate::Probe, 1);
        }
        self.counts.joined();
        if self.queue.try_send(Note::Ended(ended)).is_err() {
            self.counts.left(1);
            self.lost();
        }
    }

    /// A request that has ended will not get here: there was no room on the way.
    pub fn lost(&self) {
        self.counts.add(Fate::QueueFull, 1);
        // The thread may be what hangs, so that it cannot tell.
        if let Some(lost) = self.counts.untold(self.clock.now()) {
            log_losses(&self.folder, &lost, None);
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
