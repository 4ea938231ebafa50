//! New connections to one place: its name, TCP, TLS.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::{TlsConnector, TlsStream};

use super::io::Io;
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};

/// Makes connections to one host and port, for one thread.
#[derive(Debug)]
pub struct Dialer {
    host: String,
    port: u16,
    /// How long a looked-up name is believed.
    fresh: Gap,
    addresses: RefCell<(Vec<SocketAddr>, Stamp)>,
}

impl Dialer {
    /// A dialer that looks the name up again once its addresses are older than `fresh`, or none of them answers.
    pub fn new(host: impl Into<String>, port: u16, fresh: Gap) -> Self {
        Self { host: host.into(), port, fresh, addresses: RefCell::default() }
    }

    /// A new connection, handshakes done; over TLS if that is given, to a server of that name.
    ///
    /// # Errors
    /// What the system says of the last address, or of the handshake.
    pub async fn dial(&self, tls: Option<(Arc<ClientConfig>, &str)>) -> io::Result<Io> {
        let socket = self.connect().await?;
        let Some((config, name)) = tls else { return Ok(Io::plain(socket)) };
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(config).connect(name, socket).await?;
        Ok(Io::tls(TlsStream::Client(stream)))
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in self.resolve().await? {
            match TcpStream::connect(address).await {
                Ok(socket) => return Ok(socket),
                Err(error) => last = error,
            }
        }
        // The addresses are of no use: ask again next time.
        self.addresses.take();
        Err(last)
    }

    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let now = Clock::Monotonic.now();
        {
            let (addresses, asked) = &*self.addresses.borrow();
            if !addresses.is_empty() && now.since(*asked) < self.fresh {
                return Ok(addresses.clone());
            }
        }
        let addresses: Vec<_> = lookup_host((&*self.host, self.port)).await?.collect();
        self.addresses.replace((addresses.clone(), now));
        Ok(addresses)
    }
}
