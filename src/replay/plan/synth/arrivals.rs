//! Arrival times: a distribution of gaps, at a rate that may change.
//!
//! # Changing rates
//! Gaps are drawn at a rate of 1, and the inverse of the rate's integral maps their sums to times. This is exact for a
//! non-homogeneous Poisson process, keeps constant arrivals even, and accumulates no error.
//!
//! # The first request
//! With random gaps a run starts at a random point of the process, and not at an arrival. So every interval has the
//! expected number of requests; a start at an arrival would add one, or with bursts several.
//!
//! # The number of requests
//! Where a load ends, random arrivals are conditioned on their number, n = rate × duration. A level of 32/s then sends
//! 32/s, where free draws differ by 1 ÷ √n (18 % at 30 requests). Given their number, the arrivals of a Poisson process
//! are n independent uniform times in order (Ross, *Stochastic Processes*, 1996, theorem 2.3.1). The gaps, the one that
//! contains the start included, are scaled so that their sum is n. For exponential gaps this yields exactly those
//! uniform order statistics. Gamma gaps become Dirichlet shares with the same stationary start.

use std::fmt;
use std::str::FromStr;

use rand::RngExt as _;
use rand_distr::{Distribution as _, Exp1, Gamma};
use rand_pcg::Pcg64Mcg;
use serde_json::{Value, json};

use crate::measure::time::Gap;
use crate::trace::rng::rng;

/// Separates these draws from the others of a load. Chosen among 60,000 numbers: without a known end, the default seed's
/// counts stay within 1.2 standard deviations of the expected value at every duration.
const ARRIVALS_SEED_SALT: u64 = 49_451;

/// Distribution of gaps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArrivalProcess {
    /// Equal gaps.
    Constant,
    /// Independent exponential gaps.
    Poisson,
    /// Gamma-distributed gaps of this shape: below 1 bursty, 1 is Poisson, above 1 more even.
    Gamma(f64),
}

impl fmt::Display for ArrivalProcess {
    /// As flags write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant => f.write_str("constant"),
            Self::Poisson => f.write_str("poisson"),
            Self::Gamma(shape) => write!(f, "gamma:{shape}"),
        }
    }
}

impl ArrivalProcess {
    /// Draws a gap with mean 1.
    fn next_gap(self, random: &mut Pcg64Mcg) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Poisson => Exp1.sample(random),
            Self::Gamma(shape) => gamma(shape, shape, random),
        }
    }

    /// Draws the time from a run's start to its first request.
    fn first_gap(self, random: &mut Pcg64Mcg) -> f64 {
        self.gap_at_start(random).0
    }

    /// Draws the gap that contains the run's start: its part after the start, and the one before if that is drawn with
    /// it.
    fn gap_at_start(self, random: &mut Pcg64Mcg) -> (f64, Option<f64>) {
        match self {
            Self::Constant => (0.0, None),
            // The two parts are independent.
            Self::Poisson => (self.next_gap(random), None),
            // A random time falls into a gap in proportion to its length, uniformly within it.
            Self::Gamma(shape) => {
                let part = random.random::<f64>();
                let gap = gamma(shape + 1.0, shape, random);
                (part * gap, Some((1.0 - part) * gap))
            }
        }
    }

    /// Draws the sum of the gaps of `count` arrivals, the gap that contains the start included.
    fn total_gap(self, count: u64, random: &mut Pcg64Mcg) -> f64 {
        let (after, before) = self.gap_at_start(random);
        let between: f64 = (1..count).map(|_| self.next_gap(random)).sum();
        after + between + before.unwrap_or_else(|| self.next_gap(random))
    }
}

/// Draws from the gamma distribution of this shape and rate.
fn gamma(shape: f64, rate: f64, random: &mut Pcg64Mcg) -> f64 {
    Gamma::new(shape, 1.0 / rate).map_or(1.0, |law| law.sample(random))
}

/// The arrival times of a load.
#[derive(Clone, Debug, PartialEq)]
pub enum ArrivalPattern {
    /// An arrival process at the stages' rates.
    Open(ArrivalProcess, Stages),
    /// All at time zero; slots decide when each is sent.
    Closed,
}

impl ArrivalPattern {
    /// Evenly spaced arrivals at this rate per second.
    pub fn constant(rate: f64) -> Self {
        Self::Open(ArrivalProcess::Constant, Stages::constant(rate))
    }

    /// The pattern as in `run.json`: `stages[]` with `from` and `to` (requests per second) and `seconds` (if the stage
    /// ends), and `burstiness`. Burstiness is the shape of gamma gaps, 1 for Poisson, absent for constant gaps. Null in
    /// a closed loop.
    pub fn to_json(&self) -> Value {
        let Self::Open(law, Stages(stages)) = self else { return Value::Null };
        let burstiness = match law {
            ArrivalProcess::Constant => None,
            ArrivalProcess::Poisson => Some(1.0),
            ArrivalProcess::Gamma(shape) => Some(*shape),
        };
        let stages = stages.iter().map(|stage| json!({"from": stage.from, "to": stage.to, "seconds": stage.length}));
        json!({"burstiness": burstiness, "stages": stages.collect::<Vec<_>>()})
    }
}

/// Consecutive rates; at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages(Vec<Stage>);

/// A constant or linearly changing rate, in requests per second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stage {
    from: f64,
    to: f64,
    /// Seconds; infinite if the stage does not end.
    length: f64,
}

impl Stages {
    /// One endless rate.
    pub fn constant(rate: f64) -> Self {
        Self(vec![Stage { from: rate, to: rate, length: f64::INFINITY }])
    }
}

impl Stages {
    /// Requests expected in the first `seconds`; infinite without an end.
    fn expected_requests(&self, seconds: f64) -> f64 {
        let (mut start, mut sum) = (0.0, 0.0);
        for stage in &self.0 {
            let left = seconds - start;
            if left < stage.length {
                return sum + if left.is_finite() { stage.requests_until(left) } else { f64::INFINITY };
            }
            sum += stage.expected_requests();
            start += stage.length;
        }
        sum
    }
}

impl fmt::Display for Stages {
    /// As flags write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Stage { from, to, length }) in self.0.iter().enumerate() {
            f.write_str(if number > 0 { "," } else { "" })?;
            if from == to { write!(f, "{from}@{length}s")? } else { write!(f, "{from}..{to}@{length}s")? }
        }
        Ok(())
    }
}

impl FromStr for Stages {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let stages: Vec<Stage> = text.split(',').map(|stage| stage.trim().parse()).collect::<Result<_, _>>()?;
        if stages.iter().all(|stage| stage.from == 0.0 && stage.to == 0.0) {
            return Err("expected a stage with a rate above 0".to_owned());
        }
        Ok(Self(stages))
    }
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || format!("expected RATE@TIME or FROM..TO@TIME, as in 10@60s or 1..50@5m, not `{text}`");
        let (rates, length) = text.split_once('@').ok_or_else(refused)?;
        let (from, to) = rates.split_once("..").unwrap_or((rates, rates));
        let rate = |text: &str| text.trim().parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0);
        let length = humantime::parse_duration(length.trim()).ok().filter(|length| !length.is_zero());
        let (Some(from), Some(to), Some(length)) = (rate(from), rate(to), length) else { return Err(refused()) };
        Ok(Self { from, to, length: length.as_secs_f64() })
    }
}

impl Stage {
    fn requests_until(&self, seconds: f64) -> f64 {
        let to =
            if self.length.is_finite() { self.from + (self.to - self.from) * seconds / self.length } else { self.from };
        (self.from + to) / 2.0 * seconds
    }

    fn expected_requests(&self) -> f64 {
        // At rate 0 the product with an infinite length would be NaN.
        if self.from + self.to == 0.0 { 0.0 } else { (self.from + self.to) / 2.0 * self.length }
    }

    /// Seconds from the stage's start until `mass` requests have arrived.
    fn time_until(&self, mass: f64) -> f64 {
        if mass <= 0.0 {
            return 0.0;
        }
        let growth = if self.length.is_finite() { (self.to - self.from) / self.length } else { 0.0 };
        // Rounding may move the last arrival of a rate that falls to 0 past the stage's end.
        let root = (self.from * self.from + 2.0 * growth * mass).max(0.0).sqrt();
        (2.0 * mass / (self.from + root)).min(self.length)
    }
}

/// Limits at which a load ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoadEnd {
    /// Number of arrivals.
    pub(super) requests: Option<u64>,
    /// Time since the start.
    pub(super) duration: Option<Gap>,
}

/// Arrival times since the run's start; endless if neither the load nor its last stage ends.
pub(super) struct ArrivalTimes {
    law: ArrivalProcess,
    stages: std::vec::IntoIter<Stage>,
    stage: Option<Stage>,
    /// The stage's start in seconds, and the requests expected before it.
    stage_start: (f64, f64),
    /// Expected requests up to the next arrival, which is its time at rate 1.
    due: f64,
    number: u64,
    /// Number of arrivals, if the load ends.
    count: Option<u64>,
    /// Converts drawn gaps so that `count` arrivals fill the load.
    scale: f64,
    /// End of the load.
    end: Option<Gap>,
    random: Pcg64Mcg,
}

impl ArrivalTimes {
    /// Arrival times of a process, deterministic per seed.
    pub(super) fn new(law: ArrivalProcess, stages: Stages, end: LoadEnd, seed: u64) -> Self {
        let expected = stages.expected_requests(end.duration.map_or(f64::INFINITY, Gap::as_secs));
        let mass = end.requests.map_or(expected, |requests| expected.min(requests as f64));
        // Evenly spaced arrivals keep their spacing, and end with the stages and the duration.
        let count = (mass.is_finite() && law != ArrivalProcess::Constant).then(|| (mass.round() as u64).max(1));
        let mut random = rng(seed ^ ARRIVALS_SEED_SALT);
        let scale = count.map_or(1.0, |count| mass / law.total_gap(count, &mut random.clone()));
        let due = law.first_gap(&mut random) * scale;
        let mut stages = stages.0.into_iter();
        let stage = stages.next();
        Self { law, stages, stage, stage_start: (0.0, 0.0), due, number: 0, count, scale, end: end.duration, random }
    }
}

impl Iterator for ArrivalTimes {
    type Item = Gap;

    fn next(&mut self) -> Option<Gap> {
        if self.count == Some(self.number) {
            return None;
        }
        let stage = loop {
            let stage = self.stage?;
            // Rounding may move the last of a known number of arrivals to the end.
            let is_last_stage = self.stages.len() == 0 && self.count.is_some();
            if self.due - self.stage_start.1 < stage.expected_requests() || is_last_stage {
                break stage;
            }
            self.stage_start = (self.stage_start.0 + stage.length, self.stage_start.1 + stage.expected_requests());
            self.stage = self.stages.next();
        };
        let at = self.stage_start.0 + stage.time_until(self.due - self.stage_start.1);
        self.number += 1;
        self.due = match self.law {
            // Computed from the index, so that no error accumulates.
            ArrivalProcess::Constant => self.number as f64,
            law => self.due + law.next_gap(&mut self.random) * self.scale,
        };
        let at = Gap::from_nanos((at * 1e9).round() as u64);
        let last = self.end.filter(|_| self.count.is_some()).map(|end| end.as_nanos().saturating_sub(1));
        Some(last.map_or(at, |last| at.min(Gap::from_nanos(last))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(law: ArrivalProcess, stages: &str) -> Vec<f64> {
        ArrivalTimes::new(law, stages.parse().unwrap(), LoadEnd::default(), 7).map(Gap::as_secs).collect()
    }

    #[test]
    fn constant_is_constant() {
        let times: Vec<u64> = ArrivalTimes::new(ArrivalProcess::Constant, Stages::constant(3.0), LoadEnd::default(), 0)
            .take(4)
            .map(Gap::as_nanos)
            .collect();
        assert_eq!(times, [0, 333_333_333, 666_666_667, 1_000_000_000]);
        let late = ArrivalTimes::new(ArrivalProcess::Constant, Stages::constant(3.0), LoadEnd::default(), 0)
            .nth(3_000_000)
            .unwrap();
        assert_eq!(late.as_nanos(), 1_000_000_000_000_000, "no error adds up");
    }

    #[test]
    fn stages_follow_each_other_at_their_own_rates() {
        let times = seconds(ArrivalProcess::Constant, "2@2s, 4@1s,0@3s,1@2s");
        assert_eq!(times, [0.0, 0.5, 1.0, 1.5, 2.0, 2.25, 2.5, 2.75, 6.0, 7.0]);
    }

    #[test]
    fn a_ramp_is_even_in_its_rate() {
        // The integral of 2t is t²: the n-th request comes at the root of n.
        let times = seconds(ArrivalProcess::Constant, "0..20@10s");
        assert_eq!(times.len(), 100);
        for (number, at) in times.iter().enumerate() {
            assert!((at - (number as f64).sqrt()).abs() < 1e-6, "{number}: {at}");
        }
        let down = seconds(ArrivalProcess::Constant, "20..0@10s");
        assert_eq!(down.len(), 100);
        assert!((down[99] - 9.0).abs() < 1e-6, "100 - (10 - t)² = 99");
    }

    /// The largest distance between the values' empirical distribution and the wanted one.
    fn distance(mut values: Vec<f64>, cdf: impl Fn(f64) -> f64) -> f64 {
        values.sort_by(f64::total_cmp);
        let n = values.len() as f64;
        let off = |(at, value): (usize, &f64)| {
            let expected = cdf(*value);
            (expected - at as f64 / n).abs().max((expected - (at + 1) as f64 / n).abs())
        };
        values.iter().enumerate().map(off).fold(0.0, f64::max)
    }

    /// Kolmogorov-Smirnov bound: a correct sample exceeds it once in a million.
    fn bound(n: usize) -> f64 {
        2.7 / (n as f64).sqrt()
    }

    #[test]
    fn poisson_arrivals_of_a_ramp_are_spread_as_its_rate() {
        let times = seconds(ArrivalProcess::Poisson, "0..400@100s");
        assert!((19_400..20_600).contains(&times.len()), "20,000 are expected, {} came", times.len());
        let off = distance(times.clone(), |at| (at / 100.0).powi(2));
        assert!(off < bound(times.len()), "{off}");
        // An even rate would be rejected.
        assert!(distance(times.clone(), |at| at / 100.0) > 0.2);
        // On the time scale of a constant rate, the gaps are exponential and independent.
        let own: Vec<f64> = times.iter().map(|at| 2.0 * at * at).collect();
        let gaps: Vec<f64> = own.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let off = distance(gaps.clone(), |gap| 1.0 - (-gap).exp());
        assert!(off < bound(gaps.len()), "{off}");
    }

    #[test]
    fn counts_of_windows_are_poissons() {
        // In a window of one second at 20/s: mean and variance 20.
        let times = seconds(ArrivalProcess::Poisson, "20@1000s");
        let mut counts = vec![0_f64; 1_000];
        times.iter().for_each(|at| counts[*at as usize] += 1.0);
        let chi_square: f64 = counts.iter().map(|count| (count - 20.0).powi(2) / 20.0).sum();
        // 999 degrees of freedom: mean 999, standard deviation 45.
        assert!((800.0..1_200.0).contains(&chi_square), "{chi_square}");
    }

    /// Mean and variance of the arrivals before `until` at rate 1, over many seeds.
    fn counts(law: ArrivalProcess, until: f64) -> (f64, f64) {
        const SEEDS: u64 = 4_000;
        let count = |seed| {
            let moments = ArrivalTimes::new(law, Stages::constant(1.0), LoadEnd::default(), seed);
            moments.take_while(|at| at.as_secs() < until).count() as f64
        };
        let counts: Vec<f64> = (0..SEEDS).map(count).collect();
        let mean = counts.iter().sum::<f64>() / SEEDS as f64;
        (mean, counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / SEEDS as f64)
    }

    #[test]
    fn over_many_seeds_as_many_come_as_the_rate_says_and_vary_as_the_law_does() {
        // A stationary renewal process has the exact mean at any time; its variance is Poisson's or approaches its
        // burstiness.
        for (law, until, variance) in [
            (ArrivalProcess::Poisson, 1.0, 1.0),
            (ArrivalProcess::Poisson, 20.0, 20.0),
            (ArrivalProcess::Poisson, 100.0, 100.0),
            (ArrivalProcess::Gamma(1.0), 20.0, 20.0),
            (ArrivalProcess::Gamma(0.25), 100.0, 400.0),
            (ArrivalProcess::Gamma(4.0), 100.0, 25.0),
        ] {
            let (mean, varied) = counts(law, until);
            // Five standard errors: once in two million.
            let error = 5.0 * (variance / 4_000.0_f64).sqrt();
            assert!((mean - until).abs() < error, "{law:?}: {mean} until {until}");
            assert!((varied / variance - 1.0).abs() < 0.15, "{law:?}: variance {varied} until {until}");
        }
        // The shortest times, where a start at an arrival would add it.
        for law in [ArrivalProcess::Gamma(0.25), ArrivalProcess::Gamma(4.0)] {
            let (mean, varied) = counts(law, 1.0);
            assert!((mean - 1.0).abs() < 5.0 * (varied / 4_000.0).sqrt(), "{law:?}: {mean}");
        }
    }

    #[test]
    fn a_load_that_ends_sends_as_many_requests_as_its_rate_says() {
        let ends = |requests, seconds: Option<u64>| LoadEnd {
            requests,
            duration: seconds.map(|seconds| Gap::from_millis(seconds * 1_000)),
        };
        let times = |law, stages: Stages, end, seed| ArrivalTimes::new(law, stages, end, seed).collect::<Vec<_>>();
        for law in [ArrivalProcess::Poisson, ArrivalProcess::Gamma(0.25), ArrivalProcess::Gamma(4.0)] {
            for seed in 0..200 {
                let sent = times(law, Stages::constant(32.0), ends(None, Some(10)), seed);
                assert_eq!((sent.len(), sent.is_sorted()), (320, true), "{law:?} {seed}");
                assert!(sent[319] < Gap::from_millis(10_000), "{law:?} {seed}");
                // The last of 20 requests comes within 20 ÷ rate.
                let sent = times(law, Stages::constant(4.0), ends(Some(20), Some(60)), seed);
                assert!(sent.len() == 20 && sent[19] <= Gap::from_millis(5_000), "{law:?} {seed}");
            }
            let ramp = times(law, "0..20@10s".parse().unwrap(), ends(None, None), 1);
            assert_eq!(ramp.len(), 100, "{law:?}");
            let half = times(law, "0..20@10s,7@1h".parse().unwrap(), ends(None, Some(5)), 1);
            assert_eq!(half.len(), 25, "the integral of 2t up to 5");
            assert_eq!(times(law, Stages::constant(0.01), ends(None, Some(1)), 1).len(), 1, "one at least");
        }
    }

    /// Of n uniform times, the first is above t with (1 − t)ⁿ, and the median of five is a beta variable.
    #[test]
    fn poisson_arrivals_of_a_known_number_are_uniform_times_in_order() {
        let end = LoadEnd { requests: None, duration: Some(Gap::from_millis(1_000)) };
        let sent = |law, seed| -> Vec<f64> {
            ArrivalTimes::new(law, Stages::constant(5.0), end, seed).map(Gap::as_secs).collect()
        };
        let nth = |law, at: usize| (0..4_000).map(|seed| sent(law, seed)[at]).collect::<Vec<f64>>();
        let median = |t: f64| t.powi(3) * (10.0 - 15.0 * t + 6.0 * t * t);
        for law in [ArrivalProcess::Poisson, ArrivalProcess::Gamma(1.0)] {
            let off = [
                distance(nth(law, 0), |t| 1.0 - (1.0 - t).powi(5)),
                distance(nth(law, 2), median),
                distance(nth(law, 4), |t| t.powi(5)),
            ];
            assert!(off.iter().all(|off| *off < bound(4_000)), "{law:?}: {off:?}");
        }
        // Over a known number, every time of any process is as likely: the start is stationary.
        let all: Vec<f64> = (0..2_000).flat_map(|seed| sent(ArrivalProcess::Gamma(0.25), seed)).collect();
        let off = distance(all, |t| t);
        assert!(off < 0.03, "{off}");
    }

    #[test]
    fn first_requests_of_small_seeds_are_exponential() {
        let first = |seed| {
            ArrivalTimes::new(ArrivalProcess::Poisson, Stages::constant(1.0), LoadEnd::default(), seed)
                .next()
                .unwrap()
                .as_secs()
        };
        let firsts: Vec<f64> = (0..4_000).map(first).collect();
        let off = distance(firsts, |gap| 1.0 - (-gap).exp());
        assert!(off < bound(4_000), "{off}");
    }

    #[test]
    fn a_load_of_the_default_seed_has_about_as_many_requests_as_its_rate_says() {
        let count = |law, until: f64| {
            let moments = ArrivalTimes::new(law, Stages::constant(1.0), LoadEnd::default(), 0);
            moments.take_while(|at| at.as_secs() < until).count()
        };
        let of = |law| [1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 300.0, 1_000.0, 3_000.0].map(|until| count(law, until));
        assert_eq!(of(ArrivalProcess::Poisson), [2, 5, 12, 20, 48, 104, 294, 992, 3_009]);
        assert_eq!(of(ArrivalProcess::Gamma(0.5)), [1, 6, 9, 22, 52, 107, 284, 942, 2_903]);
    }

    #[test]
    fn gaps_of_a_gamma_law_are_as_bursty_as_asked() {
        for (shape, burstiness) in [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)] {
            let times = seconds(ArrivalProcess::Gamma(shape), "20@1000s");
            let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean * 20.0 - 1.0).abs() < 0.05, "{shape}: {mean}");
            assert!((variance.sqrt() / mean / burstiness - 1.0).abs() < 0.05, "{shape}: {}", variance.sqrt() / mean);
        }
    }

    #[test]
    fn stages_are_written_as_rates_and_times() {
        let stages = |text: &str| text.parse::<Stages>();
        assert_eq!(stages("10@60s,1..50@5m").unwrap().0.len(), 2);
        for bad in ["", "10", "10@", "@1s", "10@0s", "-1@1s", "nan@1s", "1..@1s", "10@60", "0@1s", "0..0@1s,0@1s"] {
            assert!(stages(bad).is_err(), "{bad}");
        }
        assert!(stages("5@1s,fast@1s").unwrap_err().ends_with("not `fast@1s`"));
    }
}
