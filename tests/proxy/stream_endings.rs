//! Ends of streams: a client's disconnect reaches the server, the server's end reaches the client, and backpressure
//! passes both ways.

use std::io::Read;
use std::net::{Shutdown, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::Value;

use crate::support::PATIENCE;
use crate::support::captured::{run_to, until};
use crate::support::client::{Client, chat};
use crate::support::frames::{self, Frame, Frames};
use crate::support::proxy::TestProxy;
use crate::support::upstream::{Conn, Upstream, reports};

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// An upstream that does `begin` with each connection and then reports whether the proxy closed it.
fn watching(begin: impl Fn(&mut Conn) + Send + Sync + 'static) -> (Upstream, impl Fn() -> bool) {
    let (report, seen) = reports();
    let upstream = Upstream::start(move |mut conn| {
        conn.request();
        begin(&mut conn);
        report(conn.closed().is_some());
    });
    (upstream, seen)
}

#[test]
fn a_client_that_leaves_a_stream_closes_the_upstream() {
    let (upstream, closed) = watching(|conn| {
        conn.send(STREAM);
        conn.chunk("data: 1\n\n");
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send(chat("{\"stream\":true}")).at_least(STREAM.len() + 9);
    drop(client);
    assert!(closed());
}

#[test]
fn a_client_that_leaves_while_it_waits_closes_the_upstream() {
    let (report_begin, has_begun) = reports();
    let (upstream, closed) = watching(move |_| report_begin(()));
    let proxy = TestProxy::new(upstream.addr);
    for leave in [drop as fn(Client), Client::reset] {
        let mut client = proxy.client();
        client.send(chat("{}"));
        has_begun();
        leave(client);
        assert!(closed());
    }
}

#[test]
fn a_client_that_leaves_in_the_middle_of_its_upload_closes_the_upstream() {
    let ((report_begin, has_begun), (report, seen)) = (reports(), reports());
    let upstream = Upstream::start(move |mut conn| {
        conn.head();
        report_begin(());
        report(conn.closed().is_some());
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nabc");
    has_begun();
    drop(client);
    assert!(seen());
}

#[test]
fn a_client_that_keeps_the_rest_of_its_body_when_it_has_its_answer_has_not_cancelled() {
    let upstream = Upstream::start(|mut conn| {
        conn.head();
        conn.send("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno");
        conn.closed();
    });
    for rest in ["", "no chunk\r\n"] {
        let proxy = TestProxy::new(upstream.addr);
        let mut client = proxy.client();
        client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
        assert_eq!(client.response().text(), "no");
        client.send(rest);
        drop(client);
        let last = proxy.last_request();
        assert_eq!((&last["outcome"], &last["status"]), (&"refused".into(), &401.into()), "{rest:?}");
    }
}

/// By NO_ERROR, by CANCEL, and by closing. Its request is incomplete, and no failure is the server's fault.
#[test]
fn an_http2_client_that_leaves_in_the_middle_of_its_upload_has_left() {
    const POST: &[u8] = b"\x83\x86\x84\x01\x01a";
    for reason in [Some(0_u32), Some(8), None] {
        let ((report_begin, has_begun), (report, rest)) = (reports(), reports());
        let upstream = Upstream::start(move |mut conn| {
            conn.head();
            conn.exactly("3\r\nabc\r\n".len());
            report_begin(());
            let mut rest = Vec::new();
            // It may end with a reset.
            let _ended = conn.stream.read_to_end(&mut rest).is_ok();
            report(rest);
        });
        let proxy = TestProxy::new(upstream.addr);
        let mut client = Frames::connect(proxy.addr);
        client.send(frames::HEADERS, frames::END_HEADERS, 1, POST);
        client.send(frames::DATA, 0, 1, b"abc");
        has_begun();
        match reason {
            Some(reason) => assert!(client.send(frames::RST_STREAM, 0, 1, &reason.to_be_bytes())),
            None => drop(client),
        }
        assert_eq!(rest(), b"", "{reason:?}");
        let last = proxy.last_request();
        assert_eq!((&last["outcome"], &last["status"]), (&"cancelled".into(), &Value::Null), "{reason:?}");
    }
}

#[test]
fn a_client_that_closes_its_sending_half_has_left() {
    let (upstream, closed) = watching(|conn| {
        conn.send(STREAM);
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send(chat("{\"stream\":true}")).head();
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert!(closed());
}

#[test]
fn a_client_that_sends_ahead_and_leaves_is_noticed() {
    let (upstream, closed) = watching(|conn| {
        conn.send(STREAM);
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send(chat("{\"stream\":true}")).send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n").head();
    drop(client);
    assert!(closed());
}

#[test]
fn the_upstream_is_never_half_closed_while_it_owes_an_answer() {
    let (report, seen) = reports();
    let upstream = Upstream::start(move |mut conn| {
        conn.request();
        conn.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let read = Read::read(&mut conn.stream, &mut [0; 8]);
        report(read.map_err(|error| error.kind()));
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    });
    let proxy = TestProxy::new(upstream.addr);
    let response = proxy.client().send(chat("{}")).response();
    assert_eq!((seen(), response.status()), (Err(std::io::ErrorKind::WouldBlock), 200));
}

#[test]
fn a_stream_that_the_server_cuts_is_cut_for_the_client() {
    let upstream = Upstream::start(|mut conn| {
        conn.request();
        conn.send(STREAM);
        conn.chunk("data: 1\n\n");
    });
    let proxy = TestProxy::new(upstream.addr);
    let response = proxy.client().send(chat("{\"stream\":true}")).response();
    assert_eq!((response.text().as_str(), response.truncated, response.reset), ("data: 1\n\n", true, false));
}

#[test]
fn a_stream_that_the_server_resets_is_reset_for_the_client() {
    let (received, has_received) = reports();
    let upstream = Upstream::start(move |mut conn| {
        conn.request();
        conn.send(STREAM);
        conn.chunk("data: 1\n\n");
        has_received();
        conn.reset();
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    let head = client.send(chat("{\"stream\":true}")).head();
    received(());
    let response = client.body_of(head);
    assert_eq!((response.truncated, response.reset), (true, true));
}

#[test]
fn whatever_came_before_the_server_broke_is_passed_on() {
    let good = "6\r\ndata: \r\n3\r\n1\n\n\r\n";
    for (sent, payload, reset) in [
        (STREAM.to_owned(), "", false),
        (STREAM.to_owned(), "", true),
        (format!("{STREAM}no size\r\n"), "", false),
        (format!("{STREAM}{good}no size\r\n"), "data: 1\n\n", false),
        (format!("{STREAM}{good}9\r\ndata: 1\n\nno end\r\n"), "data: 1\n\ndata: 1\n\n", false),
    ] {
        let bytes = sent.clone();
        let (received, has_received) = reports();
        let upstream = Upstream::start(move |mut conn| {
            conn.request();
            conn.send(&bytes);
            if reset {
                // Before a reset what has not been read is lost to anybody.
                has_received();
                conn.reset();
            }
        });
        let proxy = TestProxy::new(upstream.addr);
        let mut client = proxy.client();
        let head = client.send(chat("{\"stream\":true}")).head();
        received(());
        let response = client.body_of(head);
        assert_eq!((response.status(), response.text().as_str()), (200, payload), "{sent:?}");
        assert_eq!((response.truncated, response.reset), (true, reset), "{sent:?}");
    }
}

/// HTTP/1.0 knows no chunks: the body ends with the connection. A FIN would make a broken body a whole one.
#[test]
fn an_http10_client_is_reset_where_a_chunked_reply_breaks_off() {
    let ask = "POST /v1/chat/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}";
    for (rest, reset) in [("", true), ("no size\r\n", true), ("0\r\n\r\n", false)] {
        let (received, has_received) = reports();
        let upstream = Upstream::start(move |mut conn| {
            conn.request();
            conn.send(STREAM);
            conn.chunk("data: 1\n\n");
            has_received();
            conn.send(rest);
        });
        let proxy = TestProxy::new(upstream.addr);
        let mut client = proxy.client();
        let head = client.send(ask).has("data: 1\n\n").head();
        received(());
        let response = client.body_of(head);
        assert_eq!((response.text().as_str(), response.reset), ("data: 1\n\n", reset), "{rest:?}");
    }
}

#[test]
fn an_http10_client_is_reset_where_the_proxy_stops_in_the_middle_of_its_reply() {
    let upstream = Upstream::start(|mut conn| {
        conn.request();
        conn.send(STREAM);
        conn.chunk("data: 1\n\n");
        conn.closed();
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    let head = client.send("GET / HTTP/1.0\r\n\r\n").has("data: 1\n\n").head();
    drop(proxy);
    assert!(client.body_of(head).reset);
}

/// NO_ERROR, INTERNAL_ERROR and CANCEL: whatever the reason, the answer is not whole.
#[test]
fn a_stream_that_an_http2_server_resets_is_cut_for_the_client_after_all_that_came_before() {
    for reason in [0_u32, 2, 8] {
        let upstream = Upstream::start(move |mut conn| {
            let stream = frames::read_request(&mut conn);
            let frames = [
                frames::frame(frames::SETTINGS, 0, 0, b""),
                frames::frame(frames::HEADERS, frames::END_HEADERS, stream, b"\x88"),
                frames::frame(frames::DATA, 0, stream, b"data: 1\n\n"),
                frames::frame(frames::RST_STREAM, 0, stream, &reason.to_be_bytes()),
            ];
            conn.send(frames.concat());
            conn.closed();
        });
        let proxy = TestProxy::with(upstream.addr, &[("upstream_http", "http2")]);
        let response = proxy.client().send(chat("{\"stream\":true}")).response();
        assert_eq!((response.text().as_str(), response.truncated), ("data: 1\n\n", true), "{reason}");
    }
}

#[test]
fn a_body_shorter_than_its_length_is_short_for_the_client() {
    let upstream = Upstream::start(|mut conn| {
        conn.request();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
    });
    let proxy = TestProxy::new(upstream.addr);
    let response = proxy.client().send(chat("{}")).response();
    assert_eq!((response.text().as_str(), response.truncated), ("abc", true));
}

#[test]
fn a_client_that_does_not_read_stops_the_upstream_from_being_read() {
    const PIECE: usize = 64 * 1024;
    let (report, seen) = reports();
    let upstream = Upstream::start(move |mut conn| {
        conn.request();
        conn.send(STREAM);
        conn.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let piece = vec![b'x'; PIECE];
        let sent = (0..4_000).take_while(|_| conn.chunk(&piece)).count();
        report(sent);
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send(chat("{\"stream\":true}")).head();
    let sent = seen();
    // Only as much as the kernels of three sockets hold, not the 250 MB that were on offer.
    assert!(sent * PIECE < 40 << 20, "the upstream could send {} MiB to a client that reads nothing", sent >> 4);
}

#[test]
fn a_server_that_does_not_read_stops_the_client_from_being_read() {
    let upstream = Upstream::start(|mut conn| {
        conn.head();
        std::thread::sleep(Duration::from_secs(3));
    });
    let proxy = TestProxy::new(upstream.addr);
    let client = proxy.client();
    let mut stream = &client.stream;
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let write = |bytes: &[u8]| std::io::Write::write(&mut stream, bytes);
    let mut write = write;
    write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n").unwrap();
    let piece = vec![b'x'; 64 * 1024];
    let mut sent = 0;
    while let Ok(n) = write(&piece) {
        sent += n;
        assert!(sent < 40 << 20, "the proxy took {sent} bytes for a server that reads nothing");
    }
}

#[test]
fn a_slow_client_gets_every_byte() {
    let body: Vec<u8> = (0..8 << 20).map(|at| (at % 253) as u8).collect();
    let sent = body.clone();
    let upstream = Upstream::start(move |mut conn| {
        conn.request();
        conn.send(STREAM);
        for piece in sent.chunks(10_007) {
            conn.chunk(piece);
        }
        conn.send("0\r\n\r\n");
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    let head = client.send(chat("{\"stream\":true}")).head();
    std::thread::sleep(Duration::from_millis(300));
    let response = client.body_of(head);
    assert!(response.body == body && !response.truncated, "{} of {} bytes", response.body.len(), body.len());
}

#[test]
fn a_slow_client_is_distinguished_from_a_slow_server() {
    const PIECE: usize = 256 * 1024;
    const PIECES: usize = 192;
    let sent = Arc::new(AtomicUsize::new(0));
    let upstream = Upstream::start({
        let sent = Arc::clone(&sent);
        move |mut conn| {
            conn.request();
            conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", PIECE * PIECES));
            for _ in 0..PIECES {
                conn.send(vec![b'x'; PIECE]);
                sent.fetch_add(1, Relaxed);
            }
        }
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    // Until all buffers on the way are full.
    let (mut before, mut now) = (0, 1);
    while before != now {
        std::thread::sleep(Duration::from_millis(500));
        (before, now) = (now, sent.load(Relaxed).max(1));
    }
    assert!(client.rest().len() > PIECE * PIECES);
    let blocked = &proxy.last_request()["write_blocked_ms"];
    assert!(blocked.as_f64() > Some(0.0), "its slowness is not the model's: {blocked}");
}

#[test]
fn a_slow_http2_window_is_distinguished_from_a_slow_server() {
    let body = "x".repeat(1_000_000);
    let upstream = Upstream::answering(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    let proxy = TestProxy::new(upstream.addr);
    let mut client = Frames::connect(proxy.addr);
    client.send(frames::HEADERS, frames::END_HEADERS | frames::END_STREAM, 1, frames::GET);
    let (mut received, mut ended) = (0, false);
    while !ended {
        let frame = client.next().unwrap();
        if frame.kind == frames::DATA {
            received += frame.payload.len();
            ended = frame.flags & frames::END_STREAM != 0;
        }
        // The window that every stream has to begin with.
        if received == 65_535 {
            std::thread::sleep(Duration::from_millis(50));
            for stream in [0, 1] {
                client.send(frames::WINDOW_UPDATE, 0, stream, &1_000_000_u32.to_be_bytes());
            }
        }
    }
    assert_eq!(received, body.len());
    let blocked = &proxy.last_request()["write_blocked_ms"];
    assert!(blocked.as_f64() > Some(0.0), "its slowness is not the model's: {blocked}");
}

#[test]
fn draining_finishes_open_streams_closes_idle_connections_and_takes_no_new_ones() {
    let (go, wait) = reports();
    let upstream = Upstream::start(move |mut conn| {
        conn.request();
        conn.send(STREAM);
        wait();
        conn.chunk("data: last\n\n");
        conn.send("0\r\n\r\n");
    });
    let proxy = TestProxy::new(upstream.addr);
    let (mut open, mut idle) = (proxy.client(), proxy.client());
    let head = open.send(chat("{\"stream\":true}")).head();
    // Half a head is no request.
    idle.send("GET /x HTTP/1.1\r\nHost: a\r\n");
    let addr = proxy.addr;
    let stopped = std::thread::spawn(move || proxy.stop(PATIENCE));
    while std::net::TcpStream::connect(addr).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!stopped.is_finished(), "an open stream is waited for");
    go(());
    let response = open.body_of(head);
    assert_eq!((response.text().as_str(), response.truncated), ("data: last\n\n", false));
    drop(idle);
    stopped.join().unwrap();
    assert!(open.rest().is_empty(), "and its connection is closed after it");
}

#[test]
fn a_client_over_http2_has_its_last_reply_whole_though_its_frames_meet_the_close() {
    let (go, wait) = reports();
    let upstream = Upstream::start(move |mut conn| {
        conn.request();
        conn.send(STREAM);
        wait();
        conn.chunk([b'x'; 60_000]);
        conn.send("0\r\n\r\n");
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = Frames::connect(proxy.addr);
    client.send(frames::HEADERS, frames::END_HEADERS | frames::END_STREAM, 1, frames::GET);
    assert!(client.status(1).is_some());
    let stopping = std::thread::spawn(move || proxy.stop(PATIENCE));
    let ping = std::iter::from_fn(|| client.next()).find(|frame| frame.kind == frames::PING).unwrap();
    client.send(frames::PING, frames::ACK, 0, &ping.payload);
    go(());
    // The whole reply is in the client's socket by then, and the proxy has closed its side.
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..2 {
        client.send(frames::WINDOW_UPDATE, 0, 0, &[0, 0, 1, 0]);
        std::thread::sleep(Duration::from_millis(50));
    }
    let data: Vec<_> = client.rest().into_iter().filter(|frame| frame.kind == frames::DATA).collect();
    assert_eq!(data.iter().map(|frame| frame.payload.len()).sum::<usize>(), 60_000);
    assert_eq!(data.last().map(|frame| frame.flags & frames::END_STREAM), Some(frames::END_STREAM));
    drop(client);
    assert!(stopping.join().unwrap());
}

#[test]
fn a_stream_that_shutdown_cuts_is_still_exported() {
    let (report, exported) = reports();
    let collector = Upstream::start(move |mut conn| {
        while let Some(request) = conn.request() {
            conn.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            report(request.body);
        }
    });
    let (upstream, closed) = watching(|conn| {
        conn.send(STREAM);
        conn.chunk("data: 1\n\n");
    });
    let endpoint = format!("http://{}/v1/traces", collector.addr);
    let settings = [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "600000")];
    // A client with the beginning of a stream; it returns true if the rest is cut.
    let http1 = |addr| {
        let mut client = Client::connect(addr);
        let head = client.send(chat("{\"stream\":true}")).head();
        client.has("data: 1\n\n");
        Box::new(move || client.body_of(head).truncated) as Box<dyn FnOnce() -> bool>
    };
    let http2 = |addr| {
        let mut client = Frames::connect(addr);
        let head = b"\x83\x86\x04\x14/v1/chat/completions\x01\x01a";
        client.send(frames::HEADERS, frames::END_HEADERS, 1, head);
        client.send(frames::DATA, frames::END_STREAM, 1, b"{\"stream\":true}");
        while client.next().unwrap().kind != frames::DATA {}
        let is_end = |frame: &Frame| frame.stream == 1 && frame.flags & frames::END_STREAM != 0;
        Box::new(move || !client.rest().iter().any(is_end)) as Box<dyn FnOnce() -> bool>
    };
    for begin in [http1 as fn(_) -> _, http2] {
        let proxy = TestProxy::with(upstream.addr, &settings);
        let is_cut = begin(proxy.addr);
        drop(proxy);
        assert!(closed() && is_cut());
        let spans = ExportTraceServiceRequest::decode(&exported()[..]).unwrap();
        let spans = &spans.resource_spans[0].scope_spans[0].spans;
        let error = |span: &Span| {
            let error = span.attributes.iter().find(|attribute| attribute.key == "error.type").unwrap();
            format!("{:?}", error.value.as_ref().unwrap().value)
        };
        // Neither the client nor the server has done it.
        assert_eq!(spans.iter().map(error).collect::<Vec<_>>(), ["Some(StringValue(\"timeout\"))"; 2]);
    }
}

#[test]
fn a_connection_that_comes_as_draining_begins_does_not_hold_it() {
    let upstream = Upstream::answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    for _ in 0..30 {
        let proxy = TestProxy::new(upstream.addr);
        let addr = proxy.addr;
        let coming = std::thread::spawn(move || {
            let mut connections = Vec::new();
            while let Ok(connection) = std::net::TcpStream::connect(addr) {
                connections.push(connection);
            }
        });
        std::thread::sleep(Duration::from_millis(2));
        assert!(proxy.stop(PATIENCE), "it has drained");
        coming.join().unwrap();
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "who reads the log of the tests is to know that one had no name server")]
fn a_name_that_is_being_looked_up_does_not_hold_up_the_end() {
    let folder = tempfile::tempdir().unwrap();
    // An address for documentation, which never answers.
    std::fs::write(folder.path().join("silent"), "nameserver 192.0.2.1\noptions timeout:30 attempts:5\n").unwrap();
    let silent = folder.path().join("silent").to_str().unwrap().to_owned();
    let namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"];
    let mount = ["mount --bind \"$0\" /etc/resolv.conf", &silent];
    let may = Command::new(namespace[0]).args(&namespace[1..]).args(mount).output();
    if !may.is_ok_and(|done| done.status.success()) {
        eprintln!("no other name server can be named here without being root");
        return;
    }
    let under = [&namespace[..], &["mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"", &silent]].concat();
    let mut run = run_to("http://server.test:8000", &under, folder.path(), &["--drain=0"]);
    let mut client = Client::connect(run.listen);
    client.send(chat("{}"));
    until("it is asked for", || {
        run.page("/metrics").contains("http_server_active_requests{http_request_method=\"POST\",url_scheme=\"http\"} 1")
    });
    kill(run.pid(), Signal::SIGTERM).unwrap();
    until("it ends", || run.child.try_wait().unwrap().is_some());
}

#[test]
fn a_second_signal_does_not_wait_for_a_collector() {
    let (upstream, folder) =
        (Upstream::answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), tempfile::tempdir().unwrap());
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("OTEL_EXPORTER_OTLP_ENDPOINT=http://{}", collector.local_addr().unwrap());
    let under = ["env", &endpoint, "OTEL_BLRP_SCHEDULE_DELAY=600000"];
    let mut run = run_to(&format!("http://{}", upstream.addr), &under, folder.path(), &[]);
    // The start looks whether the collector can be reached.
    drop(collector.accept().unwrap());
    kill(run.pid(), Signal::SIGTERM).unwrap();
    // The last export has begun.
    let _held = collector.accept().unwrap();
    kill(run.pid(), Signal::SIGTERM).unwrap();
    run.ended();
    assert!(run.log().contains("stopped at once"), "{}", run.log());
}

#[test]
fn an_unread_log_delays_neither_clients_nor_shutdown() {
    let upstream = Upstream::answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let folder = tempfile::tempdir().unwrap();
    let mut run = run_to(&format!("http://{}", upstream.addr), &[], folder.path(), &["--access-log=true"]);
    // The lines of so many are more than a pipe holds.
    let ask = |addr| (0..500).for_each(|_| assert_eq!(Client::connect(addr).send(chat("{}")).response().status(), 200));
    let unread = run.log.lock().unwrap();
    ask(run.listen);
    drop(unread);
    until("none is lost", || run.log().matches("\"status\":200").count() == 500);
    let unread = run.log.lock().unwrap();
    ask(run.listen);
    kill(Pid::from_raw(run.child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    until("it ends", || run.child.try_wait().unwrap().is_some());
    drop(unread);
}

#[test]
fn a_line_of_the_access_log_leads_to_the_trace_and_the_reply_and_health_probes_are_only_counted() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PROBE: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";
    let reply = r#"{"id": "chatcmpl-7", "model": "tiny", "choices": [{"index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": "secret"}}]}"#;
    let upstream = Upstream::start(move |mut conn| {
        while let Some(request) = conn.request() {
            let (status, body) = match &request.head {
                head if head.starts_with("GET /health ") => ("200 OK", ""),
                head if head.contains("overloaded") => ("503 Service Unavailable", "{}"),
                _ => ("200 OK", reply),
            };
            let length = body.len();
            conn.send(format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            ));
        }
    });
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://{}", collector.local_addr().unwrap());
    for traced in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let more = ["--access-log=true".to_owned(), format!("--trace-probes={traced}")];
        let url = format!("http://{}", upstream.addr);
        let run = run_to(&url, &["env", &endpoint], folder.path(), &[&more[0], &more[1]]);
        let probe = format!("GET /health HTTP/1.1\r\nHost: a\r\n{PROBE}\r\n\r\n");
        assert_eq!(Client::connect(run.listen).send(probe).response().status(), 200);
        let passed = upstream.heads().pop().unwrap().contains(PROBE);
        assert_eq!(passed, !traced, "what is not traced keeps its trace context");
        let ask = |field: &str, status| {
            let head = format!(
                "Host: a\r\ntraceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n{field}Content-Length: 2\r\n\r\n{{}}"
            );
            let request = format!("POST /v1/chat/completions HTTP/1.1\r\n{head}");
            assert_eq!(Client::connect(run.listen).send(request).response().status(), status);
        };
        ask("", 200);
        ask("X: overloaded\r\n", 503);
        until("both are logged", || run.log().matches(TRACE).count() == 2);
        let lines: Vec<Value> = run.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let line =
            |status: u16| lines.iter().find(|line| line["status"] == status && line["trace_id"] == TRACE).unwrap();
        assert_eq!((&line(200)["response_id"], line(200).get("fault")), (&"chatcmpl-7".into(), None));
        assert_eq!((&line(503)["fault"], line(503).get("answered_by")), (&"upstream".into(), None));
        assert_eq!(run.log().contains("/health"), traced, "{}", run.log());
        assert!(!run.log().contains("secret"));
        let metrics = run.page("/metrics");
        let counted = "traffic=\"probe\",status_class=\"2xx\",answered_by=\"upstream\"} 1\n";
        assert!(metrics.contains(counted) && metrics.contains("http_route=\"/health\""), "{metrics}");
    }
}
