//! One sending thread: its queue of due moments, its connections, its open requests.
//!
//! Requests are given to the [pen](super::pen) a little before they are due, with a connection that waits for them. Where
//! only the due moment shows whether a request may go, or its connection is encrypted, this thread writes it itself: the
//! pacer is the runtime's root future, is polled before any other task when its timer fires, and waits on one absolute
//! timer. Everything else is done by tasks of this thread in between.

mod lead;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, watch};

use self::lead::{LEAD, MIN_LEAD};
use super::due::Due;
use super::exchange::{Exchange, Job, Wire};
use super::history::{History, Silent};
use super::pen::Pen;
use super::pool::{Connections, Pool};
use super::priority::CoreTime;
use super::results::Done;
use super::run::{Config, Counters, Loop, Order, Sessions};
use super::session::Session;
use super::target::Connector;
use crate::clock::{Clock, Pacer};
use crate::measure::text::Budget;
use crate::measure::time::{Gap, Stamp};

/// Requests that a thread holds encoded.
const MOST_QUEUED: usize = 4_096;
/// What was said in silent sessions, in bytes, of all threads together.
const MOST_SAID: usize = 256 << 20;
/// How far ahead connections are made.
const WARM_AHEAD: Gap = Gap::from_millis(200);
const WARM_EVERY: Gap = Gap::from_millis(10);
/// Tasks polled between two looks at timers and sockets: what a due moment waits for at most.
const TASKS_BETWEEN_LOOKS: u32 = 4;

/// See the module.
pub(super) struct Worker {
    config: Arc<Config>,
    counters: Arc<Counters>,
    pools: Vec<Rc<Pool>>,
    done: SyncSender<Box<Done>>,
    pen: Arc<Pen>,
    /// How long before its time a request is begun with, at least and at most.
    lead: (Gap, Gap),
    queue: RefCell<BinaryHeap<Reverse<Due<Job>>>>,
    sessions: RefCell<HashMap<String, Session>>,
    /// What was said in sessions that nobody speaks in.
    silent: RefCell<Silent>,
    /// What the texts of open answers may take.
    texts: Budget,
    /// Turns that wait for the one before them.
    waiting: Cell<usize>,
    open: Cell<u32>,
    /// Something was put into the queue, or the last open request has ended.
    changed: Notify,
    begin: Stamp,
    /// When sessions end.
    until: Option<Stamp>,
    /// No more sends.
    closing: Cell<bool>,
}

impl Worker {
    /// The connections to a target.
    pub(super) fn pool(&self, target: usize) -> &Rc<Pool> {
        &self.pools[target % self.pools.len()]
    }

    /// How the run is made.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// The counts of all threads.
    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// One is sent that was planned then, after so many others.
    pub(super) fn sends(&self, planned: Stamp, others: u64) {
        self.config.measured.sends(planned.since(self.begin), others);
    }

    /// Writes what is due.
    pub(super) fn pen(&self) -> &Pen {
        &self.pen
    }

    /// There is a request more to wait for.
    pub(super) fn takes(&self) {
        self.open.set(self.open.get() + 1);
    }

    /// There is one less.
    pub(super) fn lets_go(&self) {
        self.open.set(self.open.get() - 1);
        if self.open.get() == 0 {
            self.changed.notify_one();
        }
    }

    /// What the texts of open answers may take.
    pub(super) fn texts(&self) -> Budget {
        self.texts.clone()
    }

    /// A request has ended, of which it may have been told that it has a token; its session's next turn is to say
    /// `history` before.
    pub(super) fn ended(&self, done: Done, had_token: bool, history: Option<History>) {
        self.counters.ended(had_token);
        self.turn_ended(&done, history);
        // Whoever folds them ends after us.
        let _taken = self.done.send(Box::new(done)).is_ok();
    }

    /// Takes a request from the feed.
    fn admit(&self, job: Job) {
        let at = match self.config.arrivals {
            Loop::Open => self.begin.after(job.send.at),
            // Slots decide, and take in turn what waits: new sessions no sooner than the next turns of old ones.
            Loop::Closed => self.begin.max(Clock::Monotonic.now()),
        };
        if self.config.sessions != Sessions::Live {
            return self.enqueue(at, job);
        }
        let Some(name) = job.send.entry.session.clone() else { return self.enqueue(at, job) };
        let mut sessions = self.sessions.borrow_mut();
        let session = sessions.entry(name.clone()).or_default();
        match (job.follows, session.busy, session.ended) {
            (true, true, _) | (true, false, None) => {
                session.busy = true;
                session.waiting.push_back(job);
                self.waiting.set(self.waiting.get() + 1);
            }
            (true, false, Some(ended)) => {
                // Rows are read far ahead; of one that comes later still nobody could have sent it before.
                let at = self.turn_due(&job, ended).max(Clock::Monotonic.now());
                if session.ends(at, self.until).is_some() {
                    return;
                }
                session.busy = true;
                drop(sessions);
                let history = self.silent.borrow_mut().take(ended, name);
                self.say(at, job, history);
            }
            (false, ..) => {
                session.busy = true;
                drop(sessions);
                self.enqueue(at, job);
            }
        }
    }

    /// When a turn is due whose predecessor's answer ended: after the pause of the trace, stretched like the rest of it.
    fn turn_due(&self, job: &Job, ended: Stamp) -> Stamp {
        match job.wanted.think {
            Some(think) => ended.after(Gap::from_nanos(think)),
            None if self.config.arrivals == Loop::Closed => ended,
            None => self.begin.after(job.send.at).max(ended),
        }
    }

    /// Puts a later turn into the queue, with what was said before.
    fn say(&self, at: Stamp, mut job: Job, history: Option<History>) {
        job.turn = Some(self.config.encoder.turn(&job.send, job.form, Some(history)));
        self.enqueue(at, job);
    }

    fn turn_ended(&self, done: &Done, history: Option<History>) {
        let Some(name) = &done.send.entry.session else { return };
        let mut sessions = self.sessions.borrow_mut();
        let Some(session) = sessions.get_mut(name) else { return };
        let ended = done.record.times.ended;
        session.ended = Some(ended);
        session.busy = false;
        if let Some(next) = session.waiting.pop_front() {
            let at = self.turn_due(&next, ended);
            self.waiting.set(self.waiting.get() - 1);
            if let Some(more) = session.ends(at, self.until) {
                return self.waiting.set(self.waiting.get() - more);
            }
            session.busy = true;
            drop(sessions);
            self.say(at, next, history);
        } else if let Some(history) = history {
            drop(sessions);
            self.silent.borrow_mut().keep(ended, name.clone(), history);
        }
    }

    fn enqueue(&self, at: Stamp, mut job: Job) {
        if self.closing.get() {
            return;
        }
        if job.wire.is_none() {
            let (bytes, body) = self.config.encoder.encode(&job.send, job.form, job.target, job.turn.as_ref());
            job.wire = Some(Wire { bytes, body, _room: None });
        }
        self.queue.borrow_mut().push(Reverse(Due { at, number: job.send.number, what: job }));
        self.changed.notify_one();
    }

    /// Begins with a request that is due, or is going to be.
    fn fire(self: &Rc<Self>, job: Job, planned: Stamp, held: bool, slot: Option<OwnedSemaphorePermit>) {
        let session = job.send.entry.session.clone();
        let after = session.clone().and_then(|name| self.sessions.borrow_mut().entry(name).or_default().ended.take());
        let session = session.filter(|_| self.config.connections == Connections::PerSession);
        let io = self.pool(job.target).take(session.as_deref(), Clock::Monotonic.now());
        let mut exchange = Exchange::new(self, job, planned, after, held, slot);
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
        self.queue.borrow().is_empty() && self.waiting.get() == 0 && self.open.get() == 0
    }
}

/// What a thread is started with.
pub(super) struct Seat {
    pub(super) config: Arc<Config>,
    pub(super) counters: Arc<Counters>,
    pub(super) done: SyncSender<Box<Done>>,
    pub(super) pen: Arc<Pen>,
    pub(super) inbox: mpsc::Receiver<Job>,
    pub(super) order: watch::Receiver<Order>,
    pub(super) begin: Stamp,
    /// What the texts of open answers may take, of all threads together.
    pub(super) texts: Budget,
}

/// Sends until the feed has ended and every request has, or until told to stop.
///
/// # Errors
/// When the runtime or its timer cannot be made.
pub(super) fn work(seat: Seat) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(TASKS_BETWEEN_LOOKS)
        .build_local(Default::default())?;
    runtime.block_on(async move {
        let Seat { config, counters, done, pen, inbox, order, begin, texts } = seat;
        let pool = |target: &super::target::Target| {
            let tls = config.tls.clone().filter(|_| target.tls);
            Rc::new(Pool::new(Connector::new(target.clone(), tls, config.connect_timeout), config.connections))
        };
        let pools = config.targets.iter().map(pool).collect();
        let waits = config.arrivals == Loop::Closed || config.slots.is_some();
        let lead = if waits || config.tls.is_some() { (Gap::ZERO, Gap::ZERO) } else { (MIN_LEAD, LEAD) };
        let silent = Silent::new(MOST_SAID / config.workers.max(1));
        let worker = Rc::new(Worker {
            until: config.until.map(|until| begin.after(until)),
            config,
            counters,
            pools,
            done,
            pen,
            lead,
            queue: RefCell::default(),
            sessions: RefCell::default(),
            silent: RefCell::new(silent),
            texts,
            waiting: Cell::new(0),
            open: Cell::new(0),
            changed: Notify::new(),
            begin,
            closing: Cell::new(false),
        });
        tokio::task::spawn_local(warm(Rc::downgrade(&worker)));
        let paced = pace(&worker, inbox, order).await;
        worker.counters.had_cores(CoreTime::of_this_thread());
        paced
    })
}

/// Fires what is due. See the module.
async fn pace(
    worker: &Rc<Worker>,
    mut inbox: mpsc::Receiver<Job>,
    mut order: watch::Receiver<Order>,
) -> io::Result<()> {
    let mut pacer = Pacer::new()?;
    let (closed, slots) = (worker.config.arrivals == Loop::Closed, worker.config.slots.clone());
    let most = if closed { 8 } else { MOST_QUEUED };
    // Until when a lack of slots has held everything back.
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
                            _ = order.wait_for(|order| *order != Order::Run) => None,
                        }
                    }
                },
            };
            if *order.borrow() == Order::Run {
                let due = worker.queue.borrow_mut().pop();
                if let Some(Reverse(due)) = due {
                    if held {
                        held_until = Clock::Monotonic.now();
                    }
                    let planned = if closed { Clock::Monotonic.now() } else { due.at };
                    let held = !closed && (held || planned < held_until);
                    worker.fire(due.what, planned, held, slot);
                }
                continue;
            }
        }
        if *order.borrow() != Order::Run && !worker.closing.replace(true) {
            worker.pen.lift();
            worker.queue.borrow_mut().clear();
            worker.sessions.borrow_mut().clear();
            worker.waiting.set(0);
            inbox.close();
            fed = true;
        }
        if fed && worker.is_finished() || *order.borrow() == Order::Halt {
            return Ok(());
        }
        let wake = next.filter(|_| !worker.closing.get()).map(|(at, _)| worker.next_look(now, at));
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

/// Keeps connections ready for what is due soon.
async fn warm(worker: std::rc::Weak<Worker>) {
    loop {
        {
            let Some(worker) = worker.upgrade() else { return };
            let now = Clock::Monotonic.now();
            let horizon = now.after(WARM_AHEAD);
            let mut wanted = vec![0; worker.pools.len()];
            for Reverse(due) in worker.queue.borrow().iter().filter(|Reverse(due)| due.at <= horizon) {
                wanted[due.what.target % worker.pools.len()] += 1;
            }
            for (pool, wanted) in worker.pools.iter().zip(wanted) {
                pool.warm(wanted, now);
            }
        }
        Clock::Monotonic.sleep(WARM_EVERY).await;
    }
}
