//! No request is lost to connection reuse, if servers close connections without notice.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;

use super::http_client::{get, request};
use super::processes;
use super::program::{ProxyProcess, count, sum};
use super::support::client::lost_requests;
use super::support::metrics_parser::{self, Table};
use super::tools;

/// Clients at once that ask without a pause.
const BUSY: usize = 8;

fn one_token(model: &str) -> String {
    request(
        "/v1/completions",
        &json!({"model": model, "prompt": "deep", "max_tokens": 1, "ignore_eos": true, "stream": true}),
    )
}

fn assert_all_counted(table: &Table, requests: usize) {
    let whole = [("http_response_status_code", "200"), ("http_route", "/v1/completions")];
    assert_eq!(count(table, "http_server_request_duration_seconds", &whole), requests as u64);
    let done = [("reason", "done"), ("first_token", "true")];
    assert_eq!(sum(table, "streamgauge_stream_terminations_total", &done), requests as f64);
    assert_eq!(sum(table, "streamgauge_stream_output_tokens_total", &[]), requests as f64);
}

#[test]
fn none_of_2_000_requests_to_llama_server_is_lost() {
    let _turn = processes::shared_turn();
    let llama = tools::llama();
    let proxy = ProxyProcess::to(llama.addr);
    assert_eq!(lost_requests(proxy.addr, BUSY, 2_000, &one_token("tiny"), |_| Duration::ZERO), 0);
    assert_all_counted(&proxy.settled(2_000), 2_000);
    let made = metrics_parser::text(&get(llama.addr, "/metrics").text());
    assert_eq!(sum(&made, "llamacpp:tokens_predicted_total", &[]), 2_000.0, "and none was sent twice");
}

/// Requests that the simulated server has answered.
fn answered(sim: SocketAddr) -> f64 {
    sum(&metrics_parser::text(&get(sim, "/metrics").text()), "vllm:request_success_total", &[])
}

#[test]
fn none_of_10_000_requests_to_a_server_that_hangs_up_after_each_stream_is_lost() {
    let _turn = processes::shared_turn();
    let sim = tools::sim(&["--hangup-after-stream", "--step-base", "10us", "--step-per-seq", "1us"]);
    let proxy = ProxyProcess::to(sim.addr);
    assert_eq!(lost_requests(proxy.addr, BUSY, 10_000, &one_token("sim"), |_| Duration::ZERO), 0);
    assert_all_counted(&proxy.settled(10_000), 10_000);
    assert_eq!(answered(sim.addr), 10_000.0, "and none was sent twice");
}

#[test]
fn none_of_3_000_requests_over_http2_to_nginx_that_sends_goaway_is_lost() {
    let _turn = processes::shared_turn();
    let sim = tools::sim(&["--step-base", "10us", "--step-per-seq", "1us"]);
    let folder = tempfile::tempdir().unwrap();
    let nginx = tools::nginx(&[sim.addr], "", folder.path());
    let proxy = ProxyProcess::with(nginx.addr, |command| {
        command.arg("--upstream-http=http2");
    });
    // So many at once that some are on their way at each GOAWAY.
    assert_eq!(lost_requests(proxy.addr, 60, 3_000, &one_token("sim"), |_| Duration::ZERO), 0);
    assert_all_counted(&proxy.settled(3_000), 3_000);
    assert_eq!(answered(sim.addr), 3_000.0, "and none was sent twice");
}

#[test]
fn no_request_is_lost_that_comes_as_the_server_closes_its_idle_connection() {
    let _turn = processes::shared_turn();
    // As uvicorn does, and with it every server that vLLM and its like run in.
    let sim = tools::sim(&["--idle-timeout", "5s", "--step-base", "10us", "--step-per-seq", "1us"]);
    let proxy = ProxyProcess::to(sim.addr);
    let clients = 200;
    // The second and third requests come around the moment when the server closes, or when the proxy should have.
    let pause = |turn: usize| match turn / clients {
        0 => Duration::ZERO,
        _ => {
            Duration::from_secs([4, 5][turn % 2]) + Duration::from_millis(turn as u64 * 37 % 200)
                - Duration::from_millis(100)
        }
    };
    assert_eq!(lost_requests(proxy.addr, clients, 3 * clients, &one_token("sim"), pause), 0);
    assert_all_counted(&proxy.settled(3 * clients), 3 * clients);
    assert_eq!(answered(sim.addr), 3.0 * clients as f64, "and none was sent twice");
}
