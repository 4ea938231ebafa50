//! Connections to a collector, plain or TLS, for both protocols.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

use crate::clock::Clock;
use crate::config::otlp::{Endpoint, ExporterConfig, OtlpConfig, Protocol};
use crate::measure::time::Gap;
use crate::net::byte_stream::{self, ByteStream};
use crate::net::tls::{self, FileWatch, TlsError, TlsIdentity};

/// A connection as hyper and tonic expect it.
pub(super) type CollectorIo = TokioIo<Box<dyn ByteStream>>;

/// Time limit for the initial connection probe.
const FIRST_CONNECT_TIMEOUT: Gap = Gap::from_millis(1_000);
const TLS_FILES_HINT: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE and _CLIENT_KEY name the files";

/// Connects to one collector.
#[derive(Clone)]
pub(super) struct CollectorConnector {
    endpoint: Endpoint,
    tls: Option<Arc<Mutex<ReloadingTls>>>,
}

/// TLS client configuration and the files that it was read from.
struct ReloadingTls {
    exporter: ExporterConfig,
    files: FileWatch,
    /// `None` while the files are unusable: a telemetry problem must not stop traffic.
    config: Option<Arc<rustls::ClientConfig>>,
}

impl ReloadingTls {
    fn read(exporter: &ExporterConfig) -> Result<Arc<rustls::ClientConfig>, TlsError> {
        let identity = exporter.identity.as_ref().map(|files| TlsIdentity { cert: &files.cert, key: &files.key });
        let alpn = match exporter.protocol {
            Protocol::Grpc => "h2",
            Protocol::HttpProtobuf => "http/1.1",
        };
        tls::client(exporter.ca.as_deref(), identity, &[alpn]).map(Arc::new)
    }

    fn new(exporter: &ExporterConfig) -> Self {
        let identity = exporter.identity.iter().flat_map(|files| [&files.cert, &files.key]);
        let watched = FileWatch::new(exporter.ca.iter().chain(identity).cloned().collect());
        Self { exporter: exporter.clone(), files: watched, config: None }
    }

    /// Reloads changed files. If they are unreadable, the previous configuration remains.
    fn current(&mut self) -> Result<Arc<rustls::ClientConfig>, TlsError> {
        if let Some(config) = self.config.as_ref().filter(|_| !self.files.changed()) {
            return Ok(Arc::clone(config));
        }
        match (Self::read(&self.exporter), &self.config) {
            (Ok(config), _) => Ok(Arc::clone(self.config.insert(config))),
            (Err(error), Some(before)) => {
                tracing::error!(%error, "certificates for OTLP have changed and cannot be used");
                Ok(Arc::clone(before))
            }
            (Err(error), None) => Err(error),
        }
    }
}

impl CollectorConnector {
    pub(super) fn new(exporter: &ExporterConfig) -> Self {
        let tls = exporter.endpoint.tls.then(|| Arc::new(Mutex::new(ReloadingTls::new(exporter))));
        Self { endpoint: exporter.endpoint.clone(), tls }
    }

    /// Opens a connection with the current certificates.
    pub(super) async fn connect(self) -> io::Result<CollectorIo> {
        let Endpoint { host, port, .. } = self.endpoint;
        let Some(tls) = self.tls else { return Ok(TokioIo::new(byte_stream::connect(&host, port, None).await?)) };
        let config = tls.lock().unwrap_or_else(PoisonError::into_inner).current();
        let config = config.map_err(|error| io::Error::other(format!("{error}; {TLS_FILES_HINT}")))?;
        let stream = byte_stream::connect(&host, port, Some(config)).await;
        let explained = |error| io::Error::other(tls::describe_error(&error, "OTEL_EXPORTER_OTLP_CERTIFICATE"));
        Ok(TokioIo::new(stream.map_err(explained)?))
    }
}

/// Probes a collector at startup and logs a failure, because the first export may be a minute away.
pub(crate) async fn probe_collector(exporter: ExporterConfig, clock: Clock) {
    let endpoint = exporter.endpoint.origin();
    if let Err(why) = connect_collector(&exporter, &clock).await {
        tracing::warn!(endpoint, why, "the OTLP collector cannot be reached; exports go on trying");
    }
}

/// Opens a connection to a collector, TLS included, and closes it.
///
/// # Errors
/// Returns why no connection was opened.
pub async fn connect_collector(exporter: &ExporterConfig, clock: &Clock) -> Result<(), String> {
    match clock.timeout(FIRST_CONNECT_TIMEOUT, CollectorConnector::new(exporter).connect()).await {
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(error.to_string()),
        None => Err(format!("no connection within {FIRST_CONNECT_TIMEOUT}")),
    }
}

/// Checks the certificates of all exporters.
///
/// # Errors
/// Returns an error that names the file if certificates are unusable.
pub fn check(otlp: &OtlpConfig) -> Result<(), TlsError> {
    otlp.signals()
        .into_iter()
        .flatten()
        .filter(|exporter| exporter.endpoint.tls)
        .try_for_each(|exporter| ReloadingTls::read(exporter).map(drop))
}

/// Required by tonic. The connector ignores the URI, because it serves one endpoint.
impl Service<Uri> for CollectorConnector {
    type Response = CollectorIo;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<CollectorIo>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}
