//! Requests and replies with secrets wherever one can be, and the search for them.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::captured::{HEAD, event};
use super::client::{Client, Response, chat};
use super::upstream::Conn;

/// The mark in every secret.
const SECRET: &str = "canary7f3a";

const FIELDS: &str = concat!(
    "Authorization: Bearer canary7f3a-bearer\r\nX-API-Key: canary7f3a-key\r\nCookie: a=canary7f3a-cookie\r\n",
    "X-User: canary7f3a-header-user\r\ncanary7f3a-field: x\r\nbaggage: user=canary7f3a\r\n",
    "X-Forwarded-For: canary7f3a-address\r\n",
    "X-Session-Id: canary7f3a-session\r\nX-Parent-Session-Id: canary7f3a-parent\r\n",
);

/// The body of a chat request. The model's name is a path.
fn chat_body() -> Value {
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

/// A stream that ends with an error that quotes a secret.
fn stream(conn: &mut Conn) {
    let head = HEAD.replacen(
        "200 OK\r\n",
        "200 canary7f3a-reason\r\nSet-Cookie: a=canary7f3a-set\r\nX-Answer: canary7f3a\r\n",
        1,
    );
    conn.send(head);
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
    conn.chunk(
        "data: {\"error\":{\"message\":\"canary7f3a-fault\",\"type\":\"canary7f3a\",\"param\":\"canary7f3a\"}}\n\n",
    );
    conn.send("0\r\ncanary7f3a-trailer: canary7f3a\r\n\r\n");
}

/// A server whose reply depends on the path of the request: a stream, an error, or a violation of HTTP.
pub fn serve(mut conn: Conn) {
    while let Some(request) = conn.request() {
        let path = request.head.split(' ').nth(1).unwrap();
        match path.split('?').next().unwrap() {
            "/v1/chat/completions" => stream(&mut conn),
            "/canary7f3a/v1/completions" | "/v1/models" => {
                let error = json!({"error": {"message": "canary7f3a-error: your prompt was …", "type": "bad"}});
                let error = error.to_string();
                let head = format!("HTTP/1.1 400 canary7f3a-reason\r\nContent-Length: {}\r\n\r\n", error.len());
                conn.send(head + &error);
            }
            "/no-http" => _ = conn.send("canary7f3a is no response\r\n\r\n"),
            "/no-status" => _ = conn.send("HTTP/1.1 canary7f3a is no status\r\n\r\n"),
            "/bad-field" => _ = conn.send("HTTP/1.1 200 OK\r\ncanary7f3a field: canary7f3a\r\n\r\n"),
            "/bad-length" => _ = conn.send("HTTP/1.1 200 OK\r\nContent-Length: canary7f3a-length\r\n\r\n"),
            "/bad-chunk" => {
                conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ncanary7f3a-size\r\n");
            }
            // One reply more than there are requests, and a body that is cut short.
            _ => {
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\ncanary7f3a-cut");
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ncanary7f3a-cut");
                return;
            }
        }
    }
}

fn with_fields(request: &str) -> String {
    request.replacen("\r\n", &format!("\r\n{FIELDS}"), 1)
}

fn reply(proxy: SocketAddr, request: &str) -> Response {
    Client::connect(proxy).send(request).response()
}

/// Sends secrets to a proxy in front of [`serve`], in requests of every kind. `http2` sends one over HTTP/2, with this
/// path, header field and body. The proxy forwards the secrets, and its own errors repeat none.
pub fn exchange_secrets(proxy: SocketAddr, http2: impl FnOnce(&str, (&str, &str), &str)) {
    let body = chat_body().to_string();
    let streamed = reply(proxy, &with_fields(&chat(&body)));
    assert!(streamed.text().contains("canary7f3a-with") && streamed.head.contains("canary7f3a-set"));
    let refused = json!({"model": "s3://canary7f3a/typed/model", "prompt": "canary7f3a-prompt"}).to_string();
    let path = "/canary7f3a/v1/completions?key=canary7f3a";
    let refused = reply(proxy, &with_fields(&chat(&refused).replace("/v1/chat/completions", path)));
    assert!(refused.status() == 400 && refused.text().contains("canary7f3a-error"));
    http2("/v1/chat/completions?key=canary7f3a", ("authorization", "Bearer canary7f3a"), &body);
    for (request, status) in [
        ("GET /v1/files/canary7f3a?sig=canary7f3a HTTP/1.1\r\nHost: canary7f3a.test\r\n\r\n", 200),
        ("canary7f3a /v1/models HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /bad-chunk HTTP/1.1\r\nHost: a\r\n\r\n", 200),
    ] {
        assert_eq!(reply(proxy, request).status(), status, "{request}");
    }
    for request in [
        "GET /canary7f3a HTTP/1.1\r\nHost: a\r\ncanary7f3a bad: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: canary7f3a\r\n canary7f3a-folded\r\n\r\n",
        "GET /canary7f3a\u{1}path HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: canary7f3a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: canary7f3a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: canary7f3a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\ncanary7f3a\r\n",
        "CONNECT canary7f3a:80 HTTP/1.1\r\nHost: canary7f3a:80\r\n\r\n",
        "canary7f3a nonsense\r\n\r\n",
        // The server's bytes for these are no HTTP.
        "GET /no-http?key=canary7f3a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /no-status?key=canary7f3a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /bad-field HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /bad-length HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let response = reply(proxy, request);
        assert!(response.field("x-streamgauge-error").is_some(), "{request:?}: {}", response.head);
        assert_silent(&response.head, "an error of the proxy");
        assert_silent(&response.body, "an error of the proxy");
    }
}

/// Fails if a page of the admin port contains a secret.
pub fn assert_pages_are_silent(admin: SocketAddr) {
    let page = |path: &str, fields: &str| {
        reply(admin, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n")).body
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
    for path in [
        "/",
        "/api/history",
        "/api/history?model=canary7f3a",
        "/readyz",
        "/livez",
        "/config",
        "/canary7f3a?a=canary7f3a",
    ] {
        assert_silent(page(path, ""), path);
    }
    assert_silent(page("/", "Accept: text/html\r\n"), "the page");
    let live = Client::connect(admin).send("GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n").at_least(400);
    assert_silent(&live, "/api/live");
}

/// Fails if the text contains a secret.
pub fn assert_silent(text: impl AsRef<[u8]>, whose: &str) {
    let text = String::from_utf8_lossy(text.as_ref());
    if let Some(at) = text.find(SECRET) {
        let (from, to) = (text.floor_char_boundary(at.saturating_sub(80)), text.ceil_char_boundary(at + 80));
        panic!("{whose}: {:?}", &text[from..to.min(text.len())]);
    }
}
