//! `streamgauge twin run`: traffic through variants of a fleet.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueHint;

use super::result_notes::result_notes;
use super::table;
use super::variant::Variant;
use crate::cli::parallel::parallel;
use crate::cli::terminal::{eprint_line, print, usage_error};
use crate::cli::trace::flags::{FormatName, ScaleFactor};
use crate::cli::trace::notes;
use crate::cli::trace_input::{digest, ensure_rereadable};
use crate::cli::values::{at_least_one, parse_duration};
use crate::engine::EngineOptions;
use crate::measure::slo::{Slo, Slos};
use crate::measure::time::{Gap, Stamp};
use crate::replay::plan::trace_source::{self, TraceReadOptions, TraceSource};
use crate::trace::scale::RateScale;
use crate::twin::fleet::FleetOptions;
use crate::twin::model::TwinModel;
use crate::twin::operations::{AutoscaleRule, Operations, ReplicaFailure};
use crate::twin::parameter::Parameter;
use crate::twin::router::Router;

/// Most variants of one command.
const MAX_VARIANTS: usize = 256;
/// Copies of scaled traffic start within this time, as in `trace scale`.
pub(in crate::cli) const COPY_OFFSET: Gap = Gap::from_millis(10_000);

/// Run traffic through a twin in virtual time, and print what would have happened
///
/// Each combination of --replicas and --router is a variant; variants run side by side on all cores. With --out, each
/// writes a run that `report` and `compare` read. Every result is SIMULATED.
///
/// Exit codes: 0 success; 1 a file could not be written; 2 wrong usage, or files that cannot be read.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    /// Twin to run (twin.json)
    #[arg(value_name = "TWIN", value_hint = ValueHint::FilePath)]
    pub(super) twin: PathBuf,

    /// Capture, or trace in any format that `streamgauge trace` reads
    #[arg(long, value_name = "TRAFFIC", value_hint = ValueHint::AnyPath)]
    pub(super) traffic: PathBuf,

    /// Write the run into DIR; of several variants, each into a folder of DIR
    #[arg(long, short, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(super) out: Option<PathBuf>,

    /// Multiply the request rate, e.g. 2x: copies of the traffic with other ids
    #[arg(long, value_name = "TIMES", help_heading = "Traffic")]
    pub(super) scale: Option<ScaleFactor>,

    /// Format of the traffic [default: detected]
    #[arg(long, value_name = "FORMAT", help_heading = "Traffic")]
    input_format: Option<FormatName>,

    /// Tokens per block, if the format does not define it
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Traffic")]
    block_size: Option<u32>,

    /// Seed for the draws of --scale
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Traffic")]
    pub(super) seed: u64,

    /// Replicas of each model: a number, a list 1,2,4 or a range 1..8 [default: the twin's engines of the model]
    #[arg(long, value_name = "LIST", value_parser = replicas, help_heading = "Fleet")]
    replicas: Option<ReplicaList>,

    /// Router: round-robin, least-loaded, session, prefix, length:TOKENS or pools:prefill=N,decode=N; may be repeated
    #[arg(long = "router", value_name = "ROUTER", default_value = "round-robin", help_heading = "Fleet")]
    routers: Vec<String>,

    /// Change a parameter of the engines, e.g. kv-blocks=8192 or prefix-cache=0; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting, help_heading = "Fleet")]
    settings: Vec<(Parameter, f64)>,

    /// Fail a replica, which loses its requests and starts again, e.g. replica=1,at=10m; may be repeated
    #[arg(long = "fail", value_name = "FAILURE", value_parser = failure, help_heading = "Operations")]
    failures: Vec<ReplicaFailure>,

    /// Time until a failed or an ordered replica takes requests
    #[arg(long, value_name = "DURATION", default_value = "3m", value_parser = parse_duration, help_heading = "Operations")]
    start_up: Gap,

    /// Scale the replicas to keep a mean per replica: 'in-flight>32', 'waiting>4' or 'kv>0.8', with ',max=N'
    #[arg(long, value_name = "RULE", help_heading = "Operations")]
    autoscale: Option<AutoscaleRule>,

    /// Answer 429 to further requests while N are in flight in a fleet
    #[arg(long, value_name = "N", value_parser = at_least_one(), help_heading = "Operations")]
    admission: Option<u32>,

    /// Report goodput under this SLO, e.g. 'chat: ttft<=500ms tpot<=50ms'; may be repeated
    #[arg(long = "slo", value_name = "SLO", help_heading = "Evaluation")]
    pub(super) slos: Vec<Slo>,

    /// Print one JSON object
    #[arg(long, help_heading = "Evaluation")]
    json: bool,
}

/// Numbers of replicas.
#[derive(Clone, Debug)]
struct ReplicaList(Vec<u32>);

fn replicas(text: &str) -> Result<ReplicaList, String> {
    let wrong = || "expected a number, a list such as 1,2,4 or a range such as 1..8".to_owned();
    let count = |text: &str| text.trim().parse::<u32>().ok().filter(|count| (1..=65_536).contains(count));
    if let Some((from, to)) = text.split_once("..") {
        let (Some(from), Some(to)) = (count(from), count(to)) else { return Err(wrong()) };
        return if from <= to { Ok(ReplicaList((from..=to).collect())) } else { Err(wrong()) };
    }
    text.split(',').map(|part| count(part).ok_or_else(wrong)).collect::<Result<_, _>>().map(ReplicaList)
}

fn setting(text: &str) -> Result<(Parameter, f64), String> {
    let names = || Parameter::ALL.map(Parameter::name).join(", ");
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, as in kv-blocks=8192")?;
    let parameter = Parameter::named(name).ok_or_else(|| format!("no such parameter; there are {}", names()))?;
    let number = value.parse::<f64>().ok();
    let time = || parse_duration(value).ok().filter(|_| parameter.unit() == "ns").map(|time| time.as_nanos() as f64);
    let value = number.or_else(time).ok_or_else(|| format!("expected a number ({})", parameter.unit()))?;
    parameter.apply(value, &mut EngineOptions::default())?;
    Ok((parameter, value))
}

fn failure(text: &str) -> Result<ReplicaFailure, String> {
    let wrong = || "expected replica=NUMBER,at=TIME, as in replica=1,at=10m".to_owned();
    let find = |name: &str| text.split(',').find_map(|part| part.split_once('=').filter(|(key, _)| *key == name));
    let (Some((_, replica)), Some((_, at))) = (find("replica"), find("at")) else { return Err(wrong()) };
    let replica = replica.parse::<usize>().ok().and_then(|number| number.checked_sub(1)).ok_or_else(wrong)?;
    let at = parse_duration(at).map_err(|_| wrong())?;
    Ok(ReplicaFailure { replica, at: Stamp::default().after(at) })
}

/// Reads both inputs, runs all variants, prints.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let (model, variants) = match args.variants() {
        Ok(variants) => variants,
        Err(error) => return Ok(usage_error(&error)),
    };
    let digest = args.out.as_ref().map(|_| digest(&args.traffic)).transpose()?.flatten();
    let results = parallel(&variants, |variant| variant.run(args, digest.as_deref()));
    let results = results.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    result_notes(&model, &results).iter().for_each(|note| eprint_line(note));
    match args.json {
        true => print(&(serde_json::to_string_pretty(&table::document(&model, &args.slos, &results))? + "\n")),
        false => print(&table::text(&model, &args.slos, &results)),
    }
}

impl RunArgs {
    fn variants(&self) -> anyhow::Result<(TwinModel, Vec<Variant>)> {
        ensure_rereadable(&self.traffic)?;
        let model = TwinModel::read(&self.twin)?;
        let opened = self.open()?;
        let by = self.input_format.is_none().then_some(opened.format.detected_by);
        eprint_line(&notes::format_note(&self.traffic, opened.format, by, &opened.source_header));
        let by_scale =
            |times: f64| format!("--scale {}x simulates all of it", times * self.scale.map_or(1.0, |by| by.0));
        notes::sample_note(&opened.header, by_scale).iter().for_each(|note| eprint_line(note));
        let routers = self.routers.iter().map(|text| Ok((text.as_str(), text.parse::<Router>()?)));
        let routers = routers.collect::<Result<Vec<_>, String>>().map_err(|why| anyhow::anyhow!("--router: {why}"))?;
        let counts = self
            .replicas
            .as_ref()
            .map_or(vec![None], |ReplicaList(list)| list.iter().map(|count| Some(*count)).collect());
        Slos::new(self.slos.clone()).map_err(anyhow::Error::msg)?;
        let mut variants: Vec<Variant> = Vec::new();
        for count in counts {
            for (name, router) in &routers {
                let fleets = model.fleets(&self.settings, count, *router).map_err(anyhow::Error::msg)?;
                let replicas = fleets.iter().map(FleetOptions::count).sum();
                // A router of pools has the same replicas in each row of the list.
                if variants.iter().any(|other| other.router == *name && other.replicas == replicas) {
                    continue;
                }
                let (router, operations) = ((*name).to_owned(), self.operations());
                variants.push(Variant { router, replicas, fleets, operations, is_alone: false });
            }
        }
        if let [only] = &mut variants[..] {
            only.is_alone = true;
        }
        anyhow::ensure!(variants.len() <= MAX_VARIANTS, "{} variants are more than {MAX_VARIANTS}", variants.len());
        Ok((model, variants))
    }

    fn operations(&self) -> Operations {
        Operations {
            failures: self.failures.clone(),
            start_up: self.start_up,
            autoscale: self.autoscale,
            admission: self.admission,
            schedule: Vec::new(),
        }
    }

    /// Opens the traffic.
    pub(super) fn open(&self) -> anyhow::Result<TraceSource> {
        let rate =
            self.scale.map(|ScaleFactor(factor)| RateScale { factor, offset: COPY_OFFSET.as_nanos(), seed: self.seed });
        let reading = TraceReadOptions {
            format: self.input_format.map(|FormatName(format)| format),
            block_size: self.block_size,
            rate,
            ..TraceReadOptions::default()
        };
        trace_source::open(&self.traffic, reading).map_err(anyhow::Error::from_boxed)
    }

    /// Where the variants have their results.
    pub(super) fn folder(&self, of: &Variant) -> Option<PathBuf> {
        let out: &Path = self.out.as_deref()?;
        Some(if of.is_alone { out.to_owned() } else { out.join(of.name()) })
    }
}

/// What cannot be done if the result cannot be written.
pub(super) fn context(folder: &Path) -> String {
    format!("cannot write the run into {}", folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_a_number_a_list_or_a_range() {
        let list = |text| replicas(text).map(|ReplicaList(list)| list);
        assert_eq!(list("3"), Ok(vec![3]));
        assert_eq!(list("1,2,4"), Ok(vec![1, 2, 4]));
        assert_eq!(list("2..4"), Ok(vec![2, 3, 4]));
        for wrong in ["", "0", "4..2", "1..", "a", "1,0"] {
            assert!(list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn settings_and_failures_are_read_with_their_units() {
        assert_eq!(setting("kv-blocks=100"), Ok((Parameter::KvBlocks, 100.0)));
        assert_eq!(setting("step-base=20ms"), Ok((Parameter::StepBase, 2e7)));
        assert!(setting("blocks=1").unwrap_err().contains("there are front-end, step-base"));
        assert!(setting("kv-blocks=0").is_err() && setting("kv-blocks=1ms").is_err());
        let at = Stamp::from_nanos(600_000_000_000);
        assert_eq!(failure("replica=1,at=10m"), Ok(ReplicaFailure { replica: 0, at }));
        assert!(failure("replica=0,at=10m").is_err() && failure("at=10m").is_err());
    }
}
