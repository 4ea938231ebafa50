//! Hostile peers: the cost of each is bounded, and other clients do not pay for it.
//!
//! `error_responses.rs` has what the proxy rejects at once; these peers hold on, pour in, or speak out of turn.

use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::support::captured::run_without_capture;
use crate::support::client::{Client, chat};
use crate::support::frames::{self, Frames};
use crate::support::http2::{self, Pki};
use crate::support::proxy::TestProxy;
use crate::support::upstream::{Upstream, reports};
use crate::support::{PATIENCE, unused_address};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// The most bytes by which the proxy may grow for a peer that pours hundreds of megabytes.
const BOUND: usize = 16 << 20;

/// Asserts that another client is served as usual.
fn serves(proxy: &TestProxy) {
    assert_eq!(proxy.client().send(GET).response().text(), "ok");
}

/// A proxy with one worker, so that a client that blocks it blocks all others.
fn single(upstream: &Upstream, settings: &[(&str, &str)]) -> TestProxy {
    TestProxy::with(upstream.addr, &[&[("workers", "1")], settings].concat())
}

/// Writes until the other side takes no more; how much it took.
fn pour(client: &mut Client, piece: &[u8], most: usize) -> usize {
    client.stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut poured = 0;
    while poured < most {
        match client.stream.write(piece) {
            Ok(n) => poured += n,
            Err(error) => {
                let closed = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
                assert!(closed, "neither taken nor refused: {error}");
                break;
            }
        }
    }
    poured
}

// ------------------------------------------------------------------------------------------------ clients over HTTP/1

#[test]
fn a_head_that_drips_is_cut_off_at_its_time_limit_and_not_given_more_by_each_byte() {
    let upstream = Upstream::answering(OK);
    let proxy = single(&upstream, &[("head_timeout", "300ms")]);
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\n");
    client.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut drops = 0;
    while client.stream.peek(&mut [0]).is_err() {
        drops += 1;
        assert!(drops < 500, "the head may drip for ever");
        client.send("X");
        serves(&proxy);
    }
    assert_eq!(client.head().split(' ').nth(1), Some("408"));
    assert!(upstream.heads().iter().all(|head| !head.contains("X")));
}

#[test]
fn a_million_fields_cost_no_more_than_the_limit_of_a_head() {
    let upstream = Upstream::answering(OK);
    let proxy = single(&upstream, &[]);
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n");
    let poured = pour(&mut client, "X: 1\r\n".repeat(1_000).as_bytes(), 64 << 20);
    assert!(poured < 16 << 20, "{poured} bytes of a head were taken");
    assert_eq!(upstream.heads().len(), 0);
    serves(&proxy);
}

#[test]
fn empty_lines_before_a_request_are_passed_over_however_many() {
    let upstream = Upstream::answering(OK);
    let proxy = single(&upstream, &[]);
    let mut client = proxy.client();
    for _ in 0..64 {
        client.send("\r\n".repeat(32 << 10));
    }
    assert_eq!(client.send(GET).response().text(), "ok");
}

#[test]
fn a_very_slow_body_passes_and_delays_no_other_client() {
    let (report, seen) = reports();
    let upstream = Upstream::start(move |mut conn| {
        while let Some(request) = conn.request() {
            if !request.body.is_empty() {
                report(request.body);
            }
            conn.send(OK);
        }
    });
    let proxy = single(&upstream, &[("head_timeout", "500ms"), ("idle_timeout", "500ms")]);
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n");
    for _ in 0..20 {
        client.send("x");
        serves(&proxy);
        std::thread::sleep(Duration::from_millis(40));
    }
    assert_eq!((client.response().text().as_str(), seen()), ("ok", vec![b'x'; 20]));
}

#[test]
fn extensions_of_chunks_are_taken_off_within_their_bound_and_refused_beyond() {
    let upstream = Upstream::answering(OK);
    let proxy = single(&upstream, &[]);
    let extended = format!("1;{}\r\nx\r\n", "e".repeat(4_000)).repeat(1_000);
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").send(extended).send("0\r\n\r\n");
    assert_eq!(client.response().text(), "ok");
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;");
    let poured = pour(&mut client, &[b'e'; 65_536], 64 << 20);
    assert!(poured < 16 << 20, "{poured} bytes of an extension were taken");
    serves(&proxy);
}

#[test]
fn trailers_without_end_are_refused() {
    let upstream = Upstream::answering(OK);
    let proxy = single(&upstream, &[]);
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n");
    client.send("X: 1\r\n".repeat(12_000));
    assert_eq!(client.response().status(), 400);
    serves(&proxy);
}

#[test]
fn silent_connections_take_slots_and_return_them() {
    let upstream = Upstream::answering(OK);
    let proxy = single(&upstream, &[("max_connections", "3"), ("idle_timeout", "300ms")]);
    let mut idle: Vec<Client> = (0..3).map(|_| proxy.client()).collect();
    // The fourth waits in the kernel's queue until the three have been silent for too long.
    serves(&proxy);
    for client in &mut idle {
        assert!(client.rest().is_empty());
    }
}

#[test]
fn a_head_that_was_sent_ahead_has_its_whole_time_once_it_can_be_read() {
    let upstream = Upstream::start(|mut conn| {
        while conn.request().is_some() {
            // Only the first answer takes longer than a head may.
            if conn.number == 0 {
                std::thread::sleep(Duration::from_millis(1_500));
            }
            conn.send(OK);
        }
    });
    let proxy = single(&upstream, &[("head_timeout", "1s")]);
    let mut client = proxy.client();
    client.send(format!("{GET}GET / HT"));
    assert_eq!(client.response().text(), "ok");
    client.send("TP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().text(), "ok");
}

#[test]
fn an_unfinished_handshake_times_out() {
    let pki = Pki::new();
    let (cert, key) = (pki.text("server.pem"), pki.text("server.key"));
    let upstream = Upstream::answering(OK);
    let proxy = single(&upstream, &[("tls_cert", &cert), ("tls_key", &key), ("head_timeout", "200ms")]);
    for first in [&b""[..], b"\x16\x03\x01\x40\x00\x01", b"\x00 is neither TLS nor HTTP\r\n\r\n"] {
        let mut client = proxy.client();
        // The proxy may send a reason, and closes.
        assert!(client.send(first).rest().len() < 100);
    }
}

// -------------------------------------------------------------------------------------------------------- upstreams

#[test]
fn a_head_of_the_upstream_that_is_too_large_is_a_502() {
    for fields in [format!("X: {}\r\n", "x".repeat(70_000)), "X: 1\r\n".repeat(1_100), "X: 1\r\n".repeat(500_000)] {
        let upstream = Upstream::start(move |mut conn| {
            conn.request();
            conn.send(format!("HTTP/1.1 200 OK\r\n{fields}"));
            conn.send("\r\n");
            conn.closed();
        });
        let proxy = single(&upstream, &[]);
        let response = proxy.client().send(chat("{}")).response();
        assert_eq!(response.status(), 502);
        assert!(response.field("x-streamgauge-error").unwrap().starts_with("upstream; "), "{}", response.head);
    }
}

#[test]
fn a_reply_of_a_thousand_fields_and_as_many_trailers_is_passed_on_whole() {
    let fields: String = (0..1_000).map(|n| format!("X-Field-{n}: {n}\r\n")).collect();
    let sent = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{fields}\r\n2\r\nok\r\n0\r\n{fields}\r\n");
    let upstream = Upstream::answering(sent);
    let proxy = single(&upstream, &[]);
    let response = proxy.client().send(chat("{}")).response();
    assert_eq!((response.status(), response.text().as_str(), response.truncated), (200, "ok", false));
    assert!(response.head.contains(&fields), "{} bytes", response.head.len());
    let trailers: String = response.trailers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    assert_eq!(trailers, fields);
}

#[test]
fn a_head_of_an_http2_upstream_has_the_same_limit() {
    for (length, status) in [(40_000, 200), (70_000, 502)] {
        let upstream = http2::upstream(None, move |_, _| {
            let response = http::Response::builder().header("x", "x".repeat(length));
            (response.body(Vec::new()).unwrap(), None)
        });
        let proxy = TestProxy::with(upstream, &[("upstream_http", "http2"), ("workers", "1")]);
        let response = proxy.client().send(chat("{}")).response();
        assert_eq!(response.status(), status, "{length}");
        assert_eq!(response.field("x").map_or(0, str::len), if status == 200 { length } else { 0 });
    }
}

/// The server sends first, on every connection; its real answers come after that one.
#[test]
fn an_early_reply_is_never_taken_for_that_of_a_later_request() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _sent = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly").is_ok();
            std::thread::spawn(move || {
                while matches!(stream.peek(&mut [0]), Ok(1)) {
                    let mut request = [0; 4096];
                    let read = std::io::Read::read(&mut stream, &mut request).unwrap_or(0);
                    let path = String::from_utf8_lossy(&request[..read]).split(' ').nth(1).unwrap_or("").to_owned();
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len());
                    let _sent = stream.write_all(answer.as_bytes()).is_ok();
                }
            });
        }
    });
    let proxy = TestProxy::with(addr, &[("workers", "1")]);
    let mut client = proxy.client();
    for number in 0..5 {
        let text = client.send(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n")).response().text();
        // Never the answer to another request.
        assert!(text == "early" || text == format!("/{number}"), "{text} answers request {number}");
        // Longer than a connection rests, and than a busy machine takes to send the answer too many.
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// An answer too many, at once or later, waits for the next request to come along.
#[test]
fn an_unrequested_response_reaches_no_client() {
    let extra = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen";
    let no_content = "HTTP/1.1 204 No Content\r\nContent-Length: 60\r\n\r\n";
    for (answer, pause) in [(OK, 0), (OK, 20), (no_content, 0)] {
        let (sent, is_sent) = reports();
        let upstream = Upstream::start(move |mut conn| {
            while conn.request().is_some() {
                if pause == 0 {
                    conn.send(format!("{answer}{extra}"));
                } else {
                    conn.send(answer);
                    std::thread::sleep(Duration::from_millis(pause));
                    conn.send(extra);
                }
                sent(());
            }
        });
        let proxy = single(&upstream, &[]);
        let mut client = proxy.client();
        for _ in 0..5 {
            let response = client.send(GET).response();
            assert_ne!(response.text(), "stolen");
            assert!(matches!(response.status(), 200 | 204));
            is_sent();
            // Longer than a connection rests.
            std::thread::sleep(Duration::from_millis(80));
        }
    }
}

#[test]
fn the_body_of_an_answer_to_head_is_not_the_next_answer() {
    let upstream = Upstream::start(|mut conn| {
        while let Some(request) = conn.request() {
            let body =
                if request.head.starts_with("HEAD") { "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad" } else { "" };
            conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        }
    });
    let proxy = single(&upstream, &[]);
    let mut client = proxy.client();
    for _ in 0..5 {
        client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").head();
        assert_eq!(client.send(GET).response().text(), "");
    }
}

#[test]
fn endless_interim_responses_delay_no_other_client() {
    let (report, flood_ended) = reports();
    let upstream = Upstream::start(move |mut conn| {
        let request = conn.request().unwrap();
        if !request.head.starts_with("GET /flood") {
            conn.send(OK);
            return;
        }
        let flood = "HTTP/1.1 100 Continue\r\n\r\n".repeat(1_000);
        while conn.send(&flood) {}
        report(());
    });
    let proxy = single(&upstream, &[]);
    let mut client = proxy.client();
    client.send("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
    for _ in 0..5 {
        serves(&proxy);
    }
    drop(client);
    flood_ended();
}

#[test]
fn trailers_and_extensions_of_the_upstream_without_end_end_the_answer() {
    for poured in [format!("0\r\n{}", "X: 1\r\n".repeat(12_000)), format!("1;{}", "e".repeat(8_000))] {
        let upstream = Upstream::start(move |mut conn| {
            conn.request();
            conn.send(STREAM);
            conn.chunk("data: {}\n\n");
            conn.send(&poured);
            conn.closed();
        });
        let proxy = single(&upstream, &[]);
        let response = proxy.client().send(chat("{}")).response();
        assert_eq!((response.text().as_str(), response.truncated), ("data: {}\n\n", true));
    }
}

#[test]
fn an_event_without_end_is_forwarded_and_not_kept() {
    const SIZE: usize = 100 << 20;
    let upstream = Upstream::start(|mut conn| {
        conn.request();
        conn.send(STREAM);
        conn.chunk("data: {\"choices\":[{\"delta\":{\"content\":\"");
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..SIZE / piece.len() {
            conn.chunk(&piece);
        }
        conn.send("0\r\n\r\n");
    });
    let (length, held) = streamed(&upstream);
    assert_eq!(length, SIZE + 39);

    assert!(held < BOUND, "{held} bytes were held");
}

/// A few hundred kilobytes on the wire, hundreds of megabytes unfolded: of one line, and of empty ones, which would take
/// time instead of memory.
#[test]
fn a_bomb_is_forwarded_as_it_is_and_unfolded_within_bounds() {
    for plain in [vec![b'x'; 1 << 20], b"\n".repeat(1 << 20)] {
        let mut member = GzEncoder::new(Vec::new(), Compression::best());
        member.write_all(&plain).unwrap();
        let bomb = member.finish().unwrap().repeat(200);
        let head = STREAM.replace("\r\n\r\n", "\r\nContent-Encoding: gzip\r\n\r\n");
        let sent = bomb.clone();
        let upstream = Upstream::start(move |mut conn| {
            conn.request();
            conn.send(&head);
            conn.chunk(&sent);
            conn.send("0\r\n\r\n");
        });
        let (length, held) = streamed(&upstream);
        assert_eq!(length, bomb.len());

        assert!(held < BOUND, "{held} bytes were held");
    }
}

/// The length of a streamed body, and the bytes by which the proxy grew meanwhile.
fn streamed(upstream: &Upstream) -> (usize, usize) {
    let proxy = run_without_capture(upstream.addr, &[]);
    let before = proxy.peak_bytes();
    let response = proxy.client().send(chat("{\"stream\":true}")).response();
    assert!(!response.truncated);
    (response.body.len(), proxy.peak_bytes() - before)
}

// ------------------------------------------------------------------------------------------------ clients over HTTP/2

/// Every stream that is reset gives back its place.
#[test]
fn streams_that_are_reset_as_soon_as_they_begin_leave_nothing_behind() {
    let upstream = Upstream::answering(OK);
    let proxy = single(&upstream, &[("max_streams", "4")]);
    let mut attacker = Frames::connect(proxy.addr);
    for number in 0..5_000 {
        let stream = number * 2 + 1;
        let is_sent = attacker.send(frames::HEADERS, frames::END_HEADERS | frames::END_STREAM, stream, frames::GET);
        // A proxy that has enough may close.
        if !is_sent || !attacker.send(frames::RST_STREAM, 0, stream, &8u32.to_be_bytes()) {
            break;
        }
    }
    for _ in 0..8 {
        let mut tries = 0;
        while proxy.client().send(GET).response().status() != 200 {
            tries += 1;
            assert!(tries < 500, "a place was not given back");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn floods_of_frames_that_want_an_answer_are_not_kept() {
    let upstream = Upstream::answering(OK);
    let proxy = run_without_capture(upstream.addr, &[]);
    for (kind, payload) in
        [(frames::SETTINGS, &b""[..]), (frames::PING, b"12345678"), (frames::SETTINGS, &[0, 4, 0, 0, 255, 255])]
    {
        let flood = frames::frame(kind, 0, 0, payload).repeat(4_000);
        let mut attacker = Frames::connect(proxy.listen);
        attacker.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let before = proxy.peak_bytes();
        // The attacker reads no answer, so a proxy that keeps them runs out of memory.
        let _sent = (0..1_000).take_while(|_| attacker.stream.write_all(&flood).is_ok()).count();
        let held = proxy.peak_bytes() - before;
        assert!(held < BOUND, "a flood of frame {kind} made the proxy hold {held} bytes");
        assert_eq!(proxy.client().send(GET).response().text(), "ok");
    }
}

#[test]
fn a_head_in_endless_continuations_is_cut_off() {
    let upstream = Upstream::answering(OK);
    let proxy = single(&upstream, &[]);
    let mut attacker = Frames::connect(proxy.addr);
    attacker.send(frames::HEADERS, 0, 1, frames::GET);
    let field = Frames::field("x", &"y".repeat(100)).repeat(100);
    let taken = (0..10_000).take_while(|_| attacker.send(frames::CONTINUATION, 0, 1, &field)).count();
    assert!(taken * field.len() < 32 << 20, "{taken} continuations were taken");
    assert_eq!(upstream.heads().len(), 0);
    serves(&proxy);
}

#[test]
fn what_is_refused_over_http_1_is_refused_over_http_2() {
    let upstream = Upstream::answering(OK);
    let proxy = single(&upstream, &[("max_head_bytes", "2000")]);
    let hosts = [Frames::field("host", "a"), Frames::field("host", "b")].concat();
    let lengths = [Frames::field("content-length", "0"), Frames::field("content-length", "1")].concat();
    let cases = [
        ("two hosts", [frames::GET, &hosts].concat()),
        ("a host beside another authority", [frames::GET, &Frames::field("host", "b")].concat()),
        ("two lengths", [frames::GET, &lengths].concat()),
        ("a coding", [frames::GET, &Frames::field("transfer-encoding", "chunked")].concat()),
        ("a line end in a value", [frames::GET, &Frames::field("x", "a\r\nb: c")].concat()),
        ("a line end in a name", [frames::GET, &Frames::field("x\r\nb", "c")].concat()),
        ("a NUL", [frames::GET, &Frames::field("x", "\0")].concat()),
        ("a space in the path", b"\x82\x86\x04\x07/a HTTP\x01\x01a".to_vec()),
        ("a tunnel", b"\x02\x07CONNECT\x01\x03a:1".to_vec()),
        ("a head too large", [frames::GET, &Frames::field("x", &"y".repeat(100)).repeat(150)].concat()),
    ];
    for (name, head) in cases {
        let mut client = Frames::connect(proxy.addr);
        client.send(frames::HEADERS, frames::END_HEADERS | frames::END_STREAM, 1, &head);
        // 400, 405 and 431 as HPACK has them; or no answer, and the stream or the connection closed.
        if let Some(answer) = client.status(1) {
            let refusals = [&b"\x8c"[..], b"\x48\x83\x68\x0d\xff", b"\x48\x82\x68\x83"];
            assert!(refusals.iter().any(|refusal| answer.starts_with(refusal)), "{name}: {answer:?}");
        }
    }
    assert_eq!(upstream.heads(), Vec::<String>::new());
    let mut client = Frames::connect(proxy.addr);
    let twice = [frames::GET, &Frames::field("host", "a")].concat();
    client.send(frames::HEADERS, frames::END_HEADERS | frames::END_STREAM, 1, &twice);
    assert!(client.status(1).unwrap().starts_with(b"\x88"), "what is in order is answered with 200");
    assert!(upstream.heads().remove(0).starts_with("GET / HTTP/1.1\r\nhost: a\r\n"));
}

/// Silent from the start, in the middle of the first words, in the middle of a head, and after an answer.
#[test]
fn an_http2_connection_that_falls_silent_is_closed() {
    let upstream = Upstream::answering(OK);
    let proxy = single(&upstream, &[("idle_timeout", "200ms")]);
    let whole = frames::END_HEADERS | frames::END_STREAM;
    let mut half = proxy.client();
    half.send("PRI * HTTP/2.0\r\n\r\n");
    let mut silent = [None, Some(0), Some(whole)].map(|flags| {
        let mut client = Frames::connect(proxy.addr);
        if let Some(flags) = flags {
            client.send(frames::HEADERS, flags, 1, frames::GET);
        }
        client
    });
    for client in &mut silent {
        client.rest();
    }
    half.rest();
}

#[test]
fn an_http2_connection_is_not_idle_while_it_owes_an_answer() {
    let upstream = Upstream::start(|mut conn| {
        conn.request();
        std::thread::sleep(Duration::from_millis(900));
        conn.send(STREAM);
        conn.chunk("data: {}\n\n");
        std::thread::sleep(Duration::from_millis(900));
        conn.send("0\r\n\r\n");
    });
    let proxy = single(&upstream, &[("idle_timeout", "500ms")]);
    let mut client = Frames::connect(proxy.addr);
    client.send(frames::HEADERS, frames::END_HEADERS | frames::END_STREAM, 1, frames::GET);
    assert!(client.status(1).unwrap().starts_with(b"\x88"));
    let data: Vec<_> = client.rest().into_iter().filter(|frame| frame.kind == frames::DATA).collect();
    assert_eq!(data.iter().flat_map(|frame| frame.payload.clone()).collect::<Vec<_>>(), b"data: {}\n\n");
    assert!(data.last().unwrap().flags & frames::END_STREAM != 0, "it ended, and was not cut off");
}

// ---------------------------------------------------------------------------------------------------- the admin port

#[test]
fn the_admin_port_minds_its_manners() {
    let (_held, nobody) = unused_address();
    let proxy = TestProxy::new(nobody);
    let cases = [
        ("rubbish".to_owned() + &"\0".repeat(100) + "\r\n\r\n", 400),
        (format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: 1\r\n".repeat(1_000)), 431),
        (format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(1 << 20)), 431),
        ("GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned(), 404),
        ("POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n".to_owned(), 405),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: ".to_owned() + &"*/*;q=0.".repeat(900) + "\r\n\r\n", 200),
    ];
    for (request, status) in cases {
        let mut client = Client::connect(proxy.admin);
        // The proxy may reject an oversized request before it is all written.
        let _written = client.stream.write_all(request.as_bytes()).is_ok();
        let begin = &request[..request.len().min(40)];
        assert_eq!(client.head().split(' ').nth(1), Some(&*status.to_string()), "{begin}");
        assert_eq!(
            Client::connect(proxy.admin).send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").response().status(),
            200
        );
    }
}
