//! Block ids of a row, chained across the prompt, and prompt lengths in tokens. Pure.

use super::header::{BlockIds, BlockScheme, BlockScope, BlockUnit, LastBlock};
use super::row::{BYTES_PER_TOKEN, TraceEntry};
use crate::stats::hash::combine;

/// FNV-1a over the text, finalized by [`combine`].
pub fn hash_text(text: &str) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    combine(text.bytes().fold(0xcbf2_9ce4_8422_2325, fold), text.len() as u64)
}

/// Prompt tokens of a request, estimated at [`BYTES_PER_TOKEN`] where only bytes are known.
pub fn prompt_tokens(entry: &TraceEntry) -> Option<u64> {
    entry.prompt.tokens.or_else(|| entry.prompt.bytes.map(|bytes| bytes.div_ceil(BYTES_PER_TOKEN)))
}

/// Number of ids of a prompt of `length` units.
pub const fn expected_ids(blocks: &BlockScheme, length: u64) -> u64 {
    let size = if blocks.size == 0 { 1 } else { blocks.size as u64 };
    match blocks.last {
        LastBlock::Kept => length.div_ceil(size),
        LastBlock::Dropped => length / size,
    }
}

/// Ids as a prefix cache compares them: two ids are equal exactly if the prompts are equal up to that block. Equality
/// holds across the whole trace.
pub fn chained_ids<'a>(blocks: &BlockScheme, entry: &'a TraceEntry) -> impl Iterator<Item = u64> + 'a {
    let scope = match (blocks.scope, &entry.session) {
        (BlockScope::Session, Some(session)) => Some(hash_text(session)),
        _ => None,
    };
    let single = blocks.ids == BlockIds::Single;
    let mut before = 0;
    entry.prompt.blocks.iter().map(move |id| {
        let id = scope.map_or(*id, |scope| combine(scope, *id));
        before = if single { combine(before, id) } else { id };
        before
    })
}

/// Tokens per block, at least 1.
pub fn block_tokens(blocks: &BlockScheme) -> u64 {
    match blocks.unit {
        BlockUnit::Tokens => u64::from(blocks.size).max(1),
        BlockUnit::Bytes => (u64::from(blocks.size) / BYTES_PER_TOKEN).max(1),
    }
}
