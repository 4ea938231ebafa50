//! A trace to give away: ids that nobody can test guesses against, names that say nothing, times and lengths rounded.
//!
//! Ids go through a keyed hash (SipHash with a key that is drawn for the run and kept nowhere), so that equal ones stay
//! equal and nothing else is left of them. Models become `model-1`, `model-2`, … in order of appearance. The server's
//! address, what was sent and received in bytes, and the wall-clock start go.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use super::Trace;
use crate::capture::row::{BlockScheme, BlockUnit, LastBlock, TraceEntry};

/// Models that get a name of their own.
const MAX_MODELS: usize = 1_000;

/// How coarse times and lengths become.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnonymizeRounding {
    /// Nanoseconds; times become multiples of it. Zero leaves them.
    pub time: u64,
    /// Tokens and bytes become multiples of it, of prompts within their last block, and limits on them too. Zero leaves
    /// them. Width and height of images stay, which decide what they cost.
    pub length: u64,
}

/// The trace with ids of a new key and rounded.
pub fn anonymize(trace: Trace, rounding: AnonymizeRounding) -> Trace {
    let Trace { mut header, entries, losses } = trace;
    header.started_unix_ns = None;
    if let Some(blocks) = &mut header.blocks {
        blocks.key = None;
    }
    let blocks = header.blocks.clone();
    let (ids, sessions) = (RandomState::new(), RandomState::new());
    let mut models: HashMap<String, String> = HashMap::new();
    let entries = entries.map(move |entry| {
        let mut entry = entry?;
        entry.prompt.blocks.iter_mut().for_each(|id| *id = ids.hash_one(*id));
        entry.session = entry.session.map(|session| format!("{:016x}", sessions.hash_one(session)));
        entry.model = entry.model.map(|model| pseudonym(&mut models, model));
        entry.upstream = None;
        entry.transfer = None;
        round_entry(&mut entry, rounding, blocks.as_ref());
        Ok(entry)
    });
    Trace { header, entries: Box::new(entries), losses }
}

fn pseudonym(models: &mut HashMap<String, String>, model: String) -> String {
    if let Some(name) = models.get(&model) {
        return name.clone();
    }
    if models.len() == MAX_MODELS {
        return "model-other".to_owned();
    }
    let name = format!("model-{}", models.len() + 1);
    models.insert(model, name.clone());
    name
}

fn round_entry(entry: &mut TraceEntry, rounding: AnonymizeRounding, blocks: Option<&BlockScheme>) {
    let time = |time: u64| time - time.checked_rem(rounding.time).unwrap_or(0);
    let timing = &mut entry.timing;
    entry.at = time(entry.at);
    for stamp in [
        &mut entry.planned,
        &mut entry.think,
        &mut entry.wanted.think,
        &mut entry.wanted.abort_after,
        &mut timing.sent,
        &mut timing.evidence,
        &mut timing.first_token,
        &mut timing.first_output,
        &mut timing.ended,
    ] {
        *stamp = stamp.map(time);
    }
    if rounding.time > 0 && timing.gaps.take().is_some() {
        // Gaps are as fine as a fingerprint: coarse times beside them would hide nothing.
        timing.first_tokens = None;
    }
    if rounding.length == 0 {
        return;
    }
    let up = |length: u64| length.div_ceil(rounding.length).saturating_mul(rounding.length);
    let (wanted, params) = (&mut entry.wanted, &mut entry.params);
    for length in [
        // An answer that ended at its limit is as long as that.
        &mut params.max_tokens,
        &mut params.min_tokens,
        &mut entry.output_tokens,
        &mut entry.reasoning_tokens,
        &mut entry.abort_tokens,
        &mut entry.prompt.cached,
        &mut wanted.input_tokens,
        &mut wanted.output_tokens,
        &mut wanted.abort_tokens,
    ] {
        *length = length.map(up);
    }
    entry.prompt.parts.iter_mut().for_each(|part| part.bytes = part.bytes.map(up));
    let has_ids = !entry.prompt.blocks.is_empty();
    let in_blocks = |unit| blocks.filter(|blocks| has_ids && blocks.unit == unit);
    let ids = entry.prompt.blocks.len() as u64;
    entry.prompt.tokens = entry.prompt.tokens.map(|n| clamp_to_ids(n, up(n), ids, in_blocks(BlockUnit::Tokens)));
    entry.prompt.bytes = entry.prompt.bytes.map(|n| clamp_to_ids(n, up(n), ids, in_blocks(BlockUnit::Bytes)));
}

/// A rounded length that asks for as many ids as there are.
fn clamp_to_ids(length: u64, rounded: u64, ids: u64, blocks: Option<&BlockScheme>) -> u64 {
    let Some(blocks) = blocks else { return rounded };
    let size = u64::from(blocks.size).max(1);
    let most = match blocks.last {
        LastBlock::Kept => ids.saturating_mul(size),
        LastBlock::Dropped => ids.saturating_add(1).saturating_mul(size) - 1,
    };
    // Lengths that never fitted stay as wrong as they were.
    if length > most { length } else { rounded.min(most) }
}
