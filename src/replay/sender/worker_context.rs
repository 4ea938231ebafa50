//! State of a sending thread: its queue of due requests, its sessions, its connections.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use tokio::sync::Notify;

use super::config::{Config, LoopMode, SessionMode};
use super::counters::RunCounters;
use super::job::{ReplayRequest, WireRequest};
use super::paced_writer::PacedWriter;
use super::pool::TargetPool;
use super::session::ReplaySession;
use super::target::{TargetConnector, TargetUrl};
use super::timer_queue::TimerEntry;
use crate::clock::Clock;
use crate::measure::text_collector::TextBudget;
use crate::measure::time::{Gap, Stamp};
use crate::replay::request::conversation::{ConversationHistory, HistoryCache};
use crate::replay::result::row::CompletedRequest;

/// Limit on the histories of idle sessions, in bytes over all threads.
const MAX_HISTORY_BYTES: usize = 256 << 20;

/// State of a sending thread, shared by its tasks.
pub(in crate::replay) struct SendWorker {
    pub(super) config: Arc<Config>,
    pub(super) counters: Arc<RunCounters>,
    pub(super) pools: Vec<Rc<TargetPool>>,
    done: SyncSender<Box<CompletedRequest>>,
    pub(super) paced_writer: Arc<PacedWriter>,
    /// Minimum and maximum lead of a dispatch over its due time.
    pub(super) lead: (Gap, Gap),
    pub(super) queue: RefCell<BinaryHeap<Reverse<TimerEntry<ReplayRequest>>>>,
    pub(super) sessions: RefCell<HashMap<String, ReplaySession>>,
    /// Histories of idle sessions.
    history_cache: RefCell<HistoryCache>,
    /// Memory budget for the texts of open responses.
    text_budget: TextBudget,
    /// Later turns that wait for their predecessors.
    pub(super) waiting: Cell<usize>,
    in_flight: Cell<u32>,
    /// Signals a new queue entry, or the end of the last open request.
    pub(super) changed: Notify,
    begin: Stamp,
    /// No turn is due from this time on.
    session_deadline: Option<Stamp>,
    /// Nothing more is sent.
    pub(super) closing: Cell<bool>,
}

impl SendWorker {
    /// `lead` is the minimum and maximum lead of a dispatch over its due time.
    pub(super) fn new(
        config: Arc<Config>,
        counters: Arc<RunCounters>,
        done: SyncSender<Box<CompletedRequest>>,
        paced_writer: Arc<PacedWriter>,
        text_budget: TextBudget,
        begin: Stamp,
        lead: (Gap, Gap),
    ) -> Self {
        let pool = |target: &TargetUrl| {
            let tls = config.tls.clone().filter(|_| target.tls);
            Rc::new(TargetPool::new(
                TargetConnector::new(target.clone(), tls, config.connect_timeout),
                config.connections,
            ))
        };
        Self {
            pools: config.targets.iter().map(pool).collect(),
            session_deadline: config.session_time_limit.map(|until| begin.after(until)),
            history_cache: RefCell::new(HistoryCache::new(MAX_HISTORY_BYTES / config.workers.max(1))),
            config,
            counters,
            done,
            paced_writer,
            lead,
            queue: RefCell::default(),
            sessions: RefCell::default(),
            text_budget,
            waiting: Cell::new(0),
            in_flight: Cell::new(0),
            changed: Notify::new(),
            begin,
            closing: Cell::new(false),
        }
    }

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
    /// `had_token` is true if it was counted as streaming.
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
    pub(super) fn admit(&self, job: ReplayRequest) {
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
        match job.planned_values.think {
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

    pub(super) fn is_finished(&self) -> bool {
        self.queue.borrow().is_empty() && self.waiting.get() == 0 && self.in_flight.get() == 0
    }
}
