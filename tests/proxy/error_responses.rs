//! Requests that the proxy rejects or cannot forward, and the responses that explain why.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use streamgauge::measure::time::Gap;

use crate::support::captured::{self, until};
use crate::support::client::{Client, Response, chat};
use crate::support::frames;
use crate::support::http2;
use crate::support::proxy::TestProxy;
use crate::support::upstream::Upstream;
use crate::support::{address_with_full_backlog, unused_address};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn refused(response: &Response, status: u16, fault: &str) {
    assert_eq!(response.status(), status, "{}", response.head);
    let field = response.field("x-streamgauge-error").unwrap_or_default();
    assert!(field.starts_with(&format!("{fault}; ")), "{field}");
    let body: Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!(body["error"]["code"], status);
    assert_eq!(response.field("connection"), Some("close"));
}

#[test]
fn requests_that_two_parties_could_read_differently_never_reach_the_upstream() {
    let upstream = Upstream::answering(OK);
    let proxy = TestProxy::new(upstream.addr);
    let post = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n";
    let cases = [
        ("two lengths", format!("{post}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"), 400),
        ("the same length twice", format!("{post}Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"), 400),
        ("a list of lengths", format!("{post}Content-Length: 5, 5\r\n\r\nhello"), 400),
        ("a signed length", format!("{post}Content-Length: +5\r\n\r\nhello"), 400),
        (
            "a length beside chunks",
            format!("{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            400,
        ),
        (
            "two codings",
            format!("{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"),
            400,
        ),
        ("a coding that is not chunked", format!("{post}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501),
        ("a coding with a control character", format!("{post}Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"), 400),
        ("chunks in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".into(), 400),
        ("a folded line", format!("{post}X: a\r\n b\r\n\r\n"), 400),
        ("a space before the colon", format!("{post}X : a\r\n\r\n"), 400),
        ("a bare LF", format!("{post}X: a\nY: b\r\n\r\n"), 400),
        ("a bare CR", format!("{post}X: a\rY: b\r\n\r\n"), 400),
        ("an LF for an end of line", "GET / HTTP/1.1\nHost: a\r\n\r\n".into(), 400),
        ("LFs for all ends of lines, so that the head never ends", "GET / HTTP/1.1\nHost: a\n\n".into(), 400),
        ("TLS", "\u{16}\u{3}\u{1}\u{2}".into(), 400),
        ("a NUL", format!("{post}X: \0\r\n\r\n"), 400),
        ("two hosts", format!("{post}Host: b\r\n\r\n"), 400),
        ("a list of hosts", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n".into(), 400),
        ("a host with a path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n".into(), 400),
        ("a user's host", "GET / HTTP/1.1\r\nHost: b@a\r\n\r\n".into(), 400),
        ("a target of another host", "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("a target of a user's", "GET http://a@b/ HTTP/1.1\r\nHost: b\r\n\r\n".into(), 400),
        ("no host", "GET / HTTP/1.1\r\n\r\n".into(), 400),
        ("a line without a colon", format!("{post}Transfer-Encoding\r\n\r\n"), 400),
        ("a version from nowhere", "GET / HTTP/3.0\r\nHost: a\r\n\r\n".into(), 400),
        ("a tunnel", "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n".into(), 405),
    ];
    for (name, request, status) in cases {
        let mut client = proxy.client();
        let response = client.send(&request).response();
        assert_eq!(response.status(), status, "{name}");
        refused(&response, status, "downstream");
        assert!(client.rest().is_empty(), "{name}: the connection is closed, so that nothing after it is a request");
    }
    assert_eq!(upstream.heads(), Vec::<String>::new());
}

#[test]
fn chunks_that_two_parties_could_read_differently_are_refused() {
    for body in [
        "0x5\r\nhello\r\n",
        "+5\r\nhello\r\n",
        " 5\r\nhello\r\n",
        "5;\0\r\nhello\r\n",
        "5;\rx\r\nhello\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhello\r0\r\n\r\n",
        "0\r\nContent-Length : 5\r\n\r\n",
        "5 \r\nhello\r\n",
        "-5\r\n",
        "5\nhello\n",
        "5\r\nhelloX\r\n",
        "fffffffffffffffff\r\n",
        "0\r\nX: 1\n\r\n",
        ";\r\n",
    ] {
        let upstream = Upstream::answering(OK);
        let proxy = TestProxy::new(upstream.addr);
        let mut client = proxy.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").send(body);
        let response = client.response();
        assert_eq!(response.status(), 400, "{body:?}");
        refused(&response, 400, "downstream");
    }
}

#[test]
fn a_broken_chunk_after_the_answer_has_begun_puts_nothing_into_it() {
    let upstream = Upstream::start(|mut conn| {
        conn.head();
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        conn.chunk("early");
        conn.closed();
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").has("early\r\n");
    let rest = client.send("no size\r\n").rest();
    assert!(rest.ends_with(b"5\r\nearly\r\n"), "{}", String::from_utf8_lossy(&rest));
    assert_eq!(proxy.last_request()["outcome"], "cancelled");
}

#[test]
fn an_upstream_that_is_down_is_a_502_in_the_dialects_own_shape() {
    let (_held, nobody) = unused_address();
    let proxy = TestProxy::new(nobody);
    let response = proxy.client().send(chat("{}")).response();
    refused(&response, 502, "upstream");
    assert!(response.field("x-streamgauge-error").unwrap().contains(&nobody.to_string()));
    let body: Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!((body["error"]["type"].as_str(), body["error"]["param"].is_null()), (Some("server_error"), true));
    assert_eq!(response.field("content-type"), Some("application/json"));
}

/// How many responses to requests for generation were counted as this.
fn responses(proxy: &TestProxy, model: &str, class: &str, answered_by: &str, fault: &str) -> f64 {
    let fault = if fault.is_empty() { String::new() } else { format!(",fault=\"{fault}\"") };
    proxy.metric(&format!(
        "streamgauge_http_responses_total{{gen_ai_request_model=\"{model}\",traffic=\"inference\",\
         status_class=\"{class}\",answered_by=\"{answered_by}\"{fault}}}"
    ))
}

#[test]
fn a_server_that_is_down_is_a_gauge_at_0_and_failures_by_its_fault() {
    let (_held, nobody) = unused_address();
    let proxy = TestProxy::new(nobody);
    for _ in 0..3 {
        assert_eq!(proxy.client().send(chat("{}")).response().status(), 502);
    }
    let last = proxy.last_request();
    assert_eq!((&last["local_reply"], &last["fault"]), (&Value::Bool(true), &"upstream".into()));
    // A request that names no model has no such label.
    let counted = "streamgauge_http_responses_total{traffic=\"inference\",status_class=\"5xx\",answered_by=\"proxy\",\
                   fault=\"upstream\"}";
    until("all have been counted", || proxy.metric(counted) == 3.0);
    assert_eq!(proxy.metric("streamgauge_upstream_up"), 0.0);
    assert_eq!(responses(&proxy, "_other", "5xx", "proxy", "proxy"), 0.0);
}

#[test]
fn a_503_of_the_server_differs_from_one_of_the_proxy() {
    let body = r#"{"model": "tiny"}"#;
    let upstream = Upstream::start(|mut conn| {
        while let Some(request) = conn.request() {
            if request.head.contains("/hold") {
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n");
                conn.closed();
                return;
            }
            conn.send("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let proxy = TestProxy::with(upstream.addr, &[("max_streams", "1")]);
    let theirs = proxy.client().send(chat(body)).response();
    assert_eq!((theirs.status(), theirs.field("x-streamgauge-error")), (503, None));
    let last = proxy.last_request();
    assert_eq!((&last["local_reply"], &last["fault"]), (&Value::Bool(false), &"upstream".into()));
    let mut held = proxy.client();
    held.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n").has("\r\n\r\n");
    refused(&proxy.client().send(chat(body)).response(), 503, "proxy");
    until("the proxy's own error is counted", || responses(&proxy, "_other", "5xx", "proxy", "proxy") == 1.0);
    assert_eq!(responses(&proxy, "_other", "5xx", "upstream", "upstream"), 1.0);
    let last = proxy.last_request();
    assert_eq!((&last["local_reply"], &last["fault"]), (&Value::Bool(true), &"proxy".into()));
    assert_eq!(proxy.metric("streamgauge_upstream_up"), 1.0, "a server that answers 503 can be reached");
}

#[test]
fn a_server_that_comes_and_goes_is_noticed_without_a_request() {
    let (held, nobody) = unused_address();
    let proxy = TestProxy::new(nobody);
    let why = format!("the upstream cannot be reached: cannot connect to {nobody}: ");
    until("it is not ready, and why", || proxy.ready().1.contains(&why));
    held.listen(8).unwrap();
    until("it is ready", || proxy.ready().0);
    drop(held);
    until("nor is it missed by requests alone", || !proxy.ready().0);
}

#[test]
fn a_server_that_comes_and_goes_is_logged_once_each_time() {
    let ((held, nobody), folder) = (unused_address(), tempfile::tempdir().unwrap());
    let mut proxy = captured::run(nobody, folder.path(), &[]);
    let lines = |log: &str| log.lines().filter(|line| line.contains(" be reached")).count();
    until("it is missed", || lines(&proxy.log()) == 1);
    held.listen(8).unwrap();
    until("it is found", || lines(&proxy.log()) == 2);
    proxy.terminate();
    let log = proxy.log();
    let missed = format!("\"why\":\"cannot connect to {nobody}: Connection refused (os error 111)\"");
    assert!(log.contains("\"the upstream can be reached again\"") && log.contains(&missed), "{log}");
    assert_eq!(lines(&log), 2, "{log}");
}

#[test]
fn more_clients_than_a_process_may_serve_by_default_are_served() {
    let (upstream, folder) = (Upstream::answering(OK), tempfile::tempdir().unwrap());
    let limited = ["sh", "-c", "ulimit -Sn 64 && exec \"$@\"", "sh"];
    let proxy = captured::run_under(&limited, upstream.addr, folder.path(), &[]);
    let mut clients = Vec::new();
    for _ in 0..100 {
        let mut client = Client::connect(proxy.listen);
        assert_eq!(client.send(chat("{}")).response().text(), "ok");
        clients.push(client);
    }
}

#[test]
fn clients_beyond_the_descriptor_limit_wait_and_one_warning_is_logged() {
    let (upstream, folder) = (Upstream::answering(OK), tempfile::tempdir().unwrap());
    let limited = ["sh", "-c", "ulimit -n 48 && exec \"$@\"", "sh"];
    let mut proxy = captured::run_under(&limited, upstream.addr, folder.path(), &[]);
    let warnings = |log: &str| log.lines().filter(|line| line.contains("no more client connections")).count();
    for _ in 0..3 {
        let clients: Vec<_> = (0..48).map(|_| Client::connect(proxy.listen)).collect();
        until("it is told", || warnings(&proxy.log()) == 1);
        drop(clients);
        assert_eq!(Client::connect(proxy.listen).send(chat("{}")).response().text(), "ok");
    }
    proxy.terminate();
    let log = proxy.log();
    assert!(warnings(&log) == 1 && log.contains("raise the limit on open files"), "{log}");
}

/// A kubelet whose probes are not answered kills the pod, and its streams with it.
#[test]
fn probes_are_answered_while_clients_and_streams_take_all_the_descriptors_they_may() {
    let upstream = Upstream::start(|mut conn| {
        while conn.request().is_some() {
            conn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
            conn.chunk("data: 1\n\n");
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let limited = ["sh", "-c", "ulimit -n 64 && exec \"$@\"", "sh"];
    let proxy = captured::run_under(&limited, upstream.addr, folder.path(), &[]);
    let ask = |mut client: Client| {
        client.send(chat("{\"stream\":true}"));
        client
    };
    let streams: Vec<_> = (0..64).map(|_| ask(Client::connect(proxy.listen))).collect();
    until("clients wait", || proxy.log().contains("no more client connections"));
    let mut probes: Vec<_> = (0..12).map(|_| Client::connect(proxy.admin)).collect();
    for path in ["/livez", "/readyz", "/metrics"] {
        for probe in &mut probes {
            let response = probe.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).response();
            assert_eq!(response.status(), 200, "{path}");
        }
    }
    until("streams are open", || upstream.connections() > 4);
    drop(streams);
}

#[test]
fn a_client_with_a_large_prompt_can_send_all_of_it_and_then_reads_why_it_is_refused() {
    let (_held, nobody) = unused_address();
    let proxy = TestProxy::new(nobody);
    refused(&proxy.client().send(chat(&"x".repeat(16 << 20))).response(), 502, "upstream");
}

#[test]
fn a_request_for_which_there_is_no_descriptor_is_not_blamed_on_the_server() {
    let upstream = Upstream::start(|mut conn| {
        while let Some(request) = conn.request() {
            // Only a POST gets an answer.
            if request.head.starts_with("POST") {
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
                return;
            }
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let limited = ["sh", "-c", "ulimit -n 48 && exec \"$@\"", "sh"];
    let proxy = captured::run_under(&limited, upstream.addr, folder.path(), &[]);
    let mut client = Client::connect(proxy.listen);
    assert_eq!(client.send(chat("{}")).response().text(), "ok");
    let mut others = frames::Frames::connect(proxy.listen);
    let end = frames::END_HEADERS | frames::END_STREAM;
    (0..48).for_each(|n| assert!(others.send(frames::HEADERS, end, 2 * n + 1, frames::GET)));
    // Of its streams some are refused once all connections to the upstream are taken.
    while others.next().unwrap().kind != frames::HEADERS {}
    let response = client.send(chat("{}")).response();
    refused(&response, 503, "proxy");
    let why = response.field("x-streamgauge-error").unwrap();
    assert!(why.contains(&upstream.addr.to_string()) && why.contains("raise the limit on open files"), "{why}");
    drop(others);
    assert_eq!(proxy.page("/readyz"), "{\"status\":\"ready\"}", "nobody has asked the server");
}

#[test]
fn a_proxy_whose_threads_cannot_all_run_does_not_start() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 48 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_streamgauge"), "proxy"]);
    command.args(["--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--upstream=http://127.0.0.1:9", "--workers=64"]);
    let done = command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).output().unwrap();
    let stderr = String::from_utf8(done.stderr).unwrap();
    assert!(stderr.contains("cannot start a thread: Too many open files"), "{stderr}");
    assert_eq!(done.status.code(), Some(1), "{stderr}");
}

#[test]
fn another_time_to_connect_needs_no_restart() {
    let (deaf, _kept) = address_with_full_backlog();
    let proxy = TestProxy::with(deaf, &[("upstream_connect_timeout", "1h")]);
    proxy.reload(|config| config.upstream.connect_timeout = Gap::from_millis(50));
    let response = proxy.client().send(chat("{}")).response();
    refused(&response, 504, "upstream");
    assert!(response.field("x-streamgauge-error").unwrap().ends_with(" within 50.0ms"), "{}", response.head);
}

#[test]
fn an_outage_is_counted_for_the_requested_model() {
    let (_held, nobody) = unused_address();
    let proxy = TestProxy::with(nobody, &[("slos", "of-tiny[model=tiny]: ttft<=1s")]);
    let body = "{\"model\":\"tiny\",\"stream\":true}";
    // Many clients send a head and then, by itself, the body.
    let (request, mut client) = (chat(body), proxy.client());
    let (head, body) = request.split_at(request.len() - body.len());
    client.send(head);
    std::thread::sleep(Duration::from_millis(20));
    refused(&client.send(body).response(), 502, "upstream");
    let uri = format!("http://{}/v1/chat/completions", proxy.addr);
    let request = http::Request::post(uri).body(body.to_owned().into()).unwrap();
    assert_eq!(http2::request(proxy.addr, None, request, None).status, 502);
    // A name that no answer has confirmed gets no series of its own, but its SLO judges.
    let missed = "slo_requests_total{gen_ai_request_model=\"_other\",slo=\"of-tiny\",result=\"missed\"} 2";
    let scrape =
        || Client::connect(proxy.admin).send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").response().text();
    let counted = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        scrape().lines().any(|line| line.ends_with(missed))
    });
    assert!(counted, "{}", scrape());
}

#[test]
fn an_upstream_that_reads_a_request_and_closes_gives_502_without_a_retry() {
    let upstream = Upstream::start(|mut conn| {
        conn.request();
    });
    let proxy = TestProxy::new(upstream.addr);
    let response = proxy.client().send(chat("{}")).response();
    refused(&response, 502, "upstream");
    assert_eq!(upstream.heads().len(), 1, "nobody knows what the server did with it");
}

#[test]
fn an_answer_that_is_not_http_is_a_502() {
    for answer in [
        "SSH-2.0-x\r\n\r\n",
        "SSH-2.0-x\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 1\n\na",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\nY: b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0x1\r\n\r\na",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ] {
        let upstream = Upstream::answering(answer);
        let proxy = TestProxy::new(upstream.addr);
        refused(&proxy.client().send(chat("{}")).response(), 502, "upstream");
    }
}

#[test]
fn a_rejection_by_an_http2_server_is_explained_without_the_servers_text() {
    let goodbye = [&0_u32.to_be_bytes()[..], &11_u32.to_be_bytes(), b"SECRET"].concat();
    for (kind, payload, reason) in [
        (frames::RST_STREAM, &7_u32.to_be_bytes()[..], "stream error received: refused stream"),
        (frames::GOAWAY, &goodbye, "connection error received: detected excessive load"),
    ] {
        let last_words = payload.to_vec();
        let upstream = Upstream::start(move |mut conn| {
            conn.send(frames::frame(frames::SETTINGS, 0, 0, b""));
            let mut stream = frames::read_request(&mut conn);
            // A refused request is sent again.
            loop {
                let about = if kind == frames::GOAWAY { 0 } else { stream };
                conn.send(frames::frame(kind, 0, about, &last_words));
                stream = frames::read_next_request(&mut conn);
            }
        });
        let proxy = TestProxy::with(upstream.addr, &[("upstream_http", "http2")]);
        let response = proxy.client().send(chat("{}")).response();
        refused(&response, 502, "upstream");
        let text = format!("{}{}", response.head, response.text());
        assert!(text.contains(&format!("the HTTP/2 exchange failed: {reason}")) && !text.contains("SECRET"), "{text}");
    }
}

#[test]
fn a_head_that_is_too_large_is_a_431() {
    let upstream = Upstream::answering(OK);
    let proxy = TestProxy::with(upstream.addr, &[("max_head_bytes", "2000")]);
    let mut client = proxy.client();
    let response = client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(3_000))).response();
    refused(&response, 431, "downstream");
    assert!(response.text().contains("larger than 2000 bytes (--max-head-bytes)"), "{}", response.text());
    let many = "X: 1\r\n".repeat(1_100);
    let proxy = TestProxy::new(upstream.addr);
    let response = proxy.client().send(format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n")).response();
    refused(&response, 431, "downstream");
    assert!(upstream.heads().is_empty());
}

#[test]
fn a_head_that_does_not_come_in_time_is_a_408() {
    let upstream = Upstream::answering(OK);
    let proxy = TestProxy::with(upstream.addr, &[("head_timeout", "100ms")]);
    refused(&proxy.client().send("GET / HTTP/1.1\r\nHos").response(), 408, "downstream");
}

#[test]
fn a_connection_that_idles_too_long_is_closed_without_a_word() {
    let upstream = Upstream::answering(OK);
    let proxy = TestProxy::with(upstream.addr, &[("idle_timeout", "500ms")]);
    let mut client = proxy.client();
    assert_eq!(client.send(chat("{}")).response().text(), "ok");
    assert!(client.rest().is_empty());
}

#[test]
fn streams_beyond_the_limit_are_turned_away_until_one_ends() {
    let upstream = Upstream::start(|mut conn| {
        conn.request();
        conn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        conn.closed();
    });
    let proxy = TestProxy::with(upstream.addr, &[("max_streams", "2")]);
    let (mut one, mut two) = (proxy.client(), proxy.client());
    one.send(chat("{}")).head();
    two.send(chat("{}")).head();
    refused(&proxy.client().send(chat("{}")).response(), 503, "proxy");
    drop(one);
    let mut tries = 0;
    loop {
        let mut client = proxy.client();
        let head = client.send(chat("{}")).head();
        if head.starts_with("HTTP/1.1 200") {
            break;
        }
        tries += 1;
        assert!(tries < 500, "a place was not given back");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_health_probe_is_answered_while_no_further_stream_is_allowed() {
    let upstream = Upstream::start(|mut conn| {
        while let Some(request) = conn.request() {
            if request.head.contains("/health") {
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
                continue;
            }
            conn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
            conn.closed();
        }
    });
    let proxy = TestProxy::with(upstream.addr, &[("max_streams", "1")]);
    let mut held = proxy.client();
    held.send(chat("{}")).head();
    refused(&proxy.client().send(chat("{}")).response(), 503, "proxy");
    let mut kubelet = proxy.client();
    for _ in 0..3 {
        let response = kubelet.send("GET /health HTTP/1.1\r\nHost: a\r\n\r\n").response();
        assert_eq!((response.status(), response.text().as_str()), (200, "ok"));
    }
    refused(&proxy.client().send("GET /other HTTP/1.1\r\nHost: a\r\n\r\n").response(), 503, "proxy");
}

#[test]
fn a_websocket_takes_the_place_of_a_stream() {
    let upstream = Upstream::start(|mut conn| {
        conn.head();
        conn.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello");
        conn.closed();
    });
    let proxy = TestProxy::with(upstream.addr, &[("max_streams", "1")]);
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").head();
    assert_eq!(client.at_least(5), b"hello");
    refused(&proxy.client().send(chat("{}")).response(), 503, "proxy");
}

/// A gRPC call to a proxy.
fn call(proxy: &TestProxy) -> http2::Reply {
    let uri = format!("http://{}/inference.GRPCInferenceService/ModelStreamInfer", proxy.addr);
    let request = http::Request::post(uri).header("content-type", "application/grpc").header("te", "trailers");
    http2::request(proxy.addr, None, request.body(b"\0\0\0\0\0"[..].into()).unwrap(), None)
}

/// Fails unless the reply has only trailers, which is gRPC's form of a rejected call.
fn refused_call(reply: &http2::Reply, code: tonic::Code, fault: &str) {
    let field = |name: &str| reply.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    assert_eq!((reply.status, reply.body.len(), reply.broken), (200, 0, false), "{reply:?}");
    assert!(reply.ended_with_head && reply.trailers.is_none(), "{reply:?}");
    assert_eq!(field("content-type"), "application/grpc");
    // As a gRPC library reads it.
    let status = tonic::Status::from_header_map(&reply.headers).unwrap();
    assert_eq!(status.code(), code);
    assert_eq!(field("x-streamgauge-error"), format!("{fault}; {}", status.message()));
    assert!(!status.message().is_empty());
}

#[test]
fn a_grpc_client_gets_refusals_as_grpc_has_them() {
    let (_held, nobody) = unused_address();
    let proxy = TestProxy::new(nobody);
    refused_call(&call(&proxy), tonic::Code::Unavailable, "upstream");
    // It counts as what it would have been for others.
    let mut admin = Client::connect(proxy.admin);
    let counted = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        let state = admin.send("GET /api/state HTTP/1.1\r\nHost: localhost\r\n\r\n").response();
        let state: Value = serde_json::from_slice(&state.body).unwrap();
        (&state["recent"][0]["status"], &state["recent"][0]["outcome"]) == (&502.into(), &"failed".into())
    });
    assert!(counted);

    let upstream = Upstream::start(|mut conn| {
        conn.request();
        conn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        conn.closed();
    });
    let proxy = TestProxy::with(upstream.addr, &[("max_streams", "1")]);
    let mut one = proxy.client();
    one.send(chat("{}")).head();
    refused_call(&call(&proxy), tonic::Code::ResourceExhausted, "proxy");
    // A gRPC-web client speaks HTTP/1.1 and reads the same fields.
    let response = proxy
        .client()
        .send("POST /a.B/C HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc-web\r\nContent-Length: 0\r\n\r\n")
        .response();
    assert_eq!((response.status(), response.field("grpc-status"), response.body.len()), (200, Some("8"), 0));
    assert_eq!(response.field("content-type"), Some("application/grpc-web"));
}

#[test]
fn an_error_response_repeats_nothing_of_the_request() {
    let upstream = Upstream::answering(OK);
    let proxy = TestProxy::new(upstream.addr);
    for request in [
        "POST /canary HTTP/1.1\r\nHost: a\r\nX canary: 1\r\n\r\n",
        "POST /canary HTTP/1.1\r\nHost: canary\r\nContent-Length: canary\r\n\r\n",
        "POST /canary HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: canary\r\n\r\n",
        "CONNECT canary:1 HTTP/1.1\r\nHost: canary\r\n\r\n",
    ] {
        let response = proxy.client().send(request).response();
        assert!(!format!("{}{}", response.head, response.text()).contains("canary"), "{}", response.head);
    }
}
