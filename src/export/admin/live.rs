//! `/api/live`: rates and latencies of the last second and the last ten seconds, once a second.
//!
//! ```json
//! {
//!   "unix_ms": 1750000012345,
//!   "in_flight": {"requests": 3, "waiting": 1, "streaming": 2, "by_model": {"tiny": 3},
//!     "streams_by_model": {"tiny": {"waiting": 1, "streaming": 2}}},
//!   "all": {"last_1s": W, "last_10s": W},
//!   "models": {"tiny": {"last_1s": W, "last_10s": W}}, "models_left_out": 0,
//!   "slos": {"interactive": {"last_1s": S, "last_10s": S}}
//! }
//! ```
//! where W is a window of `seconds` length and S an SLO's result:
//! ```json
//! W = {
//!   "seconds": 1.0, "requests": 4, "requests_per_s": 4.0, "tokens": 310, "tokens_per_s": 310.0,
//!   "ttft_ms": {"p50": 12.1, "p90": 20.3, "p99": 44.0}, "itl_ms": Q, "tpot_ms": Q,
//!   "terminations": {"done": 4, "client_disconnect": 1},
//!   "responses": {"2xx": 4, "5xx": 1}, "failures": {"upstream": 1}
//! }
//! S = {
//!   "met": 4, "missed": 1, "excluded": 0, "met_ratio": 0.8,
//!   "goodput_requests_per_s": 4.0, "goodput_tokens_per_s": 280.0
//! }
//! ```
//! A quantile or ratio without values is `null`. Requests count when they end; tokens and gaps count when they arrive.
//! `responses` counts requests by status class and `failures` by the party at fault; in `all` both include plain HTTP.
//! Models and SLOs are present only while active. The values are differences of the scraped counts
//! ([`live_view`](crate::export::control::live_view)), taken at the same moments as the history's seconds. They are not stored
//! without listeners, so the ten-second window starts with the first listener.
//!
//! # Bounds
//! An event contains the 12 models with the most requests in the last ten seconds. `all` covers every model, and
//! `models_left_out` counts those that only it covers. A reader that does not take an event within two seconds is
//! disconnected.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::export::control::live_view::{InFlight, LiveSnapshot, OpenStreams, WindowGoodput, WindowStats};

/// Maximum number of listeners. It stays below the admin server's connection limit.
const MAX_SUBSCRIBERS: usize = 16;
/// Maximum number of events that a listener may leave unread.
const MAX_UNREAD_EVENTS: usize = 2;
/// Length of the long window, in seconds.
const LONG_WINDOW_SECONDS: usize = 10;
/// Maximum number of models per event. One minute of events must stay below 1 MB.
const MAX_MODELS: usize = 12;

/// Listeners and recent snapshots.
#[derive(Debug, Default)]
pub(super) struct LiveFeed(Mutex<LiveState>);

#[derive(Default)]
struct LiveState {
    subscribers: Vec<LiveSubscriber>,
    /// Oldest first; empty without listeners.
    snapshots: VecDeque<Arc<LiveSnapshot>>,
}

impl std::fmt::Debug for LiveState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("listeners", &self.subscribers.len()).finish_non_exhaustive()
    }
}

struct LiveSubscriber {
    events: mpsc::Sender<Bytes>,
    disconnect: Box<dyn Fn() + Send>,
}

impl LiveFeed {
    /// Adds a listener, unless the limit is reached. `cut_off` is called if the listener falls behind.
    pub(super) fn subscribe(&self, cut_off: impl Fn() + Send + 'static) -> Option<mpsc::Receiver<Bytes>> {
        let mut inner = self.lock();
        inner.subscribers.retain(|listener| !listener.events.is_closed());
        if inner.subscribers.len() >= MAX_SUBSCRIBERS {
            return None;
        }
        let (events, receiver) = mpsc::channel(MAX_UNREAD_EVENTS);
        inner.subscribers.push(LiveSubscriber { events, disconnect: Box::new(cut_off) });
        Some(receiver)
    }

    /// Sends the second from `before` to `now`, which ends at `unix_ms`, to all listeners.
    pub(super) fn publish(&self, now: &Arc<LiveSnapshot>, before: &Arc<LiveSnapshot>, unix_ms: u64) {
        let mut inner = self.lock();
        if inner.subscribers.is_empty() {
            return;
        }
        if inner.snapshots.is_empty() {
            inner.snapshots.push_back(Arc::clone(before));
        }
        let event = inner.event(now, unix_ms);
        inner.snapshots.push_back(Arc::clone(now));
        if inner.snapshots.len() > LONG_WINDOW_SECONDS {
            inner.snapshots.pop_front();
        }
        inner.subscribers.retain(|listener| match listener.events.try_send(event.clone()) {
            Ok(()) => true,
            Err(error) => {
                if matches!(error, mpsc::error::TrySendError::Full(_)) {
                    (listener.disconnect)();
                }
                false
            }
        });
        if inner.subscribers.is_empty() {
            inner.snapshots.clear();
        }
    }

    fn lock(&self) -> MutexGuard<'_, LiveState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveState {
    fn event(&self, now: &LiveSnapshot, unix_ms: u64) -> Bytes {
        let windows = [("last_1s", self.snapshots.back()), ("last_10s", self.snapshots.front())];
        let windows = windows.map(|(name, then)| (name, then.map_or(now, |then| then)));
        let long = windows[1].1;
        let of = |model: Option<&str>| windows.map(|(window, then)| (window, now.window(model, then))).into();
        let of_slo = |name: &str| {
            let each = windows.map(|(window, then)| (window, now.goodput(name, None, then)));
            (name.to_owned(), each.into())
        };
        let models = now.busiest(long, MAX_MODELS);
        let event = LiveEvent {
            unix_ms,
            in_flight: InFlightView::new(&now.in_flight, &models),
            all: of(None),
            models_left_out: now.active_models(long).len() - models.len(),
            models: models.into_iter().map(|model| (model, of(Some(model)))).collect(),
            slos: now.slos().into_iter().map(of_slo).collect(),
        };
        format!("data: {}\n\n", serde_json::to_string(&event).unwrap_or_default()).into()
    }
}

/// An event of `/api/live`.
#[derive(Serialize, JsonSchema)]
pub struct LiveEvent<'a> {
    unix_ms: u64,
    in_flight: InFlightView<'a>,
    all: BTreeMap<&'static str, WindowStats>,
    models: BTreeMap<&'a str, BTreeMap<&'static str, WindowStats>>,
    models_left_out: usize,
    slos: BTreeMap<String, BTreeMap<&'static str, WindowGoodput>>,
}

/// Open requests of all models, and of the models in this event.
#[derive(Serialize, JsonSchema)]
struct InFlightView<'a> {
    requests: i64,
    waiting: i64,
    streaming: i64,
    by_model: BTreeMap<&'a str, i64>,
    streams_by_model: BTreeMap<&'a str, OpenStreams>,
}

impl<'a> InFlightView<'a> {
    fn new(open: &'a InFlight, models: &BTreeSet<&'a str>) -> Self {
        let names = models.iter().copied();
        Self {
            requests: open.requests,
            waiting: open.waiting,
            streaming: open.streaming,
            by_model: names.clone().filter_map(|model| Some((model, *open.by_model.get(model)?))).collect(),
            streams_by_model: names.filter_map(|model| Some((model, *open.streams_by_model.get(model)?))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::fixtures::{NOW, at, spread};
    use crate::export::registry::aggregate::{Aggregate, AggregateSettings};
    use crate::measure::record::RequestRecord;
    use crate::measure::slo::Slos;

    /// One open stream per model.
    fn open(models: &[String]) -> InFlight {
        let each = models.iter().map(|model| (model.as_str().into(), 1));
        let streams = models.iter().map(|model| (model.as_str().into(), OpenStreams { waiting: 0, streaming: 1 }));
        InFlight {
            requests: models.len() as i64,
            streaming: models.len() as i64,
            by_model: each.collect(),
            streams_by_model: streams.collect(),
            ..InFlight::default()
        }
    }

    #[test]
    fn an_event_is_small_with_a_thousand_models_and_loses_no_request() {
        let rules = ["interactive: ttft<=500ms itl.p99<=50ms", "batch: tpot<=80ms", "long: e2e<=30s", "any: ttft<=1h"];
        let slos = Arc::new(Slos::new(rules.map(|rule| rule.parse().unwrap()).to_vec()).unwrap());
        let settings = AggregateSettings { max_models: 1_000, slos: Arc::clone(&slos), ..AggregateSettings::default() };
        let mut counted = Aggregate::new(settings);
        let models: Vec<String> =
            (0..1_000).map(|model| format!("organisation/some-model-{model:04}-instruct-fp8")).collect();
        let cut = |counted: &Aggregate, second: u64| {
            Arc::new(LiveSnapshot::from_snapshot(&counted.snapshot(NOW), open(&models), at(second * 1_000)))
        };
        let (live, before) = (LiveFeed::default(), cut(&counted, 0));
        let mut events = live.subscribe(|| ()).unwrap();
        // Models late in the alphabet are the busiest.
        for (number, model) in models.iter().enumerate() {
            for place in 0..10 + number as i32 / 100 {
                let record = spread(model, place * 17 + number as i32);
                counted.record_finished(&RequestRecord { slos: Arc::clone(&slos), ..record }, None, NOW);
            }
        }
        live.publish(&cut(&counted, 1), &before, 0);
        let event = events.try_recv().unwrap();
        assert!(event.len() * 60 < 1_000_000, "{} bytes a second", event.len());
        let parsed: serde_json::Value = serde_json::from_slice(event.strip_prefix(b"data: ").unwrap()).unwrap();
        let shown: Vec<&str> = parsed["models"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!((shown.len(), parsed["models_left_out"].as_u64()), (MAX_MODELS, Some(988)));
        assert!(shown.iter().all(|model| model.contains("-09")), "{shown:?}");
        let open = &parsed["in_flight"];
        assert_eq!((open["requests"].as_u64(), open["by_model"].as_object().unwrap().len()), (Some(1_000), 12));
        assert_eq!(open["streams_by_model"].as_object().unwrap().len(), 12);
        let requests = |window: &serde_json::Value| window["last_1s"]["requests"].as_u64().unwrap();
        assert_eq!(requests(&parsed["all"]), (0..10).map(|hundred| 100 * (10 + hundred)).sum::<u64>());
        assert_eq!(requests(&parsed["models"][shown[0]]), 19);
        assert_eq!(parsed["slos"].as_object().unwrap().len(), 4);
    }

    #[test]
    fn nothing_is_kept_while_nobody_listens() {
        let live = LiveFeed::default();
        let cut = |second: u64| Arc::new(LiveSnapshot::empty(at(second * 1_000)));
        live.publish(&cut(1), &cut(0), 0);
        assert!(live.lock().snapshots.is_empty());
        let events = live.subscribe(|| ());
        (1..30).for_each(|second| live.publish(&cut(second + 1), &cut(second), 0));
        assert!(live.lock().snapshots.is_empty(), "the reader was cut off: it owed two");
        drop(events);
    }
}
