//! The bounded hand-over from the threads that forward to the one that reports, and from there to a capture.
//!
//! Handing over never waits, takes no lock and, as long as the queue is less than half full, wakes nobody: the
//! control runtime comes by every [`DRAIN_EVERY`] and before every scrape. A record that finds the queue full is
//! dropped and counted. A capture has it from there (`Inbox::hand_on`): one hand-over is half the price of two, and what
//! is written is what was counted.

use std::hint::black_box;
use std::iter;
use std::sync::{Arc, OnceLock};

use crossbeam_queue::ArrayQueue;
use tokio::sync::Notify;

use super::capturing::{Capture, Followed, Following};
use super::drops::{Drops, Loss};
use super::trace_context::RequestTrace;
use crate::measure::fetch::{self, Fetch, together};
use crate::measure::observer::Progress;
use crate::measure::record::RequestRecord;
use crate::measure::time::Gap;

/// How often the queue is emptied.
pub const DRAIN_EVERY: Gap = Gap::from_millis(100);

/// Reports held. Twenty thousand requests a second for the time between two drains, twice over; 32 KiB, and at worst
/// some 15 MiB of records, and 8 more of short bodies for a capture.
const CAPACITY: usize = 4_096;

/// A request that has ended.
#[derive(Debug)]
pub struct Finished {
    /// What it came to.
    pub record: RequestRecord,
    /// Made at its beginning, if tracing is on.
    pub trace: Option<RequestTrace>,
    /// What a capture needs besides, where there is one.
    pub following: Option<Following>,
}

impl From<RequestRecord> for Finished {
    fn from(record: RequestRecord) -> Self {
        Self { record, trace: None, following: None }
    }
}

impl Followed for Finished {
    fn parts(&mut self) -> Option<(&mut Following, &RequestRecord)> {
        Some((self.following.as_mut()?, &self.record))
    }
}

/// What is handed over.
#[derive(Debug)]
pub(super) enum Report {
    /// A request has ended.
    Finished(Box<Finished>),
    /// A request of a run has ended, which was sent so much later than planned.
    Replayed(Box<(RequestRecord, Gap)>),
    /// A long stream has moved.
    Progress(Box<Progress>),
}

impl Fetch for Report {
    fn fetch(&mut self) {
        match self {
            Self::Finished(finished) => {
                black_box((finished.trace.is_some(), finished.following.is_some()));
                fetch::record(&finished.record);
            }
            Self::Replayed(replayed) => fetch::record(&replayed.0),
            Self::Progress(_) => {}
        }
    }
}

#[derive(Debug)]
struct Queue {
    reports: ArrayQueue<Report>,
    hurry: Notify,
    drops: Arc<Drops>,
    capture: OnceLock<Arc<Capture>>,
}

/// Where the proxy reports to. Clones report to the same place.
#[derive(Clone, Debug)]
pub struct Reporter(Arc<Queue>);

impl Reporter {
    /// A request has ended.
    pub fn finished(&self, finished: Finished) {
        self.push(Report::Finished(Box::new(finished)));
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
        if let Err(report) = queue.reports.push(report) {
            queue.drops.add(Loss::Records, 1);
            if let (Report::Finished(finished), Some(capture)) = (report, queue.capture.get())
                && finished.following.is_some()
            {
                capture.lost();
            }
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
        let (reports, capture) = (ArrayQueue::new(capacity), OnceLock::new());
        let queue = Arc::new(Queue { reports, hurry: Notify::new(), drops, capture });
        (Reporter(Arc::clone(&queue)), Self(queue))
    }

    /// Takes what is there: at most one queue's fill, so that reporters cannot hold up whoever drains.
    pub(super) fn drain(&self) -> impl Iterator<Item = Report> {
        let reports = &self.0.reports;
        let mut left = reports.capacity();
        let fetched = move || {
            let fetched = together(iter::from_fn(|| reports.pop()).take(left));
            left -= fetched.len();
            (!fetched.is_empty()).then_some(fetched)
        };
        iter::from_fn(fetched).flatten()
    }

    /// From now on requests go on to this capture.
    pub(super) fn set_capture(&self, capture: Arc<Capture>) {
        let _first = self.0.capture.set(capture).is_ok();
    }

    /// The capture, where there is one.
    pub(super) fn capture(&self) -> Option<&Arc<Capture>> {
        self.0.capture.get()
    }

    /// Gives a request that has been counted to the capture, where there is one.
    pub(super) fn hand_on(&self, finished: Box<Finished>) {
        if let Some(capture) = self.capture() {
            capture.ended(finished);
        }
    }

    /// Waits until the queue is more than half full.
    pub(super) async fn hurry(&self) {
        self.0.hurry.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::thread;

    use super::*;
    use crate::capture::counts::Fate;
    use crate::capture::recorder::Settings;
    use crate::capture::segments::Retention;
    use crate::clock::Clock;
    use crate::export::fixtures::record;

    #[test]
    fn a_full_queue_drops_the_record_and_counts_it() {
        let drops = Arc::<Drops>::default();
        let (reporter, inbox) = Inbox::with_capacity(4, Arc::clone(&drops));
        (0..7).for_each(|_| reporter.finished(record().into()));
        assert_eq!(drops.count(Loss::Records), 3);
        assert_eq!(inbox.drain().count(), 4);
        assert_eq!(inbox.drain().count(), 0);
        reporter.finished(record().into());
        assert_eq!((inbox.drain().count(), drops.count(Loss::Records)), (1, 3));
    }

    /// A capture into this folder, and a request for it.
    fn captured(folder: &Path) -> (Arc<Capture>, impl Fn() -> Finished) {
        let settings = Settings {
            folder: folder.to_owned(),
            flush: Gap::from_millis(1_000),
            round: Gap::ZERO,
            key: None,
            rotate: false,
            block: 16,
            names: 1,
            session: None,
            retention: Retention { bytes: u64::MAX, age: Gap::from_millis(u64::MAX / 1_000_000) },
        };
        let capture = Arc::new(Capture::start(settings, None, Clock::Monotonic).unwrap());
        let to = Arc::clone(&capture);
        let asked = move || Finished { following: Some(to.follow(|_| None, 0)), ..record().into() };
        (capture, asked)
    }

    #[test]
    fn what_finds_no_room_on_its_way_to_the_capture_is_counted_as_lost_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let (capture, asked) = captured(folder.path());
        let (reporter, inbox) = Inbox::with_capacity(2, Arc::default());
        inbox.set_capture(Arc::clone(&capture));
        (0..5).for_each(|_| reporter.finished(asked()));
        // Of a request that nobody follows the capture has nothing to lose.
        reporter.finished(record().into());
        for report in inbox.drain() {
            if let Report::Finished(finished) = report {
                inbox.hand_on(finished);
            }
        }
        capture.finish();
        let counts = capture.counts();
        assert_eq!((counts.count(Fate::Whole), counts.count(Fate::QueueFull)), (2, 3));
    }

    #[tokio::test]
    async fn nobody_is_woken_before_the_queue_is_half_full() {
        let (reporter, inbox) = Inbox::with_capacity(4, Arc::default());
        reporter.finished(record().into());
        reporter.finished(record().into());
        let hurry = |inbox: &Inbox| {
            let mut hurry = Box::pin(inbox.hurry());
            let woken = futures_poll(hurry.as_mut());
            drop(hurry);
            woken
        };
        assert!(!hurry(&inbox));
        reporter.finished(record().into());
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
                scope.spawn(move || (0..2_000).for_each(|_| reporter.finished(record().into())))
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
