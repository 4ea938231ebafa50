//! Delivers one export: attempts, time limits and failure messages.

use rand::RngExt;

use super::connect::CollectorConnector;
use super::grpc::GrpcTransport;
use super::http::HttpTransport;
use super::payload::{ExportPayload, ExportResponse, OtlpSignal};
use crate::clock::Clock;
use crate::config::otlp::{ExporterConfig, Protocol};
use crate::measure::time::{Gap, Stamp};

/// First pause between attempts. It doubles after each attempt, and random jitter shortens it by up to half, so that a
/// fleet does not reconnect at once.
const INITIAL_BACKOFF: Gap = Gap::from_millis(1_000);
const MAX_BACKOFF: Gap = Gap::from_millis(30_000);
/// Minimum interval between log lines about failures.
const LOG_INTERVAL: Gap = Gap::from_millis(60_000);
const EXPORT_FAILED: &str = "OTLP export failed";
/// Maximum length of a collector's message in the log, in bytes.
const MAX_REASON_BYTES: usize = 300;

/// Result of one export after all attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The collector has everything except `rejected` items.
    Accepted { rejected: u64 },
    /// The collector does not have the data.
    Failed,
}

/// Client for one signal and one collector.
pub(super) struct OtlpClient {
    transport: OtlpTransport,
    endpoint: String,
    timeout: Gap,
    clock: Clock,
    last_logged: Option<Stamp>,
    suppressed: u64,
}

enum OtlpTransport {
    Grpc(GrpcTransport),
    Http(HttpTransport),
}

impl OtlpTransport {
    async fn send(&mut self, payload: &ExportPayload) -> ExportResponse {
        match self {
            Self::Grpc(grpc) => grpc.send(payload).await,
            Self::Http(http) => http.send(payload).await,
        }
    }
}

impl OtlpClient {
    /// Creates a client without connecting.
    pub(super) fn new(exporter: &ExporterConfig, clock: Clock) -> Self {
        let connector = CollectorConnector::new(exporter);
        let transport = match exporter.protocol {
            Protocol::Grpc => OtlpTransport::Grpc(GrpcTransport::new(exporter, connector)),
            Protocol::HttpProtobuf => OtlpTransport::Http(HttpTransport::new(exporter, connector)),
        };
        let endpoint = exporter.endpoint.to_string();
        Self { transport, endpoint, timeout: exporter.timeout, clock, last_logged: None, suppressed: 0 }
    }

    /// Delivers one export within `budget`, with as many attempts as fit. The future may be dropped and started again.
    pub(super) async fn deliver(&mut self, payload: &ExportPayload, budget: Gap) -> Delivery {
        let deadline = self.clock.now().after(budget);
        let mut pause = INITIAL_BACKOFF;
        loop {
            let left = deadline.since(self.clock.now());
            let clock = self.clock.clone();
            let answer = clock.timeout(self.timeout.min(left), self.transport.send(payload)).await;
            let answer =
                answer.unwrap_or_else(|| ExportResponse::retryable("the collector did not answer in time".to_owned()));
            match answer {
                ExportResponse::Accepted { rejected, why } => {
                    if rejected > 0 {
                        let why = format!("the collector rejected {rejected} of them: {why}");
                        self.log_failure(payload, "OTLP export failed in part", &why);
                    } else if !why.is_empty() {
                        self.log_failure(payload, "OTLP export was taken with a warning", &why);
                    }
                    return Delivery::Accepted { rejected };
                }
                ExportResponse::Rejected(why) => {
                    self.log_failure(payload, EXPORT_FAILED, &why);
                    return Delivery::Failed;
                }
                ExportResponse::Retryable { retry_after, why } => {
                    // A collector that requests an immediate retry could do so forever.
                    let wait = retry_after.unwrap_or_default().max(with_jitter(pause));
                    if self.clock.now().after(wait) >= deadline {
                        self.log_failure(payload, EXPORT_FAILED, &why);
                        return Delivery::Failed;
                    }
                    self.clock.sleep(wait).await;
                    pause = Gap::from_nanos(pause.as_nanos() * 2).min(MAX_BACKOFF);
                }
            }
        }
    }

    fn log_failure(&mut self, payload: &ExportPayload, what: &str, why: &str) {
        let now = self.clock.now();
        if self.last_logged.is_some_and(|at| now.since(at) < LOG_INTERVAL) {
            self.suppressed += 1;
            return;
        }
        self.last_logged = Some(now);
        let why = &why[..why.floor_char_boundary(MAX_REASON_BYTES)];
        let endpoint = self.endpoint.as_str();
        let signal = match payload.signal {
            OtlpSignal::Metrics => "metrics",
            OtlpSignal::Traces => "traces",
            OtlpSignal::Logs => "logs",
        };
        let unmentioned = std::mem::take(&mut self.suppressed);
        tracing::warn!(signal, endpoint, why, unmentioned, "{what}");
    }
}

/// Returns a random pause between half of `pause` and all of it.
fn with_jitter(pause: Gap) -> Gap {
    let nanos = pause.as_nanos();
    Gap::from_nanos(rand::rng().random_range(nanos / 2..=nanos))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::clock::ManualClock;
    use crate::config::otlp::{Endpoint, ExportHeaders};

    #[tokio::test]
    async fn failures_are_mentioned_once_a_minute() {
        let target = "/v1/metrics".to_owned();
        let endpoint = Endpoint { tls: false, host: "127.0.0.1".to_owned(), port: 1, target };
        let exporter = ExporterConfig {
            endpoint,
            protocol: Protocol::HttpProtobuf,
            headers: ExportHeaders::default(),
            timeout: Gap::from_millis(1_000),
            gzip: false,
            ca: None,
            identity: None,
        };
        let manual = ManualClock::new();
        let mut client = OtlpClient::new(&exporter, Clock::Manual(manual.clone()));
        let payload = ExportPayload { signal: OtlpSignal::Metrics, message: Bytes::new() };
        for (unmentioned, seconds) in [(0, 10), (1, 10), (2, 40), (0, 1), (1, 1)] {
            assert_eq!(client.deliver(&payload, Gap::ZERO).await, Delivery::Failed);
            assert_eq!(client.suppressed, unmentioned);
            manual.advance(Gap::from_millis(seconds * 1_000));
        }
    }
}
