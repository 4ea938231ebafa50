//! Where the steady state of a run begins.
//!
//! # Method
//! MSER (White, *An effective truncation heuristic for bias reduction in simulation output*, Simulation 1997; MSER-5
//! averages five values first, here a slice does) leaves out so many slices at the beginning that the standard error of
//! the mean of the others is least. The least is somewhere in every run. So these slices are a warm-up only if their
//! mean differs from that of the others by Student's t-test at 0.1 %. The test has the effective sample size of the
//! steady slices ([`super::autocorrelation`]). E-divisive ([`super::change_points`]) is not used here. Slices of one
//! run depend on each other, and in such a series it finds changes that are none.
//!
//! # Measured
//! `tests/stats`, 1,000 runs of 120 slices. Steady runs have a warm-up by mistake in 0, 1 and 6 of 100, for
//! autocorrelations of 0, 0.5 and 0.8 between slices. Others begin six standard deviations too high and recover with a
//! time constant of a twentieth of the run. Theirs is found in 100, 95 and 74 of 100.

use super::autocorrelation::autocorrelation_time;
use super::distributions::t_tail;
use super::hypothesis::Moments;

/// Minimum number of slices.
const MIN_SLICES: usize = 20;
/// Two-sided p-value of a warm-up.
const WARM_UP_P: f64 = 0.001;

/// The beginning of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmUp {
    /// The run is steady from its first slice.
    Absent,
    /// The run is steady from this slice.
    Until(usize),
    /// At the middle of the run the figure still changes.
    Unfinished,
}

/// Finds the warm-up in the means (or any figure) of slices of equal lengths; `None` with fewer than 20 slices.
pub fn warm_up(slices: &[f64]) -> Option<WarmUp> {
    if slices.len() < MIN_SLICES {
        return None;
    }
    let last = slices.len() / 2;
    let error = |skipped: usize| {
        let Moments { count, variance, .. } = Moments::of(&slices[skipped..]);
        variance * (count - 1.0) / count.powi(2)
    };
    let skipped = (0..=last).map(|skipped| (skipped, error(skipped))).min_by(|a, b| a.1.total_cmp(&b.1))?.0;
    let (first, steady) = slices.split_at(skipped);
    Some(match () {
        () if skipped == 0 || !differ(first, steady) => WarmUp::Absent,
        () if skipped == last => WarmUp::Unfinished,
        () => WarmUp::Until(skipped),
    })
}

/// True if the means differ, if the first slices depend on each other as the steady ones do.
fn differ(first: &[f64], steady: &[f64]) -> bool {
    let time = autocorrelation_time(steady).max(1.0);
    let (a, b) = (Moments::of(first), Moments::of(steady));
    let (before, after) = ((a.count / time).max(1.0), b.count / time);
    let error = (b.variance * (1.0 / before + 1.0 / after)).sqrt();
    let distance = (a.mean - b.mean).abs();
    distance > 0.0 && 2.0 * t_tail(distance / error, after - 1.0) <= WARM_UP_P
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(n: usize) -> f64 {
        [0.0, 0.7, -0.5, 0.3, -0.8, 1.0, -0.2][n % 7]
    }

    #[test]
    fn the_first_slices_that_were_slower_are_the_warm_up() {
        let cold: Vec<f64> = (0..120).map(|n| 20.0 + wave(n) + if n < 12 { 9.0 } else { 0.0 }).collect();
        // The thirteenth is the highest of the steady ones.
        assert_eq!(warm_up(&cold), Some(WarmUp::Until(13)));
        let decaying: Vec<f64> = (0..120).map(|n| 20.0 + wave(n) + 20.0 * (-(n as f64) / 5.0).exp()).collect();
        assert!(matches!(warm_up(&decaying), Some(WarmUp::Until(10..20))), "{:?}", warm_up(&decaying));
    }

    #[test]
    fn a_steady_run_has_none_and_one_that_drifts_is_never_steady() {
        assert_eq!(warm_up(&(0..120).map(wave).collect::<Vec<f64>>()), Some(WarmUp::Absent));
        let drifting: Vec<f64> = (0..120).map(|n| n as f64 + wave(n)).collect();
        assert_eq!(warm_up(&drifting), Some(WarmUp::Unfinished));
        assert_eq!((warm_up(&[1.0; 19]), warm_up(&[1.0; 20])), (None, Some(WarmUp::Absent)));
    }
}
