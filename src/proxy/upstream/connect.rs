//! New connections to the upstream, counted, and what is known of them.

use std::cell::Cell;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::Broken;
use crate::clock::Clock;
use crate::config::{Upstream, UpstreamHttp};
use crate::export::gauges::Gauges;
use crate::export::levels::{Levels, OpenConnection};
use crate::measure::time::Gap;
use crate::net::dial::Dialer;
use crate::net::io::Io;

/// How long a looked-up name is believed. Kubernetes moves services; asking for each connection would cost a thread.
const NAME_FRESH: Gap = Gap::from_millis(5_000);

/// Makes connections to one upstream, for one worker.
pub(in crate::proxy) struct Connector {
    place: String,
    target: Upstream,
    tls: Option<Arc<ArcSwap<rustls::ClientConfig>>>,
    dialer: Dialer,
    /// TLS has agreed on HTTP/2, when a connection was last made.
    negotiated_http2: Cell<bool>,
    gauges: Arc<Gauges>,
    levels: Arc<Levels>,
}

impl Connector {
    /// A connector to `target`; `tls` is its client side, replaced when files change.
    pub(in crate::proxy) fn new(
        target: Upstream,
        tls: Option<Arc<ArcSwap<rustls::ClientConfig>>>,
        gauges: Arc<Gauges>,
        levels: Arc<Levels>,
    ) -> Self {
        Self {
            place: target.authority(),
            dialer: Dialer::new(&*target.host, target.port, NAME_FRESH),
            target,
            tls,
            negotiated_http2: Cell::new(false),
            gauges,
            levels,
        }
    }

    /// The server's host and port, as configured.
    pub(super) fn server(&self) -> (Arc<str>, u16) {
        (Arc::clone(&self.target.host), self.target.port)
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

    /// Counts a connection that has been made.
    pub(super) fn open(&self) -> OpenConnection {
        self.levels.connection()
    }

    /// A new connection, handshakes done, within the time limit.
    pub(super) async fn connect(&self) -> Result<Io, Broken> {
        let limit = self.target.connect_timeout;
        let tls = self.tls.as_ref().map(|tls| {
            let name = self.target.server_name.as_deref().unwrap_or(&self.target.host);
            (tls.load_full(), name)
        });
        let connected = Clock::Monotonic.timeout(limit, self.dialer.dial(tls)).await;
        let connected = match connected {
            Some(Ok(io)) => Ok(io),
            Some(Err(error)) => Err(Broken::Connect { place: self.place.clone(), error }),
            None => Err(Broken::ConnectTimeout { place: self.place.clone(), limit }),
        };
        self.gauges.set_upstream(connected.as_ref().map(drop).map_err(Broken::to_string));
        if let Ok(io) = &connected {
            // A server that is replaced may speak another version than the one before it.
            self.negotiated_http2.set(io.alpn() == Some(b"h2"));
        }
        connected
    }
}
