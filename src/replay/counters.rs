//! What a run counts while it goes on, for all of its threads.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::priority::CoreTime;
use crate::measure::time::Gap;

/// Counts while the run goes on.
#[derive(Debug, Default)]
pub struct RunCounters {
    planned: AtomicU64,
    sent: AtomicU64,
    in_flight: AtomicU32,
    streaming: AtomicU32,
    simulated: AtomicBool,
    /// What sending threads that have ended had of the cores: ran and waited, in nanoseconds, and how often.
    core_time: [AtomicU64; 3],
}

impl RunCounters {
    /// Requests that have been due and sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Requests without an end yet.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// Those of them that have a first token.
    pub fn streaming(&self) -> u32 {
        self.streaming.load(Relaxed)
    }

    /// Rows of the schedule that have been read.
    pub(super) fn rows_read(&self) -> u64 {
        self.planned.load(Relaxed)
    }

    pub(super) fn inc_rows_read(&self) {
        self.planned.fetch_add(1, Relaxed);
    }

    /// One more is sent: how many were before, and how many of them are in flight.
    pub(super) fn inc_in_flight(&self) -> (u64, u32) {
        (self.sent.fetch_add(1, Relaxed), self.in_flight.fetch_add(1, Relaxed))
    }

    /// Whether a reply has said that its server is simulated.
    pub fn simulated(&self) -> bool {
        self.simulated.load(Relaxed)
    }

    pub(super) fn set_simulated(&self) {
        self.simulated.store(true, Relaxed);
    }

    pub(super) fn add_core_time(&self, time: Option<CoreTime>) {
        let CoreTime { ran, waited, timeslices: times } = time.unwrap_or_default();
        for (sum, more) in self.core_time.iter().zip([ran.as_nanos(), waited.as_nanos(), times]) {
            sum.fetch_add(more, Relaxed);
        }
    }

    /// What the sending threads that have ended had of the cores.
    pub(super) fn core_time(&self) -> CoreTime {
        let [ran, waited, times] = self.core_time.each_ref().map(|sum| sum.load(Relaxed));
        CoreTime { ran: Gap::from_nanos(ran), waited: Gap::from_nanos(waited), timeslices: times }
    }

    pub(super) fn inc_streaming(&self) {
        self.streaming.fetch_add(1, Relaxed);
    }

    pub(super) fn dec_in_flight(&self, had_token: bool) {
        self.in_flight.fetch_sub(1, Relaxed);
        if had_token {
            self.streaming.fetch_sub(1, Relaxed);
        }
    }
}
