//! The data of one second in compact form: the counts of [`WindowStats`](super::WindowStats), with sparse histograms.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::{LiveSnapshot, ModelCounts, histogram_since, increments};
use crate::measure::histogram::Histogram;

/// Activity between two snapshots, of one model or of all. Zero fields are omitted.
#[derive(Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct HistoryPoint {
    /// Open at the end: requests, streams without a token, streams with a token.
    #[serde(skip_serializing_if = "is_default")]
    pub open: [i64; 3],
    /// Requests that ended.
    #[serde(skip_serializing_if = "is_default")]
    pub requests: u64,
    /// Output tokens that arrived.
    #[serde(skip_serializing_if = "is_default")]
    pub tokens: u64,
    /// Times to first token.
    #[serde(skip_serializing_if = "is_default")]
    pub ttft: SparseHistogram,
    /// Inter-token latencies.
    #[serde(skip_serializing_if = "is_default")]
    pub itl: SparseHistogram,
    /// Times per output token.
    #[serde(skip_serializing_if = "is_default")]
    pub tpot: SparseHistogram,
    /// Streams that ended, by termination.
    #[serde(skip_serializing_if = "is_default")]
    pub ended: BTreeMap<Box<str>, u64>,
    /// Requests that ended, by status class.
    #[serde(skip_serializing_if = "is_default")]
    pub responses: BTreeMap<Box<str>, u64>,
    /// Failed requests, by party at fault.
    #[serde(skip_serializing_if = "is_default")]
    pub failures: BTreeMap<Box<str>, u64>,
    /// Failed requests, by status class and party at fault, as `5xx upstream`.
    #[serde(skip_serializing_if = "is_default")]
    pub errors: BTreeMap<Box<str>, u64>,
    /// By SLO: requests that met it, requests that missed it, excluded requests, and output tokens of those that met
    /// it.
    #[serde(skip_serializing_if = "is_default")]
    pub slos: BTreeMap<Box<str>, [u64; 4]>,
}

/// Counts in base-2 exponential buckets of scale 3, in seconds. The first number is the index of the first bucket with
/// a count. Bucket `i` is `(2^(i/8), 2^((i+1)/8)]`; the buckets at both ends of the range also hold all shorter and all
/// longer values. The counts from that bucket on follow, with `-n` for `n` empty buckets. An empty histogram has no
/// numbers.
#[derive(Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SparseHistogram(Vec<i64>);

impl LiveSnapshot {
    /// Returns the activity since `then`, of one model or of all models together.
    pub fn history_point(&self, model: Option<&str>, then: &Self) -> HistoryPoint {
        let (now, before) = (self.counts(model), then.counts(model));
        let counted = |now: u64, before: u64| now.saturating_sub(before);
        let slos = now.slos.iter().map(|(slo, now)| {
            let before = before.slos.get(slo).copied().unwrap_or_default();
            let verdicts = [
                counted(now.met, before.met),
                counted(now.missed, before.missed),
                counted(now.excluded, before.excluded),
                counted(now.tokens, before.tokens),
            ];
            ((**slo).into(), verdicts)
        });
        let distribution = |which: fn(&ModelCounts) -> &Option<Histogram>| {
            let (now, before) = (which(now).as_ref(), which(before).as_ref());
            // Most histograms of most models did not change within a second.
            let moved = now.map(Histogram::count) != before.map(Histogram::count);
            histogram_since(now, before).filter(|_| moved).map(|grown| SparseHistogram::of(&grown)).unwrap_or_default()
        };
        HistoryPoint {
            open: self.open(model),
            requests: counted(now.requests, before.requests),
            tokens: counted(now.tokens, before.tokens),
            ttft: distribution(|counts| &counts.ttft),
            itl: distribution(|counts| &counts.itl),
            tpot: distribution(|counts| &counts.tpot),
            ended: increments(&now.terminations, &before.terminations),
            responses: increments(&now.responses, &before.responses),
            failures: increments(&now.failures, &before.failures),
            errors: increments(&now.errors, &before.errors),
            slos: slos.filter(|(_, verdicts)| verdicts != &[0; 4]).collect(),
        }
    }

    fn open(&self, model: Option<&str>) -> [i64; 3] {
        let open = &self.in_flight;
        match model {
            None => [open.requests, open.waiting, open.streaming],
            Some(name) => {
                let streams = open.streams_by_model.get(name).copied().unwrap_or_default();
                [open.by_model.get(name).copied().unwrap_or_default(), streams.waiting, streams.streaming]
            }
        }
    }
}

impl SparseHistogram {
    fn of(histogram: &Histogram) -> Self {
        let view = histogram.exponential();
        let lowest = histogram.layout().unit().range().0 - 1;
        let zero = (lowest, view.zero);
        let counts = std::iter::once(zero).chain((view.offset..).zip(view.buckets)).filter(|(_, count)| *count > 0);
        let (mut numbers, mut next) = (Vec::new(), None::<i32>);
        for (at, count) in counts {
            match next {
                None => numbers.push(at.into()),
                Some(next) if next < at => numbers.push(i64::from(next - at)),
                Some(_) => {}
            }
            numbers.push(i64::try_from(count).unwrap_or(i64::MAX));
            next = Some(at + 1);
        }
        Self(numbers)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::export::control::live_view::{InFlight, OpenStreams};
    use crate::export::fixtures::{NOW, at, record};
    use crate::export::registry::aggregate::{Aggregate, AggregateSettings};
    use crate::measure::histogram::{Layout, Unit};
    use crate::measure::slo::Slos;

    fn distribution(nanos: &[u64]) -> Vec<i64> {
        let mut histogram = Histogram::new(Arc::new(Layout::new(Unit::Seconds, [0.001])));
        nanos.iter().for_each(|value| histogram.record(*value));
        SparseHistogram::of(&histogram).0
    }

    #[test]
    fn a_distribution_is_its_first_bucket_and_then_counts_and_gaps() {
        assert_eq!(distribution(&[]), [0; 0]);
        // 0.5 s ends bucket -9; 1 s ends bucket -1, with 7 buckets between them.
        assert_eq!(distribution(&[500_000_000, 500_000_000, 500_000_001]), [-9, 2, 1]);
        assert_eq!(distribution(&[500_000_000, 1_000_000_000]), [-9, 1, -7, 1]);
        assert_eq!(distribution(&[1]), [-161, 1], "below the range");
        assert_eq!(distribution(&[u64::MAX]), [96, 1], "above it");
        assert_eq!(distribution(&[1, 954]), [-161, 1, 1]);
    }

    #[test]
    fn a_second_has_what_came_and_leaves_out_what_did_not() {
        let slos = Arc::new(Slos::new(vec!["fast: ttft<=300ms".parse().unwrap()]).unwrap());
        let mut counted = Aggregate::new(AggregateSettings { slos: Arc::clone(&slos), ..AggregateSettings::default() });
        let record = crate::measure::record::RequestRecord { slos, ..record() };
        counted.record_finished(&record, None, NOW);
        let then = LiveSnapshot::from_snapshot(&counted.snapshot(NOW), InFlight::default(), at(0));
        (0..3).for_each(|_| counted.record_finished(&record, None, NOW));
        let open = InFlight {
            requests: 5,
            waiting: 2,
            streaming: 1,
            by_model: [("tiny".into(), 2)].into(),
            streams_by_model: [("tiny".into(), OpenStreams { waiting: 0, streaming: 1 })].into(),
        };
        let now = LiveSnapshot::from_snapshot(&counted.snapshot(NOW), open, at(1_000));
        let point = |model| serde_json::to_value(now.history_point(model, &then)).unwrap();
        // 200 ms; gaps of 10, 20 for two tokens, 30 and 40 ms; 105 ms for 5 tokens.
        let expected = serde_json::json!({
            "open": [2, 0, 1], "requests": 3, "tokens": 18, "ttft": [-19, 3],
            "itl": [-54, 6, -12, 3, -2, 3], "tpot": [-45, 3], "ended": {"done": 3}, "responses": {"2xx": 3},
            "slos": {"fast": [3, 0, 0, 18]},
        });
        assert_eq!(point(Some("tiny")), expected);
        assert_eq!(
            (point(None)["open"].clone(), point(None)["itl"].clone()),
            ([5, 2, 1].into(), expected["itl"].clone())
        );
        assert_eq!(point(Some("huge")), serde_json::json!({}));
        assert_eq!(now.history_point(Some("tiny"), &now).requests, 0);
        assert_eq!(serde_json::to_value(then.history_point(None, &then)).unwrap(), serde_json::json!({}));
    }
}
