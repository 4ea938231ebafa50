//! The share of sessions that a capture keeps.

use std::fmt;
use std::str::FromStr;

/// Units of a share: millionths.
const WHOLE: u32 = 1_000_000;

/// Share of sessions to keep, above 0 and at most 100 %, in steps of 0.0001 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleShare(u32);

impl SampleShare {
    /// Keeps every session.
    pub const ALL: Self = Self(WHOLE);

    /// The share, above 0 and at most 1.
    pub fn ratio(self) -> f64 {
        f64::from(self.0) / f64::from(WHOLE)
    }

    /// True if the sample has the session with this hash, which must be uniform. A larger share keeps all sessions of a
    /// smaller one.
    pub fn keeps(self, hash: u64) -> bool {
        (u128::from(hash) * u128::from(WHOLE)) >> 64 < u128::from(self.0)
    }
}

impl FromStr for SampleShare {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "expected a percentage above 0% and up to 100%, as in 5% or 0.1%";
        let percent: f64 = text.trim().strip_suffix('%').and_then(|number| number.parse().ok()).ok_or(expected)?;
        let units = (percent * f64::from(WHOLE) / 100.0).round();
        if (1.0..=f64::from(WHOLE)).contains(&units) { Ok(Self(units as u32)) } else { Err(expected) }
    }
}

impl fmt::Display for SampleShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / f64::from(WHOLE / 100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage_that_keeps_something() {
        for (text, ratio) in [("5%", 0.05), ("0.0001%", 1e-6), ("100%", 1.0), (" 12.5% ", 0.125)] {
            let share: SampleShare = text.parse().unwrap();
            assert_eq!((share.ratio(), share.to_string()), (ratio, text.trim().to_owned()));
        }
        for refused in ["0%", "5", "100.1%", "-1%", "nan%", "%", "inf%", "0.00001%"] {
            assert!(refused.parse::<SampleShare>().is_err(), "{refused}");
        }
    }

    #[test]
    fn a_larger_share_keeps_what_a_smaller_one_keeps() {
        let shares: Vec<SampleShare> = ["0.1%", "5%", "50%", "100%"].map(|text| text.parse().unwrap()).to_vec();
        let hashes: Vec<u64> = (0..100_000_u64).map(|at| at * (u64::MAX / 100_000)).collect();
        let counts = shares.iter().map(|share| hashes.iter().filter(|hash| share.keeps(**hash)).count());
        assert_eq!(counts.collect::<Vec<_>>(), [101, 5_001, 50_001, 100_000]);
        assert!(SampleShare::ALL.keeps(u64::MAX));
        let nested = |hash: &u64| shares.windows(2).all(|two| !two[0].keeps(*hash) || two[1].keeps(*hash));
        assert!(hashes.iter().all(nested));
    }
}
