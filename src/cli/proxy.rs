//! `streamgauge proxy`: the main job.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::ValueHint;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::logging::{self, Logging};
use super::stop::Stop;
use crate::clock::Clock;
use crate::config::{Loaded, Source, Typed};
use crate::measure::time::Gap;
use crate::net::tls::Watched;
use crate::proxy::{LOOK_EVERY, Proxy};

/// How often it is looked whether the last stream has ended.
const DRAINED_EVERY: Gap = Gap::from_millis(10);

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
(STREAMGAUGE_UPSTREAM_HTTP); --slo is slos and STREAMGAUGE_SLOS, --route is routes and \
STREAMGAUGE_ROUTES, several of them parted by `;`. A flag goes before the \
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
        Proxy::check(&loaded.config, &loaded.otlp)?;
        return super::print(&explain(&loaded));
    }
    let logging = logging::start(loaded.config.log).context("cannot begin to log")?;
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    start(loaded, source, &logging)
}

/// The effective configuration as a configuration file that would give it again.
fn explain(loaded: &Loaded) -> String {
    let (config, version) = (&loaded.config, env!("CARGO_PKG_VERSION"));
    let head = format!("# Streamgauge {version}, configuration {}\n", config.digest());
    let otlp: String = loaded.otlp.explain().lines().map(|line| format!("# {line}\n")).collect();
    head + &config.explain(&loaded.settings) + &otlp
}

/// Runs the proxy until it is told to stop.
fn start(loaded: Loaded, source: Source, logging: &Logging) -> anyhow::Result<ExitCode> {
    super::raise_descriptors();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Before anybody can see that we run and tell us to stop: a signal that nobody waits for kills.
    let mut signals = runtime.block_on(async { Signals::new() })?;
    let proxy = Proxy::start(loaded.config.clone(), &loaded.otlp)?;
    tracing::info!(
        listen = %proxy.listen_addr(),
        admin = %proxy.admin_addr(),
        upstream = %loaded.config.upstream,
        "forwarding"
    );
    runtime.block_on(async {
        let drain = watch(&proxy, &source, logging, loaded.config.drain, &mut signals).await;
        proxy.drain();
        let patience = humantime::format_duration(drain.into());
        tracing::info!("stopping: open streams may finish within {patience}; a second signal ends them");
        let deadline = Clock::Monotonic.now().after(drain);
        while !proxy.is_drained() && Clock::Monotonic.now() < deadline {
            tokio::select! {
                () = Clock::Monotonic.sleep(DRAINED_EVERY) => {}
                () = signals.stop.asked() => break,
            }
        }
        // Telemetry may wait for a collector; whoever asks again does not.
        tokio::select! {
            _stopped = tokio::task::spawn_blocking(|| proxy.stop()) => {}
            () = signals.stop.asked() => tracing::warn!("stopped at once: the last of the telemetry may be lost"),
        }
    });
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

/// The signals that a proxy heeds.
struct Signals {
    hang_up: Signal,
    stop: Stop,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { hang_up: signal(SignalKind::hangup())?, stop: Stop::new()? })
    }
}

/// Reloads on SIGHUP and when the configuration file changes; returns when told to stop, with how long open streams may
/// go on.
async fn watch(proxy: &Proxy, source: &Source, logging: &Logging, mut drain: Gap, signals: &mut Signals) -> Gap {
    let mut file = Watched::new(source.file().map(Into::into).into_iter().collect());
    loop {
        tokio::select! {
            // What is loaded now need not be loaded again at the next look.
            _ = signals.hang_up.recv() => drop(file.changed()),
            () = Clock::Monotonic.sleep(LOOK_EVERY) => if !file.changed() { continue },
            () = signals.stop.asked() => return drain,
        }
        match source.load() {
            Ok(loaded) => {
                drain = loaded.config.drain;
                reload(proxy, logging, loaded);
            }
            Err(error) => tracing::error!("the old configuration stays in force: {error}"),
        }
    }
}

fn reload(proxy: &Proxy, logging: &Logging, loaded: Loaded) {
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if let Err(error) = logging.reload(loaded.config.log.level) {
        tracing::error!("the log level stays as it was: {error}");
    }
    let restart = proxy.reload(loaded.config);
    tracing::info!("the configuration was loaded again");
    if !restart.is_empty() {
        tracing::warn!("these settings need a restart: {}", restart.join(", "));
    }
}
