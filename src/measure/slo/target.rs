//! The share of requests that should meet an SLO.

use std::fmt;

/// Units per percent: a target has at most three decimals.
const PER_PERCENT: u32 = 1_000;

/// Target of an SLO. `1 − target` is its error budget, which is never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SloTarget(u32);

impl SloTarget {
    /// Target of an SLO that names none.
    pub const DEFAULT: Self = Self(99 * PER_PERCENT);

    /// The target as a share from 0 to 1, both excluded.
    pub fn ratio(self) -> f64 {
        f64::from(self.0) / f64::from(100 * PER_PERCENT)
    }

    /// The target in percent.
    pub fn percent(self) -> f64 {
        f64::from(self.0) / f64::from(PER_PERCENT)
    }

    /// Parses a percentage as in `99.5%`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (whole, decimals) = text.strip_suffix('%').map(|number| number.split_once('.').unwrap_or((number, "")))?;
        if whole.is_empty()
            || decimals.len() > 3
            || !(whole.chars().chain(decimals.chars())).all(|c| c.is_ascii_digit())
        {
            return None;
        }
        let parts =
            whole.parse::<u32>().ok()?.checked_mul(PER_PERCENT)? + format!("{decimals:0<3}").parse::<u32>().ok()?;
        (1..100 * PER_PERCENT).contains(&parts).then_some(Self(parts))
    }
}

impl fmt::Display for SloTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.percent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_percentage_that_leaves_a_budget() {
        let ratio = |text: &str| SloTarget::parse(text).map(SloTarget::ratio);
        assert_eq!((ratio("99%"), ratio("99.95%"), ratio("0.001%")), (Some(0.99), Some(0.9995), Some(0.000_01)));
        for refused in ["100%", "0%", "99", "%", ".5%", "99.9999%", "-1%", "99,5%", "4294967296%", "9e1%", "0.000%"] {
            assert_eq!(ratio(refused), None, "{refused}");
        }
        assert_eq!(SloTarget::parse("99.50%").unwrap().to_string(), "99.5%");
    }
}
