//! Attributes, the resource and the scope in OTLP.

use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;

use crate::export::labels::{Label, Value};

/// The attributes of a series.
pub(super) fn labels(labels: &[Label]) -> Vec<KeyValue> {
    let value = |value: &Value| match value {
        Value::Text(text) => any_value::Value::StringValue(text.to_string()),
        Value::Int(number) => any_value::Value::IntValue(*number),
        Value::Bool(truth) => any_value::Value::BoolValue(*truth),
    };
    labels.iter().map(|label| attribute(label.name, value(&label.value))).collect()
}

/// One attribute.
pub(super) fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), key_strindex: 0 }
}

/// The attributes of a span, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Attributes(pub(super) Vec<KeyValue>);

impl Attributes {
    pub(super) fn text(&mut self, key: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.0.push(attribute(key, any_value::Value::StringValue(text.to_owned())));
        }
    }

    pub(super) fn texts<'a>(&mut self, key: &str, texts: impl Iterator<Item = &'a str>) {
        let value = |text: &str| AnyValue { value: Some(any_value::Value::StringValue(text.to_owned())) };
        let values: Vec<AnyValue> = texts.map(value).collect();
        if !values.is_empty() {
            self.0.push(attribute(key, any_value::Value::ArrayValue(ArrayValue { values })));
        }
    }

    pub(super) fn number(&mut self, key: &str, number: Option<u64>) {
        if let Some(number) = number {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            self.0.push(attribute(key, any_value::Value::IntValue(number)));
        }
    }

    /// What is no finite number is left out.
    pub(super) fn real(&mut self, key: &str, real: Option<f64>) {
        if let Some(real) = real.filter(|real| real.is_finite()) {
            self.0.push(attribute(key, any_value::Value::DoubleValue(real)));
        }
    }

    pub(super) fn truth(&mut self, key: &str, truth: Option<bool>) {
        if let Some(truth) = truth {
            self.0.push(attribute(key, any_value::Value::BoolValue(truth)));
        }
    }
}

/// Who exports: the configured attributes, and what is always true of us.
pub(super) fn resource(configured: &[(String, String)]) -> Resource {
    let known = [
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("telemetry.sdk.name", "streamgauge"),
        ("telemetry.sdk.language", "rust"),
        ("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
    ];
    let own = known.into_iter().filter(|(key, _)| configured.iter().all(|(given, _)| given != key));
    let all = configured.iter().map(|(key, value)| (key.as_str(), value.as_str())).chain(own);
    let attributes = all.map(|(key, value)| attribute(key, any_value::Value::StringValue(value.to_owned()))).collect();
    Resource { attributes, dropped_attributes_count: 0, entity_refs: Vec::new() }
}

/// What measures.
pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "streamgauge".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        attributes: Vec::new(),
        dropped_attributes_count: 0,
    }
}
