//! Scheduling of a run's threads: their priorities, and their waits for a core.
//!
//! The paced writer runs at real-time priority. The threads that encode requests and choose connections feed it, and
//! busy neighbours at high priority would delay them. So they request the highest normal priority. Both need root,
//! `CAP_SYS_NICE`, or the limits `rtprio` and `nice`.

use std::fs;

use thread_priority::ThreadPriority;
use thread_priority::unix::{
    NormalThreadSchedulePolicy, RealtimeThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

use crate::measure::time::Gap;

/// Requests the lowest real-time priority for this thread: it preempts every thread without one.
pub(in crate::replay) fn request_real_time_priority() -> bool {
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy).is_ok()
}

/// Requests the highest normal priority (nice -20) for this thread.
pub(in crate::replay) fn request_highest_priority() -> bool {
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other);
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Max, policy).is_ok()
}

/// Core time of a set of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// Time on a core.
    pub ran: Gap,
    /// Time runnable without a core.
    pub waited: Gap,
    /// Number of time slices.
    pub timeslices: u64,
}

impl CoreTime {
    /// Core time of this thread so far; `None` if the kernel does not count it.
    pub(in crate::replay) fn for_current_thread() -> Option<Self> {
        // "run-time waiting-time timeslices", in nanoseconds: Documentation/scheduler/sched-stats.rst.
        Self::parse(&fs::read_to_string("/proc/thread-self/schedstat").ok()?)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.split_ascii_whitespace().map_while(|number| number.parse().ok());
        let (ran, waited) = (Gap::from_nanos(numbers.next()?), Gap::from_nanos(numbers.next()?));
        Some(Self { ran, waited, timeslices: numbers.next()? })
    }

    /// Mean wait for a core, per time slice.
    pub fn mean_wait(&self) -> Option<Gap> {
        self.waited.as_nanos().checked_div(self.timeslices).map(Gap::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_from_the_kernels_line() {
        let time = CoreTime::parse("5 7450510 3\n").unwrap();
        assert_eq!((time.ran.as_nanos(), time.waited.as_nanos(), time.timeslices), (5, 7_450_510, 3));
        assert_eq!(time.mean_wait(), Some(Gap::from_nanos(2_483_503)));
        assert_eq!(["", "1 2", "1 x 2"].map(CoreTime::parse), [None; 3]);
        assert_eq!(CoreTime::default().mean_wait(), None);
    }
}
