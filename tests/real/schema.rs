//! JSON Schemas, judged by Python's validator. The output of `streamgauge trace schema` is a schema that accepts every
//! row of the program, and nothing else. The output of `report --out-format llmd` is valid by llm-d's own schema.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::support::captured::run;
use super::support::client::{Client, chat};
use super::tools::{self, program};

/// Checks each line of the files against the schema, and rejects names that the schema does not have.
const JUDGE: &str = r##"
import json, sys
from jsonschema import Draft202012Validator as Validator
schema = json.load(open(sys.argv[1]))
Validator.check_schema(schema)
for name, of in schema["$defs"].items():
    if "properties" in of:
        of["additionalProperties"] = False
judges = [Validator({"$ref": "#/$defs/" + name, "$defs": schema["$defs"]}) for name in ("TraceHeader", "TraceEntry")]
told = {}
for path in sys.argv[2:]:
    lines = [json.loads(line) for line in open(path)]
    told[path] = [[error.message for error in judges[number > 0].iter_errors(line)] for number, line in enumerate(lines)]
print(json.dumps(told))
"##;

fn streamgauge(args: &[&str]) -> Vec<u8> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    let done = command.args(args).current_dir(Path::new(env!("CARGO_MANIFEST_DIR"))).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

/// A capture of an answer, of one that was left, and of a refusal, whose prompts have a part that is no text.
fn capture(folder: &Path) {
    let sim = tools::sim(&["--model=tiny"]);
    let mut proxy = run(sim.addr, folder, &[]);
    let image = json!([{"type": "image_url", "image_url": {"url": "https://a/b.png"}}, {"type": "text", "text": "x"}]);
    for (model, tokens, leaves) in [("tiny", 5, false), ("tiny", 9_000, true), ("absent", 5, false)] {
        let body = json!({"model": model, "stream": true, "max_tokens": tokens, "ignore_eos": true, "temperature": 0.5,
            "messages": [{"role": "user", "content": image}], "tools": [{"type": "function", "function": {"name": "f"}}]});
        let mut client = Client::connect(proxy.listen);
        client.send(chat(&body.to_string()));
        if leaves {
            client.at_least(2_000);
        } else {
            client.response();
        }
    }
    proxy.terminate();
}

#[test]
fn every_row_that_is_written_is_of_the_schema_and_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("schema"), streamgauge(&["trace", "schema"])).unwrap();
    capture(&folder.path().join("captured"));
    let traces = "tests/data/traces";
    let mut files = Vec::new();
    for (name, of) in [
        ("captured", at("captured")),
        ("version-1", format!("{traces}/streamgauge/version-1.jsonl.zst")),
        ("mooncake", format!("{traces}/mooncake/conversation_first60s.jsonl")),
        ("weka", format!("{traces}/kv-cache-tester")),
        ("bailian", format!("{traces}/bailian/handmade_schema.jsonl")),
        ("azure", format!("{traces}/azure/conv2023_first300s.csv")),
    ] {
        streamgauge(&["trace", "convert", &of, "--output", &at(&format!("{name}.jsonl"))]);
        files.push(at(&format!("{name}.jsonl")));
    }
    let header = json!({"streamgauge_trace": 1, "source": "t"});
    let wrong = [
        json!({"at": -1}),
        json!({"at": 1, "text": "what was said"}),
        json!({"at": 1, "prompt": {"tokens": "7"}}),
        json!({"at": 1, "ending": "unheard_of"}),
        json!({"at": 1, "prompt": {"parts": [{"kind": "image", "size": [1]}]}}),
    ];
    let lines: String = std::iter::once(&header).chain(&wrong).map(|line| format!("{line}\n")).collect();
    std::fs::write(at("wrong"), lines).unwrap();
    let output = program("python").args(["-c", JUDGE, &at("schema")]).args(&files).arg(at("wrong")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut errors: Value = serde_json::from_slice(&output.stdout).unwrap();
    let wrong = errors[at("wrong")].take();
    assert!(
        wrong[0] == json!([]) && wrong.as_array().unwrap()[1..].iter().all(|messages| *messages != json!([])),
        "{wrong}"
    );
    let rows = [3, 3, 162, 17, 3, 1_445];
    for (file, rows) in files.iter().zip(rows) {
        let judged = errors[file].as_array().unwrap();
        assert_eq!(judged.len(), rows + 1, "{file}");
        assert!(judged.iter().all(|messages| *messages == json!([])), "{file}: {judged:?}");
    }
}

#[test]
fn a_report_in_llm_ds_format_is_of_llm_ds_schema() {
    const JUDGE: &str = r#"
import json, sys
from jsonschema import Draft202012Validator as Validator
judge = Validator(json.load(open(sys.argv[1])), format_checker=Validator.FORMAT_CHECKER)
print(json.dumps([error.message for error in judge.iter_errors(json.load(sys.stdin))]))
"#;
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/llmd/br_v0_2_1_json_schema.json");
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    for of in
        [&["tests/data/runs/chat", "--slice", "5s"][..], &["tests/data/results"], &["tests/data/results/guidellm#2"]]
    {
        std::fs::write(&report, streamgauge(&[&["report", "--out-format", "llmd"], of].concat())).unwrap();
        let mut python = program("python");
        let done =
            python.args(["-c", JUDGE]).arg(&schema).stdin(std::fs::File::open(&report).unwrap()).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&done.stdout).trim(),
            "[]",
            "{of:?}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
}
