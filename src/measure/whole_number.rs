//! Whole numbers in whatever notation JSON has them.

/// The non-negative whole number that a JSON number denotes in any notation: `7`, `7.0`, `7e0`.
pub(super) fn whole(number: &str) -> Option<u64> {
    number.parse().ok().or_else(|| as_whole_number(number.parse().ok()?))
}

/// The non-negative whole number equal to a float, within the range where floats represent integers exactly.
pub fn as_whole_number(number: f64) -> Option<u64> {
    (number.fract() == 0.0 && (0.0..9e15).contains(&number)).then_some(number as u64)
}
