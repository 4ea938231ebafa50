//! No request is lost to connection reuse.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::captured::until;
use crate::support::client::{Response, chat, lost_requests};
use crate::support::proxy::TestProxy;
use crate::support::upstream::{Conn, Upstream, reports};

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n";

/// Sends `requests` over each of four kept connections, and counts those that did not come back whole.
fn lost(proxy: &TestProxy, requests: usize) -> usize {
    lost_requests(proxy.addr, 4, 4 * requests, &chat("{\"stream\":true}"), |_| Duration::ZERO)
}

fn answer(conn: &mut Conn) {
    conn.send(STREAM);
    conn.chunk("data: 1\n\n");
    conn.chunk("data: [DONE]\n\n");
    conn.send("0\r\n\r\n");
}

/// The connections that a server has not hung up yet.
type HangingUp = Arc<AtomicUsize>;

/// A server that answers on a connection until `goes_on` returns false, which may wait, and then closes without notice.
fn hangs_up(goes_on: impl Fn(&mut Conn) -> bool + Send + Sync + 'static) -> (Upstream, HangingUp) {
    let hanging_up = HangingUp::default();
    let open = Arc::clone(&hanging_up);
    let upstream = Upstream::start(move |mut conn| {
        open.fetch_add(1, Ordering::SeqCst);
        if conn.request().is_some() {
            answer(&mut conn);
            while goes_on(&mut conn) {
                answer(&mut conn);
            }
        }
        drop(conn);
        open.fetch_sub(1, Ordering::SeqCst);
    });
    (upstream, hanging_up)
}

/// Fails unless of so many requests none is lost and the server reads none twice.
fn loses_nothing((upstream, hanging_up): (Upstream, HangingUp), requests: usize, ask: impl Fn(&TestProxy) -> usize) {
    let proxy = TestProxy::new(upstream.addr);
    let lost = ask(&proxy);
    drop(proxy);
    until("every connection is hung up", || hanging_up.load(Ordering::SeqCst) == 0);
    assert_eq!((lost, upstream.heads().len()), (0, requests), "lost, and read by the server");
}

#[test]
fn a_server_that_hangs_up_after_each_answer_loses_nothing() {
    loses_nothing(hangs_up(|_| false), 2_000, |proxy| lost(proxy, 500));
}

#[test]
fn a_server_that_hangs_up_a_little_later_each_time_loses_nothing() {
    let later = |conn: &mut Conn| {
        std::thread::sleep(Duration::from_micros((conn.number as u64 * 37) % 3_000));
        false
    };
    loses_nothing(hangs_up(later), 1_000, |proxy| lost(proxy, 250));
}

#[test]
fn a_server_that_closes_idle_connections_loses_nothing() {
    let waits = |conn: &mut Conn| {
        conn.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        conn.request().is_some()
    };
    let pauses = [0, 10, 19, 20, 21, 40, 60, 80];
    loses_nothing(hangs_up(waits), pauses.len() * 4 * 20, |proxy| {
        let after = |pause| {
            std::thread::sleep(Duration::from_millis(pause));
            lost(proxy, 20)
        };
        pauses.map(after).iter().sum()
    });
}

/// Requests come a moment after the rest of their connection, and the server hangs up at any time about then.
#[test]
fn a_server_that_hangs_up_about_when_a_connection_is_used_again_loses_nothing() {
    let about_then = |conn: &mut Conn| {
        std::thread::sleep(Duration::from_micros(47_000 + (conn.number as u64 * 173) % 6_000));
        false
    };
    loses_nothing(hangs_up(about_then), 320, |proxy| {
        let after_a_rest = |_| {
            std::thread::sleep(Duration::from_millis(45));
            lost(proxy, 1)
        };
        (0..80).map(after_a_rest).sum()
    });
}

/// How a server ends a kept connection over which another request has come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HangUp {
    /// It closes, and has not read the request.
    Unread,
    /// Its FIN comes first, and the reset a little later.
    FinThenReset,
    /// It reads the request, and closes.
    Read,
    /// It reads the request, begins to answer, and resets.
    Answered,
}

/// The answer to a second request over a connection with this end, the number of connections, and the requests that the
/// server read whole.
fn second_reply(request: &str, hang_up: HangUp, settings: &[(&str, &str)]) -> (Response, usize, usize) {
    let ended = Arc::new(AtomicUsize::new(0));
    let upstream = Upstream::start({
        let ended = Arc::clone(&ended);
        move |mut conn| {
            conn.request();
            answer(&mut conn);
            if conn.number > 0 {
                return;
            }
            match hang_up {
                HangUp::Unread => drop(conn.stream.peek(&mut [0])),
                HangUp::FinThenReset => {
                    drop(conn.stream.peek(&mut [0]));
                    conn.stream.shutdown(Shutdown::Write).unwrap();
                    std::thread::sleep(Duration::from_millis(30));
                }
                HangUp::Read => drop(conn.request()),
                HangUp::Answered => {
                    conn.request();
                    conn.send("H");
                    std::thread::sleep(Duration::from_millis(30));
                    conn.reset();
                }
            }
            ended.fetch_add(1, Ordering::SeqCst);
        }
    });
    let proxy = TestProxy::with(upstream.addr, &[&[("workers", "1")], settings].concat());
    let mut client = proxy.client();
    assert_eq!(client.send(request).response().status(), 200);
    std::thread::sleep(Duration::from_millis(100));
    let response = client.send(request).response();
    until("the server has hung up", || ended.load(Ordering::SeqCst) == 1);
    (response, upstream.connections(), upstream.heads().len())
}

#[test]
fn a_request_that_a_closing_server_has_not_read_is_sent_again() {
    let post = chat("{\"model\":\"m\",\"stream\":true,\"messages\":[]}");
    for settings in [&[][..], &[("ask_usage", "true")]] {
        for hang_up in [HangUp::Unread, HangUp::FinThenReset] {
            let (response, connections, read) = second_reply(&post, hang_up, settings);
            assert_eq!((response.status(), connections, read), (200, 2, 2), "{hang_up:?}");
            assert_eq!(response.text(), "data: 1\n\ndata: [DONE]\n\n", "{hang_up:?}");
        }
    }
}

#[test]
fn a_post_that_the_server_has_read_is_not_sent_again() {
    for hang_up in [HangUp::Read, HangUp::Answered] {
        let (response, connections, read) = second_reply(&chat("{\"stream\":true}"), hang_up, &[]);
        assert_eq!((response.status(), connections, read), (502, 1, 2), "{hang_up:?}");
    }
}

#[test]
fn an_idempotent_request_is_sent_again_unless_its_answer_has_begun() {
    let get = "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n";
    let (response, connections, read) = second_reply(get, HangUp::Read, &[]);
    assert_eq!((response.status(), connections, read), (200, 2, 3));
    let (response, connections, read) = second_reply(get, HangUp::Answered, &[]);
    assert_eq!((response.status(), connections, read), (502, 1, 2));
}

#[test]
fn a_request_is_sent_again_once_and_never_from_a_new_connection() {
    let upstream = Upstream::start(|mut conn| {
        if conn.number == 0 {
            conn.request();
            answer(&mut conn);
        }
        // It closes with the request unread.
        drop(conn.stream.peek(&mut [0]));
    });
    let proxy = TestProxy::with(upstream.addr, &[("workers", "1")]);
    let mut client = proxy.client();
    assert_eq!(client.send(chat("{}")).response().status(), 200);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(client.send(chat("{}")).response().status(), 502);
    assert_eq!((upstream.connections(), upstream.heads().len()), (2, 1), "the kept connection, and one more");
    assert_eq!(proxy.client().send(chat("{}")).response().status(), 502);
    assert_eq!(upstream.connections(), 3);
}

#[test]
fn a_server_that_keeps_its_connections_is_not_reconnected_to() {
    let upstream = Upstream::start(|mut conn| {
        while conn.request().is_some() {
            answer(&mut conn);
        }
    });
    let proxy = TestProxy::with(upstream.addr, &[("workers", "1")]);
    assert_eq!(lost(&proxy, 20), 0);
    std::thread::sleep(Duration::from_millis(600));
    let before = upstream.connections();
    assert_eq!(lost(&proxy, 500), 0);
    let made = upstream.connections() - before;
    assert!(made < 200, "{made} new connections for 2,000 requests once it has proved to keep them");
}

#[test]
fn a_large_or_unmeasured_request_never_goes_over_a_kept_connection() {
    let upstream = Upstream::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let proxy = TestProxy::with(upstream.addr, &[("workers", "1")]);
    let mut client = proxy.client();
    let requests = [
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n".to_owned(),
        format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 70000\r\n\r\n{}", "x".repeat(70_000)),
    ];
    for request in requests.iter().cycle().take(6) {
        let before = upstream.connections();
        assert_eq!(client.send(request).response().text(), "ok");
        assert_eq!(upstream.connections(), before + 1);
        std::thread::sleep(Duration::from_millis(60));
    }
}

/// The server answers before it has the whole request, and breaks off. The rest of that request from the client is no
/// request of its own.
#[test]
fn the_rest_of_a_request_is_never_sent_over_another_connection() {
    let (report, broken) = reports();
    let upstream = Upstream::start(move |mut conn| {
        conn.request();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        conn.head();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
        // Up to where the client, which does not read, holds the proxy up.
        conn.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        while conn.send([b'x'; 65_536]) {}
        conn.reset();
        report(());
    });
    let proxy = TestProxy::with(upstream.addr, &[("workers", "1")]);
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").response();
    std::thread::sleep(Duration::from_millis(100));
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nbegun");
    broken();
    client.send("GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.head();
    assert!(client.body_of(head).truncated);
    assert_eq!((upstream.heads().len(), upstream.connections()), (2, 1), "{:?}", upstream.heads());
}
