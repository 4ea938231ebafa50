//! One exchange between an HTTP/1.x client and the upstream, as one state machine in the client's task.
//!
//! Every poll first moves request body upstream and detects a disconnected client. It then writes pending output to the
//! client. Only then it reads from the upstream. So a slow client stops upstream reads (backpressure), and each read is
//! written before it is parsed.

use std::task::{Context, Poll, ready};

use super::client::DownstreamConnection;
use super::pending_write::PendingWrite;
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};
use crate::net::http1::body::{BodyError, ChunkWriter};
use crate::net::http1::head::HttpVersion;
use crate::net::http1::{BodyDecoder, Framing, Head, HeadError, KnownHeader};
use crate::proxy::request_observer::RequestObserver;
use crate::proxy::upstream::{BodyStep, HIGH_WATER_BYTES, UpstreamError, UpstreamExchange};

/// The end of an exchange.
#[derive(Debug)]
pub(super) enum RelayEnd {
    /// The complete response was forwarded, its last byte at `at`. `keep` allows another request on this connection.
    Complete { keep: bool, at: Stamp },
    /// The client disconnected, or sent a malformed body after the response had begun.
    ClientGone,
    /// The upstream failed; `answered` if the client already has a response head.
    Upstream { broken: UpstreamError, answered: bool },
    /// The request body is malformed, and the client has no response head yet.
    BadRequest(BodyError),
    /// The server switched protocols, and the client has the 101 response.
    Switched,
}

/// State of one exchange.
pub(super) struct Relay<'a> {
    pub(super) client: &'a mut DownstreamConnection,
    request: &'a Head,
    response: &'a mut Head,
    pub(super) exchange: &'a mut UpstreamExchange,
    observation: &'a mut RequestObserver,
    upload: UploadState,
    phase: RelayPhase,
    pending: Option<PendingWrite>,
    blocked_since: Option<Stamp>,
    /// Time of the last completed write to the client.
    last_write: Option<Stamp>,
    /// An upstream failure, reported to the client after all data before it.
    broken: Option<UpstreamError>,
    draining: bool,
    /// The response announced that the connection stays open.
    keep: bool,
    /// The server reads the rest of a request that it has already answered.
    takes_late_body: bool,
    /// The connection's end marks the body's end, so only a reset shows the client a truncated body.
    resets_on_close: bool,
}

/// State of the request body.
enum UploadState {
    /// Reading from the client.
    Reading(BodyDecoder),
    /// Read completely; some bytes may not be written yet.
    Writing,
    /// Written or not needed; `whole` if the server took all of it.
    Done { whole: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RelayPhase {
    Head,
    Body(Framing),
    /// Read completely; some bytes may not be written yet.
    Done,
    Switching,
}

impl<'a> Relay<'a> {
    pub(super) fn new(
        client: &'a mut DownstreamConnection,
        (request, framing): (&'a Head, Framing),
        response: &'a mut Head,
        exchange: &'a mut UpstreamExchange,
        observation: &'a mut RequestObserver,
        draining: bool,
    ) -> Self {
        Self {
            client,
            request,
            response,
            exchange,
            observation,
            upload: UploadState::Reading(BodyDecoder::new(framing)),
            phase: RelayPhase::Head,
            pending: None,
            blocked_since: None,
            last_write: None,
            broken: None,
            draining,
            keep: false,
            takes_late_body: false,
            resets_on_close: false,
        }
    }

    /// Runs until the exchange has ended. If no server has begun to process the request, a further run may follow.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RelayEnd> {
        if let Err(end) = self.poll_upload(cx) {
            self.observe_written();
            let answered = self.phase != RelayPhase::Head;
            return Poll::Ready(match end {
                // The rest of a request does not change its response.
                _ if self.phase == RelayPhase::Done && self.pending.is_none() => self.complete(),
                RelayEnd::BadRequest(_) if answered => RelayEnd::ClientGone,
                end => end,
            });
        }
        // The response ends the request's observation.
        if self.exchange.has_unobserved() {
            return Poll::Pending;
        }
        loop {
            if self.pending.is_some()
                && let Err(end) = ready!(self.poll_write_response(cx))
            {
                return Poll::Ready(end);
            }
            if let Some(broken) = self.broken.take() {
                return Poll::Ready(RelayEnd::Upstream { broken, answered: true });
            }
            let step = match self.phase {
                RelayPhase::Head => ready!(self.poll_head(cx)),
                RelayPhase::Body(framing) => ready!(self.poll_body(cx, framing)),
                // A client that is still sending its body would take a close as a failure and miss the response.
                RelayPhase::Done if self.takes_late_body && !matches!(self.upload, UploadState::Done { .. }) => {
                    return Poll::Pending;
                }
                RelayPhase::Done => return Poll::Ready(self.complete()),
                RelayPhase::Switching => return Poll::Ready(RelayEnd::Switched),
            };
            if let Err(broken) = step {
                let answered = self.phase != RelayPhase::Head;
                return Poll::Ready(RelayEnd::Upstream { broken, answered });
            }
        }
    }

    fn complete(&self) -> RelayEnd {
        if self.resets_on_close {
            self.client.io.set_reset_on_close(false);
        }
        let at = self.last_write.unwrap_or_else(|| Clock::Monotonic.now());
        RelayEnd::Complete { keep: self.keep && self.client_is_done(), at }
    }

    fn client_is_done(&self) -> bool {
        matches!(self.upload, UploadState::Done { whole: true })
    }

    /// Forwards the request body, then watches for the client's disconnect.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), RelayEnd> {
        while !matches!(self.upload, UploadState::Done { .. }) {
            let full = self.exchange.backlog() >= HIGH_WATER_BYTES;
            let read = match &mut self.upload {
                UploadState::Reading(decoder) if !full => {
                    let read = Self::poll_read_request(cx, self.client, decoder, self.exchange, self.observation)?;
                    if decoder.is_done() {
                        self.exchange.complete(decoder.trailers());
                        self.upload = UploadState::Writing;
                    }
                    read
                }
                _ => Poll::Pending,
            };
            let observation = &mut *self.observation;
            let flushed = self.exchange.poll_flush(cx, |cx, payload| observation.poll_request_body(cx, payload));
            match flushed {
                Poll::Ready(Err(broken)) => return Err(RelayEnd::Upstream { broken, answered: false }),
                Poll::Ready(Ok(())) if self.exchange.write_closed() => self.upload = UploadState::Done { whole: false },
                Poll::Ready(Ok(())) if matches!(self.upload, UploadState::Writing) => {
                    if self.phase != RelayPhase::Done {
                        self.observation.on_request_sent();
                    }
                    self.upload = UploadState::Done { whole: true };
                }
                Poll::Ready(Ok(())) if full => {}
                _ if read.is_ready() => {}
                // No further progress in either direction.
                _ => break,
            }
        }
        let disconnected = match self.upload {
            // Backpressure: the body stays unread until the server has taken some.
            UploadState::Reading(_) if self.exchange.backlog() >= HIGH_WATER_BYTES => {
                self.client.io.poll_peer_closed(cx)
            }
            UploadState::Reading(_) => Poll::Pending,
            UploadState::Writing | UploadState::Done { .. } => self.client.poll_disconnected(cx),
        };
        match disconnected {
            Poll::Ready(()) => Err(RelayEnd::ClientGone),
            Poll::Pending => Ok(()),
        }
    }

    /// Takes received body bytes, or reads more.
    fn poll_read_request(
        cx: &mut Context<'_>,
        client: &mut DownstreamConnection,
        decoder: &mut BodyDecoder,
        exchange: &mut UpstreamExchange,
        observation: &mut RequestObserver,
    ) -> Result<Poll<()>, RelayEnd> {
        if !client.inbox.is_empty() {
            let take = |payload: &[u8]| observation.forward_request_body(payload, exchange);
            let used = decoder.decode(&client.inbox, take).map_err(RelayEnd::BadRequest)?;
            client.inbox.drain(..used);
            return Ok(Poll::Ready(()));
        }
        if decoder.is_done() {
            return Ok(Poll::Ready(()));
        }
        let (inbox, first) = (&mut client.inbox, &mut client.arrival);
        let read = client.io.poll_read(cx, |bytes, arrival| {
            observation.on_request_read(arrival);
            let used = decoder.decode(bytes, |payload| observation.forward_request_body(payload, exchange))?;
            if used < bytes.len() {
                inbox.extend_from_slice(&bytes[used..]);
                *first = Some(arrival);
            }
            Ok(())
        });
        match read {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(Ok(Some(Ok(())))) => Ok(Poll::Ready(())),
            Poll::Ready(Ok(Some(Err(error)))) => Err(RelayEnd::BadRequest(error)),
            Poll::Ready(Ok(None) | Err(_)) => Err(RelayEnd::ClientGone),
        }
    }

    /// Writes pending output, then passes it to the observer.
    fn poll_write_response(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RelayEnd>> {
        let Some(pending) = &mut self.pending else { return Poll::Ready(Ok(())) };
        if pending.written.is_none() {
            match self.client.poll_flush(cx) {
                Poll::Pending => {
                    self.blocked_since.get_or_insert_with(|| Clock::Monotonic.now());
                    return Poll::Pending;
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(RelayEnd::ClientGone)),
                Poll::Ready(Ok(())) => {}
            }
            let now = Clock::Monotonic.now();
            self.last_write = Some(now);
            let blocked = self.blocked_since.take().map_or(Gap::ZERO, |since| now.since(since));
            pending.written = Some((now, blocked));
            if let Some(arrival) = pending.head {
                self.observation.on_response_head(arrival, self.response);
                self.observation.on_response_head_written(arrival, now);
            }
            if self.phase == RelayPhase::Done {
                self.observation.on_response_written(now);
            }
        }
        ready!(pending.poll_observe(cx, &self.client.out, self.observation));
        self.pending = None;
        self.client.reset_buffers();
        Poll::Ready(Ok(()))
    }

    /// Passes the rest of what is written to the observer, because the exchange ends.
    fn observe_written(&mut self) {
        if let Some(written) = self.pending.take_if(|pending| pending.written.is_some()) {
            written.observe(&self.client.out, self.observation);
        }
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), UpstreamError>> {
        let arrival = ready!(self.exchange.poll_head(cx, self.response))?;
        let out = &mut self.client.out;
        match self.response.status() {
            101 if self.request.upgrade().is_none() => {
                let error = HeadError::Malformed("a switch of protocols that nobody asked for");
                return Poll::Ready(Err(UpstreamError::Head(error)));
            }
            101 => {
                self.response.write_status_line(out);
                self.response.write_fields(out, |known, hop| {
                    !hop || matches!(known, KnownHeader::Connection | KnownHeader::Upgrade)
                });
                out.extend_from_slice(b"\r\n");
                self.phase = RelayPhase::Switching;
                self.pending = Some(PendingWrite { head: Some(arrival), ..PendingWrite::default() });
            }
            status @ 100..=199 => {
                // HTTP/1.0 clients do not accept interim responses, and 100 goes only to clients that expect it.
                let is_expected = status != 100 || self.request.get(KnownHeader::Expect).is_some();
                if is_expected && self.request.version() != HttpVersion::Http10 {
                    self.response.write_status_line(out);
                    self.response.write_fields(out, |_, hop| !hop);
                    out.extend_from_slice(b"\r\n");
                    self.pending = Some(PendingWrite::default());
                }
            }
            _ => {
                let framing = self.begin_response()?;
                self.pending = Some(PendingWrite { head: Some(arrival), ..PendingWrite::default() });
                self.phase = RelayPhase::Body(framing);
                // Body bytes that arrived with the head leave with it, before any error in them is reported.
                if let Poll::Ready(step) = self.poll_body(cx, framing) {
                    self.broken = step.err();
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes the response head. Returns the body's framing for the client.
    fn begin_response(&mut self) -> Result<Framing, UpstreamError> {
        let (request, response) = (self.request, &*self.response);
        let to_head = request.method() == "HEAD";
        let framing = match response.response_framing(to_head).map_err(UpstreamError::Head)? {
            Framing::Chunked if request.version() == HttpVersion::Http10 => Framing::UntilClose,
            Framing::UntilClose
                if response.version() == HttpVersion::Http2 && request.version() != HttpVersion::Http10 =>
            {
                Framing::Chunked
            }
            framing => framing,
        };
        if framing == Framing::UntilClose {
            self.client.io.set_reset_on_close(true);
            self.resets_on_close = true;
        }
        if let Some(asking) = self.observation.usage_injection() {
            asking.on_response_head(response);
        }
        // A client that waits for `100 Continue` may never send its body; HTTP/2 resets a stream whose body it does not
        // need.
        self.takes_late_body = response.keeps_alive()
            && response.version() != HttpVersion::Http2
            && request.get(KnownHeader::Expect).is_none();
        let hears_all = self.takes_late_body || self.client_is_done();
        self.keep = request.keeps_alive() && framing != Framing::UntilClose && !self.draining && hears_all;
        let out = &mut self.client.out;
        response.write_status_line(out);
        let keep_coding = framing == Framing::Chunked || to_head && request.version() != HttpVersion::Http10;
        // The `Upgrade` field of a 426 is for the client, because both ends must agree to a switch.
        let demands = response.status() == 426 && response.get(KnownHeader::Upgrade).is_some();
        response.write_fields(out, |known, hop| match known {
            KnownHeader::TransferEncoding => keep_coding,
            KnownHeader::Upgrade => demands,
            _ => !hop,
        });
        if demands {
            out.extend_from_slice(b"Connection: Upgrade\r\n");
        }
        if framing == Framing::Chunked && response.get(KnownHeader::TransferEncoding).is_none() {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        match (self.keep, request.version()) {
            (false, _) => out.extend_from_slice(b"Connection: close\r\n"),
            (true, HttpVersion::Http10) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
            (true, _) => {}
        }
        out.extend_from_slice(b"\r\n");
        Ok(framing)
    }

    /// Encodes the data of one read in the client's framing and queues it.
    fn poll_body(&mut self, cx: &mut Context<'_>, framing: Framing) -> Poll<Result<(), UpstreamError>> {
        let chunked = framing == Framing::Chunked;
        let out = &mut self.client.out;
        let start = out.len();
        let chunk = chunked.then(|| ChunkWriter::begin(out));
        let payload = out.len();
        let Poll::Ready(step) = self.exchange.poll_body(cx, out) else {
            out.truncate(start);
            return Poll::Pending;
        };
        let step = step.inspect_err(|_| out.truncate(start))?;
        let last = matches!(step, BodyStep::End) || self.exchange.has_ended();
        if let Some(asking) = self.observation.usage_injection() {
            asking.edit_response(out, payload, last);
        }
        // A read whose events are all stripped writes no chunk.
        let payload = if out.len() > payload { payload..out.len() } else { start..start };
        if let Some(chunk) = chunk {
            self.client.written = ChunkWriter::end(out, chunk);
        }
        if let BodyStep::Data(arrival) = step {
            self.pending.get_or_insert_default().body = Some((arrival, payload));
        }
        if last {
            if chunked {
                ChunkWriter::finish(out, self.exchange.trailers());
            }
            if out.len() > start {
                self.pending.get_or_insert_default();
            }
            self.phase = RelayPhase::Done;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Relay<'_> {
    /// The process may stop while the task yields.
    fn drop(&mut self) {
        self.observe_written();
    }
}
