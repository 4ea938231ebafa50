//! Sessions and jobs of a report, in every format. `src/report/sessions` computes the figures by hand.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use streamgauge::measure::record::{CountSource, Outcome};
use streamgauge::trace_file::header::TraceHeader;
use streamgauge::trace_file::row::{PromptShape, Timing, TraceEntry};
use streamgauge::trace_file::writer::TraceWriter;

const MS: u64 = 1_000_000;

/// A success from `at` to `ended` in ms, with its TTFT, prompt tokens and cached ones.
fn row(session: &str, turn: u32, [at, ended]: [u64; 2], [ttft, input, cached]: [u64; 3]) -> TraceEntry {
    let prompt = PromptShape {
        tokens: Some(input),
        source: Some(CountSource::Usage),
        cached: Some(cached),
        ..PromptShape::default()
    };
    TraceEntry {
        at: at * MS,
        stream: Some(true),
        session: Some(session.to_owned()),
        turn: Some(turn),
        status: Some(200),
        outcome: Some(Outcome::Success),
        prompt,
        timing: Timing { first_token: Some(ttft * MS), ended: Some((ended - at) * MS), ..Timing::default() },
        ..TraceEntry::default()
    }
}

/// A lead whose helper works in its pause, and a session by itself.
fn rows() -> Vec<TraceEntry> {
    let helper = |turn, times, figures| TraceEntry {
        parent: Some("aaaaaaaaaaaaaaaa".to_owned()),
        ..row("bbbbbbbbbbbbbbbb", turn, times, figures)
    };
    vec![
        row("aaaaaaaaaaaaaaaa", 0, [0, 1_000], [50, 1_000, 0]),
        helper(0, [1_200, 1_800], [60, 500, 400]),
        helper(1, [2_000, 2_600], [300, 700, 500]),
        row("aaaaaaaaaaaaaaaa", 1, [3_000, 3_500], [80, 2_000, 1_500]),
        row("cccccccccccccccc", 0, [100, 600], [90, 100, 50]),
    ]
}

fn report(rows: &[TraceEntry], args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl.zst");
    write(&path, rows);
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    let output = command.arg("report").arg(&path).args(["--slo", "fast: ttft<=100ms"]).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn write(path: &Path, rows: &[TraceEntry]) {
    let mut writer = TraceWriter::new(File::create(path).unwrap(), &TraceHeader::new("streamgauge of a test")).unwrap();
    rows.iter().for_each(|row| writer.write(row).unwrap());
    writer.finish().unwrap();
}

#[test]
fn the_text_states_turns_times_cache_goodput_and_sub_agents() {
    let text = report(&rows(), &["--plain"]);
    for expected in [
        "sessions: turns, model time and tool time",
        "sessions     3 sessions with 5 requests",
        // 3.2 s of model time, and 2.0 + 0.2 s of tool time.
        "time         59.3 % in the model, 40.7 % in tools and pauses",
        "cache        28.1 % of the prompt tokens of first turns, 74.1 % of later turns",
        "goodput      fast: 2 of 3 sessions met it in every turn (66.7 %)",
        "sub-agents   1 sub-agent in 1 job, at most 1 in one; 44.4 % of the jobs' model time",
        "             parents: 1 named by the row",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let cells = |name: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {text}"));
        line[name.len()..].split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(cells("session: turns"), ["3", "1.7", "2", "2", "-", "2"]);
    assert_eq!(cells("session: tool time")[0..2], ["3", "733ms"]);
    assert_eq!(cells("session: time to last turn").last().unwrap(), "3.50s");
    // Neither the lead nor the helper was in the model for 0.8 s.
    assert_eq!(cells("job: tool time")[0..2], ["1", "800ms"]);
    assert_eq!(cells("job: time to last turn").last().unwrap(), "3.50s");
    assert_eq!(cells("1  "), ["2", "2,700", "74.1", "%", "190ms"]);
}

#[test]
fn every_format_has_the_sessions() {
    let json: Value = serde_json::from_str(&report(&rows(), &["--json"])).unwrap();
    let sessions = &json["sessions"];
    assert_eq!((&sessions["sessions"], &sessions["requests"]), (&json!(3), &json!(5)));
    assert_eq!(sessions["goodput"][0], json!({"slo": "fast", "met": 2, "counted": 3, "share": 2.0 / 3.0}));
    assert_eq!(
        sessions["by_turn"][0],
        json!({"turn": "0", "requests": 3, "input_tokens": 1_600, "cached_tokens": 450, "cached_share": 450.0 / 1_600.0,
            "ttft_p50_ms": 60.0})
    );
    assert_eq!((&sessions["agents"]["jobs"], &sessions["agents"]["by_row"]), (&json!(1), &json!(1)));
    let csv = report(&rows(), &["--csv"]);
    for line in
        ["sessions,sessions,sessions,count,3", "sessions,turns,requests,max,2", "sessions,turn 1,requests,count,2"]
    {
        assert!(csv.lines().any(|of| of == line), "{line} in {csv}");
    }
    let markdown = report(&rows(), &["--markdown"]);
    assert!(markdown.contains("- **sub-agents** 1 sub-agent in 1 job") && markdown.contains("| job: tool time |"));
    let html = report(&rows(), &["--html"]);
    assert!(html.contains("<h2>Sessions: turns, model time and tool time</h2>") && html.contains("job: tool time"));
}

#[test]
fn a_sub_agent_without_a_header_is_found_by_its_prompt() {
    let mut rows = rows();
    rows.iter_mut().for_each(|row| row.parent = None);
    let blocks = [&[1, 2][..], &[1, 2, 3, 4, 7], &[1, 2, 3, 4, 7, 8], &[1, 2, 3, 4], &[1, 9]];
    // The helper begins with the lead's second turn, so it comes after it.
    rows.swap(1, 3);
    rows.swap(2, 3);
    for (row, blocks) in rows.iter_mut().zip([blocks[0], blocks[3], blocks[1], blocks[2], blocks[4]]) {
        row.prompt.blocks = blocks.to_vec();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    let header = json!({"streamgauge_trace": 1, "source": "streamgauge of a test", "blocks": {
        "size": 512, "unit": "tokens", "last": "kept", "ids": "chained", "scope": "trace"}});
    let lines = rows.iter().map(|row| serde_json::to_string(row).unwrap());
    std::fs::write(&path, [header.to_string()].into_iter().chain(lines).collect::<Vec<_>>().join("\n")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    let output = command.arg("report").arg(&path).arg("--json").output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let agents = &json["sessions"]["agents"];
    let counts = ["sub_agents", "by_row", "by_prompt", "jobs"].map(|key| agents[key].as_u64().unwrap());
    assert_eq!(counts, [1, 0, 1, 1], "{agents}");
}

#[test]
fn a_report_of_requests_without_later_turns_has_no_sessions() {
    let rows: Vec<_> = rows().into_iter().filter(|row| row.turn == Some(0)).collect();
    let rows: Vec<_> = rows.into_iter().map(|row| TraceEntry { parent: None, ..row }).collect();
    assert!(!report(&rows, &[]).contains("sessions: turns"));
    let json: Value = serde_json::from_str(&report(&rows, &["--json"])).unwrap();
    assert_eq!(json["sessions"], Value::Null);
}
