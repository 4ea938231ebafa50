//! What a live view shows: the counts of one moment, and what happened between two.
//!
//! A [`Cut`] is a fold of the same [`Snapshot`] that is scraped, and a [`Window`] is the difference of two cuts: of the
//! last seconds for `/api/live`, of a whole run for `streamgauge demo`. A [`second::Second`] is such a difference too,
//! with the distributions themselves, for `/api/history`. Where a reload has begun a histogram anew in between, the
//! window counts what came after.

pub mod history_point;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use super::catalog::{Id, attribute};
use super::interner;
use super::models::OVERFLOW_MODEL;
use super::snapshot::{DataPoint, PointValue, Snapshot};
use crate::measure::histogram::Histogram;
use crate::measure::time::Stamp;

/// Open requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InFlight {
    /// All of them.
    pub requests: i64,
    /// Streams without a token yet.
    pub waiting: i64,
    /// Streams that have one.
    pub streaming: i64,
    /// Requests that ask for a model, by its name as it is shown.
    pub by_model: BTreeMap<Box<str>, i64>,
    /// The streams among them.
    pub streams_by_model: BTreeMap<Box<str>, OpenStreams>,
}

/// Open streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OpenStreams {
    /// Without a token yet.
    pub waiting: i64,
    /// With one.
    pub streaming: i64,
}

/// The counts of one moment.
#[derive(Debug)]
pub struct LiveSnapshot {
    /// When.
    pub at: Stamp,
    /// What is open.
    pub in_flight: InFlight,
    models: BTreeMap<Arc<str>, ModelCounts>,
    /// Of all models together.
    all: ModelCounts,
}

/// What happened between two cuts. Requests count when they end, tokens and gaps as they come.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowStats {
    /// How long it is.
    pub seconds: f64,
    /// Requests that ended.
    pub requests: u64,
    /// The same per second.
    pub requests_per_s: f64,
    /// Output tokens that came.
    pub tokens: u64,
    /// The same per second.
    pub tokens_per_s: f64,
    /// Time to first token; absent where nothing was counted, as are the two below.
    pub ttft_ms: Option<LatencyQuantiles>,
    /// Inter-token latency.
    pub itl_ms: Option<LatencyQuantiles>,
    /// Time per output token.
    pub tpot_ms: Option<LatencyQuantiles>,
    /// Streams that ended, by how; no key has zero.
    pub terminations: BTreeMap<String, u64>,
    /// Requests that ended, by the class of their status (`2xx`, …; `none` if no response began); no key has zero. Those
    /// that ask for no generation count too, and for no model.
    pub responses: BTreeMap<String, u64>,
    /// Those of them that failed, by whose fault it was (`upstream`, `proxy`, `client`); no key has zero.
    pub failures: BTreeMap<String, u64>,
}

/// Three points of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyQuantiles {
    /// The median.
    pub p50: f64,
    /// The ninetieth percentile.
    pub p90: f64,
    /// The ninety-ninth.
    pub p99: f64,
}

/// The verdicts of one SLO between two cuts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WindowGoodput {
    /// Requests that met it.
    pub met: u64,
    /// Requests that did not.
    pub missed: u64,
    /// Requests that do not count.
    pub excluded: u64,
    /// `met` of `met` and `missed`; absent where there was neither.
    pub met_ratio: Option<f64>,
    /// `met` per second.
    pub goodput_requests_per_s: f64,
    /// Output tokens of the requests that met it, per second.
    pub goodput_tokens_per_s: f64,
}

#[derive(Clone, Debug, Default)]
struct ModelCounts {
    requests: u64,
    tokens: u64,
    ttft: Option<Histogram>,
    itl: Option<Histogram>,
    tpot: Option<Histogram>,
    terminations: BTreeMap<Arc<str>, u64>,
    responses: BTreeMap<Arc<str>, u64>,
    failures: BTreeMap<Arc<str>, u64>,
    slos: BTreeMap<Arc<str>, SloVerdictCounts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SloVerdictCounts {
    met: u64,
    missed: u64,
    excluded: u64,
    tokens: u64,
}

impl LiveSnapshot {
    /// The instruments that it is a fold of.
    pub(super) const INSTRUMENTS: [Id; 9] = [
        Id::HttpResponses,
        Id::RequestDuration,
        Id::StreamTokens,
        Id::TimeToFirstToken,
        Id::InterTokenLatency,
        Id::TimePerOutputToken,
        Id::Terminations,
        Id::SloRequests,
        Id::SloTokens,
    ];

    /// Before anything was counted.
    pub(super) fn empty(at: Stamp) -> Self {
        Self { at, in_flight: InFlight::default(), models: BTreeMap::new(), all: ModelCounts::default() }
    }

    /// The counts of a snapshot.
    pub(super) fn from_snapshot(snapshot: &Snapshot, in_flight: InFlight, at: Stamp) -> Self {
        let mut cut = Self { in_flight, ..Self::empty(at) };
        for id in Self::INSTRUMENTS {
            for point in snapshot.points(id) {
                // A request that names no model is one of the others.
                let name = text(point, attribute::MODEL).unwrap_or_else(|| OVERFLOW_MODEL.into());
                if !is_plain_http(point) {
                    cut.models.entry(name).or_default().add(id, point);
                }
                cut.all.add(id, point);
            }
        }
        cut
    }

    /// The models that have open requests or to which something has happened since `then`, in order of their names.
    pub fn active_models(&self, then: &Self) -> BTreeSet<&str> {
        let moved = |(name, now): (&Arc<str>, &ModelCounts)| {
            let before = then.counts(Some(name));
            now.requests != before.requests || now.tokens != before.tokens
        };
        let moved = self.models.iter().filter(|model| moved(*model)).map(|(name, _)| &**name);
        self.in_flight.by_model.keys().map(|name| &**name).chain(moved).collect()
    }

    /// The `most` of [`models`](Self::models) that had the most requests since `then`, open ones included.
    pub fn busiest(&self, then: &Self, most: usize) -> BTreeSet<&str> {
        let mut models: Vec<&str> = self.active_models(then).into_iter().collect();
        let requests = |model: &&str| {
            let ended = self.counts(Some(model)).requests.saturating_sub(then.counts(Some(model)).requests);
            let open = self.in_flight.by_model.get(*model).copied().unwrap_or_default();
            Reverse(ended.saturating_add_signed(open))
        };
        // Of those that had as many the first by name, since the sort is stable.
        models.sort_by_cached_key(requests);
        models.into_iter().take(most).collect()
    }

    /// The SLOs that have judged a request.
    pub fn slos(&self) -> BTreeSet<&str> {
        self.all.slos.keys().map(|name| &**name).collect()
    }

    /// What happened since `then`: to one model, or to all of them together.
    pub fn window(&self, model: Option<&str>, then: &Self) -> WindowStats {
        let (now, before) = (self.counts(model), then.counts(model));
        let seconds = self.at.since(then.at).as_secs();
        let (requests, tokens) =
            (now.requests.saturating_sub(before.requests), now.tokens.saturating_sub(before.tokens));
        WindowStats {
            seconds,
            requests,
            requests_per_s: rate(requests, seconds),
            tokens,
            tokens_per_s: rate(tokens, seconds),
            ttft_ms: LatencyQuantiles::between(now.ttft.as_ref(), before.ttft.as_ref()),
            itl_ms: LatencyQuantiles::between(now.itl.as_ref(), before.itl.as_ref()),
            tpot_ms: LatencyQuantiles::between(now.tpot.as_ref(), before.tpot.as_ref()),
            terminations: increments(&now.terminations, &before.terminations),
            responses: increments(&now.responses, &before.responses),
            failures: increments(&now.failures, &before.failures),
        }
    }

    /// What an SLO found since `then`: in the requests for one model, or in all.
    pub fn goodput(&self, slo: &str, model: Option<&str>, then: &Self) -> WindowGoodput {
        let [now, before] = [self, then].map(|cut| cut.counts(model).slos.get(slo).copied().unwrap_or_default());
        let seconds = self.at.since(then.at).as_secs();
        let (met, missed) = (now.met.saturating_sub(before.met), now.missed.saturating_sub(before.missed));
        WindowGoodput {
            met,
            missed,
            excluded: now.excluded.saturating_sub(before.excluded),
            met_ratio: (met + missed > 0).then(|| met as f64 / (met + missed) as f64),
            goodput_requests_per_s: rate(met, seconds),
            goodput_tokens_per_s: rate(now.tokens.saturating_sub(before.tokens), seconds),
        }
    }

    fn counts(&self, model: Option<&str>) -> &ModelCounts {
        static NONE: ModelCounts = ModelCounts::NONE;
        model.map_or(&self.all, |name| self.models.get(name).unwrap_or(&NONE))
    }
}

impl ModelCounts {
    const NONE: Self = Self {
        requests: 0,
        tokens: 0,
        ttft: None,
        itl: None,
        tpot: None,
        terminations: BTreeMap::new(),
        responses: BTreeMap::new(),
        failures: BTreeMap::new(),
        slos: BTreeMap::new(),
    };

    fn add(&mut self, id: Id, point: &DataPoint) {
        match (id, &point.data) {
            (Id::RequestDuration, PointValue::Histogram(histogram, _)) => self.requests += histogram.count(),
            (Id::TimeToFirstToken, PointValue::Histogram(histogram, _)) => merge(&mut self.ttft, histogram),
            (Id::InterTokenLatency, PointValue::Histogram(histogram, _)) => merge(&mut self.itl, histogram),
            (Id::TimePerOutputToken, PointValue::Histogram(histogram, _)) => merge(&mut self.tpot, histogram),
            (Id::StreamTokens, PointValue::Count(count)) => self.tokens += count,
            (Id::HttpResponses, PointValue::Count(count)) => {
                *self.responses.entry(text(point, "status_class").unwrap_or_default()).or_default() += count;
                if let Some(fault) = text(point, "fault") {
                    *self.failures.entry(fault).or_default() += count;
                }
            }
            (Id::Terminations, PointValue::Count(count)) => {
                *self.terminations.entry(text(point, "reason").unwrap_or_default()).or_default() += count;
            }
            (_, PointValue::Count(count)) => {
                // Beyond the most series there is one without attributes: whose verdicts it has is not known.
                let Some(slo) = text(point, "slo") else { return };
                let verdicts = self.slos.entry(slo).or_default();
                match text(point, "result").as_deref() {
                    Some("met") => verdicts.met += count,
                    Some("missed") => verdicts.missed += count,
                    Some(_) => verdicts.excluded += count,
                    None => verdicts.tokens += count,
                }
            }
            _ => {}
        }
    }
}

impl LatencyQuantiles {
    fn between(now: Option<&Histogram>, before: Option<&Histogram>) -> Option<Self> {
        Self::of(&*histogram_since(now, before)?)
    }

    /// Those of a distribution of times; none of an empty one.
    pub(super) fn of(window: &Histogram) -> Option<Self> {
        let millis = |q| window.quantile(q).map(|seconds| (seconds * 1e6).round() / 1e3);
        Some(Self { p50: millis(0.5)?, p90: millis(0.9)?, p99: millis(0.99)? })
    }
}

/// What a histogram has counted since it was `before`.
fn histogram_since<'a>(now: Option<&'a Histogram>, before: Option<&Histogram>) -> Option<Cow<'a, Histogram>> {
    let now = now?;
    let since = before.and_then(|before| now.since(before).ok());
    Some(since.map_or(Cow::Borrowed(now), Cow::Owned))
}

/// Counts that have grown since they were `before`, and by how much.
fn increments<Name: for<'a> From<&'a str> + Ord>(
    now: &BTreeMap<Arc<str>, u64>,
    before: &BTreeMap<Arc<str>, u64>,
) -> BTreeMap<Name, u64> {
    let more = |name, count: &u64| count.saturating_sub(before.get(name).copied().unwrap_or_default());
    let each = now.iter().map(|(name, count)| (Name::from(&**name), more(name, count)));
    each.filter(|(_, more)| *more > 0).collect()
}

/// Whether the series counts requests that ask for no generation: they belong to no model.
fn is_plain_http(point: &DataPoint) -> bool {
    text(point, "traffic").is_some_and(|traffic| &*traffic != "inference")
}

fn merge(sum: &mut Option<Histogram>, more: &Histogram) {
    match sum {
        None => *sum = Some(more.clone()),
        Some(sum) => {
            // All series of an instrument have the same bounds, so this cannot fail.
            let _merged = sum.merge(more).is_ok();
        }
    }
}

fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

fn text(point: &DataPoint, name: &str) -> Option<Arc<str>> {
    match point.label(name)? {
        interner::LabelValue::Text(text) => Some(Arc::clone(text)),
        interner::LabelValue::Int(_) | interner::LabelValue::Bool(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::aggregate::{Aggregate, AggregateSettings};
    use crate::export::fixtures::{NOW, at, record, shape};
    use crate::measure::record::RequestRecord;
    use crate::measure::slo::Slos;

    fn slos(slo: &str) -> Arc<Slos> {
        Arc::new(Slos::new(vec![slo.parse().unwrap()]).unwrap())
    }

    fn begun(slo: &str) -> Aggregate {
        Aggregate::new(AggregateSettings { slos: slos(slo), ..AggregateSettings::default() })
    }

    fn cut(counted: &Aggregate, millis: u64) -> LiveSnapshot {
        LiveSnapshot::from_snapshot(&counted.snapshot(NOW), InFlight::default(), at(millis))
    }

    #[test]
    fn counts_that_have_begun_anew_count_from_there() {
        let (mut before, mut after) = (begun("x: e2e<=1s ttft<=1s"), begun("x: e2e<=3s ttft<=7s"));
        (0..5).for_each(|_| before.record_finished(&record(), None, NOW));
        after.record_finished(&record(), None, NOW);
        let (then, now) = (cut(&before, 0), cut(&after, 1_000));
        let window = now.window(Some("tiny"), &then);
        assert_eq!(window.requests, 0, "fewer than before: nothing is known of what came between");
        assert!((window.ttft_ms.unwrap().p50 / 200.0 - 1.0).abs() < 0.091);
        assert_eq!(now.window(Some("tiny"), &now).ttft_ms, None);
    }

    #[test]
    fn all_models_together_are_the_sum_of_each() {
        let mut counted = begun("x: ttft<=300ms");
        let then = cut(&counted, 0);
        for model in ["tiny", "tiny", "huge"] {
            let record = RequestRecord { shape: Arc::new(shape(model)), slos: slos("x: ttft<=300ms"), ..record() };
            counted.record_finished(&record, None, NOW);
        }
        let now = cut(&counted, 2_000);
        assert_eq!(now.active_models(&then).into_iter().collect::<Vec<_>>(), ["huge", "tiny"]);
        assert!(now.active_models(&now).is_empty());
        let counts = |model| {
            let (window, goodput) = (now.window(model, &then), now.goodput("x", model, &then));
            (window.requests, window.tokens, window.terminations["done"], goodput.met, goodput.goodput_tokens_per_s)
        };
        assert_eq!(counts(Some("tiny")), (2, 12, 2, 2, 6.0));
        assert_eq!(counts(Some("huge")), (1, 6, 1, 1, 3.0));
        assert_eq!(counts(None), (3, 18, 3, 3, 9.0));
        assert!((now.window(None, &then).ttft_ms.unwrap().p50 / 200.0 - 1.0).abs() < 0.091);
    }
}
