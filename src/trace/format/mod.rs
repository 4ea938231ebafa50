//! The table of trace formats; each format has its own file.

mod api_body;
pub mod azure;
pub mod bailian;
#[cfg(feature = "parquet")]
pub mod baseten;
pub mod burstgpt;
pub mod columns;
mod csv;
pub mod dag_jsonl;
pub mod dynamo;
pub mod mooncake;
pub mod native;
pub mod openai_batch;
pub mod otel_spans;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod ragpulse;
pub mod raw_payload;
mod required_lengths;
pub mod sagemaker;
pub mod servegen;
pub mod sharegpt;
mod text_writer;
mod time_unit;
mod time_zero;
pub mod timed_trace;
pub mod tracelab;
pub mod turns;
pub mod vcr;
pub mod weka;
mod weka_writer;

use std::collections::VecDeque;
use std::io::Write;

use serde::Serialize;

use super::conversion_loss::ConversionLosses;
use super::entry_fields::EntryFields;
use super::error::{Error, TraceProblem};
use super::input::{InputSource, InputStream, NumberedLines};
use super::{Trace, TraceEntries};
use crate::trace_file::header::{TraceHeader, TurnContent};
use crate::trace_file::row::TraceEntry;

#[cfg(not(feature = "parquet"))]
mod parquet {
    use super::{EntryFields, TraceFormat};

    pub(super) const FORMAT: TraceFormat = TraceFormat {
        name: "parquet",
        aliases: &[],
        about: "Parquet, a column per field of a row; for DuckDB, Spark, ClickHouse, Trino",
        time_unit: "nanoseconds",
        detected_by: "its name",
        keys: &[],
        detect: |_| false,
        read: None,
        write: None,
        unsupported_reason: "this program was built without the cargo feature `parquet`",
        fields: EntryFields::ALL,
        has_wall_clock: true,
        delta_fields: Some(EntryFields::NONE),
    };
}

/// A format: name, detection, supported fields, reader and writer.
pub struct TraceFormat {
    /// Name for the command line.
    pub name: &'static str,
    /// Alternative names.
    pub aliases: &'static [&'static str],
    /// Short description.
    pub about: &'static str,
    /// Unit of its times, for display.
    pub time_unit: &'static str,
    /// Explains the detection to users.
    pub detected_by: &'static str,
    /// Keys or columns of its rows, which name the nearest format of an unknown file.
    pub keys: &'static [&'static str],
    /// True if the input has this format.
    pub detect: fn(&InputSource) -> bool,
    /// The reader, if the format can be read.
    pub read: Option<ReadFn>,
    /// The writer, if the format can be written.
    pub write: Option<WriteFn>,
    /// The reason why the format cannot be read or written.
    pub unsupported_reason: &'static str,
    /// Request fields that the format can hold.
    pub fields: EntryFields,
    /// True if the format stores the wall-clock time of time zero.
    pub has_wall_clock: bool,
    /// Fields that the format holds only in traces with delta turns; `None` if it does not support delta turns.
    pub delta_fields: Option<EntryFields>,
}

impl TraceFormat {
    /// Fields supported for a trace with this header. Adds unsupported header fields to `lost`.
    fn supported_fields(&self, header: &TraceHeader, lost: &ConversionLosses) -> EntryFields {
        let has_key = header.blocks.as_ref().is_some_and(|blocks| blocks.key.is_some());
        lost.add("header.started_unix_ns", u64::from(header.started_unix_ns.is_some() && !self.has_wall_clock));
        lost.add("header.sample", u64::from(header.sample.is_some() && self.fields != EntryFields::ALL));
        lost.add("header.simulated", u64::from(header.simulated && self.fields != EntryFields::ALL));
        lost.add("header.blocks.key", u64::from(has_key && self.fields != EntryFields::ALL));
        match header.turns {
            TurnContent::Full => self.fields,
            TurnContent::Delta => self.fields.union(self.delta_fields.unwrap_or_default()),
        }
    }
}

type ReadFn = fn(InputSource, &ReadOptions) -> Result<Trace, Error>;
type WriteFn = fn(&TraceHeader, TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem>;

/// The sink of a written trace.
pub type TraceOutput = Box<dyn Write + Send>;

/// Settings that a file cannot provide itself.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// Tokens per block, for formats that do not define it.
    pub block_size: Option<u32>,
    /// Random seed, for formats that requests are generated from.
    pub seed: u64,
    /// Wanted arrival times in nanoseconds. A format may skip rows outside this range.
    pub times: Option<(u64, u64)>,
    /// Columns of a file of any other format.
    pub columns: Option<columns::ColumnMap>,
}

/// Writes the rows of one trace.
pub trait FormatWriter {
    /// Writes a request.
    fn write(&mut self, entry: &TraceEntry) -> Result<(), WriteError>;

    /// Fields of this request that a reader can derive, in addition to the supported fields.
    fn derived_fields(&self, _: &TraceEntry) -> EntryFields {
        EntryFields::NONE
    }

    /// Shortens prompts by the tokens that a chat template adds to each; false if unsupported.
    fn reserve_overhead(&mut self, _overhead: u64) -> bool {
        false
    }

    /// Completes the file and returns notes for the user, one sentence each.
    fn finish(self: Box<Self>) -> Result<Vec<String>, WriteError>;
}

/// The request was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The request lacks a required field; other requests can still be written.
    #[error("{0}")]
    Unrepresentable(&'static str),
    /// The output failed.
    #[error("cannot write the trace")]
    Io(#[from] std::io::Error),
}

impl From<serde_json::Error> for WriteError {
    fn from(error: serde_json::Error) -> Self {
        Self::Io(error.into())
    }
}

/// All formats in detection order.
pub const FORMATS: &[&TraceFormat] = &[
    &native::FORMAT,
    &dynamo::FORMAT,
    &vcr::FORMAT,
    &ragpulse::FORMAT,
    &bailian::FORMAT,
    &weka::FORMAT,
    &sagemaker::FORMAT,
    &tracelab::FORMAT,
    &otel_spans::FORMAT,
    &openai_batch::FORMAT,
    &sharegpt::FORMAT,
    &dag_jsonl::FORMAT,
    &turns::MULTI,
    &turns::SINGLE,
    &timed_trace::FORMAT,
    &mooncake::FORMAT,
    &raw_payload::FORMAT,
    &azure::FORMAT,
    &burstgpt::FORMAT,
    &servegen::FORMAT,
    #[cfg(feature = "parquet")]
    &baseten::FORMAT,
    &parquet::FORMAT,
    &columns::FORMAT,
];

/// Finds a format by name or alias.
pub fn by_name(name: &str) -> Option<&'static TraceFormat> {
    FORMATS.iter().copied().find(|format| format.name == name || format.aliases.contains(&name))
}

/// Detects the format of an input by its content.
///
/// # Errors
/// If no format matches; the text describes the input, the nearest format and a remedy.
pub fn detect(source: &InputSource) -> Result<&'static TraceFormat, String> {
    FORMATS.iter().copied().find(|format| (format.detect)(source)).ok_or_else(|| match source {
        InputSource::Stream(stream) => match stream.sample_lines().next() {
            None => "there is nothing in it".to_owned(),
            Some(line) => format!(
                "no known format of traces{}; `streamgauge trace convert --help` lists them; it takes one by `--from`, \
                 and any CSV or JSON Lines by `--columns`",
                nearest(line).unwrap_or_default()
            ),
        },
        InputSource::Folder(_) => "a folder with neither a capture nor sessions in it; name one file".to_owned(),
    })
}

/// Names the format that has the greatest share of its keys in a line, and the keys that the line lacks.
fn nearest(line: &[u8]) -> Option<String> {
    let mut known = keys_of(line);
    if known.is_empty() {
        let columns = csv::CsvColumns::parse(line).ok()?;
        let all = FORMATS.iter().flat_map(|format| format.keys);
        known = all.filter(|key| columns.optional(key).is_some()).map(|key| (*key).to_owned()).collect();
    }
    let lacks = |format: &TraceFormat| {
        let lacks = |key: &&&str| !known.iter().any(|known| known == **key);
        format.keys.iter().filter(lacks).map(|key| format!("`{key}`")).collect::<Vec<_>>()
    };
    let shares = FORMATS.iter().map(|format| (format, lacks(format)));
    let near = shares.filter(|(format, lacks)| !lacks.is_empty() && lacks.len() < format.keys.len());
    // Of equal shares, the format with more keys has more in common.
    let (format, lacks) = near.max_by_key(|(format, lacks)| {
        let has = format.keys.len() - lacks.len();
        (1_000 * has / format.keys.len(), has)
    })?;
    Some(format!("; the nearest is {}, but {} is missing", format.name, lacks.join(", ")))
}

/// True if the input has one JSON object per line, and the first has all of `keys` and none of `but_not`.
fn has_keys(source: &InputSource, keys: &[&str], but_not: &[&str]) -> bool {
    let InputSource::Stream(stream) = source else { return false };
    stream.sample_lines().next().is_some_and(|line| {
        let known = keys_of(line);
        let has = |key: &&str| known.iter().any(|known| known == key);
        keys.iter().all(has) && !but_not.iter().any(has)
    })
}

/// Keys of a JSON object; empty if it is none.
fn keys_of(line: &[u8]) -> Vec<String> {
    let object: Result<std::collections::BTreeMap<String, serde::de::IgnoredAny>, _> = serde_json::from_slice(line);
    object.map(|object| object.into_keys().collect()).unwrap_or_default()
}

/// True if the first line of a CSV file names all these columns.
fn has_columns(source: &InputSource, columns: &[&str]) -> bool {
    let InputSource::Stream(stream) = source else { return false };
    stream.sample_lines().next().is_some_and(|line| {
        let known = csv::CsvColumns::parse(line);
        known.is_ok_and(|known| columns.iter().all(|column| known.optional(column).is_some()))
    })
}

/// The stream of a format that does not read folders.
fn stream(source: InputSource, format: &TraceFormat) -> Result<InputStream, Error> {
    match source {
        InputSource::Stream(stream) => Ok(stream),
        InputSource::Folder(path) => Err(TraceProblem::new(format!("is a folder, and {} is a file", format.name))
            .with_remedy("name the file")
            .at_line(&path.display().to_string(), None)),
    }
}

/// Converts lines to rows; `read` returns `None` to skip a line.
fn rows<F>(mut lines: NumberedLines, mut read: F) -> TraceEntries
where
    F: FnMut(&[u8]) -> Result<Option<TraceEntry>, TraceProblem> + 'static,
{
    let mut failed = false;
    Box::new(std::iter::from_fn(move || {
        while !failed {
            // A row is large, so it is moved as rarely as possible.
            let error = match lines.next_line()? {
                Ok(line) => match read(line) {
                    Ok(Some(row)) => return Some(Ok(row)),
                    Ok(None) => continue,
                    Err(problem) => lines.error_at_line(problem),
                },
                Err(error) => error,
            };
            failed = true;
            return Some(Err(error));
        }
        None
    }))
}

/// Converts lines to any number of rows; `read` adds them to the queue.
fn rows_of_lines<F>(mut lines: NumberedLines, mut read: F) -> TraceEntries
where
    F: FnMut(&[u8], &mut VecDeque<TraceEntry>) -> Result<(), TraceProblem> + 'static,
{
    let (mut pending, mut failed) = (VecDeque::new(), false);
    Box::new(std::iter::from_fn(move || {
        while !failed {
            if let Some(entry) = pending.pop_front() {
                return Some(Ok(entry));
            }
            let error = match lines.next_line()? {
                Ok(line) => match read(line, &mut pending) {
                    Ok(()) => continue,
                    Err(problem) => lines.error_at_line(problem),
                },
                Err(error) => error,
            };
            failed = true;
            return Some(Err(error));
        }
        None
    }))
}

fn write_line(out: &mut TraceOutput, row: &impl Serialize) -> Result<(), WriteError> {
    serde_json::to_writer(&mut *out, row)?;
    Ok(out.write_all(b"\n")?)
}

/// Nanoseconds written in another unit; without a fraction if integral.
#[derive(Clone, Copy, Debug)]
struct ScaledTime {
    nanos: u64,
    unit: u64,
    /// True to always write a fraction, `1.0` for 1.
    decimal: bool,
}

impl ScaledTime {
    const fn millis(nanos: u64) -> Self {
        Self { nanos, unit: 1_000_000, decimal: false }
    }

    const fn secs(nanos: u64) -> Self {
        Self { nanos, unit: 1_000_000_000, decimal: false }
    }

    /// Seconds for readers that detect the unit by the fraction.
    const fn decimal_secs(nanos: u64) -> Self {
        Self { nanos, unit: 1_000_000_000, decimal: true }
    }

    fn value(self) -> f64 {
        self.nanos as f64 / self.unit as f64
    }
}

impl Serialize for ScaledTime {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.nanos.is_multiple_of(self.unit) && !self.decimal {
            true => serializer.serialize_u64(self.nanos / self.unit),
            false => serializer.serialize_f64(self.value()),
        }
    }
}

/// Converts a number in this unit to nanoseconds.
fn nanos(field: &'static str, number: super::json_values::LenientNumber, unit: f64) -> Result<u64, TraceProblem> {
    number
        .nanos(unit)
        .ok_or_else(|| TraceProblem::in_field(field, "expected a time from zero on, and within 290 years"))
}

/// Result of a conversion.
pub struct ConversionSummary {
    /// Requests written.
    pub written: u64,
    /// Fields that the target format cannot hold, by name.
    pub losses: ConversionLosses,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Writes the remaining rows of a trace in a format and counts the losses.
pub fn convert(
    trace: &mut Trace,
    format: &TraceFormat,
    output: TraceOutput,
) -> Result<ConversionSummary, anyhow::Error> {
    convert_with_overhead(trace, format, output, 0)
}

/// Like [`convert`], for a server whose chat template adds `overhead` tokens to every prompt.
pub fn convert_with_overhead(
    trace: &mut Trace,
    format: &TraceFormat,
    output: TraceOutput,
    overhead: u64,
) -> Result<ConversionSummary, anyhow::Error> {
    let open = format
        .write
        .ok_or_else(|| anyhow::anyhow!("{} cannot be written: {}", format.name, format.unsupported_reason))?;
    let mut writer = open(&trace.header, output).map_err(|problem| anyhow::anyhow!("{}: {problem}", format.name))?;
    if overhead > 0 && !writer.reserve_overhead(overhead) {
        anyhow::bail!("--prompt-overhead is for mooncake, single_turn and multi_turn, which AIPerf sends as chats");
    }
    let mut converted = ConversionSummary { written: 0, losses: ConversionLosses::default(), notes: Vec::new() };
    let holds = format.supported_fields(&trace.header, &converted.losses);
    let (mut above, mut unsorted) = (0, 0_u64);
    for entry in trace.entries.by_ref() {
        let entry = entry?;
        match writer.write(&entry) {
            Ok(()) => {
                converted.written += 1;
                unsorted += u64::from(entry.at < above);
                above = entry.at;
                EntryFields::of(&entry)
                    .without(holds.union(writer.derived_fields(&entry)))
                    .count_into(&converted.losses);
            }
            Err(WriteError::Unrepresentable(why)) => converted.losses.count(why),
            Err(error) => return Err(error.into()),
        }
    }
    if trace.header.turns == TurnContent::Delta && format.delta_fields.is_none() {
        let able = FORMATS.iter().filter(|format| format.delta_fields.is_some()).map(|format| format.name);
        converted.notes.push(format!(
            "later turns of this trace hold only what was added, and {} takes each for a whole prompt, which is too short \
             by the turns before; `trace convert --whole-turns` makes them whole, and {} can hold them",
            format.name,
            able.collect::<Vec<_>>().join(", ")
        ));
    }
    // The reader of the native format sorts rows; readers of other formats may not.
    if unsorted > 0 && format.fields != EntryFields::ALL {
        converted.notes.push(format!(
            "{unsorted} rows come earlier than the row above them, as in what was read: `trace merge` puts them in order"
        ));
    }
    converted.notes.extend(writer.finish()?);
    Ok(converted)
}
