//! Data of one export and a collector's reply to it, independent of the transport.

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;

use crate::measure::time::Gap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::export) enum OtlpSignal {
    Metrics,
    Traces,
    Logs,
}

/// Encoded data of one export.
#[derive(Clone)]
pub(super) struct ExportPayload {
    pub(super) signal: OtlpSignal,
    /// Encoded `Export…ServiceRequest` of the signal.
    pub(super) message: Bytes,
}

impl ExportPayload {
    /// Parses the body of a success. An unreadable body does not make it a failure.
    pub(super) fn parse_success(&self, body: &[u8]) -> ExportResponse {
        let (rejected, why) = match self.signal {
            OtlpSignal::Metrics => {
                let response = ExportMetricsServiceResponse::decode(body).unwrap_or_default();
                let partial = response.partial_success.unwrap_or_default();
                (partial.rejected_data_points, partial.error_message)
            }
            OtlpSignal::Traces => {
                let response = ExportTraceServiceResponse::decode(body).unwrap_or_default();
                let partial = response.partial_success.unwrap_or_default();
                (partial.rejected_spans, partial.error_message)
            }
            OtlpSignal::Logs => {
                let response = ExportLogsServiceResponse::decode(body).unwrap_or_default();
                let partial = response.partial_success.unwrap_or_default();
                (partial.rejected_log_records, partial.error_message)
            }
        };
        ExportResponse::Accepted { rejected: u64::try_from(rejected).unwrap_or(0), why }
    }
}

/// Collector's reply to one attempt.
#[derive(Debug, PartialEq)]
pub(super) enum ExportResponse {
    /// The collector accepted everything except `rejected` items.
    Accepted { rejected: u64, why: String },
    /// The collector may accept the data later.
    Retryable { retry_after: Option<Gap>, why: String },
    /// The collector will never accept the data.
    Rejected(String),
}

impl ExportResponse {
    pub(super) fn retryable(why: String) -> Self {
        Self::Retryable { retry_after: None, why }
    }
}
