//! Entries of a timer queue, ordered by time.

use std::cmp::Ordering;

use crate::measure::time::Stamp;

/// An item and its time.
pub(in crate::replay) struct TimerEntry<T> {
    pub(in crate::replay) at: Stamp,
    /// The request's number: at equal times the lower goes first.
    pub(in crate::replay) number: u64,
    pub(in crate::replay) item: T,
}

impl<T> PartialEq for TimerEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for TimerEntry<T> {}

impl<T> PartialOrd for TimerEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for TimerEntry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
