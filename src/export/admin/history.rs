//! `/api/history`: the last quarter of an hour, second by second, for all models together or for one.
//!
//! `/api/history` is of all models, `/api/history?model=NAME` of one (percent-encoded). `&after=CURSOR` gives only what
//! came after an earlier reply's `next`, so that a reader which asks once a second gets one second each time, and one
//! that was away gets what it missed. A cursor of another process, or one that is too old, gets everything.
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
//!   "slos": {"interactive": "interactive: ttft<=500ms"},
//!   "seconds": [{"unix_ms": 1750000912001, "length_ms": 1000, "figures": F}]
//! }
//! ```
//! with, for one second, `null` where nothing happened to the model, and else, without what is zero,
//! ```json
//! F = {
//!   "open": [3, 1, 2], "requests": 4, "tokens": 310, "ttft": D, "itl": D, "tpot": D,
//!   "ended": {"done": 4}, "responses": {"2xx": 3, "5xx": 1}, "failures": {"upstream": 1}, "slos": {"interactive": [3, 1, 0, 280]}
//! }
//! ```
//! `open` is requests, streams that wait for a first token, and streams that have one, at the second's end; the four
//! of an SLO are requests that met it, missed it, do not count, and the output tokens of those that met it. `responses` are
//! requests by the class of their status, `failures` by whose fault they failed (`upstream`, `proxy`, `client`); those of
//! all models have plain HTTP too. D is a
//! [`Distribution`](crate::export::figures::second::Distribution), in seconds. Requests count when they end, tokens and
//! gaps as they come.
//!
//! Of a run (`streamgauge replay`, `load`) there is
//! ```json
//! "replay": {
//!   "name": "trace.jsonl", "planned": 162, "length_s": 57.0, "age_s": 12.3, "sent": 30, "in_flight": 4, "ended": 26,
//!   "failed": 0, "lag_ms": {"p50": 0.1, "p90": 0.4, "p99": 0.9}
//! }
//! ```
//! where `planned`, `length_s` and `lag_ms` are `null` while they are not known.
//!
//! `run` is when the process started. `whole` says that `seconds` begins with the oldest that is kept. `models` is there
//! where `whole` is true or it has changed since the cursor. `simulated` is true once a reply of the upstream has said
//! so of itself. `state` is as in `/api/state`; `since_unix_ms` is when it was first seen so.
//!
//! # Bounds
//! The history is kept whether anybody reads it or not: a quarter of an hour, of all models together and of at most 64
//! by themselves, a model keeping its place until nothing has happened to it for that long. Those that find no place
//! count in the sum, and `models_left_out` says how many they were in the last second. And all of it is at most 16 MiB:
//! then it reaches back less far.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::config::otlp::percent_decode;
use crate::export::control_state::ControlState;
use crate::export::gauges::UpstreamHealth;
use crate::export::live_view::LiveSnapshot;
use crate::export::run_status;

/// How far it reaches back.
const MAX_SECONDS: usize = 900;
/// Models with a history of their own.
const MAX_MODELS: usize = 64;
/// Bytes of all of it.
const MAX_HISTORY_BYTES: usize = 16 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HistoryLog(Mutex<HistoryStore>);

#[derive(Debug, Default)]
struct HistoryStore {
    /// The oldest first.
    seconds: VecDeque<HistoryEntry>,
    /// Number of the oldest; they are numbered from 0 on.
    first: u64,
    bytes: usize,
    /// The models that have a place, each with the last second in which something happened to it.
    models: BTreeMap<Arc<str>, u64>,
    /// The second in which a model came or went last.
    models_changed: u64,
    models_left_out: usize,
    upstream: Option<(UpstreamHealth, u64)>,
}

/// One second, as it is sent.
#[derive(Debug)]
struct HistoryEntry {
    unix_ms: u64,
    length_ms: u64,
    all: Box<RawValue>,
    by_model: HashMap<Arc<str>, Box<RawValue>>,
}

/// What a reader asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HistoryQuery {
    model: Option<String>,
    after: Option<(u64, u64)>,
}

impl HistoryQuery {
    /// The query of a URL. What makes no sense is as if it were not there.
    pub(super) fn parse(query: &str) -> Self {
        let mut asked = Self::default();
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match key {
                "model" => asked.model = percent_decode(value),
                "after" => {
                    asked.after =
                        value.split_once('-').and_then(|(run, at)| Some((run.parse().ok()?, at.parse().ok()?)))
                }
                _ => {}
            }
        }
        asked
    }
}

impl HistoryLog {
    /// Keeps the second from `before` to `now`, which ends at `unix_ms`.
    pub(super) fn push(&self, now: &LiveSnapshot, before: &LiveSnapshot, unix_ms: u64, upstream: UpstreamHealth) {
        let mut kept = self.lock();
        kept.set_upstream(upstream, unix_ms);
        kept.add(now, before, unix_ms);
    }

    /// One reply, as JSON.
    pub(super) fn render(&self, asked: &HistoryQuery, telemetry: &ControlState, upstream: Option<&str>) -> Vec<u8> {
        let run = telemetry.started.unix / 1_000_000;
        let now_unix_ms = telemetry.clock.unix_nanos(telemetry.clock.now()) / 1_000_000;
        let slos = telemetry.slos();
        let mut kept = self.lock();
        kept.set_upstream(telemetry.gauges.upstream(), now_unix_ms);
        let end = kept.first + kept.seconds.len() as u64;
        let after = asked.after.filter(|(of, at)| *of == run && (kept.first..=end).contains(at)).map(|(_, at)| at);
        let whole = after.is_none();
        let from = after.unwrap_or(kept.first);
        let seconds = kept.seconds.iter().skip((from - kept.first) as usize);
        let told = HistoryResponse {
            run,
            next: format!("{run}-{end}"),
            whole,
            now_unix_ms,
            version: env!("CARGO_PKG_VERSION"),
            ready: telemetry.gauges.ready(),
            simulated: telemetry.gauges.simulated(),
            upstream: UpstreamView {
                url: upstream,
                state: telemetry.gauges.upstream().name(),
                since_unix_ms: kept.upstream.map(|(_, since)| since),
                reason: telemetry.gauges.upstream_failure(),
            },
            replay: telemetry.run_view(),
            models: (whole || kept.models_changed >= from).then(|| kept.models.keys().map(|name| &**name).collect()),
            models_left_out: kept.models_left_out,
            slos,
            seconds: seconds
                .map(|second| SecondRow {
                    unix_ms: second.unix_ms,
                    length_ms: second.length_ms,
                    figures: second.figures(asked.model.as_deref()),
                })
                .collect(),
        };
        // Our own structures with string keys always serialise.
        serde_json::to_vec(&told).unwrap_or_default()
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

    /// The name of a model to which something happens in a second, if it has a place or there is one.
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

    /// What it takes, nearly.
    fn bytes(&self) -> usize {
        // A box and an entry of the table, each with what the allocator adds.
        const ENTRY_OVERHEAD_BYTES: usize = 96;
        ENTRY_OVERHEAD_BYTES
            + self.all.get().len()
            + self.by_model.values().map(|raw| ENTRY_OVERHEAD_BYTES + raw.get().len()).sum::<usize>()
    }
}

#[derive(Serialize)]
struct HistoryResponse<'a> {
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
    seconds: Vec<SecondRow<'a>>,
}

#[derive(Serialize)]
struct UpstreamView<'a> {
    url: Option<&'a str>,
    state: &'static str,
    since_unix_ms: Option<u64>,
    reason: Option<String>,
}

#[derive(Serialize)]
struct SecondRow<'a> {
    unix_ms: u64,
    length_ms: u64,
    figures: &'a RawValue,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::aggregate::{Aggregate, AggregateSettings};
    use crate::export::fixtures::{NOW, at, record, shape};
    use crate::export::live_view::InFlight;
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
        let mut kept = HistoryStore::default();
        let empty = cut(&any_number_of_models(), 0);
        for second in 0..1_000 {
            kept.add(&empty, &empty, second * 1_000);
        }
        assert_eq!((kept.seconds.len(), kept.first), (MAX_SECONDS, 100));
        assert_eq!((kept.seconds[0].unix_ms, kept.seconds[0].all.get()), (100_000, "{}"));
        assert_eq!(kept.bytes, kept.seconds.iter().map(HistoryEntry::bytes).sum::<usize>());
    }

    #[test]
    fn models_beyond_the_limit_are_left_out_until_a_place_is_free() {
        let (mut kept, mut counted) = (HistoryStore::default(), any_number_of_models());
        let before = cut(&counted, 0);
        (0..MAX_MODELS + 3).for_each(|model| ends(&mut counted, &format!("model-{model:02}")));
        let now = cut(&counted, 1);
        kept.add(&now, &before, 0);
        assert_eq!((kept.models.len(), kept.models_left_out), (MAX_MODELS, 3));
        assert_eq!(kept.seconds[0].by_model.len(), MAX_MODELS);
        assert!(kept.seconds[0].all.get().contains(&format!("\"requests\":{}", MAX_MODELS + 3)), "they count in all");
        // As long as those are remembered there is no place for another.
        ends(&mut counted, "late");
        let later = cut(&counted, 2);
        kept.add(&later, &now, 0);
        assert_eq!((kept.models_left_out, kept.models.contains_key("late")), (1, false));
        (0..MAX_SECONDS).for_each(|_| kept.add(&later, &later, 0));
        assert_eq!((kept.models.len(), kept.models_left_out), (0, 0));
        ends(&mut counted, "late");
        kept.add(&cut(&counted, 3), &later, 0);
        assert_eq!(kept.models.keys().map(|name| &**name).collect::<Vec<_>>(), ["late"]);
    }

    #[test]
    fn memory_is_bounded_whatever_happens() {
        let (mut kept, mut counted) = (HistoryStore::default(), any_number_of_models());
        let before = cut(&counted, 0);
        (0..MAX_MODELS).for_each(|model| ends(&mut counted, &format!("model-{model:02}")));
        let now = cut(&counted, 1);
        kept.add(&now, &before, 0);
        let one = kept.bytes;
        // As if a second were as large as that many.
        kept.bytes += MAX_HISTORY_BYTES - 3 * one;
        (0..10).for_each(|_| kept.add(&now, &before, 0));
        assert!(kept.bytes <= MAX_HISTORY_BYTES && kept.seconds.len() < 10, "{} {}", kept.bytes, kept.seconds.len());
        assert_eq!(kept.first + kept.seconds.len() as u64, 11, "the oldest went");
    }

    #[test]
    fn what_a_reader_asks_is_read_and_nonsense_is_ignored() {
        let asked = |query| HistoryQuery::parse(query);
        assert_eq!(asked(""), HistoryQuery::default());
        let expected = HistoryQuery { model: Some("<b>&=ü/x".to_owned()), after: Some((17, 4)) };
        assert_eq!(asked("after=17-4&model=%3Cb%3E%26%3D%C3%BC/x&other"), expected);
        for nonsense in
            ["after=17", "after=x-4", "after=-", "after=99999999999999999999-1", "model=%", "model=%ff&after=1"]
        {
            assert_eq!(asked(nonsense), HistoryQuery::default(), "{nonsense}");
        }
    }
}
