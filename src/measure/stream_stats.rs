//! Statistics of one reply, accumulated over its events.

use std::sync::Arc;

use smallvec::SmallVec;

use super::dialect::{
    ChoiceCounters, Delta, DeltaSink, Dialect, DialectReader, OutputKind, ReplyDocument, ReplyField, TokenIncrement,
};
use super::event_observer::EventObserver;
use super::framing::Event;
use super::json_scanner::Scalar;
use super::record::{Choice, CountSource, Fault, TokenCount, Usage};
use super::string_cache::shared;
use super::time::{Gap, Stamp};

/// Choices with separate statistics; further choices count only in the totals.
const MAX_CHOICES: usize = 128;
/// Longest stored names, in bytes.
const MAX_RAW_FINISH: usize = 32;
const MAX_ID: usize = 64;
const MAX_MODEL: usize = 256;

/// Effect of one event on the times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EventEffect {
    /// It has text other than reasoning.
    pub(super) output: bool,
    /// It has reasoning text.
    pub(super) reasoning: bool,
    /// It proves a token.
    pub(super) evidence: bool,
    /// Its token count, if known.
    pub(super) tokens: Option<u32>,
}

impl EventEffect {
    /// True if the event has generated text of any kind.
    pub(super) fn is_token(self) -> bool {
        self.output || self.reasoning
    }
}

#[derive(Debug, Default)]
pub(super) struct StreamStats {
    pub(super) events: u64,
    pub(super) comments: u64,
    pub(super) token_events: u64,
    pub(super) evidence_events: u64,
    pub(super) first_event_tokens: Option<u32>,
    pub(super) usage: Usage,
    pub(super) prefill: Option<Gap>,
    pub(super) choices: SmallVec<[Choice; 1]>,
    pub(super) fault: Option<Fault>,
    pub(super) response_id: Option<Box<str>>,
    pub(super) response_model: Option<Arc<str>>,
    /// The dialect's terminal event has arrived.
    pub(super) terminated: bool,
    pub(super) malformed: u32,
    /// The dialect, if the events identified it.
    pub(super) recognized: Option<&'static Dialect>,
    /// Total entries of per-token lists.
    listed: u64,
    /// Running counter per choice.
    running: ChoiceCounters,
}

impl StreamStats {
    /// Processes one event of a stream.
    pub(super) fn event(
        &mut self,
        event: &Event<'_>,
        at: Stamp,
        reader: &mut dyn DialectReader,
        watch: &mut impl EventObserver,
    ) -> EventEffect {
        watch.event(self.events, event);
        let mut fold = EventSink { tally: self, watch, at, meaning: EventEffect::default() };
        reader.event(event, &mut fold);
        let meaning = fold.meaning;
        self.events += 1;
        self.evidence_events += u64::from(meaning.evidence);
        if meaning.is_token() {
            if self.token_events == 0 {
                self.first_event_tokens = meaning.tokens;
            }
            self.token_events += 1;
        }
        meaning
    }

    /// Processes a scalar of a reply in one document.
    pub(super) fn scalar(
        &mut self,
        document: &mut ReplyDocument,
        field: ReplyField,
        index: u32,
        scalar: Scalar<'_>,
        watch: &mut impl EventObserver,
    ) {
        let mut fold = EventSink { tally: self, watch, at: Stamp::default(), meaning: EventEffect::default() };
        document.scalar(field, index, scalar, &mut fold);
    }

    /// Processes the end of a document, which counts as the reply's only event.
    pub(super) fn document(&mut self, document: &ReplyDocument, watch: &mut impl EventObserver) {
        let mut fold = EventSink { tally: self, watch, at: Stamp::default(), meaning: EventEffect::default() };
        document.end(&mut fold);
        self.listed += document.listed();
        self.events = 1;
    }

    /// True if the reply is finished. It then had a terminal event, or a finish reason for every choice and at least as
    /// many choices as requested.
    pub(super) fn is_finished(&self, requested: Option<u64>) -> bool {
        let least =
            requested.map_or(1, |requested| usize::try_from(requested).unwrap_or(MAX_CHOICES).clamp(1, MAX_CHOICES));
        let finished = || self.choices.iter().all(|choice| choice.finish.is_some());
        self.terminated || self.choices.len() >= least && finished()
    }

    /// Output tokens from the best available source.
    pub(super) fn output_tokens(&self) -> Option<TokenCount> {
        let running = self.running.sum();
        let (tokens, source) = match self.usage.output {
            Some(tokens) => (tokens, CountSource::Usage),
            None if running > 0 => (running, CountSource::ContinuousUsage),
            None if self.listed > 0 => (self.listed, CountSource::Ids),
            None if self.evidence_events > 0 => (self.evidence_events, CountSource::Chunks),
            None => return None,
        };
        Some(TokenCount { tokens, source })
    }

    fn choice(&mut self, index: u32) -> Option<&mut Choice> {
        let at = match self.choices.iter().position(|choice| choice.index == index) {
            Some(at) => at,
            None if self.choices.len() < MAX_CHOICES => {
                self.choices.push(Choice { index, first: None, last: None, token_events: 0, finish: None });
                self.choices.len() - 1
            }
            None => return None,
        };
        self.choices.get_mut(at)
    }

    fn token(&mut self, index: u32, at: Stamp) {
        if let Some(choice) = self.choice(index) {
            choice.first.get_or_insert(at);
            choice.last = Some(at);
            choice.token_events = choice.token_events.saturating_add(1);
        }
    }

    fn usage(&mut self, report: Usage) {
        let before = self.usage;
        self.usage = Usage {
            input: report.input.or(before.input),
            cached: report.cached.or(before.cached),
            cache_write: report.cache_write.or(before.cache_write),
            output: report.output.or(before.output),
            reasoning: report.reasoning.or(before.reasoning),
        };
    }
}

/// Applies the meanings of one event.
struct EventSink<'a, W> {
    tally: &'a mut StreamStats,
    watch: &'a mut W,
    at: Stamp,
    meaning: EventEffect,
}

impl<W> EventSink<'_, W> {
    fn count(&mut self, tokens: Option<TokenIncrement>) {
        let Some(TokenIncrement { tokens, source }) = tokens else { return };
        self.meaning.tokens = Some(self.meaning.tokens.unwrap_or(0).saturating_add(tokens));
        if source == CountSource::Ids {
            self.tally.listed += u64::from(tokens);
        }
    }
}

impl<W: EventObserver> DeltaSink for EventSink<'_, W> {
    fn delta(&mut self, choice: u32, delta: Delta<'_>) {
        self.watch.delta(choice, &delta);
        match delta {
            Delta::Output { kind, tokens } => {
                self.meaning.evidence = true;
                match kind {
                    OutputKind::Reasoning => self.meaning.reasoning = true,
                    _ => self.meaning.output = true,
                }
                self.count(tokens);
                self.tally.token(choice, self.at);
            }
            Delta::Evidence { tokens } => {
                self.meaning.evidence = true;
                self.count(tokens);
            }
            Delta::NoToken => self.meaning.tokens = self.meaning.tokens.or(Some(0)),
            Delta::Total(total) => {
                self.tally.running.set(choice, total);
            }
            Delta::Usage(report) => self.tally.usage(report),
            Delta::Prefill(prefill) => self.tally.prefill = Some(prefill),
            Delta::Finish(reason, raw) => {
                if let Some(choice) = self.tally.choice(choice) {
                    // Most servers use the common vocabulary's own word, which needs no copy.
                    let raw = match reason.name() {
                        name if name == raw => name.into(),
                        _ => cut(raw, MAX_RAW_FINISH).to_owned().into(),
                    };
                    choice.finish = Some((reason, raw));
                }
            }
            Delta::Fault { kind, .. } => {
                let event = self.tally.events;
                let kind = kind.filter(|kind| is_name(kind)).map(|kind| cut(kind, MAX_ID).into());
                self.tally.fault.get_or_insert(Fault { event, kind });
            }
            Delta::Id(id) => self.tally.response_id = Some(cut(id, MAX_ID).into()),
            Delta::Model(model) => self.tally.response_model = Some(shared(cut(model, MAX_MODEL))),
            Delta::Dialect(dialect) => self.tally.recognized = Some(dialect),
            Delta::Done => self.tally.terminated = true,
            Delta::Malformed => self.tally.malformed = self.tally.malformed.saturating_add(1),
        }
    }
}

/// True if the server's text is an identifier and not a sentence.
fn is_name(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}
