//! `streamgauge sweep`: load at many levels, by the runner of a replay, and the limit that an SLO sets.

mod level_args;
mod levels;
mod matrix;
mod plan;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use anyhow::Context as _;
use clap::ArgGroup;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use self::level_args::LevelArgs;
use self::levels::{LevelList, rates, slots};
use self::plan::{RunSpec, SweepPlan};
use super::exit_code::{EXIT_INVALID_RUN, EXIT_SLO_MISSED};
use super::runner::execute;
use super::runner::flags::{Conditions, conditions, min_goodput};
use super::signals::StopSignals;
use super::terminal::text_layout;
use super::terminal::usage_error;
use super::values::parse_positive_duration;
use super::verb_help::VerbHelp;
use crate::measure::slo::criteria::Criteria;
use crate::measure::time::Gap;
use crate::replay::plan::max_load_search::{LevelTrial, MaxLoadSearch, SearchStep};
use crate::report::sweep::file::{FlagValues, SearchOutcome, SweepFile};
use crate::report::sweep::{LevelResult, Sweep, SweepReportOptions, read_run, render};
use crate::trace_file::reader::RUN_FILE;

/// Paragraphs are single lines: clap wraps them to the terminal.
const ABOUT: &str = "\
Send load at several levels and report which of them the server sustains

Each level is a run of `streamgauge load` with its flags, or of `replay` if a TRACE is given. --rates, --concurrencies and \
--matrix list the levels. --find-max searches for the highest level that meets its goals: levels double until one fails, \
then the interval is halved. The search repeats a level if the 95 % confidence interval of its share of good requests \
contains the goal. The best level must then meet the goals again for --sustain; otherwise the search continues at lower \
levels. A level is saturated, and fails, if the number of requests in flight keeps growing.

Every level has its own prompt text, so the server's cache holds none of it. With --versus, each level is sent to two \
targets in the order A B B A, and the report compares them.

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

    /// Read levels from a YAML list; keys are `name`, `hypothesis`, `cache: cold|warm`, and flags of `load`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rates", "concurrencies"], help_heading = "Levels")]
    matrix: Option<PathBuf>,

    /// Send every level to this second target too, in the order A B B A
    #[arg(long, value_name = "URL", help_heading = "Levels")]
    versus: Option<String>,

    /// Exit with status 1 unless every level has this goodput, e.g. 'goodput>=95%'
    #[arg(long, value_name = "CONDITIONS", value_parser = conditions, help_heading = "Evaluation")]
    fail_if: Vec<Conditions>,

    #[command(flatten)]
    line: LevelArgs,
}

/// Runs what is not done yet, and tells what all came to.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    crate::cli::descriptors::raise_fd_limit();
    let usage = |said: String| Ok(usage_error(&said));
    let outline = match SweepPlan::of(args) {
        Ok(outline) => outline,
        Err(said) => return usage(said),
    };
    // Every line is read before anything is sent.
    let lines = outline
        .listed_runs()
        .into_iter()
        .chain(outline.goals.iter().map(|(_, search)| outline.search_run(search.start, 1, true)));
    for wish in lines {
        let run = outline.run_entry(&wish);
        if let Err(said) = outline.parse_level(&outline.level_flags(&run, &args.out), &wish.level) {
            return usage(said);
        }
    }
    let file = match outline.load_or_create(&args.out) {
        Ok(file) => SweepFile { goodput: min_goodput(&args.fail_if)?, ..file },
        Err(said) => return usage(said),
    };
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    file.write(&args.out).with_context(|| format!("cannot write to {}", args.out.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stop = runtime.block_on(async { StopSignals::new() }).context("cannot wait for signals")?;
    let mut sweeping = SweepRunner { args, outline: &outline, file, runtime, stop };
    let ended = match &outline.goals {
        Some((goals, search)) => sweeping.search(goals, search)?,
        None => sweeping.run_listed()?,
    };
    print_result(args, &outline, sweeping.file, ended)
}

/// Why no more is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SweepStop {
    /// All is done.
    Done,
    /// Somebody asked to stop.
    Stopped,
    /// A run could not be made; the exit code.
    Failed(u8),
}

/// A sweep that goes on.
struct SweepRunner<'a> {
    args: &'a Args,
    outline: &'a SweepPlan,
    file: SweepFile,
    runtime: Runtime,
    stop: StopSignals,
}

impl SweepRunner<'_> {
    /// Runs every level that is listed.
    fn run_listed(&mut self) -> anyhow::Result<SweepStop> {
        let wishes = self.outline.listed_runs();
        for (at, wish) in wishes.iter().enumerate() {
            let place = format!("{} of {}", at + 1, wishes.len());
            if let Err(over) = self.run_once(wish, &place)? {
                return Ok(over);
            }
        }
        Ok(SweepStop::Done)
    }

    /// Runs what the search asks for.
    fn search(&mut self, goals: &Criteria, search: &MaxLoadSearch) -> anyhow::Result<SweepStop> {
        let mut trials: Vec<LevelTrial> = Vec::new();
        let mut answered = 0.0;
        loop {
            let (level, sustained) = match search.next(&trials) {
                SearchStep::Measure(level) => (level, false),
                SearchStep::Sustain(level) => (level, true),
                SearchStep::End(found) => {
                    if found.met.is_none() && !trials.iter().any(|trial| trial.valid) {
                        crate::cli::terminal::eprint_line("error: no run is valid, so nothing is known of the server");
                        return Ok(SweepStop::Failed(EXIT_INVALID_RUN));
                    }
                    self.file.answer =
                        Some(SearchOutcome { met: found.met, missed: found.missed, sure: found.confident });
                    self.file.write(&self.args.out).context("cannot write sweep.json")?;
                    return Ok(SweepStop::Done);
                }
            };
            let pass = trials.iter().filter(|trial| trial.level == level).count() as u32 + 1;
            let wish = self.outline.search_run(level, pass, sustained);
            let place = if sustained {
                "the answer so far, for longer".to_owned()
            } else {
                format!("try {}", trials.len() + 1)
            };
            let mut measured = match self.run_once(&wish, &place)? {
                Ok(measured) => measured,
                Err(over) => return Ok(over),
            };
            let seen = measured.goal_results(goals);
            let silent = measured.successes_per_second() == 0.0;
            // A server that answers nobody, and did at a lower level, is asked for too much.
            let drowned = silent && answered > 0.0 && level > answered;
            if !drowned && (silent || seen.iter().any(|seen| seen.of == 0.0)) {
                crate::cli::terminal::eprint_line(
                    "error: no request can be judged: none was answered in full, or no objective is for them",
                );
                return Ok(SweepStop::Failed(EXIT_INVALID_RUN));
            }
            if !silent {
                answered = level.max(answered);
            }
            let saturated = drowned || measured.growth.is_some();
            let valid = drowned || measured.not_valid().is_empty();
            trials.push(LevelTrial { level, seen, saturated, valid, sustained });
        }
    }

    /// One run, if it is not done yet.
    fn run_once(&mut self, wish: &RunSpec, place: &str) -> anyhow::Result<Result<LevelResult, SweepStop>> {
        let run = self.outline.run_entry(wish);
        let folder = self.args.out.join(&run.folder);
        if self.file.runs.iter().any(|done| done.digest == run.digest) {
            return Ok(Ok(read_run(&folder, &[])?));
        }
        // What a run leaves that did not end: this folder is the sweep's own.
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        crate::cli::terminal::eprint_line(&format!("{} ({place})", run.folder.trim_start_matches("runs/")));
        if let Some(over) = self.send(&self.outline.level_flags(&run, &self.args.out), wish)? {
            return Ok(Err(over));
        }
        // Without it the next start would not know the run, and a report not its warm-up.
        anyhow::ensure!(folder.join(RUN_FILE).is_file(), "the sweep ends: {} has no {RUN_FILE}", folder.display());
        self.file.runs.push(run);
        self.file.write(&self.args.out).context("cannot write sweep.json")?;
        let measured = read_run(&folder, &[])?;
        let grown = measured.growth.map_or(String::new(), |growth| {
            format!(": saturated, {:.2} requests more in flight each second", growth.per_second)
        });
        crate::cli::terminal::eprint_line(&format!(
            "{}: {:.2} requests/s{grown}",
            wish.level.name,
            measured.successes_per_second()
        ));
        Ok(Ok(measured))
    }

    /// Sends what a command line asks for; what it gives back ends the sweep.
    fn send(&mut self, flags: &FlagValues, wish: &RunSpec) -> anyhow::Result<Option<SweepStop>> {
        let typed = self.outline.parse_level(flags, &wish.level).map_err(anyhow::Error::msg)?;
        let (ready, waiting) = oneshot::channel();
        // Apart, for it may wait long for a server: who is asked to stop leaves it behind.
        let prepare = move || ready.send((typed.prepare(), typed)).is_ok();
        thread::Builder::new().name("prepare".to_owned()).spawn(prepare).context("cannot start a thread")?;
        let waited = self.runtime.block_on(async {
            tokio::select! {
                prepared = waiting => Some(prepared),
                () = self.stop.wait() => None,
            }
        });
        let Some(prepared) = waited else { return Ok(Some(SweepStop::Stopped)) };
        let (prepared, typed) = prepared.context("the preparation of a run has panicked")?;
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(refused) => {
                let (said, code) = refused.message_and_exit_code();
                crate::cli::terminal::eprint_line(&said);
                return Ok(Some(SweepStop::Failed(code)));
            }
        };
        let sent = self.runtime.block_on(execute(typed.sending(), prepared, &mut self.stop))?;
        sent.print_invalid();
        Ok(sent.ended.stopped.then_some(SweepStop::Stopped))
    }
}

/// Tells what all runs came to.
fn print_result(args: &Args, outline: &SweepPlan, file: SweepFile, ended: SweepStop) -> anyhow::Result<ExitCode> {
    let (answer, nothing) = (file.answer, file.runs.is_empty());
    let sweep = Sweep::read(&args.out, file, &SweepReportOptions::default().with_default_percentiles())?;
    let printed =
        crate::cli::terminal::print(&if args.json { sweep.json() } else { render(&sweep, text_layout(false)) })?;
    if ended == SweepStop::Stopped {
        crate::cli::terminal::eprint_line("stopped: start it again to go on");
    }
    let missed = min_goodput(&args.fail_if)?.is_some_and(|least| sweep.is_below(least));
    Ok(match (ended, &outline.goals, answer) {
        (SweepStop::Failed(code), ..) => ExitCode::from(code),
        (SweepStop::Stopped, Some(_), None) => ExitCode::from(EXIT_INVALID_RUN),
        (SweepStop::Stopped, ..) if nothing => ExitCode::from(EXIT_INVALID_RUN),
        (_, Some(_), Some(SearchOutcome { met: None, .. })) => ExitCode::from(EXIT_SLO_MISSED),
        (_, None, _) if !sweep.is_valid() => ExitCode::from(EXIT_INVALID_RUN),
        _ if missed => ExitCode::from(EXIT_SLO_MISSED),
        _ => printed,
    })
}
