//! Encodes attributes, the resource and the scope for OTLP.

use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;

use super::protobuf_writer::{bytes, field_len, length};
use crate::export::registry::interner::{Label, LabelValue};

pub(super) fn labels(labels: &[Label]) -> Vec<KeyValue> {
    let value = |value: &LabelValue| match value {
        LabelValue::Text(text) => any_value::Value::StringValue(text.to_string()),
        LabelValue::Int(number) => any_value::Value::IntValue(*number),
        LabelValue::Bool(truth) => any_value::Value::BoolValue(*truth),
    };
    labels.iter().map(|label| attribute(&label.name, value(&label.value))).collect()
}

pub(super) fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), key_strindex: 0 }
}

/// Fields of `AnyValue`.
pub(super) const STRING: u32 = 1;
pub(super) const BOOL: u32 = 2;
pub(super) const INT: u32 = 3;
pub(super) const DOUBLE: u32 = 4;
pub(super) const ARRAY: u32 = 5;
/// Field of `ArrayValue`.
pub(super) const VALUES: u32 = 1;
/// Fields of `KeyValue`.
const KEY: u32 = 1;
const VALUE: u32 = 2;

/// Writes field `tag` as one attribute, up to the `len` bytes of its `AnyValue`, which the caller appends. Inlining
/// lets a constant key be encoded at compile time.
#[inline(always)]
pub(super) fn begin(out: &mut Vec<u8>, tag: u32, key: &str, len: usize) {
    length(out, tag, field_len(KEY, key.len()) + field_len(VALUE, len));
    bytes(out, KEY, key.as_bytes());
    length(out, VALUE, len);
}

pub(super) fn resource(resource: &opentelemetry_sdk::Resource) -> Resource {
    let attributes = ResourceAttributesWithSchema::from(resource).attributes.0;
    Resource { attributes, dropped_attributes_count: 0, entity_refs: Vec::new() }
}

pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "streamgauge".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        attributes: Vec::new(),
        dropped_attributes_count: 0,
    }
}
