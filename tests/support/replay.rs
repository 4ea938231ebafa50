//! A replay in this process.

use std::net::SocketAddr;
use std::sync::Arc;

use streamgauge::capture::format::{Entry, Header, Prompt};
use streamgauge::capture::reader::Reader;
use streamgauge::measure::observer::DEFAULT_STALL;
use streamgauge::measure::slo::Slos;
use streamgauge::measure::time::{Gap, Window};
use streamgauge::replay::encode::{Cancel, Encoder};
use streamgauge::replay::output::Output;
use streamgauge::replay::request::ExactOutput;
use streamgauge::replay::run::{Ended, Loop, Sessions};
use streamgauge::replay::schedule::{Plan, RowError, Rows, Schedule};
use streamgauge::replay::target::Target;
use streamgauge::replay::{Config, Connections, Run};
use streamgauge::trace::content::Content;
use streamgauge::trace::words::Words;
use tokio::sync::Semaphore;

/// What differs from run to run.
#[derive(Clone, Default)]
pub struct Settings {
    pub arrivals: Loop,
    pub slots: Option<usize>,
    pub sessions: Sessions,
    pub connections: Connections,
    pub timeout: Option<Gap>,
    pub dialect: Option<&'static str>,
    pub cancel: Option<Cancel>,
    pub slos: Vec<&'static str>,
    pub measured: Window,
    pub plan: Plan,
    /// Certificates to trust; with them the target speaks TLS.
    pub ca: Option<std::path::PathBuf>,
}

/// A request at this time, in milliseconds, for so many tokens.
pub fn row(at: u64, output: u64) -> Entry {
    let prompt = Prompt { tokens: Some(8), ..Prompt::default() };
    Entry { at: at * 1_000_000, prompt, output_tokens: Some(output), ..Entry::default() }
}

/// Sends these rows, and gives the figures and the rows of the result in the order of their plan.
pub fn replay(rows: Vec<Entry>, to: SocketAddr, settings: Settings) -> (Ended, Vec<Entry>) {
    let folder = tempfile::tempdir().unwrap();
    let output = Output::new(folder.path(), Header::new("test")).unwrap();
    let ended = start(rows, to, settings, Some(output)).finish();
    assert!(ended.broken.is_none(), "{:?}", ended.broken);
    let reader = Reader::open(&folder.path().join("records.jsonl.zst")).unwrap();
    let mut rows: Vec<Entry> = reader.map(Result::unwrap).collect();
    rows.sort_by_key(|row| row.planned);
    (ended, rows)
}

/// Begins to send.
pub fn start(rows: Vec<Entry>, to: SocketAddr, settings: Settings, output: Option<Output>) -> Run {
    let scheme = if settings.ca.is_some() { "https" } else { "http" };
    let target: Target = format!("{scheme}://{to}").parse().unwrap();
    let targets = vec![target];
    let content = Content::new(Words::default(), None, None, 0);
    let encoder =
        Encoder::new(content, targets.clone(), settings.dialect, Vec::new(), ExactOutput::Auto, settings.cancel, 0);
    let config = Config {
        targets,
        tls: settings.ca.map(|ca| Arc::new(streamgauge::net::tls::client(Some(&ca), None, &["http/1.1"]).unwrap())),
        encoder: encoder.unwrap(),
        arrivals: settings.arrivals,
        slots: settings.slots.map(|slots| Arc::new(Semaphore::new(slots))),
        sessions: settings.sessions,
        until: settings.plan.duration,
        connections: settings.connections,
        connect_timeout: Gap::from_millis(5_000),
        timeout: settings.timeout.unwrap_or(Gap::from_millis(20_000)),
        pauses: if settings.arrivals == Loop::Closed { 0.0 } else { settings.plan.stretch },
        slos: Arc::new(Slos::new(settings.slos.iter().map(|slo| slo.parse().unwrap()).collect()).unwrap()),
        stall: DEFAULT_STALL,
        workers: 1,
        measured: settings.measured.into(),
        begin: None,
    };
    let open = move || -> Result<Rows, RowError> { Ok(Box::new(rows.clone().into_iter().map(Ok))) };
    Run::start(config, || Schedule::new(settings.plan, open), output).unwrap()
}
