//! `streamgauge plan`: replicas, GPUs and cost of a traffic, from a measured capacity or by a twin.

mod twin;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgGroup, ValueHint};

use crate::cli::terminal::{print, text_layout, usage_error};
use crate::cli::trace_input::ensure_rereadable;
use crate::cli::values::{at_least_one, parse_duration, percent_up_to};
use crate::cli::verb_help::VerbHelp;
use crate::measure::time::Gap;
use crate::replay::plan::trace_source::{self, TraceReadOptions, TraceSource};
use crate::report::plan::arrivals::{ArrivalCounter, Arrivals};
use crate::report::plan::fleet::ReplicaCost;
use crate::report::plan::load_mix::LoadMix;
use crate::report::plan::measured_sweep::MeasuredSweep;
use crate::report::plan::objective::PlanObjective;
use crate::report::plan::replicas::Reserves;
use crate::report::plan::simulated::render;
use crate::report::plan::{CapacityPlan, Traffic, html, markdown, text};
use crate::report::sweep::file::SweepFile;
use twin::TwinQuestion;

/// Paragraphs are single lines: clap wraps them to the terminal.
const ABOUT: &str = "\
Plan the replicas that traffic needs under an SLO, and their cost

With --measured, the capacity of one replica is the highest rate of a sweep at which the SLO holds. Levels that are \
saturated, not valid or not measured never count. The plan has its interval, and is `at least` if no level missed the SLO.

With --twin, fleets of the twin run the traffic in virtual time: each window gets the fewest replicas that keep the SLO in \
it. The twin's held-out error gives the interval, and the plan marks where it extrapolates. It is SIMULATED.

TRAFFIC is a capture, a trace in any format that `streamgauge trace` reads, or a rate such as 12/s, 300/min or 5000/h. \
The arrivals of a sampled capture are scaled to all sessions. Replicas follow the rate of windows of a minute. A failed replica, headroom and the start-up time each add replicas; the \
report shows what each costs and what it prevents. It also shows what planning by raw throughput would buy, and how many \
requests would miss the SLO. Every assumption is listed.

Exit codes: 0 success; 1 no level of the sweep holds the SLO; 2 wrong usage, or files that cannot be read.";

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &["measured", "twin", "traffic", "slo", "gpus-per-replica", "price", "html"],
    examples: &[
        (
            "Plan the GPUs of a captured day",
            "streamgauge plan --measured sweep1 --traffic capture/ \\
      --slo 'chat: ttft<=500ms tpot<=50ms' --gpus-per-replica 8",
        ),
        (
            "Plan for 40 requests per second, with cost",
            "streamgauge plan --measured sweep1 --traffic 40/s \\
      --slo 'ttft.p99<=500ms' --gpus-per-replica 8 --price 2.5/gpu-h",
        ),
        (
            "Plan by simulation, with a twin of the server",
            "streamgauge plan --twin twin.json --traffic capture/ \\
      --slo 'chat: ttft<=500ms tpot<=50ms'",
        ),
        (
            "Write a page with the replicas under the arrivals",
            "streamgauge plan --measured sweep1 --traffic trace.jsonl --html > plan.html",
        ),
    ],
};

/// Plan the replicas that traffic needs under an SLO, and their cost
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT)]
#[command(group = ArgGroup::new("format"), group = ArgGroup::new("capacity").required(true))]
pub(super) struct Args {
    /// Folder of a sweep of one replica (`sweep --out`)
    #[arg(long, value_name = "SWEEP", value_hint = ValueHint::DirPath, group = "capacity")]
    measured: Option<PathBuf>,

    /// Simulate replicas of this twin instead (`twin fit -o`); needs --slo
    #[arg(long, value_name = "TWIN", value_hint = ValueHint::FilePath, group = "capacity", requires = "objectives")]
    twin: Option<PathBuf>,

    /// Router of the simulated replicas: round-robin, least-loaded, session, prefix or length:TOKENS
    #[arg(long, value_name = "ROUTER", default_value = "round-robin", conflicts_with = "measured")]
    router: String,

    /// Plan with the series that has this level, if the levels of the sweep differ in more than their load
    #[arg(long, value_name = "LEVEL", conflicts_with = "twin")]
    series: Option<String>,

    /// Capture, trace, or with --measured a rate, e.g. 12/s
    #[arg(long, value_name = "TRAFFIC", value_hint = ValueHint::AnyPath)]
    traffic: String,

    /// Plan for this SLO, e.g. 'chat: ttft<=500ms' or 'ttft.p99<=500ms'; may be repeated [default: that of the sweep]
    ///
    /// An SLO with a name needs the goodput that the sweep required with --fail-if, or 95 %.
    #[arg(long = "slo", value_name = "SLO")]
    objectives: Vec<PlanObjective>,

    /// Leave this share of each replica's capacity free
    #[arg(long, value_name = "PERCENT", default_value = "20%", value_parser = headroom, help_heading = "Reserves")]
    headroom: f64,

    /// Plan for this number of replicas that fail at once
    #[arg(long, value_name = "COUNT", default_value = "1", help_heading = "Reserves")]
    fail: u16,

    /// Order a replica this long before it is needed
    #[arg(long, value_name = "DURATION", default_value = "3m", value_parser = parse_duration, help_heading = "Reserves")]
    start_up: Gap,

    /// GPUs of the measured replica [default: the sweep's --meta gpu_count]
    #[arg(long, value_name = "COUNT", value_parser = at_least_one(), help_heading = "Cost")]
    gpus_per_replica: Option<u32>,

    /// Price of a GPU-hour in dollars, e.g. 2.5/gpu-h
    #[arg(long, value_name = "PRICE", value_parser = price, help_heading = "Cost")]
    price: Option<f64>,

    /// Print one JSON object
    #[arg(long, group = "format", help_heading = "Output")]
    json: bool,

    /// Print Markdown
    #[arg(long, group = "format", help_heading = "Output")]
    markdown: bool,

    /// Print one self-contained HTML page
    #[arg(long, group = "format", help_heading = "Output")]
    html: bool,

    /// Draw with ASCII characters only
    #[arg(long, conflicts_with = "format", help_heading = "Output")]
    plain: bool,
}

/// Reads both inputs, plans, prints.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let reserves = Reserves { headroom: args.headroom, failed: args.fail.into(), start_up_s: args.start_up.as_secs() };
    let cost = ReplicaCost { gpus: args.gpus_per_replica, dollars_per_gpu_hour: args.price };
    if let Some(twin) = &args.twin {
        return args.simulate(twin, reserves, cost);
    }
    let Some(folder) = &args.measured else {
        return Ok(usage_error(&anyhow::anyhow!("neither --measured nor --twin; remedy: name a sweep or a twin")));
    };
    let (sweep, traffic) = match args.inputs(folder) {
        Ok(inputs) => inputs,
        Err(error) => return Ok(usage_error(&error)),
    };
    let plan = CapacityPlan::of(sweep, &traffic, reserves, cost)?;
    print(&match () {
        () if args.json => plan.json(),
        () if args.markdown => markdown::render(&plan),
        () if args.html => html::render(&plan),
        () => text::render(&plan, text_layout(args.plain)),
    })
}

impl Args {
    /// Plans by simulation.
    fn simulate(&self, twin: &Path, reserves: Reserves, cost: ReplicaCost) -> anyhow::Result<ExitCode> {
        let traffic = match self.simulated_traffic() {
            Ok(traffic) => traffic,
            Err(error) => return Ok(usage_error(&error)),
        };
        let path = Path::new(&self.traffic);
        let plan = match TwinQuestion::new((twin, &self.router), (path, &traffic), &self.objectives, reserves) {
            Ok(question) => question.answer(cost)?,
            Err(error) => return Ok(usage_error(&error)),
        };
        print(&match () {
            () if self.json => plan.json(),
            () if self.markdown => render::markdown(&plan),
            () if self.html => render::html(&plan),
            () => render::text(&plan, text_layout(self.plain)),
        })
    }

    fn simulated_traffic(&self) -> anyhow::Result<Traffic> {
        anyhow::ensure!(
            self.price.is_none() || self.gpus_per_replica.is_some(),
            "--price: the GPUs of a replica are unknown; remedy: state them with --gpus-per-replica"
        );
        traffic(&self.traffic)
    }

    fn inputs(&self, folder: &Path) -> anyhow::Result<(MeasuredSweep, Traffic)> {
        let file = SweepFile::read(folder).map_err(anyhow::Error::msg)?;
        let Some(file) = file else {
            anyhow::bail!(
                "--measured {}: no sweep.json is there; remedy: name the folder of `streamgauge sweep --out`",
                folder.display()
            );
        };
        let sweep = MeasuredSweep::read(folder, &file, &self.objectives, self.series.as_deref())?;
        anyhow::ensure!(
            self.price.is_none() || self.gpus_per_replica.or(sweep.gpus).is_some(),
            "--price: the GPUs of a replica are unknown; remedy: state them with --gpus-per-replica"
        );
        Ok((sweep, traffic(&self.traffic)?))
    }
}

/// A rate, or else a file.
fn traffic(text: &str) -> anyhow::Result<Traffic> {
    let path = Path::new(text);
    if let Some(rate) = rate(text).filter(|_| !path.exists()) {
        let (source, arrivals) = (format!("{rate} requests/s"), Arrivals::constant(rate));
        return Ok(Traffic { source, arrivals, mix: None, sample: None, simulated: false });
    }
    ensure_rereadable(path)?;
    let opened = trace_source::open(path, TraceReadOptions::default());
    let TraceSource { header, rows, .. } = opened.map_err(|error| {
        anyhow::anyhow!("--traffic: {error}; remedy: name a capture or a trace, or give a rate such as 12/s")
    })?;
    let (mut arrivals, mut mix) = (ArrivalCounter::default(), LoadMix::default());
    for row in rows {
        let row = row.map_err(anyhow::Error::from_boxed)?;
        arrivals.take(row.at);
        mix.requests += 1;
        mix.later_turns += u64::from(row.turn.is_some_and(|turn| turn > 0));
        row.prompt.tokens.iter().for_each(|tokens| mix.input.take(*tokens));
        row.output_tokens.iter().for_each(|tokens| mix.output.take(*tokens));
        if let Some(cached) = row.prompt.cached {
            mix.cached_tokens = Some(mix.cached_tokens.unwrap_or(0).saturating_add(cached));
        }
    }
    let arrivals = arrivals.finish().map_err(|error| anyhow::anyhow!("{text}: {error}"))?;
    let sample = header.sample.filter(|share| *share > 0.0 && *share < 1.0);
    let mut traffic =
        Traffic { source: text.to_owned(), arrivals, mix: Some(mix), sample, simulated: header.simulated };
    let times = traffic.times();
    traffic.arrivals = traffic.arrivals.scaled(times);
    Ok(traffic)
}

/// Requests per second, if the text is a rate.
fn rate(text: &str) -> Option<f64> {
    let (number, seconds) = match text.split_once('/') {
        None | Some((_, "s")) => (text.strip_suffix("/s").unwrap_or(text), 1.0),
        Some((number, "min")) => (number, 60.0),
        Some((number, "h")) => (number, 3_600.0),
        Some(_) => return None,
    };
    number.trim().parse().ok().map(|number: f64| number / seconds).filter(|rate| rate.is_finite() && *rate > 0.0)
}

fn headroom(text: &str) -> Result<f64, &'static str> {
    percent_up_to(90.0, text).ok_or("expected 0% to 90%")
}

fn price(text: &str) -> Result<f64, &'static str> {
    let dollars = text.strip_suffix("/gpu-h").and_then(|dollars| dollars.trim_start_matches('$').parse::<f64>().ok());
    dollars
        .filter(|dollars| dollars.is_finite() && *dollars >= 0.0)
        .ok_or("expected dollars for each hour of a GPU, as in 2.5/gpu-h")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_a_unit_of_time_and_a_path_is_none() {
        assert_eq!([rate("12"), rate("12/s"), rate("90/min"), rate("7200/h")], [12.0, 12.0, 1.5, 2.0].map(Some));
        assert_eq!(["capture", "capture/s", "0/s", "-1", "inf", "12/day", "a/b/s"].map(rate), [None; 7]);
    }

    #[test]
    fn percents_and_prices_have_their_units() {
        assert_eq!(
            (headroom("20%"), headroom("0 %"), headroom("100%").is_err(), headroom("20").is_err()),
            (Ok(0.2), Ok(0.0), true, true)
        );
        assert_eq!(
            (price("2.5/gpu-h"), price("$3/gpu-h"), price("2.5").is_err(), price("-1/gpu-h").is_err()),
            (Ok(2.5), Ok(3.0), true, true)
        );
    }
}
