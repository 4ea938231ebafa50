//! Our own format: what the proxy's capture writes.

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::Value;

use super::super::fields::Fields;
use super::super::{Error, Problem, Trace};
use super::{Format, Losses, Options, Output, Source, WriteError, Writer, has_keys};
use crate::capture::format::{Entry, Header};
use crate::capture::reader::{ReadError, Reader};

pub(super) const FORMAT: Format = Format {
    name: "streamgauge",
    aliases: &[],
    about: "our own: everything below, and everything that a capture knows",
    times: "nanoseconds",
    by: "a first row with `streamgauge_trace`",
    recognise: |source| match source {
        Source::Folder(path) => Reader::open(path).is_ok(),
        Source::Stream(_) => has_keys(source, &["streamgauge_trace"], &[]),
    },
    read: Some(read),
    write: Some(write),
    but: "",
    holds: Fields::ALL,
    clock: true,
    delta: Some(Fields::NONE),
};

/// Bytes of the first rows, in which fields are looked for that nobody knows: a newer version may have some, and who
/// writes rows may misspell one.
const LOOKED_AT: usize = 1 << 20;

fn read(source: Source, options: &Options) -> Result<Trace, Error> {
    let losses = Losses::default();
    // A file of frames by its path, so that what is behind a damaged one is read as well; others as they come.
    let (path, reader) = match source {
        Source::Folder(path) => (path.clone(), Reader::open(&path)),
        Source::Stream(stream) => {
            let path = PathBuf::from(&stream.name);
            let reader = match stream.in_frames && stream.folder.is_some() {
                true => Reader::open(&path),
                false => Reader::of_stream(&path, stream.bytes()),
            };
            (path, reader)
        }
    };
    let file = path.display().to_string();
    let mut reader = reader.map_err(|error| failed(error, &file))?;
    let header = reader.header().clone();
    if let Some((from, to)) = options.times {
        reader.only(from..to);
    }
    let (lost, mut failing) = (losses.clone(), false);
    let (mut damaged, mut looked_at) = (0, 0);
    let entries = std::iter::from_fn(move || {
        let row = if failing { None } else { reader.next() };
        for damage in &reader.damage()[damaged..] {
            lost.count(&damage.what);
        }
        damaged = reader.damage().len();
        if let Some(Ok(row)) = row.as_ref().filter(|_| looked_at < LOOKED_AT) {
            looked_at += reader.line().len();
            let line = serde_json::from_slice(reader.line()).unwrap_or_default();
            count_unknown(&line, serde_json::to_value(row).ok().as_ref(), "", &lost);
        }
        failing = row.as_ref().is_some_and(Result::is_err);
        row.map(|row| row.map_err(|error| failed(error, &file)))
    });
    Ok(Trace { header, entries: Box::new(entries), losses })
}

/// Counts what a line says and the row that was made of it does not.
fn count_unknown(line: &Value, row: Option<&Value>, path: &str, losses: &Losses) {
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
        // A row leaves out what is not there.
        (Value::Null, _) | (_, Some(_)) => {}
        (Value::Array(list), None) if list.is_empty() => {}
        // The reader drops the abort of a client that had its whole reply.
        _ if path == "abort_tokens" => {}
        _ => losses.count(&format!("{path}, as far as the first rows have it")),
    }
}

/// The reader's words, with the place in front as with other formats.
fn failed(error: ReadError, file: &str) -> Error {
    match error {
        ReadError::Line { path, line, reason } => Problem::new(format!("not a row of a trace: {reason}"))
            .remedy("take the line out, or write the trace again")
            .at(&path.display().to_string(), Some(line)),
        other => {
            let what = other.to_string();
            // Most begin with the name already.
            Problem::new(what.strip_prefix(&format!("{file} ")).unwrap_or(&what)).at(file, None)
        }
    }
}

struct Rows(Output);

fn write(header: &Header, mut out: Output) -> Result<Box<dyn Writer>, Problem> {
    super::write_line(&mut out, header).map_err(|error| Problem::new(error.to_string()))?;
    Ok(Box::new(Rows(out)))
}

impl Writer for Rows {
    fn write(&mut self, entry: &Entry) -> Result<(), WriteError> {
        super::write_line(&mut self.0, entry)
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, WriteError> {
        self.0.flush()?;
        Ok(Vec::new())
    }
}
