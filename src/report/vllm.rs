//! The file that `vllm bench serve --save-result --save-detailed` writes (0.32), from our records and by its definitions.
//!
//! What records cannot know is as that tool writes it where it does not know either: texts are empty, `label` is null,
//! `burstiness` is 1. `start_times` are seconds on the run's line. `request_goodput` is that of the run's SLO, if it has
//! exactly one. Of a request that failed before its first token the times are 0, as there. From 0.33 on that tool adds
//! `server_queue_times` and `server_ttfts` where a reply had a `metrics` object, which a server writes when it is told to:
//! records do not keep that object, and the file is as where no reply had one.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::column::Column;
use super::definitions::Definitions;
use super::fold::Good;
use super::request::Request;
use super::source::Source;
use crate::measure::record::Outcome;
use crate::measure::time::{Gap, Stamp};

/// The name of the file.
pub const FILE: &str = "vllm_bench_serve.json";

/// The percentiles of its summary.
const PERCENTILES: [u32; 3] = [50, 90, 99];
/// Seconds that are counted one by one for the busiest: a day.
const MOST_SECONDS: usize = 86_400;

/// Takes requests in and makes the file. All numbers of all requests stand in it, so all are held.
#[derive(Debug, Default)]
pub struct Vllm {
    model: Option<String>,
    dialect: Option<String>,
    completed: u64,
    input: Vec<u64>,
    output: Vec<u64>,
    input_of_successes: u64,
    ttfts: Column,
    itls: Vec<Vec<f64>>,
    latencies: Column,
    starts: Vec<f64>,
    queued: Vec<f64>,
    errors: Vec<String>,
    /// Of successes.
    tpots: Column,
    good_ttfts: Column,
    good_latencies: Column,
    planned: Option<(Stamp, Stamp)>,
    window: Option<(Stamp, Stamp)>,
    tokens_per_second: Vec<u64>,
    open_per_second: Vec<u64>,
    /// Beginnings and the times of tokens, in seconds, of successes.
    streams: Vec<(f64, f64)>,
}

impl Vllm {
    /// One request more.
    pub fn add(&mut self, request: &Request) {
        let definitions = Definitions::Vllm;
        let times = definitions.times(request, request.sent);
        let secs = |gap: Option<Gap>| gap.map_or(0.0, Gap::as_secs);
        let start = request.sent.since(Stamp::default()).as_secs();
        let (ttft, latency) = (secs(times.ttft), secs(times.e2e));
        let itl: Vec<f64> = request.events.iter().map(|event| event.gap().as_secs()).collect();
        let whole = request.succeeded();
        let tokens = definitions.tokens(request).filter(|_| whole).unwrap_or(0);
        self.model = self.model.take().or_else(|| request.model.clone());
        self.dialect = self.dialect.take().or_else(|| request.dialect.clone());
        self.input.push(request.input.unwrap_or(0));
        self.output.push(tokens);
        self.ttfts.0.push(ttft);
        self.latencies.0.push(latency);
        self.starts.push(start);
        self.queued.push(request.planned.map_or(0.0, |planned| request.sent.since(planned).as_secs()));
        self.errors.push(if whole { String::new() } else { error(request) });
        let widen = |span: Option<(Stamp, Stamp)>, from: Stamp, to: Stamp| {
            let (first, last) = span.unwrap_or((from, to));
            Some((first.min(from), last.max(to)))
        };
        self.planned = widen(self.planned, request.begun(), request.begun());
        self.window = widen(self.window, request.sent, request.ended.unwrap_or(request.sent));
        if whole {
            self.completed += 1;
            self.input_of_successes += request.input.unwrap_or(0);
            self.good_ttfts.0.push(ttft);
            self.good_latencies.0.push(latency);
            self.tpots.0.extend(times.tpot.map(Gap::as_secs));
            self.streams.push((start, start + latency));
            let mut at = start + ttft;
            for gap in std::iter::once(0.0).chain(itl.iter().copied()) {
                at += gap;
                count(&mut self.tokens_per_second, at as usize);
            }
        }
        self.itls.push(itl);
    }

    /// The file. `moment` writes a wall-clock time as `20261121T004151Z`.
    pub fn render(&mut self, sources: &[Source], goodput: &[Good], moment: fn(u64) -> String) -> String {
        let first = self.streams.iter().map(|(start, _)| *start).fold(f64::INFINITY, f64::min);
        for (start, end) in std::mem::take(&mut self.streams) {
            // Its seconds begin with the first request.
            let seconds = (start - first) as usize..=((end - first) as usize).min(MOST_SECONDS);
            seconds.for_each(|second| count(&mut self.open_per_second, second));
        }
        let seconds = |span: Option<(Stamp, Stamp)>| span.map_or(0.0, |(first, last)| last.since(first).as_secs());
        let duration = seconds(self.window);
        let per_second = |number: u64| if duration > 0.0 { number as f64 / duration } else { 0.0 };
        let (requests, output) = (self.input.len() as u64, self.output.iter().sum::<u64>());
        let closed = sources.iter().any(|source| source.closed_loop);
        let span = seconds(self.planned);
        let rate = match closed || span == 0.0 {
            true => json!("inf"),
            false => json!((requests - 1) as f64 / span),
        };
        let began = sources.iter().filter_map(|source| source.started_unix_ns).min().unwrap_or(0);
        let slots = sources.iter().filter_map(|source| source.slots).max();
        let most = |counts: &[u64]| counts.iter().copied().max().unwrap_or(0);
        let good = if let [only] = goodput { json!(per_second(only.met)) } else { Value::Null };
        let model = self.model.clone().unwrap_or_default();
        let mut fields = Fields::default();
        fields.put("date", json!(moment(began).replace('T', "-").replace('Z', "")));
        let backend = self.dialect.as_deref().map_or("openai-chat", backend);
        fields.put("endpoint_type", json!(backend));
        fields.put("backend", json!(backend));
        fields.put("label", Value::Null);
        fields.put("model_id", json!(model));
        fields.put("tokenizer_id", json!(model));
        fields.put("num_prompts", json!(requests));
        fields.put("request_rate", rate);
        fields.put("burstiness", json!(1.0));
        fields.put("max_concurrency", json!(slots));
        fields.put("duration", json!(duration));
        fields.put("completed", json!(self.completed));
        fields.put("failed", json!(requests - self.completed));
        fields.put("total_input_tokens", json!(self.input_of_successes));
        fields.put("total_output_tokens", json!(output));
        fields.put("request_throughput", json!(per_second(self.completed)));
        fields.put("request_goodput", good);
        fields.put("output_throughput", json!(per_second(output)));
        fields.put("total_token_throughput", json!(per_second(self.input_of_successes + output)));
        fields.put("input_lens", json!(self.input));
        fields.put("output_lens", json!(self.output));
        fields.put("ttfts", json!(self.ttfts.0));
        fields.put("itls", json!(self.itls));
        fields.put("latencies", json!(self.latencies.0));
        fields.put("start_times", json!(self.starts));
        fields.put("queue_times", json!(self.queued));
        fields.put("generated_texts", json!(vec![""; self.input.len()]));
        fields.put("errors", json!(self.errors));
        fields.put("max_output_tokens_per_s", json!(most(&self.tokens_per_second) as f64));
        fields.put("max_concurrent_requests", json!(most(&self.open_per_second)));
        fields.put("rtfx", json!(0.0));
        let itls = self.itls.iter().zip(&self.errors).filter(|(_, error)| error.is_empty());
        let itls = Column(itls.flat_map(|(itl, _)| itl.iter().copied()).collect());
        let columns =
            [("ttft", &self.good_ttfts), ("tpot", &self.tpots), ("itl", &itls), ("e2el", &self.good_latencies)];
        for (name, column) in columns {
            let stats = column.stats();
            fields.put(&format!("mean_{name}_ms"), json!(stats.mean() * 1e3));
            fields.put(&format!("median_{name}_ms"), json!(stats.percentile(50.0) * 1e3));
            fields.put(&format!("std_{name}_ms"), json!(stats.std() * 1e3));
            for percent in PERCENTILES {
                fields.put(&format!("p{percent}_{name}_ms"), json!(stats.percentile(percent.into()) * 1e3));
            }
        }
        // Numbers and texts: there is nothing that JSON cannot hold.
        serde_json::to_string(&fields).unwrap_or_default()
    }
}

/// What it calls the kind of server that speaks a dialect; where it knows none, the dialect's own name.
fn backend(dialect: &str) -> &str {
    match dialect {
        "openai.chat" => "openai-chat",
        "openai.completions" => "openai",
        "openai.responses" => "openai-responses",
        "openai.embeddings" => "openai-embeddings",
        other => other,
    }
}

/// Counts one in the bucket of a second.
fn count(buckets: &mut Vec<u64>, second: usize) {
    if second < MOST_SECONDS {
        buckets.resize(buckets.len().max(second + 1), 0);
        buckets[second] += 1;
    }
}

/// Why a request has no whole answer, as other tools' files tell it.
pub(super) fn error(request: &Request) -> String {
    let outcome = request.outcome.map_or("unknown", Outcome::name);
    request.status.map_or(outcome.to_owned(), |status| format!("{outcome}: status {status}"))
}

/// An object whose fields stay in their order.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<(String, Value)>);

impl Fields {
    pub(super) fn put(&mut self, name: &str, value: Value) {
        self.0.push((name.to_owned(), value));
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        self.0.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
        map.end()
    }
}
