//! `ask_usage`: the proxy requests usage, the client sees an unchanged stream, and metrics have the server's count.

use crate::support::client::{Client, Response, chat};
use crate::support::http2;
use crate::support::proxy::TestProxy;
use crate::support::upstream::{Upstream, field, reports};

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const TOKEN: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a b c\"}}]}\n\n";
const RUNNING: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a b c\"}}],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3}}\n\n";
const END: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3}}\n\n";
const DONE: &str = "data: [DONE]\n\n";
/// Long enough for two pieces to be two reads.
const APART: std::time::Duration = std::time::Duration::from_millis(30);

/// A server that reports usage only to those who ask for it, and the bodies that it got.
fn server() -> (Upstream, impl Fn() -> (String, String)) {
    let (report, seen) = reports();
    let upstream = Upstream::start(move |mut conn| {
        while let Some(request) = conn.request() {
            let body = String::from_utf8(request.body.clone()).unwrap();
            conn.send(HEAD);
            conn.chunk(if body.contains("\"continuous_usage_stats\":true") { RUNNING } else { TOKEN });
            if body.contains("\"include_usage\":true") {
                // The usage begins in one piece of the stream and ends in the next, of which the client sees nothing.
                conn.chunk(END.to_owned() + &USAGE[..30]);
                std::thread::sleep(APART);
                conn.chunk(&USAGE[30..]);
                std::thread::sleep(APART);
                conn.chunk(DONE);
            } else {
                conn.chunk(END.to_owned() + DONE);
            }
            conn.send("0\r\n\r\n");
            report((request.head.clone(), body));
        }
    });
    (upstream, seen)
}

/// Output tokens on `/metrics`: their source, and their number. A reply is counted just after its client has it.
fn tokens(proxy: &TestProxy) -> Vec<(String, String)> {
    let one = |line: &str| {
        let source = line.split("source=\"").nth(1)?.split('"').next()?;
        Some((source.to_owned(), line.rsplit(' ').next()?.to_owned()))
    };
    for _ in 0..500 {
        let page =
            Client::connect(proxy.admin).send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").response().text();
        let of_tokens = page.lines().filter(|line| line.starts_with("streamgauge_stream_output_tokens_total{"));
        let found: Vec<_> = of_tokens.filter_map(one).collect();
        if !found.is_empty() {
            return found;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("no tokens were counted");
}

fn ask(proxy: &TestProxy, body: &str) -> Response {
    proxy.client().send(chat(body)).response()
}

#[test]
fn usage_is_requested_and_the_client_sees_an_unchanged_stream() {
    let (upstream, seen) = server();
    let proxy = TestProxy::with(upstream.addr, &[("ask_usage", "true")]);
    let body = "{\"stream\": true, \"messages\": []}";
    let reply = ask(&proxy, body);
    assert_eq!(reply.text(), [TOKEN, END, DONE].concat());
    assert!(!reply.truncated);
    let (head, sent_body) = seen();
    assert_eq!(sent_body, "{\"stream\": true, \"messages\": [],\"stream_options\":{\"include_usage\":true}}");
    assert_eq!((field(&head, "Content-Length"), field(&head, "Transfer-Encoding")), (None, Some("chunked")));
    assert_eq!(tokens(&proxy), [("usage".to_owned(), "3".to_owned())]);
}

#[test]
fn without_the_setting_no_usage_is_requested_and_chunks_are_counted() {
    let (upstream, seen) = server();
    let proxy = TestProxy::new(upstream.addr);
    let body = "{\"stream\": true, \"messages\": []}";
    assert_eq!(ask(&proxy, body).text(), [TOKEN, END, DONE].concat());
    assert_eq!(seen().1, body);
    assert_eq!(tokens(&proxy), [("chunks".to_owned(), "1".to_owned())]);
}

#[test]
fn a_client_that_requests_usage_gets_it() {
    let (upstream, seen) = server();
    let proxy = TestProxy::with(upstream.addr, &[("ask_usage", "true")]);
    let body = "{\"stream\":true,\"stream_options\":{\"include_usage\":true}}";
    assert_eq!(ask(&proxy, body).text(), [TOKEN, END, USAGE, DONE].concat());
    assert_eq!(seen().1, body);
}

#[test]
fn accept_encoding_is_removed_where_the_reply_must_be_edited() {
    let (upstream, seen) = server();
    let body = "{\"stream\":true}";
    let request = chat(body).replacen("\r\n", "\r\nAccept-Encoding: gzip\r\n", 1);
    for (asks, coding) in [("true", None), ("false", Some("gzip"))] {
        let proxy = TestProxy::with(upstream.addr, &[("ask_usage", asks)]);
        assert_eq!(proxy.client().send(&request).response().text(), [TOKEN, END, DONE].concat());
        assert_eq!(field(&seen().0, "Accept-Encoding"), coding, "ask_usage: {asks}");
    }
}

#[test]
fn continuous_usage_is_requested_from_servers_that_support_it_and_hidden_from_clients() {
    for (provider, knows) in [("vllm", true), ("sglang", true), ("openai", false)] {
        let (upstream, seen) = server();
        let proxy = TestProxy::with(upstream.addr, &[("ask_usage", "true"), ("provider", provider)]);
        assert_eq!(ask(&proxy, "{\"stream\":true}").text(), [TOKEN, END, DONE].concat(), "{provider}");
        let running = if knows { ",\"continuous_usage_stats\":true" } else { "" };
        let expected = format!("{{\"stream\":true,\"stream_options\":{{\"include_usage\":true{running}}}}}");
        assert_eq!(seen().1, expected, "{provider}");
        assert_eq!(tokens(&proxy), [("usage".to_owned(), "3".to_owned())]);
        let page =
            Client::connect(proxy.admin).send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").response().text();
        let of_chunks =
            |line: &str| line.starts_with("streamgauge_stream_tokens_per_chunk_sum") && line.ends_with(" 3");
        assert_eq!(page.lines().any(of_chunks), knows, "{provider}: who else knows that three came at once? {page}");
    }
}

#[test]
fn kept_connections_are_used_again_although_the_body_grows() {
    let (upstream, _seen) = server();
    let proxy = TestProxy::with(upstream.addr, &[("ask_usage", "true"), ("workers", "1")]);
    for _ in 0..5 {
        assert_eq!(ask(&proxy, "{\"stream\":true}").text(), [TOKEN, END, DONE].concat());
        // A connection rests before it is trusted.
        std::thread::sleep(std::time::Duration::from_millis(80));
    }
    assert!(upstream.connections() < 5, "{} connections", upstream.connections());
}

#[test]
fn an_http2_client_sees_the_same() {
    let (upstream, seen) = server();
    let proxy = TestProxy::with(upstream.addr, &[("ask_usage", "true")]);
    let uri = format!("http://{}/v1/chat/completions", proxy.addr);
    let request = http::Request::post(uri).body("{\"stream\":true}".into()).unwrap();
    let reply = http2::request(proxy.addr, None, request, None);
    assert_eq!(String::from_utf8_lossy(&reply.body), [TOKEN, END, DONE].concat());
    assert!(!reply.broken);
    assert_eq!(seen().1, "{\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
}

/// An event is only known to be whole by the blank line after it, which not every server sends at the end.
#[test]
fn what_ends_without_a_blank_line_reaches_clients_of_either_version() {
    let upstream = Upstream::start(|mut conn| {
        while conn.request().is_some() {
            conn.send(HEAD);
            conn.chunk(END);
            std::thread::sleep(APART);
            conn.send("c\r\ndata: [DONE]\r\n0\r\n\r\n");
        }
    });
    let proxy = TestProxy::with(upstream.addr, &[("ask_usage", "true")]);
    let expected = format!("{END}data: [DONE]");
    assert_eq!(ask(&proxy, "{\"stream\":true}").text(), expected);
    let uri = format!("http://{}/v1/chat/completions", proxy.addr);
    let request = http::Request::post(uri).body("{\"stream\":true}".into()).unwrap();
    assert_eq!(String::from_utf8_lossy(&http2::request(proxy.addr, None, request, None).body), expected);
}
