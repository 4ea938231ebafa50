//! Sessions and sub-agents: in the rows, on the live page and in exported spans.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::TraceEntry;
use tempfile::TempDir;

use crate::support::captured::{answer, rows, run_under, server, until};
use crate::support::client::chat;
use crate::support::upstream::Upstream;

/// A request of this many messages, with these header lines.
fn request(messages: usize, head: &str) -> String {
    let message =
        |at| json!({"role": if at % 2 == 0 { "user" } else { "assistant" }, "content": format!("message {at}")});
    let messages: Vec<Value> = (0..messages).map(message).collect();
    let body = json!({"model": "m", "stream": true, "messages": messages}).to_string();
    chat(&body).replacen("\r\n", &format!("\r\n{head}"), 1)
}

/// The values of `gen_ai.conversation.id` in exported bytes: a string field of 16 digits, in a value, behind its key.
fn conversations(exports: &[u8]) -> Vec<String> {
    let key = b"gen_ai.conversation.id";
    let places = exports.windows(key.len()).enumerate().filter(|(_, at)| at == key).map(|(at, _)| at + key.len());
    places.map(|at| String::from_utf8(exports[at + 4..at + 20].to_vec()).unwrap()).collect()
}

/// The rows of these requests, the sessions on the page after them, and the exported bytes.
fn captured(settings: &[&str], requests: &[String]) -> (Vec<TraceEntry>, Value, Vec<u8>) {
    let (folder, upstream) = (TempDir::new().unwrap(), server(answer(2)));
    let (collector, exports) = Upstream::collector();
    let endpoint = format!("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://{}", collector.addr);
    let under = ["env", &endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_BSP_SCHEDULE_DELAY=50"];
    let mut run = run_under(&under, upstream.addr, folder.path(), settings);
    let mut client = run.client();
    for request in requests {
        client.send(request);
        assert_eq!(client.response().status(), 200);
        std::thread::sleep(Duration::from_millis(20));
    }
    let state = || serde_json::from_str::<Value>(&run.page("/api/state")).unwrap()["sessions"].clone();
    let turns = |sessions: &Value| -> u64 {
        let latest = sessions["latest"].as_array().into_iter().flatten();
        latest.map(|session| session["turns"].as_u64().unwrap()).sum()
    };
    until("each request is a turn", || turns(&state()) == requests.len() as u64);
    let sessions = state();
    run.terminate();
    let exports = exports.lock().unwrap().clone();
    // A sample may have no row, and a capture without rows has no file.
    let rows = TraceReader::open(folder.path()).map_or_else(|_| Vec::new(), |_| rows(folder.path()));
    (rows, sessions, exports)
}

#[test]
fn a_sub_agent_has_its_parents_digest_in_rows_spans_and_on_the_page() {
    let named = |session: &str, parent: &str| {
        let parent =
            if parent.is_empty() { String::new() } else { format!("X-Dynamo-Parent-Session-ID: {parent}\r\n") };
        request(1, &format!("X-Dynamo-Session-ID: {session}\r\n{parent}"))
    };
    let requests = [named("lead", ""), named("helper", "lead"), named("helper", "lead"), named("lead", "")];
    let (rows, sessions, exports) = captured(
        &["--capture-session=header:x-dynamo-session-id", "--slo=chat: ttft<=1h", "--slo=never: ttft<=1ns"],
        &requests,
    );
    let session = |at: usize| rows[at].session.as_deref().unwrap();
    let (lead, helper) = (session(0), session(1));
    assert_eq!([session(2), session(3)], [helper, lead]);
    let parents: Vec<_> = rows.iter().map(|row| row.parent.as_deref()).collect();
    assert_eq!(parents, [None, Some(lead), Some(lead), None]);
    assert_eq!(rows.iter().map(|row| row.turn.unwrap()).collect::<Vec<_>>(), [0, 0, 1, 1]);

    let mut expected = [lead, helper, helper, lead];
    let mut exported = conversations(&exports);
    expected.sort_unstable();
    exported.sort_unstable();
    assert_eq!(exported, expected, "one attribute for each request, in its CLIENT span");
    for name in ["lead", "helper"] {
        assert!(!exports.windows(name.len()).any(|bytes| bytes == name.as_bytes()), "{name} left the proxy");
    }

    assert_eq!((&sessions["sessions"], &sessions["sub_agents"]), (&json!(2), &json!(1)));
    let latest = sessions["latest"].as_array().unwrap();
    let ids: Vec<_> = latest.iter().map(|of| (of["session"].as_str().unwrap(), of["parent"].as_str())).collect();
    assert_eq!(ids, [(lead, None), (helper, Some(lead))], "the latest turn first");
    assert_eq!((&latest[0]["turns"], &latest[0]["missed_slos"]), (&json!(2), &json!(["never"])));
    let goodput = |slo: &str, met: u64| json!({"slo": slo, "met": met, "counted": 2, "share": met as f64 / 2.0});
    assert_eq!(sessions["goodput"], json!([goodput("chat", 2), goodput("never", 0)]));
    // Each answer reports 3 of 7 prompt tokens from the cache.
    let turn = |turn: &str| json!({"turn": turn, "requests": 2, "input_tokens": 14, "cached_tokens": 6, "cached_share": 6.0 / 14.0});
    assert_eq!(sessions["by_turn"], json!([turn("0"), turn("1")]));
    // The lead waited for both requests of the helper, and for three pauses; the helper for one pause.
    let millis = |of: &Value, key: &str| of[key].as_f64().unwrap();
    assert!(millis(&latest[0], "tool_ms") > millis(&latest[1], "tool_ms"), "{latest:?}");
    assert!(millis(&latest[1], "tool_ms") > 0.0, "{latest:?}");
    let all = millis(&latest[0], "tool_ms") + millis(&latest[0], "model_ms");
    assert!((millis(&latest[0], "time_to_last_turn_ms") - all).abs() < 1e-3, "{latest:?}");
}

#[test]
fn an_inferred_session_is_the_conversation_of_its_spans() {
    let requests = [1, 3, 5].map(|messages| request(messages, ""));
    let (rows, sessions, exports) = captured(&[], &requests);
    let ids: BTreeSet<_> = rows.iter().map(|row| row.session.clone().unwrap()).collect();
    assert_eq!(ids.len(), 1, "each continues the one before");
    assert_eq!(conversations(&exports), vec![ids.first().unwrap().clone(); 3]);
    assert_eq!((&sessions["sessions"], &sessions["turns"]["max"]), (&json!(1), &json!(3)));
    assert_eq!(rows.iter().filter(|row| row.parent.is_some()).count(), 0);
}

#[test]
fn a_request_that_the_sample_leaves_out_has_its_session_in_spans_and_on_the_page() {
    let requests: Vec<String> = (0..4).map(|at| request(1, &format!("X-User: {at}\r\n"))).collect();
    let (rows, sessions, exports) =
        captured(&["--capture-session=header:x-user", "--capture-sample=0.0001%"], &requests);
    assert!(rows.len() < 4, "{} of 4 sessions are in a sample of one in a million", rows.len());
    assert_eq!(sessions["sessions"], json!(4));
    assert_eq!(conversations(&exports).into_iter().collect::<BTreeSet<_>>().len(), 4);
}
