//! One run of requests of which every count is known beforehand: what backends are asked about afterwards.

use std::process::Command;

use serde_json::{Value, json};

use super::http_client::request;
use super::processes::{SOON, until};
use super::program::{ProxyProcess, sum};
use super::support::client::Client;
use super::support::metrics_parser::Table;
use super::tools::{self, Tool};

/// The model asked for.
pub(crate) const MODEL: &str = "river";
/// The trace that the last good request belongs to: nothing comes after it to take its exemplars' places.
pub(crate) const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// Requests of the run.
pub(crate) const REQUESTS: usize = 25;

/// A sample's name in Prometheus, labels, and the sum over the series that have them.
type Expected = (&'static str, &'static [(&'static str, &'static str)], f64);

/// The totals of the run.
pub(crate) const EXPECTED: &[Expected] = &[
    ("http_server_request_duration_seconds_count", &[], 25.0),
    ("http_server_request_duration_seconds_count", &[("http_route", "/v1/completions")], 3.0),
    ("http_server_request_duration_seconds_count", &[("http_request_method", "GET"), ("http_route", "")], 1.0),
    ("http_server_request_duration_seconds_count", &[("http_response_status_code", "503"), ("error_type", "503")], 1.0),
    ("http_server_request_duration_seconds_count", &[("http_response_status_code", "404"), ("error_type", "")], 1.0),
    ("http_server_request_duration_seconds_count", &[("error_type", "upstream_reset")], 1.0),
    ("http_server_request_duration_seconds_count", &[("error_type", "client_disconnect")], 2.0),
    ("http_server_active_requests", &[], 0.0),
    ("streamgauge_http_responses_total", &[], 25.0),
    (
        "streamgauge_http_responses_total",
        &[("status_class", "5xx"), ("answered_by", "upstream"), ("fault", "upstream")],
        1.0,
    ),
    ("streamgauge_upstream_up", &[], 1.0),
    ("gen_ai_server_request_duration_seconds_count", &[("gen_ai_provider_name", "openai")], 24.0),
    ("gen_ai_server_request_duration_seconds_count", &[("error_type", ""), ("gen_ai_request_model", MODEL)], 18.0),
    ("gen_ai_server_request_duration_seconds_count", &[("error_type", "error_event")], 1.0),
    ("gen_ai_server_request_duration_seconds_count", &[("error_type", "503")], 1.0),
    ("gen_ai_server_request_duration_seconds_count", &[("gen_ai_request_model", "_other")], 1.0),
    // Whole streams; answers that are not streamed have no first token.
    ("gen_ai_server_time_to_first_token_seconds_count", &[("gen_ai_operation_name", "chat")], 13.0),
    ("gen_ai_server_time_to_first_token_seconds_count", &[("gen_ai_operation_name", "text_completion")], 3.0),
    ("gen_ai_server_time_per_output_token_seconds_count", &[("server_address", "127.0.0.1")], 16.0),
    ("gen_ai_client_operation_duration_seconds_count", &[("gen_ai_provider_name", "openai")], 24.0),
    ("gen_ai_client_operation_time_to_first_chunk_seconds_count", &[("gen_ai_operation_name", "chat")], 13.0),
    ("gen_ai_client_operation_time_per_output_chunk_seconds_count", &[], 10.0 * 7.0 + 3.0 * 5.0 + 7.0 + 2.0 * 3.0),
    ("gen_ai_client_token_usage_count", &[("gen_ai_token_type", "input")], 12.0),
    ("gen_ai_client_token_usage_sum", &[("gen_ai_token_type", "input")], 12.0 * 7.0),
    ("gen_ai_client_token_usage_count", &[("gen_ai_token_type", "output")], 12.0),
    ("gen_ai_client_token_usage_sum", &[("gen_ai_token_type", "output")], 10.0 * 8.0 + 2.0 * 5.0),
    ("streamgauge_stream_inter_token_latency_seconds_count", &[("method", "chunk")], 10.0 * 7.0 + 3.0 * 5.0 + 7.0),
    ("streamgauge_stream_inter_token_latency_seconds_count", &[("method", "exact")], 2.0 * 3.0),
    ("streamgauge_stream_tokens_per_chunk_count", &[], 2.0 * 4.0),
    ("streamgauge_stream_tokens_per_chunk_sum", &[], 2.0 * 4.0),
    ("streamgauge_stream_time_to_phase_seconds_count", &[("phase", "headers")], 16.0),
    ("streamgauge_stream_time_to_phase_seconds_count", &[("phase", "first_byte")], 16.0),
    ("streamgauge_stream_time_to_phase_seconds_count", &[("phase", "evidence")], 16.0),
    ("streamgauge_stream_time_to_phase_seconds_count", &[("phase", "first_output")], 16.0),
    ("streamgauge_stream_stalls_total", &[], 1.0),
    ("streamgauge_stream_terminations_total", &[("reason", "done"), ("first_token", "true")], 16.0),
    ("streamgauge_stream_terminations_total", &[("reason", "error_event")], 1.0),
    ("streamgauge_stream_terminations_total", &[("reason", "upstream_reset")], 1.0),
    ("streamgauge_stream_terminations_total", &[("reason", "client_disconnect"), ("first_token", "true")], 1.0),
    ("streamgauge_stream_terminations_total", &[("reason", "client_disconnect"), ("first_token", "false")], 1.0),
    ("streamgauge_stream_output_tokens_total", &[("source", "usage")], 10.0 * 8.0 + 2.0 * 5.0),
    ("streamgauge_stream_output_tokens_total", &[("source", "ids")], 2.0 * 4.0),
    // Without usage, and the tokens of the three that broke off.
    ("streamgauge_stream_output_tokens_total", &[("source", "chunks")], 3.0 * 6.0 + 8.0 + 3.0 + 4.0 + 2.0),
    ("streamgauge_stream_active", &[], 0.0),
    ("streamgauge_slo_requests_total", &[("slo", "easy"), ("result", "met")], 16.0),
    ("streamgauge_slo_requests_total", &[("slo", "easy"), ("result", "missed")], 6.0),
    // It has no first token to be late.
    ("streamgauge_slo_requests_total", &[("slo", "easy"), ("result", "excluded")], 2.0),
    ("streamgauge_slo_requests_total", &[("slo", "hard"), ("result", "met")], 0.0),
    ("streamgauge_slo_requests_total", &[("slo", "hard"), ("result", "missed")], 24.0),
    ("streamgauge_slo_violations_total", &[("slo", "easy"), ("objective", "error")], 6.0),
    ("streamgauge_slo_violations_total", &[("slo", "hard"), ("objective", "error")], 6.0),
    ("streamgauge_slo_violations_total", &[("slo", "hard"), ("objective", "e2e")], 18.0),
    ("streamgauge_slo_output_tokens_total", &[("slo", "easy")], 10.0 * 8.0 + 3.0 * 6.0 + 2.0 * 4.0 + 8.0),
    ("streamgauge_slo_output_tokens_total", &[("slo", "hard")], 0.0),
    ("streamgauge_proxy_overhead_seconds_count", &[("stage", "request")], 24.0),
    ("streamgauge_proxy_overhead_seconds_count", &[("stage", "response_head")], 23.0),
    ("streamgauge_proxy_upstream_connections", &[("state", "active")], 0.0),
    ("streamgauge_export_dropped_total", &[], 0.0),
    ("streamgauge_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0),
];

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// The simulated server and a proxy in front of it, after the run.
pub(crate) struct KnownRun {
    pub(crate) proxy: ProxyProcess,
    /// The scrape after the last request.
    pub(crate) table: Table,
    _sim: Tool,
}

impl KnownRun {
    /// The run; `more` adds flags and environment of the proxy.
    pub(crate) fn run(more: impl FnOnce(&mut Command)) -> Self {
        let sim = tools::sim(&["--model", MODEL, "--exact-cadence", "5ms"]);
        let proxy = ProxyProcess::with(sim.addr, |command| {
            command.args(["--slo", "easy: ttft<=60s", "--slo", "hard: e2e<=1ms", "--stall", "2s"]);
            more(command);
        });
        requests(&proxy);
        let table = proxy.settled(REQUESTS);
        Self { proxy, table, _sim: sim }
    }
}

/// A request to the simulated server.
fn ask(tokens: u32, more: Value) -> Value {
    let mut body = json!({
        "model": MODEL, "max_tokens": tokens, "ignore_eos": true, "seed": 1, "temperature": 0.5, "top_p": 0.9, "stream": true
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn requests(proxy: &ProxyProcess) {
    let addr = proxy.addr;
    let messages = json!([{"role": "user", "content": "How deep is the river?"}]);
    let chat = |tokens: u32, more: Value| {
        let mut body = ask(tokens, more);
        body["messages"] = messages.clone();
        request(CHAT, &body)
    };
    let with = |request: String, field: &str| request.replacen("\r\n\r\n", &format!("\r\n{field}\r\n\r\n"), 1);
    let usage = json!({"stream_options": {"include_usage": true}});
    let mut client = Client::connect(addr);
    let mut whole = |request: String, times: usize, status: u16| {
        for _ in 0..times {
            let response = client.send(&request).response();
            assert_eq!((response.status(), response.truncated), (status, false), "{}", response.text());
        }
    };
    let traced = format!("traceparent: 00-{TRACE}-00f067aa0ba902b7-01");
    whole(chat(8, usage), 10, 200);
    whole(request(TEXT, &ask(6, json!({"prompt": "deep"}))), 3, 200);
    whole(chat(5, json!({"stream": false})), 2, 200);
    whole(chat(4, json!({"return_token_ids": true})), 2, 200);
    whole(with(with(chat(8, json!({})), "x-sim-fault: stall=2500ms@4"), &traced), 1, 200);
    whole(with(chat(8, json!({})), "x-sim-fault: error@3"), 1, 200);
    whole(with(chat(8, json!({})), "x-sim-fault: status=503"), 1, 503);
    whole(request(CHAT, &json!({"model": "lake", "messages": messages})), 1, 404);
    whole(format!("GET /v1/models HTTP/1.1\r\nHost: {addr}\r\n\r\n"), 1, 200);

    let reset = Client::connect(addr).send(with(chat(8, json!({})), "x-sim-fault: reset@4")).response();
    assert!(reset.truncated);
    // They leave: one after two tokens, one before the head.
    let mut leaving = Client::connect(addr);
    leaving.send(with(chat(8, json!({})), "x-sim-fault: stall=60s@3"));
    let mut come = leaving.head();
    while come.matches("\"content\":\"").count() < 3 {
        come += &String::from_utf8(leaving.at_least(1)).unwrap();
    }
    drop(leaving);
    let with_upstream = |connections: f64| {
        until(&format!("{connections} connections are in use"), SOON, || {
            sum(&proxy.scrape(), "streamgauge_proxy_upstream_connections", &[("state", "active")]) == connections
        });
    };
    with_upstream(0.0);
    let mut waiting = Client::connect(addr);
    waiting.send(with(chat(8, json!({})), "x-sim-fault: slow-headers=60s"));
    with_upstream(1.0);
    // And a moment for what is written to it.
    std::thread::sleep(std::time::Duration::from_millis(100));
}
