//! The schedule computes each row's send time from the trace and the plan alone. Pure.
//!
//! Rows stream through four steps: time window, loop passes, time scaling, sharding. A planned time never depends on a
//! server's responses.

use crate::measure::glob::glob;
use crate::measure::time::Gap;
use crate::trace::prompt_text::PromptRow;
use crate::trace::rng::name_hash;
use crate::trace_file::row::TraceEntry;

/// Why a row cannot be read.
pub type RowError = Box<dyn std::error::Error + Send + Sync>;

/// A trace's rows in order of time.
pub type TraceRows = Box<dyn Iterator<Item = Result<TraceEntry, RowError>>>;

/// Which rows are sent, and how fast.
#[derive(Clone, Debug)]
pub struct ReplayPlan {
    /// Run time per trace time: 0.2 is five times as fast.
    pub stretch: f64,
    /// Start of the window, in trace time.
    pub from: Gap,
    /// End of the window, in trace time.
    pub to: Option<Gap>,
    /// Limit on send times, in run time.
    pub duration: Option<Gap>,
    /// Restart at the trace's end, until `duration`.
    pub repeat: bool,
    /// This process's share of the sends.
    pub shard: Shard,
    /// Renames models for the target.
    pub models: ModelMapping,
    /// Seed of all random draws.
    pub seed: u64,
}

impl Default for ReplayPlan {
    fn default() -> Self {
        Self {
            stretch: 1.0,
            from: Gap::ZERO,
            to: None,
            duration: None,
            repeat: false,
            shard: Shard::default(),
            models: ModelMapping::default(),
            seed: 0,
        }
    }
}

/// One of several processes that share a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 0.
    pub index: u64,
    /// Number of shards.
    pub count: u64,
}

impl Default for Shard {
    fn default() -> Self {
        Self { index: 0, count: 1 }
    }
}

impl Shard {
    /// True if a row belongs to this shard. A session stays in one shard; rows without a session alternate.
    fn contains(self, number: u64, entry: &TraceEntry) -> bool {
        self.count == 1 || entry.session.as_deref().map_or(number, name_hash) % self.count == self.index
    }
}

/// Renames models by pattern; the first match applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelMapping(Vec<(String, String)>);

impl ModelMapping {
    /// Takes (pattern, name) pairs.
    pub fn new(names: Vec<(String, String)>) -> Self {
        Self(names)
    }

    /// The model's name at the target. A row without a model matches `*`.
    pub fn rename(&self, model: Option<&str>) -> Option<String> {
        let renamed = self.0.iter().find(|(pattern, _)| glob(pattern, model.unwrap_or_default()));
        renamed.map_or_else(|| model.map(str::to_owned), |(_, name)| Some(name.clone()))
    }
}

/// A planned request.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduledRequest {
    /// Planned time since the run's start.
    pub at: Gap,
    /// Row number over all passes and shards.
    pub number: u64,
    /// Pass over the trace, from 0.
    pub pass: u32,
    /// The trace's row.
    pub entry: TraceEntry,
}

impl ScheduledRequest {
    /// The row for which the prompt is generated.
    pub fn row(&self) -> PromptRow<'_> {
        PromptRow { entry: &self.entry, number: self.number, pass: self.pass }
    }
}

/// Iterates over the planned requests of a plan, in order.
pub struct Schedule<O> {
    plan: ReplayPlan,
    open: O,
    rows: TraceRows,
    /// First time, last time and row count of this pass.
    pass_bounds: Option<(u64, u64, u64)>,
    pass: u32,
    /// Start of this pass, in trace time.
    offset: u64,
    number: u64,
    ended: bool,
}

impl<O: FnMut() -> Result<TraceRows, RowError>> Schedule<O> {
    /// Schedules the trace that `open` opens, once per pass.
    ///
    /// # Errors
    /// `open` fails.
    pub fn new(plan: ReplayPlan, mut open: O) -> Result<Self, RowError> {
        let rows = open()?;
        Ok(Self { plan, open, rows, pass_bounds: None, pass: 0, offset: 0, number: 0, ended: false })
    }

    /// The next row inside the window, with its time relative to the window's start.
    fn next_in_window(&mut self) -> Result<Option<TraceEntry>, RowError> {
        for entry in self.rows.by_ref() {
            let mut entry = entry?;
            let Some(at) = entry.at.checked_sub(self.plan.from.as_nanos()) else { continue };
            if self.plan.to.is_none_or(|to| entry.at < to.as_nanos()) {
                entry.at = at;
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// The next row of this pass or the next pass, in trace time.
    fn next_looped(&mut self) -> Result<Option<TraceEntry>, RowError> {
        loop {
            if let Some(entry) = self.next_in_window()? {
                let (first, last, rows) = self.pass_bounds.unwrap_or((entry.at, entry.at, 0));
                self.pass_bounds = Some((first.min(entry.at), last.max(entry.at), rows + 1));
                return Ok(Some(entry));
            }
            let Some((first, last, rows)) = self.pass_bounds.take().filter(|_| self.plan.repeat) else {
                return Ok(None);
            };
            // The gap between two passes is the mean gap between rows.
            let pause = (last - first).checked_div(rows.saturating_sub(1)).unwrap_or(0).max(1_000);
            self.offset = self.offset.saturating_add(last - first).saturating_add(pause);
            self.pass += 1;
            self.rows = (self.open)()?;
        }
    }

    fn next_request(&mut self) -> Result<Option<ScheduledRequest>, RowError> {
        while let Some(mut entry) = self.next_looped()? {
            let at = scale_time(entry.at.saturating_add(self.offset), self.plan.stretch);
            if self.plan.duration.is_some_and(|duration| at >= duration) {
                return Ok(None);
            }
            let number = self.number;
            self.number += 1;
            if !self.plan.shard.contains(number, &entry) {
                continue;
            }
            entry.model = self.plan.models.rename(entry.model.as_deref());
            if self.pass > 0 {
                entry.session = entry.session.map(|session| format!("{session}#{}", self.pass));
            }
            return Ok(Some(ScheduledRequest { at, number, pass: self.pass, entry }));
        }
        Ok(None)
    }
}

impl<O: FnMut() -> Result<TraceRows, RowError>> Iterator for Schedule<O> {
    type Item = Result<ScheduledRequest, RowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.next_request().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Scales a trace duration to run time.
pub fn scale_time(nanos: u64, stretch: f64) -> Gap {
    // Unscaled times stay exact: an `f64` has only 53 bits of precision.
    Gap::from_nanos(if stretch == 1.0 { nanos } else { (nanos as f64 * stretch).round() as u64 })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn rows(times: &[u64]) -> impl FnMut() -> Result<TraceRows, RowError> + use<> {
        let rows: Vec<TraceEntry> =
            times.iter().map(|at| TraceEntry { at: at * MS, ..TraceEntry::default() }).collect();
        move || Ok(Box::new(rows.clone().into_iter().map(Ok)))
    }

    fn sends(plan: ReplayPlan, times: &[u64]) -> Vec<ScheduledRequest> {
        Schedule::new(plan, rows(times)).unwrap().map(Result::unwrap).collect()
    }

    fn millis(sends: &[ScheduledRequest]) -> Vec<f64> {
        sends.iter().map(|send| send.at.as_millis()).collect()
    }

    #[test]
    fn a_trace_is_sent_at_its_own_times() {
        assert_eq!(millis(&sends(ReplayPlan::default(), &[0, 7, 3_000])), [0.0, 7.0, 3_000.0]);
    }

    #[test]
    fn time_is_stretched_after_the_window_was_cut_out() {
        let plan = ReplayPlan {
            stretch: 0.2,
            from: Gap::from_millis(100),
            to: Some(Gap::from_millis(300)),
            ..ReplayPlan::default()
        };
        assert_eq!(millis(&sends(plan, &[0, 100, 250, 300])), [0.0, 30.0]);
    }

    #[test]
    fn a_loop_begins_again_one_average_pause_after_the_last_row_and_ends_with_the_duration() {
        let plan = ReplayPlan { repeat: true, duration: Some(Gap::from_millis(45)), ..ReplayPlan::default() };
        let sends = sends(plan, &[0, 10, 20]);
        assert_eq!(millis(&sends), [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert_eq!(sends.iter().map(|send| send.pass).collect::<Vec<_>>(), [0, 0, 0, 1, 1]);
        assert_eq!(sends.iter().map(|send| send.number).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn an_empty_trace_does_not_loop_for_ever() {
        let plan = ReplayPlan { repeat: true, ..ReplayPlan::default() };
        assert_eq!(sends(plan, &[]), []);
    }

    #[test]
    fn models_are_renamed_by_the_first_pattern_that_fits() {
        let models =
            ModelMapping::new(vec![("gpt-*".to_owned(), "llama".to_owned()), ("*".to_owned(), "other".to_owned())]);
        assert_eq!(models.rename(Some("gpt-4")).as_deref(), Some("llama"));
        assert_eq!(models.rename(Some("claude")).as_deref(), Some("other"));
        assert_eq!(models.rename(None).as_deref(), Some("other"));
        assert_eq!(ModelMapping::default().rename(Some("m")).as_deref(), Some("m"));
    }

    proptest! {
        #[test]
        fn shards_share_the_sends_out_and_keep_sessions_whole(
            sessions in prop::collection::vec(prop::option::of(0_u8..6), 1..60), of in 1_u64..5,
        ) {
            let rows = move || -> Result<TraceRows, RowError> {
                let entry = |(at, session): (usize, &Option<u8>)| {
                    let session = session.map(|session| session.to_string());
                    Ok(TraceEntry { at: at as u64, session, ..TraceEntry::default() })
                };
                Ok(Box::new(sessions.iter().enumerate().map(entry).collect::<Vec<_>>().into_iter()))
            };
            let take = |shard| {
                let plan = ReplayPlan { shard, ..ReplayPlan::default() };
                Schedule::new(plan, rows.clone()).unwrap().map(Result::unwrap).collect::<Vec<_>>()
            };
            let whole = take(Shard::default());
            let parts: Vec<_> = (0..of).map(|index| take(Shard { index, count: of })).collect();
            let mut together: Vec<_> = parts.iter().flatten().cloned().collect();
            together.sort_by_key(|send| send.number);
            prop_assert_eq!(&together, &whole);
            let mut seen = BTreeSet::new();
            for part in &parts {
                let own: BTreeSet<_> = part.iter().filter_map(|send| send.entry.session.clone()).collect();
                prop_assert!(seen.is_disjoint(&own));
                seen.extend(own);
            }
        }
    }
}
