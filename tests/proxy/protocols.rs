//! Protocols that pass through: HTTP/2 and TLS on either side, gRPC, WebSocket.

use std::convert::Infallible;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1 as http1_server, http2 as http2_server};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;

use crate::support::PATIENCE;
use crate::support::captured::{self, until};
use crate::support::client::{Client, chat};
use crate::support::frames;
use crate::support::http2::{self, Pki, client_config, client_config_with_certificate, server_config};
use crate::support::proxy::TestProxy;
use crate::support::unused_address;
use crate::support::upstream::{Upstream, field, reports};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-From: h1\r\n\r\nok";

fn get(path: &str) -> Request<Bytes> {
    Request::get(format!("http://proxy.test{path}")).body(Bytes::new()).unwrap()
}

/// An HTTP/2 upstream that answers with two pieces and trailers, and sends its requests to the test.
fn echoing(tls: Option<rustls::ServerConfig>) -> (SocketAddr, Receiver<(Request<Bytes>, HeaderMap)>) {
    let (sender, requests) = channel();
    let addr = http2::upstream(tls, move |request, trailers| {
        sender.send((request, trailers)).unwrap();
        let mut ending = HeaderMap::new();
        ending.insert("grpc-status", "0".parse().unwrap());
        let response =
            Response::builder().status(200).header("x-from", "h2").header("content-type", "application/grpc");
        (response.body(vec![Bytes::from("first"), Bytes::from("second")]).unwrap(), Some(ending))
    });
    (addr, requests)
}

#[test]
fn an_http2_client_reaches_an_http1_server() {
    let upstream = Upstream::answering(OK);
    let proxy = TestProxy::new(upstream.addr);
    let request = Request::post("http://proxy.test/v1/x?q=1")
        .header("X-Mixed", "Case")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(Bytes::from("payload"))
        .unwrap();
    let reply = http2::request(proxy.addr, None, request, None);
    assert_eq!((reply.status, &reply.body[..], reply.headers["x-from"].to_str().unwrap()), (200, &b"ok"[..], "h1"));
    let mut fields: Vec<_> = reply.headers.keys().map(|name| name.as_str()).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["content-length", "x-from"], "the server's own, and no date of ours");
    let head = upstream.heads().remove(0);
    assert!(head.starts_with("POST /v1/x?q=1 HTTP/1.1\r\nhost: proxy.test\r\n"), "{head}");
    assert_eq!((field(&head, "x-mixed"), field(&head, "cookie")), (Some("Case"), Some("a=1; b=2")));
    assert_eq!(field(&head, "transfer-encoding"), Some("chunked"));
}

#[test]
fn a_stream_from_an_http1_server_reaches_an_http2_client_with_its_end() {
    let upstream = Upstream::start(|mut conn| {
        while let Some(request) = conn.request() {
            conn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
            conn.chunk("data: 1\n\n");
            conn.chunk("data: 2\n\n");
            if request.head.contains("/whole") {
                conn.send("0\r\n\r\n");
            } else {
                return;
            }
        }
    });
    let proxy = TestProxy::new(upstream.addr);
    let whole = http2::request(proxy.addr, None, get("/whole"), None);
    assert_eq!((&whole.body[..], whole.broken), (&b"data: 1\n\ndata: 2\n\n"[..], false));
    assert!(!whole.headers.contains_key("transfer-encoding"));
    let cut = http2::request(proxy.addr, None, get("/cut"), None);
    assert!(cut.broken, "a cut stream is reset, not ended: {cut:?}");
}

#[test]
fn an_http1_client_reaches_an_http2_server() {
    let (addr, requests) = echoing(None);
    let proxy = TestProxy::with(addr, &[("upstream_http", "http2")]);
    let mut client = proxy.client();
    for _ in 0..2 {
        let response = client.send(chat("{\"a\":1}")).response();
        assert_eq!((response.status(), response.text().as_str()), (200, "firstsecond"));
        assert_eq!(response.trailers, [("grpc-status".into(), "0".into())]);
        let (request, _) = requests.recv().unwrap();
        assert_eq!((request.uri().path(), &request.body()[..]), ("/v1/chat/completions", &b"{\"a\":1}"[..]));
        assert_eq!(request.uri().authority().unwrap(), "proxy.test");
    }
}

#[test]
fn grpc_passes_through_with_its_trailers_both_ways() {
    let (addr, requests) = echoing(None);
    let proxy = TestProxy::new(addr);
    let request = Request::post("http://proxy.test/inference.GRPCInferenceService/ModelStreamInfer")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Bytes::from_static(b"\0\0\0\0\x05hello"))
        .unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-client", "done".parse().unwrap());
    let reply = http2::request(proxy.addr, None, request, Some(trailers));
    assert_eq!((reply.status, &reply.body[..]), (200, &b"firstsecond"[..]));
    assert_eq!(reply.trailers.unwrap()["grpc-status"], "0");
    let (request, trailers) = requests.recv().unwrap();
    assert_eq!(
        (&request.body()[..], request.headers()["te"].to_str().unwrap()),
        (&b"\0\0\0\0\x05hello"[..], "trailers")
    );
    assert_eq!(trailers["x-client"], "done");
}

#[test]
fn a_grpc_call_that_ends_with_its_head_ends_so_for_the_client() {
    let addr = http2::upstream(None, |_, _| {
        let response = Response::builder().header("content-type", "application/grpc");
        let response = response.header("grpc-status", "8").header("grpc-message", "busy");
        (response.body(Vec::new()).unwrap(), None)
    });
    let proxy = TestProxy::new(addr);
    let request = Request::post("http://proxy.test/inference.GRPCInferenceService/ModelInfer")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Bytes::from_static(b"\0\0\0\0\x05hello"))
        .unwrap();
    let reply = http2::request(proxy.addr, None, request, None);
    assert_eq!((reply.status, &reply.headers["grpc-status"], reply.body.len()), (200, &"8".parse().unwrap(), 0));
    assert!(reply.ended_with_head && reply.trailers.is_none() && !reply.broken, "{reply:?}");
}

#[test]
fn a_request_does_not_wait_for_a_stream_of_a_server_that_allows_one_at_a_time() {
    let upstream = Upstream::start(|mut conn| {
        let one_at_a_time = [0, 3, 0, 0, 0, 1];
        conn.send(frames::frame(frames::SETTINGS, 0, 0, &one_at_a_time));
        let stream = frames::read_request(&mut conn);
        conn.send(frames::frame(frames::HEADERS, frames::END_HEADERS, stream, b"\x88"));
        conn.send(frames::frame(frames::DATA, 0, stream, b"data: 1\n\n"));
        conn.closed();
    });
    let proxy = TestProxy::with(upstream.addr, &[("upstream_http", "http2"), ("workers", "1")]);
    let mut clients = [proxy.client(), proxy.client(), proxy.client()];
    for client in &mut clients {
        client.send(chat("{\"stream\":true}")).has("data: 1");
    }
    assert_eq!(upstream.connections(), clients.len());
}

#[test]
fn a_connection_with_an_abandoned_request_gets_no_new_ones_and_its_streams_continue() {
    let left = Arc::new(AtomicBool::new(false));
    let upstream = Upstream::start({
        let left = Arc::clone(&left);
        move |mut conn| {
            conn.send(frames::frame(frames::SETTINGS, 0, 0, b""));
            let stream = frames::read_request(&mut conn);
            conn.send(frames::frame(frames::HEADERS, frames::END_HEADERS, stream, b"\x88"));
            conn.send(frames::frame(frames::DATA, 0, stream, b"data: 1\n\n"));
            // Any other request gets no answer.
            until("a client has left", || left.load(Relaxed));
            conn.send(frames::frame(frames::DATA, frames::END_STREAM, stream, b"data: 2\n\n"));
            conn.closed();
        }
    });
    let proxy = TestProxy::with(upstream.addr, &[("upstream_http", "http2"), ("workers", "1")]);
    let mut streaming = proxy.client();
    streaming.send(chat("{\"stream\":true}")).has("data: 1");
    let mut waiting = proxy.client();
    waiting.send(chat("{}"));
    std::thread::sleep(Duration::from_millis(1_500));
    drop(waiting);
    until("it has left", || proxy.last_request()["outcome"] == "cancelled");
    left.store(true, Relaxed);
    assert!(proxy.client().send(chat("{}")).response().text().ends_with("data: 2\n\n"));
    streaming.has("data: 2");
    assert_eq!(upstream.connections(), 2);
}

/// How a server begins that takes a megabyte at once.
fn wide() -> Vec<u8> {
    let settings = frames::frame(frames::SETTINGS, 0, 0, &[0, 4, 0, 16, 0, 0]);
    [settings, frames::frame(frames::WINDOW_UPDATE, 0, 0, &[0, 16, 0, 0])].concat()
}

/// An HTTP/2 upstream that sends these frames after its whole first request, then closes if it must, and answers later
/// ones. Returns the bodies that it got.
fn reluctant(
    answer: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static,
    hangs_up: bool,
) -> (Upstream, Arc<Mutex<Vec<Vec<u8>>>>) {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let got = Arc::clone(&bodies);
    let upstream = Upstream::start(move |mut conn| {
        conn.send(wide());
        conn.exactly(frames::PREFACE.len());
        loop {
            let (stream, body) = frames::read_whole_request(&mut conn);
            let number = {
                let mut got = got.lock().unwrap();
                got.push(body);
                got.len()
            };
            if number == 1 {
                conn.send(answer(stream));
                if hangs_up {
                    return;
                }
                continue;
            }
            conn.send(frames::frame(frames::HEADERS, frames::END_HEADERS, stream, b"\x88"));
            conn.send(frames::frame(frames::DATA, frames::END_STREAM, stream, b"{}"));
        }
    });
    (upstream, bodies)
}

const REFUSED: [u8; 4] = 7_u32.to_be_bytes();
const INTERNAL: [u8; 4] = 2_u32.to_be_bytes();

#[test]
fn a_request_that_a_server_has_not_begun_is_sent_again_whole() {
    let refusing = reluctant(|stream| frames::frame(frames::RST_STREAM, 0, stream, &REFUSED), false);
    let leaving = reluctant(|_| frames::frame(frames::GOAWAY, 0, 0, &[0; 8]), true);
    for (what, (upstream, bodies), connections) in [("refused", refusing, 1), ("goodbye", leaving, 2)] {
        let proxy = TestProxy::with(upstream.addr, &[("upstream_http", "http2"), ("workers", "1")]);
        let response = proxy.client().send(chat("{\"stream\":false}")).response();
        assert_eq!((response.status(), response.text().as_str()), (200, "{}"), "{what}: {}", response.head);
        assert_eq!(*bodies.lock().unwrap(), [b"{\"stream\":false}", b"{\"stream\":false}"], "{what}");
        assert_eq!(upstream.connections(), connections, "{what}");
    }
}

#[test]
fn a_request_survives_a_goodbye_on_every_open_connection() {
    let raised = Arc::new(AtomicBool::new(false));
    let (report, has_room) = reports();
    let upstream = Upstream::start({
        let raised = Arc::clone(&raised);
        move |mut conn| {
            let streams = |most: u8| frames::frame(frames::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, most]);
            conn.send(streams(1));
            let stream = frames::read_request(&mut conn);
            conn.send(frames::frame(frames::HEADERS, frames::END_HEADERS, stream, b"\x88"));
            conn.send(frames::frame(frames::DATA, 0, stream, b"data: 1\n\n"));
            until("all connections are open", || raised.load(Relaxed));
            conn.send(streams(100));
            report(());
            let (_, _) = frames::read_whole_request(&mut conn);
            conn.send(frames::frame(frames::GOAWAY, 0, 0, &[stream.to_be_bytes(), [0; 4]].concat()));
            conn.closed();
        }
    });
    let proxy = TestProxy::with(upstream.addr, &[("upstream_http", "http2"), ("workers", "1")]);
    let mut streaming: Vec<_> = (0..4).map(|_| proxy.client()).collect();
    for client in &mut streaming {
        client.send(chat("{\"stream\":true}")).has("data: 1");
    }
    raised.store(true, Relaxed);
    (0..4).for_each(|_| has_room());
    // The proxy has read by then that these connections take more; where it has not, it opens one as well.
    std::thread::sleep(Duration::from_millis(200));
    proxy.client().send(chat("{\"stream\":true}")).has("data: 1");
    assert_eq!(upstream.connections(), 5);
}

#[test]
fn a_request_that_is_refused_mid_body_is_sent_again_whole() {
    let (sender, bodies) = channel();
    let upstream = Upstream::start(move |mut conn| {
        conn.send(wide());
        let stream = frames::read_request(&mut conn);
        conn.send(frames::frame(frames::RST_STREAM, 0, stream, &REFUSED));
        let (stream, body) = frames::read_whole_request(&mut conn);
        conn.send(frames::frame(frames::HEADERS, frames::END_HEADERS | frames::END_STREAM, stream, b"\x88"));
        sender.send(body).unwrap();
    });
    let proxy = TestProxy::with(upstream.addr, &[("upstream_http", "http2"), ("workers", "1")]);
    let mut client = proxy.client();
    client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 65536\r\n\r\n{\"a\":\"");
    // Refused by then; where it is not yet, it is the same.
    std::thread::sleep(Duration::from_millis(200));
    let rest = "a".repeat(65_536 - 8) + "\"}";
    assert_eq!(client.send(&rest).response().status(), 200);
    assert_eq!(bodies.recv().unwrap(), format!("{{\"a\":\"{rest}").into_bytes());
}

#[test]
fn a_request_that_a_server_may_have_begun_or_that_is_too_large_to_be_kept_is_not_sent_again() {
    let large = format!("{{\"a\":\"{}\"}}", "a".repeat(65_536));
    for (what, body, reply_frame) in [
        ("broken", "{}", frames::frame(frames::RST_STREAM, 0, 1, &INTERNAL)),
        // It is the last one that it has begun.
        ("leaving", "{}", frames::frame(frames::GOAWAY, 0, 0, &[1_u32.to_be_bytes(), [0; 4]].concat())),
        ("leaving in trouble", "{}", frames::frame(frames::GOAWAY, 0, 0, &[[0; 4], INTERNAL].concat())),
        ("large", &large, frames::frame(frames::RST_STREAM, 0, 1, &REFUSED)),
    ] {
        let (upstream, bodies) = reluctant(move |_| reply_frame.clone(), what == "leaving");
        let proxy = TestProxy::with(upstream.addr, &[("upstream_http", "http2"), ("workers", "1")]);
        assert_eq!(proxy.client().send(chat(body)).response().status(), 502, "{what}");
        assert_eq!(bodies.lock().unwrap().len(), 1, "{what}");
    }
}

#[test]
fn a_large_upload_over_http2_arrives_whole() {
    let (addr, requests) = echoing(None);
    let payload: Bytes = (0..3 << 20).map(|at: u32| (at % 249) as u8).collect();
    for upstream_http in ["http2", "http1"] {
        let h1 = Upstream::answering(OK);
        let target = if upstream_http == "http2" { addr } else { h1.addr };
        let proxy = TestProxy::with(target, &[("upstream_http", upstream_http)]);
        let request = Request::post("http://proxy.test/up").body(payload.clone()).unwrap();
        let reply = http2::request(proxy.addr, None, request, None);
        assert_eq!(reply.status, 200);
        if upstream_http == "http2" {
            assert!(requests.recv().unwrap().0.body() == &payload);
        }
    }
}

#[test]
fn an_http2_client_gets_refusals_as_well() {
    let (_held, nobody) = unused_address();
    let proxy = TestProxy::new(nobody);
    let reply = http2::request(proxy.addr, None, get("/v1/chat/completions"), None);
    assert_eq!(reply.status, 502);
    assert!(reply.headers["x-streamgauge-error"].to_str().unwrap().starts_with("upstream; "));
    assert!(serde_json::from_slice::<serde_json::Value>(&reply.body).unwrap()["error"]["message"].is_string());
}

/// One HTTP/1.1 exchange over TLS; the error if there was one.
fn over_tls(addr: SocketAddr, config: rustls::ClientConfig) -> std::io::Result<String> {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut session = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut socket = TcpStream::connect(addr)?;
    let mut stream = rustls::Stream::new(&mut session, &mut socket);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn tls_settings(pki: &Pki) -> (String, String) {
    (pki.text("server.pem"), pki.text("server.key"))
}

#[test]
fn clients_reach_us_over_tls_in_either_version() {
    let (pki, upstream) = (Pki::new(), Upstream::answering(OK));
    let (cert, key) = tls_settings(&pki);
    let proxy = TestProxy::with(upstream.addr, &[("tls_cert", &cert), ("tls_key", &key)]);
    assert!(over_tls(proxy.addr, client_config(&pki, &["http/1.1"])).unwrap().ends_with("\r\n\r\nok"));
    assert_eq!(http2::request(proxy.addr, Some(client_config(&pki, &["h2"])), get("/"), None).body, "ok");
}

#[test]
fn a_plaintext_client_of_a_tls_port_gets_an_explanation() {
    let (pki, upstream) = (Pki::new(), Upstream::answering(OK));
    let ((cert, key), ca) = (tls_settings(&pki), pki.text("ca.pem"));
    let proxy = TestProxy::with(upstream.addr, &[("tls_cert", &cert), ("tls_key", &key), ("tls_client_ca", &ca)]);
    let refused = proxy.client().send(chat("{}")).response();
    let expected = "downstream; this port speaks TLS: try https://";
    assert_eq!((refused.status(), refused.field("x-streamgauge-error")), (400, Some(expected)));

    // Other servers of TLS answer with an alert.
    let alert = Upstream::answering([21, 3, 3, 0, 2, 2, 10]);
    let refused = TestProxy::new(alert.addr).client().send(chat("{}")).response();
    assert_eq!(refused.status(), 502);
    assert!(refused.field("x-streamgauge-error").unwrap().ends_with("it is of TLS: try https://"), "{}", refused.head);
}

#[test]
fn a_client_without_the_required_certificate_is_rejected() {
    let (pki, upstream) = (Pki::new(), Upstream::answering(OK));
    let ((cert, key), ca) = (tls_settings(&pki), pki.text("ca.pem"));
    let proxy = TestProxy::with(upstream.addr, &[("tls_cert", &cert), ("tls_key", &key), ("tls_client_ca", &ca)]);
    assert!(over_tls(proxy.addr, client_config(&pki, &[])).is_err());
    assert!(over_tls(proxy.addr, client_config_with_certificate(&pki, &[])).unwrap().ends_with("ok"));
    let strangers = Pki::new();
    let mut stranger = client_config_with_certificate(&strangers, &[]);
    stranger.alpn_protocols.clear();
    assert!(over_tls(proxy.addr, stranger).is_err());
    assert_eq!(upstream.heads().len(), 1);
}

#[test]
fn a_client_that_never_starts_tls_does_not_delay_shutdown() {
    let pki = Pki::new();
    let (cert, key) = tls_settings(&pki);
    let settings = [("tls_cert", &*cert), ("tls_key", &key), ("head_timeout", "1h")];
    let proxy = TestProxy::with(Upstream::answering(OK).addr, &settings);
    let _silent = TcpStream::connect(proxy.addr).unwrap();
    // By then the one before it has been taken in as well.
    assert!(over_tls(proxy.addr, client_config(&pki, &[])).unwrap().ends_with("ok"));
    assert!(proxy.stop(PATIENCE));
}

#[test]
fn a_renewed_certificate_is_used_without_a_restart_and_a_broken_one_is_not() {
    let (pki, upstream) = (Pki::new(), Upstream::answering(OK));
    let (cert, key) = tls_settings(&pki);
    let proxy = TestProxy::with(upstream.addr, &[("tls_cert", &cert), ("tls_key", &key)]);
    let renewed = Pki::new();
    assert!(over_tls(proxy.addr, client_config(&renewed, &[])).is_err());
    for file in ["server.pem", "server.key"] {
        std::fs::copy(renewed.path(file), pki.path(file)).unwrap();
    }
    // The proxy gets no signal: it watches the files.
    let mut tries = 0;
    while over_tls(proxy.addr, client_config(&renewed, &[])).is_err() {
        tries += 1;
        assert!(tries < 600, "the renewed certificate is not used");
        std::thread::sleep(Duration::from_millis(100));
    }
    std::fs::write(pki.path("server.pem"), "rubbish").unwrap();
    proxy.renew();
    std::thread::sleep(Duration::from_millis(100));
    assert!(over_tls(proxy.addr, client_config(&renewed, &[])).unwrap().ends_with("ok"));
}

#[test]
fn the_upstream_is_reached_over_tls_with_our_certificate() {
    let pki = Pki::new();
    let (addr, requests) = echoing(Some(server_config(&pki, Some(&pki.path("ca.pem")))));
    let (ca, cert, key) = (pki.text("ca.pem"), pki.text("client.pem"), pki.text("client.key"));
    let url = format!("https://{addr}");
    let proxy = TestProxy::to(&url, &[("upstream_ca", &ca), ("upstream_cert", &cert), ("upstream_key", &key)]);
    let response = proxy.client().send(chat("{}")).response();
    assert_eq!(
        (response.text().as_str(), requests.recv().unwrap().0.version()),
        ("firstsecond", http::Version::HTTP_2)
    );

    let without = TestProxy::to(&url, &[("upstream_ca", &ca)]);
    assert_eq!(without.client().send(chat("{}")).response().status(), 502);
    let untrusting = TestProxy::to(
        &url,
        &[("upstream_cert", &cert), ("upstream_key", &key), ("upstream_ca", &Pki::new().text("ca.pem"))],
    );
    let response = untrusting.client().send(chat("{}")).response();
    assert_eq!(response.status(), 502);
    assert!(response.field("x-streamgauge-error").unwrap().contains("certificate"), "{}", response.head);
}

#[test]
fn http1_over_tls_to_the_upstream_is_kept_and_used_again() {
    let pki = Pki::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let mut config = server_config(&pki, None);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let config = Arc::new(config);
    let (sender, connections) = channel();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let (mut socket, config, sender) = (socket.unwrap(), Arc::clone(&config), sender.clone());
            std::thread::spawn(move || {
                let mut session = rustls::ServerConnection::new(config).unwrap();
                let mut stream = rustls::Stream::new(&mut session, &mut socket);
                let mut seen = Vec::new();
                let mut buffer = [0; 4096];
                let mut first = true;
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    // The proxy tries whether the server can be reached; that brings no request.
                    if std::mem::take(&mut first) {
                        sender.send(()).unwrap();
                    }
                    seen.extend_from_slice(&buffer[..n]);
                    while let Some(at) = seen.windows(4).position(|window| window == b"\r\n\r\n") {
                        seen.drain(..at + 4);
                        stream.write_all(OK.as_bytes()).unwrap();
                    }
                }
            });
        }
    });
    let ca = pki.text("ca.pem");
    let proxy = TestProxy::to(&format!("https://{addr}"), &[("upstream_ca", &ca), ("workers", "1")]);
    let mut client = proxy.client();
    for _ in 0..5 {
        assert_eq!(client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").response().text(), "ok");
        // Longer than a connection rests after the proxy is through with it, a moment after its client.
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(connections.try_iter().count(), 1, "one connection, its session tickets notwithstanding");
}

/// Answers over TLS without a length, so the connection's end is the answer's end. Sends a close_notify only while the
/// returned flag is true.
fn ending(pki: &Pki) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, sends_notify) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(true)));
    let mut config = server_config(pki, None);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let (config, flag) = (Arc::new(config), Arc::clone(&sends_notify));
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let session = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = rustls::StreamOwned::new(session, socket.unwrap());
            // The proxy tries whether the server can be reached; that brings no request.
            if matches!(stream.read(&mut [0; 4096]), Ok(1..)) {
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nall of it").unwrap();
                if flag.load(Relaxed) {
                    stream.conn.send_close_notify();
                }
                stream.flush().unwrap();
            }
        }
    });
    (addr, sends_notify)
}

#[test]
fn a_reply_without_close_notify_is_truncated_for_the_client_too() {
    let pki = Pki::new();
    let (addr, sends_notify) = ending(&pki);
    let ((cert, key), ca) = (tls_settings(&pki), pki.text("ca.pem"));
    let settings = [("upstream_ca", &*ca), ("tls_cert", &cert), ("tls_key", &key)];
    let proxy = TestProxy::to(&format!("https://{addr}"), &settings);
    for whole in [true, false] {
        sends_notify.store(whole, Relaxed);
        let over_http1 = over_tls(proxy.addr, client_config(&pki, &["http/1.1"]));
        assert_eq!(over_http1.as_ref().err().map(std::io::Error::kind), (!whole).then_some(ErrorKind::ConnectionReset));
        assert_eq!(proxy.last_request()["outcome"], if whole { "success" } else { "truncated" });
        let over_http2 = http2::request(proxy.addr, Some(client_config(&pki, &["h2"])), get("/"), None);
        assert_eq!((&*over_http2.body, over_http2.broken), (&b"all of it"[..], !whole));
    }
}

/// Answers over TLS with the negotiated version of HTTP until the test stops it; then no connection of it is open.
fn agreeing(listener: &std::net::TcpListener, tls: rustls::ServerConfig) -> impl FnOnce() {
    let listener = listener.try_clone().unwrap();
    listener.set_nonblocking(true).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = std::thread::spawn(move || {
        http2::runtime().block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
            let service = service_fn(async |request: Request<Incoming>| {
                Ok::<_, Infallible>(Response::new(format!("{:?}", request.version())))
            });
            let serving = async {
                loop {
                    let Ok(stream) = acceptor.accept(listener.accept().await.unwrap().0).await else { continue };
                    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let io = TokioIo::new(stream);
                    tokio::spawn(async move {
                        match is_http2 {
                            true => {
                                http2_server::Builder::new(TokioExecutor::new()).serve_connection(io, service).await
                            }
                            false => http1_server::Builder::new().serve_connection(io, service).await,
                        }
                    });
                }
            };
            tokio::select! {
                () = serving => {}
                _stopped = stopped => {}
            }
        });
    });
    move || {
        drop(stop);
        server.join().unwrap();
    }
}

#[test]
fn a_server_that_returns_with_another_http_version_is_used_with_it() {
    let pki = Pki::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let proxy = TestProxy::to(&url, &[("upstream_ca", &pki.text("ca.pem")), ("workers", "1")]);
    for (alpn, version) in [("h2", "HTTP/2.0"), ("http/1.1", "HTTP/1.1"), ("h2", "HTTP/2.0")] {
        let mut tls = server_config(&pki, None);
        tls.alpn_protocols = vec![alpn.into()];
        let stop = agreeing(&listener, tls);
        let response = proxy.client().send(chat("{}")).response();
        assert_eq!((response.status(), response.text().as_str()), (200, version));
        stop();
    }
}

#[test]
fn a_server_that_tls_does_not_reach_is_not_ready_and_the_remedy_is_logged() {
    let (pki, others) = (Pki::new(), Pki::new());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stop = agreeing(&listener, server_config(&pki, None));
    let (secret, plain) = (listener.local_addr().unwrap(), Upstream::start(|mut conn| assert!(conn.send(OK))));
    for (addr, ca, name, remedy) in [
        (secret, &others, "127.0.0.1", "; --upstream-ca names the certificates to trust"),
        (secret, &pki, "other.test", "; --upstream-server-name says which name to expect"),
        (plain.addr, &pki, "127.0.0.1", "; it does not speak TLS: try http://"),
    ] {
        let settings = [("upstream_ca", &*ca.text("ca.pem")), ("upstream_server_name", name)];
        let proxy = TestProxy::to(&format!("https://{addr}"), &settings);
        until("it is not ready, and why", || {
            let (ready, reason) = proxy.ready();
            !ready && reason.contains(remedy)
        });
        let response = proxy.client().send(chat("{}")).response();
        assert_eq!(response.status(), 502);
        assert!(response.field("x-streamgauge-error").unwrap().ends_with(remedy), "{}", response.head);
    }
    stop();
}

#[test]
fn a_websocket_passes_through() {
    let upstream = Upstream::start(|mut conn| {
        let head = conn.head().unwrap();
        assert_eq!((field(&head, "connection"), field(&head, "upgrade")), (Some("Upgrade"), Some("websocket")));
        conn.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\nhello");
        for _ in 0..3 {
            let frame = conn.exactly(4);
            conn.send(frame);
        }
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send("GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: y\r\n\r\nearl");
    let head = client.head();
    assert_eq!(
        head,
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n"
    );
    assert_eq!(client.at_least(9), b"helloearl");
    for frame in [b"ping", b"pong"] {
        assert_eq!(client.send(frame).at_least(4), frame);
    }
    assert!(client.rest().is_empty(), "the server's close reaches the client");
}

#[test]
fn a_websockets_bytes_are_counted_both_ways_with_those_that_came_with_the_heads() {
    let upstream = Upstream::start(|mut conn| {
        conn.head().unwrap();
        conn.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello");
        conn.exactly(4 + 6);
        conn.send("and more");
    });
    let folder = tempfile::TempDir::new().unwrap();
    let run = captured::run(upstream.addr, folder.path(), &["--access-log"]);
    let mut client = Client::connect(run.listen);
    client.send("GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearl");
    client.head();
    client.send("sooner");
    assert_eq!(client.rest(), b"helloand more");
    until("it is logged", || run.log().contains("\"request\""));
    let (line, log) = (r#""request_bytes":10,"response_bytes":13"#, run.log());
    assert!(log.contains(line) && log.contains(r#""status":101,"outcome":"success""#), "{log}");
}

#[test]
fn an_upgrade_to_http2_is_not_offered_to_the_upstream() {
    let fields = [
        "h2c",
        "websocket, h2c",
        "websocket\r\nUpgrade: h2c",
        "h2c\r\nUpgrade: websocket",
        "websocket\r\nUpgrade: x, H2C/1",
    ];
    for upgrade in fields {
        let upstream = Upstream::answering(OK);
        let proxy = TestProxy::new(upstream.addr);
        let mut client = proxy.client();
        let connection = "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk";
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{connection}\r\nUpgrade: {upgrade}\r\n\r\n"));
        assert_eq!(client.response().text(), "ok", "{upgrade}");
        assert_eq!(upstream.heads(), ["GET / HTTP/1.1\r\nHost: a\r\n\r\n"], "{upgrade}");
    }
}
