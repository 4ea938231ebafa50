//! Dynamo's own loader reads what `trace convert --to dynamo` writes, and its simulator finds the same prefixes in it.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::tempdir;

use super::aiperf_trace::{rows, trace};
use super::tools;

/// Loads a file into the simulator of an engine whose cache holds all of it, and prints the requests in the order of
/// their arrivals.
const LOADER: &str = r#"
import json, sys
from dynamo.replay.api import run_trace_replay
file, options = sys.argv[1], json.loads(sys.argv[2])
cache = {"num_gpu_blocks_is_explicit": True, "engine": {"num_gpu_blocks": 100000}}
report = run_trace_replay([file], trace_format="dynamo", replay_mode="offline", capture_per_request=True, extra_engine_args=cache, **options)
print(json.dumps(sorted(report.per_request, key=lambda row: (row["arrival_time_ms"], row["input_length"]))))
"#;

/// One request as Dynamo loaded it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Loaded {
    millis: u64,
    session: Option<String>,
    input: u64,
    output: u64,
}

/// Loads a trace, and returns its requests and the prompt tokens that the cache held.
fn load(file: &Path, options: &Value) -> (Vec<Loaded>, u64) {
    let mut loader = tools::program("dynamo");
    let output = loader.args(["-c", LOADER, file.to_str().unwrap(), &options.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{key}: {row}"));
    let loaded = rows.iter().map(|row| Loaded {
        millis: row["arrival_time_ms"].as_f64().unwrap().round() as u64,
        session: row["session_id"].as_str().map(str::to_owned),
        input: number(row, "input_length"),
        output: number(row, "requested_output_length"),
    });
    (loaded.collect(), rows.iter().map(|row| number(row, "reused_input_tokens")).sum())
}

/// Prompt tokens whose blocks an earlier prompt began with, of blocks that are named after all before them.
fn repeated(prompts: &[Vec<u64>], block: u64) -> u64 {
    let mut known = HashSet::new();
    let of = |ids: &Vec<u64>| {
        let held = ids.iter().take_while(|id| known.contains(*id)).count() as u64;
        known.extend(ids.iter().copied());
        held * block
    };
    prompts.iter().map(of).sum()
}

#[test]
#[ignore = "needs Dynamo: tests/run --real"]
fn dynamo_loads_each_request_of_mooncakes_trace_and_finds_its_prefixes() {
    let source = "tests/data/traces/mooncake/conversation_first60s.jsonl";
    let folder = tempdir().unwrap();
    let written = folder.path().join("trace.jsonl");
    trace(&["convert", source, "--to", "dynamo", "-o", written.to_str().unwrap()]);
    // So slow that one request is over before the next comes.
    let (mut loaded, held) = load(&written, &json!({"arrival_speedup_ratio": 0.01}));
    loaded.sort_unstable();
    // Read without our reader.
    let text = std::fs::read_to_string(source).unwrap();
    let planned: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let mut expected: Vec<Loaded> = planned
        .iter()
        .map(|row| Loaded {
            millis: 100 * number(row, "timestamp"),
            session: None,
            input: number(row, "input_length"),
            output: number(row, "output_length"),
        })
        .collect();
    expected.sort_unstable();
    assert_eq!(loaded, expected);
    let ids = |row: &Value| row["hash_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let prompts: Vec<Vec<u64>> = planned.iter().map(ids).collect();
    assert_eq!((held, repeated(&prompts, 512)), (203 * 512, 203 * 512));
}

#[test]
#[ignore = "needs Dynamo: tests/run --real"]
fn dynamo_loads_the_turns_of_a_session_and_finds_what_they_share() {
    let source = Path::new("tests/data/traces/kv-cache-tester/trace_0057.json");
    let folder = tempdir().unwrap();
    let written = folder.path().join("trace.jsonl");
    trace(&["convert", source.to_str().unwrap(), "--to", "dynamo", "-o", written.to_str().unwrap()]);
    let (loaded, held) = load(&written, &json!({"execution_model": "any"}));
    let planned = rows(source);
    let expected: Vec<_> = planned.iter().map(|row| (row.prompt.tokens.unwrap(), row.output_tokens.unwrap())).collect();
    assert_eq!(loaded.iter().map(|row| (row.input, row.output)).collect::<Vec<_>>(), expected);
    assert!(loaded.iter().all(|row| row.session.as_deref() == Some("trace_0057")), "{loaded:?}");
    let prompts: Vec<Vec<u64>> = planned.into_iter().map(|row| row.prompt.blocks).collect();
    assert_eq!((held, repeated(&prompts, 64)), (1_541 * 64, 1_541 * 64));
}
