//! What a cache of prompt blocks would have: one without end, and one of a given size that forgets what was used
//! longest ago.
//!
//! A request's hit is its longest prefix of blocks that are in the cache when it comes; its own blocks go in after it.
//! The endless cache is exact up to 3.5 million different blocks, up to thirty times as many where their ids follow each
//! other, and in a diff of two traces up to a quarter of that. Beyond it looks at a sample of the ids, neighbours together,
//! that halves as they grow: an id hangs on all before it, so that each of the sample that was seen before stands for as
//! many blocks that hit as there are ids to each of the sample.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::block_id_set::{BlockIdSet, IdRun};
use super::locality_hash::BuildLocalityHasher;

/// Places for different blocks that the endless cache has: 50 MB. A table of 2^22 places has room for 170,000 more, which
/// the row may take that goes beyond it, and is not made twice as large for them.
const MAX_IDS: usize = 3_500_000;
/// Neighbourhoods of ids that stay in the sample.
const FIRST: usize = 1 << 12;
/// Blocks that a cache of a given size may have.
pub const MAX_CACHE_BLOCKS: usize = 1 << 20;

/// An id that hangs on two others, and is another for any other two (splitmix64 over their sum).
pub fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(25) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What a cache would have had.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PrefixCache {
    /// Its size in blocks; absent for an endless one.
    pub blocks: Option<u64>,
    /// Blocks of all prompts.
    pub asked_blocks: u64,
    /// Those that were in the cache.
    pub hit_blocks: u64,
    /// Share of all prompt tokens that were in the cache.
    pub token_share: f64,
    /// The mean of every request's own share.
    pub request_share: f64,
    /// Different blocks.
    pub distinct_blocks: u64,
    /// Of so many ids one was looked at; 1 is exact.
    pub sampled_one_of: u64,
}

/// A request's prompt, as a cache sees it.
#[derive(Clone, Copy)]
pub struct PrefixLookup<'a> {
    /// Its blocks, chained: an id stands for everything before it too.
    pub ids: &'a [u64],
    /// Tokens of a block.
    pub block: u64,
    /// Its tokens, where they are known.
    pub tokens: Option<u64>,
}

/// Takes prompts in and says what caches would have had of them.
#[derive(Clone, Debug, Default)]
pub struct PrefixReuse {
    endless: UnboundedCache,
    bounded: Option<LruCache>,
    sums: [HitSums; 2],
    /// The same for blocks of other sizes, in tokens: hits do not depend on the size, what they come to does.
    of_sizes: Vec<(u64, [HitSums; 2])>,
}

#[derive(Clone, Copy, Debug, Default)]
struct HitSums {
    asked: u64,
    hit: u64,
    tokens: f64,
    hit_tokens: f64,
    requests: u64,
    shares: f64,
}

impl HitSums {
    /// Counts a request of which so many leading blocks hit, and by the sample so many more.
    fn take(&mut self, seen: &PrefixLookup<'_>, hit: u64, estimated: u64) {
        let (asked, size) = (seen.ids.len() as u64, seen.block);
        // Without a count of tokens its full blocks are its length.
        let tokens = seen.tokens.unwrap_or(asked * size) as f64;
        // Only a last block that was counted is known to have fewer tokens than the others.
        let hit_tokens = ((hit * size) as f64).min(tokens) + estimated as f64 * size as f64;
        self.asked += asked;
        self.hit = self.hit.saturating_add(hit).saturating_add(estimated);
        self.tokens += tokens;
        self.hit_tokens += hit_tokens;
        self.requests += 1;
        self.shares += if tokens > 0.0 { hit_tokens / tokens } else { 0.0 };
    }

    fn cache(&self, blocks: Option<u64>, distinct: u64, sampled: u64) -> PrefixCache {
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        PrefixCache {
            blocks,
            asked_blocks: self.asked,
            hit_blocks: self.hit,
            token_share: share(self.hit_tokens, self.tokens),
            request_share: share(self.shares, self.requests as f64),
            distinct_blocks: distinct,
            sampled_one_of: sampled,
        }
    }
}

impl PrefixReuse {
    /// Of an endless cache, and of one of so many blocks.
    pub fn new(cache_blocks: Option<usize>) -> Self {
        let bounded = cache_blocks.map(|blocks| LruCache::new(blocks.min(MAX_CACHE_BLOCKS)));
        Self { endless: UnboundedCache::default(), bounded, sums: [HitSums::default(); 2], of_sizes: Vec::new() }
    }

    /// The same, which can also tell what it comes to with blocks of these sizes.
    pub fn with_sizes(mut self, sizes: impl Iterator<Item = u64>) -> Self {
        self.of_sizes = sizes.map(|size| (size, [HitSums::default(); 2])).collect();
        self
    }

    /// The same for one of two traces that are read side by side: each keeps a quarter of the blocks.
    pub fn for_comparison(mut self) -> Self {
        self.endless.most = MAX_IDS / 4;
        self
    }

    /// One prompt more.
    pub fn take(&mut self, seen: &PrefixLookup<'_>) {
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
    }

    /// What the caches would have had, the endless one first; none without a block.
    pub fn caches(&self) -> Vec<PrefixCache> {
        self.caches_of(&self.sums)
    }

    /// The same if blocks were of this size, one of those that it was made with.
    pub fn caches_with(&self, size: u64) -> Option<Vec<PrefixCache>> {
        self.of_sizes.iter().find(|(other, _)| *other == size).map(|(_, sums)| self.caches_of(sums))
    }

    fn caches_of(&self, sums: &[HitSums; 2]) -> Vec<PrefixCache> {
        if sums[0].asked == 0 {
            return Vec::new();
        }
        let distinct = self.endless.distinct();
        let mut caches = vec![sums[0].cache(None, distinct, 1 << self.endless.halvings)];
        caches.extend(self.bounded.as_ref().map(|lru| sums[1].cache(Some(lru.room as u64), distinct, 1)));
        caches
    }
}

/// A cache that forgets nothing.
#[derive(Clone, Debug)]
struct UnboundedCache {
    seen: BlockIdSet,
    most: usize,
    /// The neighbourhoods that came first, which are never left out: what all prompts begin with is among them, and would
    /// be everything or nothing in a sample.
    first: HashSet<u64, BuildLocalityHasher>,
    halvings: u32,
}

impl Default for UnboundedCache {
    fn default() -> Self {
        Self { seen: BlockIdSet::default(), most: MAX_IDS, first: HashSet::default(), halvings: 0 }
    }
}

/// Whether a neighbourhood of ids is in the sample after so many halvings.
fn in_sample(key: u64, halvings: u32) -> bool {
    halvings == 0 || mix(key, 0x7265_7573) <= u64::MAX >> halvings
}

impl UnboundedCache {
    /// Leading blocks that were seen before: those that are counted, and how many more there are by the sample.
    fn take(&mut self, ids: &[u64]) -> (u64, u64) {
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
            // Once missed, all later ones are: a hit is a prefix. A request's own blocks are not its hits.
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

    /// Different blocks that it has seen.
    fn distinct(&self) -> u64 {
        let stay = self.seen.count(|key| self.first.contains(&key));
        let others = (self.seen.len() - stay) as u64;
        others.saturating_mul(1 << self.halvings).saturating_add(stay as u64)
    }
}

const NONE: u32 = u32::MAX;

/// A cache of so many blocks; the one that was used longest ago goes first, and of one prompt the last block first.
#[derive(Clone, Debug)]
struct LruCache {
    room: usize,
    at: HashMap<u64, u32, BuildLocalityHasher>,
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
    fn new(room: usize) -> Self {
        // What is removed leaves marks: a table that is half empty sweeps them out, and a fuller one would double.
        let at = HashMap::with_capacity_and_hasher(2 * room + 2, BuildLocalityHasher);
        Self { room, at, slots: Vec::new(), newest: NONE, oldest: NONE }
    }

    /// Leading blocks that are in it; then it has the request's blocks.
    fn take(&mut self, ids: &[u64]) -> u64 {
        let hit = ids.iter().take_while(|id| self.at.contains_key(id)).count() as u64;
        // The last first, so that the first is the newest: without it the others are of no use.
        for id in ids.iter().take(self.room).rev() {
            self.touch(*id);
        }
        hit
    }

    fn touch(&mut self, id: u64) {
        let slot = match self.at.get(&id) {
            Some(slot) => {
                let slot = *slot;
                self.unlink(slot);
                slot
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
        self.slots[slot as usize] = LruSlot { id, newer: NONE, older: self.newest };
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.slots[newest as usize].newer = slot,
        }
        self.newest = slot;
        self.at.insert(id, slot);
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

    fn run(reuse: &mut PrefixReuse, prompts: &[&[u64]]) -> Vec<PrefixCache> {
        prompts.iter().for_each(|ids| reuse.take(&PrefixLookup { ids, block: 16, tokens: None }));
        reuse.caches()
    }

    #[test]
    fn a_hit_is_a_prefix_and_a_requests_own_blocks_are_none() {
        let caches = run(&mut PrefixReuse::new(None), &[&[1, 2, 3], &[1, 2, 4, 3], &[5, 2], &[7, 7]]);
        // Of the second two; of the third none, for 5 is new; a block twice in one prompt is no hit.
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
                // Half of every prompt of 64 was there before, but for the first of each of 2,000 families.
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
