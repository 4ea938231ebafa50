//! Sums of hits over requests, and the losses between them.

use std::ops::AddAssign;

use schemars::JsonSchema;
use serde::Serialize;

/// How sessions move between pods. Each is counted with the request where it is seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SessionMoves {
    /// Sessions with at least two requests.
    pub repeated: u64,
    /// Those that changed their pod at least once.
    pub moved: u64,
    /// Later requests of a session.
    pub later_requests: u64,
    /// Those that went to another pod than the request before.
    pub moved_requests: u64,
}

impl AddAssign for SessionMoves {
    fn add_assign(&mut self, other: Self) {
        self.repeated += other.repeated;
        self.moved += other.moved;
        self.later_requests += other.later_requests;
        self.moved_requests += other.moved_requests;
    }
}

/// Hits of a group of requests, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(into = "ReuseChain")]
pub struct ReuseSums {
    /// Requests.
    pub requests: u64,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Reuse in the workload: hits of an endless cache over all pods.
    pub offered_tokens: u64,
    /// Hits of an endless cache per pod.
    pub routed_tokens: u64,
    /// Hits of an LRU cache of the pods' size; `None` if the size is unknown.
    pub fitted_tokens: Option<u64>,
    /// The part of `fitted_tokens` in requests whose response reports the engine's hits.
    pub fitted_where_reported: Option<u64>,
    /// Hits that engines reported; `None` if none did.
    pub cached_tokens: Option<u64>,
    /// Hits of the same LRU caches if each session stayed on its first pod.
    pub sticky_session_tokens: Option<u64>,
    /// Hits of the same LRU caches if each request went to the pod with its longest prefix.
    pub sticky_prefix_tokens: Option<u64>,
    /// Sessions, and those that changed their pod.
    pub sessions: SessionMoves,
    /// Largest error of each figure; `None` if blocks are those of the engines, so that figures are exact.
    pub error_bound_tokens: Option<u64>,
}

impl ReuseSums {
    /// Adds a request's hits in the LRU cache, and those that its response reports.
    pub(super) fn add_fitted(&mut self, fitted: u64, cached: Option<u64>) {
        let fitted = fitted.min(self.routed_tokens);
        add(&mut self.fitted_tokens, Some(fitted));
        if cached.is_some() {
            add(&mut self.fitted_where_reported, Some(fitted));
            add(&mut self.cached_tokens, cached);
        }
    }

    /// Reuse that another pod's cache had.
    pub fn lost_by_routing(&self) -> u64 {
        self.offered_tokens - self.routed_tokens
    }

    /// Reuse that the pod's cache had evicted.
    pub fn lost_to_capacity(&self) -> Option<u64> {
        Some(self.routed_tokens - self.fitted_tokens?)
    }

    /// Reuse that the engine should have had and did not report; negative if it reported more.
    pub fn lost_otherwise(&self) -> Option<i64> {
        Some(self.fitted_where_reported?.cast_signed() - self.cached_tokens?.cast_signed())
    }

    /// Hits that sticky routing by session would add.
    pub fn sticky_session_gain(&self) -> Option<i64> {
        Some(self.sticky_session_tokens?.cast_signed() - self.fitted_tokens?.cast_signed())
    }

    /// Hits that routing by prefix would add.
    pub fn sticky_prefix_gain(&self) -> Option<i64> {
        Some(self.sticky_prefix_tokens?.cast_signed() - self.fitted_tokens?.cast_signed())
    }
}

fn add(sum: &mut Option<u64>, more: Option<u64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0).saturating_add(more));
    }
}

impl AddAssign for ReuseSums {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.prompt_tokens = self.prompt_tokens.saturating_add(other.prompt_tokens);
        self.offered_tokens = self.offered_tokens.saturating_add(other.offered_tokens);
        self.routed_tokens = self.routed_tokens.saturating_add(other.routed_tokens);
        add(&mut self.fitted_tokens, other.fitted_tokens);
        add(&mut self.fitted_where_reported, other.fitted_where_reported);
        add(&mut self.cached_tokens, other.cached_tokens);
        add(&mut self.sticky_session_tokens, other.sticky_session_tokens);
        add(&mut self.sticky_prefix_tokens, other.sticky_prefix_tokens);
        self.sessions += other.sessions;
        add(&mut self.error_bound_tokens, other.error_bound_tokens);
    }
}

/// The chain from offered to cached tokens; a step that is unknown is absent.
#[derive(Serialize, JsonSchema)]
struct ReuseChain {
    requests: u64,
    prompt_tokens: u64,
    offered_tokens: u64,
    lost_by_routing_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_to_capacity_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_otherwise_tokens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sticky_session_gain_tokens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sticky_prefix_gain_tokens: Option<i64>,
    /// Sessions, and those that changed their pod, counted with the request where it is seen.
    sessions: SessionMoves,
    /// Largest error of each figure, a block per request; absent if blocks are those of the engines.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_bound_tokens: Option<u64>,
}

impl From<ReuseSums> for ReuseChain {
    fn from(sums: ReuseSums) -> Self {
        Self {
            requests: sums.requests,
            prompt_tokens: sums.prompt_tokens,
            offered_tokens: sums.offered_tokens,
            lost_by_routing_tokens: sums.lost_by_routing(),
            lost_to_capacity_tokens: sums.lost_to_capacity(),
            lost_otherwise_tokens: sums.lost_otherwise(),
            cached_tokens: sums.cached_tokens,
            sticky_session_gain_tokens: sums.sticky_session_gain(),
            sticky_prefix_gain_tokens: sums.sticky_prefix_gain(),
            sessions: sums.sessions,
            error_bound_tokens: sums.error_bound_tokens,
        }
    }
}
