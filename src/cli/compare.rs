//! `streamgauge compare`: whether one side of runs is worse than another.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{ArgGroup, ValueEnum, ValueHint};

use super::terminal::{eprint_line, print, text_layout, usage_error};
use super::trace_input::ensure_no_page;
use super::values::{group_by, percent};
use super::verb_help::VerbHelp;
use crate::measure::slo::{Slo, Slos};
use crate::report::accumulate::AccumulatorSettings;
use crate::report::compare::history::{self, HistoryRun, RunHistory};
use crate::report::compare::level_comparison::{LevelComparisons, LevelSides};
use crate::report::compare::{ChangeCondition, ComparedRun, Comparison, ComparisonSettings, html, markdown, text};
use crate::report::filter::RequestFilter;
use crate::report::group_by::GroupBy;
use crate::report::source_reader::SourceReader;
use crate::report::sweep::file::SweepFile;

const ABOUT: &str = "\
Compare two sides of runs or captures: what changed, how sure that is, and whether it is worse

The unit is the run. Name several runs on each side to include the variation from run to run; with one run on each side, \
the intervals hold the variation within a run alone. Two sweeps are compared level by level: the passes of a level are its runs.

Each figure is worse, not worse (its whole interval stays within --margin) or undecided. Where the workloads differ, the \
verdict is withheld. Changes of goodput and of the success rate are in percentage points. Exit codes: 0 success; 1 a condition of --fail-if holds; 2 wrong usage or unreadable records.";

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &["margin", "fail-if", "undecided", "slo", "markdown", "html"],
    examples: &[
        ("Compare two runs", "streamgauge compare before after"),
        (
            "In CI, fail if three runs of a change are slower than three of its base",
            "streamgauge compare --fail-if 'ttft.p99 > +5%' base-? -- change-?",
        ),
        ("Compare two sweeps level by level", "streamgauge compare sweep-before -- sweep-after"),
        ("Write a page with both sides on one axis", "streamgauge compare before after --html > compare.html"),
        ("Find the run at which nightly results changed", "streamgauge compare --trend nightly/*"),
        ("Compare two days of production", "streamgauge compare monday/ tuesday/ --by model,hour --although different"),
    ],
};

/// Compare runs or captures: what changed, and whether it is worse
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT)]
#[command(group = ArgGroup::new("format"))]
pub(super) struct Args {
    /// Runs or captures: A B, or A1 A2 … -- B1 B2 …
    #[arg(required = true, value_name = "A", value_hint = ValueHint::AnyPath)]
    before: Vec<PathBuf>,

    /// Runs or captures of the second side
    #[arg(last = true, value_name = "B", value_hint = ValueHint::AnyPath)]
    after: Vec<PathBuf>,

    /// Find the changes in a history of runs, oldest first by their dates; exit with status 1 if a newest run is worse
    #[arg(long, conflicts_with_all = ["after", "fail_if", "although", "by"], help_heading = "Verdict")]
    trend: bool,

    /// Count a relative change up to this as not worse
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent, help_heading = "Verdict")]
    margin: f64,

    /// Exit with status 1 if the interval of a change supports this, e.g. 'ttft.p99 > +5%'; may be repeated
    #[arg(long, value_name = "CONDITION", help_heading = "Verdict")]
    fail_if: Vec<ChangeCondition>,

    /// Choose the exit status if the data does not decide a condition
    #[arg(long, value_name = "WHAT", default_value = "pass", requires = "fail_if", help_heading = "Verdict")]
    undecided: UndecidedResult,

    /// Give a verdict although the workloads differ
    #[arg(long, value_name = "WHAT", help_heading = "Verdict")]
    although: Option<AlthoughArg>,

    /// Count goodput by these objectives, e.g. 'chat: ttft<=500ms' [default: those of the first run]
    #[arg(long = "slo", value_name = "SLO", help_heading = "Verdict")]
    slos: Vec<Slo>,

    /// Use only these requests, e.g. 'model=llama-* isl>=1000'; the keys are those of report --filter
    #[arg(long, value_name = "REQUIREMENTS", help_heading = "Figures")]
    filter: Option<RequestFilter>,

    /// Also compare each group, e.g. by model,hour; the keys are those of report --by
    #[arg(long, value_name = "KEYS", value_delimiter = ',', value_parser = group_by(), help_heading = "Figures")]
    by: Vec<GroupBy>,

    /// Print one JSON object
    #[arg(long, group = "format", help_heading = "Format")]
    json: bool,

    /// Print Markdown, for a comment on a change
    #[arg(long, group = "format", help_heading = "Format")]
    markdown: bool,

    /// Print one self-contained HTML page
    #[arg(long, group = "format", help_heading = "Format")]
    html: bool,

    /// Print ASCII only
    #[arg(long, help_heading = "Format")]
    plain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum UndecidedResult {
    Pass,
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AlthoughArg {
    Different,
}

/// The folder of a sweep, and its file.
type Side = (PathBuf, SweepFile);

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    compare(args).or_else(|error| Ok(usage_error(&error)))
}

fn compare(args: &Args) -> anyhow::Result<ExitCode> {
    ensure_no_page(args.before.iter().chain(&args.after))?;
    let sweeps = args.sweeps()?;
    if let Some((before, after)) = sweeps {
        return args.compare_sweeps(&before, &after);
    }
    if args.trend {
        return args.trend();
    }
    let (before, after) = args.sides()?;
    let open = |paths: &[PathBuf]| paths.iter().map(|path| SourceReader::open(path)).collect::<Result<Vec<_>, _>>();
    let (before, after) = (open(before)?, open(after)?);
    let slos = args.slos(before.iter().chain(&after))?;
    let read = |side: Vec<SourceReader>| -> anyhow::Result<Vec<ComparedRun>> {
        side.into_iter().map(|opened| Ok(ComparedRun::read(opened, args.settings(&slos))?)).collect()
    };
    let (mut before, mut after) = (read(before)?, read(after)?);
    let settings = args.comparison_settings();
    let comparison = Comparison::of(&mut before, &mut after, &settings);
    let printed = print(&match () {
        () if args.json => comparison.json(),
        () if args.markdown => markdown::render(&comparison),
        () if args.html => html::render(&comparison, &before, &after),
        () => text::render(&comparison, text_layout(args.plain)),
    })?;
    args.exit_code(printed, comparison.unmeasured(), comparison.fails(args.undecided == UndecidedResult::Fail))
}

impl Args {
    fn settings(&self, slos: &Slos) -> AccumulatorSettings {
        AccumulatorSettings {
            slos: slos.clone(),
            by: self.by.clone(),
            filter: self.filter.clone().unwrap_or_default(),
            ..AccumulatorSettings::default()
        }
    }

    /// Two sweeps, if the paths are.
    fn sweeps(&self) -> anyhow::Result<Option<(Side, Side)>> {
        let read = |path: &PathBuf| SweepFile::read(path).map_err(anyhow::Error::msg);
        let files: Vec<Option<SweepFile>> =
            self.before.iter().chain(&self.after).map(read).collect::<Result<_, _>>()?;
        let Some(first) = files.iter().position(Option::is_some) else { return Ok(None) };
        let paths: Vec<&PathBuf> = self.before.iter().chain(&self.after).collect();
        match (files.len(), <[Option<SweepFile>; 2]>::try_from(files)) {
            (2, Ok([Some(before), Some(after)])) if !self.trend => {
                Ok(Some(((paths[0].clone(), before), (paths[1].clone(), after))))
            }
            _ => {
                let path = paths[first].display();
                anyhow::bail!(
                    "{path} is a sweep, which has many loads; remedy: compare two sweeps, A -- B, or name runs of one load, as \
                     in {path}/runs/rate-1"
                )
            }
        }
    }

    /// Compares the levels that both sweeps have; the passes of a level are the runs of its side.
    fn compare_sweeps(&self, before: &Side, after: &Side) -> anyhow::Result<ExitCode> {
        for (path, file) in [before, after] {
            anyhow::ensure!(
                file.plan.targets.len() < 2,
                "{}: the sweep compares two targets itself; remedy: `streamgauge report {}`",
                path.display(),
                path.display()
            );
        }
        let mut levels: Vec<String> = Vec::new();
        for run in before.1.runs.iter().chain(&after.1.runs) {
            if !levels.contains(&run.level.name) {
                levels.push(run.level.name.clone());
            }
        }
        let sides = levels.into_iter().map(|level| {
            let [before, after] = [before, after].map(|(path, file)| file.level_runs(path, &level, 0));
            LevelSides { level, before, after }
        });
        let sides: Vec<LevelSides> = sides.collect();
        let first = sides.iter().find(|sides| !sides.before.is_empty() && !sides.after.is_empty());
        let first = first.context("the sweeps have no level in common with a valid run on both sides")?;
        let opened = [&first.before[0], &first.after[0]].map(|path| SourceReader::open(path));
        let [a, b] = opened;
        let slos = self.slos([a?, b?].iter())?;
        let comparisons = LevelComparisons::read(sides, &self.comparison_settings(), || self.settings(&slos))?;
        let printed = print(&match () {
            () if self.json => comparisons.json(),
            () if self.markdown => comparisons.markdown(),
            () if self.html => {
                let [before, after] = [before, after].map(|(path, _)| path.display().to_string());
                html::render_levels(&comparisons, [&before, &after])
            }
            () => comparisons.text(text_layout(self.plain)),
        })?;
        self.exit_code(printed, comparisons.unmeasured(), comparisons.fails(self.undecided == UndecidedResult::Fail))
    }

    /// A condition on a figure that was not measured would pass for ever, so it is an error.
    fn exit_code(&self, printed: ExitCode, unmeasured: Option<&str>, fails: bool) -> anyhow::Result<ExitCode> {
        if let Some(condition) = unmeasured {
            let remedy = match self.slos.is_empty() && condition.starts_with("goodput") {
                true => "add --slo, which goodput counts by",
                false => "name a figure that both sides have",
            };
            anyhow::bail!("--fail-if '{condition}': a side has no value of it; remedy: {remedy}");
        }
        Ok(if fails { ExitCode::FAILURE } else { printed })
    }

    fn comparison_settings(&self) -> ComparisonSettings {
        ComparisonSettings {
            margin: self.margin,
            although_different: self.although == Some(AlthoughArg::Different),
            conditions: self.fail_if.clone(),
        }
    }

    /// One run after the other is open: a history may be longer than the limit of open files.
    fn trend(&self) -> anyhow::Result<ExitCode> {
        let newest = SourceReader::open(self.before.last().context("no runs")?)?;
        let slos = self.slos(std::iter::once(&newest))?;
        drop(newest);
        let read = |path: &PathBuf| HistoryRun::read(SourceReader::open(path)?, self.settings(&slos));
        let runs = self.before.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let history = RunHistory::of(runs, &slos, self.margin).context("no runs")?;
        let printed = print(&match () {
            () if self.json => history.json(),
            () if self.markdown => history::text::markdown(&history),
            () if self.html => history::html::render(&history),
            () => history::text::render(&history, text_layout(self.plain)),
        })?;
        Ok(if history.new_regressions().next().is_some() { ExitCode::FAILURE } else { printed })
    }

    /// Two paths without `--` are one of each side.
    fn sides(&self) -> anyhow::Result<(&[PathBuf], &[PathBuf])> {
        if let Some(flag) = self.after.iter().find(|path| path.to_string_lossy().starts_with("--")) {
            anyhow::bail!("{} follows `--`, so it is a path; remedy: write options before the runs", flag.display());
        }
        match (&self.before[..], &self.after[..]) {
            ([_, _], []) => Ok(self.before.split_at(1)),
            (_, []) => anyhow::bail!("name two runs, or the runs of both sides with `--` between them: A1 A2 -- B1 B2"),
            sides => Ok(sides),
        }
    }

    /// Those that are given, else those of the first run. Runs that were judged by others are judged anew.
    fn slos<'a>(&self, opened: impl Iterator<Item = &'a SourceReader>) -> anyhow::Result<Slos> {
        let own = opened.map(|opened| &opened.source.slos).collect::<Vec<_>>();
        let given = match self.slos.is_empty() {
            false => self.slos.clone(),
            true => {
                if own.iter().any(|other| *other != own[0]) {
                    eprint_line("note: the runs were judged by different SLOs; all are judged by those of the first");
                }
                let parse = |text: &String| text.parse().map_err(|error| anyhow::anyhow!("{error}"));
                own[0].iter().map(parse).collect::<anyhow::Result<_>>()?
            }
        };
        Slos::new(given).map_err(anyhow::Error::msg)
    }
}
