//! `streamgauge twin fit`: engines from rows.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::ValueHint;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::terminal::{eprint_line, print, render_table, right_aligned_table, usage_error};
use crate::measure::time::Gap;
use crate::report::ascii_plot::format_percent;
use crate::trace_file::header::BlockScheme;
use crate::trace_file::reader::TraceReader;
use crate::trace_file::row::TraceEntry;
use crate::trace_file::segment_list::{RECORDS_FILE, RUN_FILE, instance_of};
use crate::twin::fit::observation::TrafficGroups;
use crate::twin::fit::server_metrics::ServerConfig;
use crate::twin::fit::{ColdStart, EngineFit, Residual, fit};
use crate::twin::model::{TwinEngine, TwinModel, TwinSource, VERSION};
use crate::twin::parameter::{Parameter, ParameterEstimate};

/// Time between two sources without clocks, so that they do not overlap.
const SOURCE_PAUSE: Gap = Gap::from_millis(600_000);

/// Fit a twin to captures or runs, and state its error on rows that the fit has not seen
///
/// The fit reads streamed responses: token events that come together are one step of the engine. It estimates one engine
/// per upstream and model, and in a bucket per instance. It prints how well a fit of the first 70 % of the rows predicts the
/// rest. A parameter that the rows do not determine is a range.
///
/// Exit codes: 0 success; 1 no engine could be fitted; 2 wrong usage, or files that cannot be read.
#[derive(Debug, clap::Args)]
pub(super) struct FitArgs {
    /// Captures, folders of runs, files of rows, or URLs of object storage
    #[arg(value_name = "PATH", required = true, value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,

    /// Write the twin to FILE
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: PathBuf,

    /// Metrics page of the server, which states its cache (vLLM's `/metrics` in a file)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    server_metrics: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

struct FitInput {
    groups: TrafficGroups,
    sources: Vec<TwinSource>,
    scheme: Option<BlockScheme>,
}

/// Reads the rows, fits, writes the twin.
pub(super) fn run(args: &FitArgs) -> anyhow::Result<ExitCode> {
    let (input, server) = match args.input().and_then(|input| Ok((input, args.server()?))) {
        Ok(input) => input,
        Err(error) => return Ok(usage_error(&error)),
    };
    let FitInput { groups, sources, scheme } = input;
    if groups.left_out > 0 {
        eprint_line(&format!("note: {} rows beyond the limits of a fit were left out", groups.left_out));
    }
    let mut fits: Vec<EngineFit> = Vec::new();
    for group in groups.finish() {
        match fit(&group, scheme.as_ref(), server.as_ref()) {
            Ok(fit) => {
                cold_start_note(&fit).iter().for_each(|note| eprint_line(note));
                fits.push(fit);
            }
            Err(error) => eprint_line(&format!("note: {error}")),
        }
    }
    if fits.is_empty() {
        eprint_line("error: no engine could be fitted; remedy: capture streamed responses with token counts");
        return Ok(ExitCode::FAILURE);
    }
    let engines = fits.iter().map(|fit| fit.engine.clone()).collect();
    let model =
        TwinModel { streamgauge_twin: VERSION, version: env!("CARGO_PKG_VERSION").to_owned(), sources, engines };
    let text = serde_json::to_string_pretty(&model)? + "\n";
    fs::write(&args.output, text).with_context(|| format!("cannot write {}", args.output.display()))?;
    match args.json {
        true => print(&(serde_json::to_string_pretty(&FitsDocument::of(&fits))? + "\n")),
        false => print(&fits.iter().map(render).collect::<Vec<_>>().join("\n")),
    }
}

/// What the fit has left out.
fn cold_start_note(fit: &EngineFit) -> Option<String> {
    let ColdStart { length, factor, .. } = fit.cold_start?;
    let label = fit.engine.label();
    Some(format!(
        "note: {label}: the steps of the first {length} took {factor:.1} times as long as later ones, as after a cold start, and are left out"
    ))
}

impl FitArgs {
    fn server(&self) -> anyhow::Result<Option<ServerConfig>> {
        let Some(path) = &self.server_metrics else { return Ok(None) };
        let page =
            fs::read_to_string(path).with_context(|| format!("--server-metrics: cannot read {}", path.display()))?;
        let config = ServerConfig::parse(&page);
        anyhow::ensure!(
            config.is_some(),
            "--server-metrics {}: the page states no cache configuration; remedy: save the /metrics of vLLM or SGLang, or leave the flag out",
            path.display()
        );
        Ok(config)
    }

    fn input(&self) -> anyhow::Result<FitInput> {
        let mut input = FitInput { groups: TrafficGroups::default(), sources: Vec::new(), scheme: None };
        let started = self.paths.iter().map(|path| Ok(open(path)?.header().started_unix_ns));
        let started = started.collect::<anyhow::Result<Vec<_>>>()?;
        // Runs of a simulation all start at 0, which is no clock.
        let clocks: Option<Vec<u64>> = started.into_iter().map(|started| started.filter(|at| *at > 0)).collect();
        let zero = clocks.as_ref().and_then(|clocks| clocks.iter().min().copied());
        let mut next = 0;
        for (number, path) in self.paths.iter().enumerate() {
            let mut reader = open(path)?;
            let scheme = reader.header().blocks.clone();
            anyhow::ensure!(
                input.scheme.is_none() || scheme.is_none() || input.scheme == scheme,
                "{}: its block ids differ from those of the other sources; remedy: fit captures with one key",
                path.display()
            );
            input.scheme = input.scheme.or(scheme);
            let clock = clocks.as_ref().zip(zero).map(|(clocks, zero)| clocks[number] - zero);
            let (shift, mut rows) = (clock.unwrap_or(next), 0);
            while let Some(row) = reader.next() {
                let mut row: TraceEntry = row.with_context(|| format!("cannot read {}", path.display()))?;
                if let Some(instance) = reader.last_segment().and_then(instance_of) {
                    row.name_server(instance);
                }
                rows += 1;
                let ended = row.at.saturating_add(row.timing.ended.unwrap_or(0));
                next = next.max(ended.saturating_add(shift));
                input.groups.add(row, shift);
            }
            next = next.saturating_add(SOURCE_PAUSE.as_nanos());
            for damage in reader.damage() {
                eprint_line(&format!("warning: {}: {damage}", path.display()));
            }
            input.sources.push(TwinSource { path: path.display().to_string(), rows });
        }
        Ok(input)
    }
}

/// Opens a capture, the rows of a run, or a file of rows.
fn open(path: &Path) -> anyhow::Result<TraceReader> {
    let rows = if path.join(RUN_FILE).is_file() { path.join(RECORDS_FILE) } else { path.to_owned() };
    TraceReader::open(&rows).with_context(|| format!("cannot read {}", path.display()))
}

fn render(fit: &EngineFit) -> String {
    let fitted = fit.engine.fitted.unwrap_or_default();
    let mut text = format!(
        "{}: {} requests at up to {:.2} requests/s, {} steps of the engine, at most {} requests in flight\n\n",
        fit.engine.label(),
        fitted.requests,
        fitted.rate,
        fit.steps,
        fitted.max_in_flight
    );
    let mut table = right_aligned_table(&["parameter", "estimate", "from", "to", "unit"]);
    for (parameter, estimate) in &fit.engine.parameters {
        let number = |value: Option<f64>| value.map_or_else(String::new, short);
        let value = estimate.value.map_or_else(|| undetermined(estimate), short);
        let to = estimate
            .high
            .map_or_else(|| if estimate.value.is_some() { String::new() } else { "any".to_owned() }, short);
        table.add_row([parameter.name().to_owned(), value, number(estimate.low), to, parameter.unit().to_owned()]);
    }
    text += &render_table(&table);
    let mut table = right_aligned_table(&["residuals by regime", "points", "median", "p90"]);
    for residual in &fit.residuals {
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        table.add_row([
            residual.regime.clone(),
            residual.points.to_string(),
            percent(residual.median),
            percent(residual.p90),
        ]);
    }
    text += &format!("\n{}", render_table(&table));
    let mut table = right_aligned_table(&["held-out rows", "measured", "predicted", "error"]);
    for error in &fit.engine.held_out {
        let show = |value: f64| match error.figure.as_str() {
            "goodput" => format_percent(value),
            _ => Gap::from_nanos((value * 1e9).round() as u64).to_string(),
        };
        let relative = format!("{:+.1} %", error.relative() * 100.0);
        table.add_row([error.figure.clone(), show(error.measured), show(error.predicted), relative]);
    }
    text + &format!("\n{}", render_table(&table))
}

/// A range is marked, with the value that a simulation assumes.
fn undetermined(estimate: &ParameterEstimate) -> String {
    estimate.used().map_or_else(|| "?".to_owned(), |assumed| format!("range, {} assumed", short(assumed)))
}

fn short(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1_000.0 { format!("{value:.0}") } else { format!("{value:.4}") }
}

/// The fits as one JSON object.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::cli) struct FitsDocument<'a> {
    engines: Vec<FitDocument<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct FitDocument<'a> {
    engine: &'a TwinEngine,
    /// Steps of the engine that were found in the fitted rows.
    steps: usize,
    residuals: &'a [Residual],
    /// Unit of each parameter.
    units: BTreeMap<&'static str, &'static str>,
}

impl<'a> FitsDocument<'a> {
    fn of(fits: &'a [EngineFit]) -> Self {
        let units = || Parameter::ALL.into_iter().map(|parameter| (parameter.name(), parameter.unit())).collect();
        let of = |fit: &'a EngineFit| FitDocument {
            engine: &fit.engine,
            steps: fit.steps,
            residuals: &fit.residuals,
            units: units(),
        };
        Self { engines: fits.iter().map(of).collect() }
    }
}
