//! `streamgauge trace merge`: traces of several instances on one clock.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::ValueHint;

use super::flags::{self, FormatName, InputTrace, TraceOutputArgs};
use crate::cli::terminal::eprint_line;
use crate::cli::trace_input::one_shot_input;
use crate::measure::time::Gap;
use crate::trace::Trace;
use crate::trace::clock_offsets::{ClockEvidence, ClockOffset, MIN_AGREEING};
use crate::trace::format::{FORMATS, native};
use crate::trace::merge::{ClockAlignment, merge};
use crate::trace_file::segment_list::instances;

/// Captures that are named in a note before the others are counted.
const MAX_NAMED: usize = 8;

/// Merge traces into one, in order of time and on one clock
///
/// A prefix of a bucket is one trace for each instance. If captures have requests in common, as those of a gateway and of
/// the servers behind it, their times show by how much the wall clocks differ; the offsets are reported and corrected.
/// That needs captures with one key (`--capture-key`), which are then read twice. A single trace is sorted by time.
#[derive(Debug, clap::Args)]
pub(super) struct MergeArgs {
    /// Traces to merge: files, folders, or URLs of object storage
    #[arg(required = true, value_name = "TRACE", value_hint = ValueHint::AnyPath)]
    traces: Vec<PathBuf>,

    /// Start all traces at time 0 [default: align them by wall-clock time if all have one]
    #[arg(long)]
    from_start: bool,

    /// Format of the traces [default: detected]
    #[arg(long, value_name = "FORMAT")]
    input_format: Option<FormatName>,

    #[command(flatten)]
    reading: flags::TraceReadArgs,

    #[command(flatten)]
    output: TraceOutputArgs,
}

/// A trace to merge.
enum MergeSource<'a> {
    Path(&'a Path),
    /// The segments of one instance below a prefix.
    Instance {
        name: String,
        path: &'a Path,
        segments: Vec<PathBuf>,
    },
}

impl MergeSource<'_> {
    fn name(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::Instance { name, .. } => name.clone(),
        }
    }

    /// Opens the trace, which is one of `sources`; if `is_first`, prints its detected format.
    fn open(&self, args: &MergeArgs, sources: usize, is_first: bool) -> anyhow::Result<InputTrace> {
        match self {
            Self::Path(path) if is_first => flags::open(path, args.input_format, &args.reading),
            Self::Path(path) => flags::reopen(path, args.input_format, &args.reading),
            Self::Instance { path, segments, .. } => {
                let trace = native::read_segments(path, segments.clone(), sources)?;
                Ok(InputTrace { trace, format: FORMATS[0] })
            }
        }
    }
}

pub(super) fn run(args: &MergeArgs) -> anyhow::Result<ExitCode> {
    flags::check_stdin_once(&args.traces)?;
    let mut sources = Vec::new();
    for path in &args.traces {
        let found = instances(path).with_context(|| format!("cannot read {}", path.display()))?;
        if found.is_empty() {
            sources.push(MergeSource::Path(path));
        }
        let of_path = |(name, segments)| MergeSource::Instance { name, path, segments };
        sources.extend(found.into_iter().map(of_path));
    }
    let mut opened = Vec::new();
    for source in &sources {
        opened.push(source.open(args, sources.len(), true)?);
    }
    let format = opened.first().context("no trace to merge")?.format;
    let has_clocks = opened.iter().all(|input| input.trace.header.started_unix_ns.is_some());
    let mut traces: Vec<(String, Trace)> =
        sources.iter().map(MergeSource::name).zip(opened.into_iter().map(|input| input.trace)).collect();
    if traces.len() > 1 && has_clocks && !args.from_start {
        if let Some(pipe) = args.traces.iter().find_map(|path| one_shot_input(path)) {
            eprint_line(&format!("note: {pipe} can be read once, so the clocks of the traces are not compared"));
        } else {
            correct_clocks(&mut traces, &sources, args)?;
        }
    }
    let align = if args.from_start { ClockAlignment::Start } else { ClockAlignment::Clock };
    args.output.write(merge(traces, align)?, format, &args.traces)
}

/// Estimates the offsets of the clocks, reports them, and moves the starts of the traces by them.
fn correct_clocks(traces: &mut [(String, Trace)], sources: &[MergeSource<'_>], args: &MergeArgs) -> anyhow::Result<()> {
    let mut evidence = ClockEvidence::default();
    for (number, source) in sources.iter().enumerate() {
        let Trace { header, entries, .. } = source.open(args, sources.len(), false)?.trace;
        for row in entries {
            evidence.add(number, &header, &row?);
        }
    }
    let offsets = evidence.offsets(sources.len());
    let name = |number: usize| sources[number].name();
    let (mut unknown, mut agreeing) = (Vec::new(), Vec::new());
    for (number, offset) in offsets.iter().enumerate() {
        match offset {
            None => unknown.push(name(number)),
            Some(offset) if offset.reference == number => {}
            Some(offset) if offset.is_certain() => {
                eprint_line(&describe_offset(&name(number), &name(offset.reference), offset));
                let started = &mut traces[number].1.header.started_unix_ns;
                *started = started.map(|start| start.saturating_add_signed(offset.nanos.saturating_neg()));
            }
            Some(offset) => agreeing.push(format!(
                "{} with {} within {} ({} requests)",
                name(number),
                name(offset.reference),
                Gap::from_nanos(offset.nanos.unsigned_abs().saturating_add(offset.uncertainty)),
                offset.agreeing
            )),
        }
    }
    if !agreeing.is_empty() {
        eprint_line(&format!("note: the clocks of these agree, and are not corrected: {}", listed(&agreeing)));
    }
    if !unknown.is_empty() {
        eprint_line(&format!(
            "note: no offset is known for the clocks of these, and none is applied, because they share fewer than \
             {MIN_AGREEING} requests with another trace: {}",
            listed(&unknown)
        ));
    }
    let shared = evidence.shared_requests();
    if shared > 0 {
        eprint_line(&format!("note: at least {shared} requests are in several of the traces, and so in the result"));
    }
    Ok(())
}

fn describe_offset(name: &str, reference: &str, offset: &ClockOffset) -> String {
    let by = offset.nanos.unsigned_abs() as f64 / 1e9;
    let (side, moved) = if offset.nanos > 0 { ("ahead of", "earlier") } else { ("behind", "later") };
    format!(
        "note: the clock of {name} is {by:.4} s (±{}) {side} that of {reference}, by {} of {} requests that passed both; its \
         times are moved {moved}",
        Gap::from_nanos(offset.uncertainty),
        offset.agreeing,
        offset.requests
    )
}

fn listed(names: &[String]) -> String {
    let (named, more) = names.split_at(names.len().min(MAX_NAMED));
    let more = if more.is_empty() { String::new() } else { format!(", and {} more", more.len()) };
    named.join(", ") + &more
}
