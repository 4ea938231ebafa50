//! How the kernel schedules the threads of a run: what they ask for, and how long they wait for a core.
//!
//! The thread that writes is of real-time priority and comes before everybody. What it writes comes from threads that
//! encode requests and choose connections; beside neighbours of a high priority they would come too late to be written
//! in time, so they ask for the highest common priority. Both need root, `CAP_SYS_NICE` or the limits `rtprio` and `nice`.

use std::fs;

use thread_priority::ThreadPriority;
use thread_priority::unix::{
    NormalThreadSchedulePolicy, RealtimeThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

use crate::measure::time::Gap;

/// Asks for the least of the real-time priorities for this thread: it comes before whatever has none.
pub(super) fn request_real_time_priority() -> bool {
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy).is_ok()
}

/// Asks for the highest common priority for this thread, which is nice -20.
pub(super) fn request_highest_priority() -> bool {
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other);
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Max, policy).is_ok()
}

/// What threads had of the cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// How long they ran.
    pub ran: Gap,
    /// How long they were ready and had no core.
    pub waited: Gap,
    /// How often they got one.
    pub timeslices: u64,
}

impl CoreTime {
    /// Of this thread so far; `None` where the kernel does not count.
    pub(super) fn for_current_thread() -> Option<Self> {
        // "run-time waiting-time timeslices", in nanoseconds: Documentation/scheduler/sched-stats.rst.
        Self::parse(&fs::read_to_string("/proc/thread-self/schedstat").ok()?)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.split_ascii_whitespace().map_while(|number| number.parse().ok());
        let (ran, waited) = (Gap::from_nanos(numbers.next()?), Gap::from_nanos(numbers.next()?));
        Some(Self { ran, waited, timeslices: numbers.next()? })
    }

    /// The wait for a core, on average.
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
