//! The control plane: one task that counts what is reported, exports it, and answers the admin port.
//!
//! It runs on one thread of its own beside the threads that forward, which know only its [`Reporter`], its [`Gauges`]
//! and its [`Sampler`]. Whatever a collector or a scraper does costs time here and nowhere else.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::admin::AdminServer;
use super::capture_hook::CaptureRecorder;
use super::control_state::ControlState;
pub use super::control_state::{ACCESS_LOG_TARGET, RuntimeSettings};
use super::drops::Drops;
use super::gauges::Gauges;
use super::identity::with_instance_attributes;
use super::live_view::LiveSnapshot;
use super::otlp::exporter::{MetricsExporter, SpanExporter, StopSignal};
use super::otlp::probe_collector;
use super::queue::{ReportReceiver, Reporter};
use crate::clock::Clock;
use crate::config::otlp::{ExporterConfig, OtlpConfig, Sampler};
use crate::measure::time::Gap;

/// See the module.
pub struct ControlPlane {
    telemetry: Arc<ControlState>,
    reporter: Reporter,
    sampler: Option<Sampler>,
    metrics: Option<MetricsExporter>,
    spans: Option<SpanExporter>,
    upstream: Option<String>,
    admin_released: watch::Sender<bool>,
    /// An exporter for each collector.
    collectors: Vec<ExporterConfig>,
}

/// Changes the rules of a control plane that runs, and reads its figures.
#[derive(Clone)]
pub struct ControlHandle(Arc<ControlState>);

impl ControlHandle {
    /// From now on these rules hold. What has been reported before is counted by the old ones.
    pub fn apply(&self, rules: RuntimeSettings) {
        self.0.apply(rules);
    }

    /// The figures of this moment, what has been reported up to now included.
    pub fn live_snapshot(&self) -> LiveSnapshot {
        self.0.live_snapshot()
    }
}

impl ControlPlane {
    /// Connects to nothing yet. `upstream` is the URL of who is forwarded to, for `/api/state`.
    pub fn new(rules: RuntimeSettings, otlp: &OtlpConfig, upstream: Option<String>, clock: Clock) -> Self {
        let drops = Arc::<Drops>::default();
        let (convention, resource) = (rules.aggregate.convention, with_instance_attributes(&otlp.resource));
        let (mut metrics, mut spans, mut queue, mut sampler) = (None, None, None, None);
        if let Some(of_metrics) = &otlp.metrics {
            metrics = Some(MetricsExporter::new(of_metrics, &resource, convention, &clock, &drops));
        }
        if let Some(of_traces) = &otlp.traces {
            let (exporter, waiting) = SpanExporter::new(of_traces, &resource, convention, &clock, &drops);
            (spans, queue, sampler) = (Some(exporter), Some(waiting), Some(of_traces.sampler));
        }
        let collectors = otlp.exporters().into_iter().cloned().collect();
        let (reporter, inbox) = ReportReceiver::new(Arc::clone(&drops));
        let telemetry = ControlState::new(rules, inbox, queue, drops, clock);
        Self {
            telemetry: Arc::new(telemetry),
            reporter,
            sampler,
            metrics,
            spans,
            upstream,
            admin_released: watch::Sender::new(false),
            collectors,
        }
    }

    /// Told `true`, the admin port is left to another process: nothing more is accepted there, and connections end.
    pub fn admin_released(&self) -> watch::Sender<bool> {
        self.admin_released.clone()
    }

    /// Changes the rules while it runs.
    pub fn handle(&self) -> ControlHandle {
        ControlHandle(Arc::clone(&self.telemetry))
    }

    /// Where the proxy reports to.
    pub fn reporter(&self) -> Reporter {
        self.reporter.clone()
    }

    /// Requests that have been counted go on to this capture, which is ended with the rest.
    pub fn set_capture(&self, capture: Arc<CaptureRecorder>) {
        self.telemetry.set_capture(capture);
    }

    /// The levels that the proxy moves.
    pub fn gauges(&self) -> Arc<Gauges> {
        Arc::clone(&self.telemetry.gauges)
    }

    /// What has been lost so far.
    pub fn drops(&self) -> Arc<Drops> {
        Arc::clone(&self.telemetry.drops)
    }

    /// Decides about traces; none where traces are not exported, and then trace headers should pass untouched.
    pub fn sampler(&self) -> Option<Sampler> {
        self.sampler
    }

    /// Runs until `stop`, and then at most `flush` longer, for the last exports. Belongs on a runtime with one thread.
    pub async fn run(self, admin: Option<TcpListener>, stop: impl Future<Output = ()>, flush: Gap) {
        let Self { telemetry, metrics, spans, upstream, admin_released: admin_left, collectors, .. } = self;
        let (order, ordered) = StopSignal::new();
        let mut forever = JoinSet::new();
        let mut exporters = JoinSet::new();
        forever.spawn(drain(Arc::clone(&telemetry)));
        for collector in collectors {
            forever.spawn(probe_collector(collector, telemetry.clock.clone()));
        }
        if let Some(listener) = admin {
            forever.spawn(AdminServer::new(Arc::clone(&telemetry), upstream).serve(listener, admin_left.subscribe()));
        }
        if let Some(exporter) = metrics {
            let source = Arc::clone(&telemetry);
            let stop = ordered.clone();
            exporters.spawn(async move { exporter.run(|| source.snapshot(), stop).await });
        }
        if let Some(exporter) = spans {
            let source = Arc::clone(&telemetry);
            exporters.spawn(async move { exporter.run(|| source.drain(), ordered).await });
        }
        stop.await;
        // What was reported last is counted, logged and captured, whether anybody exports it or not.
        telemetry.drain();
        telemetry.end_capture().await;
        let deadline = telemetry.clock.now().after(flush);
        order.send_replace(Some(deadline));
        // Exporters keep to the deadline by themselves; one that does not is left behind.
        let _done = telemetry.clock.timeout(flush, exporters.join_all()).await.is_some();
    }
}

async fn drain(telemetry: Arc<ControlState>) {
    loop {
        tokio::select! {
            () = telemetry.clock.sleep(telemetry.drain_interval()) => {}
            () = telemetry.queue_half_full() => {}
        }
        telemetry.drain();
    }
}
