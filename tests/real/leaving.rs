//! A client that leaves: the upstream learns of it at once, and a real server's slot is free again.

use std::time::{Duration, Instant};

use serde_json::json;

use super::gauge::{Gauge, sum};
use super::machine::{self, SOON, until};
use super::parse;
use super::parts;
use super::support::client::{Client, chat};
use super::support::upstream::{Conn, Upstream, reports};
use super::talk::{get, request};

/// The law: within this time the upstream's socket is closed.
const AT_ONCE: Duration = Duration::from_millis(10);
/// Tries of which the median counts. Anything else on the machine makes a single try late, but not half of them.
const TRIES: usize = 15;

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const WHOLE: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n";
const EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"deep\"}}]}\n\n";

/// The median time from a client's leaving to the end of the upstream's connection. `begin` is what the upstream does
/// once it has the request.
fn noticed_after(begin: fn(&mut Conn), leave: fn(Client)) -> Duration {
    let (begun, has_begun) = reports();
    let (closed, was_closed) = reports();
    let upstream = Upstream::start(move |mut conn| {
        conn.request();
        begin(&mut conn);
        begun(());
        assert!(conn.closed().is_some(), "the proxy never closed");
        closed(Instant::now());
    });
    let gauge = Gauge::to(upstream.addr);
    let one = |_| {
        let mut client = gauge.client();
        client.send(chat("{\"stream\":true}"));
        has_begun();
        // What has been sent is through, and everybody waits.
        std::thread::sleep(Duration::from_millis(20));
        let left = Instant::now();
        leave(client);
        was_closed().saturating_duration_since(left)
    };
    let mut times: Vec<Duration> = (0..TRIES).map(one).collect();
    times.sort();
    let gone = [("reason", "client_disconnect")];
    until("every leaving is counted", SOON, || {
        let scraped = gauge.scrape();
        sum(&scraped, "streamgauge_stream_terminations_total", &gone) == TRIES as f64
    });
    times[TRIES / 2]
}

#[test]
fn the_upstream_learns_within_ten_milliseconds_that_the_client_has_left() {
    let _turn = machine::alone();
    let in_stream = |conn: &mut Conn| {
        conn.send(STREAM);
        conn.chunk(EVENT);
    };
    let before_first_token = |conn: &mut Conn| {
        conn.send(STREAM);
    };
    for (how, leave) in [("closing", drop as fn(Client)), ("resetting", Client::reset)] {
        for (when, median) in [
            ("before the head", noticed_after(|_| {}, leave)),
            ("in a stream", noticed_after(in_stream, leave)),
            ("in a stream before its first token", noticed_after(before_first_token, leave)),
        ] {
            assert!(median <= AT_ONCE, "{how} {when}: {median:?} at the median of {TRIES}");
        }
    }
}

#[test]
fn the_upstream_of_an_answer_that_is_not_streamed_learns_it_too() {
    let _turn = machine::alone();
    let (begun, has_begun) = reports();
    let (closed, was_closed) = reports();
    let upstream = Upstream::start(move |mut conn| {
        conn.request();
        conn.send(WHOLE);
        conn.send("{\"id\":");
        begun(());
        conn.closed();
        closed(Instant::now());
    });
    let gauge = Gauge::to(upstream.addr);
    let one = |_| {
        let mut client = gauge.client();
        client.send(chat("{\"stream\":false}")).at_least(WHOLE.len());
        has_begun();
        let left = Instant::now();
        drop(client);
        was_closed().saturating_duration_since(left)
    };
    let mut times: Vec<Duration> = (0..TRIES).map(one).collect();
    times.sort();
    assert!(times[TRIES / 2] <= AT_ONCE, "{times:?}");
}

/// Tokens of an answer that takes half a minute unless it is cut short.
const LONG: usize = 8_000;

#[test]
fn a_slot_of_llama_server_is_free_again_when_its_client_leaves() {
    let _turn = machine::beside();
    // One slot has all of the context.
    let llama = parts::llama_with(&["--parallel", "1"]);
    let gauge = Gauge::to(llama.addr);
    // Its metrics are not asked meanwhile: every answer of it puts off its next look at the clients by a second.
    let cancelled = || llama.running.log().matches("cancel task").count();
    let begun = || llama.running.log().matches("processing task").count();
    for (number, stream) in [(1, true), (2, false)] {
        let mut client = gauge.client();
        let body = json!({"prompt": "Once", "max_tokens": LONG, "ignore_eos": true, "stream": stream});
        client.send(request("/v1/completions", &body));
        until("the answer is being made", SOON, || begun() == number);
        assert_eq!(cancelled(), number - 1);
        drop(client);
        until("the slot is free", SOON, || cancelled() == number);
    }
    let metrics = parse::text(&get(llama.addr, "/metrics").text());
    assert_eq!(sum(&metrics, "llamacpp:requests_processing", &[]), 0.0);
    let made = sum(&metrics, "llamacpp:tokens_predicted_total", &[]);
    assert!(made < LONG as f64, "{made} tokens: less than one whole answer of two");
}
