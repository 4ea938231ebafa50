//! Dials one host and port: DNS lookup, TCP and TLS.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio_rustls::{TlsConnector, TlsStream};

use super::io::MaybeTlsStream;
use super::socket::TcpConnection;
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};

/// Head start of each address before the dialer tries the next one in parallel (RFC 8305, section 5). A dead address
/// may never report an error.
const CONNECTION_ATTEMPT_DELAY: Gap = Gap::from_millis(250);

/// Idle time before the kernel sends the first keepalive probe, and the pause between probes. A host that dies sends no
/// FIN, and a reply may take arbitrarily long.
const KEEPALIVE_IDLE: Gap = Gap::from_millis(60_000);
const KEEPALIVE_INTERVAL: Gap = Gap::from_millis(15_000);
/// Unanswered probes after which the kernel breaks the connection.
const KEEPALIVE_RETRIES: u32 = 4;

/// Connects to one host and port, on one thread.
#[derive(Debug)]
pub struct Dialer {
    host: String,
    port: u16,
    /// Age from which the dialer resolves the name again.
    address_ttl: Gap,
    addresses: RefCell<(Vec<SocketAddr>, Stamp)>,
}

impl Dialer {
    /// Resolves the name again when its addresses are older than `fresh` or none of them accepts a connection.
    pub fn new(host: impl Into<String>, port: u16, fresh: Gap) -> Self {
        Self { host: host.into(), port, address_ttl: fresh, addresses: RefCell::default() }
    }

    /// Opens a new connection and completes the handshakes. `tls` is the configuration and the server name.
    ///
    /// # Errors
    /// Returns the system's error for the last address, or the TLS handshake's error.
    pub async fn dial(&self, tls: Option<(Arc<ClientConfig>, &str)>) -> io::Result<MaybeTlsStream> {
        let socket = self.connect().await?;
        set_keepalive(&socket);
        let Some((config, name)) = tls else { return Ok(MaybeTlsStream::plain(socket)) };
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(config).connect(name, TcpConnection::new(socket)).await?;
        Ok(MaybeTlsStream::tls(TlsStream::Client(stream)))
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let connected = race_connect(self.resolve().await?).await;
        let addresses = &mut self.addresses.borrow_mut().0;
        match &connected {
            // The address that accepted is tried first next time.
            Ok((address, _)) => addresses.sort_by_key(|other| other != address),
            // No address accepted a connection: resolve the name again next time.
            Err(_) => addresses.clear(),
        }
        Ok(connected?.1)
    }

    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let now = Clock::Monotonic.now();
        {
            let (addresses, resolved_at) = &*self.addresses.borrow();
            if !addresses.is_empty() && now.since(*resolved_at) < self.address_ttl {
                return Ok(addresses.clone());
            }
        }
        let addresses: Vec<_> = lookup_host((&*self.host, self.port)).await?.collect();
        self.addresses.replace((addresses.clone(), now));
        Ok(addresses)
    }
}

/// If an old kernel refuses, only the caller's own timeouts remain.
fn set_keepalive(socket: &TcpStream) {
    let asking = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE.into())
        .with_interval(KEEPALIVE_INTERVAL.into())
        .with_retries(KEEPALIVE_RETRIES);
    let _set = SockRef::from(socket).set_tcp_keepalive(&asking).is_ok();
}

/// Races the addresses and returns the first connection.
async fn race_connect(addresses: Vec<SocketAddr>) -> io::Result<(SocketAddr, TcpStream)> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut addresses = addresses.into_iter();
    let mut tried = JoinSet::new();
    loop {
        if let Some(address) = addresses.next() {
            tried.spawn(async move { io::Result::Ok((address, TcpStream::connect(address).await?)) });
        }
        let ended = match addresses.len() {
            0 => Some(tried.join_next().await),
            _ => Clock::Monotonic.timeout(CONNECTION_ATTEMPT_DELAY, tried.join_next()).await,
        };
        match ended {
            None => {}
            Some(None) => return Err(last),
            Some(Some(Ok(Ok(connected)))) => return Ok(connected),
            Some(Some(Ok(Err(error)))) => last = error,
            Some(Some(Err(error))) => last = error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use socket2::{Domain, Socket, Type};

    use super::*;

    fn any() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    /// An address whose accept queue is full, so connections to it hang. The second value keeps the queue full.
    fn deaf() -> (SocketAddr, (Socket, Vec<TcpStream>)) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&any().into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let waiting = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
        let queue = std::iter::from_fn(waiting).collect();
        (address, (socket, queue))
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_holds_up_no_other() {
        let alive = TcpListener::bind(any()).unwrap();
        let alive_at = alive.local_addr().unwrap();
        let refused = TcpListener::bind(any()).unwrap().local_addr().unwrap();
        let (deaf_at, _kept) = deaf();
        for addresses in [[deaf_at, alive_at], [refused, alive_at], [alive_at, deaf_at]] {
            assert_eq!(race_connect(addresses.to_vec()).await.unwrap().0, alive_at, "{addresses:?}");
        }
        let kind = |error: io::Error| error.kind();
        assert_eq!(
            race_connect(vec![refused, refused]).await.map_err(kind).err(),
            Some(io::ErrorKind::ConnectionRefused)
        );
        assert_eq!(race_connect(Vec::new()).await.map_err(kind).err(), Some(io::ErrorKind::NotFound));
    }

    #[tokio::test]
    async fn who_has_answered_is_asked_first_and_where_nobody_does_the_name_is_asked_again() {
        let alive = TcpListener::bind(any()).unwrap();
        let alive_at = alive.local_addr().unwrap();
        let refused = TcpListener::bind(any()).unwrap().local_addr().unwrap();
        let dialer = Dialer::new("a name that is nobody's", 1, Gap::from_millis(60_000));
        dialer.addresses.replace((vec![refused, alive_at], Clock::Monotonic.now()));
        assert_eq!(dialer.connect().await.unwrap().peer_addr().unwrap(), alive_at);
        assert_eq!(dialer.addresses.borrow().0, [alive_at, refused]);
        drop(alive);
        assert!(dialer.connect().await.is_err() && dialer.addresses.borrow().0.is_empty());
    }

    #[tokio::test]
    async fn a_machine_that_is_gone_without_a_word_is_noticed_within_two_minutes() {
        let listener = TcpListener::bind(any()).unwrap();
        let io = Dialer::new("127.0.0.1", listener.local_addr().unwrap().port(), Gap::ZERO).dial(None).await.unwrap();
        let socket = SockRef::from(io.socket());
        assert!(socket.keepalive().unwrap());
        let probe_time = socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        assert_eq!(socket.tcp_keepalive_time().unwrap() + probe_time, Duration::from_secs(120));
    }
}
