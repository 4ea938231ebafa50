//! Effect of late sends on the latencies of a run. Pure.
//!
//! A latency counts from the planned moment. Its percentiles minus those from the real send time are the lag's share. A
//! percentile is judged only if at least one whole request lies beyond it. So one late request of 37 changes no figure.

use std::fmt;

use crate::measure::time::Gap;
use crate::report::accumulate::RequestStats;
use crate::report::metric::ReportMetric;
use crate::stats::samples::Samples;

/// Judged percentiles.
const PERCENTILES: [f64; 3] = [50.0, 90.0, 99.0];
/// Latencies, from the planned moment and from the send, in order of preference.
const LATENCIES: [(ReportMetric, ReportMetric); 2] =
    [(ReportMetric::TtftFromPlanned, ReportMetric::Ttft), (ReportMetric::E2eFromPlanned, ReportMetric::E2e)];

/// The largest shift of a percentile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LagEffect {
    metric: ReportMetric,
    pub(super) percent: f64,
    pub(super) shift: Gap,
}

impl LagEffect {
    /// The effect on TTFT, or on E2E if nothing streams. Without a complete response, the lag itself.
    pub(super) fn of(figures: &mut RequestStats) -> Option<Self> {
        for (planned, sent) in LATENCIES {
            let shifts = PERCENTILES.map(|percent| {
                let [planned, sent] = [planned, sent].map(|of| Self::at(&mut figures.samples[of as usize], percent));
                Some((percent, Gap::from_nanos(planned?.as_nanos().saturating_sub(sent?.as_nanos()))))
            });
            if let Some((percent, shift)) = shifts.into_iter().flatten().max_by_key(|(_, shift)| *shift) {
                return Some(Self { metric: sent, percent, shift });
            }
        }
        let lag = &mut figures.samples[ReportMetric::Lag as usize];
        let lags = PERCENTILES.map(|percent| Some((percent, Self::at(lag, percent)?)));
        let (percent, shift) = lags.into_iter().flatten().max_by_key(|(_, shift)| *shift)?;
        Some(Self { metric: ReportMetric::Lag, percent, shift })
    }

    /// A percentile with at least one whole request beyond it, or the median.
    pub(super) fn at(samples: &mut Samples, percent: f64) -> Option<Gap> {
        let sorted = samples.sorted()?;
        let beyond = sorted.count() as f64 * (1.0 - percent / 100.0);
        (percent <= 50.0 || beyond >= 1.0 - 1e-9).then(|| Gap::from_nanos(sorted.percentile(percent).round() as u64))
    }
}

impl fmt::Display for LagEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { metric, percent, shift } = self;
        match metric {
            ReportMetric::Lag => write!(f, "lag p{percent} is {shift}"),
            metric => write!(f, "lag adds {shift} to {} p{percent}", metric.label(false)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of 100 ms, the first of them sent late by these milliseconds.
    fn effect(requests: u64, late: &[u64]) -> Option<LagEffect> {
        let mut figures = RequestStats::default();
        for number in 0..requests {
            let lag = late.get(number as usize).copied().unwrap_or(0);
            for (metric, millis) in
                [(ReportMetric::TtftFromPlanned, 100 + lag), (ReportMetric::Ttft, 100), (ReportMetric::Lag, lag)]
            {
                figures.samples[metric as usize].push(millis * 1_000_000);
            }
        }
        LagEffect::of(&mut figures)
    }

    #[test]
    fn a_single_late_request_of_37_shifts_no_percentile_and_several_do() {
        assert_eq!(effect(37, &[500]).unwrap().shift, Gap::ZERO);
        let several = effect(37, &[500; 5]).unwrap();
        assert_eq!((several.percent, several.shift), (90.0, Gap::from_millis(500)));
        assert_eq!(several.to_string(), "lag adds 500ms to TTFT p90");
        let tail = effect(1_000, &[80; 20]).unwrap();
        assert_eq!((tail.percent, tail.shift), (99.0, Gap::from_millis(80)));
        assert_eq!(effect(9, &[30; 9]).unwrap().percent, 50.0);
        assert_eq!(effect(0, &[]), None);
    }

    #[test]
    fn without_a_response_the_lag_itself_counts() {
        let mut figures = RequestStats::default();
        (0..10).for_each(|_| figures.samples[ReportMetric::Lag as usize].push(20_000_000));
        assert_eq!(LagEffect::of(&mut figures).unwrap().to_string(), "lag p90 is 20.0ms");
    }
}
