//! The observer allocates nothing per chunk once it is warm.

#[path = "support/counting.rs"]
mod counting;

use streamgauge::measure::dialect;
use streamgauge::measure::observer::{ResponseHead, StreamObserver};
use streamgauge::measure::record::{Ending, StampSource};
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::time::{Gap, Stamp};

/// Feeds `chunks` round and round; returns the allocations of 100 rounds after 10 to warm up.
fn allocations(encoding: &str, chunks: &[Vec<u8>]) -> u64 {
    let shape = RequestShape { dialect: dialect::for_path("/v1/chat/completions"), ..RequestShape::default() };
    let mut observer = StreamObserver::begin(shape, b"", None, Stamp::default());
    let head = ResponseHead { status: 200, content_type: b"text/event-stream", content_encoding: encoding.as_bytes() };
    observer.head(Stamp::default(), head, StampSource::Read);
    let mut now = 0;
    let mut round = || {
        for chunk in chunks {
            now += 1_000;
            observer.bytes(Stamp::from_nanos(now), chunk);
            observer.handed_on(Gap::from_nanos(3));
        }
    };
    (0..10).for_each(|_| round());
    let allocated = counting::allocations(|| (0..100).for_each(|_| round()));
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
