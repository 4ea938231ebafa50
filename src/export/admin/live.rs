//! `/api/live`: rates and latencies of the last second and of the last ten, once a second.
//!
//! ```json
//! {
//!   "unix_ms": 1750000012345,
//!   "in_flight": {"requests": 3, "waiting": 1, "streaming": 2, "by_model": {"tiny": 3}},
//!   "models": {"tiny": {"last_1s": W, "last_10s": W}},
//!   "slos": {"interactive": {"last_1s": S, "last_10s": S}}
//! }
//! ```
//! with, for a window that is `seconds` long,
//! ```json
//! W = {
//!   "seconds": 1.0, "requests_per_s": 4.0, "tokens_per_s": 310.0,
//!   "ttft_ms": {"p50": 12.1, "p90": 20.3, "p99": 44.0}, "itl_ms": Q, "tpot_ms": Q,
//!   "terminations": {"done": 4, "client_disconnect": 1}
//! }
//! S = {
//!   "met": 4, "missed": 1, "excluded": 0, "met_ratio": 0.8,
//!   "goodput_requests_per_s": 4.0, "goodput_tokens_per_s": 280.0
//! }
//! ```
//! A quantile or a ratio of nothing is `null`. Requests count when they end, tokens and gaps as they come. Models and
//! SLOs appear while something happens to them. The figures are differences of the same counts that are scraped: a
//! window is two snapshots, and one in which a reload has begun a histogram anew counts what came after. Nobody takes them while nobody listens, so the ten seconds begin with the first listener.
//!
//! A reader that does not take an event within two seconds is cut off.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use super::state::InFlight;
use crate::export::catalog::{Id, attribute};
use crate::export::labels;
use crate::export::snapshot::{Data, Point, Snapshot};
use crate::export::telemetry::Telemetry;
use crate::measure::histogram::Histogram;
use crate::measure::time::{Gap, Stamp};

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
            inner.cuts.push_back(Cut::of(&telemetry.snapshot(), telemetry.clock.now()));
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
        let now = Cut::of(&telemetry.snapshot(), telemetry.clock.now());
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
        let in_flight = InFlight::of(telemetry);
        let windows = [("last_1s", self.cuts.back()), ("last_10s", self.cuts.front())];
        let windows = windows.map(|(name, then)| (name, then.unwrap_or(now)));
        let long = windows[1].1;
        let mut models: BTreeSet<&str> = in_flight.models().collect();
        models.extend(now.models.iter().filter(|(name, model)| model.moved(long.models.get(*name))).map(|(n, _)| &**n));
        let of_model = |name: &&str| {
            let each = windows.map(|(window, then)| (window, now.model(name, then)));
            ((*name).to_owned(), each.into_iter().collect())
        };
        let of_slo = |name: &Arc<str>| {
            let each = windows.map(|(window, then)| (window, now.slo(name, then)));
            (name.to_string(), each.into_iter().collect())
        };
        let told = Told {
            unix_ms: telemetry.clock.unix_nanos(now.at) / 1_000_000,
            models: models.iter().map(of_model).collect(),
            slos: now.slos.keys().map(of_slo).collect(),
            in_flight,
        };
        format!("data: {}\n\n", serde_json::to_string(&told).unwrap_or_default()).into()
    }
}

#[derive(Serialize)]
struct Told {
    unix_ms: u64,
    in_flight: InFlight,
    models: BTreeMap<String, BTreeMap<&'static str, Value>>,
    slos: BTreeMap<String, BTreeMap<&'static str, Value>>,
}

/// The counts at one moment.
struct Cut {
    at: Stamp,
    models: BTreeMap<Arc<str>, Model>,
    slos: BTreeMap<Arc<str>, Slo>,
}

#[derive(Default)]
struct Model {
    requests: u64,
    tokens: u64,
    ttft: Option<Histogram>,
    itl: Option<Histogram>,
    tpot: Option<Histogram>,
    terminations: BTreeMap<Arc<str>, u64>,
}

#[derive(Clone, Copy, Default)]
struct Slo {
    met: u64,
    missed: u64,
    excluded: u64,
    tokens: u64,
}

impl Cut {
    fn of(snapshot: &Snapshot, at: Stamp) -> Self {
        let mut cut = Self { at, models: BTreeMap::new(), slos: BTreeMap::new() };
        for id in [
            Id::RequestDuration,
            Id::StreamTokens,
            Id::TimeToFirstToken,
            Id::InterTokenLatency,
            Id::TimePerOutputToken,
            Id::Terminations,
        ] {
            for point in snapshot.points(id) {
                // A request that names no model is one of the others.
                let name = text(point, attribute::MODEL).unwrap_or_else(|| crate::export::models::OVERFLOW.into());
                cut.models.entry(name).or_default().add(id, point);
            }
        }
        for id in [Id::SloRequests, Id::SloTokens] {
            for point in snapshot.points(id) {
                let (Some(name), Data::Count(count)) = (text(point, "slo"), &point.data) else { continue };
                let slo = cut.slos.entry(name).or_default();
                match text(point, "result").as_deref() {
                    Some("met") => slo.met += count,
                    Some("missed") => slo.missed += count,
                    Some(_) => slo.excluded += count,
                    None => slo.tokens += count,
                }
            }
        }
        cut
    }

    fn model(&self, name: &str, then: &Self) -> Value {
        let nothing = Model::default();
        let (now, before) = (self.models.get(name).unwrap_or(&nothing), then.models.get(name).unwrap_or(&nothing));
        let terminations = now.terminations.iter().map(|(reason, count)| {
            (reason.to_string(), count.saturating_sub(before.terminations.get(reason).copied().unwrap_or(0)))
        });
        let terminations: BTreeMap<String, u64> = terminations.filter(|(_, count)| *count > 0).collect();
        let seconds = self.at.since(then.at).as_secs();
        json!({
            "seconds": seconds,
            "requests_per_s": rate(now.requests.saturating_sub(before.requests), seconds),
            "tokens_per_s": rate(now.tokens.saturating_sub(before.tokens), seconds),
            "ttft_ms": quantiles(now.ttft.as_ref(), before.ttft.as_ref()),
            "itl_ms": quantiles(now.itl.as_ref(), before.itl.as_ref()),
            "tpot_ms": quantiles(now.tpot.as_ref(), before.tpot.as_ref()),
            "terminations": terminations,
        })
    }

    fn slo(&self, name: &str, then: &Self) -> Value {
        let [now, before] = [self, then].map(|cut| cut.slos.get(name).copied().unwrap_or_default());
        let seconds = self.at.since(then.at).as_secs();
        let (met, missed) = (now.met.saturating_sub(before.met), now.missed.saturating_sub(before.missed));
        json!({
            "met": met,
            "missed": missed,
            "excluded": now.excluded.saturating_sub(before.excluded),
            "met_ratio": (met + missed > 0).then(|| met as f64 / (met + missed) as f64),
            "goodput_requests_per_s": rate(met, seconds),
            "goodput_tokens_per_s": rate(now.tokens.saturating_sub(before.tokens), seconds),
        })
    }
}

impl Model {
    fn add(&mut self, id: Id, point: &Point) {
        let slot = match (id, &point.data) {
            (Id::RequestDuration, Data::Histogram(histogram, _)) => {
                self.requests += histogram.count();
                return;
            }
            (Id::StreamTokens, Data::Count(count)) => {
                self.tokens += count;
                return;
            }
            (Id::Terminations, Data::Count(count)) => {
                let reason = text(point, "reason").unwrap_or_default();
                *self.terminations.entry(reason).or_default() += count;
                return;
            }
            (Id::TimeToFirstToken, _) => &mut self.ttft,
            (Id::InterTokenLatency, _) => &mut self.itl,
            _ => &mut self.tpot,
        };
        if let Data::Histogram(histogram, _) = &point.data {
            match slot {
                None => *slot = Some(histogram.clone()),
                Some(sum) => {
                    // All series of an instrument have the same bounds, so this cannot fail.
                    let _merged = sum.merge(histogram).is_ok();
                }
            }
        }
    }

    fn moved(&self, before: Option<&Self>) -> bool {
        let nothing = Self::default();
        let before = before.unwrap_or(&nothing);
        self.requests != before.requests || self.tokens != before.tokens
    }
}

fn quantiles(now: Option<&Histogram>, before: Option<&Histogram>) -> Option<Value> {
    let now = now?;
    let since = before.and_then(|before| now.since(before).ok());
    let window = since.as_ref().unwrap_or(now);
    let millis = |q| window.quantile(q).map(|seconds| (seconds * 1e6).round() / 1e3);
    Some(json!({"p50": millis(0.5)?, "p90": millis(0.9)?, "p99": millis(0.99)?}))
}

fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

fn text(point: &Point, name: &str) -> Option<Arc<str>> {
    match point.label(name)? {
        labels::Value::Text(text) => Some(Arc::clone(text)),
        labels::Value::Int(_) | labels::Value::Bool(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::aggregate::{Aggregate, Settings};
    use crate::export::fixtures::{NOW, at, record};
    use crate::measure::slo::Slos;

    #[test]
    fn counts_that_have_begun_anew_count_from_there() {
        let begun = |slo: &str| {
            let slos = Arc::new(Slos::new(vec![slo.parse().unwrap()]).unwrap());
            Aggregate::new(Settings { slos, ..Settings::default() })
        };
        let (mut before, mut after) = (begun("x: e2e<=1s ttft<=1s"), begun("x: e2e<=3s ttft<=7s"));
        (0..5).for_each(|_| before.finished(&record(), None, NOW));
        after.finished(&record(), None, NOW);
        let (then, now) = (Cut::of(&before.snapshot(NOW), at(0)), Cut::of(&after.snapshot(NOW), at(1_000)));
        let window = now.model("tiny", &then);
        assert_eq!(window["requests_per_s"], 0.0, "fewer than before: nothing is known of what came between");
        assert!((window["ttft_ms"]["p50"].as_f64().unwrap() / 200.0 - 1.0).abs() < 0.091);
        assert_eq!(now.model("tiny", &now)["ttft_ms"], Value::Null);
    }
}
