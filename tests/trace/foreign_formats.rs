//! Files of other tools: requests with their texts, spans, and any columns. Only lengths are read, and errors name the
//! file, the line and a remedy.

use std::io::Cursor;
use std::path::Path;

use streamgauge::measure::record::{FinishReason, Outcome};
use streamgauge::trace::format::{self, ReadOptions, TraceFormat};
use streamgauge::trace::input::{InputSource, InputStream};
use streamgauge::trace_file::header::{BlockScope, TraceHeader, TurnContent};
use streamgauge::trace_file::row::TraceEntry;

struct Read {
    header: TraceHeader,
    rows: Vec<TraceEntry>,
    losses: Vec<(String, u64)>,
}

fn source(text: &str) -> InputSource {
    let bytes = Cursor::new(text.to_owned().into_bytes());
    InputSource::Stream(InputStream::new("file", Box::new(bytes)).unwrap())
}

fn read_as(format: &TraceFormat, text: &str, options: &ReadOptions) -> Result<Read, String> {
    let trace = (format.read.unwrap())(source(text), options).map_err(|error| error.to_string())?;
    let rows = trace.entries.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    Ok(Read { header: trace.header, rows, losses: trace.losses.list() })
}

/// Reads the fuzzer's seed of a format, which is detected.
fn seed(name: &str) -> Read {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds/trace").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(format::detect(&source(&text)).unwrap().name, name);
    let read = read_as(format::by_name(name).unwrap(), &text, &ReadOptions::default()).unwrap();
    let written = serde_json::to_string(&(&read.header, &read.rows, &read.losses)).unwrap();
    assert!(!written.contains("SECRET"), "{written}");
    read
}

#[test]
fn parquet_of_baseten_is_read_without_its_texts() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/traces/baseten/handmade.parquet");
    let from_file = || InputSource::open(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let from_pipe = || InputSource::Stream(InputStream::new("pipe", Box::new(Cursor::new(bytes.clone()))).unwrap());
    for source in [&from_file as &dyn Fn() -> InputSource, &from_pipe] {
        let format = format::detect(&source()).unwrap();
        assert_eq!(format.name, "baseten");
        let trace = (format.read.unwrap())(source(), &ReadOptions::default()).unwrap();
        let rows: Vec<TraceEntry> = trace.entries.collect::<Result<_, _>>().unwrap();
        let [first, second, third] = &rows[..] else { panic!("three rows") };
        assert_eq!(trace.header.started_unix_ns, Some(1_767_225_600_000_000_000));
        assert_eq!(trace.header.blocks.unwrap().size, 32);
        assert_eq!((first.at, first.prompt.tokens, first.output_tokens), (1_500_000_000, Some(100), Some(20)));
        assert_eq!((&*first.prompt.blocks, first.prompt.cached), (&[11, 12, 13][..], Some(32)));
        assert_eq!((first.timing.first_token, first.timing.ended), (Some(250_000_000), Some(2_000_000_000)));
        assert_eq!((second.session.as_deref(), second.outcome), (Some("2"), Some(Outcome::Cancelled)));
        assert_eq!((third.session.as_deref(), third.turn, third.timing.ended), (Some("a"), Some(1), None));
        assert!(!serde_json::to_string(&rows).unwrap().contains("SECRET"));
    }
    let torn = InputStream::new("pipe", Box::new(Cursor::new(bytes[..bytes.len() - 9].to_vec()))).unwrap();
    let error = (format::by_name("baseten").unwrap().read.unwrap())(InputSource::Stream(torn), &ReadOptions::default());
    assert_eq!(error.err().unwrap().to_string(), "pipe: cannot be read as Parquet; is the file damaged, or cut short?");
}

/// Role, key and text of the seeds' messages: "role", "user", "content", and 9 bytes; then "role", "assistant",
/// "content", and 6 bytes.
const CHAT_BYTES: u64 = (4 + 4 + 7 + 9) + (4 + 9 + 7 + 6);

#[test]
fn a_file_of_request_bodies_gives_their_lengths_and_parameters() {
    for name in ["raw_payload", "openai_batch", "sagemaker"] {
        let row = &seed(name).rows[0];
        assert_eq!((row.prompt.bytes, row.model.as_deref()), (Some(CHAT_BYTES), Some("m")), "{name}");
        assert_eq!((row.params.max_tokens, row.params.temperature), (Some(7), Some(0.5)), "{name}");
        assert_eq!(row.dialect.as_deref(), Some("openai.chat"), "{name}");
    }
    assert_eq!(seed("raw_payload").losses, [("rows without a time, taken to come at 0".to_owned(), 2)]);
}

#[test]
fn replies_of_a_batch_and_of_a_sagemaker_capture_give_the_tokens_that_the_server_counted() {
    let batch = seed("openai_batch");
    let capture = seed("sagemaker");
    assert_eq!(batch.rows[1].status, Some(200));
    for row in [&batch.rows[1], &capture.rows[0], &capture.rows[1]] {
        assert_eq!((row.prompt.tokens, row.prompt.cached, row.output_tokens), (Some(12), Some(4), Some(8)));
        assert_eq!(row.finish, Some(FinishReason::Stop));
    }
    assert_eq!(capture.header.started_unix_ns, Some(1_777_420_998_000_000_000));
    assert_eq!([capture.rows[0].at, capture.rows[1].at], [0, 1_500_000_000]);
    let stream = r#"data: {\"model\":\"m\"}\n\ndata: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n"#;
    let text = format!(
        r#"{{"captureData":{{"endpointInput":{{"data":"{{\"prompt\":\"x\"}}","encoding":"JSON"}},"endpointOutput":{{"data":"{stream}","encoding":"JSON"}}}},"eventMetadata":{{"inferenceTime":"2026-04-29T00:03:18Z"}}}}"#
    );
    let row = &read_as(format::by_name("sagemaker").unwrap(), &text, &ReadOptions::default()).unwrap().rows[0];
    assert_eq!((row.prompt.tokens, row.output_tokens), (Some(3), Some(2)), "the reply was an event stream");
}

#[test]
fn rounds_of_tracelab_share_the_blocks_that_were_cached() {
    let read = seed("tracelab");
    assert_eq!(read.header.blocks.unwrap().scope, BlockScope::Session);
    let [first, second] = &read.rows[..] else { panic!("two rounds") };
    assert_eq!((&*first.prompt.blocks, &*second.prompt.blocks), (&[1, 2, 3][..], &[1, 2, 3, 4, 5][..]));
    assert_eq!((second.prompt.tokens, second.prompt.cached, second.output_tokens), (Some(330), Some(192), Some(15)));
    assert_eq!((second.at, second.think, second.turn), (5_000_000_000, Some(3_000_000_000), Some(1)));
    assert_eq!(first.timing.ended, Some(2_000_000_000));
}

#[test]
fn turns_of_a_dag_hold_what_they_add_and_sub_agents_have_their_parent() {
    let read = seed("dag_jsonl");
    assert_eq!(read.header.turns, TurnContent::Delta);
    let turns: Vec<_> = read.rows.iter().map(|row| (row.session.as_deref().unwrap(), row.turn, row.think)).collect();
    assert_eq!(turns, [("root", Some(0), None), ("root", Some(1), Some(250_000_000)), ("kid", Some(0), None)]);
    assert_eq!((read.rows[0].prompt.bytes, read.rows[0].params.max_tokens), (Some(4 + 4 + 7 + 9), Some(7)));
    assert_eq!(read.rows.iter().map(|row| row.parent.as_deref()).collect::<Vec<_>>(), [None, None, Some("root")]);
    assert_eq!(read.rows[2].params.tools, Some(true));
    let turn = |links: &str| format!(r#"{{"messages": [{{"role": "user", "content": "x"}}]{links}}}"#);
    let line = |name: &str, links: &str| format!(r#"{{"session_id": "{name}", "turns": [{}]}}"#, turn(links));
    let text = [
        line("early", ""),
        line(
            "a",
            r#", "spawns": [{"children": ["b", "c"], "join_at": 2}, "early"], "forks": ["d", {"child": "e", "background": true}]"#,
        ),
        line("b", r#", "spawns": ["f"]"#),
        ["c", "d", "e", "f"].map(|name| line(name, "")).join("\n"),
    ];
    let read = read_as(format::by_name("dag_jsonl").unwrap(), &text.join("\n"), &ReadOptions::default()).unwrap();
    let parents: Vec<_> = read.rows.iter().map(|row| row.parent.as_deref()).collect();
    assert_eq!(parents, [None, None, Some("a"), Some("a"), Some("a"), Some("a"), Some("b")]);
    let lost = |name: &str| read.losses.iter().find(|(of, _)| of == name).map(|(_, count)| *count);
    assert_eq!(lost("forks, whose prompts lack what they inherit"), Some(2));
    assert_eq!(lost("sub-agents that stand before the conversation that starts them, without a parent"), Some(1));
}

#[test]
fn each_reply_of_a_sharegpt_conversation_is_a_request_with_all_before_it() {
    let read = seed("sharegpt");
    let rows: Vec<_> = read.rows.iter().map(|row| (row.turn, row.prompt.bytes, row.output_tokens)).collect();
    assert_eq!(rows, [(Some(0), Some(9), Some(2)), (Some(1), Some(9 + 8 + 4), Some(1))]);
    let line = r#"{"id": "c", "conversations": [{"from": "human", "value": "ab"}, {"from": "gpt", "value": "c"}]}"#;
    assert_eq!(format::detect(&source(line)).unwrap().name, "sharegpt");
}

#[test]
fn spans_of_inference_are_requests_and_those_of_tools_are_counted() {
    let read = seed("otel_spans");
    assert_eq!(read.header.started_unix_ns, Some(1_767_225_600_000_000_000));
    let [first, second] = &read.rows[..] else { panic!("two requests") };
    assert_eq!((first.prompt.tokens, first.prompt.cached, first.output_tokens), (Some(100), Some(64), Some(20)));
    assert_eq!((first.timing.first_token, first.timing.ended), (Some(250_000_000), Some(2_000_000_000)));
    assert_eq!(
        (first.finish, first.outcome, first.params.max_tokens),
        (Some(FinishReason::Stop), Some(Outcome::Success), Some(64))
    );
    assert_eq!((second.session.as_deref(), second.turn, second.outcome), (Some("s1"), Some(1), Some(Outcome::Failed)));
    assert_eq!(read.losses, [("spans that are no requests to a model".to_owned(), 1)]);
}

fn columns(map: &str, text: &str) -> Result<Read, String> {
    let options = ReadOptions { columns: Some(map.parse()?), ..ReadOptions::default() };
    read_as(format::by_name("columns").unwrap(), text, &options)
}

#[test]
fn any_csv_and_any_json_lines_are_read_by_their_columns() {
    let csv = "when,user,in,out,first\n1500,a,10,5.0,20\n2500,a,12,6,\n";
    let read = columns("time=when:ms,session=user,input=in,output=out,ttft=first:ms", csv).unwrap();
    let rows: Vec<_> = read.rows.iter().map(|row| (row.at, row.turn, row.prompt.tokens, row.output_tokens)).collect();
    assert_eq!(rows, [(1_500_000_000, Some(0), Some(10), Some(5)), (2_500_000_000, Some(1), Some(12), Some(6))]);
    assert_eq!([read.rows[0].timing.first_token, read.rows[1].timing.first_token], [Some(20_000_000), None]);
    let json = "{\"ts\":\"2026-01-01T00:00:05Z\",\"usage\":{\"in\":7},\"m\":\"x\"}\n{\"ts\":\"2026-01-01T00:00:04Z\",\"usage\":{\"in\":8}}";
    let read = columns("time=ts,input=usage.in,model=m", json).unwrap();
    assert_eq!(read.header.started_unix_ns, Some(1_767_225_604_000_000_000));
    let rows: Vec<_> = read.rows.iter().map(|row| (row.at, row.prompt.tokens, row.model.as_deref())).collect();
    assert_eq!(rows, [(1_000_000_000, Some(7), Some("x")), (0, Some(8), None)]);
}

#[test]
fn wrong_columns_are_named_with_a_remedy() {
    for (map, expected) in [
        ("time=a", "time and input are required, as in time=ts,input=prompt_tokens"),
        (
            "time=a,input=b,sort=c",
            "no such field; there are time, input, output, cached, ttft, duration, model, session",
        ),
        ("time", "expected FIELD=COLUMN, as in time=ts,input=prompt_tokens"),
        ("time=a,time=b,input=c", "a field is named twice"),
    ] {
        assert_eq!(columns(map, "a,b\n").err().unwrap(), expected);
    }
    let error = columns("time=a,input=b", "a,c\n1,2\n").err().unwrap();
    assert_eq!(error, "file:1: b: no column of that name; the first line has to name the columns");
    let error = columns("time=a,input=b", "a,b\n1,secret\n").err().unwrap();
    assert_eq!(
        error,
        "file:2: b: expected a whole number that is not negative; check the name and the unit in --columns"
    );
}

#[test]
fn hostile_rows_are_errors_with_their_file_and_line_and_no_text() {
    for (name, row, expected) in [
        ("raw_payload", r#"{"messages": "#, "expected the JSON object of a request"),
        (
            "raw_payload",
            r#"{"SECRET": 1}"#,
            "a request without `messages`, `prompt` or `input`; keep the requests of one API for text",
        ),
        ("openai_batch", r#"{"custom_id": "a", "url": 5}"#, "url: expected a text"),
        ("openai_batch", r#"{"custom_id": "a", "body": ["SECRET"]}"#, "body: expected the JSON object of a request"),
        (
            "sagemaker",
            r#"{"captureData": {}, "eventMetadata": {"inferenceTime": "SECRET"}}"#,
            "eventMetadata.inferenceTime: expected a time as 2026-04-29T00:03:18Z",
        ),
        (
            "sagemaker",
            r#"{"captureData": {"endpointInput": {"data": "SECRET!", "encoding": "BASE64"}}, "eventMetadata": {"inferenceTime": "2026-04-29T00:03:18Z"}}"#,
            "captureData.endpointInput.data: expected base64, or JSON as a text",
        ),
        (
            "tracelab",
            r#"{"session_id": "s", "input_tokens_total": 99999999, "timing_events": [{"event_type": "text", "timestamp": "2026-01-01T00:00:00Z"}]}"#,
            "input_tokens_total: more than ten million tokens",
        ),
        (
            "dag_jsonl",
            r#"{"session_id": "s", "turns": [{"messages": "SECRET", "delay": -1}]}"#,
            "delay: expected a time from zero on, and within 290 years",
        ),
        (
            "dag_jsonl",
            r#"{"session_id": "s", "turns": [{"messages": "SECRET", "spawns": [1]}]}"#,
            "turns.spawns: expected a list of names of conversations",
        ),
        (
            "sharegpt",
            r#"{"id": "c", "conversations": ["SECRET"]}"#,
            "conversations: expected a list of objects with values of the right kinds",
        ),
        (
            "otel_spans",
            r#"{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "SECRET", "attributes": [{"key": "gen_ai.request.model", "value": {}}]}]}]}]}"#,
            "resourceSpans.scopeSpans.spans.startTimeUnixNano: expected nanoseconds since 1970",
        ),
    ] {
        let error =
            read_as(format::by_name(name).unwrap(), &format!("\n{row}\n"), &ReadOptions::default()).err().unwrap();
        assert!(error.starts_with("file:2: ") && error.contains(expected), "{name}: {error}");
        assert!(!error.contains("SECRET"), "{error}");
    }
}

#[test]
fn an_unknown_file_names_the_nearest_format_and_what_it_lacks() {
    for (text, nearest) in [
        (r#"{"timestamp": 1, "output_length": 3}"#, "; the nearest is mooncake, but `input_length` is missing; "),
        ("TIMESTAMP,ContextTokens,Output\n", "; the nearest is azure, but `GeneratedTokens` is missing; "),
        (r#"{"captureData": {}}"#, "; the nearest is sagemaker, but `eventMetadata` is missing; "),
        (r#"{"a": 1}"#, "no known format of traces; `streamgauge trace convert --help` lists them"),
    ] {
        let error = format::detect(&source(text)).err().unwrap();
        assert!(error.contains(nearest), "{text}: {error}");
    }
}
