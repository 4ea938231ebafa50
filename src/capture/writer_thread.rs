//! The writer thread of the capture: hashes bodies, builds rows, fills frames, and writes them to the folder.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::block_chunker::BlockChunking;
use super::body_decoding::{BodyDecodeError, decode_body};
use super::key::{CaptureKey, hex};
use super::live_sessions::LiveSessions;
use super::message::{CaptureHandle, CaptureMessage};
use super::model_names::ModelNames;
use super::prompt_hasher::{PromptDigest, PromptHasher};
use super::request_digest::RequestDigest;
use super::row_builder::{RowRounding, build_row};
use super::segments::CaptureFolder;
use super::sessions::{SessionTracker, StoredResponse};
use super::settings::{CaptureSettings, SessionField, handover_delay};
use super::stats::{CaptureStats, RecordOutcome};
use super::tokenizer::{MAX_BACKLOG_BYTES, PromptTokenizer};
use crate::capture::prefetch::together;
use crate::clock::{Clock, ClockReading, rest};
use crate::measure::dialect::Dialect;
use crate::measure::dialect::prompt::{RequestBody, charge_walk};
use crate::measure::record::RequestRecord;
use crate::measure::sample_share::SampleShare;
use crate::measure::time::{Gap, Stamp};
use crate::measure::work_budget::{ReserveLimits, WorkBudget, WorkReserve};
use crate::stats::hash::mix;
use crate::trace_file::frame::FrameBuilder;
use crate::trace_file::header::{BlockIds, BlockScheme, BlockScope, BlockUnit, LastBlock, SOURCE, TraceHeader};

const DAY_NANOS: u64 = 86_400_000_000_000;
/// Time to let messages accumulate; the queue does not fill up in this time.
const BATCH_DELAY: Gap = Gap::from_millis(10);
/// Maximum messages handled between two clock reads.
const MAX_BATCH_MESSAGES: usize = 256;
const EVICTION_INTERVAL: Gap = Gap::from_millis(60_000);
/// Prompts may take a quarter of this thread's time beyond what their bytes grant. The thread competes with those that
/// forward for the cores only.
const DIGEST_RESERVE: ReserveLimits = ReserveLimits { max_work: 64_000_000, nanos_per_unit: 4 };

pub(super) struct WriterThread {
    settings: CaptureSettings,
    chunking: BlockChunking,
    prompt_hasher: PromptHasher,
    /// Limits what all prompts together cost.
    work_reserve: WorkReserve,
    refilled_at: Stamp,
    clock: Clock,
    /// Wall time of `zero`, the time zero of the rows, in nanoseconds since 1970.
    started: u64,
    zero: Stamp,
    folder: CaptureFolder,
    frame: FrameBuilder,
    stats: Arc<CaptureStats>,
    live_sessions: Arc<Mutex<LiveSessions>>,
    model_names: ModelNames,
    sessions: SessionTracker,
    /// The root key of the folder, and the current key derived from it.
    root: CaptureKey,
    key: CaptureKey,
    day: u64,
    /// Rows in the current frame, by their outcome if the frame is written.
    complete_rows: u64,
    oversize_rows: u64,
    /// Error of the last lost frame, until it is logged.
    write_error: Option<io::Error>,
    flushed_at: Stamp,
    evicted_at: Stamp,
}

fn prompt_hasher(key: &CaptureKey, chunking: BlockChunking, sample: SampleShare) -> PromptHasher {
    let hasher = PromptHasher::new(key, chunking);
    if sample == SampleShare::ALL { hasher } else { hasher.with_conversations() }
}

impl WriterThread {
    /// Creates the state; writes nothing yet.
    ///
    /// # Errors
    /// If the compressor cannot allocate memory.
    pub(super) fn new(
        settings: CaptureSettings,
        folder: CaptureFolder,
        (key, tokens): (CaptureKey, Option<PromptTokenizer>),
        (counts, live_sessions): (Arc<CaptureStats>, Arc<Mutex<LiveSessions>>),
        clock: Clock,
    ) -> io::Result<Self> {
        let zero = clock.now();
        let chunking = match tokens {
            Some(tokens) => BlockChunking::Tokens(settings.block, Arc::new(tokens)),
            None => BlockChunking::Bytes(settings.block),
        };
        Ok(Self {
            started: clock.unix_nanos(zero),
            zero,
            folder,
            frame: FrameBuilder::new()?,
            stats: counts,
            live_sessions,
            model_names: ModelNames::new(settings.names),
            sessions: SessionTracker::default(),
            day: 0,
            key: key.clone(),
            root: key.clone(),
            complete_rows: 0,
            oversize_rows: 0,
            write_error: None,
            flushed_at: zero,
            evicted_at: zero,
            prompt_hasher: prompt_hasher(&key, chunking.clone(), settings.sample),
            chunking,
            work_reserve: WorkReserve::new(DIGEST_RESERVE),
            refilled_at: zero,
            settings,
            clock,
        })
    }

    /// Handles messages until `stop` is set.
    pub(super) fn run(&mut self, notes: &Receiver<CaptureMessage>, stop: &AtomicBool) {
        let flush = self.settings.flush.as_nanos();
        let flush = Gap::from_nanos(flush - handover_delay(self.settings.flush).as_nanos());
        self.evict();
        loop {
            let mut taken = 0;
            while taken < MAX_BATCH_MESSAGES {
                let fetched = together(notes.try_iter());
                if fetched.is_empty() {
                    break;
                }
                taken += fetched.len();
                fetched.into_iter().for_each(|note| self.handle_message(note));
            }
            if taken == 0 {
                let since = self.clock.now().since(self.flushed_at);
                let wait = flush.as_nanos().saturating_sub(since.as_nanos());
                match notes.recv_timeout(Gap::from_nanos(wait.max(1_000_000)).into()) {
                    Ok(note) => {
                        self.handle_message(note);
                        rest(BATCH_DELAY);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            } else if taken < MAX_BATCH_MESSAGES {
                // Polling avoids wake-ups, which cost a stream's thread more than the hand-over itself.
                rest(BATCH_DELAY);
            }
            let now = self.clock.now();
            self.work_reserve.refill(now.since(std::mem::replace(&mut self.refilled_at, now)));
            if now.since(self.flushed_at) >= flush {
                self.flush();
            }
            if now.since(self.evicted_at) >= EVICTION_INTERVAL {
                self.evict();
            }
            if stop.load(Ordering::Acquire) {
                break;
            }
        }
        notes.try_iter().for_each(|note| self.handle_message(note));
        self.flush();
        if let Err(error) = self.folder.close() {
            tracing::warn!(%error, "the last segment of the capture may not be on disk");
        }
        if let Some(lost) = self.stats.final_unlogged_losses() {
            log_losses(&self.settings.folder, &lost, self.write_error.as_ref());
        }
    }

    fn handle_message(&mut self, note: CaptureMessage) {
        self.rotate_key();
        match note {
            CaptureMessage::RequestBody { body, room, encoding, dialect, answer } => {
                let digest = self.digest_body(&body, room.backlog(), &encoding, dialect);
                drop((body, room));
                let _first = answer.set(digest).is_ok();
            }
            CaptureMessage::RequestEnded(mut ended) => {
                let Some((following, record)) = ended.parts() else { return };
                let digest = match (following.digest_slot.take(), record.shape.dialect) {
                    // The body's message came first, so its digest is complete and its slot has no other owner.
                    (Some(answer), _) => Arc::into_inner(answer).and_then(OnceLock::into_inner).unwrap_or_default(),
                    (None, Some(dialect)) if following.sent && !following.body.is_empty() => {
                        self.digest_body(&following.body, 0, &following.encoding, dialect)
                    }
                    _ => RequestDigest::default(),
                };
                if let Some(session) = self.write_row(following, record, digest) {
                    ended.set_session(&hex(session));
                }
            }
            CaptureMessage::Stop => {}
        }
    }

    /// Extracts the fields of a body that may be recorded.
    fn digest_body(&mut self, body: &[u8], backlog: usize, encoding: &[u8], dialect: &Dialect) -> RequestDigest {
        let nothing = RequestDigest { day: self.day, ..RequestDigest::default() };
        let mut budget = WorkBudget::with_reserve(&self.work_reserve);
        budget.receive(body.len());
        let plain = match decode_body(body, encoding, &mut budget) {
            Ok(plain) => plain,
            Err(undecoded) => {
                return RequestDigest { without_blocks: undecoded == BodyDecodeError::TooLarge, ..nothing };
            }
        };
        let body = plain.as_deref().unwrap_or(body);
        if charge_walk(body, &mut budget).is_err() {
            return RequestDigest { without_blocks: true, ..nothing };
        }
        let Some(mut body) = RequestBody::read(body) else { return nothing };
        let behind = self.block_unit() == BlockUnit::Tokens && backlog > MAX_BACKLOG_BYTES;
        if behind {
            self.prompt_hasher.skip_tokens();
        }
        let found = body.prompt(dialect, &mut self.prompt_hasher);
        let digested = self.prompt_hasher.finish();
        let session = match &self.settings.session {
            Some(SessionField::Body(path)) => {
                let name = body.text(path).filter(|name| !name.is_empty());
                name.map(|name| self.key.digest(b"name", name.as_bytes()))
            }
            _ => None,
        };
        let goes_on_from = body.previous_response_id(dialect).map(|id| self.response_id_digest(id));
        let prompt = found.then_some(digested);
        RequestDigest {
            prompt,
            extras: body.extras(),
            session,
            previous_response: goes_on_from,
            without_blocks: behind,
            ..nothing
        }
    }

    /// Digest by which the session tracker stores a response id.
    fn response_id_digest(&self, id: &str) -> u64 {
        self.key.digest(b"answer", id.as_bytes())
    }

    /// Writes the row of a request that the sample has. Returns the id of its session.
    fn write_row(
        &mut self,
        following: &mut CaptureHandle,
        record: &RequestRecord,
        mut digest: RequestDigest,
    ) -> Option<u64> {
        if digest.day != self.day {
            digest.clear_ids();
        }
        let (arrived, at) = (record.times.received, record.times.ended);
        let header = following.session.as_deref();
        let named = header.map(|name| self.key.digest(b"name", name)).or(digest.session);
        let parent = following.parent.as_deref().map(|name| self.key.digest(b"name", name));
        // A sub-agent is in the sample if its parent is.
        let sampled = self.is_sampled(parent.or(named), digest.prompt.as_ref());
        let messages = digest.prompt.as_ref().map(|prompt| &prompt.messages[..]).unwrap_or_default();
        let turn = match named {
            Some(session) => Some(self.sessions.turn_of_named(session, sampled, arrived, at)),
            None if self.settings.session.is_some() => None,
            None => {
                let is_stored = record.shape.dialect.is_some_and(Dialect::keeps_answers);
                let answer = record.response_id.as_deref().filter(|_| is_stored).map(|id| self.response_id_digest(id));
                self.sessions.infer_turn(
                    messages,
                    StoredResponse { previous_response: digest.previous_response, response: answer },
                    sampled,
                    arrived,
                    at,
                )
            }
        };
        if let Some(turn) = &turn {
            let mut live = self.live_sessions.lock().unwrap_or_else(PoisonError::into_inner);
            live.add(turn, parent, record);
        }
        let session = turn.map(|turn| turn.session);
        if !turn.map_or(sampled, |turn| turn.sampled) {
            self.stats.dec_queued(1);
            self.stats.add(RecordOutcome::Sample, 1);
            return session;
        }
        let rounding = RowRounding::new(self.settings.round, self.block_unit(), self.settings.block);
        let oversize = following.oversize || digest.without_blocks;
        let mut entry = build_row(following, record, digest, turn, &mut self.model_names, rounding, self.zero);
        entry.parent = parent.map(hex);
        if self.begin_frame().and_then(|()| self.frame.push_row(&entry)).is_err() {
            self.stats.dec_queued(1);
            self.stats.add(RecordOutcome::Encode, 1);
            return session;
        }
        *(if oversize { &mut self.oversize_rows } else { &mut self.complete_rows }) += 1;
        if self.frame.is_full() {
            self.flush();
        }
        session
    }

    /// True if the sample has a request: by its session's id, else by the beginning of its conversation. So every
    /// process with this key decides alike. A request without either is drawn by itself.
    fn is_sampled(&self, session: Option<u64>, prompt: Option<&PromptDigest>) -> bool {
        let share = self.settings.sample;
        // Mixed, because the ids of a sample must stay uniform.
        let hash = session.map(mix).or_else(|| prompt?.conversation);
        share == SampleShare::ALL || share.keeps(hash.unwrap_or_else(rand::random))
    }

    fn block_unit(&self) -> BlockUnit {
        match self.chunking {
            BlockChunking::Tokens(..) => BlockUnit::Tokens,
            BlockChunking::Bytes(_) => BlockUnit::Bytes,
        }
    }

    /// Writes the header into the first frame of a segment.
    fn begin_frame(&mut self) -> io::Result<()> {
        if self.frame.is_empty() && self.folder.next_frame() == 0 {
            let header = self.header();
            self.frame.push_header(&header)?;
        }
        Ok(())
    }

    fn header(&self) -> TraceHeader {
        let blocks = BlockScheme {
            size: u32::try_from(self.settings.block).unwrap_or(u32::MAX),
            unit: self.block_unit(),
            last: LastBlock::Dropped,
            ids: BlockIds::Chained,
            scope: BlockScope::Trace,
            key: Some(self.chunking.key(&self.key).id()),
        };
        let sample = (self.settings.sample != SampleShare::ALL).then(|| self.settings.sample.ratio());
        TraceHeader { started_unix_ns: Some(self.started), blocks: Some(blocks), sample, ..TraceHeader::new(SOURCE) }
    }

    fn rotate_key(&mut self) {
        if !self.settings.rotate {
            return;
        }
        // The date of the wall clock, so that all processes with one key change it at once.
        let today = self.clock.unix_nanos(self.clock.now()) / DAY_NANOS;
        if today != self.day {
            self.flush();
            // A header without rows carries yesterday's key.
            self.frame.clear();
            self.close_segment();
            (self.day, self.key) = (today, self.root.for_day(today));
            self.prompt_hasher = prompt_hasher(&self.key, self.chunking.clone(), self.settings.sample);
            // Digests of yesterday's conversations use yesterday's key.
            self.sessions = SessionTracker::default();
        }
    }

    /// Writes the current frame, and closes the segment if it is due, even if no row arrived.
    fn flush(&mut self) {
        self.flushed_at = self.clock.now();
        let now = ClockReading { stamp: self.flushed_at, unix_nanos: self.clock.unix_nanos(self.flushed_at) };
        if self.frame.rows() > 0 {
            self.write(now);
        }
        if self.folder.is_due(now) {
            self.close_segment();
            self.evict();
        }
    }

    fn write(&mut self, now: ClockReading) {
        let rows = self.complete_rows + self.oversize_rows;
        let written = self.frame.close(self.folder.next_frame()).and_then(|frame| {
            self.folder.write(&frame, now)?;
            Ok(frame.len())
        });
        self.stats.dec_queued(rows);
        match written {
            Ok(bytes) => {
                self.stats.add_bytes(bytes as u64);
                self.stats.add(RecordOutcome::Complete, self.complete_rows);
                self.stats.add(RecordOutcome::Oversize, self.oversize_rows);
            }
            Err(error) => {
                self.stats.add(RecordOutcome::Disk, rows);
                tracing::debug!(%error, "a frame of the capture was not written");
                self.write_error = Some(error);
                self.report_losses();
            }
        }
        (self.complete_rows, self.oversize_rows) = (0, 0);
        self.frame.clear();
    }

    fn close_segment(&mut self) {
        if let Err(error) = self.folder.close() {
            tracing::warn!(%error, "a segment of the capture may not be on disk");
        }
    }

    fn evict(&mut self) {
        let now = ClockReading::now(&self.clock);
        self.evicted_at = now.stamp;
        if let Err(error) = self.folder.evict(now) {
            tracing::warn!(%error, "old segments of the capture cannot be removed");
        }
        self.report_losses();
    }

    /// Logs losses, at most once a minute.
    fn report_losses(&mut self) {
        if let Some(lost) = self.stats.unlogged_losses(self.clock.now()) {
            log_losses(&self.settings.folder, &lost, self.write_error.take().as_ref());
        }
    }
}

/// Logs lost records; `refused` is the disk error, if there is one.
pub(super) fn log_losses(folder: &Path, lost: &str, refused: Option<&io::Error>) {
    let error = refused.map(tracing::field::display);
    tracing::warn!(folder = %folder.display(), %lost, error, "the capture has lost records");
}
