//! One request and its reply on one connection, under the proxy's own observer.
//!
//! # When does it end?
//! When the reply's last byte has come, when the connection breaks, when time is up, when the client of the trace left,
//! or when this is dropped because the run stops. Whatever comes first reports, once; of what was never written nothing is
//! reported. Nothing is sent twice.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::history::Turn;
use super::pen::Written;
use super::reply::{Kept, Reply};
use super::request::Form;
use super::results::{Done, Trouble};
use super::schedule::Planned;
use super::worker::Worker;
use crate::capture::format::Wanted;
use crate::clock::Clock;
use crate::measure::dialect::Routes;
use crate::measure::observer::StreamObserver;
use crate::measure::record::Ending;
use crate::measure::shape::RequestShape;
use crate::measure::time::{Gap, Stamp};
use crate::net::io::Io;

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
    /// When its first byte was written, or would have been, and the others that were in flight then; nothing before.
    began: Option<(Stamp, u32)>,
    /// What the pen tells, until it has.
    written: Option<oneshot::Receiver<Written>>,
    /// The end of the answer before it in its session.
    after: Option<Stamp>,
    held: bool,
    observer: Option<Box<StreamObserver>>,
    kept: Kept,
    /// How long connections were made for it.
    connecting: Gap,
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
        worker.takes();
        Self {
            worker: Rc::clone(worker),
            job: Some(job),
            planned,
            after,
            began: None,
            written: None,
            held,
            observer: None,
            kept: Kept::default(),
            connecting: Gap::ZERO,
            has_token: false,
            _slot: slot,
        }
    }

    fn begin(&mut self, at: Stamp) {
        let (others, in_flight) = self.worker.counters().opened();
        self.worker.sends(self.planned, others);
        self.began = Some((at, in_flight));
    }

    /// Writes as much as the socket takes now: for nearly every request all of it, in one system call.
    pub(super) fn write_now(&mut self, io: &mut Io) -> (usize, Option<Stamp>) {
        let mut written = 0;
        self.begin(Clock::Monotonic.now());
        let Some(wire) = self.job.as_ref().and_then(|job| job.wire.as_ref()) else { return (0, None) };
        let flushed = io.poll_write_all(&mut Context::from_waker(Waker::noop()), &wire.bytes, &mut written);
        // A failure shows again when the reply is read.
        (written, matches!(flushed, Poll::Ready(Ok(()))).then(|| Clock::Monotonic.now()))
    }

    /// Sends the request when it is due, on this connection or else a new one, and reads the reply.
    pub(super) async fn run(&mut self, io: Option<Io>) {
        if let Some((io, written, sent)) = self.send(io).await {
            self.read(io, written, sent).await;
        }
    }

    /// What has been written and when its last byte was, if that is all; nothing where the request does not go.
    async fn send(&mut self, io: Option<Io>) -> Option<(Io, usize, Option<Stamp>)> {
        let mut io = match io {
            Some(io) => io,
            None => self.connect().await?,
        };
        while let Some(told) = self.given_to_the_pen(&io) {
            let told = self.written.insert(told).await;
            self.written = None;
            // It may have been lifted before.
            let Written { wire, began, sent, bytes } = told.ok()?;
            self.job.as_mut()?.wire = Some(wire);
            if let Some(bytes) = bytes {
                self.begin(began);
                return Some((io, bytes, sent));
            }
            // The server had hung up: it has seen nothing of this request, which takes another connection.
            io = self.connect().await?;
        }
        Clock::Monotonic.sleep_until(self.planned).await;
        let (written, sent) = self.write_now(&mut io);
        Some((io, written, sent))
    }

    /// Has the pen write the request, if it can, and its time is still to come.
    fn given_to_the_pen(&mut self, io: &Io) -> Option<oneshot::Receiver<Written>> {
        let (Io::Plain(socket), Some(job)) = (io, &mut self.job) else { return None };
        if self.planned <= Clock::Monotonic.now() {
            return None;
        }
        let given = self.worker.pen().write(self.planned, job.send.number, socket.tcp(), job.wire.take()?);
        given.map_err(|wire| job.wire = Some(wire)).ok()
    }

    /// A new connection; where there is none, that is how the request ends when it is due.
    async fn connect(&mut self) -> Option<Io> {
        let target = self.job.as_ref().map_or(0, |job| job.target);
        let error = {
            // Apart from what is kept for as long as the reply takes: a handshake is some kilobytes.
            let (connected, took) = Box::pin(timed(self.worker.pool(target).connect())).await;
            self.connecting = Gap::from_nanos(self.connecting.as_nanos() + took.as_nanos());
            match connected {
                Ok(io) => return Some(io),
                Err(error) => error,
            }
        };
        Clock::Monotonic.sleep_until(self.planned).await;
        self.begin(Clock::Monotonic.now());
        self.observe();
        let trouble = if error.kind() == io::ErrorKind::TimedOut { Trouble::ConnectTimeout } else { Trouble::Connect };
        self.finish(Clock::Monotonic.now(), Ending::UpstreamFailed, Some(trouble));
        None
    }

    /// Goes on from what has been written.
    pub(super) async fn read(&mut self, mut io: Io, written: usize, sent: Option<Stamp>) {
        self.observe();
        let leave = self.job.as_ref().and_then(|job| job.leave);
        let Some((began, _)) = self.began else { return };
        let limit = began.after(self.worker.config().timeout);
        let leaves = match leave {
            Some(Leave::After(gap)) => Some(began.after(gap)),
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
                self.finish(at, Ending::Complete, None);
                if keep {
                    self.worker.pool(target).give(io, session.as_deref(), now);
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
        let (Some(job), Some((began, _))) = (&self.job, self.began) else { return };
        let mut shape = RequestShape::of("POST", job.form.path(), &Routes::default());
        shape.dialect = job.form.dialect();
        let config = self.worker.config();
        let observer = StreamObserver::begin(shape, b"", Some(self.planned), began);
        let mut observer = observer.judged_by(Arc::clone(&config.slos), config.stall);
        if let Some(wire) = &job.wire {
            observer.request(&wire.bytes[wire.body..]);
        }
        self.observer = Some(observer);
    }

    /// Reads the reply, and writes what is left of the request meanwhile: a server may answer before it has read all, and
    /// then never read the rest.
    async fn talk(&mut self, io: &mut Io, mut written: usize, mut sent: Option<Stamp>, leave: Option<Leave>) -> End {
        if sent.is_some() {
            self.stop_writing(sent);
        }
        let said = self.job.as_ref().is_some_and(|job| job.turn.is_some()).then(|| self.worker.texts());
        let mut reply = Reply::new(said);
        loop {
            let read = poll_fn(|cx| {
                if sent.is_none() {
                    sent = self.write_on(cx, io, &mut written);
                }
                let Some(observer) = &mut self.observer else { return Poll::Ready(Ok(None)) };
                io.poll_read(cx, |bytes, arrival| (reply.take(bytes, arrival, observer, &mut self.kept), arrival))
            });
            match read.await {
                Ok(Some((Err(trouble), _))) => return End::Broken(trouble),
                Ok(Some((Ok(()), arrival))) if reply.has_ended() => {
                    return End::Whole(arrival.at, reply.keeps_alive() && sent.is_some());
                }
                Ok(Some((Ok(()), _))) => {}
                Ok(None) if reply.ends_with_close() && io.has_said_its_end() => {
                    return End::Whole(Clock::Monotonic.now(), false);
                }
                Ok(None) => return End::Broken(Trouble::Closed),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return End::Broken(Trouble::Reset),
                Err(_) => return End::Broken(Trouble::Closed),
            }
            let Some(observer) = &self.observer else { return End::Broken(Trouble::Closed) };
            if !self.has_token && observer.has_token() {
                self.has_token = true;
                self.worker.counters().has_token();
                if reply.is_simulated() {
                    self.worker.counters().is_simulated();
                }
            }
            if let Some(Leave::Tokens(most)) = leave
                && observer.output_tokens().is_some_and(|count| count.tokens >= most)
            {
                return End::Left;
            }
        }
    }

    /// Writes on as far as the socket takes it, and tells when the last byte was written.
    fn write_on(&mut self, cx: &mut Context<'_>, io: &mut Io, written: &mut usize) -> Option<Stamp> {
        let wire = self.job.as_ref()?.wire.as_ref()?;
        let Poll::Ready(done) = io.poll_write_all(cx, &wire.bytes, written) else { return None };
        let sent = done.ok().map(|()| Clock::Monotonic.now());
        self.stop_writing(sent);
        sent
    }

    /// The request was all sent then, or the server takes no more of it: what it says all the same is still to be read.
    fn stop_writing(&mut self, sent: Option<Stamp>) {
        if let Some(job) = &mut self.job {
            job.wire = None;
        }
        if let (Some(observer), Some(sent)) = (&mut self.observer, sent) {
            observer.sent(sent, None);
        }
    }

    fn finish(&mut self, at: Stamp, ending: Ending, trouble: Option<Trouble>) {
        let (Some((began, in_flight)), Some(observer), Some(job)) = (self.began, self.observer.take(), self.job.take())
        else {
            return;
        };
        let (record, text) = observer.end_with_text(at, ending);
        let real = job.turn.as_ref().and_then(|turn| turn.real);
        let history = job.turn.and_then(|turn| self.worker.config().encoder.answered(turn, &job.send, &record, text));
        let failed = record.fault.is_some() && matches!(record.status, Some(200..=299));
        self.kept.keep(&record.gaps);
        let Kept { gaps, lost, reads } = std::mem::take(&mut self.kept);
        let done = Done {
            target: job.target,
            wanted: job.wanted,
            think: self.after.map(|after| began.since(after)),
            send: job.send,
            planned: self.planned,
            held: self.held,
            in_flight,
            lost_gaps: lost + u64::from(record.quality.lost_gaps),
            trouble: trouble.or(failed.then_some(Trouble::ErrorEvent)),
            record,
            gaps,
            connecting: self.connecting,
            reads,
            real_history: real,
        };
        self.worker.ended(done, self.has_token, history);
    }
}

/// What comes of it, and how long it took.
async fn timed<F: Future>(future: F) -> (F::Output, Gap) {
    let begun = Clock::Monotonic.now();
    let output = future.await;
    (output, Clock::Monotonic.now().since(begun))
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // Written, and nobody has looked yet.
        if let Some(Ok(Written { wire, began, bytes: Some(_), .. })) =
            self.written.as_mut().map(oneshot::Receiver::try_recv)
            && let Some(job) = &mut self.job
        {
            job.wire = Some(wire);
            self.begin(began);
        }
        if self.observer.is_none() && self.job.is_some() {
            self.observe();
        }
        self.finish(Clock::Monotonic.now(), Ending::TimedOut, Some(Trouble::Stopped));
        self.worker.lets_go();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<F: Future>(_: impl FnOnce(Exchange, Option<Io>) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_stream_that_is_open_holds_nothing_of_how_its_request_was_sent() {
        // With what the runtime keeps of a task it is to fit into two KiB: thousands are open at a time.
        let open = size(|mut exchange, io| async move { exchange.run(io).await });
        assert!(open < 1_900, "{open} bytes, of which the request is {}", size_of::<Exchange>());
    }
}
