//! Writes rows as Parquet.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::HEADER_KEY;
use super::column_buffer::ColumnBuffer;
use super::columns::{COLUMNS, GAPS, ParquetColumn, ParquetRow, column_name, json, schema};
use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::TraceEntry;

/// Maximum requests per row group, and maximum ids and gap bytes in one. The writer holds 60 KiB of metadata per group
/// until the end of the file. For a trace of 10 GB, with groups half this size, that exceeded the rows themselves.
const MAX_ROW_GROUP: (usize, usize) = (32 << 10, 4 << 20);

/// Writes one file. Without [`finish`](Self::finish) the file is not readable.
pub struct ParquetWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    started_unix_ns: Option<u64>,
    /// The columns of the row group.
    columns: Vec<ColumnBuffer>,
    rows: usize,
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
        let is_integer = |column: &ParquetColumn| {
            matches!(column, ParquetColumn::Integer(_) | ParquetColumn::Required(_) | ParquetColumn::Time)
        };
        let integers = COLUMNS.iter().filter(|(_, column)| is_integer(column));
        let numbers = integers.map(|(path, _)| ColumnPath::new(vec![column_name(path)])).chain(gaps.clone());
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
        // Every group has gaps of all lengths, so no reader skips one for its least or greatest gap.
        let properties = gaps.into_iter().fold(properties, |properties, path| {
            properties.set_column_statistics_enabled(path, EnabledStatistics::None)
        });
        let schema = Arc::new(parse_message_type(&schema())?);
        let file = SerializedFileWriter::new(out, schema, Arc::new(properties.build()))?;
        let columns = COLUMNS.iter().map(|(_, column)| column.into()).collect();
        Ok(Self { file, started_unix_ns: header.started_unix_ns, columns, rows: 0, list_items: 0 })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// If the write fails.
    pub fn write(&mut self, entry: &TraceEntry) -> Result<(), ParquetError> {
        let row = ParquetRow::from(entry);
        self.columns.iter_mut().for_each(|column| column.push(&row, self.started_unix_ns));
        self.rows += 1;
        self.list_items += entry.prompt.blocks.len() + entry.timing.gaps.as_ref().map_or(0, String::len);
        let is_full = self.rows >= MAX_ROW_GROUP.0 || self.list_items >= MAX_ROW_GROUP.1;
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
        if self.rows == 0 {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for column in &mut self.columns {
            column.write(&mut group)?;
        }
        group.close()?;
        self.rows = 0;
        self.list_items = 0;
        Ok(())
    }
}
