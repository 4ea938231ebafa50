//! Fidelity of a run to its plan: figures worked out by hand, and a whole replay.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use streamgauge::engine::{CostModel, EngineOptions};
use streamgauge::measure::record::{CountSource, Ending, Outcome};
use streamgauge::measure::time::Gap;
use streamgauge::measure::timeline::TokenEvent;
use streamgauge::sim::{SimOptions, SimServer};
use streamgauge::trace_file::gaps::pack;
use streamgauge::trace_file::header::{BlockIds, BlockScheme, BlockScope, BlockUnit, LastBlock, TraceHeader};
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::{PromptShape, RequestParams, RequestTargets, Timing, TraceEntry};
use streamgauge::trace_file::writer::TraceWriter;

const MS: u64 = 1_000_000;

fn header() -> TraceHeader {
    let blocks = BlockScheme {
        size: 16,
        unit: BlockUnit::Tokens,
        last: LastBlock::Dropped,
        ids: BlockIds::Chained,
        scope: BlockScope::Trace,
        key: None,
    };
    TraceHeader { started_unix_ns: Some(0), blocks: Some(blocks), ..TraceHeader::new("test") }
}

/// Writes rows whose blocks have 16 tokens each.
pub(super) fn write(path: &Path, rows: &[TraceEntry]) {
    let mut writer = TraceWriter::new(File::create(path).unwrap(), &header()).unwrap();
    rows.iter().for_each(|row| writer.write(row).unwrap());
    writer.finish().unwrap();
}

fn streamgauge(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_streamgauge")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn json_of(args: &[&str]) -> Value {
    let (code, stdout, stderr) = streamgauge(&[args, &["--json"]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

/// A success, planned and sent in ms: prompt tokens wanted and counted, output tokens wanted and counted, block ids.
fn row(planned: u64, sent: u64, input: (u64, u64), output: (u64, u64), blocks: &[u64]) -> TraceEntry {
    TraceEntry {
        at: sent * MS,
        planned: Some(planned * MS),
        stream: Some(true),
        status: Some(200),
        ending: Some(Ending::Complete),
        outcome: Some(Outcome::Success),
        prompt: PromptShape {
            tokens: Some(input.1),
            source: Some(CountSource::Usage),
            blocks: blocks.to_vec(),
            ..PromptShape::default()
        },
        output_tokens: Some(output.1),
        output_source: Some(CountSource::Usage),
        timing: Timing { first_token: Some(20 * MS), ended: Some(90 * MS), ..Timing::default() },
        in_flight: Some(0),
        wanted: RequestTargets {
            input_tokens: Some(input.0),
            output_tokens: Some(output.0),
            ..RequestTargets::default()
        },
        ..TraceEntry::default()
    }
}

/// Four requests of which everything can be worked out on paper.
fn four() -> Vec<TraceEntry> {
    let mut first = row(0, 10, (100, 100), (7, 7), &[1, 2, 3]);
    first.prompt.cached = Some(0);
    let mut second = row(1_000, 1_000, (100, 104), (10, 8), &[1, 2, 4]);
    second.prompt.cached = Some(32);
    (second.think, second.wanted.think) = (Some(510 * MS), Some(500 * MS));
    // Its client left a token late; its prompt has no count.
    let mut left = row(1_500, 2_100, (50, 77), (0, 6), &[1]);
    (left.outcome, left.ending, left.abort_tokens) = (Some(Outcome::Cancelled), Some(Ending::DownstreamGone), Some(6));
    (left.prompt.source, left.wanted.output_tokens, left.wanted.abort_tokens) = (None, None, Some(5));
    left.in_flight = Some(2);
    // Its client would have left after 300 ms, and had the whole answer before.
    let mut ended = row(2_000, 2_000, (60, 60), (4, 4), &[]);
    ended.wanted.abort_after = Some(300 * MS);
    vec![first, second, left, ended]
}

fn run(folder: &Path, rows: &[TraceEntry], run_file: &Value) -> String {
    fs::create_dir_all(folder).unwrap();
    write(&folder.join("records.jsonl.zst"), rows);
    fs::write(folder.join("run.json"), run_file.to_string()).unwrap();
    folder.to_str().unwrap().to_owned()
}

fn near(value: &Value, expected: f64) {
    assert!((value.as_f64().unwrap() - expected).abs() < 1e-6, "{value}, expected {expected}");
}

#[test]
fn every_figure_is_that_of_the_plan_and_the_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(&folder.path().join("run"), &four(), &json!({}));
    let report = json_of(&["report", &path]);
    let fidelity = &report["fidelity"];
    // Late by 10, 0, 600 and 0 ms.
    let error = &fidelity["arrival_error"];
    assert_eq!((&error["count"], &error["unit"]), (&json!(4), &json!("ms")));
    for (stat, expected) in [("p50", 5.0), ("p90", 10.0 + 0.7 * 590.0), ("max", 600.0), ("avg", 152.5)] {
        near(&error[stat], expected);
    }
    // Planned in the seconds 0, 1, 1 and 2; the third was sent in the next one.
    let rate = &fidelity["rate"];
    assert_eq!((&rate["planned"], &rate["sent"], &rate["window_s"]), (&json!([1, 2, 1]), &json!([1, 1, 2]), &json!(1)));
    near(&rate["displaced_share"], 0.25);
    near(&rate["planned_per_second"], 3.0 / 2.0);
    near(&rate["sent_per_second"], 3.0 / 2.09);
    assert_eq!((&report["in_flight"]["max"], &report["in_flight"]["mean"]), (&json!(3), &json!(1.5)));
    // (100, 100), (100, 104), (60, 60): up to 100 all of those wanted, and two of three that came.
    let third = 1.0 / 3.0;
    let isl = [("exact_share", 2.0 * third), ("mean_error", 4.0 * third), ("mean_absolute_error", 4.0 * third)];
    assert_eq!((&fidelity["isl"]["compared"], &fidelity["osl"]["compared"]), (&json!(3), &json!(3)));
    isl.iter().for_each(|(key, expected)| near(&fidelity["isl"][key], *expected));
    near(&fidelity["isl"]["ks"], third);
    // (7, 7), (10, 8), (4, 4): the one that left was never to end.
    near(&fidelity["osl"]["mean_error"], -2.0 * third);
    near(&fidelity["osl"]["ks"], third);
    // Blocks 1 and 2 again, and 1 once more, of 310 planned tokens; the server reports cached tokens of two prompts.
    let prefix = &fidelity["prefix"];
    assert_eq!((&prefix["blocks"], &prefix["repeated_blocks"]), (&json!(7), &json!(3)));
    near(&prefix["offered_share"], 48.0 / 310.0);
    near(&prefix["cached_share"], 32.0 / 204.0);
    assert_eq!(prefix["cached_tokens"], 32);
    near(&fidelity["think"]["planned"]["mean_ms"], 500.0);
    near(&fidelity["think"]["achieved"]["mean_ms"], 510.0);
    let aborts = &fidelity["aborts"];
    assert_eq!((&aborts["planned"], &aborts["done"]), (&json!(2), &json!(1)));
    assert_eq!((&aborts["tokens"]["compared"], &aborts["tokens"]["mean_error"]), (&json!(1), &json!(1.0)));
}

#[test]
fn every_format_shows_how_true_a_run_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(&folder.path().join("run"), &four(), &json!({}));
    let shown = |args: &[&str]| streamgauge(&[&["report", &path], args].concat()).1;
    let text = shown(&[]);
    for line in [
        "arrivals     later than planned by p50 5.00ms, p90 423ms, p99 582ms, p99.9 598ms, at most 600ms",
        "rate         1.50 requests/s planned, 1.44 sent; 25.0 % of requests in another window of 1 s",
        "in flight    1.5 on average, 3 at most",
        "ISL          66.7 % exact of 3, off by +1.33 on average, by 1.33 either way; KS distance 0.3333",
        "prefixes     15.5 % of prompt tokens sent before, in 3 of 7 blocks; 15.7 % from the server's cache",
        "think time   p50 500ms, p90 500ms, at most 500ms planned; p50 510ms, p90 510ms, at most 510ms achieved, of 1",
        "aborts       2 planned, 1 done; tokens 0.0 % exact of 1, off by +1.00 on average, by 1.00 either way; KS \
         distance 1.0000",
        "             planned  ▄█▄",
        "             sent     ▄▄█",
    ] {
        assert!(text.lines().any(|printed| printed == line), "{line}\n{text}");
    }
    assert!(shown(&["--plain"]).is_ascii());
    let csv = shown(&["--csv"]);
    for line in [
        "fidelity,arrival_error,ms,max,600",
        "fidelity,rate,1,displaced_share,0.25",
        "fidelity,osl,values,compared,3",
        "fidelity,think,ms,achieved avg,510",
        "fidelity,aborts,requests,done,1",
    ] {
        assert!(csv.lines().any(|printed| printed == line), "{line}\n{csv}");
    }
    assert!(csv.lines().all(|line| line.split(',').count() == 5), "{csv}");
    assert!(shown(&["--markdown"]).contains("- **aborts** 2 planned, 1 done; "));
    let html = shown(&["--html"]);
    assert!(html.contains("<dt>aborts</dt><dd>2 planned, 1 done; ") && html.contains("planned</th>"), "{html}");
}

#[test]
fn what_had_no_plan_has_no_fidelity_and_a_closed_loop_none_of_its_arrivals() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("a.jsonl.zst");
    let rows: Vec<TraceEntry> = four().into_iter().map(|row| TraceEntry { planned: None, ..row }).collect();
    write(&capture, &rows);
    assert_eq!(json_of(&["report", capture.to_str().unwrap()])["fidelity"], Value::Null);
    let closed = run(&folder.path().join("run"), &four(), &json!({"closed_loop": true}));
    let fidelity = &json_of(&["report", &closed])["fidelity"];
    assert_eq!((&fidelity["arrival_error"], &fidelity["rate"]), (&Value::Null, &Value::Null));
    assert_eq!(fidelity["isl"]["compared"], 3);
}

#[test]
fn fidelity_shows_production_next_to_its_replay() {
    let folder = tempfile::tempdir().unwrap();
    let run_file = json!({"trace_window": {"from": 5_000 * MS, "to": 7_000 * MS}, "trace_digest": "blake3:00"});
    let path = run(&folder.path().join("run"), &four(), &run_file);
    let source = folder.path().join("capture.jsonl.zst");
    let produced = |at: u64, ttft: u64| {
        let mut row = row(0, at, (10, 10), (3, 3), &[]);
        (row.planned, row.wanted, row.in_flight) = (None, RequestTargets::default(), Some(4));
        row.timing.first_token = Some(ttft * MS);
        row.timing.gaps = Some(pack(&[TokenEvent::new(Gap::from_millis(30), Some(1))]));
        row
    };
    // The first came before the part that was sent, the last after it.
    write(&source, &[produced(4_999, 1), produced(5_000, 50), produced(6_999, 70), produced(7_000, 1_000)]);
    let args = ["report", &path, "--source", source.to_str().unwrap()];
    let production = &json_of(&args)["production"];
    assert_eq!((&production["requests"], &production["in_flight"]["max"]), (&json!(2), &json!(5)));
    let ttft = &production["metrics"]["ttft"];
    assert_eq!((&ttft["count"], &ttft["min"], &ttft["max"]), (&json!(2), &json!(50.0), &json!(70.0)));
    near(&production["metrics"]["itl"]["avg"], 30.0);
    let (_, text, stderr) = streamgauge(&[&args[..], &["--percentiles", "50"]].concat());
    let cells = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line[name.len()..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(cells("TTFT, production")[..4], ["2", "60.0ms", "50.0ms", "60.0ms"]);
    // From planned: 30, 20 and 20 ms.
    assert_eq!(cells("TTFT from planned")[..4], ["3", "23.3ms", "20.0ms", "20.0ms"]);
    assert!(
        text.contains("in flight    1.5 on average, 3 at most; in production 5.0 on average, 5 at most\n"),
        "{text}"
    );
    assert!(stderr.contains("is not the trace that was sent"), "{stderr}");
    let (code, _, stderr) = streamgauge(&["report", &path, "--source", "/nowhere"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("/nowhere"), "{stderr}");
}

/// A trace of sessions, clients that leave, and prompts that begin alike.
fn trace() -> Vec<TraceEntry> {
    let sent = |at: u64, blocks: &[u64]| {
        let mut row = row(0, at, (0, 48), (0, 6), blocks);
        (row.planned, row.wanted, row.in_flight) = (None, RequestTargets::default(), Some(1));
        row
    };
    let turn = |at, turn: u32, blocks: &[u64]| TraceEntry {
        session: Some("s".to_owned()),
        turn: Some(turn),
        think: (turn > 0).then_some(60 * MS),
        ..sent(at, blocks)
    };
    let left = TraceEntry {
        ending: Some(Ending::DownstreamGone),
        outcome: Some(Outcome::Cancelled),
        abort_tokens: Some(4),
        output_tokens: Some(4),
        params: RequestParams { max_tokens: Some(200), ..RequestParams::default() },
        ..sent(150, &[7, 8, 9])
    };
    vec![turn(0, 0, &[1, 2, 3]), turn(60, 1, &[1, 2, 4]), turn(120, 2, &[1, 2, 4]), left, sent(300, &[])]
}

#[test]
fn a_replay_reports_its_fidelity() {
    let cost = CostModel { prefill_per_second: 50_000_000, step_base: Gap::from_millis(10), ..CostModel::default() };
    let engine = EngineOptions { cost, ..EngineOptions::default() };
    let options = SimOptions { engine, ..SimOptions::default() };
    let server = SimServer::bind(options, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().spawn().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("trace.jsonl.zst"), folder.path().join("run"));
    write(&source, &trace());
    let (source, out_text) = (source.to_str().unwrap(), out.to_str().unwrap());
    let target = format!("http://{}", server.local_addr());
    let flags = ["--speed", "0.5", "--max-lag", "1h", "--no-audit", "--out", out_text];
    let (code, stdout, stderr) = streamgauge(&[&["replay", source, "--target", &target][..], &flags].concat());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stdout.contains("\naborts       1 planned, 1 done; ") && stdout.contains("\nTTFT, production "),
        "{stdout}"
    );
    let report = json_of(&["report", out_text, "--source", source]);
    assert_eq!(report["outcomes"], json!({"success": 4, "cancelled": 1}));
    let fidelity = &report["fidelity"];
    assert_eq!((&fidelity["arrival_error"]["count"], &report["in_flight"]["seconds"].is_number()), (&json!(5), &true));
    // The one who left is counted by no usage.
    let exact = json!({"compared": 4, "exact_share": 1.0, "mean_error": 0.0, "mean_absolute_error": 0.0, "ks": 0.0});
    assert_eq!((&fidelity["isl"], &fidelity["osl"]), (&exact, &exact));
    // Of 240 tokens two blocks and then three were sent before, and the server had them.
    let prefix = &fidelity["prefix"];
    assert_eq!((&prefix["blocks"], &prefix["repeated_blocks"]), (&json!(12), &json!(5)));
    near(&prefix["offered_share"], 80.0 / 240.0);
    assert!((64..=80).contains(&prefix["cached_tokens"].as_u64().unwrap()), "{prefix}");
    // At half the speed pauses are twice as long, and none is shorter.
    let think = &fidelity["think"];
    assert_eq!(think["planned"]["count"], 2);
    near(&think["planned"]["mean_ms"], 120.0);
    assert!(think["achieved"]["mean_ms"].as_f64().unwrap() >= 120.0, "{think}");
    let aborts = &fidelity["aborts"];
    assert_eq!((&aborts["planned"], &aborts["done"], &aborts["tokens"]["compared"]), (&json!(1), &json!(1), &json!(1)));
    assert!((0.0..100.0).contains(&aborts["tokens"]["mean_error"].as_f64().unwrap()), "{aborts}");
    assert_eq!((&report["production"]["requests"], &report["production"]["in_flight"]["max"]), (&json!(5), &json!(2)));
    assert_eq!(report["production"]["metrics"]["ttft"]["max"], 20.0);
    let run_file: Value = serde_json::from_slice(&fs::read(out.join("run.json")).unwrap()).unwrap();
    for key in ["fidelity", "production", "in_flight"] {
        assert_eq!(run_file["summary"][key], report[key], "the run says of itself what its report says");
    }
    let rows: Vec<TraceEntry> =
        TraceReader::open(&out.join("records.jsonl.zst")).unwrap().map(Result::unwrap).collect();
    let turns = rows.iter().filter(|row| row.turn > Some(0));
    assert!(turns.clone().count() == 2 && turns.clone().all(|row| row.think >= row.wanted.think), "{rows:?}");
    let left = rows.iter().find(|row| row.ending == Some(Ending::DownstreamGone)).unwrap();
    assert_eq!(
        (left.params.max_tokens, left.wanted.abort_tokens, left.wanted.output_tokens),
        (Some(200), Some(4), None)
    );
}

#[test]
fn passes_over_a_trace_share_no_prefix_and_timed_turns_have_their_pauses_too() {
    let server =
        SimServer::bind(SimOptions::default(), SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().spawn().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("trace.jsonl.zst"), folder.path().join("run"));
    let turn = |at, turn, blocks: &[u64]| {
        let wanted = RequestTargets::default();
        let session = Some("s".to_owned());
        TraceEntry { planned: None, session, turn: Some(turn), wanted, ..row(0, at, (0, 32), (0, 1), blocks) }
    };
    write(&source, &[turn(0, 0, &[1, 2]), turn(600, 1, &[1, 2])]);
    let target = format!("http://{}", server.local_addr());
    let flags = ["--sessions", "timed", "--loop", "--duration", "2s", "--max-lag", "1h", "--no-audit"];
    let out_text = out.to_str().unwrap();
    let args = ["replay", source.to_str().unwrap(), "--target", &target, "--out", out_text];
    let (code, _, stderr) = streamgauge(&[&args[..], &flags].concat());
    assert_eq!(code, Some(0), "{stderr}");
    // Two passes of two: each repeats its own two blocks.
    let prefix = &json_of(&["report", out_text])["fidelity"]["prefix"];
    assert_eq!((&prefix["blocks"], &prefix["repeated_blocks"]), (&json!(8), &json!(4)));
    let rows: Vec<TraceEntry> =
        TraceReader::open(&out.join("records.jsonl.zst")).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.iter().filter(|row| row.think.is_some()).count(), 2, "{rows:?}");
}
