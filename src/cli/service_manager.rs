//! Notifications of this process's state to systemd by sd_notify(3). Without `NOTIFY_SOCKET` there are none.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::clock;

/// This process serves, or has loaded its configuration again.
pub(super) fn ready() {
    notify("READY=1");
}

/// The configuration is loaded again, or another process takes over; [`ready`] or [`succeeded_by`] ends that.
pub(super) fn reloading() {
    match clock::kernel_monotonic_micros() {
        Ok(micros) => notify(&format!("RELOADING=1\nMONOTONIC_USEC={micros}")),
        Err(error) => tracing::debug!(%error, "the service manager is not notified of the reload"),
    }
}

/// Another process has taken over.
pub(super) fn notify_main_pid(process: u32) {
    notify(&format!("MAINPID={process}\nREADY=1"));
}

/// This process stops.
pub(super) fn stopping() {
    notify("STOPPING=1");
}

fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, state.as_bytes()) {
        tracing::warn!(%error, "cannot notify the service manager: {}", state.lines().next().unwrap_or_default());
    }
}

fn send(socket: &OsStr, state: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    // A manager that does not read must not hold up the proxy.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state, &address).map(drop)
}
