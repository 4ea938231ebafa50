//! Any CSV or JSON Lines, by the names of its columns.

use std::borrow::Cow;
use std::str::FromStr;

use serde_json::{Map, Value};

use super::super::json_values::LenientNumber;
use super::super::session_table::SessionTable;
use super::super::{Error, Trace, TraceProblem};
use super::azure::unix_nanos;
use super::csv::{CsvColumns, CsvSplitter};
use super::time_zero::TimeZero;
use super::{ConversionLosses, EntryFields, InputSource, ReadOptions, TraceFormat, nanos, rows, stream};
use crate::measure::whole_number::as_whole_number;
use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::{PromptShape, TraceEntry};

/// The format.
pub const FORMAT: TraceFormat = TraceFormat {
    name: "columns",
    aliases: &[],
    about: "any CSV with a line of names, or JSON Lines, by --columns",
    time_unit: "seconds, or the unit that --columns names, or the wall clock",
    detected_by: "--columns",
    keys: &[],
    detect: |_| false,
    read: Some(read),
    write: None,
    unsupported_reason: "name one of the other formats",
    fields: EntryFields::NONE,
    has_wall_clock: true,
    delta_fields: None,
};

/// A field that a column can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnField {
    Time,
    Input,
    Output,
    Cached,
    Ttft,
    Duration,
    Model,
    Session,
}

impl ColumnField {
    const ALL: [(&'static str, Self); 8] = [
        ("time", Self::Time),
        ("input", Self::Input),
        ("output", Self::Output),
        ("cached", Self::Cached),
        ("ttft", Self::Ttft),
        ("duration", Self::Duration),
        ("model", Self::Model),
        ("session", Self::Session),
    ];

    const fn is_time(self) -> bool {
        matches!(self, Self::Time | Self::Ttft | Self::Duration)
    }
}

/// Units of times, in nanoseconds.
const UNITS: [(&str, f64); 4] = [("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)];
/// Times from 2001-09-09 on are of the wall clock.
const FIRST_WALL_CLOCK: u64 = 1_000_000_000_000_000_000;

/// The columns of a file: `time=ts:ms,input=prompt_tokens`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnMap(Vec<(ColumnField, String, f64)>);

impl FromStr for ColumnMap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut columns = Self::default();
        for part in text.split(',') {
            let (field, name) =
                part.split_once('=').ok_or("expected FIELD=COLUMN, as in time=ts,input=prompt_tokens")?;
            let known = || ColumnField::ALL.map(|(name, _)| name).join(", ");
            let (_, field) = ColumnField::ALL
                .into_iter()
                .find(|(name, _)| *name == field.trim())
                .ok_or_else(|| format!("no such field; there are {}", known()))?;
            if columns.0.iter().any(|(other, ..)| *other == field) {
                return Err("a field is named twice".to_owned());
            }
            let unit = |name: &str| UNITS.into_iter().find(|(unit, _)| *unit == name).map(|(_, nanos)| nanos);
            let (name, unit) = match name.rsplit_once(':').and_then(|(column, name)| Some((column, unit(name)?))) {
                Some((column, unit)) if field.is_time() => (column, unit),
                _ => (name, 1e9),
            };
            columns.0.push((field, name.to_owned(), unit));
        }
        for needed in [ColumnField::Time, ColumnField::Input] {
            if columns.of(needed).is_none() {
                return Err("time and input are required, as in time=ts,input=prompt_tokens".to_owned());
            }
        }
        Ok(columns)
    }
}

impl ColumnMap {
    fn of(&self, field: ColumnField) -> Option<(&str, f64)> {
        self.0.iter().find(|(other, ..)| *other == field).map(|(_, name, unit)| (name.as_str(), *unit))
    }

    /// A cell; `None` if it is empty.
    fn cell<'a>(&self, field: ColumnField, cells: &'a RowCells<'_>) -> Option<Cow<'a, str>> {
        cells.cell(self.of(field)?.0).filter(|cell| !cell.is_empty())
    }

    fn problem(&self, field: ColumnField, what: &str) -> TraceProblem {
        TraceProblem::in_field(self.of(field).map_or("", |(name, _)| name), what)
            .with_remedy("check the name and the unit in --columns")
    }

    fn count(&self, field: ColumnField, cells: &RowCells<'_>) -> Result<Option<u64>, TraceProblem> {
        let Some(cell) = self.cell(field, cells) else { return Ok(None) };
        let count = cell.parse().ok().or_else(|| as_whole_number(cell.parse().ok()?));
        count.map(Some).ok_or_else(|| self.problem(field, "expected a whole number that is not negative"))
    }

    fn nanos(&self, field: ColumnField, cells: &RowCells<'_>) -> Result<Option<u64>, TraceProblem> {
        let Some((cell, (_, unit))) = self.cell(field, cells).zip(self.of(field)) else { return Ok(None) };
        // Whole nanoseconds since 1970 do not fit into a float.
        let exact = cell.parse::<u64>().ok().and_then(|number| number.checked_mul(unit as u64));
        let number = || cell.parse().ok().and_then(|number: f64| nanos("", LenientNumber(number), unit).ok());
        let text = || unix_nanos(&cell).filter(|_| field == ColumnField::Time);
        let time = exact.filter(|nanos| *nanos < i64::MAX as u64).or_else(number).or_else(text);
        time.map(Some)
            .ok_or_else(|| self.problem(field, "expected a time from zero on, as a number or as 2026-04-29T00:03:18Z"))
    }
}

/// One row.
enum RowCells<'a> {
    Csv(&'a CsvColumns, Vec<&'a str>),
    Json(Map<String, Value>),
}

impl RowCells<'_> {
    fn cell(&self, name: &str) -> Option<Cow<'_, str>> {
        match self {
            Self::Csv(columns, cells) => cells.get(columns.optional(name)?).map(|cell| Cow::Borrowed(*cell)),
            Self::Json(object) => {
                let value = match (object.get(name), name.split_once('.')) {
                    (Some(value), _) => value,
                    // A name such as `usage.prompt_tokens` leads into an object.
                    (None, Some((outer, inner))) => object.get(outer)?.get(inner)?,
                    (None, None) => return None,
                };
                match value {
                    Value::String(text) => Some(Cow::Borrowed(text)),
                    Value::Number(number) => Some(Cow::Owned(number.to_string())),
                    _ => None,
                }
            }
        }
    }
}

/// Reads rows of either kind.
struct CellReader {
    columns: Option<CsvColumns>,
    splitter: CsvSplitter,
}

impl CellReader {
    fn cells<'a>(&'a mut self, line: &'a [u8]) -> Result<RowCells<'a>, TraceProblem> {
        match &self.columns {
            Some(columns) => Ok(RowCells::Csv(columns, self.splitter.cells(line)?)),
            None => serde_json::from_slice(line).map(RowCells::Json).map_err(|error| {
                TraceProblem::new(format!("no JSON object, at column {}", error.column()))
                    .with_remedy("is the file damaged there, or cut short?")
            }),
        }
    }
}

fn read(source: InputSource, options: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let file = stream.name.clone();
    let Some(map) = options.columns.clone() else {
        return Err(TraceProblem::new("the columns have no names")
            .with_remedy("name them, as in --columns time=ts,input=prompt_tokens,output=output_tokens")
            .at_line(&file, None));
    };
    let losses = ConversionLosses::default();
    let first = stream.sample_lines().next().unwrap_or_default();
    let columns = (!first.starts_with(b"{")).then(|| CsvColumns::parse(first)).transpose();
    let columns = columns.map_err(|problem| problem.at_line(&file, Some(1)))?;
    if let Some(columns) = &columns {
        for (_, name, _) in &map.0 {
            columns.required(name).map_err(|problem| problem.at_line(&file, Some(1)))?;
        }
    }
    let is_csv = columns.is_some();
    let mut reader = CellReader { columns, splitter: CsvSplitter::new() };
    let mut earliest: Option<u64> = None;
    for line in stream.sample_lines().skip(usize::from(is_csv)) {
        let cells = reader.cells(line).ok();
        let at = cells.and_then(|cells| map.nanos(ColumnField::Time, &cells).ok().flatten());
        earliest = earliest.into_iter().chain(at).min();
    }
    let mut header = TraceHeader::new(FORMAT.name);
    header.started_unix_ns = earliest.filter(|at| *at >= FIRST_WALL_CLOCK);
    let zero = TimeZero::new(header.started_unix_ns, &losses);
    let mut turns: SessionTable<u32> = SessionTable::new(&losses);
    let mut lines = stream.lines();
    if is_csv && let Some(names) = lines.next_line() {
        names?;
    }
    let entries = rows(lines, move |line| {
        let cells = reader.cells(line)?;
        let missing = |field| map.problem(field, "is missing");
        let at = map.nanos(ColumnField::Time, &cells)?.ok_or_else(|| missing(ColumnField::Time))?;
        let input = map.count(ColumnField::Input, &cells)?.ok_or_else(|| missing(ColumnField::Input))?;
        let text = |field| map.cell(field, &cells).map(Cow::into_owned);
        let mut entry = TraceEntry {
            at: zero.since(at),
            model: text(ColumnField::Model),
            session: text(ColumnField::Session),
            output_tokens: map.count(ColumnField::Output, &cells)?,
            prompt: PromptShape {
                tokens: Some(input),
                cached: map.count(ColumnField::Cached, &cells)?,
                ..PromptShape::default()
            },
            ..TraceEntry::default()
        };
        entry.timing.first_token = map.nanos(ColumnField::Ttft, &cells)?;
        entry.timing.ended = map.nanos(ColumnField::Duration, &cells)?;
        entry.turn = entry.session.as_deref().map(|session| turns.next_turn(session));
        Ok(Some(entry))
    });
    Ok(Trace { header, entries, losses })
}
