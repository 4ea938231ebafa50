//! A replay in this process.

use std::net::SocketAddr;
use std::sync::Arc;

use streamgauge::cli::runner::figures::{RunFigures, RunTotals};
use streamgauge::measure::observer::DEFAULT_STALL;
use streamgauge::measure::record::Outcome;
use streamgauge::measure::slo::Slos;
use streamgauge::measure::time::{Gap, Window};
use streamgauge::replay::plan::schedule::{ReplayPlan, RowError, Schedule, TraceRows};
use streamgauge::replay::request::encoder::{CancelPolicy, RequestEncoder};
use streamgauge::replay::request::template::ExactOutput;
use streamgauge::replay::result::output::RunOutput;
use streamgauge::replay::sender::run::{LoopMode, RunOutcome, SessionMode};
use streamgauge::replay::sender::target::TargetUrl;
use streamgauge::replay::{Config, ConnectionReuse, ReplayRun};
use streamgauge::trace::prompt_text::PromptGenerator;
use streamgauge::trace::vocabulary::Vocabulary;
use streamgauge::trace_file::header::TraceHeader;
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::{PromptShape, TraceEntry};
use tokio::sync::Semaphore;

/// Settings that differ from run to run.
#[derive(Clone, Default)]
pub struct Settings {
    pub arrivals: LoopMode,
    pub slots: Option<usize>,
    pub sessions: SessionMode,
    pub connections: ConnectionReuse,
    pub timeout: Option<Gap>,
    pub dialect: Option<&'static str>,
    pub cancel: Option<CancelPolicy>,
    pub slos: Vec<&'static str>,
    pub measured: Window,
    pub plan: ReplayPlan,
    /// Certificates to trust; with them the target speaks TLS.
    pub ca: Option<std::path::PathBuf>,
}

/// A request at this time, in milliseconds, for so many tokens.
pub fn row(at: u64, output: u64) -> TraceEntry {
    let prompt = PromptShape { tokens: Some(8), ..PromptShape::default() };
    TraceEntry { at: at * 1_000_000, prompt, output_tokens: Some(output), ..TraceEntry::default() }
}

/// A finished replay.
pub struct Replayed {
    pub outcome: RunOutcome,
    pub totals: RunTotals,
}

impl Replayed {
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.totals.requests.total.outcomes.get(outcome.name()).copied().unwrap_or(0)
    }
}

/// A started replay.
pub struct Running {
    pub run: ReplayRun,
    figures: RunFigures,
}

impl Running {
    pub fn finish(self) -> Replayed {
        let outcome = self.run.finish();
        Replayed { outcome, totals: self.figures.read(std::mem::take) }
    }
}

/// Sends these rows, and returns the figures, and the rows of the result in the order of their plan.
pub fn replay(rows: Vec<TraceEntry>, to: SocketAddr, settings: Settings) -> (Replayed, Vec<TraceEntry>) {
    let folder = tempfile::tempdir().unwrap();
    let output = RunOutput::new(folder.path(), TraceHeader::new("test")).unwrap();
    let ended = start(rows, to, settings, Some(output)).finish();
    assert!(ended.outcome.error.is_none(), "{:?}", ended.outcome.error);
    let reader = TraceReader::open(&folder.path().join("records.jsonl.zst")).unwrap();
    let mut rows: Vec<TraceEntry> = reader.map(Result::unwrap).collect();
    rows.sort_by_key(|row| row.planned);
    (ended, rows)
}

/// Begins to send.
pub fn start(rows: Vec<TraceEntry>, to: SocketAddr, settings: Settings, output: Option<RunOutput>) -> Running {
    let scheme = if settings.ca.is_some() { "https" } else { "http" };
    let target: TargetUrl = format!("{scheme}://{to}").parse().unwrap();
    let targets = vec![target];
    let content = PromptGenerator::new(Vocabulary::default(), None, None, 0);
    let encoder = RequestEncoder::new(
        content,
        targets.clone(),
        settings.dialect,
        Vec::new(),
        ExactOutput::Auto,
        settings.cancel,
        0,
    );
    let config = Config {
        targets,
        tls: settings.ca.map(|ca| Arc::new(streamgauge::net::tls::client(Some(&ca), None, &["http/1.1"]).unwrap())),
        encoder: encoder.unwrap(),
        loop_mode: settings.arrivals,
        slots: settings.slots.map(|slots| Arc::new(Semaphore::new(slots))),
        sessions: settings.sessions,
        session_time_limit: settings.plan.duration,
        connections: settings.connections,
        connect_timeout: Gap::from_millis(5_000),
        timeout: settings.timeout.unwrap_or(Gap::from_millis(20_000)),
        think_time_scale: if settings.arrivals == LoopMode::Closed { 0.0 } else { settings.plan.stretch },
        slos: Arc::new(Slos::new(settings.slos.iter().map(|slo| slo.parse().unwrap()).collect()).unwrap()),
        stall: DEFAULT_STALL,
        workers: 1,
        measurement_window: settings.measured.into(),
        begin: None,
    };
    let open = move || -> Result<TraceRows, RowError> { Ok(Box::new(rows.clone().into_iter().map(Ok))) };
    let figures = RunFigures::new(Slos::clone(&config.slos), config.measurement_window.clone(), None);
    let schedule = || Schedule::new(settings.plan, open);
    let run = ReplayRun::start(config, schedule, output, figures.callback()).unwrap();
    Running { run, figures }
}
