//! `streamgauge proxy`: measures a server's responses.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::ValueHint;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::effective_config::explain;
use super::logging::{self, LogHandle};
use super::running_config::RunningConfig;
use super::service_manager;
use super::signals::StopSignals;
use super::successor::Successor;
use super::verb_help::VerbHelp;
use crate::clock::Clock;
use crate::config::{ConfigSource, LoadedConfig, RawSettings};
use crate::measure::time::Gap;
use crate::net::inherited::InheritedSockets;
use crate::net::tls::FileWatch;
use crate::proxy::{Proxy, RELOAD_CHECK_INTERVAL};

/// How often it is looked whether the last stream has ended.
const DRAIN_POLL_INTERVAL: Gap = Gap::from_millis(10);

/// Forward requests to an inference server and measure the token streams of its responses
///
/// The proxy forwards every byte unchanged. It exports metrics on the admin address, where a browser finds a live page,
/// and pushes metrics, traces and logs to an OTLP collector.
#[derive(clap::Args)]
#[command(after_long_help = SETTINGS)]
pub(super) struct Args {
    /// Read settings from this YAML file; STREAMGAUGE_CONFIG names it too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,

    /// Validate the configuration, print every value with its source, and exit
    #[arg(long)]
    check: bool,

    /// With --check, exit with status 2 if the configuration has warnings, for CI
    #[arg(long, requires = "check")]
    strict: bool,

    #[command(flatten)]
    settings: RawSettings,
}

/// Paragraphs are single lines: clap wraps them to the terminal.
const SETTINGS: &str = "\
Every setting is a flag (--upstream-http), a key of the configuration file (upstream_http) and an environment variable \
(STREAMGAUGE_UPSTREAM_HTTP). The plural settings differ: --slo is slos and STREAMGAUGE_SLOS, --route is routes and \
STREAMGAUGE_ROUTES, --tokenizer is tokenizers and STREAMGAUGE_TOKENIZERS; `;` separates several values in the environment. \
A flag overrides the environment, and the environment overrides the file.

Write times as 250ms, 30s, 1h30m or 7d, and sizes as 65536, 64K or 10G. OpenTelemetry's own variables, such as \
OTEL_EXPORTER_OTLP_ENDPOINT, set the collector.";

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &["config", "check", "upstream", "listen", "admin", "slo", "capture"],
    examples: &[
        (
            "Measure the server on port 8000 and evaluate every request",
            "streamgauge proxy --upstream http://127.0.0.1:8000 \\
      --slo 'chat: ttft<=500ms'",
        ),
        (
            "Record the shape of the traffic, to replay it later",
            "streamgauge proxy --upstream http://127.0.0.1:8000 --capture capture/",
        ),
        (
            "Record it into a bucket, over a spool that survives a restart",
            "streamgauge proxy --upstream http://127.0.0.1:8000 \\
      --capture s3://lake/captures --capture-spool /var/lib/streamgauge",
        ),
        ("Validate a configuration in CI", "streamgauge proxy --config streamgauge.yaml --check --strict"),
        ("Print the effective configuration and exit", "streamgauge proxy --config streamgauge.yaml --check"),
    ],
};

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Before the first thread, and before the environment is read.
    let inherited = InheritedSockets::from_process().context("cannot use the sockets of LISTEN_FDS")?;
    let source = ConfigSource::from_process(args.settings, args.config);
    let loaded = source.load()?;
    if args.check {
        loaded.warnings.iter().for_each(|warning| crate::cli::terminal::eprint_line(&format!("warning: {warning}")));
        Proxy::check(&loaded.config, &loaded.otlp)?;
        if args.strict && !loaded.warnings.is_empty() {
            let problem = "--strict: the configuration has warnings; remedy: correct the settings that they name";
            return Ok(crate::cli::terminal::usage_error(&problem));
        }
        return crate::cli::terminal::print(&explain(&loaded, &loaded.config.digest()));
    }
    let logging = logging::start(loaded.config.log, &loaded.otlp).context("cannot begin to log")?;
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    start(loaded, source, &logging, inherited)
}

/// Runs the proxy until a signal stops it, or another process has taken over and the last stream has ended.
fn start(
    loaded: LoadedConfig,
    source: ConfigSource,
    logging: &LogHandle,
    mut inherited: InheritedSockets,
) -> anyhow::Result<ExitCode> {
    crate::cli::descriptors::raise_fd_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Install handlers before the process is visible: an unhandled signal would kill it.
    let mut signals = runtime.block_on(async { ProxySignals::new() })?;
    let proxy = Proxy::start_on(loaded.config.clone(), &loaded.otlp, logging.exported(), &mut inherited)?;
    let running = Arc::new(RunningConfig::new(&loaded, logging.level()));
    proxy.set_process_control(Box::new(Arc::clone(&running)));
    for address in inherited.unused() {
        tracing::warn!(
            "LISTEN_FDS has a socket for {address}, which is neither `listen` nor `admin`: nothing answers there"
        );
    }
    let slos: Vec<&str> = loaded.config.slos.iter().map(|slo| slo.name()).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = %proxy.listen_addr(),
        admin = %proxy.admin_addr(),
        upstream = loaded.config.upstream.server().map_or("the original destinations".to_owned(), ToString::to_string),
        slos = or_none(&slos.join(", ")),
        collector = or_none(&loaded.otlp.collectors()),
        "forwarding"
    );
    if let Err(error) = inherited.notify_predecessor() {
        tracing::warn!(%error, "the process to take over from is gone");
    }
    service_manager::ready();
    runtime.block_on(async {
        let (end, drain) = watch(&proxy, &source, &running, loaded.config.drain, &mut signals).await;
        let patience = humantime::format_duration(drain.into());
        match end {
            ShutdownReason::Stopped => {
                service_manager::stopping();
                proxy.drain();
                tracing::info!("stopping: open streams may finish within {patience}; a second signal ends them");
            }
            ShutdownReason::SucceededBy(process) => {
                proxy.hand_over();
                service_manager::notify_main_pid(process);
                tracing::info!("process {process} has taken over; open streams may finish here within {patience}");
            }
        }
        let deadline = Clock::Monotonic.now().after(drain);
        // A service manager signals every process of the service, this one for the first time.
        let mut signalled = matches!(end, ShutdownReason::Stopped);
        while !proxy.is_drained() && Clock::Monotonic.now() < deadline {
            tokio::select! {
                () = Clock::Monotonic.sleep(DRAIN_POLL_INTERVAL) => {}
                () = signals.stop.wait() => {
                    if signalled {
                        break;
                    }
                    signalled = true;
                }
            }
        }
        // Telemetry may wait for a collector; a second signal does not.
        tokio::select! {
            _stopped = tokio::task::spawn_blocking(|| proxy.stop()) => {}
            () = signals.stop.wait() => tracing::warn!("stopped at once: the last of the telemetry may be lost"),
        }
    });
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

fn or_none(list: &str) -> &str {
    if list.is_empty() { "none" } else { list }
}

/// The signals that a proxy heeds.
struct ProxySignals {
    hang_up: Signal,
    /// Another process is to take over.
    take_over: Signal,
    stop: StopSignals,
}

impl ProxySignals {
    fn new() -> std::io::Result<Self> {
        let (hang_up, take_over) = (signal(SignalKind::hangup())?, signal(SignalKind::user_defined2())?);
        Ok(Self { hang_up, take_over, stop: StopSignals::new()? })
    }
}

/// Why a proxy no longer takes connections.
enum ShutdownReason {
    /// A signal stopped it.
    Stopped,
    /// This process has taken over.
    SucceededBy(u32),
}

/// Reloads on SIGHUP and when the configuration file changes, and starts a successor on SIGUSR2. Returns on a signal to
/// stop or when a successor serves, with the time that open streams have left.
async fn watch(
    proxy: &Proxy,
    source: &ConfigSource,
    running: &RunningConfig,
    mut drain: Gap,
    signals: &mut ProxySignals,
) -> (ShutdownReason, Gap) {
    let mut file = FileWatch::new(source.file().map(Into::into).into_iter().collect());
    let mut successor: Option<Successor> = None;
    loop {
        let mut by_signal = false;
        tokio::select! {
            _ = signals.hang_up.recv() => {
                service_manager::reloading();
                by_signal = true;
                // The loaded file need not be loaded again at the next look.
                file.changed();
            }
            _ = signals.take_over.recv() => {
                if successor.is_none() {
                    successor = start_successor(proxy);
                } else {
                    tracing::warn!("another process is already about to take over");
                }
                continue;
            }
            serving = successor_ready(&mut successor) => {
                let Some(successor) = successor.take() else { continue };
                if serving.is_ok() {
                    return (ShutdownReason::SucceededBy(successor.id()), drain);
                }
                tracing::error!("process {} ended before it could take over; this one goes on", successor.id());
                successor.kill();
                service_manager::ready();
                continue;
            }
            () = Clock::Monotonic.sleep(RELOAD_CHECK_INTERVAL) => if !file.changed() { continue },
            () = signals.stop.wait() => {
                if let Some(successor) = successor {
                    successor.kill();
                }
                return (ShutdownReason::Stopped, drain);
            }
        }
        match source.load() {
            Ok(loaded) => {
                drain = loaded.config.drain;
                reload(proxy, running, loaded);
            }
            Err(error) => {
                proxy.reload_failed();
                tracing::error!("the old configuration stays in force: {error}");
            }
        }
        if by_signal {
            service_manager::ready();
        }
    }
}

/// Starts a process that takes over.
fn start_successor(proxy: &Proxy) -> Option<Successor> {
    service_manager::reloading();
    match proxy.listeners().and_then(Successor::start) {
        Ok(successor) => {
            tracing::info!("process {} is about to take over", successor.id());
            Some(successor)
        }
        Err(error) => {
            tracing::error!("no process can take over, this one goes on: {error}");
            service_manager::ready();
            None
        }
    }
}

/// Waits until the successor serves or has given up; where there is none, for ever.
async fn successor_ready(successor: &mut Option<Successor>) -> std::io::Result<()> {
    match successor {
        Some(successor) => successor.wait_until_serving().await,
        None => std::future::pending().await,
    }
}

fn reload(proxy: &Proxy, running: &RunningConfig, loaded: LoadedConfig) {
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let restart = proxy.reload(loaded.config.clone());
    running.replace(proxy.config(), loaded, &restart);
    tracing::info!("the configuration was loaded again");
    if !restart.is_empty() {
        tracing::warn!("these settings need a restart: {}", restart.join(", "));
    }
}
