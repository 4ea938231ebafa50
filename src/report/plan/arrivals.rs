//! Arrival rate over time: requests per window of a capture or a trace, or one constant rate.
//!
//! A window is a minute, because a replica's queue evens out shorter bursts, and the sweep measured that queue with its
//! own bursts. Traffic of less than ten minutes has ten windows of at least a second.

use schemars::JsonSchema;
use serde::Serialize;

const SECONDS_PER_DAY: f64 = 86_400.0;
const WINDOW_S: f64 = 60.0;
/// Number of windows of short traffic.
const MIN_WINDOWS: f64 = 10.0;
/// A week of minutes; longer traffic has longer windows.
const MAX_WINDOWS: usize = 10_080;
/// One mebibyte of counters: 36 hours of seconds. Longer traffic is counted in steps of 2 s, 4 s and so on.
const MAX_STEPS: usize = 1 << 17;

/// The traffic has no rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the traffic has {0} requests at different times, and a rate needs 2; remedy: capture for longer, or give a RATE such as 12/s"
)]
pub struct NoArrivalRate(u64);

/// Requests of one window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ArrivalWindow {
    /// Length.
    pub seconds: f64,
    /// Requests that arrived.
    pub requests: f64,
}

impl ArrivalWindow {
    /// Requests per second.
    pub fn rate(&self) -> f64 {
        self.requests / self.seconds
    }
}

/// Arrival rate over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrivals {
    /// Windows in order of time. All but the last have equal lengths.
    pub windows: Vec<ArrivalWindow>,
}

impl Arrivals {
    /// A day at one rate in requests per second.
    pub fn constant(rate: f64) -> Self {
        Self { windows: vec![ArrivalWindow { seconds: SECONDS_PER_DAY, requests: rate * SECONDS_PER_DAY }] }
    }

    /// The arrivals, each `times` over: those of all sessions, from a sample of them.
    #[must_use]
    pub fn scaled(mut self, times: f64) -> Self {
        self.windows.iter_mut().for_each(|window| window.requests *= times);
        self
    }

    /// Number of requests.
    pub fn requests(&self) -> f64 {
        self.windows.iter().map(|window| window.requests).sum()
    }

    /// Length in seconds.
    pub fn seconds(&self) -> f64 {
        self.windows.iter().map(|window| window.seconds).sum()
    }

    /// Length of a window in seconds.
    pub fn window_s(&self) -> f64 {
        self.windows.first().map_or(0.0, |window| window.seconds)
    }

    /// Mean rate in requests per second.
    pub fn mean_rate(&self) -> f64 {
        self.requests() / self.seconds()
    }

    /// Rate of the busiest window.
    pub fn peak_rate(&self) -> f64 {
        self.windows.iter().map(ArrivalWindow::rate).fold(0.0, f64::max)
    }

    /// Requests of a day in which this traffic repeats.
    pub fn requests_per_day(&self) -> f64 {
        self.mean_rate() * SECONDS_PER_DAY
    }
}

/// Counts arrivals in order of time, in bounded memory.
#[derive(Clone, Debug)]
pub struct ArrivalCounter {
    first: Option<u64>,
    last: u64,
    step_s: u64,
    counts: Vec<u64>,
}

impl Default for ArrivalCounter {
    fn default() -> Self {
        Self { first: None, last: 0, step_s: 1, counts: Vec::new() }
    }
}

impl ArrivalCounter {
    /// Counts a request that arrived at this time in nanoseconds.
    pub fn take(&mut self, at: u64) {
        let after = at.saturating_sub(*self.first.get_or_insert(at));
        self.last = self.last.max(after);
        let place = |step_s: u64| (after / 1_000_000_000 / step_s) as usize;
        while place(self.step_s) >= MAX_STEPS {
            self.counts = self.counts.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.step_s *= 2;
        }
        let place = place(self.step_s);
        if self.counts.len() <= place {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += 1;
    }

    /// Cuts the time from the first to the last arrival into windows.
    ///
    /// # Errors
    /// Returns [`NoArrivalRate`] without two requests at different times.
    pub fn finish(self) -> Result<Arrivals, NoArrivalRate> {
        let (span_s, step_s) = (self.last as f64 / 1e9, self.step_s as f64);
        if span_s == 0.0 {
            return Err(NoArrivalRate(self.counts.iter().sum::<u64>().min(1)));
        }
        let wanted_s = (span_s / MIN_WINDOWS).clamp(1.0, WINDOW_S);
        let steps = ((wanted_s / step_s).ceil() as usize).max(self.counts.len().div_ceil(MAX_WINDOWS));
        // The remainder joins the last window, because a short rest has no meaningful rate.
        let count = (self.counts.len() / steps).max(1);
        let window_s = steps as f64 * step_s;
        let window = |number: usize| {
            let is_last = number + 1 == count;
            let end = if is_last { self.counts.len() } else { (number + 1) * steps };
            let requests = self.counts[number * steps..end].iter().sum::<u64>() as f64;
            let seconds = if is_last { span_s - number as f64 * window_s } else { window_s };
            ArrivalWindow { seconds, requests }
        };
        let mut windows: Vec<ArrivalWindow> = (0..count).map(window).collect();
        // The last arrival may be the first of its step: then its window has hardly any length.
        if let [.., before, last] = &mut windows[..]
            && last.seconds < window_s / 2.0
        {
            before.seconds += last.seconds;
            before.requests += last.requests;
            windows.pop();
        }
        Ok(Arrivals { windows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(seconds: impl IntoIterator<Item = f64>) -> Result<Arrivals, NoArrivalRate> {
        let mut counter = ArrivalCounter::default();
        seconds.into_iter().for_each(|second| counter.take((second * 1e9) as u64));
        counter.finish()
    }

    #[test]
    fn twenty_minutes_have_a_window_for_each_minute() {
        // Two requests per second for ten minutes, then five.
        let arrivals =
            count((0..1_200).map(|n| f64::from(n) / 2.0).chain((0..3_000).map(|n| 600.0 + f64::from(n) / 5.0)));
        let arrivals = arrivals.unwrap();
        assert_eq!((arrivals.windows.len(), arrivals.window_s()), (20, 60.0));
        assert_eq!((arrivals.windows[0].rate(), arrivals.windows[12].rate()), (2.0, 5.0));
        assert!((arrivals.seconds() - 1_199.8).abs() < 1e-9 && arrivals.requests() == 4_200.0);
        assert!((arrivals.requests_per_day() - 4_200.0 / 1_199.8 * 86_400.0).abs() < 1e-6);
    }

    #[test]
    fn short_traffic_has_ten_windows_and_a_rest_joins_the_last() {
        let arrivals = count((0..=100).map(|n| f64::from(n) / 4.0)).unwrap();
        // 25 s in windows of ⌈2.5⌉ s, of which the last has 4 s and the request at its end.
        assert_eq!((arrivals.windows.len(), arrivals.window_s()), (8, 3.0));
        assert_eq!(arrivals.windows[7], ArrivalWindow { seconds: 4.0, requests: 17.0 });
        assert_eq!((arrivals.requests(), arrivals.seconds()), (101.0, 25.0));
    }

    #[test]
    fn years_of_traffic_stay_within_the_memory_of_a_week() {
        let hour = 3_600.0;
        let arrivals = count((0..20_000).map(|n| f64::from(n) * hour)).unwrap();
        assert!(arrivals.windows.len() <= MAX_WINDOWS, "{}", arrivals.windows.len());
        assert_eq!(arrivals.requests(), 20_000.0);
        assert!((arrivals.mean_rate() * hour - 1.0).abs() < 1e-3);
    }

    #[test]
    fn one_request_has_no_rate_and_the_error_says_what_to_do() {
        assert_eq!(count([]), Err(NoArrivalRate(0)));
        let error = count([5.0, 5.0]).unwrap_err().to_string();
        assert!(error.starts_with("the traffic has 1 requests") && error.contains("give a RATE"), "{error}");
    }
}
