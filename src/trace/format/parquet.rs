//! Parquet output for DuckDB, Spark, ClickHouse, Trino and other engines.
//!
//! # Columns
//! One column per field of a row, named as the field with `_` for the dot: `at`, `model`, `prompt_tokens`,
//! `timing_first_token`, …. All columns except `at` and the lists are nullable; null means unknown, and an unknown list
//! is empty. Times are nanoseconds as in the rows. `ending`, `outcome`, `finish` and the sources are strings;
//! `prompt_blocks` is a list of unsigned ids. Gaps are unpacked to the lists `gap_ns` and `gap_tokens` (0: unknown);
//! `prompt_parts` is JSON text. The file metadata has the trace header as JSON under `streamgauge_trace`.

use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde::Serialize;

use super::super::entry_fields::EntryFields;
use super::{FormatWriter, InputSource, TraceFormat, TraceOutput, TraceProblem, WriteError};
use crate::trace_file::gaps;
use crate::trace_file::row::{TraceEntry, TraceHeader};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "parquet",
    aliases: &[],
    about: "Parquet, a column per field of a row; for DuckDB, Spark, ClickHouse, Trino",
    time_unit: "nanoseconds",
    detected_by: "its first bytes",
    detect: |source| matches!(source, InputSource::Stream(stream) if stream.sample.starts_with(b"PAR1")),
    read: None,
    write: Some(write),
    unsupported_reason: "it is for other programs to take over; keep the trace that it was made of",
    fields: EntryFields::ALL,
    has_wall_clock: true,
    delta_fields: Some(EntryFields::NONE),
};

/// Maximum requests per row group, and maximum ids and gap bytes in one. The writer holds 60 KiB of metadata per group
/// until the end of the file. For a trace of 10 GB, with groups half this size, that exceeded the rows themselves.
const MAX_ROW_GROUP: (usize, usize) = (32 << 10, 4 << 20);

/// Type of a column and the function that extracts its values.
enum ParquetColumn {
    Integer(fn(&TraceEntry) -> Option<u64>),
    Float(fn(&TraceEntry) -> Option<f64>),
    Bool(fn(&TraceEntry) -> Option<bool>),
    Text(fn(&TraceEntry) -> Option<String>),
    List(fn(&TraceEntry) -> Vec<u64>),
}

use ParquetColumn::{Bool, Float, Integer, List, Text};

const COLUMNS: &[(&str, ParquetColumn)] = &[
    ("at", Integer(|row| Some(row.at))),
    ("planned", Integer(|row| row.planned)),
    ("route", Text(|row| row.route.clone())),
    ("dialect", Text(|row| row.dialect.clone())),
    ("model", Text(|row| row.model.clone())),
    ("stream", Bool(|row| row.stream)),
    ("params_max_tokens", Integer(|row| row.params.max_tokens)),
    ("params_min_tokens", Integer(|row| row.params.min_tokens)),
    ("params_n", Integer(|row| row.params.n)),
    ("params_temperature", Float(|row| row.params.temperature)),
    ("params_ignore_eos", Bool(|row| row.params.ignore_eos)),
    ("params_logprobs", Bool(|row| row.params.logprobs)),
    ("params_tools", Bool(|row| row.params.tools)),
    ("params_structured", Bool(|row| row.params.structured)),
    ("prompt_bytes", Integer(|row| row.prompt.bytes)),
    ("prompt_tokens", Integer(|row| row.prompt.tokens)),
    ("prompt_source", Text(|row| row.prompt.source.and_then(name))),
    ("prompt_cached", Integer(|row| row.prompt.cached)),
    ("prompt_blocks", List(|row| row.prompt.blocks.clone())),
    ("prompt_parts", Text(|row| (!row.prompt.parts.is_empty()).then(|| json(&row.prompt.parts)))),
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
    ("timing_sent", Integer(|row| row.timing.sent)),
    ("timing_evidence", Integer(|row| row.timing.evidence)),
    ("timing_first_token", Integer(|row| row.timing.first_token)),
    ("timing_first_output", Integer(|row| row.timing.first_output)),
    ("timing_ended", Integer(|row| row.timing.ended)),
    ("timing_first_tokens", Integer(|row| row.timing.first_tokens.map(u64::from))),
    ("gap_ns", List(|row| gaps(row, |gap| gap.gap().as_nanos()))),
    ("gap_tokens", List(|row| gaps(row, |gap| gap.tokens().map_or(0, u64::from)))),
    ("timing_lost_gaps", Integer(|row| row.timing.lost_gaps)),
    ("abort_tokens", Integer(|row| row.abort_tokens)),
    ("in_flight", Integer(|row| row.in_flight.map(u64::from))),
    ("transfer_connecting", Integer(|row| row.transfer.as_ref()?.connecting)),
    ("transfer_head", Integer(|row| row.transfer.as_ref()?.head)),
    ("transfer_first_byte", Integer(|row| row.transfer.as_ref()?.first_byte)),
    ("transfer_sent", Integer(|row| row.transfer.as_ref()?.sent)),
    ("transfer_received", Integer(|row| row.transfer.as_ref()?.received)),
    ("transfer_reads", Integer(|row| row.transfer.as_ref()?.reads.map(u64::from))),
    ("wanted_input_tokens", Integer(|row| row.wanted.input_tokens)),
    ("wanted_output_tokens", Integer(|row| row.wanted.output_tokens)),
    ("wanted_think", Integer(|row| row.wanted.think)),
    ("wanted_abort_tokens", Integer(|row| row.wanted.abort_tokens)),
    ("wanted_abort_after", Integer(|row| row.wanted.abort_after)),
    ("upstream", Text(|row| row.upstream.clone())),
    ("class", Text(|row| (!row.class.is_empty()).then(|| json(&row.class)))),
    ("slo_ttft", Integer(|row| row.slo.as_ref()?.ttft)),
    ("slo_tpot", Integer(|row| row.slo.as_ref()?.tpot)),
];

/// Serialized name of an enum variant.
fn name(variant: impl Serialize) -> Option<String> {
    serde_json::to_value(variant).ok()?.as_str().map(str::to_owned)
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn gaps(row: &TraceEntry, of: fn(crate::measure::timeline::TokenEvent) -> u64) -> Vec<u64> {
    let packed = row.timing.gaps.as_deref().and_then(|gaps| gaps::unpack(gaps).ok());
    packed.unwrap_or_default().into_iter().map(of).collect()
}

fn schema() -> String {
    let column = |(name, column): &(&str, ParquetColumn)| match column {
        Integer(_) if *name == "at" => format!("REQUIRED INT64 {name} (INTEGER(64,false));"),
        Integer(_) => format!("OPTIONAL INT64 {name} (INTEGER(64,false));"),
        Float(_) => format!("OPTIONAL DOUBLE {name};"),
        Bool(_) => format!("OPTIONAL BOOLEAN {name};"),
        Text(_) => format!("OPTIONAL BYTE_ARRAY {name} (STRING);"),
        List(_) => format!(
            "REQUIRED GROUP {name} (LIST) {{ REPEATED GROUP list {{ REQUIRED INT64 element (INTEGER(64,false)); }} }}"
        ),
    };
    format!("message trace {{ {} }}", COLUMNS.iter().map(column).collect::<String>())
}

struct ParquetWriter {
    file: SerializedFileWriter<TraceOutput>,
    rows: Vec<TraceEntry>,
    list_items: usize,
}

fn write(header: &TraceHeader, out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
    let failed = |error: ParquetError| TraceProblem::new(error.to_string());
    let about = KeyValue::new("streamgauge_trace".to_owned(), json(header));
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by("streamgauge".to_owned())
        .set_key_value_metadata(Some(vec![about]))
        .build();
    let schema = Arc::new(parse_message_type(&schema()).map_err(failed)?);
    let file = SerializedFileWriter::new(out, schema, Arc::new(properties)).map_err(failed)?;
    Ok(Box::new(ParquetWriter { file, rows: Vec::new(), list_items: 0 }))
}

fn to_write_error(error: ParquetError) -> WriteError {
    WriteError::Io(std::io::Error::other(error))
}

impl ParquetWriter {
    fn write_row_group(&mut self) -> Result<(), ParquetError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for (name, column) in COLUMNS {
            let Some(mut writer) = group.next_column()? else { break };
            write_column(writer.untyped(), column, *name == "at", &self.rows)?;
            writer.close()?;
        }
        group.close()?;
        self.rows.clear();
        self.list_items = 0;
        Ok(())
    }
}

/// Definition levels of all rows, and the values of rows that have one.
fn levels_and_values<T>(rows: &[TraceEntry], of: impl Fn(&TraceEntry) -> Option<T>) -> (Vec<i16>, Vec<T>) {
    let mut values = Vec::with_capacity(rows.len());
    let levels = rows.iter().map(|row| of(row).map(|value| values.push(value)).map_or(0, |()| 1)).collect();
    (levels, values)
}

fn write_column(
    writer: &mut ColumnWriter<'_>,
    column: &ParquetColumn,
    required: bool,
    rows: &[TraceEntry],
) -> Result<(), ParquetError> {
    match (writer, column) {
        (ColumnWriter::Int64ColumnWriter(writer), Integer(of)) => {
            // The bits stay unchanged; the schema declares the column unsigned.
            let (levels, values) = levels_and_values(rows, |row| of(row).map(u64::cast_signed));
            writer.write_batch(&values, (!required).then_some(&levels[..]), None)?;
        }
        (ColumnWriter::DoubleColumnWriter(writer), Float(of)) => {
            let (levels, values) = levels_and_values(rows, of);
            writer.write_batch(&values, Some(&levels), None)?;
        }
        (ColumnWriter::BoolColumnWriter(writer), Bool(of)) => {
            let (levels, values) = levels_and_values(rows, of);
            writer.write_batch(&values, Some(&levels), None)?;
        }
        (ColumnWriter::ByteArrayColumnWriter(writer), Text(of)) => {
            let (levels, values) =
                levels_and_values(rows, |row| of(row).map(|text| ByteArray::from(text.into_bytes())));
            writer.write_batch(&values, Some(&levels), None)?;
        }
        (ColumnWriter::Int64ColumnWriter(writer), List(of)) => {
            let (mut present, mut repeated, mut values) = (Vec::new(), Vec::new(), Vec::new());
            for row in rows {
                let list = of(row);
                // An empty list is one level without a value. In a list, every element after the first has repetition
                // level 1.
                present.extend(std::iter::repeat_n(i16::from(!list.is_empty()), list.len().max(1)));
                repeated.extend((0..list.len().max(1)).map(|at| i16::from(at > 0)));
                values.extend(list.into_iter().map(u64::cast_signed));
            }
            writer.write_batch(&values, Some(&present), Some(&repeated))?;
        }
        _ => return Err(ParquetError::General("a column of another type than its schema".to_owned())),
    }
    Ok(())
}

impl FormatWriter for ParquetWriter {
    fn write(&mut self, entry: &TraceEntry) -> Result<(), WriteError> {
        self.list_items += entry.prompt.blocks.len() + entry.timing.gaps.as_ref().map_or(0, String::len);
        self.rows.push(entry.clone());
        if self.rows.len() >= MAX_ROW_GROUP.0 || self.list_items >= MAX_ROW_GROUP.1 {
            self.write_row_group().map_err(to_write_error)
        } else {
            Ok(())
        }
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.write_row_group().map_err(to_write_error)?;
        self.file.close().map_err(to_write_error)?;
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_row_is_a_column_under_its_name() {
        let of = |path: &str| match path {
            "timing.gaps" => vec!["gap_ns".to_owned(), "gap_tokens".to_owned()],
            path => vec![path.replace('.', "_")],
        };
        let mut expected: Vec<String> = std::iter::once("at").chain(EntryFields::ALL.paths()).flat_map(of).collect();
        let mut columns: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
        expected.sort_unstable();
        columns.sort_unstable();
        assert_eq!(columns, expected);
    }
}
