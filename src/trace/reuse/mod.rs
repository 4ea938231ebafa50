//! Where prefix-cache hits are lost between a workload and the engines of several pods.
//!
//! Four caches see each prompt, in order of arrival:
//!
//! | cache | hits |
//! |---|---|
//! | endless, over all pods | *offered*: the reuse in the workload |
//! | endless, one per pod | what survives routing; the difference is *lost by routing* |
//! | LRU of the engines' size, one per pod | what fits; the difference is *lost to capacity* |
//! | the engines' own, as responses report it | *cached*; the difference is *lost otherwise*: hash mismatch, eviction order, salt |
//!
//! Prompts of different models share no blocks. Every figure is in tokens. It is exact where a block is one of the
//! engine's. A block of bytes, or of another size, is off by at most one block per request. That the sizes differ is seen
//! from reported hits that are no whole blocks.

mod cache_sizes;
mod pods;
mod routing;
mod sums;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

pub use cache_sizes::CacheSizes;
pub use pods::{MAX_FLEET_BLOCKS, MAX_PODS};
pub use sums::{ReuseSums, SessionMoves};

use self::pods::PodCaches;
use self::routing::StickyRouting;
use super::Trace;
use super::blocks::{block_tokens, chained_ids, hash_text};
use super::error::{Error, TraceProblem};
use super::session_table::SessionTable;
use crate::measure::calendar::utc_hour;
use crate::measure::request_class::OTHER;
use crate::stats::hash::combine;
use crate::stats::prefix_cache::UnboundedCache;
use crate::trace_file::header::{BlockScheme, BlockUnit};
use crate::trace_file::row::TraceEntry;

/// Pod of rows without an upstream.
const UNKNOWN_POD: &str = "unknown";
/// Maximum groups per key; further ones share [`OTHER`].
const MAX_GROUPS: usize = 1_000;

/// Keys of [`ReuseReport::by`].
pub const GROUP_KEYS: [&str; 4] = ["model", "class", "hour", "pod"];

/// Where the reuse of a trace was lost.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ReuseReport {
    /// Number of pods.
    pub pods: usize,
    /// Cache size of all pods, in blocks; `None` if it differs, or is unknown, when capacity and what is after it are
    /// unknown too.
    pub cache_blocks: Option<usize>,
    /// Cache size of each pod, in blocks, by the pod's name; empty if unknown.
    pub pod_cache_blocks: BTreeMap<String, usize>,
    /// Tokens per block.
    pub block_tokens: u64,
    /// Whether blocks are tokens, so that hits of an engine with this block size are exact.
    pub blocks_are_tokens: bool,
    /// One of this many ids was sampled; 1 means exact.
    pub sampled_one_of: u64,
    /// All requests.
    pub all: ReuseSums,
    /// Requests by model, class, hour and pod; a key is absent if no row has it.
    pub by: BTreeMap<&'static str, BTreeMap<String, ReuseSums>>,
}

#[derive(Clone, Copy)]
struct LastPod {
    pod: usize,
    is_repeated: bool,
    is_moved: bool,
}

impl ReuseReport {
    /// Blocks of the smallest and of the largest cache; `None` if sizes are unknown.
    pub fn cache_range(&self) -> Option<(usize, usize)> {
        let sizes = self.pod_cache_blocks.values().copied();
        sizes.clone().min().zip(sizes.max())
    }
}

/// Reads a trace to its end, in order of arrival.
///
/// # Errors
/// If a row cannot be read, the trace has no block ids, it has more pods or blocks than can be held, a pod has no size
/// although others have, or a size is of no pod.
pub fn reuse(trace: Trace, name: &str, sizes: CacheSizes) -> Result<ReuseReport, Error> {
    let blocks = trace.header.blocks.clone().ok_or_else(|| {
        let problem = TraceProblem::new("the rows have no block ids, so their prefixes are unknown");
        problem.with_remedy("record a capture with `streamgauge proxy --capture`").at_line(name, None)
    })?;
    let started = trace.header.started_unix_ns;
    let mut collector = ReuseCollector::new(blocks, sizes, &trace);
    for entry in trace.entries {
        let entry = entry?;
        // An engine that did not answer may have computed nothing.
        if entry.status.is_some_and(|status| !(200..300).contains(&status)) {
            continue;
        }
        collector.add(&entry, started).map_err(|problem| problem.at_line(name, None))?;
    }
    collector.pods.check_names().map_err(|problem| problem.at_line(name, None))?;
    Ok(collector.finish())
}

struct ReuseCollector {
    blocks: BlockScheme,
    /// Model of the first row, whose prompts keep their ids.
    first_model: Option<Option<String>>,
    offered: UnboundedCache,
    pods: PodCaches,
    sticky: StickyRouting,
    last_pods: SessionTable<LastPod>,
    /// An engine reported hits that are no whole blocks of the capture.
    has_partial_hits: bool,
    all: ReuseSums,
    by: BTreeMap<&'static str, BTreeMap<String, ReuseSums>>,
}

impl ReuseCollector {
    fn new(blocks: BlockScheme, sizes: CacheSizes, trace: &Trace) -> Self {
        Self {
            blocks,
            first_model: None,
            offered: UnboundedCache::default(),
            pods: PodCaches::new(sizes),
            sticky: StickyRouting::new(&trace.losses),
            last_pods: SessionTable::new(&trace.losses),
            has_partial_hits: false,
            all: ReuseSums::default(),
            by: BTreeMap::new(),
        }
    }

    fn add(&mut self, entry: &TraceEntry, started: Option<u64>) -> Result<(), TraceProblem> {
        let name = entry.upstream.as_deref().unwrap_or(UNKNOWN_POD);
        let model = self.model(entry.model.as_deref());
        let ids: Vec<u64> = chained_ids(&self.blocks, entry).map(|id| of_model(id, model)).collect();
        let pod = self.pods.of(name)?;
        let tokens = PromptTokens::of(entry, &self.blocks, ids.len());
        let (counted, estimated) = self.offered.take(&ids);
        let routed = self.pods.endless(pod, &ids);
        let fitted = self.pods.bounded(pod, &ids);
        let sticky = self.sticky.take(entry.session.as_deref(), (model, pod, self.pods.cache_blocks(pod)), &ids);
        let mut sums = ReuseSums::default();
        sums.requests = 1;
        sums.prompt_tokens = tokens.prompt;
        sums.offered_tokens = tokens.tokens(counted + estimated);
        // The samples of two endless caches may differ.
        sums.routed_tokens = tokens.tokens(routed).min(sums.offered_tokens);
        if let Some(fitted) = fitted {
            sums.add_fitted(tokens.tokens(fitted), entry.prompt.cached.map(|cached| cached.min(tokens.prompt)));
        }
        sums.sticky_session_tokens = sticky.map(|sticky| tokens.tokens(sticky.by_session));
        sums.sticky_prefix_tokens = sticky.map(|sticky| tokens.tokens(sticky.by_prefix));
        sums.sessions = self.follow_session(entry, pod);
        let nominal = block_tokens(&self.blocks);
        // A prompt that is cached whole is reported without its last token by some engines.
        let is_partial = |cached: u64| cached.saturating_add(1) < tokens.prompt && !cached.is_multiple_of(nominal);
        self.has_partial_hits |= entry.prompt.cached.is_some_and(is_partial);
        let hour = started.map(|started| utc_hour(started.saturating_add(entry.at)));
        let class = (!entry.class.is_empty()).then(|| entry.class.to_string());
        for (key, value) in GROUP_KEYS.into_iter().zip([entry.model.clone(), class, hour, Some(name.to_owned())]) {
            if let Some(value) = value {
                let groups = self.by.entry(key).or_default();
                let full = groups.len() >= MAX_GROUPS && !groups.contains_key(&value);
                *groups.entry(if full { OTHER.to_owned() } else { value }).or_default() += sums;
            }
        }
        self.all += sums;
        Ok(())
    }

    /// 0 for the first model, which keeps its ids, else a hash of the name.
    fn model(&mut self, model: Option<&str>) -> u64 {
        let first = self.first_model.get_or_insert_with(|| model.map(str::to_owned));
        if first.as_deref() == model { 0 } else { hash_text(model.unwrap_or_default()) | 1 }
    }

    fn follow_session(&mut self, entry: &TraceEntry, pod: usize) -> SessionMoves {
        let Some(session) = entry.session.as_deref() else { return SessionMoves::default() };
        let Some(last) = self.last_pods.get(session).copied() else {
            self.last_pods.insert(session, LastPod { pod, is_repeated: false, is_moved: false });
            return SessionMoves::default();
        };
        let moves = last.pod != pod;
        self.last_pods.insert(session, LastPod { pod, is_repeated: true, is_moved: last.is_moved || moves });
        SessionMoves {
            repeated: u64::from(!last.is_repeated),
            moved: u64::from(moves && !last.is_moved),
            later_requests: 1,
            moved_requests: u64::from(moves),
        }
    }

    fn finish(mut self) -> ReuseReport {
        if self.blocks.unit != BlockUnit::Tokens || self.has_partial_hits {
            let nominal = block_tokens(&self.blocks);
            for sums in self.by.values_mut().flat_map(BTreeMap::values_mut).chain([&mut self.all]) {
                sums.error_bound_tokens = Some(sums.requests.saturating_mul(nominal));
            }
        }
        let pod_cache_blocks = self.pods.sizes();
        let first = pod_cache_blocks.values().next().copied();
        ReuseReport {
            pods: self.pods.len(),
            cache_blocks: first.filter(|blocks| pod_cache_blocks.values().all(|other| other == blocks)),
            pod_cache_blocks,
            block_tokens: block_tokens(&self.blocks),
            blocks_are_tokens: self.blocks.unit == BlockUnit::Tokens,
            sampled_one_of: self.offered.sampled_one_of().max(self.pods.sampled_one_of()),
            all: self.all,
            by: self.by,
        }
    }
}

/// The first model keeps its ids: neighbours stay together, which the endless caches store well.
fn of_model(id: u64, model: u64) -> u64 {
    if model == 0 { id } else { combine(model, id) }
}

/// Converts blocks of one prompt to its tokens.
struct PromptTokens {
    prompt: u64,
    /// Tokens of all blocks, by their nominal size or in proportion to the prompt's bytes.
    per_block: f64,
}

impl PromptTokens {
    fn of(entry: &TraceEntry, blocks: &BlockScheme, count: usize) -> Self {
        let nominal = block_tokens(blocks);
        let prompt = entry.prompt.tokens.unwrap_or(count as u64 * nominal);
        let per_block = match (blocks.unit, entry.prompt.bytes, entry.prompt.tokens) {
            (BlockUnit::Bytes, Some(bytes @ 1..), Some(tokens)) => {
                f64::from(blocks.size) * tokens as f64 / bytes as f64
            }
            _ => nominal as f64,
        };
        Self { prompt, per_block }
    }

    fn tokens(&self, hit: u64) -> u64 {
        ((hit as f64 * self.per_block) as u64).min(self.prompt)
    }
}
