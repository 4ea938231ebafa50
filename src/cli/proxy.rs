//! `streamgauge proxy`: the main job.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::ValueHint;

use super::logging;
use crate::config::{Loaded, Source, Typed};

/// Forward requests to an inference server and measure what it streams
#[derive(clap::Args)]
#[command(after_help = ABOUT_SETTINGS)]
pub(super) struct Args {
    /// YAML file of settings; STREAMGAUGE_CONFIG names it too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,

    /// Validate the configuration, print what is in force and where each value comes from, and stop
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    settings: Typed,
}

/// Paragraphs are single lines: clap wraps them to the terminal.
const ABOUT_SETTINGS: &str = "\
Every setting is a flag (--upstream-http), a key of the configuration file (upstream_http) and an environment variable \
(STREAMGAUGE_UPSTREAM_HTTP); --slo is slos and STREAMGAUGE_SLOS, several of them parted by `;`. A flag goes before the \
environment, the environment before the file. Times are written 250ms, 30s, 10m. Where telemetry is pushed to is told \
by OpenTelemetry's own variables, such as OTEL_EXPORTER_OTLP_ENDPOINT.

Examples:
  Measure the server on port 8000, judge every request:
    streamgauge proxy --upstream http://127.0.0.1:8000 --slo 'chat: ttft<=500ms'

  See what a configuration comes to:
    streamgauge proxy --config streamgauge.yaml --check";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let source = Source::of_process(args.settings, args.config);
    let loaded = source.load()?;
    if args.check {
        loaded.warnings.iter().for_each(|warning| super::say(&format!("warning: {warning}")));
        return super::print(&explain(&loaded));
    }
    let level = logging::start(loaded.config.log).context("cannot begin to log")?;
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    start(loaded, source, level)
}

/// The effective configuration as a configuration file that would give it again.
fn explain(loaded: &Loaded) -> String {
    let (config, version) = (&loaded.config, env!("CARGO_PKG_VERSION"));
    let head = format!("# Streamgauge {version}, configuration {}\n", config.digest());
    let otlp: String = loaded.otlp.explain().lines().map(|line| format!("# {line}\n")).collect();
    head + &config.explain(&loaded.settings) + &otlp
}

/// Runs the proxy until it is told to stop.
pub(crate) fn start(_loaded: Loaded, _source: Source, _level: logging::Level) -> anyhow::Result<ExitCode> {
    anyhow::bail!("this build can check a configuration (--check) but has no proxy to run it")
}
