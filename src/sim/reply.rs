//! Reply bodies: a single piece, or a stream of events as the engine generates tokens.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use thiserror::Error;

use super::api_error::ApiError;
use super::engine_driver::JobHandle;
use super::events::{DONE, EventWriter, ReplyUsage, TextPiece};
use super::fault::{CutKind, StreamCut};
use super::request::SimRequest;
use super::send_log::SendLog;
use super::socket::SocketControl;
use super::token_queue::{TokenProgress, TokenQueue};
use crate::engine::{EngineFinish, FinishedJob};
use crate::measure::time::Stamp;

/// An injected fault ends the connection here.
#[derive(Clone, Copy, Debug, Error)]
#[error("the reply was cut short, as asked for")]
pub(super) struct StreamAborted;

#[derive(Debug)]
pub(super) enum SimReply {
    Whole(Full<Bytes>),
    Stream(Box<TokenStream>),
}

impl Body for SimReply {
    type Data = Bytes;
    type Error = StreamAborted;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StreamAborted>>> {
        match self.get_mut() {
            Self::Whole(whole) => Pin::new(whole).poll_frame(cx).map_err(|never| match never {}),
            Self::Stream(stream) => stream.poll_event(cx).map(|event| event.map(|event| event.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_end_stream(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => whole.size_hint(),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// Counts the tokens of a reply as they arrive.
#[derive(Debug)]
pub(super) struct ReplyCounter {
    prompts: Vec<u64>,
    /// Choices per prompt.
    n: u32,
    /// Tokens per choice.
    sent: Vec<u32>,
    unfinished: usize,
    cached: u64,
    /// Statistics of the first choice, once it has ended.
    timing: Option<FinishedJob>,
}

impl ReplyCounter {
    pub(super) fn new(ask: &SimRequest) -> Self {
        let choices = ask.prompts.len() * ask.n as usize;
        Self {
            prompts: ask.prompts.iter().map(|prompt| prompt.tokens.into()).collect(),
            n: ask.n,
            sent: vec![0; choices],
            unfinished: choices,
            cached: 0,
            timing: None,
        }
    }

    /// Records progress and returns its new part.
    pub(super) fn book(&mut self, progress: &TokenProgress) -> TextPiece {
        let upto = progress.upto;
        let from = self.sent.get_mut(progress.choice as usize).map_or(upto, |sent| std::mem::replace(sent, upto));
        if let Some(finished) = progress.finished {
            self.unfinished = self.unfinished.saturating_sub(1);
            if progress.choice.is_multiple_of(self.n) {
                // The choices of one prompt share it, so it is counted once.
                self.cached += u64::from(finished.cached_tokens);
            }
            if progress.choice == 0 {
                self.timing = Some(finished);
            }
        }
        TextPiece { choice: progress.choice, from, upto, finish: progress.finished.map(|finished| finished.reason) }
    }

    /// True if all choices have ended.
    pub(super) fn complete(&self) -> bool {
        self.unfinished == 0
    }

    pub(super) fn tokens(&self) -> u64 {
        self.sent.iter().map(|sent| u64::from(*sent)).sum()
    }

    fn usage_of(&self, choice: u32) -> ReplyUsage {
        let prompt = self.prompts.get((choice / self.n) as usize).copied().unwrap_or(0);
        let completion = self.sent.get(choice as usize).copied().unwrap_or(0).into();
        ReplyUsage { prompt, completion, cached: None }
    }

    pub(super) fn usage(&self) -> ReplyUsage {
        ReplyUsage { prompt: self.prompts.iter().sum(), completion: self.tokens(), cached: Some(self.cached) }
    }

    /// Times of the first choice; `None` until it has ended.
    pub(super) fn timing(&self) -> Option<&FinishedJob> {
        self.timing.as_ref()
    }
}

/// Options of a stream, from the request and the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamSettings {
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) metrics: bool,
    pub(super) cut: Option<StreamCut>,
    /// Close the connection afterwards, unannounced.
    pub(super) hangup: bool,
}

#[derive(Debug)]
pub(super) struct TokenStream {
    writer: EventWriter,
    tally: ReplyCounter,
    manner: StreamSettings,
    feed: Arc<TokenQueue>,
    run: JobHandle,
    wire: Arc<SocketControl>,
    log: Arc<SendLog>,
    /// Events to write; few, because no further progress is taken before they are written.
    ready: VecDeque<ReadyChunk>,
    is_started: bool,
    opened: bool,
    end: Option<StreamEnd>,
    /// One poll has passed since the last event before a cut.
    lingered: bool,
}

#[derive(Debug)]
struct ReadyChunk {
    bytes: Bytes,
    tokens: u32,
    planned: Stamp,
}

/// Action after the last event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    Clean,
    Cut,
    Reset,
}

impl TokenStream {
    pub(super) fn new(
        writer: EventWriter,
        tally: ReplyCounter,
        manner: StreamSettings,
        feed: Arc<TokenQueue>,
        run: JobHandle,
        wire: Arc<SocketControl>,
        log: Arc<SendLog>,
    ) -> Self {
        let ready = VecDeque::new();
        Self {
            writer,
            tally,
            manner,
            feed,
            run,
            wire,
            log,
            ready,
            is_started: false,
            opened: false,
            end: None,
            lingered: false,
        }
    }

    /// Returns one event per call, and none while the previous one is being written: one event is one HTTP chunk and
    /// one write.
    fn poll_event(&mut self, cx: &Context<'_>) -> Poll<Option<Result<Bytes, StreamAborted>>> {
        if !self.is_started {
            // The head is sent separately, before any token exists.
            self.is_started = true;
            if self.is_cut_due() {
                self.cut_stream(Stamp::default());
                cx.waker().wake_by_ref();
            } else if let Poll::Ready(progress) = self.feed.poll_next(cx) {
                self.accept(progress);
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        if self.wire.busy() {
            if self.ready.is_empty() && self.end.is_none() {
                match self.feed.poll_next(cx) {
                    Poll::Ready(progress) => self.accept(progress),
                    Poll::Pending => return Poll::Pending,
                }
            }
            self.wire.wake_when_written(cx);
            return Poll::Pending;
        }
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.wire.announce(&self.log, event.tokens, event.planned);
                return Poll::Ready(Some(Ok(event.bytes)));
            }
            match self.end {
                None => match self.feed.poll_next(cx) {
                    Poll::Ready(progress) => self.accept(progress),
                    Poll::Pending => return Poll::Pending,
                },
                Some(StreamEnd::Clean) => {
                    if self.manner.hangup {
                        self.wire.hang_up();
                    }
                    return Poll::Ready(None);
                }
                Some(StreamEnd::Reset | StreamEnd::Cut) if !self.lingered => {
                    // On HTTP/2 the last event is still queued, and a stream reset would discard it.
                    self.lingered = true;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(end) => {
                    if end == StreamEnd::Reset {
                        self.wire.reset();
                    }
                    return Poll::Ready(Some(Err(StreamAborted)));
                }
            }
        }
    }

    /// Converts progress into events.
    fn accept(&mut self, progress: TokenProgress) {
        let at = progress.at;
        if !std::mem::replace(&mut self.opened, true) {
            for choice in 0..u32::try_from(self.tally.sent.len()).unwrap_or(0) {
                let usage = self.continuous(choice);
                if let Some(role) = self.writer.role(choice, usage) {
                    self.enqueue(role, 0, at);
                }
            }
        }
        let piece = self.tally.book(&progress);
        let delta = self.writer.delta(piece, self.continuous(piece.choice));
        self.enqueue(delta, piece.upto - piece.from, at);
        if self.tally.complete() {
            self.run.ended();
        }
        if self.is_cut_due() {
            self.cut_stream(at);
        } else if self.tally.complete() {
            if self.manner.include_usage {
                let timing = self.tally.timing().filter(|_| self.manner.metrics);
                let usage = self.writer.usage(self.tally.usage(), timing);
                self.enqueue(usage, 0, at);
            }
            self.enqueue(DONE, 0, at);
            self.end = Some(StreamEnd::Clean);
        }
    }

    fn enqueue(&mut self, bytes: Bytes, tokens: u32, planned: Stamp) {
        self.ready.push_back(ReadyChunk { bytes, tokens, planned });
    }

    fn continuous(&self, choice: u32) -> Option<ReplyUsage> {
        self.manner.continuous_usage.then(|| self.tally.usage_of(choice))
    }

    fn is_cut_due(&self) -> bool {
        self.manner.cut.is_some_and(|cut| self.tally.tokens() >= u64::from(cut.after))
    }

    /// Ends the stream as its fault demands.
    fn cut_stream(&mut self, at: Stamp) {
        self.end = match self.manner.cut.map(|cut| cut.kind) {
            Some(CutKind::Error) => {
                self.run.abort(EngineFinish::Error);
                self.enqueue(EventWriter::error(&ApiError::injected()), 0, at);
                self.enqueue(DONE, 0, at);
                Some(StreamEnd::Clean)
            }
            Some(CutKind::Reset) => Some(StreamEnd::Reset),
            Some(CutKind::Close) | None => Some(StreamEnd::Cut),
        };
    }
}
