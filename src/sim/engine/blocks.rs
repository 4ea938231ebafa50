//! KV-cache blocks and the prefix cache.
//!
//! A block has [`BLOCK_TOKENS`] tokens. A full block of prompt is *cached*: its key is the hash of everything up to
//! its end, and all sequences with that prefix share it. Without users it remains until its space is needed (LRU
//! eviction). All other blocks are *private* to one sequence.

use std::collections::{BTreeMap, HashMap};

use crate::sim::options::BLOCK_TOKENS;

/// The block pool. `private` + `cached` never exceeds `total`.
#[derive(Debug)]
pub(super) struct BlockPool {
    total: u32,
    private: u32,
    cached: HashMap<u64, CachedBlock>,
    /// Cached blocks without users, ordered by release.
    idle: BTreeMap<u64, u64>,
    next_tick: u64,
    reuse: bool,
}

#[derive(Debug)]
struct CachedBlock {
    users: u32,
    /// Key in `idle`; valid only while `users` is zero.
    let_go: u64,
}

#[derive(Debug, Default)]
pub(super) struct BlockLease {
    /// Hashes of the cached blocks, in text order.
    shared: Vec<u64>,
    private: u32,
    /// Full prompt blocks that are decided: shared, or private copies of a block cached by another sequence.
    settled: usize,
}

impl BlockLease {
    pub(super) fn tokens(&self) -> u32 {
        u32::try_from(self.shared.len()).unwrap_or(u32::MAX).saturating_mul(BLOCK_TOKENS)
    }

    fn count(&self) -> u32 {
        u32::try_from(self.shared.len()).unwrap_or(u32::MAX).saturating_add(self.private)
    }
}

impl BlockPool {
    /// An empty pool of `total` blocks. Without `reuse`, it caches nothing.
    pub(super) fn new(total: u32, reuse: bool) -> Self {
        Self { total, private: 0, cached: HashMap::new(), idle: BTreeMap::new(), next_tick: 0, reuse }
    }

    /// Share of blocks in use by sequences, 0 to 1. Cached blocks without users count as free.
    pub(super) fn usage(&self) -> f64 {
        if self.total == 0 { 0.0 } else { f64::from(self.total - self.free()) / f64::from(self.total) }
    }

    /// Available blocks, including cached ones without users.
    fn free(&self) -> u32 {
        let idle = u32::try_from(self.idle.len()).unwrap_or(u32::MAX);
        self.unclaimed().saturating_add(idle)
    }

    fn unclaimed(&self) -> u32 {
        let cached = u32::try_from(self.cached.len()).unwrap_or(u32::MAX);
        self.total.saturating_sub(self.private).saturating_sub(cached)
    }

    /// Takes the longest cached prefix of `chain` that leaves at least one of `tokens` to compute, because the first
    /// output token needs a computed input token.
    pub(super) fn adopt(&mut self, chain: &[u64], tokens: u32) -> BlockLease {
        let mut held = BlockLease::default();
        let most = usize::try_from(tokens.saturating_sub(1) / BLOCK_TOKENS).unwrap_or(usize::MAX);
        for hash in chain.iter().take(most) {
            let Some(block) = self.cached.get_mut(hash) else { break };
            if block.users == 0 {
                self.idle.remove(&block.let_go);
            }
            block.users += 1;
            held.shared.push(*hash);
        }
        held.settled = held.shared.len();
        held
    }

    /// Extends `held` to `tokens`, and evicts unused blocks if necessary. Returns `false` and changes nothing if the
    /// pool is full.
    pub(super) fn grow(&mut self, held: &mut BlockLease, tokens: u32) -> bool {
        let missing = tokens.div_ceil(BLOCK_TOKENS).saturating_sub(held.count());
        if missing > self.free() {
            return false;
        }
        while self.unclaimed() < missing {
            let Some((_, hash)) = self.idle.pop_first() else { return false };
            self.cached.remove(&hash);
        }
        self.private += missing;
        held.private += missing;
        true
    }

    /// Caches the prompt blocks that `computed` tokens fill. A block that another sequence has cached meanwhile stays
    /// private as a duplicate, as in vLLM.
    pub(super) fn publish(&mut self, held: &mut BlockLease, chain: &[u64], computed: u32) {
        if !self.reuse {
            return;
        }
        let full = usize::try_from(computed / BLOCK_TOKENS).unwrap_or(usize::MAX).min(chain.len());
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
                self.idle.insert(self.next_tick, hash);
                self.next_tick += 1;
            }
        }
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
        let mut blocks = BlockPool::new(10, true);
        let first = run(&mut blocks, &[1, 2, 3], 48);
        blocks.release(first);
        assert_eq!(blocks.adopt(&[1, 2, 3], 48).shared, [1, 2]);
        assert_eq!(blocks.adopt(&[1, 2, 3, 4], 64).shared, [1, 2, 3]);
        assert_eq!(blocks.adopt(&[1, 9, 3], 48).shared, [1]);
    }

    #[test]
    fn blocks_that_nobody_uses_count_as_free_and_are_evicted_tail_first() {
        let mut blocks = BlockPool::new(4, true);
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
        let mut blocks = BlockPool::new(4, true);
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
        let mut blocks = BlockPool::new(4, true);
        let (mut a, mut b) = (BlockLease::default(), BlockLease::default());
        assert!(blocks.grow(&mut a, 16) && blocks.grow(&mut b, 16));
        blocks.publish(&mut a, &[7], 16);
        blocks.publish(&mut b, &[7], 16);
        assert_eq!((a.private, b.private), (0, 1));
        assert_eq!(blocks.usage(), 0.5);
    }

    #[test]
    fn without_reuse_nothing_is_cached() {
        let mut blocks = BlockPool::new(4, false);
        let first = run(&mut blocks, &[1, 2, 3], 48);
        blocks.release(first);
        assert!(blocks.adopt(&[1, 2, 3], 48).shared.is_empty());
    }
}
