//! The control plane: one task that counts what is reported, exports it, and answers the admin port.
//!
//! It runs on one thread of its own beside the threads that forward, which know only its [`Reporter`], its [`Gauges`]
//! and its [`Sampler`]. Whatever a collector or a scraper does costs time here and nowhere else.

use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::admin::live::Live;
use super::admin::{Admin, Identity};
use super::aggregate;
use super::drops::Drops;
use super::gauges::{Gauges, Upstream};
use super::otlp::run::{MetricsExporter, SpanExporter, Stop};
use super::otlp::settings;
use super::queue::{DRAIN_EVERY, Inbox, Reporter};
use super::telemetry::Telemetry;
use super::trace_context::{Sampler, TailKeep};
use crate::clock::Clock;
use crate::measure::time::Gap;
use crate::net::tls::TlsError;

/// How often an upstream that is not known to be reachable is tried, and how long.
const PROBE_EVERY: Gap = Gap::from_millis(1_000);

/// Everything that the control plane is told.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// How to count.
    pub aggregate: aggregate::Settings,
    /// Where OTLP goes, if anywhere.
    pub otlp: Option<settings::Settings>,
    /// Traces kept whatever the sampler says.
    pub tail_keep: TailKeep,
    /// Who we are, for `/api/state`.
    pub identity: Identity,
    /// The upstream's host and port, to be tried while it is not known to be reachable. Without it an upstream that
    /// failed once stays unready until a request gets through, and a balancer that asks `/readyz` sends none.
    pub probe: Option<(String, u16)>,
}

/// See the module.
pub struct ControlPlane {
    telemetry: Arc<Telemetry>,
    reporter: Reporter,
    sampler: Option<Sampler>,
    metrics: Option<MetricsExporter>,
    spans: Option<SpanExporter>,
    identity: Identity,
    probe: Option<(String, u16)>,
}

impl ControlPlane {
    /// Reads the certificates; connects to nothing yet.
    ///
    /// # Errors
    /// When a certificate for OTLP cannot be used; the error names the file.
    pub fn new(settings: Settings, clock: Clock) -> Result<Self, TlsError> {
        let drops = Arc::<Drops>::default();
        let convention = settings.aggregate.convention;
        let (mut metrics, mut spans, mut queue, mut sampler) = (None, None, None, None);
        if let Some(otlp) = &settings.otlp {
            if let Some(of_metrics) = &otlp.metrics {
                metrics = Some(MetricsExporter::new(of_metrics, &otlp.resource, convention, &clock, &drops)?);
            }
            if let Some(of_traces) = &otlp.traces {
                let (exporter, waiting) = SpanExporter::new(of_traces, &otlp.resource, convention, &clock, &drops)?;
                (spans, queue, sampler) = (Some(exporter), Some(waiting), Some(of_traces.sampler));
            }
        }
        let (reporter, inbox) = Inbox::new(Arc::clone(&drops));
        let telemetry = Telemetry::new(settings.aggregate, inbox, queue, settings.tail_keep, drops, clock);
        let (identity, probe) = (settings.identity, settings.probe);
        Ok(Self { telemetry: Arc::new(telemetry), reporter, sampler, metrics, spans, identity, probe })
    }

    /// Where the proxy reports to.
    pub fn reporter(&self) -> Reporter {
        self.reporter.clone()
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
        let Self { telemetry, metrics, spans, identity, probe, .. } = self;
        let (order, ordered) = Stop::new();
        let mut forever = JoinSet::new();
        let mut exporters = JoinSet::new();
        forever.spawn(drain(Arc::clone(&telemetry)));
        if let Some(listener) = admin {
            let live = Arc::<Live>::default();
            let (of_live, telling) = (Arc::clone(&live), Arc::clone(&telemetry));
            forever.spawn(async move { of_live.run(&telling).await });
            forever.spawn(Admin::new(Arc::clone(&telemetry), live, identity).serve(listener));
        }
        if let Some(upstream) = probe {
            forever.spawn(try_upstream(Arc::clone(&telemetry), upstream));
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
        let deadline = telemetry.clock.now().after(flush);
        order.send_replace(Some(deadline));
        // Exporters keep to the deadline by themselves; one that does not is left behind.
        let _done = telemetry.clock.timeout(flush, exporters.join_all()).await.is_some();
    }
}

async fn drain(telemetry: Arc<Telemetry>) {
    loop {
        tokio::select! {
            () = telemetry.clock.sleep(DRAIN_EVERY) => {}
            () = telemetry.hurry() => {}
        }
        telemetry.drain();
    }
}

/// Finds out whether the upstream can be reached, as long as nobody knows or the last attempt failed.
async fn try_upstream(telemetry: Arc<Telemetry>, (host, port): (String, u16)) {
    loop {
        if telemetry.gauges.upstream() != Upstream::Reachable {
            let attempt = telemetry.clock.timeout(PROBE_EVERY, TcpStream::connect((host.as_str(), port))).await;
            telemetry.gauges.set_upstream(matches!(attempt, Some(Ok(_))));
        }
        telemetry.clock.sleep(PROBE_EVERY).await;
    }
}
