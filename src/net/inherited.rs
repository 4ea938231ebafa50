//! Listening sockets inherited from a systemd socket unit or from a predecessor process.
//!
//! Both use the sd_listen_fds(3) protocol: descriptors start at 3, `LISTEN_FDS` holds their number and `LISTEN_FDNAMES`
//! their names. The connection queue belongs to the socket, so no connection is lost between two processes.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;

use listenfd::ListenFd;
use nix::libc::{AF_UNIX, SOCK_STREAM};

/// Names of the sockets that a predecessor passes.
pub const SOCKET_NAMES: [&str; 3] = ["listen", "admin", "predecessor"];

/// The inherited sockets that no setting has claimed yet.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    /// Each socket with its name, which is free text under systemd.
    listeners: Vec<(String, TcpListener)>,
    predecessor: Option<UnixStream>,
}

impl InheritedSockets {
    /// Reads the sockets from the environment. Call it once, before the first thread starts: it removes the variables,
    /// so that no child process claims the same descriptors.
    ///
    /// # Errors
    /// Returns an error if a descriptor is not a listening TCP socket.
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

    /// Claims the socket that listens on `address` for the setting `name`. Port 0 matches any port.
    pub fn take(&mut self, name: &str, address: SocketAddr) -> Option<TcpListener> {
        let is_anothers = |given: &str| given != name && SOCKET_NAMES.contains(&given);
        let fits = |(given, listener): &(String, TcpListener)| {
            let at = listener.local_addr().ok().filter(|at| at.ip() == address.ip());
            !is_anothers(given) && at.is_some_and(|at| address.port() == 0 || at.port() == address.port())
        };
        self.listeners.iter().position(fits).map(|index| self.listeners.swap_remove(index).1)
    }

    /// Returns the addresses of unclaimed systemd sockets. Their connections would wait forever.
    pub fn unused(&self) -> Vec<SocketAddr> {
        let of_systemd = self.listeners.iter().filter(|(name, _)| !SOCKET_NAMES.contains(&&**name));
        of_systemd.filter_map(|(_, listener)| listener.local_addr().ok()).collect()
    }

    /// Returns `true` if a predecessor passed the sockets; it serves until this process does.
    pub fn has_predecessor(&self) -> bool {
        self.predecessor.is_some()
    }

    /// Notifies the predecessor that this process serves, and closes the unclaimed sockets.
    ///
    /// # Errors
    /// Returns an error if the predecessor is gone.
    pub fn notify_predecessor(self) -> io::Result<()> {
        self.predecessor.map_or(Ok(()), |mut predecessor| predecessor.write_all(b"1"))
    }
}
