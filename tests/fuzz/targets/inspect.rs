//! `streamgauge inspect`: whatever the reads a recorded body came in, the answer is the same and can be printed.
//!
//! The input is a request body, an empty line, and a response body.

#![no_main]

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::inspect::inspection::{RecordedExchange, inspect};
use streamgauge_fuzz::measure::dialect::TABLE;
use streamgauge_fuzz::measure::shape::RequestShape;
use streamgauge_fuzz::split::same;

fuzz_target!(|input: &[u8]| {
    let split = input.windows(2).position(|two| two == b"\n\n").unwrap_or(0);
    let (request, body) = input.split_at(split);
    let body = body.strip_prefix(b"\n\n").unwrap_or(body);
    for dialect in TABLE {
        for content_type in ["text/event-stream", "application/json; charset=utf-8", dialect.content_type] {
            let head = RequestShape { dialect: Some(dialect), ..RequestShape::default() };
            let exchange = RecordedExchange { head, request, content_type, content_encoding: "" };
            same(body, |pieces| {
                let (inspection, seen, unread) = inspect(&exchange, pieces.iter().copied());
                let json = serde_json::to_string(&inspection).expect("an answer can be printed");
                assert_eq!(inspection.token_events, seen.iter().filter(|event| event.token).count() as u64);
                (json, format!("{seen:?}"), unread)
            });
        }
    }
});
