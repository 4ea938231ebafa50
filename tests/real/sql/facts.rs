//! Expected answers of the queries: from the rows themselves, and from the verbs that read them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use streamgauge::measure::calendar::utc_hour;
use streamgauge::measure::record::Outcome;
use streamgauge::trace_file::gaps::unpack;
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::TraceEntry;

use super::captures::Captures;
use crate::program::json_of;

/// Sums over a group of requests.
#[derive(Default)]
pub(super) struct Sums {
    pub(super) requests: u64,
    pub(super) sessions: BTreeSet<String>,
    pub(super) pods: BTreeSet<&'static str>,
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) incomplete: u64,
}

/// The figures of two captures.
#[derive(Default)]
pub(super) struct Facts {
    /// TTFTs and gaps of successes in ms, ascending, by hour, model, class, pod and metric.
    pub(super) latencies: BTreeMap<[String; 5], Vec<f64>>,
    /// By hour and class.
    pub(super) traffic: BTreeMap<[String; 2], Sums>,
    /// By hour and model.
    pub(super) models: BTreeMap<[String; 2], Sums>,
    /// `report` of each pod.
    pub(super) reports: BTreeMap<&'static str, Value>,
    /// `report` of both with two SLOs: one of all requests, one of the class `gold`.
    pub(super) goodput: Value,
    /// `trace info` of each pod.
    pub(super) info: Vec<Value>,
    /// `trace reuse` of both.
    pub(super) reuse: Value,
    /// Blocks of all prompts that were answered.
    pub(super) blocks: u64,
    /// Each once for each server.
    pub(super) distinct: BTreeSet<(&'static str, String, u64)>,
}

impl Facts {
    pub(super) fn of(captures: &Captures) -> Self {
        let mut facts = Self::default();
        for (pod, path) in &captures.pods {
            facts.add_rows(pod, path);
            facts.reports.insert(pod, json_of(&["report", path, "--json"]));
            facts.info.push(json_of(&["trace", "info", path, "--json"]));
        }
        facts.latencies.values_mut().for_each(|values| values.sort_by(f64::total_cmp));
        let [(_, a), (_, b)] = &captures.pods;
        let limits = format!("ttft<={}ms tpot<={}ms", captures.slo[0], captures.slo[1]);
        let slos = [format!("--slo=all: {limits}"), format!("--slo=gold[tier=gold]: {limits}")];
        facts.goodput = json_of(&["report", a, b, &slos[0], &slos[1], "--json"])["goodput"].take();
        // Without a cache size it does not print the engines' report.
        facts.reuse =
            json_of(&["trace", "reuse", &captures.lake, "--by", "model", "--cache-blocks", "100000", "--json"]);
        facts
    }

    /// A pod's TTFTs or gaps of all hours, models and classes, ascending.
    pub(super) fn of_pod(&self, pod: &str, metric: &str) -> Vec<f64> {
        let groups = self.latencies.iter().filter(|([.., of, kind], _)| of == pod && kind == metric);
        let mut values: Vec<f64> = groups.flat_map(|(_, values)| values).copied().collect();
        values.sort_by(f64::total_cmp);
        values
    }

    fn add_rows(&mut self, pod: &'static str, path: &str) {
        let rows = TraceReader::open(Path::new(path)).unwrap();
        let started = rows.header().started_unix_ns.unwrap();
        for row in rows.map(Result::unwrap) {
            let hour = utc_hour(started + row.at).trim_end_matches('Z').to_owned();
            let class = if row.class.is_empty() { "{}".to_owned() } else { serde_json::to_string(&row.class).unwrap() };
            let model = row.model.clone().unwrap_or_default();
            let of_class = self.traffic.entry([hour.clone(), class.clone()]).or_default();
            let of_model = self.models.entry([hour.clone(), model.clone()]).or_default();
            for sums in [of_class, of_model] {
                sums.add(pod, &row);
            }
            if row.status.is_none_or(|status| (200..300).contains(&status)) {
                self.blocks += row.prompt.blocks.len() as u64;
                let server = row.upstream.clone().unwrap_or_default();
                self.distinct.extend(row.prompt.blocks.iter().map(|block| (pod, server.clone(), *block)));
            }
            if row.outcome != Some(Outcome::Success) {
                continue;
            }
            let gaps = row.timing.gaps.as_deref().map_or_else(Vec::new, |gaps| unpack(gaps).unwrap());
            let gaps: Vec<u64> = gaps.iter().map(|event| event.latency().0.as_nanos()).collect();
            let first: Vec<u64> = row.timing.first_token.filter(|_| row.stream == Some(true)).into_iter().collect();
            for (metric, nanos) in [("ttft", first), ("itl", gaps)].into_iter().filter(|(_, nanos)| !nanos.is_empty()) {
                let key = [&hour, &model, &class, pod, metric].map(ToString::to_string);
                self.latencies.entry(key).or_default().extend(nanos.iter().map(|nanos| *nanos as f64 / 1e6));
            }
        }
    }
}

impl Sums {
    fn add(&mut self, pod: &'static str, row: &TraceEntry) {
        self.requests += 1;
        self.sessions.extend(row.session.clone());
        self.pods.insert(pod);
        self.input_tokens += row.prompt.tokens.unwrap_or(0);
        self.output_tokens += row.output_tokens.unwrap_or(0);
        self.incomplete += u64::from(row.outcome != Some(Outcome::Success));
    }
}
