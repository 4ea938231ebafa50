//! Reads one segment: its header, then its rows, on the line of the trace.

use std::ops::Range;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::header::{HeaderError, TraceHeader};
use super::line_reader::{HeldMemory, LineReader};
use super::read_error::{ReadError, TraceDamage};
use super::row::TraceEntry;
use crate::measure::whole_number::as_whole_number;

/// Damage of a segment that is later by name but earlier by the wall clock, because the clock was set back.
const STARTS_BEFORE_FIRST_SEGMENT: &str = "it began before the first segment: rows from before that are put at zero";

/// One open segment.
pub(super) struct SegmentReader {
    pub(super) lines: LineReader,
    /// The last line that was a row.
    pub(super) line: Vec<u8>,
    /// Nanoseconds to add to a time of this segment to get a time of the trace.
    pub(super) shift: i128,
    /// A row before time zero has been reported.
    is_early: bool,
}

impl SegmentReader {
    pub(super) fn open(path: PathBuf, held: HeldMemory) -> Result<Self, ReadError> {
        Ok(Self::new(LineReader::open(path, held)?))
    }

    pub(super) const fn new(lines: LineReader) -> Self {
        Self { lines, line: Vec::new(), shift: 0, is_early: false }
    }

    /// `None` if the header is torn or damaged.
    pub(super) fn header(&mut self, damage: &mut Vec<TraceDamage>) -> Result<Option<TraceHeader>, ReadError> {
        let held = damage.len();
        let line = loop {
            let Some(line) = self.lines.next_line(damage).transpose()? else { return Ok(None) };
            // Editors may add a byte order mark and blank lines.
            let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line).trim_ascii();
            if !line.is_empty() {
                break line.to_vec();
            }
        };
        let path = || self.lines.path.clone();
        match TraceHeader::read(&line) {
            Ok(header) => Ok(Some(header)),
            Err(HeaderError::UnsupportedVersion(version)) => {
                Err(ReadError::UnsupportedVersion { path: path(), version })
            }
            Err(HeaderError::NotAHeader) if damage.len() > held => Ok(None),
            Err(HeaderError::NotAHeader) => Err(ReadError::NotATrace { path: path() }),
            Err(HeaderError::Invalid(error)) => {
                Err(self.invalid_row(format!("its header makes no sense from column {} on", error.column())))
            }
        }
    }

    /// Converts a time of this segment to a time of the trace.
    fn shift_time(&self, at: u64) -> u64 {
        u64::try_from(i128::from(at) + self.shift).unwrap_or_default()
    }

    /// Skips frames outside this range of trace times.
    pub(super) fn set_time_range(&mut self, times: &Range<u64>) {
        let here = |at: u64| match at {
            0 | u64::MAX => at,
            at => u64::try_from((i128::from(at) - self.shift).max(0)).unwrap_or(u64::MAX),
        };
        let times = here(times.start)..here(times.end);
        self.lines.set_time_range(times);
    }

    pub(super) fn row(&mut self, damage: &mut Vec<TraceDamage>) -> Option<Result<TraceEntry, ReadError>> {
        loop {
            let line = match self.lines.next_line(damage)? {
                Ok(line) => line,
                Err(error) => return Some(Err(error)),
            };
            if line.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice::<TraceEntry>(&line).or_else(|error| parse_with_floats(&line).ok_or(error)) {
                // A missing `at` must not be read as 0.
                Ok(entry) if entry.at == 0 && serde_json::from_slice::<ArrivalField>(&line).is_err() => {
                    let (path, number) = (self.lines.path.clone(), self.lines.number);
                    let another = TraceHeader::read(&line).is_ok();
                    let another = another.then_some(ReadError::SecondHeader { path, line: number });
                    return Some(Err(another.unwrap_or_else(|| self.invalid_row("at is missing".to_owned()))));
                }
                Ok(mut entry) => {
                    if i128::from(entry.at) + self.shift < 0 && !self.is_early {
                        self.is_early = true;
                        damage.push(self.lines.damage(STARTS_BEFORE_FIRST_SEGMENT));
                    }
                    entry.at = self.shift_time(entry.at);
                    entry.planned = entry.planned.map(|planned| self.shift_time(planned));
                    entry.correct_abort();
                    self.line = line;
                    return Some(Ok(entry));
                }
                Err(_) if !line.ends_with(b"\n") => {
                    damage.push(self.lines.damage("its last line is torn"));
                    return None;
                }
                // The message from serde may quote the row.
                Err(error) => {
                    return Some(Err(self.invalid_row(format!("it makes no sense from column {} on", error.column()))));
                }
            }
        }
    }

    fn invalid_row(&self, reason: String) -> ReadError {
        ReadError::Line { path: self.lines.path.clone(), line: self.lines.number, reason }
    }
}

/// Accepts whole numbers as data frames write them, `10.0` for 10. The JSON Schema accepts both.
fn parse_with_floats(line: &[u8]) -> Option<TraceEntry> {
    fn to_integers(value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(to_integers),
            Value::Object(fields) => fields.values_mut().for_each(to_integers),
            Value::Number(number) if number.is_f64() => {
                if let Some(number) = number.as_f64().and_then(as_whole_number) {
                    *value = number.into();
                }
            }
            _ => {}
        }
    }
    let mut row = serde_json::from_slice(line).ok()?;
    to_integers(&mut row);
    serde_json::from_value(row).ok()
}

/// The only required field of a row.
#[derive(Deserialize)]
struct ArrivalField {
    #[serde(rename = "at")]
    _at: IgnoredAny,
}
