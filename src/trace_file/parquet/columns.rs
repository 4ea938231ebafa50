//! The columns: one definition for captures and for `trace convert`.

use serde::Serialize;

use crate::measure::record::{CountSource, Ending, FinishReason, Outcome};
use crate::measure::time::Gap;
use crate::measure::timeline::TokenEvent;
use crate::trace_file::gap_sketch::sketch;
use crate::trace_file::gaps;
use crate::trace_file::row::TraceEntry;

/// A row and its gaps, unpacked once for all columns that hold them.
pub(super) struct ParquetRow<'a> {
    pub(super) entry: &'a TraceEntry,
    pub(super) events: Vec<TokenEvent>,
}

impl<'a> From<&'a TraceEntry> for ParquetRow<'a> {
    fn from(entry: &'a TraceEntry) -> Self {
        let events = entry.timing.gaps.as_deref().and_then(|packed| gaps::unpack(packed).ok());
        Self { entry, events: events.unwrap_or_default() }
    }
}

/// Type of a column and the function that extracts its values.
pub(super) enum ParquetColumn {
    /// Wall-clock time of the arrival, in microseconds since 1970.
    Time,
    /// An integer of every row.
    Required(fn(&TraceEntry) -> u64),
    Integer(fn(&TraceEntry) -> Option<u64>),
    Float(fn(&TraceEntry) -> Option<f64>),
    Bool(fn(&TraceEntry) -> Option<bool>),
    Text(fn(&TraceEntry) -> Option<&str>),
    /// JSON text.
    Json(fn(&TraceEntry) -> Option<String>),
    /// Appends the integers of a list.
    List(fn(&ParquetRow<'_>, &mut Vec<i64>)),
    /// The gaps by bucket ([`gap_sketch`](crate::trace_file::gap_sketch)).
    Sketch,
}

use ParquetColumn::{Bool, Float, Integer, Json, List, Required, Sketch, Text, Time};

/// Columns that hold what others hold too. Readers skip them.
pub(super) const DERIVED: [&str; 2] = ["time", "gap_sketch"];
/// The lists that a row's packed gaps become.
pub(super) const GAPS: [&str; 2] = ["gap_ns", "gap_tokens"];

/// Paths of the fields in a row, and columns. A column is named as its path, with `_` for the dot.
pub(super) const COLUMNS: &[(&str, ParquetColumn)] = &[
    ("time", Time),
    ("at", Required(|row| row.at)),
    ("planned", Integer(|row| row.planned)),
    ("route", Text(|row| row.route.as_deref())),
    ("dialect", Text(|row| row.dialect.as_deref())),
    ("model", Text(|row| row.model.as_deref())),
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
    ("prompt.source", Text(|row| row.prompt.source.map(CountSource::name))),
    ("prompt.cached", Integer(|row| row.prompt.cached)),
    ("prompt.blocks", List(|row, list| list.extend(row.entry.prompt.blocks.iter().map(|id| id.cast_signed())))),
    ("prompt.parts", Json(|row| (!row.prompt.parts.is_empty()).then(|| json(&row.prompt.parts)))),
    ("session", Text(|row| row.session.as_deref())),
    ("turn", Integer(|row| row.turn.map(u64::from))),
    ("think", Integer(|row| row.think)),
    ("status", Integer(|row| row.status.map(u64::from))),
    ("ending", Text(|row| row.ending.map(Ending::name))),
    ("outcome", Text(|row| row.outcome.map(Outcome::name))),
    ("finish", Text(|row| row.finish.map(FinishReason::name))),
    ("output_tokens", Integer(|row| row.output_tokens)),
    ("output_source", Text(|row| row.output_source.map(CountSource::name))),
    ("reasoning_tokens", Integer(|row| row.reasoning_tokens)),
    ("timing.sent", Integer(|row| row.timing.sent)),
    ("timing.evidence", Integer(|row| row.timing.evidence)),
    ("timing.first_token", Integer(|row| row.timing.first_token)),
    ("timing.first_output", Integer(|row| row.timing.first_output)),
    ("timing.ended", Integer(|row| row.timing.ended)),
    ("timing.first_tokens", Integer(|row| row.timing.first_tokens.map(u64::from))),
    ("gap_ns", List(|row, list| list.extend(row.events.iter().map(|event| event.gap().as_nanos().cast_signed())))),
    ("gap_tokens", List(|row, list| list.extend(row.events.iter().map(|event| event.tokens().map_or(0, i64::from))))),
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
    ("upstream", Text(|row| row.upstream.as_deref())),
    ("class", Json(|row| (!row.class.is_empty()).then(|| json(&row.class)))),
    ("slo.ttft", Integer(|row| row.slo.as_ref()?.ttft)),
    ("slo.tpot", Integer(|row| row.slo.as_ref()?.tpot)),
    ("parent", Text(|row| row.parent.as_deref())),
];

/// Name of the column of a field.
pub(super) fn column_name(path: &str) -> String {
    path.replace('.', "_")
}

pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The sketch of a row's inter-token latencies, as reports compute them.
pub(super) fn gap_sketch(row: &ParquetRow<'_>) -> Vec<(i32, u64)> {
    sketch(row.events.iter().map(|event| -> Gap { event.latency().0 }))
}

/// The schema of the file.
pub(super) fn schema() -> String {
    let column = |(path, column): &(&str, ParquetColumn)| {
        let name = column_name(path);
        match column {
            Time => format!("OPTIONAL INT64 {name} (TIMESTAMP(MICROS,true));"),
            Required(_) => format!("REQUIRED INT64 {name} (INTEGER(64,false));"),
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
