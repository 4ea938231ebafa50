//! `streamgauge sweep`: load at many levels, by the runner of a replay, and the limit that an SLO sets.

mod forecast;
mod level_args;
mod levels;
mod matrix;
mod plan;
mod runner;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::ArgGroup;

use self::forecast::SearchForecast;
use self::level_args::LevelArgs;
use self::levels::{LevelList, rates, slots};
use self::plan::SweepPlan;
use self::runner::{SweepRunner, SweepStop};
use super::exit_code::{EXIT_INVALID_RUN, EXIT_SLO_MISSED};
use super::runner::flags::evaluation::{Conditions, conditions, sweep_goals};
use super::signals::StopSignals;
use super::terminal::{eprint_line, print, text_layout, usage_error};
use super::values::{parse_count_up_to, parse_duration, parse_positive_duration};
use super::verb_help::VerbHelp;
use crate::measure::slo::criteria::Criteria;
use crate::measure::time::Gap;
use crate::replay::plan::max_load_search::MaxLoadSearch;
use crate::report::sweep::file::{LoadAxis, SearchOutcome, SweepFile};
use crate::report::sweep::{Sweep, SweepReportOptions, render};

/// Paragraphs are single lines: clap wraps them to the terminal.
const ABOUT: &str = "\
Send load at several levels and report which of them the server sustains

Each level is a run of `streamgauge load` with its flags, or of `replay` if a TRACE is given. --rates, --concurrencies and \
--matrix list the levels. --find-max searches for the highest level that meets its goals: levels double until one fails, \
then the interval is halved. The search repeats a level if the 95 % confidence interval of its share of good requests \
contains the goal. The best level must then meet the goals again for --sustain; otherwise the search continues at lower \
levels. Before it begins, it prints the most levels and the longest time that it takes. A level is saturated, and fails, if the number of requests in flight keeps growing.

A level that this machine could not send as planned is not measured: it neither meets nor misses the goals, and a search that \
ends there exits with status 3.

Every level has its own prompt text, so the server's cache holds none of it. With --versus, each level is sent to two \
targets in the order A B B A A B, and the sweep ends with the verdict of `streamgauge compare` and a winner, or none.

DIR gets sweep.json and a folder for each run. Start a stopped sweep again to resume it; runs that were not valid are \
repeated. `streamgauge report DIR` prints the result at any time.

Exit codes: 0 success; 1 --fail-if applies, or no level meets --find-max; 2 wrong usage; 3 a listed run is not valid, the \
target is unreachable, or a search was stopped before its result.";

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &["target", "out", "rates", "find-max", "isl", "osl"],
    examples: &[
        (
            "Measure latency from 1 to 32 requests per second",
            "streamgauge sweep --target http://127.0.0.1:8000 --rates 1..32 \\
      --isl 512 --osl 128 --out sweep1",
        ),
        (
            "Find the highest rate that meets an SLO",
            "streamgauge sweep --target http://127.0.0.1:8000 --out limit \\
      --isl 512 --osl 128 --find-max 'ttft.p99<=500ms tpot.p99<=50ms'",
        ),
        (
            "Compare two servers at the levels of a benchmark plan",
            "streamgauge sweep --matrix plan.yaml --target http://a:8000 \\
      --versus http://b:8000 --out ab",
        ),
    ],
};

/// Send load at several levels and report which of them the server sustains
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT)]
#[command(group(ArgGroup::new("levels").required(true).multiple(true).args(["rates", "concurrencies", "find_max", "matrix"])))]
pub(crate) struct Args {
    /// Trace to rescale to each rate, instead of synthetic load
    #[arg(value_name = "TRACE")]
    trace: Option<PathBuf>,

    /// Write the runs and sweep.json into DIR; resume the sweep if DIR contains a partial one
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// Requests per second of each level: 1,2,4 or 1..64 (doubling) or 10..50+10; bounds of --find-max
    #[arg(long, value_name = "LIST", value_parser = rates, conflicts_with = "concurrencies", help_heading = "Levels")]
    rates: Option<LevelList>,

    /// Open requests of each level, written like --rates
    #[arg(long, value_name = "LIST", value_parser = slots, help_heading = "Levels")]
    concurrencies: Option<LevelList>,

    /// Find the highest level that meets these goals, e.g. 'ttft.p99<=500ms goodput>=95%'
    #[arg(long, value_name = "GOALS", conflicts_with_all = ["matrix", "versus"], help_heading = "Levels")]
    find_max: Option<Criteria>,

    /// Confirm the result of --find-max for this time
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_positive_duration, requires = "find_max", help_heading = "Levels")]
    sustain: Gap,

    /// Read levels from a YAML list; keys are `name`, `hypothesis`, `expect`, `baseline`, `cache: cold|warm`, and flags of `load`
    ///
    /// `expect` is a condition on the row (`ttft.p95<=1s`) or on its change from the row with `baseline: true`
    /// (`ttft.p95 < baseline + 10%`). The report has the verdict, and `report --markdown` a decision record.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rates", "concurrencies"], help_heading = "Levels")]
    matrix: Option<PathBuf>,

    /// Send every level to this second target too, in the order A B B A A B, and compare the two
    #[arg(long, value_name = "URL", help_heading = "Levels")]
    versus: Option<String>,

    /// Runs of each level and target with --versus [default: 3]
    #[arg(long, value_name = "N", value_parser = parse_count_up_to(MAX_ROUNDS), help_heading = "Levels")]
    rounds: Option<u32>,

    /// Wait this long between the runs of --versus, so that the servers come to rest
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration, help_heading = "Levels")]
    pause: Gap,

    /// Run all listed levels; without it a sweep of --rates or --concurrencies ends after the second one that misses the SLO
    #[arg(long, help_heading = "Levels")]
    all: bool,

    /// Exit with status 1 unless every level meets these, e.g. 'ttft.p95<=1s goodput>=95%'
    #[arg(long, value_name = "CONDITIONS", value_parser = conditions, help_heading = "Evaluation")]
    fail_if: Vec<Conditions>,

    #[command(flatten)]
    line: LevelArgs,
}

/// Guards against typing errors: twenty runs of each side decide what can be decided.
const MAX_ROUNDS: u32 = 20;
const DEFAULT_ROUNDS: u32 = 3;

impl Args {
    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(DEFAULT_ROUNDS)
    }
}

/// Runs the remaining levels, and prints the result of all.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    crate::cli::descriptors::raise_fd_limit();
    let usage = |message: String| Ok(usage_error(&message));
    let goals = match sweep_goals(&args.fail_if) {
        Ok(goals) => goals,
        Err(error) => return Ok(usage_error(&error)),
    };
    let outline = match SweepPlan::of(args) {
        Ok(outline) => outline,
        Err(message) => return usage(message),
    };
    // Every line is read before anything is sent.
    let lines = outline
        .listed_runs(args.rounds())
        .into_iter()
        .chain(outline.goals.iter().map(|(_, search)| outline.search_run(search.start, 1, true)));
    for wish in lines {
        let run = outline.run_entry(&wish);
        if let Err(message) = outline.parse_level(&outline.level_flags(&run, &args.out), &wish.level) {
            return usage(message);
        }
    }
    let file = match outline.load_or_create(&args.out) {
        Ok(file) => SweepFile { goals: goals.map(|goals| goals.to_string()), goodput: None, ..file },
        Err(message) => return usage(message),
    };
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    file.write(&args.out).with_context(|| format!("cannot write to {}", args.out.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stop = runtime.block_on(async { StopSignals::new() }).context("cannot wait for signals")?;
    let mut sweeping = SweepRunner { args, outline: &outline, file, runtime, stop };
    let ended = match &outline.goals {
        Some((goals, search)) => {
            if sweeping.file.answer.is_none() {
                forecast(args, &outline, goals, search).iter().for_each(|line| eprint_line(line));
            }
            sweeping.search(goals, search)?
        }
        None => sweeping.run_listed()?,
    };
    print_result(args, &outline, sweeping.file, ended)
}

/// Describes the cost of the search.
fn forecast(args: &Args, outline: &SweepPlan, goals: &Criteria, search: &MaxLoadSearch) -> Vec<String> {
    let first = outline.search_run(search.start, 1, false);
    let by = outline.plan.search.as_ref().map_or(LoadAxis::Rate, |sought| sought.by);
    let (run_s, requests) = (outline.run_seconds(&first), outline.requests(&first));
    SearchForecast { search, goals, by, run_s, requests, sustain_s: args.sustain.as_secs() }.lines()
}

/// Prints the result of all runs.
fn print_result(args: &Args, outline: &SweepPlan, file: SweepFile, ended: SweepStop) -> anyhow::Result<ExitCode> {
    let (answer, nothing) = (file.answer, file.runs.is_empty());
    let sweep = Sweep::read(&args.out, file, &SweepReportOptions::default().with_default_percentiles())?;
    let printed = print(&if args.json { sweep.json() } else { render(&sweep, text_layout(false)) })?;
    if ended == SweepStop::Stopped {
        eprint_line("stopped: start it again to go on");
    }
    let missed = !args.fail_if.is_empty() && sweep.misses_goals();
    Ok(match (ended, &outline.goals, answer) {
        (SweepStop::Failed(code), ..) => ExitCode::from(code),
        (SweepStop::Stopped, Some(_), None) => ExitCode::from(EXIT_INVALID_RUN),
        (SweepStop::Stopped, ..) if nothing => ExitCode::from(EXIT_INVALID_RUN),
        (_, Some(_), Some(SearchOutcome { not_measured: Some(_), .. })) => ExitCode::from(EXIT_INVALID_RUN),
        (_, Some(_), Some(SearchOutcome { met: None, .. })) => ExitCode::from(EXIT_SLO_MISSED),
        (_, None, _) if !sweep.is_valid() => ExitCode::from(EXIT_INVALID_RUN),
        _ if missed => ExitCode::from(EXIT_SLO_MISSED),
        _ => printed,
    })
}
