//! No request is lost to connection reuse.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use support::client::chat;
use support::proxy::Between;
use support::upstream::Upstream;

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

/// A server that hangs up `after` each streamed answer, as llama-server does: it says nothing of it.
fn hangs_up(after: impl Fn(usize) -> Duration + Send + Sync + 'static) -> Upstream {
    Upstream::start(move |mut conn| {
        if conn.request().is_some() {
            conn.send(STREAM);
            conn.chunk("data: 1\n\n");
            conn.chunk("data: [DONE]\n\n");
            conn.send("0\r\n\r\n");
            std::thread::sleep(after(conn.number));
        }
    })
}

#[test]
fn a_server_that_hangs_up_after_each_answer_loses_nothing() {
    let upstream = hangs_up(|_| Duration::ZERO);
    let proxy = Between::new(upstream.addr);
    assert_eq!(lost(&proxy, 500), 0);
    assert_eq!(upstream.heads().len(), 2_000, "and no request was sent twice");
}

#[test]
fn a_server_that_hangs_up_a_little_later_each_time_loses_nothing() {
    let upstream = hangs_up(|number| Duration::from_micros((number as u64 * 37) % 3_000));
    let proxy = Between::new(upstream.addr);
    assert_eq!(lost(&proxy, 250), 0);
    assert_eq!(upstream.heads().len(), 1_000);
}

#[test]
fn a_server_that_closes_idle_connections_loses_nothing() {
    let upstream = Upstream::start(|mut conn| {
        conn.stream.set_read_timeout(Some(Duration::from_millis(40))).unwrap_or(());
        while conn.request().is_some() {
            conn.send(STREAM);
            conn.chunk("data: 1\n\n");
            conn.chunk("data: [DONE]\n\n");
            conn.send("0\r\n\r\n");
        }
    });
    let proxy = Between::new(upstream.addr);
    for pause in [0, 20, 39, 40, 41, 60, 80, 100] {
        std::thread::sleep(Duration::from_millis(pause));
        assert_eq!(lost(&proxy, 20), 0, "after a pause of {pause} ms");
    }
}

#[test]
fn a_server_that_keeps_its_connections_is_not_reconnected_to() {
    let upstream = Upstream::start(|mut conn| {
        while conn.request().is_some() {
            conn.send(STREAM);
            conn.chunk("data: 1\n\n");
            conn.chunk("data: [DONE]\n\n");
            conn.send("0\r\n\r\n");
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
