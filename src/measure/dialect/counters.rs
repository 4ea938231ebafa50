//! Counts that servers report.

use crate::measure::json_walker::JsonWalker;

/// Rejects implausibly large counts: a single one would distort every sum for good.
pub(in crate::measure) fn believed(count: Option<u64>) -> Option<u64> {
    count.filter(|count| *count < 1 << 32)
}

/// Takes any value; `None` inside unless it is a [`believed`] count.
pub(super) fn count(walk: &mut JsonWalker<'_>) -> Option<Option<u64>> {
    walk.number().map(believed)
}

/// A running count for each of the first [`MAX_CHOICES`](Self::MAX_CHOICES) choices.
#[derive(Debug, Default)]
pub(in crate::measure) struct ChoiceCounters(Vec<(u32, u64)>);

impl ChoiceCounters {
    const MAX_CHOICES: usize = 128;

    /// Stores a choice's count; returns the previous one.
    pub(in crate::measure) fn set(&mut self, choice: u32, count: u64) -> Option<u64> {
        if let Some((_, before)) = self.0.iter_mut().find(|(index, _)| *index == choice) {
            return Some(std::mem::replace(before, count));
        }
        if self.0.len() < Self::MAX_CHOICES {
            self.0.push((choice, count));
        }
        None
    }

    /// The count of a choice; 0 if there is none.
    pub(in crate::measure) fn get(&self, choice: u32) -> u64 {
        self.0.iter().find(|(index, _)| *index == choice).map_or(0, |(_, count)| *count)
    }

    pub(in crate::measure) fn sum(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }
}
