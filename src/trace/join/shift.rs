//! The shift after which the rows of two traces agree best. Pure.

use super::{JoinRow, MOMENT_NANOS};

/// How far a pair may be from the shift and still agree in time, in nanoseconds.
pub(super) const TOLERANCE_NANOS: u64 = 10 * MOMENT_NANOS;
/// Share of the best possible score by which a shift has to be better than none.
const MIN_SCORE_GAIN: f64 = 0.1;

/// How many first rows of each trace have no counterpart, `most` in one of them.
pub(super) fn best_shift(a: &[JoinRow], b: &[JoinRow], most: usize, compared: usize) -> [usize; 2] {
    let pairs = a.len().min(b.len()).min(compared);
    let none = score(a, b, compared);
    let skips = (1..=most).flat_map(|skip| [[skip, 0], [0, skip]]);
    // A shift has to leave most of the pairs.
    let left = |rows: &[JoinRow], skip: usize| rows.len().saturating_sub(skip);
    let possible = skips.filter(|[in_a, in_b]| left(a, *in_a).min(left(b, *in_b)) * 2 > pairs);
    let scored = possible.map(|skip| (score(&a[skip[0]..], &b[skip[1]..], compared), skip));
    // Of shifts that are as good the shortest.
    match scored.reduce(|best, next| if next.0 > best.0 { next } else { best }) {
        Some((score, skip)) if score > none + MIN_SCORE_GAIN => skip,
        _ => [0, 0],
    }
}

/// How well the first pairs of these rows agree, from 0 to 1: in time, whatever the clocks' difference, and in both
/// lengths.
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
