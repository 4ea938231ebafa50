//! A process of the same command line that takes over from this one, with a new program and new settings. Both accept
//! from the same sockets, so no connection is refused.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixStream as StdStream;
use std::process::{Child, Command, Stdio};

use command_fds::{CommandFdExt as _, FdMapping};
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;

use crate::net::inherited::SOCKET_NAMES;

/// The first descriptor that sd_listen_fds(3) knows.
const FIRST_FD: i32 = 3;

/// A started process that has not taken over yet.
pub(super) struct Successor {
    process: Child,
    /// One byte comes when it serves; the end comes when it gives up.
    serving: UnixStream,
}

impl Successor {
    /// Starts it on these sockets, in the order of [`NAMES`]. The program is looked up again: it may be a newer one.
    pub(super) fn start([listen, admin]: [TcpListener; 2]) -> io::Result<Self> {
        if std::process::id() == 1 {
            let why = "this is the first process of its container, which ends with it; replace the container instead";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let mut line = std::env::args_os();
        let program = line.next().ok_or(io::ErrorKind::NotFound)?;
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let sockets = [listen.into(), admin.into(), theirs.into()];
        let passed = (FIRST_FD..).zip(sockets).map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd });
        let mut command = Command::new(program);
        command.args(line).stdin(Stdio::null());
        // Its number is not known before it runs, and LISTEN_PID may be left out.
        command
            .env("LISTEN_FDS", SOCKET_NAMES.len().to_string())
            .env("LISTEN_FDNAMES", SOCKET_NAMES.join(":"))
            .env_remove("LISTEN_PID");
        command.fd_mappings(passed.collect()).map_err(io::Error::other)?;
        Ok(Self { process: command.spawn()?, serving: UnixStream::from_std(ours)? })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until it serves.
    ///
    /// # Errors
    /// If it ends before that; its own log has the reason.
    pub(super) async fn wait_until_serving(&mut self) -> io::Result<()> {
        self.serving.read_u8().await.map(drop)
    }

    /// Takes back its process, which has given up.
    pub(super) fn kill(mut self) {
        // Whatever it still does, it does not serve; and it is waited for so that no entry of it stays.
        _ = self.process.kill().is_ok();
        _ = self.process.wait().is_ok();
    }
}
