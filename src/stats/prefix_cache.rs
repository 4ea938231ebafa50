//! Simulates two caches of prompt blocks: one of unlimited size, and one of a given size with LRU eviction.
//!
//! A request's hit is its longest prefix of cached blocks; its own blocks are added afterwards.
//!
//! The unlimited cache is exact up to 3.5 million distinct blocks, and up to thirty times as many if their ids are
//! consecutive. In a diff of two traces each has a quarter of that. Above that size it keeps a 1/2ⁿ sample of the
//! block ids and scales hits by 2ⁿ. Sampling is by group of adjacent ids, because a hit requires the whole prefix.

use std::collections::{HashMap, HashSet};

use ahash::RandomState;
use schemars::JsonSchema;
use serde::Serialize;

use super::block_id_set::{BlockIdSet, IdRun};
use super::hash::combine;
use super::locality_hash::BuildLocalityHasher;

/// Table slots of the unlimited cache: 50 MB. A table of 2^22 slots has room for 170,000 more, so that the one
/// request that exceeds the limit does not double the table.
const MAX_IDS: usize = 3_500_000;
/// Groups of adjacent ids that always stay in the sample.
const FIRST: usize = 1 << 12;
/// Maximum size of a bounded cache, in blocks.
pub const MAX_CACHE_BLOCKS: usize = 1 << 20;

/// Simulated result of one cache.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct PrefixCacheStats {
    /// Size in blocks; `None` for the unlimited cache.
    pub blocks: Option<u64>,
    /// Blocks of all prompts.
    pub asked_blocks: u64,
    /// Blocks found in the cache.
    pub hit_blocks: u64,
    /// Share of all prompt tokens found in the cache, 0 to 1.
    pub token_share: f64,
    /// Mean of the requests' own shares, 0 to 1.
    pub request_share: f64,
    /// Distinct blocks.
    pub distinct_blocks: u64,
    /// One of this many ids was sampled; 1 means exact.
    pub sampled_one_of: u64,
}

/// The blocks of a request's prompt.
#[derive(Clone, Copy)]
pub struct PrefixLookup<'a> {
    /// Chained block ids: each id stands for its block and everything before it.
    pub ids: &'a [u64],
    /// Tokens per block.
    pub block: u64,
    /// Prompt length in tokens, if known.
    pub tokens: Option<u64>,
}

/// Feeds prompts to the caches and adds up their hits.
#[derive(Clone, Debug, Default)]
pub struct PrefixReuse {
    endless: UnboundedCache,
    bounded: Option<LruCache>,
    sums: [HitSums; 2],
    /// Sums for other block sizes, in tokens. Hits do not depend on the size, but token counts do.
    of_sizes: Vec<(u64, [HitSums; 2])>,
}

#[derive(Clone, Copy, Debug, Default)]
struct HitSums {
    looked_up: u64,
    hit: u64,
    tokens: f64,
    hit_tokens: f64,
    requests: u64,
    shares: f64,
}

impl HitSums {
    /// Tokens of a prompt, and those of them that hit.
    fn tokens(seen: &PrefixLookup<'_>, hit: u64, estimated: u64) -> (f64, f64) {
        let (blocks, size) = (seen.ids.len() as u64, seen.block);
        // Without a token count, the length is that of its full blocks.
        let tokens = seen.tokens.unwrap_or(blocks * size) as f64;
        // Only a counted last block can be shorter than the others.
        (tokens, ((hit * size) as f64).min(tokens) + estimated as f64 * size as f64)
    }

    fn share(seen: &PrefixLookup<'_>, hit: u64, estimated: u64) -> f64 {
        let (tokens, hit_tokens) = Self::tokens(seen, hit, estimated);
        if tokens > 0.0 { (hit_tokens / tokens).min(1.0) } else { 0.0 }
    }

    /// Adds a request with `hit` counted leading blocks and `estimated` more from the sample.
    fn take(&mut self, seen: &PrefixLookup<'_>, hit: u64, estimated: u64) {
        let (tokens, hit_tokens) = Self::tokens(seen, hit, estimated);
        self.looked_up += seen.ids.len() as u64;
        self.hit = self.hit.saturating_add(hit).saturating_add(estimated);
        self.tokens += tokens;
        self.hit_tokens += hit_tokens;
        self.requests += 1;
        self.shares += if tokens > 0.0 { hit_tokens / tokens } else { 0.0 };
    }

    fn cache(&self, blocks: Option<u64>, distinct: u64, sampled: u64) -> PrefixCacheStats {
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        PrefixCacheStats {
            blocks,
            asked_blocks: self.looked_up,
            hit_blocks: self.hit,
            token_share: share(self.hit_tokens, self.tokens),
            request_share: share(self.shares, self.requests as f64),
            distinct_blocks: distinct,
            sampled_one_of: sampled,
        }
    }
}

impl PrefixReuse {
    /// Creates an unlimited cache, and one of `cache_blocks` blocks.
    pub fn new(cache_blocks: Option<usize>) -> Self {
        let bounded = cache_blocks.map(|blocks| LruCache::new(blocks.min(MAX_CACHE_BLOCKS)));
        Self { endless: UnboundedCache::default(), bounded, sums: [HitSums::default(); 2], of_sizes: Vec::new() }
    }

    /// Also adds up the results for blocks of these sizes, in tokens.
    pub fn with_sizes(mut self, sizes: impl Iterator<Item = u64>) -> Self {
        self.of_sizes = sizes.map(|size| (size, [HitSums::default(); 2])).collect();
        self
    }

    /// Reduces the limit to a quarter of the blocks, for two traces that are read side by side.
    pub fn for_comparison(mut self) -> Self {
        self.endless = UnboundedCache::with_limit(MAX_IDS / 4);
        self
    }

    /// Adds one prompt; returns its share of tokens that the unlimited cache has.
    pub fn take(&mut self, seen: &PrefixLookup<'_>) -> f64 {
        let (hit, estimated) = self.endless.take(seen.ids);
        let in_bounded = self.bounded.as_mut().map(|lru| lru.take(seen.ids));
        let all = self.of_sizes.iter_mut().map(|(size, sums)| (*size, sums));
        for (block, sums) in all.chain([(seen.block, &mut self.sums)]) {
            let seen = PrefixLookup { block, ..*seen };
            sums[0].take(&seen, hit, estimated);
            if let Some(hit) = in_bounded {
                sums[1].take(&seen, hit, 0);
            }
        }
        HitSums::share(seen, hit, estimated)
    }

    /// Results of the caches, the unlimited one first; empty without any block.
    pub fn caches(&self) -> Vec<PrefixCacheStats> {
        self.caches_of(&self.sums)
    }

    /// Results for blocks of `size` tokens; `None` unless [`with_sizes`](Self::with_sizes) had this size.
    pub fn caches_with(&self, size: u64) -> Option<Vec<PrefixCacheStats>> {
        self.of_sizes.iter().find(|(other, _)| *other == size).map(|(_, sums)| self.caches_of(sums))
    }

    fn caches_of(&self, sums: &[HitSums; 2]) -> Vec<PrefixCacheStats> {
        if sums[0].looked_up == 0 {
            return Vec::new();
        }
        let distinct = self.endless.distinct();
        let mut caches = vec![sums[0].cache(None, distinct, self.endless.sampled_one_of())];
        caches.extend(self.bounded.as_ref().map(|lru| sums[1].cache(Some(lru.room as u64), distinct, 1)));
        caches
    }
}

/// A cache without eviction.
#[derive(Clone, Debug)]
pub struct UnboundedCache {
    seen: BlockIdSet,
    most: usize,
    /// The first groups of adjacent ids. They are always counted: the common start of all prompts is among them, and
    /// a sample would contain either all of it or nothing.
    first: HashSet<u64, BuildLocalityHasher>,
    halvings: u32,
}

impl Default for UnboundedCache {
    fn default() -> Self {
        Self { seen: BlockIdSet::default(), most: MAX_IDS, first: HashSet::default(), halvings: 0 }
    }
}

/// True if a group of adjacent ids remains in the sample after `halvings`.
fn in_sample(key: u64, halvings: u32) -> bool {
    halvings == 0 || combine(key, 0x7265_7573) <= u64::MAX >> halvings
}

impl UnboundedCache {
    /// Creates a cache that samples above `most` table slots.
    pub fn with_limit(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// One of this many ids is sampled; 1 means exact.
    pub fn sampled_one_of(&self) -> u64 {
        1 << self.halvings
    }

    /// Adds a prompt. Returns its cached leading blocks: the counted ones, and the estimate from the sample.
    pub fn take(&mut self, ids: &[u64]) -> (u64, u64) {
        let (mut counted, mut in_the_sample, mut hits) = (0, 0_u64, true);
        let mut rest = ids;
        while let Some(run) = IdRun::of(rest) {
            rest = &rest[run.length..];
            if self.first.len() < FIRST {
                self.first.insert(run.key);
            }
            let stays = self.halvings == 0 || self.first.contains(&run.key);
            if !stays && !in_sample(run.key, self.halvings) {
                continue;
            }
            let known = self.seen.insert(&run);
            // A hit is a prefix, so every block after the first miss is a miss. A request's own blocks are not hits.
            let hit = if hits { known as u64 } else { 0 };
            hits &= known == run.length;
            *(if stays { &mut counted } else { &mut in_the_sample }) += hit;
        }
        let estimated = in_the_sample.saturating_mul(1 << self.halvings);
        while self.seen.taken() > self.most {
            self.halvings += 1;
            let (first, halvings) = (&self.first, self.halvings);
            self.seen.retain(|key| first.contains(&key) || in_sample(key, halvings));
        }
        (counted, estimated)
    }

    /// Distinct blocks so far.
    fn distinct(&self) -> u64 {
        let stay = self.seen.count(|key| self.first.contains(&key));
        let others = (self.seen.len() - stay) as u64;
        others.saturating_mul(1 << self.halvings).saturating_add(stay as u64)
    }
}

const NONE: u32 = u32::MAX;

/// A bounded cache with LRU eviction; of one prompt, the last block is evicted first.
#[derive(Clone, Debug)]
pub struct LruCache {
    room: usize,
    at: HashMap<u64, u32, RandomState>,
    slots: Vec<LruSlot>,
    newest: u32,
    oldest: u32,
}

#[derive(Clone, Copy, Debug)]
struct LruSlot {
    id: u64,
    newer: u32,
    older: u32,
}

impl LruCache {
    /// Creates a cache of `room` blocks.
    pub fn new(room: usize) -> Self {
        // Removals leave tombstones: a half-empty table clears them, and a fuller one would double.
        let at = HashMap::with_capacity_and_hasher(2 * room + 2, RandomState::default());
        Self { room, at, slots: Vec::new(), newest: NONE, oldest: NONE }
    }

    /// Returns the cached leading blocks of a prompt, then adds its blocks.
    pub fn take(&mut self, ids: &[u64]) -> u64 {
        let hit = self.cached_prefix(ids);
        // The last block goes first, so that the first is the most recent: later blocks are useless without it.
        for id in ids.iter().take(self.room).rev() {
            self.touch(*id);
        }
        hit
    }

    /// Returns the cached leading blocks of a prompt, and changes nothing.
    pub fn cached_prefix(&self, ids: &[u64]) -> u64 {
        ids.iter().take_while(|id| self.at.contains_key(id)).count() as u64
    }

    fn touch(&mut self, id: u64) {
        let slot = match self.at.get(&id) {
            Some(slot) => {
                let slot = *slot;
                self.unlink(slot);
                return self.push_newest(slot, id);
            }
            None if self.room == 0 => return,
            None if self.slots.len() < self.room => {
                self.slots.push(LruSlot { id, newer: NONE, older: NONE });
                (self.slots.len() - 1) as u32
            }
            None => {
                let slot = self.oldest;
                self.unlink(slot);
                self.at.remove(&self.slots[slot as usize].id);
                slot
            }
        };
        self.at.insert(id, slot);
        self.push_newest(slot, id);
    }

    fn push_newest(&mut self, slot: u32, id: u64) {
        self.slots[slot as usize] = LruSlot { id, newer: NONE, older: self.newest };
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.slots[newest as usize].newer = slot,
        }
        self.newest = slot;
    }

    fn unlink(&mut self, slot: u32) {
        let LruSlot { newer, older, .. } = self.slots[slot as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(reuse: &mut PrefixReuse, prompts: &[&[u64]]) -> Vec<PrefixCacheStats> {
        prompts.iter().for_each(|ids| _ = reuse.take(&PrefixLookup { ids, block: 16, tokens: None }));
        reuse.caches()
    }

    #[test]
    fn a_hit_is_a_prefix_and_a_requests_own_blocks_are_none() {
        let caches = run(&mut PrefixReuse::new(None), &[&[1, 2, 3], &[1, 2, 4, 3], &[5, 2], &[7, 7]]);
        // Two hits of the second prompt; none of the third, because 5 is new. A repeated block in one prompt is not a
        // hit.
        assert_eq!((caches[0].asked_blocks, caches[0].hit_blocks, caches[0].distinct_blocks), (11, 2, 6));
        assert!((caches[0].token_share - 2.0 / 11.0).abs() < 1e-12);
        assert!((caches[0].request_share - 0.5 / 4.0).abs() < 1e-12);
    }

    #[test]
    fn a_partial_last_block_counts_with_its_tokens() {
        let mut reuse = PrefixReuse::new(None);
        for _ in 0..2 {
            reuse.take(&PrefixLookup { ids: &[1, 2], block: 512, tokens: Some(600) });
        }
        assert!((reuse.caches()[0].token_share - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_bounded_cache_forgets_what_was_used_longest_ago_and_of_a_prompt_its_end() {
        let hits = |room, prompts: &[&[u64]]| run(&mut PrefixReuse::new(Some(room)), prompts)[1].hit_blocks;
        assert_eq!(hits(2, &[&[1, 2], &[3], &[1]]), 1, "the end of [1, 2] went first");
        assert_eq!(hits(2, &[&[1], &[2], &[3], &[1]]), 0);
        assert_eq!(hits(3, &[&[1], &[2], &[3], &[1]]), 1);
        assert_eq!(hits(0, &[&[1], &[1]]), 0);
        assert_eq!(hits(100, &[&[1, 2, 3], &[1, 2, 4, 3], &[5, 2]]), 2, "as an endless one");
    }

    #[test]
    fn a_sample_finds_the_same_share() {
        let prompts = |reuse: &mut PrefixReuse| {
            for n in 0..40_000_u64 {
                // Half of every 64-block prompt is cached, except the first of each of 2,000 families.
                let family = (1 << 40) + n % 2_000 * 64;
                let ids: Vec<u64> = (0..64).map(|at| if at < 32 { family + at } else { n * 64 + at }).collect();
                reuse.take(&PrefixLookup { ids: &ids, block: 16, tokens: None });
            }
        };
        let (mut exact, mut sampled) = (PrefixReuse::new(None), PrefixReuse::new(None));
        sampled.endless.halvings = 3;
        prompts(&mut exact);
        prompts(&mut sampled);
        let (exact, sampled) = (exact.caches()[0], sampled.caches()[0]);
        assert_eq!((exact.sampled_one_of, sampled.sampled_one_of), (1, 8));
        assert!((exact.token_share - 0.475).abs() < 0.001, "{}", exact.token_share);
        assert!((exact.token_share - sampled.token_share).abs() < 0.03, "{}", sampled.token_share);
        assert!((exact.request_share - sampled.request_share).abs() < 0.03, "{}", sampled.request_share);
        assert!(exact.distinct_blocks.abs_diff(sampled.distinct_blocks) < exact.distinct_blocks / 20);
    }

    #[test]
    fn what_all_prompts_begin_with_is_counted_whatever_the_sample() {
        let mut reuse = PrefixReuse::new(None);
        reuse.endless.halvings = 12;
        for n in 0..40_000_u64 {
            let own = (n + 1) << 20;
            reuse.take(&PrefixLookup { ids: &[7, own, own + 1, own + 2], block: 16, tokens: None });
        }
        let share = reuse.caches()[0].token_share;
        assert!((share - 0.25).abs() < 0.001, "{share}");
    }
}
