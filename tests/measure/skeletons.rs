//! An event that matches the skeleton of an earlier one has exactly the meaning of its full parse.
//!
//! Each stream is observed twice. The second time every event has another number of spaces behind its first brace,
//! which no skeleton matches. So every event is parsed in full.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::LazyLock;

use proptest::prelude::*;
use streamgauge::measure::dialect::{Delta, Dialect, TABLE};
use streamgauge::measure::event_observer::EventObserver;
use streamgauge::measure::observer::StreamObserver;
use streamgauge::measure::record::{Ending, StampSource};
use streamgauge::measure::reply_body::ResponseHead;
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::time::Stamp;

/// Events with a number, an array or a string that varies, beside those of the wire vectors.
const EVENTS: [&str; 9] = [
    r#"{"id":"c","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}],"usage":{"prompt_tokens":5,"total_tokens":9,"completion_tokens":4}}"#,
    r#"{"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}],"usage":{"prompt_tokens":5,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2,"created_cache_tokens":1},"completion_tokens_details":{"reasoning_tokens":3},"prompt_cache_hit_tokens":1,"reasoning_tokens":2}}"#,
    r#"{"id":"c","choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[{"token":"a","logprob":-0.5,"bytes":[97]}]}]},"finish_reason":null}],"obfuscation":"xy"}"#,
    r#"{"id":"c","choices":[{"index":0,"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[-0.5],"top_logprobs":[{"a":-0.5}],"text_offset":[7]},"finish_reason":null,"token_ids":[7]}]}"#,
    r#"{"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]},"finish_reason":null,"token_ids":[7,8]}]}"#,
    r#"{"request_id":"c","choices":[{"index":1,"token_ids":[7,8],"finish_reason":null}]}"#,
    r#"{"text":"ab","output_ids":[1,2],"meta_info":{"id":"r","finish_reason":null,"prompt_tokens":3,"completion_tokens":2,"cached_tokens":1,"e2e_latency":0.25},"index":0}"#,
    r#"{"index":0,"content":"a","tokens":[5],"stop":false,"id_slot":0,"tokens_predicted":2,"tokens_evaluated":3,"timings":{"cache_n":1,"predicted_ms":1.5}}"#,
    r#"{"model_name":"m","text_output":"a","cum_log_probs":-0.5,"output_log_probs":[-0.5],"sequence_id":0}"#,
];

/// Replacements of a value.
const VALUES: [&str; 34] = [
    "0",
    "1",
    "2",
    "10",
    "123456",
    "-1",
    "1.5",
    "-0.25",
    "1e3",
    "7.0",
    "\"a\"",
    "\" the\"",
    "\"\"",
    "\"é\"",
    "\"\\u00e9\\n\"",
    "\"\\\"\"",
    "[]",
    "[1]",
    "[1,2]",
    "[ 3 , 4 ]",
    "null",
    "true",
    "{}",
    "01",
    "1.",
    "-",
    "NaN",
    "-Infinity",
    "4294967296",
    "18446744073709551616",
    "\"\\x\"",
    "[1,\"a\"]",
    "[[1]]",
    "{\"a\":1}",
];

/// Bytes to insert anywhere.
const INSERTS: [&str; 16] = [
    "\n",
    "\r\n",
    " ",
    "\t",
    ",",
    "\"",
    "\\",
    "0",
    "]",
    "}",
    "{\"a\":1,",
    "\"usage\":{\"prompt_tokens\":9},",
    "\"content\":\"b\",",
    "\"completion_tokens\":3,",
    "\"finish_reason\":\"stop\",",
    "\u{1}",
];

static BASES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let mut bases: Vec<Vec<u8>> = EVENTS.iter().map(|event| event.as_bytes().to_vec()).collect();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|ext| ext == "sse" || ext == "ndjson")) {
        let body = std::fs::read(file).unwrap();
        let data =
            body.split(|byte| *byte == b'\n').map(|line| line.strip_prefix(b"data:").unwrap_or(line).trim_ascii());
        // Of a stream's steady events one is enough.
        let mut shapes = Vec::new();
        for event in data.filter(|event| event.starts_with(b"{") && !values(event).is_empty()) {
            let shape = event.len() / 16;
            if !shapes.contains(&shape) && shapes.len() < 6 {
                shapes.push(shape);
                bases.push(event.to_vec());
            }
        }
    }
    bases
});

/// Where the strings, numbers, words and flat arrays of an event stand.
fn values(event: &[u8]) -> Vec<Range<usize>> {
    let (mut at, mut found) = (0, Vec::new());
    while at < event.len() {
        let start = at;
        let word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
        match event[at] {
            b'"' => {
                at += 1;
                while at < event.len() && event[at] != b'"' {
                    at += if event[at] == b'\\' { 2 } else { 1 };
                }
                at = (at + 1).min(event.len());
                if event.get(at) != Some(&b':') {
                    found.push(start..at);
                }
            }
            b'[' => {
                if let Some(length) = event[at..].iter().position(|byte| matches!(byte, b']' | b'{'))
                    && event[at + length] == b']'
                {
                    found.push(at..at + length + 1);
                }
                at += 1;
            }
            byte if word(&byte) => {
                at += event[at..].iter().position(|byte| !word(byte)).unwrap_or(event.len() - at);
                found.push(start..at);
            }
            _ => at += 1,
        }
    }
    found
}

/// Picks from a list by a number that a strategy has made.
fn pick<T>(list: &[T], number: u16) -> &T {
    &list[usize::from(number) % list.len()]
}

/// One event of a stream: which values are replaced by what, and what is put where if the event is a rare one.
type Change = ([(u16, u16); 3], (u16, u16, u16));

/// The events of a stream: a base each time, and the same few of its values replaced.
fn events(bases: &[u16], places: [u16; 3], changes: &[Change]) -> Vec<Vec<u8>> {
    let events = changes.iter().enumerate().map(|(at, (replacements, (rare, place, insert)))| {
        let mut event = pick(&BASES, *pick(bases, (at / 5) as u16)).clone();
        let mut spots: Vec<_> = {
            let values = values(&event);
            places.iter().zip(replacements).map(|(place, with)| (pick(&values, *place).clone(), *with)).collect()
        };
        spots.sort_by_key(|(place, _)| std::cmp::Reverse(place.start));
        spots.dedup_by(|later, earlier| later.0.end > earlier.0.start);
        for (place, (same_kind, with)) in spots {
            let like = |value: &&&str| {
                value.as_bytes()[0].is_ascii_digit() == event[place.start].is_ascii_digit()
                    && (value.as_bytes()[0] == b'"') == (event[place.start] == b'"')
            };
            let usual: Vec<_> = VALUES[..20].iter().filter(like).collect();
            let with = if same_kind % 8 == 0 || usual.is_empty() { *pick(&VALUES, with) } else { **pick(&usual, with) };
            event.splice(place, with.bytes());
        }
        if rare % 12 == 0 {
            let at = usize::from(*place) % (event.len() + 1);
            event.splice(at..at, pick(&INSERTS, *insert).bytes());
        }
        event
    });
    events.collect()
}

#[derive(Default)]
struct Meanings(Vec<String>);

impl EventObserver for Meanings {
    fn event(&mut self, index: u64, _: &streamgauge::measure::framing::Event<'_>) {
        self.0.push(format!("event {index}"));
    }
    fn delta(&mut self, choice: u32, delta: &Delta<'_>) {
        self.0.push(format!("{choice} {delta:?}"));
    }
}

/// The meanings and the record of a stream whose reads arrive a millisecond apart, or all at once.
fn observed(
    dialect: &'static Dialect,
    (continuous, echo): (bool, bool),
    reads: &[&[u8]],
    apart: bool,
) -> (Vec<String>, String) {
    let shape = RequestShape { dialect: Some(dialect), continuous_usage: continuous, echo, ..RequestShape::default() };
    let mut observer = StreamObserver::begin(shape, b"", None, Stamp::default());
    let head = ResponseHead { status: 200, content_type: b"text/event-stream", content_encoding: b"" };
    observer.head(Stamp::default(), head, StampSource::Read);
    let mut meanings = Meanings::default();
    for (at, read) in reads.iter().enumerate() {
        observer.bytes_watched(Stamp::from_nanos(at as u64 * 1_000_000 * u64::from(apart)), read, &mut meanings);
    }
    let mut record = observer.end_watched(Stamp::default(), Ending::Complete, &mut meanings);
    record.response_bytes = 0;
    (meanings.0, format!("{record:?}"))
}

/// These events, each in a form of its own.
fn each_another(events: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let spaced = events.iter().enumerate().map(|(at, event)| match event.split_first() {
        Some((b'{', rest)) => [b"{", &b" ".repeat(at + 1)[..], rest].concat(),
        _ => event.clone(),
    });
    spaced.collect()
}

fn framed(events: &[Vec<u8>]) -> Vec<Vec<u8>> {
    events.iter().map(|event| [b"data: ", &event[..], b"\n\n"].concat()).collect()
}

/// Bytes of a read that holds no event whole, so that lines are put together first.
const SHORT_READ: usize = 13;

fn agree(events: &[Vec<u8>]) -> Result<(), TestCaseError> {
    let (plain, spaced) = (framed(events), framed(&each_another(events)));
    let body = plain.concat();
    let (plain, spaced) =
        (plain.iter().map(Vec::as_slice).collect::<Vec<_>>(), spaced.iter().map(Vec::as_slice).collect::<Vec<_>>());
    for dialect in TABLE {
        for options in [(false, false), (true, true)] {
            let (recognized, parsed) =
                (observed(dialect, options, &plain, true), observed(dialect, options, &spaced, true));
            prop_assert_eq!(recognized, parsed, "{} of {}", dialect.name, body.escape_ascii());
            let cut: Vec<_> = body.chunks(SHORT_READ).collect();
            let (whole, cut) = (observed(dialect, options, &[&body], false), observed(dialect, options, &cut, false));
            prop_assert_eq!(whole, cut, "{} in one read of {}", dialect.name, body.escape_ascii());
        }
    }
    Ok(())
}

fn change() -> impl Strategy<Value = Change> {
    (prop::array::uniform3((any::<u16>(), any::<u16>())), (any::<u16>(), any::<u16>(), any::<u16>()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_that_are_recognized_mean_what_a_full_parse_of_them_says(
        bases in prop::collection::vec(any::<u16>(), 1..3),
        places in prop::array::uniform3(any::<u16>()),
        changes in prop::collection::vec(change(), 3..16),
    ) {
        agree(&events(&bases, places, &changes))?;
    }
}

#[test]
fn every_value_of_every_event_may_become_every_other_value() {
    for base in EVENTS.iter().map(|event| event.as_bytes()) {
        for place in values(base) {
            let with = |value: &str| [&base[..place.start], value.as_bytes(), &base[place.end..]].concat();
            // Each value twice in a row, and the old ones in between: whatever was learned is tried on what differs.
            let events: Vec<_> = VALUES
                .iter()
                .flat_map(|value| [with(value), base.to_vec(), with("3"), with("12"), with(value)])
                .collect();
            agree(&events).unwrap();
        }
    }
}

#[test]
fn a_key_that_stands_twice_counts_as_the_later_one() {
    let event = |first: u32, second: u32| {
        format!(
            r#"{{"id":"c","choices":[{{"index":0,"delta":{{"content":"a"}}}}],"usage":{{"completion_tokens":{first}}},"usage":{{"prompt_tokens":{second}}}}}"#
        )
        .into_bytes()
    };
    agree(&(1..9).map(|n| event(n, 9 - n)).collect::<Vec<_>>()).unwrap();
}
