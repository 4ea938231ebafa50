//! Whole public traces against the simulated server: every send time, length, shared prefix and pause is exact.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use streamgauge::engine::{CostModel, EngineOptions};
use streamgauge::measure::time::Gap;
use streamgauge::replay::plan::trace_source;
use streamgauge::sim::{RunningServer, SimOptions, SimServer};
use streamgauge::trace::format::{self, detect};
use streamgauge::trace::info::info;
use streamgauge::trace::input::InputSource;
use streamgauge::trace_file::header::TraceHeader;
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::TraceEntry;

/// Tokens of a block of the simulated server's cache.
const CACHE_BLOCK: u64 = 16;

/// The trace and its replay.
struct Replayed {
    /// The trace, in order of time.
    trace: Vec<TraceEntry>,
    /// The result, in the order of its plan.
    rows: Vec<TraceEntry>,
    summary: Value,
    /// Tokens that an endless cache would have had.
    reusable: u64,
}

/// A server whose cache never forgets.
fn server() -> RunningServer {
    let cost = CostModel {
        prefill_per_second: 500_000_000,
        step_base: Gap::from_millis(1),
        step_per_seq: Gap::ZERO,
        ..CostModel::default()
    };
    let engine = EngineOptions {
        cost,
        max_batched_tokens: 1 << 20,
        kv_blocks: 1 << 20,
        max_num_seqs: 1_024,
        ..EngineOptions::default()
    };
    let options = SimOptions { engine, ..SimOptions::default() };
    SimServer::bind(options, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().spawn().unwrap()
}

/// Sends a trace of tests/data/traces that many times as fast.
fn replayed(name: &str, speed: u32) -> Replayed {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (format!("tests/data/traces/{name}"), folder.path().join("run"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(["replay", &path, "--json", "--no-audit", "--models=*=sim", "--max-lag=1h"]);
    // Without a chat template a prompt may be as short as the shortest of Azure's.
    command.args(["--dialect=openai.completions", "--prompt-overhead=0"]);
    command.arg(format!("--speed={speed}")).arg(format!("--target=http://{}", server.local_addr()));
    command.arg("--out").arg(&out).current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    let mut rows: Vec<TraceEntry> =
        TraceReader::open(&out.join("records.jsonl.zst")).unwrap().map(Result::unwrap).collect();
    rows.sort_by_key(|row| row.planned);
    let opened = || {
        let source = InputSource::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(&path)).unwrap();
        (detect(&source).unwrap().read.unwrap())(source, &format::ReadOptions::default()).unwrap()
    };
    let mut trace: Vec<TraceEntry> = opened().entries.map(Result::unwrap).collect();
    trace.sort_by_key(|row| row.at);
    let size = opened().header.blocks.map_or(0, |blocks| u64::from(blocks.size));
    let reusable = info(&mut opened(), None).unwrap().reuse.first().map_or(0, |cache| cache.hit_blocks * size);
    Replayed { trace, rows, summary: report["summary"].clone(), reusable }
}

impl Replayed {
    /// Fails unless every request was answered, as long in and out as in the trace, and shared what it shares there.
    fn assert_whole(&self) {
        let (summary, requests) = (&self.summary, self.trace.len() as u64);
        self.assert_answered();
        let sum = |of: fn(&TraceEntry) -> Option<u64>| self.trace.iter().filter_map(of).sum::<u64>();
        let (tokens, fidelity) = (&summary["tokens"], &summary["fidelity"]);
        assert_eq!(tokens["input"], sum(|row| row.prompt.tokens));
        assert_eq!(tokens["output"], sum(|row| row.output_tokens));
        for length in ["isl", "osl"] {
            let of = &fidelity[length];
            assert_eq!((&of["compared"], &of["exact_share"]), (&json!(requests), &json!(1.0)), "{length}");
        }
        let cached = tokens["cached"].as_u64().unwrap();
        let least = self.reusable.saturating_sub(requests * CACHE_BLOCK);
        assert!((least..=self.reusable).contains(&cached), "{cached} of {} came from the cache", self.reusable);
    }

    /// Fails unless every request was answered.
    fn assert_answered(&self) {
        let requests = self.trace.len();
        assert_eq!(self.rows.len(), requests);
        assert_eq!(self.summary["outcomes"], json!({"success": requests}), "{}", self.summary);
    }

    /// Fails unless every request was planned for its own moment, that many times as early.
    fn assert_planned(&self, speed: u64) {
        let first = self.trace[0].at;
        let expected: Vec<u64> = self.trace.iter().map(|row| (row.at - first) / speed).collect();
        let planned: Vec<u64> = self.rows.iter().filter_map(|row| row.planned).collect();
        let off = expected.iter().zip(&planned).map(|(expected, planned)| expected.abs_diff(*planned)).max();
        assert_eq!(planned.len(), expected.len());
        assert!(off <= Some(1), "{off:?} ns, more than rounding");
    }
}

#[test]
fn mooncakes_first_five_minutes_are_replayed_fifteen_times_as_fast() {
    let replayed = replayed("mooncake/conversation_first300s.jsonl", 15);
    assert_eq!(replayed.trace.len(), 918);
    replayed.assert_whole();
    replayed.assert_planned(15);
}

#[test]
fn azures_first_five_minutes_are_replayed_fifteen_times_as_fast() {
    let replayed = replayed("azure/conv2023_first300s.csv", 15);
    assert_eq!(replayed.trace.len(), 1_445);
    replayed.assert_whole();
    replayed.assert_planned(15);
}

#[test]
fn an_agents_session_is_replayed_with_its_pauses() {
    const SPEED: u64 = 20;
    let replayed = replayed("kv-cache-tester/trace_0057.json", 20);
    replayed.assert_answered();
    // Prompts contain the server's real answers, which it counts by its own rule.
    assert_eq!(replayed.summary["fidelity"]["osl"]["exact_share"], 1.0);
    let got = replayed.summary["tokens"]["input"].as_f64().unwrap();
    let expected = replayed.trace.iter().filter_map(|row| row.prompt.tokens).sum::<u64>() as f64;
    assert!((got / expected - 1.0).abs() < 0.01, "{got} tokens of {expected}");
    let seconds: Vec<u64> =
        replayed.trace.iter().filter_map(|row| row.think).map(|think| think / 1_000_000_000).collect();
    assert_eq!(seconds[seconds.len() - 7..], [5, 13, 5, 9, 4, 29, 5]);
    for (pair, seconds) in replayed.rows.windows(2).zip(&seconds[seconds.len() - 7..]) {
        // The answer that this turn waited for is the replay's, not the trace's.
        let ended = pair[0].at + pair[0].timing.ended.unwrap();
        assert_eq!(pair[1].planned, Some(ended + seconds * 1_000_000_000 / SPEED));
        assert!(pair[1].prompt.cached > Some(pair[0].prompt.tokens.unwrap() * 9 / 10), "the history is in the cache");
    }
}

/// Rows of our own format, in this order, at these times in milliseconds.
fn captured(times: &[u64]) -> tempfile::NamedTempFile {
    let mut lines = serde_json::to_string(&TraceHeader::new("test")).unwrap() + "\n";
    for at in times {
        let row = TraceEntry { at: at * 1_000_000, output_tokens: Some(1), ..TraceEntry::default() };
        lines += &(serde_json::to_string(&row).unwrap() + "\n");
    }
    let file = tempfile::Builder::new().suffix(".jsonl").tempfile().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    file
}

#[test]
fn rows_are_sent_in_the_order_of_their_times_whatever_the_order_of_the_file() {
    let file = captured(&[700, 30, 500, 20]);
    let opened = trace_source::open(file.path(), trace_source::TraceReadOptions::default()).unwrap();
    let times: Vec<u64> = opened.rows.map(|row| row.unwrap().at / 1_000_000).collect();
    assert_eq!(times, [20, 30, 500, 700]);
}

#[test]
fn the_first_row_is_not_waited_for_unless_the_trace_is_to_begin_elsewhere() {
    const DAY: u64 = 86_400_000;
    let file = captured(&[DAY + 40, DAY]);
    let planned = |more: &[&str]| {
        let server = server();
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
        command.arg("replay").arg(file.path()).args(["--no-audit", "--prompt-overhead=0", "--max-lag=1h"]).args(more);
        command.arg(format!("--target=http://{}", server.local_addr())).arg("--out").arg(&out);
        assert!(command.output().unwrap().status.success());
        let rows = TraceReader::open(&out.join("records.jsonl.zst")).unwrap();
        let mut planned: Vec<u64> = rows.filter_map(|row| row.unwrap().planned).collect();
        planned.sort_unstable();
        planned
    };
    assert_eq!(planned(&[]), [0, 40_000_000]);
    assert_eq!(planned(&["--from=86399.99s"]), [10_000_000, 50_000_000]);
}

#[test]
fn sessions_without_a_common_clock_are_warned_of_and_can_begin_apart() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/traces/kv-cache-tester");
    let begins = |starts: Option<&str>| {
        let sessions_at = starts.map(|starts| (starts.parse().unwrap(), 3));
        let opened = trace_source::open(
            &path,
            trace_source::TraceReadOptions { session_starts: sessions_at, ..trace_source::TraceReadOptions::default() },
        )
        .unwrap();
        let rows: Vec<TraceEntry> = opened.rows.map(Result::unwrap).collect();
        assert!(rows.is_sorted_by_key(|row| row.at), "rows are in the order of their new times");
        assert_eq!(rows.len(), 17);
        rows.into_iter().filter(|row| row.turn == Some(0)).map(|row| row.at).collect::<Vec<u64>>()
    };
    assert_eq!(begins(None), [0; 4]);
    let apart = begins(Some("poisson:0.1"));
    assert!(apart.windows(2).all(|pair| pair[0] < pair[1]), "{apart:?}");
    let one = begins(Some("concurrency:1"));
    assert!(one[0] == 0 && one.windows(2).all(|pair| pair[0] + 10_000_000_000 < pair[1]), "{one:?}");
    let server = server();
    let warned = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
        command.arg("replay").arg(&path).args(["--no-audit", "--prompt-overhead=0", "--max-lag=1h"]);
        command.args(["--models=*=sim", "--duration=100ms"]).args(more);
        let done = command.arg(format!("--target=http://{}", server.local_addr())).output().unwrap();
        let stderr = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success(), "{stderr}");
        stderr.contains(
            "warning: 4 of 4 sessions begin at the same moment, as if they had no common clock; --sessions-at",
        )
    };
    assert_eq!([warned(&[]), warned(&["--sessions-at=poisson:1"])], [true, false]);
}
