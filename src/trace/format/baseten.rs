//! Baseten's completion traces in Parquet, which AIPerf reads as `baseten_trace`. The columns of texts are not read.

use std::fs::File;
use std::path::Path;

use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::reader::RowIter;
use ::parquet::record::{Field, Row};
use ::parquet::schema::types::Type;
use bytes::Bytes;

use super::super::blocks::mooncake_scheme;
use super::super::session_table::SessionTable;
use super::super::{Error, Trace, TraceProblem};
use super::time_zero::TimeZero;
use super::{ConversionLosses, EntryFields, InputSource, InputStream, ReadOptions, TraceFormat, stream};
use crate::config::StorageUrl;
use crate::measure::record::Outcome;
use crate::trace_file::PARQUET_MAGIC;
use crate::trace_file::header::{BlockScheme, LastBlock, TraceHeader};
use crate::trace_file::row::{PromptShape, TraceEntry};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "baseten",
    aliases: &["baseten_trace"],
    about: "Baseten completion traces, AIPerf baseten_trace: Parquet (the columns of texts are not read)",
    time_unit: "milliseconds of the wall clock",
    detected_by: "a column `timestamp_start_unix_ms`",
    keys: &[TIME, INPUT, OUTPUT],
    detect: |source| {
        let InputSource::Stream(stream) = source else { return false };
        let has_time = |reader: Box<dyn FileReader>| fields(&*reader).iter().any(|field| field.name() == TIME);
        stream.sample.starts_with(PARQUET_MAGIC) && probe(stream).is_some_and(has_time)
    },
    read: Some(read),
    write: None,
    unsupported_reason: "a trace has no texts",
    fields: EntryFields::NONE,
    has_wall_clock: true,
    delta_fields: None,
};

const TIME: &str = "timestamp_start_unix_ms";
const INPUT: &str = "input_tokens";
const OUTPUT: &str = "output_tokens";
const HASHES: &str = "total_hashes";
const SESSIONS: [&str; 2] = ["provided_session_id", "poor_man_session_id"];
const END: &str = "duration_e2e_ms";
const FIRST_TOKEN: &str = "duration_ttft_ms";
const CANCELED: &str = "request_canceled";
const CACHED: &str = "cached_tokens_reference";
const MODEL: &str = "model_name";
const BLOCK_SIZE: &str = "block_size";
/// All columns that are read.
const COLUMNS: [&str; 12] =
    [TIME, INPUT, OUTPUT, HASHES, SESSIONS[0], SESSIONS[1], END, FIRST_TOKEN, CANCELED, CACHED, MODEL, BLOCK_SIZE];
/// Rows in which the earliest time is looked for.
const FIRST_ROWS: usize = 10_000;

fn fields(reader: &dyn FileReader) -> &[std::sync::Arc<Type>] {
    reader.metadata().file_metadata().schema().get_fields()
}

/// A reader for the detection: of a local file, or of an input that the sample has whole.
fn probe(stream: &InputStream) -> Option<Box<dyn FileReader>> {
    let file = File::open(&stream.name).ok().filter(|_| stream.folder.is_some());
    match file {
        Some(file) => Some(Box::new(SerializedFileReader::new(file).ok()?)),
        None => Some(Box::new(SerializedFileReader::new(Bytes::from(stream.sample.clone())).ok()?)),
    }
}

fn read(source: InputSource, options: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let name = stream.name.clone();
    let failed = |error: ParquetError| problem(&error).at_line(&name, None);
    let is_file = stream.folder.is_some() && StorageUrl::of_path(Path::new(&name)).is_none();
    let open: Box<dyn Fn() -> Result<Box<dyn FileReader>, ParquetError>> = if is_file {
        let path = name.clone();
        Box::new(move || Ok(Box::new(SerializedFileReader::new(File::open(&path)?)?)))
    } else {
        let bytes = Bytes::from(stream.read_all()?);
        Box::new(move || Ok(Box::new(SerializedFileReader::new(bytes.clone())?)))
    };
    let losses = ConversionLosses::default();
    let mut header = TraceHeader::new(FORMAT.name);
    let mut size = options.block_size;
    for row in open().and_then(|reader| rows(reader, &[TIME, BLOCK_SIZE])).map_err(failed)?.take(FIRST_ROWS) {
        let row = row.map_err(failed)?;
        let at = number(&row, TIME).and_then(|millis| millis.checked_mul(1_000_000));
        header.started_unix_ns = header.started_unix_ns.into_iter().chain(at).min();
        size = size
            .or_else(|| number(&row, BLOCK_SIZE).and_then(|size| u32::try_from(size).ok()).filter(|size| *size > 0));
    }
    header.blocks = size.map(|size| BlockScheme { last: LastBlock::Dropped, ..mooncake_scheme(size) });
    let zero = TimeZero::new(header.started_unix_ns, &losses);
    let mut turns: SessionTable<u32> = SessionTable::new(&losses);
    let mut rows = open().and_then(|reader| rows(reader, &COLUMNS)).map_err(failed)?;
    let (mut line, mut failed) = (0, false);
    let entries = std::iter::from_fn(move || {
        let row = rows.next().filter(|_| !failed)?;
        line += 1;
        let entry = row.map_err(|error| problem(&error)).and_then(|row| entry(&row, &zero, &mut turns, size.is_some()));
        failed = entry.is_err();
        Some(entry.map_err(|problem| problem.at_line(&name, Some(line))))
    });
    Ok(Trace { header, entries: Box::new(entries), losses })
}

fn problem(_: &ParquetError) -> TraceProblem {
    // The error may quote a value.
    TraceProblem::new("cannot be read as Parquet").with_remedy("is the file damaged, or cut short?")
}

/// The rows of a file with only these columns.
fn rows(reader: Box<dyn FileReader>, columns: &[&str]) -> Result<RowIter<'static>, ParquetError> {
    let selected = fields(&*reader).iter().filter(|field| columns.contains(&field.name())).cloned().collect();
    let name = reader.metadata().file_metadata().schema().name().to_owned();
    let projection = Type::group_type_builder(&name).with_fields(selected).build()?;
    RowIter::from_file_into(reader).project(Some(projection))
}

fn entry(
    row: &Row,
    zero: &TimeZero,
    turns: &mut SessionTable<u32>,
    has_blocks: bool,
) -> Result<TraceEntry, TraceProblem> {
    let required = |name| {
        number(row, name).ok_or_else(|| TraceProblem::in_field(name, "expected a whole number that is not negative"))
    };
    let nanos = |name| number(row, name).and_then(|millis| millis.checked_mul(1_000_000));
    let wall = required(TIME)?.checked_mul(1_000_000);
    let wall = wall.ok_or_else(|| TraceProblem::in_field(TIME, "expected milliseconds since 1970"))?;
    let mut entry = TraceEntry {
        at: zero.since(wall),
        model: text(row, MODEL),
        session: SESSIONS.iter().find_map(|name| text(row, name)),
        outcome: number(row, CANCELED)
            .map(|canceled| if canceled == 0 { Outcome::Success } else { Outcome::Cancelled }),
        output_tokens: Some(required(OUTPUT)?),
        prompt: PromptShape { tokens: Some(required(INPUT)?), cached: number(row, CACHED), ..PromptShape::default() },
        ..TraceEntry::default()
    };
    if let Some(Field::ListInternal(ids)) = column(row, HASHES).filter(|_| has_blocks) {
        entry.prompt.blocks = ids.elements().iter().filter_map(whole).collect();
    }
    entry.timing.first_token = nanos(FIRST_TOKEN);
    entry.timing.ended = nanos(END);
    entry.turn = entry.session.as_deref().map(|session| turns.next_turn(session));
    Ok(entry)
}

fn column<'a>(row: &'a Row, name: &str) -> Option<&'a Field> {
    row.get_column_iter().find(|(column, _)| *column == name).map(|(_, field)| field)
}

fn number(row: &Row, name: &str) -> Option<u64> {
    whole(column(row, name)?)
}

fn whole(field: &Field) -> Option<u64> {
    match field {
        Field::Bool(truth) => Some(u64::from(*truth)),
        Field::Byte(number) => u64::try_from(*number).ok(),
        Field::Short(number) => u64::try_from(*number).ok(),
        Field::Int(number) => u64::try_from(*number).ok(),
        Field::Long(number) => u64::try_from(*number).ok(),
        Field::UByte(number) => Some(u64::from(*number)),
        Field::UShort(number) => Some(u64::from(*number)),
        Field::UInt(number) => Some(u64::from(*number)),
        Field::ULong(number) => Some(*number),
        _ => None,
    }
}

fn text(row: &Row, name: &str) -> Option<String> {
    match column(row, name)? {
        Field::Str(text) => Some(text.clone()),
        other => whole(other).map(|number| number.to_string()),
    }
}
