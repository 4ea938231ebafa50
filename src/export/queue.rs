//! The bounded hand-over from the threads that forward to the one that reports.
//!
//! Handing over never waits, takes no lock and, as long as the queue is less than half full, wakes nobody: the
//! control runtime comes by every [`DRAIN_EVERY`] and before every scrape. A record that finds the queue full is
//! dropped and counted.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use tokio::sync::Notify;

use super::drops::{Drops, Loss};
use super::trace_context::RequestTrace;
use crate::measure::observer::Progress;
use crate::measure::record::RequestRecord;
use crate::measure::time::Gap;

/// How often the queue is emptied.
pub const DRAIN_EVERY: Gap = Gap::from_millis(100);

/// Reports held. Twenty thousand requests a second for the time between two drains, twice over; 32 KiB, and at worst
/// some 15 MiB of records.
const CAPACITY: usize = 4_096;

/// What is handed over.
#[derive(Debug)]
pub(super) enum Report {
    /// A request has ended.
    Finished(Box<(RequestRecord, Option<RequestTrace>)>),
    /// A request of a run has ended, which was sent so much later than planned.
    Replayed(Box<(RequestRecord, Gap)>),
    /// A long stream has moved.
    Progress(Box<Progress>),
}

#[derive(Debug)]
struct Queue {
    reports: ArrayQueue<Report>,
    hurry: Notify,
    drops: Arc<Drops>,
}

/// Where the proxy reports to. Clones report to the same place.
#[derive(Clone, Debug)]
pub struct Reporter(Arc<Queue>);

impl Reporter {
    /// A request has ended. `trace` is the one made at its beginning, if tracing is on.
    pub fn finished(&self, record: RequestRecord, trace: Option<RequestTrace>) {
        self.push(Report::Finished(Box::new((record, trace))));
    }

    /// A request of a run has ended, which was sent so much later than planned.
    pub fn replayed(&self, record: RequestRecord, lag: Gap) {
        self.push(Report::Replayed(Box::new((record, lag))));
    }

    /// A long stream has moved.
    pub fn progress(&self, progress: Progress) {
        self.push(Report::Progress(Box::new(progress)));
    }

    fn push(&self, report: Report) {
        let queue = &*self.0;
        if queue.reports.push(report).is_err() {
            queue.drops.add(Loss::Records, 1);
        }
        if queue.reports.len() > queue.reports.capacity() / 2 {
            queue.hurry.notify_one();
        }
    }
}

/// The other end.
#[derive(Debug)]
pub(super) struct Inbox(Arc<Queue>);

impl Inbox {
    /// A queue's two ends.
    pub(super) fn new(drops: Arc<Drops>) -> (Reporter, Self) {
        Self::with_capacity(CAPACITY, drops)
    }

    fn with_capacity(capacity: usize, drops: Arc<Drops>) -> (Reporter, Self) {
        let queue = Arc::new(Queue { reports: ArrayQueue::new(capacity), hurry: Notify::new(), drops });
        (Reporter(Arc::clone(&queue)), Self(queue))
    }

    /// Takes what is there: at most one queue's fill, so that reporters cannot hold up whoever drains.
    pub(super) fn drain(&self) -> impl Iterator<Item = Report> {
        let reports = &self.0.reports;
        std::iter::from_fn(|| reports.pop()).take(reports.capacity())
    }

    /// Waits until the queue is more than half full.
    pub(super) async fn hurry(&self) {
        self.0.hurry.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::export::fixtures::record;

    #[test]
    fn a_full_queue_drops_the_record_and_counts_it() {
        let drops = Arc::<Drops>::default();
        let (reporter, inbox) = Inbox::with_capacity(4, Arc::clone(&drops));
        (0..7).for_each(|_| reporter.finished(record(), None));
        assert_eq!(drops.count(Loss::Records), 3);
        assert_eq!(inbox.drain().count(), 4);
        assert_eq!(inbox.drain().count(), 0);
        reporter.finished(record(), None);
        assert_eq!((inbox.drain().count(), drops.count(Loss::Records)), (1, 3));
    }

    #[tokio::test]
    async fn nobody_is_woken_before_the_queue_is_half_full() {
        let (reporter, inbox) = Inbox::with_capacity(4, Arc::default());
        reporter.finished(record(), None);
        reporter.finished(record(), None);
        let hurry = |inbox: &Inbox| {
            let mut hurry = Box::pin(inbox.hurry());
            let woken = futures_poll(hurry.as_mut());
            drop(hurry);
            woken
        };
        assert!(!hurry(&inbox));
        reporter.finished(record(), None);
        assert!(hurry(&inbox));
    }

    fn futures_poll(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn many_threads_lose_nothing_that_is_not_counted() {
        let drops = Arc::<Drops>::default();
        let (reporter, inbox) = Inbox::with_capacity(64, Arc::clone(&drops));
        let taken = thread::scope(|scope| {
            let threads = [(); 4].map(|()| {
                let reporter = reporter.clone();
                scope.spawn(move || (0..2_000).for_each(|_| reporter.finished(record(), None)))
            });
            let mut taken = 0;
            while threads.iter().any(|thread| !thread.is_finished()) {
                taken += inbox.drain().count();
            }
            taken + inbox.drain().count()
        });
        assert_eq!(taken as u64 + drops.count(Loss::Records), 8_000);
    }
}
