//! The caches of all pods.

use std::collections::{BTreeMap, HashMap};

use super::cache_sizes::CacheSizes;
use crate::stats::prefix_cache::{LruCache, MAX_CACHE_BLOCKS, UnboundedCache};
use crate::trace::error::TraceProblem;

/// Maximum number of pods.
pub const MAX_PODS: usize = 1_024;
/// Maximum blocks in the caches of all pods together: 350 MB.
pub const MAX_FLEET_BLOCKS: usize = 4 * MAX_CACHE_BLOCKS;
/// Ids that one of several pods counts exactly. One pod counts as many as the cache over all pods.
const MAX_POD_IDS: usize = 500_000;

/// An endless cache for each pod, and one of limited size.
pub(super) struct PodCaches {
    names: HashMap<String, usize>,
    endless: Vec<UnboundedCache>,
    sizes: CacheSizes,
    /// Sizes and caches; empty if no size is known.
    bounded: Vec<(usize, LruCache)>,
    bounded_blocks: usize,
}

impl PodCaches {
    pub(super) fn new(sizes: CacheSizes) -> Self {
        Self { names: HashMap::new(), endless: Vec::new(), sizes, bounded: Vec::new(), bounded_blocks: 0 }
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
        if self.sizes.is_known() {
            let blocks = self.sizes.of(name).ok_or_else(|| {
                let problem = TraceProblem::new(format!("the size of the cache of pod `{name}` is unknown"));
                problem.with_remedy("--server-metrics with its page, or with one page for all pods")
            })?;
            self.bounded_blocks = self.bounded_blocks.saturating_add(blocks);
            if self.bounded_blocks > MAX_FLEET_BLOCKS {
                let problem = format!(
                    "the caches of {} pods have {} blocks, more than {MAX_FLEET_BLOCKS}",
                    pod + 1,
                    self.bounded_blocks
                );
                return Err(TraceProblem::new(problem + "; give captures of fewer pods, or of larger blocks"));
            }
            self.bounded.push((blocks, LruCache::new(blocks)));
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
        self.bounded.get_mut(pod).map(|(_, cache)| cache.take(ids))
    }

    /// Size of the pod's cache, in blocks; `None` if unknown.
    pub(super) fn cache_blocks(&self, pod: usize) -> Option<usize> {
        self.bounded.get(pod).map(|(blocks, _)| *blocks)
    }

    /// Size of each pod's cache, by the pod's name.
    pub(super) fn sizes(&self) -> BTreeMap<String, usize> {
        self.names.keys().filter_map(|name| Some((name.clone(), self.sizes.of(name)?))).collect()
    }

    /// Checks that each pod with a size of its own has occurred.
    pub(super) fn check_names(&self) -> Result<(), TraceProblem> {
        match self.sizes.name_without_pod(self.names.keys()) {
            None => Ok(()),
            Some(name) => {
                let problem = TraceProblem::new(format!("no pod is named `{name}`, whose metrics page was given"));
                Err(problem.with_remedy("`--by pod` lists the names; a capture or instance names its pods"))
            }
        }
    }

    pub(super) fn sampled_one_of(&self) -> u64 {
        self.endless.iter().map(UnboundedCache::sampled_one_of).max().unwrap_or(1)
    }
}
