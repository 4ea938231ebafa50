//! Data for live views: the counts at one moment, and the activity between two.
//!
//! A [`LiveSnapshot`] summarizes the scraped [`Snapshot`], and [`WindowStats`] is the difference of two. It covers the
//! last seconds for `/api/live`, and a whole run for `streamgauge demo`. A [`history_point::HistoryPoint`] is the same
//! difference with its histograms, for `/api/history`. If a reload restarted a histogram in between, the window counts
//! only later values.

pub mod history_point;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::export::registry::catalog::{Id, attribute};
use crate::export::registry::interner;
use crate::export::registry::models::OVERFLOW_MODEL;
use crate::export::registry::snapshot::{DataPoint, PointValue, Snapshot};
use crate::measure::histogram::Histogram;
use crate::measure::time::Stamp;

/// Open requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct InFlight {
    /// All open requests.
    pub requests: i64,
    /// Streams without a token.
    pub waiting: i64,
    /// Streams with a token.
    pub streaming: i64,
    /// Open requests by exported model name.
    pub by_model: BTreeMap<Box<str>, i64>,
    /// Open streams by exported model name.
    pub streams_by_model: BTreeMap<Box<str>, OpenStreams>,
}

/// Open streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OpenStreams {
    /// Streams without a token.
    pub waiting: i64,
    /// Streams with a token.
    pub streaming: i64,
}

/// Counts at one moment.
#[derive(Debug)]
pub struct LiveSnapshot {
    /// Time of the snapshot.
    pub at: Stamp,
    /// Open requests and streams.
    pub in_flight: InFlight,
    models: BTreeMap<Arc<str>, ModelCounts>,
    /// All models together.
    all: ModelCounts,
}

/// Activity between two snapshots. Requests count when they end; tokens and gaps count when they arrive.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct WindowStats {
    /// Length of the window in seconds.
    pub seconds: f64,
    /// Requests that ended.
    pub requests: u64,
    /// Requests that ended, per second.
    pub requests_per_s: f64,
    /// Output tokens that arrived.
    pub tokens: u64,
    /// Output tokens that arrived, per second.
    pub tokens_per_s: f64,
    /// Time to first token in ms; absent without values, like the next two.
    pub ttft_ms: Option<LatencyQuantiles>,
    /// Inter-token latency in ms.
    pub itl_ms: Option<LatencyQuantiles>,
    /// Time per output token in ms.
    pub tpot_ms: Option<LatencyQuantiles>,
    /// Streams that ended, by termination; zero counts are omitted.
    pub terminations: BTreeMap<String, u64>,
    /// Requests that ended, by status class (`2xx`, …; `none` without a response head); zero counts are omitted.
    /// Requests that ask for no generation count too, without a model.
    pub responses: BTreeMap<String, u64>,
    /// Failed requests by party at fault (`upstream`, `proxy`, `client`); zero counts are omitted.
    pub failures: BTreeMap<String, u64>,
}

/// Quantiles of a latency, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct LatencyQuantiles {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Verdicts of one SLO between two snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct WindowGoodput {
    /// Requests that met it.
    pub met: u64,
    /// Requests that missed it.
    pub missed: u64,
    /// Requests that it excludes.
    pub excluded: u64,
    /// Share of `met` in `met` and `missed`; absent if both are zero.
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
    /// By status class and party at fault.
    errors: BTreeMap<Arc<str>, u64>,
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
    /// Instruments that a snapshot needs.
    pub(in crate::export) const INSTRUMENTS: [Id; 9] = [
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

    /// Creates a snapshot with zero counts.
    pub(in crate::export) fn empty(at: Stamp) -> Self {
        Self { at, in_flight: InFlight::default(), models: BTreeMap::new(), all: ModelCounts::default() }
    }

    /// Summarizes a full snapshot.
    pub(in crate::export) fn from_snapshot(snapshot: &Snapshot, in_flight: InFlight, at: Stamp) -> Self {
        let mut cut = Self { in_flight, ..Self::empty(at) };
        for id in Self::INSTRUMENTS {
            for point in snapshot.points(id) {
                // A request without a model counts with the unnamed models.
                let name = text(point, attribute::MODEL).unwrap_or_else(|| OVERFLOW_MODEL.into());
                if !is_plain_http(point) {
                    cut.models.entry(name).or_default().add(id, point);
                }
                cut.all.add(id, point);
            }
        }
        cut
    }

    /// Returns the models with open requests or with activity since `then`, sorted by name.
    pub fn active_models(&self, then: &Self) -> BTreeSet<&str> {
        let moved = |(name, now): (&Arc<str>, &ModelCounts)| {
            let before = then.counts(Some(name));
            now.requests != before.requests || now.tokens != before.tokens
        };
        let moved = self.models.iter().filter(|model| moved(*model)).map(|(name, _)| &**name);
        self.in_flight.by_model.keys().map(|name| &**name).chain(moved).collect()
    }

    /// Returns the `most` of the [active models](Self::active_models) with the most requests since `then`, including
    /// open ones.
    pub fn busiest(&self, then: &Self, most: usize) -> BTreeSet<&str> {
        let mut models: Vec<&str> = self.active_models(then).into_iter().collect();
        let requests = |model: &&str| {
            let ended = self.counts(Some(model)).requests.saturating_sub(then.counts(Some(model)).requests);
            let open = self.in_flight.by_model.get(*model).copied().unwrap_or_default();
            Reverse(ended.saturating_add_signed(open))
        };
        // The sort is stable, so names decide between equal counts.
        models.sort_by_cached_key(requests);
        models.into_iter().take(most).collect()
    }

    /// Returns the SLOs with at least one verdict.
    pub fn slos(&self) -> BTreeSet<&str> {
        self.all.slos.keys().map(|name| &**name).collect()
    }

    /// Returns the activity since `then`, of one model or of all models together.
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

    /// Returns an SLO's verdicts since `then`, for one model or for all.
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
        errors: BTreeMap::new(),
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
                let class = text(point, "status_class").unwrap_or_default();
                if let Some(fault) = text(point, "fault") {
                    *self.errors.entry(format!("{class} {fault}").into()).or_default() += count;
                    *self.failures.entry(fault).or_default() += count;
                }
                *self.responses.entry(class).or_default() += count;
            }
            (Id::Terminations, PointValue::Count(count)) => {
                *self.terminations.entry(text(point, "reason").unwrap_or_default()).or_default() += count;
            }
            (_, PointValue::Count(count)) => {
                // The overflow series has no attributes, so its SLO is unknown.
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

    /// Returns the quantiles of a histogram; `None` for an empty one.
    pub(in crate::export) fn of(window: &Histogram) -> Option<Self> {
        let millis = |q| window.quantile(q).map(|seconds| (seconds * 1e6).round() / 1e3);
        Some(Self { p50: millis(0.5)?, p90: millis(0.9)?, p99: millis(0.99)? })
    }
}

/// Returns the values recorded since `before`.
fn histogram_since<'a>(now: Option<&'a Histogram>, before: Option<&Histogram>) -> Option<Cow<'a, Histogram>> {
    let now = now?;
    let since = before.and_then(|before| now.since(before).ok());
    Some(since.map_or(Cow::Borrowed(now), Cow::Owned))
}

/// Returns the nonzero increases since `before`.
fn increments<Name: for<'a> From<&'a str> + Ord>(
    now: &BTreeMap<Arc<str>, u64>,
    before: &BTreeMap<Arc<str>, u64>,
) -> BTreeMap<Name, u64> {
    let more = |name, count: &u64| count.saturating_sub(before.get(name).copied().unwrap_or_default());
    let each = now.iter().map(|(name, count)| (Name::from(&**name), more(name, count)));
    each.filter(|(_, more)| *more > 0).collect()
}

/// Returns `true` for series of requests that ask for no generation; they have no model.
fn is_plain_http(point: &DataPoint) -> bool {
    text(point, "traffic").is_some_and(|traffic| &*traffic != "inference")
}

fn merge(sum: &mut Option<Histogram>, more: &Histogram) {
    match sum {
        None => *sum = Some(more.clone()),
        Some(sum) => {
            // Series of one instrument share their bounds, so this cannot fail.
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
    use crate::export::fixtures::{NOW, at, record, shape};
    use crate::export::registry::aggregate::{Aggregate, AggregateSettings};
    use crate::measure::record::RequestRecord;
    use crate::measure::slo::Slos;

    fn slos(slo: &str) -> Arc<Slos> {
        Arc::new(Slos::new(vec![slo.parse().unwrap()]).unwrap())
    }

    fn aggregate_of(slo: &str) -> Aggregate {
        Aggregate::new(AggregateSettings { slos: slos(slo), ..AggregateSettings::default() })
    }

    fn cut(counted: &Aggregate, millis: u64) -> LiveSnapshot {
        LiveSnapshot::from_snapshot(&counted.snapshot(NOW), InFlight::default(), at(millis))
    }

    #[test]
    fn counts_that_have_begun_anew_count_from_there() {
        let (mut before, mut after) = (aggregate_of("x: e2e<=1s ttft<=1s"), aggregate_of("x: e2e<=3s ttft<=7s"));
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
        let mut counted = aggregate_of("x: ttft<=300ms");
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
