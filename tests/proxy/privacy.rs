//! What people and models say, and what they authenticate with, is in the stream and nowhere else: in no file of a
//! capture or of a run, log, metric, span, page, report or error of ours.

#![expect(clippy::unwrap_used, reason = "clippy knows tests by their attribute, and these have helpers")]

mod support;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use support::captured::{HEAD, Run, event, rows, run_under, until};
use support::client::{Client, chat};
use support::http2;
use support::sending::{audited, ended, program};
use support::upstream::{Conn, Upstream};
use tempfile::TempDir;

/// What every planted secret has in it.
const CANARY: &str = "canary7f3a";

/// Secrets wherever a request can say one. The model's name is a path.
fn asked() -> Value {
    json!({
        "model": "/data/canary7f3a/models/llama", "stream": true, "user": "canary7f3a-user", "stop": ["canary7f3a-stop"],
        "metadata": {"user_id": "canary7f3a-id"}, "prompt_cache_key": "canary7f3a-cache-key",
        "tools": [{"type": "function", "function": {
            "name": "canary7f3a_tool", "description": "canary7f3a-description", "parameters": {"canary7f3a-key": "canary7f3a-schema"},
        }}],
        "messages": [
            {"role": "system", "content": "canary7f3a-system"},
            {"role": "user", "name": "canary7f3a-name", "content": [
                {"type": "text", "text": "canary7f3a-text"},
                {"type": "image_url", "image_url": {"url": "https://canary7f3a.example/x.png?sig=canary7f3a"}},
            ]},
            {"role": "assistant", "tool_calls": [
                {"id": "canary7f3a-call", "function": {"name": "canary7f3a_called", "arguments": "{\"a\":\"canary7f3a-arguments\"}"}},
            ]},
        ],
    })
}

const FIELDS: &str = concat!(
    "Authorization: Bearer canary7f3a-bearer\r\nX-API-Key: canary7f3a-key\r\nCookie: a=canary7f3a-cookie\r\n",
    "X-User: canary7f3a-header-user\r\ncanary7f3a-field: x\r\nbaggage: user=canary7f3a\r\n",
    "X-Forwarded-For: canary7f3a-address\r\n",
);

/// A stream that says secrets wherever one can, and ends with an error that quotes another.
fn stream(conn: &mut Conn) {
    conn.send(HEAD.replacen("\r\n", "\r\nSet-Cookie: a=canary7f3a-set\r\nX-Answer: canary7f3a\r\n", 1));
    let function = json!({"name": "canary7f3a_function", "arguments": "canary7f3a-with"});
    for delta in [
        json!({"reasoning_content": "canary7f3a-reasoning"}),
        json!({"tool_calls": [{"index": 0, "function": function}]}),
        json!({"refusal": "canary7f3a-refusal"}),
    ] {
        let choice = json!({"index": 0, "delta": delta});
        conn.chunk(format!(
            "data: {}\n\n",
            json!({"id": "c-1", "model": "/data/canary7f3a/models/llama", "choices": [choice]})
        ));
    }
    conn.chunk(event("canary7f3a-answer"));
    conn.chunk(": canary7f3a-comment\n\nevent: canary7f3a-event\ndata: canary7f3a-no-json\n\n");
    conn.chunk("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"canary7f3a finish\"}]}\n\n");
    conn.chunk("data: {\"error\":{\"message\":\"canary7f3a-fault\",\"type\":\"canary7f3a\"}}\n\n");
    conn.send("0\r\ncanary7f3a-trailer: canary7f3a\r\n\r\n");
}

/// The server: what it does stands in the request's path.
fn serve(mut conn: Conn) {
    while let Some(request) = conn.request() {
        if request.head.contains("/v1/chat/completions") {
            stream(&mut conn);
        } else if request.head.contains("/v1/completions") {
            let error = json!({"error": {"message": "canary7f3a-error: your prompt was …", "type": "bad"}}).to_string();
            let head = format!("HTTP/1.1 400 canary7f3a-reason\r\nContent-Length: {}\r\n\r\n", error.len());
            conn.send(head + &error);
        } else {
            conn.send("HTTP/1.1 canary7f3a is no status\r\n\r\n");
            return;
        }
    }
}

fn with_fields(request: &str) -> String {
    request.replacen("\r\n", &format!("\r\n{FIELDS}"), 1)
}

/// Fails where a secret is in a text.
fn assert_silent(text: &[u8], whose: &str) {
    let text = String::from_utf8_lossy(text);
    if let Some(at) = text.find(CANARY) {
        let (from, to) = (text.floor_char_boundary(at.saturating_sub(80)), text.ceil_char_boundary(at + 80));
        panic!("{whose}: {:?}", &text[from..to.min(text.len())]);
    }
}

/// What a client is answered that makes mistakes of every kind, each with a secret in it.
fn assert_errors_are_silent(run: &Run) {
    for request in [
        "GET /canary7f3a HTTP/1.1\r\nHost: a\r\ncanary7f3a bad: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n canary7f3a-folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: canary7f3a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: canary7f3a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: canary7f3a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\ncanary7f3a\r\n",
        "CONNECT canary7f3a:80 HTTP/1.1\r\nHost: canary7f3a:80\r\n\r\n",
        "canary7f3a nonsense\r\n\r\n",
        // What the server says to this is no HTTP.
        "GET /other?key=canary7f3a HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let answer = Client::connect(run.listen).send(request).response();
        assert!(answer.field("x-streamgauge-error").is_some(), "{request:?}: {}", answer.head);
        assert_silent(answer.head.as_bytes(), "an error of ours");
        assert_silent(&answer.body, "an error of ours");
    }
}

/// Everything that the admin port shows.
fn assert_pages_are_silent(run: &Run) {
    let page = |path: &str, fields: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        Client::connect(run.admin).send(request).response().body
    };
    let metrics = page("/metrics", "");
    assert!(String::from_utf8_lossy(&metrics).contains("gen_ai_request_model=\"llama\""), "a path's last segment");
    assert_silent(&metrics, "/metrics");
    for accept in ["application/openmetrics-text", "application/vnd.google.protobuf;encoding=delimited"] {
        let metrics = page("/metrics", &format!("Accept: {accept}\r\n"));
        assert!(metrics.len() > 1_000, "{accept}");
        assert_silent(&metrics, accept);
    }
    let state = page("/api/state", "");
    assert!(String::from_utf8_lossy(&state).contains("\"llama\""));
    assert_silent(&state, "/api/state");
    for path in ["/", "/api/history", "/api/history?model=canary7f3a", "/readyz", "/livez", "/canary7f3a?a=canary7f3a"]
    {
        assert_silent(&page(path, ""), path);
    }
    assert_silent(&page("/", "Accept: text/html\r\n"), "the page");
    let live = Client::connect(run.admin).send("GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n").at_least(400);
    assert_silent(&live, "/api/live");
}

/// Every file of a capture, as it is and unpacked, and its name.
fn assert_capture_is_silent(folder: &Path) {
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 3, "a segment, the key and the lock: {files:?}");
    for file in files {
        let name = file.display().to_string();
        let raw = fs::read(&file).unwrap();
        let plain = zstd::stream::decode_all(&raw[..]).unwrap_or_default();
        [name.as_bytes(), &raw, &plain].iter().for_each(|bytes| assert_silent(bytes, &name));
    }
}

#[test]
fn nothing_that_was_said_or_typed_is_anywhere_but_in_the_stream() {
    let upstream = Upstream::start(serve);
    for (format, session) in [("text", "header:x-user"), ("json", "body:metadata.user_id")] {
        let folder = TempDir::new().unwrap();
        let exports = Arc::<Mutex<Vec<u8>>>::default();
        let taken = Arc::clone(&exports);
        let collector = Upstream::start(move |mut conn| {
            while let Some(request) = conn.request() {
                taken.lock().unwrap().extend(request.body);
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        });
        let endpoint = format!("OTEL_EXPORTER_OTLP_ENDPOINT=http://{}", collector.addr);
        let under = ["env", &endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_BSP_SCHEDULE_DELAY=50"];
        let log = format!("--log-format={format}");
        let session = format!("--capture-session={session}");
        let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizers/tiny.json");
        let tokenizers = [format!("--capture-tokenizer={tokenizer}"), format!("--tokenizer=*={tokenizer}")];
        let more = ["--access-log", "--log-level=debug", "--slo=chat: ttft<=5s", &log, &session];
        let more = [&more[..], &[&tokenizers[0], &tokenizers[1]]].concat();
        let mut run = run_under(&under, upstream.addr, folder.path(), &more);

        let mut client = Client::connect(run.listen);
        let said = client.send(with_fields(&chat(&asked().to_string()))).response();
        assert!(said.text().contains("canary7f3a-with") && said.head.contains("canary7f3a-set"));
        let refused = json!({"model": "s3://canary7f3a/typed/model", "prompt": "canary7f3a-prompt"}).to_string();
        let path = "/canary7f3a/v1/completions?key=canary7f3a";
        client.send(with_fields(&chat(&refused).replace("/v1/chat/completions", path)));
        assert_eq!(client.response().status(), 400);
        let request = http::Request::post("http://a/v1/chat/completions?key=canary7f3a");
        let request = request.header("authorization", "Bearer canary7f3a").body(asked().to_string().into()).unwrap();
        assert_eq!(http2::request(run.listen, None, request, None).status, 200);
        assert_errors_are_silent(&run);
        until("what was answered is logged", || run.said().matches("output_tokens").count() >= 2);
        assert_pages_are_silent(&run);
        run.terminate();
        assert!(run.said().contains("tokens_from"), "access lines: {}", run.said());
        assert_silent(run.said().as_bytes(), "the log");
        let exports = exports.lock().unwrap();
        for known in ["gen_ai.server.request.duration", "chat llama", "gen_ai.response.model"] {
            assert!(String::from_utf8_lossy(&exports).contains(known), "{known} was not exported");
        }
        assert_silent(&exports, "OTLP");
        assert_capture_is_silent(folder.path());
        let models: Vec<_> = rows(folder.path()).into_iter().filter_map(|row| row.model).collect();
        assert_eq!(models, ["llama", "_other", "llama"]);
    }
}

/// A server for `load`: a third of its answers are whole, a third refuse, and a third are no HTTP.
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
            let told = json!({
                "version": "1.2.3", "tp_size": 2, "api_key": "canary7f3a-served", "chat_template": "canary7f3a-template",
                "data": [{"id": "tiny", "permission": ["canary7f3a-permission"]}],
            });
            conn.send(whole("application/json", &told.to_string()));
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
fn what_a_load_is_answered_and_authenticates_with_is_in_no_file_or_word_of_it() {
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
    let mut command = program(&[&load[..], &secret, &more].concat());
    command.env("SECRET_OF_A_TEST", "canary7f3a-key");
    let done = ended(command);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let posted = upstream.heads().into_iter().filter(|head| head.starts_with("POST "));
    for head in posted {
        let has = |field: &str| head.to_ascii_lowercase().contains(field);
        assert!(has("x-api-key: canary7f3a-header") && has("authorization: bearer canary7f3a-key"), "{head}");
    }
    let told: Value = serde_json::from_str(&done.stdout).unwrap();
    let outcomes = told["summary"]["outcomes"].as_object().unwrap();
    assert!(outcomes.len() == 3 && outcomes.values().all(|count| count.as_u64() >= Some(9)), "{outcomes:?}");
    assert_eq!(told["engines"][&target]["/server_info"], json!({"version": "1.2.3", "tp_size": 2}));
    assert_eq!(told["header_names"], json!(["x-api-key", "cookie"]));
    assert!(told["command"].as_array().unwrap().contains(&json!("x-api-key: …")), "{}", told["command"]);
    assert_silent(done.stdout.as_bytes(), "--json");
    assert_silent(done.stderr.as_bytes(), "what is said");
    let files: Vec<_> = fs::read_dir(&out).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 8, "{files:?}");
    for file in files {
        let raw = fs::read(&file).unwrap();
        let plain = zstd::stream::decode_all(&raw[..]).unwrap_or_default();
        [raw, plain].iter().for_each(|bytes| assert_silent(bytes, &file.display().to_string()));
    }
    for format in ["--json", "--csv", "--markdown", "--html", "--plain"] {
        let report = ended(audited(&["report", run, "--by", "model,status,server", "--slice", "1s", format]));
        assert_eq!(report.code, Some(0), "{}", report.stderr);
        assert_silent(report.stdout.as_bytes(), format);
    }
    for wrong in [
        ["--target", "http://user:canary7f3a@host"],
        ["--target", "http://host/?key=canary7f3a"],
        ["--header", "canary7f3a"],
        ["--header", "a: canary7f3a\n"],
        ["--server-metrics", "http://canary7f3a@host"],
    ] {
        let args = ["load", "--target", &target, "--rate", "1", "--requests", "1", "--out", run];
        let done = ended(program(&[&args[..], &wrong].concat()));
        assert_eq!(done.code, Some(2), "{wrong:?}: {}", done.stderr);
        assert_silent(done.stderr.as_bytes(), "an error of ours");
    }
}
