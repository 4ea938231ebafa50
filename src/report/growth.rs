//! Whether more and more requests were in flight, or waited: a server that cannot keep up with what is sent. Pure.
//!
//! # The statistic
//! Every request tells how many others were in flight when it was sent, and every scrape how many waited at the server.
//! What lies within one mean duration of a request after the first is left out, at most half: until then any load grows.
//! The rest is cut into ten parts of as many requests each. Requests close to each other see the same queue, so the means
//! of the parts, and not the requests, are taken as draws (batch means): a line is laid through them and the means of their
//! times by least squares, and its slope is divided by its standard error.
//! The load grows where that is more than is exceeded by chance in 1 of 1,000 (Student's t), and the line rises, over the
//! time looked at, by at least four requests and a tenth of the mean: a growth that is certain and small is no saturation.

use crate::measure::time::{Gap, Stamp};

/// Parts.
const PARTS: usize = 10;
/// Student's t of 8 degrees of freedom that is exceeded by chance in 1 of 1,000.
const CRITICAL: f64 = 4.501;
/// Requests more in flight at the end.
const LEAST: f64 = 4.0;
/// The same, as a share of the mean.
const SHARE: f64 = 0.1;
/// Requests, or scrapes, of which a trend is told.
const FEWEST: usize = 40;

/// More and more requests in flight, or waiting.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Growth {
    /// So many more each second.
    pub per_second: f64,
    /// The slope, in standard errors.
    pub t: f64,
}

/// The growth of a load, given as moments with the requests in flight, or waiting, then; `None` where it does not grow, or
/// there are too few to tell. `duration` is the mean of a request.
pub fn growth(load: &[(Stamp, impl Into<f64> + Copy)], duration: Gap) -> Option<Growth> {
    let first = load.iter().map(|(at, _)| *at).min()?;
    let last = load.iter().map(|(at, _)| *at).max()?;
    let whole = last.since(first).as_secs();
    let from = duration.as_secs().min(whole / 2.0);
    let later = load.iter().map(|(at, in_flight)| (at.since(first).as_secs(), (*in_flight).into()));
    let mut later: Vec<(f64, f64)> = later.filter(|(at, _)| *at >= from).collect();
    if later.len() < FEWEST {
        return None;
    }
    later.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mean = |part: usize| {
        let part = &later[later.len() * part / PARTS..later.len() * (part + 1) / PARTS];
        let of = |which: fn(&(f64, f64)) -> f64| part.iter().map(which).sum::<f64>() / part.len() as f64;
        (of(|point| point.0), of(|point| point.1))
    };
    let means: Vec<(f64, f64)> = (0..PARTS).map(mean).collect();
    let (slope, error) = line(&means);
    let (rise, mean) = (slope * (whole - from), means.iter().map(|mean| mean.1).sum::<f64>() / PARTS as f64);
    let t = if error > 0.0 { slope / error } else { f64::MAX };
    let grows = slope > 0.0 && t > CRITICAL && rise >= LEAST && rise >= mean * SHARE;
    grows.then_some(Growth { per_second: slope, t })
}

/// The slope of the line of least squares through points, and its standard error.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let from_mean = || points.iter().map(|point| (point.0 - x, point.1 - y));
    let squares: f64 = from_mean().map(|(x, _)| x * x).sum();
    let slope = from_mean().map(|(x, y)| x * y).sum::<f64>() / squares;
    let left: f64 = from_mean().map(|(x, y)| (y - slope * x).powi(2)).sum();
    (slope, (left / (count - 2.0) / squares).sqrt())
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    /// A queue of one server: so many arrivals a second for a minute, and services of 10 ms on average.
    fn queue(rate: f64, seed: u64) -> Vec<(Stamp, u32)> {
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let mut drawn = |mean: f64| -mean * (1.0 - random.random::<f64>()).ln();
        let (mut at, mut load, mut ends) = (0.0, Vec::new(), Vec::<f64>::new());
        while at < 60.0 {
            ends.retain(|end| *end > at);
            load.push((Stamp::from_nanos((at * 1e9) as u64), ends.len() as u32));
            let free = ends.last().copied().unwrap_or(at).max(at);
            ends.push(free + drawn(0.01));
            at += drawn(1.0 / rate);
        }
        load
    }

    fn grows(rate: f64) -> usize {
        (0..100).filter(|seed| growth(&queue(rate, *seed), Gap::from_millis(100)).is_some()).count()
    }

    #[test]
    fn the_slope_and_its_error_are_those_of_least_squares() {
        // 1, 3, 2, 5: by hand a slope of 1.1, residuals -0.1, 0.8, -1.3, 0.6, and an error of √(2.7 ÷ 2 ÷ 5).
        let (slope, error) = line(&[(0.0, 1.0), (1.0, 3.0), (2.0, 2.0), (3.0, 5.0)]);
        assert!((slope - 1.1).abs() < 1e-12 && (error - 0.27_f64.sqrt()).abs() < 1e-12, "{slope} {error}");
    }

    #[test]
    fn a_queue_that_grows_is_found_and_one_that_only_swings_is_not() {
        assert!(grows(110.0) >= 98, "ten in a hundred more than are served: {}", grows(110.0));
        assert!(grows(60.0) <= 2, "{}", grows(60.0));
        assert!(grows(80.0) <= 5, "{}", grows(80.0));
    }

    #[test]
    fn a_steady_growth_is_told_in_requests_a_second() {
        let load: Vec<_> = (0..1_000_u64).map(|at| (Stamp::from_nanos(at * 10_000_000), (at / 10) as u32)).collect();
        let growth = growth(&load, Gap::from_millis(1_000)).unwrap();
        assert!((growth.per_second - 10.0).abs() < 0.1, "{growth:?}");
        assert_eq!(super::growth(&load[..39], Gap::ZERO), None, "too few");
        assert_eq!(super::growth(&load[..0], Gap::ZERO), None);
        let same: Vec<_> = (0..50).map(|_| (Stamp::default(), 3)).collect();
        assert_eq!(super::growth(&same, Gap::ZERO), None, "all at once");
    }

    #[test]
    fn a_machine_that_stalls_and_sends_late_hides_no_growth() {
        let at = |number: u64| Stamp::from_nanos(number * 10_000_000);
        let load: Vec<_> = (0..400).map(|number| (at(number / 50 * 50), number as u32 / 2)).collect();
        assert!(growth(&load, Gap::from_millis(1_000)).is_some());
    }

    #[test]
    fn what_comes_before_the_first_answers_is_no_growth() {
        // Ten requests a second that take five seconds each: fifty in flight from then on.
        let load: Vec<_> = (0..300_u64).map(|at| (Stamp::from_nanos(at * 100_000_000), at.min(50) as u32)).collect();
        assert_eq!(growth(&load, Gap::from_millis(5_000)), None);
        assert!(growth(&load[..60], Gap::from_millis(1_000)).is_some());
    }
}
