//! The columns: one definition for captures and for `trace convert`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::measure::time::Gap;
use crate::measure::timeline::TokenEvent;
use crate::trace_file::gap_sketch::sketch;
use crate::trace_file::gaps;
use crate::trace_file::row::TraceEntry;

/// A row whose gaps are unpacked, once for all columns that hold them.
pub(super) struct ParquetRow {
    pub(super) entry: TraceEntry,
    pub(super) events: Vec<TokenEvent>,
}

impl From<TraceEntry> for ParquetRow {
    fn from(mut entry: TraceEntry) -> Self {
        let packed = entry.timing.gaps.take();
        Self { entry, events: packed.and_then(|gaps| gaps::unpack(&gaps).ok()).unwrap_or_default() }
    }
}

/// Type of a column and the function that extracts its values.
pub(super) enum ParquetColumn {
    /// Wall-clock time of the arrival, in microseconds since 1970.
    Time,
    Integer(fn(&TraceEntry) -> Option<u64>),
    Float(fn(&TraceEntry) -> Option<f64>),
    Bool(fn(&TraceEntry) -> Option<bool>),
    Text(fn(&TraceEntry) -> Option<String>),
    /// JSON text.
    Json(fn(&TraceEntry) -> Option<String>),
    List(fn(&ParquetRow) -> Vec<u64>),
    /// The gaps by bucket ([`gap_sketch`](crate::trace_file::gap_sketch)).
    Sketch,
}

use ParquetColumn::{Bool, Float, Integer, Json, List, Sketch, Text, Time};

/// The column of the arrival, the only one that is required.
pub(super) const AT: &str = "at";
/// Columns that hold what others hold too. Readers skip them.
pub(super) const DERIVED: [&str; 2] = ["time", "gap_sketch"];
/// The lists that a row's packed gaps become.
pub(super) const GAPS: [&str; 2] = ["gap_ns", "gap_tokens"];

/// Paths of the fields in a row, and columns. A column is named as its path, with `_` for the dot.
pub(super) const COLUMNS: &[(&str, ParquetColumn)] = &[
    ("time", Time),
    ("at", Integer(|row| Some(row.at))),
    ("planned", Integer(|row| row.planned)),
    ("route", Text(|row| row.route.clone())),
    ("dialect", Text(|row| row.dialect.clone())),
    ("model", Text(|row| row.model.clone())),
    ("stream", Bool(|row| row.stream)),
    ("params.max_tokens", Integer(|row| row.params.max_tokens)),
    ("params.min_tokens", Integer(|row| row.params.min_tokens)),
    ("params.n", Integer(|row| row.params.n)),
    ("params.temperature", Float(|row| row.params.temperature)),
    ("params.ignore_eos", Bool(|row| row.params.ignore_eos)),
    ("params.logprobs", Bool(|row| row.params.logprobs)),
    ("params.tools", Bool(|row| row.params.tools)),
    ("params.structured", Bool(|row| row.params.structured)),
    ("prompt.bytes", Integer(|row| row.prompt.bytes)),
    ("prompt.tokens", Integer(|row| row.prompt.tokens)),
    ("prompt.source", Text(|row| row.prompt.source.and_then(name))),
    ("prompt.cached", Integer(|row| row.prompt.cached)),
    ("prompt.blocks", List(|row| row.entry.prompt.blocks.clone())),
    ("prompt.parts", Json(|row| (!row.prompt.parts.is_empty()).then(|| json(&row.prompt.parts)))),
    ("session", Text(|row| row.session.clone())),
    ("turn", Integer(|row| row.turn.map(u64::from))),
    ("think", Integer(|row| row.think)),
    ("status", Integer(|row| row.status.map(u64::from))),
    ("ending", Text(|row| row.ending.and_then(name))),
    ("outcome", Text(|row| row.outcome.and_then(name))),
    ("finish", Text(|row| row.finish.and_then(name))),
    ("output_tokens", Integer(|row| row.output_tokens)),
    ("output_source", Text(|row| row.output_source.and_then(name))),
    ("reasoning_tokens", Integer(|row| row.reasoning_tokens)),
    ("timing.sent", Integer(|row| row.timing.sent)),
    ("timing.evidence", Integer(|row| row.timing.evidence)),
    ("timing.first_token", Integer(|row| row.timing.first_token)),
    ("timing.first_output", Integer(|row| row.timing.first_output)),
    ("timing.ended", Integer(|row| row.timing.ended)),
    ("timing.first_tokens", Integer(|row| row.timing.first_tokens.map(u64::from))),
    ("gap_ns", List(|row| row.events.iter().map(|event| event.gap().as_nanos()).collect())),
    ("gap_tokens", List(|row| row.events.iter().map(|event| event.tokens().map_or(0, u64::from)).collect())),
    ("gap_sketch", Sketch),
    ("timing.lost_gaps", Integer(|row| row.timing.lost_gaps)),
    ("abort_tokens", Integer(|row| row.abort_tokens)),
    ("in_flight", Integer(|row| row.in_flight.map(u64::from))),
    ("transfer.connecting", Integer(|row| row.transfer.as_ref()?.connecting)),
    ("transfer.head", Integer(|row| row.transfer.as_ref()?.head)),
    ("transfer.first_byte", Integer(|row| row.transfer.as_ref()?.first_byte)),
    ("transfer.sent", Integer(|row| row.transfer.as_ref()?.sent)),
    ("transfer.received", Integer(|row| row.transfer.as_ref()?.received)),
    ("transfer.reads", Integer(|row| row.transfer.as_ref()?.reads.map(u64::from))),
    ("wanted.input_tokens", Integer(|row| row.wanted.input_tokens)),
    ("wanted.output_tokens", Integer(|row| row.wanted.output_tokens)),
    ("wanted.think", Integer(|row| row.wanted.think)),
    ("wanted.abort_tokens", Integer(|row| row.wanted.abort_tokens)),
    ("wanted.abort_after", Integer(|row| row.wanted.abort_after)),
    ("upstream", Text(|row| row.upstream.clone())),
    ("class", Json(|row| (!row.class.is_empty()).then(|| json(&row.class)))),
    ("slo.ttft", Integer(|row| row.slo.as_ref()?.ttft)),
    ("slo.tpot", Integer(|row| row.slo.as_ref()?.tpot)),
    ("parent", Text(|row| row.parent.clone())),
];

/// Name of the column of a field.
pub(super) fn column_name(path: &str) -> String {
    path.replace('.', "_")
}

/// Serialized name of an enum variant.
fn name(variant: impl Serialize) -> Option<String> {
    serde_json::to_value(variant).ok()?.as_str().map(str::to_owned)
}

pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The sketch of a row's inter-token latencies, as reports compute them.
pub(super) fn gap_sketch(row: &ParquetRow) -> BTreeMap<i32, u64> {
    sketch(row.events.iter().map(|event| -> Gap { event.latency().0 }))
}

/// The schema of the file.
pub(super) fn schema() -> String {
    let column = |(path, column): &(&str, ParquetColumn)| {
        let name = column_name(path);
        match column {
            Time => format!("OPTIONAL INT64 {name} (TIMESTAMP(MICROS,true));"),
            Integer(_) if *path == AT => format!("REQUIRED INT64 {name} (INTEGER(64,false));"),
            Integer(_) => format!("OPTIONAL INT64 {name} (INTEGER(64,false));"),
            Float(_) => format!("OPTIONAL DOUBLE {name};"),
            Bool(_) => format!("OPTIONAL BOOLEAN {name};"),
            Text(_) | Json(_) => format!("OPTIONAL BYTE_ARRAY {name} (STRING);"),
            List(_) => format!(
                "REQUIRED GROUP {name} (LIST) {{ REPEATED GROUP list {{ REQUIRED INT64 element (INTEGER(64,false)); }} }}"
            ),
            Sketch => format!(
                "REQUIRED GROUP {name} (MAP) {{ REPEATED GROUP key_value {{ REQUIRED INT32 key; REQUIRED INT64 value; }} }}"
            ),
        }
    };
    format!("message trace {{ {} }}", COLUMNS.iter().map(column).collect::<String>())
}
