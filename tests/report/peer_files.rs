//! Result files of other tools: our figures of their requests are the figures that the tools wrote themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use serde_json::{Value, json};
use streamgauge::measure::record::{CountSource, Outcome};
use streamgauge::report::Report;
use streamgauge::report::accumulate::{Accumulator, AccumulatorSettings};
use streamgauge::report::definitions::Definitions;
use streamgauge::report::peer_files::detect::PeerFormat;
use streamgauge::report::peer_files::input::PeerInput;
use streamgauge::report::peer_files::request::PeerRequest;
use streamgauge::report::peer_files::{PeerContent, read};
use streamgauge::report::source_reader::{self, SourceReader};

const MS: u64 = 1_000_000;
const STATISTICS: [&str; 13] =
    ["avg", "min", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "max", "std"];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/results").join(name)
}

fn json_of(name: &str) -> Value {
    serde_json::from_slice(&fs::read(data(name)).unwrap()).unwrap()
}

fn report(path: &Path, definitions: Definitions) -> Value {
    let mut fold = Accumulator::new(AccumulatorSettings { definitions, ..AccumulatorSettings::default() });
    let sources = source_reader::read(vec![SourceReader::open(path).unwrap()], &mut fold).unwrap();
    let percentiles = [0.1, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9];
    serde_json::from_str(&Report::of(&mut fold, sources, &percentiles).json()).unwrap()
}

/// Within what rounding to nanoseconds, and of the file's own values to microseconds, explains.
fn near(ours: &Value, theirs: &Value, what: &str) {
    let (ours, theirs) = (ours.as_f64().unwrap_or(f64::NAN), theirs.as_f64().unwrap());
    assert!((ours - theirs).abs() <= theirs.abs() * 1e-5 + 0.002, "{what}: {ours}, the tool said {theirs}");
}

/// The requests of a file with this content.
fn requests(format: PeerFormat, content: &str) -> Result<Vec<PeerRequest>, String> {
    assert_eq!(PeerFormat::detect(content.as_bytes()), Some(format));
    let input = PeerInput::bytes(Path::new("file"), content.as_bytes().to_vec());
    match read(format, &input, None).map_err(|error| error.to_string())? {
        PeerContent::Run(run) => run.requests.collect::<Result<_, _>>().map_err(|error| error.to_string()),
        PeerContent::Summary(summary) => Err(format!("only figures; {}", summary.remedy)),
    }
}

/// The program's result for these arguments: (exit code, stdout, stderr).
fn streamgauge(args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    let done = command.args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

// ------------------------------------------------------------------------------------------- the tools' own figures

#[test]
fn aiperfs_records_give_aiperfs_figures() {
    let (ours, theirs) = (report(&data(""), Definitions::Aiperf), json_of("profile_export_aiperf.json"));
    for (metric, tag) in [
        ("ttft", "time_to_first_token"),
        ("ttfo", "time_to_first_output_token"),
        ("second_token", "time_to_second_token"),
        ("gap", "inter_chunk_latency"),
        ("isl", "input_sequence_length"),
        ("osl", "output_sequence_length"),
        ("e2e", "request_latency"),
    ] {
        assert_eq!(ours["metrics"][metric]["count"], theirs[tag]["count"], "{tag}");
        for statistic in STATISTICS {
            near(&ours["metrics"][metric][statistic], &theirs[tag][statistic], &format!("{tag} {statistic}"));
        }
    }
    near(&ours["metrics"]["itl"]["avg"], &theirs["inter_token_latency"]["avg"], "ITL per request");
    near(&ours["seconds"], &theirs["benchmark_duration"]["avg"], "duration");
    assert_eq!(ours["sources"][0]["tool"], "AIPerf 0.13.0");
    let context = ["model", "target", "seed"].map(|fact| ours["context"][fact].as_str().unwrap());
    assert_eq!(context, ["tiny", "http://127.0.0.1:18081", "7"]);
}

#[test]
fn vllms_lists_give_vllms_figures() {
    let (ours, theirs) = (report(&data("vllm_bench_serve.json"), Definitions::Vllm), json_of("vllm_bench_serve.json"));
    for (metric, name) in [("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el")] {
        for (ours_of, key) in [("avg", "mean"), ("p50", "median"), ("std", "std"), ("p90", "p90"), ("p99", "p99")] {
            near(&ours["metrics"][metric][ours_of], &theirs[format!("{key}_{name}_ms")], &format!("{key} {name}"));
        }
    }
    let tokens = &ours["tokens"];
    assert_eq!((&tokens["input"], &tokens["output"]), (&theirs["total_input_tokens"], &theirs["total_output_tokens"]));
    assert_eq!(tokens["sources"], json!({"tokenizer": 40}), "the file does not state the source");
    assert_eq!(ours["sources"][0].get("started_unix_ns"), None, "the clock counts from an unknown moment");
    assert_eq!((&ours["in_flight"]["max"], &ours["context"]["concurrency"]), (&json!(4), &json!("at most 4 open")));
    near(&ours["throughput"]["requests"], &theirs["request_throughput"], "requests per second");
}

#[test]
fn guidellms_requests_give_guidellms_figures_and_no_gap_is_made_up() {
    for (file, number) in [("guidellm/benchmarks.json#1", 0), ("guidellm#2", 1), ("guidellm/constant.json", 0)] {
        let theirs = json_of(if file.contains('#') { "guidellm/benchmarks.json" } else { file });
        let theirs = &theirs["benchmarks"][number]["metrics"];
        let ours = report(&data(file), Definitions::Guidellm);
        for (metric, name, factor) in [
            ("ttft", "time_to_first_token_ms", 1.0),
            ("e2e", "request_latency", 1e3),
            ("isl", "prompt_token_count", 1.0),
            ("osl", "output_token_count", 1.0),
            ("tpot", "time_per_output_token_ms", 1.0),
            ("itl", "inter_token_latency_ms", 1.0),
        ] {
            for (statistic, key) in [("avg", "mean"), ("min", "min"), ("max", "max"), ("std", "std_dev")] {
                let theirs = theirs[name]["successful"][key].as_f64().unwrap() * factor;
                near(&ours["metrics"][metric][statistic], &json!(theirs), &format!("{file}: {name} {key}"));
            }
        }
        let own = report(&data(file), Definitions::Streamgauge);
        assert!(own["metrics"].get("itl").is_none() && own["metrics"]["tpot"]["count"] == own["requests"], "{file}");
        let warnings = own["warnings"].as_array().unwrap();
        assert!(warnings.iter().any(|warning| warning["warning"] == "lost_gaps"), "{file}");
    }
    let [slots, plan] =
        ["guidellm#2", "guidellm/constant.json"].map(|file| report(&data(file), Definitions::default()));
    assert!(slots["metrics"].get("send_lag").is_none(), "slots have no plan");
    assert_eq!((&slots["context"]["concurrency"], &plan["context"]["rate"]), (&json!("at most 2 open"), &json!("4/s")));
    let lag = |statistic: &str| plan["metrics"]["send_lag"][statistic].as_f64().unwrap();
    assert!(lag("p50") > 5.0 && lag("max") < 20.0, "GuideLLM sent up to 17 ms late: {plan}");
}

#[test]
fn inference_perfs_requests_give_inference_perfs_figures() {
    let ours = report(&data("inference-perf"), Definitions::Streamgauge);
    let theirs = &json_of("inference-perf/summary_lifecycle_metrics.json")["successes"];
    for (metric, name) in [("ttft", "time_to_first_token"), ("e2e", "request_latency")] {
        let theirs = &theirs["latency"][name];
        for (statistic, key) in
            [("avg", "mean"), ("min", "min"), ("p0.1", "p0.1"), ("p50", "median"), ("p99", "p99"), ("max", "max")]
        {
            let value = json!(theirs[key].as_f64().unwrap() * 1e3);
            near(&ours["metrics"][metric][statistic], &value, &format!("{name} {key}"));
        }
    }
    near(&ours["throughput"]["requests"], &theirs["throughput"]["requests_per_sec"], "requests per second");
    // inference-perf counts tokens of the text anew, here 463 for 169, and spreads chunks over them.
    assert_eq!((&ours["tokens"]["output"], &ours["tokens"]["sources"]), (&json!(169), &json!({"usage": 16})));
    assert_eq!(ours["metrics"]["itl"]["count"], 169 - 16);
}

// ------------------------------------------------------------------------------------------------------ two files

/// The differences between two files as (what, before, after).
fn differences(comparison: &Value) -> Vec<(&str, &str, &str)> {
    fn text<'a>(of: &'a Value, key: &str) -> &'a str {
        of[key].as_str().unwrap()
    }
    let all = comparison["workload"]["differences"].as_array().unwrap();
    all.iter().map(|of| (text(of, "what"), text(of, "before"), text(of, "after"))).collect()
}

fn compared(before: &Path, after: &Path) -> Value {
    let [before, after] = [before, after].map(|path| path.to_str().unwrap());
    let (code, stdout, stderr) = streamgauge(&["compare", "--json", before, after]);
    assert!(code < Some(2), "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn files_of_two_tools_differ_in_the_tool_and_in_what_their_latencies_are() {
    let vllm = data("vllm_bench_serve.json");
    let comparison = compared(&vllm, &data("profile_export.jsonl"));
    let expected = [
        ("model", "tiny", "unknown"),
        ("arrivals", "closed loop", "unknown"),
        ("concurrency", "at most 4 open", "unknown"),
        ("token counts", "tokenizer", "usage"),
        ("tool", "vllm bench serve", "AIPerf"),
        ("E2E ends", "at the last token", "at the end of the response"),
    ];
    assert_eq!(differences(&comparison), expected);
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/runs/compare/before-1");
    let comparison = compared(&own, &data("guidellm/constant.json"));
    let of_measuring: Vec<_> =
        differences(&comparison).into_iter().skip_while(|(what, ..)| *what != "tool").take(3).collect();
    let expected = [
        ("tool", "Streamgauge", "GuideLLM 0.8.1"),
        ("ITL", "gaps ÷ their tokens", "none: the file has no gaps"),
        ("TPOT divides by", "tokens after the first event", "tokens − 1"),
    ];
    assert_eq!(of_measuring, expected, "both begin at the planned time, and end at the end of the response");
    let comparison = compared(&own, &data("inference-perf"));
    let begin = ("TTFT and E2E begin", "at the planned time", "before the connection is made");
    assert!(differences(&comparison).contains(&begin), "{:?}", differences(&comparison));
}

#[test]
fn two_files_of_one_tool_are_compared_by_their_values_and_differ_in_no_definition() {
    let folder = tempfile::tempdir().unwrap();
    let mut slower = json_of("vllm_bench_serve.json");
    for column in ["ttfts", "latencies"] {
        for value in slower[column].as_array_mut().unwrap() {
            *value = json!(value.as_f64().unwrap() + 0.1);
        }
    }
    let path = folder.path().join("slower.json");
    fs::write(&path, slower.to_string()).unwrap();
    let comparison = compared(&data("vllm_bench_serve.json"), &path);
    assert_eq!(differences(&comparison), []);
    let figure = |name: &str| {
        let figures = comparison["figures"].as_array().unwrap();
        let of = figures.iter().find(|of| of["figure"] == name).unwrap();
        ["before", "after", "change"].map(|side| of[side].as_f64().unwrap())
    };
    // The file's own medians, in milliseconds.
    let file = json_of("vllm_bench_serve.json");
    for (name, key) in [("ttft.p50", "median_ttft_ms"), ("e2e.p50", "median_e2el_ms")] {
        let [before, after, change] = figure(name);
        let median = file[key].as_f64().unwrap();
        assert!((before - median).abs() < 0.01, "{name}: {before}, the tool wrote {median}");
        assert!((after - before - 100.0).abs() < 1e-6, "{name}: {before} to {after}");
        assert!((change - 100.0 / before).abs() < 1e-9, "{name}: {change}");
    }
    let [before, after, change] = figure("tpot.p50");
    assert_eq!((after, change), (before, 0.0), "the tokens came at the same pace");
}

// --------------------------------------------------------------------------------------------- worked out by hand

#[test]
fn a_line_of_aiperf_is_one_request() {
    let line = |fields: &Value, metrics: &Value, error: &Value| {
        let mut metadata = json!({"request_start_ns": 2_000 * MS, "request_end_ns": 2_300 * MS, "turn_index": 1,
            "x_correlation_id": "s", "benchmark_phase": "profiling", "was_cancelled": false});
        metadata.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"metadata": metadata, "metrics": metrics, "error": error}).to_string()
    };
    let metrics = json!({
        "time_to_first_token": {"value": 50.0, "unit": "ms"},
        "time_to_first_output_token": {"value": 0.06, "unit": "sec"},
        "inter_chunk_latency": {"value": [10, 20.5], "unit": "ms"},
        "output_sequence_length": {"value": 9, "unit": "tokens"},
        "usage_completion_tokens": {"value": 7, "unit": "tokens"},
        "input_sequence_length": {"value": 30, "unit": "tokens"},
        "usage_prompt_cache_read_tokens": {"value": 16, "unit": "tokens"},
    });
    let early = json!({"request_start_ns": 1_500 * MS, "request_end_ns": 1_600 * MS, "benchmark_phase": "warmup"});
    let none = json!({});
    let lines = [
        line(&none, &metrics, &Value::Null),
        line(&early, &none, &json!({"code": 503, "type": "x", "message": "secret"})),
        line(&json!({"was_cancelled": true}), &none, &json!({"code": 499, "type": "RequestCancellationError"})),
        line(&none, &none, &json!({"code": 404})),
    ];
    let rows = requests(PeerFormat::AiperfRecords, &lines.join("\n\n")).unwrap();
    let [whole, warm_up, cancelled, refused] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(
        (whole.at, whole.first, whole.output, whole.ended),
        (500 * MS, Some(50 * MS), Some(60 * MS), Some(300 * MS))
    );
    let gaps: Vec<u64> = whole.events.iter().map(|event| event.gap().as_nanos()).collect();
    assert_eq!((gaps, whole.events[0].tokens()), (vec![10 * MS, 20_500_000], None));
    let count =
        |count: Option<streamgauge::measure::record::TokenCount>| count.map(|count| (count.tokens, count.source));
    assert_eq!(count(whole.tokens), Some((7, CountSource::Usage)), "the server's count comes first");
    assert_eq!(count(whole.input), Some((30, CountSource::Tokenizer)));
    assert_eq!((whole.cached, &whole.session), (Some(16), &Some(("s".to_owned(), 1))));
    assert_eq!((whole.planned, whole.status), (None, None), "what the file lacks is absent");
    assert_eq!(
        (warm_up.at, warm_up.warm_up, warm_up.outcome, warm_up.status),
        (0, true, Some(Outcome::Failed), Some(503))
    );
    assert_eq!((cancelled.outcome, refused.outcome), (Some(Outcome::Cancelled), Some(Outcome::Refused)));
    assert_eq!((cancelled.status, refused.status), (None, Some(404)), "no server sent the code of a cancellation");
    assert!(!refused.streamed && refused.tokens.is_none());
}

/// Two requests of vLLM's tool: a success of three chunks and a failure.
fn vllm() -> Value {
    json!({"model_id": "m", "num_prompts": 2, "endpoint_type": "openai-chat", "request_rate": 2.0, "burstiness": 1.0, "max_concurrency": null,
        "input_lens": [5, 6], "output_lens": [3, 0], "ttfts": [0.1, 0.0], "itls": [[0.02, 0.03], []],
        "latencies": [0.15, 0.0], "start_times": [1000.5, 1000.0], "queue_times": [0.25, 0.0],
        "errors": ["", "secret"], "generated_texts": ["secret", ""]})
}

#[test]
fn a_column_of_vllm_is_one_value_of_each_request() {
    let rows = requests(PeerFormat::VllmBench, &vllm().to_string()).unwrap();
    let [whole, failed] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((whole.at, whole.planned, whole.first), (500 * MS, Some(250 * MS), Some(100 * MS)));
    assert_eq!((whole.ended, whole.events.len(), whole.outcome), (Some(150 * MS), 2, Some(Outcome::Success)));
    assert_eq!((failed.at, failed.first, failed.ended, failed.tokens), (0, None, None, None));
    assert_eq!(failed.outcome, Some(Outcome::Failed));
    let mut unlimited = vllm();
    (unlimited["request_rate"], unlimited["max_concurrency"]) = (json!("inf"), json!(1));
    unlimited.as_object_mut().unwrap().remove("latencies");
    let rows = requests(PeerFormat::VllmBench, &unlimited.to_string()).unwrap();
    assert_eq!(rows[0].planned, None, "slots have no plan");
    assert_eq!(rows[0].ended, Some(150 * MS), "older files have no latencies: the last chunk is the end");
}

#[test]
fn a_request_of_guidellm_without_usage_counts_chunks_and_one_that_was_cut_off_is_cancelled() {
    let entry = |start: f64, tokens: Value| {
        json!({"info": {"timings": {"request_start": start, "first_token_iteration": start + 0.5,
            "last_token_iteration": start + 1.25, "token_iterations": 4, "request_end": start + 1.5}},
            "output_metrics": {"total_tokens": tokens}})
    };
    let document = json!({"metadata": {"version": 2}, "benchmarks": [{
        "config": {"strategy": {"type_": "throughput"}}, "metrics": {"request_totals": {"total": 9}},
        "requests": {"successful": [entry(100.5, Value::Null)], "incomplete": [entry(100.0, json!(2))], "errored": []}}]});
    let rows = requests(PeerFormat::Guidellm, &document.to_string()).unwrap();
    let [whole, cut] = &rows[..] else { panic!("{rows:?}") };
    let counts = [whole, cut].map(|row| row.tokens.map(|count| (count.tokens, count.source)));
    assert_eq!(counts, [Some((4, CountSource::Chunks)), Some((2, CountSource::Usage))]);
    assert_eq!(
        (whole.at, whole.first, whole.last, whole.ended),
        (500 * MS, Some(500 * MS), Some(1_250 * MS), Some(1_500 * MS))
    );
    assert_eq!((whole.lost_gaps, cut.outcome), (3, Some(Outcome::Cancelled)));
    let input = PeerInput::bytes(Path::new("b.json"), document.to_string().into_bytes());
    let Ok(PeerContent::Run(run)) = read(PeerFormat::Guidellm, &input, Some(1)) else { panic!() };
    assert_eq!(run.facts.truncated, ["b.json lists 2 of 9 requests, a sample"]);
}

#[test]
fn a_request_of_inference_perf_has_the_gaps_of_its_chunks_and_in_old_files_of_its_tokens() {
    let entry = |info: Value, error: Value| json!({"start_time": 7.0, "end_time": 7.5, "request": "secret", "info": info, "error": error});
    let document = json!([
        entry(
            json!({"input_tokens": 4, "response_metrics": {"output_tokens": 5, "chunk_times": [7.125, 7.25],
            "output_token_times": [7.125, 7.125, 7.25], "server_usage": null}}),
            Value::Null
        ),
        entry(json!({"input_tokens": 4, "output_tokens": 2, "output_token_times": [7.25, 7.375]}), Value::Null),
        entry(Value::Null, json!({"error_type": "x", "error_msg": "secret"})),
    ]);
    let rows = requests(PeerFormat::InferencePerfRecords, &document.to_string()).unwrap();
    let [new, old, failed] = &rows[..] else { panic!("{rows:?}") };
    let events = |row: &PeerRequest| -> Vec<_> {
        row.events.iter().map(|event| (event.gap().as_nanos(), event.tokens())).collect()
    };
    assert_eq!((events(new), events(old)), (vec![(125 * MS, None)], vec![(125 * MS, Some(1))]));
    assert_eq!((new.first, old.first, failed.first), (Some(125 * MS), Some(250 * MS), None));
    assert_eq!([new, old].map(|row| row.tokens.unwrap().source), [CountSource::Tokenizer; 2]);
    assert_eq!((failed.outcome, failed.ended), (Some(Outcome::Failed), Some(500 * MS)));
}

// ------------------------------------------------------------------------------------------------- the verb

#[test]
fn every_flag_of_a_report_works_on_another_tools_requests() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vllm.json");
    fs::write(&path, vllm().to_string()).unwrap();
    let path = path.to_str().unwrap();
    // The success was due at 250 ms and had its first token at 600 ms.
    for (slo, met) in [("chat: ttft<=350ms tpot<=25ms", 1), ("chat: ttft<=349ms", 0), ("chat: tpot<=24ms", 0)] {
        let (_, stdout, _) = streamgauge(&["report", path, "--slo", slo, "--by", "outcome", "--json"]);
        let report: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((&report["goodput"][0]["met"], &report["goodput"][0]["counted"]), (&json!(met), &json!(2)), "{slo}");
        assert_eq!(report["groups"].as_array().unwrap().len(), 2);
    }
    let exit = |args: &[&str]| streamgauge(&[&["report", path], args].concat()).0;
    assert_eq!(exit(&["--fail-if", "tpot.p50<=20ms"]), Some(1));
    assert_eq!(exit(&["--fail-if", "tpot.p50<=25ms", "--filter", "outcome=success"]), Some(0));
    let (_, text, _) = streamgauge(&["report", path]);
    assert!(text.contains("\narrivals     poisson\nrate         2/s\nconcurrency  unlimited\n"), "{text}");
    assert!(text.contains("2 requests of vllm bench serve") && !text.contains("secret"), "{text}");
    assert!(!text.contains("run.json"), "a warning about a run's file is for runs: {text}");
}

#[test]
fn figures_without_requests_are_shown_and_no_percentile_is_made_up() {
    let (_, text, _) = streamgauge(&["report", "tests/data/results/profile_export_aiperf.json"]);
    assert!(text.contains("only a summary: no distribution") && text.contains("profile_export.jsonl"), "{text}");
    let row = text.lines().find(|line| line.starts_with("TTFT (ms)")).unwrap();
    assert!(row.contains(" 392.155 ") && row.contains(" 1383.929 "), "{row}");
    let mut figures = vllm();
    let fields = figures.as_object_mut().unwrap();
    fields.retain(|key, _| !["ttfts", "itls", "start_times", "latencies"].contains(&&**key));
    fields.extend([("mean_ttft_ms".to_owned(), json!(12.5)), ("p99_ttft_ms".to_owned(), json!(20))]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vllm.json");
    fs::write(&path, figures.to_string()).unwrap();
    let path = path.to_str().unwrap();
    let report: Value = serde_json::from_str(&streamgauge(&["report", path, "--json"]).1).unwrap();
    assert_eq!(report["figures"], json!([{"name": "TTFT", "unit": "ms", "statistics": {"avg": 12.5, "p99": 20.0}}]));
    let (_, csv, _) = streamgauge(&["report", path, "--csv"]);
    assert!(csv.contains("\nTTFT,ms,p99,20\n") && csv.contains("\nrequests,,total,2\n"), "{csv}");
    let (code, _, error) = streamgauge(&["report", path, "--slo", "chat: ttft<=1s"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("--slo needs requests") && error.contains("--save-detailed"), "{error}");
    let (code, _, error) = streamgauge(&["report", path, "tests/data/runs/chat"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("only a summary") && error.contains("--save-detailed"), "{error}");
}

#[test]
fn sglangs_file_has_figures_and_no_times_of_sending() {
    let file = "tests/data/results/sglang_bench.jsonl";
    let report: Value = serde_json::from_str(&streamgauge(&["report", file, "--json"]).1).unwrap();
    assert_eq!((&report["tool"], &report["concurrency"]), (&json!("sglang.bench_serving"), &json!(4)));
    assert_eq!(report.get("rate"), None, "it was unlimited");
    assert_eq!(report["totals"]["requests per second"], 9.824_322);
    let ttft = json!({
        "avg": 102.667_168, "p50": 107.421_451, "p90": 133.938_387,
        "p95": 216.568_417, "p99": 217.035_522, "std": 46.387_166,
    });
    assert_eq!(report["figures"][0], json!({"name": "TTFT", "unit": "ms", "statistics": ttft}));
    let names: Vec<&str> =
        report["figures"].as_array().unwrap().iter().map(|of| of["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["TTFT", "TPOT", "ITL", "E2E"]);
    let (code, _, error) = streamgauge(&["report", file, "--slo", "chat: ttft<=1s"]);
    assert!(code == Some(2) && error.contains("records no times of sending"), "{error}");
    // Each run appends a line.
    let folder = tempfile::tempdir().unwrap();
    let two = folder.path().join("two.jsonl");
    let second =
        r#"{"tag":"NaN \" Infinity","backend":"vllm","dataset_name":"random","request_rate":2.0,"mean_ttft_ms":NaN}"#;
    fs::write(&two, fs::read_to_string(file).unwrap() + second).unwrap();
    let of = |number: usize| streamgauge(&["report", &format!("{}#{number}", two.display()), "--json"]);
    let report: Value = serde_json::from_str(&of(2).1).unwrap();
    assert_eq!((&report["rate"], &report["figures"]), (&json!("2/s"), &json!([])));
    assert!(of(3).2.contains("it has 2 runs, and none of number 3"), "{}", of(3).2);
}

#[test]
fn results_of_other_tools_are_never_merged_in_silence() {
    let (one, other) = ("tests/data/results/vllm_bench_serve.json", "tests/data/results");
    for pair in [[one, other], [other, one], ["tests/data/runs/chat", one]] {
        let (code, _, error) = streamgauge(&["report", pair[0], pair[1]]);
        assert_eq!(code, Some(2), "{pair:?}");
        assert!(error.contains("have no shards") && error.contains("streamgauge compare"), "{error}");
    }
    let (code, _, error) = streamgauge(&["report", "tests/data/results/guidellm"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("2 benchmarks of different loads") && error.contains("benchmarks.json#2"), "{error}");
    let (_, _, error) = streamgauge(&["report", "tests/data/results/guidellm#3"]);
    assert!(error.contains("it has only 2 benchmarks"), "{error}");
}

// ------------------------------------------------------------------------------------------------- hostile files

#[test]
fn an_error_has_its_place_and_a_remedy_and_quotes_nothing() {
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut document = vllm();
        change(&mut document);
        document.to_string()
    };
    let aiperf = |line: &str| format!("{{\"metadata\":{{\"request_start_ns\":1}},\"metrics\":{{}}}}\n{line}");
    for (format, content, problem) in [
        (
            PeerFormat::VllmBench,
            changed(&|document| document["itls"] = json!([[]])),
            "`ttfts` has 2 values and `itls` has 1",
        ),
        (PeerFormat::VllmBench, changed(&|document| document["ttfts"][1] = json!(-1)), "request 2: a time is negative"),
        (PeerFormat::VllmBench, changed(&|document| document["itls"][0][0] = json!("secret")), "line 1, column"),
        (
            PeerFormat::VllmBench,
            changed(&|document| document["start_times"] = json!([0, 1e300])),
            "request 2: a time is",
        ),
        (
            PeerFormat::AiperfRecords,
            aiperf("{\"metadata\":{\"x\":\"secret\"}}"),
            "line 2: `request_start_ns` is missing",
        ),
        (PeerFormat::AiperfRecords, aiperf("{\"metadata\":{\"request_start_ns\":2"), "line 2: its end is torn off"),
        (PeerFormat::AiperfRecords, aiperf("secret"), "line 2: it is no JSON from column"),
        (
            PeerFormat::AiperfRecords,
            aiperf("{\"metadata\":{\"request_start_ns\":9,\"request_end_ns\":8},\"metrics\":{}}"),
            "line 2: a time is negative or out of order",
        ),
        (PeerFormat::Guidellm, json!({"benchmarks": []}).to_string(), "it has no benchmark"),
        (
            PeerFormat::Guidellm,
            json!({"benchmarks": [{"requests": {"successful": [{"info": {"timings": {}}}]}}]}).to_string(),
            "request 1: its start is missing",
        ),
        (
            PeerFormat::InferencePerfRecords,
            json!([{"start_time": 2, "end_time": 1, "request": "secret"}]).to_string(),
            "request 1: its times are not in order",
        ),
    ] {
        let error = requests(format, &content).unwrap_err();
        assert!(error.starts_with("file: ") && error.contains(problem), "{problem}: {error}");
        assert!(error.contains("; remedy: ") && !error.contains("secret"), "{error}");
    }
    let deep = format!("{{\"model_id\":\"m\",\"num_prompts\":1,\"itls\":{}", "[".repeat(1 << 20));
    assert!(requests(PeerFormat::VllmBench, &deep).is_err());
}

/// A small file of each format that has requests.
fn samples() -> Vec<(PeerFormat, String)> {
    let text = |name: &str| fs::read_to_string(data(name)).unwrap();
    let aiperf = text("profile_export.jsonl").lines().take(2).collect::<Vec<_>>().join("\n");
    vec![
        (PeerFormat::AiperfRecords, aiperf),
        (PeerFormat::AiperfSummary, text("profile_export_aiperf.json")),
        (PeerFormat::VllmBench, vllm().to_string()),
        (PeerFormat::SglangBench, text("sglang_bench.jsonl")),
        (PeerFormat::Guidellm, text("guidellm/constant.json")),
        (PeerFormat::InferencePerfRecords, text("inference-perf/per_request_lifecycle_metrics.json")),
        (PeerFormat::InferencePerfSummary, text("inference-perf/summary_lifecycle_metrics.json")),
    ]
}

/// Reads to the end; an error is as good as a request.
fn read_all(format: PeerFormat, content: &[u8]) -> Result<(), String> {
    let input = PeerInput::bytes(Path::new("file"), content.to_vec());
    match read(format, &input, None).map_err(|error| error.to_string())? {
        PeerContent::Summary(_) => Ok(()),
        PeerContent::Run(run) => {
            for request in run.requests {
                let request = request.map_err(|error| error.to_string())?;
                request.view(0, None, None, None);
            }
            Ok(())
        }
    }
}

#[test]
fn a_cut_file_is_an_error() {
    for (format, content) in samples() {
        read_all(format, content.as_bytes()).unwrap();
        let length = content.trim_end().len();
        for cut in (1..length).step_by(length / 40 + 1) {
            let result = read_all(format, &content.as_bytes()[..cut]);
            // Whole lines before the cut are a file too.
            let lines = [PeerFormat::AiperfRecords, PeerFormat::SglangBench].contains(&format);
            let whole_lines = lines && content[..cut].ends_with(['\n', '}']);
            assert!(result.is_err() || whole_lines, "{format:?} at {cut}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_change_of_bytes_makes_a_reader_panic(at in 0.0..1.0, byte in any::<u8>(), number in "[0-9eE+.-]{1,20}") {
        for (format, content) in samples() {
            let place = (content.len() as f64 * at) as usize;
            let mut changed = content.clone().into_bytes();
            changed[place] = byte;
            read_all(format, &changed).ok();
            // A number elsewhere in the file becomes another one.
            let rest = content.as_bytes()[place..].iter().position(u8::is_ascii_digit).map_or(place, |digit| place + digit);
            let end = content.as_bytes()[rest..].iter().position(|byte| !b"0123456789.eE+-".contains(byte)).unwrap_or(0);
            let replaced = [&content.as_bytes()[..rest], number.as_bytes(), &content.as_bytes()[rest + end..]].concat();
            read_all(format, &replaced).ok();
        }
    }
}
