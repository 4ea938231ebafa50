//! Reads a Parquet file as the JSON Lines of a trace, so that every reader of traces takes it.
//!
//! Memory is bounded by one row group's pages and one batch of rows.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};

use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, List, ListAccessor as _, Row};
use parquet::schema::types::Type;
use serde_json::{Map, Value};

use super::HEADER_KEY;
use super::columns::{COLUMNS, DERIVED, GAPS, ParquetColumn, column_name};
use crate::measure::time::Gap;
use crate::measure::timeline::TokenEvent;
use crate::trace_file::gaps;

/// The lines of one file.
pub struct ParquetLines {
    rows: RowIter<'static>,
    /// Paths of fields and types, by column.
    fields: HashMap<String, (&'static str, bool)>,
    line: Vec<u8>,
    read: usize,
}

impl ParquetLines {
    /// Opens a file, or the bytes of one, and reads its header.
    ///
    /// # Errors
    /// If it is no Parquet file, or this program did not write it.
    pub fn open(file: impl ChunkReader + 'static) -> io::Result<Self> {
        let reader = SerializedFileReader::new(file).map_err(to_io)?;
        let about = reader.metadata().file_metadata();
        let header = about.key_value_metadata().into_iter().flatten().find(|entry| entry.key == HEADER_KEY);
        let Some(header) = header.and_then(|entry| entry.value.clone()) else {
            let problem = "the Parquet file has no trace header; remedy: name a file that Streamgauge has written";
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        };
        let schema = about.schema();
        let columns = schema.get_fields().iter().filter(|field| !DERIVED.contains(&field.name())).cloned().collect();
        let projection = Type::group_type_builder(schema.name()).with_fields(columns).build().map_err(to_io)?;
        let rows = RowIter::from_file_into(Box::new(reader)).project(Some(projection)).map_err(to_io)?;
        let fields = COLUMNS.iter().map(|(path, column)| {
            let is_json = matches!(column, ParquetColumn::Json(_));
            (column_name(path), (*path, is_json))
        });
        Ok(Self { rows, fields: fields.collect(), line: (header + "\n").into_bytes(), read: 0 })
    }

    fn encode(&mut self, row: &Row) -> io::Result<()> {
        let mut entry = Map::new();
        let (mut nanos, mut tokens) = (Vec::new(), Vec::new());
        for (name, field) in row.get_column_iter() {
            match (field, name) {
                (Field::Null, _) => {}
                (Field::ListInternal(list), name) if *name == GAPS[0] => nanos = numbers(list)?,
                (Field::ListInternal(list), name) if *name == GAPS[1] => tokens = numbers(list)?,
                (Field::ListInternal(list), _) if list.len() == 0 => {}
                (field, name) => {
                    // A column of a newer version, or of the user.
                    let Some((path, is_json)) = self.fields.get(name) else { continue };
                    set(&mut entry, path, value(field, *is_json)?);
                }
            }
        }
        if !nanos.is_empty() {
            let events: Vec<TokenEvent> = nanos
                .iter()
                .zip(tokens.iter().copied().chain(std::iter::repeat(0)))
                .map(|(gap, tokens)| {
                    let tokens = u32::try_from(tokens).ok().filter(|tokens| *tokens > 0);
                    TokenEvent::new(Gap::from_nanos(*gap), tokens)
                })
                .collect();
            set(&mut entry, "timing.gaps", gaps::pack(&events).into());
        }
        serde_json::to_writer(&mut self.line, &entry)?;
        self.line.push(b'\n');
        Ok(())
    }
}

/// Sets the field at a path of one or two names.
fn set(entry: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => _ = entry.insert(path.to_owned(), value),
        Some((group, name)) => {
            let group = entry.entry(group).or_insert_with(|| Map::new().into());
            if let Value::Object(group) = group {
                group.insert(name.to_owned(), value);
            }
        }
    }
}

fn value(field: &Field, is_json: bool) -> io::Result<Value> {
    Ok(match field {
        Field::Bool(truth) => (*truth).into(),
        Field::Double(number) => (*number).into(),
        Field::ULong(number) => (*number).into(),
        Field::Long(number) => (*number).into(),
        Field::Str(text) if is_json => serde_json::from_str(text)?,
        Field::Str(text) => text.clone().into(),
        Field::ListInternal(list) => numbers(list)?.into(),
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "a column of another type than a capture's")),
    })
}

fn numbers(list: &List) -> io::Result<Vec<u64>> {
    (0..list.len()).map(|at| list.get_ulong(at).map_err(to_io)).collect()
}

fn to_io(error: ParquetError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl Read for ParquetLines {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for ParquetLines {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.read == self.line.len() {
            (self.read, self.line) = (0, std::mem::take(&mut self.line));
            self.line.clear();
            if let Some(row) = self.rows.next() {
                let row = row.map_err(to_io)?;
                self.encode(&row)?;
            }
        }
        Ok(&self.line[self.read..])
    }

    fn consume(&mut self, bytes: usize) {
        self.read += bytes;
    }
}
