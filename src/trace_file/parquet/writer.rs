//! Writes rows as Parquet.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::HEADER_KEY;
use super::columns::{AT, COLUMNS, GAPS, ParquetColumn, ParquetRow, column_name, gap_sketch, json, schema};
use crate::trace_file::row::{TraceEntry, TraceHeader};

/// Maximum requests per row group, and maximum ids and gap bytes in one. The writer holds 60 KiB of metadata per group
/// until the end of the file. For a trace of 10 GB, with groups half this size, that exceeded the rows themselves.
const MAX_ROW_GROUP: (usize, usize) = (32 << 10, 4 << 20);

/// Writes one file. Without [`finish`](Self::finish) the file is not readable.
pub struct ParquetWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    started_unix_ns: Option<u64>,
    rows: Vec<ParquetRow>,
    list_items: usize,
}

impl<W: Write + Send> ParquetWriter<W> {
    /// Starts a file.
    ///
    /// # Errors
    /// If the write fails.
    pub fn new(header: &TraceHeader, out: W) -> Result<Self, ParquetError> {
        let about = KeyValue::new(HEADER_KEY.to_owned(), json(header));
        let gaps = GAPS.map(|list| ColumnPath::new([list, "list", "element"].map(str::to_owned).to_vec()));
        let integers =
            COLUMNS.iter().filter(|(_, column)| matches!(column, ParquetColumn::Integer(_) | ParquetColumn::Time));
        let numbers = integers.map(|(path, _)| ColumnPath::new(vec![column_name(path)])).chain(gaps);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by("streamgauge".to_owned())
            .set_key_value_metadata(Some(vec![about]));
        // Numbers hardly repeat, and differ from their neighbours by few bits. A dictionary would hash each one.
        let properties = numbers.fold(properties, |properties, path| {
            properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED)
        });
        let schema = Arc::new(parse_message_type(&schema())?);
        let file = SerializedFileWriter::new(out, schema, Arc::new(properties.build()))?;
        Ok(Self { file, started_unix_ns: header.started_unix_ns, rows: Vec::new(), list_items: 0 })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// If the write fails.
    pub fn write(&mut self, entry: TraceEntry) -> Result<(), ParquetError> {
        self.list_items += entry.prompt.blocks.len() + entry.timing.gaps.as_ref().map_or(0, String::len);
        self.rows.push(entry.into());
        let is_full = self.rows.len() >= MAX_ROW_GROUP.0 || self.list_items >= MAX_ROW_GROUP.1;
        if is_full { self.write_row_group() } else { Ok(()) }
    }

    /// Completes the file and returns what it was written to.
    ///
    /// # Errors
    /// If the write fails.
    pub fn finish(mut self) -> Result<W, ParquetError> {
        self.write_row_group()?;
        self.file.into_inner()
    }

    fn write_row_group(&mut self) -> Result<(), ParquetError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for (path, column) in COLUMNS {
            if matches!(column, ParquetColumn::Sketch) {
                write_sketches(&mut group, &self.rows)?;
                continue;
            }
            let Some(mut writer) = group.next_column()? else { break };
            write_column(writer.untyped(), column, (*path == AT, self.started_unix_ns), &self.rows)?;
            writer.close()?;
        }
        group.close()?;
        self.rows.clear();
        self.list_items = 0;
        Ok(())
    }
}

/// Definition levels of all rows, and the values of rows that have one.
fn levels_and_values<T>(rows: &[ParquetRow], of: impl Fn(&TraceEntry) -> Option<T>) -> (Vec<i16>, Vec<T>) {
    let mut values = Vec::with_capacity(rows.len());
    let levels = rows.iter().map(|row| of(&row.entry).map(|value| values.push(value)).map_or(0, |()| 1)).collect();
    (levels, values)
}

/// Adds the levels of a list. An empty list is one level without a value. In a list, every element after the first has
/// repetition level 1.
fn push_levels(present: &mut Vec<i16>, repeated: &mut Vec<i16>, items: usize) {
    present.extend(std::iter::repeat_n(i16::from(items > 0), items.max(1)));
    repeated.extend((0..items.max(1)).map(|at| i16::from(at > 0)));
}

fn write_column(
    writer: &mut ColumnWriter<'_>,
    column: &ParquetColumn,
    (required, started): (bool, Option<u64>),
    rows: &[ParquetRow],
) -> Result<(), ParquetError> {
    match (writer, column) {
        (ColumnWriter::Int64ColumnWriter(writer), ParquetColumn::Time) => {
            let micros = |row: &TraceEntry| Some((started?.saturating_add(row.at) / 1_000).cast_signed());
            let (levels, values) = levels_and_values(rows, micros);
            writer.write_batch(&values, Some(&levels), None)?;
        }
        (ColumnWriter::Int64ColumnWriter(writer), ParquetColumn::Integer(of)) => {
            // The bits stay unchanged; the schema declares the column unsigned.
            let (levels, values) = levels_and_values(rows, |row| of(row).map(u64::cast_signed));
            writer.write_batch(&values, (!required).then_some(&levels[..]), None)?;
        }
        (ColumnWriter::DoubleColumnWriter(writer), ParquetColumn::Float(of)) => {
            let (levels, values) = levels_and_values(rows, of);
            writer.write_batch(&values, Some(&levels), None)?;
        }
        (ColumnWriter::BoolColumnWriter(writer), ParquetColumn::Bool(of)) => {
            let (levels, values) = levels_and_values(rows, of);
            writer.write_batch(&values, Some(&levels), None)?;
        }
        (ColumnWriter::ByteArrayColumnWriter(writer), ParquetColumn::Text(of) | ParquetColumn::Json(of)) => {
            let (levels, values) =
                levels_and_values(rows, |row| of(row).map(|text| ByteArray::from(text.into_bytes())));
            writer.write_batch(&values, Some(&levels), None)?;
        }
        (ColumnWriter::Int64ColumnWriter(writer), ParquetColumn::List(of)) => {
            let (mut present, mut repeated, mut values) = (Vec::new(), Vec::new(), Vec::new());
            for row in rows {
                let list = of(row);
                push_levels(&mut present, &mut repeated, list.len());
                values.extend(list.into_iter().map(u64::cast_signed));
            }
            writer.write_batch(&values, Some(&present), Some(&repeated))?;
        }
        _ => return Err(ParquetError::General("a column of another type than its schema".to_owned())),
    }
    Ok(())
}

/// Writes the two columns of the map.
fn write_sketches<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    rows: &[ParquetRow],
) -> Result<(), ParquetError> {
    let (mut present, mut repeated, mut buckets, mut counts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let sketch = gap_sketch(row);
        push_levels(&mut present, &mut repeated, sketch.len());
        buckets.extend(sketch.keys());
        counts.extend(sketch.values().map(|count| count.cast_signed()));
    }
    if let Some(mut writer) = group.next_column()? {
        if let ColumnWriter::Int32ColumnWriter(keys) = writer.untyped() {
            keys.write_batch(&buckets, Some(&present), Some(&repeated))?;
        }
        writer.close()?;
    }
    if let Some(mut writer) = group.next_column()? {
        if let ColumnWriter::Int64ColumnWriter(values) = writer.untyped() {
            values.write_batch(&counts, Some(&present), Some(&repeated))?;
        }
        writer.close()?;
    }
    Ok(())
}
