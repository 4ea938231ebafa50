//! Parquet out, so that DuckDB, Spark, ClickHouse or Trino take over where one machine ends.
//!
//! # Columns
//! A column per field of a row, named as the field with `_` for the dot: `at`, `model`, `prompt_tokens`,
//! `timing_first_token`, …. All but `at` and the lists may be null, which is unknown; a list is empty then. Times are
//! nanoseconds as in the rows; `ending`, `outcome`, `finish` and the sources are their names; `prompt_blocks` is a list of
//! unsigned ids; gaps come unpacked as the lists `gap_ns` and `gap_tokens` (0: unknown); `prompt_parts` is a text of JSON.
//! The header of the trace stands under `streamgauge_trace` in the file's metadata, as JSON.

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

use super::super::fields::Fields;
use super::{Format, Output, Problem, Source, WriteError, Writer};
use crate::capture::format::{Entry, Header};
use crate::capture::gaps;

pub(super) const FORMAT: Format = Format {
    name: "parquet",
    aliases: &[],
    about: "Parquet, a column per field of a row; for DuckDB, Spark, ClickHouse, Trino",
    times: "nanoseconds",
    by: "its first bytes",
    recognise: |source| matches!(source, Source::Stream(stream) if stream.sample.starts_with(b"PAR1")),
    read: None,
    write: Some(write),
    but: "it is for other programs to take over; keep the trace that it was made of",
    holds: Fields::ALL,
    clock: true,
    delta: Some(Fields::NONE),
};

/// Requests of a row group, and the ids and bytes of gaps that they may have together. What a file says of its groups is
/// held until its end, 60 KiB of each: of a trace of 10 GB, groups of half this size made that more than the rows.
const GROUP: (usize, usize) = (32 << 10, 4 << 20);

/// How a column gets its values.
enum Column {
    Whole(fn(&Entry) -> Option<u64>),
    Real(fn(&Entry) -> Option<f64>),
    Flag(fn(&Entry) -> Option<bool>),
    Text(fn(&Entry) -> Option<String>),
    List(fn(&Entry) -> Vec<u64>),
}

use Column::{Flag, List, Real, Text, Whole};

/// The columns, in order.
const COLUMNS: &[(&str, Column)] = &[
    ("at", Whole(|row| Some(row.at))),
    ("planned", Whole(|row| row.planned)),
    ("route", Text(|row| row.route.clone())),
    ("dialect", Text(|row| row.dialect.clone())),
    ("model", Text(|row| row.model.clone())),
    ("stream", Flag(|row| row.stream)),
    ("params_max_tokens", Whole(|row| row.params.max_tokens)),
    ("params_min_tokens", Whole(|row| row.params.min_tokens)),
    ("params_n", Whole(|row| row.params.n)),
    ("params_temperature", Real(|row| row.params.temperature)),
    ("params_ignore_eos", Flag(|row| row.params.ignore_eos)),
    ("params_logprobs", Flag(|row| row.params.logprobs)),
    ("params_tools", Flag(|row| row.params.tools)),
    ("params_structured", Flag(|row| row.params.structured)),
    ("prompt_bytes", Whole(|row| row.prompt.bytes)),
    ("prompt_tokens", Whole(|row| row.prompt.tokens)),
    ("prompt_source", Text(|row| row.prompt.source.and_then(name))),
    ("prompt_cached", Whole(|row| row.prompt.cached)),
    ("prompt_blocks", List(|row| row.prompt.blocks.clone())),
    ("prompt_parts", Text(|row| (!row.prompt.parts.is_empty()).then(|| json(&row.prompt.parts)))),
    ("session", Text(|row| row.session.clone())),
    ("turn", Whole(|row| row.turn.map(u64::from))),
    ("think", Whole(|row| row.think)),
    ("status", Whole(|row| row.status.map(u64::from))),
    ("ending", Text(|row| row.ending.and_then(name))),
    ("outcome", Text(|row| row.outcome.and_then(name))),
    ("finish", Text(|row| row.finish.and_then(name))),
    ("output_tokens", Whole(|row| row.output_tokens)),
    ("output_source", Text(|row| row.output_source.and_then(name))),
    ("reasoning_tokens", Whole(|row| row.reasoning_tokens)),
    ("timing_sent", Whole(|row| row.timing.sent)),
    ("timing_evidence", Whole(|row| row.timing.evidence)),
    ("timing_first_token", Whole(|row| row.timing.first_token)),
    ("timing_first_output", Whole(|row| row.timing.first_output)),
    ("timing_ended", Whole(|row| row.timing.ended)),
    ("timing_first_tokens", Whole(|row| row.timing.first_tokens.map(u64::from))),
    ("gap_ns", List(|row| gaps(row, |gap| gap.gap().as_nanos()))),
    ("gap_tokens", List(|row| gaps(row, |gap| gap.tokens().map_or(0, u64::from)))),
    ("timing_lost_gaps", Whole(|row| row.timing.lost_gaps)),
    ("abort_tokens", Whole(|row| row.abort_tokens)),
    ("in_flight", Whole(|row| row.in_flight.map(u64::from))),
    ("transfer_connecting", Whole(|row| row.transfer.as_ref()?.connecting)),
    ("transfer_head", Whole(|row| row.transfer.as_ref()?.head)),
    ("transfer_first_byte", Whole(|row| row.transfer.as_ref()?.first_byte)),
    ("transfer_sent", Whole(|row| row.transfer.as_ref()?.sent)),
    ("transfer_received", Whole(|row| row.transfer.as_ref()?.received)),
    ("transfer_reads", Whole(|row| row.transfer.as_ref()?.reads.map(u64::from))),
    ("wanted_input_tokens", Whole(|row| row.wanted.input_tokens)),
    ("wanted_output_tokens", Whole(|row| row.wanted.output_tokens)),
    ("wanted_think", Whole(|row| row.wanted.think)),
    ("wanted_abort_tokens", Whole(|row| row.wanted.abort_tokens)),
    ("wanted_abort_after", Whole(|row| row.wanted.abort_after)),
    ("upstream", Text(|row| row.upstream.clone())),
];

/// The name under which a variant is written in a row.
fn name(variant: impl Serialize) -> Option<String> {
    serde_json::to_value(variant).ok()?.as_str().map(str::to_owned)
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn gaps(row: &Entry, of: fn(crate::measure::timeline::TokenEvent) -> u64) -> Vec<u64> {
    let packed = row.timing.gaps.as_deref().and_then(|gaps| gaps::unpack(gaps).ok());
    packed.unwrap_or_default().into_iter().map(of).collect()
}

fn schema() -> String {
    let column = |(name, column): &(&str, Column)| match column {
        Whole(_) if *name == "at" => format!("REQUIRED INT64 {name} (INTEGER(64,false));"),
        Whole(_) => format!("OPTIONAL INT64 {name} (INTEGER(64,false));"),
        Real(_) => format!("OPTIONAL DOUBLE {name};"),
        Flag(_) => format!("OPTIONAL BOOLEAN {name};"),
        Text(_) => format!("OPTIONAL BYTE_ARRAY {name} (STRING);"),
        List(_) => format!(
            "REQUIRED GROUP {name} (LIST) {{ REPEATED GROUP list {{ REQUIRED INT64 element (INTEGER(64,false)); }} }}"
        ),
    };
    format!("message trace {{ {} }}", COLUMNS.iter().map(column).collect::<String>())
}

struct Table {
    file: SerializedFileWriter<Output>,
    rows: Vec<Entry>,
    ids: usize,
}

fn write(header: &Header, out: Output) -> Result<Box<dyn Writer>, Problem> {
    let failed = |error: ParquetError| Problem::new(error.to_string());
    let about = KeyValue::new("streamgauge_trace".to_owned(), json(header));
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by("streamgauge".to_owned())
        .set_key_value_metadata(Some(vec![about]))
        .build();
    let schema = Arc::new(parse_message_type(&schema()).map_err(failed)?);
    let file = SerializedFileWriter::new(out, schema, Arc::new(properties)).map_err(failed)?;
    Ok(Box::new(Table { file, rows: Vec::new(), ids: 0 }))
}

fn failed(error: ParquetError) -> WriteError {
    WriteError::Io(std::io::Error::other(error))
}

impl Table {
    fn group(&mut self) -> Result<(), ParquetError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for (name, column) in COLUMNS {
            let Some(mut writer) = group.next_column()? else { break };
            fill(writer.untyped(), column, *name == "at", &self.rows)?;
            writer.close()?;
        }
        group.close()?;
        self.rows.clear();
        self.ids = 0;
        Ok(())
    }
}

/// Which rows have a value, and the values of those that have.
fn present<T>(rows: &[Entry], of: impl Fn(&Entry) -> Option<T>) -> (Vec<i16>, Vec<T>) {
    let mut values = Vec::with_capacity(rows.len());
    let levels = rows.iter().map(|row| of(row).map(|value| values.push(value)).map_or(0, |()| 1)).collect();
    (levels, values)
}

fn fill(writer: &mut ColumnWriter<'_>, column: &Column, required: bool, rows: &[Entry]) -> Result<(), ParquetError> {
    match (writer, column) {
        (ColumnWriter::Int64ColumnWriter(writer), Whole(of)) => {
            // Bits as they are: the schema says that they have no sign.
            let (levels, values) = present(rows, |row| of(row).map(u64::cast_signed));
            writer.write_batch(&values, (!required).then_some(&levels[..]), None)?;
        }
        (ColumnWriter::DoubleColumnWriter(writer), Real(of)) => {
            let (levels, values) = present(rows, of);
            writer.write_batch(&values, Some(&levels), None)?;
        }
        (ColumnWriter::BoolColumnWriter(writer), Flag(of)) => {
            let (levels, values) = present(rows, of);
            writer.write_batch(&values, Some(&levels), None)?;
        }
        (ColumnWriter::ByteArrayColumnWriter(writer), Text(of)) => {
            let (levels, values) = present(rows, |row| of(row).map(|text| ByteArray::from(text.into_bytes())));
            writer.write_batch(&values, Some(&levels), None)?;
        }
        (ColumnWriter::Int64ColumnWriter(writer), List(of)) => {
            let (mut present, mut repeated, mut values) = (Vec::new(), Vec::new(), Vec::new());
            for row in rows {
                let list = of(row);
                // An empty list is one level without a value; in a list all but the first go on with it.
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

impl Writer for Table {
    fn write(&mut self, entry: &Entry) -> Result<(), WriteError> {
        self.ids += entry.prompt.blocks.len() + entry.timing.gaps.as_ref().map_or(0, String::len);
        self.rows.push(entry.clone());
        if self.rows.len() >= GROUP.0 || self.ids >= GROUP.1 { self.group().map_err(failed) } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.group().map_err(failed)?;
        self.file.close().map_err(failed)?;
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
        let mut expected: Vec<String> = std::iter::once("at").chain(Fields::ALL.paths()).flat_map(of).collect();
        let mut columns: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
        expected.sort_unstable();
        columns.sort_unstable();
        assert_eq!(columns, expected);
    }
}
