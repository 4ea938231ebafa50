//! One sending thread: its queue of due requests, its connections, its open requests.
//!
//! The thread hands each request and its connection to the [paced writer](super::paced_writer) shortly before the due
//! time. In two cases this thread writes the request itself: only the due time shows whether it may be sent, or its
//! connection is encrypted. The pacer is the runtime's root future, which is polled before any task when its timer
//! fires, and it waits on one absolute timer. Tasks on this thread do all other work in between.

mod lead_time;

use std::cmp::Reverse;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use self::lead_time::{MAX_LEAD, MIN_LEAD};
use super::config::{Config, LoopMode, RunCommand};
use super::counters::RunCounters;
use super::exchange::ReplayExchange;
use super::job::ReplayRequest;
use super::paced_writer::PacedWriter;
use super::pool::ConnectionReuse;
use super::priority::CoreTime;
use super::worker_context::SendWorker;
use crate::clock::{Clock, Pacer};
use crate::measure::text_collector::TextBudget;
use crate::measure::time::{Gap, Stamp};
use crate::replay::result::row::CompletedRequest;

/// Limit on encoded requests per thread.
const MAX_QUEUED_REQUESTS: usize = 4_096;
/// Connections are opened this long ahead.
const PRECONNECT_AHEAD: Gap = Gap::from_millis(200);
const PRECONNECT_INTERVAL: Gap = Gap::from_millis(10);
/// Tasks polled between two checks of timers and sockets: the longest wait of a due request, in tasks.
const EVENT_INTERVAL_TASKS: u32 = 4;

impl SendWorker {
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
        let waits = config.loop_mode == LoopMode::Closed || config.slots.is_some();
        let lead = if waits || config.tls.is_some() { (Gap::ZERO, Gap::ZERO) } else { (MIN_LEAD, MAX_LEAD) };
        let worker = Rc::new(SendWorker::new(config, counters, done, pen, texts, begin, lead));
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
            let mut counts = vec![0; worker.pools.len()];
            for Reverse(due) in worker.queue.borrow().iter().filter(|Reverse(due)| due.at <= horizon) {
                counts[due.item.target % worker.pools.len()] += 1;
            }
            for (pool, count) in worker.pools.iter().zip(counts) {
                pool.preconnect(count, now);
            }
        }
        Clock::Monotonic.sleep(PRECONNECT_INTERVAL).await;
    }
}
