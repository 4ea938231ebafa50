//! One request and its reply on one connection, under the proxy's own observer.
//!
//! # When does it end?
//! When the reply's last byte has come, when the connection breaks, when time is up, when the client of the trace left,
//! or when this is dropped because the run stops. Whatever comes first reports, once. Nothing is sent twice.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::sync::OwnedSemaphorePermit;

use super::history::Turn;
use super::request::Form;
use super::results::{Done, Trouble};
use super::schedule::Planned;
use super::worker::Worker;
use crate::capture::format::Wanted;
use crate::clock::Clock;
use crate::measure::dialect::Routes;
use crate::measure::observer::{ResponseHead, StreamObserver};
use crate::measure::record::Ending;
use crate::measure::shape::RequestShape;
use crate::measure::text::Budget;
use crate::measure::time::{Gap, Stamp};
use crate::measure::timeline::TokenEvent;
use crate::net::http1::head::{MAX_HEAD, end_of_head};
use crate::net::http1::{BodyDecoder, Framing, Head, Known};
use crate::net::io::{Arrival, Io};

/// Gaps kept for one reply; half a megabyte. What comes after is counted as lost.
const MOST_GAPS: usize = 1 << 16;

/// A request as it goes over the wire.
pub(super) struct Wire {
    pub(super) bytes: Vec<u8>,
    /// Where its body begins.
    pub(super) body: usize,
    /// Its share of what may be encoded ahead.
    pub(super) _room: Option<OwnedSemaphorePermit>,
}

/// When the client leaves before the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Leave {
    /// When it has so many tokens.
    Tokens(u64),
    /// So long after the request was sent.
    After(Gap),
}

/// One request to be sent.
pub(super) struct Job {
    pub(super) send: Planned,
    pub(super) form: &'static Form,
    /// Which target.
    pub(super) target: usize,
    pub(super) wanted: Wanted,
    pub(super) leave: Option<Leave>,
    /// It waits for the turn before it.
    pub(super) follows: bool,
    /// What it says in a live session, where that is decided.
    pub(super) turn: Option<Turn>,
    /// Encoded; turns that wait are encoded when their time is known.
    pub(super) wire: Option<Wire>,
}

/// A request that has been due.
pub(super) struct Exchange {
    worker: Rc<Worker>,
    job: Option<Job>,
    planned: Stamp,
    /// When its first byte was written, or would have been.
    began: Stamp,
    /// The end of the answer before it in its session.
    after: Option<Stamp>,
    held: bool,
    in_flight: u32,
    observer: Option<Box<StreamObserver>>,
    gaps: Vec<TokenEvent>,
    lost_gaps: u64,
    /// Whether it is counted as one that has a token.
    has_token: bool,
    _slot: Option<OwnedSemaphorePermit>,
}

/// How an exchange stops.
enum End {
    /// The reply is whole; whether the connection may be used again.
    Whole(Stamp, bool),
    Left,
    Broken(Trouble),
}

impl Exchange {
    pub(super) fn new(
        worker: &Rc<Worker>,
        job: Job,
        planned: Stamp,
        after: Option<Stamp>,
        held: bool,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self {
            worker: Rc::clone(worker),
            job: Some(job),
            planned,
            after,
            began: Clock::Monotonic.now(),
            held,
            in_flight: worker.opened(),
            observer: None,
            gaps: Vec::new(),
            lost_gaps: 0,
            has_token: false,
            _slot: slot,
        }
    }

    /// Writes as much as the socket takes now: for nearly every request all of it, in one system call.
    pub(super) fn write_now(&mut self, io: &mut Io) -> (usize, Option<Stamp>) {
        let mut written = 0;
        self.began = Clock::Monotonic.now();
        let Some(wire) = self.job.as_ref().and_then(|job| job.wire.as_ref()) else { return (0, None) };
        let flushed = io.poll_write_all(&mut Context::from_waker(Waker::noop()), &wire.bytes, &mut written);
        // A failure shows again when the reply is read.
        (written, matches!(flushed, Poll::Ready(Ok(()))).then(|| Clock::Monotonic.now()))
    }

    /// Connects first, because no connection was ready.
    pub(super) async fn connect_and_run(mut self) {
        let target = self.job.as_ref().map_or(0, |job| job.target);
        let worker = Rc::clone(&self.worker);
        match worker.pool(target).connect().await {
            Ok(mut io) => {
                let (written, sent) = self.write_now(&mut io);
                self.run(io, written, sent).await;
            }
            Err(error) => {
                self.observe();
                let trouble =
                    if error.kind() == io::ErrorKind::TimedOut { Trouble::ConnectTimeout } else { Trouble::Connect };
                self.finish(Clock::Monotonic.now(), Ending::UpstreamFailed, Some(trouble));
            }
        }
    }

    /// Goes on from what [`write_now`](Self::write_now) wrote.
    pub(super) async fn run(mut self, mut io: Io, written: usize, sent: Option<Stamp>) {
        self.observe();
        let leave = self.job.as_ref().and_then(|job| job.leave);
        let limit = self.began.after(self.worker.timeout());
        let leaves = match leave {
            Some(Leave::After(gap)) => Some(self.began.after(gap)),
            _ => None,
        };
        let until = leaves.map_or(limit, |leaves| leaves.min(limit));
        let end = tokio::select! {
            biased;
            end = self.talk(&mut io, written, sent, leave) => end,
            () = Clock::Monotonic.sleep_until(until) => match leaves {
                Some(leaves) if leaves <= limit => End::Left,
                _ => End::Broken(Trouble::Timeout),
            },
        };
        let now = Clock::Monotonic.now();
        match end {
            End::Whole(at, keep) => {
                let (target, session) =
                    self.job.as_ref().map_or((0, None), |job| (job.target, job.send.entry.session.clone()));
                let worker = Rc::clone(&self.worker);
                self.finish(at, Ending::Complete, None);
                if keep {
                    worker.pool(target).give(io, session.as_deref(), now);
                }
            }
            // The connection is closed before anything else, which is how the server learns of it.
            End::Left => {
                drop(io);
                self.finish(now, Ending::DownstreamGone, None);
            }
            End::Broken(Trouble::Timeout) => {
                drop(io);
                self.finish(now, Ending::TimedOut, Some(Trouble::Timeout));
            }
            End::Broken(trouble) => self.finish(now, Ending::UpstreamFailed, Some(trouble)),
        }
    }

    /// Shows the request to the observer, as the proxy does once it has been written.
    fn observe(&mut self) {
        let Some(job) = &self.job else { return };
        let mut shape = RequestShape::of("POST", job.form.path(), &Routes::default());
        shape.dialect = job.form.dialect();
        let observer = StreamObserver::begin(shape, b"", Some(self.planned), self.began);
        let mut observer = Box::new(observer.judged_by(self.worker.slos(), self.worker.stall()));
        if let Some(wire) = &job.wire {
            observer.request(&wire.bytes[wire.body..]);
        }
        self.observer = Some(observer);
    }

    /// Writes what is left of the request, and reads the reply.
    async fn talk(&mut self, io: &mut Io, mut written: usize, sent: Option<Stamp>, leave: Option<Leave>) -> End {
        let sent = match (sent, self.job.as_ref().and_then(|job| job.wire.as_ref())) {
            (Some(sent), _) => Some(sent),
            // A server may refuse without reading to the end: what it says then is still to be read.
            (None, Some(wire)) => {
                let done = poll_fn(|cx| io.poll_write_all(cx, &wire.bytes, &mut written)).await;
                done.ok().map(|()| Clock::Monotonic.now())
            }
            (None, None) => None,
        };
        if let Some(job) = &mut self.job {
            job.wire = None;
        }
        let Some(observer) = &mut self.observer else { return End::Broken(Trouble::Closed) };
        if let Some(sent) = sent {
            observer.sent(sent, None);
        }
        let said = self.job.as_ref().is_some_and(|job| job.turn.is_some()).then(|| self.worker.texts());
        let mut reply = Reply { said, ..Reply::default() };
        let (gaps, lost) = (&mut self.gaps, &mut self.lost_gaps);
        loop {
            let read = poll_fn(|cx| {
                io.poll_read(cx, |bytes, arrival| (reply.take(bytes, arrival, observer, gaps, lost), arrival))
            });
            match read.await {
                Ok(Some((Err(trouble), _))) => return End::Broken(trouble),
                Ok(Some((Ok(()), arrival))) if reply.has_ended() => {
                    return End::Whole(arrival.at, reply.keep && sent.is_some());
                }
                Ok(Some((Ok(()), _))) => {}
                Ok(None) if reply.ends_with_close() => return End::Whole(Clock::Monotonic.now(), false),
                Ok(None) => return End::Broken(Trouble::Closed),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return End::Broken(Trouble::Reset),
                Err(_) => return End::Broken(Trouble::Closed),
            }
            if !self.has_token && observer.has_token() {
                self.has_token = true;
                self.worker.has_token();
                if reply.simulated {
                    self.worker.is_simulated();
                }
            }
            if let Some(Leave::Tokens(most)) = leave
                && observer.output_tokens().is_some_and(|count| count.tokens >= most)
            {
                return End::Left;
            }
        }
    }

    fn finish(&mut self, at: Stamp, ending: Ending, trouble: Option<Trouble>) {
        let (Some(observer), Some(job)) = (self.observer.take(), self.job.take()) else { return };
        let (record, text) = observer.end_with_text(at, ending);
        let real = job.turn.as_ref().and_then(|turn| turn.real);
        let history = job.turn.and_then(|turn| self.worker.encoder().answered(turn, &job.send, &record, text));
        keep(&mut self.gaps, &mut self.lost_gaps, &record.gaps);
        let done = Done {
            target: job.target,
            wanted: job.wanted,
            think: self.after.map(|after| self.began.since(after)),
            send: job.send,
            planned: self.planned,
            held: self.held,
            in_flight: self.in_flight,
            lost_gaps: self.lost_gaps + u64::from(record.quality.lost_gaps),
            record,
            gaps: std::mem::take(&mut self.gaps),
            trouble,
            real_history: real,
        };
        self.worker.ended(done, self.has_token, history);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.observer.is_none() && self.job.is_some() {
            self.observe();
        }
        self.finish(Clock::Monotonic.now(), Ending::TimedOut, Some(Trouble::Stopped));
    }
}

fn keep(gaps: &mut Vec<TokenEvent>, lost: &mut u64, more: &[TokenEvent]) {
    let room = MOST_GAPS.saturating_sub(gaps.len()).min(more.len());
    gaps.extend_from_slice(&more[..room]);
    *lost += (more.len() - room) as u64;
}

/// A reply as it comes in.
#[derive(Default)]
struct Reply {
    /// What came of the head.
    inbox: Vec<u8>,
    body: Option<BodyDecoder>,
    keep: bool,
    /// The server says that it is.
    simulated: bool,
    /// What its text takes, where the next turn says it again.
    said: Option<Budget>,
}

impl Reply {
    fn has_ended(&self) -> bool {
        self.body.as_ref().is_some_and(BodyDecoder::is_done)
    }

    fn ends_with_close(&self) -> bool {
        self.body.as_ref().is_some_and(BodyDecoder::ends_with_close)
    }

    /// One read.
    fn take(
        &mut self,
        bytes: &[u8],
        arrival: Arrival,
        observer: &mut StreamObserver,
        gaps: &mut Vec<TokenEvent>,
        lost: &mut u64,
    ) -> Result<(), Trouble> {
        let head;
        let mut rest = bytes;
        if self.body.is_none() {
            self.inbox.extend_from_slice(bytes);
            self.head(arrival, observer)?;
            head = std::mem::take(&mut self.inbox);
            if self.body.is_none() {
                self.inbox = head;
                return Ok(());
            }
            rest = &head;
        }
        let Some(body) = &mut self.body else { return Ok(()) };
        let mut read = |payload: &[u8]| {
            observer.bytes(arrival.at, payload);
            if let Some(progress) = observer.progress(arrival.at) {
                keep(gaps, lost, &progress.gaps);
            }
        };
        let used = body.decode(rest, &mut read).map_err(|_| Trouble::Malformed)?;
        if used < rest.len() {
            // More than was asked for: whose it is nobody knows.
            self.keep = false;
        }
        Ok(())
    }

    /// Reads heads, interim ones and the final one, from the inbox.
    fn head(&mut self, arrival: Arrival, observer: &mut StreamObserver) -> Result<(), Trouble> {
        let mut head = Head::default();
        while let Some(end) = end_of_head(&self.inbox, 0) {
            head.parse_response(&self.inbox[..end]).map_err(|_| Trouble::Malformed)?;
            self.inbox.drain(..end);
            if matches!(head.status(), 100..=199) {
                continue;
            }
            let framing = head.response_framing(false).map_err(|_| Trouble::Malformed)?;
            self.keep = head.keeps_alive() && framing != Framing::UntilClose;
            self.simulated = head.is_simulated();
            let response = ResponseHead {
                status: head.status(),
                content_type: head.get(Known::ContentType).unwrap_or_default(),
                content_encoding: head.get(Known::ContentEncoding).unwrap_or_default(),
            };
            observer.head(arrival.at, response, arrival.source);
            if let Some(budget) = &self.said {
                observer.keep_text(budget);
            }
            self.body = Some(BodyDecoder::new(framing));
            return Ok(());
        }
        if self.inbox.len() > MAX_HEAD { Err(Trouble::Malformed) } else { Ok(()) }
    }
}
