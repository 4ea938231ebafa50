//! Unusual but legal replies: alternative spellings, fields in unexpected places, missing fields.

use serde_json::{Value, json};
use streamgauge::inspect::inspection::{Inspection, RecordedExchange, ReportedError, inspect};
use streamgauge::measure::dialect::Routes;
use streamgauge::measure::shape::RequestShape;

const SSE: &str = "text/event-stream";
const CHAT: &str = "/v1/chat/completions";
const SGLANG: &str = "/generate";

/// The inspection of a body, which is equal for one read and byte by byte.
fn read(path: &str, request: &Value, content_type: &str, body: &[u8]) -> Inspection {
    let head = RequestShape::of("POST", path, &Routes::default());
    let request = request.to_string();
    let exchange = RecordedExchange { head, request: request.as_bytes(), content_type, content_encoding: "" };
    let whole = inspect(&exchange, [body]).0;
    assert_eq!(inspect(&exchange, body.chunks(1)).0, whole);
    whole
}

fn stream(path: &str, request: &Value, events: &[Value]) -> Inspection {
    let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    read(path, request, SSE, body.as_bytes())
}

fn document(path: &str, request: &Value, body: &Value) -> Inspection {
    read(path, request, "application/json", body.to_string().as_bytes())
}

/// An event of a chat with one choice.
fn chunk(index: u32, delta: &Value, finish: Option<&str>) -> Value {
    let choice = json!({"index": index, "delta": delta, "finish_reason": finish});
    json!({"id": "c", "object": "chat.completion.chunk", "choices": [choice]})
}

/// The event with more in it, and with more in its choice.
fn with(mut event: Value, fields: &Value, in_choice: &Value) -> Value {
    let all = |to: &mut Value, from: &Value| {
        for (key, value) in from.as_object().into_iter().flatten() {
            to[key] = value.clone();
        }
    };
    all(&mut event, fields);
    all(&mut event["choices"][0], in_choice);
    event
}

fn usage(input: u64, output: u64) -> Value {
    json!({"usage": {"prompt_tokens": input, "completion_tokens": output}})
}

fn counted(inspection: &Inspection) -> (Option<u64>, Option<&str>) {
    (inspection.output_tokens, inspection.output_tokens_from)
}

fn by_event(inspection: &Inspection) -> Vec<(u64, u64)> {
    inspection.tokens_by_event.clone().unwrap_or_default().into_iter().collect()
}

fn finishes(inspection: &Inspection) -> Vec<(u32, &str, &str)> {
    inspection.finish.iter().map(|finish| (finish.choice, finish.reason, &*finish.raw)).collect()
}

/// An error's message, class and code.
fn error(inspection: &Inspection) -> (Option<&str>, Option<&str>, Value) {
    assert!(!inspection.complete);
    assert!(inspection.error.is_some());
    let error = inspection.error.as_ref();
    let text = |of: fn(&ReportedError) -> Option<&str>| error.and_then(of);
    (
        text(|error| error.message.as_deref()),
        text(|error| error.kind.as_deref()),
        error.and_then(|error| error.code.clone()).unwrap_or_default(),
    )
}

#[test]
fn reasons_are_listed_by_choice_whichever_began_or_ended_first() {
    let (text, none) = (json!({"content": "a"}), json!({}));
    let events =
        [chunk(1, &text, None), chunk(1, &none, Some("stop")), chunk(0, &text, None), chunk(0, &none, Some("length"))];
    assert_eq!(finishes(&stream(CHAT, &json!({"n": 2}), &events)), [(0, "length", "length"), (1, "stop", "stop")]);
}

#[test]
fn a_stream_is_finished_when_the_requested_number_of_choices_is() {
    let events = [chunk(0, &json!({"content": "a"}), None), chunk(0, &json!({}), Some("stop"))];
    assert!(stream(CHAT, &json!({}), &events).complete);
    assert!(!stream(CHAT, &json!({"n": 2}), &events).complete);
    let done = [&events[..], &[chunk(1, &json!({}), Some("stop"))]].concat();
    assert!(stream(CHAT, &json!({"n": 2}), &done).complete);
    let body = format!("data: {}\n\ndata: [DONE]\n\n", events[1]);
    assert!(read(CHAT, &json!({"n": 2}), SSE, body.as_bytes()).complete, "the sentinel is an end as well");
    let answer = json!({"text": "a", "index": 0,
        "meta_info": {"finish_reason": {"type": "stop"}, "prompt_tokens": 3, "completion_tokens": 1}});
    let request = json!({"text": "x", "sampling_params": {"n": 2}});
    assert!(!stream(SGLANG, &request, std::slice::from_ref(&answer)).complete);
}

#[test]
fn whole_numbers_may_be_written_as_floats() {
    let events = [
        json!({"choices": [{"index": 1.0, "delta": {"content": "a"}, "finish_reason": "stop"}]}),
        json!({"choices": [], "usage": {"prompt_tokens": 7.0, "completion_tokens": 2.0}}),
    ];
    let answer = stream(CHAT, &json!({}), &events);
    assert_eq!((finishes(&answer), answer.input_tokens), (vec![(1, "stop", "stop")], Some(7)));
    assert_eq!(counted(&answer), (Some(2), Some("usage")));
}

#[test]
fn tokens_of_an_event_are_its_ids_else_the_counters_growth_else_its_log_probabilities() {
    let text = json!({"content": "a"});
    let logprobs = json!({"logprobs": {"content": [{"token": "a"}]}});
    let ids = json!({"token_ids": [1, 2], "logprobs": {"content": [{"token": "a"}]}});
    let empty = json!({"logprobs": {"content": []}});
    let request = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let events = [
        with(chunk(0, &text, None), &usage(5, 3), &logprobs),
        with(chunk(0, &text, None), &usage(5, 8), &ids),
        with(chunk(0, &text, None), &json!({}), &logprobs),
        with(chunk(0, &text, None), &json!({}), &empty),
    ];
    let answer = stream(CHAT, &request, &events);
    assert_eq!(by_event(&answer), [(0, 3), (1, 2), (2, 1)], "an empty list of log probabilities tells nothing");
}

#[test]
fn a_usage_with_a_choice_that_is_finished_is_final() {
    // OpenRouter's last event has a choice, unlike OpenAI's.
    let role = json!({"role": "assistant", "content": ""});
    let events = [
        chunk(0, &json!({"role": "assistant", "content": "a"}), None),
        chunk(0, &role, Some("stop")),
        with(chunk(0, &role, None), &usage(5, 7), &json!({})),
    ];
    for request in [json!({}), json!({"stream_options": {"continuous_usage_stats": true}})] {
        let answer = stream(CHAT, &request, &events);
        assert_eq!((counted(&answer), answer.input_tokens), ((Some(7), Some("usage")), Some(5)), "{request}");
        assert!(answer.complete);
    }
}

#[test]
fn a_detail_that_is_null_does_not_hide_the_same_detail_elsewhere() {
    let counts = json!({"prompt_tokens": 5, "completion_tokens": 4, "reasoning_tokens": 3,
        "completion_tokens_details": {"reasoning_tokens": null}, "prompt_tokens_details": {"cached_tokens": null},
        "prompt_cache_hit_tokens": 2});
    let answer = stream(CHAT, &json!({}), &[json!({"choices": [], "usage": counts})]);
    assert_eq!((answer.reasoning_tokens, answer.cached_tokens), (Some(3), Some(2)));
}

#[test]
fn a_field_of_another_kind_than_usual_does_not_hide_the_text() {
    for (fields, in_choice) in [
        (json!({"usage": ""}), json!({})),
        (json!({"usage": []}), json!({})),
        (json!({}), json!({"logprobs": []})),
        (json!({}), json!({"token_ids": "none", "logprobs": {"content": 7}})),
        (json!({}), json!({"delta": {"content": "a", "tool_calls": {}}})),
    ] {
        let event = with(chunk(0, &json!({"content": "a"}), None), &fields, &in_choice);
        assert_eq!(stream(CHAT, &json!({}), &[event]).token_events, 1, "{fields} {in_choice}");
    }
}

#[test]
fn completions_have_the_ids_of_each_prompt_in_its_first_choice() {
    let event = |index: u32, prompt: Value| json!({"choices": [{"index": index, "text": "a", "token_ids": [5], "prompt_token_ids": prompt}]});
    let events = [event(0, json!([1, 2, 3])), event(1, json!([1, 2, 3])), event(2, json!([4])), event(0, Value::Null)];
    assert_eq!(stream("/v1/completions", &json!({"n": 2}), &events).input_tokens, Some(4));
}

#[test]
fn a_usage_of_zeros_is_no_report_in_any_dialect() {
    let zeros = json!({"response": "", "done": true, "done_reason": "stop", "prompt_eval_count": 0, "eval_count": 0});
    let body = format!("{}\n{zeros}\n", json!({"response": "a", "done": false}));
    let ollama = read("/api/generate", &json!({}), "application/x-ndjson", body.as_bytes());
    assert_eq!((counted(&ollama), ollama.input_tokens), ((Some(1), Some("chunks")), None));
    let tgi = json!({"token": {"text": "a", "special": false}, "generated_text": "a",
        "details": {"finish_reason": "length", "generated_tokens": 0}});
    assert_eq!(counted(&stream("/generate_stream", &json!({}), &[tgi])), (Some(1), Some("chunks")));
}

#[test]
fn a_reason_that_python_writes_as_none_is_none() {
    let event = |reason: Value| json!({"model_name": "m", "text_output": "a", "finish_reason": reason});
    let path = "/v2/models/m/generate_stream";
    assert_eq!(finishes(&stream(path, &json!({}), &[event("None".into())])), []);
    let events = [event(json!(["None", "None"])), event(json!(["stop", "None"]))];
    assert_eq!(finishes(&stream(path, &json!({}), &events)), [(0, "stop", "stop")]);
}

#[test]
fn the_counter_of_a_whole_reply_is_a_counter_and_its_prompt_is_counted_once() {
    let llama =
        json!({"content": "ab", "stop": true, "stop_type": "limit", "tokens_predicted": 2, "tokens_evaluated": 8});
    let llama = document("/completion", &json!({}), &llama);
    assert_eq!((counted(&llama), llama.input_tokens), ((Some(2), Some("cumulative")), Some(8)));
    let answer = |tokens: u64| {
        json!({"text": "a", "meta_info": {"finish_reason": {"type": "length"}, "prompt_tokens": 4,
            "cached_tokens": 3, "reasoning_tokens": 1, "completion_tokens": tokens}})
    };
    let request = json!({"text": ["x", "y"], "sampling_params": {"n": 2}});
    let sglang = document(SGLANG, &request, &json!([answer(1), answer(2), answer(3), answer(4)]));
    assert_eq!(counted(&sglang), (Some(10), Some("cumulative")));
    assert_eq!((sglang.input_tokens, sglang.cached_tokens, sglang.reasoning_tokens), (Some(8), Some(6), Some(4)));
    let ids = json!({"request_id": "r", "choices": [{"token_ids": [1, 2], "finish_reason": "length"}]});
    let ids = document("/inference/v1/generate", &json!({}), &ids);
    assert_eq!((counted(&ids), finishes(&ids)), ((Some(2), Some("ids")), vec![(0, "length", "length")]));
}

#[test]
fn gemini_counts_that_begin_late_do_not_fall_on_one_event() {
    let event = |output: Option<u64>| {
        json!({"candidates": [{"content": {"parts": [{"text": "a"}]}, "index": 0}],
            "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": output}})
    };
    let answer = stream("/m:streamGenerateContent", &json!({}), &[event(None), event(Some(9)), event(Some(11))]);
    assert_eq!((by_event(&answer), counted(&answer)), (vec![(2, 2)], (Some(11), Some("usage"))));
}

#[test]
fn an_errors_words_and_its_code_are_those_that_the_server_wrote() {
    let words = "say \"hi\" to C:\\new é\n";
    let body = json!({"error": {"message": words, "type": "t", "code": "429"}});
    let expected = (Some(words), Some("t"), json!("429"));
    assert_eq!(error(&stream(CHAT, &json!({}), std::slice::from_ref(&body))), expected);
    assert_eq!(error(&document(CHAT, &json!({}), &body)), expected);
    let number = json!({"error": {"message": "m", "code": 429}});
    assert_eq!(error(&document(CHAT, &json!({}), &number)), (Some("m"), None, json!(429)));
    let silent = json!({"error": {"message": null, "type": "t", "code": 500}});
    assert_eq!(error(&stream(CHAT, &json!({}), std::slice::from_ref(&silent))), (None, Some("t"), json!(500)));
    assert_eq!(error(&document(CHAT, &json!({}), &silent)), (None, Some("t"), json!(500)));
    // `ModelStreamInferResponse.error_message`, which is text and no JSON.
    let plain = b"\0\0\0\0\x08\x0a\x06C:\\new";
    let plain = read("/inference.GRPCInferenceService/ModelStreamInfer", &json!({}), "application/grpc", plain);
    assert_eq!(error(&plain), (Some("C:\\new"), None, Value::Null));
}

#[test]
fn an_error_is_a_text_or_an_object_in_every_dialect() {
    let object = json!({"error": {"message": "m", "type": "t"}});
    let text = json!({"error": "m", "error_type": "t"});
    for path in [CHAT, "/generate_stream", "/v2/models/m/generate_stream"] {
        assert_eq!(
            error(&stream(path, &json!({}), std::slice::from_ref(&object))),
            (Some("m"), Some("t"), Value::Null)
        );
        assert_eq!(error(&stream(path, &json!({}), std::slice::from_ref(&text))).0, Some("m"), "{path}");
    }
    for path in [CHAT, "/generate_stream"] {
        assert_eq!(error(&stream(path, &json!({}), std::slice::from_ref(&text))).1, Some("t"), "{path}");
        assert_eq!(error(&document(path, &json!({}), &text)), (Some("m"), Some("t"), Value::Null), "{path}");
    }
    let lines = read("/api/chat", &json!({}), "application/x-ndjson", object.to_string().as_bytes());
    assert_eq!(error(&lines).0, Some("m"));
    let list = json!([{"error": {"message": "m", "status": "UNAVAILABLE", "code": 503}}]);
    let list = document("/m:generateContent", &json!({}), &list);
    assert_eq!(error(&list), (Some("m"), Some("UNAVAILABLE"), json!(503)));
}

#[test]
fn an_event_named_error_is_one_without_an_error_object() {
    let body = b"event: error\ndata: {\"message\":\"m\",\"code\":500}\n\n";
    for path in [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"] {
        assert_eq!(error(&read(path, &json!({}), SSE, body)), (Some("m"), None, json!(500)), "{path}");
    }
}

#[test]
fn bedrocks_streams_are_known_by_the_end_of_their_path() {
    for (path, name) in [("/converse-stream", "bedrock.converse"), ("/x/invoke-with-response-stream", "bedrock.invoke")]
    {
        let answer = document(path, &json!({}), &json!({"message": "no"}));
        assert_eq!((answer.dialect, error(&answer).0), (Some(name), Some("no")), "{path}");
    }
}

#[test]
fn the_first_decisive_event_corrects_a_path_that_lost_its_version() {
    let event = json!({"object": "text_completion", "choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]});
    for path in ["/completions", "/beta/completions"] {
        let answer = stream(path, &json!({}), std::slice::from_ref(&event));
        assert_eq!((answer.dialect, answer.token_events), (Some("openai.completions"), 1), "{path}");
        assert!(answer.complete);
    }
    let native = json!({"content": "a", "stop": true, "stop_type": "eos", "tokens_predicted": 1});
    for path in ["/completions", "/unknown"] {
        let answer = stream(path, &json!({}), std::slice::from_ref(&native));
        assert_eq!((answer.dialect, answer.token_events), (Some("llamacpp.completion"), 1), "{path}");
    }
    let fewest = stream("/completion", &json!({}), &[json!({"content": "a"}), json!({"content": "b", "stop": true})]);
    assert_eq!((fewest.dialect, fewest.token_events), (Some("llamacpp.completion"), 2));
}
