//! Azure's LLM inference traces of 2023 and 2024: CSV with wall-clock times and token counts.

use std::io::Write as _;

use super::super::entry_fields::EntryFields;
use super::super::{Error, Trace, TraceProblem};
use super::csv::{CsvColumns, CsvSplitter, count};
use super::required_lengths::RequiredLengths;
use super::time_zero::TimeZero;
use super::{
    ConversionLosses, FormatWriter, InputSource, ReadOptions, TraceFormat, TraceOutput, WriteError, has_columns, rows,
    stream,
};
use crate::measure::calendar::{date_from_days, days_from_date};
use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::{PromptShape, TraceEntry};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "azure",
    aliases: &[],
    about: "Azure LLM inference traces 2023 and 2024: CSV, no block ids",
    time_unit: "the time of day, to 100 ns",
    detected_by: "columns `TIMESTAMP`, `ContextTokens` and `GeneratedTokens`",
    keys: &["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
    detect: |source| has_columns(source, &["timestamp", "contexttokens", "generatedtokens"]),
    read: Some(read),
    write: Some(write),
    unsupported_reason: "",
    fields: EntryFields::PROMPT_TOKENS.union(EntryFields::OUTPUT),
    has_wall_clock: true,
    delta_fields: None,
};

const TIME: &str = "TIMESTAMP";
const CONTEXT: &str = "ContextTokens";
const GENERATED: &str = "GeneratedTokens";
const DAY_SECONDS: u64 = 86_400;

fn read(source: InputSource, _: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = ConversionLosses::default();
    let mut header = TraceHeader::new(FORMAT.name);
    let mut sample = stream.sample_lines();
    let file = stream.name.clone();
    let at_top = |problem: TraceProblem| problem.at_line(&file, Some(1));
    let columns = CsvColumns::parse(sample.next().unwrap_or_default()).map_err(at_top)?;
    let find = |name| columns.required(name).map_err(at_top);
    let (time, context, generated) = (find(TIME)?, find(CONTEXT)?, find(GENERATED)?);
    // Time zero is the first row, or an earlier row soon after it.
    let mut splitter = CsvSplitter::new();
    let times = sample.filter_map(|line| unix_nanos(splitter.cells(line).ok()?.get(time)?));
    header.started_unix_ns = times.min();
    let zero = TimeZero::new(header.started_unix_ns, &losses);
    let others = columns.others(&[TIME, CONTEXT, GENERATED]);
    let counted = losses.clone();
    let mut lines = stream.lines();
    if let Some(line) = lines.next_line() {
        line?;
    }
    let entries = rows(lines, move |line| {
        let cells = splitter.cells(line)?;
        others.iter().for_each(|(_, name)| counted.count(name));
        let wall = cells.get(time).and_then(|cell| unix_nanos(cell)).ok_or_else(|| {
            TraceProblem::in_field(TIME, "expected a time as 2023-11-16 18:15:46.6805900 with a year from 1970 on")
        })?;
        Ok(Some(TraceEntry {
            at: zero.since(wall),
            output_tokens: Some(count(&cells, generated, GENERATED)?),
            prompt: PromptShape { tokens: Some(count(&cells, context, CONTEXT)?), ..PromptShape::default() },
            ..TraceEntry::default()
        }))
    });
    Ok(Trace { header, entries, losses })
}

/// Parses `2023-11-16 18:15:46.6805900`, with or without a UTC offset, to nanoseconds since 1970.
pub(super) fn unix_nanos(text: &str) -> Option<u64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.split('-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (time, offset) = match time.find(['+', '-', 'Z']) {
        Some(at) => (&time[..at], &time[at..]),
        None => (time, ""),
    };
    let mut parts = time.splitn(3, ':');
    let (hours, minutes, seconds) = (parts.next()?, parts.next()?, parts.next()?);
    let (hours, minutes): (u64, u64) = (hours.parse().ok()?, minutes.parse().ok()?);
    let (seconds, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let seconds: u64 = seconds.parse().ok()?;
    let digits = fraction.len();
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) || digits > 9 {
        return None;
    }
    if hours > 23 || minutes > 59 || seconds > 60 || date.next().is_some() {
        return None;
    }
    if date_from_days(days_from_date(year, month, day)) != (year, month, day) {
        return None;
    }
    let nanos = if digits == 0 { 0 } else { fraction.parse::<u64>().ok()? * 10_u64.pow(9 - digits as u32) };
    let seconds = days_from_date(year, month, day) * DAY_SECONDS + hours * 3_600 + minutes * 60 + seconds;
    let seconds = match offset.split_at_checked(1) {
        Some(("+", offset)) => seconds.checked_sub(offset_seconds(offset)?)?,
        Some(("-", offset)) => seconds.checked_add(offset_seconds(offset)?)?,
        _ => seconds,
    };
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

/// Parses `01:30`, `0130` or `01` to seconds.
fn offset_seconds(text: &str) -> Option<u64> {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let (hours, minutes) = digits.split_at_checked(2)?;
    let minutes: u64 = if minutes.is_empty() { 0 } else { minutes.parse().ok()? };
    let hours: u64 = hours.parse().ok()?;
    (hours < 24 && minutes < 60).then_some(hours * 3_600 + minutes * 60)
}

struct AzureWriter {
    out: TraceOutput,
    zero: u64,
    header_written: bool,
    lengths: RequiredLengths,
    /// Times that are more precise than the written format.
    truncated_times: u64,
    notes: Vec<String>,
}

fn write(header: &TraceHeader, out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
    let mut notes = Vec::new();
    if header.started_unix_ns.is_none() {
        notes.push("the trace does not state when it began: times start at 1970-01-01".to_owned());
    }
    Ok(Box::new(AzureWriter {
        out,
        zero: header.started_unix_ns.unwrap_or(0),
        header_written: false,
        lengths: RequiredLengths::default(),
        truncated_times: 0,
        notes,
    }))
}

impl AzureWriter {
    fn write_header(&mut self) -> Result<(), WriteError> {
        if !std::mem::replace(&mut self.header_written, true) {
            write!(self.out, "{TIME},{CONTEXT},{GENERATED}\r\n")?;
        }
        Ok(())
    }
}

impl FormatWriter for AzureWriter {
    fn write(&mut self, entry: &TraceEntry) -> Result<(), WriteError> {
        let tokens = self.lengths.input(entry)?;
        self.write_header()?;
        let wall = self.zero.saturating_add(entry.at);
        self.truncated_times += u64::from(!wall.is_multiple_of(100));
        let (seconds, fraction) = (wall / 1_000_000_000, wall % 1_000_000_000 / 100);
        let ((year, month, day), of_day) = (date_from_days(seconds / DAY_SECONDS), seconds % DAY_SECONDS);
        let (hours, minutes, seconds) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        let output = self.lengths.output(entry);
        Ok(write!(
            self.out,
            "{year}-{month:02}-{day:02} {hours:02}:{minutes:02}:{seconds:02}.{fraction:07},{tokens},{output}\r\n"
        )?)
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.write_header()?;
        self.out.flush()?;
        self.notes.extend(self.lengths.notes());
        if self.truncated_times > 0 {
            self.notes.push(format!("{} times were cut to 100 ns, and can be that much earlier", self.truncated_times));
        }
        Ok(self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_hundred_nanoseconds_with_and_without_an_offset() {
        let ns = 1_700_158_546_680_590_000;
        for text in [
            "2023-11-16 18:15:46.6805900",
            "2023-11-16T18:15:46.68059Z",
            "2023-11-16 18:15:46.680590+00:00",
            "2023-11-16 19:45:46.680590+01:30",
            "2023-11-16 10:15:46.680590-08:00",
        ] {
            assert_eq!(unix_nanos(text), Some(ns), "{text}");
        }
        for text in [
            "",
            "2023-11-16",
            "2023-13-16 18:15:46",
            "2023-02-29 18:15:46",
            "0-0-0 0:0:0",
            "2023-11-16 18:15:46.0123456789",
            "x y",
        ] {
            assert_eq!(unix_nanos(text), None, "{text}");
        }
    }

    #[test]
    fn a_day_is_its_number_and_its_number_is_the_day() {
        assert_eq!(
            (days_from_date(1970, 1, 1), days_from_date(2000, 3, 1), days_from_date(2024, 2, 29)),
            (0, 11_017, 19_782)
        );
        for number in (0..200_000).step_by(7) {
            let (year, month, day) = date_from_days(number);
            assert_eq!(days_from_date(year, month, day), number, "{year}-{month}-{day}");
        }
    }
}
