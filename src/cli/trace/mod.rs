//! `streamgauge trace`: describes and transforms traces.

mod cache_pages;
mod diff;
mod examples;
pub(super) mod flags;
mod info_text;
mod merge;
pub(super) mod notes;
mod reuse;
mod reuse_page;

use std::cell::Cell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::Context as _;
use clap::{Subcommand, ValueHint};

use crate::cli::values::parse_duration;
use crate::measure::time::Gap;
use crate::trace::anonymize::{self, AnonymizeRounding};
use crate::trace::diff as trace_diff;
use crate::trace::info::{self, MAX_CACHE_BLOCKS};
use crate::trace::respace;
use crate::trace::scale::{self, RateScale};
use crate::trace::scale_lengths::{self, LengthScale};
use crate::trace::selection::TraceSelection;
use crate::trace::slice::{self, TraceSlice};
use crate::trace::time_shift::{self, TimeShift};
use crate::trace_file::header;
pub(super) use examples::{HELP, SUBVERBS};
use flags::{FormatName, ScaleFactor, TraceInputArgs, TraceOutputArgs};

/// Describe, convert and transform traffic traces, ours and public ones
///
/// A trace is the shape of traffic: request times, lengths, and the prefixes that prompts share. Every verb streams, so a
/// trace may be larger than memory. `-` stands for stdin and stdout; zstd and gzip input is decompressed. `streamgauge
/// trace convert --help` lists the formats.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Info(InfoArgs),
    Convert(ConvertArgs),
    Cut(CutArgs),
    Scale(ScaleArgs),
    Shift(ShiftArgs),
    Merge(merge::MergeArgs),
    Anonymize(AnonymizeArgs),
    Spread(SpreadArgs),
    Diff(DiffArgs),
    Reuse(reuse::Args),
    /// Print the JSON Schema of our own trace format
    ///
    /// The schema covers the header in the first line of a file and the rows in the other lines.
    Schema,
}

/// Describe a trace: rate, lengths, burstiness, prefix reuse, sessions, and pitfalls of the data
#[derive(Debug, clap::Args)]
struct InfoArgs {
    #[command(flatten)]
    input: TraceInputArgs,

    /// Also report the hit rate of an LRU cache of N blocks
    #[arg(long, value_name = "N", conflicts_with = "cache_tokens")]
    cache_blocks: Option<usize>,

    /// Also report the hit rate of an LRU cache of N tokens
    #[arg(long, value_name = "N")]
    cache_tokens: Option<u64>,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,

    /// Draw with ASCII characters only
    #[arg(long, conflicts_with = "json")]
    plain: bool,
}

/// Convert a trace to another format, and count dropped fields on stderr
#[derive(Debug, clap::Args)]
#[command(after_long_help = flags::formats())]
struct ConvertArgs {
    /// Trace to read: a file or a folder; `-` reads stdin
    #[arg(value_hint = ValueHint::AnyPath)]
    trace: PathBuf,

    /// Format of the trace [default: detected]
    #[arg(long, visible_alias = "input-format", value_name = "FORMAT")]
    from: Option<FormatName>,

    /// Write this format
    #[arg(long, value_name = "FORMAT", default_value = "streamgauge")]
    to: FormatName,

    /// Expand later turns that hold only new text: put the conversation so far before it
    #[arg(long)]
    whole_turns: bool,

    /// Shorten prompts by the N tokens that the server's chat template adds
    ///
    /// For other tools that send the trace as chats. `streamgauge replay` corrects its prompts itself.
    #[arg(long, value_name = "N", default_value_t = 0)]
    prompt_overhead: u64,

    #[command(flatten)]
    reading: flags::TraceReadArgs,

    /// Write to FILE, compressed if its name ends in .zst or .gz; `-` writes to stdout
    #[arg(long, short, value_name = "FILE", default_value = "-", value_hint = ValueHint::FilePath)]
    output: PathBuf,
}

/// Keep part of a trace, by time, model and class
///
/// Time 0 of the result is the start of the cut.
#[derive(Debug, clap::Args)]
struct CutArgs {
    #[command(flatten)]
    input: TraceInputArgs,

    /// Keep requests from this time of the trace on, e.g. 90s or 1.5h
    #[arg(long, value_name = "TIME", default_value = "0")]
    from: Gap,

    /// Keep requests before this time of the trace [default: its end]
    #[arg(long, value_name = "TIME")]
    to: Option<Gap>,

    #[command(flatten)]
    selection: flags::TraceSelectionArgs,

    #[command(flatten)]
    output: TraceOutputArgs,
}

/// Scale a trace's rate, prompt lengths or response lengths, and keep its prefix structure
///
/// A higher rate overlays copies of the trace with new ids; a lower rate drops whole sessions. The blocks of prompts scale
/// with the prompts. With --models or --class, the rate of these requests changes and the others stay.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args(["rate", "isl", "osl"])))]
struct ScaleArgs {
    #[command(flatten)]
    input: TraceInputArgs,

    /// Multiply the request rate, e.g. 2x, 1.5x or 0.25x
    #[arg(long, value_name = "TIMES")]
    rate: Option<ScaleFactor>,

    /// Start copies within this time; if it is short, their bursts coincide
    #[arg(long, value_name = "TIME", default_value = "10s", requires = "rate")]
    offset: Gap,

    #[command(flatten)]
    selection: flags::TraceSelectionArgs,

    /// Multiply prompt lengths, e.g. 0.0625x for a server with a sixteenth of the context
    #[arg(long, value_name = "TIMES")]
    isl: Option<ScaleFactor>,

    /// Multiply response lengths, e.g. 0.5x
    #[arg(long, value_name = "TIMES")]
    osl: Option<ScaleFactor>,

    #[command(flatten)]
    output: TraceOutputArgs,
}

/// Move requests to a later or an earlier time
///
/// Without --models and --class all requests move, which matters to `trace merge`. If requests move before the start of
/// the trace, its time 0 moves with them.
#[derive(Debug, clap::Args)]
struct ShiftArgs {
    #[command(flatten)]
    input: TraceInputArgs,

    /// Move by this time, e.g. 1h, or -30m for an earlier one
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = parse_shift)]
    by: TimeShift,

    #[command(flatten)]
    selection: flags::TraceSelectionArgs,

    #[command(flatten)]
    output: TraceOutputArgs,
}

fn parse_shift(text: &str) -> Result<TimeShift, String> {
    match text.strip_prefix('-') {
        Some(earlier) => parse_duration(earlier).map(TimeShift::Earlier),
        None => parse_duration(text).map(TimeShift::Later),
    }
    .map_err(|error| error.to_string())
}

/// Make a trace that can be published: new ids, no model names, rounded times and lengths
#[derive(Debug, clap::Args)]
struct AnonymizeArgs {
    #[command(flatten)]
    input: TraceInputArgs,

    /// Round times down to multiples of this and drop gaps between tokens; 0 keeps both
    #[arg(long, value_name = "TIME", default_value = "0")]
    round_time: Gap,

    /// Round lengths up to multiples of N tokens, prompts at most to the end of their last block; 0 keeps them
    #[arg(long, value_name = "N", default_value_t = 0)]
    round_length: u64,

    #[command(flatten)]
    output: TraceOutputArgs,
}

/// Spread arrivals with batched timestamps over the interval of their batch
#[derive(Debug, clap::Args)]
struct SpreadArgs {
    #[command(flatten)]
    input: TraceInputArgs,

    /// Time between batches, e.g. 3s [default: detected]
    #[arg(long, value_name = "TIME")]
    grid: Option<Gap>,

    #[command(flatten)]
    output: TraceOutputArgs,
}

/// Compare two traces: their figures side by side, and their rows one by one
///
/// Rows are sorted and joined by time, which starts at each trace's first row. The exit code is 0 whatever the difference,
/// and 2 if a trace cannot be read.
#[derive(Debug, clap::Args)]
struct DiffArgs {
    /// First trace, e.g. the planned one
    #[arg(value_name = "A", value_hint = ValueHint::AnyPath)]
    a: PathBuf,

    /// Second trace, e.g. the sent one
    #[arg(value_name = "B", value_hint = ValueHint::AnyPath)]
    b: PathBuf,

    /// Format of the traces [default: detected]
    #[arg(long, value_name = "FORMAT")]
    input_format: Option<FormatName>,

    #[command(flatten)]
    reading: flags::TraceReadArgs,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.verb {
        Verb::Info(args) => info(args),
        Verb::Convert(args) => {
            let mut trace = flags::open(&args.trace, args.from, &args.reading)?.trace;
            if args.whole_turns {
                trace = flags::with_whole_turns(trace);
            }
            flags::write_trace_for(trace, args.to.0, (&args.output, &[&args.trace]), args.prompt_overhead)
        }
        Verb::Cut(args) => {
            anyhow::ensure!(
                args.to.is_none_or(|to| to > args.from),
                "nothing is from {} on and before {}; --to has to be later than --from",
                args.from,
                args.to.unwrap_or_default()
            );
            let to = args.to.map(Gap::as_nanos);
            let input = args.input.open_between(Some((args.from.as_nanos(), to.unwrap_or(u64::MAX))))?;
            let cut = TraceSlice { from: args.from.as_nanos(), to, selection: args.selection.selection() };
            args.output.write(slice::slice(input.trace, cut), input.format, &[&args.input.trace])
        }
        Verb::Scale(args) => scale_trace(args),
        Verb::Shift(args) => {
            let path = &args.input.trace;
            if let Some(pipe) = crate::cli::trace_input::one_shot_input(path) {
                anyhow::bail!("{pipe} can be read once, and a shift reads the trace twice; write it to a file first");
            }
            let (selection, mut format) = (args.selection.selection(), None);
            let trace = time_shift::shift(args.by, &selection, || {
                let input = if format.is_none() { args.input.open() } else { args.input.reopen() }?;
                format.get_or_insert(input.format);
                anyhow::Ok(input.trace)
            })?;
            args.output.write(trace, format.context("no trace was read")?, &[path])
        }
        Verb::Merge(args) => merge::run(args),
        Verb::Anonymize(args) => {
            let input = args.input.open()?;
            let rounding = AnonymizeRounding { time: args.round_time.as_nanos(), length: args.round_length };
            args.output.write(anonymize::anonymize(input.trace, rounding), input.format, &[&args.input.trace])
        }
        Verb::Spread(args) => {
            let input = args.input.open()?;
            let (seed, name) = (args.input.reading.seed, args.input.trace.display().to_string());
            let (trace, grid) = respace::respace(input.trace, &name, args.grid.map(Gap::as_nanos), seed)?;
            crate::cli::terminal::eprint_line(&format!("note: batches of {} are spread", Gap::from_nanos(grid)));
            args.output.write(trace, input.format, &[&args.input.trace])
        }
        Verb::Diff(args) => diff_traces(args).or_else(|error| {
            crate::cli::terminal::eprint_line(&format!("error: {error:#}"));
            Ok(ExitCode::from(2))
        }),
        Verb::Reuse(args) => reuse::run(args),
        Verb::Schema => crate::cli::terminal::print(&format!("{:#}\n", header::schema().as_value())),
    }
}

fn info(args: &InfoArgs) -> anyhow::Result<ExitCode> {
    let mut input = args.input.open()?;
    input.trace = flags::with_whole_turns(input.trace);
    let cache = args.cache_tokens.and_then(|tokens| info::cache_blocks(&input.trace.header, tokens));
    let cache = args.cache_blocks.or(cache);
    anyhow::ensure!(
        cache.is_none_or(|blocks| blocks <= MAX_CACHE_BLOCKS),
        "a cache of more than {MAX_CACHE_BLOCKS} blocks is not modelled"
    );
    let info = info::info(&mut input.trace, cache)?;
    notes::print_losses(&input.trace.losses);
    if (args.cache_blocks.is_some() || args.cache_tokens.is_some()) && info.reuse.is_empty() {
        crate::cli::terminal::eprint_line("note: rows have no block ids, so figures of a cache are absent");
    }
    if args.json {
        return crate::cli::terminal::print(&format!("{}\n", serde_json::to_string_pretty(&info)?));
    }
    crate::cli::terminal::print(&info_text::render(
        &info,
        &input.trace.header,
        &info_text::InfoScreen::of_stdout(args.plain),
    ))
}

fn diff_traces(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let open = |path: &PathBuf| {
        let input = flags::open(path, args.input_format, &args.reading)?;
        anyhow::Ok((path.display().to_string(), flags::with_whole_turns(input.trace)))
    };
    flags::check_stdin_once(&[&args.a, &args.b])?;
    let (a, b) = (open(&args.a)?, open(&args.b)?);
    let names = [a.0.clone(), b.0.clone()];
    let diff = trace_diff::diff(a, b)?;
    if args.json {
        return crate::cli::terminal::print(&format!("{}\n", serde_json::to_string_pretty(&diff)?));
    }
    crate::cli::terminal::print(&diff::render(&diff, [&names[0], &names[1]]))
}

fn scale_trace(args: &ScaleArgs) -> anyhow::Result<ExitCode> {
    let times = |times: Option<ScaleFactor>| times.map_or(1.0, |times| times.0);
    let factor = times(args.rate);
    let path = &args.input.trace;
    // Of a pipe by its name each copy would get some of the rows.
    if let Some(pipe) = crate::cli::trace_input::one_shot_input(path).filter(|_| factor > 1.0) {
        let times = factor.ceil();
        anyhow::bail!(
            "{pipe} can be read once, and {factor}x of a trace reads it {times} times; write it to a file first"
        );
    }
    let mut format = None;
    let scale = RateScale { factor, offset: args.offset.as_nanos(), seed: args.input.reading.seed };
    let selection = args.selection.selection();
    let trace = scale::scale_selected_rate(scale, &selection, || {
        // The detected format is printed once.
        let input = if format.is_none() { args.input.open() } else { args.input.reopen() }?;
        format.get_or_insert(input.format);
        anyhow::Ok(input.trace)
    })?;
    let by = LengthScale { input: times(args.isl), output: times(args.osl) };
    let mut trace = scale_lengths::scale_lengths(trace, by).map_err(anyhow::Error::msg)?;
    let times = Rc::new(Cell::new((u64::MAX, 0)));
    let seen = Rc::clone(&times);
    trace.entries = Box::new(trace.entries.inspect(move |entry| {
        if let Ok(entry) = entry {
            let (first, last) = seen.get();
            seen.set((first.min(entry.at), last.max(entry.at)));
        }
    }));
    let done = args.output.write(trace, format.context("no trace was read")?, &[path])?;
    if selection == TraceSelection::default() {
        notes::print_scale_shortfall(scale, times.get().1.saturating_sub(times.get().0));
    }
    Ok(done)
}
