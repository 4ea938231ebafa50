//! The control plane: one task that aggregates reports, exports them and serves the admin port.
//!
//! It has its own thread beside the forwarding threads, which use only its [`Reporter`], its [`Gauges`] and its
//! [`Sampler`]. A slow collector or scraper therefore costs time only here.

use std::sync::Arc;

use opentelemetry::Context;
use opentelemetry::context::FutureExt as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::live_view::LiveSnapshot;
use super::process_control::ProcessControl;
use super::queue::{ReportReceiver, Reporter};
pub use super::recent_requests::ACCESS_LOG_TARGET;
use super::state::ControlState;
pub use super::state::RuntimeSettings;
use crate::capture::recorder::CaptureRecorder;
use crate::clock::Clock;
use crate::config::otlp::{ExporterConfig, OtlpConfig, Sampler};
use crate::export::admin::AdminServer;
use crate::export::admin::access::AdminAccess;
use crate::export::engine_metrics::{EngineMetrics, EngineMetricsSource};
use crate::export::identity;
use crate::export::otlp::batch::BatchExporter;
use crate::export::otlp::exporter::{MetricsExporter, StopSignal};
use crate::export::otlp::logs::{LogEncoder, LogPipeline};
use crate::export::otlp::traces::SpanEncoder;
use crate::export::otlp::{probe_collector, traces};
use crate::export::registry::drops::Drops;
use crate::export::registry::gauges::Gauges;
use crate::measure::time::Gap;

/// The control plane before it runs.
pub struct ControlPlane {
    telemetry: Arc<ControlState>,
    reporter: Reporter,
    sampler: Option<Sampler>,
    metrics: Option<MetricsExporter>,
    spans: Option<BatchExporter<SpanEncoder>>,
    logs: Option<BatchExporter<LogEncoder>>,
    upstream: Option<String>,
    engine: Option<Arc<EngineMetrics>>,
    access: Arc<AdminAccess>,
    admin_released: watch::Sender<bool>,
    /// One exporter configuration per collector.
    collectors: Vec<ExporterConfig>,
}

/// Handle that changes a running control plane's settings and reads its data.
#[derive(Clone)]
pub struct ControlHandle(Arc<ControlState>);

impl ControlHandle {
    /// Applies new settings. Earlier reports are counted under the old ones.
    pub fn apply(&self, rules: RuntimeSettings) {
        self.0.apply(rules);
    }

    /// Lets the admin port show and change the process's settings.
    pub fn set_process_control(&self, control: Box<dyn ProcessControl>) {
        self.0.set_process_control(control);
    }

    /// Returns a snapshot that includes all reports so far.
    pub fn live_snapshot(&self) -> LiveSnapshot {
        self.0.live_snapshot()
    }
}

impl ControlPlane {
    /// Creates a control plane without opening connections. It exports the records of `logs`, if there is such a
    /// pipeline. `upstream` is the forwarding target's URL, for `/api/state`.
    pub fn new(
        rules: RuntimeSettings,
        otlp: &OtlpConfig,
        logs: Option<&LogPipeline>,
        upstream: Option<String>,
        clock: Clock,
    ) -> Self {
        let drops = logs.map_or_else(Arc::<Drops>::default, LogPipeline::drops);
        let (convention, resource) = (rules.aggregate.convention, identity::resource(&otlp.resource));
        let (mut metrics, mut spans, mut queue, mut sampler) = (None, None, None, None);
        if let Some(of_metrics) = &otlp.metrics {
            metrics = Some(MetricsExporter::new(of_metrics, &resource, convention, &clock, &drops));
        }
        if let Some(of_traces) = &otlp.traces {
            let (exporter, waiting) = traces::exporter(of_traces, &resource, convention, &clock, &drops);
            (spans, queue, sampler) = (Some(exporter), Some(waiting), Some(of_traces.sampler));
        }
        let logs = logs.map(|pipeline| pipeline.exporter(&resource, &clock));
        let collectors = otlp.exporters().into_iter().cloned().collect();
        let (reporter, inbox) = ReportReceiver::new(Arc::clone(&drops));
        let telemetry = ControlState::new(rules, inbox, queue, drops, clock, identity::instance(&resource));
        Self {
            telemetry: Arc::new(telemetry),
            reporter,
            sampler,
            metrics,
            spans,
            logs,
            upstream,
            engine: None,
            access: Arc::default(),
            admin_released: watch::Sender::new(false),
            collectors,
        }
    }

    /// Admits only these clients to the admin port. By default it admits everyone.
    pub fn with_access(self, access: Arc<AdminAccess>) -> Self {
        Self { access, ..self }
    }

    /// Shows the figures of this engine on the live page. By default there are none.
    pub fn with_engine_metrics(self, source: Option<EngineMetricsSource>) -> Self {
        Self { engine: source.map(|source| Arc::new(EngineMetrics::new(source))), ..self }
    }

    /// Returns a sender that releases the admin port to another process: after `true`, the server accepts no connection
    /// and closes the open ones.
    pub fn admin_released(&self) -> watch::Sender<bool> {
        self.admin_released.clone()
    }

    /// Returns a handle for the running control plane.
    pub fn handle(&self) -> ControlHandle {
        ControlHandle(Arc::clone(&self.telemetry))
    }

    /// Returns the reporter for the proxy.
    pub fn reporter(&self) -> Reporter {
        self.reporter.clone()
    }

    /// Forwards counted requests to this capture, which ends with the control plane.
    pub fn set_capture(&self, capture: Arc<CaptureRecorder>) {
        self.telemetry.set_capture(capture);
    }

    /// Returns the gauges that the proxy updates.
    pub fn gauges(&self) -> Arc<Gauges> {
        Arc::clone(&self.telemetry.gauges)
    }

    /// Returns the counters of lost telemetry.
    pub fn drops(&self) -> Arc<Drops> {
        Arc::clone(&self.telemetry.drops)
    }

    /// Returns the trace sampler. Without trace export there is none, and trace headers should pass unchanged.
    pub fn sampler(&self) -> Option<Sampler> {
        self.sampler
    }

    /// Runs until `stop`, then at most `flush` longer for the last exports. Use a single-threaded runtime.
    pub async fn run(self, admin: Option<TcpListener>, stop: impl Future<Output = ()>, flush: Gap) {
        let Self { telemetry, metrics, spans, logs, upstream, engine, access, .. } = self;
        let (order, ordered) = StopSignal::new();
        let mut forever = JoinSet::new();
        let mut exporters = JoinSet::new();
        forever.spawn(drain(Arc::clone(&telemetry)));
        for collector in self.collectors {
            forever.spawn(probe_collector(collector, telemetry.clock.clone()));
        }
        if let Some(listener) = admin {
            if let Some(engine) = &engine {
                forever.spawn(Arc::clone(engine).run(telemetry.clock.clone()));
            }
            let server = AdminServer::new(Arc::clone(&telemetry), upstream, engine, access);
            forever.spawn(server.serve(listener, self.admin_released.subscribe()));
        }
        if let Some(exporter) = metrics {
            let source = Arc::clone(&telemetry);
            let stop = ordered.clone();
            exporters.spawn(async move { exporter.run(|| source.snapshot(), stop).await });
        }
        if let Some(exporter) = spans {
            let source = Arc::clone(&telemetry);
            let stop = ordered.clone();
            exporters.spawn(async move { exporter.run(|| source.drain(), stop).await });
        }
        if let Some(exporter) = logs {
            // A failure of this export is only on stderr: exported, it would fail again.
            let silent = Context::new().with_telemetry_suppressed();
            exporters.spawn(exporter.run(|| (), ordered).with_context(silent));
        }
        stop.await;
        // The last reports are counted, logged and captured even without exporters.
        telemetry.drain();
        telemetry.end_capture().await;
        let deadline = telemetry.clock.now().after(flush);
        order.send_replace(Some(deadline));
        // Exporters observe the deadline themselves; a late one is abandoned.
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
