//! AIPerf reads the output of `trace convert --to mooncake`, and sends its requests with equal numbers, times and
//! lengths. Their order is equal too, except within [`MOMENT_MS`]. The requests are read from the capture of a proxy
//! before the simulated server. The rows written in its other formats are valid for its models.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use streamgauge::trace::format::{ReadOptions, detect};
use streamgauge::trace::input::InputSource;
use streamgauge::trace_file::row::TraceEntry;
use tempfile::tempdir;

use super::program::{ProxyProcess, streamgauge};
use super::{processes, tools};

/// 23 requests in 6 s, of Mooncake's trace whose arrivals are those of a Poisson process.
pub(super) const TRACE: &str = "tests/data/traces/mooncake/synthetic_first60s.jsonl";
/// How far an arrival may be off, of a Python program on a busy machine.
const TOLERANCE_MS: f64 = 250.0;

/// Requests that are planned this close may come in any order, of a program with several processes.
const MOMENT_MS: u64 = 50;

pub(super) fn rows(path: &Path) -> Vec<TraceEntry> {
    let source = InputSource::open(path).unwrap();
    let format = detect(&source).unwrap();
    let trace = (format.read.unwrap())(source, &ReadOptions::default()).unwrap();
    let mut rows: Vec<TraceEntry> = trace.entries.collect::<Result<_, _>>().unwrap();
    rows.sort_by_key(|row| row.at);
    rows
}

pub(super) fn trace(arguments: &[&str]) {
    let done = streamgauge(&[&["trace"], arguments].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Prompt and output tokens of each request, in order of their times, as AIPerf counted them.
fn of_aiperf(folder: &Path) -> Vec<(u64, u64)> {
    let text = std::fs::read_to_string(folder.join("profile_export.jsonl")).unwrap();
    let mut rows: Vec<(u64, (u64, u64))> = text
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            assert!(line["error"].is_null(), "{line}");
            let of = |name: &str| line["metrics"][name]["value"].as_u64().unwrap();
            let lengths = (of("input_sequence_length"), of("usage_completion_tokens"));
            (line["metadata"]["request_start_ns"].as_u64().unwrap(), lengths)
        })
        .collect();
    rows.sort_unstable();
    rows.into_iter().map(|(_, lengths)| lengths).collect()
}

/// The values sent, sorted within each planned moment, because requests of one moment have no order.
fn by_moment<T: Ord>(planned: &[TraceEntry], mut values: Vec<T>) -> Vec<T> {
    let mut rest = &mut values[..];
    for moment in planned.chunk_by(|one, next| next.at - one.at < MOMENT_MS * 1_000_000) {
        let (of_moment, later) = rest.split_at_mut(moment.len());
        of_moment.sort_unstable();
        rest = later;
    }
    values
}

/// Reads `FORMAT FILE` pairs, and prints the number of rows of each. An invalid row of the format ends it.
const JUDGE: &str = r#"
import json, sys
from aiperf.dataset.loader import models
from aiperf.dataset.loader.weka_trace_models import WekaTrace
known = {"mooncake": models.MooncakeTrace, "bailian": models.BailianTrace, "single_turn": models.SingleTurn,
    "multi_turn": models.MultiTurn, "weka": WekaTrace}
arguments = iter(sys.argv[1:])
rows = {}
for name, file in zip(arguments, arguments):
    rows[name] = [known[name].model_validate_json(line) for line in open(file)]
print(json.dumps({name: len(rows) for name, rows in rows.items()}))
"#;

#[test]
#[ignore = "needs AIPerf: tests/run --real"]
fn every_row_that_is_written_for_aiperf_is_one_by_its_own_models() {
    let folder = tempdir().unwrap();
    let python = tools::folder().join("venvs/aiperf/bin/python");
    // Sessions with ids of their own, and rows that are sessions by themselves.
    for (of, sessions, requests) in [("tests/data/traces/kv-cache-tester", 4, 17), (TRACE, 208, 208)] {
        let mut judge = Command::new(&python);
        judge.args(["-c", JUDGE]);
        for format in ["mooncake", "bailian", "single_turn", "multi_turn", "weka"] {
            let path = folder.path().join(format);
            trace(&["convert", of, "--to", format, "--output", path.to_str().unwrap()]);
            judge.arg(format).arg(path);
        }
        let output = judge.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
        let expected = json!({"mooncake": requests, "bailian": requests, "single_turn": requests,
            "multi_turn": requests, "weka": sessions});
        assert_eq!(rows, expected, "{of}");
    }
}

#[test]
#[ignore = "needs AIPerf: tests/run --real"]
fn aiperf_sends_exactly_the_requests_of_a_trace_that_was_converted_for_it() {
    let _turn = processes::exclusive_turn();
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let text = |name: &str| at(name).to_str().unwrap().to_owned();
    trace(&["cut", TRACE, "--to", "6s", "--output-format", "streamgauge", "--output", &text("cut.jsonl.zst")]);
    trace(&["convert", &text("cut.jsonl.zst"), "--to", "mooncake", "--output", &text("trace.jsonl")]);
    let source = rows(&at("cut.jsonl.zst"));
    assert_eq!(source.len(), 23);

    // Prompts cost nothing, so that answers do not pile up.
    let sim = tools::sim(&["--model=tiny", "--prefill-rate=10000000"]);
    let proxy = ProxyProcess::with(sim.addr, |command| {
        command.arg("--capture").arg(at("captured"));
    });
    tools::run("aiperf-trace", &[&format!("http://{}", proxy.addr), &text("aiperf"), &text("trace.jsonl")]);
    drop(proxy);

    let lengths = |row: &TraceEntry| (row.prompt.tokens.unwrap(), row.output_tokens.unwrap());
    let theirs = of_aiperf(&at("aiperf"));
    assert_eq!(theirs.len(), source.len());
    let planned = by_moment(&source, source.iter().map(lengths).collect());
    for (theirs, planned) in by_moment(&source, theirs).into_iter().zip(planned) {
        // AIPerf counts the tokens of its text anew, in which the seam of two blocks may become other tokens.
        let close = theirs.0.abs_diff(planned.0) * 10_000 <= planned.0;
        assert!(close && theirs.1 == planned.1, "AIPerf counts {theirs:?} of {planned:?}");
    }

    let got = rows(&at("captured"));
    assert_eq!(got.len(), source.len());
    let outputs = |rows: &[TraceEntry]| by_moment(&source, rows.iter().map(|row| row.output_tokens).collect());
    assert_eq!(outputs(&got), outputs(&source), "lengths as the proxy counted them");
    // The words of a longer prompt are more bytes: which request came when is seen in what was received.
    let bytes = |row: &TraceEntry| row.prompt.bytes.unwrap() as f64;
    let per_token = got.iter().map(bytes).sum::<f64>() / source.iter().map(|row| lengths(row).0 as f64).sum::<f64>();
    let mut worst = 0.0_f64;
    for (got_row, source_row) in got.iter().zip(&source) {
        // From the middle row, so that a late first one does not count for all.
        let offset = |rows: &[TraceEntry], row: &TraceEntry| (row.at as f64 - rows[rows.len() / 2].at as f64) / 1e6;
        worst = worst.max((offset(&got, got_row) - offset(&source, source_row)).abs());
    }
    eprintln!("{} requests, {per_token:.3} bytes per prompt token, arrivals at most {worst:.1} ms off", got.len());
    assert!(worst < TOLERANCE_MS, "arrivals are {worst} ms off");
    let in_order = |rows: &[TraceEntry], of: fn(&TraceEntry) -> u64| by_moment(&source, rows.iter().map(of).collect());
    let (sent, planned) =
        (in_order(&got, |row| row.prompt.bytes.unwrap()), in_order(&source, |row| row.prompt.tokens.unwrap()));
    for (sent, planned) in sent.into_iter().zip(planned) {
        // A word is a token, and some words are longer: of a short prompt that is much.
        let expected = planned as f64 * per_token;
        assert!((sent as f64 - expected).abs() < expected / 10.0 + 100.0, "{sent} bytes for {planned} tokens");
    }
}
