//! Bounded queue from the forwarding threads to the control thread, and from there to a capture.
//!
//! Reporting never blocks and takes no lock. It wakes no thread while the queue is less than half full, because the
//! control runtime drains it every [`DRAIN_INTERVAL`] and before every scrape. A record that finds the queue full is
//! dropped and counted. The control thread forwards counted records to the capture (`ReportReceiver::forward`). One
//! queue costs half of two, and the capture contains exactly what was counted.

use std::hint::black_box;
use std::iter;
use std::sync::{Arc, OnceLock};

use crossbeam_queue::ArrayQueue;
use tokio::sync::Notify;

use crate::capture::message::{CaptureHandle, CapturedRequest};
use crate::capture::prefetch;
use crate::capture::prefetch::{Prefetch, together};
use crate::capture::recorder::CaptureRecorder;
use crate::export::otlp::pending_spans::PendingSpans;
use crate::export::registry::drops::{DropReason, Drops};
use crate::export::trace_context::RequestTrace;
use crate::measure::observer::Progress;
use crate::measure::record::RequestRecord;
use crate::measure::time::Gap;

/// Interval between two drains.
pub const DRAIN_INTERVAL: Gap = Gap::from_millis(100);

/// Maximum number of queued reports: 20,000 requests per second for two drain intervals. It takes 32 KiB, at worst
/// about 15 MiB of records, and 8 MiB of short bodies for a capture.
const QUEUE_CAPACITY: usize = 4_096;

/// A request that has ended.
#[derive(Debug)]
pub struct FinishedRequest {
    /// Measurements of the request.
    pub record: RequestRecord,
    /// Trace made when the request started, if tracing is enabled.
    pub trace: Option<RequestTrace>,
    /// Additional data for the capture, if there is one.
    pub capture_handle: Option<CaptureHandle>,
    /// Spans that wait for the session that the capture finds.
    pub spans: Option<Box<PendingSpans>>,
}

impl From<RequestRecord> for FinishedRequest {
    fn from(record: RequestRecord) -> Self {
        Self { record, trace: None, capture_handle: None, spans: None }
    }
}

impl CapturedRequest for FinishedRequest {
    fn parts(&mut self) -> Option<(&mut CaptureHandle, &RequestRecord)> {
        Some((self.capture_handle.as_mut()?, &self.record))
    }

    fn set_session(&mut self, session: &str) {
        self.spans.iter_mut().for_each(|spans| spans.set_conversation(session));
    }
}

/// A queued report.
#[derive(Debug)]
pub(in crate::export) enum QueuedReport {
    /// A request ended.
    Finished(Box<FinishedRequest>),
    /// A request of a run ended; the second value is its lag behind the plan.
    Replayed(Box<(RequestRecord, Gap)>),
    /// A long stream made progress.
    Progress(Box<Progress>),
}

impl Prefetch for QueuedReport {
    fn fetch(&mut self) {
        match self {
            Self::Finished(finished) => {
                black_box((finished.trace.is_some(), finished.capture_handle.is_some()));
                prefetch::record(&finished.record);
            }
            Self::Replayed(replayed) => prefetch::record(&replayed.0),
            Self::Progress(_) => {}
        }
    }
}

#[derive(Debug)]
struct ReportQueue {
    reports: ArrayQueue<QueuedReport>,
    half_full: Notify,
    drops: Arc<Drops>,
    capture: OnceLock<Arc<CaptureRecorder>>,
}

/// Entry point for the proxy's reports. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Reporter(Arc<ReportQueue>);

impl Reporter {
    /// Reports a request that ended.
    pub fn finished(&self, finished: FinishedRequest) {
        self.push(QueuedReport::Finished(Box::new(finished)));
    }

    /// Reports a request of a run that ended; `lag` is its delay behind the plan.
    pub fn replayed(&self, record: RequestRecord, lag: Gap) {
        self.push(QueuedReport::Replayed(Box::new((record, lag))));
    }

    /// Reports the progress of a long stream.
    pub fn progress(&self, progress: Progress) {
        self.push(QueuedReport::Progress(Box::new(progress)));
    }

    fn push(&self, report: QueuedReport) {
        let queue = &*self.0;
        if let Err(report) = queue.reports.push(report) {
            queue.drops.add(DropReason::Records, 1);
            if let (QueuedReport::Finished(finished), Some(capture)) = (report, queue.capture.get())
                && finished.capture_handle.is_some()
            {
                capture.count_lost();
            }
        }
        if queue.reports.len() > queue.reports.capacity() / 2 {
            queue.half_full.notify_one();
        }
    }
}

/// Receiving end of the queue.
#[derive(Debug)]
pub(in crate::export) struct ReportReceiver(Arc<ReportQueue>);

impl ReportReceiver {
    /// Creates both ends of a queue.
    pub(in crate::export) fn new(drops: Arc<Drops>) -> (Reporter, Self) {
        Self::with_capacity(QUEUE_CAPACITY, drops)
    }

    fn with_capacity(capacity: usize, drops: Arc<Drops>) -> (Reporter, Self) {
        let (reports, capture) = (ArrayQueue::new(capacity), OnceLock::new());
        let queue = Arc::new(ReportQueue { reports, half_full: Notify::new(), drops, capture });
        (Reporter(Arc::clone(&queue)), Self(queue))
    }

    /// Removes the queued reports, at most one full queue, so that busy reporters cannot hold the reader forever.
    pub(in crate::export) fn drain(&self) -> impl Iterator<Item = QueuedReport> {
        let reports = &self.0.reports;
        let mut left = reports.capacity();
        let fetched = move || {
            let fetched = together(iter::from_fn(|| reports.pop()).take(left));
            left -= fetched.len();
            (!fetched.is_empty()).then_some(fetched)
        };
        iter::from_fn(fetched).flatten()
    }

    /// Forwards counted requests to this capture from now on.
    pub(in crate::export) fn set_capture(&self, capture: Arc<CaptureRecorder>) {
        let _first = self.0.capture.set(capture).is_ok();
    }

    pub(in crate::export) fn capture(&self) -> Option<&Arc<CaptureRecorder>> {
        self.0.capture.get()
    }

    /// Forwards a counted request to the capture, if there is one.
    pub(in crate::export) fn forward(&self, finished: Box<FinishedRequest>) {
        if let Some(capture) = self.capture() {
            capture.end_request(finished);
        }
    }

    /// Waits until the queue is more than half full.
    pub(in crate::export) async fn half_full(&self) {
        self.0.half_full.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::thread;

    use super::*;
    use crate::capture::retention::Retention;
    use crate::capture::settings::CaptureSettings;
    use crate::capture::stats::RecordOutcome;
    use crate::clock::Clock;
    use crate::export::fixtures::record;

    #[test]
    fn a_full_queue_drops_the_record_and_counts_it() {
        let drops = Arc::<Drops>::default();
        let (reporter, inbox) = ReportReceiver::with_capacity(4, Arc::clone(&drops));
        (0..7).for_each(|_| reporter.finished(record().into()));
        assert_eq!(drops.count(DropReason::Records), 3);
        assert_eq!(inbox.drain().count(), 4);
        assert_eq!(inbox.drain().count(), 0);
        reporter.finished(record().into());
        assert_eq!((inbox.drain().count(), drops.count(DropReason::Records)), (1, 3));
    }

    /// Creates a capture in this folder, and requests for it.
    fn captured(folder: &Path) -> (Arc<CaptureRecorder>, impl Fn() -> FinishedRequest) {
        let settings = CaptureSettings {
            folder: folder.to_owned(),
            flush: Gap::from_millis(1_000),
            round: Gap::ZERO,
            key: None,
            rotate: false,
            block: 16,
            names: 1,
            sample: crate::measure::sample_share::SampleShare::ALL,
            parquet: false,
            session: None,
            upload: None,
            retention: Retention { bytes: u64::MAX, age: Gap::from_millis(u64::MAX / 1_000_000) },
        };
        let capture = Arc::new(CaptureRecorder::start(settings, None, Clock::Monotonic).unwrap());
        let to = Arc::clone(&capture);
        let request =
            move || FinishedRequest { capture_handle: Some(to.begin_request(|_| None, 0)), ..record().into() };
        (capture, request)
    }

    #[test]
    fn what_finds_no_room_on_its_way_to_the_capture_is_counted_as_lost_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let (capture, request) = captured(folder.path());
        let (reporter, inbox) = ReportReceiver::with_capacity(2, Arc::default());
        inbox.set_capture(Arc::clone(&capture));
        (0..5).for_each(|_| reporter.finished(request()));
        // A request without a capture handle loses nothing.
        reporter.finished(record().into());
        for report in inbox.drain() {
            if let QueuedReport::Finished(finished) = report {
                inbox.forward(finished);
            }
        }
        capture.shutdown();
        let counts = capture.stats();
        assert_eq!((counts.count(RecordOutcome::Complete), counts.count(RecordOutcome::QueueFull)), (2, 3));
    }

    #[tokio::test]
    async fn nobody_is_woken_before_the_queue_is_half_full() {
        let (reporter, inbox) = ReportReceiver::with_capacity(4, Arc::default());
        reporter.finished(record().into());
        reporter.finished(record().into());
        let hurry = |inbox: &ReportReceiver| {
            let mut hurry = Box::pin(inbox.half_full());
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
        let (reporter, inbox) = ReportReceiver::with_capacity(64, Arc::clone(&drops));
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
        assert_eq!(taken as u64 + drops.count(DropReason::Records), 8_000);
    }
}
