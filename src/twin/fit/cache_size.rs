//! The size of the KV cache, from how many prompt tokens it held: the twin runs with sizes until it finds as many.

use std::collections::BTreeMap;

use super::held_out::simulate;
use super::observation::ObservedRequest;
use crate::trace_file::header::BlockScheme;
use crate::twin::model::TwinEngine;
use crate::twin::parameter::{Parameter, ParameterEstimate};

/// Requests that the search simulates.
const MAX_REQUESTS: usize = 4_000;
/// Largest size that the search tries, in blocks.
const MAX_BLOCKS: f64 = (1_u32 << 24) as f64;
/// Relative difference of cached tokens that is none.
const SAME_HITS: f64 = 0.005;

/// The number of blocks that gives the cached tokens of the rows; `None` if rows do not tell it.
pub(super) fn kv_blocks_of_hits(
    requests: &[ObservedRequest],
    scheme: Option<&BlockScheme>,
    parameters: &BTreeMap<Parameter, ParameterEstimate>,
) -> Option<ParameterEstimate> {
    let known = |parameter| parameters.get(&parameter).and_then(|estimate: &ParameterEstimate| estimate.value);
    if known(Parameter::PrefixCache) != Some(1.0) || known(Parameter::KvBlocks).is_some() || scheme.is_none() {
        return None;
    }
    let requests = &requests[..requests.len().min(MAX_REQUESTS)];
    if requests.iter().any(|request| request.cached.is_none() || request.entry.prompt.blocks.is_empty()) {
        return None;
    }
    let measured: f64 = requests.iter().filter_map(|request| request.cached).map(f64::from).sum();
    let hits = |blocks: f64| {
        let mut parameters = parameters.clone();
        parameters.insert(Parameter::KvBlocks, ParameterEstimate::value(blocks.round()));
        let engine = TwinEngine { parameters, ..TwinEngine::default() };
        simulate(&engine, requests, scheme).iter().map(|response| f64::from(response.cached)).sum::<f64>()
    };
    let least = parameters.get(&Parameter::KvBlocks).and_then(|estimate| estimate.low).unwrap_or(1.0);
    let (mut low, mut high) = (least, least);
    while hits(high) < measured * (1.0 - SAME_HITS) {
        low = high;
        high *= 2.0;
        if high > MAX_BLOCKS {
            return None;
        }
    }
    // From `high` on the cache may lose nothing: then any larger size fits too.
    let unbounded = (hits(MAX_BLOCKS) - measured).abs() <= SAME_HITS * measured;
    while high / low > 1.01 {
        let middle = (low * high).sqrt();
        match hits(middle) < measured * (1.0 - SAME_HITS) {
            true => low = middle,
            false => high = middle,
        }
    }
    Some(match unbounded {
        true => ParameterEstimate::range(Some(high.round()), None, high.round()),
        false => ParameterEstimate::between(low.floor(), high.round(), high.ceil()),
    })
}
