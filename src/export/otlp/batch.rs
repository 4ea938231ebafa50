//! Queues spans and log records, and exports them by batch.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::exporter::{ExportContext, StopSignal};
use super::payload::{ExportPayload, OtlpSignal};
use crate::clock::Clock;
use crate::config::otlp::{BatchConfig, ExporterConfig};
use crate::export::registry::drops::{DropReason, Drops};
use crate::measure::time::Gap;

/// Encodes one kind of batch.
pub(in crate::export) trait BatchEncoder {
    /// What is queued.
    type Entry;
    const SIGNAL: OtlpSignal;
    /// Spans or log records per entry.
    const ENTRY_ITEMS: usize = 1;
    const QUEUE_FULL: DropReason;
    const FAILED: DropReason;
    const REJECTED: DropReason;

    /// Encodes entries as the signal's `Export…ServiceRequest`.
    fn encode(&self, entries: &[Self::Entry]) -> Bytes;
}

/// Entries that wait for the exporter. Every thread may push: the lock is held for one move, and never during an export.
#[derive(Debug)]
pub(in crate::export) struct BatchQueue<E: BatchEncoder> {
    entries: Mutex<VecDeque<E::Entry>>,
    /// Maximum number of queued entries, and size of a batch.
    capacity: usize,
    batch: usize,
    full_batch: Notify,
    drops: Arc<Drops>,
}

impl<E: BatchEncoder> BatchQueue<E> {
    pub(super) fn new(batch: &BatchConfig, drops: &Arc<Drops>) -> Arc<Self> {
        Arc::new(Self {
            entries: Mutex::default(),
            capacity: batch.max_queue_size / E::ENTRY_ITEMS,
            batch: (batch.max_batch_size / E::ENTRY_ITEMS).max(1),
            full_batch: Notify::new(),
            drops: Arc::clone(drops),
        })
    }

    /// Queues an entry. If the queue is full, it counts the entry as dropped and does not create it.
    pub(in crate::export) fn push(&self, entry: impl FnOnce() -> E::Entry) {
        let mut queue = self.lock();
        if queue.len() >= self.capacity {
            return self.drops.add(E::QUEUE_FULL, E::ENTRY_ITEMS as u64);
        }
        queue.push_back(entry());
        if queue.len() >= self.batch {
            self.full_batch.notify_one();
        }
    }

    fn next_batch(&self) -> Vec<E::Entry> {
        let mut queue = self.lock();
        let most = queue.len().min(self.batch);
        queue.drain(..most).collect()
    }

    fn has_batch(&self) -> bool {
        self.lock().len() >= self.batch
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<E::Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(in crate::export) struct BatchExporter<E: BatchEncoder> {
    context: ExportContext,
    queue: Arc<BatchQueue<E>>,
    encoder: E,
    schedule: Gap,
}

impl<E: BatchEncoder> BatchExporter<E> {
    /// Creates an exporter of this queue without connecting.
    pub(super) fn new(
        (exporter, batch): (&ExporterConfig, &BatchConfig),
        encoder: E,
        queue: &Arc<BatchQueue<E>>,
        clock: &Clock,
        drops: &Arc<Drops>,
    ) -> Self {
        let context = ExportContext::new(exporter, batch.timeout, clock, drops);
        Self { context, queue: Arc::clone(queue), encoder, schedule: batch.schedule_delay }
    }

    /// Exports queued entries until the order to stop, then the rest. `drain` fills the queue before the last batch.
    pub(in crate::export) async fn run(mut self, drain: impl Fn(), mut stop: StopSignal) {
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
                let entries = self.queue.next_batch();
                if entries.is_empty() {
                    break;
                }
                self.export(&entries, &mut stop).await;
                if !last && !self.queue.has_batch() {
                    break;
                }
            }
            if last {
                return;
            }
        }
    }

    async fn export(&mut self, entries: &[E::Entry], stop: &mut StopSignal) {
        let payload = ExportPayload { signal: E::SIGNAL, message: self.encoder.encode(entries) };
        let delivery = self.context.deliver(&payload, stop).await;
        self.context.count(delivery, (entries.len() * E::ENTRY_ITEMS) as u64, E::FAILED, E::REJECTED);
    }
}
