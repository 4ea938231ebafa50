//! A request that waits in a sending thread's queue, in which the earliest comes first.

use std::cmp::Ordering;

use super::exchange::Job;
use crate::measure::time::Stamp;

/// A request and its moment.
pub(super) struct Due {
    pub(super) at: Stamp,
    pub(super) job: Job,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.job.send.number).cmp(&(other.at, other.job.send.number))
    }
}
