//! Encodes a request's two spans: SERVER for the client's request, and its child CLIENT for the upstream request.
//!
//! Attributes follow the HTTP and GenAI conventions. They contain no text from people or models. Therefore `url.path`
//! and `url.full` are absent although the HTTP conventions require them: a path can contain a person's name or a key.
//! The span's model name is the client's own (the last segment of a path) and unlimited in number, because spans are
//! not series.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use prost::encoding::{decode_key, decode_varint};

use super::attributes;
use super::batch::{BatchEncoder, BatchExporter, BatchQueue};
use super::payload::OtlpSignal;
use super::protobuf_writer::{bytes, field_len, fixed32, fixed64, fixed64_len, length, nested, varint, varint_len};
use crate::capture::model_names::shorten;
use crate::clock::Clock;
use crate::config::otlp::TracesConfig;
use crate::export::registry::aggregate;
use crate::export::registry::catalog::{Convention, attribute};
use crate::export::registry::drops::{DropReason, Drops};
use crate::export::registry::error_type::{error_type, http_error_type};
use crate::export::registry::models::escape_invisible;
use crate::export::registry::snapshot::TimePoint;
use crate::export::registry::thread_gauges::known_method;
use crate::export::trace_context::{RequestTrace, SpanId};
use crate::measure::record::{RequestRecord, Usage};
use crate::measure::slo::RequestVerdict;
use crate::measure::time::Gap;

/// W3C's sampled bit. The two bits below mark a parent as remote, and that fact as known.
const SAMPLED: u32 = 0x01;
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// Field of `ExportTraceServiceRequest` with a `ResourceSpans`.
const RESOURCE_SPANS: u32 = 1;
/// Fields of `ScopeSpans`. `ResourceSpans` uses these numbers for its resource, scope spans and schema URL.
mod scope_spans {
    pub(super) const SCOPE: u32 = 1;
    pub(super) const SPANS: u32 = 2;
    pub(super) const SCHEMA_URL: u32 = 3;
}
/// Fields of `Span`.
mod span {
    pub(super) const TRACE_ID: u32 = 1;
    pub(super) const SPAN_ID: u32 = 2;
    pub(super) const TRACE_STATE: u32 = 3;
    pub(super) const PARENT_SPAN_ID: u32 = 4;
    pub(super) const NAME: u32 = 5;
    pub(super) const KIND: u32 = 6;
    pub(super) const START_TIME: u32 = 7;
    pub(super) const END_TIME: u32 = 8;
    pub(super) const ATTRIBUTES: u32 = 9;
    pub(super) const EVENTS: u32 = 11;
    pub(super) const STATUS: u32 = 15;
    pub(super) const FLAGS: u32 = 16;
}
/// Fields of `Span.Event`.
mod event {
    pub(super) const TIME: u32 = 1;
    pub(super) const NAME: u32 = 2;
}
/// Field of `Status`.
const STATUS_CODE: u32 = 3;

/// Encoded spans of one request: two `spans` fields of a `ScopeSpans`.
#[derive(Debug)]
pub struct RequestSpans {
    pub(super) bytes: Vec<u8>,
    /// Place of the CLIENT span, the last field.
    pub(super) client: usize,
}

impl RequestSpans {
    /// Number of spans per request.
    pub const COUNT: usize = 2;

    /// Encodes the spans of a request, SERVER first.
    pub fn new(
        record: &RequestRecord,
        trace: &RequestTrace,
        settings: &aggregate::AggregateSettings,
        moment: TimePoint,
    ) -> Self {
        // Fits most requests' spans, and the allocator has blocks of this size ready.
        let mut out = Vec::with_capacity(1_024);
        let common = |out: &mut Vec<u8>, id: SpanId, parent: Option<SpanId>, kind: SpanKind, remote: u32| {
            bytes(out, span::TRACE_ID, &trace.trace_id.to_bytes());
            bytes(out, span::SPAN_ID, &id.to_bytes());
            if let Some(state) = &trace.tracestate {
                bytes(out, span::TRACE_STATE, state.as_bytes());
            }
            if let Some(parent) = parent {
                bytes(out, span::PARENT_SPAN_ID, &parent.to_bytes());
            }
            fixed32(out, span::FLAGS, SAMPLED | HAS_IS_REMOTE | remote);
            varint(out, span::KIND, kind as u64);
            fixed64(out, span::START_TIME, moment.unix_of(record.times.received));
            fixed64(out, span::END_TIME, moment.unix_of(record.times.ended));
        };
        nested(&mut out, scope_spans::SPANS, |out| {
            let remote = if trace.parent.is_some() { IS_REMOTE } else { 0 };
            common(out, trace.server_span, trace.parent, SpanKind::Server, remote);
            let error = http_error_type(record);
            name(out, span_method(record), record.shape.route());
            server_attributes(&mut Attributes(out), record, settings, error.as_deref());
            status(out, error.is_some());
        });
        let client = out.len();
        nested(&mut out, scope_spans::SPANS, |out| {
            common(out, trace.client_span, Some(trace.server_span), SpanKind::Client, 0);
            let (error, model) = (error_type(record), record.shape.model.as_deref().map(display_model));
            match record.shape.dialect {
                Some(dialect) => name(out, dialect.operation, model.as_deref().unwrap_or_default()),
                None => name(out, span_method(record), ""),
            }
            client_attributes(&mut Attributes(out), record, model.as_deref(), settings, error.as_deref());
            events(out, record, moment);
            status(out, error.is_some());
        });
        Self { bytes: out, client }
    }

    /// Adds the id of the request's session to its CLIENT span.
    pub(in crate::export) fn set_conversation(&mut self, session: &str) {
        let written = self.bytes.split_off(self.client);
        let mut span = &written[..];
        // Both were written above.
        let is_read = decode_key(&mut span).is_ok() && decode_varint(&mut span).is_ok();
        debug_assert!(is_read, "the span is a field with a length");
        nested(&mut self.bytes, scope_spans::SPANS, |out| {
            out.extend_from_slice(span);
            let mut attributes = Attributes(out);
            attributes.text("gen_ai.conversation.id", Some(session));
        });
    }
}

/// Encodes the spans of several requests as one `ExportTraceServiceRequest`.
#[derive(Debug)]
pub struct SpanEncoder {
    resource: Vec<u8>,
    scope: Vec<u8>,
    schema_url: &'static str,
}

impl SpanEncoder {
    /// Creates an encoder for this resource.
    pub fn new(resource: &opentelemetry_sdk::Resource, convention: Convention) -> Self {
        let (resource, scope) = (attributes::resource(resource).encode_to_vec(), attributes::scope().encode_to_vec());
        Self { resource, scope, schema_url: convention.schema_url() }
    }

    /// Encodes one batch.
    pub fn export(&self, requests: &[RequestSpans]) -> Bytes {
        let Self { resource, scope, schema_url } = self;
        let schema = schema_url.as_bytes();
        let (of_scope, of_schema) = (scope_spans::SCOPE, scope_spans::SCHEMA_URL);
        let spans: usize = requests.iter().map(|spans| spans.bytes.len()).sum();
        let inner = field_len(of_scope, scope.len()) + spans + field_len(of_schema, schema.len());
        let outer = field_len(of_scope, resource.len())
            + field_len(scope_spans::SPANS, inner)
            + field_len(of_schema, schema.len());

        let mut out = Vec::with_capacity(field_len(RESOURCE_SPANS, outer));
        length(&mut out, RESOURCE_SPANS, outer);
        bytes(&mut out, of_scope, resource);
        length(&mut out, scope_spans::SPANS, inner);
        bytes(&mut out, of_scope, scope);
        requests.iter().for_each(|spans| out.extend_from_slice(&spans.bytes));
        bytes(&mut out, of_schema, schema);
        bytes(&mut out, of_schema, schema);
        out.into()
    }
}

impl BatchEncoder for SpanEncoder {
    type Entry = RequestSpans;
    const SIGNAL: OtlpSignal = OtlpSignal::Traces;
    const ENTRY_ITEMS: usize = RequestSpans::COUNT;
    const QUEUE_FULL: DropReason = DropReason::Spans;
    const FAILED: DropReason = DropReason::SpansFailed;
    const REJECTED: DropReason = DropReason::SpansRejected;

    fn encode(&self, entries: &[RequestSpans]) -> Bytes {
        self.export(entries)
    }
}

/// The queue of an exporter's spans, and that exporter.
pub(in crate::export) fn exporter(
    settings: &TracesConfig,
    resource: &opentelemetry_sdk::Resource,
    convention: Convention,
    clock: &Clock,
    drops: &Arc<Drops>,
) -> (BatchExporter<SpanEncoder>, Arc<BatchQueue<SpanEncoder>>) {
    let queue = BatchQueue::new(&settings.batch, drops);
    let config = (&settings.exporter, &settings.batch);
    (BatchExporter::new(config, SpanEncoder::new(resource, convention), &queue, clock, drops), queue)
}

/// Shortens a model's name for spans.
fn display_model(name: &str) -> Cow<'_, str> {
    escape_invisible(shorten(name))
}

/// Writes a span's name: the operation, and its object if there is one.
fn name(out: &mut Vec<u8>, done: &str, to: &str) {
    let between = if to.is_empty() { "" } else { " " };
    length(out, span::NAME, done.len() + between.len() + to.len());
    [done, between, to].iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
}

/// Span names use `HTTP` for methods that the conventions do not list.
fn span_method(record: &RequestRecord) -> &'static str {
    match known_method(&record.shape.method) {
        "_OTHER" => "HTTP",
        known => known,
    }
}

/// Writes a span's attributes; unknown values are omitted.
struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    #[inline(always)]
    fn text(&mut self, key: &str, text: Option<&str>) {
        if let Some(text) = text {
            attributes::begin(self.0, span::ATTRIBUTES, key, field_len(attributes::STRING, text.len()));
            bytes(self.0, attributes::STRING, text.as_bytes());
        }
    }

    fn texts<'a>(&mut self, key: &str, texts: impl Iterator<Item = &'a str> + Clone) {
        let one = |text: &str| field_len(attributes::STRING, text.len());
        let len: usize = texts.clone().map(|text| field_len(attributes::VALUES, one(text))).sum();
        if len == 0 {
            return;
        }
        attributes::begin(self.0, span::ATTRIBUTES, key, field_len(attributes::ARRAY, len));
        length(self.0, attributes::ARRAY, len);
        for text in texts {
            length(self.0, attributes::VALUES, one(text));
            bytes(self.0, attributes::STRING, text.as_bytes());
        }
    }

    #[inline(always)]
    fn number(&mut self, key: &str, number: Option<u64>) {
        if let Some(number) = number {
            let number = number.min(i64::MAX as u64);
            attributes::begin(self.0, span::ATTRIBUTES, key, varint_len(attributes::INT, number));
            varint(self.0, attributes::INT, number);
        }
    }

    /// Omits values that are not finite.
    #[inline(always)]
    fn real(&mut self, key: &str, real: Option<f64>) {
        if let Some(real) = real.filter(|real| real.is_finite()) {
            attributes::begin(self.0, span::ATTRIBUTES, key, fixed64_len(attributes::DOUBLE));
            fixed64(self.0, attributes::DOUBLE, real.to_bits());
        }
    }

    fn truth(&mut self, key: &str, truth: Option<bool>) {
        if let Some(truth) = truth.map(u64::from) {
            attributes::begin(self.0, span::ATTRIBUTES, key, varint_len(attributes::BOOL, truth));
            varint(self.0, attributes::BOOL, truth);
        }
    }
}

fn server_attributes(
    attributes: &mut Attributes<'_>,
    record: &RequestRecord,
    settings: &aggregate::AggregateSettings,
    error: Option<&str>,
) {
    http_attributes(attributes, record, record.status);
    attributes.text(attribute::URL_SCHEME, Some(settings.scheme));
    attributes.text(attribute::HTTP_ROUTE, Some(record.shape.route()).filter(|route| !route.is_empty()));
    attributes.text(attribute::ERROR_TYPE, error);
    slo_attributes(attributes, record);
}

/// Writes the SLO verdicts; SLOs that exclude the request are omitted.
fn slo_attributes(attributes: &mut Attributes<'_>, record: &RequestRecord) {
    let (mut met, mut missed, mut violations) = (Vec::new(), Vec::new(), Vec::new());
    for (slo, verdict) in record.slos.verdicts(record) {
        match verdict {
            RequestVerdict::Met => met.push(slo.name()),
            RequestVerdict::Missed(objectives) => {
                missed.push(slo.name());
                violations.extend(objectives.into_iter().map(|objective| format!("{}.{objective}", slo.name())));
            }
            RequestVerdict::Excluded => {}
        }
    }
    attributes.texts(attribute::SLOS_MET, met.into_iter());
    attributes.texts(attribute::SLOS_MISSED, missed.into_iter());
    attributes.texts(attribute::SLO_VIOLATIONS, violations.iter().map(String::as_str));
}

fn http_attributes(attributes: &mut Attributes<'_>, record: &RequestRecord, status: Option<u16>) {
    attributes.text(attribute::HTTP_METHOD, Some(known_method(&record.shape.method)));
    attributes.number(attribute::HTTP_STATUS, status.map(u64::from));
}

fn client_attributes(
    attributes: &mut Attributes<'_>,
    record: &RequestRecord,
    model: Option<&str>,
    settings: &aggregate::AggregateSettings,
    error: Option<&str>,
) {
    let shape = &record.shape;
    // If the proxy answered for the server, the status is not the server's.
    http_attributes(attributes, record, record.status.filter(|_| record.times.head.is_some()));
    if let Some((address, port)) = &shape.server {
        attributes.text(attribute::SERVER_ADDRESS, Some(address));
        attributes.number(attribute::SERVER_PORT, Some(u64::from(*port)));
    }
    attributes.text(attribute::ERROR_TYPE, error);
    let Some(dialect) = shape.dialect else { return };
    attributes.text(attribute::OPERATION, Some(dialect.operation));
    attributes.text(attribute::PROVIDER, Some(settings.provider_of(dialect)));
    attributes.text(attribute::MODEL, model);
    attributes.truth("gen_ai.request.stream", shape.stream);
    attributes.number("gen_ai.request.max_tokens", shape.max_tokens);
    attributes.number("gen_ai.request.choice.count", shape.choices.filter(|choices| *choices != 1));
    attributes.real("gen_ai.request.temperature", shape.temperature);
    attributes.real("gen_ai.request.top_p", shape.top_p);
    attributes.real("gen_ai.request.frequency_penalty", shape.frequency_penalty);
    attributes.real("gen_ai.request.presence_penalty", shape.presence_penalty);
    attributes.number("gen_ai.request.seed", shape.seed);
    // The newest version made it a whole number.
    match settings.convention {
        Convention::Frozen => attributes.real("gen_ai.request.top_k", shape.top_k.map(|top_k| top_k as f64)),
        Convention::Latest => attributes.number("gen_ai.request.top_k", shape.top_k),
    }
    attributes.text("gen_ai.request.reasoning.level", shape.reasoning_level);
    attributes.text("gen_ai.output.type", shape.output_type);
    attributes.text("gen_ai.response.id", record.response_id.as_deref());
    // Most servers respond under the requested name.
    let same = record.response_model == shape.model;
    let answered = record.response_model.as_deref().filter(|_| !same).map(display_model);
    attributes.text("gen_ai.response.model", if same { model } else { answered.as_deref() });
    let reasons = record.choices.iter().filter_map(|choice| choice.finish.as_ref()).map(|(reason, _)| reason.name());
    attributes.texts("gen_ai.response.finish_reasons", reasons);
    attributes.real("gen_ai.response.time_to_first_chunk", record.time_to_first_chunk().map(Gap::as_secs));
    if settings.gen_ai_client {
        usage_attributes(attributes, &record.usage, settings.convention);
    }
}

fn usage_attributes(attributes: &mut Attributes<'_>, usage: &Usage, convention: Convention) {
    attributes.number("gen_ai.usage.input_tokens", usage.input);
    attributes.number("gen_ai.usage.output_tokens", usage.output);
    attributes.number("gen_ai.usage.cache_read.input_tokens", usage.cached);
    match convention {
        Convention::Frozen => attributes.number("gen_ai.usage.cache_creation.input_tokens", usage.cache_write),
        Convention::Latest => attributes.number("gen_ai.usage.cache_write.input_tokens", usage.cache_write),
    }
    attributes.number("gen_ai.usage.reasoning.output_tokens", usage.reasoning);
}

fn events(out: &mut Vec<u8>, record: &RequestRecord, moment: TimePoint) {
    let times = &record.times;
    let points =
        [("first_byte", times.first_byte), ("first_token", times.first_token), ("last_token", times.last_token)];
    for (name, at) in points {
        if let Some(at) = at {
            length(out, span::EVENTS, fixed64_len(event::TIME) + field_len(event::NAME, name.len()));
            fixed64(out, event::TIME, moment.unix_of(at));
            bytes(out, event::NAME, name.as_bytes());
        }
    }
}

/// A span without an error has no status: only the application may declare success.
fn status(out: &mut Vec<u8>, is_error: bool) {
    if is_error {
        nested(out, span::STATUS, |out| varint(out, STATUS_CODE, StatusCode::Error as u64));
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};

    use super::*;
    use crate::config::otlp::Sampler;
    use crate::export::fixtures::{NOW, record, shape};
    use crate::measure::record::{Choice, Ending, FinishReason, Outcome};
    use crate::measure::shape::RequestShape;
    use crate::measure::slo::Slos;

    const PARENT: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// Decodes a request's spans as a collector does.
    fn spans(record: &RequestRecord, trace: &RequestTrace) -> [Span; 2] {
        let spans = RequestSpans::new(record, trace, &aggregate::AggregateSettings::default(), NOW);
        ScopeSpans::decode(&spans.bytes[..]).unwrap().spans.try_into().unwrap()
    }

    fn shown(span: &Span) -> Vec<String> {
        let value = |value: &Value| match value {
            Value::StringValue(text) => text.clone(),
            Value::IntValue(number) => number.to_string(),
            Value::DoubleValue(real) => format!("{real:?}"),
            Value::BoolValue(truth) => truth.to_string(),
            other => format!("{other:?}"),
        };
        let one = |attribute: &KeyValue| {
            let inner = attribute.value.as_ref().and_then(|any| any.value.as_ref());
            format!("{}={}", attribute.key, inner.map_or(String::new(), value))
        };
        span.attributes.iter().map(one).collect()
    }

    #[test]
    fn the_server_span_has_the_verdict_of_each_slo_and_the_objectives_missed() {
        let slos = ["chat: ttft<=1s", "strict: ttft<=1ms e2e<=1ms", "other[model=huge]: ttft<=1s"];
        let slos = Slos::new(slos.map(|slo| slo.parse().unwrap()).to_vec()).unwrap();
        let record = RequestRecord { slos: Arc::new(slos), ..record() };
        let trace = RequestTrace::begin(&Sampler::default(), None, None);
        let [server, client] = spans(&record, &trace);
        let lists: Vec<_> = server.attributes.iter().filter(|one| one.key.starts_with("streamgauge.")).collect();
        let text = |any: &AnyValue| match &any.value {
            Some(Value::StringValue(text)) => text.clone(),
            other => panic!("{other:?}"),
        };
        let list = |one: &&KeyValue| match &one.value.as_ref().unwrap().value {
            Some(Value::ArrayValue(list)) => {
                (one.key.clone(), list.values.iter().map(text).collect::<Vec<_>>().join(" "))
            }
            other => panic!("{other:?}"),
        };
        let expected = [
            ("streamgauge.slo.met", "chat"),
            ("streamgauge.slo.missed", "strict"),
            ("streamgauge.slo.violations", "strict.ttft strict.e2e"),
        ];
        let expected = expected.map(|(key, list)| (key.to_owned(), list.to_owned()));
        assert_eq!(lists.iter().map(list).collect::<Vec<_>>(), expected);
        assert!(client.attributes.iter().all(|one| !one.key.starts_with("streamgauge.")));
    }

    #[test]
    fn a_success_is_two_spans_with_what_is_known_of_it() {
        let mut record = record();
        let base = RequestShape { temperature: Some(0.7), max_tokens: Some(64), seed: Some(7), ..shape("tiny") };
        let base = RequestShape { top_k: Some(40), reasoning_level: Some("high"), output_type: Some("json"), ..base };
        record.shape = Arc::new(RequestShape { top_p: Some(f64::NAN), choices: Some(1), ..base });
        record.usage.cache_write = Some(30);
        let finish = Some((FinishReason::Length, "length".into()));
        record.choices = smallvec::smallvec![Choice { index: 0, first: None, last: None, token_events: 5, finish }];
        let trace = RequestTrace::begin(&Sampler::default(), Some(PARENT), Some(b"v=1"));
        let [server, client] = spans(&record, &trace);

        assert_eq!((server.name.as_str(), server.kind()), ("POST /v1/chat/completions", SpanKind::Server));
        assert_eq!(server.trace_id, trace.trace_id.to_bytes());
        assert_eq!(server.parent_span_id, [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        assert_eq!((server.flags, client.flags, server.trace_state.as_str()), (0x301, 0x101, "v=1"));
        let received = NOW.unix - 59_000_000_000;
        assert_eq!(server.start_time_unix_nano, received);
        assert_eq!(server.end_time_unix_nano, received + 305_000_000);
        assert_eq!(
            shown(&server),
            [
                "http.request.method=POST",
                "http.response.status_code=200",
                "url.scheme=http",
                "http.route=/v1/chat/completions"
            ]
        );
        assert_eq!((client.name.as_str(), client.kind()), ("chat tiny", SpanKind::Client));
        assert_eq!((&client.parent_span_id, client.status.as_ref()), (&server.span_id, None));
        let attributes = shown(&client);
        for expected in [
            "server.address=llm.local",
            "server.port=8000",
            "gen_ai.operation.name=chat",
            "gen_ai.provider.name=openai",
            "gen_ai.request.model=tiny",
            "gen_ai.request.stream=true",
            "gen_ai.request.max_tokens=64",
            "gen_ai.request.temperature=0.7",
            "gen_ai.request.seed=7",
            "gen_ai.response.id=chatcmpl-1",
            "gen_ai.response.model=tiny-0613",
            "gen_ai.response.time_to_first_chunk=0.2",
            "gen_ai.request.top_k=40.0",
            "gen_ai.request.reasoning.level=high",
            "gen_ai.output.type=json",
            "gen_ai.usage.input_tokens=100",
            "gen_ai.usage.output_tokens=6",
            "gen_ai.usage.cache_read.input_tokens=64",
            "gen_ai.usage.cache_creation.input_tokens=30",
        ] {
            assert!(attributes.iter().any(|attribute| attribute == expected), "{expected} in {attributes:?}");
        }
        let has = |key: &str| attributes.iter().any(|attribute| attribute.starts_with(key));
        assert!(has("gen_ai.response.finish_reasons=ArrayValue"));
        assert!(!has("gen_ai.request.top_p") && !has("gen_ai.request.choice") && !has("error.type"));
        let events: Vec<_> = client.events.iter().map(|e| (e.name.as_str(), e.time_unix_nano - received)).collect();
        assert_eq!(events, [("first_byte", 151_000_000), ("first_token", 200_000_000), ("last_token", 300_000_000)]);
    }

    #[test]
    fn the_latest_convention_renames_the_cache_write_and_counts_candidates_in_whole_numbers() {
        let mut record = record();
        record.shape = Arc::new(RequestShape { top_k: Some(40), ..shape("tiny") });
        record.usage.cache_write = Some(30);
        let trace = RequestTrace::begin(&Sampler::default(), None, None);
        let of = |settings| {
            let spans = RequestSpans::new(&record, &trace, &settings, NOW);
            let [_, client]: [Span; 2] = ScopeSpans::decode(&spans.bytes[..]).unwrap().spans.try_into().unwrap();
            let of_both = |attribute: &String| attribute.contains(".top_k") || attribute.contains(".usage.cache_");
            shown(&client).into_iter().filter(of_both).collect::<Vec<_>>()
        };
        let settings = aggregate::AggregateSettings::default();
        let expected = [
            "gen_ai.request.top_k=40",
            "gen_ai.usage.cache_read.input_tokens=64",
            "gen_ai.usage.cache_write.input_tokens=30",
        ];
        assert_eq!(of(aggregate::AggregateSettings { convention: Convention::Latest, ..settings.clone() }), expected);
        assert_eq!(
            of(aggregate::AggregateSettings { gen_ai_client: false, ..settings }),
            ["gen_ai.request.top_k=40.0"]
        );
    }

    #[test]
    fn a_failure_says_what_failed_and_a_4xx_is_the_clients_mistake() {
        let trace = RequestTrace::begin(&Sampler::default(), None, None);
        let with = |ending, status, outcome| {
            let record = RequestRecord { ending, status, outcome, ..record() };
            let spans = spans(&record, &trace);
            spans.map(|span| {
                let error = shown(&span).into_iter().find(|attribute| attribute.starts_with("error.type"));
                (error.unwrap_or_default(), span.status.map(|status| status.code()))
            })
        };
        let error = Some(StatusCode::Error);
        let none = (String::new(), None);
        let typed = |name: &str| (format!("error.type={name}"), error);
        assert_eq!(with(Ending::Complete, Some(404), Outcome::Refused), [none, typed("404")]);
        assert_eq!(with(Ending::Complete, Some(500), Outcome::Failed), [typed("500"), typed("500")]);
        assert_eq!(with(Ending::TimedOut, Some(200), Outcome::Failed), [typed("timeout"), typed("timeout")]);
    }

    #[test]
    fn plain_http_has_plain_spans() {
        let trace = RequestTrace::begin(&Sampler::default(), None, None);
        let shape = Arc::new(RequestShape { method: "BREW".into(), ..RequestShape::default() });
        let plain = RequestRecord { shape, streamed: false, ..record() };
        let [server, client] = spans(&plain, &trace);
        assert_eq!((server.name.as_str(), client.name.as_str(), server.flags), ("HTTP", "HTTP", 0x101));
        assert_eq!(shown(&client), ["http.request.method=_OTHER", "http.response.status_code=200"]);
        assert!(server.parent_span_id.is_empty());
    }

    #[test]
    fn a_status_of_ours_is_none_of_the_servers() {
        let trace = RequestTrace::begin(&Sampler::default(), None, None);
        let mut down = RequestRecord { ending: Ending::UpstreamFailed, outcome: Outcome::Failed, ..record() };
        (down.status, down.times.head) = (Some(502), None);
        let [server, client] = spans(&down, &trace).map(|span| shown(&span).join(" "));
        assert!(server.contains("http.response.status_code=502") && server.contains("error.type=502"), "{server}");
        assert!(!client.contains("http.response.status_code") && client.contains("error.type=502"), "{client}");
    }

    #[test]
    fn an_attribute_of_any_length_is_read_as_it_was_written() {
        let trace = RequestTrace::begin(&Sampler::default(), None, None);
        for len in [0, 1, 100, 123, 124, 125, 126, 127, 128, 129, 256, 16_384] {
            let id = "x".repeat(len);
            let [_, client] = spans(&RequestRecord { response_id: Some(id.as_str().into()), ..record() }, &trace);
            assert!(shown(&client).contains(&format!("gen_ai.response.id={id}")), "{len}");
        }
    }

    #[test]
    fn the_session_is_the_last_attribute_of_the_client_span_and_of_no_other() {
        let trace = RequestTrace::begin(&Sampler::default(), None, None);
        for len in [0, 60, 16_384] {
            let record = RequestRecord { response_id: Some("x".repeat(len).as_str().into()), ..record() };
            let [server, client] = spans(&record, &trace);
            let mut with = RequestSpans::new(&record, &trace, &aggregate::AggregateSettings::default(), NOW);
            with.set_conversation("0123456789abcdef");
            let [same, with]: [Span; 2] = ScopeSpans::decode(&with.bytes[..]).unwrap().spans.try_into().unwrap();
            assert_eq!(same, server);
            let mut expected = shown(&client);
            expected.push("gen_ai.conversation.id=0123456789abcdef".to_owned());
            assert_eq!((shown(&with), &with.events, &with.span_id), (expected, &client.events, &client.span_id));
        }
    }

    #[test]
    fn where_a_model_lies_is_not_told_whoever_names_it() {
        let trace = RequestTrace::begin(&Sampler::default(), None, None);
        for (answered, name) in [("/data/alice/llama", "llama"), ("/data/bob/phi", "phi")] {
            let shape = Arc::new(shape("/data/alice/llama"));
            let [_, client] =
                spans(&RequestRecord { shape, response_model: Some(answered.into()), ..record() }, &trace);
            assert_eq!(client.name, "chat llama");
            let attributes = shown(&client);
            for expected in ["gen_ai.request.model=llama", &format!("gen_ai.response.model={name}")] {
                assert!(attributes.iter().any(|attribute| attribute == expected), "{expected}: {attributes:?}");
            }
        }
    }

    #[test]
    fn an_export_holds_the_spans_of_its_requests_under_one_resource_and_scope() {
        let trace = RequestTrace::begin(&Sampler::default(), None, None);
        let of_one = || RequestSpans::new(&record(), &trace, &aggregate::AggregateSettings::default(), NOW);
        let resource = opentelemetry_sdk::Resource::builder_empty().with_service_name("gauge").build();
        let many: Vec<RequestSpans> = (0..200).map(|_| of_one()).collect();
        let export = SpanEncoder::new(&resource, Convention::Frozen).export(&many);
        let schema_url = Convention::Frozen.schema_url().to_owned();
        let spans = (0..200).flat_map(|_| spans(&record(), &trace)).collect();
        let scope_spans = vec![ScopeSpans { scope: Some(attributes::scope()), spans, schema_url: schema_url.clone() }];
        let expected = ResourceSpans { resource: Some(attributes::resource(&resource)), scope_spans, schema_url };
        assert_eq!(ExportTraceServiceRequest::decode(export).unwrap().resource_spans, [expected]);
    }
}
