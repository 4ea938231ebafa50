//! Figures beside the latencies: per GPU, gaps of 0, the memory's bound, every tool's view, and production unasked.

use std::path::Path;

use serde_json::{Value, json};
use streamgauge::measure::server_metrics::ServerMetric;
use streamgauge::trace_file::row::TraceEntry;
use streamgauge::trace_file::server_metrics::Scrape;

use super::diagnosis::write_scrapes;
use super::results::{four, near, of, run, streamgauge, write};

fn reports(rows: &[TraceEntry], run_file: &Value, args: &[&str]) -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = run(&folder.path().join("run"), rows, 0, run_file);
    let shown = |args: &[&str]| {
        let done = streamgauge(&[&path], args);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        done.stdout
    };
    (serde_json::from_str(&shown(&[args, &["--json"]].concat())).unwrap(), shown(args))
}

#[test]
fn throughput_is_divided_by_the_gpus_that_metadata_states() {
    let (report, text) = reports(&four(), &json!({"meta": {"gpu_count": "4"}}), &[]);
    // 13 output tokens and 210 prompt tokens in 2.4 s.
    near(report["per_gpu"]["output_tokens"].as_f64().unwrap(), 13.0 / 2.4 / 4.0);
    near(report["per_gpu"]["total_tokens"].as_f64().unwrap(), 223.0 / 2.4 / 4.0);
    assert!(text.contains("per GPU      1.4 output tokens/s, 23.2 total tokens/s, on 4 GPUs\n"), "{text}");
    let (_, text) = reports(&four(), &json!({"meta": {"gpu_count": "1"}}), &[]);
    assert!(text.contains(" total tokens/s, on 1 GPU\n"), "{text}");
    for unknown in [json!({}), json!({"meta": {"gpu_count": "two"}}), json!({"meta": {"gpu_count": "0"}})] {
        assert_eq!(reports(&four(), &unknown, &[]).0.get("per_gpu"), None);
    }
}

#[test]
fn gaps_of_nothing_are_explained_where_they_stand() {
    let mut rows = four();
    rows[0] = super::results::success(0, 10, 100, 250, &[(0, None), (0, None), (0, None), (60, None)]);
    let (report, text) = reports(&rows, &json!({}), &[]);
    // Three of five gaps.
    near(report["zero_gap_share"].as_f64().unwrap(), 0.6);
    assert!(text.contains("\n60.0 % of the gaps between tokens are 0: these events came together"), "{text}");
    let (report, text) = reports(&four(), &json!({}), &[]);
    assert!(report.get("zero_gap_share").is_none() && !text.contains("came together"));
}

#[test]
fn the_memory_bounds_tpot_by_the_weights_and_by_the_cache_of_the_batch() {
    let flags = ["--hardware", "bandwidth=2TB/s", "--params", "8e9", "--bytes-per-param", "2"];
    let (report, text) = reports(&four(), &json!({}), &flags);
    let bound = &report["bandwidth_bound"];
    // 16 GB at 2 TB/s; TPOT is 20 and 50 ms.
    near(bound["weights_ms"].as_f64().unwrap(), 8.0);
    near(bound["tpot_ms"].as_f64().unwrap(), 35.0);
    near(bound["gap_ms"].as_f64().unwrap(), 27.0);
    near(bound["share_of_bound"].as_f64().unwrap(), 8.0 / 35.0);
    assert_eq!(bound.get("with_kv_ms"), None);
    assert!(text.contains("bound by weights   16.0 GB of weights at 2000.0 GB/s: 8.00ms per step\n"), "{text}");
    assert!(text.contains("27.0ms above the bound, which is 22.9 % of TPOT"), "{text}");
    // One request at a time, of 70 prompt tokens and half of 13 ÷ 3 tokens of response.
    let (report, _) = reports(&four(), &json!({}), &[&flags[..], &["--kv-bytes-per-token", "1e8"]].concat());
    let context = 70.0 + 13.0 / 6.0;
    near(report["bandwidth_bound"]["context_tokens"].as_f64().unwrap(), context);
    near(report["bandwidth_bound"]["with_kv_ms"].as_f64().unwrap(), 8.0 + context * 1e8 / 2e12 * 1e3);
    let alone = streamgauge(&[Path::new("x")], &flags[..2]);
    assert!(alone.code == Some(2) && alone.stderr.contains("--params"), "{}", alone.stderr);
}

#[test]
fn what_the_server_reads_stands_beside_the_bound_of_its_memory() {
    let scrape = |second: i64, read: f64, active: f64| Scrape {
        at: second * 1_000_000_000,
        figures: [(ServerMetric::ReadBytes, read), (ServerMetric::GpuMemoryActivity, active)].into(),
        ..Scrape::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let path = run(&folder.path().join("run"), &four(), 0, &json!({}));
    // 3 TB in two seconds.
    write_scrapes(&path, &[scrape(0, 1e12, 0.5), scrape(1, 2e12, 0.75), scrape(2, 4e12, 0.625)]);
    let flags = ["--hardware", "bandwidth=2TB/s", "--params", "8e9", "--bytes-per-param", "2"];
    let text = streamgauge(&[&path], &flags).stdout;
    assert!(text.contains("\nread per GPU       1500.0 GB/s, as the engine estimates\n"), "{text}");
    assert!(text.contains("\nmemory activity    62.5 % of the time, by the GPU\n"), "{text}");
    let report: Value =
        serde_json::from_str(&streamgauge(&[&path], &[&flags[..], &["--json"]].concat()).stdout).unwrap();
    near(report["bandwidth_bound"]["estimated_read_bytes_per_second"].as_f64().unwrap(), 1.5e12);
    near(report["bandwidth_bound"]["memory_activity"].as_f64().unwrap(), 0.625);
    // An engine that does not estimate them counts none.
    write_scrapes(&path, &[scrape(0, 0.0, 0.5), scrape(2, 0.0, 0.75)]);
    let text = streamgauge(&[&path], &flags).stdout;
    assert!(!text.contains("\nread per GPU") && text.contains("\nmemory activity    62.5 %"), "{text}");
}

#[test]
fn every_tools_figures_stand_side_by_side_and_are_those_of_its_definitions() {
    let (report, text) = reports(&four(), &json!({}), &["--definitions", "all", "--slo", "x: ttft<=105ms"]);
    assert_eq!(report["definitions"], "streamgauge");
    let tools = report["side_by_side"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["definitions"].as_str().unwrap()).collect();
    let expected = [
        "streamgauge",
        "aiperf",
        "vllm",
        "sglang",
        "guidellm",
        "otel",
        "genai-perf",
        "llmperf",
        "nim",
        "databricks",
        "mlperf",
    ];
    assert_eq!(names, expected);
    for tool in tools {
        let (alone, _) = reports(&four(), &json!({}), &["--definitions", tool["definitions"].as_str().unwrap()]);
        for metric in ["ttft", "itl", "tpot", "e2e"] {
            assert_eq!(tool["metrics"][metric].get("avg"), alone["metrics"][metric].get("avg"), "{metric} {tool}");
        }
    }
    let row =
        |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().collect::<Vec<_>>();
    let tpot = ["35.0ms", "-", "35.0ms", "25.0ms", "66.9ms", "62.5ms", "-", "-", "-", "35.7ms", "62.5ms"];
    assert_eq!(row("TPOT avg")[2..], tpot);
    assert_eq!(row("goodput x")[2..6], ["0.0", "%", "33.3", "%"]);
}

#[test]
fn production_stands_beside_a_replay_without_being_asked_if_its_capture_is_still_there() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("capture.jsonl.zst");
    let captured: Vec<TraceEntry> = four().into_iter().map(|row| TraceEntry { planned: None, ..row }).collect();
    write(&capture, &captured, Some(0));
    let digest = format!("blake3:{}", blake3::hash(&std::fs::read(&capture).unwrap()).to_hex());
    let report = |trace: &Path, digest: &str| {
        reports(&four(), &json!({"trace": trace.to_str().unwrap(), "trace_digest": digest}), &[])
    };
    let (beside, text) = report(&capture, &digest);
    near(of(&beside["production"], "ttft", "avg"), 150.0);
    assert!(text.contains("TTFT, production"), "{text}");
    let others = [report(&capture, "0".repeat(64).as_str()).0, report(&folder.path().join("gone"), &digest).0];
    assert!(others.iter().all(|report| report.get("production").is_none()));
    let shape: Vec<TraceEntry> =
        captured.into_iter().map(|row| TraceEntry { outcome: None, timing: Default::default(), ..row }).collect();
    write(&capture, &shape, Some(0));
    let digest = format!("blake3:{}", blake3::hash(&std::fs::read(&capture).unwrap()).to_hex());
    assert!(report(&capture, &digest).0.get("production").is_none(), "a trace without results is no production");
}
