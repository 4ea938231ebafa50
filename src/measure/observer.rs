//! The state machine that turns stamps and bytes into a record.
//!
//! It is pure: it reads no clock, never fails, and knows no socket. The proxy feeds it the forwarded bytes, a replay
//! the received bytes, `inspect` a file. Each number is therefore defined once, here.
//!
//! # Order of calls
//! [`begin`](StreamObserver::begin) at the first byte of the request. [`request`](StreamObserver::request) for every
//! read of the request body, and [`sent`](StreamObserver::sent) after writing its last byte.
//! [`head`](StreamObserver::head) once. [`bytes`](StreamObserver::bytes) for every read of the response body, after
//! forwarding it. [`end`](StreamObserver::end) once, whatever happened. A task that has to yield takes a read in slices
//! instead ([`begin_read`](StreamObserver::begin_read), then [`slice`](StreamObserver::slice) to its end).
//!
//! # Memory
//! About 1 KiB per request; a stream adds 3 to 6 KiB (the timeline, one event's skeleton). An event split between
//! reads is buffered, up to [`MAX_EVENT`](super::framing::MAX_EVENT). Memory does not grow with the length of the
//! stream, except for text to be tokenized locally, which [`text_collector`](super::text_collector) bounds.

use std::sync::{Arc, LazyLock};

use super::bounded_vec::BoundedVec;
use super::dialect::{self, Dialect, detect};
use super::event_observer::{EventObserver, NoopObserver};
use super::failure::FailureOrigin;
use super::framing::coding::{Decoder, MAX_INPUT_BYTES, decode_slice};
use super::framing::{EventReader, Framer};
use super::json_scanner::DocumentState;
use super::record::{
    CountSource, Ending, Fault, Outcome, Quality, RecordTimes, RequestRecord, StampSource, TokenCount, UnreadReason,
};
use super::reply_body::{ReplyBodyState, ReplyEvents, ReplyFields, ResponseHead, framer};
use super::request_class::RequestClasses;
use super::shape::{RequestShape, ShapeReader};
use super::slo::Slos;
use super::stream_stats::StreamStats;
use super::text_collector::{ReplyText, TextBudget, TextCollector};
use super::time::{Gap, Stamp};
use super::timeline::{TokenEvent, TokenTimeline};
use super::work_budget::{WorkBudget, WorkReserve};

/// Forwarding delays stored per request between two drains.
const MAX_OVERHEADS: usize = 256;

static NO_OBJECTIVES: LazyLock<Arc<Slos>> = LazyLock::new(Arc::default);

/// Default threshold for a stall.
pub const DEFAULT_STALL: Gap = Gap::from_millis(1_000);

/// Changes since the last drain of a long stream.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Shape of the request.
    pub shape: Arc<RequestShape>,
    /// Gaps between token events.
    pub gaps: Box<[TokenEvent]>,
    /// Gaps above the stall threshold.
    pub stalls: u32,
    /// Output tokens since the last drain, from the best available source.
    pub tokens: TokenCount,
    /// Delays between arrival and forwarding, in nanoseconds.
    pub chunk_overheads: Box<[u32]>,
}

/// Observes one request from its first byte to its end.
pub struct StreamObserver {
    request: RequestState,
    slos: Arc<Slos>,
    stall: Gap,
    times: RecordTimes,
    status: Option<u16>,
    local_reply: Option<FailureOrigin>,
    body: ReplyBodyState,
    tally: StreamStats,
    timeline: Option<TokenTimeline>,
    /// Collects text for local tokenization; `None` if not needed.
    text: Option<Box<TextCollector>>,
    quality: Quality,
    /// Work budget for the response.
    budget: WorkBudget,
    /// Work spent on the request, once its shape is final.
    request_work: u64,
    request_bytes: u64,
    response_bytes: u64,
    chunk_overheads: BoundedVec<u32, MAX_OVERHEADS>,
    request_overhead: Option<Gap>,
    head_overhead: Option<Gap>,
    stamps: StampSource,
    tokens_reported: u64,
    /// The body ended within a length-prefixed frame.
    cut_short: bool,
}

/// State of the request body.
enum RequestState {
    /// The request body is still being read.
    Reading(Box<ShapeReader>),
    /// The shape as known when the response began.
    Settled(Arc<RequestShape>),
}

impl StreamObserver {
    /// Starts observing a request whose first byte arrived at `received`. `intended` is the planned time in a replay.
    /// `encoding` is the body's `Content-Encoding`, or its messages' `grpc-encoding`.
    ///
    /// Boxed for its whole life, because moving more than 1 KiB is expensive.
    pub fn begin(shape: RequestShape, encoding: &[u8], intended: Option<Stamp>, received: Stamp) -> Box<Self> {
        Box::new(Self {
            request: RequestState::Reading(Box::new(ShapeReader::new(shape, encoding))),
            slos: Arc::clone(&NO_OBJECTIVES),
            stall: DEFAULT_STALL,
            times: RecordTimes { intended, received, ended: received, ..RecordTimes::default() },
            status: None,
            local_reply: None,
            body: ReplyBodyState::Opaque,
            tally: StreamStats::default(),
            timeline: None,
            text: None,
            quality: Quality::default(),
            budget: WorkBudget::default(),
            request_work: 0,
            request_bytes: 0,
            response_bytes: 0,
            chunk_overheads: BoundedVec::default(),
            request_overhead: None,
            head_overhead: None,
            stamps: StampSource::Read,
            tokens_reported: 0,
            cut_short: false,
        })
    }

    /// Sets the SLOs to evaluate, and counts gaps above `stall`.
    pub fn with_slos(mut self: Box<Self>, slos: Arc<Slos>, stall: Gap) -> Box<Self> {
        (self.slos, self.stall) = (slos, stall);
        self
    }

    /// Reads the values of these classes from the request body.
    pub fn with_classes(mut self: Box<Self>, classes: &Arc<RequestClasses>) -> Box<Self> {
        if let RequestState::Reading(reader) = &mut self.request
            && classes.reads_body()
        {
            reader.set_classes(Arc::clone(classes));
        }
        self
    }

    /// Limits the observation to what the reads grant and this reserve has, without an initial amount.
    pub fn with_reserve(mut self: Box<Self>, reserve: &WorkReserve) -> Box<Self> {
        if let RequestState::Reading(reader) = &mut self.request {
            reader.set_reserve(reserve);
        }
        self.budget = WorkBudget::with_reserve(reserve);
        self
    }

    /// Takes one read of the request body.
    pub fn request(&mut self, chunk: &[u8]) {
        self.request_bytes += chunk.len() as u64;
        self.request_chunk(chunk);
    }

    /// Takes a part of a request body that is not forwarded; it only contributes to the shape.
    pub fn request_chunk(&mut self, chunk: &[u8]) {
        if let RequestState::Reading(reader) = &mut self.request {
            reader.push(chunk);
        }
    }

    /// Begins a read of the request body, which [`request_slice`](Self::request_slice) takes.
    pub fn begin_request_read(&mut self, bytes: usize) {
        self.request_bytes += bytes as u64;
        if let RequestState::Reading(reader) = &mut self.request {
            reader.receive(bytes);
        }
    }

    /// Takes one slice of a read of the request body. Returns the bytes that it took, or `None` after the last slice.
    pub fn request_slice(&mut self, rest: &[u8]) -> Option<usize> {
        let RequestState::Reading(reader) = &mut self.request else { return None };
        let (used, is_done) = reader.push_slice(rest);
        (!is_done).then_some(used)
    }

    /// Sets the server that takes the request.
    pub fn set_server(&mut self, server: Option<(Arc<str>, u16)>) {
        if let RequestState::Reading(reader) = &mut self.request {
            reader.set_server(server);
        }
    }

    /// The shape of the request as far as known.
    pub fn shape(&self) -> &RequestShape {
        match &self.request {
            RequestState::Reading(reader) => reader.shape(),
            RequestState::Settled(shape) => shape,
        }
    }

    fn settle(&mut self) -> Arc<RequestShape> {
        let shape = match &mut self.request {
            RequestState::Reading(reader) => {
                self.quality.request_unread = reader.unread();
                self.request_work = reader.budget().spent();
                Arc::new(reader.take())
            }
            RequestState::Settled(shape) => Arc::clone(shape),
        };
        self.request = RequestState::Settled(Arc::clone(&shape));
        shape
    }

    /// Records that the last request byte was written upstream at `at`, `overhead` after it was read.
    pub fn sent(&mut self, at: Stamp, overhead: Option<Gap>) {
        self.times.sent = Some(at);
        self.request_overhead = overhead;
    }

    /// Records the response head. `stamps` is the source of all later stamps.
    pub fn head(&mut self, at: Stamp, head: ResponseHead<'_>, stamps: StampSource) {
        self.times.head = Some(at);
        // The writing thread may be preempted before it reads the clock, but an answered request had been sent.
        self.times.sent = self.times.sent.map(|sent| sent.min(at));
        self.status = Some(head.status);
        self.stamps = stamps;
        let shape = self.settle();
        self.body = self.body_of(at, &shape, head);
    }

    fn body_of(&mut self, at: Stamp, shape: &RequestShape, head: ResponseHead<'_>) -> ReplyBodyState {
        let framer = framer(shape, head);
        let is_document = framer.is_none() && head.is_json();
        if shape.dialect.is_none() && (is_document || !shape.may_generate()) || framer.is_none() && !is_document {
            return ReplyBodyState::Opaque;
        }
        // gRPC compresses each message, and the framer decodes them.
        let encoding = if matches!(framer, Some(Framer::Grpc(_))) { b"" } else { head.content_encoding };
        let Some(decoder) = Decoder::for_encoding(encoding) else {
            self.quality.unread = Some(UnreadReason::Coding);
            return ReplyBodyState::Opaque;
        };
        let decoder = (!decoder.is_identity()).then(|| Box::new(decoder));
        match (framer, shape.dialect) {
            (Some(framer), dialect) => {
                self.timeline = Some(TokenTimeline::new(at, self.stall, self.slos.gap_limits().len()));
                let reader = dialect.map_or_else(|| detect::reader(shape), |dialect| (dialect.reader)(shape));
                ReplyBodyState::Events { decoder, framer, reader }
            }
            (None, Some(dialect)) => {
                let reply = Box::new(dialect::ReplyDocument::new(shape));
                ReplyBodyState::Document { decoder, scan: Box::default(), fields: dialect.reply, reply }
            }
            (None, None) => ReplyBodyState::Opaque,
        }
    }

    /// Records that the proxy sent a local reply with this status, and the component at fault.
    pub fn refused(&mut self, status: u16, origin: FailureOrigin) {
        (self.status, self.local_reply) = (Some(status), Some(origin));
    }

    /// Records the `grpc-status` of a gRPC call. Anything but `0` is an error, whatever the HTTP status.
    pub fn call_ended(&mut self, status: &[u8]) {
        if self.shape().dialect.is_some() && status != b"0" {
            let code = str::from_utf8(status).ok().filter(|code| code.len() <= 2);
            let kind = code.map(|code| format!("grpc_{code}").into());
            self.tally.fault.get_or_insert(Fault { event: self.tally.events, kind });
        }
    }

    /// Records that the response head was forwarded `overhead` after its arrival.
    pub fn head_forwarded(&mut self, overhead: Gap) {
        self.head_overhead = Some(overhead);
    }

    /// Collects the stream's text for [`end_with_text`](Self::end_with_text). Call after [`head`](Self::head).
    pub fn collect_text(&mut self, budget: &TextBudget) {
        self.collect(budget, false);
    }

    /// Collects text like [`collect_text`](Self::collect_text), even if the server counts: the next turn of the
    /// session repeats it.
    pub fn keep_text(&mut self, budget: &TextBudget) {
        self.collect(budget, true);
    }

    fn collect(&mut self, budget: &TextBudget, needs_text: bool) {
        let fields = self.shape().dialect.and_then(|dialect| dialect.text);
        // Documents need no local tokenization, because servers count their tokens.
        let has_text = self.is_stream() || needs_text && matches!(self.body, ReplyBodyState::Document { .. });
        self.text = fields.filter(|_| has_text).map(|fields| Box::new(TextCollector::new(fields, budget, needs_text)));
    }

    /// Takes one read of the response body, which arrived at `at`. Allocates nothing after the first few events.
    pub fn bytes(&mut self, at: Stamp, chunk: &[u8]) {
        self.bytes_watched(at, chunk, &mut NoopObserver);
    }

    /// Does the work of [`bytes`](Self::bytes) and passes each event to `watch`.
    pub fn bytes_watched(&mut self, at: Stamp, chunk: &[u8], watch: &mut impl EventObserver) {
        self.begin_read(at, chunk.len());
        let mut rest = chunk;
        while let Some(used) = self.watched_slice(at, rest, watch) {
            rest = &rest[used..];
        }
    }

    /// Begins a read of the response body, which [`slice`](Self::slice) takes.
    pub fn begin_read(&mut self, at: Stamp, bytes: usize) {
        self.times.first_byte.get_or_insert(at);
        self.response_bytes += bytes as u64;
        self.budget.receive(bytes);
    }

    /// Takes one slice of a read that arrived at `at`. Returns the bytes that it took, or `None` after the last slice.
    pub fn slice(&mut self, at: Stamp, rest: &[u8]) -> Option<usize> {
        self.watched_slice(at, rest, &mut NoopObserver)
    }

    fn watched_slice(&mut self, at: Stamp, rest: &[u8], watch: &mut impl EventObserver) -> Option<usize> {
        let (tally, times, timeline, text) = (&mut self.tally, &mut self.times, &mut self.timeline, &mut self.text);
        let (limits, budget) = (self.slos.gap_limits(), &mut self.budget);
        let read = match &mut self.body {
            ReplyBodyState::Opaque => Ok((rest.len(), true)),
            ReplyBodyState::Events { decoder, framer, reader } => {
                let pieces = (rest, framer.piece_bytes());
                let (reader, timeline) = (reader.as_mut(), timeline.as_mut());
                let mut events = ReplyEvents { reader, at, watch, tally, times, timeline, limits, text };
                decode_slice(decoder.as_deref_mut(), pieces, budget, |plain, budget| {
                    Ok(framer.push(plain, budget, &mut events)?)
                })
            }
            ReplyBodyState::Document { decoder, scan, fields, reply } => {
                decode_slice(decoder.as_deref_mut(), (rest, MAX_INPUT_BYTES), budget, |plain, budget| {
                    scan.push_paid(plain, budget, &mut ReplyFields { fields, reply, tally, watch })?;
                    if text.as_mut().is_some_and(|text| text.document(plain).is_err()) {
                        *text = None;
                    }
                    if scan.document() == DocumentState::Broken { Err(UnreadReason::Malformed) } else { Ok(()) }
                })
            }
        };
        let next = match read {
            Ok((used, is_done)) => (!is_done).then_some(used),
            Err(unread) => {
                self.quality.unread = Some(unread);
                if let ReplyBodyState::Events { framer, .. } = &self.body {
                    self.tally.comments = framer.comments();
                }
                self.body = ReplyBodyState::Opaque;
                None
            }
        };
        self.recognized();
        if self.text.as_ref().is_some_and(|text| !text.needs_text()) && self.is_counted() {
            self.text = None;
        }
        next
    }

    /// True if the current count is at least as good as a tokenizer's.
    fn is_counted(&self) -> bool {
        self.tally.output_tokens().is_some_and(|count| count.source < CountSource::Tokenizer)
    }

    /// Adopts the dialect that the events have identified.
    #[inline]
    fn recognized(&mut self) {
        if let Some(dialect) = self.tally.recognized {
            self.set_dialect(dialect);
        }
    }

    #[cold]
    fn set_dialect(&mut self, dialect: &'static Dialect) {
        self.tally.recognized = None;
        if let RequestState::Settled(shape) = &mut self.request {
            Arc::make_mut(shape).dialect = Some(dialect);
        }
    }

    /// Records that a read was forwarded `overhead` after its arrival.
    pub fn forwarded(&mut self, overhead: Gap) {
        // A delay that finds the list full is dropped: the list is a sample of the proxy's overhead.
        self.chunk_overheads.push(u32::try_from(overhead.as_nanos()).unwrap_or(u32::MAX));
    }

    /// Records how long the client accepted no bytes.
    pub fn write_blocked(&mut self, blocked: Gap) {
        let total = self.quality.write_blocked.as_nanos().saturating_add(blocked.as_nanos());
        self.quality.write_blocked = Gap::from_nanos(total);
    }

    /// Work spent so far on the request and its response, in units of the [`work_budget`](super::work_budget).
    pub fn work(&self) -> u64 {
        let request = match &self.request {
            RequestState::Reading(reader) => reader.budget().spent(),
            RequestState::Settled(_) => self.request_work,
        };
        request.saturating_add(self.budget.spent())
    }

    /// True if the response is a stream of events.
    pub fn is_stream(&self) -> bool {
        self.timeline.is_some() && self.shape().dialect.is_some()
    }

    /// True if the first proof of a token has arrived.
    pub fn has_token(&self) -> bool {
        self.times.first_evidence.is_some()
    }

    /// Output tokens so far, from the best available source.
    pub fn output_tokens(&self) -> Option<TokenCount> {
        self.tally.output_tokens()
    }

    /// Returns the changes since the last call if a drain is due ([`TokenTimeline`]).
    pub fn progress(&mut self, at: Stamp) -> Option<Progress> {
        let timeline = self.timeline.as_mut().filter(|timeline| timeline.wants_draining(at))?;
        let (gaps, stalls) = timeline.drain(at);
        let count = self.tally.output_tokens()?;
        let tokens = count.tokens.saturating_sub(self.tokens_reported);
        self.tokens_reported += tokens;
        let chunk_overheads = self.chunk_overheads.take();
        let shape = self.settle();
        Some(Progress { shape, gaps, stalls, tokens: TokenCount { tokens, ..count }, chunk_overheads })
    }

    /// Ends the observation, for every kind of ending.
    pub fn end(self: Box<Self>, at: Stamp, ending: Ending) -> RequestRecord {
        self.end_watched(at, ending, &mut NoopObserver)
    }

    /// Ends like [`end`](Self::end). Also returns the collected text if it must still be tokenized or repeated.
    pub fn end_with_text(mut self: Box<Self>, at: Stamp, ending: Ending) -> (RequestRecord, Option<ReplyText>) {
        self.finish_body(at, ending, &mut NoopObserver);
        let counted = self.is_counted();
        let is_needed = |text: &TextCollector| text.needs_text() || !counted && self.tally.token_events > 0;
        let text = self.text.take().filter(|text| is_needed(text));
        (self.into_record(at, ending), text.map(|collector| collector.into_text()))
    }

    /// Ends like [`end`](Self::end), with `watch` for a last event that the end completes.
    pub fn end_watched(
        mut self: Box<Self>,
        at: Stamp,
        ending: Ending,
        watch: &mut impl EventObserver,
    ) -> RequestRecord {
        self.finish_body(at, ending, watch);
        self.into_record(at, ending)
    }

    fn into_record(mut self: Box<Self>, at: Stamp, ending: Ending) -> RequestRecord {
        let streamed = self.is_stream();
        let ends_with_body = self.shape().dialect.is_some_and(|dialect| dialect.ends_with_body);
        let shape = self.settle();
        // If a stream could not be read to its end, a clean end of its framing counts as finished.
        let unmarked = ends_with_body || self.quality.unread.is_some() || !streamed;
        let declared = self.tally.is_finished(shape.choices);
        let finished = declared || unmarked && !self.cut_short;
        let outcome = Outcome::decide(ending, self.status, self.tally.fault.is_some(), finished, declared);
        let (gaps, totals) = match &mut self.timeline {
            Some(timeline) => {
                if !finished {
                    timeline.break_off(at);
                }
                let totals = timeline.totals().clone();
                (timeline.drain(at).0, totals)
            }
            None => Default::default(),
        };
        RequestRecord {
            shape,
            slos: self.slos,
            times: RecordTimes { ended: at, ..self.times },
            status: self.status,
            local_reply: self.local_reply,
            ending,
            outcome,
            streamed,
            events: self.tally.events,
            comments: self.tally.comments,
            token_events: self.tally.token_events,
            evidence_events: self.tally.evidence_events,
            output_tokens: self.tally.output_tokens(),
            first_event_tokens: self.tally.first_event_tokens,
            usage: self.tally.usage,
            engine_prefill: self.tally.prefill,
            choices: self.tally.choices,
            fault: self.tally.fault,
            response_id: self.tally.response_id,
            response_model: self.tally.response_model,
            gaps,
            stalls: totals.stalls,
            tokens_reported: self.tokens_reported,
            longest_gap: totals.longest,
            gap_count: totals.gaps,
            gaps_over: totals.over,
            chunk_overheads: self.chunk_overheads.into(),
            request_overhead: self.request_overhead,
            head_overhead: self.head_overhead,
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
            stamps: self.stamps,
            quality: Quality { malformed_events: self.tally.malformed, lost_gaps: totals.lost, ..self.quality },
        }
    }

    fn finish_body(&mut self, at: Stamp, ending: Ending, watch: &mut impl EventObserver) {
        match &mut self.body {
            ReplyBodyState::Opaque => {}
            ReplyBodyState::Events { framer, reader, .. } => {
                self.cut_short = framer.is_inside_frame();
                if ending == Ending::Complete
                    && let Some(event) = framer.finish(|data| reader.is_whole(data))
                {
                    let (tally, times, text) = (&mut self.tally, &mut self.times, &mut self.text);
                    let (reader, timeline, limits) = (reader.as_mut(), self.timeline.as_mut(), self.slos.gap_limits());
                    let mut events = ReplyEvents { reader, at, watch, tally, times, timeline, limits, text };
                    events.event(event, &mut self.budget);
                }
                self.tally.comments = framer.comments();
            }
            ReplyBodyState::Document { scan, reply, .. } => match scan.document() {
                DocumentState::Empty => {}
                DocumentState::Whole => self.tally.document(reply, watch),
                DocumentState::Open | DocumentState::Broken => self.quality.unread = Some(UnreadReason::Malformed),
            },
        }
        self.recognized();
    }
}
