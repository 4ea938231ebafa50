//! Runs the exporter of metrics: by interval, and a final flush.

use std::pin::pin;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message;
use tokio::sync::watch;

use super::client::{Delivery, OtlpClient};
use super::metrics::{MetricsEncoder, MetricsExport};
use super::payload::{ExportPayload, OtlpSignal};
use crate::clock::Clock;
use crate::config::otlp::{self, ExporterConfig};
use crate::export::registry::catalog::Convention;
use crate::export::registry::drops::{DropReason, Drops};
use crate::export::registry::snapshot::Snapshot;
use crate::measure::time::{Gap, Stamp};

/// Receives the order to stop and its deadline.
#[derive(Clone, Debug)]
pub(crate) struct StopSignal(watch::Receiver<Option<Stamp>>);

impl StopSignal {
    /// Creates the sender and the receiver.
    pub(crate) fn new() -> (watch::Sender<Option<Stamp>>, Self) {
        let (order, stop) = watch::channel(None);
        (order, Self(stop))
    }

    /// Returns the deadline if the order was sent.
    fn deadline(&self) -> Option<Stamp> {
        *self.0.borrow()
    }

    /// Waits for the order and returns its deadline. If the sender is gone, the deadline is now.
    pub(crate) async fn wait(&mut self) -> Stamp {
        match self.0.wait_for(Option::is_some).await {
            Ok(deadline) => deadline.unwrap_or_default(),
            Err(_) => Stamp::default(),
        }
    }
}

/// What every exporter needs.
pub(super) struct ExportContext {
    client: OtlpClient,
    pub(super) clock: Clock,
    drops: Arc<Drops>,
    /// Time limit of one export.
    budget: Gap,
}

impl ExportContext {
    /// Creates a context without connecting.
    pub(super) fn new(exporter: &ExporterConfig, budget: Gap, clock: &Clock, drops: &Arc<Drops>) -> Self {
        let client = OtlpClient::new(exporter, clock.clone());
        Self { client, clock: clock.clone(), drops: Arc::clone(drops), budget }
    }

    /// Delivers the payload. If the order to stop interrupts it, delivers it again within the deadline.
    ///
    /// The interrupted attempt gets half of the remaining time: a collector that already has the data would otherwise
    /// receive it twice.
    pub(super) async fn deliver(&mut self, payload: &ExportPayload, stop: &mut StopSignal) -> Delivery {
        let (clock, budget) = (self.clock.clone(), self.budget);
        let left = |deadline: Stamp| deadline.since(clock.now()).min(budget);
        let deadline = match stop.deadline() {
            Some(deadline) => deadline,
            None => {
                let mut under_way = pin!(self.client.deliver(payload, budget));
                let deadline = tokio::select! {
                    delivery = &mut under_way => return delivery,
                    deadline = stop.wait() => deadline,
                };
                let half = Gap::from_nanos(left(deadline).as_nanos() / 2);
                if let Some(delivery) = clock.timeout(half, under_way).await {
                    return delivery;
                }
                deadline
            }
        };
        self.client.deliver(payload, left(deadline)).await
    }

    pub(super) fn count(&self, delivery: Delivery, items: u64, failed: DropReason, rejected: DropReason) {
        match delivery {
            Delivery::Accepted { rejected: 0 } => {}
            Delivery::Accepted { rejected: some } => self.drops.add(rejected, some.min(items)),
            Delivery::Failed => self.drops.add(failed, items),
        }
    }
}

pub(crate) struct MetricsExporter {
    context: ExportContext,
    encoder: MetricsEncoder,
    interval: Gap,
}

impl MetricsExporter {
    /// Creates an exporter without connecting.
    pub(crate) fn new(
        settings: &otlp::MetricsConfig,
        resource: &opentelemetry_sdk::Resource,
        convention: Convention,
        clock: &Clock,
        drops: &Arc<Drops>,
    ) -> Self {
        let context = ExportContext::new(&settings.exporter, settings.timeout, clock, drops);
        let encoder = MetricsEncoder::new(resource, convention, settings.temporality, settings.histograms);
        Self { context, encoder, interval: settings.interval }
    }

    /// Exports `source`'s snapshots until the order to stop, then one last time.
    pub(crate) async fn run(mut self, source: impl Fn() -> Snapshot, mut stop: StopSignal) {
        let mut next = self.context.clock.now();
        loop {
            next = next.after(self.interval).max(self.context.clock.now());
            let last = tokio::select! {
                () = self.context.clock.sleep_until(next) => false,
                _ = stop.wait() => true,
            };
            let export = self.encoder.encode(&source());
            self.export(export, &mut stop).await;
            if last {
                return;
            }
        }
    }

    async fn export(&mut self, mut export: MetricsExport, stop: &mut StopSignal) {
        if export.points == 0 {
            return;
        }
        let resource_metrics = vec![std::mem::take(&mut export.metrics)];
        let message = ExportMetricsServiceRequest { resource_metrics }.encode_to_vec().into();
        let payload = ExportPayload { signal: OtlpSignal::Metrics, message };
        let delivery = self.context.deliver(&payload, stop).await;
        self.context.count(delivery, export.points, DropReason::PointsFailed, DropReason::PointsRejected);
        if delivery != Delivery::Failed {
            self.encoder.acknowledge(export);
        }
    }
}
