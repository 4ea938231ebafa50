//! The capture's thread: digests bodies, makes rows, fills frames, and hands them to the folder.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};

use super::counts::{Counts, Fate};
use super::digest::{Cutting, Digester};
use super::format::{BlockIds, BlockUnit, Blocks, Header, LastBlock, SOURCE, Scope};
use super::frame::Filling;
use super::key::Key;
use super::names::Names;
use super::recorder::{Following, MAX_BODY, Note, SessionField, Settings, on_the_way};
use super::row::{Asked, Rounding, row};
use super::segments::Folder;
use super::sessions::{Kept, Sessions};
use super::tokens::{MAX_BACKLOG, Tokens};
use crate::clock::{Clock, ClockReading, rest};
use crate::measure::budget::WorkBudget;
use crate::measure::dialect::Dialect;
use crate::measure::dialect::prompt::RequestBody;
use crate::measure::fetch::together;
use crate::measure::framing::coding::{Decoder, Undecodable};
use crate::measure::record::RequestRecord;
use crate::measure::time::{Gap, Stamp};

const DAY: u64 = 86_400_000_000_000;
/// How long notes gather while they come: in that time the queue does not fill.
const NAP: Gap = Gap::from_millis(10);
/// Notes that are taken before the time is looked at.
const AT_ONCE: usize = 256;
/// How often the folder is tidied.
const TIDY_EVERY: Gap = Gap::from_millis(60_000);

/// The thread's own.
pub(super) struct Writer {
    settings: Settings,
    digester: Digester,
    clock: Clock,
    /// Wall time of `zero`, which is time zero of the rows.
    started: u64,
    zero: Stamp,
    folder: Folder,
    filling: Filling,
    counts: Arc<Counts>,
    names: Names,
    sessions: Sessions,
    /// The key that was made or given, and the one of today.
    root: Key,
    key: Key,
    day: u64,
    /// Rows in the frame that is being filled, by their fates if it is written.
    whole: u64,
    oversize: u64,
    /// Why the last frame that was lost was not written, until that is told.
    refused: Option<io::Error>,
    flushed: Stamp,
    tidied: Stamp,
}

impl Writer {
    /// Nothing is written yet.
    ///
    /// # Errors
    /// When there is no memory to compress with.
    pub(super) fn new(
        settings: Settings,
        folder: Folder,
        (key, tokens): (Key, Option<Tokens>),
        counts: Arc<Counts>,
        clock: Clock,
    ) -> io::Result<Self> {
        let zero = clock.now();
        let cutting = match tokens {
            Some(tokens) => Cutting::Tokens(settings.block, Arc::new(tokens)),
            None => Cutting::Bytes(settings.block),
        };
        Ok(Self {
            started: clock.unix_nanos(zero),
            zero,
            folder,
            filling: Filling::new()?,
            counts,
            names: Names::new(settings.names),
            sessions: Sessions::default(),
            day: 0,
            key: key.clone(),
            root: key.clone(),
            whole: 0,
            oversize: 0,
            refused: None,
            flushed: zero,
            tidied: zero,
            digester: Digester::new(&key, cutting),
            settings,
            clock,
        })
    }

    /// Writes what comes until it is told to stop.
    pub(super) fn run(&mut self, notes: &Receiver<Note>, stop: &AtomicBool) {
        let flush = self.settings.flush.as_nanos();
        let flush = Gap::from_nanos(flush - on_the_way(self.settings.flush).as_nanos());
        self.tidy();
        loop {
            let mut taken = 0;
            while taken < AT_ONCE {
                let fetched = together(notes.try_iter());
                if fetched.is_empty() {
                    break;
                }
                taken += fetched.len();
                fetched.into_iter().for_each(|note| self.note(note));
            }
            if taken == 0 {
                let since = self.clock.now().since(self.flushed);
                let wait = flush.as_nanos().saturating_sub(since.as_nanos());
                match notes.recv_timeout(Gap::from_nanos(wait.max(1_000_000)).into()) {
                    Ok(note) => {
                        self.note(note);
                        rest(NAP);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            } else if taken < AT_ONCE {
                // What comes during a nap wakes nobody: waking costs a stream's thread more than handing over does.
                rest(NAP);
            }
            let now = self.clock.now();
            if now.since(self.flushed) >= flush {
                self.flush();
            }
            if now.since(self.tidied) >= TIDY_EVERY {
                self.tidy();
            }
            if stop.load(Ordering::Acquire) {
                break;
            }
        }
        notes.try_iter().for_each(|note| self.note(note));
        self.flush();
        if let Err(error) = self.folder.close() {
            tracing::warn!(%error, "the last segment of the capture may not be on disk");
        }
        if let Some(lost) = self.counts.untold_at_the_end() {
            log_losses(&self.settings.folder, &lost, self.refused.as_ref());
        }
    }

    fn note(&mut self, note: Note) {
        self.turn_of_day();
        match note {
            Note::Asked { body, room, encoding, dialect, answer } => {
                let asked = self.asked(&body, room.backlog(), &encoding, dialect);
                drop((body, room));
                let _first = answer.set(asked).is_ok();
            }
            Note::Ended(mut ended) => {
                let Some((following, record)) = ended.parts() else { return };
                let asked = match (following.answer.take(), record.shape.dialect) {
                    // Whoever was to answer has answered, and is gone: its note came first.
                    (Some(answer), _) => Arc::into_inner(answer).and_then(OnceLock::into_inner).unwrap_or_default(),
                    (None, Some(dialect)) if following.sent && !following.body.is_empty() => {
                        self.asked(&following.body, 0, &following.encoding, dialect)
                    }
                    _ => Asked::default(),
                };
                self.ended(following, record, asked);
            }
            Note::Stop => {}
        }
    }

    /// What a body says that may be kept.
    fn asked(&mut self, body: &[u8], backlog: usize, encoding: &[u8], dialect: &Dialect) -> Asked {
        let nothing = Asked { day: self.day, ..Asked::default() };
        let plain = match decoded(body, encoding) {
            Ok(plain) => plain,
            Err(undecoded) => return Asked { uncut: undecoded == Undecoded::TooLarge, ..nothing },
        };
        let Some(mut body) = RequestBody::read(plain.as_deref().unwrap_or(body)) else { return nothing };
        let behind = self.unit() == BlockUnit::Tokens && backlog > MAX_BACKLOG;
        if behind {
            self.digester.without_tokens();
        }
        let found = body.prompt(dialect, &mut self.digester);
        let digested = self.digester.finish();
        let session = match &self.settings.session {
            Some(SessionField::Body(path)) => {
                let name = body.text(path).filter(|name| !name.is_empty());
                name.map(|name| self.key.digest(b"name", name.as_bytes()))
            }
            _ => None,
        };
        let goes_on_from = body.goes_on_from(dialect).map(|id| self.answer(id));
        let prompt = found.then_some(digested);
        Asked { prompt, extras: body.extras(), session, goes_on_from, uncut: behind, ..nothing }
    }

    /// What stands in the memory of sessions for the id of an answer that a server keeps.
    fn answer(&self, id: &str) -> u64 {
        self.key.digest(b"answer", id.as_bytes())
    }

    fn ended(&mut self, following: &mut Following, record: &RequestRecord, mut asked: Asked) {
        if asked.day != self.day {
            asked.forget_ids();
        }
        let (arrived, at) = (record.times.received, record.times.ended);
        let header = following.session.as_deref();
        let named = header.map(|name| self.key.digest(b"name", name)).or(asked.session);
        let messages = asked.prompt.as_ref().map(|prompt| &prompt.messages[..]).unwrap_or_default();
        let turn = match named {
            Some(session) => Some(self.sessions.named(session, arrived, at)),
            None if self.settings.session.is_some() => None,
            None => {
                let kept = record.shape.dialect.is_some_and(Dialect::keeps_answers);
                let answer = record.response_id.as_deref().filter(|_| kept).map(|id| self.answer(id));
                self.sessions.inferred(messages, Kept { goes_on_from: asked.goes_on_from, answer }, arrived, at)
            }
        };
        let rounding = Rounding::new(self.settings.round, self.unit(), self.settings.block);
        let oversize = following.oversize || asked.uncut;
        let entry = row(following, record, asked, turn, &mut self.names, rounding, self.zero);
        if self.begin_frame().and_then(|()| self.filling.row(&entry)).is_err() {
            self.counts.left(1);
            self.counts.add(Fate::Encode, 1);
            return;
        }
        *(if oversize { &mut self.oversize } else { &mut self.whole }) += 1;
        if self.filling.is_full() {
            self.flush();
        }
    }

    /// What the length of a block counts.
    fn unit(&self) -> BlockUnit {
        match self.digester.cutting() {
            Cutting::Tokens(..) => BlockUnit::Tokens,
            Cutting::Bytes(_) => BlockUnit::Bytes,
        }
    }

    /// Gives a frame that begins a segment its header.
    fn begin_frame(&mut self) -> io::Result<()> {
        if self.filling.is_empty() && self.folder.next_frame() == 0 {
            let header = self.header();
            self.filling.header(&header)?;
        }
        Ok(())
    }

    fn header(&self) -> Header {
        let blocks = Blocks {
            size: u32::try_from(self.settings.block).unwrap_or(u32::MAX),
            unit: self.unit(),
            last: LastBlock::Dropped,
            ids: BlockIds::Chained,
            scope: Scope::Trace,
            key: Some(self.digester.cutting().key(&self.key).id()),
        };
        Header { started_unix_ns: Some(self.started), blocks: Some(blocks), ..Header::new(SOURCE) }
    }

    /// Takes up the key of today, where each day has its own.
    fn turn_of_day(&mut self) {
        if !self.settings.rotate {
            return;
        }
        // By the line that the rows' times are on, whatever is done to the machine's clock meanwhile.
        let today = self.started.saturating_add(self.clock.now().since(self.zero).as_nanos()) / DAY;
        if today != self.day {
            self.flush();
            // A header that found no row is of yesterday's key.
            self.filling.clear();
            self.close();
            (self.day, self.key) = (today, self.root.of_day(today));
            self.digester = Digester::new(&self.key, self.digester.cutting().clone());
            // Yesterday's ends are of yesterday's key.
            self.sessions = Sessions::default();
        }
    }

    /// Writes the frame that is being filled, and closes the segment when it is time for that, whether anything came or not.
    fn flush(&mut self) {
        self.flushed = self.clock.now();
        let now = ClockReading { stamp: self.flushed, unix_nanos: self.clock.unix_nanos(self.flushed) };
        if self.filling.rows() > 0 {
            self.write(now);
        }
        if self.folder.is_due(now.stamp) {
            self.close();
            self.tidy();
        }
    }

    fn write(&mut self, now: ClockReading) {
        let rows = self.whole + self.oversize;
        let written = self.filling.close(self.folder.next_frame()).and_then(|frame| {
            self.folder.write(&frame, now)?;
            Ok(frame.len())
        });
        self.counts.left(rows);
        match written {
            Ok(bytes) => {
                self.counts.wrote(bytes as u64);
                self.counts.add(Fate::Whole, self.whole);
                self.counts.add(Fate::Oversize, self.oversize);
            }
            Err(error) => {
                self.counts.add(Fate::Disk, rows);
                tracing::debug!(%error, "a frame of the capture was not written");
                self.refused = Some(error);
                self.tell();
            }
        }
        (self.whole, self.oversize) = (0, 0);
        self.filling.clear();
    }

    fn close(&mut self) {
        if let Err(error) = self.folder.close() {
            tracing::warn!(%error, "a segment of the capture may not be on disk");
        }
    }

    fn tidy(&mut self) {
        let now = ClockReading::now(&self.clock);
        self.tidied = now.stamp;
        if let Err(error) = self.folder.tidy(now) {
            tracing::warn!(%error, "old segments of the capture cannot be removed");
        }
        self.tell();
    }

    /// Logs what was lost, at most once a minute.
    fn tell(&mut self) {
        if let Some(lost) = self.counts.untold(self.clock.now()) {
            log_losses(&self.settings.folder, &lost, self.refused.take().as_ref());
        }
    }
}

/// Says that records were lost, and why: `refused` is what the system said of the disk.
pub(super) fn log_losses(folder: &Path, lost: &str, refused: Option<&io::Error>) {
    let error = refused.map(tracing::field::display);
    tracing::warn!(folder = %folder.display(), %lost, error, "the capture has lost records");
}

/// Why a body cannot be had as it was before its coding.
#[derive(Clone, Copy, PartialEq)]
enum Undecoded {
    TooLarge,
    /// Another coding, or broken.
    Unknown,
}

/// A body as it was before its coding; `Ok(None)` if it has none.
fn decoded(body: &[u8], encoding: &[u8]) -> Result<Option<Vec<u8>>, Undecoded> {
    let mut decoder = Decoder::for_encoding(encoding).ok_or(Undecoded::Unknown)?;
    if decoder.is_identity() {
        return Ok(None);
    }
    let (mut plain, mut budget) = (Vec::new(), WorkBudget::default());
    budget.receive(body.len());
    let mut fits = true;
    let decoded = decoder.push(body, &mut budget, |piece, _| {
        fits = plain.len() + piece.len() <= MAX_BODY;
        if fits {
            plain.extend_from_slice(piece);
        }
        fits
    });
    match decoded {
        _ if !fits => Err(Undecoded::TooLarge),
        Ok(()) => Ok(Some(plain)),
        Err(Undecodable::OutOfBudget) => Err(Undecoded::TooLarge),
        Err(Undecodable::Malformed) => Err(Undecoded::Unknown),
    }
}
