//! Sessions whose later rows hold only the added text, as AIPerf reads them: counted, converted and sent as whole
//! prompts.

use std::net::SocketAddr;
use std::process::{Command, Output};

use serde_json::{Value, json};
use streamgauge::sim::{SimOptions, SimServer};
use tempfile::TempDir;

const SESSIONS: u64 = 6;
const TURNS: u64 = 4;

fn streamgauge(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_streamgauge")).args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Sessions of 96 tokens that all share 64 of them, and three turns that add 48 each, after answers of 32.
fn delta(folder: &TempDir) -> String {
    let mut text = String::new();
    for session in 0..SESSIONS {
        for turn in 0..TURNS {
            let own = 1_000 + 100 * session + 10 * turn;
            let mut row = json!({"session_id": format!("s{session}"), "output_length": 32});
            if turn == 0 {
                row["timestamp"] = json!(session * 100);
                (row["input_length"], row["hash_ids"]) = (json!(96), json!([1, 2, 3, 4, own, own + 1]));
            } else {
                row["delay"] = json!(10);
                (row["input_length"], row["hash_ids"]) = (json!(48), json!([own, own + 1, own + 2]));
            }
            text += &format!("{row}\n");
        }
    }
    let path = folder.path().join("delta.jsonl");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Prompt tokens of all: 96, and 80 more with each turn.
const TOKENS: u64 = SESSIONS * (96 + 176 + 256 + 336);
/// Those that were sent before: 64 of each first prompt but one, and of each later turn the prompt before it.
const REUSED: u64 = (SESSIONS - 1) * 64 + SESSIONS * (96 + 176 + 256);

#[test]
fn info_counts_whole_prompts_and_what_they_share() {
    let folder = TempDir::new().unwrap();
    let done = streamgauge(&["trace", "info", &delta(&folder), "--block-size", "16", "--json"]);
    let info: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(info["input"]["sum"], TOKENS);
    let share = info["reuse"][0]["token_share"].as_f64().unwrap();
    assert!((share - REUSED as f64 / TOKENS as f64).abs() < 1e-9, "{share}");
    assert_eq!(info["warnings"], json!([]));
    assert!(stderr(&done).contains("note: prompts are made whole"), "{}", stderr(&done));
}

#[test]
fn convert_writes_whole_prompts_on_request() {
    let folder = TempDir::new().unwrap();
    let path = delta(&folder);
    for format in ["azure", "dynamo", "single_turn", "streamgauge"] {
        let out = folder.path().join(format).to_str().unwrap().to_owned();
        let done = streamgauge(&["trace", "convert", &path, "--whole-turns", "--to", format, "-o", &out]);
        assert!(done.status.success(), "{format}: {}", stderr(&done));
        let info = streamgauge(&["trace", "info", &out, "--json"]);
        let info: Value = serde_json::from_slice(&info.stdout).unwrap();
        assert_eq!((&info["input"]["sum"], &info["requests"]), (&json!(TOKENS), &json!(SESSIONS * TURNS)), "{format}");
    }
    let refused = streamgauge(&["trace", "convert", &path, "--to", "single_turn"]);
    assert!(stderr(&refused).contains("make them whole with --whole-turns"), "{}", stderr(&refused));
}

#[test]
fn what_is_made_whole_and_written_for_aiperf_adds_what_it_added_before() {
    let folder = TempDir::new().unwrap();
    let path = delta(&folder);
    let out = folder.path().join("multi").to_str().unwrap().to_owned();
    let done = streamgauge(&["trace", "convert", &path, "--whole-turns", "--to", "multi_turn", "-o", &out]);
    assert!(done.status.success(), "{}", stderr(&done));
    let text = std::fs::read_to_string(&out).unwrap();
    let words: Vec<usize> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["turns"][0]["text"].as_str().unwrap().len() / 4)
        .collect();
    assert_eq!(words, [96, 48, 48, 48].repeat(SESSIONS as usize));
}

#[test]
fn replay_sends_whole_prompts_live_and_at_the_times_of_the_trace() {
    let folder = TempDir::new().unwrap();
    let path = delta(&folder);
    for sessions in ["live", "timed"] {
        let server =
            SimServer::bind(SimOptions::default(), SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().spawn().unwrap();
        let target = format!("http://{}", server.local_addr());
        let done = streamgauge(&[
            "replay",
            &path,
            "--json",
            "--no-audit",
            "--prompt-overhead=0",
            "--max-lag=1h",
            "--dialect=openai.completions",
            "--target",
            &target,
            "--sessions",
            sessions,
        ]);
        assert!(done.status.success(), "{}", stderr(&done));
        let run: Value = serde_json::from_slice(&done.stdout).unwrap();
        let summary = &run["summary"];
        assert_eq!(summary["outcomes"], json!({"success": SESSIONS * TURNS}), "{sessions}");
        let sent = summary["tokens"]["input"].as_u64().unwrap();
        assert!(sent.abs_diff(TOKENS) * 20 < TOKENS, "{sessions}: {sent} of {TOKENS}");
        if sessions == "live" {
            let cached = summary["tokens"]["cached"].as_u64().unwrap();
            assert!(cached * 10 > REUSED * 8, "{cached} of {REUSED}");
        }
        assert!(stderr(&done).contains("note: prompts are made whole"), "{}", stderr(&done));
    }
}
