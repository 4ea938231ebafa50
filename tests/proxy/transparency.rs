//! Bytes through the proxy equal direct ones: one named test per oddity of HTTP.

use std::time::Duration;

use crate::support::captured::run_without_capture;
use crate::support::client::chat;
use crate::support::proxy::TestProxy;
use crate::support::upstream::{Upstream, field, reports};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The upstream's request for these bytes.
fn got(request: &str) -> String {
    let upstream = Upstream::answering(OK);
    let proxy = TestProxy::new(upstream.addr);
    let response = proxy.client().send(request).response();
    assert_eq!((response.status(), response.text().as_str()), (200, "ok"));
    upstream.heads().remove(0)
}

/// The head that a client gets for these bytes of an upstream.
fn given(answer: &str) -> String {
    let upstream = Upstream::answering(answer);
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").head()
}

#[test]
fn a_request_head_arrives_with_its_case_order_and_white_space_and_nothing_added() {
    let head = "POST /v1/x%20y?q=%zz&&r HTTP/1.1\r\nhOsT: proxy.test:99\r\nX-b:1\r\nx-A:  2\r\nX-b: 3\r\nContent-Length: 2\r\nAuthorization: Bearer k\r\n\r\n";
    assert_eq!(got(&format!("{head}hi")), head);
}

#[test]
fn a_response_head_arrives_with_its_case_order_reason_and_duplicates() {
    let head = "HTTP/1.1 299 Quite Fine\r\nsErVeR: x\r\nSet-Cookie: a=1\r\nX-One:1\r\nSet-Cookie: b=2\r\nDate: never\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(given(head), head);
}

#[test]
fn a_field_without_a_value_arrives() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX-Empty:\r\nX-Blank: \t \r\nX-After: 1 \r\n\r\n";
    assert_eq!(got(head), head);
    let head = "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: \r\nX-Empty:\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(given(head), head);
}

#[test]
fn bytes_beyond_ascii_in_a_field_value_arrive() {
    let upstream = Upstream::start(|mut conn| {
        conn.head().unwrap();
        conn.send(b"HTTP/1.1 200 OK\r\nX-Name: caf\xe9\r\nContent-Length: 0\r\n\r\n");
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    let answer = client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").at_least(50);
    assert!(answer.windows(4).any(|window| window == b"caf\xe9"));
}

#[test]
fn fields_of_one_hop_stay_on_it() {
    let head = got(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Mine\r\nKeep-Alive: timeout=9\r\nX-Mine: 1\r\nProxy-Connection: x\r\nTE: gzip\r\nX-Kept: 1\r\n\r\n",
    );
    assert_eq!(head, "GET / HTTP/1.1\r\nHost: a\r\nX-Kept: 1\r\n\r\n");
    let head = given(
        "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=100\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\nContent-Length: 0\r\n\r\n",
    );
    assert_eq!(head, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
}

#[test]
fn a_426_keeps_the_upgrade_header_of_the_server() {
    let head =
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 0\r\nConnection: Upgrade\r\n\r\n";
    assert_eq!(given(head), head);
    let other = given("HTTP/1.1 200 OK\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(other, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "an offer is for this hop");
}

#[test]
fn a_client_of_http_1_0_gets_what_it_can_read() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let upstream = Upstream::answering(chunked);
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send("GET /old HTTP/1.0\r\n\r\n");
    assert_eq!(String::from_utf8(client.rest()).unwrap(), "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc");
    proxy.client().send("GET http://old.test/ HTTP/1.0\r\n\r\n").rest();
    let named = ["/old".to_owned(), upstream.addr.to_string(), "http://old.test/".to_owned(), "old.test".to_owned()];
    let heads = named.chunks(2).map(|pair| format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", pair[0], pair[1]));
    assert_eq!(upstream.heads(), heads.collect::<Vec<_>>());
    let head = |version| {
        String::from_utf8(
            proxy.client().send(format!("HEAD / {version}\r\nHost: a\r\nConnection: close\r\n\r\n")).rest(),
        )
        .unwrap()
    };
    assert_eq!(head("HTTP/1.0"), "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    assert_eq!(head("HTTP/1.1"), "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
}

#[test]
fn a_client_of_http_1_0_may_keep_its_connection() {
    let upstream = Upstream::answering(OK);
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    for _ in 0..2 {
        let response = client.send("GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n").response();
        assert_eq!((response.field("connection"), response.text().as_str()), (Some("keep-alive"), "ok"));
    }
}

#[test]
fn answers_without_a_body_end_with_their_head() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 999\r\nX: 1\r\n\r\n";
    let upstream = Upstream::start(move |mut conn| {
        while let Some(request) = conn.head() {
            conn.send(match request.split(' ').next().unwrap() {
                "HEAD" => head,
                "PUT" => "HTTP/1.1 204 No Content\r\nX: 2\r\n\r\n",
                _ => "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: \"e\"\r\n\r\n",
            });
        }
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    assert_eq!(client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").head(), head);
    assert_eq!(client.send("PUT / HTTP/1.1\r\nHost: a\r\n\r\n").head(), "HTTP/1.1 204 No Content\r\nX: 2\r\n\r\n");
    let head = client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").head();
    assert_eq!(head, "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: \"e\"\r\n\r\n");
}

#[test]
fn a_body_that_ends_with_its_connection_ends_with_the_clients() {
    let upstream = Upstream::start(|mut conn| {
        conn.head().unwrap();
        conn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n");
        conn.send("data: 2\n\n");
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = String::from_utf8(client.rest()).unwrap();
    assert_eq!(
        answer,
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: 1\n\ndata: 2\n\n"
    );
}

#[test]
fn a_chunked_request_arrives_with_its_payload_and_trailers() {
    let (report, seen) = reports();
    let upstream = Upstream::start(move |mut conn| {
        report(conn.request().unwrap());
        conn.send(OK);
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5;ext=1\r\nhello\r\n");
    client.send("6\r\n world\r\n0\r\nX-Sum: 11\r\n\r\n");
    assert_eq!(client.response().text(), "ok");
    let request = seen();
    assert_eq!(request.body, b"hello world");
    assert!(request.raw_body.ends_with(b"0\r\nX-Sum: 11\r\n\r\n"), "{:?}", String::from_utf8_lossy(&request.raw_body));
    assert_eq!(field(&request.head, "Trailer"), Some("X-Sum"));
}

#[test]
fn a_chunked_response_arrives_with_its_trailers() {
    let upstream = Upstream::answering(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 2\r\nx-b: 3\r\n\r\n",
    );
    let proxy = TestProxy::new(upstream.addr);
    let response = proxy.client().send("GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\n\r\n").response();
    assert_eq!(response.trailers, [("X-Sum".into(), "2".into()), ("x-b".into(), "3".into())]);
    assert_eq!(field(&upstream.heads()[0], "TE"), Some("trailers"));
}

#[test]
fn a_client_that_waits_for_100_continue_gets_the_servers() {
    let (report, seen) = reports();
    let upstream = Upstream::start(move |mut conn| {
        let head = conn.head().unwrap();
        conn.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut nothing = [0; 1];
        let early = std::io::Read::read(&mut conn.stream, &mut nothing).is_ok();
        conn.stream.set_read_timeout(None).unwrap();
        conn.send("HTTP/1.1 100 Continue\r\nX-Go: 1\r\n\r\n");
        report((head, early, conn.exactly(4)));
        conn.send(OK);
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.head(), "HTTP/1.1 100 Continue\r\nX-Go: 1\r\n\r\n");
    assert_eq!(client.send("body").response().text(), "ok");
    let (head, early, body) = seen();
    assert_eq!(field(&head, "Expect"), Some("100-continue"));
    assert_eq!((early, &body[..]), (false, &b"body"[..]));
}

#[test]
fn a_client_that_waits_for_100_continue_can_be_rejected_before_its_body() {
    let upstream = Upstream::start(|mut conn| {
        conn.head().unwrap();
        conn.send("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 2\r\n\r\nno");
        conn.closed();
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\nExpect: 100-continue\r\n\r\n");
    let response = client.response();
    assert_eq!((response.status(), response.text().as_str()), (417, "no"));
}

#[test]
fn interim_responses_are_passed_on_as_they_come() {
    let upstream = Upstream::answering(format!(
        "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\nLink: </b>\r\n\r\n{OK}"
    ));
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head(), "HTTP/1.1 102 Processing\r\n\r\n");
    assert_eq!(client.head(), "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nLink: </b>\r\n\r\n");
    assert_eq!(client.response().text(), "ok");
}

#[test]
fn an_answer_that_comes_before_the_request_is_whole_reaches_the_client() {
    let upstream = Upstream::start(|mut conn| {
        conn.head().unwrap();
        conn.send("HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge");
        conn.closed();
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n").send([b'x'; 100_000]);
    let response = client.response();
    assert_eq!((response.status(), response.text().as_str(), response.truncated), (413, "large", false));
    assert_eq!(response.field("connection"), Some("close"), "nobody takes the rest");
}

#[test]
fn a_request_that_is_answered_early_continues_while_the_server_reads_it() {
    const LENGTH: usize = 8 << 20;
    let upstream = Upstream::start(|mut conn| {
        if conn.number == 0 {
            conn.head().unwrap();
            conn.send("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno");
            assert_eq!(conn.exactly(LENGTH).len(), LENGTH);
        }
        while conn.request().is_some() {
            conn.send(OK);
        }
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\nx"));
    let response = client.response();
    assert_eq!((response.status(), response.field("connection")), (401, None));
    client.send(vec![b'x'; LENGTH - 1]);
    assert_eq!(client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").response().text(), "ok");
}

#[test]
fn an_upload_streams_both_ways_while_it_lasts() {
    let upstream = Upstream::start(|mut conn| {
        conn.head().unwrap();
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        for _ in 0..3 {
            let piece = conn.exactly(5);
            conn.chunk(piece);
        }
        conn.send("0\r\n\r\n");
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 15\r\n\r\n");
    client.head();
    for piece in ["first", "secnd", "third"] {
        client.send(piece);
        let echoed = client.at_least(10);
        assert_eq!(String::from_utf8(echoed).unwrap().lines().nth(1), Some(piece));
    }
}

#[test]
fn a_large_upload_is_streamed_and_not_kept() {
    const SIZE: usize = 100 << 20;
    let (report, seen) = reports();
    let upstream = Upstream::start(move |mut conn| {
        conn.head().unwrap();
        let mut sum = 0u64;
        for _ in 0..SIZE / (1 << 20) {
            sum += conn.exactly(1 << 20).iter().map(|byte| u64::from(*byte)).sum::<u64>();
        }
        report(sum);
        conn.send(OK);
    });
    let proxy = run_without_capture(upstream.addr, &[]);
    let mut client = proxy.client();
    let before = proxy.peak_bytes();
    client.send(format!("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {SIZE}\r\n\r\n"));
    let piece: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
    for _ in 0..SIZE / piece.len() {
        client.send(&piece);
    }
    assert_eq!(client.response().text(), "ok");
    let expected: u64 = piece.iter().map(|byte| u64::from(*byte)).sum::<u64>() * (SIZE / piece.len()) as u64;
    assert_eq!(seen(), expected);
    let held = proxy.peak_bytes() - before;
    assert!(held < 24 << 20, "memory grew by {held} bytes during an upload of {SIZE}");
}

#[test]
fn requests_sent_in_one_go_are_answered_in_order() {
    let upstream = Upstream::start(|mut conn| {
        while let Some(request) = conn.request() {
            let path = request.head.split(' ').nth(1).unwrap().to_owned();
            conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len()));
        }
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nPOST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /3 HTTP/1.1\r\nHost: a\r\n\r\n");
    for path in ["/1", "/2", "/3"] {
        assert_eq!(client.response().text(), path);
    }
}

#[test]
fn a_streamed_answer_arrives_event_by_event_on_a_kept_connection() {
    let (go, wait) = reports();
    let wait = std::sync::Mutex::new(Box::new(wait) as Box<dyn Fn() + Send>);
    let upstream = Upstream::start(move |mut conn| {
        while conn.request().is_some() {
            conn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
            for event in ["data: 1\n\n", "data: 2\n\n", "data: [DONE]\n\n"] {
                wait.lock().unwrap()();
                conn.chunk(event);
            }
            conn.send("0\r\n\r\n");
        }
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    for _ in 0..3 {
        client.send(chat("{\"stream\":true}"));
        let head = client.head();
        assert_eq!(head, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        for event in ["9\r\ndata: 1\n\n\r\n", "9\r\ndata: 2\n\n\r\n"] {
            // The next event is sent only after this one has arrived.
            go(());
            assert_eq!(String::from_utf8(client.at_least(event.len())).unwrap(), event);
        }
        go(());
        let last = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
        assert_eq!(String::from_utf8(client.at_least(last.len())).unwrap(), last);
    }
}

#[test]
fn via_and_forwarded_are_added_only_where_configured() {
    let upstream = Upstream::answering(OK);
    let proxy = TestProxy::with(upstream.addr, &[("headers", "via,forwarded")]);
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: public.test\r\nX-Forwarded-For: 10.0.0.9\r\n\r\n").response();
    assert_eq!(
        upstream.heads()[0],
        "GET / HTTP/1.1\r\nHost: public.test\r\nX-Forwarded-For: 10.0.0.9\r\nVia: 1.1 streamgauge\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: public.test\r\n\r\n"
    );
}

#[test]
fn with_tracing_off_trace_headers_pass_untouched() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\ntraceparent: not-even-valid\r\nTraceState: x=1\r\n\r\n";
    assert_eq!(got(head), head);
}
