//! KV-cache blocks and the prefix cache.
//!
//! A block has a fixed number of tokens. A full block of prompt is *cached*: its key is the hash of everything up to
//! its end, and all sequences with that prefix share it. Without users it remains until its space is needed (LRU
//! eviction). All other blocks are *private* to one sequence.

use std::collections::VecDeque;

use ahash::AHashMap;

/// Stale entries of `releases` that are worth a pass over all of them.
const MIN_STALE_RELEASES: usize = 1_024;

/// The block pool. `private` + `cached` never exceeds `total`.
#[derive(Debug)]
pub(super) struct BlockPool {
    total: u32,
    block_tokens: u32,
    private: u32,
    cached: AHashMap<u64, CachedBlock>,
    /// Number of cached blocks without users.
    idle: u32,
    /// Releases of cached blocks, `(tick, hash)` in order. An entry is stale if its block was used again or evicted.
    releases: VecDeque<(u64, u64)>,
    next_tick: u64,
    reuse: bool,
}

#[derive(Debug)]
struct CachedBlock {
    users: u32,
    /// Tick of the last release; valid only while `users` is zero.
    let_go: u64,
}

#[derive(Debug, Default)]
pub(super) struct BlockLease {
    /// Hashes of the cached blocks, in text order.
    shared: Vec<u64>,
    private: u32,
    /// Full prompt blocks that are decided: shared, or private copies of a block cached by another sequence.
    settled: usize,
    /// Tokens that fit into all blocks.
    capacity: u32,
}

impl BlockLease {
    fn count(&self) -> u32 {
        u32::try_from(self.shared.len()).unwrap_or(u32::MAX).saturating_add(self.private)
    }

    /// Adds private blocks.
    fn extend(&mut self, blocks: u32, block_tokens: u32) {
        if blocks > 0 {
            self.private += blocks;
            self.capacity = self.count().saturating_mul(block_tokens);
        }
    }
}

impl BlockPool {
    /// An empty pool of `total` blocks. Without `reuse`, it caches nothing.
    pub(super) fn new(total: u32, block_tokens: u32, reuse: bool) -> Self {
        Self {
            total,
            block_tokens,
            private: 0,
            cached: AHashMap::new(),
            idle: 0,
            releases: VecDeque::new(),
            next_tick: 0,
            reuse,
        }
    }

    /// Tokens of the cached blocks that `held` shares.
    pub(super) fn shared_tokens(&self, held: &BlockLease) -> u32 {
        u32::try_from(held.shared.len()).unwrap_or(u32::MAX).saturating_mul(self.block_tokens)
    }

    /// Share of blocks in use by sequences, 0 to 1. Cached blocks without users count as free.
    pub(super) fn usage(&self) -> f64 {
        if self.total == 0 { 0.0 } else { f64::from(self.total - self.free()) / f64::from(self.total) }
    }

    /// Available blocks, including cached ones without users.
    pub(super) fn free(&self) -> u32 {
        self.unclaimed().saturating_add(self.idle)
    }

    /// Blocks that `held` lacks for `tokens`.
    pub(super) fn missing(&self, held: &BlockLease, tokens: u32) -> u32 {
        if tokens <= held.capacity {
            return 0;
        }
        tokens.div_ceil(self.block_tokens).saturating_sub(held.count())
    }

    /// The most blocks that a sequence can lack for `tokens` more than it has computed.
    pub(super) fn most_missing(&self, tokens: u64) -> u64 {
        tokens.div_ceil(u64::from(self.block_tokens)).saturating_add(1)
    }

    pub(super) fn block_tokens(&self) -> usize {
        usize::try_from(self.block_tokens).unwrap_or(usize::MAX)
    }

    /// Tokens that still fit into the last block after `tokens`; `None` if `held` has too few blocks for them, or more.
    pub(super) fn spare_tokens(&self, held: &BlockLease, tokens: u32) -> Option<usize> {
        let spare = held.capacity.checked_sub(tokens).filter(|spare| *spare < self.block_tokens)?;
        usize::try_from(spare).ok()
    }

    /// Takes `count` blocks that belong to no sequence yet. Returns `false` and changes nothing if the pool is full.
    pub(super) fn reserve(&mut self, count: u64) -> bool {
        let Ok(count) = u32::try_from(count) else { return false };
        if !self.make_room(count) {
            return false;
        }
        self.private += count;
        true
    }

    /// Gives `held` what it lacks for `tokens` of the blocks that were reserved.
    pub(super) fn assign(&self, held: &mut BlockLease, tokens: u32) {
        held.extend(self.missing(held, tokens), self.block_tokens);
    }

    fn unclaimed(&self) -> u32 {
        let cached = u32::try_from(self.cached.len()).unwrap_or(u32::MAX);
        self.total.saturating_sub(self.private).saturating_sub(cached)
    }

    /// Takes the longest cached prefix of `chain` that leaves at least one of `tokens` to compute, because the first
    /// output token needs a computed input token.
    pub(super) fn adopt(&mut self, chain: &[u64], tokens: u32) -> BlockLease {
        let mut held = BlockLease::default();
        for hash in chain.iter().take(self.most_cached(tokens)) {
            let Some(block) = self.cached.get_mut(hash) else { break };
            self.idle -= u32::from(block.users == 0);
            block.users += 1;
            held.shared.push(*hash);
        }
        held.settled = held.shared.len();
        held.capacity = self.shared_tokens(&held);
        held
    }

    fn most_cached(&self, tokens: u32) -> usize {
        usize::try_from(tokens.saturating_sub(1) / self.block_tokens).unwrap_or(usize::MAX)
    }

    /// Tokens that [`adopt`](Self::adopt) would find.
    pub(super) fn cached_tokens(&self, chain: &[u64], tokens: u32) -> u32 {
        let found = chain.iter().take(self.most_cached(tokens)).take_while(|hash| self.cached.contains_key(hash));
        u32::try_from(found.count()).unwrap_or(u32::MAX).saturating_mul(self.block_tokens)
    }

    /// Extends `held` to `tokens`, and evicts unused blocks if necessary. Returns `false` and changes nothing if the
    /// pool is full.
    pub(super) fn grow(&mut self, held: &mut BlockLease, tokens: u32) -> bool {
        let missing = self.missing(held, tokens);
        if !self.make_room(missing) {
            return false;
        }
        self.private += missing;
        held.extend(missing, self.block_tokens);
        true
    }

    /// Evicts unused blocks until `count` are unclaimed. Returns `false` and changes nothing if they are too few.
    fn make_room(&mut self, count: u32) -> bool {
        if count > self.free() {
            return false;
        }
        while self.unclaimed() < count {
            let Some(released) = self.releases.pop_front() else { return false };
            if self.is_current(released) {
                self.cached.remove(&released.1);
                self.idle -= 1;
            }
        }
        true
    }

    /// True if the block of this release has not been used since.
    fn is_current(&self, (tick, hash): (u64, u64)) -> bool {
        self.cached.get(&hash).is_some_and(|block| block.users == 0 && block.let_go == tick)
    }

    /// Caches the prompt blocks that `computed` tokens fill. A block that another sequence has cached meanwhile stays
    /// private as a duplicate, as in vLLM.
    pub(super) fn publish(&mut self, held: &mut BlockLease, chain: &[u64], computed: u32) {
        if !self.reuse || held.settled >= chain.len() {
            return;
        }
        let full = usize::try_from(computed / self.block_tokens).unwrap_or(usize::MAX).min(chain.len());
        while held.settled < full {
            let hash = chain[held.settled];
            held.settled += 1;
            if !self.cached.contains_key(&hash) && held.private > 0 {
                self.cached.insert(hash, CachedBlock { users: 1, let_go: 0 });
                self.private -= 1;
                held.private -= 1;
                held.shared.push(hash);
            }
        }
    }

    /// Releases all blocks. Later blocks of a chain go first, because they are useless without the earlier ones.
    pub(super) fn release(&mut self, held: BlockLease) {
        self.private -= held.private;
        for hash in held.shared.into_iter().rev() {
            let Some(block) = self.cached.get_mut(&hash) else { continue };
            block.users -= 1;
            if block.users == 0 {
                block.let_go = self.next_tick;
                self.idle += 1;
                self.releases.push_back((self.next_tick, hash));
                self.next_tick += 1;
            }
        }
        self.drop_stale_releases();
    }

    /// Keeps the memory of `releases` proportional to the number of idle blocks.
    fn drop_stale_releases(&mut self) {
        let live = usize::try_from(self.idle).unwrap_or(usize::MAX);
        if self.releases.len() < live.saturating_mul(2).saturating_add(MIN_STALE_RELEASES) {
            return;
        }
        let mut releases = std::mem::take(&mut self.releases);
        releases.retain(|released| self.is_current(*released));
        self.releases = releases;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(blocks: &mut BlockPool, chain: &[u64], tokens: u32) -> BlockLease {
        let mut held = blocks.adopt(chain, tokens);
        assert!(blocks.grow(&mut held, tokens));
        blocks.publish(&mut held, chain, tokens);
        held
    }

    #[test]
    fn a_prefix_is_found_again_but_never_the_whole_prompt() {
        let mut blocks = BlockPool::new(10, 16, true);
        let first = run(&mut blocks, &[1, 2, 3], 48);
        blocks.release(first);
        assert_eq!(blocks.adopt(&[1, 2, 3], 48).shared, [1, 2]);
        assert_eq!(blocks.adopt(&[1, 2, 3, 4], 64).shared, [1, 2, 3]);
        assert_eq!(blocks.adopt(&[1, 9, 3], 48).shared, [1]);
    }

    #[test]
    fn blocks_that_nobody_uses_count_as_free_and_are_evicted_tail_first() {
        let mut blocks = BlockPool::new(4, 16, true);
        let first = run(&mut blocks, &[1, 2, 3], 48);
        assert_eq!(blocks.usage(), 0.75);
        blocks.release(first);
        assert_eq!(blocks.usage(), 0.0);
        let mut other = BlockLease::default();
        assert!(blocks.grow(&mut other, 32));
        assert_eq!(blocks.adopt(&[1, 2, 3], 64).shared, [1, 2]);
    }

    #[test]
    fn a_full_pool_refuses_and_stays_as_it_was() {
        let mut blocks = BlockPool::new(4, 16, true);
        let first = run(&mut blocks, &[1, 2, 3], 48);
        let mut other = BlockLease::default();
        assert!(!blocks.grow(&mut other, 17));
        assert_eq!(other.count(), 0);
        assert!(blocks.grow(&mut other, 16));
        blocks.release(first);
        blocks.release(other);
        assert_eq!(blocks.usage(), 0.0);
    }

    #[test]
    fn two_that_compute_the_same_block_hold_a_double() {
        let mut blocks = BlockPool::new(4, 16, true);
        let (mut a, mut b) = (BlockLease::default(), BlockLease::default());
        assert!(blocks.grow(&mut a, 16) && blocks.grow(&mut b, 16));
        blocks.publish(&mut a, &[7], 16);
        blocks.publish(&mut b, &[7], 16);
        assert_eq!((a.private, b.private), (0, 1));
        assert_eq!(blocks.usage(), 0.5);
    }

    #[test]
    fn a_block_that_is_used_again_and_again_takes_no_more_memory() {
        let mut blocks = BlockPool::new(4, 16, true);
        for _ in 0..100_000 {
            let held = run(&mut blocks, &[1, 2, 3], 48);
            blocks.release(held);
        }
        assert!(blocks.releases.len() < 2 * MIN_STALE_RELEASES, "{}", blocks.releases.len());
        assert_eq!(blocks.idle, 3);
    }

    #[test]
    fn without_reuse_nothing_is_cached() {
        let mut blocks = BlockPool::new(4, 16, false);
        let first = run(&mut blocks, &[1, 2, 3], 48);
        blocks.release(first);
        assert!(blocks.adopt(&[1, 2, 3], 48).shared.is_empty());
    }
}
