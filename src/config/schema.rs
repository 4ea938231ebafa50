//! The JSON Schema of the configuration file, for editors and for CI.

use schemars::{Schema, SchemaGenerator, json_schema, schema_for};
use serde_json::{Value, json};

use super::defaults::{BOUNDS, DEFAULTS};
use super::raw_settings::RawSettings;
use crate::measure::dialect::TABLE;

/// The schema: every key with its type, description, bounds and default.
pub fn schema() -> Value {
    let mut schema = schema_for!(RawSettings).to_value();
    // A flag may name the upstream, so the file requires no key. Lists have a form of their own.
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("required");
    }
    for (key, default) in DEFAULTS {
        let property = &mut schema["properties"][*key];
        let is = |name: &str| property["type"].as_array().is_some_and(|types| types.iter().any(|of| of == name));
        let default = match serde_json::from_str(default) {
            Ok(value) if is("integer") || is("boolean") => value,
            _ => json!(default),
        };
        property["default"] = default;
    }
    for (key, bounds) in BOUNDS {
        schema["properties"][*key]["minimum"] = json!(bounds.start());
        schema["properties"][*key]["maximum"] = json!(bounds.end());
    }
    schema
}

/// Schema of `routes`: texts, or mappings of a path and a dialect.
pub(super) fn routes(_: &mut SchemaGenerator) -> Schema {
    let dialects: Vec<&str> = TABLE.iter().map(|dialect| dialect.name).collect();
    let route = json_schema!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "A path in which `*` stands for any run of characters"},
            "dialect": {"type": "string", "enum": dialects},
        },
        "required": ["path", "dialect"],
        "additionalProperties": false,
    });
    json_schema!({"type": ["string", "array", "null"], "items": {"anyOf": [{"type": "string"}, route]}})
}
