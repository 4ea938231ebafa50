//! Listening sockets that this process was started with: those of a systemd socket unit, or those of the process that it
//! takes over from.
//!
//! Both come the same way, as sd_listen_fds(3) describes: descriptors from 3 on, their number in `LISTEN_FDS` and their
//! names in `LISTEN_FDNAMES`. The queue of connections belongs to the socket, so that none is lost between two processes.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;

use listenfd::ListenFd;
use nix::libc::{AF_UNIX, SOCK_STREAM};

/// The names of the sockets that a predecessor passes.
pub const SOCKET_NAMES: [&str; 3] = ["listen", "admin", "predecessor"];

/// See the module.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    /// Each with its name, which is free text where systemd passes it.
    listeners: Vec<(String, TcpListener)>,
    predecessor: Option<UnixStream>,
}

impl InheritedSockets {
    /// Takes the sockets of this process. Call it once, before the first thread: it takes the variables out of the
    /// environment, so that no child takes the same descriptors for its own.
    ///
    /// # Errors
    /// When a descriptor is no listening TCP socket.
    pub fn from_process() -> io::Result<Self> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut sockets = ListenFd::from_env();
        let mut inherited = Self::default();
        for index in 0..sockets.len() {
            let name = names.next().unwrap_or_default();
            if name == SOCKET_NAMES[2] {
                inherited.predecessor = sockets.take_custom(index, AF_UNIX, SOCK_STREAM, "Unix stream socket")?;
            } else if let Some(listener) = sockets.take_tcp_listener(index)? {
                listener.set_nonblocking(true)?;
                inherited.listeners.push((name.to_owned(), listener));
            }
        }
        Ok(inherited)
    }

    /// The socket that listens on `address`, for the setting `name`. Port 0 fits any port.
    pub fn take(&mut self, name: &str, address: SocketAddr) -> Option<TcpListener> {
        let is_anothers = |given: &str| given != name && SOCKET_NAMES.contains(&given);
        let fits = |(given, listener): &(String, TcpListener)| {
            let at = listener.local_addr().ok().filter(|at| at.ip() == address.ip());
            !is_anothers(given) && at.is_some_and(|at| address.port() == 0 || at.port() == address.port())
        };
        self.listeners.iter().position(fits).map(|index| self.listeners.swap_remove(index).1)
    }

    /// The addresses of sockets that systemd passes and nobody took: connections would wait there for ever.
    pub fn unused(&self) -> Vec<SocketAddr> {
        let of_systemd = self.listeners.iter().filter(|(name, _)| !SOCKET_NAMES.contains(&&**name));
        of_systemd.filter_map(|(_, listener)| listener.local_addr().ok()).collect()
    }

    /// Whether another process passed the sockets, and serves until this one does.
    pub fn has_predecessor(&self) -> bool {
        self.predecessor.is_some()
    }

    /// Tells the predecessor that this process serves, and closes what is left.
    ///
    /// # Errors
    /// When it is gone.
    pub fn notify_predecessor(self) -> io::Result<()> {
        self.predecessor.map_or(Ok(()), |mut predecessor| predecessor.write_all(b"1"))
    }
}
