//! `streamgauge report`: every figure against one worked out by hand.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use serde_json::{Value, json};
use streamgauge::measure::record::{CountSource, Outcome};
use streamgauge::measure::time::Gap;
use streamgauge::measure::timeline::TokenEvent;
use streamgauge::report::accumulate::{Accumulator, AccumulatorSettings};
use streamgauge::report::source_reader::{SourceReader, read};
use streamgauge::report::{PERCENTILES, Report};
use streamgauge::trace_file::gaps::pack;
use streamgauge::trace_file::header::TraceHeader;
use streamgauge::trace_file::row::{PromptShape, RequestParams, Timing, TraceEntry};
use streamgauge::trace_file::writer::TraceWriter;

const MS: u64 = 1_000_000;

/// A success: planned, sent (ms of the line), first token and end (ms after sending), gaps (ms, tokens).
pub(super) fn success(planned: u64, sent: u64, first: u64, end: u64, gaps: &[(u64, Option<u32>)]) -> TraceEntry {
    let events: Vec<_> = gaps.iter().map(|(gap, tokens)| TokenEvent::new(Gap::from_millis(*gap), *tokens)).collect();
    TraceEntry {
        at: sent * MS,
        planned: Some(planned * MS),
        dialect: Some("openai.chat".to_owned()),
        model: Some("a".to_owned()),
        stream: Some(true),
        status: Some(200),
        outcome: Some(Outcome::Success),
        timing: Timing {
            first_token: Some(first * MS),
            first_output: Some(first * MS),
            ended: Some(end * MS),
            gaps: (!events.is_empty()).then(|| pack(&events)),
            ..Timing::default()
        },
        in_flight: Some(0),
        ..TraceEntry::default()
    }
}

pub(super) fn prompt(tokens: u64, cached: Option<u64>) -> PromptShape {
    PromptShape { tokens: Some(tokens), cached, ..PromptShape::default() }
}

/// Four requests, of which everything can be worked out on paper.
pub(super) fn four() -> Vec<TraceEntry> {
    let mut first = success(0, 10, 100, 250, &[(20, Some(1)), (40, Some(2)), (60, Some(3))]);
    first.timing.first_tokens = Some(1);
    (first.output_tokens, first.output_source) = (Some(7), Some(CountSource::Usage));
    first.prompt = prompt(100, Some(40));
    let mut second = success(1_000, 1_000, 200, 300, &[(50, None)]);
    (second.output_tokens, second.output_source) = (Some(2), Some(CountSource::Chunks));
    second.params = RequestParams { max_tokens: Some(5), ..RequestParams::default() };
    second.prompt = prompt(60, None);
    let mut failed = success(1_500, 1_500, 5, 100, &[(1, None)]);
    (failed.outcome, failed.status, failed.model) = (Some(Outcome::Failed), Some(500), Some("b".to_owned()));
    (failed.output_tokens, failed.output_source) = (Some(9), Some(CountSource::Usage));
    let mut whole = success(2_000, 2_000, 390, 400, &[]);
    whole.stream = Some(false);
    (whole.output_tokens, whole.output_source) = (Some(4), Some(CountSource::Usage));
    whole.prompt = prompt(50, None);
    vec![first, second, failed, whole]
}

pub(super) fn write(path: &Path, rows: &[TraceEntry], started: Option<u64>) {
    let header = TraceHeader { started_unix_ns: started, ..TraceHeader::new("test") };
    let mut writer = TraceWriter::new(File::create(path).unwrap(), &header).unwrap();
    rows.iter().for_each(|row| writer.write(row).unwrap());
    writer.finish().unwrap();
}

/// A run directory with these rows.
pub(super) fn run(folder: &Path, rows: &[TraceEntry], started: u64, run_file: &Value) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    write(&folder.join("records.jsonl.zst"), rows, Some(started));
    fs::write(folder.join("run.json"), run_file.to_string()).unwrap();
    folder.to_owned()
}

pub(super) struct Done {
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

pub(super) fn streamgauge(paths: &[&Path], args: &[&str]) -> Done {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    let output = command.arg("report").args(paths).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Done { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// The report of the four, as JSON.
fn report(args: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let path = run(&folder.path().join("run"), &four(), 0, &json!({}));
    let done = streamgauge(&[&path], &[args, &["--json"]].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    serde_json::from_str(&done.stdout).unwrap()
}

/// A statistic of a metric.
pub(super) fn of(report: &Value, metric: &str, stat: &str) -> f64 {
    report["metrics"][metric][stat].as_f64().unwrap_or_else(|| panic!("no {metric} {stat} in {report}"))
}

/// Values that are equal but for the last places of their division.
pub(super) fn near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-6, "{value}, expected {expected}");
}

#[test]
fn every_number_is_that_of_the_records() {
    let report = report(&[]);
    assert_eq!((&report["requests"], &report["streamgauge_report"]), (&json!(4), &json!(1)));
    assert_eq!(report["outcomes"], json!({"success": 3, "failed": 1}));
    assert_eq!(report["statuses"], json!({"200": 3, "500": 1}));
    // The failed request had a first token after 5 ms and gaps of 1 ms: neither is in any of these.
    for (metric, count, min, avg, max) in [
        ("ttft_from_planned", 2.0, 110.0, 155.0, 200.0),
        ("ttft", 2.0, 100.0, 150.0, 200.0),
        ("ttfo", 2.0, 100.0, 150.0, 200.0),
        ("second_token", 2.0, 20.0, 35.0, 50.0),
        ("itl", 4.0, 20.0, 27.5, 50.0),
        ("gap", 4.0, 20.0, 42.5, 60.0),
        ("worst_gap", 2.0, 50.0, 55.0, 60.0),
        ("tpot", 2.0, 20.0, 35.0, 50.0),
        ("e2e_from_planned", 3.0, 260.0, 320.0, 400.0),
        ("e2e", 3.0, 250.0, 950.0 / 3.0, 400.0),
        ("tokens_per_second_per_user", 2.0, 20.0, 35.0, 50.0),
        ("isl", 3.0, 50.0, 70.0, 100.0),
        ("osl", 3.0, 2.0, 13.0 / 3.0, 7.0),
        ("tokens_per_chunk", 4.0, 1.0, 1.75, 3.0),
        ("send_lag", 4.0, 0.0, 2.5, 10.0),
    ] {
        for (stat, expected) in [("count", count), ("min", min), ("avg", avg), ("max", max)] {
            let value = of(&report, metric, stat);
            assert!((value - expected).abs() < 1e-6, "{metric} {stat}: {value}, expected {expected}");
        }
    }
    // Of 20, 20, 20 and 50 ms the place of p90 is 2.7.
    near(of(&report, "itl", "p90"), 41.0);
    near(of(&report, "itl", "std"), (3.0 * 7.5_f64.powi(2) + 22.5_f64.powi(2)).sqrt() / 2.0);
    assert_eq!(report["metrics"]["itl"]["unit"], "ms");
    // From the first planned moment to the last end, and of successes.
    assert_eq!(report["seconds"], 2.4);
    near(report["throughput"]["requests"].as_f64().unwrap(), 3.0 / 2.4);
    near(report["throughput"]["input_tokens"].as_f64().unwrap(), 210.0 / 2.4);
    near(report["throughput"]["output_tokens"].as_f64().unwrap(), 13.0 / 2.4);
    assert_eq!(
        report["tokens"],
        json!({"input": 210, "cached": 40, "output": 13, "sources": {"usage": 2, "chunks": 1}})
    );
}

#[test]
fn each_tools_definitions_give_that_tools_results() {
    // (whose, metric, the values of the two streams and the whole answer)
    // By GuideLLM's a request of seven tokens has as many, and its mean gap six times.
    let tpot_of_guidellm = [[220.0 / 7.0; 7].as_slice(), &[125.0; 2], &[100.0; 4]].concat();
    let itl_of_guidellm = [[20.0; 6].as_slice(), &[50.0]].concat();
    for (whose, metric, expected) in [
        ("aiperf", "itl", &[20.0, 50.0][..]),
        ("aiperf", "e2e", &[220.0, 250.0, 400.0]),
        ("aiperf", "tokens_per_second_per_user", &[50.0, 20.0]),
        ("vllm", "itl", &[20.0, 40.0, 60.0, 50.0]),
        ("vllm", "tpot", &[20.0, 50.0]),
        ("vllm", "e2e", &[220.0, 250.0, 400.0]),
        ("sglang", "itl", &[20.0, 40.0, 60.0, 50.0]),
        ("sglang", "tpot", &[25.0, 25.0]),
        ("sglang", "e2e", &[250.0, 300.0, 400.0]),
        // No usage was sent for the second request: what was asked for counts.
        ("sglang", "osl", &[7.0, 5.0, 4.0]),
        ("guidellm", "itl", &itl_of_guidellm),
        ("guidellm", "tpot", &tpot_of_guidellm),
        ("guidellm", "e2e", &[250.0, 300.0, 400.0]),
        ("otel", "tpot", &[25.0, 100.0]),
        ("otel", "e2e", &[250.0, 300.0, 400.0]),
        ("genai-perf", "itl", &[20.0, 50.0]),
        ("genai-perf", "e2e", &[220.0, 250.0, 400.0]),
        ("genai-perf", "tokens_per_second_per_user", &[50.0, 20.0]),
        // TTFT is in it.
        ("llmperf", "itl", &[220.0 / 7.0, 125.0]),
        ("llmperf", "e2e", &[250.0, 300.0, 400.0]),
        ("nim", "itl", &[25.0, 100.0]),
        ("nim", "e2e", &[250.0, 300.0, 400.0]),
        ("databricks", "tpot", &[150.0 / 7.0, 50.0]),
        ("databricks", "e2e", &[250.0, 300.0, 400.0]),
    ] {
        let report = report(&["--definitions", whose]);
        assert_eq!(report["definitions"], whose);
        assert_eq!(of(&report, metric, "count"), expected.len() as f64, "{whose} {metric}");
        let mean = expected.iter().sum::<f64>() / expected.len() as f64;
        let most = expected.iter().copied().fold(0.0, f64::max);
        for (stat, expected) in [("avg", mean), ("max", most)] {
            let value = of(&report, metric, stat);
            assert!((value - expected).abs() < 1e-5, "{whose} {metric} {stat}: {value}, expected {expected}");
        }
        assert_eq!(report["metrics"]["ttft_from_planned"], Value::Null, "no other tool tells it");
        // From the first sent moment on.
        near(report["seconds"].as_f64().unwrap(), 2.39);
    }
    // MLPerf measures from the planned moment only.
    let mlperf = report(&["--definitions", "mlperf"]);
    for (metric, stat, expected) in
        [("ttft", "avg", 155.0), ("tpot", "avg", 62.5), ("tpot", "max", 100.0), ("e2e", "avg", 320.0)]
    {
        near(of(&mlperf, metric, stat), expected);
    }
    near(mlperf["seconds"].as_f64().unwrap(), 2.4);
    for (whose, metric) in [
        ("aiperf", "tpot"),
        ("llmperf", "tpot"),
        ("databricks", "itl"),
        ("mlperf", "itl"),
        ("otel", "itl"),
        ("vllm", "tokens_per_second_per_user"),
    ] {
        assert_eq!(report(&["--definitions", whose])["metrics"][metric], Value::Null, "{whose} has no {metric}");
    }
}

#[test]
fn goodput_is_judged_now_and_from_the_planned_moment() {
    let good = |slo: &str, args: &[&str]| report(&[&["--slo", slo], args].concat())["goodput"][0].clone();
    let goodput = good("x: ttft<=150ms e2e<=1s", &[]);
    // Met: the first. Missed: the second by its TTFT, the third by failing. The whole answer has no TTFT to judge.
    assert_eq!(
        (&goodput["met"], &goodput["counted"], &goodput["text"]),
        (&json!(1), &json!(3), &json!("x: ttft<=150ms e2e<=1s"))
    );
    near(goodput["share"].as_f64().unwrap(), 1.0 / 3.0);
    near(goodput["share_of_successes"].as_f64().unwrap(), 1.0 / 2.0);
    assert_eq!((&goodput["successes"], &goodput["missed"]), (&json!(2), &json!({"ttft": 1, "error": 1})));
    near(goodput["requests_per_second"].as_f64().unwrap(), 1.0 / 2.4);
    near(goodput["tokens_per_second"].as_f64().unwrap(), 7.0 / 2.4);
    // 110 ms from the planned moment, 100 from sending, from which other tools count.
    assert_eq!(good("x: ttft<=105ms", &[])["met"], 0);
    assert_eq!(good("x: ttft<=105ms", &["--definitions", "vllm"])["met"], 1);
    assert_eq!(good("x: itl.max<=20ms", &[])["met"], 1, "the gap of 60 ms is that of three tokens");
    assert_eq!(good("x[model=b]: e2e<=1h", &[])["counted"], 1);
    assert_eq!(good("x[route=/v1/embeddings]: e2e<=1h", &[])["counted"], 0);
}

#[test]
fn a_whole_answer_to_a_streaming_request_has_no_ttft() {
    let folder = tempfile::tempdir().unwrap();
    let mut whole = success(0, 0, 1, 100, &[]);
    (whole.timing.first_token, whole.timing.first_output) = (None, None);
    let path = run(folder.path(), &[whole, success(0, 0, 10, 100, &[])], 0, &json!({}));
    let counted = |slo: &str| {
        let done = streamgauge(&[&path], &["--json", "--slo", slo]);
        let report: Value = serde_json::from_str(&done.stdout).unwrap();
        (report["goodput"][0]["met"].clone(), report["goodput"][0]["counted"].clone())
    };
    assert_eq!(counted("x: ttft<=1s"), (json!(1), json!(1)), "as the proxy judges it");
    assert_eq!(counted("x: e2e<=1s"), (json!(2), json!(2)));
}

#[test]
fn slices_and_groups_have_the_figures_of_their_requests() {
    let report = report(&["--slice", "1s", "--by", "model,status"]);
    let slices = report["slices"].as_array().unwrap();
    let counts: Vec<_> = slices.iter().map(|slice| (&slice["from_s"], &slice["requests"])).collect();
    assert_eq!(counts, [(&json!(0.0), &json!(1)), (&json!(1.0), &json!(2)), (&json!(2.0), &json!(1))]);
    assert_eq!((of(&slices[1], "ttft", "avg"), of(&slices[1], "itl", "count")), (200.0, 1.0));
    assert_eq!((&slices[1]["throughput"]["requests"], &slices[1]["seconds"]), (&json!(1.0), &json!(1.0)));
    let groups = report["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 2);
    assert_eq!(groups[0]["by"], json!({"model": "a", "status": "200"}));
    assert_eq!((of(&groups[0], "e2e", "count"), &groups[1]["outcomes"]), (3.0, &json!({"failed": 1})));
}

#[test]
fn the_percentiles_are_the_requested_ones() {
    let itl = &report(&["--percentiles", "0,90,99.99,100"])["metrics"]["itl"];
    let keys: Vec<&str> = itl.as_object().unwrap().keys().map(String::as_str).collect();
    assert!(["p0", "p90", "p99.99", "p100"].iter().all(|key| keys.contains(key)) && !keys.contains(&"p50"), "{keys:?}");
    assert_eq!((&itl["p0"], &itl["p100"]), (&json!(20.0), &json!(50.0)));
}

#[test]
fn warm_up_and_cool_down_of_a_run_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let measured = json!({"summary": {"measured": {"from": 900 * MS, "to": 1_900 * MS}}});
    let path = run(&folder.path().join("run"), &four(), 0, &measured);
    let report: Value = serde_json::from_str(&streamgauge(&[&path], &["--json"]).stdout).unwrap();
    assert_eq!((&report["requests"], &report["sources"][0]["outside_window"]), (&json!(2), &json!(2)));
    assert_eq!(of(&report, "ttft", "max"), 200.0);
    // The warm-up has figures of its own; the cool-down has none.
    let warm_up = &report["warm_up"];
    assert_eq!((&warm_up["requests"], &warm_up["outcomes"]), (&json!(1), &json!({"success": 1})));
    assert_eq!(warm_up["metrics"]["ttft"]["count"], json!(1));
    let text = streamgauge(&[&path], &["--plain"]).stdout;
    assert!(text.contains("\nwarm-up      1 success, TTFT from planned "), "{text}");
    let csv = streamgauge(&[&path], &["--csv"]).stdout;
    assert!(csv.contains("\nwarm-up,requests,requests,count,1\n"), "{csv}");
    assert_eq!(json_of_all(&path)["warm_up"], Value::Null, "without one there is none");
}

/// The report of a run whose requests all count.
fn json_of_all(path: &Path) -> Value {
    fs::write(path.join("run.json"), json!({"summary": {}}).to_string()).unwrap();
    serde_json::from_str(&streamgauge(&[path], &["--json"]).stdout).unwrap()
}

/// Ids of a report's warnings.
fn warned(rows: &[TraceEntry], run_file: &Value) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = run(&folder.path().join("run"), rows, 0, run_file);
    let report: Value = serde_json::from_str(&streamgauge(&[&path], &["--json"]).stdout).unwrap();
    let warnings = report["warnings"].as_array().unwrap();
    assert!(warnings.iter().all(|warning| warning["text"] != "" && warning["advice"] != ""));
    warnings.iter().map(|warning| warning["warning"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_warning_has_its_cause_and_none_comes_without() {
    let warm = json!({"audit": {}, "summary": {"measured": {"from": 1}}});
    let steady = |count: u64| -> Vec<TraceEntry> {
        let row = |at: u64| success(at * 10 + 1, at * 10 + 1, 100, 300, &[(20, Some(1)); 10]);
        (0..count).map(row).collect()
    };
    let many = steady(10_000);
    assert_eq!(warned(&many, &warm), [""; 0]);
    assert_eq!(warned(&many, &json!({})), ["no_audit"], "nothing shows that a warm-up is missing");
    let findings = json!(["requests would be sent late", "the load generator itself would inflate TTFT"]);
    let late = json!({"audit": {"uncertain": findings}, "summary": {"measured": {"from": 1}}});
    assert_eq!(warned(&many, &late), ["sender_overloaded"], "one self-test is one warning");
    assert_eq!(warned(&many[..900], &warm), ["too_few"]);
    assert_eq!(warned(&many[..2_000], &warm), [""; 0], "the table of intervals shows what p99.9 lacks");
    let killed = tempfile::tempdir().unwrap();
    fs::remove_file(run(killed.path(), &many, 0, &warm).join("run.json")).unwrap();
    let report: Value = serde_json::from_str(&streamgauge(&[killed.path()], &["--json"]).stdout).unwrap();
    assert_eq!(report["warnings"][0]["warning"], "without_run", "{}", report["warnings"]);
    assert_eq!(warned(&[], &warm), ["empty"]);
    let closed = json!({"audit": {}, "closed_loop": true, "summary": {"measured": {"from": 1}}});
    assert_eq!(warned(&many, &closed), ["closed_loop"]);
    let invalid =
        json!({"audit": {}, "valid": false, "invalid_because": ["late"], "summary": {"measured": {"from": 1}}});
    assert_eq!(warned(&many, &invalid), ["not_valid"]);
    let with = |change: &dyn Fn(usize, &mut TraceEntry)| {
        let mut rows = many.clone();
        rows.iter_mut().enumerate().for_each(|(at, row)| change(at, row));
        warned(&rows, &warm)
    };
    assert_eq!(with(&|_, row| row.at += 20 * MS), ["send_lag"]);
    let held = json!({"audit": {}, "summary": {"measured": {"from": 1}, "held_back": 9}});
    let late: Vec<TraceEntry> = many.iter().cloned().map(|row| TraceEntry { at: row.at + 20 * MS, ..row }).collect();
    assert_eq!(warned(&late, &held), [""; 0], "--max-in-flight held them back");
    let failing = |at: usize, row: &mut TraceEntry| {
        row.outcome = Some(Outcome::Failed).filter(|_| at.is_multiple_of(50)).or(row.outcome)
    };
    assert_eq!(with(&failing)[..], ["survivors_only"]);
    assert_eq!(with(&|_, row| row.timing.first_tokens = Some(9)), ["multi_token_chunks"]);
    let untold = |tokens: u64, reasoning: Option<u64>| {
        with(&|_, row: &mut TraceEntry| {
            row.timing.gaps = Some(pack(&[TokenEvent::new(Gap::from_millis(20), None); 10]));
            (row.timing.first_tokens, row.output_tokens, row.output_source) =
                (None, Some(tokens), Some(CountSource::Usage));
            row.reasoning_tokens = reasoning;
        })
    };
    assert_eq!(untold(34, None), ["missing_token_counts"]);
    assert_eq!(untold(12, None), [""; 0], "the end of a reply is a token without an event");
    assert_eq!(untold(34, Some(23)), [""; 0], "reasoning may be hidden");
    assert_eq!(
        with(&|_, row| (row.output_tokens, row.output_source) = (Some(11), Some(CountSource::Chunks))),
        ["estimated_tokens"]
    );
    assert_eq!(with(&|_, row| row.timing.lost_gaps = Some(1)), ["lost_gaps"]);
    let silent = |at: usize, row: &mut TraceEntry| {
        row.dialect = Some("openai.chat".to_owned());
        if at.is_multiple_of(50) {
            (row.timing.first_token, row.timing.gaps, row.output_tokens) = (None, None, Some(0));
        }
    };
    assert_eq!(with(&silent), ["no_output"]);
    let of_embeddings = |at: usize, row: &mut TraceEntry| {
        silent(at, row);
        row.dialect = Some("openai.embeddings".to_owned());
    };
    assert_eq!(with(&of_embeddings), [""; 0]);
    assert_eq!(
        with(&|_, row| (row.prompt.tokens, row.prompt.cached) = (Some(100), Some(30))),
        ["warmup_in_prior_cache"]
    );
    assert_eq!(with(&|_, row| (row.prompt.tokens, row.prompt.cached) = (Some(100), Some(20))), [""; 0], "a template");
    let known = |fields: Value| {
        let mut rows = many.clone();
        rows.iter_mut().for_each(|row| (row.prompt.tokens, row.prompt.cached) = (Some(100), Some(90)));
        let mut all = warm.clone();
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        warned(&rows, &all)
    };
    assert_eq!(known(json!({"warm_prefixes": true})), [""; 0], "it was sent before, on purpose");
    let turns = json!({"summary": {"measured": {"from": 1}, "later_turns": {"verbatim": 9, "synthesized": 0}}});
    assert_eq!(known(turns), [""; 0], "answers come back in later turns");
    assert_eq!(known(json!({"stopped": true})), ["stopped", "warmup_in_prior_cache"]);
    assert_eq!(with(&|_, row| row.outcome = None)[..1], ["no_outcome"]);
    assert_eq!(with(&|at, row| row.in_flight = Some(at as u32 / 100)), ["saturation"]);
    assert_eq!(with(&|at, row| row.in_flight = Some(at as u32 % 100)), [""; 0], "bursts are no growth");
}

#[test]
fn whether_requests_were_sent_late_does_not_hang_on_the_percentiles_that_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let one_late = |at: u64| success(at * 10, at * 10 + if at == 7 { 50 } else { 0 }, 100, 300, &[(20, Some(1))]);
    let all_late = |at: u64| success(at * 10, at * 10 + 50, 100, 300, &[(20, Some(1))]);
    let rows = |of: &dyn Fn(u64) -> TraceEntry| (0..2_000).map(of).collect::<Vec<_>>();
    let warm = json!({"audit": {}, "summary": {"measured": {"from": 1}}});
    for (name, rows, warned) in [("one", rows(&one_late), 0), ("all", rows(&all_late), 1)] {
        let path = run(&folder.path().join(name), &rows, 0, &warm);
        for shown in ["50,99", "10"] {
            let done = streamgauge(&[&path], &["--json", "--percentiles", shown]);
            let report: Value = serde_json::from_str(&done.stdout).unwrap();
            let late = report["warnings"].as_array().unwrap().iter().filter(|of| of["warning"] == "send_lag");
            let texts: Vec<&Value> = late.map(|warning| &warning["text"]).collect();
            let expected = json!("requests were sent late: lag p99 50.0ms against a TTFT of p50 100ms");
            assert_eq!(texts, vec![&expected; warned], "{name}, {shown}");
        }
    }
}

#[test]
fn the_counts_of_runs_are_summed() {
    let folder = tempfile::tempdir().unwrap();
    let run_file = |shard: u8| {
        let summary = json!({"held_back": 2, "errors": {"closed": 1, "reset": 1}});
        json!({"summary": summary, "shard": {"index": shard, "count": 2}})
    };
    let paths = [1, 2].map(|shard| run(&folder.path().join(shard.to_string()), &four(), 0, &run_file(shard)));
    let text = streamgauge(&[&paths[0], &paths[1]], &[]).stdout;
    assert!(text.contains("\n             2 closed, 2 reset, 2 answered 500\n"), "{text}");
    assert!(text.contains("\n             4 held back by --max-in-flight; the wait is in their latency\n"), "{text}");
}

/// Keys of `run.json` as versions before 1.0 wrote them, each with its key of today.
const KEYS_BEFORE_1_0: [(&str, &str); 7] = [
    ("began_unix_ns", "started_unix_ns"),
    ("doubts", "uncertain"),
    ("outside", "outside_window"),
    ("held", "held_back"),
    ("troubles", "errors"),
    ("real", "verbatim"),
    ("made", "synthesized"),
];

#[test]
fn a_run_json_from_before_1_0_is_reported_with_the_same_figures() {
    let before = include_str!("../data/runs/before-1.0/run.json");
    let now = KEYS_BEFORE_1_0.iter().fold(before.to_owned(), |text, (old, new)| {
        let (old, new) = (format!("\"{old}\":"), format!("\"{new}\":"));
        assert!(text.contains(&old) && !text.contains(&new), "{old}");
        text.replace(&old, &new)
    });
    let folder = tempfile::tempdir().unwrap();
    let reported = |text: &str| -> Value {
        let path = run(&folder.path().join("run"), &four(), 0, &serde_json::from_str(text).unwrap());
        let done = streamgauge(&[&path], &["--json"]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        serde_json::from_str(&done.stdout).unwrap()
    };
    let old = reported(before);
    assert_eq!(old, reported(&now));
    let source = &old["sources"][0];
    assert_eq!((&old["requests"], &source["outside_window"], &source["held_back"]), (&json!(3), &json!(1), &json!(2)));
    assert_eq!(source["errors"], json!({"closed": 1, "reset": 3}));
    assert_eq!(source["later_turns"], json!({"verbatim": 9, "synthesized": 1}));
    let uncertain = [
        "the rate would be 31.47 requests/s and not 31.42",
        "TTFT and ITL would be too long by up to 5.85ms in 1 of 100",
    ];
    assert_eq!(source["uncertain"], json!(uncertain));
}

#[test]
fn the_exit_code_reports_too_little_goodput() {
    let folder = tempfile::tempdir().unwrap();
    let slos = json!({"slos": ["x: ttft<=150ms"]});
    let path = run(&folder.path().join("run"), &four(), 0, &slos);
    let code = |args: &[&str]| streamgauge(&[&path], args).code;
    // A third of the requests is good, by the run's own SLO or one that is given now.
    assert_eq!(code(&["--fail-if", "goodput<33%"]), Some(0));
    assert_eq!(code(&["--fail-if", "goodput<34%"]), Some(1));
    assert_eq!(code(&["--slo", "y: e2e<=1s", "--fail-if", "goodput<75%"]), Some(0));
    assert_eq!(code(&["--slo", "y[model=nobody]: e2e<=1s", "--fail-if", "goodput<1%"]), Some(1), "nothing is judged");
    assert_eq!(code(&["--fail-if", "ttft<5%"]), Some(2));
    let shard = |index: u8, slo: &str| json!({"slos": [slo], "shard": {"index": index, "count": 2}});
    let path = run(&folder.path().join("one"), &four(), 0, &shard(1, "x: ttft<=150ms"));
    let other = run(&folder.path().join("other"), &four(), 0, &shard(2, "x: ttft<=1s"));
    let done = streamgauge(&[&path, &other], &["--json"]);
    assert_eq!(serde_json::from_str::<Value>(&done.stdout).unwrap()["goodput"], json!([]));
    assert!(done.stderr.contains("not judged by the same SLOs"), "{}", done.stderr);
}

#[test]
fn what_cannot_be_read_is_named_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let stderr_of = |path: &Path, args: &[&str]| {
        let done = streamgauge(&[path], args);
        assert_eq!((done.code, &*done.stdout), (Some(2), ""), "{}", done.stderr);
        done.stderr
    };
    assert!(stderr_of(&at("nowhere"), &[]).contains("nowhere"));
    fs::create_dir(at("run")).unwrap();
    fs::write(at("run").join("run.json"), "{").unwrap();
    assert!(stderr_of(&at("run"), &[]).contains("run.json: EOF while parsing"));
    fs::write(at("run").join("run.json"), "[]").unwrap();
    assert!(stderr_of(&at("run"), &[]).contains("run.json: expected an object"));
    fs::write(at("run").join("run.json"), r#"{"streamgauge_run": 9}"#).unwrap();
    assert!(
        stderr_of(&at("run"), &[]).contains("run.json: it is of version 9, and this Streamgauge reads them up to 1")
    );
    let mut row = success(0, 0, 1, 2, &[]);
    row.timing.gaps = Some("?".to_owned());
    write(&at("bad.jsonl.zst"), &[success(0, 0, 1, 2, &[]), row], None);
    let stderr = stderr_of(&at("bad.jsonl.zst"), &[]);
    assert!(
        stderr.contains("bad.jsonl.zst, request 2: packed gaps are not base64") && stderr.contains("Take the row out")
    );
    write(&at("long.jsonl.zst"), &[success(20_000, 20_000, 1, 2, &[])], None);
    assert!(stderr_of(&at("long.jsonl.zst"), &["--slice", "1ms"]).contains("slices of 1.00ms are more than 10000"));
    let twice = streamgauge(&[&at("long.jsonl.zst"), &at("long.jsonl.zst")], &[]);
    assert!(twice.code == Some(2) && twice.stderr.contains("long.jsonl.zst is named twice"), "{}", twice.stderr);
    assert!(stderr_of(&at("long.jsonl.zst"), &["--fail-if", "goodput<5%"]).contains("--slo"));
}

#[test]
fn all_formats_agree() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(&folder.path().join("run"), &four(), 0, &json!({}));
    let shown = |args: &[&str]| streamgauge(&[&path], args).stdout;
    let text = shown(&["--slo", "x: ttft<=150ms", "--by", "model"]);
    let row = |text: &str, name: &str| {
        let line =
            text.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row(&text, "TTFT from planned")[..4], ["TTFT from planned", "2", "155ms", "110ms"]);
    assert_eq!(row(&text, "gap")[1..4], ["4", "42.5ms", "20.0ms"]);
    assert_eq!(row(&text, "requests")[1], "1 failed, 3 success");
    assert_eq!(
        row(&text, "goodput")[1],
        "x: 1 of 3 met it (33.3 % of all, 95 % interval 0.7–90.3 %; 50.0 % of 2 successes), 0.42 requests/s, 3 tokens/s"
    );
    assert!(!text.contains("TTFO"), "it only repeats TTFT:\n{text}");
    let plain = shown(&["--plain"]);
    assert!(plain.is_ascii(), "{plain}");
    let csv = shown(&["--csv"]);
    for line in
        ["all,itl,ms,avg,27.5", "all,itl,values,count,4", "all,requests,requests,failed,1", "all,window,s,length,2.4"]
    {
        assert!(csv.lines().any(|printed| printed == line), "{line}:\n{csv}");
    }
    let cells = |line: &str| line.split(',').count();
    assert!(csv.lines().filter(|line| !line.starts_with("context,")).all(|line| cells(line) == 5), "{csv}");
    let markdown = shown(&["--markdown", "--percentiles", "90"]);
    assert!(markdown.contains("| ITL | 4 | 27.5ms | 20.0ms | 41.0ms | 50.0ms | 13.0ms |"), "{markdown}");
    let html = shown(&["--html", "--percentiles", "90"]);
    assert!(
        html.contains("<tr><th scope=\"row\">ITL</th><td>4</td><td>27.5ms</td><td>20.0ms</td><td>41.0ms</td>"),
        "{html}"
    );
    let charts = ["bars", "lines", "heat", "lanes"].map(|kind| html.contains(&format!("data-kind=\"{kind}\"")));
    assert!(charts == [true; 4] && html.contains("<b>Warning:</b>"), "{charts:?} {html}");
    for lengths in ["ISL (tokens): distribution", "3 values from 50 to 100", "3 values from 2 to 7"] {
        assert!(html.contains(lengths), "{lengths}: {html}");
    }
    let judged = shown(&["--html", "--slo", "x: ttft<=150ms", "--slo", "y: e2e<=1s"]);
    for part in
        ["Goodput over time", "and met the SLO; at least 0.0 %.", ">x (%)</th>", ">y (%)</th>", "The SLO allows 150ms."]
    {
        assert!(judged.contains(part) && !html.contains(part), "{part}: {judged}");
    }
    assert_eq!(streamgauge(&[&path], &["--json", "--csv"]).code, Some(2));
}

#[test]
fn a_name_from_a_file_is_text_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let name = "<script src=//x>|\u{1b}[2J\n=1+1,\u{202e}\"";
    let rows: Vec<TraceEntry> =
        four().into_iter().map(|row| TraceEntry { model: Some(name.to_owned()), ..row }).collect();
    let path = run(&folder.path().join("run"), &rows, 0, &json!({"targets": [name]}));
    let shown = |format: &str| streamgauge(&[&path], &["--by", "model", format]).stdout;
    for format in ["--html", "--markdown", "--plain", "--csv"] {
        let text = shown(format);
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{format}: {text}");
        assert!(["--plain", "--csv"].contains(&format) || !text.contains("<script src"), "{format}: {text}");
    }
    for fetched in ["<link", "<img", " src=\"", "url(", "@import"] {
        assert!(!shown("--html").contains(fetched), "it needs nothing else, and {fetched} fetches");
    }
    let line = "\n\"model=<script src=//x>|?[2J?=1+1,?\"\"\",requests,requests,count,4\n";
    assert!(shown("--csv").contains(line), "{}", shown("--csv"));
}

#[test]
fn a_capture_has_no_planned_moments() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<TraceEntry> = four().into_iter().map(|row| TraceEntry { planned: None, ..row }).collect();
    write(&folder.path().join("a.jsonl.zst"), &rows, Some(5));
    let report: Value = serde_json::from_str(&streamgauge(&[folder.path()], &["--json"]).stdout).unwrap();
    assert_eq!(report["metrics"]["ttft_from_planned"], Value::Null);
    assert_eq!(report["metrics"]["send_lag"], Value::Null);
    near(report["seconds"].as_f64().unwrap(), 2.39);
    assert!(streamgauge(&[folder.path()], &[]).stdout.contains("\nTTFT "), "and no other TTFT to tell it from");
}

fn rows() -> impl Strategy<Value = Vec<TraceEntry>> {
    let gap = (0_u64..9_000, prop::option::of(0_u32..5));
    let row = (0_u64..100_000, 0_u64..50, 0_u64..9_000, prop::collection::vec(gap, 0..20), 0_u8..4, any::<bool>());
    let row = row.prop_map(|(planned, late, first, gaps, outcome, stream)| {
        let mut row = success(planned, planned + late, first, first + 200_000, &gaps);
        row.outcome =
            [Some(Outcome::Success), Some(Outcome::Success), Some(Outcome::Failed), None][usize::from(outcome)];
        row.stream = Some(stream);
        (row.output_tokens, row.output_source) = (Some(first % 97), Some(CountSource::Usage));
        row.prompt = prompt(first, Some(late));
        row
    });
    prop::collection::vec(row, 1..60)
}

/// The report of what lies there, but for the names of the sources.
fn folded(paths: &[PathBuf]) -> Value {
    let slos = vec!["x: ttft<=3s itl.p90<=2s".parse().unwrap(), "y: e2e<=100s".parse().unwrap()];
    let settings = AccumulatorSettings {
        slos: streamgauge::measure::slo::Slos::new(slos).unwrap(),
        slice: Some(Gap::from_millis(20_000)),
        by: vec![streamgauge::report::group_by::GroupBy::Outcome],
        ..AccumulatorSettings::default()
    };
    let mut fold = Accumulator::new(settings);
    let opened = paths.iter().map(|path| SourceReader::open(path).unwrap()).collect();
    read(opened, &mut fold).unwrap();
    serde_json::from_str(&Report::of(&mut fold, Vec::new(), &PERCENTILES).json()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn shards_come_to_exactly_what_one_directory_does(
        rows in rows(),
        shards in prop::collection::vec((0_usize..3, any::<bool>()), 60),
        later in 0_u64..1_000,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let began = 1_700_000_000_000_000_000;
        let whole = run(&folder.path().join("whole"), &rows, began, &json!({}));
        let mut parts = vec![Vec::new(); 3];
        rows.iter().zip(&shards).for_each(|(row, (shard, _))| parts[*shard].push(row.clone()));
        // A shard that began later has earlier times on its own line.
        let later = later * MS;
        let moved = |row: &TraceEntry| row.at >= later && row.planned.is_some_and(|at| at >= later);
        let mut starts = [began; 3];
        if parts[2].iter().all(moved) {
            starts[2] += later;
            for row in &mut parts[2] {
                row.at -= later;
                row.planned = row.planned.map(|at| at - later);
            }
        }
        let parts: Vec<PathBuf> = parts.iter().zip(starts).enumerate().map(|(number, (rows, start))| {
            let shard = json!({"shard": {"index": number + 1, "count": 3}});
            run(&folder.path().join(format!("shard-{number}")), rows, start, &shard)
        }).collect();
        prop_assert_eq!(folded(&[whole]), folded(&parts));
    }
}

#[test]
fn runs_of_different_plans_are_never_merged_and_the_error_offers_a_comparison() {
    let folder = tempfile::tempdir().unwrap();
    let base = json!({"seed": 1, "targets": ["http://a"], "load": {"rate": "5/s"}, "shard": {"index": 1, "count": 2}});
    let with = |key: &str, value: Value| {
        let mut run_file = base.clone();
        run_file["shard"]["index"] = json!(2);
        run_file[key] = value;
        run_file
    };
    let first = run(&folder.path().join("first"), &four(), 0, &base);
    for (number, (run_file, reason)) in [
        (with("load", json!({"rate": "6/s"})), "their load differs"),
        (with("seed", json!(2)), "their seed differs"),
        (with("targets", json!(["http://b"])), "their target differs"),
        (with("trace_digest", json!("blake3:00")), "their trace differs"),
        (with("shard", json!({"index": 1, "count": 2})), "shard 1/2 is given twice"),
        (with("shard", json!({"index": 2, "count": 3})), "their number of shards differs"),
        (with("shard", Value::Null), "they were not sent with --shard"),
    ]
    .into_iter()
    .enumerate()
    {
        let other = run(&folder.path().join(number.to_string()), &four(), 0, &run_file);
        let done = streamgauge(&[&first, &other], &[]);
        assert_eq!((done.code, &*done.stdout), (Some(2), ""), "{reason}");
        assert!(done.stderr.contains(reason) && done.stderr.contains("streamgauge compare "), "{}", done.stderr);
    }
    let second = run(&folder.path().join("second"), &four(), 0, &with("extra", json!(1)));
    assert_eq!(streamgauge(&[&first, &second], &[]).code, Some(0));
    let command = json!({"command": ["streamgauge", "load", "--shard", "2/2"]});
    let old = run(&folder.path().join("old"), &four(), 0, &command);
    let older = run(&folder.path().join("older"), &four(), 0, &json!({"command": ["x", "--shard=1/2"]}));
    assert_eq!(streamgauge(&[&older, &old], &[]).code, Some(0), "of a version that recorded only the command");
    write(&folder.path().join("capture.jsonl.zst"), &four(), Some(5));
    let mixed = streamgauge(&[&first, &folder.path().join("capture.jsonl.zst")], &[]);
    assert!(mixed.stderr.contains("one is a run and the other is a capture"), "{}", mixed.stderr);
    // Records without a run file had a plan too, as their rows show.
    let records = [&first, &second].map(|run| run.join("records.jsonl.zst"));
    let merged = streamgauge(&[&records[0], &records[1]], &[]);
    assert_eq!((merged.code, &*merged.stdout), (Some(2), ""));
    assert!(merged.stderr.contains("has the records of a run without its run.json"), "{}", merged.stderr);
    assert_eq!(streamgauge(&[&records[0]], &[]).code, Some(0), "alone, with a warning");
}

#[test]
fn a_report_begins_with_what_produced_it_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let run_file = json!({
        "version": "0.1.0",
        "command": ["streamgauge", "load", "--rate", "5"],
        "machine": {"cpu": "EPYC", "cores": 2},
        "meta": {"gpu": "H100", "gpu_count": "8", "precision": "fp8"},
        "engines": {"http://a": {"/v1/models": {"id": "qwen", "owned_by": "vllm"}, "/version": {"version": "0.32.0"}}},
        "targets": ["http://a"],
        "load": {"arrivals": "poisson", "rate": "5/s", "isl": "512", "osl": "128"},
        "seed": 7,
    });
    let path = run(&folder.path().join("run"), &four(), 1_795_504_655_000_000_000, &run_file);
    let report: Value = serde_json::from_str(&streamgauge(&[&path], &["--json"]).stdout).unwrap();
    let expected = json!({
        "date": "2026-11-24T07:17:35Z", "command": "streamgauge load --rate 5", "target": "http://a", "model": "qwen",
        "engine": "vllm", "engine_version": "0.32.0", "engine_flags": null, "gpu": "H100", "gpu_count": "8",
        "interconnect": null, "precision": "fp8", "parallelism": null, "arrivals": "poisson", "rate": "5/s",
        "concurrency": "unlimited", "isl": "512", "osl": "128", "sampling": null, "prefixes": null, "sessions": null,
        "duration": "2.4 s measured", "seed": "7", "trace": "none: synthetic load", "trace_digest": null,
        "machine": "EPYC, 2 cores", "streamgauge_version": "0.1.0",
    });
    assert_eq!(report["context"], expected);
    let unknown = "engine flags, interconnect, parallelism, sampling, prefixes, sessions, trace digest";
    let text = streamgauge(&[&path], &[]).stdout;
    assert!(text.starts_with("date         2026-11-24T07:17:35Z\n"), "{text}");
    assert!(text.contains("\nengine       vllm 0.32.0\n"), "{text}");
    for format in ["--plain", "--markdown", "--html"] {
        let text = streamgauge(&[&path], &[format]).stdout;
        let (context, figures) = (text.find(unknown), text.find("throughput"));
        assert!(context.is_some() && context < figures, "{format}: {text}");
    }
    let csv = streamgauge(&[&path], &["--csv"]).stdout;
    assert!(csv.contains("\ncontext,engine_flags,,,unknown\n") && csv.contains("\ncontext,gpu,,,H100\n"), "{csv}");
}

#[test]
fn a_filter_selects_the_requests_of_every_figure() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(&folder.path().join("run"), &four(), 0, &json!({}));
    let shown = |args: &[&str]| serde_json::from_str::<Value>(&streamgauge(&[&path], args).stdout).unwrap();
    let good = shown(&["--json", "--filter", "outcome=success"]);
    assert_eq!((&good["requests"], &good["outcomes"]), (&json!(3), &json!({"success": 3})));
    assert_eq!(good["filter"], "outcome=success");
    assert_eq!(shown(&["--json", "--filter", "status>=500"])["outcomes"], json!({"failed": 1}));
    let wrong = streamgauge(&[&path], &["--filter", "ttft<1"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("expected KEY"), "{}", wrong.stderr);
}

#[test]
fn conditions_on_any_figure_decide_the_exit_code_and_are_reported_with_their_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(&folder.path().join("run"), &four(), 0, &json!({}));
    let code = |condition: &str| streamgauge(&[&path], &["--fail-if", condition]).code;
    // Of four requests one failed; the ITL of the others is 27.5 ms on average.
    for (condition, expected) in [
        ("itl.avg<=27.5ms", 0),
        ("itl.avg<=27.4ms", 1),
        ("itl.avg > 27.4ms", 1),
        ("error_rate<=25% itl.avg<=28ms", 0),
        ("error_rate<=24% itl.avg<=28ms", 1),
        ("e2e.p75<=10s", 0),
        ("e2e.p76<=10s", 1),
    ] {
        assert_eq!(code(condition), Some(expected), "{condition}");
    }
    let done = streamgauge(&[&path], &["--json", "--fail-if", "itl.avg<=27.4ms", "--fail-if", "error_rate<=25%"]);
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    let expected = json!([
        {"condition": "itl.avg<=27.4ms", "value": "27.5ms", "fails": true},
        {"condition": "error_rate<=25%", "value": "25.00 %", "fails": false},
    ]);
    assert_eq!(report["conditions"], expected);
}
