//! `--out-format` and `histograms.hlog`: the other tool's fields with the values of the records.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use serde_json::Value;
use streamgauge::engine::{CostModel, EngineOptions};
use streamgauge::measure::time::Gap;
use streamgauge::sim::{RunningServer, SimOptions, SimServer};

fn sim() -> RunningServer {
    let cost = CostModel {
        prefill_per_second: 500_000_000,
        step_base: Gap::from_millis(1),
        step_per_seq: Gap::ZERO,
        ..CostModel::default()
    };
    let engine = EngineOptions { cost, kv_blocks: 1 << 16, ..EngineOptions::default() };
    let options = SimOptions { engine, ..SimOptions::default() };
    SimServer::bind(options, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().spawn().unwrap()
}

fn streamgauge(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_streamgauge")).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A run of 30 requests of 100 and 7 tokens, of which the first 10 are warm-up.
fn run(folder: &Path) {
    let server = sim();
    let target = format!("http://{}", server.local_addr());
    let load =
        ["load", "--target", &target, "--rate", "60", "--requests", "30", "--isl", "100", "--osl", "7", "--no-audit"];
    let out = folder.to_str().unwrap();
    let more = [
        "--model",
        "sim",
        "--out",
        out,
        "--out-format",
        "aiperf,vllm",
        "--slo",
        "x: ttft<=1h",
        "--warmup",
        "10req",
        "--max-lag",
        "1h",
        "--server-metrics",
        &target,
    ];
    streamgauge(&[&load[..], &more].concat());
}

fn report(folder: &Path, definitions: &str) -> Value {
    let text = streamgauge(&["report", folder.to_str().unwrap(), "--json", "--definitions", definitions]);
    serde_json::from_str(&text).unwrap()
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn theirs(name: &str) -> String {
    text(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/results").join(name))
}

/// AIPerf's metrics of servers that report cached tokens, and of a fixed schedule. AIPerf's run in the data has
/// neither.
const OF_OTHER_RUNS: [(&str, &str); 7] = [
    ("usage_prompt_cache_read_tokens", "tokens"),
    ("total_usage_prompt_cache_read_tokens", "tokens"),
    ("overall_usage_prompt_cache_read_pct", "%"),
    ("replay_sched_lag_p50", "ms"),
    ("replay_sched_lag_p90", "ms"),
    ("replay_sched_lag_p99", "ms"),
    ("replay_sched_degraded", "count"),
];

/// The kinds of values by key; a number is a number, whole or not.
fn shape(value: &Value) -> BTreeMap<String, &'static str> {
    let kind = |value: &Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    value.as_object().unwrap().iter().map(|(key, value)| (key.clone(), kind(value))).collect()
}

fn keys(shape: &BTreeMap<String, &'static str>) -> BTreeSet<String> {
    shape.keys().cloned().collect()
}

/// Keys of theirs that we do not have; there are none of ours that they do not.
fn missing(ours: &Value, theirs: &Value) -> BTreeSet<String> {
    let (ours, theirs) = (shape(ours), shape(theirs));
    assert_eq!(keys(&ours).difference(&keys(&theirs)).collect::<Vec<_>>(), [""; 0], "keys of our own");
    for (key, kind) in &ours {
        assert!(
            kind == &theirs[key] || [*kind, theirs[key]].contains(&"null"),
            "{key}: {kind}, theirs {}",
            theirs[key]
        );
    }
    keys(&theirs).difference(&keys(&ours)).cloned().collect()
}

fn near(ours: &Value, expected: &Value, what: &str) {
    let (ours, expected) = (ours.as_f64().unwrap(), expected.as_f64().unwrap());
    assert!((ours - expected).abs() <= expected.abs() * 1e-6 + 1e-6, "{what}: {ours}, expected {expected}");
}

#[test]
fn vllms_file_has_its_fields_and_the_numbers_of_its_definitions() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder.path().join("run"));
    let ours = json(&text(&folder.path().join("run/vllm_bench_serve.json")));
    let mut theirs = json(&theirs("vllm_bench_serve.json"));
    assert_eq!(theirs["request_rate"], "inf", "it was a closed load, and ours is not");
    theirs["request_rate"] = 60.into();
    assert_eq!(missing(&ours, &theirs), BTreeSet::new());
    assert_eq!(ours["request_rate"], 60.0, "as it was typed");
    for (key, value) in theirs.as_object().unwrap().iter().filter(|(_, value)| value.is_array()) {
        let (ours, theirs) = (&ours[key][0], &value[0]);
        assert_eq!(
            (ours.is_number(), ours.is_string(), ours.is_array()),
            (theirs.is_number(), theirs.is_string(), theirs.is_array()),
            "{key}"
        );
    }
    assert_eq!((&ours["num_prompts"], &ours["completed"], &ours["failed"]), (&20.into(), &20.into(), &0.into()));
    assert_eq!((&ours["total_input_tokens"], &ours["total_output_tokens"]), (&2_000.into(), &140.into()));
    assert_eq!((&ours["itls"][0].as_array().unwrap().len(), &ours["errors"][0]), (&6, &"".into()));
    let report = report(&folder.path().join("run"), "vllm");
    for (metric, name) in [("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el")] {
        let of = &report["metrics"][metric];
        for (stat, key) in [("avg", "mean"), ("p50", "median"), ("std", "std"), ("p99", "p99")] {
            near(&ours[format!("{key}_{name}_ms")], &of[stat], &format!("{key} {name}"));
        }
    }
    near(&ours["duration"], &report["seconds"], "duration");
    assert_eq!((&ours["backend"], &ours["endpoint_type"]), (&"openai-chat".into(), &"openai-chat".into()));
    near(&ours["request_goodput"], &report["throughput"]["requests"], "all are good");
}

#[test]
fn aiperfs_files_have_its_fields_and_the_numbers_of_its_definitions() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder.path().join("run"));
    let at = |name: &str| text(&folder.path().join("run").join(name));
    let (lines, summary) = (at("profile_export.jsonl"), json(&at("profile_export_aiperf.json")));
    let (mut ours, their) =
        (json(lines.lines().last().unwrap()), json(theirs("profile_export.jsonl").lines().next().unwrap()));
    let of_phase =
        |phase: &str| lines.lines().filter(|line| json(line)["metadata"]["benchmark_phase"] == phase).count();
    assert_eq!((of_phase("warmup"), of_phase("profiling"), lines.lines().count()), (10, 20, 30));
    let not_known = missing(&ours["metadata"], &their["metadata"]);
    assert_eq!(not_known, ["root_correlation_id", "x_correlation_id", "x_request_id"].map(str::to_owned).into());
    let cached = ours["metrics"].as_object_mut().unwrap().remove("usage_prompt_cache_read_tokens");
    assert_eq!(cached, Some(serde_json::json!({"value": 0, "unit": "tokens"})));
    assert_eq!(missing(&ours["metrics"], &their["metrics"]), BTreeSet::new());
    for (tag, metric) in ours["metrics"].as_object().unwrap() {
        assert_eq!(metric["unit"], their["metrics"][tag]["unit"], "{tag}");
        assert_eq!(shape(metric), shape(&their["metrics"][tag]), "{tag}");
    }
    let mut their = json(&theirs("profile_export_aiperf.json"));
    // It was not asked for goodput, which it then has in these units.
    let units = [("goodput", "requests/sec"), ("good_request_count", "requests"), ("good_request_fraction", "ratio")];
    for (tag, unit) in units {
        their[tag] = serde_json::json!({"unit": unit, "avg": 0.0});
    }
    let mut summary = summary;
    for (tag, unit) in OF_OTHER_RUNS {
        let metric = summary.as_object_mut().unwrap().remove(tag).unwrap();
        assert!(metric["unit"] == unit && metric["avg"].as_f64().unwrap() >= 0.0, "{tag}: {metric}");
    }
    let warm_up = summary.as_object_mut().unwrap().remove("warmup_metrics").unwrap();
    assert_eq!(
        (&warm_up["request_count"]["avg"], &warm_up["time_to_first_token"]["count"]),
        (&10.0.into(), &10.into())
    );
    assert_eq!(
        (&summary["good_request_count"]["avg"], &summary["good_request_fraction"]["avg"]),
        (&20.0.into(), &1.0.into())
    );
    near(&summary["goodput"]["avg"], &summary["request_throughput"]["avg"], "all are good");
    assert_eq!(missing(&summary, &their), ["benchmark_id".to_owned()].into());
    let config = &summary["input_config"];
    assert_eq!(
        missing(&config["endpoint"], &their["input_config"]["endpoint"]),
        ["extra", "use_server_token_count"].map(str::to_owned).into()
    );
    assert_eq!(config["models"], serde_json::json!({"items": [{"name": "sim"}]}));
    let data = serde_json::json!([{"name": "main", "type": "synthetic", "entries": 20, "prompts": {"isl": 100.0, "osl": 7.0}}]);
    assert_eq!(config["datasets"], data);
    assert_eq!(config["phases"], serde_json::json!([{"name": "profiling", "type": "fixed_schedule"}]));
    assert_eq!((&config["endpoint"]["type"], &config["endpoint"]["streaming"]), (&"chat".into(), &true.into()));
    assert_eq!(config["endpoint"]["urls"].as_array().unwrap().len(), 1);
    for (tag, metric) in summary.as_object().unwrap().iter().filter(|(_, metric)| metric["unit"].is_string()) {
        assert_eq!((shape(metric), &metric["unit"]), (shape(&their[tag]), &their[tag]["unit"]), "{tag}");
    }
    let of_http = |tag: &str, stat: &str| summary[&format!("http_req_{tag}")][stat].as_f64().unwrap();
    assert!(of_http("connection_reused", "sum") >= 1.0, "connections are made before a request is due");
    let parts = ["connection_overhead", "sending", "waiting", "receiving"].map(|part| of_http(part, "sum"));
    near(&parts.iter().sum::<f64>().into(), &of_http("total", "sum").into(), "the parts make the whole");
    near(&parts[1..].iter().sum::<f64>().into(), &of_http("duration", "sum").into(), "without its connection");
    assert!(
        of_http("waiting", "min") > 0.0
            && of_http("waiting", "max") < summary["time_to_first_token"]["max"].as_f64().unwrap()
    );
    let report = report(&folder.path().join("run"), "aiperf");
    for (metric, tag) in [
        ("ttft", "time_to_first_token"),
        ("itl", "inter_token_latency"),
        ("gap", "inter_chunk_latency"),
        ("e2e", "request_latency"),
        ("tokens_per_second_per_user", "output_token_throughput_per_user"),
        ("osl", "output_sequence_length"),
        ("isl", "input_sequence_length"),
        ("send_lag", "credit_to_start_latency"),
    ] {
        for stat in ["avg", "min", "p1", "p99", "max", "std", "count"] {
            near(&summary[tag][stat], &report["metrics"][metric][stat], &format!("{tag} {stat}"));
        }
    }
    near(&summary["request_throughput"]["avg"], &report["throughput"]["requests"], "request throughput");
    let header = |text: &str| -> BTreeSet<String> {
        text.lines().map(|line| line.split(',').next().unwrap().to_owned()).collect()
    };
    let (ours, their) = (header(&at("profile_export_aiperf.csv")), header(&theirs("profile_export_aiperf.csv")));
    let of_other_runs = [
        "Good Request Count",
        "GoodRequestFraction (ratio)",
        "Goodput (requests/sec)",
        "Overall Usage Prompt Cache Read % (%)",
        "Replay Schedule Degraded",
        "Replay Schedule Lag p50 (ms)",
        "Replay Schedule Lag p90 (ms)",
        "Replay Schedule Lag p99 (ms)",
        "Total Usage Prompt Cache Read Tokens (tokens)",
        "Usage Prompt Cache Read Tokens (tokens)",
    ];
    assert_eq!(ours.difference(&their).collect::<Vec<_>>(), of_other_runs, "rows of our own");
    assert_eq!(their.difference(&ours).collect::<Vec<_>>(), [""; 0], "rows that we do not have");
    assert_eq!(at("profile_export_aiperf.csv").lines().next(), theirs("profile_export_aiperf.csv").lines().next());
}

#[test]
fn what_failed_is_in_aiperfs_files_as_what_took_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let server = sim();
    let target = format!("http://{}", server.local_addr());
    let out = folder.path().join("run");
    let load = ["load", "--target", &target, "--model", "sim", "--rate", "60", "--requests", "20", "--isl", "100"];
    let more = ["--osl", "7", "--no-audit", "--max-lag", "1h", "--cancel-rate", "50%", "--cancel-after", "2tok"];
    let to = ["--out", out.to_str().unwrap(), "--out-format", "aiperf"];
    streamgauge(&[&load[..], &more, &to].concat());
    let (lines, summary) =
        (text(&out.join("profile_export.jsonl")), json(&text(&out.join("profile_export_aiperf.json"))));
    let lines: Vec<Value> = lines.lines().map(json).collect();
    let (failed, whole): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["error"].is_object());
    assert!(!failed.is_empty() && !whole.is_empty(), "{} and {}", failed.len(), whole.len());
    for line in &failed {
        let metadata = &line["metadata"];
        assert_eq!((&line["error"]["code"], &line["error"]["type"]), (&499.into(), &"RequestCancellationError".into()));
        assert_eq!(
            (&metadata["was_cancelled"], &metadata["cancellation_time_ns"]),
            (&true.into(), &metadata["request_end_ns"])
        );
        assert_eq!(line["metrics"], serde_json::json!({"error_isl": {"value": 100, "unit": "tokens"}}));
    }
    let count = |number: usize| Value::from(number as f64);
    assert_eq!(
        (&summary["error_request_count"]["avg"], &summary["request_count"]["avg"]),
        (&count(failed.len()), &count(whole.len()))
    );
    assert_eq!(summary["total_error_isl"]["avg"], count(100 * failed.len()));
    for tag in ["time_to_first_token", "inter_token_latency", "decode_duration", "request_latency"] {
        let (unadjusted, adjusted) = (&summary[tag], &summary[format!("adj_{tag}")]);
        assert_eq!((&unadjusted["count"], &adjusted["count"]), (&whole.len().into(), &20.into()), "{tag}");
        assert_eq!((&unadjusted["min"], &adjusted["max"]), (&adjusted["min"], &Value::Null), "{tag}");
    }
    // These are of all requests.
    for tag in ["credit_to_start_latency", "effective_latency"] {
        assert_eq!(summary[tag]["count"], 20, "{tag}");
    }
    assert!(summary.get("adj_inter_chunk_latency").is_none());
}

#[test]
fn the_histogram_log_has_every_time_of_the_records_and_merges() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder.path().join("run"));
    let file = fs::read(folder.path().join("run/histograms.hlog")).unwrap();
    let mut histograms = BTreeMap::new();
    for entry in IntervalLogIterator::new(&file) {
        if let LogEntry::Interval(interval) = entry.unwrap() {
            use base64::Engine as _;
            let bytes = base64::engine::general_purpose::STANDARD.decode(interval.encoded_histogram()).unwrap();
            let histogram: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
            histograms.insert(interval.tag().unwrap().as_str().to_owned(), histogram);
        }
    }
    let report = report(&folder.path().join("run"), "streamgauge");
    for name in ["ttft_from_planned", "ttft", "itl", "tpot", "e2e_from_planned", "e2e", "send_lag"] {
        let (of, histogram) = (&report["metrics"][name], &histograms[name]);
        assert_eq!(of["count"], histogram.len(), "{name}");
        let (most, exact) = (histogram.max() as f64 / 1e6, of["max"].as_f64().unwrap());
        assert!((most - exact).abs() <= exact * 1e-3, "{name}: {most}, exactly {exact}");
    }
    let mut twice = histograms["itl"].clone();
    twice.add(&histograms["itl"]).unwrap();
    assert_eq!(twice.len(), 2 * 20 * 6);
}

#[test]
fn the_summary_of_a_run_is_what_report_makes_of_its_records() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder.path().join("run"));
    let summary = json(&text(&folder.path().join("run/run.json")))["summary"].clone();
    let report = report(&folder.path().join("run"), "streamgauge");
    // The two clocks are held against each other anew for the file.
    let but_its_begin = |report: &Value| {
        let mut report = report.clone();
        report["sources"][0]["started_unix_ns"] = Value::Null;
        report
    };
    let (report, summary) = (but_its_begin(&report), but_its_begin(&summary));
    for key in report.as_object().unwrap().keys() {
        assert_eq!(report[key], summary[key], "{key}");
    }
    assert_eq!(summary["metrics"]["ttft_from_planned"]["count"], report["outcomes"]["success"]);
    assert!(
        summary["servers"][0]["figures"]["running"]["unit"].is_string(),
        "what the server reported: {}",
        summary["servers"]
    );
}

#[test]
fn the_files_of_other_tools_are_no_part_of_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder.path().join("run"));
    let run = folder.path().join("run");
    let info = json(&streamgauge(&["trace", "info", run.to_str().unwrap(), "--json"]));
    assert_eq!(info["requests"], 30);
}
