//! Fields of a reply that is one JSON document.

use super::{ChoiceCounters, Delta, DeltaSink, RequestShape, believed, finish_reason};
use crate::measure::json_scanner::Scalar;
use crate::measure::usage::{FinishReason, Usage};

/// Meaning of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyField {
    /// Id of the reply.
    Id,
    /// Model that the reply names.
    Model,
    /// Finish reason of a choice; the choice is the element index of the outermost array.
    Finish,
    /// Status of the whole reply, which may be a finish reason.
    Status,
    /// Prompt tokens; several fields are added.
    Input,
    /// Prompt tokens, used only if no [`Input`](Self::Input) field occurs.
    InputElse,
    /// Cached prompt tokens. Of several fields the first counts; list elements are added.
    Cached,
    /// Cached prompt tokens that [`Input`](Self::Input) excludes.
    CachedBeside,
    /// Prompt tokens written to a cache.
    CacheWrite,
    /// Prompt tokens written to a cache that [`Input`](Self::Input) excludes.
    CacheWriteBeside,
    /// Output tokens; several fields are added.
    Output,
    /// Output tokens of a choice from the server's running counter.
    Total,
    /// One generated token id.
    Token,
    /// Reasoning tokens. Of several fields the first counts; list elements are added.
    Reasoning,
    /// Reasoning tokens that [`Output`](Self::Output) excludes.
    ReasoningBeside,
    /// Message of an error; its presence makes the reply an error.
    Error,
    /// Message of an error, ignored in any other reply.
    Message,
    /// Class of an error, ignored in any other reply.
    Kind,
    /// Code of an error, ignored in any other reply.
    Code,
    /// Class of an error; its presence makes the reply an error.
    ErrorKind,
    /// Code of an error; its presence makes the reply an error.
    ErrorCode,
    /// The value `error` makes the reply an error.
    Mark,
}

/// Accumulates the fields of one document.
#[derive(Debug, Default)]
pub(in crate::measure) struct ReplyDocument {
    /// Answers per prompt (`n`). Entries of a list share their prompt's tokens.
    answers: Option<u64>,
    usage: Usage,
    /// List element of the latest cached-token count, and of the latest reasoning count.
    cached_of: Option<u32>,
    reasoning_of: Option<u32>,
    input_else: Option<u64>,
    /// Generated ids.
    listed: u64,
    failed: bool,
    message: Option<String>,
    kind: Option<String>,
    code: Option<String>,
}

impl ReplyDocument {
    pub(in crate::measure) fn new(shape: &RequestShape) -> Self {
        Self { answers: shape.choices, ..Self::default() }
    }

    /// Takes the field at `path`; `index` is the element of the outermost array.
    pub(in crate::measure) fn scalar(
        &mut self,
        field: ReplyField,
        index: u32,
        scalar: Scalar<'_>,
        sink: &mut dyn DeltaSink,
    ) {
        // Error texts stay escaped; the consumer unescapes them.
        let text = || match scalar {
            Scalar::Number(number) => Some(number.to_owned()),
            Scalar::String(raw) => Some(String::from_utf8_lossy(raw).into_owned()),
            Scalar::Bool(_) | Scalar::Null => None,
        };
        let number = believed(scalar.as_u64());
        let of_prompt = number.filter(|_| u64::from(index) % self.answers.unwrap_or(1).max(1) == 0);
        let usage = &mut self.usage;
        match field {
            ReplyField::Id | ReplyField::Model => {
                if let Some(text) = scalar.to_text() {
                    sink.delta(0, if field == ReplyField::Id { Delta::Id(&text) } else { Delta::Model(&text) });
                }
            }
            ReplyField::Finish | ReplyField::Status => {
                let raw = scalar.to_text().unwrap_or_default();
                match finish_reason(&raw) {
                    None => {}
                    // Another field reports the status's other values.
                    Some(FinishReason::Other) if field == ReplyField::Status => self.failed |= raw == "failed",
                    Some(reason) => sink.delta(index, Delta::Finish(reason, &raw)),
                }
            }
            ReplyField::Input => usage.input = sum(usage.input, of_prompt),
            ReplyField::InputElse => self.input_else = self.input_else.or(number),
            ReplyField::Cached => first_of(&mut self.cached_of, index, &mut usage.cached, of_prompt),
            ReplyField::Total => number.into_iter().for_each(|total| sink.delta(index, Delta::Total(total))),
            ReplyField::Token => self.listed += 1,
            ReplyField::CachedBeside => {
                (usage.cached, usage.input) = (usage.cached.or(number), sum(usage.input, number))
            }
            ReplyField::CacheWrite => usage.cache_write = usage.cache_write.or(number),
            ReplyField::CacheWriteBeside => {
                (usage.cache_write, usage.input) = (usage.cache_write.or(number), sum(usage.input, number));
            }
            ReplyField::Output => usage.output = sum(usage.output, number),
            ReplyField::Reasoning => first_of(&mut self.reasoning_of, index, &mut usage.reasoning, number),
            ReplyField::ReasoningBeside => {
                (usage.reasoning, usage.output) = (usage.reasoning.or(number), sum(usage.output, number));
            }
            ReplyField::Error if scalar == Scalar::Null => {}
            ReplyField::Error => (self.failed, self.message) = (true, text()),
            ReplyField::Message => self.message = self.message.take().or_else(text),
            ReplyField::ErrorKind | ReplyField::ErrorCode if scalar == Scalar::Null => {}
            ReplyField::ErrorKind => (self.failed, self.kind) = (true, self.kind.take().or_else(text)),
            ReplyField::ErrorCode => {
                self.failed = true;
                self.scalar(ReplyField::Code, index, scalar, sink);
            }
            ReplyField::Kind => self.kind = self.kind.take().or_else(text),
            ReplyField::Code if matches!(scalar, Scalar::String(_)) => {
                self.code = self.code.take().or_else(|| Some(format!("\"{}\"", text()?)));
            }
            ReplyField::Code => self.code = self.code.take().or_else(text),
            ReplyField::Mark => self.failed |= scalar == Scalar::String(b"error"),
        }
    }

    pub(in crate::measure) fn listed(&self) -> u64 {
        self.listed
    }

    /// Reports the document's counts and errors at its end.
    pub(in crate::measure) fn end(&self, sink: &mut dyn DeltaSink) {
        let Usage { input, output, .. } = self.usage;
        let usage = Usage { input: believed(input.or(self.input_else)), output: believed(output), ..self.usage };
        if is_report(&usage) {
            sink.delta(0, Delta::Usage(usage));
        }
        if self.failed {
            let (message, kind, code) = (self.message.as_deref(), self.kind.as_deref(), self.code.as_deref());
            sink.delta(0, Delta::Fault { message, kind, code });
        }
    }
}

/// Adds up counts that a stream reports per choice, using the latest value of each. Answers to one prompt share its
/// prompt tokens.
#[derive(Debug)]
pub(super) struct PerChoiceCounts {
    /// Answers per prompt.
    answers: u32,
    input: ChoiceCounters,
    cached: ChoiceCounters,
    output: ChoiceCounters,
    reasoning: ChoiceCounters,
}

impl PerChoiceCounts {
    pub(super) fn new(shape: &RequestShape) -> Self {
        let answers = shape.choices.and_then(|n| u32::try_from(n).ok()).unwrap_or(1).max(1);
        let counters = ChoiceCounters::default;
        Self { answers, input: counters(), cached: counters(), output: counters(), reasoning: counters() }
    }

    pub(super) fn know_prompt(&self, choice: u32) -> bool {
        self.input.get(choice / self.answers) > 0
    }

    /// Stores the counts of one choice and returns the counts of the whole reply. Counts that this choice does not
    /// report are omitted.
    pub(super) fn add(&mut self, choice: u32, own: Usage) -> Usage {
        let prompt = choice / self.answers;
        let total = |counters: &mut ChoiceCounters, of, count: Option<u64>| {
            count.map(|count| {
                counters.set(of, count);
                counters.sum()
            })
        };
        Usage {
            input: total(&mut self.input, prompt, own.input),
            cached: total(&mut self.cached, prompt, own.cached),
            // No server with counts per choice reports it.
            cache_write: None,
            output: total(&mut self.output, choice, own.output),
            reasoning: total(&mut self.reasoning, choice, own.reasoning),
        }
    }
}

/// Adds an element's count, unless the element already has one.
fn first_of(of: &mut Option<u32>, element: u32, total: &mut Option<u64>, count: Option<u64>) {
    if count.is_some() && *of != Some(element) {
        (*of, *total) = (Some(element), sum(*total, count));
    }
}

/// True if the usage has a non-zero count: some servers put zeros on every event.
pub(super) fn is_report(usage: &Usage) -> bool {
    usage.input.unwrap_or(0) > 0 || usage.output.unwrap_or(0) > 0
}

/// Adds two optional counts; `None` if both are absent.
pub(super) fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    }
}
