//! The figures of the last seconds of one instance, from its `/api/history`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::WINDOW_SECONDS;

/// A reply of `/api/history?by_model=true&seconds=N`, as far as it is used. Every field is from another process.
#[derive(Deserialize)]
pub(super) struct HistoryReply {
    pub(super) ready: bool,
    pub(super) upstream: UpstreamReply,
    #[serde(default)]
    pub(super) slo_targets: BTreeMap<String, f64>,
    #[serde(default)]
    seconds: Vec<SecondReply>,
}

#[derive(Deserialize)]
pub(super) struct UpstreamReply {
    pub(super) state: String,
    pub(super) reason: Option<String>,
}

#[derive(Deserialize)]
struct SecondReply {
    length_ms: u64,
    figures: Option<PointReply>,
    #[serde(default)]
    by_model: BTreeMap<String, PointReply>,
}

/// A reply of `/api/state`, as far as it is used.
#[derive(Deserialize)]
pub(super) struct StateReply {
    /// Absent without a capture, and until a session has ended its first turn.
    pub(super) sessions: Option<SessionsReply>,
}

#[derive(Deserialize)]
pub(super) struct SessionsReply {
    sessions: u64,
    model_share: Option<f64>,
    #[serde(default)]
    goodput: Vec<SessionGoodputReply>,
}

#[derive(Deserialize)]
struct SessionGoodputReply {
    slo: String,
    share: f64,
}

/// Sessions of the last 15 minutes.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(in crate::cli) struct TopSessions {
    pub(super) count: u64,
    /// Time that the sessions spent between their requests, of their whole time; absent without any.
    pub(super) tool_share: Option<f64>,
    /// Share of sessions of which every request met each SLO.
    pub(super) goodput: BTreeMap<String, f64>,
}

impl TopSessions {
    pub(super) fn of(reply: SessionsReply) -> Self {
        let share = |share: f64| share.clamp(0.0, 1.0);
        Self {
            count: reply.sessions,
            tool_share: reply.model_share.map(|model| 1.0 - share(model)),
            goodput: reply.goodput.into_iter().map(|of| (of.slo, share(of.share))).collect(),
        }
    }
}

/// One second of a model. Zero fields are absent.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct PointReply {
    open: [i64; 3],
    requests: u64,
    tokens: u64,
    ttft: Vec<i64>,
    itl: Vec<i64>,
    failures: BTreeMap<String, u64>,
    slos: BTreeMap<String, [u64; 4]>,
}

/// Figures of a window, of one model or of all.
#[derive(Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(in crate::cli) struct WindowFigures {
    pub(super) requests_per_s: f64,
    pub(super) tokens_per_s: f64,
    pub(super) in_flight: i64,
    /// Streams that were open in every second while no token came; 0 if one came, or if the window is shorter than usual.
    pub(super) silent_streams: i64,
    /// Absent without values, like the next one.
    pub(super) ttft_ms: Option<TopQuantiles>,
    pub(super) itl_ms: Option<TopQuantiles>,
    /// Share of judged requests that met each SLO; absent if none was judged.
    pub(super) goodput: BTreeMap<String, Option<f64>>,
    /// Failed requests by the party at fault.
    pub(super) failures: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub(in crate::cli) struct TopQuantiles {
    pub(super) p50: f64,
    pub(super) p99: f64,
}

impl HistoryReply {
    /// The figures of all models together, and of each model with activity or open requests.
    pub(super) fn windows(&self) -> (WindowFigures, BTreeMap<&str, WindowFigures>) {
        let seconds = self.seconds.iter().map(|second| second.length_ms as f64 / 1e3).sum::<f64>();
        let mut models: BTreeMap<&str, Vec<(bool, &PointReply)>> = BTreeMap::new();
        let mut all = Vec::new();
        for (at, second) in self.seconds.iter().enumerate() {
            let is_last = at + 1 == self.seconds.len();
            all.extend(second.figures.iter().map(|point| (is_last, point)));
            for (model, point) in &second.by_model {
                models.entry(model).or_default().push((is_last, point));
            }
        }
        let models = models.into_iter().map(|(model, points)| (model, WindowFigures::sum(&points, seconds)));
        // A model stays in the history after its last request.
        let models = models.filter(|(_, figures)| figures.requests_per_s > 0.0 || figures.in_flight > 0);
        (WindowFigures::sum(&all, seconds), models.collect())
    }
}

impl WindowFigures {
    /// Sums the seconds of a window; `true` marks its last one, whose open requests are those of now.
    fn sum(points: &[(bool, &PointReply)], seconds: f64) -> Self {
        let mut figures = Self::default();
        let (mut requests, mut tokens) = (0_u64, 0_u64);
        let (mut ttft, mut itl) = (BTreeMap::new(), BTreeMap::new());
        let mut verdicts = BTreeMap::<&str, [u64; 2]>::new();
        for (is_last, point) in points {
            requests = requests.saturating_add(point.requests);
            tokens = tokens.saturating_add(point.tokens);
            figures.in_flight += if *is_last { point.open[0] } else { 0 };
            add_buckets(&mut ttft, &point.ttft);
            add_buckets(&mut itl, &point.itl);
            for (fault, count) in &point.failures {
                let sum = figures.failures.entry(fault.clone()).or_default();
                *sum = sum.saturating_add(*count);
            }
            for (slo, [met, missed, ..]) in &point.slos {
                let sum = verdicts.entry(slo).or_default();
                *sum = [sum[0].saturating_add(*met), sum[1].saturating_add(*missed)];
            }
        }
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        (figures.requests_per_s, figures.tokens_per_s) = (rate(requests), rate(tokens));
        (figures.ttft_ms, figures.itl_ms) = (quantiles(&ttft), quantiles(&itl));
        if tokens == 0 && points.len() as u64 >= WINDOW_SECONDS {
            let streams = points.iter().map(|(_, point)| point.open[1].saturating_add(point.open[2]));
            figures.silent_streams = streams.min().unwrap_or(0).max(0);
        }
        let ratio = |[met, missed]: [u64; 2]| {
            let judged = met.saturating_add(missed);
            (judged > 0).then(|| met as f64 / judged as f64)
        };
        figures.goodput = verdicts.into_iter().map(|(slo, counts)| (slo.to_owned(), ratio(counts))).collect();
        figures
    }
}

/// Ends of the range of buckets: those at the ends hold all shorter and all longer values.
const BUCKETS: std::ops::RangeInclusive<i64> = -161..=96;

/// Adds a [`SparseHistogram`](crate::export::control::live_view::history_point::SparseHistogram).
fn add_buckets(sum: &mut BTreeMap<i64, u64>, sparse: &[i64]) {
    let [first, counts @ ..] = sparse else { return };
    let mut at = *first;
    for number in counts {
        match u64::try_from(*number) {
            Ok(count) if BUCKETS.contains(&at) => {
                let cell = sum.entry(at).or_default();
                *cell = cell.saturating_add(count);
                at += 1;
            }
            Ok(_) => return,
            Err(_) => at = at.saturating_sub(*number),
        }
    }
}

/// Quantiles in ms, by the rule of the live page: within the bucket of the nearest rank.
fn quantiles(buckets: &BTreeMap<i64, u64>) -> Option<TopQuantiles> {
    let bound = |bucket: i64| 1_000.0 * ((bucket + 1) as f64 / 8.0).exp2();
    let all = buckets.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
    let quantile = |q: f64| {
        let rank = (q * all as f64).ceil().max(1.0) as u64;
        let mut below = 0_u64;
        let (bucket, count) = buckets.iter().find(|(_, count)| {
            below = below.saturating_add(**count);
            below >= rank
        })?;
        let smallest = if *bucket <= *BUCKETS.start() { 0.0 } else { bound(bucket - 1) };
        let width = if *bucket >= *BUCKETS.end() { 0.0 } else { bound(*bucket) - smallest };
        let within = (rank.saturating_add(*count).saturating_sub(below)) as f64 - 0.5;
        Some(((smallest + width * within / *count as f64) * 1e3).round() / 1e3)
    };
    Some(TopQuantiles { p50: quantile(0.5)?, p99: quantile(0.99)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(seconds: &str) -> HistoryReply {
        let text = format!(r#"{{"ready":true,"upstream":{{"state":"reachable","reason":null}},"seconds":{seconds}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_window_sums_its_seconds_and_has_the_open_requests_of_the_last() {
        let reply = reply(
            r#"[
              {"length_ms": 1000, "figures": {"open": [9, 1, 8], "requests": 3, "tokens": 30, "ttft": [-9, 2, -7, 1],
                "failures": {"upstream": 1}, "slos": {"chat": [2, 1, 0, 20]}},
               "by_model": {"a": {"open": [9, 1, 8], "requests": 3}}},
              {"length_ms": 1000, "figures": null},
              {"length_ms": 2000, "figures": {"open": [5, 0, 5], "requests": 1, "slos": {"chat": [1, 0, 0, 9], "none": [0, 0, 4, 0]},
                "failures": {"upstream": 2, "client": 1}}, "by_model": {"b": {"open": [5, 0, 5]}, "_other": {"open": [0, 0, 0]}}}
            ]"#,
        );
        let (all, models) = reply.windows();
        assert_eq!((all.requests_per_s, all.tokens_per_s, all.in_flight), (1.0, 7.5, 5));
        assert_eq!(all.goodput, [("chat".to_owned(), Some(0.75)), ("none".to_owned(), None)].into());
        assert_eq!(all.failures, [("client".to_owned(), 1), ("upstream".to_owned(), 3)].into());
        // Two values in (458.5, 500] ms and one in (917, 1000] ms.
        let ttft = all.ttft_ms.unwrap();
        assert!((458.5..500.0).contains(&ttft.p50) && (917.0..1000.0).contains(&ttft.p99), "{ttft:?}");
        assert_eq!(all.itl_ms, None);
        assert_eq!((models["a"].requests_per_s, models["a"].in_flight), (0.75, 0));
        assert_eq!((models["b"].requests_per_s, models["b"].in_flight), (0.0, 5));
        assert_eq!(models.len(), 2, "nothing happened to the others");
    }

    #[test]
    fn streams_are_silent_if_they_are_open_all_the_time_and_no_token_comes() {
        let second = |tokens: u64, open: &str| {
            format!(r#"{{"length_ms": 1000, "figures": {{"open": {open}, "tokens": {tokens}}}}}"#)
        };
        let silent = |seconds: Vec<String>| reply(&format!("[{}]", seconds.join(","))).windows().0.silent_streams;
        let of = |tokens, open| (0..10).map(|_| second(tokens, open)).collect::<Vec<_>>();
        let mut few = of(0, "[6, 2, 4]");
        few[3] = second(0, "[3, 1, 2]");
        assert_eq!([silent(of(0, "[6, 2, 4]")), silent(few), silent(of(1, "[6, 2, 4]"))], [6, 3, 0]);
        let mut young = of(0, "[6, 2, 4]");
        young.pop();
        assert_eq!([silent(young), silent(of(0, "[6, 0, 0]"))], [0, 0], "plain HTTP has no tokens");
    }

    #[test]
    fn numbers_of_a_hostile_instance_are_bounded() {
        let huge = format!(
            "[{{\"length_ms\":0,\"figures\":{{\"requests\":{0},\"ttft\":[{1},{2},{1},5],\"itl\":[-161,-9223372036854775808,{2},1]}}}}]",
            u64::MAX,
            i64::MIN,
            i64::MAX
        );
        let (all, _) = reply(&huge).windows();
        assert_eq!((all.requests_per_s, all.ttft_ms, all.itl_ms), (0.0, None, None));
    }
}
