//! An interval, or the reason why there is none.

use schemars::JsonSchema;
use serde::Serialize;
use thiserror::Error;

/// Interval that contains the true value in 95 of 100 runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// The 2.5th to the 97.5th percentile of replicates. Contains `value`, whatever the replicates.
    pub(super) fn of_replicates(replicates: &[f64], value: f64) -> Self {
        let mut sorted = replicates.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |percent| {
            super::samples::percentile(sorted.len() as u64, percent, |rank| sorted[rank as usize]).unwrap_or(value)
        };
        Self { low: at(2.5).min(value), high: at(97.5).max(value) }
    }

    /// True if the interval contains a value.
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// Too little data for an interval or a test.
#[derive(Clone, Copy, Debug, PartialEq, Error, Serialize, JsonSchema)]
#[error("not enough data: {have:.0} of {need:.0} {}; remedy: measure {:.1} times as much", unit.name(), self.factor())]
pub struct NotEnoughData {
    /// Unit of the numbers.
    pub unit: DataUnit,
    /// Available number.
    pub have: f64,
    /// Required number.
    pub need: f64,
}

impl NotEnoughData {
    /// How much more data is needed, as a multiple of the present amount.
    pub fn factor(&self) -> f64 {
        self.need / self.have.max(1.0)
    }

    /// Returns an error if `have` is less than `need`.
    pub(super) fn unless(unit: DataUnit, have: f64, need: f64) -> Result<(), Self> {
        // A product such as 2,000 · (100 − 99) ÷ 100 may be a rounding error below a whole number.
        if have + 1e-6 < need { Err(Self { unit, have, need }) } else { Ok(()) }
    }
}

/// Unit of [`NotEnoughData`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataUnit {
    /// Values of one metric.
    Values,
    /// Values above a percentile above the median, or below one below it.
    ValuesBeyond,
    /// Effective sample size.
    IndependentValues,
    /// Runs of one side.
    Runs,
}

impl DataUnit {
    fn name(self) -> &'static str {
        match self {
            Self::Values => "values",
            Self::ValuesBeyond => "values beyond the percentile",
            Self::IndependentValues => "independent values",
            Self::Runs => "runs on each side",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_what_is_missing_and_how_much() {
        let error = NotEnoughData::unless(DataUnit::ValuesBeyond, 12.0, 20.0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "not enough data: 12 of 20 values beyond the percentile; remedy: measure 1.7 times as much"
        );
        assert_eq!(NotEnoughData::unless(DataUnit::Runs, 0.0, 2.0).unwrap_err().factor(), 2.0);
        assert_eq!(NotEnoughData::unless(DataUnit::ValuesBeyond, 19.999_999_9, 20.0), Ok(()));
    }

    #[test]
    fn the_interval_of_replicates_contains_the_value() {
        let replicates: Vec<f64> = (0..=1000).map(f64::from).collect();
        assert_eq!(Interval::of_replicates(&replicates, 500.0), Interval { low: 25.0, high: 975.0 });
        assert_eq!(Interval::of_replicates(&replicates, 1.0), Interval { low: 1.0, high: 975.0 });
        assert_eq!(Interval::of_replicates(&[], 3.0), Interval { low: 3.0, high: 3.0 });
        assert!(!Interval { low: 1.0, high: 2.0 }.contains(2.5));
    }
}
