//! A capture that is a sample: whole sessions, the same in every process with one key.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use streamgauge::trace_file::reader::TraceReader;
use tempfile::TempDir;

use crate::support::captured::{answer, page, proxy, rows, server, until};

const SESSIONS: u64 = 60;

/// A turn of a conversation. The limit on its tokens is the number of its session, for the test to find it by.
fn turn(session: u64, turn: usize, header: &str) -> String {
    let message = |role: &str, text: String| json!({"role": role, "content": text});
    let mut messages = vec![message("system", "the same for all ".repeat(9))];
    for at in 0..=turn {
        messages.push(message("user", format!("question {at} of {session}")));
        messages.push(message("assistant", format!("answer {at}")));
    }
    messages.pop();
    let body = json!({"model": "m", "stream": true, "messages": messages, "max_tokens": session + 1}).to_string();
    let length = body.len();
    format!("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{header}\r\n{body}")
}

/// The sessions that two sidecars with one key have captured, to which the turns of each go in turn.
fn captured(folder: &Path, settings: &[(&str, &str)], header: impl Fn(u64) -> String) -> [BTreeSet<u64>; 2] {
    let key = folder.join("key");
    fs::write(&key, "the key of the fleet").unwrap();
    let shared = [("capture_key", key.to_str().unwrap()), ("capture_sample", "50%")];
    let upstream = server(answer(2));
    [0, 1].map(|pod| {
        let folder = folder.join(pod.to_string());
        let proxy = proxy(upstream.addr, &folder, &[&shared[..], settings].concat());
        let mut client = proxy.client();
        for session in 0..SESSIONS {
            for turn_number in [pod, pod + 2] {
                client.send(turn(session, turn_number, &header(session)));
                client.response();
            }
        }
        let name = "streamgauge_capture_records_total";
        let count = |labels: &str| {
            let begin = format!("{name}{{{labels}}} ");
            page(&proxy, "/metrics").lines().find_map(|line| line.strip_prefix(&begin)?.parse::<u64>().ok()).unwrap()
        };
        let (written, skipped) = ("outcome=\"written\",reason=\"whole\"", "outcome=\"skipped\",reason=\"sample\"");
        until("every request counts", || count(written) + count(skipped) == SESSIONS * 2);
        let counted = count(written);
        drop(proxy);
        let rows = rows(&folder);
        assert_eq!(rows.len() as u64, counted);
        let sessions: BTreeSet<u64> = rows.iter().map(|row| row.params.max_tokens.unwrap() - 1).collect();
        assert_eq!(rows.len(), 2 * sessions.len(), "a session is whole or not there");
        sessions
    })
}

#[test]
fn conversations_are_whole_in_the_sample_and_the_same_in_every_process_with_the_key() {
    let folder = TempDir::new().unwrap();
    let [one, other] = captured(folder.path(), &[], |_| String::new());
    assert_eq!(one, other);
    assert!((15..=45).contains(&one.len()), "{one:?}");
}

#[test]
fn named_sessions_are_whole_in_the_sample_and_the_same_in_every_process_with_the_key() {
    let folder = TempDir::new().unwrap();
    let named = [("capture_session", "header:x-user")];
    let [one, other] = captured(folder.path(), &named, |session| format!("X-User: {session}\r\n"));
    assert_eq!(one, other);
    assert!((15..=45).contains(&one.len()), "{one:?}");
}

#[test]
fn a_sample_says_so_in_its_header_in_a_report_and_in_the_figures_of_the_trace() {
    let folder = TempDir::new().unwrap();
    captured(folder.path(), &[], |_| String::new());
    let pod = folder.path().join("0");
    assert_eq!(TraceReader::open(&pod).unwrap().header().sample, Some(0.5));
    let shown = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
        let output = command.args(args).args([pod.to_str().unwrap(), "--json"]).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let report = shown(&["report"]);
    assert_eq!(report["sources"][0]["sample"], 0.5);
    let warnings = report["warnings"].as_array().unwrap();
    let text = "the capture kept 50 % of the sessions: counts and rates are those of the sample";
    assert!(warnings.iter().any(|warning| warning["text"] == text), "{warnings:?}");
    let info = shown(&["trace", "info"]);
    let sampled = json!({"warning": "sampled", "share": 0.5});
    assert!(info["warnings"].as_array().unwrap().contains(&sampled), "{info}");
}
