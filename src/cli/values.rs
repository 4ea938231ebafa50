//! How the values are read that flags of several verbs take.

use clap::builder::{PossibleValuesParser, RangedI64ValueParser, TypedValueParser};

use crate::measure::time::{Gap, ParseDurationError};
use crate::report::group_by::GroupBy;

/// A time with its unit.
pub(super) fn parse_duration(text: &str) -> Result<Gap, ParseDurationError> {
    text.parse().or_else(|_| humantime::parse_duration(text).map(Gap::from).map_err(|_| ParseDurationError))
}

/// A time that is not none.
pub(super) fn parse_positive_duration(text: &str) -> Result<Gap, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    if time == Gap::ZERO { Err("expected a time above 0, as in 30s".into()) } else { Ok(time) }
}

/// A count that is not zero.
pub(super) fn at_least_one() -> RangedI64ValueParser<u32> {
    parse_count_up_to(u32::MAX)
}

/// A count from one on.
pub(super) fn parse_count_up_to(most: u32) -> RangedI64ValueParser<u32> {
    RangedI64ValueParser::new().range(1..=most.into())
}

pub(super) fn positive(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0).ok_or("expected a number above 0")
}

/// A share written as a percentage: `5%` is 0.05.
pub(super) fn percent(text: &str) -> Result<f64, &'static str> {
    percent_up_to(100.0, text).ok_or("expected 0% to 100%")
}

/// A share of at most `most` percent.
pub(super) fn percent_up_to(most: f64, text: &str) -> Option<f64> {
    let percent = text.strip_suffix('%')?.trim().parse::<f64>().ok()?;
    (0.0..=most).contains(&percent).then(|| percent / 100.0)
}

/// A key of `--by`.
pub(super) fn group_by() -> impl TypedValueParser<Value = GroupBy> {
    let named = |name: String| GroupBy::ALL.into_iter().find(|key| key.name() == name);
    PossibleValuesParser::new(GroupBy::ALL.map(GroupBy::name)).try_map(move |name| named(name).ok_or("unknown key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_none_is_told_with_one_that_is() {
        let unit = "expected a number with a unit: ns, us, ms, s, m, h or d (as in 250ms or 1h30m)";
        assert_eq!(
            (parse_duration("soon").map_err(|error| error.to_string()), parse_duration("0s")),
            (Err(unit.into()), Ok(Gap::ZERO))
        );
        assert_eq!(
            (parse_positive_duration("30s"), parse_positive_duration("30")),
            (Ok(Gap::from_millis(30_000)), Err(unit.into()))
        );
        assert!(parse_positive_duration("0s").is_err() && positive("0").is_err());
    }
}
