//! `streamgauge demo`, a first look. A simulated server, the proxy and clients run in this process and use real
//! sockets. Only the server is simulated; the measurement is real.

mod load;
mod tui;

pub(super) use tui::DemoSummary;

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context as _;

use self::load::{CLIENTS, DemoClients, MODELS};
use self::tui::DemoScreen;
use super::logging::{self, LogHandle};
use super::signals::StopSignals;
use super::verb_help::VerbHelp;
use crate::clock::Clock;
use crate::config::{ConfigSource, LoadedConfig, LogConfig, LogFormat, LogLevel, RawSettings};
use crate::engine::EngineOptions;
use crate::export::control::live_view::LiveSnapshot;
use crate::measure::time::Gap;
use crate::net::inherited::InheritedSockets;
use crate::proxy::{Proxy, StartError};
use crate::sim::{SimOptions, SimServer};

/// The SLO of the demo. Most requests meet it; a long prompt's prefill takes longer.
const SLO_NAME: &str = "interactive";
const OBJECTIVES: &str = "ttft<=400ms itl.p99<=50ms";

/// How often figures are shown, and how many of them the live ones reach back.
const REFRESH_INTERVAL: Gap = Gap::from_millis(1_000);
const LIVE_WINDOW_SNAPSHOTS: usize = 10;
/// How long open requests may take to end when time is up.
const DRAIN_TIMEOUT: Gap = Gap::from_millis(5_000);
/// How often it is looked whether they have.
const DRAIN_POLL_INTERVAL: Gap = Gap::from_millis(10);

/// Run the proxy, a simulated server and clients, and show figures
///
/// Everything runs in this process, on loopback. The server is simulated, so its times say nothing about any hardware; the
/// proxy and its measurements are real. The figures go to stderr, and the summary at the end to stdout. The proxy reads
/// OpenTelemetry's own environment variables, such as OTEL_EXPORTER_OTLP_ENDPOINT.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Stop after this time, e.g. 30s [default: run until Ctrl-C]
    #[arg(long = "for", value_name = "DURATION", value_parser = super::values::parse_duration)]
    length: Option<Gap>,

    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,

    /// Listen for clients on this address [default: 127.0.0.1:8080, or a free port if that is taken]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<String>,

    /// Serve metrics, health and the live page on this address [default: 127.0.0.1:9464, or a free port if that is taken]
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<String>,
}

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &["for", "json", "listen", "admin"],
    examples: &[
        ("Watch it for half a minute", "streamgauge demo --for 30s"),
        ("Keep it running, to test a dashboard from another machine", "streamgauge demo --admin 0.0.0.0:9464"),
        ("Print the summary for a script", "streamgauge demo --for 10s --json | jq ."),
    ],
};

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let models = MODELS.map(str::to_owned).into();
    // Long prompts are read in small pieces, so that they do not hold up everybody else.
    let engine = EngineOptions { max_batched_tokens: 512, ..EngineOptions::default() };
    let options = SimOptions { models, engine, mean_output_tokens: 120, ..SimOptions::default() };
    let server = SimServer::bind(options, SocketAddr::from(([127, 0, 0, 1], 0)))?.spawn()?;
    let loaded = load(args, server.local_addr())?;
    let logging = logging::start(LogConfig { format: LogFormat::Text, level: LogLevel::Warn }, &loaded.otlp)
        .context("cannot begin to log")?;
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let proxy = start_proxy(args, loaded, &logging)?;
    crate::cli::terminal::eprint_line(&intro_text(&proxy, server.local_addr(), args.length));

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let mut stop = StopSignals::new().context("cannot wait for signals")?;
        let load = DemoClients::start(proxy.listen_addr());
        let (began, ended) = watch(&proxy, args.length, &load, &mut stop).await;
        let summary = if args.json { tui::json(&ended, &began) } else { tui::summary(&ended, &began) };
        let done = crate::cli::terminal::print(&summary);
        // Telemetry may wait for a collector; a second signal does not.
        tokio::select! {
            _stopped = tokio::task::spawn_blocking(|| proxy.stop()) => {}
            () = stop.wait() => {}
        }
        done
    });
    runtime.shutdown_background();
    server.stop()?;
    done
}

/// The configuration of the proxy.
fn load(args: &Args, upstream: SocketAddr) -> anyhow::Result<LoadedConfig> {
    let settings = RawSettings {
        upstream: Some(format!("http://{upstream}")),
        engine_metrics: Some(format!("http://{upstream}/metrics")),
        listen: args.listen.clone(),
        admin: args.admin.clone(),
        // The port needs no protection: it shows only simulated requests.
        admin_insecure: Some(true),
        workers: Some(1),
        slos: vec![format!("{SLO_NAME}: {OBJECTIVES}")],
        // The metrics' consumers can show that the server is not real.
        provider: Some("simulated".to_owned()),
        ..RawSettings::default()
    };
    Ok(ConfigSource::new(settings, None, otel()).load()?)
}

/// Starts the proxy on its usual ports; a taken port that the user did not choose is replaced by a free one.
fn start_proxy(args: &Args, loaded: LoadedConfig, logging: &LogHandle) -> anyhow::Result<Proxy> {
    let mut config = loaded.config;
    loop {
        let mut inherited = InheritedSockets::default();
        let error = match Proxy::start_on(config.clone(), &loaded.otlp, logging.exported(), &mut inherited) {
            Ok(proxy) => return Ok(proxy),
            Err(error) => error,
        };
        let (address, flag_value) = match &error {
            StartError::Listen { flag: "admin", .. } => (&mut config.admin, &args.admin),
            _ => (&mut config.listen, &args.listen),
        };
        let taken = matches!(&error, StartError::Listen { error, .. } if error.kind() == ErrorKind::AddrInUse);
        if !taken || flag_value.is_some() || address.port() == 0 {
            return Err(error.into());
        }
        address.set_port(0);
    }
}

/// OpenTelemetry's variables. Not ours: a configuration that is meant for a real proxy is not for this one.
fn otel() -> impl Iterator<Item = (String, String)> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let all = std::env::vars_os().map(move |(name, value)| (text(name), text(value)));
    all.filter(|(name, _)| name.starts_with("OTEL_"))
}

/// Shows the figures until the time is up or a signal arrives, then lets open requests end. The first and the last
/// counts.
async fn watch(
    proxy: &Proxy,
    length: Option<Gap>,
    load: &DemoClients,
    stop: &mut StopSignals,
) -> (LiveSnapshot, LiveSnapshot) {
    let (clock, mut screen) = (Clock::Monotonic, DemoScreen::of_stderr());
    let began = proxy.snapshot();
    let mut recent = VecDeque::from([proxy.snapshot()]);
    let mut next = began.at;
    loop {
        next = next.after(REFRESH_INTERVAL).max(clock.now());
        let end = length.map(|length| began.at.after(length)).filter(|end| *end <= next);
        tokio::select! {
            () = clock.sleep_until(end.unwrap_or(next)) => {}
            () = stop.wait() => break,
        }
        if end.is_some() {
            break;
        }
        let now = proxy.snapshot();
        screen.show(&now, recent.front().unwrap_or(&began), &began);
        recent.push_back(now);
        if recent.len() > LIVE_WINDOW_SNAPSHOTS {
            recent.pop_front();
        }
    }
    load.stop_sending();
    proxy.drain();
    screen.clear();
    let open = proxy.snapshot().in_flight.requests;
    let patience = humantime::format_duration(DRAIN_TIMEOUT.into());
    crate::cli::terminal::eprint_line(&format!(
        "stopping: {open} requests are open and have {patience} to end; Ctrl-C ends at once"
    ));
    let deadline = clock.now().after(DRAIN_TIMEOUT);
    while !proxy.is_drained() && clock.now() < deadline {
        tokio::select! {
            () = clock.sleep(DRAIN_POLL_INTERVAL) => {}
            () = stop.wait() => break,
        }
    }
    (began, proxy.snapshot())
}

/// Introduction on the screen: the demo's parts and commands to try.
fn intro_text(proxy: &Proxy, server: SocketAddr, length: Option<Gap>) -> String {
    let (listen, admin, chat) = (proxy.listen_addr(), proxy.admin_addr(), MODELS[0]);
    let end =
        length.map_or("until Ctrl-C".to_owned(), |length| format!("for {}", humantime::format_duration(length.into())));
    format!(
        "\
SIMULATED: open http://{admin}/ in a browser and watch it live.

The server behind the proxy makes words from a list, in times of a cost model.
The proxy and its measurements are the real ones.

  proxy     http://{listen}, in front of http://{server}
  metrics   http://{admin}/metrics

To try in another terminal:
  curl http://{admin}/metrics
  curl http://{listen}/v1/chat/completions \\
    -H 'content-type: application/json' \\
    -d '{{\"model\": \"{chat}\", \"stream\": true,
         \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'

{CLIENTS} clients ask {end}. Goodput is what meets {OBJECTIVES}.
"
    )
}
