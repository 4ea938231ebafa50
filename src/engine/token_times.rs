//! The times of a sequence's tokens, kept as numbers of steps.
//!
//! All sequences of a batch get their tokens at the ends of the same steps. One log of these ends serves all of them,
//! so a token costs no memory of its own.

use std::collections::VecDeque;
use std::ops::Range;

use crate::measure::time::Stamp;

/// Ends of the latest steps.
#[derive(Debug, Default)]
pub(super) struct StepLog {
    /// Number of the first step in `ends`.
    first: u64,
    ends: VecDeque<Stamp>,
}

impl StepLog {
    /// Number of the next step.
    pub(super) fn next(&self) -> u64 {
        self.first + self.ends.len() as u64
    }

    pub(super) fn push(&mut self, end: Stamp) {
        self.ends.push_back(end);
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Drops all steps before `step`.
    pub(super) fn forget_before(&mut self, step: u64) {
        let old = usize::try_from(step.saturating_sub(self.first)).unwrap_or(usize::MAX).min(self.ends.len());
        self.ends.drain(..old);
        self.first += old as u64;
    }

    /// Ends of adjacent steps, of those that are known.
    fn ends(&self, steps: &Range<u64>) -> impl ExactSizeIterator<Item = Stamp> + '_ {
        let place = |step: u64| usize::try_from(step.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let end = place(steps.end).min(self.ends.len());
        self.ends.range(place(steps.start).min(end)..end).copied()
    }
}

/// The steps in which a sequence got tokens.
#[derive(Debug, Default)]
pub(super) struct TokenSteps {
    /// Runs of adjacent steps before the last run.
    before: Vec<Range<u64>>,
    last: Range<u64>,
}

impl TokenSteps {
    /// Adds `count` steps from `step` on.
    pub(super) fn add(&mut self, step: u64, count: u64) {
        if self.last.end != step && !self.last.is_empty() {
            self.before.push(self.last.clone());
            self.last = step..step;
        } else if self.last.is_empty() {
            self.last = step..step;
        }
        self.last.end += count;
    }

    /// The earliest step; `None` before the first token.
    pub(super) fn first(&self) -> Option<u64> {
        let first = self.before.first().unwrap_or(&self.last);
        (!first.is_empty()).then_some(first.start)
    }
}

/// The times at which a finished sequence got tokens, in order.
#[derive(Debug)]
pub struct TokenTimes<'a> {
    steps: &'a TokenSteps,
    log: &'a StepLog,
}

impl<'a> TokenTimes<'a> {
    pub(super) fn new(steps: &'a TokenSteps, log: &'a StepLog) -> Self {
        Self { steps, log }
    }

    /// One time per step that gave tokens.
    pub fn iter(&self) -> impl Iterator<Item = Stamp> + 'a {
        let log = self.log;
        self.runs().flat_map(|steps| log.ends(steps))
    }

    /// Number of times.
    pub fn count(&self) -> usize {
        self.runs().map(|steps| self.log.ends(steps).len()).sum()
    }

    fn runs(&self) -> impl Iterator<Item = &'a Range<u64>> + 'a {
        self.steps.before.iter().chain([&self.steps.last])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_between_tokens_is_kept_and_old_steps_are_forgotten() {
        let mut log = StepLog::default();
        (0..10).for_each(|at| log.push(Stamp::from_nanos(at * 10)));
        let mut steps = TokenSteps::default();
        assert_eq!(steps.first(), None);
        steps.add(3, 1);
        steps.add(4, 2);
        steps.add(8, 1);
        log.forget_before(3);
        let times = TokenTimes::new(&steps, &log);
        let nanos: Vec<_> = times.iter().map(Stamp::as_nanos).collect();
        assert_eq!((nanos, times.count(), steps.first(), log.len()), (vec![30, 40, 50, 80], 4, Some(3), 7));
    }
}
