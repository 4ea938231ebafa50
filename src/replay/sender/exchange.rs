//! One request and its response on one connection, measured by the proxy's own observer.
//!
//! # When an exchange ends
//! It ends with the response's last byte, a broken connection, a timeout, the trace client's abort, or a drop when the
//! run stops. The first of these reports the request, once. A request of which nothing was written is not reported.
//! Nothing is retried.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::job::ReplayRequest;
use super::paced_writer::WriteResult;
use super::response::{ResponseGaps, ResponseReader};
use super::worker_context::SendWorker;
use crate::clock::Clock;
use crate::measure::dialect::Routes;
use crate::measure::observer::StreamObserver;
use crate::measure::record::Ending;
use crate::measure::shape::RequestShape;
use crate::measure::time::{Gap, Stamp};
use crate::net::io::MaybeTlsStream;
use crate::replay::request::client_abort::ClientAbort;
use crate::replay::result::row::{CompletedRequest, FailureReason};

/// A request that is due.
pub(in crate::replay) struct ReplayExchange {
    worker: Rc<SendWorker>,
    job: Option<ReplayRequest>,
    planned: Stamp,
    /// First byte's write time (or planned time if nothing was written), and the number of other requests in flight
    /// then. `None` before it.
    began: Option<(Stamp, u32)>,
    /// The paced writer's result, until it is received.
    pending_write: Option<oneshot::Receiver<WriteResult>>,
    /// End of the previous response in its session.
    previous_ended: Option<Stamp>,
    held_back: bool,
    observer: Option<Box<StreamObserver>>,
    response_gaps: ResponseGaps,
    /// Total time spent on connecting.
    connecting: Gap,
    /// True if the counters include it as streaming.
    has_token: bool,
    _slot: Option<OwnedSemaphorePermit>,
}

enum ExchangeOutcome {
    /// The end of the response, and whether the connection is reusable.
    Complete(Stamp, bool),
    ClientAborted,
    Failed(FailureReason),
}

impl ReplayExchange {
    pub(in crate::replay) fn new(
        worker: &Rc<SendWorker>,
        job: ReplayRequest,
        planned: Stamp,
        after: Option<Stamp>,
        held: bool,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Self {
        worker.inc_in_flight();
        Self {
            worker: Rc::clone(worker),
            job: Some(job),
            planned,
            previous_ended: after,
            began: None,
            pending_write: None,
            held_back: held,
            observer: None,
            response_gaps: ResponseGaps::default(),
            connecting: Gap::ZERO,
            has_token: false,
            _slot: slot,
        }
    }

    fn begin(&mut self, at: Stamp) {
        let (others, in_flight) = self.worker.counters().inc_in_flight();
        self.worker.record_send(self.planned, others);
        self.began = Some((at, in_flight));
    }

    /// Writes as much as the socket accepts now. Nearly every request fits into one system call.
    pub(in crate::replay) fn write_now(&mut self, io: &mut MaybeTlsStream) -> (usize, Option<Stamp>) {
        let mut written = 0;
        self.begin(Clock::Monotonic.now());
        let Some(wire) = self.job.as_ref().and_then(|job| job.wire.as_ref()) else { return (0, None) };
        let flushed = io.poll_write_all(&mut Context::from_waker(Waker::noop()), &wire.bytes, &mut written);
        // The read reports a failure again.
        (written, matches!(flushed, Poll::Ready(Ok(()))).then(|| Clock::Monotonic.now()))
    }

    /// Sends the request when it is due and reads the response. Without `io` it opens a new connection.
    pub(in crate::replay) async fn run(&mut self, io: Option<MaybeTlsStream>) {
        if let Some((io, written, sent)) = self.send(io).await {
            self.read(io, written, sent).await;
        }
    }

    /// Returns the bytes written so far and the time of the last byte once all are written; `None` if the request is
    /// not sent.
    async fn send(&mut self, io: Option<MaybeTlsStream>) -> Option<(MaybeTlsStream, usize, Option<Stamp>)> {
        let mut io = match io {
            Some(io) => io,
            None => self.connect().await?,
        };
        while let Some(result_rx) = self.enqueue_write(&io) {
            let result = self.pending_write.insert(result_rx).await;
            self.pending_write = None;
            // The writer may have shut down first.
            let WriteResult { wire, began, sent, bytes } = result.ok()?;
            self.job.as_mut()?.wire = Some(wire);
            if let Some(bytes) = bytes {
                self.begin(began);
                return Some((io, bytes, sent));
            }
            // The server had closed the connection and has seen nothing of this request, so it goes out on a new
            // connection.
            io = self.connect().await?;
        }
        Clock::Monotonic.sleep_until(self.planned).await;
        let (written, sent) = self.write_now(&mut io);
        Some((io, written, sent))
    }

    /// Hands the request to the paced writer if the connection is plain TCP and the due time is still ahead.
    fn enqueue_write(&mut self, io: &MaybeTlsStream) -> Option<oneshot::Receiver<WriteResult>> {
        let (MaybeTlsStream::Plain(socket), Some(job)) = (io, &mut self.job) else { return None };
        if self.planned <= Clock::Monotonic.now() {
            return None;
        }
        let given =
            self.worker.paced_writer().enqueue(self.planned, job.scheduled.number, socket.tcp(), job.wire.take()?);
        given.map_err(|wire| job.wire = Some(wire)).ok()
    }

    /// Opens a connection. If that fails, the request ends with the failure when it is due.
    async fn connect(&mut self) -> Option<MaybeTlsStream> {
        let target = self.job.as_ref().map_or(0, |job| job.target);
        let error = {
            // Boxed to keep a handshake's kilobytes out of the task's size, which lasts for the whole response.
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
        let trouble = if error.kind() == io::ErrorKind::TimedOut {
            FailureReason::ConnectTimeout
        } else {
            FailureReason::Connect
        };
        self.finish(Clock::Monotonic.now(), Ending::UpstreamFailed, Some(trouble));
        None
    }

    /// Continues after `written` bytes.
    pub(in crate::replay) async fn read(&mut self, mut io: MaybeTlsStream, written: usize, sent: Option<Stamp>) {
        self.observe();
        let leave = self.job.as_ref().and_then(|job| job.client_abort);
        let Some((began, _)) = self.began else { return };
        let limit = began.after(self.worker.config().timeout);
        let leaves = match leave {
            Some(ClientAbort::After(gap)) => Some(began.after(gap)),
            _ => None,
        };
        let until = leaves.map_or(limit, |leaves| leaves.min(limit));
        let end = tokio::select! {
            biased;
            end = self.read_reply(&mut io, written, sent, leave) => end,
            () = Clock::Monotonic.sleep_until(until) => match leaves {
                Some(leaves) if leaves <= limit => ExchangeOutcome::ClientAborted,
                _ => ExchangeOutcome::Failed(FailureReason::Timeout),
            },
        };
        let now = Clock::Monotonic.now();
        match end {
            ExchangeOutcome::Complete(at, keep) => {
                let (target, session) =
                    self.job.as_ref().map_or((0, None), |job| (job.target, job.scheduled.entry.session.clone()));
                self.finish(at, Ending::Complete, None);
                if keep {
                    self.worker.pool(target).put_back(io, session.as_deref(), now);
                }
            }
            // The close comes before any other work, because it is how the server notices the abort.
            ExchangeOutcome::ClientAborted => {
                drop(io);
                self.finish(now, Ending::DownstreamGone, None);
            }
            ExchangeOutcome::Failed(FailureReason::Timeout) => {
                drop(io);
                self.finish(now, Ending::TimedOut, Some(FailureReason::Timeout));
            }
            ExchangeOutcome::Failed(trouble) => self.finish(now, Ending::UpstreamFailed, Some(trouble)),
        }
    }

    /// Passes the request to the observer, as the proxy does after the write.
    fn observe(&mut self) {
        let (Some(job), Some((began, _))) = (&self.job, self.began) else { return };
        let mut shape = RequestShape::of("POST", job.form.path(), &Routes::default());
        shape.dialect = job.form.dialect();
        shape.slo = job.scheduled.entry.request_slo();
        let config = self.worker.config();
        let observer = StreamObserver::begin(shape, b"", Some(self.planned), began);
        let mut observer = observer.with_slos(Arc::clone(&config.slos), config.stall);
        if let Some(wire) = &job.wire {
            observer.request(&wire.bytes[wire.body..]);
        }
        self.observer = Some(observer);
    }

    /// Reads the response and writes the rest of the request in parallel. A server may respond before it has read all,
    /// and then never read the rest.
    async fn read_reply(
        &mut self,
        io: &mut MaybeTlsStream,
        mut written: usize,
        mut sent: Option<Stamp>,
        leave: Option<ClientAbort>,
    ) -> ExchangeOutcome {
        if sent.is_some() {
            self.finish_write(sent);
        }
        let budget = self.job.as_ref().is_some_and(|job| job.turn.is_some()).then(|| self.worker.text_budget());
        let mut reply = ResponseReader::new(budget);
        loop {
            let read = poll_fn(|cx| {
                if sent.is_none() {
                    sent = self.continue_write(cx, io, &mut written);
                }
                let Some(observer) = &mut self.observer else { return Poll::Ready(Ok(None)) };
                io.poll_read(cx, |bytes, arrival| {
                    (reply.read(bytes, arrival, observer, &mut self.response_gaps), arrival)
                })
            });
            match read.await {
                Ok(Some((Err(trouble), _))) => return ExchangeOutcome::Failed(trouble),
                Ok(Some((Ok(()), arrival))) if reply.has_ended() => {
                    return ExchangeOutcome::Complete(arrival.at, reply.keeps_alive() && sent.is_some());
                }
                Ok(Some((Ok(()), _))) => {}
                Ok(None) if reply.ends_with_close() && io.peer_sent_close_notify() => {
                    return ExchangeOutcome::Complete(Clock::Monotonic.now(), false);
                }
                Ok(None) => return ExchangeOutcome::Failed(FailureReason::Closed),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return ExchangeOutcome::Failed(FailureReason::Reset);
                }
                Err(_) => return ExchangeOutcome::Failed(FailureReason::Closed),
            }
            let Some(observer) = &self.observer else { return ExchangeOutcome::Failed(FailureReason::Closed) };
            if !self.has_token && observer.has_token() {
                self.has_token = true;
                self.worker.counters().inc_streaming();
                if reply.is_simulated() {
                    self.worker.counters().set_simulated();
                }
            }
            if let Some(ClientAbort::Tokens(most)) = leave
                && observer.output_tokens().is_some_and(|count| count.tokens >= most)
            {
                return ExchangeOutcome::ClientAborted;
            }
        }
    }

    /// Continues the write as far as the socket accepts; returns the time of the last byte.
    fn continue_write(&mut self, cx: &mut Context<'_>, io: &mut MaybeTlsStream, written: &mut usize) -> Option<Stamp> {
        let wire = self.job.as_ref()?.wire.as_ref()?;
        let Poll::Ready(done) = io.poll_write_all(cx, &wire.bytes, written) else { return None };
        let sent = done.ok().map(|()| Clock::Monotonic.now());
        self.finish_write(sent);
        sent
    }

    /// Ends the write. With `None` the server accepts no more of the request, but its response is still read.
    fn finish_write(&mut self, sent: Option<Stamp>) {
        if let Some(job) = &mut self.job {
            job.wire = None;
        }
        if let (Some(observer), Some(sent)) = (&mut self.observer, sent) {
            observer.sent(sent, None);
        }
    }

    fn finish(&mut self, at: Stamp, ending: Ending, trouble: Option<FailureReason>) {
        let (Some((began, in_flight)), Some(observer), Some(job)) = (self.began, self.observer.take(), self.job.take())
        else {
            return;
        };
        let (record, text) = observer.end_with_text(at, ending);
        let real = job.turn.as_ref().and_then(|turn| turn.verbatim);
        let history =
            job.turn.and_then(|turn| self.worker.config().encoder.next_history(turn, &job.scheduled, &record, text));
        let failed = record.fault.is_some() && matches!(record.status, Some(200..=299));
        self.response_gaps.push(&record.gaps);
        let ResponseGaps { gaps, lost, reads } = std::mem::take(&mut self.response_gaps);
        let done = CompletedRequest {
            target: job.target,
            planned_values: job.planned_values,
            think: self.previous_ended.map(|after| began.since(after)),
            scheduled: job.scheduled,
            planned: self.planned,
            held_back: self.held_back,
            in_flight,
            lost_gaps: lost + u64::from(record.quality.lost_gaps),
            failure_reason: trouble.or(failed.then_some(FailureReason::ErrorEvent)),
            record,
            gaps,
            connect_time: self.connecting,
            reads,
            verbatim_history: real,
        };
        self.worker.on_request_end(done, self.has_token, history);
    }
}

/// Returns the future's output and its duration.
async fn timed<F: Future>(future: F) -> (F::Output, Gap) {
    let started_at = Clock::Monotonic.now();
    let output = future.await;
    (output, Clock::Monotonic.now().since(started_at))
}

impl Drop for ReplayExchange {
    fn drop(&mut self) {
        // The write is done, but its result has not been received yet.
        if let Some(Ok(WriteResult { wire, began, bytes: Some(_), .. })) =
            self.pending_write.as_mut().map(oneshot::Receiver::try_recv)
            && let Some(job) = &mut self.job
        {
            job.wire = Some(wire);
            self.begin(began);
        }
        if self.observer.is_none() && self.job.is_some() {
            self.observe();
        }
        self.finish(Clock::Monotonic.now(), Ending::TimedOut, Some(FailureReason::Stopped));
        self.worker.dec_in_flight();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<F: Future>(_: impl FnOnce(ReplayExchange, Option<MaybeTlsStream>) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_stream_that_is_open_holds_nothing_of_how_its_request_was_sent() {
        // A task must fit into 2 KiB with the runtime's own 112 bytes: thousands are open at a time.
        let open = size(|mut exchange, io| async move { exchange.run(io).await });
        assert!(open <= 2_048 - 112, "{open} bytes, of which the request is {}", size_of::<ReplayExchange>());
    }
}
