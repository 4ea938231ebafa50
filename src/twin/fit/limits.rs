//! The limits of the engine: batch, tokens per step, cache, and the order of prefill and decoding.

use std::collections::BTreeMap;

use super::decode::DecodeFit;
use super::observation::{Observation, ObservedRequest};
use super::prefill::PrefillFit;
use super::sequence_limit::sequence_limit;
use super::steps::EngineStep;
use crate::twin::parameter::{Parameter, ParameterEstimate};

/// Least steps from which a limit is concluded.
const MIN_STEPS: usize = 10;
/// Share of the steps that agree on a limit.
const AGREEMENT: f64 = 0.6;
/// A step that takes this much longer than decoding has computed part of a prompt.
const CHUNK_EXCESS: f64 = 1.3;

/// What the rows say of the limits.
#[derive(Clone, Debug)]
pub(super) struct LimitsFit {
    max_num_seqs: ParameterEstimate,
    /// Known from steps that were filled with chunks of prompts.
    max_batched_tokens: Option<ParameterEstimate>,
    kv_blocks: ParameterEstimate,
    block_size: ParameterEstimate,
    prefix_cache: ParameterEstimate,
    tokens_per_step: ParameterEstimate,
    prefill_first: ParameterEstimate,
}

impl LimitsFit {
    pub(super) fn of(seen: Observation<'_>, steps: &[EngineStep], decode: &DecodeFit, prefill: &PrefillFit) -> Self {
        let requests = seen.requests;
        let (block_size, prefix_cache) = cache(requests);
        let block = block_size.used().unwrap_or(16.0);
        let largest = steps.iter().map(|step| step.decoding).max().unwrap_or(1).max(1);
        let limit = sequence_limit(seen, prefill.front_end());
        // Steps in which the scheduler left requests waiting though it computed no prompt.
        let blocked = steps
            .iter()
            .filter(|step| step.waiting > 0 && step.is_decode())
            .filter(|step| decode.explains(step))
            .count();
        let max_num_seqs = match limit.map(f64::from) {
            Some(limit) => ParameterEstimate::between(limit, limit, limit),
            // vLLM's default, unless more have run.
            None => ParameterEstimate::range(Some(largest.into()), None, f64::from(largest).max(256.0)),
        };
        // Each sequence has half a block that is not full.
        let blocks = |step: &EngineStep| ((step.context - step.cached) / block + f64::from(step.decoding) / 2.0).ceil();
        let used = steps.iter().map(blocks).fold(1.0, f64::max);
        // Where steps vary by more, one with a chunk of a prompt looks like one without.
        let is_blocked = blocked >= MIN_STEPS && decode.is_clear(steps);
        let kv_blocks = match limit.is_none() && is_blocked {
            true => ParameterEstimate::range(Some(used), Some(used * 1.25), used * 1.05),
            false => ParameterEstimate::range(Some(used), None, (used * 4.0).max(16_384.0)),
        };
        Self {
            max_num_seqs,
            max_batched_tokens: if prefill.knows_budget() { None } else { chunk_budget(steps, decode, prefill) },
            kv_blocks,
            block_size,
            prefix_cache,
            tokens_per_step: tokens_per_step(steps),
            prefill_first: prefill_first(steps),
        }
    }

    pub(super) fn write(&self, parameters: &mut BTreeMap<Parameter, ParameterEstimate>) {
        for (parameter, estimate) in [
            (Parameter::MaxNumSeqs, self.max_num_seqs),
            (Parameter::KvBlocks, self.kv_blocks),
            (Parameter::BlockSize, self.block_size),
            (Parameter::PrefixCache, self.prefix_cache),
            (Parameter::TokensPerStep, self.tokens_per_step),
            (Parameter::PrefillFirst, self.prefill_first),
        ] {
            parameters.insert(parameter, estimate);
        }
        if let Some(budget) = self.max_batched_tokens {
            parameters.insert(Parameter::MaxBatchedTokens, budget);
        }
    }
}

/// Block size and policy of the prefix cache: cached tokens come in whole blocks.
fn cache(requests: &[ObservedRequest]) -> (ParameterEstimate, ParameterEstimate) {
    let reported: Vec<u32> = requests.iter().filter_map(|request| request.cached).collect();
    let hits: Vec<u32> = reported.iter().copied().filter(|cached| *cached > 0).collect();
    if hits.is_empty() {
        let repeats = requests.iter().filter(|request| !request.entry.prompt.blocks.is_empty()).any(|request| {
            let first = request.entry.prompt.blocks.first();
            let same = |other: &&ObservedRequest| other.entry.prompt.blocks.first() == first;
            requests.iter().filter(same).nth(1).is_some()
        });
        let policy = match repeats && !reported.is_empty() {
            true => ParameterEstimate::value(0.0),
            false => ParameterEstimate::range(Some(0.0), Some(1.0), 1.0),
        };
        return (ParameterEstimate::range(Some(1.0), None, 16.0), policy);
    }
    let block = hits.iter().fold(0, |a, b| gcd(a, *b));
    let size = match hits.len() >= MIN_STEPS {
        true => ParameterEstimate::value(block.into()),
        false => ParameterEstimate::range(Some(1.0), Some(block.into()), block.into()),
    };
    (size, ParameterEstimate::value(1.0))
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn tokens_per_step(steps: &[EngineStep]) -> ParameterEstimate {
    let mut tokens: Vec<f64> = steps.iter().filter(|step| step.seen > 0).map(|step| step.tokens).collect();
    tokens.sort_unstable_by(f64::total_cmp);
    let Some(median) = tokens.get(tokens.len() / 2).copied() else {
        return ParameterEstimate::range(Some(1.0), None, 1.0);
    };
    let near = tokens.iter().filter(|tokens| (*tokens / median - 1.0).abs() < 0.25).count();
    match median.fract() == 0.0 && near as f64 >= AGREEMENT * tokens.len() as f64 {
        true => ParameterEstimate::value(median),
        false => ParameterEstimate::range(tokens.first().copied(), tokens.last().copied(), median.round().max(1.0)),
    }
}

/// First tokens that come with the tokens of other sequences are proof of chunked prefill; without, decoding waits.
fn prefill_first(steps: &[EngineStep]) -> ParameterEstimate {
    let (mut beside, mut apart) = (0_usize, 0_usize);
    for (number, step) in steps.iter().enumerate().filter(|(_, step)| !step.firsts.is_empty()) {
        // Sequences of the next step that were decoding before this one.
        let others = steps.get(number + 1).filter(|next| next.seen as usize > step.firsts.len());
        match (step.seen > 0, others) {
            (true, _) => beside += 1,
            (false, Some(next)) if next.gap.is_some() => apart += 1,
            (false, _) => {}
        }
    }
    let seen = beside + apart;
    match seen >= MIN_STEPS {
        true if beside as f64 >= AGREEMENT * seen as f64 => ParameterEstimate::value(0.0),
        true if apart as f64 >= AGREEMENT * seen as f64 => ParameterEstimate::value(1.0),
        _ => ParameterEstimate::range(Some(0.0), Some(1.0), 0.0),
    }
}

/// The token budget, from steps that a chunk of a prompt filled: their time beyond decoding is that of the chunk.
fn chunk_budget(steps: &[EngineStep], decode: &DecodeFit, prefill: &PrefillFit) -> Option<ParameterEstimate> {
    let token = prefill.token_time()?;
    let tokens = |step: &EngineStep| {
        let gap = step.gap.filter(|_| step.is_decode() && step.waiting > 0)?;
        let rest = gap - decode.time(f64::from(step.decoding) + 1.0, step.context);
        (gap > CHUNK_EXCESS * decode.predict(step)).then(|| rest / token + f64::from(step.decoding))
    };
    let mut found: Vec<f64> = steps.iter().filter_map(tokens).collect();
    found.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| found.get((found.len() as f64 * share) as usize).copied();
    let (low, middle, high) = (at(0.25)?, at(0.5)?, at(0.75)?);
    (found.len() >= MIN_STEPS && high <= 1.1 * low).then(|| ParameterEstimate::between(low, middle.round(), high))
}
