//! `streamgauge report`: figures of captures, runs and sweeps.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, ValueHint};

use super::production::production_baseline;
use super::runner::flags::evaluation::{Conditions, conditions, sweep_goals};
use super::terminal::{eprint_line, text_layout, usage_error};
use super::tool_report::{ReportFormat, aiperf_time_slices};
use super::trace_input::{digest, ensure_no_page, ensure_rereadable};
use super::values::{group_by, parse_duration, positive};
use super::verb_help::VerbHelp;
use crate::measure::slo::{Slo, Slos};
use crate::measure::time::{Gap, Window};
use crate::report::accumulate::{Accumulator, AccumulatorSettings};
use crate::report::condition::Condition;
use crate::report::definitions::Definitions;
use crate::report::filter::RequestFilter;
use crate::report::group_by::GroupBy;
use crate::report::hardware::{Hardware, MemoryBandwidth};
use crate::report::metric::ReportMetric;
use crate::report::page::run::{self as page, RunCharts, gaps_over_time};
use crate::report::peer_files::summary::PeerSummary;
use crate::report::side_by_side::ToolFigures;
use crate::report::source_error::SourceError;
use crate::report::source_reader::{SourceReader, read};
use crate::report::sweep::file::SweepFile;
use crate::report::sweep::{self, Sweep, SweepReportOptions};
use crate::report::{PERCENTILES, Report, csv, llmd, markdown, peer_summary, text};
use crate::trace_file::header::SIMULATED;
use crate::trace_file::run_files::runs_below;

/// Paragraphs are single lines: clap wraps them to the terminal.
const ABOUT: &str = "\
Report latencies, rates and goodput of a capture, a run or a sweep

PATH is a capture (`streamgauge proxy --capture`), the folder of a run (`replay --out`, `load --out`) or of a sweep (`sweep \
--out`), or one file of rows. Several paths give one report, as if all rows were in one file: list all shards of a run. A \
sweep is a report by itself: levels, the level at which the SLO fails, Pareto front and knee.

PATH may also be a result of another tool: profile_export.jsonl of AIPerf, the JSON of `vllm bench serve --save-detailed`, \
the file of SGLang's bench_serving, benchmarks.json of GuideLLM (FILE#2 for its second benchmark) or per_request_lifecycle_metrics.json of inference-perf. A \
summary without requests is printed as it is.

Latencies are those of successful requests, computed exactly from all records; failures are counted separately. For a run, \
latencies are reported from the planned time, which is the user's view, and from the time of sending. SLOs are evaluated \
when the report is made, so a new SLO needs no new run.

Tools define ITL and TPOT differently. --definitions computes the figures as another tool would, for comparison with its \
results.

For a run, the report also compares the planned load with the load that was sent. --source names the trace of the run; if it \
is a capture, the report adds production's latencies.

Exit codes: 0 success; 1 --fail-if applies; 2 wrong usage, or records that cannot be read.";

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &["slo", "fail-if", "source", "by", "json", "html"],
    examples: &[
        ("Report a run", "streamgauge report run1"),
        ("Evaluate a capture by a new SLO", "streamgauge report capture/ --slo 'chat: ttft<=500ms tpot<=50ms'"),
        (
            "In CI, fail if fewer than 95 % of requests meet the SLO",
            "streamgauge report run1 --slo 'chat: ttft<=500ms' --fail-if 'goodput<95%'",
        ),
        (
            "Merge the shards of one run, by model, as JSON",
            "streamgauge report shard-1 shard-2 shard-3 shard-4 --by model --json",
        ),
        ("Evaluate a result of AIPerf by an SLO", "streamgauge report artifacts/ --slo 'chat: ttft<=500ms'"),
        ("Compare a run with the capture that it was made from", "streamgauge report run1 --source capture/"),
    ],
};

/// Slices of less are no slices: requests take longer.
const MIN_SLICE: Gap = Gap::from_millis(1);
/// Report latencies, rates and goodput of a capture, a run or a sweep
#[derive(Clone, Debug, clap::Args)]
#[command(long_about = ABOUT)]
#[command(group = ArgGroup::new("format"))]
pub(super) struct Args {
    /// Captures, folders of runs, files of rows, or results of other tools
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,

    /// Count goodput by these objectives, e.g. 'chat: ttft<=500ms tpot<=50ms' [default: those of the run]
    #[arg(long = "slo", value_name = "SLO", help_heading = "Evaluation")]
    slos: Vec<Slo>,

    /// Exit with status 1 unless these hold, e.g. 'ttft.p95<=1s goodput>=95%'; may be repeated
    ///
    /// A condition may also state what must not hold, e.g. 'goodput<95%'. A failed request counts as slower than any limit.
    #[arg(long, value_name = "CONDITIONS", value_parser = conditions, help_heading = "Evaluation")]
    fail_if: Vec<Conditions>,

    /// Use only these requests, e.g. 'model=llama-* isl>=1000 status=200'
    ///
    /// Keys: model, server, dialect, outcome, session (= and !=, `*` for anything); status, isl, osl, cached, turn, in_flight.
    #[arg(long, value_name = "REQUIREMENTS", help_heading = "Figures")]
    filter: Option<RequestFilter>,

    /// Compare the runs with the trace that they were made from
    #[arg(long, value_name = "TRACE", value_hint = ValueHint::AnyPath, help_heading = "Figures")]
    source: Option<PathBuf>,

    /// Define latencies as this tool does; `all` adds a table of what each tool would have reported
    #[arg(long, value_name = "TOOL", help_heading = "Figures", default_value = "streamgauge", value_parser = definition_names())]
    definitions: String,

    /// Add the bound of the memory bandwidth on TPOT, e.g. bandwidth=4.8TB/s
    ///
    /// The bandwidth is that of all GPUs that hold one copy of the model.
    #[arg(long, value_name = "HARDWARE", help_heading = "Hardware", requires_all = ["params", "bytes_per_param"])]
    hardware: Option<MemoryBandwidth>,

    /// Parameters that a decode step reads, e.g. 8e9; of a mixture of experts those of its active experts
    #[arg(long, value_name = "N", help_heading = "Hardware", requires = "hardware", value_parser = positive)]
    params: Option<f64>,

    /// Bytes of a parameter: 2 for bf16, 1 for fp8, 0.5 for 4 bits
    #[arg(long, value_name = "BYTES", help_heading = "Hardware", requires = "hardware", value_parser = positive)]
    bytes_per_param: Option<f64>,

    /// Bytes that a token adds to the KV cache, e.g. 131072; adds the reads of the KV cache to the bound
    #[arg(long, value_name = "BYTES", help_heading = "Hardware", requires = "hardware", value_parser = positive)]
    kv_bytes_per_token: Option<f64>,

    /// Report these percentiles, e.g. 50,95,99.9
    #[arg(long, value_name = "LIST", help_heading = "Figures", value_delimiter = ',', value_parser = percentile)]
    percentiles: Vec<f64>,

    /// Also report each time slice of this length, at least 1ms, by the start of requests
    #[arg(long, value_name = "DURATION", help_heading = "Figures", value_parser = slice)]
    slice: Option<Gap>,

    /// Also report each group, e.g. by model,isl-bucket; buckets are powers of two
    #[arg(long, value_name = "KEYS", help_heading = "Figures", value_delimiter = ',', value_parser = group_by())]
    by: Vec<GroupBy>,

    /// Print one JSON object
    #[arg(long, group = "format", help_heading = "Output")]
    json: bool,

    /// Print CSV, one line per figure
    #[arg(long, group = "format", help_heading = "Output")]
    csv: bool,

    /// Print Markdown
    #[arg(long, group = "format", help_heading = "Output")]
    markdown: bool,

    /// Print one self-contained HTML page
    #[arg(long, group = "format", help_heading = "Output")]
    html: bool,

    /// Print the file of another tool
    #[arg(long, group = "format", value_name = "FORMAT", help_heading = "Output")]
    out_format: Option<ReportFormat>,

    /// Draw with ASCII characters only
    #[arg(long, conflicts_with = "format", help_heading = "Output")]
    plain: bool,
}

/// Reads, adds up, prints, judges.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    run_report(args).or_else(|error| Ok(usage_error(&error)))
}

fn run_report(args: &Args) -> anyhow::Result<ExitCode> {
    ensure_no_page(&args.paths)?;
    let args = &args.with_runs_below()?;
    for path in &args.paths {
        if let Some(file) = SweepFile::read(path).map_err(anyhow::Error::msg)? {
            return args.sweep(path, file);
        }
    }
    let mut seen = HashSet::new();
    for path in &args.paths {
        let again = fs::canonicalize(path).is_ok_and(|whole| !seen.insert(whole));
        anyhow::ensure!(!again, "{} is named twice; its requests would count twice", path.display());
    }
    let opened = match args.paths.iter().map(|path| SourceReader::open(path)).collect::<Result<Vec<_>, _>>() {
        Err(SourceError::OnlySummary(summary)) if args.paths.len() == 1 => return args.peer_summary(&summary),
        opened => opened?,
    };
    let settings = AccumulatorSettings {
        definitions: Definitions::ALL.into_iter().find(|of| of.name() == args.definitions).unwrap_or_default(),
        slos: Slos::new(args.slos(&opened)?).map_err(anyhow::Error::msg)?,
        slice: args.slice,
        by: args.by.clone(),
        conditions: args.fail_if.concat(),
        filter: args.filter.clone().unwrap_or_default(),
        keeps_lanes: args.html,
        gaps_by_request: false,
    };
    anyhow::ensure!(
        args.slice.is_some() || !args.out_format.is_some_and(ReportFormat::needs_slices),
        "--out-format: AIPerf's time slices need a length; remedy: add --slice, as in --slice 10s"
    );
    anyhow::ensure!(
        !settings.conditions.iter().any(Condition::needs_slos) || settings.slos.iter().next().is_some(),
        "--fail-if has no goodput to judge; remedy: define it with --slo"
    );
    let mut fold = Accumulator::new(settings);
    let sources = read(opened, &mut fold)?;
    let given = !args.percentiles.is_empty();
    let percentiles = if given { &args.percentiles[..] } else { &PERCENTILES };
    let shown = if given { &args.percentiles[..] } else { &text::PERCENTILES };
    let window = sources.iter().find(|source| source.run).map_or_else(Window::default, |source| source.trace_window);
    let sent = sources.iter().find_map(|source| source.trace_digest.clone());
    let named = sources.iter().find_map(|source| source.trace.clone());
    let gaps = args.html.then_some(&fold).map(gaps_over_time).unwrap_or_default();
    let mut report = Report::of(&mut fold, sources, percentiles);
    if let Some(hardware) = args.hardware() {
        report = report.with_hardware(&hardware);
    }
    if args.definitions == ALL_DEFINITIONS {
        report.side_by_side = args.side_by_side(&fold.settings.slos)?;
    }
    if let (None, Some(trace)) = (&args.source, named)
        && let Some(mut production) =
            captured_production(Path::new(&trace), sent.as_deref(), window, fold.settings.definitions)
    {
        report = report.with_production(trace, &mut production, percentiles);
    }
    if let Some(source) = &args.source {
        if sent.is_some() {
            ensure_rereadable(source).context("--source")?;
            if sent != digest(source)? {
                eprint_line(&format!(
                    "note: {} is not the trace that was sent: its bytes are others",
                    source.display()
                ));
            }
        }
        let (mut production, lost) = production_baseline(source, window, fold.settings.definitions)?;
        lost.unconverted_note().iter().for_each(|note| eprint_line(note));
        report = report.with_production(source.display().to_string(), &mut production, percentiles);
    }
    let of_slices = args.out_format.filter(|format| format.needs_slices()).zip(args.slice);
    let words = match of_slices {
        Some((format, slice)) => {
            // The format has no place for the mark.
            let simulated = report.sources.iter().filter(|source| source.simulated);
            simulated.for_each(|source| eprint_line(&format!("note: {} is {SIMULATED}", source.path)));
            aiperf_time_slices(format, &args.paths, slice, &fold, args.filter.clone().unwrap_or_default())?
        }
        None if args.json => report.json(),
        None if args.csv => csv::render(&report),
        None if args.markdown => markdown::render(&report, shown),
        None if args.html => page::render(&report, &mut RunCharts::new(&mut fold, gaps), shown),
        None if args.out_format == Some(ReportFormat::Llmd) => llmd::render(&report),
        None => text::render(&report, shown, text_layout(args.plain)),
    };
    let printed = crate::cli::terminal::print(&words)?;
    Ok(if report.fails() { ExitCode::FAILURE } else { printed })
}

/// The results of the capture that a run was made from, if it is still there, has the bytes that were sent, and has
/// results. The user did not ask for it, so everything else is silence.
fn captured_production(
    trace: &Path,
    sent: Option<&str>,
    window: Window,
    definitions: Definitions,
) -> Option<Accumulator> {
    let is_same = ensure_rereadable(trace).is_ok() && digest(trace).ok()?.as_deref() == sent;
    if !is_same {
        return None;
    }
    let (production, _) = production_baseline(trace, window, definitions).ok()?;
    let has_results = !production.total.samples[ReportMetric::E2e as usize].is_empty();
    has_results.then_some(production)
}

impl Args {
    /// Replaces each prefix of object storage that has runs by these.
    fn with_runs_below(&self) -> anyhow::Result<Self> {
        let mut paths = Vec::new();
        for path in &self.paths {
            let runs = runs_below(path).with_context(|| format!("cannot list {}", path.display()))?;
            if runs.is_empty() { paths.push(path.clone()) } else { paths.extend(runs) }
        }
        Ok(Self { paths, ..self.clone() })
    }

    fn hardware(&self) -> Option<Hardware> {
        Some(Hardware {
            bandwidth: self.hardware?,
            params: self.params?,
            bytes_per_param: self.bytes_per_param?,
            kv_bytes_per_token: self.kv_bytes_per_token,
        })
    }

    /// Reads the requests once for each tool: the values of all tools at once would need ten times the memory.
    fn side_by_side(&self, slos: &Slos) -> anyhow::Result<Vec<ToolFigures>> {
        let of = |definitions: Definitions| {
            let opened = self.paths.iter().map(|path| SourceReader::open(path)).collect::<Result<Vec<_>, _>>()?;
            let filter = self.filter.clone().unwrap_or_default();
            let settings = AccumulatorSettings { definitions, slos: slos.clone(), filter, ..Default::default() };
            let mut fold = Accumulator::new(settings);
            read(opened, &mut fold)?;
            Ok(ToolFigures::of(definitions, &mut fold))
        };
        Definitions::ALL.into_iter().map(of).collect()
    }

    /// Those that are given now, else those that all runs were judged by.
    fn slos(&self, opened: &[SourceReader]) -> anyhow::Result<Vec<Slo>> {
        if !self.slos.is_empty() {
            return Ok(self.slos.clone());
        }
        let of = |opened: &SourceReader| opened.source.slos.clone();
        let Some(first) = opened.first().map(of) else { return Ok(Vec::new()) };
        if opened.iter().any(|other| other.source.slos != first) {
            eprint_line("note: the runs were not judged by the same SLOs; --slo sets those to judge by");
            return Ok(Vec::new());
        }
        first.iter().map(|text| text.parse().map_err(|error| anyhow::anyhow!("{error}"))).collect()
    }

    /// The figures of another tool's file without requests.
    fn peer_summary(&self, summary: &PeerSummary) -> anyhow::Result<ExitCode> {
        let of_requests = [
            ("--slo", !self.slos.is_empty()),
            ("--fail-if", !self.fail_if.is_empty()),
            ("--filter", self.filter.is_some()),
            ("--source", self.source.is_some()),
            ("--definitions", self.definitions != Definitions::default().name()),
            ("--percentiles", !self.percentiles.is_empty()),
            ("--slice", self.slice.is_some()),
            ("--by", !self.by.is_empty()),
            ("--hardware", self.hardware.is_some()),
            ("--html", self.html),
            ("--out-format", self.out_format.is_some()),
        ];
        if let Some((flag, _)) = of_requests.iter().find(|(_, given)| *given) {
            let (path, remedy) = (&summary.path, &summary.remedy);
            anyhow::bail!(
                "{flag} needs requests, and {path} is only a summary, with no distribution; remedy: {remedy}"
            );
        }
        super::terminal::print(&match () {
            () if self.json => peer_summary::json(summary),
            () if self.csv => peer_summary::csv(summary),
            () if self.markdown => peer_summary::markdown(summary),
            () => peer_summary::text(summary),
        })
    }

    /// The report of a sweep.
    fn sweep(&self, path: &Path, file: SweepFile) -> anyhow::Result<ExitCode> {
        let shown = path.display();
        anyhow::ensure!(
            self.paths.len() == 1,
            "{shown} is a sweep, and has a report by itself; name it alone, or name its runs"
        );
        let own = Definitions::default().name();
        let of_runs = [
            ("--source", self.source.is_some()),
            ("--slice", self.slice.is_some()),
            ("--by", !self.by.is_empty()),
            ("--hardware", self.hardware.is_some()),
            ("--out-format", self.out_format.is_some()),
            ("--definitions", self.definitions != own),
        ];
        if let Some((flag, _)) = of_runs.iter().find(|(_, given)| *given) {
            anyhow::bail!(
                "{flag} is for runs, and {shown} is a sweep; name one of its runs, as in {shown}/runs/rate-1"
            );
        }
        let goals = sweep_goals(&self.fail_if)?;
        let fails = goals.is_some();
        let mut options = SweepReportOptions { slos: self.slos.clone(), goals, ..SweepReportOptions::default() }
            .with_default_percentiles();
        if !self.percentiles.is_empty() {
            options.percentiles.clone_from(&self.percentiles);
        }
        options.has_intervals = self.html;
        let sweep = Sweep::read(path, file, &options)?;
        let words = match () {
            () if self.json => sweep.json(),
            () if self.csv => sweep::csv(&sweep),
            () if self.markdown => sweep::markdown(&sweep),
            () if self.html => sweep::html::render(&sweep),
            () => sweep::render(&sweep, text_layout(self.plain)),
        };
        let printed = crate::cli::terminal::print(&words)?;
        let missed = fails && sweep.misses_goals();
        Ok(if missed { ExitCode::FAILURE } else { printed })
    }
}

/// Value of `--definitions` that adds the table of all tools.
const ALL_DEFINITIONS: &str = "all";

fn definition_names() -> PossibleValuesParser {
    PossibleValuesParser::new(Definitions::ALL.map(Definitions::name).into_iter().chain([ALL_DEFINITIONS]))
}

fn percentile(text: &str) -> Result<f64, &'static str> {
    let percent = text.trim().parse().ok().filter(|percent: &f64| (0.0..=100.0).contains(percent));
    percent.ok_or("expected a number from 0 to 100, as in 99.9")
}

fn slice(text: &str) -> Result<Gap, String> {
    let length = parse_duration(text).map_err(|error| error.to_string())?;
    if length < MIN_SLICE { Err(format!("expected {MIN_SLICE} or more")) } else { Ok(length) }
}
