//! Where OTLP goes and how: plain data, shaped after OpenTelemetry's environment variables.

use std::fmt;
use std::path::PathBuf;

use crate::export::trace_context::Sampler;
use crate::measure::time::Gap;

/// What is exported by OTLP.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Metrics, where they are on.
    pub metrics: Option<Metrics>,
    /// Traces, where they are on.
    pub traces: Option<Traces>,
    /// Attributes of the resource, `service.name` among them.
    pub resource: Vec<(String, String)>,
}

/// How metrics are exported.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// To whom.
    pub exporter: Exporter,
    /// Time between the starts of two exports: `OTEL_METRIC_EXPORT_INTERVAL`.
    pub interval: Gap,
    /// Time for one export, retries included: `OTEL_METRIC_EXPORT_TIMEOUT`.
    pub timeout: Gap,
    /// `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE`.
    pub temporality: Temporality,
    /// `OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION`.
    pub histograms: Histograms,
}

/// How traces are exported.
#[derive(Clone, Debug, PartialEq)]
pub struct Traces {
    /// To whom.
    pub exporter: Exporter,
    /// Which traces are sampled at their head: `OTEL_TRACES_SAMPLER`.
    pub sampler: Sampler,
    /// Time between two exports: `OTEL_BSP_SCHEDULE_DELAY`.
    pub schedule_delay: Gap,
    /// Time for one export, retries included: `OTEL_BSP_EXPORT_TIMEOUT`.
    pub timeout: Gap,
    /// Spans that wait to be exported; further ones are dropped and counted: `OTEL_BSP_MAX_QUEUE_SIZE`.
    pub max_queue_size: usize,
    /// Spans in one export: `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`.
    pub max_batch_size: usize,
}

/// Whether counters and histograms are sums since the start or since the last export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Temporality {
    /// Since the start.
    #[default]
    Cumulative,
    /// Counters and histograms since the last export.
    Delta,
    /// As delta, but observed counters since the start.
    LowMemory,
}

/// The shape of exported histograms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Histograms {
    /// The catalog's bounds.
    #[default]
    Explicit,
    /// Base-2 exponential buckets.
    Exponential,
}

/// The way to a collector, for one signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exporter {
    /// The collector.
    pub endpoint: Endpoint,
    /// How it is spoken to.
    pub protocol: Protocol,
    /// Headers of every request.
    pub headers: Headers,
    /// Time for one request.
    pub timeout: Gap,
    /// Whether requests are compressed.
    pub gzip: bool,
    /// Certificates to trust instead of the system's, as PEM.
    pub ca: Option<PathBuf>,
    /// The client certificate and its key, as PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// How a collector is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP/gRPC.
    Grpc,
    /// OTLP/HTTP with protobuf bodies.
    HttpProtobuf,
}

/// A collector's address.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether it speaks TLS.
    pub tls: bool,
    /// Its name or address, an IPv6 address without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Path and query of a request over HTTP; gRPC has paths of its own. May hold a token.
    pub target: String,
}

impl Endpoint {
    /// Host and port, an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for Endpoint {
    /// The URL without its query.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.target.split('?').next().unwrap_or_default();
        write!(f, "{}://{}{path}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Headers of export requests. Their values authenticate: `Debug` shows the names only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// Headers of these names, in lower case, and values.
    pub fn new(headers: Vec<(String, String)>) -> Self {
        Self(headers)
    }

    /// Each header's name and value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shows_what_authenticates() {
        let headers = Headers::new(vec![("authorization".into(), "Bearer secret".into())]);
        assert_eq!(format!("{headers:?}"), r#"{"authorization"}"#);
        let target = "/v1/traces?key=secret".into();
        let endpoint = Endpoint { tls: true, host: "::1".into(), port: 4318, target };
        assert_eq!(format!("{endpoint:?} {endpoint}"), ["https://[::1]:4318/v1/traces"; 2].join(" "));
    }
}
