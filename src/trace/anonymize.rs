//! Prepares a trace for publication: untestable ids, meaningless names, rounded times and lengths.
//!
//! Ids pass through a keyed hash (SipHash with a random key that is never stored), so equal ids stay equal and reveal
//! nothing else. Models become `model-1`, `model-2`, … in order of appearance. The server's address, class values, limits
//! that a request set for itself, transfer sizes and the wall-clock start are removed.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use super::Trace;
use crate::measure::request_class::ClassValues;
use crate::trace_file::header::{BlockScheme, BlockUnit, LastBlock};
use crate::trace_file::row::TraceEntry;

/// Maximum models with a name of their own.
const MAX_MODELS: usize = 1_000;

/// Granularity of times and lengths.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnonymizeRounding {
    /// Times are rounded to multiples of this, in nanoseconds; zero leaves them.
    pub time: u64,
    /// Tokens, bytes and token limits are rounded to multiples of this; prompts stay within their last block. Zero
    /// leaves them. Image dimensions stay, because they determine the cost of an image.
    pub length: u64,
}

/// Returns the trace with rehashed ids and rounded values.
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
        for session in [&mut entry.session, &mut entry.parent] {
            *session = session.take().map(|session| format!("{:016x}", sessions.hash_one(session)));
        }
        entry.model = entry.model.map(|model| pseudonym(&mut models, model));
        entry.upstream = None;
        entry.class = ClassValues::default();
        entry.slo = None;
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
        // Gaps are as precise as a fingerprint, so rounded times would hide nothing beside them.
        timing.first_tokens = None;
    }
    if rounding.length == 0 {
        return;
    }
    let up = |length: u64| length.div_ceil(rounding.length).saturating_mul(rounding.length);
    let (targets, params) = (&mut entry.wanted, &mut entry.params);
    for length in [
        // The limit reveals the length of a reply that ended at it.
        &mut params.max_tokens,
        &mut params.min_tokens,
        &mut entry.output_tokens,
        &mut entry.reasoning_tokens,
        &mut entry.abort_tokens,
        &mut entry.prompt.cached,
        &mut targets.input_tokens,
        &mut targets.output_tokens,
        &mut targets.abort_tokens,
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

/// Limits a rounded length so that it requires no more ids than exist.
fn clamp_to_ids(length: u64, rounded: u64, ids: u64, blocks: Option<&BlockScheme>) -> u64 {
    let Some(blocks) = blocks else { return rounded };
    let size = u64::from(blocks.size).max(1);
    let most = match blocks.last {
        LastBlock::Kept => ids.saturating_mul(size),
        LastBlock::Dropped => ids.saturating_add(1).saturating_mul(size) - 1,
    };
    // Lengths that never fitted stay unchanged.
    if length > most { length } else { rounded.min(most) }
}
