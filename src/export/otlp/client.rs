//! Delivering one export: attempts, their limits, and what is said when none succeeds.

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use rand::RngExt;

use super::connect::Connector;
use super::grpc::Grpc;
use super::http::Http;
use crate::clock::Clock;
use crate::config::otlp::{Exporter, Protocol};
use crate::measure::time::{Gap, Stamp};

/// First pause between attempts; each further one is twice as long, and all are shortened by up to a half at random so
/// that a fleet does not come back as one.
const FIRST_PAUSE: Gap = Gap::from_millis(1_000);
const LONGEST_PAUSE: Gap = Gap::from_millis(30_000);
/// Failures are logged at most this often.
const COMPLAIN_EVERY: Gap = Gap::from_millis(60_000);
const FAILED: &str = "OTLP export failed";
/// Longest piece of a collector's words that is logged, in bytes.
const MAX_WORDS: usize = 300;

/// What is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Metrics,
    Traces,
}

/// One export.
#[derive(Clone)]
pub(super) struct Payload {
    pub(super) signal: Signal,
    /// The signal's `Export…ServiceRequest`.
    pub(super) message: Bytes,
}

impl Payload {
    /// What a success's body says. One that cannot be read is no less a success.
    pub(super) fn accepted(&self, body: &[u8]) -> Answer {
        let (rejected, why) = match self.signal {
            Signal::Metrics => {
                let response = ExportMetricsServiceResponse::decode(body).unwrap_or_default();
                let partial = response.partial_success.unwrap_or_default();
                (partial.rejected_data_points, partial.error_message)
            }
            Signal::Traces => {
                let response = ExportTraceServiceResponse::decode(body).unwrap_or_default();
                let partial = response.partial_success.unwrap_or_default();
                (partial.rejected_spans, partial.error_message)
            }
        };
        Answer::Taken { rejected: u64::try_from(rejected).unwrap_or(0), why }
    }
}

/// What a collector answered to one attempt.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// It has them, but for so many that it rejected.
    Taken { rejected: u64, why: String },
    /// It may take them later.
    Later { retry_after: Option<Gap>, why: String },
    /// It never will.
    Refused(String),
}

impl Answer {
    pub(super) fn later(why: String) -> Self {
        Self::Later { retry_after: None, why }
    }
}

/// What became of one export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The collector has it, but for so many that it rejected.
    Taken { rejected: u64 },
    /// It has not.
    Failed,
}

/// One signal's way to its collector.
pub(super) struct Client {
    transport: Transport,
    endpoint: String,
    timeout: Gap,
    clock: Clock,
    complained: Option<Stamp>,
    unmentioned: u64,
}

enum Transport {
    Grpc(Grpc),
    Http(Http),
}

impl Transport {
    async fn send(&mut self, payload: &Payload) -> Answer {
        match self {
            Self::Grpc(grpc) => grpc.send(payload).await,
            Self::Http(http) => http.send(payload).await,
        }
    }
}

impl Client {
    /// A client that has not connected yet.
    pub(super) fn new(exporter: &Exporter, clock: Clock) -> Self {
        let connector = Connector::new(exporter);
        let transport = match exporter.protocol {
            Protocol::Grpc => Transport::Grpc(Grpc::new(exporter, connector)),
            Protocol::HttpProtobuf => Transport::Http(Http::new(exporter, connector)),
        };
        let endpoint = exporter.endpoint.to_string();
        Self { transport, endpoint, timeout: exporter.timeout, clock, complained: None, unmentioned: 0 }
    }

    /// Delivers one export within `budget`, in as many attempts as that allows. Can be dropped half-way and begun
    /// again.
    pub(super) async fn deliver(&mut self, payload: &Payload, budget: Gap) -> Delivery {
        let deadline = self.clock.now().after(budget);
        let mut pause = FIRST_PAUSE;
        loop {
            let left = deadline.since(self.clock.now());
            let clock = self.clock.clone();
            let answer = clock.timeout(self.timeout.min(left), self.transport.send(payload)).await;
            let answer = answer.unwrap_or_else(|| Answer::later("the collector did not answer in time".to_owned()));
            match answer {
                Answer::Taken { rejected, why } => {
                    if rejected > 0 {
                        let why = format!("the collector rejected {rejected} of them: {why}");
                        self.complain(payload, "OTLP export failed in part", &why);
                    } else if !why.is_empty() {
                        self.complain(payload, "OTLP export was taken with a warning", &why);
                    }
                    return Delivery::Taken { rejected };
                }
                Answer::Refused(why) => {
                    self.complain(payload, FAILED, &why);
                    return Delivery::Failed;
                }
                Answer::Later { retry_after, why } => {
                    // One that asks to be asked at once may do so again, and again.
                    let wait = retry_after.unwrap_or_default().max(shortened(pause));
                    if self.clock.now().after(wait) >= deadline {
                        self.complain(payload, FAILED, &why);
                        return Delivery::Failed;
                    }
                    self.clock.sleep(wait).await;
                    pause = Gap::from_nanos(pause.as_nanos() * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    fn complain(&mut self, payload: &Payload, what: &str, why: &str) {
        let now = self.clock.now();
        if self.complained.is_some_and(|at| now.since(at) < COMPLAIN_EVERY) {
            self.unmentioned += 1;
            return;
        }
        self.complained = Some(now);
        let why = &why[..why.floor_char_boundary(MAX_WORDS)];
        let endpoint = self.endpoint.as_str();
        let signal = match payload.signal {
            Signal::Metrics => "metrics",
            Signal::Traces => "traces",
        };
        let unmentioned = std::mem::take(&mut self.unmentioned);
        tracing::warn!(signal, endpoint, why, unmentioned, "{what}");
    }
}

/// A pause between half of `pause` and all of it.
fn shortened(pause: Gap) -> Gap {
    let nanos = pause.as_nanos();
    Gap::from_nanos(rand::rng().random_range(nanos / 2..=nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::config::otlp::{Endpoint, Headers};

    #[tokio::test]
    async fn failures_are_mentioned_once_a_minute() {
        let target = "/v1/metrics".to_owned();
        let endpoint = Endpoint { tls: false, host: "127.0.0.1".to_owned(), port: 1, target };
        let exporter = Exporter {
            endpoint,
            protocol: Protocol::HttpProtobuf,
            headers: Headers::default(),
            timeout: Gap::from_millis(1_000),
            gzip: false,
            ca: None,
            identity: None,
        };
        let manual = ManualClock::new();
        let mut client = Client::new(&exporter, Clock::Manual(manual.clone()));
        let payload = Payload { signal: Signal::Metrics, message: Bytes::new() };
        for (unmentioned, seconds) in [(0, 10), (1, 10), (2, 40), (0, 1), (1, 1)] {
            assert_eq!(client.deliver(&payload, Gap::ZERO).await, Delivery::Failed);
            assert_eq!(client.unmentioned, unmentioned);
            manual.advance(Gap::from_millis(seconds * 1_000));
        }
    }
}
