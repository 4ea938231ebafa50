//! Captures of several instances: read in one order of time, and merged on one clock.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use streamgauge::trace_file::header::{BlockIds, BlockScheme, BlockScope, BlockUnit, LastBlock, TraceHeader};
use streamgauge::trace_file::row::TraceEntry;
use streamgauge::trace_file::writer::TraceWriter;
use tempfile::TempDir;

/// 2026-11-25T10:15:00Z.
const STARTED: u64 = 1_795_601_700_000_000_000;
const SECOND: u64 = 1_000_000_000;
const MILLI: u64 = 1_000_000;

fn streamgauge(words: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_streamgauge")).args(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn notes(output: &Output) -> Vec<String> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let is_ours = |line: &&str| !line.contains(" is taken as ") && !line.contains(" requests written as ");
    stderr.lines().filter(is_ours).map(str::to_owned).collect()
}

/// The rows of stdout, after the header.
fn rows(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn started(output: &Output) -> u64 {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str::<Value>(text.lines().next().unwrap()).unwrap()["started_unix_ns"].as_u64().unwrap()
}

fn header(key: &str, started: u64) -> TraceHeader {
    let blocks = BlockScheme {
        size: 512,
        unit: BlockUnit::Bytes,
        last: LastBlock::Dropped,
        ids: BlockIds::Chained,
        scope: BlockScope::Trace,
        key: Some(key.to_owned()),
    };
    TraceHeader { started_unix_ns: Some(started), blocks: Some(blocks), ..TraceHeader::new("test") }
}

/// A request with its number as `max_tokens`.
fn row(number: u64, at: u64, lasts: u64) -> TraceEntry {
    let mut row = TraceEntry { at, output_tokens: Some(10), ..TraceEntry::default() };
    (row.prompt.bytes, row.prompt.blocks) = (Some(600 + number), vec![0xb10c << 32 | number]);
    (row.params.max_tokens, row.timing.ended) = (Some(number), Some(lasts));
    row
}

fn write(file: &Path, header: &TraceHeader, rows: impl IntoIterator<Item = TraceEntry>) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let mut writer = TraceWriter::new(File::create(file).unwrap(), header).unwrap();
    rows.into_iter().for_each(|row| writer.write(&row).unwrap());
    writer.finish().unwrap();
}

/// A capture of a gateway, and one of the server behind it, whose clock is so much ahead. Each request of the gateway
/// takes 400 ms; it comes to the server 2 ms later, and ends there 1 ms earlier.
fn two_hops(folder: &Path, keys: [&str; 2], ahead: u64) -> [String; 2] {
    let (outer, inner) = (folder.join("gateway.jsonl.zst"), folder.join("server.jsonl.zst"));
    write(&outer, &header(keys[0], STARTED), (0..40).map(|n| row(n, n * 100 * MILLI, 400 * MILLI)));
    let server = (0..40).map(|n| row(n, n * 100 * MILLI + 2 * MILLI, 397 * MILLI));
    write(&inner, &header(keys[1], STARTED + ahead), server);
    [outer, inner].map(|path| path.display().to_string())
}

#[test]
fn captures_of_a_gateway_and_of_a_server_behind_it_are_merged_on_one_clock() {
    let folder = TempDir::new().unwrap();
    let [gateway, server] = two_hops(folder.path(), ["key", "key"], 2 * SECOND);
    let merged = streamgauge(&["capture", "merge", &gateway, &server]);
    let text = notes(&merged).join("\n");
    // The starts bound the offset by 2 ms from above, the ends by 1 ms from below; clocks are read within 1 ms.
    let expected = format!(
        "note: the clock of {server} is 2.0005 s (±2.50ms) ahead of that of {gateway}, by 40 of 40 requests that passed \
         both; its times are moved earlier"
    );
    assert_eq!(text.lines().next().unwrap(), expected, "{text}");
    assert!(text.contains("at least 40 requests are in several of the traces"), "{text}");
    let rows = rows(&merged);
    let times: Vec<u64> = rows.iter().map(|row| row["at"].as_u64().unwrap()).collect();
    assert!(rows.len() == 80 && times.is_sorted(), "{times:?}");
    // Both rows of a request are neighbours now, within the uncertainty.
    for pair in rows.chunks(2) {
        assert_eq!(pair[0]["params"]["max_tokens"], pair[1]["params"]["max_tokens"]);
        assert!(pair[1]["at"].as_u64().unwrap() - pair[0]["at"].as_u64().unwrap() <= 2 * MILLI);
    }
    assert!(started(&merged).abs_diff(STARTED) <= 2 * MILLI, "the clock is the gateway's");
}

#[test]
fn clocks_that_agree_and_clocks_without_evidence_are_reported_and_not_moved() {
    let folder = TempDir::new().unwrap();
    let [gateway, server] = two_hops(folder.path(), ["key", "key"], 0);
    let merged = streamgauge(&["trace", "merge", &gateway, &server]);
    let text = notes(&merged).join("\n");
    assert!(text.contains(&format!("agree, and are not corrected: {server} with {gateway} within 3.00ms")), "{text}");
    assert_eq!(rows(&merged)[1]["at"], 2 * MILLI);
    // Block ids of two keys cannot be compared. The program that merged them would mix the ids, so it refuses.
    let none = [folder.path().join("other.jsonl.zst"), folder.path().join("another.jsonl.zst")];
    write(&none[0], &header("key", STARTED), (0..40).map(|n| row(n, n * SECOND, SECOND)));
    write(&none[1], &header("key", STARTED + SECOND), (100..140).map(|n| row(n, n * SECOND, SECOND)));
    let [one, other] = none.map(|path| path.display().to_string());
    let merged = streamgauge(&["trace", "merge", &one, &other]);
    let text = notes(&merged).join("\n");
    assert_eq!(
        text,
        format!(
            "note: no offset is known for the clocks of these, and none is applied, because they share fewer than 5 \
             requests with another trace: {one}, {other}"
        )
    );
    assert_eq!(rows(&merged)[40]["at"], 101 * SECOND);
}

/// A bucket in which `instances` write one segment per minute for three minutes, each request one second after the last.
fn lake(folder: &Path, instances: u64) -> String {
    for instance in 0..instances {
        for minute in 0..3 {
            let name = format!("20261125T10{:02}00Z-{minute:08}-0123456789abcdef.jsonl.zst", 15 + minute);
            let below = format!("c/dt=2026-11-25/hour=10/instance=pod-{instance}/{name}");
            let second = |second: u64| minute * 60 + second;
            let number = |n: u64| second(n) * instances + instance;
            let rows = (0..60).map(|n| row(number(n), second(n) * SECOND + instance * MILLI, SECOND));
            write(&folder.join(below), &header("key", STARTED), rows);
        }
    }
    format!("file://{}/c", folder.display())
}

#[test]
fn rows_of_instances_that_write_at_once_come_in_order_of_time_for_every_verb() {
    let folder = TempDir::new().unwrap();
    let url = lake(folder.path(), 4);
    let read = rows(&streamgauge(&["trace", "convert", &url, "--to", "streamgauge"]));
    let numbers: Vec<u64> = read.iter().map(|row| row["params"]["max_tokens"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..4 * 180).collect::<Vec<_>>());
    let cut = rows(&streamgauge(&["trace", "cut", &url, "--from", "59s", "--to", "61s"]));
    let numbers: Vec<u64> = cut.iter().map(|row| row["params"]["max_tokens"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (59 * 4..61 * 4).collect::<Vec<_>>(), "over the end of the segments");
}

#[test]
fn a_prefix_is_merged_instance_by_instance() {
    let folder = TempDir::new().unwrap();
    let url = lake(folder.path(), 3);
    // One more instance has the requests of pod-1, on a clock that is 7 s behind.
    let name = "20261125T101500Z-00000000-0123456789abcdef.jsonl.zst";
    let below = folder.path().join(format!("c/dt=2026-11-25/hour=10/instance=gateway/{name}"));
    let rows_of_gateway = (0..60).map(|n| row(n * 3 + 1, 7 * SECOND + n * SECOND, SECOND + 4 * MILLI));
    write(&below, &header("key", STARTED - 14 * SECOND), rows_of_gateway);
    let merged = streamgauge(&["capture", "merge", &url]);
    let text = notes(&merged).join("\n");
    assert!(text.contains("note: the clock of pod-1 is 6.9990 s (±3.00ms) ahead"), "{text}");
    assert!(text.contains("ahead of that of gateway, by 60 of 60 requests"), "{text}");
    assert!(text.contains("share fewer than 5 requests with another trace: pod-0, pod-2"), "{text}");
    let times: Vec<u64> = rows(&merged).iter().map(|row| row["at"].as_u64().unwrap()).collect();
    assert!(times.len() == 3 * 180 + 60 && times.is_sorted());
}
