//! The fixed limits of an SLO, for the charts of the live page.

use schemars::JsonSchema;
use serde::Serialize;

use crate::measure::slo::{Metric, Slo};

/// One fixed limit.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(in crate::export) struct SloLimit {
    /// `ttft`, `ttfo`, `itl`, `tpot` or `e2e`.
    metric: &'static str,
    /// Percentile of a request's own inter-token latencies; 100 is the longest. Absent for the other metrics.
    percentile: Option<f64>,
    limit_ms: f64,
}

impl SloLimit {
    /// Returns the limits of an SLO. A limit that each request sets for itself is none.
    pub(super) fn of(slo: &Slo) -> Vec<Self> {
        let limit = |(metric, limit): (Metric, crate::measure::time::Gap)| Self {
            metric: metric.name(),
            percentile: match metric {
                Metric::Itl(tenths) => Some(f64::from(tenths) / 10.0),
                _ => None,
            },
            limit_ms: limit.as_millis(),
        };
        slo.fixed_limits().map(limit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_limits_are_listed_with_their_percentiles() {
        let of = |slo: &str| SloLimit::of(&slo.parse().unwrap());
        let limit = |metric, percentile, limit_ms| SloLimit { metric, percentile, limit_ms };
        assert_eq!(
            of("chat: ttft<=500ms itl.p99.9<=50ms itl.max<=1s"),
            [limit("ttft", None, 500.0), limit("itl", Some(99.9), 50.0), limit("itl", Some(100.0), 1_000.0)]
        );
        assert_eq!(of("own: ttft<=header tpot<=80ms"), [limit("tpot", None, 80.0)]);
    }
}
