//! Time in the measuring core: nanoseconds that the caller read from a clock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point on the process's monotonic time line, in nanoseconds since its start.
///
/// Wall time exists only where records leave the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// The stamp `nanos` nanoseconds after the start of the line.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start of the line.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time since `earlier`; zero if `earlier` is actually later.
    pub const fn since(self, earlier: Self) -> Gap {
        Gap(self.0.saturating_sub(earlier.0))
    }

    /// The stamp `gap` later, saturating.
    pub const fn after(self, gap: Gap) -> Self {
        Self(self.0.saturating_add(gap.0))
    }

    /// The stamp `gap` earlier, saturating at zero.
    pub const fn before(self, gap: Gap) -> Self {
        Self(self.0.saturating_sub(gap.0))
    }
}

/// Extends a span so that it includes `from` to `to`.
pub fn extend_span(span: Option<(Stamp, Stamp)>, from: Stamp, to: Stamp) -> (Stamp, Stamp) {
    let (first, last) = span.unwrap_or((from, from));
    (first.min(from), last.max(to))
}

/// A half-open interval of a trace's time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct Window {
    /// Start, inclusive.
    pub from: u64,
    /// End, exclusive; `None` for no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

impl Window {
    /// True if a moment is inside.
    pub fn has(self, at: u64) -> bool {
        at >= self.from && self.to.is_none_or(|to| at < to)
    }
}

/// A duration in nanoseconds. Zero is legal: two events of one read share a stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gap(u64);

impl Gap {
    /// Zero duration.
    pub const ZERO: Self = Self(0);

    /// A gap of `nanos` nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A gap of `millis` milliseconds, saturating.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// The gap in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The gap in seconds. Division is correctly rounded, so that 1,000,000 ns is exactly the bound `0.001`.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The gap in milliseconds.
    pub fn as_millis(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The gap divided evenly over `n` tokens; unchanged if `n` is zero.
    pub const fn divided_by(self, n: u64) -> Self {
        match self.0.checked_div(n) {
            Some(nanos) => Self(nanos),
            None => self,
        }
    }
}

impl From<Duration> for Gap {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Gap> for Duration {
    fn from(gap: Gap) -> Self {
        Self::from_nanos(gap.0)
    }
}

impl fmt::Display for Gap {
    /// Writes three significant figures in the most readable unit: `850ns`, `12.4µs`, `3.05ms`, `1.20s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            0..1_000 => return write!(f, "{}ns", self.0),
            1_000..1_000_000 => (self.0 as f64 / 1e3, "µs"),
            1_000_000..1_000_000_000 => (self.0 as f64 / 1e6, "ms"),
            _ => (self.0 as f64 / 1e9, "s"),
        };
        let decimals = match value {
            v if v < 10.0 => 2,
            v if v < 100.0 => 1,
            _ => 0,
        };
        write!(f, "{value:.decimals$}{unit}")
    }
}

/// The text is not a valid duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseDurationError;

impl fmt::Display for ParseDurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a number with a unit: ns, us, ms, s, m, h or d (as in 250ms or 1h30m)")
    }
}

impl std::error::Error for ParseDurationError {}

impl FromStr for Gap {
    type Err = ParseDurationError;

    /// Parses numbers with units, largest unit first: `250ms`, `1.5s`, `1h30m`, `7d`. A bare `0` needs no unit.
    fn from_str(text: &str) -> Result<Self, ParseDurationError> {
        let (mut rest, mut sum, mut before) = (text, 0.0, f64::INFINITY);
        while !rest.is_empty() && text != "0" {
            let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
            let (number, more) = rest.split_at(rest.find(|c| !is_of_number(c)).unwrap_or(rest.len()));
            let (unit, more) = more.split_at(more.find(is_of_number).unwrap_or(more.len()));
            let scale = match unit {
                "ns" => 1.0,
                "us" | "µs" | "μs" => 1e3,
                "ms" => 1e6,
                "s" => 1e9,
                "m" => 60e9,
                "h" => 3_600e9,
                "d" => 86_400e9,
                _ => return Err(ParseDurationError),
            };
            if scale >= before {
                return Err(ParseDurationError);
            }
            sum += number.parse::<f64>().map_err(|_| ParseDurationError)? * scale;
            (rest, before) = (more, scale);
        }
        if sum < 9e18 && !text.is_empty() { Ok(Self(sum.round() as u64)) } else { Err(ParseDurationError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_never_runs_backwards() {
        assert_eq!(Stamp::from_nanos(5).since(Stamp::from_nanos(9)), Gap::ZERO);
        assert_eq!(Stamp::from_nanos(u64::MAX).after(Gap::from_nanos(1)), Stamp::from_nanos(u64::MAX));
    }

    #[test]
    fn gaps_print_in_the_unit_that_reads_best() {
        let shown = |nanos| Gap::from_nanos(nanos).to_string();
        assert_eq!(shown(850), "850ns");
        assert_eq!(shown(12_430), "12.4µs");
        assert_eq!(shown(3_050_000), "3.05ms");
        assert_eq!(shown(1_200_000_000), "1.20s");
    }

    #[test]
    fn durations_take_units_and_nothing_else() {
        let nanos = |text: &str| text.parse::<Gap>().map(Gap::as_nanos);
        assert_eq!(nanos("250ms"), Ok(250_000_000));
        assert_eq!(nanos("1.5s"), Ok(1_500_000_000));
        assert_eq!(nanos("10µs"), Ok(10_000));
        assert_eq!(nanos("2h"), Ok(7_200_000_000_000));
        assert_eq!(nanos("0"), Ok(0));
        assert_eq!(nanos("1h30m"), Ok(5_400_000_000_000));
        assert_eq!(nanos("7d"), nanos("168h"));
        assert_eq!(nanos("1d2h3m4.5s"), Ok(93_784_500_000_000));
        for bad in
            ["", "5", "ms", "-1s", "1 s", "1e3s", "1.2.3s", "5 parsecs", "999999999h", "30m1h", "1h2h", "1h30", "00"]
        {
            assert_eq!(nanos(bad), Err(ParseDurationError), "{bad}");
        }
    }

    #[test]
    fn a_millisecond_is_exactly_the_millisecond_bound() {
        assert!(Gap::from_millis(1).as_secs() <= 0.001);
    }
}
