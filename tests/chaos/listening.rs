//! Whether the servers listen. While they do not, the proxy has to answer new requests itself.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// How long after their return the servers may still refuse a connection.
const GRACE: Duration = Duration::from_secs(1);

/// The state of all servers, and when they refused connections.
pub(crate) struct Listening {
    state: watch::Sender<bool>,
    /// Begin and end of each refusal; the last one may go on.
    refusals: Mutex<Vec<(Instant, Option<Instant>)>>,
    /// Exchanges that the proxy answered because of a refusal.
    answered: AtomicU64,
}

impl Default for Listening {
    fn default() -> Self {
        Self { state: watch::Sender::new(true), refusals: Mutex::default(), answered: AtomicU64::new(0) }
    }
}

impl Listening {
    pub(crate) fn stop(&self) {
        self.refusals.lock().unwrap().push((Instant::now(), None));
        self.state.send_replace(false);
    }

    pub(crate) fn resume(&self) {
        self.state.send_replace(true);
        if let Some((_, end)) = self.refusals.lock().unwrap().last_mut() {
            *end = Some(Instant::now() + GRACE);
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<bool> {
        self.state.subscribe()
    }

    pub(crate) fn count_answer(&self) {
        self.answered.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::SeqCst)
    }

    /// True if a server may have refused a connection since `began`.
    pub(crate) fn has_refused_since(&self, began: Instant) -> bool {
        self.refusals.lock().unwrap().iter().any(|(_, end)| end.is_none_or(|end| end >= began))
    }
}
