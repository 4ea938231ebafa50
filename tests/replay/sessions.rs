//! A live session repeats the server's real answers in later turns; no file and no output contains them.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use streamgauge::trace_file::header::TraceHeader;
use streamgauge::trace_file::row::{PromptShape, TraceEntry};

use crate::support::sending::{CommandOutput, rows, run, run_json};
use crate::support::upstream::Upstream;

/// A word of every answer, and of no prompt of ours.
const CANARY: &str = "zebra";
/// Tokens that the server adds to every message.
const ROLE: u64 = 4;

/// A server whose words are tokens, and the bodies of its requests. An answer is two words, of which one is a number.
fn server(answers: impl Fn(usize) -> bool + Send + Sync + 'static) -> (Upstream, Arc<Mutex<Vec<Value>>>) {
    let (bodies, number) = (Arc::<Mutex<Vec<Value>>>::default(), AtomicUsize::new(0));
    let log = Arc::clone(&bodies);
    let upstream = Upstream::start(move |mut conn| {
        while let Some(request) = conn.request() {
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            let (number, words) =
                (number.fetch_add(1, Ordering::SeqCst), |text: &str| text.split_whitespace().count() as u64);
            let (tokens, field) = match &body["messages"] {
                Value::Array(messages) => (
                    messages.iter().map(|message| words(message["content"].as_str().unwrap()) + ROLE).sum::<u64>(),
                    "delta",
                ),
                _ => (words(body["prompt"].as_str().unwrap()), "text"),
            };
            let body_is_whole = body["stream"] == false;
            log.lock().unwrap().push(body);
            if !answers(number) {
                conn.send("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n");
                continue;
            }
            if body_is_whole {
                let content = format!(" {CANARY} \"{number}\"");
                let reply = json!({"choices": [{"index": 0, "message": {"content": content}, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": tokens, "completion_tokens": 2}})
                .to_string();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length";
                conn.send(format!("{head}: {}\r\n\r\n{reply}", reply.len()));
                continue;
            }
            let event = |text: &str| {
                let text = if field == "delta" { json!({"content": text}) } else { json!(text) };
                format!("data: {}\n\n", json!({"choices": [{"index": 0, field: text}]}))
            };
            let stop = json!({"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "stop"}]});
            let usage = json!({"choices": [], "usage": {"prompt_tokens": tokens, "completion_tokens": 2}});
            let stream = [
                event(&format!(" {CANARY}")),
                event(&format!(" \"{number}\"")),
                format!("data: {stop}\n\ndata: {usage}\n\ndata: [DONE]\n\n"),
            ]
            .concat();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length";
            conn.send(format!("{head}: {}\r\n\r\n{stream}", stream.len()));
        }
    });
    (upstream, bodies)
}

/// Runs a verb with these flags into a folder, and sees that nothing of an answer is anywhere.
fn sent(args: &str, to: &Upstream, out: &std::path::Path) -> CommandOutput {
    let target = format!("http://{}", to.addr);
    let fixed = ["--target", &target, "--max-lag", "1h", "--out", out.to_str().unwrap(), "--out-format", "aiperf,vllm"];
    let done = run(&[&args.split(' ').collect::<Vec<_>>()[..], &fixed].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    for file in fs::read_dir(out).unwrap() {
        let path = file.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let plain = if path.extension().is_some_and(|end| end == "zst") {
            zstd::decode_all(&bytes[..]).unwrap()
        } else {
            bytes
        };
        assert!(!plain.windows(CANARY.len()).any(|window| window == CANARY.as_bytes()), "{}", path.display());
    }
    assert!(!(done.stdout.clone() + &done.stderr).contains(CANARY));
    done
}

/// The bodies of each session in the order of their turns: a session is known by how its first prompt begins.
fn by_session(bodies: Vec<Value>, first: impl Fn(&Value) -> String) -> Vec<Vec<Value>> {
    let mut sessions: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for body in bodies {
        sessions.entry(first(&body)).or_default().push(body);
    }
    sessions.into_values().collect()
}

#[test]
fn the_next_turn_repeats_what_the_server_answered_word_for_word() {
    repeats("");
}

#[test]
fn an_answer_in_one_piece_is_repeated_too() {
    repeats(" --no-stream");
}

fn repeats(more: &str) {
    let (upstream, bodies) = server(|_| true);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let load = "load --rate 50 --requests 12 --turns 4 --isl 20 --osl 2 --prompt-overhead 4".to_owned() + more;
    let done = sent(&load, &upstream, &out);
    let sessions =
        by_session(std::mem::take(&mut *bodies.lock().unwrap()), |body| body["messages"][0]["content"].to_string());
    assert_eq!(sessions.len(), 3);
    for turns in sessions {
        assert_eq!(turns.len(), 4);
        for pair in turns.windows(2) {
            let [before, after] = [&pair[0], &pair[1]].map(|body| body["messages"].as_array().unwrap());
            let (past, new) = after.split_at(before.len());
            assert_eq!(past, before);
            assert_eq!((&new[0]["role"], &new[1]["role"], new.len()), (&json!("assistant"), &json!("user"), 2));
            let answer = new[0]["content"].as_str().unwrap();
            assert!(answer.starts_with(" zebra \"") && answer.ends_with('"'), "{answer}");
        }
    }
    // The role of the answer comes as a surprise once, and is left out from then on.
    let mut lengths: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for row in rows(&out) {
        lengths.entry(row.turn.unwrap()).or_default().push(row.prompt.tokens.unwrap());
    }
    let expected = [(0, 20), (1, 42 + ROLE), (2, 64), (3, 86)].map(|(turn, tokens)| (turn, vec![tokens; 3]));
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(run_json(&out)["summary"]["later_turns"], json!({"verbatim": 9, "synthesized": 0}));
    assert!(done.stdout.contains("9 with the real answers before them, 0 with words instead"), "{}", done.stdout);
}

#[test]
fn a_plain_prompt_continues_the_answer() {
    let (upstream, bodies) = server(|_| true);
    let folder = tempfile::tempdir().unwrap();
    let load =
        "load --concurrency 1 --requests 3 --turns 3 --isl 20 --osl 2 --prompt-overhead 0 --dialect openai.completions";
    sent(load, &upstream, &folder.path().join("run"));
    let bodies = std::mem::take(&mut *bodies.lock().unwrap());
    for (number, pair) in bodies.windows(2).enumerate() {
        let [before, after] = [&pair[0], &pair[1]].map(|body| body["prompt"].as_str().unwrap());
        let history = format!("{before} zebra \"{number}\"");
        assert_eq!(&after[..history.len()], history);
        assert_eq!(after.len(), history.len() + 20 * 4, "and then twenty new words");
    }
    let lengths: Vec<u64> = rows(&folder.path().join("run")).iter().map(|row| row.prompt.tokens.unwrap()).collect();
    assert_eq!(lengths, [20, 42, 64], "exactly as planned");
}

#[test]
fn without_an_answer_the_past_is_words_and_begins_anew() {
    // The second of four turns fails.
    let (upstream, bodies) = server(|number| number != 1);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let load = "load --concurrency 1 --requests 4 --turns 4 --isl 20 --osl 2 --prompt-overhead 4";
    sent(load, &upstream, &out);
    let messages: Vec<usize> =
        bodies.lock().unwrap().iter().map(|body| body["messages"].as_array().unwrap().len()).collect();
    assert_eq!(messages, [1, 3, 1, 3]);
    assert_eq!(run_json(&out)["summary"]["later_turns"], json!({"verbatim": 2, "synthesized": 1}));
    // As long as planned all the same: 64 tokens of words.
    let lengths: Vec<u64> = rows(&out).iter().map(|row| row.prompt.tokens.unwrap()).collect();
    assert_eq!(lengths[2], 64);
}

/// A trace of one session.
fn trace(folder: &std::path::Path) -> String {
    let turn = |turn: u32, at: u64, tokens: u64| TraceEntry {
        at: at * 1_000_000,
        session: Some("s".to_owned()),
        turn: Some(turn),
        think: (turn > 0).then_some(1_000_000),
        prompt: PromptShape { tokens: Some(tokens), ..PromptShape::default() },
        output_tokens: Some(2),
        ..TraceEntry::default()
    };
    // The third turn forgets its history.
    let rows = [turn(0, 0, 20), turn(1, 300, 60), turn(2, 600, 30), turn(3, 900, 50)];
    let mut text = serde_json::to_string(&TraceHeader::new("test")).unwrap() + "\n";
    rows.iter().for_each(|row| text += &(serde_json::to_string(row).unwrap() + "\n"));
    let path = folder.join("trace.jsonl");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_live_replay_continues_conversations_and_a_timed_one_sends_single_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    for (pace, expected) in [("live", [1, 3, 1, 3]), ("timed", [1; 4])] {
        let (upstream, bodies) = server(|_| true);
        let out = folder.path().join(pace);
        sent(&format!("replay {trace} --sessions {pace} --prompt-overhead 4"), &upstream, &out);
        let messages: Vec<usize> =
            bodies.lock().unwrap().iter().map(|body| body["messages"].as_array().unwrap().len()).collect();
        assert_eq!(messages, expected, "{pace}");
        let lengths: Vec<u64> = rows(&out).iter().map(|row| row.prompt.tokens.unwrap()).collect();
        let surprise = if pace == "live" { ROLE } else { 0 };
        assert_eq!(lengths, [20, 60 + surprise, 30, 50 + surprise], "{pace}");
    }
}
