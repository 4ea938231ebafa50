//! Flags that verbs share: what is read, what is written.

use std::fs::{self, Metadata};
use std::io::{self, BufWriter};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Context as _;
use clap::ValueHint;

use super::notes;
use crate::trace::Trace;
use crate::trace::format::columns::{self, ColumnMap};
use crate::trace::format::{self, FORMATS, ReadOptions, TraceFormat, WriteError};
use crate::trace::input::InputSource;
use crate::trace::output;
use crate::trace::scale::MAX_COPIES;
use crate::trace::selection::TraceSelection;
use crate::trace::whole_turns::expand_turns;
use crate::trace_file::header::TurnContent;

/// A trace to read.
#[derive(Debug, clap::Args)]
pub(super) struct TraceInputArgs {
    /// Trace to read: a file or a folder; `-` reads stdin
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(super) trace: PathBuf,

    /// Format of the trace [default: detected]; `streamgauge trace convert --help` lists the formats
    #[arg(long, value_name = "FORMAT")]
    input_format: Option<FormatName>,

    #[command(flatten)]
    pub(super) reading: TraceReadArgs,
}

/// Properties that a file does not state.
#[derive(Debug, clap::Args)]
pub(super) struct TraceReadArgs {
    /// Columns of any CSV or JSON Lines, e.g. time=ts:ms,input=prompt_tokens,output=output_tokens
    ///
    /// Fields: time, input, output, cached, ttft, duration, model, session; time and input are required. Times are
    /// seconds, or have :ms, :us or :ns behind the name, or are dates. A dot leads into an object: usage.prompt_tokens.
    #[arg(long, value_name = "FIELD=COLUMN,...")]
    columns: Option<ColumnMap>,

    /// Tokens per block, if the format does not define it
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    block_size: Option<u32>,

    /// Seed for random draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
}

/// Rows that a verb changes.
#[derive(Debug, clap::Args)]
pub(super) struct TraceSelectionArgs {
    /// Only requests for these models; `*` matches any text [default: all]
    #[arg(long, value_name = "MODEL", value_delimiter = ',')]
    models: Vec<String>,

    /// Only requests of this class, e.g. tier=gold; `*` matches any text; may be repeated
    #[arg(long = "class", value_name = "NAME=VALUE", value_parser = class_value)]
    classes: Vec<(String, String)>,
}

impl TraceSelectionArgs {
    pub(super) fn selection(&self) -> TraceSelection {
        TraceSelection { models: self.models.clone(), classes: self.classes.clone() }
    }
}

fn class_value(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, as in tier=gold")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Where a trace goes.
#[derive(Debug, clap::Args)]
pub(super) struct TraceOutputArgs {
    /// Write to FILE, compressed if its name ends in .zst or .gz; `-` writes to stdout
    #[arg(long, short, value_name = "FILE", default_value = "-", value_hint = ValueHint::FilePath)]
    output: PathBuf,

    /// Write this format [default: the one that was read, or streamgauge if it cannot be written]
    #[arg(long, value_name = "FORMAT")]
    output_format: Option<FormatName>,
}

/// A format, by its name.
#[derive(Clone, Copy)]
pub(in crate::cli) struct FormatName(pub(in crate::cli) &'static TraceFormat);

impl std::fmt::Debug for FormatName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name)
    }
}

impl FromStr for FormatName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let unknown = || {
            let names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
            format!("no such format; there are {}", names.join(", "))
        };
        format::by_name(name).map(Self).ok_or_else(unknown)
    }
}

/// A factor, as in `2x`.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct ScaleFactor(pub(in crate::cli) f64);

impl FromStr for ScaleFactor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('x').unwrap_or(text).parse::<f64>().ok();
        let factor = number.filter(|factor| *factor > 0.0 && *factor <= MAX_COPIES);
        factor.map(Self).ok_or_else(|| format!("expected a factor above 0 and up to {MAX_COPIES}, as in 2x or 0.5x"))
    }
}

/// A trace that is being read, and what it was.
pub(super) struct InputTrace {
    pub(super) trace: Trace,
    pub(super) format: &'static TraceFormat,
}

impl TraceInputArgs {
    pub(super) fn open(&self) -> anyhow::Result<InputTrace> {
        self.open_between(None)
    }

    /// The same, of which only the rows between these times are wanted.
    pub(super) fn open_between(&self, times: Option<(u64, u64)>) -> anyhow::Result<InputTrace> {
        open_between(&self.trace, self.input_format, &self.reading, times)
    }

    /// Once more, without a word.
    pub(super) fn reopen(&self) -> anyhow::Result<InputTrace> {
        reopen(&self.trace, self.input_format, &self.reading)
    }
}

/// Of a pipe the second of two readers would find nothing.
pub(super) fn check_stdin_once(paths: &[impl AsRef<Path>]) -> anyhow::Result<()> {
    let times = paths.iter().filter(|path| path.as_ref() == Path::new("-")).count();
    anyhow::ensure!(times <= 1, "stdin can be read once, and is named {times} times; write it to a file first");
    Ok(())
}

/// The trace with whole prompts. Prints a note if its later turns had only additions.
pub(super) fn with_whole_turns(trace: Trace) -> Trace {
    if trace.header.turns == TurnContent::Delta {
        crate::cli::terminal::eprint_line(notes::WHOLE_TURNS_NOTE);
    }
    expand_turns(trace)
}

/// Opens a trace, and prints its detected format.
pub(super) fn open(path: &Path, named: Option<FormatName>, reading: &TraceReadArgs) -> anyhow::Result<InputTrace> {
    open_between(path, named, reading, None)
}

/// Opens a trace once more, without a word.
pub(super) fn reopen(path: &Path, named: Option<FormatName>, reading: &TraceReadArgs) -> anyhow::Result<InputTrace> {
    open_silently(path, named, reading, None).map(|(opened, _)| opened)
}

fn open_between(
    path: &Path,
    named: Option<FormatName>,
    reading: &TraceReadArgs,
    times: Option<(u64, u64)>,
) -> anyhow::Result<InputTrace> {
    let (opened, by) = open_silently(path, named, reading, times)?;
    crate::cli::terminal::eprint_line(&notes::format_note(path, opened.format, by, &opened.trace.header));
    Ok(opened)
}

fn open_silently(
    path: &Path,
    named: Option<FormatName>,
    reading: &TraceReadArgs,
    times: Option<(u64, u64)>,
) -> anyhow::Result<(InputTrace, Option<&'static str>)> {
    let source = InputSource::open(path)?;
    let (format, by) = match (named, &reading.columns) {
        (Some(FormatName(format)), _) => (format, None),
        (None, Some(_)) => (&columns::FORMAT, Some(columns::FORMAT.detected_by)),
        (None, None) => {
            let format =
                format::detect(&source).map_err(|what| anyhow::anyhow!("{}: {what}", notes::display_name(path)))?;
            (format, Some(format.detected_by))
        }
    };
    let read = format.read.with_context(|| format!("{} cannot be read: {}", format.name, format.unsupported_reason))?;
    let (block_size, seed) = (reading.block_size, reading.seed);
    let read_options = ReadOptions { block_size, seed, times, columns: reading.columns.clone() };
    let trace = read(source, &read_options)?;
    Ok((InputTrace { trace, format }, by))
}

impl TraceOutputArgs {
    /// Writes a trace that is read from these files, in the format that it had if that can be written.
    pub(super) fn write(
        &self,
        trace: Trace,
        was: &'static TraceFormat,
        from: &[impl AsRef<Path>],
    ) -> anyhow::Result<ExitCode> {
        let own = FORMATS[0];
        let like = if was.write.is_some() { was } else { own };
        write_trace(trace, self.output_format.map_or(like, |FormatName(format)| format), &self.output, from)
    }
}

/// True if both are one file, by whatever names; `-` is stdin as the first.
fn is_same(read: &Path, written: &Path) -> bool {
    let read = if read == Path::new("-") { Path::new("/dev/stdin") } else { read };
    let file = |path| fs::metadata(path).ok().filter(Metadata::is_file).map(|file| (file.dev(), file.ino()));
    file(read).is_some_and(|one| file(written) == Some(one))
}

/// Writes a trace that is read from these files, and prints the losses.
fn write_trace(
    trace: Trace,
    format: &'static TraceFormat,
    path: &Path,
    from: &[impl AsRef<Path>],
) -> anyhow::Result<ExitCode> {
    write_trace_for(trace, format, (path, from), 0)
}

/// Writes a trace for a server whose chat template adds `overhead` tokens to every prompt.
pub(super) fn write_trace_for(
    mut trace: Trace,
    format: &'static TraceFormat,
    (path, from): (&Path, &[impl AsRef<Path>]),
    overhead: u64,
) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(format.write.is_some(), "{} cannot be written: {}", format.name, format.unsupported_reason);
    anyhow::ensure!(
        !from.iter().any(|read| is_same(read.as_ref(), path)),
        "{} is being read, and writing it would empty it first; name another file with --output",
        path.display()
    );
    let out: format::TraceOutput = if path == Path::new("-") {
        Box::new(BufWriter::with_capacity(1 << 16, io::stdout()))
    } else {
        output::create(path).with_context(|| format!("cannot write {}", path.display()))?
    };
    match format::convert_with_overhead(&mut trace, format, out, overhead) {
        Ok(converted) => {
            notes::print_losses(&trace.losses);
            notes::print_conversion(&converted, format);
            Ok(ExitCode::SUCCESS)
        }
        // The reader that closed the pipe has read enough.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(error) if error.is::<WriteError>() => Err(error.context(path.display().to_string())),
        Err(error) => Err(error),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    io.into_iter().any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The table of formats, for `--help`.
pub(super) fn formats() -> String {
    let rows = FORMATS.iter().map(|format| {
        let can = match (format.read.is_some(), format.write.is_some()) {
            (true, true) => "read, written".to_owned(),
            (true, false) => format!("read, not written: {}", format.unsupported_reason),
            _ => format!("written, not read: {}", format.unsupported_reason),
        };
        let TraceFormat { name, about, time_unit: times, detected_by: by, .. } = format;
        format!("\n  {name:<12} {about}\n  {:<12} times in {times}; detected by {by}; {can}", "")
    });
    format!("Formats:{}", rows.collect::<String>())
}
