//! vllm-vcr's recordings: JSON Lines after a `meta` line, milliseconds, every gap between tokens, chained ids of full
//! blocks; rows are in completion order.

use std::io::Write as _;

use serde::Serialize;

use super::super::blocks::{BlockRehasher, BlockRule, mooncake_scheme};
use super::super::entry_fields::EntryFields;
use super::super::json::{NestedRow, parse, row};
use super::super::json_values::{LenientNumber, TextSize};
use super::super::{Error, Trace, TraceProblem};
use super::required_lengths::RequiredLengths;
use super::{
    ConversionLosses, FormatWriter, InputSource, ReadOptions, ScaledTime, TraceFormat, TraceOutput, WriteError,
    has_keys, nanos, rows, stream,
};
use crate::measure::dialect::finish_reason;
use crate::measure::record::FinishReason;
use crate::measure::time::Gap;
use crate::measure::timeline::TokenEvent;
use crate::trace_file::gaps;
use crate::trace_file::header::{BlockScheme, LastBlock, TraceHeader};
use crate::trace_file::row::{PromptShape, TraceEntry};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "vllm-vcr",
    aliases: &["vcr"],
    about: "vllm-vcr recordings: JSON Lines, every gap between tokens, ids of full blocks",
    time_unit: "milliseconds",
    detected_by: "a first row `meta`, or rows with `ttft_ms`",
    keys: &["prompt_tokens", "output_tokens", "ttft_ms", "arrival_ms"],
    detect: |source| has_keys(source, &["meta"], &[]) || has_keys(source, &["prompt_tokens", "ttft_ms"], &[]),
    read: Some(read),
    write: Some(write),
    unsupported_reason: "",
    fields: EntryFields::MODEL
        .union(EntryFields::PROMPT_TOKENS)
        .union(EntryFields::CACHED)
        .union(EntryFields::BLOCKS)
        .union(EntryFields::OUTPUT)
        .union(EntryFields::FIRST_TOKEN)
        .union(EntryFields::FIRST_TOKENS)
        .union(EntryFields::GAPS)
        .union(EntryFields::IN_FLIGHT)
        .union(EntryFields::FINISH),
    has_wall_clock: false,
    delta_fields: None,
};

const BLOCK_TOKENS: u32 = 16;

row!(First { meta: NestedRow<Meta> });
row!(Meta { model: String, block_size: u32 });
row!(Row {
    meta: NestedRow<Meta>,
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    ttft_ms: LenientNumber,
    itl_ms: Vec<f64>,
    itl_tokens: Vec<u32>,
    concurrency: u32,
    arrival_ms: LenientNumber,
    block_hashes: Vec<u64>,
    finish_reason: String,
    output_token_ids: TextSize,
});

fn read(source: InputSource, options: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = ConversionLosses::default();
    let first: Option<First> =
        stream.sample_lines().next().and_then(|line| parse(line, &ConversionLosses::default()).ok());
    let meta = first.and_then(|first| first.meta).map(|NestedRow(meta)| meta).unwrap_or_default();
    let mut header = TraceHeader::new(FORMAT.name);
    let size = meta.block_size.or(options.block_size).unwrap_or(BLOCK_TOKENS);
    header.blocks = Some(BlockScheme { last: LastBlock::Dropped, ..mooncake_scheme(size) });
    let (model, counted) = (meta.model, losses.clone());
    let entries = rows(stream.lines(), move |line| {
        let row: Row = parse(line, &counted)?;
        if row.meta.is_some() {
            return Ok(None);
        }
        if row.output_token_ids.is_some() {
            counted.count("output_token_ids");
        }
        let at = row.arrival_ms.map(|at| nanos("arrival_ms", at, 1e6)).transpose()?;
        if at.is_none() {
            counted.count("rows without a time, taken to come at 0");
        }
        let first = row.ttft_ms.map(|at| nanos("ttft_ms", at, 1e6)).transpose()?;
        let mut entry = TraceEntry {
            at: at.unwrap_or(0),
            model: model.clone(),
            finish: row.finish_reason.as_deref().and_then(finish_reason),
            output_tokens: row.output_tokens,
            in_flight: row.concurrency.map(|all| all.saturating_sub(1)),
            prompt: PromptShape {
                tokens: Some(row.prompt_tokens.ok_or_else(|| TraceProblem::missing("prompt_tokens"))?),
                cached: row.cached_tokens,
                blocks: row.block_hashes.unwrap_or_default(),
                ..PromptShape::default()
            },
            ..TraceEntry::default()
        };
        entry.timing.first_token = first;
        if let Some(gaps) = row.itl_ms {
            set_gaps(&mut entry, &gaps, row.itl_tokens.as_deref())?;
        }
        Ok(Some(entry))
    });
    Ok(Trace { header, entries, losses })
}

/// Packs the gaps. The first event's tokens are those that no gap accounts for.
fn set_gaps(entry: &mut TraceEntry, millis: &[f64], tokens: Option<&[u32]>) -> Result<(), TraceProblem> {
    let later: u64 = tokens.map_or(millis.len() as u64, |tokens| tokens.iter().map(|n| u64::from(*n)).sum());
    if tokens.is_some_and(|tokens| tokens.len() != millis.len()) {
        return Err(TraceProblem::in_field("itl_tokens", "expected as many as there are gaps in itl_ms"));
    }
    let first = entry.output_tokens.and_then(|all| all.checked_sub(later)).and_then(|n| u32::try_from(n).ok());
    let mut list = Vec::with_capacity(millis.len());
    for (at, millis) in millis.iter().enumerate() {
        let tokens = tokens.map_or(1, |tokens| tokens[at]);
        list.push(TokenEvent::new(Gap::from_nanos(nanos("itl_ms", LenientNumber(*millis), 1e6)?), Some(tokens)));
    }
    let sum = list.iter().fold(0_u64, |sum, event| sum.saturating_add(event.gap().as_nanos()));
    entry.timing.first_tokens = first;
    entry.timing.ended = entry.timing.first_token.map(|first| first.saturating_add(sum));
    entry.timing.gaps = Some(gaps::pack(&list));
    Ok(())
}

#[derive(Serialize)]
struct VcrLine {
    prompt_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u64>,
    output_tokens: u64,
    ttft_ms: ScaledTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    itl_ms: Option<Vec<ScaledTime>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    itl_tokens: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    arrival_ms: ScaledTime,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    block_hashes: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct VcrMetaLine {
    meta: VcrMeta,
}

#[derive(Serialize)]
struct VcrMeta {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<u32>,
}

struct VcrWriter {
    out: TraceOutput,
    blocks: Option<BlockRehasher>,
    notes: Vec<String>,
    model: Option<Option<String>>,
    other_model_requests: u64,
    lengths: RequiredLengths,
}

fn write(header: &TraceHeader, out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
    let rule = BlockRule { size: None, last: LastBlock::Dropped };
    let mut notes =
        vec!["rows stand in the order of the trace, where vllm-vcr has that in which requests ended".to_owned()];
    let blocks = BlockRehasher::new_or_note(header.blocks.as_ref(), rule, &mut notes);
    Ok(Box::new(VcrWriter {
        out,
        blocks,
        notes,
        model: None,
        other_model_requests: 0,
        lengths: RequiredLengths::default(),
    }))
}

impl VcrWriter {
    /// A recording has one model: that of the first request.
    fn write_meta(&mut self, entry: Option<&TraceEntry>) -> Result<(), WriteError> {
        if self.model.is_some() {
            return Ok(());
        }
        let model = entry.and_then(|entry| entry.model.clone());
        self.model = Some(model.clone());
        let block_size = self.blocks.as_ref().map(|blocks| blocks.to.size);
        super::write_line(&mut self.out, &VcrMetaLine { meta: VcrMeta { model, source: "streamgauge", block_size } })
    }
}

impl FormatWriter for VcrWriter {
    fn write(&mut self, entry: &TraceEntry) -> Result<(), WriteError> {
        let output =
            entry.output_tokens.ok_or(WriteError::Unrepresentable("requests without an output length, left out"))?;
        let first =
            entry.timing.first_token.ok_or(WriteError::Unrepresentable("requests without a first token, left out"))?;
        let gaps = match &entry.timing.gaps {
            Some(gaps) => {
                Some(gaps::unpack(gaps).map_err(|_| WriteError::Unrepresentable("gaps that cannot be read"))?)
            }
            None if output > 1 => {
                return Err(WriteError::Unrepresentable("requests without the gaps of their tokens, left out"));
            }
            None => None,
        };
        let tokens = self.lengths.input(entry)?;
        self.write_meta(Some(entry))?;
        self.other_model_requests += u64::from(self.model.as_ref() != Some(&entry.model));
        let all_known = |gaps: &Vec<TokenEvent>| gaps.iter().all(|event| event.tokens().is_some());
        let line = VcrLine {
            prompt_tokens: tokens,
            cached_tokens: entry.prompt.cached,
            output_tokens: output,
            ttft_ms: ScaledTime::millis(first),
            itl_tokens: gaps
                .as_ref()
                .filter(|gaps| all_known(gaps))
                .map(|gaps| gaps.iter().map(|event| event.tokens().unwrap_or(1)).collect()),
            itl_ms: gaps.map(|gaps| gaps.iter().map(|event| ScaledTime::millis(event.gap().as_nanos())).collect()),
            concurrency: entry.in_flight.map(|others| others.saturating_add(1)),
            arrival_ms: ScaledTime::millis(entry.at),
            block_hashes: self.blocks.as_mut().map(|blocks| blocks.ids(entry, tokens)).unwrap_or_default(),
            finish_reason: entry.finish.map(|finish| match finish {
                FinishReason::Length | FinishReason::Abort | FinishReason::Error => finish.name(),
                _ => FinishReason::Stop.name(),
            }),
        };
        super::write_line(&mut self.out, &line)
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.write_meta(None)?;
        self.out.flush()?;
        self.notes.extend(self.lengths.notes());
        if self.other_model_requests > 0 {
            self.notes.push(format!(
                "{} requests are of another model than the first: a recording has one",
                self.other_model_requests
            ));
        }
        Ok(self.notes)
    }
}
