//! No request is lost to connection reuse.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "clippy knows tests by their attribute, and these have helpers; a server looks how late it hangs up"
)]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::captured::until;
use support::client::chat;
use support::proxy::Between;
use support::upstream::{Conn, Upstream, reports};

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n";

/// Sends `requests` on each of four kept connections, and says how many did not come back whole.
fn lost(proxy: &Between, requests: usize) -> usize {
    let lost = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let lost = Arc::clone(&lost);
            scope.spawn(move || {
                let mut client = proxy.client();
                for _ in 0..requests {
                    let response = client.send(chat("{\"stream\":true}")).response();
                    if response.status() != 200
                        || response.truncated
                        || response.text() != "data: 1\n\ndata: [DONE]\n\n"
                    {
                        lost.fetch_add(1, Ordering::SeqCst);
                        client = proxy.client();
                    }
                }
            });
        }
    });
    lost.load(Ordering::SeqCst)
}

fn answer(conn: &mut Conn) {
    conn.send(STREAM);
    conn.chunk("data: 1\n\n");
    conn.chunk("data: [DONE]\n\n");
    conn.send("0\r\n\r\n");
}

/// Within this time of its answer a server has to hang up if a connection's rest of 50 ms is to show it.
const IN_TIME: Duration = Duration::from_millis(40);

/// The connections that a server has not hung up yet, and the longest that one was open after an answer.
type HangingUp = Arc<Mutex<(usize, Duration)>>;

/// A server that answers on a connection until `goes_on` says no, which may wait, and then hangs up without a word.
fn hangs_up(goes_on: impl Fn(&mut Conn) -> bool + Send + Sync + 'static) -> (Upstream, HangingUp) {
    let hanging_up = HangingUp::default();
    let told = Arc::clone(&hanging_up);
    let upstream = Upstream::start(move |mut conn| {
        told.lock().unwrap().0 += 1;
        let mut begun = Instant::now();
        if conn.request().is_some() {
            loop {
                begun = Instant::now();
                answer(&mut conn);
                if !goes_on(&mut conn) {
                    break;
                }
            }
        }
        drop(conn);
        let (open, longest) = &mut *told.lock().unwrap();
        (*open, *longest) = (*open - 1, begun.elapsed().max(*longest));
    });
    (upstream, hanging_up)
}

/// Fails unless of so many requests none is lost and none is sent twice.
///
/// A server that a busy machine keeps from hanging up for as long as a connection rests is, to anybody, one that keeps
/// its connections. A try in which it did says nothing of what is lost, and there is another.
fn loses_nothing(server: impl Fn() -> (Upstream, HangingUp), requests: usize, ask: impl Fn(&Between) -> usize) {
    let tried = || {
        let (upstream, hanging_up) = server();
        let proxy = Between::new(upstream.addr);
        let lost = ask(&proxy);
        drop(proxy);
        until("every connection is hung up", || hanging_up.lock().unwrap().0 == 0);
        let (sent, longest) = (upstream.heads().len(), hanging_up.lock().unwrap().1);
        assert!(sent <= requests, "{sent} of {requests}: requests were sent twice");
        assert!((lost, sent) == (0, requests) || longest > IN_TIME, "{lost} of {requests} were lost");
        lost == 0
    };
    assert!((0..20).any(|_| tried()), "the server never hangs up in time");
}

#[test]
fn a_server_that_hangs_up_after_each_answer_loses_nothing() {
    loses_nothing(|| hangs_up(|_| false), 2_000, |proxy| lost(proxy, 500));
}

#[test]
fn a_server_that_hangs_up_a_little_later_each_time_loses_nothing() {
    let later = |conn: &mut Conn| {
        std::thread::sleep(Duration::from_micros((conn.number as u64 * 37) % 3_000));
        false
    };
    loses_nothing(|| hangs_up(later), 1_000, |proxy| lost(proxy, 250));
}

#[test]
fn a_server_that_closes_idle_connections_loses_nothing() {
    let waits = |conn: &mut Conn| {
        conn.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        conn.request().is_some()
    };
    let pauses = [0, 10, 19, 20, 21, 40, 60, 80];
    loses_nothing(
        || hangs_up(waits),
        pauses.len() * 4 * 20,
        |proxy| {
            let after = |pause| {
                std::thread::sleep(Duration::from_millis(pause));
                lost(proxy, 20)
            };
            pauses.map(after).iter().sum()
        },
    );
}

#[test]
fn a_server_that_keeps_its_connections_is_not_reconnected_to() {
    let upstream = Upstream::start(|mut conn| {
        while conn.request().is_some() {
            answer(&mut conn);
        }
    });
    let proxy = Between::with(upstream.addr, &[("workers", "1")]);
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
    let proxy = Between::with(upstream.addr, &[("workers", "1")]);
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

/// The server answers before it has the whole request, and breaks off. What the client then sends of that request is no
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
    let proxy = Between::with(upstream.addr, &[("workers", "1")]);
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
