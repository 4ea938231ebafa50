//! The thread on which requests to object storage run.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::thread;

use tokio::runtime::{Builder, Handle};

static RUNTIME: OnceLock<Handle> = OnceLock::new();

/// Runs `work` on the thread, and blocks until it is done. The thread starts with the first work.
///
/// # Errors
/// If the thread cannot be started.
pub(super) fn wait<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
    let (sender, receiver) = sync_channel(1);
    runtime()?.spawn(async move { _ = sender.send(work.await) });
    receiver.recv().map_err(|_| io::Error::other("a request to the storage ended in a panic"))
}

fn runtime() -> io::Result<&'static Handle> {
    if let Some(handle) = RUNTIME.get() {
        return Ok(handle);
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let body = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name("storage".to_owned()).spawn(body)?;
    // Of two threads that start at once, both run, and one is used.
    Ok(RUNTIME.get_or_init(|| handle))
}
