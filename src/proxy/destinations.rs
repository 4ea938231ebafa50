//! Transparent mode: the original destinations of redirected connections.
//!
//! The kernel redirects in two ways. `REDIRECT` rewrites the destination and keeps the original one with the
//! connection's state (`SO_ORIGINAL_DST`). TPROXY leaves the destination as it is, so it is the local address of the
//! accepted socket. A connection that was not redirected has this process's own address by both.
//!
//! # No loops
//! A connection to a port of this process is refused. A rule that also redirects the proxy's own connections would send
//! each of them back, with the server as its original destination. So the proxy knows the local addresses of its open
//! connections, and refuses what comes from one of them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use socket2::SockRef;

use crate::export::registry::gauges::Gauges;
use crate::export::registry::proxy_status::RefusedConnection;

/// Why a connection is refused, with the status of the reply.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) message: String,
}

/// The destinations and connections of all workers.
pub(super) struct Destinations {
    /// The client port and the admin port.
    own_ports: [SocketAddr; 2],
    gauges: Arc<Gauges>,
    /// How many workers use each destination.
    in_use: Mutex<HashMap<SocketAddr, usize>>,
    /// Local addresses of the connections to destinations.
    own_sockets: Mutex<HashSet<SocketAddr>>,
}

impl Destinations {
    pub(super) fn new(own_ports: [SocketAddr; 2], gauges: Arc<Gauges>) -> Arc<Self> {
        Arc::new(Self { own_ports, gauges, in_use: Mutex::default(), own_sockets: Mutex::default() })
    }

    /// The original destination of a connection that has sent its first byte. By then its peer is known to be one of
    /// [`own_sockets`](Self::own_socket) if it is ours.
    pub(super) fn original<S: AsFd>(&self, socket: &S) -> Result<SocketAddr, Refusal> {
        let socket = SockRef::from(socket);
        let unknown = |error: io::Error| {
            let why = format!("the original destination of the connection is unknown: {error}");
            self.refuse(RefusedConnection::UnknownDestination, 502, why)
        };
        let address = |address: socket2::SockAddr| address.as_socket().map(canonical);
        let not_connected = || unknown(io::ErrorKind::NotConnected.into());
        let peer = address(socket.peer_addr().map_err(unknown)?).ok_or_else(not_connected)?;
        let local = address(socket.local_addr().map_err(unknown)?).ok_or_else(not_connected)?;
        let original = match local {
            SocketAddr::V4(_) => socket.original_dst_v4(),
            SocketAddr::V6(_) => socket.original_dst_v6(),
        };
        let destination = match original {
            Ok(original) => address(original).unwrap_or(local),
            // Without the state of a connection there is no REDIRECT.
            Err(error) if has_no_state(&error) => local,
            Err(error) => return Err(unknown(error)),
        };
        if lock(&self.own_sockets).contains(&peer) {
            let why = format!(
                "the proxy's own connection to {destination} was redirected back to it; remedy: exclude the proxy's \
                 user (meta skuid) from the rule that redirects"
            );
            return Err(self.refuse(RefusedConnection::Loop, 508, why));
        }
        if self.own_ports.iter().any(|own| is_same(destination, *own)) {
            let why = format!(
                "the connection was not redirected: {destination} is an address of the proxy itself; remedy: connect \
                 to the server's address (--transparent)"
            );
            return Err(self.refuse(RefusedConnection::OwnAddress, 421, why));
        }
        Ok(destination)
    }

    /// Reserves a destination for one worker, if at most `limit` are in use then.
    pub(super) fn reserve(
        self: &Arc<Self>,
        destination: SocketAddr,
        limit: usize,
    ) -> Result<DestinationGuard, Refusal> {
        let mut in_use = lock(&self.in_use);
        if in_use.len() >= limit && !in_use.contains_key(&destination) {
            let why = format!("{limit} destinations are in use, which is the limit (--max-destinations)");
            return Err(self.refuse(RefusedConnection::TooManyDestinations, 503, why));
        }
        *in_use.entry(destination).or_default() += 1;
        self.gauges.status().set_destinations(in_use.len());
        Ok(DestinationGuard { destinations: Arc::clone(self), destination })
    }

    /// Registers a connection to a destination by its local address.
    pub(super) fn own_socket(self: &Arc<Self>, local: SocketAddr) -> OwnSocket {
        let local = canonical(local);
        lock(&self.own_sockets).insert(local);
        OwnSocket { destinations: Arc::clone(self), local }
    }

    fn refuse(&self, reason: RefusedConnection, status: u16, message: String) -> Refusal {
        self.gauges.status().count_refused_connection(reason);
        tracing::debug!(message, "a connection was refused");
        Refusal { status, message }
    }
}

/// A worker's use of a destination.
pub(super) struct DestinationGuard {
    destinations: Arc<Destinations>,
    destination: SocketAddr,
}

impl Drop for DestinationGuard {
    fn drop(&mut self) {
        let mut in_use = lock(&self.destinations.in_use);
        if let Some(workers) = in_use.get_mut(&self.destination) {
            *workers -= 1;
            if *workers == 0 {
                in_use.remove(&self.destination);
            }
        }
        self.destinations.gauges.status().set_destinations(in_use.len());
    }
}

/// An open connection to a destination.
pub(super) struct OwnSocket {
    destinations: Arc<Destinations>,
    local: SocketAddr,
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        lock(&self.destinations.own_sockets).remove(&self.local);
    }
}

impl std::fmt::Debug for OwnSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OwnSocket({})", self.local)
    }
}

/// Lets a listening socket accept connections to foreign addresses, which TPROXY needs. The option of IPv4 serves both
/// families.
///
/// # Errors
/// The process has no CAP_NET_ADMIN.
pub fn accept_foreign_addresses(listener: &TcpListener) -> io::Result<()> {
    SockRef::from(listener).set_ip_transparent_v4(true)
}

/// True if an address that a client may have connected to is `own`, which may be every address of the machine.
fn is_same(address: SocketAddr, own: SocketAddr) -> bool {
    let own = canonical(own);
    let same_host = own.ip() == address.ip() || (own.ip().is_unspecified() && is_of_this_machine(address.ip()));
    same_host && own.port() == address.port()
}

/// Only an address of this machine can be bound.
fn is_of_this_machine(ip: IpAddr) -> bool {
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

/// IPv4 in a socket of IPv6 as IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn has_no_state(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ENOENT | Errno::ENOPROTOOPT | Errno::EOPNOTSUPP))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn accepted() -> (TcpListener, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        (listener, client, accepted)
    }

    fn destinations(listen: SocketAddr) -> Arc<Destinations> {
        Destinations::new([listen, "127.0.0.1:1".parse().unwrap()], Arc::default())
    }

    fn refusal<T>(result: Result<T, Refusal>) -> (u16, String) {
        result.map(drop).map_err(|refusal| (refusal.status, refusal.message)).unwrap_err()
    }

    #[test]
    fn a_connection_to_the_listener_itself_is_refused_also_on_a_wildcard() {
        let (listener, _client, accepted) = accepted();
        let at = listener.local_addr().unwrap();
        for own in [at, SocketAddr::from(([0, 0, 0, 0], at.port())), format!("[::]:{}", at.port()).parse().unwrap()] {
            let (status, why) = refusal(destinations(own).original(&accepted));
            assert_eq!(status, 421, "{own}");
            assert!(why.starts_with("the connection was not redirected: 127.0.0.1:"), "{why}");
        }
        let elsewhere = destinations("127.0.0.1:2".parse().unwrap());
        assert_eq!(elsewhere.original(&accepted).unwrap(), at, "as with TPROXY, the local address is the destination");
    }

    #[test]
    fn a_connection_from_a_socket_of_the_proxy_is_a_loop() {
        let (_listener, client, accepted) = accepted();
        let destinations = destinations("127.0.0.1:2".parse().unwrap());
        let own = destinations.own_socket(client.local_addr().unwrap());
        assert_eq!(refusal(destinations.original(&accepted)).0, 508);
        drop(own);
        assert!(destinations.original(&accepted).is_ok());
    }

    #[test]
    fn destinations_in_use_are_bounded_and_make_place_when_they_are_not() {
        let destinations = destinations("127.0.0.1:2".parse().unwrap());
        let at = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        let first = destinations.reserve(at(1), 1).unwrap();
        let again = destinations.reserve(at(1), 1).unwrap();
        assert_eq!(refusal(destinations.reserve(at(2), 1)).0, 503);
        drop(first);
        assert_eq!(refusal(destinations.reserve(at(2), 1)).0, 503, "another worker still uses it");
        drop(again);
        assert!(destinations.reserve(at(2), 1).is_ok());
    }
}
