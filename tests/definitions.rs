//! `report --definitions` against the tools themselves: from the records that a tool wrote of its run, our formulas make
//! the summary that it wrote of the same run.

#![expect(clippy::unwrap_used, reason = "clippy knows tests by their attribute, and these have helpers")]

use std::fs;
use std::path::Path;

use serde_json::Value;
use streamgauge::capture::format::{Entry, Prompt, Timing, Transfer};
use streamgauge::capture::gaps::pack;
use streamgauge::measure::record::{CountSource, Outcome};
use streamgauge::measure::time::Gap;
use streamgauge::measure::timeline::TokenEvent;
use streamgauge::report::Report;
use streamgauge::report::aiperf::Aiperf;
use streamgauge::report::definitions::Definitions;
use streamgauge::report::fold::{Fold, Settings};
use streamgauge::report::request::Request;

const SECOND: f64 = 1e9;
const MILLI: f64 = 1e6;

fn file(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/results").join(name)).unwrap()
}

/// One request as a tool recorded it; times in nanoseconds.
struct Recorded {
    start: f64,
    ttft: f64,
    gaps: Vec<f64>,
    tokens: u64,
    input: u64,
}

impl Recorded {
    fn row(&self) -> Entry {
        let nanos = |value: f64| value.round() as u64;
        let events: Vec<_> = self.gaps.iter().map(|gap| TokenEvent::new(Gap::from_nanos(nanos(*gap)), None)).collect();
        let last = self.ttft + self.gaps.iter().sum::<f64>();
        Entry {
            at: nanos(self.start),
            stream: Some(true),
            status: Some(200),
            outcome: Some(Outcome::Success),
            output_tokens: Some(self.tokens),
            output_source: Some(CountSource::Usage),
            prompt: Prompt { tokens: Some(self.input), ..Prompt::default() },
            timing: Timing {
                first_token: Some(nanos(self.ttft)),
                first_output: Some(nanos(self.ttft)),
                // Usage and the end mark come after the last token.
                ended: Some(nanos(last) + 5_000_000),
                gaps: Some(pack(&events)),
                ..Timing::default()
            },
            ..Entry::default()
        }
    }

    fn request(&self) -> Request {
        Request::of(self.row(), 0, None).unwrap()
    }
}

fn report(definitions: Definitions, recorded: &[Recorded]) -> Value {
    let mut fold = Fold::new(Settings { definitions, ..Settings::default() });
    recorded.iter().for_each(|recorded| fold.add(&recorded.request()).unwrap());
    let percentiles = [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0];
    serde_json::from_str(&Report::of(&mut fold, Vec::new(), &percentiles).json()).unwrap()
}

/// A request as AIPerf wrote it down, with how its bytes went.
fn of_aiperf(line: &Value, zero: u64) -> Request {
    let of = |tag: &str| line["metrics"][tag]["value"].as_f64().unwrap();
    let at = |name: &str| line["metadata"][name].as_u64().unwrap() - zero;
    let nanos = |tag: &str| (of(tag) * MILLI).round() as u64;
    let recorded = Recorded {
        start: at("request_start_ns") as f64,
        ttft: of("time_to_first_token") * MILLI,
        gaps: numbers(&line["metrics"]["inter_chunk_latency"]["value"]).iter().map(|gap| gap * MILLI).collect(),
        tokens: of("output_sequence_length") as u64,
        input: of("input_sequence_length") as u64,
    };
    let mut row = recorded.row();
    let (sent, waited) = (nanos("http_req_sending"), nanos("http_req_waiting"));
    row.planned = Some(at("credit_issued_ns"));
    row.params.max_tokens = Some(100);
    row.prompt.source = Some(CountSource::Usage);
    row.timing.sent = Some(sent);
    // As the times of its tokens are: what came at once is to end at once.
    row.timing.ended = Some((at("request_end_ns") - row.at + 500) / 1_000 * 1_000);
    row.transfer = Some(Box::new(Transfer {
        connecting: Some(nanos("http_req_connecting")),
        head: Some(at("request_ack_ns") - row.at),
        first_byte: Some(sent + waited),
        sent: Some((of("http_req_data_sent") * 1024.0).round() as u64),
        received: Some((of("http_req_data_received") * 1024.0).round() as u64),
        reads: Some(of("http_req_chunks_received") as u32),
    }));
    Request::of(row, 0, None).unwrap()
}

/// Within what rounding to microseconds explains.
fn near(ours: &Value, theirs: &Value, what: &str) {
    let (ours, theirs) = (ours.as_f64().unwrap(), theirs.as_f64().unwrap());
    assert!((ours - theirs).abs() <= theirs.abs() * 1e-4 + 0.002, "{what}: {ours}, the tool said {theirs}");
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

#[test]
fn from_vllms_records_come_vllms_figures() {
    let told: Value = serde_json::from_str(&file("vllm_bench_serve.json")).unwrap();
    let of = |name: &str| numbers(&told[name]);
    let (starts, ttfts, lens, inputs) = (of("start_times"), of("ttfts"), of("output_lens"), of("input_lens"));
    let recorded: Vec<Recorded> = (0..starts.len())
        .map(|at| Recorded {
            start: starts[at] * SECOND,
            ttft: ttfts[at] * SECOND,
            gaps: numbers(&told["itls"][at]).iter().map(|gap| gap * SECOND).collect(),
            tokens: lens[at] as u64,
            input: inputs[at] as u64,
        })
        .collect();
    assert_eq!(recorded.len(), 40);
    let ours = report(Definitions::Vllm, &recorded);
    for (metric, name) in [("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el")] {
        for (stat, key) in [("avg", "mean"), ("p50", "median"), ("std", "std"), ("p90", "p90"), ("p99", "p99")] {
            near(&ours["metrics"][metric][stat], &told[format!("{key}_{name}_ms")], &format!("{key} {name}"));
        }
    }
    assert_eq!(
        (&ours["tokens"]["input"], &ours["tokens"]["output"]),
        (&told["total_input_tokens"], &told["total_output_tokens"])
    );
}

#[test]
fn from_aiperfs_records_come_aiperfs_figures() {
    let told: Value = serde_json::from_str(&file("profile_export_aiperf.json")).unwrap();
    let record = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let of = |tag: &str| line["metrics"][tag]["value"].as_f64().unwrap();
        Recorded {
            start: (line["metadata"]["request_start_ns"].as_u64().unwrap() - 1_795_221_711_000_000_000) as f64,
            ttft: of("time_to_first_token") * MILLI,
            gaps: numbers(&line["metrics"]["inter_chunk_latency"]["value"]).iter().map(|gap| gap * MILLI).collect(),
            tokens: of("output_sequence_length") as u64,
            input: of("input_sequence_length") as u64,
        }
    };
    let recorded: Vec<Recorded> = file("profile_export.jsonl").lines().map(record).collect();
    assert_eq!(recorded.len(), 40);
    let ours = report(Definitions::Aiperf, &recorded);
    for (metric, tag) in [
        ("ttft", "time_to_first_token"),
        ("ttfo", "time_to_first_output_token"),
        ("second_token", "time_to_second_token"),
        ("itl", "inter_token_latency"),
        ("gap", "inter_chunk_latency"),
        ("e2e", "request_latency"),
        ("isl", "input_sequence_length"),
        ("osl", "output_sequence_length"),
    ] {
        for stat in ["count", "avg", "min", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "max", "std"] {
            near(&ours["metrics"][metric][stat], &told[tag][stat], &format!("{tag} {stat}"));
        }
    }
    let rate = &ours["metrics"]["tokens_per_second_per_user"];
    near(&rate["avg"], &told["output_token_throughput_per_user"]["avg"], "tokens/s per user");
    near(&ours["seconds"], &told["benchmark_duration"]["avg"], "duration");
    // Its rates are over the phase, which began some milliseconds before the first request.
    for (rate, tag) in [
        ("requests", "request_throughput"),
        ("output_tokens", "output_token_throughput"),
        ("total_tokens", "total_token_throughput"),
    ] {
        let ratio = ours["throughput"][rate].as_f64().unwrap() / told[tag]["avg"].as_f64().unwrap();
        assert!((1.0..1.000_5).contains(&ratio), "{tag}: {ratio} of what the tool said");
    }
}

#[test]
fn from_aiperfs_records_comes_every_number_of_its_summary() {
    let told: Value = serde_json::from_str(&file("profile_export_aiperf.json")).unwrap();
    let zero = 1_795_221_711_000_000_000;
    let mut aiperf = Aiperf::new(false);
    for line in file("profile_export.jsonl").lines() {
        aiperf.add(&of_aiperf(&serde_json::from_str(line).unwrap(), zero), true, zero);
    }
    let [_, summary, _] = aiperf.render(&[], &[], |_| String::new());
    let ours: Value = serde_json::from_str(&summary).unwrap();
    let metrics: Vec<_> = told.as_object().unwrap().iter().filter(|(_, metric)| metric["unit"].is_string()).collect();
    assert_eq!(metrics.len(), 62);
    for (tag, metric) in metrics {
        for (stat, theirs) in metric.as_object().unwrap().iter().filter(|(_, value)| value.is_number()) {
            let own = ours[tag][stat].as_f64().unwrap_or_else(|| panic!("{tag} has no {stat}"));
            let theirs = theirs.as_f64().unwrap();
            // Its window begins some milliseconds before the first request, which moves what is weighted by time.
            let share = if tag.starts_with("effective_") { 0.03 } else { 0.001 };
            assert!((own - theirs).abs() <= theirs.abs() * share + 0.002, "{tag} {stat}: {own}, AIPerf said {theirs}");
        }
    }
}
