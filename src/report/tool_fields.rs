//! Helpers for other tools' files: ordered objects, failure messages and Python timestamps. Pure.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::request_view::RequestView;
use crate::measure::calendar::utc;
use crate::measure::record::Outcome;

/// Describes why a response is incomplete, as other tools' files do.
pub(super) fn failure_text(request: &RequestView) -> String {
    let outcome = request.outcome.map_or("unknown", Outcome::name);
    request.status.map_or(outcome.to_owned(), |status| format!("{outcome}: status {status}"))
}

/// Formats a timestamp as Python does, without a zone: `2026-11-21T00:41:51.697509`.
pub(super) fn python_timestamp(unix_ns: u64) -> String {
    let micros = unix_ns % 1_000_000_000 / 1_000;
    format!("{}.{micros:06}", utc(unix_ns).trim_end_matches('Z'))
}

/// A JSON object that keeps the order of its fields.
#[derive(Debug, Default)]
pub(super) struct ToolFields(Vec<(String, Value)>);

impl ToolFields {
    pub(super) fn put(&mut self, name: &str, value: Value) {
        self.0.push((name.to_owned(), value));
    }
}

impl Serialize for ToolFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        self.0.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
        map.end()
    }
}
