//! The caches of all pods.

use std::collections::HashMap;

use crate::stats::prefix_cache::{LruCache, MAX_CACHE_BLOCKS, UnboundedCache};
use crate::trace::error::TraceProblem;

/// Maximum number of pods.
pub const MAX_PODS: usize = 1_024;
/// Maximum blocks in the caches of all pods together: 250 MB.
pub const MAX_FLEET_BLOCKS: usize = 4 * MAX_CACHE_BLOCKS;
/// Ids that one of several pods counts exactly. One pod counts as many as the cache over all pods.
const MAX_POD_IDS: usize = 500_000;

/// An endless cache for each pod, and one of limited size.
pub(super) struct PodCaches {
    names: HashMap<String, usize>,
    endless: Vec<UnboundedCache>,
    bounded: Option<(usize, Vec<LruCache>)>,
}

impl PodCaches {
    pub(super) fn new(cache_blocks: Option<usize>) -> Self {
        Self { names: HashMap::new(), endless: Vec::new(), bounded: cache_blocks.map(|blocks| (blocks, Vec::new())) }
    }

    pub(super) fn len(&self) -> usize {
        self.endless.len()
    }

    /// The number of the pod with this name.
    pub(super) fn of(&mut self, name: &str) -> Result<usize, TraceProblem> {
        if let Some(pod) = self.names.get(name) {
            return Ok(*pod);
        }
        let pod = self.endless.len();
        if pod == MAX_PODS {
            return Err(TraceProblem::new(format!("more than {MAX_PODS} servers; give captures of fewer pods")));
        }
        if let Some((blocks, caches)) = &mut self.bounded {
            if (pod + 1).saturating_mul(*blocks) > MAX_FLEET_BLOCKS {
                let problem = format!("{} caches of {blocks} blocks are more than {MAX_FLEET_BLOCKS} blocks", pod + 1);
                return Err(TraceProblem::new(problem + "; give captures of fewer pods, or of larger blocks"));
            }
            caches.push(LruCache::new(*blocks));
        }
        self.endless.push(UnboundedCache::with_limit(MAX_POD_IDS));
        self.names.insert(name.to_owned(), pod);
        Ok(pod)
    }

    /// Hits of the pod's endless cache.
    pub(super) fn endless(&mut self, pod: usize, ids: &[u64]) -> u64 {
        let (counted, estimated) = self.endless[pod].take(ids);
        counted + estimated
    }

    /// Hits of the pod's cache of limited size.
    pub(super) fn bounded(&mut self, pod: usize, ids: &[u64]) -> Option<u64> {
        self.bounded.as_mut().map(|(_, caches)| caches[pod].take(ids))
    }

    pub(super) fn sampled_one_of(&self) -> u64 {
        self.endless.iter().map(UnboundedCache::sampled_one_of).max().unwrap_or(1)
    }
}
