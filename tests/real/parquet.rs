//! Parquet of `streamgauge trace convert`, read back by Arrow's own reader.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::parts::program;

const TRACE: &str = "tests/data/traces/mooncake/conversation_first60s.jsonl";

/// What pyarrow makes of the columns that the test looks at.
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

#[test]
fn pyarrow_reads_every_row_of_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = tempfile::NamedTempFile::new().unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_streamgauge"))
        .args(["trace", "convert", TRACE, "--to", "parquet", "--output"])
        .arg(file.path())
        .current_dir(root)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let read = program("python").args(["-c", READ]).arg(file.path()).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let read: Value = serde_json::from_slice(&read.stdout).unwrap();
    assert_eq!((&read["rows"], &read["tokens"], &read["models"]), (&162.into(), &2_209_273.into(), &162.into()));
    assert_eq!(read["types"]["at"], "uint64");
    assert_eq!(read["types"]["model"], "string");
    assert_eq!(read["types"]["stream"], "bool");
    assert_eq!(read["types"]["prompt_blocks"], "list<element: uint64 not null>");
    assert_eq!(read["first"], serde_json::json!((0..14).collect::<Vec<u64>>()));
    assert_eq!(read["last"], 57_000_000_000_u64);
    assert_eq!(read["header"]["blocks"]["size"], 512);
}
