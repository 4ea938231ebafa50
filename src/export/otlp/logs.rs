//! Exports this process's log records, the access log among them.
//!
//! The records come from `tracing` events by way of OpenTelemetry's bridge and its SDK. The queue is the SDK's processor:
//! unlike the SDK's own it counts what it drops. The delivery is that of the other signals, because
//! `opentelemetry-otlp` reports neither rejected records nor a new certificate. Records of one exporter's own failures
//! are not exported (see `ControlPlane::run`), or one failure would cause the next.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use opentelemetry::InstrumentationScope;
use opentelemetry::logs::LogRecord as _;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::logs::tonic::group_logs_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{LogBatch, LogProcessor, SdkLogRecord, SdkLoggerProvider};
use prost::Message;

use super::batch::{BatchEncoder, BatchExporter, BatchQueue};
use super::payload::OtlpSignal;
use crate::clock::Clock;
use crate::config::otlp::LogsConfig;
use crate::export::registry::drops::{DropReason, Drops};

/// The way of log records to the control thread. It exists before the control plane, so that nothing is missed.
#[derive(Clone, Debug)]
pub struct LogPipeline {
    settings: LogsConfig,
    queue: Arc<BatchQueue<LogEncoder>>,
    provider: SdkLoggerProvider,
    drops: Arc<Drops>,
}

impl LogPipeline {
    /// Creates the pipeline. Until a control plane exports, records are queued.
    pub fn new(settings: &LogsConfig) -> Self {
        let drops = Arc::<Drops>::default();
        let queue = BatchQueue::new(&settings.batch, &drops);
        let provider = SdkLoggerProvider::builder().with_log_processor(QueueProcessor(Arc::clone(&queue))).build();
        Self { settings: settings.clone(), queue, provider, drops }
    }

    /// Returns the provider whose loggers fill the queue.
    pub fn provider(&self) -> &SdkLoggerProvider {
        &self.provider
    }

    /// Returns the counters of lost telemetry, which the control plane continues.
    pub(in crate::export) fn drops(&self) -> Arc<Drops> {
        Arc::clone(&self.drops)
    }

    /// Creates the exporter of the queue without connecting.
    pub(in crate::export) fn exporter(&self, resource: &Resource, clock: &Clock) -> BatchExporter<LogEncoder> {
        let config = (&self.settings.exporter, &self.settings.batch);
        BatchExporter::new(config, LogEncoder { resource: resource.into() }, &self.queue, clock, &self.drops)
    }
}

/// Queues the records that loggers emit.
#[derive(Debug)]
struct QueueProcessor(Arc<BatchQueue<LogEncoder>>);

impl LogProcessor for QueueProcessor {
    fn emit(&self, record: &mut SdkLogRecord, scope: &InstrumentationScope) {
        // The bridge takes the name of the event, which is the place in the source.
        record.set_event_name("");
        // Some backends show no other time.
        if let Some(observed) = record.observed_timestamp() {
            record.set_timestamp(observed);
        }
        self.0.push(|| Box::new((record.clone(), scope.clone())));
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Encodes records as one `ExportLogsServiceRequest`.
#[derive(Debug)]
pub(in crate::export) struct LogEncoder {
    resource: ResourceAttributesWithSchema,
}

impl BatchEncoder for LogEncoder {
    type Entry = Box<(SdkLogRecord, InstrumentationScope)>;
    const SIGNAL: OtlpSignal = OtlpSignal::Logs;
    const QUEUE_FULL: DropReason = DropReason::Logs;
    const FAILED: DropReason = DropReason::LogsFailed;
    const REJECTED: DropReason = DropReason::LogsRejected;

    fn encode(&self, entries: &[Self::Entry]) -> Bytes {
        let records: Vec<_> = entries.iter().map(|entry| (&entry.0, &entry.1)).collect();
        let resource_logs = group_logs_by_resource_and_scope(&LogBatch::new(&records), &self.resource);
        ExportLogsServiceRequest { resource_logs }.encode_to_vec().into()
    }
}
