//! From what is known of one request to its row. Pure.

use std::sync::Arc;

use super::digest::Digested;
use super::format::{BYTES_PER_TOKEN, BlockUnit, Entry, Params, Prompt, Timing, Wanted};
use super::gaps;
use super::key::hex;
use super::names::Names;
use super::sessions::Turn;
use crate::measure::dialect::Dialect;
use crate::measure::dialect::prompt::Extras;
use crate::measure::record::{CountSource, Ending, FinishReason, Outcome, RequestRecord, Times, TokenCount, Usage};
use crate::measure::shape::RequestShape;
use crate::measure::time::{Gap, Stamp};
use crate::measure::timeline::TokenEvent;

/// What is taken from a record. Nothing of it is text that a person or a model wrote, but for the model's name.
pub(super) struct Ended {
    shape: Arc<RequestShape>,
    pub(super) times: Times,
    status: Option<u16>,
    ending: Ending,
    outcome: Outcome,
    finish: Option<FinishReason>,
    output: Option<TokenCount>,
    first_tokens: Option<u32>,
    usage: Usage,
    gaps: Vec<TokenEvent>,
    lost_gaps: u64,
    in_flight: u32,
}

impl Ended {
    /// `gaps` are those of earlier in the stream, of which `lost` were not kept.
    pub(super) fn of(record: &RequestRecord, mut gaps: Vec<TokenEvent>, lost: u64, in_flight: u32) -> Self {
        let room = super::recorder::MAX_GAPS.saturating_sub(gaps.len()).min(record.gaps.len());
        gaps.extend_from_slice(&record.gaps[..room]);
        let lost = lost + (record.gaps.len() - room) as u64 + u64::from(record.quality.lost_gaps);
        Self {
            shape: Arc::clone(&record.shape),
            times: record.times,
            status: record.status,
            ending: record.ending,
            outcome: record.outcome,
            finish: record.choices.first().and_then(|choice| choice.finish.as_ref()).map(|(reason, _)| *reason),
            output: record.output_tokens,
            first_tokens: record.first_event_tokens,
            usage: record.usage,
            gaps,
            lost_gaps: lost,
            in_flight,
        }
    }

    /// The dialect that was spoken.
    pub(super) fn dialect(&self) -> Option<&'static Dialect> {
        self.shape.dialect
    }
}

/// What was found in a request's body.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) prompt: Option<Digested>,
    pub(super) extras: Extras,
    /// The session that a field of the body names.
    pub(super) session: Option<u64>,
    /// The day of the key that ids were made with.
    pub(super) day: u64,
    /// Nobody had time to cut the prompt into blocks.
    pub(super) uncut: bool,
}

impl Asked {
    /// What was made with another day's key is nothing to this day's rows.
    pub(super) fn forget_ids(&mut self) {
        self.session = None;
        if let Some(prompt) = &mut self.prompt {
            prompt.blocks.clear();
            prompt.messages.clear();
        }
    }
}

/// Rounds what is written.
#[derive(Clone, Copy)]
pub(super) struct Rounding {
    /// Times are multiples of this; zero leaves times and lengths.
    time: Gap,
    /// Bytes and tokens of a prompt are multiples of these.
    bytes: u64,
    tokens: u64,
}

impl Rounding {
    /// Lengths are rounded to blocks of so many units.
    pub(super) fn new(time: Gap, unit: BlockUnit, block: usize) -> Self {
        let block = (block as u64).max(1);
        let (bytes, tokens) = match unit {
            BlockUnit::Bytes => (block, (block / BYTES_PER_TOKEN).max(1)),
            BlockUnit::Tokens => (block * BYTES_PER_TOKEN, block),
        };
        Self { time, bytes, tokens }
    }

    fn nanos(self, nanos: u64) -> u64 {
        let step = self.time.as_nanos().max(1);
        nanos.saturating_add(step / 2) / step * step
    }

    fn since(self, later: Stamp, earlier: Stamp) -> u64 {
        self.nanos(later.as_nanos()).saturating_sub(self.nanos(earlier.as_nanos()))
    }

    /// As many whole blocks as there are, and one where there is none: what is rounded has as many ids as before.
    fn length(self, length: u64, block: u64) -> u64 {
        match length {
            0 => 0,
            exact if self.time == Gap::ZERO => exact,
            length => (length / block * block).max(block),
        }
    }

    /// Only whole blocks come from a cache.
    fn cached(self, tokens: u64) -> u64 {
        if self.time == Gap::ZERO { tokens } else { tokens / self.tokens * self.tokens }
    }

    fn gaps(self, events: &[TokenEvent]) -> Vec<TokenEvent> {
        if self.time == Gap::ZERO {
            return events.to_vec();
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

/// The row of one request, on the line that begins at `zero`.
pub(super) fn row(
    ended: &Ended,
    asked: Asked,
    turn: Option<Turn>,
    names: &mut Names,
    rounding: Rounding,
    zero: Stamp,
) -> Entry {
    let (shape, times) = (&ended.shape, &ended.times);
    let arrived = times.received;
    let success = matches!(ended.status, Some(200..=299));
    let after = |at: Option<Stamp>| at.map(|at| rounding.since(at, arrived));
    let digested = asked.prompt.unwrap_or_default();
    let by_usage = ended.usage.input.map(|tokens| (tokens, CountSource::Usage));
    let tokens = by_usage.or(digested.tokens.map(|tokens| (tokens, CountSource::Tokenizer)));
    Entry {
        at: rounding.since(arrived, zero),
        planned: times.intended.map(|at| rounding.since(at, zero)),
        route: shape.dialect.map(|dialect| dialect.route.to_owned()),
        dialect: shape.dialect.map(|dialect| dialect.name.to_owned()),
        model: shape.model.as_deref().map(|model| names.shown(model, success)),
        stream: shape.stream,
        params: Params {
            max_tokens: shape.max_tokens,
            min_tokens: asked.extras.min_tokens,
            n: shape.choices,
            temperature: shape.temperature,
            ignore_eos: asked.extras.ignore_eos,
            logprobs: asked.extras.logprobs,
            tools: asked.extras.tools,
            structured: asked.extras.structured,
        },
        prompt: Prompt {
            bytes: (digested.bytes > 0).then(|| rounding.length(digested.bytes, rounding.bytes)),
            tokens: tokens.map(|(tokens, _)| rounding.length(tokens, rounding.tokens)),
            source: tokens.map(|(_, source)| source),
            cached: ended.usage.cached.map(|cached| rounding.cached(cached)),
            blocks: digested.blocks,
            parts: digested.parts,
        },
        session: turn.map(|turn| hex(turn.session)),
        turn: turn.map(|turn| turn.turn),
        think: turn.and_then(|turn| turn.think).map(|think| rounding.nanos(think.as_nanos())),
        status: ended.status,
        ending: Some(ended.ending),
        outcome: Some(ended.outcome),
        finish: ended.finish,
        output_tokens: ended.output.map(|count| count.tokens),
        output_source: ended.output.map(|count| count.source),
        reasoning_tokens: ended.usage.reasoning,
        timing: Timing {
            sent: after(times.sent),
            evidence: after(times.first_evidence),
            first_token: after(times.first_token),
            first_output: after(times.first_output),
            ended: after(Some(times.ended)),
            first_tokens: ended.first_tokens,
            gaps: (!ended.gaps.is_empty()).then(|| gaps::pack(&rounding.gaps(&ended.gaps))),
            lost_gaps: (ended.lost_gaps > 0).then_some(ended.lost_gaps),
        },
        abort_tokens: (ended.ending == Ending::DownstreamGone).then(|| ended.output.map_or(0, |count| count.tokens)),
        in_flight: Some(ended.in_flight),
        wanted: Wanted::default(),
        transfer: None,
        upstream: shape.server.as_ref().map(|(host, port)| [host, ":", &port.to_string()].concat()),
    }
}
