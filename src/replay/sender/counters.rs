//! Live counters of a run, shared by its threads.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::priority::CoreTime;
use crate::measure::time::Gap;

/// Live counters of a run.
#[derive(Debug, Default)]
pub struct RunCounters {
    planned: AtomicU64,
    sent: AtomicU64,
    in_flight: AtomicU32,
    streaming: AtomicU32,
    simulated: AtomicBool,
    /// Core time of the sending threads that have ended: ran and waited in nanoseconds, and time slices.
    core_time: [AtomicU64; 3],
}

impl RunCounters {
    /// Requests sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Requests that have not ended.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// Requests in flight that have a first token.
    pub fn streaming(&self) -> u32 {
        self.streaming.load(Relaxed)
    }

    /// Schedule rows read so far.
    pub(in crate::replay) fn rows_read(&self) -> u64 {
        self.planned.load(Relaxed)
    }

    pub(in crate::replay) fn inc_rows_read(&self) {
        self.planned.fetch_add(1, Relaxed);
    }

    /// Counts a send. Returns how many requests were sent before it, and how many of those are in flight.
    pub(in crate::replay) fn inc_in_flight(&self) -> (u64, u32) {
        (self.sent.fetch_add(1, Relaxed), self.in_flight.fetch_add(1, Relaxed))
    }

    /// True if a response came from a simulated server.
    pub fn simulated(&self) -> bool {
        self.simulated.load(Relaxed)
    }

    pub(in crate::replay) fn set_simulated(&self) {
        self.simulated.store(true, Relaxed);
    }

    pub(in crate::replay) fn add_core_time(&self, time: Option<CoreTime>) {
        let CoreTime { ran, waited, timeslices: times } = time.unwrap_or_default();
        for (sum, more) in self.core_time.iter().zip([ran.as_nanos(), waited.as_nanos(), times]) {
            sum.fetch_add(more, Relaxed);
        }
    }

    /// Core time of the sending threads that have ended.
    pub(in crate::replay) fn core_time(&self) -> CoreTime {
        let [ran, waited, times] = self.core_time.each_ref().map(|sum| sum.load(Relaxed));
        CoreTime { ran: Gap::from_nanos(ran), waited: Gap::from_nanos(waited), timeslices: times }
    }

    pub(in crate::replay) fn inc_streaming(&self) {
        self.streaming.fetch_add(1, Relaxed);
    }

    pub(in crate::replay) fn dec_in_flight(&self, had_token: bool) {
        self.in_flight.fetch_sub(1, Relaxed);
        if had_token {
            self.streaming.fetch_sub(1, Relaxed);
        }
    }
}
