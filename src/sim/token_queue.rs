//! Passes tokens from the engine to one reply.
//!
//! The queue is bounded without backpressure: for a slow reader it merges tokens into fewer, larger pieces, as vLLM's
//! output collector does. A stream therefore never slows the engine and never loses a token.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::engine::{EngineOutput, FinishedJob};
use crate::measure::time::Stamp;

/// Pieces to keep separate for a slow reader.
const CAPACITY: usize = 64;

/// Ignores poisoning, because every critical section is a few assignments and leaves a valid state.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Progress of one choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenProgress {
    pub(super) choice: u32,
    /// Tokens of the choice so far.
    pub(super) upto: u32,
    /// When the engine generated them.
    pub(super) at: Stamp,
    pub(super) finished: Option<FinishedJob>,
}

/// The token queue of one reply, with all its choices.
#[derive(Debug)]
pub(super) struct TokenQueue {
    /// Tokens between two pieces of a choice; the first and the last piece are sent at once.
    interval: u32,
    inner: Mutex<TokenQueueState>,
}

#[derive(Debug)]
struct TokenQueueState {
    /// At most [`CAPACITY`] pieces plus one per choice.
    queue: VecDeque<TokenProgress>,
    /// Tokens passed on, per choice.
    passed: Vec<u32>,
    waker: Option<Waker>,
}

impl TokenQueue {
    /// Creates a queue for `choices` choices.
    pub(super) fn new(choices: usize, interval: u32) -> Self {
        let inner = TokenQueueState { queue: VecDeque::new(), passed: vec![0; choices], waker: None };
        Self { interval, inner: Mutex::new(inner) }
    }

    /// Adds the engine's output for `choice`.
    pub(super) fn push(&self, choice: u32, output: &EngineOutput) {
        let waker = {
            let mut inner = lock(&self.inner);
            let Some(passed) = inner.passed.get_mut(choice as usize) else { return };
            let held = output.generated.saturating_sub(*passed);
            if *passed > 0 && output.finished.is_none() && held < self.interval {
                return;
            }
            *passed = output.generated;
            let next = TokenProgress { choice, upto: output.generated, at: output.at, finished: output.finished };
            let full = inner.queue.len() >= CAPACITY;
            match inner.queue.iter_mut().rev().find(|progress| full && progress.choice == choice) {
                Some(last) => *last = next,
                None => inner.queue.push_back(next),
            }
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns the next piece when polled.
    pub(super) fn poll_next(&self, cx: &Context<'_>) -> Poll<TokenProgress> {
        let mut inner = lock(&self.inner);
        match inner.queue.pop_front() {
            Some(progress) => Poll::Ready(progress),
            None => {
                if !inner.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    inner.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Waits for the next piece, for callers that wait for nothing else.
    pub(super) async fn next(&self) -> TokenProgress {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineFinish;
    use crate::measure::time::Gap;

    fn output(generated: u32, last: bool) -> EngineOutput {
        let finished = FinishedJob {
            reason: EngineFinish::Length,
            cached_tokens: 0,
            queued: Gap::ZERO,
            first: Gap::ZERO,
            decode: Gap::ZERO,
        };
        EngineOutput { seq: 0, generated, at: Stamp::default(), finished: last.then_some(finished) }
    }

    fn drain(feed: &TokenQueue) -> Vec<(u32, u32)> {
        let cx = Context::from_waker(Waker::noop());
        let mut seen = Vec::new();
        while let Poll::Ready(progress) = feed.poll_next(&cx) {
            seen.push((progress.choice, progress.upto));
        }
        seen
    }

    #[test]
    fn the_first_token_comes_at_once_then_every_interval_and_the_last_at_once() {
        let feed = TokenQueue::new(1, 4);
        for generated in 1..=11 {
            feed.push(0, &output(generated, generated == 11));
        }
        assert_eq!(drain(&feed), [(0, 1), (0, 5), (0, 9), (0, 11)]);
    }

    #[test]
    fn choices_keep_their_own_count() {
        let feed = TokenQueue::new(2, 2);
        for generated in 1..=3 {
            feed.push(0, &output(generated, false));
            feed.push(1, &output(generated, false));
        }
        assert_eq!(drain(&feed), [(0, 1), (1, 1), (0, 3), (1, 3)]);
    }

    #[test]
    fn a_reader_that_is_far_behind_finds_larger_pieces_and_no_token_missing() {
        let feed = TokenQueue::new(2, 1);
        for generated in 1..=1_000 {
            feed.push(0, &output(generated, generated == 1_000));
        }
        feed.push(1, &output(1, false));
        let seen = drain(&feed);
        assert_eq!(seen.len(), CAPACITY + 1);
        assert_eq!(seen[CAPACITY - 2..], [(0, 63), (0, 1_000), (1, 1)]);
    }
}
