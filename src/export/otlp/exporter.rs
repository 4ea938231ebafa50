//! Runs the exporters: metrics by interval, spans by batch, and a final flush of both.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use tokio::sync::{Notify, watch};

use super::client::{Delivery, ExportPayload, OtlpClient, OtlpSignal};
use super::metrics::{MetricsEncoder, MetricsExport};
use super::traces::RequestSpans;
use super::{attributes, traces};
use crate::clock::Clock;
use crate::config::otlp;
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

/// Shared state of both exporters.
struct ExportContext {
    client: OtlpClient,
    clock: Clock,
    drops: Arc<Drops>,
    /// Time limit of one export.
    budget: Gap,
}

impl ExportContext {
    /// Delivers the payload. If the order to stop interrupts it, delivers it again within the deadline.
    ///
    /// The interrupted attempt gets half of the remaining time: a collector that already has the data would otherwise
    /// receive it twice.
    async fn deliver(&mut self, payload: &ExportPayload, stop: &mut StopSignal) -> Delivery {
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

    fn count(&self, delivery: Delivery, items: u64, failed: DropReason, rejected: DropReason) {
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
        let client = OtlpClient::new(&settings.exporter, clock.clone());
        let way = ExportContext { client, clock: clock.clone(), drops: Arc::clone(drops), budget: settings.timeout };
        let encoder = MetricsEncoder::new(resource, convention, settings.temporality, settings.histograms);
        Self { context: way, encoder, interval: settings.interval }
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

/// Queue of spans that wait for the exporter.
#[derive(Debug)]
pub(crate) struct SpanQueue {
    requests: Mutex<VecDeque<RequestSpans>>,
    /// Maximum number of requests whose spans are queued, and size of a batch.
    capacity: usize,
    batch: usize,
    full_batch: Notify,
    drops: Arc<Drops>,
}

impl SpanQueue {
    /// Queues a request's spans. If the queue is full, it counts them as dropped and does not create them.
    pub(crate) fn push(&self, spans: impl FnOnce() -> RequestSpans) {
        let mut queue = self.lock();
        if queue.len() >= self.capacity {
            return self.drops.add(DropReason::Spans, RequestSpans::COUNT as u64);
        }
        queue.push_back(spans());
        if queue.len() >= self.batch {
            self.full_batch.notify_one();
        }
    }

    fn next_batch(&self) -> Vec<RequestSpans> {
        let mut queue = self.lock();
        let most = queue.len().min(self.batch);
        queue.drain(..most).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<RequestSpans>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_batch(&self) -> bool {
        self.lock().len() >= self.batch
    }
}

pub(crate) struct SpanExporter {
    context: ExportContext,
    queue: Arc<SpanQueue>,
    resource: Resource,
    convention: Convention,
    schedule: Gap,
}

impl SpanExporter {
    /// Creates an exporter without connecting, and its queue.
    pub(crate) fn new(
        settings: &otlp::TracesConfig,
        resource: &opentelemetry_sdk::Resource,
        convention: Convention,
        clock: &Clock,
        drops: &Arc<Drops>,
    ) -> (Self, Arc<SpanQueue>) {
        let client = OtlpClient::new(&settings.exporter, clock.clone());
        let way = ExportContext { client, clock: clock.clone(), drops: Arc::clone(drops), budget: settings.timeout };
        let queue = Arc::new(SpanQueue {
            requests: Mutex::default(),
            capacity: settings.max_queue_size / RequestSpans::COUNT,
            batch: (settings.max_batch_size / RequestSpans::COUNT).max(1),
            full_batch: Notify::new(),
            drops: Arc::clone(drops),
        });
        let (resource, schedule) = (attributes::resource(resource), settings.schedule_delay);
        (Self { context: way, queue: Arc::clone(&queue), resource, convention, schedule }, queue)
    }

    /// Exports queued spans until the order to stop, then the rest. `drain` fills the queue before the last batch.
    pub(crate) async fn run(mut self, drain: impl Fn(), mut stop: StopSignal) {
        loop {
            let last = tokio::select! {
                () = self.context.clock.sleep(self.schedule) => false,
                () = self.queue.full_batch.notified() => false,
                _ = stop.wait() => true,
            };
            if last {
                drain();
            }
            loop {
                let requests = self.queue.next_batch();
                if requests.is_empty() {
                    break;
                }
                self.export(&requests, &mut stop).await;
                if !last && !self.queue.has_batch() {
                    break;
                }
            }
            if last {
                return;
            }
        }
    }

    async fn export(&mut self, requests: &[RequestSpans], stop: &mut StopSignal) {
        let count = (requests.len() * RequestSpans::COUNT) as u64;
        let message = traces::export(requests, &self.resource, self.convention);
        let payload = ExportPayload { signal: OtlpSignal::Traces, message };
        let delivery = self.context.deliver(&payload, stop).await;
        self.context.count(delivery, count, DropReason::SpansFailed, DropReason::SpansRejected);
    }
}
