//! Whatever a server sends, what the observer holds is bounded and the time it takes grows with the bytes and no faster.

#[path = "support/counting.rs"]
mod counting;

use std::io::Write;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use streamgauge::measure::dialect;
use streamgauge::measure::framing::MAX_EVENT;
use streamgauge::measure::observer::{ResponseHead, StreamObserver};
use streamgauge::measure::record::{Ending, RequestRecord, StampSource};
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::time::Stamp;

const EVENTS: &str = "text/event-stream";
const DOCUMENT: &str = "application/json";

/// What one observer may hold: an unfinished line, the event that it is part of, its name, what was learned of the one
/// before, and the copy that each of them is grown into.
const MOST_HELD: usize = 10 * MAX_EVENT;

/// Bytes as one read brings them.
const READ: usize = 64 * 1024;

/// A body of this size that is as bad as it can be, in one way.
struct Bad {
    name: &'static str,
    content_type: &'static str,
    body: fn(usize) -> Vec<u8>,
}

/// `piece`, to about this many bytes.
fn repeat(piece: &[u8], size: usize) -> Vec<u8> {
    piece.repeat(size.div_ceil(piece.len()))
}

/// `piece` inside of one event or document, as often as fits.
fn between(before: &str, piece: &str, after: &str, size: usize) -> Vec<u8> {
    [before.as_bytes(), &repeat(piece.as_bytes(), size), after.as_bytes()].concat()
}

/// Events of nearly the largest size, each with `piece` in it as often as fits.
fn large_events(before: &str, piece: &str, after: &str, size: usize) -> Vec<u8> {
    let event = between(&format!("data: {before}"), piece, &format!("{after}\n\n"), MAX_EVENT - 200);
    repeat(&event, size)
}

const BAD: [Bad; 17] = [
    Bad { name: "tiny events", content_type: EVENTS, body: |size| repeat(b"data:{}\n\n", size) },
    Bad { name: "empty lines", content_type: EVENTS, body: |size| repeat(b"\n", size) },
    Bad { name: "lone CRs", content_type: EVENTS, body: |size| repeat(b"\r\r\n", size) },
    Bad { name: "one line", content_type: EVENTS, body: |size| between("data: ", "x", "", size) },
    Bad { name: "one event", content_type: EVENTS, body: |size| repeat(b"data: x\n", size) },
    Bad {
        name: "names without events",
        content_type: EVENTS,
        body: |size| repeat(&between("event: ", "x", "\n", MAX_EVENT - 100), size),
    },
    Bad { name: "large events", content_type: EVENTS, body: |size| large_events("\"", "x", "\"", size) },
    Bad {
        name: "large tokens",
        content_type: EVENTS,
        body: |size| {
            large_events("{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"", "x", "\"}}],\"id\":\"i\"}", size)
        },
    },
    Bad { name: "deep events", content_type: EVENTS, body: |size| large_events("", "[", "", size) },
    Bad { name: "deep fields", content_type: EVENTS, body: |size| large_events("", "{\"choices\":[", "", size) },
    Bad {
        name: "choices without number",
        content_type: EVENTS,
        body: |size| large_events("{\"choices\":[{}", ",{}", "]}", size),
    },
    Bad {
        name: "a choice of its own for each event",
        content_type: EVENTS,
        body: |size| {
            let event = |at| format!("data: {{\"choices\":[{{\"index\":{at},\"delta\":{{\"content\":\"a\"}}}}]}}\n\n");
            (0..size / 60).map(event).collect::<String>().into_bytes()
        },
    },
    Bad {
        name: "fields that repeat",
        content_type: EVENTS,
        body: |size| large_events("{\"id\":\"a\"", ",\"usage\":{\"prompt_tokens\":1},\"error\":\"b\"", "}", size),
    },
    Bad { name: "a deep document", content_type: DOCUMENT, body: |size| between("", "[", "", size) },
    Bad {
        name: "a document of numbers",
        content_type: DOCUMENT,
        body: |size| between("{\"a\":[0", ",1.5", "]}", size),
    },
    Bad {
        name: "a document of names",
        content_type: DOCUMENT,
        body: |size| between("{\"a\":0", ",\"id\":\"b\",\"model\":\"c\"", "}", size),
    },
    Bad {
        name: "a document of one name",
        content_type: DOCUMENT,
        body: |size| between("{\"id\":\"", "x", "\"}", size),
    },
];

fn observed(content_type: &str, encoding: &str, body: &[u8], read: usize) -> RequestRecord {
    let shape = RequestShape { dialect: dialect::for_path("/v1/chat/completions"), ..RequestShape::default() };
    let mut observer = StreamObserver::begin(shape, b"", None, Stamp::default());
    let head =
        ResponseHead { status: 200, content_type: content_type.as_bytes(), content_encoding: encoding.as_bytes() };
    observer.head(Stamp::default(), head, StampSource::Read);
    for chunk in body.chunks(read) {
        observer.bytes(Stamp::default(), chunk);
    }
    observer.end(Stamp::default(), Ending::Complete)
}

#[test]
fn what_an_observer_holds_is_bounded() {
    for Bad { name, content_type, body } in BAD {
        let body = body(5 * MAX_EVENT);
        for read in [READ, 333] {
            let held = counting::most_held(|| drop(observed(content_type, "", &body, read)));
            assert!(held <= MOST_HELD, "{name} in reads of {read} bytes: {held} bytes were held");
        }
    }
}

#[test]
fn what_an_observer_of_compressed_bytes_holds_is_bounded() {
    for Bad { name, content_type, body } in BAD {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let written = encoder.write_all(&body(5 * MAX_EVENT)).and_then(|()| encoder.finish());
        let compressed = written.expect("memory takes everything");
        let held = counting::most_held(|| drop(observed(content_type, "gzip", &compressed, READ)));
        assert!(held <= MOST_HELD + 2 * MAX_EVENT, "{name}: {held} bytes were held");
    }
}

/// Time is the thread's own processor time, so that a busy machine changes little; of three tries the best counts.
#[test]
fn four_times_the_bytes_take_four_times_the_time() {
    const SMALL: usize = if cfg!(debug_assertions) { 512 << 10 } else { 25 << 20 };
    // Below this nothing can be told; what grows with the square is far above.
    const FLOOR: Duration = Duration::from_millis(10);
    for Bad { name, content_type, body } in BAD {
        let (small, large) = (body(SMALL), body(4 * SMALL));
        let time = |body: &[u8]| processor_time(|| drop(observed(content_type, "", body, 333)));
        let least = (0..3).map(|_| time(&small)).min().unwrap_or_default().max(FLOOR);
        let fits = (0..3).any(|_| time(&large) <= 6 * least);
        assert!(fits, "{name}: {SMALL} bytes take {least:?}, four times as many more than six times that");
    }
}

fn processor_time(work: impl FnOnce()) -> Duration {
    let now = || {
        let used = getrusage(UsageWho::RUSAGE_THREAD).expect("the kernel keeps count").user_time();
        Duration::new(used.tv_sec().unsigned_abs(), u32::try_from(used.tv_usec()).unwrap_or(0) * 1_000)
    };
    let before = now();
    work();
    now() - before
}
