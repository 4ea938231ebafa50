//! `streamgauge trace`: what is in a trace, and one trace made of others.

mod diff;
pub(super) mod flags;
mod info_text;
pub(super) mod notes;

use std::cell::Cell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::Context as _;
use clap::{Subcommand, ValueHint};

use crate::capture::row;
use crate::measure::time::Gap;
use crate::trace::anonymize::{self, AnonymizeRounding};
use crate::trace::diff as trace_diff;
use crate::trace::info::{self, MAX_CACHE_BLOCKS};
use crate::trace::merge::{self, ClockAlignment};
use crate::trace::respace;
use crate::trace::scale::{self, RateScale};
use crate::trace::scale_lengths::{self, LengthScale};
use crate::trace::slice::{self, TraceSlice};
use flags::{FormatName, ScaleFactor, TraceInputArgs, TraceOutputArgs};

/// Look into traces and make one of others, between our own format and the public ones
///
/// A trace is the shape of traffic: when requests came, how long they were, which prefixes they shared. Every verb
/// streams, so that a trace may be larger than memory; `-` is stdin and stdout, and zstd and gzip are undone.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = LONG_EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  What is in it?
    streamgauge trace info conversation_trace.jsonl

  Replay our own traffic with AIPerf:
    streamgauge trace convert capture/ --to mooncake -o trace.jsonl

  Twice the traffic of the second ten minutes:
    streamgauge trace cut day.jsonl --from 10m --to 20m | streamgauge trace scale - --rate 2x -o busy.jsonl";

const LONG_EXAMPLES: &str = "\
Examples:
  What is in it, and what would a cache of 100,000 blocks have had?
    streamgauge trace info conversation_trace.jsonl --cache-blocks 100000

  Replay our own traffic with AIPerf:
    streamgauge trace convert capture/ --to mooncake -o trace.jsonl

  Twice the traffic of the second ten minutes:
    streamgauge trace cut day.jsonl --from 10m --to 20m | streamgauge trace scale - --rate 2x -o busy.jsonl

  Give a trace away:
    streamgauge trace anonymize capture/ --round-time 100ms --round-length 16 -o shared.jsonl

`streamgauge trace convert --help` lists the formats.";

#[derive(Debug, Subcommand)]
enum Verb {
    Info(InfoArgs),
    Convert(ConvertArgs),
    Cut(CutArgs),
    Scale(ScaleArgs),
    Merge(MergeArgs),
    Anonymize(AnonymizeArgs),
    Spread(SpreadArgs),
    Diff(DiffArgs),
    /// Print the JSON Schema of our own format: of a file's first line and of the others
    Schema,
}

/// Say what is in a trace: rate, lengths, burstiness, prefix reuse, sessions, and what might mislead
#[derive(Debug, clap::Args)]
struct InfoArgs {
    #[command(flatten)]
    input: TraceInputArgs,

    /// Also tell what a cache of so many blocks would have, which forgets what was used longest ago
    #[arg(long, value_name = "N", conflicts_with = "cache_tokens")]
    cache_blocks: Option<usize>,

    /// The same for a cache of so many tokens
    #[arg(long, value_name = "N")]
    cache_tokens: Option<u64>,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,

    /// Draw with ASCII characters only
    #[arg(long, conflicts_with = "json")]
    plain: bool,
}

/// Write a trace in another format; what that cannot hold is counted on stderr
#[derive(Debug, clap::Args)]
#[command(after_help = flags::formats())]
struct ConvertArgs {
    /// The trace, or a folder of one; `-` is stdin
    #[arg(value_hint = ValueHint::AnyPath)]
    trace: PathBuf,

    /// What it is, if that is not to be guessed
    #[arg(long, visible_alias = "input-format", value_name = "FORMAT")]
    from: Option<FormatName>,

    /// What to write
    #[arg(long, value_name = "FORMAT", default_value = "streamgauge")]
    to: FormatName,

    /// Make prompts whole where later turns hold only what was added: each then has the prompts and answers before it
    #[arg(long)]
    whole_turns: bool,

    /// Tokens that the chat template of the server adds to every prompt, where a tool of others will send the trace as
    /// chats: prompts are written so much shorter, as `streamgauge replay` sends them
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    prompt_overhead: u64,

    #[command(flatten)]
    reading: flags::TraceReadArgs,

    /// Where to; `-` is stdout. A name that ends in .zst or .gz is written packed
    #[arg(long, short, value_name = "FILE", default_value = "-", value_hint = ValueHint::FilePath)]
    output: PathBuf,
}

/// Keep a part of a trace, by time and model; its time begins where the cut does
#[derive(Debug, clap::Args)]
struct CutArgs {
    #[command(flatten)]
    input: TraceInputArgs,

    /// From this time of the trace on, as in 90s or 1.5h
    #[arg(long, value_name = "TIME", default_value = "0")]
    from: Gap,

    /// Before this time of the trace
    #[arg(long, value_name = "TIME")]
    to: Option<Gap>,

    /// Requests for one of these models; `*` stands for anything
    #[arg(long, value_name = "MODEL", value_delimiter = ',')]
    models: Vec<String>,

    #[command(flatten)]
    output: TraceOutputArgs,
}

/// Make more or less of the same traffic, or longer or shorter, with the structure of its prefixes
///
/// More is copies laid over each other, with ids of their own; less leaves out whole sessions. Blocks of prompts are
/// scaled with the prompts.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args(["rate", "isl", "osl"])))]
struct ScaleArgs {
    #[command(flatten)]
    input: TraceInputArgs,

    /// How many times the traffic, as in 2x, 1.5x or 0.25x
    #[arg(long, value_name = "TIMES")]
    rate: Option<ScaleFactor>,

    /// Time over which the copies begin: bursts of copies meet if it is short
    #[arg(long, value_name = "TIME", default_value = "10s", requires = "rate")]
    offset: Gap,

    /// How many times as long prompts are, as in 0.0625x for a server that holds a 16th
    #[arg(long, value_name = "TIMES")]
    isl: Option<ScaleFactor>,

    /// The same of replies
    #[arg(long, value_name = "TIMES")]
    osl: Option<ScaleFactor>,

    #[command(flatten)]
    output: TraceOutputArgs,
}

/// Make one trace of several, in order of time; of one, put its rows in order
#[derive(Debug, clap::Args)]
struct MergeArgs {
    /// The traces
    #[arg(required = true, value_name = "TRACE", value_hint = ValueHint::AnyPath)]
    traces: Vec<PathBuf>,

    /// Let all begin at zero, instead of at their wall-clock times where all have one
    #[arg(long)]
    from_start: bool,

    /// What they are, if that is not to be guessed
    #[arg(long, value_name = "FORMAT")]
    input_format: Option<FormatName>,

    #[command(flatten)]
    reading: flags::TraceReadArgs,

    #[command(flatten)]
    output: TraceOutputArgs,
}

/// Make a trace to give away: ids of a new key, models without their names, times and lengths rounded
#[derive(Debug, clap::Args)]
struct AnonymizeArgs {
    #[command(flatten)]
    input: TraceInputArgs,

    /// Round times down to multiples of this; gaps between tokens are then left out
    #[arg(long, value_name = "TIME", default_value = "0")]
    round_time: Gap,

    /// Round lengths up to multiples of so many tokens, of prompts within their last block
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    round_length: u64,

    #[command(flatten)]
    output: TraceOutputArgs,
}

/// Spread timestamps of batches: each arrival moves to a place of its own inside its batch's interval
#[derive(Debug, clap::Args)]
struct SpreadArgs {
    #[command(flatten)]
    input: TraceInputArgs,

    /// Time from one batch to the next, if that is not to be found
    #[arg(long, value_name = "TIME")]
    grid: Option<Gap>,

    #[command(flatten)]
    output: TraceOutputArgs,
}

/// Say how far two traces are apart: their figures side by side, and the rows of one against those of the other
///
/// Rows are put in order of time and joined by it, each trace's time counted from its first row. The exit code is 0
/// whatever the difference, and 2 where a trace cannot be read.
#[derive(Debug, clap::Args)]
struct DiffArgs {
    /// The first trace, as what was planned
    #[arg(value_name = "A", value_hint = ValueHint::AnyPath)]
    a: PathBuf,

    /// The second, as what came of it
    #[arg(value_name = "B", value_hint = ValueHint::AnyPath)]
    b: PathBuf,

    /// What they are, if that is not to be guessed
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
            let cut = TraceSlice { from: args.from.as_nanos(), to, models: args.models.clone() };
            args.output.write(slice::slice(input.trace, cut), input.format, &[&args.input.trace])
        }
        Verb::Scale(args) => scale_trace(args),
        Verb::Merge(args) => {
            flags::check_stdin_once(&args.traces)?;
            let mut traces = Vec::new();
            let mut format = None;
            for path in &args.traces {
                let input = flags::open(path, args.input_format, &args.reading)?;
                format.get_or_insert(input.format);
                traces.push((path.display().to_string(), input.trace));
            }
            let format = format.context("no trace to merge")?;
            let align = if args.from_start { ClockAlignment::Start } else { ClockAlignment::Clock };
            args.output.write(merge::merge(traces, align)?, format, &args.traces)
        }
        Verb::Anonymize(args) => {
            let input = args.input.open()?;
            let rounding = AnonymizeRounding { time: args.round_time.as_nanos(), length: args.round_length };
            args.output.write(anonymize::anonymize(input.trace, rounding), input.format, &[&args.input.trace])
        }
        Verb::Spread(args) => {
            let input = args.input.open()?;
            let (seed, name) = (args.input.reading.seed, args.input.trace.display().to_string());
            let (trace, grid) = respace::respace(input.trace, &name, args.grid.map(Gap::as_nanos), seed)?;
            super::eprint_line(&format!("note: batches of {} are spread", Gap::from_nanos(grid)));
            args.output.write(trace, input.format, &[&args.input.trace])
        }
        Verb::Diff(args) => diff_traces(args).or_else(|error| {
            super::eprint_line(&format!("error: {error:#}"));
            Ok(ExitCode::from(2))
        }),
        Verb::Schema => super::print(&format!("{:#}\n", row::schema().as_value())),
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
        super::eprint_line("note: rows have no block ids, so that nothing can be told of a cache");
    }
    if args.json {
        return super::print(&format!("{}\n", serde_json::to_string_pretty(&info)?));
    }
    super::print(&info_text::render(&info, &input.trace.header, &info_text::InfoScreen::of_stdout(args.plain)))
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
        return super::print(&format!("{}\n", serde_json::to_string_pretty(&diff)?));
    }
    super::print(&diff::render(&diff, [&names[0], &names[1]]))
}

fn scale_trace(args: &ScaleArgs) -> anyhow::Result<ExitCode> {
    let times = |times: Option<ScaleFactor>| times.map_or(1.0, |times| times.0);
    let factor = times(args.rate);
    let path = &args.input.trace;
    // Of a pipe by its name each copy would get some of the rows.
    if let Some(pipe) = super::one_shot_input(path).filter(|_| factor > 1.0) {
        let times = factor.ceil();
        anyhow::bail!(
            "{pipe} can be read once, and {factor}x of a trace reads it {times} times; write it to a file first"
        );
    }
    let mut format = None;
    let scale = RateScale { factor, offset: args.offset.as_nanos(), seed: args.input.reading.seed };
    let trace = scale::scale_rate(scale, || {
        // It is said once what the trace is taken for.
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
    notes::print_scale_shortfall(scale, times.get().1.saturating_sub(times.get().0));
    Ok(done)
}
