//! W3C trace context: the first line is a `traceparent`, the rest a `tracestate`. A parent is parsed by the letter of
//! the standard, and the forwarded one is valid too.

#![no_main]

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::config::otlp::Sampler;
use streamgauge_fuzz::export::trace_context::{RequestTrace, TraceParent};

fuzz_target!(|input: &[u8]| {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (header, state) = (&input[..end], &input[(end + 1).min(input.len())..]);
    let parent = TraceParent::parse(header);
    assert_eq!(parent.is_some(), by_the_book(header));
    if let Some(parent) = parent {
        assert_eq!(TraceParent::parse(parent.to_header().as_bytes()), Some(parent));
        assert_eq!(parent.to_header().as_bytes()[2..53], header[2..53]);
    }
    let trace = RequestTrace::begin(&Sampler::default(), Some(header), Some(state));
    let sent = trace.upstream();
    assert_eq!(TraceParent::parse(sent.to_header().as_bytes()), Some(sent));
    assert_eq!(trace.parent, parent.map(|parent| parent.span_id));
    assert!(parent.is_none_or(|parent| parent.trace_id == sent.trace_id && parent.span_id != sent.span_id));
    assert!(parent.is_none_or(|parent| parent.sampled() == sent.sampled()));
    if let Some(tracestate) = &trace.tracestate {
        assert!(
            parent.is_some()
                && tracestate.as_bytes() == state
                && !tracestate.chars().any(|c| c.is_control() && c != '\t')
        );
    }
});

/// <https://www.w3.org/TR/trace-context-2/#traceparent-header-field-values>
fn by_the_book(header: &[u8]) -> bool {
    let hex = |part: &[u8]| part.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let parts: Vec<&[u8]> = header.splitn(5, |byte| *byte == b'-').collect();
    let [version, trace, span, flags, later @ ..] = &parts[..] else { return false };
    let sizes = [version.len(), trace.len(), span.len(), flags.len()] == [2, 32, 16, 2];
    let valid = [trace, span].iter().all(|id| id.iter().any(|digit| *digit != b'0'));
    sizes
        && [version, trace, span, flags].iter().all(|part| hex(part))
        && valid
        && *version != b"ff"
        && (later.is_empty() || *version != b"00")
}
