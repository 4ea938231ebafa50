//! The observer allocates nothing per chunk after warm-up.

use streamgauge::capture::recorder::CaptureRecorder;
use streamgauge::capture::retention::Retention;
use streamgauge::capture::settings::CaptureSettings;
use streamgauge::capture::stats::RecordOutcome;
use streamgauge::clock::Clock;
use streamgauge::measure::dialect;
use streamgauge::measure::observer::StreamObserver;
use streamgauge::measure::record::{Ending, StampSource};
use streamgauge::measure::reply_body::ResponseHead;
use streamgauge::measure::sample_share::SampleShare;
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::time::{Gap, Stamp};

use crate::counting_allocator;

/// Feeds `chunks` round and round; returns the allocations of 100 rounds after 10 to warm up.
fn allocations(encoding: &str, chunks: &[Vec<u8>]) -> u64 {
    allocations_of("openai.chat", "text/event-stream", encoding, chunks)
}

fn allocations_of(dialect: &str, content_type: &str, encoding: &str, chunks: &[Vec<u8>]) -> u64 {
    let dialect = dialect::named(dialect);
    assert!(dialect.is_some());
    let shape = RequestShape { dialect, stream: Some(true), ..RequestShape::default() };
    let mut observer = StreamObserver::begin(shape, b"", None, Stamp::default());
    let head =
        ResponseHead { status: 200, content_type: content_type.as_bytes(), content_encoding: encoding.as_bytes() };
    observer.head(Stamp::default(), head, StampSource::Read);
    let mut now = 0;
    let mut round = || {
        for chunk in chunks {
            now += 1_000;
            observer.bytes(Stamp::from_nanos(now), chunk);
            observer.forwarded(Gap::from_nanos(3));
        }
    };
    (0..10).for_each(|_| round());
    let allocated = counting_allocator::allocations(|| (0..100).for_each(|_| round()));
    let record = observer.end(Stamp::from_nanos(now), Ending::UpstreamFailed);
    assert!(record.events >= 100, "the chunks were read: {} events", record.events);
    assert_eq!(record.quality.malformed_events, 0);
    allocated
}

fn event(choice: &str, rest: &str) -> Vec<u8> {
    format!(
        "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{{\"index\":0,{choice}}}]{rest}}}\n\n"
    )
    .into_bytes()
}

#[test]
fn no_chunk_of_any_common_shape_allocates() {
    let text = |text: &str| event(&format!("\"delta\":{{\"content\":\"{text}\"}}"), "");
    let varying = |n: u32| {
        let token = format!("\"token\":\"a\",\"logprob\":-0.{n},\"bytes\":[{n}]");
        let logprobs = format!("\"logprobs\":{{\"content\":[{{{token},\"top_logprobs\":[{{{token}}}]}}]}}");
        let usage = format!("\"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":{n}}}");
        event(
            &format!("\"delta\":{{\"content\":\"a\"}},{logprobs},\"token_ids\":[{n}]"),
            &format!(",\"n\":{n}.5,{usage}"),
        )
    };
    let shapes: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("steady text", vec![text("a"), text(" word")]),
        ("escapes", vec![text("\\n\\u00e9"), text("\\\"")]),
        (
            "padding",
            vec![
                event("\"delta\":{\"content\":\"a\"}", ",\"obfuscation\":\"x\""),
                event("\"delta\":{\"content\":\"b\"}", ",\"obfuscation\":\"\""),
            ],
        ),
        ("ids", vec![event("\"delta\":{\"content\":\"a\"},\"token_ids\":[1,2]", "")]),
        (
            "log probabilities",
            vec![event(
                "\"delta\":{\"content\":\"a\"},\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-0.1}]}",
                "",
            )],
        ),
        (
            "running usage",
            vec![event("\"delta\":{\"content\":\"a\"}", ",\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}")],
        ),
        ("a growing usage, times and log probabilities", (1..40).map(varying).collect()),
        ("two skeletons by turns", (1..40).flat_map(|n| [text("a"), varying(n)]).collect()),
        (
            "tool calls",
            vec![event("\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"a\"}}]}", "")],
        ),
        ("reasoning then text", vec![event("\"delta\":{\"reasoning\":\"a\"}", ""), text("b")]),
        ("comments", vec![b": ping\n\n".to_vec(), text("a")]),
        ("an event cut in two", {
            let whole = text("cut here");
            vec![whole[..40].to_vec(), whole[40..].to_vec()]
        }),
        ("many events in one read", vec![[text("a"), text("b"), text("c")].concat()]),
    ];
    for (name, chunks) in shapes {
        assert_eq!(allocations("", &chunks), 0, "{name}");
    }
}

/// One event of every dialect that streams, in its framing.
fn events() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let sse = |data: &str| ("text/event-stream", format!("data: {data}\n\n").into_bytes());
    let line = |data: &str| ("application/x-ndjson", format!("{data}\n").into_bytes());
    let vector =
        |file: &str| std::fs::read(format!("{}/tests/data/vectors/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let chunk = vector("77_bedrock_invoke_anthropic.bin");
    let infer = vector("55_triton_grpc_model_stream_infer.bin");
    let converse = vector("54_bedrock_converse_stream.bin");
    let frame = |body: &[u8], at: usize| {
        let length = |from: usize| u32::from_be_bytes(body[from..from + 4].try_into().unwrap()) as usize;
        let from = (0..at).fold(0, |from, _| from + length(from));
        body[from..from + length(from)].to_vec()
    };
    let rows = [
        ("openai.completions", sse(r#"{"id":"c","choices":[{"index":0,"text":"a"}]}"#)),
        (
            "openai.responses",
            sse(r#"{"type":"response.output_text.delta","sequence_number":8,"delta":"a","logprobs":[]}"#),
        ),
        (
            "anthropic.messages",
            sse(r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}"#),
        ),
        ("anthropic.messages", sse(r#"{"type":"ping"}"#)),
        ("tgi.stream", sse(r#"{"index":1,"token":{"id":40,"text":"a","logprob":-0.25,"special":false}}"#)),
        ("sglang.generate", sse(r#"{"text":"ab","output_ids":[1,2],"meta_info":{"id":"r","completion_tokens":2}}"#)),
        ("lmdeploy.generate", sse(r#"{"text":"b","output_ids":[2],"meta_info":{"id":"r","completion_tokens":2}}"#)),
        ("llamacpp.completion", sse(r#"{"index":0,"content":"a","tokens":[5],"stop":false,"tokens_predicted":1}"#)),
        ("vllm.generate", sse(r#"{"request_id":"g","choices":[{"index":0,"token_ids":[11,12]}]}"#)),
        ("triton.generate", sse(r#"{"model_name":"m","text_output":"a"}"#)),
        ("triton.generate", sse(r#"{"model_name":"m","text_output":["a","b"],"num_output_tokens":[1,2]}"#)),
        (
            "gemini",
            sse(r#"{"candidates":[{"content":{"parts":[{"text":"a"}]}}],"usageMetadata":{"candidatesTokenCount":1}}"#),
        ),
        ("ollama.chat", line(r#"{"model":"m","message":{"role":"assistant","content":"a"},"done":false}"#)),
        ("ollama.generate", line(r#"{"model":"m","response":"a","done":false}"#)),
        ("bedrock.converse", ("application/vnd.amazon.eventstream", frame(&converse, 1))),
        ("bedrock.invoke", ("application/vnd.amazon.eventstream", frame(&chunk, 2))),
        ("triton.grpc", ("application/grpc", infer[..90].to_vec())),
    ];
    rows.map(|(dialect, (content_type, event))| (dialect, content_type, event)).to_vec()
}

#[test]
fn no_dialect_allocates_whole_events_or_cut_ones() {
    let events = events();
    for dialect in dialect::TABLE.iter().filter(|dialect| !matches!(dialect.operation, "embeddings" | "rerank")) {
        let known = dialect.name == "openai.chat" || events.iter().any(|(name, ..)| *name == dialect.name);
        assert!(known, "{} has no event here", dialect.name);
    }
    for (name, content_type, event) in events {
        let (first, second) = event.split_at(event.len() / 2);
        let cut = vec![first.to_vec(), second.to_vec()];
        assert_eq!(allocations_of(name, content_type, "", std::slice::from_ref(&event)), 0, "{name}");
        assert_eq!(allocations_of(name, content_type, "", &cut), 0, "{name}, cut in two");
    }
}

#[test]
fn a_capture_takes_nothing_for_a_chunk_and_for_a_streams_gaps_only_as_they_double() {
    let folder = tempfile::tempdir().unwrap();
    let settings = CaptureSettings {
        folder: folder.path().to_owned(),
        flush: Gap::from_millis(1_000),
        round: Gap::ZERO,
        key: None,
        rotate: false,
        block: 512,
        names: 1,
        sample: SampleShare::ALL,
        parquet: false,
        session: None,
        upload: None,
        retention: Retention { bytes: u64::MAX, age: Gap::from_nanos(u64::MAX) },
    };
    let capture = CaptureRecorder::start(settings, None, Clock::Monotonic).unwrap();
    let mut following = capture.begin_request(|_| None, 0);
    let shape = RequestShape { dialect: dialect::named("openai.chat"), ..RequestShape::default() };
    let mut observer = StreamObserver::begin(shape, b"", None, Stamp::default());
    let body = br#"{"model":"m","stream":true,"messages":[{"role":"user","content":"Hi"}]}"#;
    observer.request(body);
    capture.push_body(&mut following, body);
    observer.sent(Stamp::default(), None);
    capture.finish_body(&mut following, observer.shape().dialect);
    let head = ResponseHead { status: 200, content_type: b"text/event-stream", content_encoding: b"" };
    observer.head(Stamp::default(), head, StampSource::Read);
    let chunk = event("\"delta\":{\"content\":\" word\"}", "");
    let (mut chunks, mut gaps, mut drained) = (0, 0, 0);
    for number in 1..=50_000 {
        let now = Stamp::from_nanos(number * 1_000_000);
        let allocated = counting_allocator::allocations(|| {
            observer.bytes(now, &chunk);
            observer.forwarded(Gap::from_nanos(3));
        });
        // The first make the buffers that the rest use.
        chunks += if number > 10 { allocated } else { 0 };
        if let Some(progress) = observer.progress(now) {
            gaps += counting_allocator::allocations(|| following.push_gaps(&progress.gaps));
            drained += progress.gaps.len();
        }
    }
    let record = observer.end(Stamp::from_nanos(u64::MAX), Ending::Complete);
    capture.end_request(Box::new((following, record)));
    capture.shutdown();
    assert_eq!(capture.stats().count(RecordOutcome::Complete), 1);
    assert!(drained > 49_000, "{drained} gaps came in batches");
    assert_eq!(chunks, 0);
    assert!(gaps <= 16, "{gaps} allocations for {drained} gaps");
}
