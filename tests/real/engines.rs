//! vLLM and transformers behind the proxy: their answers as they were, their tokens counted; and the engines' own clocks
//! beside ours.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::compare::assert_same_text;
use super::http_client::{events, get, json as body_of, post};
use super::llama::same_each_time;
use super::processes;
use super::program::{ProxyProcess, count, sum};
use super::support::client::Response;
use super::support::metrics_parser;
use super::tools;

/// A chat whose answer is the same every time.
fn chat(model: &str, more: Value) -> Value {
    let messages = json!([{"role": "user", "content": "Say \"héllo\" \u{1f30a}"}]);
    let mut body = json!({"model": model, "temperature": 0, "seed": 7, "max_tokens": 40, "messages": messages});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The contents of a stream: the text and the reason of each choice, and the last usage. The number of tokens per event
/// varies from run to run.
fn contents(events: &[Value]) -> (BTreeMap<u64, String>, Value) {
    let (mut choices, mut usage) = (BTreeMap::<u64, String>::new(), Value::Null);
    for event in events {
        for choice in event["choices"].as_array().unwrap() {
            let text = choices.entry(choice["index"].as_u64().unwrap()).or_default();
            let parts = [&choice["delta"]["content"], &choice["text"], &choice["finish_reason"]];
            parts.into_iter().filter_map(Value::as_str).for_each(|part| text.push_str(part));
        }
        if event["usage"].is_object() {
            usage = event["usage"].clone();
        }
    }
    (choices, usage)
}

/// Fails unless two answers are the same, but for what is another one each time.
fn assert_alike(direct: &Response, proxied: &Response, what: &str) {
    assert_eq!(direct.status(), proxied.status(), "{what}");
    if proxied.field("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
        assert_eq!(contents(&events(direct)), contents(&events(proxied)), "{what}");
    } else {
        assert_same_text(&same_each_time(&direct.text()), &same_each_time(&proxied.text()), what);
    }
}

/// Output tokens as the last usage of an answer has them.
fn usage(events: &[Value]) -> u64 {
    events.iter().rev().find_map(|event| event["usage"]["completion_tokens"].as_u64()).unwrap()
}

#[test]
#[ignore = "needs vLLM: tests/run --real"]
fn every_answer_of_vllm_comes_through_as_it_was_and_its_tokens_are_counted() {
    let _turn = processes::shared_turn();
    let vllm = tools::vllm();
    let proxy = ProxyProcess::to(vllm.addr);
    let options = json!({"include_usage": true});
    let requests = [
        ("/v1/chat/completions", chat("tiny", json!({"stream": true, "stream_options": options}))),
        (
            "/v1/chat/completions",
            chat("tiny", json!({"stream": true, "n": 2, "temperature": 0.8, "stream_options": options})),
        ),
        ("/v1/chat/completions", chat("tiny", json!({}))),
        ("/v1/chat/completions", chat("tiny", json!({"max_tokens": "many"}))),
        (
            "/v1/completions",
            json!({"model": "tiny", "prompt": "river", "temperature": 0, "stream": true,
            "stream_options": {"include_usage": true, "continuous_usage_stats": true}}),
        ),
        ("/tokenize", json!({"model": "tiny", "prompt": "river"})),
        ("/nowhere", json!({})),
    ];
    let (mut tokens, mut statuses) = (0, Vec::new());
    for (path, body) in &requests {
        let direct = post(vllm.addr, path, body);
        let proxied = post(proxy.addr, path, body);
        assert_alike(&direct, &proxied, &format!("{path} {body}"));
        statuses.push(direct.status());
        if proxied.status() == 200 && path.starts_with("/v1") {
            let answer = if body["stream"] == true { events(&proxied) } else { vec![body_of(&proxied)] };
            tokens += usage(&answer);
        }
    }
    assert_eq!(statuses, [200, 200, 200, 400, 200, 200, 404]);
    let table = proxy.settled(requests.len());
    let of_output = [("gen_ai_token_type", "output")];
    assert_eq!(sum(&table, "gen_ai_client_token_usage", &of_output), tokens as f64);
    assert_eq!(count(&table, "gen_ai_client_token_usage", &of_output), 4);
}

#[test]
#[ignore = "needs vLLM: tests/run --real"]
fn the_first_token_of_vllms_own_clock_comes_before_ours_by_what_its_clock_leaves_out() {
    let _turn = processes::exclusive_turn();
    let vllm = tools::vllm();
    let proxy = ProxyProcess::to(vllm.addr);
    const REQUESTS: usize = 20;
    for _ in 0..REQUESTS {
        assert_eq!(post(proxy.addr, "/v1/chat/completions", &chat("tiny", json!({"stream": true}))).status(), 200);
    }
    let ours = proxy.settled(REQUESTS);
    let engine = metrics_parser::text(&get(vllm.addr, "/metrics").text());
    let mean = |table, name| (count(table, name, &[]), sum(table, name, &[]) * 1e3 / REQUESTS as f64);
    let engine = mean(&engine, "vllm:time_to_first_token_seconds");
    let ours = mean(&ours, "gen_ai_server_time_to_first_token_seconds");
    eprintln!(
        "| TTFT, mean ms | vLLM's own {:.3} | proxy {:.3} | difference {:.3} |",
        engine.1,
        ours.1,
        ours.1 - engine.1
    );
    assert_eq!((engine.0, ours.0), (REQUESTS as u64, REQUESTS as u64));
    // Its clock begins when the request is parsed and ends when the engine has the token. Ours includes the HTTP server
    // on both sides.
    assert!(ours.1 > engine.1, "{engine:?} {ours:?}");
}

#[test]
fn llama_servers_own_clocks_leave_out_what_is_around_the_model_and_its_counts_are_ours() {
    let _turn = processes::exclusive_turn();
    let llama = tools::llama();
    let proxy = ProxyProcess::to(llama.addr);
    const REQUESTS: usize = 20;
    let engine = || metrics_parser::text(&get(llama.addr, "/metrics").text());
    let began = engine();
    for request in 0..REQUESTS {
        let fields = json!({"stream": true, "ignore_eos": true, "stream_options": {"include_usage": true},
            "messages": [{"role": "user", "content": format!("{request} times {}", "down the river ".repeat(40))}]});
        assert_eq!(post(proxy.addr, "/v1/chat/completions", &chat("tiny", fields)).status(), 200);
    }
    let (ours, ended) = (proxy.settled(REQUESTS), engine());
    let grown = |name: &str| sum(&ended, name, &[]) - sum(&began, name, &[]);
    let tokens = |kind| sum(&ours, "gen_ai_client_token_usage", &[("gen_ai_token_type", kind)]);
    assert_eq!(tokens("output"), grown("llamacpp:tokens_predicted_total"));
    assert_eq!(tokens("input"), grown("llamacpp:prompt_tokens_total") + grown("llamacpp:prompt_tokens_cached_total"));
    let mean = |seconds: f64| seconds * 1e3 / REQUESTS as f64;
    let prompt = mean(grown("llamacpp:prompt_seconds_total"));
    let ttft = mean(sum(&ours, "gen_ai_server_time_to_first_token_seconds", &[]));
    eprintln!("| mean ms | llama-server's own | proxy |");
    eprintln!("| prompt, TTFT | {prompt:.3} | {ttft:.3} |");
    let decode = mean(grown("llamacpp:tokens_predicted_seconds_total"));
    let gaps = mean(sum(&ours, "streamgauge_stream_inter_token_latency_seconds", &[]));
    eprintln!("| decoding, first token to last | {decode:.3} | {gaps:.3} |");
    // Its clock begins when a slot begins with the prompt and ends when the first token is there. Parsing, the
    // template, the tokenizer and the wait for a slot come before that, and sending after.
    assert!(0.0 < prompt && prompt < ttft, "{prompt} {ttft}");
}

#[test]
#[ignore = "needs transformers: tests/run --real"]
fn every_answer_of_transformers_comes_through_as_it_was_and_its_tokens_are_counted() {
    let _turn = processes::shared_turn();
    let transformers = tools::transformers();
    let proxy = ProxyProcess::to(transformers.addr);
    let model = tools::folder().join("models/tiny-hf");
    let body = chat(model.to_str().unwrap(), json!({"stream": true}));
    let path = "/v1/chat/completions";
    let direct = post(transformers.addr, path, &body);
    let proxied = post(proxy.addr, path, &body);
    assert_eq!(proxied.status(), 200);
    assert_alike(&direct, &proxied, path);
    // It ends without a `[DONE]`, and its usage is on the chunk that has the reason.
    assert!(!proxied.text().contains("[DONE]"));
    let table = proxy.settled(1);
    assert_eq!(
        sum(&table, "gen_ai_client_token_usage", &[("gen_ai_token_type", "output")]),
        usage(&events(&proxied)) as f64
    );
    assert_eq!(sum(&table, "streamgauge_stream_terminations_total", &[("reason", "done")]), 1.0);
    // It has no clock of its own to stand beside ours. Should it get one, compare them.
    assert_eq!(get(transformers.addr, "/metrics").status(), 404);
}
