//! Any split of any bytes gives the same events.

use proptest::prelude::*;
use streamgauge::measure::dialect::{Delta, for_path};
use streamgauge::measure::event_observer::EventObserver;
use streamgauge::measure::framing::{Event, SseFramer};
use streamgauge::measure::json_scanner::{DocumentState, JsonScanner, Scalar, ScanFields};
use streamgauge::measure::observer::StreamObserver;
use streamgauge::measure::record::{Ending, RequestRecord, StampSource};
use streamgauge::measure::reply_body::ResponseHead;
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::time::Stamp;
use streamgauge::net::http1::{BodyDecoder, Framing};

/// Bytes that look enough like a protocol to get somewhere.
fn bytes(words: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![8 => proptest::sample::select(words).prop_map(|word| word.as_bytes().to_vec()), 1 => any::<Vec<u8>>()];
    proptest::collection::vec(word, 0..40).prop_map(|words| words.concat())
}

/// The bytes whole, and cut at random.
fn cut(words: &'static [&'static str]) -> impl Strategy<Value = (Vec<u8>, Vec<Vec<u8>>)> {
    (bytes(words), proptest::collection::vec(1..20usize, 1..60)).prop_map(|(whole, lengths)| {
        let (mut pieces, mut rest) = (Vec::new(), &whole[..]);
        for length in lengths {
            let (piece, tail) = rest.split_at(length.min(rest.len()));
            pieces.push(piece.to_vec());
            rest = tail;
        }
        pieces.push(rest.to_vec());
        (whole, pieces)
    })
}

const SSE: &[&str] =
    &["data:", "data: ", "event: x", ":", ": hi", "\n", "\r", "\r\n", "\n\n", "{}", "[DONE]", "\u{feff}", "id", "é"];

/// (name, data) of every event, and how many comments.
type Events = (Vec<(Vec<u8>, Vec<u8>)>, u64);

fn events(pieces: &[Vec<u8>]) -> Events {
    let (mut sse, mut seen) = (SseFramer::new(), Vec::new());
    let mut note = |event: Event<'_>| seen.push((event.name.to_vec(), event.data.to_vec()));
    for piece in pieces {
        sse.push(piece, &mut note).unwrap();
    }
    if let Some(event) = sse.finish(|_| true) {
        note(event);
    }
    let comments = sse.comments();
    (seen, comments)
}

const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"a\"",
    "\"b\\\"c\"",
    "1",
    "-2.5e3",
    "true",
    "null",
    " ",
    "\"usage\":{\"n\":3}",
    "\\",
];

#[derive(Default)]
struct Everything(Vec<(Vec<u8>, u32, String)>);

impl ScanFields for Everything {
    fn wants(&self, _: &[u8]) -> bool {
        true
    }
    fn is_prefix_of_wanted(&self, _: &[u8]) -> bool {
        true
    }
    fn scalar(&mut self, path: &[u8], index: u32, scalar: Scalar<'_>) {
        self.0.push((path.to_vec(), index, format!("{scalar:?}")));
    }
}

fn scalars(pieces: &[Vec<u8>]) -> (Vec<(Vec<u8>, u32, String)>, DocumentState) {
    let (mut scan, mut all) = (JsonScanner::default(), Everything::default());
    for piece in pieces {
        scan.push(piece, &mut all);
    }
    (all.0, scan.document())
}

const CHUNKED: &[&str] =
    &["5\r\nhello\r\n", "0\r\n\r\n", "0\r\n", "a", "F;x=y\r\n", "\r\n", "X: 1\r\n", "\n", "12\r", "hello"];

fn decoded(pieces: &[Vec<u8>]) -> (Vec<u8>, Result<bool, String>) {
    let (mut decoder, mut body) = (BodyDecoder::new(Framing::Chunked), Vec::new());
    for piece in pieces {
        if let Err(error) = decoder.decode(piece, |payload| body.extend_from_slice(payload)) {
            return (body, Err(error.to_string()));
        }
    }
    (body, Ok(decoder.is_done()))
}

const CHAT: &[&str] = &[
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"bcd\"}}]}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"}}]}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"e\\n\"}}]}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"bad\\x\"}}]}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":1,\"delta\":{\"content\":\"f\"}}]}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"reasoning\":\"g\"}}]}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"h\"},\"finish_reason\":\"stop\"}]}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"i\"}}],\"obfuscation\":\"\"}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"j\"}}],\"obfuscation\":\"kk\"}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"l\"},\"token_ids\":[1,2]}]}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"m\"}}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":4}}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"p\"}}]}\r\n\r\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"q\"}}]}\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"r\"}}]}",
    "data: {\"id\":\"c\",\n",
    "event: message\n",
    "event: s\n",
    "\n",
    "\r",
    "data: {\"error\":\"n\"}\n\n",
    "data: [DONE]\n\n",
    ": o\n\n",
];

#[derive(Default)]
struct Meanings(Vec<String>);

impl EventObserver for Meanings {
    fn event(&mut self, index: u64, _: &Event<'_>) {
        self.0.push(format!("event {index}"));
    }
    fn delta(&mut self, choice: u32, delta: &Delta<'_>) {
        self.0.push(format!("{choice} {delta:?}"));
    }
}

fn observed(pieces: &[Vec<u8>]) -> (Vec<String>, RequestRecord) {
    let shape = RequestShape { dialect: for_path("/v1/chat/completions"), ..RequestShape::default() };
    let mut observer = StreamObserver::begin(shape, b"", None, Stamp::default());
    let head = ResponseHead { status: 200, content_type: b"text/event-stream", content_encoding: b"" };
    observer.head(Stamp::default(), head, StampSource::Read);
    let mut meanings = Meanings::default();
    for piece in pieces {
        observer.bytes_watched(Stamp::default(), piece, &mut meanings);
    }
    let record = observer.end_watched(Stamp::default(), Ending::Complete, &mut meanings);
    (meanings.0, record)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_event_stream_has_the_same_events((whole, pieces) in cut(SSE)) {
        prop_assert_eq!(events(&[whole]), events(&pieces));
    }

    #[test]
    fn a_document_has_the_same_scalars((whole, pieces) in cut(JSON)) {
        prop_assert_eq!(scalars(&[whole]), scalars(&pieces));
    }

    #[test]
    fn a_scan_accepts_every_document_that_serde_json_accepts(whole in bytes(JSON)) {
        if serde_json::from_slice::<serde_json::Value>(&whole).is_ok() {
            prop_assert_eq!(scalars(&[whole, b" ".to_vec()]).1, DocumentState::Whole);
        }
    }

    #[test]
    fn a_chunked_body_decodes_to_the_same_payload((whole, pieces) in cut(CHUNKED)) {
        let (a, b) = (decoded(&[whole]), decoded(&pieces));
        // A cut may let more payload through before rubbish is met; the verdict is the same.
        prop_assert_eq!(a.1.is_ok(), b.1.is_ok());
        if a.1.is_ok() {
            prop_assert_eq!(a, b);
        }
    }

    #[test]
    fn a_stream_means_the_same((whole, pieces) in cut(CHAT)) {
        let (a, b) = (observed(&[whole]), observed(&pieces));
        prop_assert_eq!(a.0, b.0);
        prop_assert_eq!(a.1.output_tokens, b.1.output_tokens);
        prop_assert_eq!(a.1.outcome, b.1.outcome);
    }

    /// A skeleton remembers the event before. A reader with nothing to remember must find the same.
    #[test]
    fn a_skeleton_never_changes_what_an_event_means(which in proptest::collection::vec(0..CHAT.len(), 1..30)) {
        let kinds = |meanings: &[String]| -> Vec<String> {
            // The id appears once per stream.
            let once = |meaning: &&String| !meaning.starts_with("event") && !meaning.contains(" Id(");
            meanings.iter().filter(once).cloned().collect()
        };
        // Running usage counts along the stream by design, and a part of an event means nothing alone.
        let is_alone = |event: &str| event.len() > 2 && event.ends_with("\n\n") && !event.contains("usage");
        let which: Vec<usize> = which.into_iter().filter(|at| is_alone(CHAT[*at])).collect();
        let stream: Vec<Vec<u8>> = which.iter().map(|at| CHAT[*at].as_bytes().to_vec()).collect();
        let together = kinds(&observed(&stream).0);
        let alone: Vec<String> = stream.iter().flat_map(|event| kinds(&observed(std::slice::from_ref(event)).0)).collect();
        prop_assert_eq!(together, alone);
    }
}
