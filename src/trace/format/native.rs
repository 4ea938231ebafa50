//! The native format, written by the proxy's capture.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::entry_fields::EntryFields;
use super::super::{Error, Trace, TraceProblem};
use super::{ConversionLosses, FormatWriter, InputSource, ReadOptions, TraceFormat, TraceOutput, WriteError, has_keys};
use crate::trace_file::header::TraceHeader;
use crate::trace_file::reader::{ReadError, TraceReader};
use crate::trace_file::row::TraceEntry;
use crate::trace_file::segment_list::instance_of;

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "streamgauge",
    aliases: &[],
    about: "our own: everything below, and everything that a capture knows",
    time_unit: "nanoseconds",
    detected_by: "a first row with `streamgauge_trace`",
    keys: &[],
    detect: |source| match source {
        InputSource::Folder(path) => TraceReader::open(path).is_ok(),
        InputSource::Stream(_) => has_keys(source, &["streamgauge_trace"], &[]),
    },
    read: Some(read),
    write: Some(write),
    unsupported_reason: "",
    fields: EntryFields::ALL,
    has_wall_clock: true,
    delta_fields: Some(EntryFields::NONE),
};

/// Bytes of the first rows that are searched for unknown fields, from a newer version or a misspelled name.
const UNKNOWN_FIELDS_SAMPLE_BYTES: usize = 1 << 20;

pub(super) fn read(source: InputSource, options: &ReadOptions) -> Result<Trace, Error> {
    // Frames are read through their path, so that the reader continues after a damaged frame. Other inputs are read as
    // streams.
    let (path, reader) = match source {
        InputSource::Folder(path) => (path.clone(), TraceReader::open(&path)),
        InputSource::Stream(stream) => {
            let path = PathBuf::from(&stream.name);
            let reader = match stream.in_frames && stream.folder.is_some() {
                true => TraceReader::open(&path),
                false => TraceReader::from_stream(&path, stream.into_reader()),
            };
            (path, reader)
        }
    };
    read_rows(&path, reader, options)
}

/// Reads the segments of one of so many instances; `path` appears only in messages.
pub fn read_segments(path: &Path, segments: Vec<PathBuf>, instances: usize) -> Result<Trace, Error> {
    read_rows(path, TraceReader::of_segments(path, segments, instances), &ReadOptions::default())
}

/// Reads the segments of several instances in one order of time, with the memory of one trace. Servers are named after
/// their instances; `path` appears only in messages.
pub fn read_instances(path: &Path, segments: Vec<PathBuf>) -> Result<Trace, Error> {
    let reader = TraceReader::of_segments(path, segments, 1);
    read_adapted_rows(path, reader, &ReadOptions::default(), |reader, entry| {
        if let Some(instance) = reader.last_segment().and_then(instance_of) {
            entry.name_server(instance);
        }
    })
}

/// Reads the rows of our own trace; `path` appears only in messages.
pub(super) fn read_rows(
    path: &Path,
    reader: Result<TraceReader, ReadError>,
    options: &ReadOptions,
) -> Result<Trace, Error> {
    read_adapted_rows(path, reader, options, |_, _| {})
}

fn read_adapted_rows(
    path: &Path,
    reader: Result<TraceReader, ReadError>,
    options: &ReadOptions,
    adapt: impl Fn(&TraceReader, &mut TraceEntry) + Send + 'static,
) -> Result<Trace, Error> {
    let losses = ConversionLosses::default();
    let file = path.display().to_string();
    let mut reader = reader.map_err(|error| to_trace_error(error, &file))?;
    let header = reader.header().clone();
    if let Some((from, to)) = options.times {
        reader.set_time_range(from..to);
    }
    let (lost, mut failing) = (losses.clone(), false);
    let (mut damaged, mut looked_at) = (0, 0);
    let entries = std::iter::from_fn(move || {
        let mut row = if failing { None } else { reader.next() };
        for damage in &reader.damage()[damaged..] {
            lost.count(&damage.what);
        }
        damaged = reader.damage().len();
        if let Some(Ok(row)) = row.as_ref().filter(|_| looked_at < UNKNOWN_FIELDS_SAMPLE_BYTES) {
            looked_at += reader.last_line().len();
            let line = serde_json::from_slice(reader.last_line()).unwrap_or_default();
            count_unknown(&line, serde_json::to_value(row).ok().as_ref(), "", &lost);
        }
        failing = row.as_ref().is_some_and(Result::is_err);
        if let Some(Ok(row)) = &mut row {
            adapt(&reader, row);
        }
        row.map(|row| row.map_err(|error| to_trace_error(error, &file)))
    });
    Ok(Trace { header, entries: Box::new(entries), losses })
}

/// Counts values of a line that are missing in the row parsed from it.
fn count_unknown(line: &Value, row: Option<&Value>, path: &str, losses: &ConversionLosses) {
    match (line, row) {
        (Value::Object(fields), _) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                count_unknown(value, row.and_then(|row| row.get(name)), &path, losses);
            }
        }
        (Value::Array(line), Some(Value::Array(row))) => {
            line.iter().zip(row).for_each(|(line, row)| count_unknown(line, Some(row), path, losses));
        }
        // A row omits empty values.
        (Value::Null, _) | (_, Some(_)) => {}
        (Value::Array(list), None) if list.is_empty() => {}
        // The reader drops the abort of a client that received its complete reply.
        _ if path == "abort_tokens" => {}
        _ => losses.count(&format!("{path}, as far as the first rows have it")),
    }
}

/// Converts an error of the trace reader; the location becomes a prefix, as in other formats.
fn to_trace_error(error: ReadError, file: &str) -> Error {
    match error {
        ReadError::Line { path, line, reason } => TraceProblem::new(format!("not a row of a trace: {reason}"))
            .with_remedy("take the line out, or write the trace again")
            .at_line(&path.display().to_string(), Some(line)),
        other => {
            let what = other.to_string();
            // Most messages already begin with the file name.
            TraceProblem::new(what.strip_prefix(&format!("{file} ")).unwrap_or(&what)).at_line(file, None)
        }
    }
}

struct NativeWriter(TraceOutput);

fn write(header: &TraceHeader, mut out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
    super::write_line(&mut out, header).map_err(|error| TraceProblem::new(error.to_string()))?;
    Ok(Box::new(NativeWriter(out)))
}

impl FormatWriter for NativeWriter {
    fn write(&mut self, entry: &TraceEntry) -> Result<(), WriteError> {
        super::write_line(&mut self.0, entry)
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.0.flush()?;
        Ok(Vec::new())
    }
}
