//! What people and models say, and what they authenticate with, is found nowhere but in the stream itself.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::gauge::Gauge;
use super::machine::{self, SOON, address, until};
use super::sink::Sink;
use super::support::client::{Client, Response};
use super::support::upstream::{Conn, Request, Upstream};
use super::talk::{curl, get_with, request};

/// What every planted secret has in it.
const SECRET: &str = "5ecret";

/// Header fields that hold secrets.
const FIELDS: &str = concat!(
    "Authorization: Bearer 5ecret-bearer\r\n",
    "api-key: 5ecret-api-key\r\n",
    "X-API-Key: 5ecret-x-api-key\r\n",
    "Cookie: session=5ecret-cookie\r\n",
    "X-User-Id: 5ecret-user\r\n",
    "5ecret-name: x\r\n",
    "baggage: user=5ecret-baggage\r\n",
);

/// A request that says secrets wherever one can.
fn asked(stream: bool) -> Value {
    json!({
        "model": "river", "stream": stream, "user": "5ecret-user-field", "metadata": {"a": "5ecret-metadata"},
        "stop": ["5ecret-stop"], "prompt_cache_key": "5ecret-cache-key",
        "messages": [
            {"role": "system", "content": "5ecret-system"},
            {"role": "user", "content": [{"type": "text", "text": "5ecret-prompt"}]},
            {"role": "assistant", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "5ecret-tool", "arguments": "{\"a\":\"5ecret-arguments\"}"}}
            ]},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "5ecret-description"}}],
    })
}

fn event(choice: &Value) -> String {
    format!("data: {}\n\n", json!({"id": "c-1", "model": "river", "choices": [choice]}))
}

/// A stream that says secrets wherever one can, and ends with an error that quotes another.
fn stream(conn: &mut Conn) {
    conn.send(concat!(
        "HTTP/1.1 200 OK 5ecret-reason\r\nContent-Type: text/event-stream\r\nSet-Cookie: a=5ecret-set-cookie\r\n",
        "X-Answer: 5ecret-answer-field\r\nTransfer-Encoding: chunked\r\n\r\n"
    ));
    let function = json!({"name": "5ecret-called", "arguments": "5ecret-called-with"});
    for delta in [
        json!({"reasoning_content": "5ecret-reasoning"}),
        json!({"content": "5ecret-content"}),
        json!({"tool_calls": [{"index": 0, "function": function}]}),
        json!({"refusal": "5ecret-refusal"}),
    ] {
        conn.chunk(event(&json!({"index": 0, "delta": delta})));
    }
    conn.chunk(": 5ecret-comment\n\nevent: 5ecret-event\ndata: 5ecret-no-json\n\n");
    conn.chunk(event(&json!({"index": 0, "delta": {}, "finish_reason": "5ecret finish"})));
    let error = json!({"message": "5ecret-fault", "type": "bad", "param": "5ecret-param"});
    conn.chunk(format!("data: {}\n\n", json!({"error": error})));
    conn.send("0\r\n5ecret-trailer: 5ecret-trailer-value\r\n\r\n");
}

/// The server: what it does stands in the request's path.
fn serve(mut conn: Conn) {
    while let Some(Request { head, .. }) = conn.request() {
        let path = head.split(' ').nth(1).unwrap();
        match path.split('?').next().unwrap() {
            "/v1/chat/completions" => stream(&mut conn),
            "/refuse" | "/v1/completions" => {
                let body =
                    json!({"error": {"message": "5ecret-error-body: your prompt was …", "code": 400}}).to_string();
                let length = body.len();
                conn.send(format!("HTTP/1.1 400 Bad Request\r\nContent-Length: {length}\r\n\r\n{body}"));
            }
            "/garbage" => {
                conn.send("5ecret-garbage is no response\r\n\r\n");
            }
            "/field" => {
                conn.send("HTTP/1.1 200 OK\r\n5ecret field: 5ecret-value\r\n\r\n");
            }
            "/lengths" => {
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 5ecret-length\r\n\r\n");
            }
            "/chunk" => {
                conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5ecret-size\r\n");
            }
            _ => {
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n5ecret-cut");
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n5ecret-cut");
                return;
            }
        }
    }
}

/// What a client gets for these bytes, its connection closed after them.
fn answer(proxy: SocketAddr, bytes: &str) -> Response {
    let mut client = Client::connect(proxy);
    client.send(bytes);
    client.response()
}

fn with_fields(request: &str) -> String {
    request.replacen("\r\n\r\n", &format!("\r\n{FIELDS}\r\n"), 1)
}

/// Requests that are refused by us, and what they get.
fn refused(proxy: SocketAddr) -> Vec<Response> {
    let bad = [
        "GET /5ecret-path HTTP/1.1\r\nHost: a\r\n5ecret bad: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: 5ecret\r\n folded-5ecret\r\n\r\n",
        "GET /5ecret\u{1}path HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: 5ecret-host\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5ecret\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: 5ecret-coding\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5ecret-size\r\n",
        "CONNECT 5ecret-target:80 HTTP/1.1\r\nHost: 5ecret-target:80\r\n\r\n",
        "5ecret nonsense\r\n\r\n",
        // What the server says to these is no HTTP.
        "GET /garbage?key=5ecret-query HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /field HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /lengths HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    let answers: Vec<Response> = bad.into_iter().map(|request| answer(proxy, request)).collect();
    for (request, response) in bad.iter().zip(&answers) {
        assert!(response.field("x-streamgauge-error").is_some(), "{request:?}: {}", response.head);
    }
    answers
}

/// Fails where a secret is in a text.
fn assert_silent(text: &str, whose: &str) {
    let begins = text.match_indices(SECRET).map(|(at, _)| at.saturating_sub(60)).next();
    if let Some(at) = begins {
        let at = text.floor_char_boundary(at);
        panic!("{whose}: {:?}", &text[at..text.ceil_char_boundary((at + 160).min(text.len()))]);
    }
}

#[test]
fn secrets_are_found_in_no_log_metric_page_trace_or_error_of_ours() {
    let _turn = machine::beside();
    let (upstream, sink) = (Upstream::start(serve), Sink::start());
    for format in ["text", "json"] {
        let gauge = Gauge::with(upstream.addr, |command| {
            command.args(["--log-level=debug", "--access-log", "--slo=chat: ttft<=5s", "--log-format", format]);
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", sink.http));
            command.env("OTEL_METRIC_EXPORT_INTERVAL", "200").env("OTEL_BSP_SCHEDULE_DELAY", "50");
        });
        let before = sink.spans().len();
        let chat = with_fields(&request("/v1/chat/completions?key=5ecret-query", &asked(true)));
        let said = answer(gauge.addr, &chat);
        // The stream itself has all of them.
        assert!(said.head.contains("5ecret-set-cookie") && said.text().contains("5ecret-called-with"));
        let reached = upstream.heads().pop().unwrap();
        assert!(["5ecret-query", "5ecret-bearer", "5ecret-name"].iter().all(|secret| reached.contains(secret)));
        answer(gauge.addr, &with_fields(&request("/v1/completions", &asked(false))));
        answer(gauge.addr, "GET /v1/files/5ecret-file?sig=5ecret-signature HTTP/1.1\r\nHost: 5ecret.host\r\n\r\n");
        answer(gauge.addr, "5ECRET /refuse HTTP/1.1\r\nHost: a\r\n\r\n".replace("5E", "5e").as_str());
        answer(gauge.addr, "GET /chunk HTTP/1.1\r\nHost: a\r\n\r\n");
        let url = format!("http://{}/v1/chat/completions?key=5ecret-h2", gauge.addr);
        let body = asked(true).to_string();
        let fields = ["--header", "Authorization: Bearer 5ecret-bearer", "--cookie", "a=5ecret-cookie"];
        curl(&[&["--http2-prior-knowledge", "--data", &body], &fields[..], &[&url]].concat());
        for response in refused(gauge.addr) {
            assert_silent(&response.head, "an error of ours");
            assert_silent(&response.text(), "an error of ours");
        }
        let live = Client::connect(gauge.admin).send("GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n").at_least(400);
        assert_silent(&String::from_utf8_lossy(&live), "/api/live");
        for path in ["/", "/metrics", "/api/state", "/api/history", "/readyz", "/livez", "/5ecret?a=5ecret"] {
            assert_silent(&gauge.page(path).text(), path);
        }
        for accept in ["application/openmetrics-text", "application/vnd.google.protobuf;encoding=delimited"] {
            let page = get_with(gauge.admin, "/metrics", &format!("Accept: {accept}\r\n"));
            assert_silent(&page.text(), accept);
        }
        until("traces have come", SOON, || sink.spans().len() >= before + 12);
        until("metrics have come", SOON, || !sink.metrics().is_empty());
        until("there are access lines", SOON, || gauge.running.said("/v1/chat/completions") >= 2);
        assert_silent(&gauge.running.log(), "the log");
    }
    assert_silent(&sink.text(), "OTLP");
}

#[test]
fn what_telemetry_authenticates_with_is_found_in_no_log() {
    let _turn = machine::beside();
    let upstream = Upstream::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    // A collector that quotes what it was sent, and one that is not there.
    let collector = Upstream::start(|mut conn| {
        while conn.request().is_some() {
            conn.send("HTTP/1.1 401 5ecret-reason\r\nContent-Length: 0\r\nWWW-Authenticate: 5ecret\r\n\r\n");
        }
    });
    let gauge = Gauge::with(upstream.addr, |command| {
        command.args(["--log-level=debug", "--access-log"]);
        let endpoint = format!("http://{}/v1/metrics?token=5ecret-token", collector.addr);
        command.env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint);
        command.env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("http://{}/?token=5ecret-token", address()));
        command.env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%205ecret-otlp,x-5ecret=%zz");
        command.env("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=Bearer%205ecret-otlp");
        command.env("OTEL_METRIC_EXPORT_INTERVAL", "100").env("OTEL_BSP_SCHEDULE_DELAY", "50");
        command.env("OTEL_BSP_EXPORT_TIMEOUT", "100");
    });
    answer(gauge.addr, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    until("both exports have failed", SOON, || gauge.running.said("OTLP export failed") == 2);
    assert!(collector.heads()[0].contains("5ecret-token"));
    let log = gauge.running.log();
    assert!(log.contains("OTEL_EXPORTER_OTLP_HEADERS is ignored"), "{log}");
    assert_silent(&log, "the log");
    assert_silent(&gauge.page("/api/state").text(), "/api/state");
}
