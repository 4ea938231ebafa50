//! The proxy and a replay measure the same streams with equal counts and timelines.

use std::time::Duration;

use streamgauge::measure::record::{CountSource, FinishReason, Outcome};
use streamgauge::trace_file::gaps::unpack;
use streamgauge::trace_file::row::TraceEntry;

use crate::support::client::Client;
use crate::support::proxy::TestProxy;
use crate::support::replay::{Settings, replay, row};
use crate::support::upstream::Upstream;

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

fn event(delta: &str, logprobs: usize, finish: &str) -> String {
    let entries = vec!["{}"; logprobs].join(",");
    let logprobs = if logprobs > 0 { format!(",\"logprobs\":{{\"content\":[{entries}]}}") } else { String::new() };
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}{logprobs},\"finish_reason\":{finish}}}]}}\n\n")
}

fn text(text: &str, tokens: usize) -> String {
    event(&format!("{{\"content\":\"{text}\"}}"), tokens, "null")
}

/// Streams as servers send them: each piece is one write, and there is a pause after it.
fn streams() -> Vec<Vec<String>> {
    let end = event("{}", 0, "\"stop\"");
    let done = "data: [DONE]\n\n".to_owned();
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":11}}\n\n".to_owned();
    let role = event("{\"role\":\"assistant\",\"content\":\"\"}", 0, "null");
    let thought = event("{\"reasoning_content\":\"hm\"}", 0, "null");
    vec![
        vec![role.clone(), thought, text("a", 0), text("b", 0) + &text("c", 0), end.clone() + &usage + &done],
        vec![text("a", 1), text("bcd", 3), text("ef", 2), ": ping\n\n".to_owned(), text("g", 1), end + &done],
        // The server reports a failure.
        vec![text("a", 0), "data: {\"error\":{\"message\":\"x\",\"type\":\"server_error\"}}\n\n".to_owned() + &done],
        // It ends without a terminal event.
        vec![role, text("a", 0), text("b", 0)],
    ]
}

/// Plays each request the stream that its `max_tokens` numbers.
fn upstream() -> Upstream {
    Upstream::start(|mut conn| {
        while let Some(request) = conn.request() {
            let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
            let number = usize::try_from(body["max_tokens"].as_u64().unwrap()).unwrap();
            conn.send(HEAD);
            for piece in &streams()[number - 1] {
                conn.chunk(piece);
                // Reasoning and output must be two reads, however late the reader, so that their order is visible.
                let pause = if piece.contains("reasoning") { 200 } else { 5 };
                std::thread::sleep(Duration::from_millis(pause));
            }
            conn.send("0\r\n\r\n");
        }
    })
}

fn rows(to: std::net::SocketAddr) -> Vec<TraceEntry> {
    let rows = (1..=streams().len() as u64).map(|number| row(number * 80, number)).collect();
    replay(rows, to, Settings::default()).1
}

/// The sum of a metric's samples that have this label.
fn metric(page: &str, name: &str, label: &str) -> f64 {
    let samples = page.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
    samples.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// The proxy's page once it has counted everything.
fn page(proxy: &TestProxy) -> String {
    for _ in 0..500 {
        let page =
            Client::connect(proxy.admin).send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").response().text();
        if metric(&page, "http_server_request_duration_seconds_count", "") == streams().len() as f64 {
            return page;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the proxy has not counted every request");
}

#[test]
fn the_same_stream_through_proxy_and_replay_gives_the_same_timeline() {
    let upstream = upstream();
    let proxy = TestProxy::new(upstream.addr);
    let (direct, proxied) = (rows(upstream.addr), rows(proxy.addr));
    let tokens = |row: &TraceEntry| unpack(row.timing.gaps.as_deref().unwrap_or("AA")).unwrap();
    let counts = |row: &TraceEntry| {
        let gaps: Vec<Option<u32>> = tokens(row).iter().map(|gap| gap.tokens()).collect();
        (row.outcome, row.finish, row.output_tokens, row.output_source, row.timing.first_tokens, gaps)
    };
    let expected = [
        (Some(Outcome::Success), Some(FinishReason::Stop), Some(11), Some(CountSource::Usage), None, vec![None; 3]),
        (
            Some(Outcome::Success),
            Some(FinishReason::Stop),
            Some(7),
            Some(CountSource::Ids),
            Some(1),
            vec![Some(3), Some(2), Some(1)],
        ),
        (Some(Outcome::Failed), None, Some(1), Some(CountSource::Chunks), None, vec![]),
        (Some(Outcome::Truncated), None, Some(2), Some(CountSource::Chunks), None, vec![None]),
    ];
    assert_eq!(direct.iter().map(counts).collect::<Vec<_>>(), expected);
    assert_eq!(proxied.iter().map(counts).collect::<Vec<_>>(), expected, "a proxy in between changes nothing");
    for row in direct.iter().chain(&proxied) {
        let sum: u64 = tokens(row).iter().map(|gap| gap.gap().as_nanos()).sum();
        let times = &row.timing;
        assert!(times.first_token.unwrap() + sum <= times.ended.unwrap() + 1_000, "{times:?}");
        assert_eq!(times.evidence, times.first_token, "{times:?}");
    }
    let first = &direct[0];
    assert!(first.timing.first_output > first.timing.first_token, "reasoning is no output");
    // The proxy's counts of the streams that the replay sent through it.
    let page = page(&proxy);
    let gaps = |method: &str| metric(&page, "streamgauge_stream_inter_token_latency_seconds_count", method);
    // Latencies are those of successes.
    let whole = || proxied.iter().filter(|row| row.outcome == Some(Outcome::Success));
    let method = |of: fn(Option<u32>) -> bool| whole().flat_map(tokens).filter(|gap| of(gap.tokens())).count() as f64;
    assert_eq!(gaps("method=\"chunk\""), method(|tokens| tokens.is_none()));
    assert_eq!(gaps("method=\"exact\""), method(|tokens| tokens == Some(1)));
    assert_eq!(gaps("method=\"split\""), method(|tokens| tokens > Some(1)));
    let output = |source: CountSource| {
        let of = |row: &&TraceEntry| row.output_source == Some(source);
        proxied.iter().filter(of).filter_map(|row| row.output_tokens).sum::<u64>() as f64
    };
    for source in [CountSource::Usage, CountSource::Ids, CountSource::Chunks] {
        let label = format!("source=\"{}\"", source.name());
        assert_eq!(metric(&page, "streamgauge_stream_output_tokens_total", &label), output(source), "{label}");
    }
    let ttft = metric(&page, "gen_ai_server_time_to_first_token_seconds_count", "");
    assert_eq!(ttft, whole().count() as f64);
}
