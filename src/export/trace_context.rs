//! W3C trace context: the request's place in the caller's trace, and the sampling decision.
//!
//! Pure, except for random ids. Parsing is strict, as <https://www.w3.org/TR/trace-context/#traceparent-header>
//! requires: an invalid `traceparent` is ignored together with its `tracestate`, and a new trace starts. The ids are
//! `opentelemetry`'s. Its propagator is not used: it accepts invalid headers, drops the random flag and costs more
//! (`tests/benches/export.rs`).

use std::num::{NonZeroU64, NonZeroU128};

use opentelemetry::TraceFlags;
use opentelemetry::trace::{SpanContext, TraceState};
pub use opentelemetry::{SpanId, TraceId};
use rand::{Rng, RngExt as _};

use crate::config::TailSampling;
use crate::config::otlp::Sampler;
use crate::measure::record::{Outcome, RequestRecord};
use crate::measure::slo::RequestVerdict;

/// Maximum length of a `tracestate` in spans, in bytes: the minimum that vendors must propagate.
const MAX_TRACESTATE_BYTES: usize = 512;
const SAMPLED: u8 = 1;
/// Flag of level 2: the trace id's last seven bytes are random.
const RANDOM: u8 = 2;

/// Draws a trace id. Zero is invalid, so it is never drawn.
fn random_trace_id(random: &mut impl Rng) -> TraceId {
    TraceId::from(random.random::<NonZeroU128>().get())
}

/// Draws a span id, likewise.
fn random_span_id(random: &mut impl Rng) -> SpanId {
    SpanId::from(random.random::<NonZeroU64>().get())
}

/// A parsed `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Id of the trace.
    pub trace_id: TraceId,
    /// Id of the parent span.
    pub span_id: SpanId,
    /// Bit 0: sampled; bit 1: the id is random. All other bits are zero.
    pub flags: u8,
}

impl TraceParent {
    /// Parses a header's value.
    pub fn parse(header: &[u8]) -> Option<Self> {
        let (header, rest) = header.split_at_checked(55)?;
        let version = byte(&header[..2])?;
        let separated = [2, 35, 52].iter().all(|at| header[*at] == b'-');
        let ended = if version == 0 { rest.is_empty() } else { rest.first().is_none_or(|next| *next == b'-') };
        if version == 0xff || !separated || !ended {
            return None;
        }
        // In later versions only the sampled flag has a known meaning.
        let known = if version == 0 { SAMPLED | RANDOM } else { SAMPLED };
        Some(Self {
            trace_id: Some(TraceId::from_bytes(bytes(&header[3..35])?)).filter(|id| *id != TraceId::INVALID)?,
            span_id: Some(SpanId::from_bytes(bytes(&header[36..52])?)).filter(|id| *id != SpanId::INVALID)?,
            flags: byte(&header[53..])? & known,
        })
    }

    /// Formats the header's value, version 00.
    pub fn to_header(&self) -> String {
        let mut header = *b"00-                                -                -  ";
        hex(&self.trace_id.to_bytes(), &mut header[3..35]);
        hex(&self.span_id.to_bytes(), &mut header[36..52]);
        hex(&[self.flags], &mut header[53..]);
        std::str::from_utf8(&header).unwrap_or_default().to_owned()
    }

    /// Returns `true` if the caller sampled its part.
    pub fn sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// Writes `bytes` in lower-case hexadecimal, two digits each.
fn hex(bytes: &[u8], into: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, digits) in bytes.iter().zip(into.as_chunks_mut().0) {
        *digits = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    }
}

fn byte(hex: &[u8]) -> Option<u8> {
    hex.iter().try_fold(0, |high, digit| {
        Some(
            high << 4
                | match digit {
                    b'0'..=b'9' => digit - b'0',
                    b'a'..=b'f' => digit - b'a' + 10,
                    _ => return None,
                },
        )
    })
}

fn bytes<const N: usize>(hex: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for (at, digits) in hex.chunks_exact(2).enumerate() {
        *bytes.get_mut(at)? = byte(digits)?;
    }
    Some(bytes)
}

impl Sampler {
    /// Decides at the head whether to keep a trace.
    pub fn samples(&self, trace_id: TraceId, parent: Option<&TraceParent>) -> bool {
        match parent {
            Some(parent) if self.parent_based => parent.sampled(),
            // Uses the OpenTelemetry SDKs' rule, so that all services with an equal ratio decide alike.
            _ => {
                let random = u128::from_be_bytes(trace_id.to_bytes()) as u64 >> 1;
                (random as f64) < self.ratio * (1u64 << 63) as f64
            }
        }
    }
}

impl TailSampling {
    /// Returns `true` if a finished request's trace is kept despite the head's decision.
    fn matches(&self, record: &RequestRecord) -> bool {
        let missed = || record.slos.verdicts(record).any(|(_, verdict)| matches!(verdict, RequestVerdict::Missed(_)));
        self.failed && record.outcome != Outcome::Success
            || self.slow.is_some_and(|slow| record.duration() >= slow)
            || self.slo && missed()
    }
}

/// Trace of one request, made when the request starts and reported with its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTrace {
    /// Id of the trace.
    pub trace_id: TraceId,
    /// The proxy's SERVER span.
    pub server_span: SpanId,
    /// Its child, the CLIENT span: the parent of the upstream's spans.
    pub client_span: SpanId,
    /// Span of the caller.
    pub parent: Option<SpanId>,
    /// `true` if the head decided to keep the trace.
    pub sampled: bool,
    /// `true` if the id is known to be random.
    random: bool,
    /// The caller's `tracestate`, for the proxy's spans. The proxy forwards the header unchanged.
    pub tracestate: Option<Box<str>>,
}

impl RequestTrace {
    /// Continues the trace in these headers, or starts a new one.
    pub fn begin(sampler: &Sampler, traceparent: Option<&[u8]>, tracestate: Option<&[u8]>) -> Self {
        let mut random = rand::rng();
        let parent = traceparent.and_then(TraceParent::parse);
        let trace_id = parent.map_or_else(|| random_trace_id(&mut random), |parent| parent.trace_id);
        let tracestate = tracestate.filter(|state| parent.is_some() && state.len() <= MAX_TRACESTATE_BYTES);
        let visible = |state: &&str| state.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
        Self {
            trace_id,
            server_span: random_span_id(&mut random),
            client_span: random_span_id(&mut random),
            parent: parent.map(|parent| parent.span_id),
            sampled: sampler.samples(trace_id, parent.as_ref()),
            random: parent.is_none_or(|parent| parent.flags & RANDOM != 0),
            tracestate: tracestate.and_then(|state| std::str::from_utf8(state).ok()).filter(visible).map(Into::into),
        }
    }

    /// Returns the SERVER span's context, for what is logged about the request.
    pub(in crate::export) fn server_context(&self) -> SpanContext {
        let flags = TraceFlags::NOT_SAMPLED.with_sampled(self.sampled);
        SpanContext::new(self.trace_id, self.server_span, flags, false, TraceState::NONE)
    }

    /// Returns the `traceparent` for the upstream: the trace with the CLIENT span as the parent. If the trace starts
    /// here or the caller's `traceparent` was invalid, do not forward the caller's `tracestate`.
    pub fn upstream(&self) -> TraceParent {
        let flags = if self.sampled { SAMPLED } else { 0 } | if self.random { RANDOM } else { 0 };
        TraceParent { trace_id: self.trace_id, span_id: self.client_span, flags }
    }

    /// Decides whether the finished request's spans are exported.
    pub fn is_kept(&self, record: &RequestRecord, tail: &TailSampling) -> bool {
        self.sampled || tail.matches(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::time::Gap;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_written_as_it_is() {
        let parent = TraceParent::parse(VALID.as_bytes()).unwrap();
        assert_eq!(parent.to_header(), VALID);
        assert_eq!(parent.trace_id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(parent.sampled());
        let unsampled = TraceParent::parse(VALID.replace("-01", "-02").as_bytes()).unwrap();
        assert_eq!((unsampled.sampled(), unsampled.flags), (false, 2));
    }

    #[test]
    fn what_is_not_exactly_a_traceparent_is_none() {
        for bad in [
            "",
            "00",
            &VALID[..54],
            &format!("{VALID}0"),
            &format!("{VALID}-00"),
            &format!(" {VALID}"),
            &VALID.replacen("00-", "ff-", 1),
            &VALID.replacen("00-", "0x-", 1),
            &VALID.to_uppercase(),
            &VALID.replace('-', "_"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceParent::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        let later = VALID.replacen("00-", "cc-", 1).replace("-01", "-ff");
        for header in [later.clone(), format!("{later}-what-the-future-holds")] {
            assert_eq!(TraceParent::parse(header.as_bytes()).unwrap().to_header(), VALID);
        }
        assert_eq!(TraceParent::parse(format!("{later}.").as_bytes()), None);
    }

    #[test]
    fn a_request_continues_the_callers_trace_with_spans_of_its_own() {
        let trace = RequestTrace::begin(&Sampler::default(), Some(VALID.as_bytes()), Some(b"vendor=1, other=x"));
        let caller = TraceParent::parse(VALID.as_bytes()).unwrap();
        assert_eq!((trace.trace_id, trace.parent), (caller.trace_id, Some(caller.span_id)));
        assert_eq!(trace.tracestate.as_deref(), Some("vendor=1, other=x"));
        assert_eq!(trace.upstream(), TraceParent { span_id: trace.client_span, ..caller });
        assert_ne!(trace.client_span, trace.server_span);
    }

    #[test]
    fn a_broken_parent_starts_a_new_trace_without_its_state() {
        let trace = RequestTrace::begin(&Sampler::default(), Some(b"nonsense"), Some(b"vendor=1"));
        assert_eq!((trace.parent, trace.tracestate.as_deref(), trace.sampled), (None, None, true));
        assert_eq!(trace.upstream().flags, 3);
        let other = RequestTrace::begin(&Sampler::default(), None, None);
        assert_ne!(trace.trace_id, other.trace_id);
        let hostile = RequestTrace::begin(&Sampler::default(), Some(VALID.as_bytes()), Some(b"a=\n"));
        assert_eq!(hostile.tracestate, None);
    }

    #[test]
    fn the_parent_decides_where_it_is_asked_and_the_id_elsewhere() {
        let parent = TraceParent::parse(VALID.as_bytes()).unwrap();
        let unsampled = TraceParent { flags: 0, ..parent };
        let on = Sampler { parent_based: false, ratio: 1.0 };
        let off = Sampler { parent_based: true, ratio: 0.0 };
        assert!(on.samples(parent.trace_id, Some(&unsampled)));
        assert!(off.samples(parent.trace_id, Some(&parent)));
        assert!(!off.samples(parent.trace_id, Some(&unsampled)));
        assert!(!off.samples(parent.trace_id, None));
        let quarter = Sampler { parent_based: false, ratio: 0.25 };
        let mut random = rand::rng();
        let sampled = (0..10_000).filter(|_| quarter.samples(random_trace_id(&mut random), None)).count();
        assert!((2_200..2_800).contains(&sampled), "{sampled}");
        let id = |top: u8| TraceId::from_bytes([0xff, 0, 0, 0, 0, 0, 0, 0, top, 0, 0, 0, 0, 0, 0, 0]);
        assert!(quarter.samples(id(0x3f), None) && !quarter.samples(id(0x40), None));
    }

    #[test]
    fn the_tail_keeps_what_the_head_did_not() {
        use std::sync::Arc;

        use crate::export::fixtures::record;
        use crate::measure::slo::Slos;

        let off = Sampler { parent_based: false, ratio: 0.0 };
        let unsampled = RequestTrace::begin(&off, None, None);
        let sampled = RequestTrace::begin(&Sampler::default(), None, None);
        let nothing = TailSampling::default();
        assert!(sampled.is_kept(&record(), &nothing) && !unsampled.is_kept(&record(), &nothing));

        let failed = RequestRecord { outcome: Outcome::Cancelled, ..record() };
        let tail = TailSampling { failed: true, ..nothing };
        assert!(unsampled.is_kept(&failed, &tail) && !unsampled.is_kept(&record(), &tail));

        for (millis, expected) in [(304, true), (305, true), (306, false)] {
            let tail = TailSampling { slow: Some(Gap::from_millis(millis)), ..nothing };
            assert_eq!(unsampled.is_kept(&record(), &tail), expected);
        }
        for (slo, expected) in [("x: ttft<=100ms", true), ("x: ttft<=300ms", false)] {
            let slos = Arc::new(Slos::new(vec![slo.parse().unwrap()]).unwrap());
            let judged = RequestRecord { slos, ..record() };
            assert_eq!(unsampled.is_kept(&judged, &TailSampling { slo: true, ..nothing }), expected);
        }
        assert_eq!(unsampled.upstream().flags & 1, 0, "the upstream is told what the head decided");
    }
}
