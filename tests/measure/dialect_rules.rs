//! Rules of dialects that no vector shows, each with the fewest events that show it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use streamgauge::inspect::inspection::{Inspection, RecordedExchange, inspect};
use streamgauge::measure::dialect::{Routes, TABLE};
use streamgauge::measure::observer::StreamObserver;
use streamgauge::measure::record::{Ending, Outcome, RequestRecord, StampSource};
use streamgauge::measure::reply_body::ResponseHead;
use streamgauge::measure::shape::{RequestShape, ShapeReader};
use streamgauge::measure::time::Stamp;

const SSE: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";
const DOCUMENT: &str = "application/json";

fn read(path: &str, request: &str, content_type: &str, body: &[u8]) -> Inspection {
    let head = RequestShape::of("POST", path, &Routes::default());
    let exchange = RecordedExchange { head, request: request.as_bytes(), content_type, content_encoding: "" };
    inspect(&exchange, [body]).0
}

/// The inspection of a stream of these events.
fn stream(path: &str, request: &str, events: &[Value]) -> Inspection {
    let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    read(path, request, SSE, body.as_bytes())
}

fn lines(path: &str, events: &[Value]) -> Inspection {
    let body: String = events.iter().map(|event| format!("{event}\n")).collect();
    read(path, "{}", LINES, body.as_bytes())
}

fn document(path: &str, request: &str, body: &Value) -> Inspection {
    read(path, request, DOCUMENT, body.to_string().as_bytes())
}

fn record(path: &str, content_type: &str, body: &[u8], ending: Ending) -> RequestRecord {
    let shape = RequestShape::of("POST", path, &Routes::default());
    let mut observer = StreamObserver::begin(shape, b"", None, Stamp::default());
    let head = ResponseHead { status: 200, content_type: content_type.as_bytes(), content_encoding: b"" };
    observer.head(Stamp::default(), head, StampSource::Read);
    observer.bytes(Stamp::default(), body);
    observer.end(Stamp::default(), ending)
}

fn counted(inspection: &Inspection) -> (Option<u64>, Option<&str>) {
    (inspection.output_tokens, inspection.output_tokens_from)
}

/// The events with text and with proof of a token.
fn events(inspection: &Inspection) -> (u64, u64) {
    (inspection.token_events, inspection.evidence_events)
}

fn by_event(inspection: &Inspection) -> Vec<(u64, u64)> {
    inspection.tokens_by_event.clone().unwrap_or_default().into_iter().collect()
}

fn finishes(inspection: &Inspection) -> Vec<(u32, &str, &str)> {
    inspection.finish.iter().map(|finish| (finish.choice, finish.reason, &*finish.raw)).collect()
}

#[test]
fn an_error_of_ours_is_an_error_in_its_own_dialect() {
    for dialect in TABLE {
        let body: Value = serde_json::from_str(&(dialect.error_body)(503, "too \"busy\"")).unwrap();
        assert!(body.to_string().contains("too \\\"busy\\\""), "{}", dialect.name);
        if dialect.name != "triton.grpc" {
            let head = RequestShape { dialect: Some(dialect), ..RequestShape::default() };
            let exchange = RecordedExchange { head, content_type: DOCUMENT, ..RecordedExchange::default() };
            let error = inspect(&exchange, [body.to_string().as_bytes()]).0.error.unwrap();
            assert_eq!(error.message.as_deref(), Some("too \"busy\""), "{}", dialect.name);
        }
    }
}

#[test]
fn events_that_make_no_sense_are_counted_in_every_dialect_and_stop_nothing() {
    for dialect in TABLE.iter().filter(|dialect| !matches!(dialect.operation, "embeddings" | "rerank")) {
        let shape = RequestShape { dialect: Some(dialect), ..RequestShape::default() };
        let mut observer = StreamObserver::begin(shape, b"", None, Stamp::default());
        let (content_type, body): (_, &[u8]) = match dialect.content_type {
            "application/grpc" => ("application/grpc", b"\0\0\0\0\x02\x12\x7f\0\0\0\0\x01z\0\0\0\0\0"),
            _ => (LINES, b"{\n7\n{\"a\":1}\n\"\xff\"\n"),
        };
        let head = ResponseHead { status: 200, content_type: content_type.as_bytes(), content_encoding: b"" };
        observer.head(Stamp::default(), head, StampSource::Read);
        observer.bytes(Stamp::default(), body);
        let record = observer.end(Stamp::default(), Ending::UpstreamFailed);
        let all_but_one = record.events - 1;
        let expected = if dialect.name == "bedrock.invoke" { record.events } else { all_but_one };
        assert_eq!(u64::from(record.quality.malformed_events), expected, "{}", dialect.name);
        assert_eq!(record.quality.unread, None, "{}", dialect.name);
        assert_eq!((record.token_events, record.output_tokens), (0, None), "{}", dialect.name);
    }
}

#[test]
fn responses_deltas_are_tokens_by_their_type_and_hosted_tools_are_not() {
    let delta = |kind: &str| json!({"type": format!("response.{kind}.delta"), "delta": "x"});
    for (kind, is_token, is_output) in [
        ("output_text", true, true),
        ("refusal", true, true),
        ("function_call_arguments", true, true),
        ("mcp_call_arguments", true, true),
        ("custom_tool_call_input", true, true),
        ("code_interpreter_call_code", true, true),
        ("audio", true, true),
        ("audio_transcript", true, true),
        ("shell_call_command", true, true),
        ("reasoning_text", true, false),
        ("reasoning_summary_text", true, false),
        ("web_search_call", false, false),
        ("shell_call_output_content", false, false),
    ] {
        let answer = stream("/v1/responses", "{}", &[delta(kind)]);
        assert_eq!(answer.first_token_event.is_some(), is_token, "{kind}");
        assert_eq!(answer.first_output_event.is_some(), is_output, "{kind}");
    }
    let empty = json!({"type": "response.output_text.delta", "delta": ""});
    assert_eq!(events(&stream("/v1/responses", "{}", &[empty])), (0, 0));
    let held = json!({"type": "response.output_text.delta", "delta": "", "logprobs": [{}, {}]});
    let answer = stream("/v1/responses", "{}", &[held]);
    assert_eq!((events(&answer), by_event(&answer), counted(&answer)), ((0, 1), vec![(0, 2)], (Some(2), Some("ids"))));
}

#[test]
fn a_response_ends_by_its_status_its_error_or_its_cancellation() {
    let path = "/v1/responses";
    let end = |kind: &str, response: Value| stream(path, "{}", &[json!({"type": kind, "response": response})]);
    // Earlier releases of vLLM.
    let old =
        end("response.completed", json!({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}));
    assert_eq!(finishes(&old), [(0, "filter", "content_filter")]);
    assert_eq!(finishes(&end("response.cancelled", json!({}))), [(0, "abort", "cancelled")]);
    let failed = end("response.failed", json!({"error": null}));
    assert!(!failed.complete && failed.error.is_some());
    let error = stream(path, "{}", &[json!({"type": "error", "code": "rate", "message": "slow down", "param": null})]);
    let error = error.error.unwrap();
    assert_eq!((error.message.as_deref(), error.kind, error.code), (Some("slow down"), None, Some("rate".into())));
    let body =
        "event: unknown\ndata: {\"error\":{\"message\":\"engine\",\"type\":\"InternalServerError\",\"code\":500}}\n\n";
    let error = read(path, "{}", SSE, body.as_bytes()).error.unwrap();
    assert_eq!((error.kind.as_deref(), error.code), (Some("InternalServerError"), Some(500.into())));
    let whole = json!({"id": "r", "object": "response", "status": "incomplete", "error": null,
        "incomplete_details": {"reason": "max_output_tokens"}, "usage": {"input_tokens": 3, "output_tokens": 2}});
    let whole = document(path, "{}", &whole);
    assert_eq!(
        (finishes(&whole), whole.output_tokens, whole.error.is_none()),
        (vec![(0, "length", "max_output_tokens")], Some(2), true)
    );
}

#[test]
fn anthropic_counts_are_the_latest_and_an_error_is_one_whatever_follows() {
    let path = "/v1/messages";
    let start =
        json!({"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 5, "output_tokens": 1}}});
    let text = json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}});
    let usage = |usage: Value| json!({"type": "message_delta", "delta": {"stop_reason": null}, "usage": usage});
    let stop = json!({"type": "message_stop"});
    let cut = stream(path, "{}", &[start.clone(), text.clone()]);
    assert_eq!((counted(&cut), cut.complete), ((Some(1), Some("chunks")), false), "a placeholder is no count");
    let later =
        json!({"input_tokens": 7, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2, "output_tokens": 9});
    let events = [start.clone(), text.clone(), usage(json!({"output_tokens": 4})), usage(later), stop.clone()];
    let whole = stream(path, "{}", &events);
    assert_eq!(
        (counted(&whole), whole.input_tokens, whole.cached_tokens),
        ((Some(9), Some("usage")), Some(12), Some(3))
    );
    assert!(whole.complete, "message_stop is an end without a reason");
    let new = json!({"type": "brand_new", "delta": {"text": "x"}});
    let citation =
        json!({"type": "content_block_delta", "delta": {"type": "citations_delta", "citation": {"cited_text": "x"}}});
    assert_eq!(stream(path, "{}", &[new, citation]).token_events, 0);
    let error = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    let failed = stream(path, "{}", &[start, text, error, stop]);
    assert_eq!((failed.complete, failed.error.unwrap().kind.as_deref()), (false, Some("overloaded_error")));
}

#[test]
fn sglang_increments_are_detected_by_ids_and_never_by_text() {
    let event = |text: &str, ids: usize, total: u64| json!({"text": text, "output_ids": vec![1; ids], "meta_info": {"completion_tokens": total, "finish_reason": null}});
    let read = |events: &[Value]| stream("/generate", r#"{"text":"<a>","stream":true}"#, events);
    // One text twice: an increment that repeats a word, or a cumulative text that did not grow.
    let increments = read(&[event("ha", 1, 1), event("ha", 1, 2)]);
    assert_eq!((events(&increments), by_event(&increments)), ((2, 2), vec![(0, 1), (1, 1)]));
    let cumulative = read(&[event("ha", 1, 1), event("ha", 2, 2)]);
    assert_eq!((events(&cumulative), by_event(&cumulative)), ((1, 2), vec![(0, 1), (1, 1)]));
    let skipped = read(&[event("a", 3, 3), event("a b c", 9, 9)]);
    assert_eq!((by_event(&skipped), counted(&skipped)), (vec![(0, 3), (1, 6)], (Some(9), Some("cumulative"))));
    // The first increments seen are of a stream whose beginning was held back.
    let late = read(&[event("", 0, 2), event("b", 1, 3)]);
    assert_eq!((events(&late), late.first_token_event), ((1, 2), Some(1)));
}

#[test]
fn empty_text_beside_an_error_is_no_token_held_back() {
    let error = json!({"message": "out of memory", "type": "internal_server_error", "code": 500});
    let event = |path: &str, text: &str| match path {
        "/v1/chat/completions" => json!({"choices": [{"index": 0, "delta": {"content": text}}]}),
        "/v1/completions" => json!({"choices": [{"index": 0, "text": text}]}),
        "/api/chat" => json!({"model": "m", "message": {"content": text}, "done": false}),
        _ => json!({"text_output": text}),
    };
    let read = |path: &str, plain: &[Value]| match path {
        "/api/chat" => lines(path, plain),
        path => stream(path, r#"{"stream":true}"#, plain),
    };
    for path in ["/v1/chat/completions", "/v1/completions", "/v2/models/m/generate_stream", "/api/chat"] {
        let (text, empty) = (event(path, "a"), event(path, ""));
        let mut failed = empty.clone();
        failed["error"] = error.clone();
        let inspection = read(path, &[text.clone(), failed]);
        assert_eq!((events(&inspection), inspection.error.is_some()), ((1, 1), true), "{path}");
        assert_eq!(events(&read(path, &[text, empty])), (1, 2), "{path}: without the error it is one");
    }
}

#[test]
fn sglang_without_a_tokenizer_answers_with_ids_and_they_are_tokens_like_text() {
    let event = |ids: &[u32], total: u64| json!({"output_ids": ids, "meta_info": {"completion_tokens": total}});
    let read = |events: &[Value]| stream("/generate", r#"{"input_ids":[1],"sampling_params":{}}"#, events);
    let cumulative = read(&[event(&[5], 1), event(&[5, 6, 7], 3), event(&[5, 6, 7], 3)]);
    assert_eq!((events(&cumulative), by_event(&cumulative)), ((2, 2), vec![(0, 1), (1, 2)]));
    assert_eq!((cumulative.first_token_event, cumulative.last_token_event), (Some(0), Some(1)));
    let increments = read(&[event(&[5], 1), event(&[6], 2), event(&[], 2)]);
    assert_eq!((events(&increments), by_event(&increments)), ((2, 2), vec![(0, 1), (1, 1)]));
    // Text that is held back is another matter.
    let held = json!({"text": "", "output_ids": [5], "meta_info": {"completion_tokens": 1}});
    assert_eq!(events(&read(&[held])), (0, 1));
}

#[test]
fn sglang_answers_to_one_prompt_share_its_tokens_and_an_abort_is_a_finish() {
    let event = |index: u32, finish: Value| {
        let info = json!({"prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 2, "finish_reason": finish});
        json!({"text": "a", "output_ids": [1, 2], "index": index, "meta_info": info})
    };
    let request = r#"{"text":"<a>","stream":true,"sampling_params":{"n":2}}"#;
    let abort = json!({"type": "abort", "message": "Aborted", "status_code": 499});
    let both = stream("/generate", request, &[event(0, json!({"type": "stop", "matched": "x"})), event(1, abort)]);
    assert_eq!((both.input_tokens, both.cached_tokens, both.output_tokens), (Some(10), Some(4), Some(4)));
    assert_eq!((finishes(&both), both.complete), (vec![(0, "stop", "stop"), (1, "abort", "abort")], true));
    let error = json!({"error": {"message": "bad", "type": "invalid_request_error", "code": 400, "retryable": false}});
    let failed = stream("/generate", request, &[error]);
    assert_eq!((failed.complete, failed.error.unwrap().code), (false, Some(400.into())));
    let whole = json!([{"meta_info": {"completion_tokens": 2, "prompt_tokens": 3, "finish_reason": {"type": "length"}}},
        {"meta_info": {"completion_tokens": 1, "prompt_tokens": 4, "finish_reason": {"type": "stop"}}}]);
    let whole = document("/generate", r#"{"text":["<a>","<b>"]}"#, &whole);
    assert_eq!((whole.output_tokens, whole.input_tokens), (Some(3), Some(7)));
    assert_eq!(finishes(&whole), [(0, "length", "length"), (1, "stop", "stop")]);
}

#[test]
fn llama_counts_by_its_counter_and_progress_is_no_token() {
    let event = |content: &str, predicted: u64| json!({"content": content, "tokens": [], "stop": false, "tokens_predicted": predicted});
    let progress = json!({"content": "", "tokens": [], "stop": false, "tokens_predicted": 0,
        "prompt_progress": {"total": 9, "cache": 0, "processed": 4, "time_ms": 3}});
    let end = json!({"content": "", "tokens": [], "stop": true, "stop_type": "limit", "tokens_predicted": 5,
        "tokens_evaluated": 9, "timings": {"cache_n": 3}});
    let answer = stream("/completion", "{}", &[progress, event("a", 1), event("é", 4), event("", 4), end]);
    assert_eq!((events(&answer), by_event(&answer)), ((2, 3), vec![(1, 1), (2, 3), (4, 1)]));
    assert_eq!(
        (counted(&answer), answer.input_tokens, answer.cached_tokens),
        ((Some(5), Some("cumulative")), Some(9), Some(3))
    );
    assert_eq!((finishes(&answer), answer.complete), (vec![(0, "length", "limit")], true));
    // `response_fields` took everything but the text.
    let bare = stream("/infill", "{}", &[json!({"content": "a"}), json!({"content": ""}), json!({"stop": true})]);
    assert_eq!((events(&bare), counted(&bare), bare.complete), ((1, 2), (Some(2), Some("chunks")), true));
    let two = stream(
        "/completions",
        "{}",
        &[
            json!({"index": 0, "content": "a", "tokens_predicted": 1}),
            json!({"index": 1, "content": "b", "tokens_predicted": 1}),
        ],
    );
    assert_eq!((counted(&two), two.complete), ((Some(2), Some("cumulative")), false));
}

#[test]
fn llama_counts_every_prompt_and_every_answer_of_a_list() {
    let event = |index: u32, predicted: u64, evaluated: u64, stop: bool| {
        let text = if stop { "" } else { "x" };
        json!({"index": index, "content": text, "stop": stop, "stop_type": stop.then_some("limit"), "tokens_predicted": predicted, "tokens_evaluated": evaluated, "timings": {"cache_n": 2}})
    };
    // Prompts of 3 and of 2 tokens, whose answers interleave.
    let both = [
        event(1, 1, 2, false),
        event(0, 1, 3, false),
        event(1, 1, 2, true),
        event(0, 2, 3, false),
        event(0, 2, 3, true),
    ];
    let counts = |answer: &Inspection| (answer.input_tokens, answer.cached_tokens, answer.output_tokens);
    let streamed = stream("/completion", r#"{"prompt":["a","b"],"stream":true}"#, &both);
    assert_eq!(counts(&streamed), (Some(5), Some(4), Some(3)));
    let whole = json!([both[2], both[4]]);
    let answer = document("/completion", r#"{"prompt":["a","b"]}"#, &whole);
    assert_eq!(counts(&answer), (Some(5), Some(4), Some(3)));
    assert_eq!(finishes(&answer), [(0, "length", "limit"), (1, "length", "limit")]);
    // Two answers to one prompt.
    let answers = [event(0, 4, 7, false), event(1, 5, 7, false), event(1, 5, 7, true), event(0, 4, 7, true)];
    let request = r#"{"prompt":"a","n_cmpl":2,"stream":true}"#;
    assert_eq!(counts(&stream("/completion", request, &answers)), (Some(7), Some(2), Some(9)));
    let answer = document("/completion", request, &json!([answers[3], answers[2]]));
    assert_eq!(counts(&answer), (Some(7), Some(2), Some(9)));
}

#[test]
fn usage_in_the_event_of_a_finished_choice_belongs_to_that_choice() {
    // As llama-server ends each prompt of a list.
    let event = |index: u32, text: &str, prompt: Option<u64>| {
        let usage = prompt.map(|prompt| json!({"prompt_tokens": prompt, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}));
        json!({"object": "text_completion", "choices": [{"index": index, "text": text, "finish_reason": prompt.map(|_| "length")}], "usage": usage})
    };
    let ends =
        [event(0, "a", None), event(1, "b", None), event(0, "c", None), event(1, "d", Some(5)), event(0, "", Some(3))];
    let counts = |answer: &Inspection| (answer.input_tokens, answer.cached_tokens, counted(answer).0);
    let prompts = stream("/v1/completions", r#"{"prompt":["x","y"],"stream":true}"#, &ends);
    assert_eq!((counts(&prompts), counted(&prompts).1), ((Some(8), Some(2), Some(4)), Some("usage")));
    // A report of the whole is better than what was added up.
    let total = json!({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 5}});
    let reported = [&ends[..], &[total]].concat();
    assert_eq!(counts(&stream("/v1/completions", "{}", &reported)), (Some(8), Some(2), Some(5)));
    let answers = [event(0, "a", Some(3)), event(1, "b", Some(3))];
    let answer = stream("/v1/completions", r#"{"prompt":"x","n":2,"stream":true}"#, &answers);
    assert_eq!(counts(&answer), (Some(3), Some(1), Some(4)));
}

#[test]
fn the_log_probabilities_of_an_echoed_prompt_are_no_tokens() {
    // As vLLM sends them: the prompt's come with those of the first token.
    let event = |text: &str, logprobs: usize| json!({"object": "text_completion", "choices": [{"index": 0, "text": text, "logprobs": {"tokens": vec!["x"; logprobs]}}]});
    let events = [event("a prompt one", 5), event(" two", 1), event(" three", 1)];
    let read = |echo: bool| stream("/v1/completions", &json!({"echo": echo, "logprobs": 1}).to_string(), &events);
    assert_eq!((counted(&read(true)), by_event(&read(true))), ((Some(3), Some("chunks")), vec![]));
    assert_eq!((counted(&read(false)), by_event(&read(false))[0]), ((Some(7), Some("ids")), (0, 5)));
}

#[test]
fn a_log_probability_that_is_no_number_costs_no_token() {
    // Output of Python's own encoder, which Python reads again.
    for logprob in ["NaN", "-Infinity"] {
        let choice = format!(r#"{{"index":0,"text":"a","logprobs":{{"token_logprobs":[{logprob}],"tokens":["a"]}}}}"#);
        let event = format!("data: {{\"object\":\"text_completion\",\"choices\":[{choice}]}}\n\n");
        let answer = read("/v1/completions", "{}", SSE, event.repeat(3).as_bytes());
        assert_eq!((events(&answer), counted(&answer)), ((3, 3), (Some(3), Some("ids"))), "{logprob}");
        let usage = r#""usage":{"prompt_tokens":2,"completion_tokens":7}"#;
        let answer = read("/v1/completions", "{}", DOCUMENT, format!(r#"{{"choices":[{choice}],{usage}}}"#).as_bytes());
        assert_eq!((answer.input_tokens, counted(&answer).0), (Some(2), Some(7)), "{logprob}");
    }
}

#[test]
fn ollama_ends_with_its_done_line_and_counts_only_there() {
    let say = |message: Value| json!({"model": "m", "message": message, "done": false});
    let tool = say(json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}));
    let empty = say(json!({"role": "assistant", "content": ""}));
    let done = |rest: Value| {
        let mut done = json!({"model": "m", "message": {"role": "assistant", "content": ""}, "done": true});
        done.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        done
    };
    let answer = lines("/api/chat", &[empty.clone(), tool, done(json!({"done_reason": "stop"}))]);
    assert_eq!((events(&answer), answer.first_output_event), ((1, 1), Some(1)), "a role proves nothing");
    assert_eq!((counted(&answer), answer.complete), ((Some(1), Some("chunks")), true));
    let cut = lines("/api/chat", &[empty]);
    assert_eq!((cut.complete, cut.output_tokens), (false, None));
    let load = lines("/api/generate", &[json!({"response": "", "done": true, "done_reason": "load"})]);
    assert_eq!((finishes(&load), events(&load), load.complete), (vec![(0, "other", "load")], (0, 0), true));
    let held = lines(
        "/api/generate",
        &[json!({"response": "", "done": false}), json!({"response": "", "thinking": "a", "done": false})],
    );
    assert_eq!((events(&held), held.first_token_event, held.first_output_event), ((1, 2), Some(1), None));
    let cached = lines("/api/generate", &[json!({"response": "a", "done": true, "eval_count": 1})]);
    assert_eq!((events(&cached), counted(&cached), cached.input_tokens), ((1, 1), (Some(1), Some("eval_count")), None));
    let last_without_end =
        read("/api/generate", "{}", LINES, b"{\"response\":\"a\",\"done\":false}\n{\"done\":true,\"eval_count\":1}");
    assert!(last_without_end.complete);
    let whole = document(
        "/api/chat",
        r#"{"stream":false}"#,
        &done(json!({"done_reason": "length", "prompt_eval_count": 4, "eval_count": 2})),
    );
    assert_eq!((whole.input_tokens, counted(&whole), whole.complete), (Some(4), (Some(2), Some("eval_count")), true));
    assert_eq!(lines("/api/chat", &[json!({"error": "gone"})]).error.unwrap().message.as_deref(), Some("gone"));
}

#[test]
fn ollamas_log_probabilities_are_as_many_as_the_tokens_of_their_line() {
    let line = |text: &str, logprobs: usize| json!({"message": {"role": "assistant", "content": text}, "logprobs": vec![json!({"logprob": -1}); logprobs], "done": false});
    let answer = lines("/api/chat", &[line("one two", 2), line("", 1), line(" three", 3)]);
    assert_eq!((by_event(&answer), counted(&answer)), (vec![(0, 2), (1, 1), (2, 3)], (Some(6), Some("ids"))));
    assert_eq!(events(&answer), (2, 3));
    let done = json!({"message": {"content": ""}, "done": true, "done_reason": "stop", "prompt_eval_count": 1, "eval_count": 7});
    assert_eq!(counted(&lines("/api/chat", &[line("one", 1), done])), (Some(7), Some("eval_count")));
}

#[test]
fn triton_takes_lists_for_choices_and_adds_up_what_it_counts() {
    let path = "/v2/models/m/generate_stream";
    let events_of = [
        json!({"model_name": "m", "text_output": ["a", "b"], "num_output_tokens": [2, 1], "finish_reason": [null, null]}),
        json!({"model_name": "m", "text_output": ["c", ""], "num_output_tokens": [1, 0], "finish_reason": ["length", "stop"], "num_input_tokens": 6}),
    ];
    let answer = stream(path, "{}", &events_of);
    assert_eq!((events(&answer), by_event(&answer)), ((2, 2), vec![(0, 3), (1, 1)]));
    assert_eq!((counted(&answer), answer.input_tokens), ((Some(4), Some("cumulative")), Some(6)));
    assert_eq!(finishes(&answer), [(0, "length", "length"), (1, "stop", "stop")]);
    let body = b"data: {\"model_name\":\"m\",\"text_output\":\"a\"}\n\n";
    assert_eq!(record(path, SSE, body, Ending::Complete).outcome, Outcome::Success, "the body's end is the end");
    assert_eq!(record(path, SSE, body, Ending::UpstreamFailed).outcome, Outcome::Truncated);
}

/// One protobuf field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

/// One `ModelStreamInferResponse` of request `id`, framed.
fn response(id: &str, outputs: &[Vec<u8>], raw: &[&[u8]], last: bool) -> Vec<u8> {
    let mut infer = [field(1, b"m"), field(3, id.as_bytes())].concat();
    if last {
        infer.extend(field(4, &[field(1, b"triton_final_response"), field(2, b"\x08\x01")].concat()));
    }
    outputs.iter().for_each(|output| infer.extend(field(5, output)));
    raw.iter().for_each(|raw| infer.extend(field(6, raw)));
    framed(&field(2, &infer))
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&[0, 0, 0, 0, message.len() as u8], message].concat()
}

fn tensor(name: &str, datatype: &str, contents: &[u8]) -> Vec<u8> {
    [field(1, name.as_bytes()), field(2, datatype.as_bytes()), field(5, contents)].concat()
}

#[test]
fn grpc_responses_are_read_by_their_tensors_and_their_ids() {
    let path = "/inference.GRPCInferenceService/ModelStreamInfer";
    let grpc = |messages: &[Vec<u8>]| read(path, "", "application/grpc", &messages.concat());
    let text = || tensor("text_output", "BYTES", b"");
    let in_contents = tensor("text_output", "BYTES", &field(8, b"hi"));
    let answer = grpc(&[
        response("a", &[tensor("score", "FP32", b""), text()], &[b"\0\0\0\0", b"\x01\0\0\0x"], false),
        response("b", &[in_contents], &[], false),
        response("a", &[text()], &[b"\0\0\0\0"], false),
        response("a", &[tensor("output_ids", "INT32", b"")], &[b"\x07\0\0\0"], false),
        response("a", &[tensor("finish_reason", "BYTES", &field(8, b"stop")), text()], &[b"\0\0\0\0"], true),
        response("b", &[], &[], true),
    ]);
    assert_eq!((events(&answer), answer.events, answer.complete), ((3, 4), 6, true));
    assert_eq!((answer.first_token_event, answer.last_token_event), (Some(0), Some(3)));
    assert_eq!(finishes(&answer), [(0, "stop", "stop")]);
    let failed = grpc(&[framed(&field(1, b"no such model"))]);
    assert_eq!((failed.complete, failed.error.unwrap().message.as_deref()), (false, Some("no such model")));
    let mut cut = response("a", &[text()], &[b"\x01\0\0\0x"], false);
    cut.extend_from_slice(b"\0\0\0");
    assert!(!grpc(&[cut]).complete, "it ends inside a message");
}

#[test]
fn a_grpc_request_names_its_model_and_its_status_gives_the_outcome() {
    let shape = RequestShape::of("POST", "/inference.GRPCInferenceService/ModelStreamInfer", &Routes::default());
    let mut reader = ShapeReader::new(shape, b"");
    framed(&[field(1, b"tiny"), field(3, b"q")].concat()).chunks(1).for_each(|byte| reader.push(byte));
    let shape = reader.take();
    assert_eq!((shape.model.as_deref(), shape.stream), (Some("tiny"), Some(true)));
    for (status, outcome) in [(&b"0"[..], Outcome::Success), (b"14", Outcome::Failed)] {
        let mut observer = StreamObserver::begin(shape.clone(), b"", None, Stamp::default());
        let head = ResponseHead { status: 200, content_type: b"application/grpc", content_encoding: b"" };
        observer.head(Stamp::default(), head, StampSource::Read);
        observer.call_ended(status);
        let record = observer.end(Stamp::default(), Ending::Complete);
        assert_eq!(record.outcome, outcome);
        assert_eq!(record.fault.and_then(|fault| fault.kind).as_deref(), Some("grpc_14").filter(|_| status == b"14"));
    }
}

#[test]
fn bedrocks_own_counts_leave_the_cached_prompt_out_and_it_is_counted_all_the_same() {
    let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":3,"cache_creation_input_tokens":20,"cache_read_input_tokens":500}}}"#;
    let stop = r#"{"type":"message_stop","amazon-bedrock-invocationMetrics":{"inputTokenCount":3,"outputTokenCount":7,"cacheReadInputTokenCount":500,"cacheWriteInputTokenCount":20}}"#;
    let read = |events: &[&str]| {
        let events: Vec<Value> = events.iter().map(|event| json!({"bytes": STANDARD.encode(event)})).collect();
        let answer = stream("/model/m/invoke-with-response-stream", "{}", &events);
        (answer.input_tokens, answer.cached_tokens, answer.output_tokens)
    };
    assert_eq!(read(&[start]), (Some(523), Some(500), None));
    assert_eq!(read(&[start, stop]), (Some(523), Some(500), Some(7)));
    let without_a_cache = r#"{"amazon-bedrock-invocationMetrics":{"inputTokenCount":3,"outputTokenCount":7}}"#;
    assert_eq!(read(&[without_a_cache]), (Some(3), None, Some(7)));
}

#[test]
fn bedrock_has_the_tokens_of_vendors_whose_choices_have_names_of_their_own() {
    let read = |choices: &[Value]| {
        let event = |choice: &Value| json!({"bytes": STANDARD.encode(json!({"choices": [choice]}).to_string())});
        let events: Vec<Value> = choices.iter().map(event).collect();
        let answer = stream("/model/m/invoke-with-response-stream", "{}", &events);
        let reasons: Vec<String> = finishes(&answer).iter().map(|(_, reason, _)| (*reason).to_owned()).collect();
        (answer.first_token_event, answer.token_events, reasons.join(" "), answer.complete)
    };
    let choice = |content: &str, stop: Value| json!({"index": 0, "message": {"role": "assistant", "content": content}, "stop_reason": stop});
    let mistral = [choice("Hel", Value::Null), choice("lo", Value::Null), choice("", json!("length"))];
    assert_eq!(read(&mistral), (Some(0), 2, "length".to_owned(), true));
    let tool = json!({"message": {"content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
                      "stop_reason": "tool_calls"});
    assert_eq!(read(&[tool]), (Some(0), 1, "tool".to_owned(), true));
    let deepseek = [json!({"text": "Hm", "stop_reason": null}), json!({"text": " ok", "stop_reason": "stop"})];
    assert_eq!(read(&deepseek), (Some(0), 2, "stop".to_owned(), true));
    let openai = [json!({"delta": {"content": "a"}, "finish_reason": "length", "stop_reason": "</s>"})];
    assert_eq!(read(&openai), (Some(0), 1, "length".to_owned(), true));
}

#[test]
fn bedrock_has_the_reasons_of_vendors_whose_words_are_their_own() {
    for (word, reason) in [
        ("FINISHED", "stop"),
        ("STOP_CRITERIA_MET", "stop"),
        ("COMPLETE", "stop"),
        ("LENGTH", "length"),
        ("MAX_TOKENS", "length"),
        ("CONTENT_FILTERED", "filter"),
        ("ERROR_TOXIC", "filter"),
        ("ERROR", "error"),
        ("RAG_QUERY_WHEN_RAG_DISABLED", "other"),
    ] {
        for name in ["completionReason", "finish_reason"] {
            let event = json!({"bytes": STANDARD.encode(json!({"text": "a", name: word}).to_string())});
            let answer = stream("/model/m/invoke-with-response-stream", "{}", &[event]);
            assert_eq!(finishes(&answer), [(0, reason, word)], "{name}");
        }
    }
}

#[test]
fn gemini_blocks_calls_and_thinks() {
    let path = "/v1beta/models/g:streamGenerateContent";
    let blocked = stream(
        path,
        "{}",
        &[json!({"promptFeedback": {"blockReason": "OTHER"}, "usageMetadata": {"promptTokenCount": 4}})],
    );
    assert_eq!(
        (finishes(&blocked), blocked.complete, blocked.input_tokens),
        (vec![(0, "filter", "OTHER")], true, Some(4))
    );
    let parts = |parts: Value| json!({"candidates": [{"content": {"role": "model", "parts": parts}}]});
    let call = stream(path, "{}", &[parts(json!([{"functionCall": {"name": "f", "args": {}}}]))]);
    assert_eq!((call.first_output_event, call.complete), (Some(0), false), "no finish reason");
    let both = stream(
        path,
        "{}",
        &[
            parts(json!([{"text": "a", "thought": true}])),
            parts(json!([{"text": "a", "thought": true}, {"text": "b"}])),
        ],
    );
    assert_eq!((both.first_token_event, both.first_output_event), (Some(0), Some(1)));
    let two = stream(
        path,
        "{}",
        &[json!({"candidates": [{"index": 0, "content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"},
        {"index": 1, "content": {"parts": [{"text": "b"}]}, "finishReason": "SAFETY"}], "usageMetadata": {"candidatesTokenCount": 6}})],
    );
    assert_eq!((finishes(&two), by_event(&two)), (vec![(0, "stop", "STOP"), (1, "filter", "SAFETY")], vec![(0, 6)]));
    let whole = json!({"candidates": [{"finishReason": "MAX_TOKENS"}],
        "usageMetadata": {"promptTokenCount": 2, "candidatesTokenCount": 3, "thoughtsTokenCount": 4}});
    let whole = document("/v1/models/g:generateContent", "{}", &whole);
    assert_eq!(
        (whole.output_tokens, whole.reasoning_tokens, finishes(&whole)),
        (Some(7), Some(4), vec![(0, "length", "MAX_TOKENS")])
    );
    let refused =
        document(path, "{}", &json!([{"error": {"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}}]));
    assert_eq!(refused.error.unwrap().kind.as_deref(), Some("INVALID_ARGUMENT"));
}

#[test]
fn tgi_counts_events_without_details_and_a_special_token_is_one() {
    let token = |text: &str, special: bool, end: Value| json!({"token": {"id": 1, "text": text, "special": special}, "generated_text": end, "details": null});
    let answer = stream("/generate_stream", "{}", &[token("a", false, Value::Null), token("</s>", true, json!("a"))]);
    assert_eq!((events(&answer), counted(&answer), answer.complete), ((1, 2), (Some(2), Some("chunks")), true));
    assert!(!stream("/generate_stream", "{}", &[token("a", false, Value::Null)]).complete);
    let whole = json!([{"generated_text": "a", "details": {"finish_reason": "length", "generated_tokens": 5}}]);
    let whole = document("/", r#"{"inputs":"<a>"}"#, &whole);
    assert_eq!((whole.dialect, counted(&whole)), (Some("tgi.stream"), (Some(5), Some("details"))));
}

#[test]
fn the_token_api_has_text_if_requested() {
    let choice = |rest: Value| json!({"request_id": "g", "output_mode": "text", "choices": [rest]});
    let events_of = [
        choice(json!({"index": 0, "token_ids": [1], "text": ""})),
        choice(json!({"index": 0, "token_ids": [2, 3], "text": "ab"})),
        choice(json!({"index": 0, "token_ids": [], "finish_reason": "abort"})),
    ];
    let answer = stream("/inference/v1/generate", "{}", &events_of);
    assert_eq!((events(&answer), counted(&answer)), ((1, 2), (Some(3), Some("ids"))));
    assert_eq!((finishes(&answer), answer.complete), (vec![(0, "abort", "abort")], true));
}

#[test]
fn what_went_into_an_embedding_or_a_ranking_is_counted() {
    let embedded = json!({"object": "list", "data": [{"embedding": [0.1, 0.2]}], "usage": {"prompt_tokens": 5, "total_tokens": 5}});
    let embedded = document("/v1/embeddings", "{}", &embedded);
    assert_eq!((embedded.input_tokens, embedded.output_tokens, embedded.complete), (Some(5), None, true));
    let ranked = document("/v2/rerank", "{}", &json!({"results": [], "meta": {"tokens": {"input_tokens": 9}}}));
    assert_eq!((ranked.input_tokens, ranked.token_events), (Some(9), 0));
    let native = document("/embeddings", "{}", &json!([{"index": 0, "embedding": [[0.1]]}]));
    assert_eq!((native.input_tokens, native.complete), (None, true));
}

#[test]
fn a_model_in_the_path_is_the_model() {
    let model = |path: &str, body: &str| {
        let mut reader = ShapeReader::new(RequestShape::of("POST", path, &Routes::default()), b"");
        reader.push(body.as_bytes());
        reader.take().model
    };
    for (path, name) in [
        ("/openai/deployments/gpt%2Dx/chat/completions", "gpt-x"),
        ("/v2/models/tiny/versions/3/generate_stream", "tiny"),
        ("/v1beta/models/demo-gem:streamGenerateContent", "demo-gem"),
        ("/v1/projects/p/locations/l/publishers/google/models/g-2:generateContent", "g-2"),
        ("/model/arn%3Aaws%3Abedrock/converse-stream", "arn:aws:bedrock"),
    ] {
        assert_eq!(model(path, r#"{"model":"other"}"#).as_deref(), Some(name), "{path}");
    }
    assert_eq!(model("/v1/chat/completions", r#"{"model":"m"}"#).as_deref(), Some("m"));
}

#[test]
fn each_dialect_requests_streaming_in_its_own_way() {
    let stream_flag = |path: &str, body: &str| {
        let mut reader = ShapeReader::new(RequestShape::of("POST", path, &Routes::default()), b"");
        reader.push(body.as_bytes());
        reader.take().stream
    };
    assert_eq!(stream_flag("/api/chat", "{}"), Some(true), "Ollama streams unless told not to");
    assert_eq!(stream_flag("/api/generate", r#"{"stream":false}"#), Some(false));
    assert_eq!(stream_flag("/v1/messages", "{}"), None);
    assert_eq!(stream_flag("/generate_stream", "{}"), Some(true));
    assert_eq!(stream_flag("/v2/models/m/generate_stream", r#"{"parameters":{"stream":false}}"#), Some(true));
    assert_eq!(stream_flag("/v1/models/g:generateContent", "{}"), Some(false));
    assert_eq!(stream_flag("/model/m/converse-stream", "{}"), Some(true));
}

#[test]
fn an_unknown_stream_is_plain_http_unless_an_event_reveals_its_dialect() {
    let plain = record("/events", SSE, b"data: {\"progress\":1}\n\ndata: tick\n\n", Ending::Complete);
    assert_eq!((plain.shape.dialect, plain.streamed, plain.outcome), (None, false, Outcome::Success));
    assert_eq!((plain.token_events, plain.quality.malformed_events), (0, 0));
    let late = "data: {\"object\":\"\",\"choices\":[],\"prompt_filter_results\":[]}\n\n\
                data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let known = record("/talk", SSE, late.as_bytes(), Ending::Complete);
    assert_eq!(known.shape.dialect.map(|dialect| dialect.name), Some("openai.chat"));
    assert_eq!((known.streamed, known.token_events, known.outcome), (true, 1, Outcome::Truncated));
    let undecided = "data: {\"text\":\"a\",\"output_ids\":[1],\"meta_info\":{\"completion_tokens\":1}}\n\n";
    let shared = record("/generate", SSE, undecided.as_bytes(), Ending::Complete);
    assert_eq!(shared.shape.dialect.map(|dialect| dialect.name), Some("sglang.generate"), "the reply tells");
    let replay = RequestShape::of("GET", "/v1/responses/r1", &Routes::default());
    let mut observer = StreamObserver::begin(replay, b"", None, Stamp::default());
    let head = ResponseHead { status: 200, content_type: SSE.as_bytes(), content_encoding: b"" };
    observer.head(Stamp::default(), head, StampSource::Read);
    observer.bytes(Stamp::default(), b"data: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n");
    let replay = observer.end(Stamp::default(), Ending::Complete);
    assert_eq!((replay.shape.dialect, replay.events), (None, 0), "a replay is no generation");
}
