//! A run's live view: the proxy's admin port and OTLP export, fed by the collector thread. The sending threads are not
//! involved.

use std::env;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::Context as _;
use tokio::sync::oneshot;

use super::spec::PlannedTotal;
use crate::cli::logging::{self, LogHandle};
use crate::clock::Clock;
use crate::config::otlp::OtlpConfig;
use crate::config::{LogConfig, LogFormat, LogLevel, TailSampling};
use crate::export::admin::access::AdminAccess;
use crate::export::control::run_status::{RunInfo, RunStatus};
use crate::export::control::thread::{ControlPlane, RuntimeSettings};
use crate::export::registry::aggregate;
use crate::export::registry::catalog::Convention;
use crate::export::registry::gauges::Gauges;
use crate::measure::observer::DEFAULT_STALL;
use crate::measure::record::RequestRecord;
use crate::measure::slo::Slos;
use crate::measure::time::Gap;
use crate::replay::ReplayRun;
use crate::replay::result::row::CompletedRequest;
use crate::replay::sender::run::CompletionCallback;
use crate::replay::sender::target::TargetUrl;

/// Timeout of the last export.
const FLUSH_TIMEOUT: Gap = Gap::from_millis(5_000);

/// The control plane of a live run, on its own thread.
pub(super) struct LiveRun {
    gauges: Arc<Gauges>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    _logging: LogHandle,
}

/// Description of a live run.
pub(super) struct LiveRunInfo {
    /// Name of the workload.
    pub(super) name: String,
    pub(super) targets: Vec<TargetUrl>,
    pub(super) total: PlannedTotal,
    pub(super) slos: Arc<Slos>,
}

impl LiveRun {
    /// Starts the control plane if an admin port or a collector is configured. Also returns the callback for records.
    pub(super) fn start(
        admin_port: Option<(TcpListener, AdminAccess)>,
        plan: &LiveRunInfo,
    ) -> anyhow::Result<(Option<Self>, Option<CompletionCallback>)> {
        let (mut otlp, warnings) = OtlpConfig::from_environment(|name| env::var(name).ok());
        // Spans describe forwarded requests, and a replay forwards none.
        otlp.traces = None;
        if admin_port.is_none() && otlp.metrics.is_none() && otlp.logs.is_none() {
            return Ok((None, None));
        }
        let logging = logging::start(LogConfig { format: LogFormat::Text, level: LogLevel::Warn }, &otlp)
            .context("cannot begin to log")?;
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let convention = if otlp.latest_gen_ai { Convention::Latest } else { Convention::Frozen };
        let aggregate = aggregate::AggregateSettings { slos: Arc::clone(&plan.slos), convention, ..Default::default() };
        let rules = RuntimeSettings { aggregate, tail_keep: TailSampling::default(), ..RuntimeSettings::default() };
        let (listener, access) = admin_port.unzip();
        let plane = ControlPlane::new(rules, &otlp, logging.exported(), None, Clock::Monotonic)
            .with_access(Arc::new(access.unwrap_or_default()));
        let (gauges, reporter) = (plane.gauges(), plane.reporter());
        let (stop, stopped) = oneshot::channel::<()>();
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
            crate::cli::terminal::eprint_line(&format!("live: http://{}/", listener.local_addr()?));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("control".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let listener = listener.and_then(|listener| tokio::net::TcpListener::from_std(listener).ok());
                // A closed channel also means stop.
                let stopped = async { _ = stopped.await.is_ok() };
                plane.run(listener, stopped, FLUSH_TIMEOUT).await;
            });
        })?;
        let servers: Vec<_> =
            plan.targets.iter().map(|target| (Arc::<str>::from(&*target.host), target.port)).collect();
        let watcher: CompletionCallback = Box::new(move |done, _row| {
            let server = servers[done.target % servers.len()].clone();
            reporter.replayed(record_from_planned(done, server), done.lag());
        });
        Ok((Some(Self { gauges, stop, thread, _logging: logging }), Some(watcher)))
    }

    /// Attaches the run to the live page.
    pub(super) fn attach(&self, plan: LiveRunInfo, run: &ReplayRun) {
        let targets: Vec<String> = plan.targets.iter().map(ToString::to_string).collect();
        let (counters, begin) = (run.counters(), run.begin());
        self.gauges.set_run_info(RunInfo {
            name: plan.name,
            targets: targets.join(", "),
            planned: plan.total.requests,
            duration: plan.total.length,
            status: Box::new(move || RunStatus {
                age: Clock::Monotonic.now().since(begin),
                sent: counters.sent(),
                in_flight: counters.in_flight(),
                streaming: counters.streaming(),
                simulated: counters.simulated(),
            }),
        });
        self.gauges.set_ready(true);
    }

    /// Reports not ready, because nothing more is sent.
    pub(super) fn set_not_ready(&self) {
        self.gauges.set_ready(false);
    }

    /// Exports the remaining data and ends.
    pub(super) fn finish(self) {
        // The thread may have ended already.
        _ = self.stop.send(()).is_ok();
        if self.thread.join().is_err() {
            crate::cli::terminal::eprint_line("note: a thread of --admin panicked; the result is not touched by that");
        }
    }
}

/// The record with latencies from the planned time, as a user experiences them. All gaps are included, because none was
/// reported before the request's end.
fn record_from_planned(done: &CompletedRequest, server: (Arc<str>, u16)) -> RequestRecord {
    let mut record = done.record.clone();
    record.times.received = done.planned;
    let mut shape = (*record.shape).clone();
    shape.server = Some(server);
    record.shape = Arc::new(shape);
    record.gaps = done.gaps.clone().into_boxed_slice();
    let stalls = done.gaps.iter().filter(|gap| gap.gap() > DEFAULT_STALL).count();
    record.stalls = u32::try_from(stalls).unwrap_or(u32::MAX);
    record.tokens_reported = 0;
    record
}
