//! New connections to the upstream: names, TCP, TLS.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::{TlsConnector, TlsStream};

use super::Broken;
use crate::clock::Clock;
use crate::config::{Upstream, UpstreamHttp};
use crate::export::gauges::{Gauges, OpenConnection};
use crate::measure::time::{Gap, Stamp};
use crate::net::io::Io;

/// How long a looked-up name is believed. Kubernetes moves services; asking for each connection would cost a thread.
const NAME_FRESH: Gap = Gap::from_millis(5_000);

/// Makes connections to one upstream, for one worker.
pub(in crate::proxy) struct Connector {
    place: String,
    target: Upstream,
    tls: Option<Arc<ArcSwap<rustls::ClientConfig>>>,
    addresses: RefCell<(Vec<SocketAddr>, Stamp)>,
    /// TLS has agreed on HTTP/2 before.
    negotiated_http2: Cell<bool>,
    gauges: Arc<Gauges>,
}

impl Connector {
    /// A connector to `target`; `tls` is its client side, replaced when files change.
    pub(in crate::proxy) fn new(
        target: Upstream,
        tls: Option<Arc<ArcSwap<rustls::ClientConfig>>>,
        gauges: Arc<Gauges>,
    ) -> Self {
        Self {
            place: target.authority(),
            target,
            tls,
            addresses: RefCell::default(),
            negotiated_http2: Cell::new(false),
            gauges,
        }
    }

    /// Host and port.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// `http` or `https`.
    pub(super) fn scheme(&self) -> &'static str {
        if self.target.tls { "https" } else { "http" }
    }

    /// Whether a request goes over HTTP/2. Left to itself, TLS agrees on that, and in clear only gRPC does, which cannot
    /// go over anything else.
    pub(super) fn speaks_http2(&self, grpc: bool) -> bool {
        match self.target.http {
            UpstreamHttp::Http2 => true,
            UpstreamHttp::Http1 => false,
            UpstreamHttp::Auto if self.target.tls => self.negotiated_http2.get(),
            UpstreamHttp::Auto => grpc,
        }
    }

    /// The server has agreed on HTTP/2.
    pub(super) fn learned_http2(&self) {
        self.negotiated_http2.set(true);
    }

    /// Counts a connection that has been made.
    pub(super) fn open(&self) -> OpenConnection {
        self.gauges.connection()
    }

    /// A new connection, handshakes done, within the time limit.
    pub(super) async fn connect(&self) -> Result<Io, Broken> {
        let limit = self.target.connect_timeout;
        let connected = Clock::Monotonic.timeout(limit, self.connect_now()).await;
        let connected = match connected {
            Some(Ok(io)) => Ok(io),
            Some(Err(error)) => Err(Broken::Connect { place: self.place.clone(), error }),
            None => Err(Broken::ConnectTimeout { place: self.place.clone(), limit }),
        };
        self.gauges.set_upstream(connected.as_ref().map(drop).map_err(Broken::to_string));
        connected
    }

    async fn connect_now(&self) -> io::Result<Io> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in self.resolve().await? {
            match TcpStream::connect(address).await {
                Ok(socket) => return self.secure(socket).await,
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
            if !addresses.is_empty() && now.since(*asked) < NAME_FRESH {
                return Ok(addresses.clone());
            }
        }
        let addresses: Vec<_> = lookup_host((&*self.target.host, self.target.port)).await?.collect();
        self.addresses.replace((addresses.clone(), now));
        Ok(addresses)
    }

    async fn secure(&self, socket: TcpStream) -> io::Result<Io> {
        let Some(tls) = &self.tls else { return Ok(Io::plain(socket)) };
        let name = self.target.server_name.as_deref().unwrap_or(&self.target.host).to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let stream = TlsConnector::from(tls.load_full()).connect(name, socket).await?;
        Ok(Io::tls(TlsStream::Client(stream)))
    }
}
