//! Traces replayed: Mooncake's first five minutes at real engines, and what AIPerf sent, as our proxy captured it.

use std::path::Path;

use serde_json::json;
use tempfile::tempdir;

use super::aiperf_trace::{TRACE, rows, trace};
use super::http_client::get;
use super::program::{ProxyProcess, json_of, sum};
use super::support::metrics_parser;
use super::tools::Tool;
use super::{processes, tools};

const MOONCAKE: &str = "tests/data/traces/mooncake/conversation_first300s.jsonl";
/// Requests in it.
const REQUESTS: usize = 918;
const SPEED: u64 = 5;
/// The tiny engines hold 2,048 tokens, and the longest request of the trace has 121,924 and 2,000.
const LENGTHS: [&str; 4] = ["--isl", "0.0078125x", "--osl", "0.0625x"];
/// How far an arrival may be off, on a busy machine.
const TOLERANCE_MS: f64 = 100.0;

/// Replays the scaled trace against an engine, which counts prompts under the first of these names and replies under the
/// second.
fn replay_mooncake(engine: &Tool, name: &str, counters: [&[&str]; 2]) {
    let folder = tempdir().unwrap();
    let text = |path: &str| folder.path().join(path).to_str().unwrap().to_owned();
    let (scaled, out) = (text("scaled.jsonl.zst"), text("run"));
    trace(&[&["scale", MOONCAKE, "--output-format", "streamgauge", "--output", &scaled], &LENGTHS[..]].concat());
    let url = format!("http://{}", engine.addr);
    let tokenizer = tools::tokenizer();
    let counted = || {
        let table = metrics_parser::text(&get(engine.addr, "/metrics").text());
        counters.map(|names| names.iter().map(|name| sum(&table, name, &[])).sum::<f64>())
    };
    let began = counted();
    let speed = SPEED.to_string();
    // Without a chat template a prompt may be as short as the shortest of the trace.
    let flags =
        ["--dialect=openai.completions", "--prompt-overhead=0", "--models=*=tiny", "--max-lag=1h", "--no-audit"];
    let target = ["replay", &scaled, "--target", &url, "--speed", &speed, "--out", &out, "--json"];
    let report = json_of(&[&target[..], &flags, &["--tokenizer", tokenizer.to_str().unwrap()]].concat());
    let (ended, summary) = (counted(), &report["summary"]);
    let ms = |what: &str, which: &str| summary["metrics"][what][which].as_f64().unwrap_or(f64::NAN);
    eprintln!(
        "| {name} | {} requests | TTFT p50 {:.1} ms, p99 {:.1} ms | ITL p50 {:.2} ms | send lag p50 {:.3} ms, p99 {:.3} ms | {} in flight at most |",
        summary["requests"],
        ms("ttft_from_planned", "p50"),
        ms("ttft_from_planned", "p99"),
        ms("itl", "p50"),
        ms("send_lag", "p50"),
        ms("send_lag", "p99"),
        summary["in_flight"]["max"]
    );
    assert_eq!(summary["outcomes"], json!({"success": REQUESTS}), "{summary}");
    for length in ["isl", "osl"] {
        let of = &summary["fidelity"][length];
        assert_eq!((&of["compared"], &of["exact_share"]), (&json!(REQUESTS), &json!(1.0)), "{length}: {summary}");
    }
    let grown = [ended[0] - began[0], ended[1] - began[1]];
    let sent = ["input", "output"].map(|which| summary["tokens"][which].as_f64().unwrap());
    assert_eq!(grown, sent, "tokens as the engine counted them");

    let (expected, mut got) = (rows(Path::new(&scaled)), rows(&Path::new(&out).join("records.jsonl.zst")));
    got.sort_by_key(|row| row.planned);
    for (expected, got) in expected.iter().zip(&got) {
        assert!(
            got.planned.unwrap().abs_diff(expected.at / SPEED) <= 1,
            "{expected:?} was planned for {:?}",
            got.planned
        );
    }
}

#[test]
#[ignore = "takes a minute and more: tests/run --real"]
fn mooncakes_first_five_minutes_five_times_as_fast_reach_llama_server_whole() {
    let _turn = processes::exclusive_turn();
    let llama = tools::llama();
    let input = ["llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"];
    replay_mooncake(&llama, "llama-server", [&input, &["llamacpp:tokens_predicted_total"]]);
}

#[test]
#[ignore = "needs vLLM: tests/run --real"]
fn mooncakes_first_five_minutes_five_times_as_fast_reach_vllm_whole() {
    let _turn = processes::exclusive_turn();
    let vllm = tools::vllm();
    replay_mooncake(&vllm, "vLLM", [&["vllm:prompt_tokens_total"], &["vllm:generation_tokens_total"]]);
}

#[test]
#[ignore = "needs AIPerf: tests/run --real"]
fn a_capture_of_aiperfs_traffic_is_replayed_and_the_two_are_alike() {
    let _turn = processes::exclusive_turn();
    let folder = tempdir().unwrap();
    let text = |path: &str| folder.path().join(path).to_str().unwrap().to_owned();
    trace(&["cut", TRACE, "--from", "10s", "--to", "17s", "--output", &text("trace.jsonl")]);
    let sim = tools::sim(&["--model=tiny", "--prefill-rate=10000000"]);
    let capturing = |to: &str| {
        ProxyProcess::with(sim.addr, |command| {
            command.arg("--capture").arg(text(to));
        })
    };
    let proxy = capturing("sent");
    tools::run("aiperf-trace", &[&format!("http://{}", proxy.addr), &text("aiperf"), &text("trace.jsonl")]);
    proxy.end();
    let proxy = capturing("replayed");
    let url = format!("http://{}", proxy.addr);
    // The simulated server's chat template has two tokens; to ask for them would be two requests more.
    let flags = ["--prompt-overhead=2", "--max-lag=1h", "--no-audit", "--json"];
    json_of(&[&["replay", &text("sent"), "--target", &url], &flags[..]].concat());
    proxy.end();

    let diff = json_of(&["trace", "diff", &text("sent"), &text("replayed"), "--json"]);
    let reuse = |side: &str| diff[side]["reuse"][0]["token_share"].as_f64().unwrap();
    let error = &diff["arrival_error"];
    eprintln!(
        "| AIPerf's traffic and its replay | {} requests | arrivals off by p50 {} ms, at most {} ms | prefix reuse {:.4} and {:.4} |",
        diff["joined"],
        error["p50_ms"],
        error["max_ms"],
        reuse("a"),
        reuse("b")
    );
    assert_eq!([&diff["a"]["requests"], &diff["b"]["requests"], &diff["joined"]], [24, 24, 24]);
    for lengths in [&diff["input"], &diff["output"]] {
        assert_eq!(
            (&lengths["compared"], &lengths["exact_share"], &lengths["ks"]),
            (&json!(24), &json!(1.0), &json!(0.0))
        );
    }
    assert!(reuse("a") > 0.0 && (reuse("a") - reuse("b")).abs() < 0.01);
    assert!(error["max_ms"].as_f64().unwrap() < TOLERANCE_MS, "{error}");
}
