//! Finds the shift after which the rows of two traces agree best. Pure.

use super::{JoinRow, MOMENT_NANOS};

/// Maximum deviation from the shift in nanoseconds at which a pair still agrees in time.
pub(super) const TOLERANCE_NANOS: u64 = 10 * MOMENT_NANOS;
/// Minimum improvement over no shift, as a share of the best possible score.
const MIN_SCORE_GAIN: f64 = 0.1;

/// Number of first rows of each trace to skip, at most `most` in one of them.
pub(super) fn best_shift(a: &[JoinRow], b: &[JoinRow], most: usize, compared: usize) -> [usize; 2] {
    let pairs = a.len().min(b.len()).min(compared);
    let none = score(a, b, compared);
    let skips = (1..=most).flat_map(|skip| [[skip, 0], [0, skip]]);
    // A shift must leave most of the pairs.
    let left = |rows: &[JoinRow], skip: usize| rows.len().saturating_sub(skip);
    let possible = skips.filter(|[in_a, in_b]| left(a, *in_a).min(left(b, *in_b)) * 2 > pairs);
    let scored = possible.map(|skip| (score(&a[skip[0]..], &b[skip[1]..], compared), skip));
    // Among equally good shifts the shortest wins.
    match scored.reduce(|best, next| if next.0 > best.0 { next } else { best }) {
        Some((score, skip)) if score > none + MIN_SCORE_GAIN => skip,
        _ => [0, 0],
    }
}

/// Agreement of the first pairs, from 0 to 1: in time, after removing the clock difference, and in both lengths.
fn score(a: &[JoinRow], b: &[JoinRow], compared: usize) -> f64 {
    let pairs = || a.iter().zip(b).take(compared);
    let mut apart: Vec<i64> = pairs().map(|(a, b)| b.at.wrapping_sub(a.at).cast_signed()).collect();
    if apart.is_empty() {
        return 0.0;
    }
    let middle = apart.len() / 2;
    let shift = *apart.select_nth_unstable(middle).1;
    let agree = |(a, b): (&JoinRow, &JoinRow)| {
        let apart = b.at.wrapping_sub(a.at).cast_signed();
        u32::from(apart.abs_diff(shift) <= TOLERANCE_NANOS)
            + u32::from(a.input == b.input)
            + u32::from(a.output == b.output)
    };
    f64::from(pairs().map(agree).sum::<u32>()) / (3.0 * apart.len() as f64)
}
