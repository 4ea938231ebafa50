//! Opens and counts upstream connections, and records the upstream's state.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nix::errno::Errno;

use super::UpstreamError;
use crate::clock::Clock;
use crate::config::{ServerAddress, UpstreamHttp};
use crate::export::registry::thread_gauges::{OpenConnection, ThreadGauges};
use crate::measure::time::Gap;
use crate::net::dial::Dialer;
use crate::net::io::MaybeTlsStream;
use crate::net::tls;
use crate::proxy::destinations::OwnSocket;
use crate::proxy::worker_shared::WorkerShared;

/// Time to live of a resolved address. Kubernetes moves services; a lookup per connection would cost a thread.
const DNS_CACHE_TTL: Gap = Gap::from_millis(5_000);

/// Opens upstream connections for one thread.
pub(in crate::proxy) struct UpstreamConnector {
    authority: String,
    server: ServerAddress,
    http: UpstreamHttp,
    server_name: Option<String>,
    dialer: Dialer,
    has_connected: Cell<bool>,
    /// Whether TLS negotiated HTTP/2 on the last connection.
    negotiated_http2: Cell<bool>,
    shared: Arc<WorkerShared>,
    levels: Arc<ThreadGauges>,
}

impl UpstreamConnector {
    /// Connects to `server`; `levels` counts the connections.
    pub(in crate::proxy) fn new(
        shared: Arc<WorkerShared>,
        levels: Arc<ThreadGauges>,
        mut server: ServerAddress,
    ) -> Self {
        // One copy per thread: records hold the name, and a reference count shared by threads would bounce between
        // cores.
        server.host = Arc::from(&*server.host);
        let upstream = &shared.config.load().upstream;
        Self {
            authority: server.authority(),
            dialer: Dialer::new(&*server.host, server.port, DNS_CACHE_TTL),
            server,
            http: upstream.http,
            server_name: upstream.server_name.clone(),
            has_connected: Cell::new(false),
            negotiated_http2: Cell::new(false),
            shared,
            levels,
        }
    }

    /// The server's host and port for records; `None` for a destination that has not accepted a connection. Else a
    /// client could make series of any number of addresses.
    pub(super) fn server(&self) -> Option<(Arc<str>, u16)> {
        let is_known = self.shared.target.destinations().is_none() || self.has_connected.get();
        is_known.then(|| (Arc::clone(&self.server.host), self.server.port))
    }

    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.server.tls { "https" } else { "http" }
    }

    /// True if a request uses HTTP/2. If not configured, TLS negotiates it; without TLS only gRPC uses it, because gRPC
    /// requires it.
    pub(super) fn is_http2(&self, grpc: bool) -> bool {
        match self.http {
            UpstreamHttp::Http2 => true,
            UpstreamHttp::Http1 => false,
            UpstreamHttp::Auto if self.server.tls => self.negotiated_http2.get(),
            UpstreamHttp::Auto => grpc,
        }
    }

    /// Counts a connection until it is closed, before its first byte is written.
    pub(super) fn count_connection(&self, io: &MaybeTlsStream) -> ConnectionGuard {
        let local = self.shared.target.destinations().zip(io.socket().local_addr().ok());
        let own_socket = local.map(|(destinations, local)| destinations.own_socket(local));
        ConnectionGuard { open: self.levels.connection(), _own_socket: own_socket }
    }

    /// True if a further connection would take a descriptor reserved for the admin port.
    pub(super) fn is_at_limit(&self) -> bool {
        let (idle, busy) = self.shared.gauges.connections();
        let open = usize::try_from(idle + busy).unwrap_or_default() + self.shared.connecting.load(Relaxed);
        open >= self.shared.max_upstream_connections.load(Relaxed)
    }

    /// Opens a connection and completes the handshakes within the timeout.
    pub(in crate::proxy) async fn connect(&self) -> Result<MaybeTlsStream, UpstreamError> {
        if self.is_at_limit() {
            return Err(UpstreamError::NoDescriptor { place: self.authority.clone() });
        }
        let _connecting = ConnectingGuard::count(&self.shared);
        let limit = self.shared.config.load().upstream.connect_timeout;
        let tls = self.shared.upstream_tls.as_ref().map(|tls| {
            let name = self.server_name.as_deref().unwrap_or(&self.server.host);
            (tls.load_full(), name)
        });
        let connected = Clock::Monotonic.timeout(limit, self.dialer.dial(tls)).await;
        let connected = match connected {
            Some(Ok(io)) => Ok(io),
            Some(Err(error)) if is_descriptor_limit(&error) => {
                return Err(UpstreamError::NoDescriptor { place: self.authority.clone() });
            }
            Some(Err(error)) => Err(UpstreamError::Connect { place: self.authority.clone(), why: describe(&error) }),
            None => Err(UpstreamError::ConnectTimeout { place: self.authority.clone(), limit }),
        };
        // The state of one upstream is meaningless where each connection has its own destination.
        if self.shared.target.destinations().is_none() {
            self.shared.gauges.set_upstream(connected.as_ref().map(drop).map_err(UpstreamError::to_string));
        }
        if let Ok(io) = &connected {
            self.has_connected.set(true);
            // A replaced server may support other versions than its predecessor.
            self.negotiated_http2.set(io.alpn() == Some(b"h2"));
        }
        connected
    }
}

/// An open connection: its place in the gauges, and in transparent mode among the process's own sockets.
#[derive(Debug)]
pub(in crate::proxy) struct ConnectionGuard {
    open: OpenConnection,
    _own_socket: Option<OwnSocket>,
}

impl ConnectionGuard {
    /// Marks the connection as idle in the pool, or as busy.
    pub(super) fn set_idle(&mut self, idle: bool) {
        self.open.set_idle(idle);
    }
}

/// Counts a connection attempt.
struct ConnectingGuard<'a>(&'a AtomicUsize);

impl<'a> ConnectingGuard<'a> {
    fn count(shared: &'a WorkerShared) -> Self {
        shared.connecting.fetch_add(1, Relaxed);
        Self(&shared.connecting)
    }
}

impl Drop for ConnectingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// True if the process lacked a descriptor, which is no fault of the server.
fn is_descriptor_limit(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE))
}

/// Formats a connection error with the setting that may be wrong.
pub(super) fn describe(error: impl ToString) -> String {
    let error = tls::describe_error(error, "--upstream-ca");
    let remedy = if error.contains("NoApplicationProtocol") {
        "; it does not speak the version of HTTP that --upstream-http asks for"
    } else if error.contains("not valid for name") {
        "; --upstream-server-name says which name to expect"
    } else if error.contains("CertificateRequired") {
        // In TLS 1.3 the alert arrives after the handshake, when the first request is already on its way.
        "; it asks for a client's certificate, which --upstream-cert names"
    } else if error.contains("Cannot assign requested address") {
        "; this machine has no address of its kind, or no port left for it (net.ipv4.ip_local_port_range)"
    } else {
        ""
    };
    error + remedy
}

#[cfg(test)]
mod tests {
    use rustls::{AlertDescription, Error};

    use super::*;

    #[test]
    fn a_server_that_asks_for_a_certificate_is_told_with_the_setting() {
        // The alert and the closed socket race; either may be seen first.
        let alert = Error::AlertReceived(AlertDescription::CertificateRequired);
        let message = UpstreamError::Io(io::Error::new(io::ErrorKind::InvalidData, alert)).to_string();
        let expected = "the connection failed: received fatal alert: CertificateRequired; it asks for a client's \
            certificate, which --upstream-cert names";
        assert_eq!(message, expected);
    }

    #[test]
    fn a_machine_that_has_nothing_to_connect_from_is_told_so() {
        let message = describe(io::Error::from(Errno::EADDRNOTAVAIL));
        let expected = "Cannot assign requested address (os error 99); this machine has no address of its kind, or no \
            port left for it (net.ipv4.ip_local_port_range)";
        assert_eq!(message, expected);
    }
}
