//! A client that leaves: the upstream learns of it at once, and a real server's slot is free again.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;

use super::http_client::{get, request};
use super::processes::{self, SOON, until};
use super::program::{ProxyProcess, count, sum};
use super::support::client::{Client, chat};
use super::support::http2;
use super::support::metrics_parser;
use super::support::upstream::{Conn, Upstream, reports};
use super::tools;

/// The law: within this time the upstream's socket is closed.
const AT_ONCE: Duration = Duration::from_millis(10);
/// Tries of which the median counts. Anything else on the machine makes a single try late, but not half of them.
const TRIES: usize = 15;
/// Medians of which the least counts, where something else keeps the machine for a while.
const ROUNDS: usize = 4;

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const WHOLE: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n";
const EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"deep\"}}]}\n\n";

/// The upstream's action after the request.
type Begin = fn(&mut Conn);

fn before_head(_: &mut Conn) {}

fn before_first_token(conn: &mut Conn) {
    conn.send(STREAM);
}

fn in_stream(conn: &mut Conn) {
    conn.send(STREAM);
    conn.chunk(EVENT);
}

fn in_whole_answer(conn: &mut Conn) {
    conn.send(WHOLE);
    conn.send("{\"id\":");
}

/// Fails unless the upstream's connection ends [`AT_ONCE`], at the median of a round.
fn assert_noticed_at_once(median: impl Fn() -> Duration) {
    let mut late = Vec::new();
    let in_time = (0..ROUNDS).any(|_| {
        late.push(median());
        late.last() <= Some(&AT_ONCE)
    });
    assert!(in_time, "{late:?}, each at the median of {TRIES}");
}

/// The median time until the upstream's connection ends. `try_once` makes a request of the proxy, waits until the
/// upstream has begun, and leaves; it returns when it did.
fn noticed_after<T>(
    begin: Begin,
    connect: impl Fn(SocketAddr) -> T,
    try_once: impl Fn(&T, &dyn Fn()) -> Instant,
) -> Duration {
    let (report_begin, has_begun) = reports();
    let (closed, was_closed) = reports();
    let upstream = Upstream::start(move |mut conn| {
        conn.request();
        begin(&mut conn);
        report_begin(());
        assert!(conn.closed().is_some(), "the proxy never closed");
        closed(Instant::now());
    });
    let proxy = ProxyProcess::to(upstream.addr);
    let client = connect(proxy.addr);
    let wait = || {
        has_begun();
        // The data sent so far has arrived, and all sides wait.
        std::thread::sleep(Duration::from_millis(20));
    };
    let one = |_| {
        let left = try_once(&client, &wait);
        was_closed().saturating_duration_since(left)
    };
    let mut times: Vec<Duration> = (0..TRIES).map(one).collect();
    times.sort();
    let labels = [("error_type", "client_disconnect")];
    until("every leaving is counted", SOON, || {
        count(&proxy.scrape(), "http_server_request_duration_seconds", &labels) == TRIES as u64
    });
    times[TRIES / 2]
}

#[test]
fn the_upstream_learns_within_ten_milliseconds_that_the_client_has_left() {
    let _turn = processes::exclusive_turn();
    for begin in [before_head, before_first_token, in_stream, in_whole_answer] {
        for leave in [drop as fn(Client), Client::reset] {
            let leaves = |proxy: &SocketAddr, wait: &dyn Fn()| {
                let mut client = Client::connect(*proxy);
                client.send(chat("{\"stream\":true}"));
                wait();
                let left = Instant::now();
                leave(client);
                left
            };
            assert_noticed_at_once(|| noticed_after(begin, |proxy| proxy, leaves));
        }
    }
}

#[test]
fn the_upstream_learns_it_too_when_one_stream_of_an_http2_connection_is_reset() {
    let _turn = processes::exclusive_turn();
    for begin in [before_head, before_first_token, in_stream] {
        let resets = |connection: &http2::KeptConnection, wait: &dyn Fn()| {
            let request = connection.request("/v1/chat/completions", "{\"stream\":true}");
            wait();
            let left = Instant::now();
            drop(request);
            left
        };
        assert_noticed_at_once(|| noticed_after(begin, http2::KeptConnection::connect, resets));
    }
}

/// Tokens of an answer that takes half a minute unless it is cut short.
const LONG: usize = 8_000;

#[test]
fn a_slot_of_llama_server_is_free_again_when_its_client_leaves() {
    let _turn = processes::shared_turn();
    // One slot has all of the context.
    let llama = tools::llama_with(&["--parallel", "1"]);
    let proxy = ProxyProcess::to(llama.addr);
    // Its metrics are not asked meanwhile: every answer of it puts off its next look at the clients by a second.
    let log_count = |words: &str| llama.running.log_count(words);
    for (number, stream) in [(1, true), (2, false)] {
        let mut client = proxy.client();
        let body = json!({"prompt": "Once", "max_tokens": LONG, "ignore_eos": true, "stream": stream});
        client.send(request("/v1/completions", &body));
        until("the answer is being made", SOON, || log_count("processing task") == number);
        assert_eq!(log_count("cancel task"), number - 1);
        drop(client);
        until("the slot is free", SOON, || log_count("stop processing") == number);
        assert_eq!(log_count("cancel task"), number);
    }
    let metrics = metrics_parser::text(&get(llama.addr, "/metrics").text());
    assert_eq!(sum(&metrics, "llamacpp:requests_processing", &[]), 0.0);
    let made = sum(&metrics, "llamacpp:tokens_predicted_total", &[]);
    assert!(made < LONG as f64, "{made} tokens: less than one whole answer of two");
}
