//! Replays the trace through the same caches with other routing.
//!
//! By session, each session stays on its first pod. By prefix, a request goes to the pod that holds the longest prefix
//! of its prompt. If that is less than [half](MIN_PREFIX_SHARE) of it, the request goes to the pod with the fewest
//! prompt blocks so far. SGLang's cache-aware router works so, with the same threshold.

use crate::stats::prefix_cache::LruCache;
use crate::trace::conversion_loss::ConversionLosses;
use crate::trace::session_table::SessionTable;

/// A shorter prefix does not decide: the common start of all prompts would send them all to one pod.
const MIN_PREFIX_SHARE: f64 = 0.5;

/// Caches of all pods under each policy.
pub(super) struct StickyRouting {
    by_session: Vec<LruCache>,
    by_prefix: Vec<LruCache>,
    /// Prompt blocks that each pod got by prefix.
    assigned_blocks: Vec<u64>,
    /// Pods that have served each model.
    model_pods: Vec<(u64, Vec<usize>)>,
    first_pods: SessionTable<usize>,
}

/// Hits of one request, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StickyHits {
    pub(super) by_session: u64,
    pub(super) by_prefix: u64,
}

impl StickyRouting {
    pub(super) fn new(losses: &ConversionLosses) -> Self {
        Self {
            by_session: Vec::new(),
            by_prefix: Vec::new(),
            assigned_blocks: Vec::new(),
            model_pods: Vec::new(),
            first_pods: SessionTable::new(losses),
        }
    }

    /// Adds a request that `pod` served, whose cache has `blocks`. `None` without a cache size.
    pub(super) fn take(
        &mut self,
        session: Option<&str>,
        (model, pod, blocks): (u64, usize, Option<usize>),
        ids: &[u64],
    ) -> Option<StickyHits> {
        let blocks = blocks?;
        // Pods are numbered in order of their first request.
        for caches in [&mut self.by_session, &mut self.by_prefix] {
            while caches.len() <= pod {
                caches.push(LruCache::new(blocks));
            }
        }
        self.assigned_blocks.resize(self.by_prefix.len(), 0);
        let home = match session {
            Some(session) => self.first_pods.get(session).copied().unwrap_or_else(|| {
                self.first_pods.insert(session, pod);
                pod
            }),
            None => pod,
        };
        let best = self.pod_by_prefix(model, pod, ids);
        Some(StickyHits { by_session: self.by_session[home].take(ids), by_prefix: self.by_prefix[best].take(ids) })
    }

    fn pod_by_prefix(&mut self, model: u64, pod: usize, ids: &[u64]) -> usize {
        let at = self.model_pods.iter().position(|(known, _)| *known == model).unwrap_or_else(|| {
            self.model_pods.push((model, Vec::new()));
            self.model_pods.len() - 1
        });
        let pods = &mut self.model_pods[at].1;
        if !pods.contains(&pod) {
            pods.push(pod);
        }
        let held = |pod: &usize| self.by_prefix[*pod].cached_prefix(ids);
        let longest = pods
            .iter()
            .copied()
            .max_by_key(held)
            .filter(|pod| held(pod) > 0 && held(pod) as f64 >= MIN_PREFIX_SHARE * ids.len() as f64);
        let least = pods.iter().copied().min_by_key(|pod| self.assigned_blocks[*pod]);
        let chosen = longest.or(least).unwrap_or(pod);
        self.assigned_blocks[chosen] += ids.len() as u64;
        chosen
    }
}
