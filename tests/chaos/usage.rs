//! Memory and descriptors of the proxies over time, and whether they rise.

use std::time::Duration;

use streamgauge::stats::trend::{TrendTest, trend};

/// A rise counts only if chance makes it as seldom as this: four figures are judged in each run.
const MAX_P_VALUE: f64 = 0.01;
/// Rises over the measured time below this share of the mean are within what an allocator and idle connections vary.
const MIN_SHARE: f64 = 0.03;
/// The fewest samples of a trend.
const MIN_SAMPLES: usize = 20;
/// After this time the bounded stores of a proxy are full. The live page's history has 15 minutes; 65,536 conversations
/// of the capture take 17 minutes at the 64 requests/s of each proxy.
const FILLED_AFTER: Duration = Duration::from_secs(20 * 60);
/// The shortest time with full stores from which a trend is read.
const MIN_FILLED: Duration = Duration::from_secs(4 * 60);

/// One figure of one proxy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Seconds since the start, and the value.
    points: Vec<(f64, f64)>,
    /// How much the figure may rise before [`FILLED_AFTER`].
    filling: f64,
    /// Start of the process that the figure is of. One that takes over begins with empty stores.
    started: Duration,
}

/// The trend of a series.
#[derive(Clone, Debug)]
pub(crate) struct Slope {
    pub(crate) mean: f64,
    pub(crate) trend: TrendTest,
    /// Change over the measured time.
    pub(crate) rise: f64,
    pub(crate) samples: usize,
    pub(crate) is_zero: bool,
}

impl Series {
    pub(crate) fn new(name: String, filling: f64) -> Self {
        Self { name, points: Vec::new(), filling, started: Duration::ZERO }
    }

    pub(crate) fn add(&mut self, at: Duration, value: f64) {
        self.points.push((at.as_secs_f64(), value));
    }

    /// Sets the start of the process, for samples until `until`. A later process has no samples that are judged.
    pub(crate) fn restarted(&mut self, at: Duration, until: Duration) {
        if at < until {
            self.started = at;
        }
    }

    /// The trend between two moments, and of full stores if the process was old enough; `None` with too few samples.
    pub(crate) fn slope(&self, from: Duration, until: Duration) -> Option<Slope> {
        let filled = self.started + FILLED_AFTER;
        let is_filled = filled + MIN_FILLED <= until;
        let (from, until) = (if is_filled { from.max(filled) } else { from }.as_secs_f64(), until.as_secs_f64());
        let points: Vec<_> = self.points.iter().copied().filter(|(at, _)| (from..until).contains(at)).collect();
        let trend = trend(&points).filter(|_| points.len() >= MIN_SAMPLES)?;
        let mean = points.iter().map(|(_, value)| value).sum::<f64>() / points.len() as f64;
        let rise = trend.slope * (points[points.len() - 1].0 - points[0].0);
        let filling = if is_filled { 0.0 } else { self.filling };
        let is_zero = trend.p_value > MAX_P_VALUE || trend.slope <= 0.0 || rise < filling.max(MIN_SHARE * mean);
        Some(Slope { mean, trend, rise, samples: points.len(), is_zero })
    }
}
