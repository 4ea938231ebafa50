//! Share of requests that miss the SLO, by the rate of one replica. Pure.
//!
//! The points are the measured levels, with straight lines between them; below the lowest and above the highest the share
//! is that of the level. A saturated level stands at its throughput, because the queue grows at any higher rate.
//!
//! Misses grow late, so the line is an upper bound between levels. Measured on `streamgauge sim` with 8 slots, after
//! levels of 12.7, 15.6 and 25.3 requests/s and a throughput of 20.9, in runs of 40 s:
//!
//! | requests/s | 14.3 | 18.0 | 21.5 | 25.9 |
//! |---|---|---|---|---|
//! | misses by the curve | 7 % | 50 % | 99 % | 100 % |
//! | misses of the run | 1 % | 15 % | 76 % | 100 % |

use super::measured_level::MeasuredLevel;

/// Points (rate, share), ascending.
#[derive(Clone, Debug, PartialEq)]
pub struct MissCurve(Vec<(f64, f64)>);

impl MissCurve {
    /// Takes levels that ascend by rate. `None` if no level has a share, because the SLO limits gaps and not requests.
    pub fn of(levels: &[MeasuredLevel]) -> Option<Self> {
        let (mut points, mut last) = (Vec::new(), 0.0_f64);
        for level in levels {
            // The throughput of a server that collapses is below rates that it holds.
            let rate = level.verdict_rate().max(last);
            points.extend(level.miss_share.map(|share| (rate, share)));
            last = rate;
        }
        (!points.is_empty()).then_some(Self(points))
    }

    /// Share at a rate in requests per second.
    pub fn share(&self, rate: f64) -> f64 {
        let above = self.0.partition_point(|point| point.0 < rate);
        match (above.checked_sub(1).map(|below| self.0[below]), self.0.get(above)) {
            (Some((from, low)), Some((to, high))) => low + (high - low) * (rate - from) / (to - from),
            (Some((_, share)), None) | (None, Some(&(_, share))) => share,
            (None, None) => 0.0,
        }
    }
}
