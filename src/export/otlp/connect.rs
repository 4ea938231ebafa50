//! Connections to a collector, plain or TLS, for both protocols.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

use crate::config::otlp::{Endpoint, Exporter, Protocol};
use crate::net::tls::{self, Identity, TlsError, Watched};

/// A connection, plain or TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection as hyper and tonic take it.
pub(super) type Io = TokioIo<Box<dyn Stream>>;

/// Connects to one collector.
#[derive(Clone)]
pub(super) struct Connector {
    endpoint: Endpoint,
    tls: Option<Arc<Mutex<Renewed>>>,
}

/// The client's side of TLS, and the files that it came from.
struct Renewed {
    exporter: Exporter,
    watched: Watched,
    config: Arc<rustls::ClientConfig>,
}

impl Renewed {
    fn read(exporter: &Exporter) -> Result<Arc<rustls::ClientConfig>, TlsError> {
        let identity = exporter.identity.as_ref().map(|files| Identity { cert: &files.cert, key: &files.key });
        let alpn = match exporter.protocol {
            Protocol::Grpc => "h2",
            Protocol::HttpProtobuf => "http/1.1",
        };
        tls::client(exporter.ca.as_deref(), identity, &[alpn]).map(Arc::new)
    }

    fn new(exporter: &Exporter) -> Result<Self, TlsError> {
        let identity = exporter.identity.iter().flat_map(|files| [&files.cert, &files.key]);
        let watched = Watched::new(exporter.ca.iter().chain(identity).cloned().collect());
        Ok(Self { config: Self::read(exporter)?, exporter: exporter.clone(), watched })
    }

    /// As the files have it; what cannot be read leaves what was in force.
    fn now(&mut self) -> Arc<rustls::ClientConfig> {
        if self.watched.changed() {
            match Self::read(&self.exporter) {
                Ok(config) => self.config = config,
                Err(error) => tracing::error!(%error, "certificates for OTLP have changed and cannot be used"),
            }
        }
        Arc::clone(&self.config)
    }
}

impl Connector {
    /// Reads the certificates.
    pub(super) fn new(exporter: &Exporter) -> Result<Self, TlsError> {
        let tls = match exporter.endpoint.tls {
            true => Some(Arc::new(Mutex::new(Renewed::new(exporter)?))),
            false => None,
        };
        Ok(Self { endpoint: exporter.endpoint.clone(), tls })
    }

    /// A new connection, with the certificates as they are by then.
    pub(super) async fn connect(self) -> io::Result<Io> {
        let Endpoint { host, port, .. } = self.endpoint;
        let socket = TcpStream::connect((host.as_str(), port)).await?;
        // A request is written whole and then waited for.
        socket.set_nodelay(true)?;
        let Some(tls) = self.tls else { return Ok(TokioIo::new(Box::new(socket))) };
        let config = tls.lock().unwrap_or_else(PoisonError::into_inner).now();
        let name = ServerName::try_from(host).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let stream = TlsConnector::from(config).connect(name, socket).await;
        let explained = |error| io::Error::other(tls::explained(&error, "OTEL_EXPORTER_OTLP_CERTIFICATE"));
        Ok(TokioIo::new(Box::new(stream.map_err(explained)?)))
    }
}

/// For tonic, which asks for the connection to the endpoint that it was made for.
impl Service<Uri> for Connector {
    type Response = Io;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Io>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}
