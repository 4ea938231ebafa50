//! Values of one column of a row group. Pure until it is written.
//!
//! Each row is read once, for all its columns. Columns that read all rows one after the other would load each row from
//! memory as often as there are columns.

use std::io::Write;

use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedRowGroupWriter;

use super::columns::{ParquetColumn, ParquetRow, gap_sketch};
use crate::trace_file::row::TraceEntry;

/// The values of one physical column, and the levels that place them in their rows.
pub(super) struct LeafBuffer<T: DataType> {
    /// 1 where a value is; empty if every row must have one.
    definition_levels: Vec<i16>,
    /// 1 for each value of a list after its first; empty outside of lists.
    repetition_levels: Vec<i16>,
    values: Vec<T::T>,
}

impl<T: DataType> Default for LeafBuffer<T> {
    fn default() -> Self {
        Self { definition_levels: Vec::new(), repetition_levels: Vec::new(), values: Vec::new() }
    }
}

impl<T: DataType> LeafBuffer<T> {
    fn push(&mut self, value: Option<T::T>) {
        self.definition_levels.push(i16::from(value.is_some()));
        self.values.extend(value);
    }

    /// Appends a list, which `extend` adds to the values. An empty list is one level without a value.
    fn push_list(&mut self, extend: impl FnOnce(&mut Vec<T::T>)) {
        let before = self.values.len();
        extend(&mut self.values);
        let items = self.values.len() - before;
        self.definition_levels.extend(std::iter::repeat_n(i16::from(items > 0), items.max(1)));
        self.repetition_levels.extend((0..items.max(1)).map(|at| i16::from(at > 0)));
    }

    /// Writes the next column of the group, and empties the buffer.
    fn write<W: Write + Send>(&mut self, group: &mut SerializedRowGroupWriter<'_, W>) -> Result<(), ParquetError> {
        let problem = || ParquetError::General("a column of another type than its schema".to_owned());
        let mut writer = group.next_column()?.ok_or_else(problem)?;
        let typed = T::get_column_writer_mut(writer.untyped()).ok_or_else(problem)?;
        typed.write_batch(&self.values, non_empty(&self.definition_levels), non_empty(&self.repetition_levels))?;
        writer.close()?;
        self.definition_levels.clear();
        self.repetition_levels.clear();
        self.values.clear();
        Ok(())
    }
}

/// The levels, if the column has any.
fn non_empty(levels: &[i16]) -> Option<&[i16]> {
    (!levels.is_empty()).then_some(levels)
}

impl LeafBuffer<ByteArrayType> {
    fn push_text(&mut self, text: Option<&str>) {
        // Most rows have the text of the row before, and its clone allocates nothing.
        let shared = |text: &str| self.values.last().filter(|last| last.data() == text.as_bytes()).cloned();
        let value = text.map(|text| shared(text).unwrap_or_else(|| ByteArray::from(text)));
        self.push(value);
    }
}

/// The values of one column, and the function that extracts them from a row.
pub(super) enum ColumnBuffer {
    Time(LeafBuffer<Int64Type>),
    Required(fn(&TraceEntry) -> u64, LeafBuffer<Int64Type>),
    Integer(fn(&TraceEntry) -> Option<u64>, LeafBuffer<Int64Type>),
    Float(fn(&TraceEntry) -> Option<f64>, LeafBuffer<DoubleType>),
    Bool(fn(&TraceEntry) -> Option<bool>, LeafBuffer<BoolType>),
    Text(fn(&TraceEntry) -> Option<&str>, LeafBuffer<ByteArrayType>),
    Json(fn(&TraceEntry) -> Option<String>, LeafBuffer<ByteArrayType>),
    List(fn(&ParquetRow<'_>, &mut Vec<i64>), LeafBuffer<Int64Type>),
    /// Keys and values of the map.
    Sketch(LeafBuffer<Int32Type>, LeafBuffer<Int64Type>),
}

impl From<&ParquetColumn> for ColumnBuffer {
    fn from(column: &ParquetColumn) -> Self {
        match column {
            ParquetColumn::Time => Self::Time(LeafBuffer::default()),
            ParquetColumn::Required(of) => Self::Required(*of, LeafBuffer::default()),
            ParquetColumn::Integer(of) => Self::Integer(*of, LeafBuffer::default()),
            ParquetColumn::Float(of) => Self::Float(*of, LeafBuffer::default()),
            ParquetColumn::Bool(of) => Self::Bool(*of, LeafBuffer::default()),
            ParquetColumn::Text(of) => Self::Text(*of, LeafBuffer::default()),
            ParquetColumn::Json(of) => Self::Json(*of, LeafBuffer::default()),
            ParquetColumn::List(extend) => Self::List(*extend, LeafBuffer::default()),
            ParquetColumn::Sketch => Self::Sketch(LeafBuffer::default(), LeafBuffer::default()),
        }
    }
}

impl ColumnBuffer {
    /// Adds a row of a trace that started at `started_unix_ns`, if that is known.
    pub(super) fn push(&mut self, row: &ParquetRow<'_>, started_unix_ns: Option<u64>) {
        let entry = row.entry;
        match self {
            Self::Time(leaf) => {
                let micros = |started: u64| (started.saturating_add(entry.at) / 1_000).cast_signed();
                leaf.push(started_unix_ns.map(micros));
            }
            // The bits stay unchanged; the schema declares the column unsigned.
            Self::Required(of, leaf) => leaf.values.push(of(entry).cast_signed()),
            Self::Integer(of, leaf) => leaf.push(of(entry).map(u64::cast_signed)),
            Self::Float(of, leaf) => leaf.push(of(entry)),
            Self::Bool(of, leaf) => leaf.push(of(entry)),
            Self::Text(of, leaf) => leaf.push_text(of(entry)),
            Self::Json(of, leaf) => leaf.push_text(of(entry).as_deref()),
            Self::List(extend, leaf) => leaf.push_list(|list| extend(row, list)),
            Self::Sketch(buckets, counts) => {
                let sketch = gap_sketch(row);
                buckets.push_list(|list| list.extend(sketch.iter().map(|(bucket, _)| *bucket)));
                counts.push_list(|list| list.extend(sketch.iter().map(|(_, count)| count.cast_signed())));
            }
        }
    }

    /// Writes the next column of the group, two for the sketch, and empties the buffer.
    ///
    /// # Errors
    /// If the write fails.
    pub(super) fn write<W: Write + Send>(
        &mut self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> Result<(), ParquetError> {
        match self {
            Self::Time(leaf) | Self::Required(_, leaf) | Self::Integer(_, leaf) | Self::List(_, leaf) => {
                leaf.write(group)
            }
            Self::Float(_, leaf) => leaf.write(group),
            Self::Bool(_, leaf) => leaf.write(group),
            Self::Text(_, leaf) | Self::Json(_, leaf) => leaf.write(group),
            Self::Sketch(buckets, counts) => {
                buckets.write(group)?;
                counts.write(group)
            }
        }
    }
}
