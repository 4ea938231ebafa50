//! Time zero of formats with wall-clock times: the earliest time in the beginning of a file. Its rows may stand in the
//! order in which they ended.

use super::ConversionLosses;

/// Time zero of a file.
pub(super) struct TimeZero {
    unix_ns: u64,
    losses: ConversionLosses,
}

impl TimeZero {
    /// Sets time zero to `earliest`, in nanoseconds since 1970.
    pub(super) fn new(earliest: Option<u64>, losses: &ConversionLosses) -> Self {
        Self { unix_ns: earliest.unwrap_or(0), losses: losses.clone() }
    }

    /// Nanoseconds from time zero to `wall`; counts times before it.
    pub(super) fn since(&self, wall: u64) -> u64 {
        if wall < self.unix_ns {
            self.losses.count("rows before the first, taken to come at 0");
        }
        wall.saturating_sub(self.unix_ns)
    }
}
