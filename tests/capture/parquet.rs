//! Segments of a capture that are rewritten as Parquet.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use streamgauge::trace_file::row::TraceEntry;
use tempfile::TempDir;

use crate::support::captured::{answer, page, proxy, rows, run, server, until};
use crate::support::client::chat;

const BODY: &str = r#"{"model":"m","stream":true,"max_tokens":1,"messages":[{"role":"user","content":"hello"}]}"#;

fn files(folder: &Path, end: &str) -> BTreeSet<PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    all.filter(|path| path.to_str().unwrap().ends_with(end)).collect()
}

fn shown(args: &[&str], folder: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    let output = command.args(args).args([folder.to_str().unwrap(), "--json"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_closed_segment_is_parquet_with_the_same_rows_for_every_verb() {
    let (as_lines, as_parquet) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let upstream = server(answer(5));
    for (folder, format) in [(&as_lines, "jsonl"), (&as_parquet, "parquet")] {
        let proxy = proxy(upstream.addr, folder.path(), &[("capture_format", format)]);
        let mut client = proxy.client();
        for _ in 0..9 {
            client.send(chat(BODY));
            client.response();
        }
        let counted = "streamgauge_capture_records_total{outcome=\"written\",reason=\"whole\"} 9";
        until("all are written", || page(&proxy, "/metrics").contains(counted));
    }
    assert_eq!(files(as_lines.path(), ".jsonl.zst").len(), 1);
    assert_eq!((files(as_parquet.path(), ".parquet").len(), files(as_parquet.path(), ".jsonl.zst").len()), (1, 0));
    // Properties that two runs have in common.
    let known =
        |row: TraceEntry| (row.route, row.params, row.prompt.tokens, row.output_tokens, row.timing.gaps.is_some());
    let [lines, parquet] =
        [&as_lines, &as_parquet].map(|folder| rows(folder.path()).into_iter().map(known).collect::<Vec<_>>());
    assert_eq!((lines.len(), lines), (9, parquet));
    assert_eq!(shown(&["trace", "info"], as_parquet.path())["requests"], 9);
    let report = shown(&["report"], as_parquet.path());
    assert_eq!((&report["requests"], &report["metrics"]["itl"]["count"]), (&9.into(), &36.into()), "{report}");
}

#[test]
fn a_killed_capture_has_its_rows_and_the_next_start_rewrites_them() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(5));
    let flags = ["--capture-format=parquet", "--capture-flush=10ms"];
    let mut killed = run(upstream.addr, folder.path(), &flags);
    let mut client = killed.client();
    for _ in 0..9 {
        client.send(chat(BODY));
        client.response();
    }
    let counted = "streamgauge_capture_records_total{outcome=\"written\",reason=\"whole\"} 9";
    until("all are written", || killed.page("/metrics").contains(counted));
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert_eq!((files(folder.path(), ".parquet").len(), rows(folder.path()).len()), (0, 9));
    let again = run(upstream.addr, folder.path(), &flags);
    until("what was left is rewritten", || files(folder.path(), ".jsonl.zst").is_empty());
    assert_eq!((files(folder.path(), ".parquet").len(), rows(folder.path()).len()), (1, 9));
    drop(again);
}
