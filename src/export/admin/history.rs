//! `/api/history`: the last 15 minutes in steps of one second, for all models together or for one.
//!
//! `/api/history` covers all models and `/api/history?model=NAME` one of them (percent-encoded). `&after=CURSOR`
//! returns only seconds after an earlier reply's `next`. A reader that polls once a second gets one second each time,
//! and after a pause it gets all that it missed. A cursor that is too old, or from another process, returns everything.
//! `&seconds=N` returns the last `N` seconds at most, and `&until=UNIX_MS` those that had ended by then.
//! `&by_model=true` adds `"by_model": {"tiny": F}` to each second, with the active models of that second.
//!
//! ```json
//! {
//!   "run": 1750000000000, "next": "1750000000000-912", "whole": true,
//!   "now_unix_ms": 1750000912345, "version": "0.1.0", "ready": true, "simulated": false,
//!   "upstream": {
//!     "url": "http://127.0.0.1:8000", "state": "unreachable", "since_unix_ms": 1750000900000,
//!     "reason": "cannot connect to 127.0.0.1:8000: Connection refused (os error 111)"
//!   },
//!   "models": ["small", "tiny"], "models_left_out": 0,
//!   "slos": {"interactive": "interactive: ttft<=500ms"}, "slo_targets": {"interactive": 0.99},
//!   "slo_limits": {"interactive": [{"metric": "ttft", "percentile": null, "limit_ms": 500.0}]},
//!   "instance": {"service.instance.id": "8f0e…", "host.name": "node-1"},
//!   "config_digest": "…", "started_unix_ms": 1750000000000,
//!   "seconds": [{"unix_ms": 1750000912001, "length_ms": 1000, "figures": F}]
//! }
//! ```
//! where F is the data of one second: `null` without activity of the model, and zero fields are omitted:
//! ```json
//! F = {
//!   "open": [3, 1, 2], "requests": 4, "tokens": 310, "ttft": D, "itl": D, "tpot": D,
//!   "ended": {"done": 4}, "responses": {"2xx": 3, "5xx": 1}, "failures": {"upstream": 1}, "errors": {"5xx upstream": 1},
//!   "slos": {"interactive": [3, 1, 0, 280]}
//! }
//! ```
//! `open` counts requests, streams that wait for a first token, and streams that have one, at the second's end. The
//! four numbers of an SLO are: requests that met it, requests that missed it, excluded requests, and output tokens of
//! those that met it. `responses` counts requests by status class and `failures` by the party at fault (`upstream`,
//! `proxy`, `client`); `errors` counts these by both. For all models together they include plain HTTP. `slo_limits` has the
//! fixed limits of the SLOs that judge the asked model; `percentile` is that of an inter-token latency. D is a
//! [`SparseHistogram`](crate::export::control::live_view::history_point::SparseHistogram) in seconds. Requests count when they
//! end; tokens and gaps count when they arrive.
//!
//! In a run (`streamgauge replay`, `load`) the reply also contains
//! ```json
//! "replay": {
//!   "name": "trace.jsonl", "planned": 162, "length_s": 57.0, "age_s": 12.3, "sent": 30, "in_flight": 4, "ended": 26,
//!   "failed": 0, "lag_ms": {"p50": 0.1, "p90": 0.4, "p99": 0.9}
//! }
//! ```
//! where `planned`, `length_s` and `lag_ms` are `null` while unknown.
//!
//! `run` is the process's start time. `whole` is true if `seconds` starts with the oldest stored second. `models` is
//! present if `whole` is true or the list has changed since the cursor. `simulated` is true once an upstream reply has
//! identified itself as simulated. `state` has the values of `/api/state`; `since_unix_ms` is the first observation of
//! that state.
//!
//! # Bounds
//! The history is recorded even without readers: 15 minutes, for all models together and for at most 64 models
//! separately. A model keeps its slot until it has been inactive for 15 minutes. Models without a slot count only in
//! the total; `models_left_out` is their number in the last second. The whole history takes at most 16 MiB; at that
//! size it covers less time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::cursor::Cursor;
use crate::config::otlp::percent_decode;
use crate::export::control::live_view::LiveSnapshot;
use crate::export::control::live_view::history_point::HistoryPoint;
use crate::export::control::run_status;
use crate::export::control::slo_limit::SloLimit;
use crate::export::control::state::ControlState;
use crate::export::registry::gauges::UpstreamHealth;

/// Length of the history, in seconds.
const MAX_SECONDS: usize = 900;
/// Maximum number of models with their own history.
const MAX_MODELS: usize = 64;
/// Maximum memory of the whole history, in bytes.
const MAX_HISTORY_BYTES: usize = 16 << 20;

/// The history with its lock.
#[derive(Debug, Default)]
pub(super) struct HistoryLog(Mutex<HistoryStore>);

#[derive(Debug, Default)]
struct HistoryStore {
    /// Oldest first.
    seconds: VecDeque<HistoryEntry>,
    /// Number of the oldest second, counted from 0 since the process started.
    first: u64,
    bytes: usize,
    /// Models with a slot, and the last second in which each was active.
    models: BTreeMap<Arc<str>, u64>,
    /// Last second in which a model gained or lost its slot.
    models_changed: u64,
    models_left_out: usize,
    upstream: Option<(UpstreamHealth, u64)>,
}

/// One second, serialized.
#[derive(Debug)]
struct HistoryEntry {
    unix_ms: u64,
    length_ms: u64,
    all: Box<RawValue>,
    by_model: HashMap<Arc<str>, Box<RawValue>>,
}

/// Parsed query of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HistoryQuery {
    model: Option<String>,
    after: Option<Cursor>,
    /// Number of seconds at most.
    seconds: Option<u64>,
    /// Milliseconds since 1970 of the end of the last second.
    until: Option<u64>,
    by_model: bool,
}

impl HistoryQuery {
    /// Parses a URL's query and ignores invalid parts.
    pub(super) fn parse(query: &str) -> Self {
        let mut parsed = Self::default();
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match key {
                "model" => parsed.model = percent_decode(value),
                "seconds" => parsed.seconds = value.parse().ok(),
                "by_model" => parsed.by_model = value == "true",
                "until" => parsed.until = value.parse().ok(),
                "after" => parsed.after = Cursor::parse(value),
                _ => {}
            }
        }
        parsed
    }
}

impl HistoryLog {
    /// Stores the second from `before` to `now`, which ends at `unix_ms`.
    pub(super) fn push(&self, now: &LiveSnapshot, before: &LiveSnapshot, unix_ms: u64, upstream: UpstreamHealth) {
        let mut store = self.lock();
        store.set_upstream(upstream, unix_ms);
        store.add(now, before, unix_ms);
    }

    /// Renders one reply as JSON.
    pub(super) fn render(&self, query: &HistoryQuery, telemetry: &ControlState, upstream: Option<&str>) -> Vec<u8> {
        let run = telemetry.started.unix / 1_000_000;
        let now_unix_ms = telemetry.clock.unix_nanos(telemetry.clock.now()) / 1_000_000;
        let slos = telemetry.slos();
        let mut store = self.lock();
        store.set_upstream(telemetry.gauges.upstream(), now_unix_ms);
        let end = store.first + store.seconds.len() as u64;
        let after = query.after.and_then(|after| after.of_run(run)).filter(|at| (store.first..=end).contains(at));
        let whole = after.is_none();
        let last = store.number_until(query.until);
        let first = query.seconds.map_or(store.first, |seconds| last.saturating_sub(seconds));
        let from = after.unwrap_or(store.first).max(first).min(last);
        let seconds = store.seconds.iter().take((last - store.first) as usize).skip((from - store.first) as usize);
        let response = HistoryResponse {
            run,
            next: Cursor { run, at: end }.to_string(),
            whole,
            now_unix_ms,
            version: env!("CARGO_PKG_VERSION"),
            ready: telemetry.gauges.ready(),
            simulated: telemetry.gauges.simulated(),
            upstream: UpstreamView {
                url: upstream,
                state: telemetry.gauges.upstream().name(),
                since_unix_ms: store.upstream.map(|(_, since)| since),
                reason: telemetry.gauges.upstream_failure(),
            },
            replay: telemetry.run_view(),
            models: (whole || store.models_changed >= from).then(|| store.models.keys().map(|name| &**name).collect()),
            models_left_out: store.models_left_out,
            slos,
            slo_targets: telemetry.slo_targets(),
            slo_limits: telemetry.slo_limits(query.model.as_deref()),
            instance: telemetry.instance(),
            config_digest: telemetry.config_digest(),
            started_unix_ms: run,
            seconds: seconds
                .map(|second| SecondRow {
                    unix_ms: second.unix_ms,
                    length_ms: second.length_ms,
                    figures: second.figures(query.model.as_deref()),
                    by_model: query.by_model.then(|| second.by_model()),
                })
                .collect(),
        };
        // Our own structures with string keys always serialize.
        serde_json::to_vec(&response).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HistoryStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HistoryStore {
    fn set_upstream(&mut self, state: UpstreamHealth, unix_ms: u64) {
        if self.upstream.is_none_or(|(known, _)| known != state) {
            self.upstream = Some((state, unix_ms));
        }
    }

    /// Returns the number after that of the last second that ended at `unix_ms` or before; of all seconds without it.
    fn number_until(&self, unix_ms: Option<u64>) -> u64 {
        let ended = |until| self.seconds.partition_point(|second| second.unix_ms <= until);
        self.first + unix_ms.map_or(self.seconds.len(), ended) as u64
    }

    fn add(&mut self, now: &LiveSnapshot, before: &LiveSnapshot, unix_ms: u64) {
        let number = self.first + self.seconds.len() as u64;
        let raw = |model| to_raw_value(&now.history_point(model, before)).unwrap_or_else(|_| RawValue::NULL.to_owned());
        let mut by_model = HashMap::new();
        self.models_left_out = 0;
        for model in now.active_models(before) {
            match self.claim_model(model, number) {
                Some(name) => _ = by_model.insert(name, raw(Some(model))),
                None => self.models_left_out += 1,
            }
        }
        let length_ms = now.at.since(before.at).as_millis().round() as u64;
        let second = HistoryEntry { unix_ms, length_ms, all: raw(None), by_model };
        self.bytes += second.bytes();
        self.seconds.push_back(second);
        while self.seconds.len() > MAX_SECONDS || self.bytes > MAX_HISTORY_BYTES {
            let Some(oldest) = self.seconds.pop_front() else { break };
            self.bytes -= oldest.bytes();
            self.first += 1;
        }
        let (first, places) = (self.first, self.models.len());
        self.models.retain(|_, last| *last >= first);
        if self.models.len() < places {
            self.models_changed = number;
        }
    }

    /// Returns the name of an active model if it has a slot or gets a free one.
    fn claim_model(&mut self, model: &str, number: u64) -> Option<Arc<str>> {
        if !self.models.contains_key(model) {
            if self.models.len() >= MAX_MODELS {
                return None;
            }
            self.models.insert(model.into(), number);
            self.models_changed = number;
        }
        *self.models.get_mut(model)? = number;
        self.models.get_key_value(model).map(|(name, _)| Arc::clone(name))
    }
}

impl HistoryEntry {
    fn figures(&self, model: Option<&str>) -> &RawValue {
        model.map_or(Some(&self.all), |model| self.by_model.get(model)).map_or(RawValue::NULL, |raw| raw)
    }

    fn by_model(&self) -> BTreeMap<&str, &RawValue> {
        self.by_model.iter().map(|(model, figures)| (&**model, &**figures)).collect()
    }

    /// Estimates the memory in bytes.
    fn bytes(&self) -> usize {
        // A box and a table entry, including the allocator's overhead.
        const ENTRY_OVERHEAD_BYTES: usize = 96;
        ENTRY_OVERHEAD_BYTES
            + self.all.get().len()
            + self.by_model.values().map(|raw| ENTRY_OVERHEAD_BYTES + raw.get().len()).sum::<usize>()
    }
}

/// The response of `/api/history`.
#[derive(Serialize, JsonSchema)]
pub struct HistoryResponse<'a> {
    run: u64,
    next: String,
    whole: bool,
    now_unix_ms: u64,
    version: &'static str,
    ready: bool,
    simulated: bool,
    upstream: UpstreamView<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<run_status::RunView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<Vec<&'a str>>,
    models_left_out: usize,
    slos: BTreeMap<String, String>,
    slo_targets: BTreeMap<String, f64>,
    slo_limits: BTreeMap<String, Vec<SloLimit>>,
    instance: &'a BTreeMap<&'static str, String>,
    config_digest: String,
    started_unix_ms: u64,
    seconds: Vec<SecondRow<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct UpstreamView<'a> {
    url: Option<&'a str>,
    state: &'static str,
    since_unix_ms: Option<u64>,
    reason: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct SecondRow<'a> {
    unix_ms: u64,
    length_ms: u64,
    #[schemars(with = "Option<HistoryPoint>")]
    figures: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, HistoryPoint>>")]
    by_model: Option<BTreeMap<&'a str, &'a RawValue>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::control::live_view::InFlight;
    use crate::export::fixtures::{NOW, at, record, shape};
    use crate::export::registry::aggregate::{Aggregate, AggregateSettings};
    use crate::measure::record::RequestRecord;

    fn cut(counted: &Aggregate, second: u64) -> LiveSnapshot {
        LiveSnapshot::from_snapshot(&counted.snapshot(NOW), InFlight::default(), at(second * 1_000))
    }

    fn ends(counted: &mut Aggregate, model: &str) {
        counted.record_finished(&RequestRecord { shape: Arc::new(shape(model)), ..record() }, None, NOW);
    }

    fn any_number_of_models() -> Aggregate {
        Aggregate::new(AggregateSettings { max_models: 10_000, ..AggregateSettings::default() })
    }

    #[test]
    fn a_quarter_of_an_hour_is_kept_and_no_more() {
        let mut store = HistoryStore::default();
        let empty = cut(&any_number_of_models(), 0);
        for second in 0..1_000 {
            store.add(&empty, &empty, second * 1_000);
        }
        assert_eq!((store.seconds.len(), store.first), (MAX_SECONDS, 100));
        assert_eq!((store.seconds[0].unix_ms, store.seconds[0].all.get()), (100_000, "{}"));
        assert_eq!(store.bytes, store.seconds.iter().map(HistoryEntry::bytes).sum::<usize>());
    }

    #[test]
    fn models_beyond_the_limit_are_left_out_until_a_place_is_free() {
        let (mut store, mut counted) = (HistoryStore::default(), any_number_of_models());
        let before = cut(&counted, 0);
        (0..MAX_MODELS + 3).for_each(|model| ends(&mut counted, &format!("model-{model:02}")));
        let now = cut(&counted, 1);
        store.add(&now, &before, 0);
        assert_eq!((store.models.len(), store.models_left_out), (MAX_MODELS, 3));
        assert_eq!(store.seconds[0].by_model.len(), MAX_MODELS);
        assert!(store.seconds[0].all.get().contains(&format!("\"requests\":{}", MAX_MODELS + 3)), "they count in all");
        // Remembered models keep their slots, so another model gets none.
        ends(&mut counted, "late");
        let later = cut(&counted, 2);
        store.add(&later, &now, 0);
        assert_eq!((store.models_left_out, store.models.contains_key("late")), (1, false));
        (0..MAX_SECONDS).for_each(|_| store.add(&later, &later, 0));
        assert_eq!((store.models.len(), store.models_left_out), (0, 0));
        ends(&mut counted, "late");
        store.add(&cut(&counted, 3), &later, 0);
        assert_eq!(store.models.keys().map(|name| &**name).collect::<Vec<_>>(), ["late"]);
    }

    #[test]
    fn memory_is_bounded_whatever_happens() {
        let (mut store, mut counted) = (HistoryStore::default(), any_number_of_models());
        let before = cut(&counted, 0);
        (0..MAX_MODELS).for_each(|model| ends(&mut counted, &format!("model-{model:02}")));
        let now = cut(&counted, 1);
        store.add(&now, &before, 0);
        let one = store.bytes;
        // Pretends that a second fills the remaining memory.
        store.bytes += MAX_HISTORY_BYTES - 3 * one;
        (0..10).for_each(|_| store.add(&now, &before, 0));
        assert!(
            store.bytes <= MAX_HISTORY_BYTES && store.seconds.len() < 10,
            "{} {}",
            store.bytes,
            store.seconds.len()
        );
        assert_eq!(store.first + store.seconds.len() as u64, 11, "the oldest went");
    }

    #[test]
    fn what_a_reader_asks_is_read_and_nonsense_is_ignored() {
        let parsed = |query| HistoryQuery::parse(query);
        assert_eq!(parsed(""), HistoryQuery::default());
        let expected = HistoryQuery {
            model: Some("<b>&=ü/x".to_owned()),
            after: Cursor::parse("17-4"),
            ..HistoryQuery::default()
        };
        assert_eq!(parsed("after=17-4&model=%3Cb%3E%26%3D%C3%BC/x&other"), expected);
        for nonsense in
            ["after=17", "after=x-4", "after=-", "after=99999999999999999999-1", "model=%", "model=%ff&after=1"]
        {
            assert_eq!(parsed(nonsense), HistoryQuery::default(), "{nonsense}");
        }
    }
}
