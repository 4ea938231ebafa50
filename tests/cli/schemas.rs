//! The schemas of `streamgauge schema` describe every document that the program prints, writes and serves, key by key.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use jsonschema::Validator;
use serde_json::{Value, json};
use streamgauge::measure::server_metrics::ServerMetric;
use streamgauge::trace_file::server_metrics::{Scrape, ScrapesHeader};

use super::demo;

fn print(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    let output = command.args(args).env_clear().current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn printed_json(args: &str) -> Value {
    let text = print(&args.split(' ').collect::<Vec<_>>());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args}: {error}\n{text}"))
}

fn names() -> Vec<String> {
    print(&["schema"]).lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

fn schema(name: &str) -> Value {
    serde_json::from_str(&print(&["schema", name])).unwrap()
}

/// Rejects keys that the schema does not name, so that a document cannot have more than is described.
fn closed(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.values_mut().for_each(closed);
            if object.contains_key("properties") && !object.contains_key("oneOf") && !object.contains_key("anyOf") {
                object.entry("additionalProperties").or_insert(json!(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(closed),
        _ => {}
    }
}

fn validator(name: &str) -> Validator {
    let mut schema = schema(name);
    // Reports read a part of it.
    if name != "run" {
        closed(&mut schema);
    }
    jsonschema::draft202012::new(&schema).unwrap()
}

/// Where a document is not as its schema says.
pub(crate) fn problems(name: &str, document: &Value) -> Vec<String> {
    validator(name).iter_errors(document).map(|error| format!("{name}{}: {error}", error.instance_path())).collect()
}

/// Commands that print a document from files of `tests/data`.
const PRINTED: [(&str, &str); 17] = [
    (
        "inspect",
        "inspect tests/data/vectors/04_vllm_chat_continuous_usage_multi_token.sse --path /v1/chat/completions --json",
    ),
    (
        "inspect",
        "inspect tests/data/recordings/llama_server_chat.timed.jsonl --path /v1/chat/completions --timed --explain --json",
    ),
    ("sweep", "report tests/data/runs/sweep --json"),
    (
        "report",
        "report tests/data/runs/chat --json --by isl-bucket --slice 1s --definitions all --hardware bandwidth=4.8TB/s --params 8e9 --bytes-per-param 2",
    ),
    ("report", "report tests/data/captures/pod-a --json --slo chat:ttft<=200ms --fail-if ttft.p95<=1s"),
    ("report", "report tests/data/results/profile_export.jsonl --json"),
    ("peer-summary", "report tests/data/results/profile_export_aiperf.json --json"),
    (
        "compare",
        "compare --json tests/data/runs/compare/before-1 tests/data/runs/compare/before-2 -- tests/data/runs/compare/after-1 tests/data/runs/compare/after-2",
    ),
    ("compare", "compare --json --by hour tests/data/captures/pod-a tests/data/captures/pod-b"),
    ("compare-sweeps", "compare --json tests/data/runs/sweep -- tests/data/runs/sweep"),
    (
        "compare-trend",
        "compare --json --trend tests/data/runs/compare/before-1 tests/data/runs/compare/before-2 tests/data/runs/compare/before-3 tests/data/runs/compare/after-1",
    ),
    (
        "plan",
        "plan --json --measured tests/data/runs/sweep --traffic tests/data/captures/pod-a --gpus-per-replica 8 --price 2.5/gpu-h --fail 1",
    ),
    ("trace-info", "trace info --json tests/data/captures/pod-a"),
    ("trace-diff", "trace diff --json tests/data/captures/pod-a tests/data/captures/pod-b"),
    ("trace-reuse", "trace reuse --json tests/data/captures/pod-a tests/data/captures/pod-b --cache-blocks 400"),
    ("top", "top --once --json 127.0.0.1:9"),
    ("doctor", "doctor --json --upstream http://127.0.0.1:9"),
];

#[test]
fn every_schema_is_one_and_has_a_description_of_its_source() {
    let listed = print(&["schema"]);
    assert!(
        listed.lines().all(|line| line
            .split_once(' ')
            .is_some_and(|(_, source)| source.contains('`') || source.contains(".json")))
    );
    for name in names() {
        let schema = schema(&name);
        assert!(jsonschema::meta::is_valid(&schema), "{name}");
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{name}");
    }
}

#[test]
fn what_commands_print_is_what_the_schemas_describe() {
    let wrong: Vec<String> =
        PRINTED.iter().flat_map(|(name, command)| problems(name, &printed_json(command))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_written_to_folders_is_what_the_schemas_describe() {
    for (name, path) in [("run", "runs/chat/run.json"), ("sweep-file", "runs/sweep/sweep.json")] {
        let text = std::fs::read_to_string(format!("{}/tests/data/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert_eq!(problems(name, &serde_json::from_str(&text).unwrap()), [""; 0]);
    }
}

#[test]
fn lines_of_server_metrics_are_what_the_schemas_describe() {
    let header = ScrapesHeader { streamgauge_server_metrics: 2, started_unix_ns: 1, servers: vec!["http://a".into()] };
    let scrape = Scrape { at: -5, server: 0, took: 9, figures: [(ServerMetric::Running, 2.0)].into(), failed: None };
    let failed = Scrape { failed: Some("no answer".to_owned()), ..Scrape::default() };
    let lines = [
        ("server-metrics-header", serde_json::to_value(header).unwrap()),
        ("server-metrics", serde_json::to_value(scrape).unwrap()),
        ("server-metrics", serde_json::to_value(failed).unwrap()),
    ];
    for (name, line) in &lines {
        assert_eq!(problems(name, line), [""; 0]);
    }
    assert_ne!(problems("server-metrics", &lines[0].1), [""; 0]);
}

#[test]
fn what_a_twin_prints_is_what_the_schemas_describe() {
    let folder = tempfile::tempdir().unwrap();
    let twin = folder.path().join("twin.json");
    let twin = twin.to_str().unwrap();
    let fit = printed_json(&format!("twin fit --json tests/data/captures/pod-a tests/data/captures/pod-b -o {twin}"));
    assert_eq!(problems("twin-fit", &fit), [""; 0]);
    let run = printed_json(&format!("twin run --json {twin} --traffic tests/data/captures/pod-a --slo chat:ttft<=1s"));
    assert_eq!(problems("twin-run", &run), [""; 0]);
    let plan =
        printed_json(&format!("plan --json --twin {twin} --traffic tests/data/captures/pod-a --slo chat:ttft<=5s"));
    assert_eq!(problems("plan-twin", &plan), [""; 0]);
}

/// The JSON object of a response, or of its first event.
fn get(admin: SocketAddr, path: &str) -> Value {
    let mut stream = TcpStream::connect(admin).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let line = lines.find(|line| line.starts_with('{') || line.starts_with("data: {")).unwrap();
    serde_json::from_str(line.trim_start_matches("data: ")).unwrap()
}

#[test]
fn what_the_demo_prints_and_serves_is_what_the_schemas_describe() {
    let mut demo = demo::start(&[&demo::FREE_PORTS[..], &["--for=3s", "--json"]].concat());
    let [_, admin] = demo.addresses();
    demo.line();
    let served = ["state", "requests", "engine", "live", "history"]
        .map(|name| (format!("api-{name}"), get(admin, &format!("/api/{name}"))));
    for (name, document) in &served {
        assert_eq!(problems(name, document), [""; 0], "{document}");
    }
    let top = printed_json(&format!("top --once --json {admin}"));
    assert!(top[0]["figures"].is_object(), "{top}");
    assert_eq!(problems("top", &top), [""; 0]);
    let summary: Value = serde_json::from_str(&demo.end().stdout).unwrap();
    assert_eq!(problems("demo", &summary), [""; 0]);
}

#[test]
fn a_document_with_a_missing_a_wrong_or_a_further_key_is_not_what_the_schemas_describe() {
    let report = printed_json("report tests/data/runs/chat --json");
    let changes: BTreeMap<&str, fn(&mut Value)> = BTreeMap::from([
        ("missing", (|report| _ = report.as_object_mut().unwrap().remove("sources")) as fn(&mut Value)),
        ("wrong", |report| report["metrics"]["ttft"]["p50"] = json!("fast")),
        ("further", |report| report["throughput"]["guesses"] = json!(1)),
        ("further percentile", |report| report["metrics"]["ttft"]["q50"] = json!(1.0)),
    ]);
    assert_eq!(problems("report", &report), [""; 0]);
    for (change, apply) in changes {
        let mut changed = report.clone();
        apply(&mut changed);
        assert_eq!(problems("report", &changed).len(), 1, "{change}");
    }
}

#[test]
fn each_document_has_a_test_here() {
    let elsewhere = [
        "run",
        "sweep-file",
        "hour-manifest",
        "server-metrics-header",
        "server-metrics",
        "sim-sends",
        "demo",
        "twin-fit",
        "twin-run",
        "plan-twin",
        "api-state",
        "api-requests",
        "api-engine",
        "api-live",
        "api-history",
    ];
    let mut tested: Vec<&str> = PRINTED.iter().map(|(name, _)| *name).chain(elsewhere).collect();
    tested.sort_unstable();
    tested.dedup();
    let mut names = names();
    names.sort_unstable();
    assert_eq!(names, tested);
}
