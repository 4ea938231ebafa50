//! Server-sent events: any split gives the same events, and they are those of the standard read to the letter.

#![no_main]

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::measure::framing::{Event, SseFramer};
use streamgauge_fuzz::split::same;

#[derive(Debug, Default, PartialEq)]
struct Seen {
    /// (name, data)
    events: Vec<(Vec<u8>, Vec<u8>)>,
    comments: u64,
}

fuzz_target!(|bytes: &[u8]| {
    let seen = same(bytes, |pieces| {
        let (mut sse, mut seen) = (SseFramer::new(), Seen::default());
        for piece in pieces {
            let note = |event: Event<'_>| seen.events.push((event.name.to_vec(), event.data.to_vec()));
            sse.push(piece, note).expect("no event here is too large");
        }
        seen.comments = sse.comments();
        let unfinished = sse.finish(|_| true).map(|event| (event.name.to_vec(), event.data.to_vec()));
        (seen, unfinished)
    });
    assert_eq!(seen.0, by_the_book(bytes));
});

/// <https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation>
fn by_the_book(bytes: &[u8]) -> Seen {
    let mut seen = Seen::default();
    let (mut name, mut data) = (Vec::new(), Vec::new());
    for line in lines(bytes) {
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(0) => {
                seen.comments += 1;
                continue;
            }
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"" => {
                // An event without a `data` line is none; each such line has left a line feed.
                if let Some((_, data)) = data.split_last() {
                    seen.events.push((std::mem::take(&mut name), data.to_vec()));
                }
                (name, data) = (Vec::new(), Vec::new());
            }
            b"event" => name = value.to_vec(),
            b"data" => data.extend(value.iter().chain(b"\n")),
            _ => {}
        }
    }
    seen
}

/// Every line that has an end, without it.
fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    let mut rest = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut lines = Vec::new();
    while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        lines.push(&rest[..end]);
        let after = &rest[end..];
        rest = after.strip_prefix(b"\r\n").unwrap_or(&after[1..]);
    }
    lines
}
