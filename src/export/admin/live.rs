//! `/api/live`: rates and latencies of the last second and of the last ten, once a second.
//!
//! ```json
//! {
//!   "unix_ms": 1750000012345,
//!   "in_flight": {"requests": 3, "waiting": 1, "streaming": 2, "by_model": {"tiny": 3},
//!     "streams_by_model": {"tiny": {"waiting": 1, "streaming": 2}}},
//!   "models": {"tiny": {"last_1s": W, "last_10s": W}},
//!   "slos": {"interactive": {"last_1s": S, "last_10s": S}}
//! }
//! ```
//! with, for a window that is `seconds` long,
//! ```json
//! W = {
//!   "seconds": 1.0, "requests": 4, "requests_per_s": 4.0, "tokens": 310, "tokens_per_s": 310.0,
//!   "ttft_ms": {"p50": 12.1, "p90": 20.3, "p99": 44.0}, "itl_ms": Q, "tpot_ms": Q,
//!   "terminations": {"done": 4, "client_disconnect": 1}
//! }
//! S = {
//!   "met": 4, "missed": 1, "excluded": 0, "met_ratio": 0.8,
//!   "goodput_requests_per_s": 4.0, "goodput_tokens_per_s": 280.0
//! }
//! ```
//! A quantile or a ratio of nothing is `null`. Requests count when they end, tokens and gaps as they come. Models and
//! SLOs appear while something happens to them. The figures are differences of the same counts that are scraped
//! ([`figures`](crate::export::figures)). Nobody takes them while nobody listens, so the ten seconds begin with the
//! first listener.
//!
//! A reader that does not take an event within two seconds is cut off.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{Notify, mpsc};

use crate::export::figures::{Cut, Goodput, InFlight, Window};
use crate::export::telemetry::Telemetry;
use crate::measure::time::Gap;

/// Listeners at once; they are connections of the admin server, which has places for more.
const MOST_LISTENERS: usize = 16;
/// Events that a listener may owe us.
const UNREAD: usize = 2;
const EVERY: Gap = Gap::from_millis(1_000);
/// Seconds of the long window.
const LONG: usize = 10;

/// Who listens, and the last seconds.
#[derive(Debug, Default)]
pub(in crate::export) struct Live {
    inner: Mutex<Inner>,
    first: Notify,
}

#[derive(Default)]
struct Inner {
    listeners: Vec<Listener>,
    /// The oldest first; never empty while somebody listens.
    cuts: VecDeque<Cut>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("listeners", &self.listeners.len()).finish_non_exhaustive()
    }
}

struct Listener {
    events: mpsc::Sender<Bytes>,
    cut_off: Box<dyn Fn() + Send>,
}

impl Live {
    /// Events for one more listener, if there is room. `cut_off` is called when it does not keep up.
    pub(super) fn subscribe(
        &self,
        telemetry: &Telemetry,
        cut_off: impl Fn() + Send + 'static,
    ) -> Option<mpsc::Receiver<Bytes>> {
        let mut inner = self.lock();
        inner.listeners.retain(|listener| !listener.events.is_closed());
        if inner.listeners.len() >= MOST_LISTENERS {
            return None;
        }
        if inner.cuts.is_empty() {
            inner.cuts.push_back(telemetry.cut());
        }
        let (events, receiver) = mpsc::channel(UNREAD);
        inner.listeners.push(Listener { events, cut_off: Box::new(cut_off) });
        self.first.notify_one();
        Some(receiver)
    }

    /// Tells the listeners, forever.
    pub(in crate::export) async fn run(&self, telemetry: &Telemetry) {
        loop {
            while self.lock().listeners.is_empty() {
                self.first.notified().await;
            }
            let mut next = telemetry.clock.now();
            loop {
                next = next.after(EVERY).max(telemetry.clock.now());
                telemetry.clock.sleep_until(next).await;
                if !self.tell(telemetry) {
                    break;
                }
            }
        }
    }

    /// Tells the listeners once; false if there are none left.
    fn tell(&self, telemetry: &Telemetry) -> bool {
        let now = telemetry.cut();
        let mut inner = self.lock();
        let event = inner.event(&now, telemetry);
        inner.cuts.push_back(now);
        if inner.cuts.len() > LONG {
            inner.cuts.pop_front();
        }
        inner.listeners.retain(|listener| match listener.events.try_send(event.clone()) {
            Ok(()) => true,
            Err(error) => {
                if matches!(error, mpsc::error::TrySendError::Full(_)) {
                    (listener.cut_off)();
                }
                false
            }
        });
        if inner.listeners.is_empty() {
            inner.cuts.clear();
        }
        !inner.listeners.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn event(&self, now: &Cut, telemetry: &Telemetry) -> Bytes {
        let windows = [("last_1s", self.cuts.back()), ("last_10s", self.cuts.front())];
        let windows = windows.map(|(name, then)| (name, then.unwrap_or(now)));
        let of_model = |name: &str| {
            let each = windows.map(|(window, then)| (window, now.window(Some(name), then)));
            (name.to_owned(), each.into_iter().collect())
        };
        let of_slo = |name: &str| {
            let each = windows.map(|(window, then)| (window, now.goodput(name, None, then)));
            (name.to_owned(), each.into_iter().collect())
        };
        let told = Told {
            unix_ms: telemetry.clock.unix_nanos(now.at) / 1_000_000,
            in_flight: &now.in_flight,
            models: now.models(windows[1].1).into_iter().map(of_model).collect(),
            slos: now.slos().into_iter().map(of_slo).collect(),
        };
        format!("data: {}\n\n", serde_json::to_string(&told).unwrap_or_default()).into()
    }
}

#[derive(Serialize)]
struct Told<'a> {
    unix_ms: u64,
    in_flight: &'a InFlight,
    models: BTreeMap<String, BTreeMap<&'static str, Window>>,
    slos: BTreeMap<String, BTreeMap<&'static str, Goodput>>,
}
