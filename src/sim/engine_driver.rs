//! Connects replies with the engine: submits jobs, distributes tokens, and paces the steps.
//!
//! One lock protects the engine; it is taken once per request and once per step, never per token. Each reply receives
//! tokens through its own [`TokenQueue`].

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::options::SimOptions;
use super::token_queue::{TokenQueue, lock};
use crate::clock::{Clock, Pacer};
use crate::engine::stats::EngineStats;
use crate::engine::{Engine, EngineFinish, EngineJob, EngineOutput, QueueFull};
use crate::measure::time::Stamp;

/// The engine and the replies that wait for it.
#[derive(Debug)]
pub(super) struct EngineDriver {
    state: Mutex<DriverState>,
    /// An event is due earlier than the pacing task expects.
    earlier: Notify,
}

#[derive(Debug)]
struct DriverState {
    engine: Engine,
    /// The reply of each sequence, and the sequence's choice index.
    feeds: HashMap<u64, (Arc<TokenQueue>, u32)>,
    /// The time that the pacing task waits for.
    awaits: Option<Stamp>,
    /// Reusable buffer for the outputs of one step.
    outputs: Vec<EngineOutput>,
}

/// The sequences of one reply. Drop aborts them unless they have ended.
#[derive(Debug)]
pub(super) struct JobHandle {
    hub: Arc<EngineDriver>,
    seqs: Range<u64>,
    over: bool,
}

impl JobHandle {
    /// Marks all sequences as ended, so that drop does not abort them.
    pub(super) fn ended(&mut self) {
        self.over = true;
    }

    pub(super) fn abort(&mut self, why: EngineFinish) {
        if !std::mem::replace(&mut self.over, true) {
            self.hub.abort(self.seqs.clone(), why);
        }
    }
}

impl Drop for JobHandle {
    fn drop(&mut self) {
        self.abort(EngineFinish::Abort);
    }
}

impl EngineDriver {
    pub(super) fn new(options: &SimOptions) -> Self {
        let state = DriverState {
            engine: Engine::new(&options.engine),
            feeds: HashMap::new(),
            awaits: None,
            outputs: Vec::new(),
        };
        Self { state: Mutex::new(state), earlier: Notify::new() }
    }

    /// Submits all sequences of one reply, in the order of the choices of `feed`.
    ///
    /// # Errors
    /// [`QueueFull`] if the engine's queue is full.
    pub(super) fn submit(
        self: &Arc<Self>,
        jobs: Vec<EngineJob>,
        feed: &Arc<TokenQueue>,
    ) -> Result<JobHandle, QueueFull> {
        let seqs = {
            let mut state = lock(&self.state);
            let seqs = state.engine.submit(Clock::Monotonic.now(), jobs)?;
            for (choice, seq) in (0..).zip(seqs.clone()) {
                state.feeds.insert(seq, (feed.clone(), choice));
            }
            self.wake_driver(&state);
            seqs
        };
        Ok(JobHandle { hub: self.clone(), seqs, over: false })
    }

    fn abort(&self, seqs: Range<u64>, why: EngineFinish) {
        let mut state = lock(&self.state);
        for seq in seqs.clone() {
            state.feeds.remove(&seq);
        }
        state.engine.abort(seqs, why);
        self.wake_driver(&state);
    }

    /// Wakes the pacing task if it would sleep past the next due time.
    fn wake_driver(&self, state: &DriverState) {
        if state.engine.due().is_some_and(|due| state.awaits.is_none_or(|awaits| due < awaits)) {
            self.earlier.notify_one();
        }
    }

    /// Calls `read` with the counters.
    pub(super) fn stats<T>(&self, read: impl FnOnce(&EngineStats) -> T) -> T {
        read(lock(&self.state).engine.stats())
    }

    /// Paces the engine while it is polled.
    ///
    /// # Errors
    /// If the kernel rejects the timer.
    pub(super) async fn drive(&self) -> io::Result<()> {
        let mut pacer = Pacer::new()?;
        loop {
            let Some(next) = self.step() else {
                self.earlier.notified().await;
                continue;
            };
            if Clock::Monotonic.now() >= next {
                // Very short steps are due before their computation ends. Without this yield no other task would run.
                tokio::task::yield_now().await;
            }
            tokio::select! {
                biased;
                on_time = pacer.until(next) => on_time?,
                () = self.earlier.notified() => {}
            }
        }
    }

    fn step(&self) -> Option<Stamp> {
        let mut state = lock(&self.state);
        let DriverState { engine, feeds, awaits, outputs } = &mut *state;
        *awaits = engine.step(Clock::Monotonic.now(), outputs);
        for output in outputs.drain(..) {
            if output.finished.is_some() {
                if let Some((feed, choice)) = feeds.remove(&output.seq) {
                    feed.push(choice, &output);
                }
            } else if let Some((feed, choice)) = feeds.get(&output.seq) {
                feed.push(*choice, &output);
            }
        }
        *awaits
    }
}
