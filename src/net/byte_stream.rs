//! A plain or TLS connection without time stamps, for requests that nothing measures.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A plain or TLS connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Connects to a host and port, with TLS if there is a configuration of it.
///
/// # Errors
/// The system's error, or the TLS handshake's.
pub async fn connect(host: &str, port: u16, tls: Option<Arc<ClientConfig>>) -> io::Result<Box<dyn ByteStream>> {
    let socket = TcpStream::connect((host, port)).await?;
    // A request is written in one piece and then awaited.
    socket.set_nodelay(true)?;
    let Some(config) = tls else { return Ok(Box::new(socket)) };
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    Ok(Box::new(TlsConnector::from(config).connect(name, socket).await?))
}
