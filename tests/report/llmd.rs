//! `report --out-format llmd`: an object of llm-d's own schema, with the figures of our JSON.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

fn schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/llmd/br_v0_2_1_json_schema.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn printed(args: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    let done = command.arg("report").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

/// Breaches of the schema, by the keywords that llm-d's schema uses. An unknown keyword is a breach, so a newer schema
/// is not half judged.
fn breaches(schema: &Value, value: &Value, root: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (keyword, rule) in schema.as_object().unwrap() {
        match &**keyword {
            "$ref" => {
                let target = root.pointer(&rule.as_str().unwrap()[1..]).unwrap();
                found.extend(breaches(target, value, root, at));
            }
            "anyOf" | "oneOf" => {
                let choices: Vec<_> =
                    rule.as_array().unwrap().iter().map(|choice| breaches(choice, value, root, at)).collect();
                if choices.iter().all(|choice| !choice.is_empty()) {
                    found.extend(choices.concat());
                }
            }
            "type" => {
                let fits = match rule.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "number" => value.is_number(),
                    "integer" => value.is_u64() || value.is_i64(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    other => panic!("type {other}"),
                };
                found.extend((!fits).then(|| format!("{at}: {value} is no {rule}")));
            }
            "properties" => {
                for (name, rule) in rule.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        found.extend(breaches(rule, value, root, &format!("{at}/{name}")));
                    }
                }
            }
            "additionalProperties" if rule == &json!(false) => {
                let known = &schema["properties"];
                let unknown = value.as_object().into_iter().flatten().filter(|(name, _)| known.get(name).is_none());
                found.extend(unknown.map(|(name, _)| format!("{at}/{name} is unknown")));
            }
            "required" => {
                let missing =
                    rule.as_array().unwrap().iter().filter(|name| value.get(name.as_str().unwrap()).is_none());
                found.extend(missing.map(|name| format!("{at}/{name} is missing")));
            }
            "items" => {
                for value in value.as_array().into_iter().flatten() {
                    found.extend(breaches(rule, value, root, &format!("{at}[]")));
                }
            }
            "enum" => found.extend((!rule.as_array().unwrap().contains(value)).then(|| format!("{at}: {value}"))),
            "const" => found.extend((rule != value).then(|| format!("{at}: {value}"))),
            // A remnant of the generator, for a union with a bound.
            "minimum" | "ge" => {
                found.extend((value.as_f64() < rule.as_f64()).then(|| format!("{at}: {value} < {rule}")))
            }
            "exclusiveMinimum" => {
                found.extend((value.as_f64() <= rule.as_f64()).then(|| format!("{at}: {value} <= {rule}")));
            }
            "format" => assert_eq!(rule, "date-time"),
            "$defs" | "default" | "description" | "title" | "discriminator" | "additionalProperties" => {}
            other => found.push(format!("{at}: the test knows no keyword `{other}`")),
        }
    }
    found
}

#[test]
fn every_kind_of_source_gives_an_object_of_the_schema() {
    let schema = schema();
    for args in [
        &["tests/data/runs/chat", "--slice", "5s"][..],
        &["tests/data/results"],
        &["tests/data/results/vllm_bench_serve.json"],
        &["tests/data/results/guidellm/constant.json", "--slice", "1s"],
        &["tests/data/results/inference-perf"],
        &["tests/data/traces/streamgauge/version-1.jsonl.zst"],
    ] {
        let document = printed(&[args, &["--out-format", "llmd"]].concat());
        assert_eq!(breaches(&schema, &document, &schema, ""), [""; 0], "{args:?}");
        assert_eq!(document["version"], "0.2.1");
    }
    let document = printed(&["tests/data/results", "--out-format", "llmd"]);
    for (path, value) in [
        ("/run/uid", json!(1)),
        ("/results/request_performance/aggregate/requests/total", json!(-1)),
        ("/results/request_performance/aggregate/latency/time_to_first_token/units", json!("hours")),
        ("/scenario/load/standardized/source", json!("thin air")),
        ("/results/request_performance/aggregate/latency", json!({"ttft": 1})),
    ] {
        let mut wrong = document.clone();
        *wrong.pointer_mut(path).unwrap() = value;
        assert_ne!(breaches(&schema, &wrong, &schema, ""), [""; 0], "{path}: the check cannot fail");
    }
}

#[test]
fn its_figures_are_those_of_the_report() {
    let path = "tests/data/runs/chat";
    let (llmd, own) =
        (printed(&[path, "--slice", "5s", "--out-format", "llmd"]), printed(&[path, "--slice", "5s", "--json"]));
    let performance = &llmd["results"]["request_performance"];
    let aggregate = &performance["aggregate"];
    for (name, metric, unit) in [
        ("time_to_first_token", "ttft", "ms"),
        ("time_per_output_token", "tpot", "ms/token"),
        ("inter_token_latency", "itl", "ms/token"),
        ("request_latency", "e2e", "ms"),
    ] {
        let (theirs, ours) = (&aggregate["latency"][name], &own["metrics"][metric]);
        assert_eq!(theirs["units"], unit);
        for (key, statistic) in [
            ("mean", "avg"),
            ("stddev", "std"),
            ("min", "min"),
            ("p50", "p50"),
            ("p99", "p99"),
            ("p99p9", "p99.9"),
            ("max", "max"),
        ] {
            assert_eq!(theirs[key], ours[statistic], "{name} {key}");
        }
    }
    let requests = &aggregate["requests"];
    assert_eq!(
        (&requests["total"], &requests["failures"], &requests["incomplete"]),
        (&json!(260), &json!(0), &json!(0))
    );
    assert_eq!(requests["output_length"]["mean"], own["metrics"]["osl"]["avg"]);
    assert_eq!(aggregate["throughput"]["output_token_rate"]["mean"], own["throughput"]["output_tokens"]);
    let points = performance["time_series"]["latency"]["time_to_first_token"]["series"].as_array().unwrap();
    let slices = own["slices"].as_array().unwrap();
    assert_eq!(points.len(), slices.len());
    for (point, slice) in points.iter().zip(slices) {
        assert_eq!(point["p50"], slice["metrics"]["ttft"]["p50"]);
    }
    assert_eq!(points[0]["ts"], "2026-11-21T12:50:57Z");
}

#[test]
fn the_same_results_have_the_same_id_and_a_peers_file_names_its_tool() {
    let path = "tests/data/results/vllm_bench_serve.json";
    let of = |args: &[&str]| printed(&[&[path, "--out-format", "llmd"], args].concat());
    let (once, again, other) = (of(&[]), of(&[]), of(&["--filter", "isl>61"]));
    assert_eq!(once["run"]["uid"], again["run"]["uid"]);
    assert_ne!(once["run"]["uid"], other["run"]["uid"]);
    let load = &once["scenario"]["load"]["standardized"];
    assert_eq!(
        (&load["tool"], &load["concurrency"], &load["tool_version"]),
        (&json!("vllm-benchmark"), &json!(4), &json!("unknown"))
    );
    assert_eq!(load["input_seq_len"], json!({"distribution": "other", "value": 61.025, "min": 61, "max": 62}));
    assert_eq!(once["run"]["time"], json!({"duration": "PT54.824S"}), "its clock counts from an unknown moment");
}
