//! A request's two spans: SERVER, as it came to us, and its child CLIENT, as we asked the upstream.
//!
//! Attributes follow the HTTP and the GenAI conventions. Nothing that a person or a model wrote is among them. A span's
//! model name is the client's own, not capped: spans are not series.

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};

use super::attributes::{self, Attributes};
use crate::export::aggregate;
use crate::export::catalog::{Convention, attribute};
use crate::export::endings::{error_type, http_error_type};
use crate::export::gauges::known_method;
use crate::export::snapshot::Moment;
use crate::export::trace_context::{RequestTrace, SpanId};
use crate::measure::record::RequestRecord;
use crate::measure::time::Stamp;

/// W3C's sampled bit, and that it is known whether the parent was remote.
const SAMPLED: u32 = 0x01;
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// The spans of a request, the SERVER span first.
pub fn spans(
    record: &RequestRecord,
    trace: &RequestTrace,
    settings: &aggregate::Settings,
    moment: Moment,
) -> [Span; 2] {
    let parent_is_remote = if trace.parent.is_some() { IS_REMOTE } else { 0 };
    let span = |span_id: SpanId, parent: Option<SpanId>, kind: SpanKind, remote: u32| Span {
        trace_id: trace.trace_id.0.to_vec(),
        span_id: span_id.0.to_vec(),
        trace_state: trace.tracestate.as_deref().unwrap_or_default().to_owned(),
        parent_span_id: parent.map(|id| id.0.to_vec()).unwrap_or_default(),
        flags: SAMPLED | HAS_IS_REMOTE | remote,
        kind: kind.into(),
        start_time_unix_nano: moment.unix_of(record.times.received),
        end_time_unix_nano: moment.unix_of(record.times.ended),
        ..Span::default()
    };
    let http_error = http_error_type(record);
    let server = Span {
        name: server_name(record),
        attributes: server_attributes(record, settings, http_error.as_deref()),
        status: status(http_error.is_some()),
        ..span(trace.server_span, trace.parent, SpanKind::Server, parent_is_remote)
    };
    let error = error_type(record);
    let client = Span {
        name: client_name(record),
        attributes: client_attributes(record, settings, error.as_deref()),
        events: events(record, moment),
        status: status(error.is_some()),
        ..span(trace.client_span, Some(trace.server_span), SpanKind::Client, 0)
    };
    [server, client]
}

/// Spans as one export.
pub fn export(spans: Vec<Span>, resource: &Resource, convention: Convention) -> ResourceSpans {
    let schema_url = convention.schema_url().to_owned();
    let scope_spans = vec![ScopeSpans { scope: Some(attributes::scope()), spans, schema_url: schema_url.clone() }];
    ResourceSpans { resource: Some(resource.clone()), scope_spans, schema_url }
}

fn server_name(record: &RequestRecord) -> String {
    let (method, route) = (span_method(record), record.shape.route());
    if route.is_empty() { method.to_owned() } else { format!("{method} {route}") }
}

fn client_name(record: &RequestRecord) -> String {
    let shape = &record.shape;
    match (shape.dialect, &shape.model) {
        (Some(dialect), Some(model)) if !model.is_empty() => format!("{} {model}", dialect.operation),
        (Some(dialect), _) => dialect.operation.to_owned(),
        (None, _) => span_method(record).to_owned(),
    }
}

/// A method that the conventions do not know is called HTTP in names.
fn span_method(record: &RequestRecord) -> &'static str {
    match known_method(&record.shape.method) {
        "_OTHER" => "HTTP",
        known => known,
    }
}

fn server_attributes(record: &RequestRecord, settings: &aggregate::Settings, error: Option<&str>) -> Vec<KeyValue> {
    let mut attributes = http_attributes(record);
    attributes.text(attribute::URL_SCHEME, Some(settings.scheme));
    attributes.text(attribute::HTTP_ROUTE, Some(record.shape.route()).filter(|route| !route.is_empty()));
    attributes.text(attribute::ERROR_TYPE, error);
    attributes.0
}

fn http_attributes(record: &RequestRecord) -> Attributes {
    let mut attributes = Attributes::default();
    attributes.text(attribute::HTTP_METHOD, Some(known_method(&record.shape.method)));
    attributes.number(attribute::HTTP_STATUS, record.status.map(u64::from));
    attributes
}

fn client_attributes(record: &RequestRecord, settings: &aggregate::Settings, error: Option<&str>) -> Vec<KeyValue> {
    let (shape, usage) = (&record.shape, &record.usage);
    let mut attributes = http_attributes(record);
    if let Some((address, port)) = &shape.server {
        attributes.text(attribute::SERVER_ADDRESS, Some(address));
        attributes.number(attribute::SERVER_PORT, Some(u64::from(*port)));
    }
    attributes.text(attribute::ERROR_TYPE, error);
    let Some(dialect) = shape.dialect else { return attributes.0 };
    attributes.text(attribute::OPERATION, Some(dialect.operation));
    attributes.text(attribute::PROVIDER, Some(settings.provider_of(dialect)));
    attributes.text(attribute::MODEL, shape.model.as_deref());
    attributes.truth("gen_ai.request.stream", shape.stream);
    attributes.number("gen_ai.request.max_tokens", shape.max_tokens);
    attributes.number("gen_ai.request.choice.count", shape.choices.filter(|choices| *choices != 1));
    attributes.real("gen_ai.request.temperature", shape.temperature);
    attributes.real("gen_ai.request.top_p", shape.top_p);
    attributes.real("gen_ai.request.frequency_penalty", shape.frequency_penalty);
    attributes.real("gen_ai.request.presence_penalty", shape.presence_penalty);
    attributes.number("gen_ai.request.seed", shape.seed);
    attributes.text("gen_ai.response.id", record.response_id.as_deref());
    attributes.text("gen_ai.response.model", record.response_model.as_deref());
    let reasons = record.choices.iter().filter_map(|choice| choice.finish.as_ref()).map(|(reason, _)| reason.name());
    attributes.texts("gen_ai.response.finish_reasons", reasons);
    let first_chunk = record.times.first_byte.filter(|_| record.streamed);
    let waited = first_chunk.map(|at| at.since(record.times.received).as_secs());
    attributes.real("gen_ai.response.time_to_first_chunk", waited);
    attributes.number("gen_ai.usage.input_tokens", usage.input);
    attributes.number("gen_ai.usage.output_tokens", usage.output);
    attributes.number("gen_ai.usage.cache_read.input_tokens", usage.cached);
    attributes.number("gen_ai.usage.reasoning.output_tokens", usage.reasoning);
    attributes.0
}

fn events(record: &RequestRecord, moment: Moment) -> Vec<Event> {
    let times = &record.times;
    let event = |(name, at): (&str, Option<Stamp>)| {
        let time_unix_nano = moment.unix_of(at?);
        Some(Event { time_unix_nano, name: name.to_owned(), attributes: Vec::new(), dropped_attributes_count: 0 })
    };
    let points =
        [("first_byte", times.first_byte), ("first_token", times.first_token), ("last_token", times.last_token)];
    points.into_iter().filter_map(event).collect()
}

/// A span that is no error has no status: whether it went well is the application's to say.
fn status(is_error: bool) -> Option<Status> {
    is_error.then(|| Status { message: String::new(), code: StatusCode::Error.into() })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use opentelemetry_proto::tonic::common::v1::any_value::Value;

    use super::*;
    use crate::config::otlp::Sampler;
    use crate::export::fixtures::{NOW, record, shape};
    use crate::measure::record::{Choice, Ending, FinishReason, Outcome};
    use crate::measure::shape::RequestShape;

    const PARENT: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

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
    fn a_success_is_two_spans_with_what_is_known_of_it() {
        let mut record = record();
        let asked = RequestShape { temperature: Some(0.7), max_tokens: Some(64), seed: Some(7), ..shape("tiny") };
        record.shape = Arc::new(RequestShape { top_p: Some(f64::NAN), choices: Some(1), ..asked });
        let finish = Some((FinishReason::Length, "length".into()));
        record.choices = vec![Choice { index: 0, first: None, last: None, token_events: 5, finish }];
        let trace = RequestTrace::begin(&Sampler::default(), Some(PARENT), Some(b"v=1"));
        let [server, client] = spans(&record, &trace, &aggregate::Settings::default(), NOW);

        assert_eq!((server.name.as_str(), server.kind()), ("POST /v1/chat/completions", SpanKind::Server));
        assert_eq!(server.trace_id, trace.trace_id.0);
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
            "gen_ai.response.time_to_first_chunk=0.151",
            "gen_ai.usage.input_tokens=100",
            "gen_ai.usage.output_tokens=6",
            "gen_ai.usage.cache_read.input_tokens=64",
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
    fn a_failure_says_what_failed_and_a_4xx_is_the_clients_mistake() {
        let trace = RequestTrace::begin(&Sampler::default(), None, None);
        let with = |ending, status, outcome| {
            let record = RequestRecord { ending, status, outcome, ..record() };
            let spans = spans(&record, &trace, &aggregate::Settings::default(), NOW);
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
        let [server, client] = spans(&plain, &trace, &aggregate::Settings::default(), NOW);
        assert_eq!((server.name.as_str(), client.name.as_str(), server.flags), ("HTTP", "HTTP", 0x101));
        assert_eq!(shown(&client), ["http.request.method=_OTHER", "http.response.status_code=200"]);
        assert!(server.parent_span_id.is_empty());
    }
}
