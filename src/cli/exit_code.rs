//! Exit codes. 0 is success; 1 also reports an error that is none of these.

/// The run is valid and missed an SLO.
pub(super) const EXIT_SLO_MISSED: u8 = 1;
/// The command line or the configuration has to change first.
pub(super) const EXIT_USAGE: u8 = 2;
/// The run is not valid, or did not start.
pub(super) const EXIT_INVALID_RUN: u8 = 3;
