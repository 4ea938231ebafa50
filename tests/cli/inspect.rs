//! `streamgauge inspect`: times of recordings, and first tokens by the rules of other tools.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

const CHAT: &str = "--path=/v1/chat/completions";
const RECORDING: &str = "tests/data/recordings/llama_server_chat.timed.jsonl";

fn inspect(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.arg("inspect").args(args).env_clear().current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
}

fn text(args: &[&str]) -> String {
    let done = inspect(args);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

fn answer(args: &[&str]) -> Value {
    serde_json::from_str(&text(&[args, &["--json"]].concat())).unwrap()
}

/// A recording of these reads, as a file.
fn recording(reads: &[(f64, &str)]) -> tempfile::NamedTempFile {
    let lines: String = reads.iter().map(|(t, b)| json!({"t": t, "b": b}).to_string() + "\n").collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    file
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_first_token_by_each_tools_rule_is_what_every_vector_expects() {
    let mut explained = 0;
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/vectors")).unwrap() {
        let path = entry.unwrap().path();
        let Some(expect) = name(&path).strip_suffix(".expect.json").map(|_| std::fs::read(&path).unwrap()) else {
            continue;
        };
        let expect: Value = serde_json::from_slice(&expect).unwrap();
        if expect["peers_first"].is_null() {
            continue;
        }
        explained += 1;
        let body = path.with_file_name(expect["vector"].as_str().unwrap());
        let route = format!("--path={}", expect["request"]["path"].as_str().unwrap());
        let answer = answer(&[name(&body), &route, "--explain"]);
        assert_eq!(answer["peers_first"], expect["peers_first"], "{}", body.display());
    }
    assert!(explained >= 15, "only {explained} vectors say what other tools would take");
}

#[test]
fn times_and_rules_are_in_the_output_only_on_request() {
    let vector = "tests/data/vectors/07_vllm_chat_reasoning.sse";
    let plain = answer(&[vector, CHAT]);
    assert_eq!((plain.get("times"), plain.get("peers_first")), (None, None));
    let explained = answer(&[vector, CHAT, "--explain"]);
    assert_eq!(explained.as_object().unwrap().len(), plain.as_object().unwrap().len() + 1);
    let timed = answer(&[RECORDING, CHAT, "--timed"]);
    assert_eq!(timed.as_object().unwrap().len(), plain.as_object().unwrap().len() + 1);
}

#[test]
fn a_recording_of_a_real_server_has_its_real_times() {
    let done = inspect(&[RECORDING, CHAT, "--timed", "--json"]);
    assert_eq!(String::from_utf8(done.stderr).unwrap(), "", "the recorded head tells the content type");
    let answer: Value = serde_json::from_slice(&done.stdout).unwrap();
    let counted = (&answer["events"], &answer["token_events"], &answer["output_tokens"], &answer["complete"]);
    assert_eq!(counted, (&json!(64), &json!(60), &json!(60), &json!(true)));
    let times = &answer["times"];
    for (key, seconds) in [
        ("headers", 0.005236),
        ("first_byte", 0.293008),
        ("ttft_evidence", 0.293008),
        ("ttft", 0.293008),
        ("ttfo", 0.293008),
        ("last_token", 2.695581),
        ("end", 2.695686),
        // (2.695581 − 0.293008) / 59, cut to whole nanoseconds
        ("tpot", 0.040721576),
    ] {
        assert_eq!(times[key], json!(seconds), "{key}");
    }
    let gaps: Vec<f64> = serde_json::from_value(times["gaps"].clone()).unwrap();
    assert_eq!((gaps.len(), gaps[0], gaps[1]), (59, 0.040859, 0.056765));
    assert!((gaps.iter().sum::<f64>() - 2.402573).abs() < 1e-9);
    assert_eq!(times["itl"], times["gaps"], "nobody says how many tokens an event has");
}

#[test]
fn gaps_are_those_between_token_events_and_itl_shares_them_out_over_tokens() {
    let event = |delta: &str, ids: &str| {
        format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{{delta}}},\"token_ids\":[{ids}]}}]}}\n\n")
    };
    let (held, thought) = (event(r#""content":"""#, "1"), event(r#""reasoning":"é""#, "2,3"));
    let (first, second) = (event(r#""content":"a""#, "4,5,6,7"), event(r#""content":"b""#, "8"));
    // Bytes, not characters: é is two of them.
    let thought: String = thought.bytes().map(char::from).collect();
    let (begin, rest) = thought.split_at(thought.len() - 9);
    let reads = [(0.5, &*held), (1.0, begin), (1.25, rest), (1.25, ": ping\n\n"), (2.25, &first), (2.25, &second)];
    let file = recording(&[&reads[..], &[(3.0, "data: [DONE]\n\n")]].concat());
    let args = [name(file.path()), CHAT, "--timed", "--content-type=text/event-stream"];
    let expected = json!({
        "headers": 0.5, "first_byte": 0.5, "ttft_evidence": 0.5, "ttft": 1.25, "ttfo": 2.25, "last_token": 2.25,
        // One second for the 8 tokens less the 2 of the first token event.
        "end": 3.0, "tpot": 0.166666666, "gaps": [1.0, 0.0], "itl": [0.25, 0.0],
    });
    assert_eq!(answer(&args)["times"], expected);
    let shown = text(&args);
    for line in [
        "1      1.250000          first token: reasoning, 2 tokens by ids       …ex\":0,\"delta\":{\"reasoning\":\"é\"}",
        "2      2.250000  +1.00s  first output: text, 4 tokens by ids ",
        "3      2.250000  +0ns    text, 1 token by ids ",
        "4 that prove a token), 1 comment\n",
        "first proof   event 0, after 500ms: 1 token without text, by ids\n",
        "first token   event 1, after 1.25s: reasoning, 2 tokens by ids\n",
        "first output  event 2, after 2.25s: text, 4 tokens by ids\n",
        "last token    event 3, after 2.25s\n",
        "gaps          2: median 500ms, p99 990ms, longest 1.00s\n",
        "per token     2: median 125ms, p99 248ms, longest 250ms\n",
        "TPOT          167ms\n",
        "end           after 3.00s; the headers came after 500ms, the body after 500ms\n",
    ] {
        assert!(shown.contains(line), "{line}\nis not in\n{shown}");
    }
}

#[test]
fn a_recording_that_stops_early_is_not_complete_and_has_no_times_that_did_not_come() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let file =
        recording(&[(0.25, head), (0.5, "40\r\ndata: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\n")]);
    let args = [name(file.path()), CHAT, "--timed"];
    let answer = answer(&args);
    assert_eq!(answer["complete"], false);
    for key in ["ttft_evidence", "ttft", "ttfo", "last_token", "tpot"] {
        assert_eq!(answer["times"][key], Value::Null, "{key}");
    }
    assert_eq!((&answer["times"]["end"], &answer["times"]["gaps"]), (&json!(0.5), &json!([])));
    let shown = text(&args);
    assert!(shown.ends_with("\ncomplete      no: the connection was closed before the body's end\n"), "{shown}");
    assert!(shown.contains("\nTPOT          not known: fewer than two tokens, or all in one event\n"), "{shown}");
}

#[test]
fn what_is_no_recording_is_refused_with_its_place() {
    let done = inspect(&["tests/data/vectors/01_openai_chat_basic.sse", CHAT, "--timed"]);
    let expected = "error: tests/data/vectors/01_openai_chat_basic.sse is no recording with times: line 1: not a read with \
                    its time, at column 1; expected {\"t\": 0.25, \"b\": \"data: …\"}\n";
    assert_eq!((done.status.code(), &*String::from_utf8(done.stderr).unwrap()), (Some(1), expected));
}

#[test]
fn a_request_that_is_no_json_is_refused_and_not_shown() {
    let request = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(request.path(), "{\"stream\": SECRET").unwrap();
    let recording = recording(&[(0.1, "data: [DONE]\n\n")]);
    let done = inspect(&[name(recording.path()), CHAT, "--timed", "--request", name(request.path())]);
    let stderr = String::from_utf8(done.stderr).unwrap();
    assert_eq!((done.status.code(), done.stdout.is_empty()), (Some(1), true), "{stderr}");
    let expected = "is no JSON, as the body of a request is (--request): expected value at line 1 column 12\n";
    assert!(stderr.contains(expected) && !stderr.contains("SECRET"), "{stderr}");
}

#[test]
fn a_body_without_an_event_is_reported_as_such() {
    let page = tempfile::NamedTempFile::new().unwrap();
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03";
    for body in [&b"<html><body>502 Bad Gateway</body></html>\n"[..], gzip, b""] {
        std::fs::write(page.path(), body).unwrap();
        let text = text(&[name(page.path()), CHAT]);
        let expected =
            "complete      no: there is no event in it; --content-type and --content-encoding set how to read it\n";
        assert!(text.ends_with(expected), "{text}");
    }
    let text = text(&[name(page.path()), CHAT, "--content-type=text/plain"]);
    let expected =
        "complete      not known: a body of this content type is not understood; --content-type sets another\n";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn several_tokens_in_one_event_have_no_tpot_for_that_reason() {
    let event = r#"{"choices":[{"delta":{"content":"a b"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
    let file = recording(&[(0.25, &format!("data: {event}\n\n"))]);
    let text = text(&[name(file.path()), CHAT, "--timed"]);
    assert!(text.contains("\nTPOT          not known: fewer than two tokens, or all in one event\n"), "{text}");
    assert!(text.contains("\noutput tokens 2, "), "{text}");
}

#[test]
fn the_rules_of_other_tools_are_a_table_with_a_reason_in_each_line() {
    let shown = text(&["tests/data/vectors/05_vllm_chat_token_ids_stream_interval.sse", CHAT, "--explain"]);
    let tools = shown.split("\n\n").nth(2).unwrap();
    let expected = "\
tool               first token  because of                    its rule: the first event with
AIPerf             event 2      content                       content, reasoning, reasoning_content or a tool's name or arguments; only events with the object chat.completion.chunk
vLLM bench         event 1      empty content without a role  content, reasoning, a tool call, a function call or empty content without a role
vLLM bench (Rust)  event 0      any choice                    any choice
SGLang bench       event 2      content                       content, reasoning or reasoning_content
GuideLLM           event 2      content                       content, reasoning, reasoning_content or a tool call
GenAI-Bench        event 2      content                       content, reasoning or reasoning_content
inference-perf     event 2      content                       content
";
    assert_eq!(tools, expected);
    let timed = text(&[RECORDING, CHAT, "--timed", "--explain"]);
    assert!(timed.contains("\nvLLM bench (Rust)  event 0      293ms  any choice  any choice\n"), "{timed}");
}

#[test]
fn without_explain_the_summary_names_the_tools_that_would_differ() {
    let shown = text(&["tests/data/vectors/09_vllm_chat_tool_calls.sse", CHAT]);
    let line = "\nother tools   have another first token; --explain gives the reason: vLLM bench (Rust) event 0, \
                SGLang bench none, GenAI-Bench none, inference-perf none\n";
    assert!(shown.contains(line), "{shown}");
    let agreed = text(&["tests/data/vectors/20_tgi_chat_role_on_every_chunk.sse", CHAT]);
    assert!(!agreed.contains("other tools"), "{agreed}");
}

#[test]
fn the_timeline_explains_why_an_event_does_not_count() {
    let zeros = text(&["tests/data/vectors/15_ollama_openai_completions_zero_usage.sse", "--path=/v1/completions"]);
    assert!(zeros.contains("\n1      text, its usage is all zeros: not a report "), "{zeros}");
    assert!(zeros.contains("\n2      a token with its text held back, finished: stop (stop), its usage"), "{zeros}");
    let others = text(&["tests/data/vectors/31_anthropic_thinking_text.sse", "--path=/v1/messages", "--explain"]);
    assert!(others.contains("\n11     usage: 35 in, 12 out, finished: stop (end_turn) "), "{others}");
    assert!(others.ends_with("\nNo other tool's rule for the first token of anthropic.messages streams is known.\n"));
    let progress = text(&["tests/data/vectors/26_llamacpp_chat_prompt_progress_and_pings.sse", CHAT]);
    assert!(progress.contains("\n1      only a role: no token "), "{progress}");
    let unmarked = text(&["tests/data/vectors/61_transformers_serve_no_done_sentinel.sse", CHAT]);
    let line = "\ncomplete      yes: every choice is finished; no [DONE] came, and none has to\n";
    assert!(unmarked.ends_with(line), "{unmarked}");
}
