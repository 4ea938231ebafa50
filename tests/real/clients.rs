//! Compares the reports of AIPerf and vLLM's own benchmark with the proxy's, for requests that went through the proxy.
//! They are compared one by one, each number by the client's own definition.
//!
//! AIPerf sends an `X-Request-ID` with every request and vLLM's benchmark one with a number. vLLM makes the reply's id
//! from it, and the proxy's span has that. So every request is found again, and differences are of pairs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};
use tempfile::tempdir;

use super::otlp_sink::{OtlpSink, attributes};
use super::processes::{self, until};
use super::program::{ProxyProcess, count, json_of, sum};
use super::tools;

/// Requests of one run of a client, also in `tests/tools/start`.
const REQUESTS: usize = 40;
/// Output tokens of each, likewise.
const TOKENS: f64 = 100.0;

/// One request, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// From the request to the first token.
    ttft: f64,
    /// From the request to the last token.
    last: f64,
    /// The client's time before the request was sent.
    pub(super) before: f64,
    /// The gaps between events with tokens: their sum, and how many there are.
    gaps: (f64, usize),
}

impl Times {
    /// (last − first) / (tokens − 1): TPOT to one client, ITL to the other.
    fn tpot(self) -> f64 {
        (self.last - self.ttft) / (TOKENS - 1.0)
    }
}

/// The proxy's times, by the id of the reply; `first` is the event that the client takes for the first token.
fn of_proxy(sink: &OtlpSink, first: &str) -> BTreeMap<String, Times> {
    let spans = sink.spans();
    let by_id: BTreeMap<&[u8], &Span> = spans.iter().map(|span| (&span.span_id[..], span)).collect();
    let mut seen = BTreeMap::new();
    for span in sink.client_spans() {
        // The whole request is the span above the one that has the reply.
        let started_at = by_id[&span.parent_span_id[..]].start_time_unix_nano;
        let at = |name: &str| span.events.iter().find(|event| event.name == name).map(|event| event.time_unix_nano);
        let since = |at: u64| at.saturating_sub(started_at) as f64 / 1e6;
        let fields = attributes(&span.attributes);
        if let (Some(id), Some(first), Some(last)) =
            (fields["gen_ai.response.id"].as_str(), at(first), at("last_token"))
        {
            seen.insert(id.to_owned(), Times { ttft: since(first), last: since(last), ..Times::default() });
        }
    }
    seen
}

/// AIPerf's times, by the id that vLLM gives the reply.
pub(super) fn of_aiperf(directory: &Path) -> BTreeMap<String, Times> {
    let text = std::fs::read_to_string(directory.join("profile_export.jsonl")).unwrap();
    let record = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["error"].is_null(), "{line}");
        let of = |name: &str| line["metrics"][name]["value"].as_f64().unwrap();
        assert_eq!(of("output_sequence_length"), TOKENS);
        let before = of("http_req_blocked") + of("http_req_connecting") + of("http_req_sending");
        let gaps = line["metrics"]["inter_chunk_latency"]["value"].as_array().unwrap();
        let gaps = (gaps.iter().filter_map(Value::as_f64).sum(), gaps.len());
        let times = Times { ttft: of("time_to_first_token"), last: of("request_latency"), before, gaps };
        (format!("chatcmpl-{}", line["metadata"]["x_request_id"].as_str().unwrap()), times)
    };
    text.lines().map(record).collect()
}

/// The times of vLLM's benchmark, by the number at the end of the id. Its output lacks the send time, which its HTTP
/// client logs (`tests/tools/sent`).
///
/// To version 0.32 the event with the role is the first token, so its first gap is from there to the first text. It is
/// not between tokens, and is not compared.
pub(super) fn of_vllm_bench(directory: &Path) -> BTreeMap<usize, Times> {
    let sent = std::fs::read_to_string(directory.join("sent.jsonl")).unwrap();
    let sent: Vec<Value> = sent.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let before: BTreeMap<usize, f64> =
        sent.iter().filter_map(|sent| Some((number(sent["id"].as_str()?)?, millis(&sent["before_s"])))).collect();
    let text = std::fs::read_to_string(directory.join("vllm_bench.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((result["completed"].as_u64(), result["failed"].as_u64()), (Some(REQUESTS as u64), Some(0)));
    let one = |at: usize| {
        let (ttft, last) = (millis(&result["ttfts"][at]), millis(&result["latencies"][at]));
        let gaps = &result["itls"][at].as_array().unwrap()[1..];
        (at, Times { ttft, last, before: before[&at], gaps: (gaps.iter().map(millis).sum(), gaps.len()) })
    };
    (0..REQUESTS).map(one).collect()
}

fn millis(seconds: &Value) -> f64 {
    seconds.as_f64().unwrap() * 1e3
}

/// The number at the end of an id.
fn number(id: &str) -> Option<usize> {
    id.rsplit('-').next()?.parse().ok()
}

pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints one row; returns its name if the difference is too large.
fn row(name: &'static str, theirs: f64, ours: f64, difference: f64) -> Option<&'static str> {
    eprintln!("| {name} | {theirs:.3} | {ours:.3} | {difference:.3} |");
    (difference.abs() > 1.0 && difference.abs() > theirs / 100.0).then_some(name)
}

/// Prints the differences of the pairs, and fails if a median difference exceeds 1 ms and 1 %. The proxy sees a request
/// on arrival, so the client's time before sending is subtracted. Gaps are compared by their overall mean, which the
/// proxy's histogram has exactly.
fn assert_agree(client: &str, pairs: &[(Times, Times)], proxy: &ProxyProcess) {
    assert_eq!(pairs.len(), REQUESTS, "{client}: every request is found again");
    eprintln!("| {client} | client, median ms | proxy, median ms | difference, median ms |");
    let compare = |name, read: fn(&Times) -> f64| {
        let theirs = median(pairs.iter().map(|(client, _)| read(client)));
        let ours = median(pairs.iter().map(|(_, ours)| read(ours)));
        let difference = median(pairs.iter().map(|(client, ours)| read(client) - read(ours)));
        row(name, theirs, ours, difference)
    };
    let mut far = Vec::new();
    eprintln!("| before the request had left | {:.3} | | |", median(pairs.iter().map(|(client, _)| client.before)));
    far.extend(compare("TTFT", |times| times.ttft - times.before));
    far.extend(compare("E2E, to the last token", |times| times.last - times.before));
    far.extend(compare("TPOT", |times| times.tpot()));
    let (sum_of_gaps, gaps) =
        pairs.iter().fold((0.0, 0), |all, (times, _)| (all.0 + times.gaps.0, all.1 + times.gaps.1));
    let (table, itl) = (proxy.scrape(), "streamgauge_stream_inter_token_latency_seconds");
    let (theirs, ours) = (sum_of_gaps / gaps as f64, sum(&table, itl, &[]) * 1e3 / count(&table, itl, &[]) as f64);
    far.extend(row("ITL, mean of all gaps", theirs, ours, theirs - ours));
    assert!(far.is_empty(), "{client} and the proxy differ in {far:?}");
}

/// `report` has the client's own values, which it reads from the client's file; `compare` takes two such files.
fn assert_reported(direct: &Path, proxied: &Path, theirs: &[Times]) {
    let [direct, proxied] = [direct, proxied].map(|path| path.to_str().unwrap());
    let report = json_of(&["report", "--json", proxied]);
    let mean = |read: fn(&Times) -> f64| theirs.iter().map(read).sum::<f64>() / theirs.len() as f64;
    // AIPerf's latency ends at the last token, and the report's E2E at the end of the response.
    for (metric, expected, most_later) in
        [("ttft", mean(|times| times.ttft), 1e-3), ("e2e", mean(|times| times.last), 20.0)]
    {
        let found = &report["metrics"][metric];
        assert_eq!(found["count"], REQUESTS, "{metric}");
        let later = found["avg"].as_f64().unwrap() - expected;
        assert!((-1e-3..=most_later).contains(&later), "{metric}: {found}, expected {expected}");
    }
    let comparison = json_of(&["compare", "--json", "--although", "different", direct, proxied]);
    assert_eq!(comparison["one_sided"], json!([]));
    let figures = comparison["figures"].as_array().unwrap();
    let success = figures.iter().find(|figure| figure["figure"] == "success_rate").unwrap();
    assert_eq!((&success["before"], &success["after"]), (&json!(1.0), &json!(1.0)));
}

/// A proxy whose spans go to the sink.
fn traced(upstream: SocketAddr, sink: &OtlpSink) -> ProxyProcess {
    ProxyProcess::with(upstream, |command| {
        command.env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("http://{}/v1/traces", sink.http));
        command.env("OTEL_BSP_SCHEDULE_DELAY", "50");
    })
}

pub(super) fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

#[test]
#[ignore = "needs vLLM and AIPerf: tests/run --real"]
fn aiperf_has_no_more_errors_through_the_proxy_and_measures_what_the_proxy_measures() {
    let _turn = processes::exclusive_turn();
    let (vllm, sink) = (tools::vllm(), OtlpSink::start());
    let proxy = traced(vllm.addr, &sink);
    let (direct, proxied) = (tempdir().unwrap(), tempdir().unwrap());
    tools::run("aiperf", &[&url(vllm.addr), direct.path().to_str().unwrap()]);
    assert_eq!(of_aiperf(direct.path()).len(), REQUESTS);
    tools::run("aiperf", &[&url(proxy.addr), proxied.path().to_str().unwrap()]);
    let theirs = of_aiperf(proxied.path());
    until("every request has its spans", processes::SOON, || of_proxy(&sink, "first_token").len() >= REQUESTS);
    let ours = of_proxy(&sink, "first_token");
    let pairs: Vec<_> = theirs.iter().filter_map(|(id, times)| Some((*times, *ours.get(id)?))).collect();
    assert_agree("AIPerf", &pairs, &proxy);
    let [direct, proxied] = [&direct, &proxied].map(|folder| folder.path().join("profile_export.jsonl"));
    assert_reported(&direct, &proxied, &theirs.into_values().collect::<Vec<_>>());
    let table = proxy.scrape();
    assert_eq!(sum(&table, "streamgauge_stream_terminations_total", &[("reason", "done")]), ours.len() as f64);
}

#[test]
#[ignore = "needs vLLM: tests/run --real"]
fn vllm_bench_has_no_more_errors_through_the_proxy_and_measures_what_the_proxy_measures() {
    let _turn = processes::exclusive_turn();
    let (vllm, sink) = (tools::vllm(), OtlpSink::start());
    let proxy = traced(vllm.addr, &sink);
    let (direct, proxied) = (tempdir().unwrap(), tempdir().unwrap());
    tools::run("vllm-bench", &[&url(vllm.addr), direct.path().to_str().unwrap()]);
    assert_eq!(of_vllm_bench(direct.path()).len(), REQUESTS);
    tools::run("vllm-bench", &[&url(proxy.addr), proxied.path().to_str().unwrap()]);
    let theirs = of_vllm_bench(proxied.path());
    until("every request has its spans", processes::SOON, || of_proxy(&sink, "first_byte").len() >= REQUESTS);
    let ours = of_proxy(&sink, "first_byte");
    let pairs: Vec<_> = ours.iter().filter_map(|(id, times)| Some((*theirs.get(&number(id)?)?, *times))).collect();
    assert_agree("vLLM bench", &pairs, &proxy);
    let [direct, proxied] = [&direct, &proxied].map(|folder| folder.path().join("vllm_bench.json"));
    assert_reported(&direct, &proxied, &theirs.into_values().collect::<Vec<_>>());
}
