//! A real llama-server behind the proxy: its answers as they were, its tokens counted.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::compare::assert_same_text;
use super::http_client::{events, get, json, post};
use super::otlp_sink::{OtlpSink, attributes};
use super::processes;
use super::program::{ProxyProcess, count, sum};
use super::support::client::Response;
use super::tools;

/// A request whose answer is the same every time.
fn asking(more: Value) -> Value {
    let mut body = json!({"model": "tiny", "temperature": 0, "seed": 7, "cache_prompt": false, "max_tokens": 40});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn messages() -> Value {
    json!([{"role": "system", "content": "You are a river."}, {"role": "user", "content": "Say \"héllo\" \u{1f30a}"}])
}

fn chat(more: Value) -> (&'static str, Value) {
    let mut body = asking(more);
    body["messages"] = messages();
    ("/v1/chat/completions", body)
}

fn completion(more: Value) -> (&'static str, Value) {
    let mut body = asking(more);
    body["prompt"] = json!("Once upon a time\nthere was \"a river\"");
    ("/v1/completions", body)
}

/// Replaces what is another one each time: ids, moments, and how long things took.
pub(crate) fn same_each_time(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    let changing: [(&str, &[char]); 8] = [
        ("\"id\":\"", &['"']),
        ("\"created\":", &[',', '}']),
        ("\"created_at\":", &[',', '}']),
        ("\"completed_at\":", &[',', '}']),
        ("\"item_id\":\"", &['"']),
        ("\"time_ms\":", &[',', '}']),
        ("\"timings\":{", &['}']),
        // Numbers of another length make a body of another length.
        ("Content-Length: ", &['\r']),
    ];
    while let Some((at, key, end)) = changing.iter().filter_map(|(k, e)| Some((rest.find(k)?, *k, *e))).min() {
        out.push_str(&rest[..at + key.len()]);
        rest = &rest[at + key.len()..];
        rest = &rest[rest.find(end).unwrap_or(rest.len())..];
    }
    out + rest
}

fn assert_same(direct: &Response, proxied: &Response, what: &str) {
    // Hop-by-hop headers may differ.
    let of_hop = |line: &&str| !line.starts_with("Keep-Alive:") && !line.starts_with("Connection:");
    let whole = |response: &Response| {
        let head: Vec<&str> = response.head.split_inclusive("\r\n").filter(of_hop).collect();
        same_each_time(&(head.concat() + &response.text()))
    };
    assert_same_text(&whole(direct), &whole(proxied), what);
    assert!(!proxied.truncated, "{what}");
}

#[test]
fn every_answer_of_llama_server_comes_through_as_it_was() {
    let _turn = processes::shared_turn();
    let llama = tools::llama();
    let proxy = ProxyProcess::to(llama.addr);
    let usage = json!({"include_usage": true});
    let requests = [
        chat(json!({"stream": true})),
        chat(json!({"stream": true, "stream_options": usage})),
        chat(json!({"stream": true, "n": 2})),
        chat(json!({"stream": true, "logprobs": true, "top_logprobs": 3})),
        chat(json!({"stream": true, "return_progress": true})),
        chat(json!({"stream": true, "timings_per_token": true, "stream_options": usage})),
        chat(json!({"stream": false})),
        chat(json!({"max_tokens": "many"})),
        chat(json!({"stream": true, "response_format": {"type": "json_object"}})),
        completion(json!({"stream": true})),
        completion(json!({"stream": true, "logprobs": 2})),
        completion(json!({})),
        // These are no dialects of ours: they go through as plain HTTP.
        ("/completion", asking(json!({"prompt": "river", "stream": true, "n_predict": 20}))),
        ("/v1/messages", asking(json!({"messages": [messages()[1]], "stream": true}))),
        ("/v1/responses", asking(json!({"input": "river", "stream": true, "max_output_tokens": 20}))),
        ("/v1/embeddings", json!({"input": "river", "model": "tiny"})),
        ("/tokenize", json!({"content": "river"})),
        ("/nowhere", json!({})),
    ];
    for (path, body) in &requests {
        // Some paths cannot disable the prompt cache: the prompt is cached from the second request on.
        post(llama.addr, path, body);
        let direct = post(llama.addr, path, body);
        assert_same(&direct, &post(proxy.addr, path, body), &format!("{path} {body}"));
    }
    for path in ["/v1/models", "/health", "/nowhere"] {
        assert_same(&get(llama.addr, path), &get(proxy.addr, path), path);
    }
    let table = proxy.settled(requests.len() + 3);
    let statuses = ["200", "400", "404", "501"].map(|status| ("http_response_status_code", status));
    let of_status = |status| count(&table, "http_server_request_duration_seconds", &[status]);
    assert_eq!(statuses.map(of_status), [17, 1, 2, 1]);
}

/// A client's view of an answer.
#[derive(Debug, PartialEq)]
struct Seen {
    /// By choice.
    finishes: BTreeMap<u64, String>,
    /// Events with text.
    pieces: u64,
    /// Input and output tokens.
    usage: Option<(u64, u64)>,
}

fn seen(streamed: bool, answer: &Response) -> (String, Seen) {
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let chunks = if streamed { events(answer) } else { vec![json(answer)] };
    let mut seen = Seen { finishes: BTreeMap::new(), pieces: 0, usage: None };
    for chunk in &chunks {
        for choice in chunk["choices"].as_array().unwrap() {
            let text = [&choice["delta"]["content"], &choice["text"]].into_iter().filter_map(Value::as_str);
            seen.pieces += u64::from(streamed && text.map(str::len).sum::<usize>() > 0);
            if let Some(finish) = choice["finish_reason"].as_str() {
                seen.finishes.insert(choice["index"].as_u64().unwrap(), finish.to_owned());
            }
        }
        if let Some(usage) = chunk["usage"].as_object() {
            let tokens = |name: &str| usage[name].as_u64().unwrap();
            seen.usage = Some((tokens("prompt_tokens"), tokens("completion_tokens")));
        }
    }
    (chunks[0]["id"].as_str().unwrap().to_owned(), seen)
}

#[test]
fn injected_usage_is_counted_and_hidden_from_the_client() {
    let _turn = processes::shared_turn();
    let llama = tools::llama();
    let proxy = ProxyProcess::with(llama.addr, |command| {
        command.arg("--ask-usage");
    });
    let requests = [chat(json!({"stream": true})), chat(json!({"stream": true, "n": 2, "max_tokens": 9}))];
    let mut tokens = 0;
    for (path, mut body) in requests {
        let direct = post(llama.addr, path, &body);
        // llama-server moves its timings to the chunk that has the usage, and they are hidden with it.
        let without_timings = |response: Response| same_each_time(&response.text()).replace(",\"timings\":{}", "");
        let proxied = post(proxy.addr, path, &body);
        assert_eq!(seen(true, &proxied).1, seen(true, &direct).1);
        assert_same_text(&without_timings(direct.clone()), &without_timings(proxied), path);
        assert_eq!(seen(true, &direct).1.usage, None);
        body["stream_options"] = json!({"include_usage": true});
        tokens += seen(true, &post(llama.addr, path, &body)).1.usage.unwrap().1;
    }
    let counted = proxy.settled(2);
    assert_eq!(sum(&counted, "streamgauge_stream_output_tokens_total", &[("source", "usage")]), tokens as f64);
    assert_eq!(sum(&counted, "streamgauge_stream_output_tokens_total", &[]), tokens as f64);
}

/// A word that the model's answer has in its middle: as a stop string it ends the answer there.
fn stop_word(llama: SocketAddr) -> String {
    let (path, body) = chat(json!({}));
    let text = json(&post(llama, path, &body))["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    text.split_whitespace().nth(5).unwrap().to_owned()
}

#[test]
fn tokens_and_finish_reasons_are_those_that_the_client_saw() {
    let _turn = processes::shared_turn();
    let (llama, sink) = (tools::llama(), OtlpSink::start());
    let proxy = ProxyProcess::with(llama.addr, |command| {
        command.env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("http://{}/v1/traces", sink.http));
        command.env("OTEL_BSP_SCHEDULE_DELAY", "50");
    });
    let (usage, stop) = (json!({"include_usage": true}), stop_word(llama.addr));
    let requests = [
        chat(json!({"stream": true, "stream_options": usage})),
        chat(json!({"stream": true, "stream_options": usage, "stop": [stop]})),
        chat(json!({"stream": true, "stream_options": usage, "n": 2, "max_tokens": 9})),
        chat(json!({"stream": true, "stream_options": usage, "max_tokens": 1})),
        completion(json!({"stream": true, "stream_options": usage, "max_tokens": 17})),
        chat(json!({"stream": true})),
        completion(json!({"stream": true, "max_tokens": 5})),
        chat(json!({"stream": false, "stop": [stop]})),
        completion(json!({"max_tokens": 11})),
    ];
    let exchange = |(path, body): &(&str, Value)| seen(body["stream"] == true, &post(proxy.addr, path, body));
    let all: BTreeMap<String, Seen> = requests.iter().map(exchange).collect();
    let table = proxy.settled(requests.len());

    let usages: Vec<(u64, u64)> = all.values().filter_map(|seen| seen.usage).collect();
    let (input, output) = usages.iter().fold((0, 0), |sum, usage| (sum.0 + usage.0, sum.1 + usage.1));
    let unreported: u64 = all.values().filter(|seen| seen.usage.is_none()).map(|seen| seen.pieces).sum();
    assert!(unreported > 0, "llama-server reports usage of a chat stream only where it is asked for");
    let tokens = |source| sum(&table, "streamgauge_stream_output_tokens_total", &[("source", source)]);
    assert_eq!([tokens("usage"), tokens("chunks")], [output as f64, unreported as f64], "{all:?}");
    let of_type = |kind| ("gen_ai_token_type", kind);
    for (kind, total) in [("input", input), ("output", output)] {
        let labels = [of_type(kind), ("gen_ai_request_model", "tiny")];
        assert_eq!(sum(&table, "gen_ai_client_token_usage", &labels), total as f64);
        assert_eq!(count(&table, "gen_ai_client_token_usage", &labels), usages.len() as u64);
    }
    let streams = all.values().filter(|seen| seen.pieces > 0).count() as u64;
    assert_eq!(count(&table, "gen_ai_server_time_to_first_token_seconds", &[]), streams);
    let done = [("reason", "done"), ("first_token", "true")];
    assert_eq!(sum(&table, "streamgauge_stream_terminations_total", &done), streams as f64);

    let spans = || sink.client_spans();
    processes::until("every request has its spans", processes::SOON, || spans().len() == requests.len());
    let span_values = spans().into_iter().map(|span| {
        let fields = attributes(&span.attributes);
        let reasons = fields["gen_ai.response.finish_reasons"].as_array().unwrap();
        let finishes = reasons.iter().enumerate().map(|(at, reason)| (at as u64, reason.as_str().unwrap().to_owned()));
        let finishes = finishes.collect();
        let tokens = |name: &str| fields.get(name).and_then(Value::as_u64);
        let usage = tokens("gen_ai.usage.input_tokens").zip(tokens("gen_ai.usage.output_tokens"));
        let id = fields["gen_ai.response.id"].as_str().unwrap().to_owned();
        let pieces = all[&id].pieces;
        (id, Seen { finishes, pieces, usage })
    });
    assert_eq!(span_values.collect::<BTreeMap<_, _>>(), all);
    let ends: Vec<&str> = all.values().flat_map(|seen| seen.finishes.values()).map(String::as_str).collect();
    assert!(ends.contains(&"stop") && ends.contains(&"length"), "{ends:?}");
}
