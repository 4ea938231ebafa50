//! One sending thread: its queue of due requests, its connections, its open requests.
//!
//! The thread hands each request and its connection to the [paced writer](super::paced_writer) shortly before the due
//! time. In two cases this thread writes the request itself: only the due time shows whether it may be sent, or its
//! connection is encrypted. The pacer is the runtime's root future, which is polled before any task when its timer
//! fires, and it waits on one absolute timer. Tasks on this thread do all other work in between.

mod lead_time;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, watch};

use self::lead_time::{MAX_LEAD, MIN_LEAD};
use super::exchange::{ReplayExchange, ReplayRequest, WireRequest};
use super::paced_writer::PacedWriter;
use super::pool::{ConnectionReuse, TargetPool};
use super::priority::CoreTime;
use super::run::{Config, LoopMode, RunCommand, RunCounters, SessionMode};
use super::session::ReplaySession;
use super::target::TargetConnector;
use super::timer_queue::TimerEntry;
use crate::clock::{Clock, Pacer};
use crate::measure::text_collector::TextBudget;
use crate::measure::time::{Gap, Stamp};
use crate::replay::request::conversation::{ConversationHistory, HistoryCache};
use crate::replay::result::row::CompletedRequest;

/// Limit on encoded requests per thread.
const MAX_QUEUED_REQUESTS: usize = 4_096;
/// Limit on the histories of idle sessions, in bytes over all threads.
const MAX_HISTORY_BYTES: usize = 256 << 20;
/// Connections are opened this long ahead.
const PRECONNECT_AHEAD: Gap = Gap::from_millis(200);
const PRECONNECT_INTERVAL: Gap = Gap::from_millis(10);
/// Tasks polled between two checks of timers and sockets: the longest wait of a due request, in tasks.
const EVENT_INTERVAL_TASKS: u32 = 4;

/// State of a sending thread, shared by its tasks.
pub(in crate::replay) struct SendWorker {
    config: Arc<Config>,
    counters: Arc<RunCounters>,
    pools: Vec<Rc<TargetPool>>,
    done: SyncSender<Box<CompletedRequest>>,
    paced_writer: Arc<PacedWriter>,
    /// Minimum and maximum lead of a dispatch over its due time.
    lead: (Gap, Gap),
    queue: RefCell<BinaryHeap<Reverse<TimerEntry<ReplayRequest>>>>,
    sessions: RefCell<HashMap<String, ReplaySession>>,
    /// Histories of idle sessions.
    history_cache: RefCell<HistoryCache>,
    /// Memory budget for the texts of open responses.
    text_budget: TextBudget,
    /// Later turns that wait for their predecessors.
    waiting: Cell<usize>,
    in_flight: Cell<u32>,
    /// Signals a new queue entry, or the end of the last open request.
    changed: Notify,
    begin: Stamp,
    /// No turn is due from this time on.
    session_deadline: Option<Stamp>,
    /// Nothing more is sent.
    closing: Cell<bool>,
}

impl SendWorker {
    pub(in crate::replay) fn pool(&self, target: usize) -> &Rc<TargetPool> {
        &self.pools[target % self.pools.len()]
    }

    pub(in crate::replay) fn config(&self) -> &Config {
        &self.config
    }

    /// Counters of all threads.
    pub(in crate::replay) fn counters(&self) -> &RunCounters {
        &self.counters
    }

    /// Reports a send planned at this time to the measurement window; `others` requests were sent before it.
    pub(in crate::replay) fn record_send(&self, planned: Stamp, others: u64) {
        self.config.measurement_window.record_send(planned.since(self.begin), others);
    }

    pub(in crate::replay) fn paced_writer(&self) -> &PacedWriter {
        &self.paced_writer
    }

    pub(in crate::replay) fn inc_in_flight(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    pub(in crate::replay) fn dec_in_flight(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
        if self.in_flight.get() == 0 {
            self.changed.notify_one();
        }
    }

    pub(in crate::replay) fn text_budget(&self) -> TextBudget {
        self.text_budget.clone()
    }

    /// Ends a request: updates the counters, queues the session's next turn with `history`, and passes the record on.
    /// `had_token` says whether it was counted as streaming.
    pub(in crate::replay) fn on_request_end(
        &self,
        done: CompletedRequest,
        had_token: bool,
        history: Option<ConversationHistory>,
    ) {
        self.counters.dec_in_flight(had_token);
        self.on_turn_end(&done, history);
        // The collector outlives this thread.
        let _taken = self.done.send(Box::new(done)).is_ok();
    }

    /// Accepts a request from the feeder.
    fn admit(&self, job: ReplayRequest) {
        let at = match self.config.loop_mode {
            LoopMode::Open => self.begin.after(job.scheduled.at),
            // Slots admit waiting requests in queue order: new sessions do not overtake the next turns of old ones.
            LoopMode::Closed => self.begin.max(Clock::Monotonic.now()),
        };
        if self.config.sessions != SessionMode::Live {
            return self.enqueue(at, job);
        }
        let Some(name) = job.scheduled.entry.session.clone() else { return self.enqueue(at, job) };
        let mut sessions = self.sessions.borrow_mut();
        let session = sessions.entry(name.clone()).or_default();
        match (job.is_later_turn, session.busy, session.ended) {
            (true, true, _) | (true, false, None) => {
                session.busy = true;
                session.waiting.push_back(job);
                self.waiting.set(self.waiting.get() + 1);
            }
            (true, false, Some(ended)) => {
                // Rows are read far ahead. A turn read later than its due time could not have been sent before.
                let at = self.turn_due(&job, ended).max(Clock::Monotonic.now());
                if session.end_if_past(at, self.session_deadline).is_some() {
                    return;
                }
                session.busy = true;
                drop(sessions);
                let history = self.history_cache.borrow_mut().take(ended, name);
                self.enqueue_turn(at, job, history);
            }
            (false, ..) => {
                session.busy = true;
                drop(sessions);
                self.enqueue(at, job);
            }
        }
    }

    /// A turn's due time: the end of the previous response plus the think time, scaled as the trace is.
    fn turn_due(&self, job: &ReplayRequest, ended: Stamp) -> Stamp {
        match job.wanted.think {
            Some(think) => ended.after(Gap::from_nanos(think)),
            None if self.config.loop_mode == LoopMode::Closed => ended,
            None => self.begin.after(job.scheduled.at).max(ended),
        }
    }

    /// Queues a later turn with its history.
    fn enqueue_turn(&self, at: Stamp, mut job: ReplayRequest, history: Option<ConversationHistory>) {
        job.turn = Some(self.config.encoder.turn(&job.scheduled, job.form, Some(history)));
        self.enqueue(at, job);
    }

    fn on_turn_end(&self, done: &CompletedRequest, history: Option<ConversationHistory>) {
        let Some(name) = &done.scheduled.entry.session else { return };
        let mut sessions = self.sessions.borrow_mut();
        let Some(session) = sessions.get_mut(name) else { return };
        let ended = done.record.times.ended;
        session.ended = Some(ended);
        session.busy = false;
        if let Some(next) = session.waiting.pop_front() {
            let at = self.turn_due(&next, ended);
            self.waiting.set(self.waiting.get() - 1);
            if let Some(more) = session.end_if_past(at, self.session_deadline) {
                return self.waiting.set(self.waiting.get() - more);
            }
            session.busy = true;
            drop(sessions);
            self.enqueue_turn(at, next, history);
        } else if let Some(history) = history {
            drop(sessions);
            self.history_cache.borrow_mut().insert(ended, name.clone(), history);
        }
    }

    fn enqueue(&self, at: Stamp, mut job: ReplayRequest) {
        if self.closing.get() {
            return;
        }
        if job.wire.is_none() {
            let (bytes, body) = self.config.encoder.encode(&job.scheduled, job.form, job.target, job.turn.as_ref());
            job.wire = Some(WireRequest { bytes, body, _permit: None });
        }
        self.queue.borrow_mut().push(Reverse(TimerEntry { at, number: job.scheduled.number, item: job }));
        self.changed.notify_one();
    }

    /// Starts a request that is due or soon due.
    fn dispatch(self: &Rc<Self>, job: ReplayRequest, planned: Stamp, held: bool, slot: Option<OwnedSemaphorePermit>) {
        let session = job.scheduled.entry.session.clone();
        let after = session.clone().and_then(|name| self.sessions.borrow_mut().entry(name).or_default().ended.take());
        let session = session.filter(|_| self.config.connections == ConnectionReuse::PerSession);
        let io = self.pool(job.target).take(session.as_deref(), Clock::Monotonic.now());
        let mut exchange = ReplayExchange::new(self, job, planned, after, held, slot);
        match io {
            Some(mut io) if planned <= Clock::Monotonic.now() => {
                let (written, sent) = exchange.write_now(&mut io);
                tokio::task::spawn_local(async move { exchange.read(io, written, sent).await });
            }
            io => {
                tokio::task::spawn_local(async move { exchange.run(io).await });
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.queue.borrow().is_empty() && self.waiting.get() == 0 && self.in_flight.get() == 0
    }
}

pub(in crate::replay) struct SendWorkerArgs {
    pub(in crate::replay) config: Arc<Config>,
    pub(in crate::replay) counters: Arc<RunCounters>,
    pub(in crate::replay) done: SyncSender<Box<CompletedRequest>>,
    pub(in crate::replay) paced_writer: Arc<PacedWriter>,
    pub(in crate::replay) inbox: mpsc::Receiver<ReplayRequest>,
    pub(in crate::replay) command_rx: watch::Receiver<RunCommand>,
    pub(in crate::replay) begin: Stamp,
    /// Memory budget for the texts of open responses, over all threads.
    pub(in crate::replay) text_budget: TextBudget,
}

/// Sends until the feeder and every request have ended, or until a command stops it.
///
/// # Errors
/// The runtime or its timer cannot be created.
pub(in crate::replay) fn run_worker(seat: SendWorkerArgs) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL_TASKS)
        .build_local(Default::default())?;
    runtime.block_on(async move {
        let SendWorkerArgs {
            config,
            counters,
            done,
            paced_writer: pen,
            inbox,
            command_rx: order,
            begin,
            text_budget: texts,
        } = seat;
        let pool = |target: &super::target::TargetUrl| {
            let tls = config.tls.clone().filter(|_| target.tls);
            Rc::new(TargetPool::new(
                TargetConnector::new(target.clone(), tls, config.connect_timeout),
                config.connections,
            ))
        };
        let pools = config.targets.iter().map(pool).collect();
        let waits = config.loop_mode == LoopMode::Closed || config.slots.is_some();
        let lead = if waits || config.tls.is_some() { (Gap::ZERO, Gap::ZERO) } else { (MIN_LEAD, MAX_LEAD) };
        let silent = HistoryCache::new(MAX_HISTORY_BYTES / config.workers.max(1));
        let worker = Rc::new(SendWorker {
            session_deadline: config.session_time_limit.map(|until| begin.after(until)),
            config,
            counters,
            pools,
            done,
            paced_writer: pen,
            lead,
            queue: RefCell::default(),
            sessions: RefCell::default(),
            history_cache: RefCell::new(silent),
            text_budget: texts,
            waiting: Cell::new(0),
            in_flight: Cell::new(0),
            changed: Notify::new(),
            begin,
            closing: Cell::new(false),
        });
        tokio::task::spawn_local(preconnect(Rc::downgrade(&worker)));
        let paced = pace(&worker, inbox, order).await;
        worker.counters.add_core_time(CoreTime::for_current_thread());
        paced
    })
}

/// Dispatches due requests.
async fn pace(
    worker: &Rc<SendWorker>,
    mut inbox: mpsc::Receiver<ReplayRequest>,
    mut order: watch::Receiver<RunCommand>,
) -> io::Result<()> {
    let mut pacer = Pacer::new()?;
    let (closed, slots) = (worker.config.loop_mode == LoopMode::Closed, worker.config.slots.clone());
    let most = if closed { 8 } else { MAX_QUEUED_REQUESTS };
    // Time until which a lack of slots has delayed everything.
    let mut held_until = Stamp::default();
    let mut fed = false;
    loop {
        while !fed && worker.queue.borrow().len() < most {
            match inbox.try_recv() {
                Ok(job) => worker.admit(job),
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => fed = true,
            }
        }
        let now = Clock::Monotonic.now();
        let next = worker.next_due(now);
        if next.is_some_and(|(at, lead)| at <= now.after(lead)) {
            let mut held = false;
            let slot = match &slots {
                None => None,
                Some(slots) => match Arc::clone(slots).try_acquire_owned() {
                    Ok(slot) => Some(slot),
                    Err(_) => {
                        held = true;
                        tokio::select! {
                            slot = Arc::clone(slots).acquire_owned() => slot.ok(),
                            _ = order.wait_for(|order| *order != RunCommand::Run) => None,
                        }
                    }
                },
            };
            if *order.borrow() == RunCommand::Run {
                let due = worker.queue.borrow_mut().pop();
                if let Some(Reverse(due)) = due {
                    if held {
                        held_until = Clock::Monotonic.now();
                    }
                    let planned = if closed { Clock::Monotonic.now() } else { due.at };
                    let held = !closed && (held || planned < held_until);
                    worker.dispatch(due.item, planned, held, slot);
                }
                continue;
            }
        }
        if *order.borrow() != RunCommand::Run && !worker.closing.replace(true) {
            worker.paced_writer.shutdown();
            worker.queue.borrow_mut().clear();
            worker.sessions.borrow_mut().clear();
            worker.waiting.set(0);
            inbox.close();
            fed = true;
        }
        if fed && worker.is_finished() || *order.borrow() == RunCommand::Halt {
            return Ok(());
        }
        let wake = next.filter(|_| !worker.closing.get()).map(|(at, _)| worker.next_wakeup(now, at));
        let room = !fed && worker.queue.borrow().len() < most;
        tokio::select! {
            biased;
            woken = pacer.until(wake.unwrap_or_default()), if wake.is_some() => woken?,
            job = inbox.recv(), if room => match job {
                Some(job) => worker.admit(job),
                None => fed = true,
            },
            () = worker.changed.notified() => {}
            changed = order.changed() => if changed.is_err() { return Ok(()) },
        }
    }
}

/// Opens connections ahead of the requests that are due soon.
async fn preconnect(worker: std::rc::Weak<SendWorker>) {
    loop {
        {
            let Some(worker) = worker.upgrade() else { return };
            let now = Clock::Monotonic.now();
            let horizon = now.after(PRECONNECT_AHEAD);
            let mut wanted = vec![0; worker.pools.len()];
            for Reverse(due) in worker.queue.borrow().iter().filter(|Reverse(due)| due.at <= horizon) {
                wanted[due.item.target % worker.pools.len()] += 1;
            }
            for (pool, wanted) in worker.pools.iter().zip(wanted) {
                pool.preconnect(wanted, now);
            }
        }
        Clock::Monotonic.sleep(PRECONNECT_INTERVAL).await;
    }
}
