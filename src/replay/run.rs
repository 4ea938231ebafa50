//! A run: its threads, from the first row to the last record.
//!
//! ```text
//! schedule -> feed thread -> sending threads -> records thread
//!             encodes        pair, read         folds, writes rows
//!                                 |
//!                                pen
//!                               writes
//! ```
//!
//! Each arrow is a bounded queue. The sending threads never wait for the other two, unless those are a second or 65,536
//! records behind; then the lag says so.

use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rustls::ClientConfig;
use tokio::sync::{Semaphore, mpsc, watch};

use super::collector::collect;
pub use super::counters::RunCounters;
use super::encode::RequestEncoder;
use super::feeder::feed;
use super::measurement_window::MeasurementWindow;
use super::output::RunOutput;
use super::paced_writer::PacedWriter;
use super::pool::ConnectionReuse;
use super::priority::{CoreTime, request_highest_priority};
use super::results::CompletedRequest;
use super::schedule::{RowError, ScheduledRequest};
use super::summary::{ReplayAccumulator, ReplaySummary};
use super::target::TargetUrl;
use super::worker::{SendWorkerArgs, run_worker};
use crate::clock::Clock;
use crate::measure::slo::Slos;
use crate::measure::text_collector::TextBudget;
use crate::measure::time::{Gap, Stamp};

/// Between the start of the threads and time zero: connections are made and the first requests encoded in it.
const START_DELAY: Gap = Gap::from_millis(500);
/// Encoded requests that wait for a sending thread.
const MAX_INBOX_REQUESTS: usize = 4_096;
/// Records that wait to be folded.
const MAX_QUEUED_RECORDS: usize = 65_536;

/// Requests whose latencies are shown while the run goes on.
const MAX_PROGRESS_SAMPLES: usize = 4_096;

/// Is called with every record, on the thread that folds them.
pub type CompletionCallback = Box<dyn FnMut(&CompletedRequest) + Send>;

/// What decides when a request is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoopMode {
    /// The schedule.
    #[default]
    Open,
    /// A slot that is free.
    Closed,
}

/// How the turns of a session follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionMode {
    /// A turn waits for the answer before it, and then for the pause of the trace.
    #[default]
    Live,
    /// Every turn at its own time.
    Timed,
}

/// How a run is made.
pub struct Config {
    /// Where requests go.
    pub targets: Vec<TargetUrl>,
    /// The client's side of TLS, if a target speaks it.
    pub tls: Option<Arc<ClientConfig>>,
    /// Makes the requests.
    pub encoder: RequestEncoder,
    /// What decides when.
    pub loop_mode: LoopMode,
    /// Requests in flight at most.
    pub slots: Option<Arc<Semaphore>>,
    /// How turns follow each other.
    pub sessions: SessionMode,
    /// How long sessions go on: a turn that is due later is not sent, and none after it.
    pub session_time_limit: Option<Gap>,
    /// Which connection a request takes.
    pub connections: ConnectionReuse,
    /// How long a connection may take to be made.
    pub connect_timeout: Gap,
    /// How long a request may take.
    pub timeout: Gap,
    /// Run time for each nanosecond of a pause between turns.
    pub think_time_scale: f64,
    /// The objectives.
    pub slos: Arc<Slos>,
    /// The gap that counts as a stall.
    pub stall: Gap,
    /// Sending threads.
    pub workers: usize,
    /// Which sends count.
    pub measurement_window: MeasurementWindow,
    /// Time zero, where it is not as soon as can be.
    pub begin: Option<Stamp>,
}

/// What every thread of a run is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunCommand {
    /// Send.
    Run,
    /// The time of a closed load is over: send nothing more, and let open requests end.
    End,
    /// The same, before its time.
    Drain,
    /// Stop now.
    Halt,
}

/// Where a run stands.
#[derive(Clone, Debug)]
pub struct RunProgress {
    /// Since time zero.
    pub age: Gap,
    /// Rows of the schedule that have been read.
    pub rows_read: u64,
    /// Requests that have been due and sent.
    pub sent: u64,
    /// Requests without an end yet.
    pub in_flight: u32,
    /// The counts so far, and the latencies of the last requests.
    pub summary: ReplaySummary,
}

/// How a run ended.
#[derive(Debug)]
pub struct RunOutcome {
    /// The figures.
    pub summary: ReplaySummary,
    /// Time zero, wall clock, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Requests that have been due and sent.
    pub sent: u64,
    /// Whether requests were written by a thread of real-time priority, for which the system asks for a privilege.
    pub real_time: bool,
    /// What the sending threads had of the cores.
    pub core_time: CoreTime,
    /// Whether it was stopped before its end.
    pub stopped: bool,
    /// What went wrong first; the figures are of what was sent until then.
    pub error: Option<RunError>,
}

/// Why a run broke off.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The system gave no thread, timer or descriptor.
    #[error("cannot send: {0}")]
    System(#[from] io::Error),
    /// The trace cannot be read on.
    #[error("{0}")]
    Row(RowError),
    /// The result cannot be written.
    #[error("cannot write the result: {0}")]
    Output(io::Error),
    /// A thread of ours panicked.
    #[error("a thread of the run panicked")]
    Panicked,
}

/// A run that goes on.
pub struct ReplayRun {
    begin: Stamp,
    command_tx: watch::Sender<RunCommand>,
    counters: Arc<RunCounters>,
    accumulator: Arc<Mutex<ReplayAccumulator>>,
    feeder: JoinHandle<Result<(), RunError>>,
    workers: Vec<JoinHandle<io::Result<()>>>,
    paced_writer: (Arc<PacedWriter>, JoinHandle<bool>),
    collector: JoinHandle<io::Result<()>>,
}

impl ReplayRun {
    /// Starts to send what `schedule` gives; it is called on the thread that reads it. Rows of the result go to `output`.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn start<S>(
        config: Config,
        schedule: impl FnOnce() -> Result<S, RowError> + Send + 'static,
        output: Option<RunOutput>,
    ) -> io::Result<Self>
    where
        S: Iterator<Item = Result<ScheduledRequest, RowError>>,
    {
        Self::start_watched(config, schedule, output, None)
    }

    /// The same, and somebody is told of every record.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn start_watched<S>(
        config: Config,
        schedule: impl FnOnce() -> Result<S, RowError> + Send + 'static,
        output: Option<RunOutput>,
        watcher: Option<CompletionCallback>,
    ) -> io::Result<Self>
    where
        S: Iterator<Item = Result<ScheduledRequest, RowError>>,
    {
        // Threads begin with the priority of the one that makes them. A new one that had to ask for its own would first
        // wait for a core, and time zero would pass meanwhile.
        let starter = thread::Builder::new().name("start".to_owned()).spawn(move || {
            // Without it the threads are as all others are.
            _ = request_highest_priority();
            Self::start_threads(config, schedule, output, watcher)
        })?;
        starter.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts a run panicked")))
    }

    fn start_threads<S>(
        config: Config,
        schedule: impl FnOnce() -> Result<S, RowError> + Send + 'static,
        output: Option<RunOutput>,
        watcher: Option<CompletionCallback>,
    ) -> io::Result<Self>
    where
        S: Iterator<Item = Result<ScheduledRequest, RowError>>,
    {
        crate::net::io::enable_rx_timestamps();
        let soon = Clock::Monotonic.now().after(START_DELAY);
        let begin = config.begin.map_or(soon, |begin| begin.max(soon));
        let fold = Arc::new(Mutex::new(ReplayAccumulator::new(
            begin,
            Arc::clone(&config.slos),
            config.measurement_window.clone(),
        )));
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
            let (fold, config) = (Arc::clone(&fold), Arc::clone(&config));
            thread::Builder::new()
                .name("records".to_owned())
                .spawn(move || collect(&records, &fold, &config, begin, output, watcher))?
        };
        Ok(Self {
            begin,
            command_tx: order,
            counters,
            accumulator: fold,
            feeder,
            workers,
            paced_writer: pen,
            collector: folder,
        })
    }

    /// Its counts, which go on.
    pub fn counters(&self) -> Arc<RunCounters> {
        Arc::clone(&self.counters)
    }

    /// Time zero.
    pub fn begin(&self) -> Stamp {
        self.begin
    }

    /// Where it stands.
    pub fn progress(&self) -> RunProgress {
        let summary =
            self.accumulator.lock().unwrap_or_else(PoisonError::into_inner).summary(Some(MAX_PROGRESS_SAMPLES));
        RunProgress {
            age: self.age(),
            rows_read: self.counters.rows_read(),
            sent: self.counters.sent(),
            in_flight: self.counters.in_flight(),
            summary,
        }
    }

    /// How long ago time zero was.
    pub fn age(&self) -> Gap {
        Clock::Monotonic.now().since(self.begin)
    }

    /// Gives an order.
    pub fn send_command(&self, order: RunCommand) {
        self.command_tx.send_replace(order);
    }

    /// Whether everything has ended.
    pub fn is_over(&self) -> bool {
        self.collector.is_finished() && self.feeder.is_finished()
    }

    /// Waits for the end, and gives the result.
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
            summary: self.accumulator.lock().unwrap_or_else(PoisonError::into_inner).summary(None),
            started_unix_ns: Clock::Monotonic.unix_nanos(self.begin),
            sent: self.counters.sent(),
            real_time: matches!(penned, Ok(true)),
            core_time: self.counters.core_time(),
            stopped: matches!(*self.command_tx.borrow(), RunCommand::Drain | RunCommand::Halt),
            error: fed.and(worked).and(penned).and(written).err(),
        }
    }
}
