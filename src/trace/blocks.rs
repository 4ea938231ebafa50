//! Converts block ids from one block scheme to another and preserves shared prefixes.

use crate::measure::record::CountSource;
use crate::stats::hash::combine;
pub use crate::trace_file::blocks::{block_tokens, chained_ids, expected_ids, hash_text, prompt_tokens};
use crate::trace_file::header::{BlockIds, BlockScheme, BlockScope, BlockUnit, LastBlock};
pub use crate::trace_file::row::BYTES_PER_TOKEN;
use crate::trace_file::row::TraceEntry;

/// Separates invented ids from other hashes.
const FRESH_ID_SEED: u64 = 0x6672_6573_6820_6964;

/// Maximum ids invented for one request: two million tokens in blocks of 16.
const MAX_FRESH_IDS: usize = 1 << 17;

/// Mooncake's block scheme with this block size.
pub(in crate::trace) const fn mooncake_scheme(size: u32) -> BlockScheme {
    BlockScheme {
        size,
        unit: BlockUnit::Tokens,
        last: LastBlock::Kept,
        ids: BlockIds::Chained,
        scope: BlockScope::Trace,
        key: None,
    }
}

/// The block scheme that a format requires.
#[derive(Clone, Copy, Debug)]
pub struct BlockRule {
    /// Required block size in tokens; `None` if the reader accepts any size.
    pub size: Option<u32>,
    /// Treatment of a partial last block.
    pub last: LastBlock,
}

/// Converts block ids to chained ids that are valid in the whole trace.
#[derive(Debug)]
pub struct BlockRehasher {
    from: BlockScheme,
    shape: BlockMapping,
    /// Scheme of the converted ids.
    pub to: BlockScheme,
    rows: u64,
}

#[derive(Clone, Copy, Debug)]
enum BlockMapping {
    Identity,
    /// Number of source blocks per target block.
    Joined(usize),
    /// Number of target blocks per source block.
    Split(u64),
}

impl BlockRehasher {
    /// Creates a converter. The error states why the ids cannot be converted.
    pub fn new(from: &BlockScheme, rule: BlockRule) -> Result<Self, String> {
        let size = match from.unit {
            BlockUnit::Tokens => from.size,
            BlockUnit::Bytes => (from.size / BYTES_PER_TOKEN as u32).max(1),
        };
        let shape = match rule.size {
            Some(target) if target == size => BlockMapping::Identity,
            Some(target) if size != 0 && target % size == 0 => BlockMapping::Joined((target / size) as usize),
            Some(target) if target != 0 && size % target == 0 => BlockMapping::Split(u64::from(size / target)),
            Some(target) => return Err(format!("blocks of {size} tokens cannot be made into blocks of {target}")),
            None => BlockMapping::Identity,
        };
        let size = rule.size.unwrap_or(size);
        let to = BlockScheme {
            size,
            unit: BlockUnit::Tokens,
            last: rule.last,
            ids: BlockIds::Chained,
            scope: BlockScope::Trace,
            key: from.key.clone(),
        };
        Ok(Self { from: from.clone(), shape, to, rows: 0 })
    }

    /// Creates a converter if the trace has blocks. Adds a note if the ids cannot be converted, or if blocks of bytes
    /// are converted at [`BYTES_PER_TOKEN`].
    pub fn new_or_note(from: Option<&BlockScheme>, rule: BlockRule, notes: &mut Vec<String>) -> Option<Self> {
        let from = from?;
        if from.unit == BlockUnit::Bytes {
            notes.push(format!("blocks of {} bytes are taken for a quarter as many tokens", from.size));
        }
        Self::new(from, rule).map_err(|why| notes.push(format!("no block ids: {why}"))).ok()
    }

    /// Ids of the first `part` tokens of a prompt. A truncated block gets a different id.
    pub fn prefix_ids(&mut self, entry: &TraceEntry, tokens: u64, part: u64) -> Vec<u64> {
        let mut ids = self.ids(entry, tokens);
        let size = u64::from(self.to.size.max(1));
        let rest = part % size;
        ids.truncate(usize::try_from(expected_ids(&self.to, part)).unwrap_or(usize::MAX));
        if self.to.last == LastBlock::Kept && rest > 0 && part < tokens {
            let is_last = ids.len() as u64 == part / size + 1;
            ids.last_mut().filter(|_| is_last).into_iter().for_each(|id| *id = combine(*id, rest));
        }
        ids
    }

    /// Ids of a request, as many as its prompt length requires. Blocks without an id in the trace get unique ones.
    pub fn ids(&mut self, entry: &TraceEntry, tokens: u64) -> Vec<u64> {
        self.rows += 1;
        let chained = chained_ids(&self.from, entry);
        let mut ids: Vec<u64> = match self.shape {
            BlockMapping::Identity => chained.collect(),
            BlockMapping::Joined(n) => {
                let all: Vec<u64> = chained.collect();
                // A chained id covers everything before it, so the last of n ids represents all n blocks.
                all.chunks(n).filter_map(|some| some.last().copied()).collect()
            }
            BlockMapping::Split(n) => {
                chained.flat_map(|id| (1..n).map(move |part| combine(id, part)).chain([id])).collect()
            }
        };
        let expected = usize::try_from(expected_ids(&self.to, tokens)).unwrap_or(usize::MAX);
        // Servers also count image tokens, which have no blocks, and prompts shorter than a block have no ids. Any
        // other large gap is no rounding error, and must not allocate memory.
        let most = match entry.prompt.source {
            Some(CountSource::Usage) => MAX_FRESH_IDS,
            _ if ids.is_empty() => MAX_FRESH_IDS,
            _ => ids.len().saturating_mul(2).saturating_add(64),
        };
        if expected <= most {
            let fresh = combine(FRESH_ID_SEED, self.rows);
            let have = ids.len();
            ids.resize(expected.min(have), 0);
            ids.extend((have..expected).map(|at| combine(fresh, at as u64)));
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace_file::row::PromptShape;

    fn blocks(size: u32, last: LastBlock, ids: BlockIds, scope: BlockScope) -> BlockScheme {
        BlockScheme { size, unit: BlockUnit::Tokens, last, ids, scope, key: None }
    }

    fn entry(session: &str, ids: &[u64]) -> TraceEntry {
        let prompt = PromptShape { blocks: ids.to_vec(), ..PromptShape::default() };
        TraceEntry { session: Some(session.to_owned()), prompt, ..TraceEntry::default() }
    }

    fn common(a: &[u64], b: &[u64]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn single_ids_are_equal_at_another_place_and_chained_ones_are_not() {
        let single = blocks(16, LastBlock::Kept, BlockIds::Single, BlockScope::Trace);
        let (a, b) = (entry("a", &[1089, 1090, 7]), entry("b", &[7000, 1090, 7]));
        let ids = |entry| chained_ids(&single, entry).collect::<Vec<_>>();
        assert!(ids(&a).iter().all(|id| !ids(&b).contains(id)));
        assert_eq!(common(&ids(&a), &ids(&entry("c", &[1089, 1090, 8]))), 2);
    }

    #[test]
    fn ids_of_one_session_are_those_of_no_other() {
        let local = blocks(64, LastBlock::Dropped, BlockIds::Chained, BlockScope::Session);
        let ids = |session, ids: [u64; 2]| chained_ids(&local, &entry(session, &ids)).collect::<Vec<_>>();
        assert_eq!(common(&ids("a", [1, 2]), &ids("b", [1, 2])), 0);
        assert_eq!(common(&ids("a", [1, 2]), &ids("a", [1, 3])), 1);
    }

    #[test]
    fn blocks_that_are_joined_or_split_share_what_was_shared() {
        let from = blocks(16, LastBlock::Kept, BlockIds::Chained, BlockScope::Trace);
        let rule = |size| BlockRule { size: Some(size), last: LastBlock::Kept };
        // 100 tokens are 7 blocks of 16, of which the first 4 are shared: 64 tokens.
        let (a, b) = (entry("a", &[1, 2, 3, 4, 5, 6, 7]), entry("b", &[1, 2, 3, 4, 8, 9, 10]));
        for (size, shared, all) in [(16, 4, 7), (32, 2, 4), (64, 1, 2), (8, 8, 13)] {
            let mut reblocked = BlockRehasher::new(&from, rule(size)).unwrap();
            let (a, b) = (reblocked.ids(&a, 100), reblocked.ids(&b, 100));
            assert_eq!((common(&a, &b), a.len(), b.len()), (shared, all, all), "blocks of {size}");
        }
        assert!(BlockRehasher::new(&from, rule(24)).is_err());
    }

    #[test]
    fn what_a_server_counts_besides_the_text_has_ids_of_its_own_and_a_nonsense_length_none() {
        let from = blocks(16, LastBlock::Dropped, BlockIds::Chained, BlockScope::Trace);
        let mut rehasher = BlockRehasher::new(&from, BlockRule { size: None, last: LastBlock::Kept }).unwrap();
        let mut ids = |source, tokens| {
            let mut entry = entry("a", &[1, 2]);
            entry.prompt.source = source;
            rehasher.ids(&entry, tokens)
        };
        let (a, b) = (ids(Some(CountSource::Usage), 10_000), ids(Some(CountSource::Usage), 10_000));
        assert_eq!((a.len(), b.len(), common(&a, &b)), (625, 625, 2));
        assert_eq!(ids(Some(CountSource::Usage), u64::MAX).len(), 2);
        assert_eq!(ids(None, 10_000).len(), 2);
        // A prompt shorter than a block, or without blocks, shares nothing.
        let mut none = |tokens| rehasher.ids(&entry("a", &[]), tokens);
        let (a, b) = (none(40), none(40));
        assert_eq!((a.len(), b.len(), common(&a, &b), none(0).len()), (3, 3, 0, 0));
    }

    #[test]
    fn a_last_block_is_made_up_or_left_out_as_the_rule_says() {
        let floor = blocks(64, LastBlock::Dropped, BlockIds::Chained, BlockScope::Trace);
        let mut kept = BlockRehasher::new(&floor, BlockRule { size: None, last: LastBlock::Kept }).unwrap();
        let (a, b) = (kept.ids(&entry("a", &[1, 2]), 130), kept.ids(&entry("b", &[1, 2]), 130));
        assert_eq!((a.len(), common(&a, &b)), (3, 2));
        let ceil = blocks(64, LastBlock::Kept, BlockIds::Chained, BlockScope::Trace);
        let mut dropped = BlockRehasher::new(&ceil, BlockRule { size: None, last: LastBlock::Dropped }).unwrap();
        assert_eq!(dropped.ids(&entry("a", &[1, 2, 3]), 130), [1, 2]);
    }
}
