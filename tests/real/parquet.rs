//! Parquet of `streamgauge trace convert`, read back by Arrow's own reader.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use streamgauge::trace_file::gaps;
use streamgauge::trace_file::row::TraceEntry;

use crate::tools::program;

const TRACE: &str = "tests/data/traces/mooncake/conversation_first60s.jsonl";

/// pyarrow's values of the columns under test.
const READ: &str = r#"
import json, sys, pyarrow.parquet as pq
file = pq.ParquetFile(sys.argv[1])
table = file.read()
print(json.dumps({
    "rows": table.num_rows,
    "types": {name: str(table.schema.field(name).type) for name in ("at", "model", "stream", "prompt_blocks")},
    "tokens": sum(table["prompt_tokens"].to_pylist()),
    "first": table["prompt_blocks"][0].as_py(),
    "last": table["at"][-1].as_py(),
    "models": table["model"].null_count,
    "header": json.loads(file.metadata.metadata[b"streamgauge_trace"]),
}))
"#;

/// Every row, as pyarrow has it.
const ROWS: &str = "import json, sys, pyarrow.parquet as pq; print(json.dumps(pq.read_table(sys.argv[1]).to_pylist()))";

/// Python's values of a trace's Parquet.
fn read_back(trace: &str, python: &str) -> Value {
    let file = tempfile::NamedTempFile::new().unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_streamgauge"))
        .args(["trace", "convert", trace, "--to", "parquet", "--output"])
        .arg(file.path())
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let read = program("python").args(["-c", python]).arg(file.path()).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    serde_json::from_slice(&read.stdout).unwrap()
}

#[test]
fn pyarrow_reads_every_row_of_it() {
    let read = read_back(TRACE, READ);
    assert_eq!((&read["rows"], &read["tokens"], &read["models"]), (&162.into(), &2_209_273.into(), &162.into()));
    assert_eq!(read["types"]["at"], "uint64");
    assert_eq!(read["types"]["model"], "string");
    assert_eq!(read["types"]["stream"], "bool");
    assert_eq!(read["types"]["prompt_blocks"], "list<element: uint64 not null>");
    assert_eq!(read["first"], serde_json::json!((0..14).collect::<Vec<u64>>()));
    assert_eq!(read["last"], 57_000_000_000_u64);
    assert_eq!(read["header"]["blocks"]["size"], 512);
}

/// A row that knows everything.
fn full() -> Value {
    json!({
        "at": u64::MAX, "planned": 2, "route": "/v1/chat/completions", "dialect": "openai.chat", "model": "m é",
        "stream": true,
        "params": {"max_tokens": 3, "min_tokens": 4, "n": 5, "temperature": 0.5, "ignore_eos": true, "logprobs": false,
            "tools": true, "structured": false},
        "prompt": {"bytes": 6, "tokens": 7, "source": "usage", "cached": 8, "blocks": [u64::MAX, 1],
            "parts": [{"kind": "image", "bytes": 9, "size": [640, 480]}]},
        "session": "s", "parent": "p", "turn": 10, "think": 11, "status": 200, "ending": "downstream_gone", "outcome": "cancelled",
        "finish": "length", "output_tokens": 12, "output_source": "chunks",
        "timing": {"sent": 13, "evidence": 14, "first_token": 15, "first_output": 16, "ended": 17, "first_tokens": 18,
            "gaps": "AgECAQDQDwA", "lost_gaps": 19},
        "abort_tokens": 20, "in_flight": 21, "reasoning_tokens": 22,
        "transfer": {"connecting": 23, "head": 24, "first_byte": 25, "sent": 26, "received": 27, "reads": 28},
        "wanted": {"input_tokens": 22, "output_tokens": 23, "think": 24, "abort_tokens": 25, "abort_after": 26},
        "upstream": "h:1", "class": {"tier": "gold"}, "slo": {"ttft": 29, "tpot": 30},
    })
}

#[test]
fn every_field_is_a_column_with_its_value_and_what_is_unknown_is_null() {
    let (full, folder) = (full(), tempfile::tempdir().unwrap());
    let row: TraceEntry = serde_json::from_value(full.clone()).unwrap();
    assert_eq!(serde_json::to_value(&row).unwrap(), full, "all of it is of the format");
    let trace = folder.path().join("trace.jsonl");
    let header = json!({"streamgauge_trace": 1, "source": "test"});
    std::fs::write(&trace, format!("{header}\n{full}\n{{\"at\":1}}\n")).unwrap();
    let read = read_back(trace.to_str().unwrap(), ROWS);
    let mut expected = serde_json::Map::new();
    for (name, value) in full.as_object().unwrap() {
        match (name.as_str(), value) {
            ("params" | "prompt" | "timing" | "wanted" | "transfer" | "slo", Value::Object(fields)) => {
                expected.extend(fields.iter().map(|(field, value)| (format!("{name}_{field}"), value.clone())));
            }
            _ => _ = expected.insert(name.clone(), value.clone()),
        }
    }
    let events = gaps::unpack(row.timing.gaps.as_ref().unwrap()).unwrap();
    expected.remove("timing_gaps");
    expected.insert("gap_ns".to_owned(), json!(events.iter().map(|event| event.gap().as_nanos()).collect::<Vec<_>>()));
    expected.insert("gap_tokens".to_owned(), json!([1, 0]));
    // The header has no start.
    expected.insert("time".to_owned(), Value::Null);
    // Two gaps of a millisecond: 32 · log2(1,000,000) = 637.8.
    expected.insert("gap_sketch".to_owned(), json!([[637, 2]]));
    expected["class"] = json!("{\"tier\":\"gold\"}");
    expected["prompt_parts"] = json!(serde_json::to_string(&row.prompt.parts).unwrap());
    assert_eq!(read[0], Value::Object(expected.clone()));
    let lists = ["prompt_blocks", "gap_ns", "gap_tokens", "gap_sketch"];
    expected
        .iter_mut()
        .for_each(|(name, value)| *value = if lists.contains(&&**name) { json!([]) } else { Value::Null });
    expected["at"] = json!(1);
    assert_eq!(read[1], Value::Object(expected));
}
