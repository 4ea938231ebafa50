//! A reply that is one JSON document: what its fields tell, by where they stand.

use super::{Delta, Sink, believed, finish_reason};
use crate::measure::record::{FinishReason, Usage};
use crate::measure::scan::Scalar;

/// What one field tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The reply's id.
    Id,
    /// The model.
    Model,
    /// Why a choice is finished; the choice is the element of the outermost array.
    Finish,
    /// The state of the whole reply, which may be such a reason.
    Status,
    /// Prompt tokens; several fields add up.
    Input,
    /// Prompt tokens, where no [`Input`](Self::Input) tells.
    InputElse,
    /// Prompt tokens from a cache; the first of several fields counts.
    Cached,
    /// Prompt tokens from a cache that [`Input`](Self::Input) leaves out.
    CachedBeside,
    /// Output tokens; several fields add up.
    Output,
    /// Output tokens that were reasoning; the first of several fields counts.
    Reasoning,
    /// Reasoning that [`Output`](Self::Output) leaves out.
    ReasoningBeside,
    /// An error's message: with it the reply is an error.
    Error,
    /// A message, if the reply is an error.
    Message,
    /// The class of an error.
    Kind,
    /// The code of an error.
    Code,
    /// The reply is an error if this says `error`.
    Mark,
}

/// One document.
#[derive(Debug, Default)]
pub(in crate::measure) struct Document {
    usage: Usage,
    input_else: Option<u64>,
    failed: bool,
    message: Option<String>,
    kind: Option<String>,
    code: Option<String>,
}

impl Document {
    /// The field at `path`; `index` is the element of the outermost array.
    pub(in crate::measure) fn scalar(&mut self, field: Field, index: u32, scalar: Scalar<'_>, sink: &mut dyn Sink) {
        let text = || match scalar {
            Scalar::Number(number) => Some(number.to_owned()),
            scalar => scalar.to_text(),
        };
        let number = believed(scalar.as_u64());
        let usage = &mut self.usage;
        match field {
            Field::Id | Field::Model => {
                if let Some(text) = scalar.to_text() {
                    sink.delta(0, if field == Field::Id { Delta::Id(&text) } else { Delta::Model(&text) });
                }
            }
            Field::Finish | Field::Status => {
                let raw = scalar.to_text().unwrap_or_default();
                match finish_reason(&raw) {
                    None => {}
                    // What a state says beside that is told by another field.
                    Some(FinishReason::Other) if field == Field::Status => self.failed |= raw == "failed",
                    Some(reason) => sink.delta(index, Delta::Finish(reason, &raw)),
                }
            }
            Field::Input => usage.input = sum(usage.input, number),
            Field::InputElse => self.input_else = self.input_else.or(number),
            Field::Cached => usage.cached = usage.cached.or(number),
            Field::CachedBeside => (usage.cached, usage.input) = (usage.cached.or(number), sum(usage.input, number)),
            Field::Output => usage.output = sum(usage.output, number),
            Field::Reasoning => usage.reasoning = usage.reasoning.or(number),
            Field::ReasoningBeside => {
                (usage.reasoning, usage.output) = (usage.reasoning.or(number), sum(usage.output, number));
            }
            Field::Error if scalar == Scalar::Null => {}
            Field::Error => (self.failed, self.message) = (true, text()),
            Field::Message => self.message = self.message.take().or_else(text),
            Field::Kind => self.kind = self.kind.take().or_else(text),
            Field::Code => self.code = self.code.take().or_else(text),
            Field::Mark => self.failed |= scalar == Scalar::String(b"error"),
        }
    }

    /// The document has ended.
    pub(in crate::measure) fn end(&self, sink: &mut dyn Sink) {
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

/// Whether usage says anything: some servers put zeros on every event.
pub(super) fn is_report(usage: &Usage) -> bool {
    usage.input.unwrap_or(0) > 0 || usage.output.unwrap_or(0) > 0
}

/// Two counts together, where there are any.
pub(super) fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    }
}
