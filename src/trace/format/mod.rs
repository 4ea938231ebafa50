//! The table of formats: one row and one file each.

pub mod azure;
pub mod bailian;
pub mod burstgpt;
mod csv;
pub mod dynamo;
pub mod mooncake;
pub mod native;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod ragpulse;
mod required_lengths;
pub mod servegen;
mod text_writer;
mod time_unit;
pub mod timed_trace;
pub mod turns;
pub mod vcr;
pub mod weka;

use std::io::Write;

use serde::Serialize;

use super::conversion_loss::ConversionLosses;
use super::entry_fields::EntryFields;
use super::error::{Error, TraceProblem};
use super::input::{InputSource, InputStream, NumberedLines};
use super::{Trace, TraceEntries};
use crate::capture::row::{TraceEntry, TraceHeader, TurnContent};

#[cfg(not(feature = "parquet"))]
mod parquet {
    use super::{EntryFields, TraceFormat};

    pub(super) const FORMAT: TraceFormat = TraceFormat {
        name: "parquet",
        aliases: &[],
        about: "Parquet, a column per field of a row; for DuckDB, Spark, ClickHouse, Trino",
        time_unit: "nanoseconds",
        detected_by: "its name",
        detect: |_| false,
        read: None,
        write: None,
        unsupported_reason: "this program was built without the cargo feature `parquet`",
        fields: EntryFields::ALL,
        has_wall_clock: true,
        delta_fields: Some(EntryFields::NONE),
    };
}

/// A format: its name, how it is recognised, what it can hold, how it is read and written.
pub struct TraceFormat {
    /// The name, as a user types it.
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// What it is.
    pub about: &'static str,
    /// What its times are counted in.
    pub time_unit: &'static str,
    /// How it is told from others, in words.
    pub detected_by: &'static str,
    /// Whether this is one.
    pub detect: fn(&InputSource) -> bool,
    /// Reads it.
    pub read: Option<ReadFn>,
    /// Writes it.
    pub write: Option<WriteFn>,
    /// Why it cannot be written, or read.
    pub unsupported_reason: &'static str,
    /// The fields of a request that it has a place for.
    pub fields: EntryFields,
    /// Whether it has one for the wall-clock moment of time zero.
    pub has_wall_clock: bool,
    /// Whether its later turns may hold only what was added, and the fields that it has a place for in such a trace alone.
    pub delta_fields: Option<EntryFields>,
}

impl TraceFormat {
    /// What this format has a place for in a trace with such a header; counts what of the header itself has none.
    fn supported_fields(&self, header: &TraceHeader, lost: &ConversionLosses) -> EntryFields {
        let has_key = header.blocks.as_ref().is_some_and(|blocks| blocks.key.is_some());
        lost.add("header.started_unix_ns", u64::from(header.started_unix_ns.is_some() && !self.has_wall_clock));
        lost.add("header.blocks.key", u64::from(has_key && self.fields != EntryFields::ALL));
        match header.turns {
            TurnContent::Full => self.fields,
            TurnContent::Delta => self.fields.union(self.delta_fields.unwrap_or_default()),
        }
    }
}

type ReadFn = fn(InputSource, &ReadOptions) -> Result<Trace, Error>;
type WriteFn = fn(&TraceHeader, TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem>;

/// Where a trace is written to.
pub type TraceOutput = Box<dyn Write + Send>;

/// What a file cannot tell about itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOptions {
    /// Tokens of a block, where the format leaves it open.
    pub block_size: Option<u32>,
    /// Where chance begins, in a format that is generated from.
    pub seed: u64,
    /// When the rows arrived that are wanted, in nanoseconds; others may be left out by a format that need not read them.
    pub times: Option<(u64, u64)>,
}

/// What a trace is written with.
pub trait FormatWriter {
    /// Writes a request.
    fn write(&mut self, entry: &TraceEntry) -> Result<(), WriteError>;

    /// The fields of this request that it can tell besides those that it has a place for.
    fn derived_fields(&self, _: &TraceEntry) -> EntryFields {
        EntryFields::NONE
    }

    /// Makes prompts so many tokens shorter, for what a chat template adds to each; whether it can.
    fn reserve_overhead(&mut self, _overhead: u64) -> bool {
        false
    }

    /// Ends the file. What has to be known of it is handed back, a sentence each.
    fn finish(self: Box<Self>) -> Result<Vec<String>, WriteError>;
}

/// Why a request was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The request has not what the format needs; the others can be written.
    #[error("{0}")]
    Unrepresentable(&'static str),
    /// Nothing can be written any more.
    #[error("cannot write the trace")]
    Io(#[from] std::io::Error),
}

impl From<serde_json::Error> for WriteError {
    fn from(error: serde_json::Error) -> Self {
        Self::Io(error.into())
    }
}

/// All formats; the first that recognises an input is taken.
pub const FORMATS: &[&TraceFormat] = &[
    &native::FORMAT,
    &dynamo::FORMAT,
    &vcr::FORMAT,
    &ragpulse::FORMAT,
    &bailian::FORMAT,
    &weka::FORMAT,
    &turns::MULTI,
    &turns::SINGLE,
    &timed_trace::FORMAT,
    &mooncake::FORMAT,
    &azure::FORMAT,
    &burstgpt::FORMAT,
    &servegen::FORMAT,
    &parquet::FORMAT,
];

/// The format of that name.
pub fn by_name(name: &str) -> Option<&'static TraceFormat> {
    FORMATS.iter().copied().find(|format| format.name == name || format.aliases.contains(&name))
}

/// The format of an input, by its content.
///
/// # Errors
/// What it is instead, and what to do.
pub fn detect(source: &InputSource) -> Result<&'static TraceFormat, &'static str> {
    FORMATS.iter().copied().find(|format| (format.detect)(source)).ok_or_else(|| match source {
        InputSource::Stream(stream) if stream.sample_lines().next().is_none() => "there is nothing in it",
        InputSource::Stream(_) => {
            "no known format of traces; `streamgauge trace convert --help` lists them, and can be told which it is"
        }
        InputSource::Folder(_) => "a folder with neither a capture nor sessions in it; name one file",
    })
}

/// Whether an input is a stream of JSON objects, one per line, of which the first has those keys and none of the others.
fn has_keys(source: &InputSource, keys: &[&str], but_not: &[&str]) -> bool {
    let InputSource::Stream(stream) = source else { return false };
    stream.sample_lines().next().is_some_and(|line| {
        let known = keys_of(line);
        let has = |key: &&str| known.iter().any(|known| known == key);
        keys.iter().all(has) && !but_not.iter().any(has)
    })
}

/// The keys of a JSON object; none where it is none.
fn keys_of(line: &[u8]) -> Vec<String> {
    let object: Result<std::collections::BTreeMap<String, serde::de::IgnoredAny>, _> = serde_json::from_slice(line);
    object.map(|object| object.into_keys().collect()).unwrap_or_default()
}

/// The columns of a CSV file, where its first line is one of names.
fn has_columns(source: &InputSource, columns: &[&str]) -> bool {
    let InputSource::Stream(stream) = source else { return false };
    stream.sample_lines().next().is_some_and(|line| {
        let known = csv::CsvColumns::parse(line);
        known.is_ok_and(|known| columns.iter().all(|column| known.optional(column).is_some()))
    })
}

/// The stream of a format that is none of folders.
fn stream(source: InputSource, format: &TraceFormat) -> Result<InputStream, Error> {
    match source {
        InputSource::Stream(stream) => Ok(stream),
        InputSource::Folder(path) => Err(TraceProblem::new(format!("is a folder, and {} is a file", format.name))
            .with_remedy("name the file")
            .at_line(&path.display().to_string(), None)),
    }
}

/// Rows of lines: `read` makes a row of a line, or leaves it out.
fn rows<F>(mut lines: NumberedLines, mut read: F) -> TraceEntries
where
    F: FnMut(&[u8]) -> Result<Option<TraceEntry>, TraceProblem> + 'static,
{
    let mut failed = false;
    Box::new(std::iter::from_fn(move || {
        while !failed {
            // A row is large, and moved as seldom as may be.
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

/// Writes a row as a line of JSON.
fn write_line(out: &mut TraceOutput, row: &impl Serialize) -> Result<(), WriteError> {
    serde_json::to_writer(&mut *out, row)?;
    Ok(out.write_all(b"\n")?)
}

/// Nanoseconds in a unit of so many, whole where they are.
#[derive(Clone, Copy, Debug)]
struct ScaledTime {
    nanos: u64,
    unit: u64,
    /// Whether it is written with a fraction, `1.0` for 1.
    decimal: bool,
}

impl ScaledTime {
    const fn millis(nanos: u64) -> Self {
        Self { nanos, unit: 1_000_000, decimal: false }
    }

    const fn secs(nanos: u64) -> Self {
        Self { nanos, unit: 1_000_000_000, decimal: false }
    }

    /// Seconds that a reader knows by their fraction.
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

/// Nanoseconds of a number in that unit.
fn nanos(field: &'static str, number: super::json::LenientNumber, unit: f64) -> Result<u64, TraceProblem> {
    number
        .nanos(unit)
        .ok_or_else(|| TraceProblem::in_field(field, "expected a time from zero on, and within 290 years"))
}

/// Converts what is left of a trace: writes every row, counts what was lost.
pub struct ConversionSummary {
    /// Requests that were written.
    pub written: u64,
    /// What the target has no place for, by name.
    pub losses: ConversionLosses,
    /// What else has to be known.
    pub notes: Vec<String>,
}

/// Writes a trace in a format.
pub fn convert(
    trace: &mut Trace,
    format: &TraceFormat,
    output: TraceOutput,
) -> Result<ConversionSummary, anyhow::Error> {
    convert_with_overhead(trace, format, output, 0)
}

/// Writes a trace in a format, for a server whose chat template adds `overhead` tokens to every prompt.
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
             by all that was said before; `trace convert --whole-turns` makes them whole, and {} can tell",
            format.name,
            able.collect::<Vec<_>>().join(", ")
        ));
    }
    // Our own readers put them in order; of others not all do.
    if unsorted > 0 && format.fields != EntryFields::ALL {
        converted.notes.push(format!(
            "{unsorted} rows come earlier than the row above them, as in what was read: `trace merge` puts them in order"
        ));
    }
    converted.notes.extend(writer.finish()?);
    Ok(converted)
}
