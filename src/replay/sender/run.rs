//! A run: its threads, from the first row to the last record.
//!
//! ```text
//! schedule -> feeder thread -> sending threads -> collector thread
//!             encodes          match, read        aggregates, writes rows
//!                                   |
//!                              paced writer
//!                                 writes
//! ```
//!
//! Each arrow is a bounded queue. The sending threads wait for the feeder only if it is a second behind, and for the
//! collector only if it is 65,536 records behind. The lag then shows it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};

use tokio::sync::{mpsc, watch};

use super::collector::collect;
pub use super::config::{CompletionCallback, Config, LoopMode, RunCommand, SessionMode};
pub use super::counters::RunCounters;
use super::feeder::feed;
use super::paced_writer::PacedWriter;
use super::priority::{CoreTime, request_highest_priority};
use super::worker::{SendWorkerArgs, run_worker};
use crate::clock::Clock;
use crate::measure::text_collector::TextBudget;
use crate::measure::time::{Gap, Stamp};
use crate::replay::plan::schedule::{RowError, ScheduledRequest};
use crate::replay::result::output::RunOutput;

/// Time from the start of the threads to time zero, for the first connections and encoded requests.
const START_DELAY: Gap = Gap::from_millis(500);
/// Limit on encoded requests that wait for one sending thread.
const MAX_INBOX_REQUESTS: usize = 4_096;
/// Limit on records that wait for the collector.
const MAX_QUEUED_RECORDS: usize = 65_536;

/// A run's progress.
#[derive(Clone, Copy, Debug)]
pub struct RunProgress {
    /// Time since time zero.
    pub age: Gap,
    /// Schedule rows read so far.
    pub rows_read: u64,
    /// Requests sent so far.
    pub sent: u64,
    /// Requests that have not ended.
    pub in_flight: u32,
}

/// A run's outcome.
#[derive(Debug)]
pub struct RunOutcome {
    /// Wall-clock time zero, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Requests sent.
    pub sent: u64,
    /// True if the paced writer had real-time priority, which needs a privilege.
    pub real_time: bool,
    /// Core time of the sending threads.
    pub core_time: CoreTime,
    /// True if a command stopped it early.
    pub stopped: bool,
    /// The first error; the records cover the requests sent before it.
    pub error: Option<RunError>,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The system refused a thread, timer or descriptor.
    #[error("cannot send: {0}")]
    System(#[from] io::Error),
    /// The trace is unreadable.
    #[error("{0}")]
    Row(RowError),
    /// The result cannot be written.
    #[error("cannot write the result: {0}")]
    Output(io::Error),
    /// A thread panicked.
    #[error("a thread of the run panicked")]
    Panicked,
}

/// A run in progress.
pub struct ReplayRun {
    begin: Stamp,
    command_tx: watch::Sender<RunCommand>,
    counters: Arc<RunCounters>,
    feeder: JoinHandle<Result<(), RunError>>,
    workers: Vec<JoinHandle<io::Result<()>>>,
    paced_writer: (Arc<PacedWriter>, JoinHandle<bool>),
    collector: JoinHandle<io::Result<()>>,
}

impl ReplayRun {
    /// Starts to send the requests of `schedule`, which is called on the feeder thread. Rows of the result go to
    /// `output`, and every record to `on_completion`.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start<S>(
        config: Config,
        schedule: impl FnOnce() -> Result<S, RowError> + Send + 'static,
        output: Option<RunOutput>,
        on_completion: CompletionCallback,
    ) -> io::Result<Self>
    where
        S: Iterator<Item = Result<ScheduledRequest, RowError>>,
    {
        // New threads inherit their creator's priority. A thread that requested its own would first wait for a core,
        // and time zero would pass in the meantime.
        let starter = thread::Builder::new().name("start".to_owned()).spawn(move || {
            // If the system refuses, the threads run at normal priority.
            _ = request_highest_priority();
            Self::start_threads(config, schedule, output, on_completion)
        })?;
        starter.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts a run panicked")))
    }

    fn start_threads<S>(
        config: Config,
        schedule: impl FnOnce() -> Result<S, RowError> + Send + 'static,
        output: Option<RunOutput>,
        on_completion: CompletionCallback,
    ) -> io::Result<Self>
    where
        S: Iterator<Item = Result<ScheduledRequest, RowError>>,
    {
        crate::net::io::enable_rx_timestamps();
        let soon = Clock::Monotonic.now().after(START_DELAY);
        let begin = config.begin.map_or(soon, |begin| begin.max(soon));
        let (config, counters) = (Arc::new(config), Arc::<RunCounters>::default());
        let order = watch::Sender::new(RunCommand::Run);
        let (done, records) = sync_channel(MAX_QUEUED_RECORDS);
        let texts = TextBudget::default();
        let pen = PacedWriter::start()?;
        let (mut inboxes, mut workers) = (Vec::new(), Vec::new());
        for number in 0..config.workers.max(1) {
            let (inbox, jobs) = mpsc::channel(MAX_INBOX_REQUESTS);
            inboxes.push(inbox);
            let seat = SendWorkerArgs {
                config: Arc::clone(&config),
                counters: Arc::clone(&counters),
                done: done.clone(),
                paced_writer: Arc::clone(&pen.0),
                inbox: jobs,
                command_rx: order.subscribe(),
                begin,
                text_budget: texts.clone(),
            };
            workers.push(thread::Builder::new().name(format!("send-{number}")).spawn(move || run_worker(seat))?);
        }
        drop(done);
        let feeder = {
            let (config, counters, order) = (Arc::clone(&config), Arc::clone(&counters), order.subscribe());
            thread::Builder::new().name("feed".to_owned()).spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
                let fed = schedule()
                    .and_then(|schedule| runtime.block_on(feed(schedule, &config, &counters, inboxes, order, begin)));
                fed.map_err(RunError::Row)
            })?
        };
        let folder = {
            let config = Arc::clone(&config);
            thread::Builder::new()
                .name("records".to_owned())
                .spawn(move || collect(&records, &config, begin, output, on_completion))?
        };
        Ok(Self { begin, command_tx: order, counters, feeder, workers, paced_writer: pen, collector: folder })
    }

    /// Live counters, shared with the run's threads.
    pub fn counters(&self) -> Arc<RunCounters> {
        Arc::clone(&self.counters)
    }

    /// Time zero.
    pub fn begin(&self) -> Stamp {
        self.begin
    }

    /// A snapshot of the progress.
    pub fn progress(&self) -> RunProgress {
        RunProgress {
            age: self.age(),
            rows_read: self.counters.rows_read(),
            sent: self.counters.sent(),
            in_flight: self.counters.in_flight(),
        }
    }

    /// Time since time zero.
    pub fn age(&self) -> Gap {
        Clock::Monotonic.now().since(self.begin)
    }

    /// Sends a command to every thread.
    pub fn send_command(&self, order: RunCommand) {
        self.command_tx.send_replace(order);
    }

    /// True if the feeder and the collector have ended.
    pub fn is_over(&self) -> bool {
        self.collector.is_finished() && self.feeder.is_finished()
    }

    /// Waits for the end and returns the outcome.
    pub fn finish(self) -> RunOutcome {
        let fed = self.feeder.join().unwrap_or(Err(RunError::Panicked));
        let mut worked = Ok(());
        for worker in self.workers {
            let ended = worker.join().map_or(Err(RunError::Panicked), |ended| ended.map_err(RunError::System));
            worked = worked.and(ended);
        }
        let (pen, thread) = self.paced_writer;
        pen.shutdown();
        let penned = thread.join().map_err(|_| RunError::Panicked);
        let written = self.collector.join().map_or(Err(RunError::Panicked), |ended| ended.map_err(RunError::Output));
        RunOutcome {
            started_unix_ns: Clock::Monotonic.unix_nanos(self.begin),
            sent: self.counters.sent(),
            real_time: matches!(penned, Ok(true)),
            core_time: self.counters.core_time(),
            stopped: matches!(*self.command_tx.borrow(), RunCommand::Drain | RunCommand::Halt),
            error: fed.and(worked).and(penned).and(written).err(),
        }
    }
}
