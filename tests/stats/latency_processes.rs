//! Latencies that depend on those before them, with percentiles known by formula.

use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Exp1, StandardNormal};
use rand_pcg::Pcg64Mcg;

/// A process that makes latencies in the order of arrivals. Every series begins in the steady state.
#[derive(Clone, Copy, Debug)]
pub(super) enum LatencyProcess {
    /// exp(σ · g) of an autoregressive series g of order 1: medians of 1, σ = 0.5.
    Autoregressive { phi: f64 },
    /// Response times of a queue with one server and Poisson arrivals, mean service time 1. It is M/M/1 for a squared
    /// coefficient of variation of 1, and M/H₂/1 (short and long requests) above it.
    Queue { load: f64, variation: f64 },
}

const SIGMA: f64 = 0.5;

impl LatencyProcess {
    /// Makes latencies.
    pub(super) fn series(self, count: usize, seed: u64) -> Vec<f64> {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        match self {
            Self::Autoregressive { phi } => {
                let mut state: f64 = random.sample(StandardNormal);
                let mut next = || {
                    let value = (SIGMA * state).exp();
                    state = phi * state + (1.0 - phi * phi).sqrt() * random.sample::<f64, _>(StandardNormal);
                    value
                };
                (0..count).map(|_| next()).collect()
            }
            Self::Queue { load, variation } => {
                let queue = TwoPhaseQueue::new(load, variation);
                let mut wait = queue.steady_wait(&mut random);
                let mut next = || {
                    let service = queue.service(&mut random);
                    let latency = wait + service;
                    wait = (latency - random.sample::<f64, _>(Exp1) / load).max(0.0);
                    latency
                };
                (0..count).map(|_| next()).collect()
            }
        }
    }

    /// Share of latencies up to `latency`.
    pub(super) fn share_up_to(self, latency: f64) -> f64 {
        match self {
            Self::Autoregressive { .. } => 1.0 - normal_tail(latency.ln() / SIGMA),
            Self::Queue { load, variation } => TwoPhaseQueue::new(load, variation).response_share(latency),
        }
    }

    /// Latency of a percentile.
    pub(super) fn percentile(self, percent: f64) -> f64 {
        let (mut low, mut high) = (1e-9, 1e6);
        for _ in 0..200 {
            let middle = f64::midpoint(low, high);
            *(if self.share_up_to(middle) < percent / 100.0 { &mut low } else { &mut high }) = middle;
        }
        low
    }

    /// Mean latency.
    pub(super) fn mean(self) -> f64 {
        match self {
            Self::Autoregressive { .. } => (SIGMA * SIGMA / 2.0).exp(),
            // Pollaczek and Khinchine.
            Self::Queue { load, variation } => 1.0 + load * (1.0 + variation) / 2.0 / (1.0 - load),
        }
    }
}

/// Upper tail of the standard normal distribution: the integral by Simpson's rule.
fn normal_tail(z: f64) -> f64 {
    let density = |x: f64| (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let steps = 400;
    let step = z.abs() / f64::from(steps);
    let weight = |n: i32| if n == 0 || n == steps { 1.0 } else { f64::from(2 + n % 2 * 2) };
    let inside: f64 = (0..=steps).map(|n| weight(n) * density(f64::from(n) * step)).sum::<f64>() * step / 3.0;
    0.5 - inside * z.signum()
}

/// M/H₂/1 with balanced means. Its waits and response times are mixtures of two exponentials with the rates γ that
/// solve (μ₁ − γ)(μ₂ − γ) = λ (p₁ (μ₂ − γ) + p₂ (μ₁ − γ)). These are the poles of the transform of Pollaczek and
/// Khinchine.
struct TwoPhaseQueue {
    load: f64,
    shares: [f64; 2],
    rates: [f64; 2],
    poles: [f64; 2],
}

impl TwoPhaseQueue {
    fn new(load: f64, variation: f64) -> Self {
        // A variation of exactly 1 has two equal kinds, and equal poles.
        let variation = variation.max(1.0 + 1e-9);
        let first = 0.5 * (1.0 + ((variation - 1.0) / (variation + 1.0)).sqrt());
        let (shares, rates) = ([first, 1.0 - first], [2.0 * first, 2.0 * (1.0 - first)]);
        let sum = rates[0] + rates[1] - load;
        let product = rates[0] * rates[1] * (1.0 - load);
        let root = (sum * sum / 4.0 - product).max(0.0).sqrt();
        Self { load, shares, rates, poles: [sum / 2.0 - root, sum / 2.0 + root] }
    }

    fn service(&self, random: &mut Pcg64Mcg) -> f64 {
        let kind = usize::from(random.random::<f64>() >= self.shares[0]);
        random.sample::<f64, _>(Exp1) / self.rates[kind]
    }

    /// Weights of the two exponentials in a tail, from the residues of its transform.
    fn weights(&self, numerator: impl Fn(f64) -> f64) -> [f64; 2] {
        let [a, b] = self.poles;
        [numerator(a) / (b - a) / a, numerator(b) / (a - b) / b]
    }

    fn response_share(&self, latency: f64) -> f64 {
        let ([p, q], [m, n]) = (self.shares, self.rates);
        let weights = self.weights(|pole| (1.0 - self.load) * (p * m * (n - pole) + q * n * (m - pole)));
        1.0 - (0..2).map(|pole| weights[pole] * (-self.poles[pole] * latency).exp()).sum::<f64>()
    }

    fn steady_wait(&self, random: &mut Pcg64Mcg) -> f64 {
        let [m, n] = self.rates;
        let weights = self.weights(|pole| (1.0 - self.load) * (m - pole) * (n - pole));
        let drawn = random.random::<f64>();
        let exponential: f64 = random.sample(Exp1);
        match drawn {
            drawn if drawn < weights[0] => exponential / self.poles[0],
            drawn if drawn < weights[0] + weights[1] => exponential / self.poles[1],
            _ => 0.0,
        }
    }
}
