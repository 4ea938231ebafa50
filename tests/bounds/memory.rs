//! Bounds of the observer for hostile bodies (memory, and time linear in the bytes), and of the memory of `trace`
//! verbs.

use std::io::{BufReader, Write, sink};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use streamgauge::measure::dialect;
use streamgauge::measure::framing::MAX_EVENT;
use streamgauge::measure::observer::StreamObserver;
use streamgauge::measure::record::{Ending, RequestRecord, StampSource};
use streamgauge::measure::reply_body::ResponseHead;
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::time::Stamp;
use streamgauge::trace::Trace;
use streamgauge::trace::anonymize::{AnonymizeRounding, anonymize};
use streamgauge::trace::diff::diff;
use streamgauge::trace::format::{self, FORMATS, ReadOptions, TraceFormat};
use streamgauge::trace::info::{MAX_CACHE_BLOCKS, info};
use streamgauge::trace::input::{InputSource, InputStream};
use streamgauge::trace::merge::{ClockAlignment, merge};
use streamgauge::trace::respace::respace;
use streamgauge::trace::scale::{RateScale, scale_rate};
use streamgauge::trace::slice::{TraceSlice, slice};

use crate::big_trace::BigTrace;
use crate::counting_allocator;

const EVENTS: &str = "text/event-stream";
const DOCUMENT: &str = "application/json";

/// The size of a body that exceeds the bound if it is held.
const BODY: usize = MAX_HELD_BYTES + 2 * MAX_EVENT;

/// Maximum memory of one observer: an unfinished line, its event and name, the previous event's skeleton, and a copy of
/// each while it grows.
const MAX_HELD_BYTES: usize = 10 * MAX_EVENT;

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
        let body = body(BODY);
        // Small reads take minutes in a debug build.
        let reads = if cfg!(debug_assertions) { &[READ][..] } else { &[READ, 333] };
        for &read in reads {
            let held = counting_allocator::most_held(|| drop(observed(content_type, "", &body, read)));
            assert!(held <= MAX_HELD_BYTES, "{name} in reads of {read} bytes: {held} bytes were held");
        }
    }
}

#[test]
fn what_an_observer_of_compressed_bytes_holds_is_bounded() {
    for Bad { name, content_type, body } in BAD {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let written = encoder.write_all(&body(BODY)).and_then(|()| encoder.finish());
        let compressed = written.expect("memory takes everything");
        let held = counting_allocator::most_held(|| drop(observed(content_type, "gzip", &compressed, READ)));
        assert!(held <= MAX_HELD_BYTES + 2 * MAX_EVENT, "{name}: {held} bytes were held");
    }
}

/// Time is the thread's own processor time, so that a busy machine changes little; of several tries the best count. The
/// two take turns: a core that is slow for a while is slow for both.
#[test]
fn four_times_the_bytes_take_four_times_the_time() {
    const SMALL: usize = if cfg!(debug_assertions) { 512 << 10 } else { 25 << 20 };
    // Shorter times are too noisy; quadratic growth is far above.
    const FLOOR: Duration = Duration::from_millis(10);
    for Bad { name, content_type, body } in BAD {
        let (small, large) = (body(SMALL), body(4 * SMALL));
        let time = |body: &[u8]| processor_time(|| drop(observed(content_type, "", body, 333)));
        let (mut of_small, mut of_large) = (Duration::MAX, Duration::MAX);
        let fits = (0..8).any(|_| {
            (of_small, of_large) = (of_small.min(time(&small)), of_large.min(time(&large)));
            of_large <= 6 * of_small.max(FLOOR)
        });
        assert!(fits, "{name}: {SMALL} bytes take {of_small:?}, four times as many {of_large:?}");
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

/// Maximum memory of a verb of `trace`: room for the program itself is left below 200 MB.
const MAX_VERB_BYTES: usize = 170 << 20;

/// Mooncake's rows, so many bytes of them, with ids so far apart that each takes all the room that one can take.
fn big(bytes: u64) -> Trace {
    let mut rows = BigTrace::of(bytes);
    rows.apart = 64;
    let source = InputSource::Stream(InputStream::new("big", Box::new(BufReader::new(rows))).expect("rows"));
    let format = format::detect(&source).expect("Mooncake's rows are known");
    (format.read.expect("a format that is read"))(source, &ReadOptions::default()).expect("a trace")
}

fn written(mut trace: Trace, format: &TraceFormat) {
    format::convert(&mut trace, format, Box::new(sink())).expect("nobody refuses");
}

/// A verb that reads a trace of this size.
struct Verb {
    name: &'static str,
    done: fn(u64),
}

const VERBS: [Verb; 9] = [
    Verb { name: "info", done: |bytes| drop(info(&mut big(bytes), Some(MAX_CACHE_BLOCKS)).expect("a trace")) },
    Verb {
        name: "info of a capture",
        done: |bytes| {
            let mut trace = big(bytes);
            "streamgauge 0.1.0".clone_into(&mut trace.header.source);
            drop(info(&mut trace, Some(MAX_CACHE_BLOCKS)).expect("a trace"));
        },
    },
    Verb {
        name: "cut",
        done: |bytes| written(slice(big(bytes), TraceSlice { from: 1, ..TraceSlice::default() }), FORMATS[0]),
    },
    Verb {
        name: "scale",
        done: |bytes| {
            let twice = RateScale { factor: 2.0, offset: 60_000_000_000, seed: 1 };
            written(scale_rate(twice, || Ok::<_, ()>(big(bytes))).expect("a trace"), FORMATS[0]);
        },
    },
    Verb {
        name: "merge",
        done: |bytes| {
            let traces = ["one", "other"].map(|name| (name.to_owned(), big(bytes)));
            written(merge(traces.into(), ClockAlignment::Start).expect("traces"), FORMATS[0]);
        },
    },
    Verb {
        name: "anonymize",
        done: |bytes| written(anonymize(big(bytes), AnonymizeRounding { time: 7, length: 7 }), FORMATS[0]),
    },
    Verb { name: "spread", done: |bytes| written(respace(big(bytes), "big", None, 1).expect("batches").0, FORMATS[0]) },
    Verb { name: "diff", done: |bytes| drop(diff(("a".to_owned(), big(bytes)), ("b".to_owned(), big(bytes)))) },
    Verb {
        name: "convert",
        done: |bytes| {
            // A prompt of texts is two hundred times as long as its row, and nothing of it is kept.
            let texts = |format: &TraceFormat| ["single_turn", "multi_turn"].contains(&format.name);
            let length = |format| if texts(format) { bytes / 200 } else { bytes };
            let written_ones = FORMATS.iter().filter(|format| format.write.is_some());
            written_ones.for_each(|format| written(big(length(format)), format));
        },
    },
];

#[test]
#[cfg_attr(debug_assertions, ignore = "hundreds of megabytes: cargo test --release, which tests/run does too")]
fn what_a_verb_holds_does_not_grow_with_the_trace() {
    // At the smaller size every table has all that it will have.
    const SMALL: u64 = 160 << 20;
    for Verb { name, done } in VERBS {
        let [small, large] = [SMALL, 3 * SMALL].map(|bytes| counting_allocator::most_held(|| done(bytes)));
        assert!(large <= MAX_VERB_BYTES, "{name}: {large} bytes were held");
        assert!(large <= small + small / 10, "{name}: {small} bytes were held, {large} of a trace three times as long");
    }
}
