//! Verdicts that need the server's own figures, or the blocks of the prompts.

use std::fs;

use serde_json::{Value, json};
use streamgauge::measure::server_metrics::ServerMetric;
use streamgauge::trace_file::row::PromptShape;
use streamgauge::trace_file::server_metrics::Scrape;

use super::diagnosis::{figure, finding, report, steady, verdicts};
use super::fidelity::write;
use super::results::{near, streamgauge};

const SECOND: i64 = 1_000_000_000;

fn scrape(second: i64, server: usize, figures: &[(ServerMetric, f64)]) -> Scrape {
    Scrape { at: second * SECOND, server, figures: figures.iter().copied().collect(), ..Scrape::default() }
}

#[test]
fn a_ttft_that_the_server_does_not_account_for_is_client_bound() {
    // TTFT is 103 ms on average, and the server counts 700 requests.
    let rows = steady(700, |_, _| {});
    let by_server = |queue_ms: f64, prefill_ms: f64| {
        let total = |ms: f64, requests: f64| ms / 1e3 * requests;
        let at = |second: i64, requests: f64| {
            let figures = [
                (ServerMetric::QueueSeconds, total(queue_ms, requests)),
                (ServerMetric::QueueRequests, requests),
                (ServerMetric::PrefillSeconds, total(prefill_ms, requests)),
                (ServerMetric::PrefillRequests, requests),
            ];
            scrape(second, 0, &figures)
        };
        report(&rows, &json!({}), &[at(0, 0.0), at(36, 700.0)])
    };
    let network = by_server(10.0, 20.0);
    let found = finding(&network, "client_bound");
    let statement = "TTFT is mostly spent outside of the server's queue and prefill: 70.9 % of TTFT";
    assert_eq!(found["statement"], statement);
    let outside = figure(&found["evidence"], "TTFT outside of queue and prefill");
    near(outside["value"].as_f64().unwrap(), 73.0 / 103.0);
    assert_eq!(outside["at_least"], 0.5);
    near(found["share"].as_f64().unwrap(), 73.0 / 103.0);
    // 43 ms of 103 ms are less than half.
    assert!(!verdicts(&by_server(20.0, 40.0)).contains(&"client_bound"));
}

#[test]
fn a_gpu_that_is_idle_while_requests_run_is_scheduler_bound_and_sets_no_pace() {
    let rows = steady(700, |_, _| {});
    // The engine's page and the GPU's are two.
    let of = |running: f64, gpu: f64| {
        let page = |second: i64| {
            let engine = scrape(second, 0, &[(ServerMetric::Running, running)]);
            [engine, scrape(second, 1, &[(ServerMetric::GpuUtilization, gpu)])]
        };
        report(&rows, &json!({}), &[page(0), page(36)].concat())
    };
    let idle = of(2.0, 0.375);
    let found = finding(&idle, "scheduler_bound");
    assert_eq!(found["statement"], "the GPU is idle most of the time while requests run");
    let gpu = figure(&found["evidence"], "GPU utilization, mean");
    assert_eq!((&gpu["value"], &gpu["at_most"]), (&json!(0.375), &json!(0.5)));
    let running = figure(&found["evidence"], "requests running, mean");
    assert_eq!((&running["value"], &running["at_least"]), (&json!(2.0), &json!(1.0)));
    assert!(!verdicts(&idle).contains(&"decode_bound"), "{:#}", idle["diagnosis"]);
    for busy in [of(2.0, 0.625), of(0.5, 0.375)] {
        assert_eq!(verdicts(&busy), ["decode_bound"], "{:#}", busy["diagnosis"]);
    }
}

#[test]
fn prompts_that_were_sent_before_and_are_not_cached_are_cache_cold() {
    // Four blocks of 16 tokens, of which all but the first request sent three before.
    let of = |cached: u64| {
        let rows = steady(500, |n, row| {
            let blocks = vec![1, 2, 3, 1_000 + n];
            row.prompt = PromptShape { tokens: Some(64), cached: Some(cached), blocks, ..PromptShape::default() };
        });
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("records.jsonl.zst"), &rows);
        fs::write(folder.path().join("run.json"), "{}").unwrap();
        let done = streamgauge(&[folder.path()], &["--json"]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        serde_json::from_str::<Value>(&done.stdout).unwrap()
    };
    let offered = 499.0 * 48.0 / (500.0 * 64.0);
    let cold = of(16);
    let found = finding(&cold, "cache_cold");
    assert_eq!(found["statement"], "the prefix cache was cold for 49.9 % of the prompt tokens");
    for (name, value) in [
        ("repeated prompt tokens that the cache did not hold", offered - 0.25),
        ("prompt tokens from the cache", 0.25),
        ("prompt tokens sent before", offered),
    ] {
        near(figure(&found["evidence"], name)["value"].as_f64().unwrap(), value);
    }
    // A quarter less the first prompt's part.
    assert!(!verdicts(&of(32)).contains(&"cache_cold"));
}
