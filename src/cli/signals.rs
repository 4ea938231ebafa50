//! The signals by which a verb that runs on is told to stop.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT. While this lives neither ends the process by itself.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Listens from now on.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn new() -> io::Result<Self> {
        // Nobody waits for this one, and its handler stays: a limit on the size of files refuses a write, as a full disk
        // does, and does not end whoever serves streams meanwhile.
        drop(signal(SignalKind::from_raw(nix::libc::SIGXFSZ))?);
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next of them.
    pub(super) async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
