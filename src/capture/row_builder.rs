//! Builds a row from a request's record and digest. Pure.

use std::borrow::Cow;

use super::key::hex;
use super::message::{CaptureHandle, MAX_STREAM_GAPS};
use super::model_names::ModelNames;
use super::request_digest::RequestDigest;
use super::sessions::SessionTurn;
use crate::measure::record::{CountSource, RequestRecord};
use crate::measure::time::{Gap, Stamp};
use crate::measure::timeline::TokenEvent;
use crate::trace_file::gaps::pack;
use crate::trace_file::header::BlockUnit;
use crate::trace_file::response_fields::response_fields;
use crate::trace_file::row::{BYTES_PER_TOKEN, PromptShape, RequestParams, SloLimits, Timing, TraceEntry};

#[derive(Clone, Copy)]
pub(super) struct RowRounding {
    /// Times are rounded to multiples of this; zero disables all rounding.
    time: Gap,
    /// Multiples for prompt bytes and prompt tokens.
    bytes: u64,
    tokens: u64,
}

impl RowRounding {
    /// Rounds lengths to blocks of `block` units.
    pub(super) fn new(time: Gap, unit: BlockUnit, block: usize) -> Self {
        let block = (block as u64).max(1);
        let (bytes, tokens) = match unit {
            BlockUnit::Bytes => (block, (block / BYTES_PER_TOKEN).max(1)),
            BlockUnit::Tokens => (block * BYTES_PER_TOKEN, block),
        };
        Self { time, bytes, tokens }
    }

    fn nanos(self, nanos: u64) -> u64 {
        match self.time.as_nanos() {
            0 => nanos,
            step => nanos.saturating_add(step / 2) / step * step,
        }
    }

    fn since(self, later: Stamp, earlier: Stamp) -> u64 {
        self.nanos(later.as_nanos()).saturating_sub(self.nanos(earlier.as_nanos()))
    }

    /// Rounds down to whole blocks, but at least to one, so that the number of ids still matches.
    fn length(self, length: u64, block: u64) -> u64 {
        match length {
            0 => 0,
            exact if self.time == Gap::ZERO => exact,
            length => (length / block * block).max(block),
        }
    }

    /// Caches serve only whole blocks.
    fn cached(self, tokens: u64) -> u64 {
        if self.time == Gap::ZERO { tokens } else { tokens / self.tokens * self.tokens }
    }

    fn gaps(self, events: &[TokenEvent]) -> Cow<'_, [TokenEvent]> {
        if self.time == Gap::ZERO {
            return events.into();
        }
        let (mut offset, mut before) = (0_u64, 0);
        let rounded = |event: &TokenEvent| {
            offset = offset.saturating_add(event.gap().as_nanos());
            let at = self.nanos(offset);
            TokenEvent::new(Gap::from_nanos(at - std::mem::replace(&mut before, at)), event.tokens())
        };
        events.iter().map(rounded).collect()
    }
}

/// Builds the row of one request, with times relative to `zero`. Apart from the model name, it copies no text written
/// by a person or a model.
pub(super) fn build_row(
    following: &mut CaptureHandle,
    record: &RequestRecord,
    digest: RequestDigest,
    turn: Option<SessionTurn>,
    names: &mut ModelNames,
    rounding: RowRounding,
    zero: Stamp,
) -> TraceEntry {
    let (shape, times) = (&record.shape, &record.times);
    let room = MAX_STREAM_GAPS.saturating_sub(following.gaps.len()).min(record.gaps.len());
    let lost = following.lost_gaps + (record.gaps.len() - room) as u64 + u64::from(record.quality.lost_gaps);
    // Most streams have no gaps drained before the end.
    let gaps = if following.gaps.is_empty() {
        &record.gaps[..room]
    } else {
        following.gaps.extend_from_slice(&record.gaps[..room]);
        &following.gaps[..]
    };
    let arrived = times.received;
    let success = matches!(record.status, Some(200..=299));
    let digested = digest.prompt.unwrap_or_default();
    let by_usage = record.usage.input.map(|tokens| (tokens, CountSource::Usage));
    let tokens = by_usage.or(digested.tokens.map(|tokens| (tokens, CountSource::Tokenizer)));
    let response = response_fields(record, |at| rounding.since(at, arrived));
    TraceEntry {
        at: rounding.since(arrived, zero),
        planned: times.intended.map(|at| rounding.since(at, zero)),
        model: shape.model.as_deref().map(|model| names.resolve(model, success)),
        // Most dialects use a default if the request does not specify it.
        stream: shape.stream.or(success.then_some(record.streamed)),
        params: RequestParams {
            max_tokens: shape.max_tokens,
            min_tokens: digest.extras.min_tokens,
            n: shape.choices,
            temperature: shape.temperature,
            ignore_eos: digest.extras.ignore_eos,
            logprobs: digest.extras.logprobs,
            tools: digest.extras.tools,
            structured: digest.extras.structured,
        },
        prompt: PromptShape {
            bytes: (digested.bytes > 0).then(|| rounding.length(digested.bytes, rounding.bytes)),
            tokens: tokens.map(|(tokens, _)| rounding.length(tokens, rounding.tokens)),
            source: tokens.map(|(_, source)| source),
            cached: record.usage.cached.map(|cached| rounding.cached(cached)),
            blocks: digested.blocks,
            parts: digested.parts,
        },
        session: turn.map(|turn| hex(turn.session)),
        turn: turn.map(|turn| turn.turn),
        think: turn.and_then(|turn| turn.think).map(|think| rounding.nanos(think.as_nanos())),
        in_flight: Some(following.in_flight),
        class: shape.classes.clone(),
        slo: SloLimits::of(shape.slo),
        upstream: shape.server.as_ref().map(|(host, port)| [host, ":", itoa::Buffer::new().format(*port)].concat()),
        timing: Timing {
            gaps: (!gaps.is_empty()).then(|| pack(&rounding.gaps(gaps))),
            lost_gaps: (lost > 0).then_some(lost),
            ..response.timing
        },
        ..response
    }
}
