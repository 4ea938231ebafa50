//! Output lengths of the simulated model.

use rand::SeedableRng;
use rand_distr::{Distribution, Geometric};
use rand_pcg::Pcg64Mcg;

use crate::engine::EngineFinish;

/// The request's limits on the length of its choices, in tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct LengthLimits {
    /// `None` allows any length up to the model's limit.
    pub(super) most: Option<u32>,
    pub(super) least: u32,
    pub(super) ignore_eos: bool,
}

impl LengthLimits {
    /// Draws the length of a sequence of at most `most` tokens, and the stop reason. At every token the model stops
    /// with probability 1/`mean`.
    pub(super) fn draw(self, most: u32, seed: u64, mean: u32) -> (u32, EngineFinish) {
        if self.ignore_eos {
            return (most, EngineFinish::Length);
        }
        let stops_after = Geometric::new(1.0 / f64::from(mean))
            .map_or(u64::MAX, |length| length.sample(&mut Pcg64Mcg::seed_from_u64(seed)).saturating_add(1));
        match u32::try_from(stops_after.max(self.least.into())) {
            Ok(tokens) if tokens <= most => (tokens, EngineFinish::Stop),
            _ => (most, EngineFinish::Length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: LengthLimits = LengthLimits { most: None, least: 0, ignore_eos: false };

    #[test]
    fn lengths_come_from_the_seed_and_have_the_mean_that_was_asked_for() {
        assert_eq!(FREE.draw(10_000, 7, 200), FREE.draw(10_000, 7, 200));
        let mean = (0..20_000).map(|seed| f64::from(FREE.draw(10_000, seed, 200).0)).sum::<f64>() / 20_000.0;
        assert!((195.0..205.0).contains(&mean), "{mean}");
    }

    #[test]
    fn the_bounds_are_kept_and_the_ending_tells_which() {
        for seed in 0..200 {
            let (tokens, ending) = LengthLimits { least: 50, ..FREE }.draw(60, seed, 200);
            assert!((50..=60).contains(&tokens));
            assert!(tokens == 60 || ending == EngineFinish::Stop);
        }
        assert_eq!(LengthLimits { ignore_eos: true, ..FREE }.draw(60, 1, 2), (60, EngineFinish::Length));
        assert_eq!(FREE.draw(60, 1, 1), (1, EngineFinish::Stop));
    }
}
