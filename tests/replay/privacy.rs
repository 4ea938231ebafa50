//! No file, output or error of the load generator has a load's answers or credentials.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::captured::event;
use crate::support::privacy::assert_silent;
use crate::support::sending::{output_of, program, without_self_test};
use crate::support::upstream::{Conn, Upstream};

/// A server whose replies are whole, errors and no HTTP by turns.
fn serve_load(mut conn: Conn, sent: &AtomicUsize) {
    while let Some(request) = conn.request() {
        let whole = |kind: &str, body: &str| {
            let fields = "Set-Cookie: a=canary7f3a-set\r\nX-Answer: canary7f3a\r\n";
            format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len())
        };
        if request.head.starts_with("GET /metrics") {
            let page = "vllm:num_requests_running{model_name=\"canary7f3a\"} 3\ncanary7f3a_total 4\n";
            conn.send(whole("text/plain", page));
        } else if request.head.starts_with("GET ") {
            let document = json!({
                "version": "1.2.3", "tp_size": 2, "api_key": "canary7f3a-served", "chat_template": "canary7f3a-template",
                "data": [{"id": "tiny", "permission": ["canary7f3a-permission"]}],
            });
            conn.send(whole("application/json", &document.to_string()));
        } else {
            match sent.fetch_add(1, Ordering::Relaxed) % 3 {
                0 => {
                    let finish = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
                    let body = event("canary7f3a-answer") + &event("canary7f3a-more") + finish + "data: [DONE]\n\n";
                    conn.send(whole("text/event-stream", &body));
                }
                1 => {
                    let error = json!({"error": {"message": "canary7f3a-error: your prompt was …"}}).to_string();
                    let head = format!("HTTP/1.1 400 canary7f3a-reason\r\nContent-Length: {}\r\n\r\n", error.len());
                    conn.send(head + &error);
                }
                _ => {
                    conn.send("HTTP/1.1 canary7f3a is no status\r\n\r\n");
                    return;
                }
            }
        }
    }
}

#[test]
fn secrets_of_a_load_are_in_no_file_output_or_error() {
    let sent = AtomicUsize::new(0);
    let upstream = Upstream::start(move |conn| serve_load(conn, &sent));
    let folder = TempDir::new().unwrap();
    let (out, target) = (folder.path().join("run"), format!("http://{}", upstream.addr));
    let run = out.to_str().unwrap();
    let load = ["load", "--target", &target, "--concurrency", "1", "--requests", "30", "--json", "--out", run];
    let secret = [
        "--header",
        "x-api-key: canary7f3a-header",
        "--header=cookie: canary7f3a",
        "--api-key-env",
        "SECRET_OF_A_TEST",
    ];
    let more = ["--out-format", "aiperf,vllm", "--server-metrics", &target, "--slo", "a: ttft<=1h", "--max-lag", "1h"];
    let mut command = without_self_test(&[&load[..], &secret, &more].concat());
    command.env("SECRET_OF_A_TEST", "canary7f3a-key");
    let done = output_of(command);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let posted = upstream.heads().into_iter().filter(|head| head.starts_with("POST "));
    for head in posted {
        let has = |field: &str| head.to_ascii_lowercase().contains(field);
        assert!(has("x-api-key: canary7f3a-header") && has("authorization: bearer canary7f3a-key"), "{head}");
    }
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    let outcomes = report["summary"]["outcomes"].as_object().unwrap();
    assert!(outcomes.len() == 3 && outcomes.values().all(|count| count.as_u64() >= Some(9)), "{outcomes:?}");
    assert_eq!(report["engines"][&target]["/server_info"], json!({"version": "1.2.3", "tp_size": 2}));
    assert_eq!(report["header_names"], json!(["x-api-key", "cookie"]));
    assert!(report["command"].as_array().unwrap().contains(&json!("x-api-key: …")), "{}", report["command"]);
    assert_silent(&done.stdout, "--json");
    assert_silent(&done.stderr, "stderr");
    let files: Vec<_> = fs::read_dir(&out).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 8, "{files:?}");
    for file in files {
        let raw = fs::read(&file).unwrap();
        let plain = zstd::stream::decode_all(&raw[..]).unwrap_or_default();
        [raw, plain].iter().for_each(|bytes| assert_silent(bytes, &file.display().to_string()));
    }
    for format in ["--json", "--csv", "--markdown", "--html", "--plain"] {
        let report = output_of(program(&["report", run, "--by", "model,status,server", "--slice", "1s", format]));
        assert_eq!(report.code, Some(0), "{}", report.stderr);
        assert_silent(&report.stdout, format);
    }
    for wrong in [
        ["--target", "http://user:canary7f3a@host"],
        ["--target", "http://host/?key=canary7f3a"],
        ["--header", "canary7f3a"],
        ["--header", "a: canary7f3a\n"],
        ["--server-metrics", "http://canary7f3a@host"],
    ] {
        let args = ["load", "--target", &target, "--rate", "1", "--requests", "1", "--out", run];
        let done = output_of(without_self_test(&[&args[..], &wrong].concat()));
        assert_eq!(done.code, Some(2), "{wrong:?}: {}", done.stderr);
        assert_silent(&done.stderr, "an error");
    }
}
