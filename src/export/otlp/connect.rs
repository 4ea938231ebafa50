//! Connections to a collector, plain or TLS, for both protocols.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

use crate::config::otlp::{Endpoint, Exporter, Protocol};
use crate::net::tls::{self, Identity, TlsError};

/// A connection, plain or TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection as hyper and tonic take it.
pub(super) type Io = TokioIo<Box<dyn Stream>>;

/// Connects to one collector.
#[derive(Clone)]
pub(super) struct Connector {
    endpoint: Endpoint,
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl Connector {
    /// Reads the certificates.
    pub(super) fn new(exporter: &Exporter) -> Result<Self, TlsError> {
        let identity = exporter.identity.as_ref().map(|files| Identity { cert: &files.cert, key: &files.key });
        let alpn = match exporter.protocol {
            Protocol::Grpc => "h2",
            Protocol::HttpProtobuf => "http/1.1",
        };
        let tls = match exporter.endpoint.tls {
            true => Some(Arc::new(tls::client(exporter.ca.as_deref(), identity, &[alpn])?)),
            false => None,
        };
        Ok(Self { endpoint: exporter.endpoint.clone(), tls })
    }

    /// A new connection.
    pub(super) async fn connect(self) -> io::Result<Io> {
        let Endpoint { host, port, .. } = self.endpoint;
        let socket = TcpStream::connect((host.as_str(), port)).await?;
        // A request is written whole and then waited for.
        socket.set_nodelay(true)?;
        let Some(config) = self.tls else { return Ok(TokioIo::new(Box::new(socket))) };
        let name = ServerName::try_from(host).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let stream = TlsConnector::from(config).connect(name, socket).await;
        let explained = |error| io::Error::other(tls::explained(&error, "OTEL_EXPORTER_OTLP_CERTIFICATE"));
        let stream = stream.map_err(explained)?;
        Ok(TokioIo::new(Box::new(stream)))
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
