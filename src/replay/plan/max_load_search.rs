//! Searches the highest load level that meets its criteria: each step follows from the trials so far. Pure.
//!
//! # Algorithm
//! Levels double until one misses, or halve if the first misses. Then the search bisects on a logarithmic scale between
//! the highest level met and the lowest level missed, until their ratio is at most [`MAX_LEVEL_RATIO`]. The highest
//! level met then runs once more for longer. If it passes, it is the result; otherwise the search continues below it.
//!
//! # Confidence
//! The counts of all trials at a level are summed and judged by [`share_verdict`]. An inconclusive level runs again, at
//! most [`MAX_TRIALS_PER_LEVEL`] times in total; then the observed share decides, and the result is marked as not
//! confident. While levels still double, a level that looks met counts as met: the final trial reveals a mistake. A
//! level with growing concurrency is missed whatever its latencies, because these depend on the trial's duration. A
//! single short trial may look saturated by chance, so the level runs again, unless its counts are conclusive too.
//!
//! An invalid trial is no evidence about the server and is repeated. After [`MAX_TRIALS_PER_LEVEL`] invalid trials this
//! machine cannot send the level: it is not measured. Then the search goes no higher, confirms the highest level met
//! below, and its result has the level as [`SearchResult::not_measured`].
//!
//! The trials are the only state, so an interrupted search resumes from them.

use crate::measure::slo::criteria::{CriterionVerdict, ObservedShare, share_verdict};

/// Largest ratio of the lowest level missed to the highest level met in a final result.
pub const MAX_LEVEL_RATIO: f64 = 1.05;
/// Trials at a level that stays inconclusive.
pub const MAX_TRIALS_PER_LEVEL: usize = 3;
/// Levels that this machine cannot send before a search without a valid trial ends.
const MAX_UNSENDABLE_LEVELS: usize = 3;
/// Lower limit of the search, as a fraction of the first level.
const MIN_START_FRACTION: f64 = 1.0 / 1_024.0;
/// The search stops after this many trials.
const MAX_TRIALS: usize = 64;

/// A search's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaxLoadSearch {
    /// The first level.
    pub start: f64,
    /// Upper limit of all levels.
    pub max_level: f64,
    /// True if levels are whole numbers.
    pub integer_levels: bool,
}

/// One trial at a level.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelTrial {
    /// The load level.
    pub level: f64,
    /// The observed share for each criterion.
    pub seen: Vec<ObservedShare>,
    /// Concurrency kept growing.
    pub saturated: bool,
    /// The load was sent as planned.
    pub valid: bool,
    /// This was the long final trial.
    pub sustained: bool,
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SearchStep {
    /// Run a trial at this level.
    Measure(f64),
    /// Run the long trial at this level.
    Sustain(f64),
    /// The search has ended.
    End(SearchResult),
}

/// A search's result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SearchResult {
    /// The highest level met in the long trial.
    pub met: Option<f64>,
    /// The lowest level missed above `met`; `None` if `max_level` was met.
    pub missed: Option<f64>,
    /// The lowest level that this machine could not send, if it ended the search.
    pub not_measured: Option<f64>,
    /// True if the trials are conclusive for `met` and for `missed`.
    pub confident: bool,
    /// The highest level that surely meets the criteria, up to `met`.
    pub low: Option<f64>,
    /// The lowest level that surely misses them, above `met`.
    pub high: Option<f64>,
}

/// Most that a search can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchBounds {
    /// Different levels.
    pub levels: usize,
    /// Trials of them, without the long ones.
    pub trials: usize,
}

/// All trials of one level, combined.
#[derive(Clone, Debug)]
struct LevelStats {
    level: f64,
    /// Valid trials.
    trials: usize,
    sustained: bool,
    verdict: CriterionVerdict,
    /// This machine could not send the level.
    is_unsendable: bool,
}

impl MaxLoadSearch {
    /// Decides the next action from all trials so far.
    pub fn next(&self, trials: &[LevelTrial]) -> SearchStep {
        let known = level_stats(trials);
        let unsendable = lowest(&known, |known| known.is_unsendable);
        let missed = lowest(&known, LevelStats::is_missed);
        let end = [unsendable, missed].into_iter().flatten().reduce(f64::min);
        let growing = end.is_none();
        let below = |known: &&LevelStats| end.is_none_or(|end| known.level < end);
        let in_doubt = known.iter().filter(|known| !known.is_unsendable);
        let in_doubt = in_doubt.filter(below).find(|known| known.is_uncertain(growing));
        if let Some(known) = in_doubt.filter(|_| trials.len() < MAX_TRIALS) {
            return SearchStep::Measure(known.level);
        }
        let met = known.iter().filter(below).max_by(|a, b| a.level.total_cmp(&b.level));
        // Above what can be sent nothing is known, and between it and a level met no limit of the server is found.
        let not_measured = unsendable.filter(|level| missed.is_none_or(|missed| *level < missed));
        let next = match (met, missed) {
            (Some(_), _) if not_measured.is_some() => None,
            // A machine that cannot send the third level either will not send a useful one.
            (None, _) if not_measured.is_some() => {
                let tried = known.iter().filter(|known| known.is_unsendable).count();
                not_measured.filter(|_| tried < MAX_UNSENDABLE_LEVELS).and_then(|level| self.round_level(level / 2.0))
            }
            (None, None) => Some(self.start),
            (Some(met), None) => self.round_level(met.level * 2.0).filter(|next| *next > met.level),
            (None, Some(missed)) => self.round_level(missed / 2.0).filter(|next| *next < missed),
            (Some(met), Some(missed)) => self.midpoint(met.level, missed),
        };
        let next = next.filter(|next| end.is_none_or(|end| *next < end));
        if let Some(next) = next.filter(|_| trials.len() < MAX_TRIALS) {
            return SearchStep::Measure(next);
        }
        let surely = |verdict| move |known: &&LevelStats| known.verdict == verdict && !known.is_unsendable;
        let high = known.iter().filter(surely(CriterionVerdict::No)).map(|known| known.level).reduce(f64::min);
        let without_met = SearchResult { missed, not_measured, high, ..SearchResult::default() };
        match met {
            Some(met) if !met.sustained => SearchStep::Sustain(met.level),
            Some(met) => SearchStep::End(SearchResult {
                met: Some(met.level),
                confident: met.verdict == CriterionVerdict::Yes && missed.is_none_or(|missed| high == Some(missed)),
                low: known
                    .iter()
                    .filter(|known| known.level <= met.level)
                    .filter(surely(CriterionVerdict::Yes))
                    .map(|known| known.level)
                    .reduce(f64::max),
                ..without_met
            }),
            None => SearchStep::End(without_met),
        }
    }

    /// The most levels and trials of a search. Halving below the first level excludes doubling above it.
    pub fn bounds(&self) -> SearchBounds {
        let up = (self.max_level / self.start).log2().ceil().max(0.0) as usize + 1;
        let down = (1.0 / MIN_START_FRACTION).log2() as usize;
        let down = if self.integer_levels { down.min(self.start.log2() as usize + 1) } else { down };
        // The interval of a factor of 2 is halved on a logarithmic scale.
        let halvings = (2.0_f64.ln() / MAX_LEVEL_RATIO.ln()).log2().ceil() as usize;
        let levels = (up.max(down + 1) + halvings).min(MAX_TRIALS);
        SearchBounds { levels, trials: (levels * MAX_TRIALS_PER_LEVEL).min(MAX_TRIALS) }
    }

    fn midpoint(&self, met: f64, missed: f64) -> Option<f64> {
        let middle = self.round_level((met * missed).sqrt()).filter(|_| missed / met > MAX_LEVEL_RATIO)?;
        // Rounding down would return 11 again as the middle of 11 and 13.
        let middle = if self.integer_levels { middle.max(met + 1.0) } else { middle };
        (met < middle && middle < missed).then_some(middle)
    }

    /// Rounds to a level that can be requested: three significant figures, or a whole number. `None` below the lower
    /// limit.
    fn round_level(&self, level: f64) -> Option<f64> {
        let level = level.min(self.max_level);
        if self.integer_levels {
            return Some(level.floor()).filter(|level| *level >= 1.0);
        }
        let scale = 10_f64.powf(2.0 - level.log10().floor());
        // Division by a whole scale returns the double nearest to 0.7; multiplication may not.
        let rounded =
            if scale >= 1.0 { (level * scale).round() / scale } else { (level * scale).round() * scale.recip() };
        Some(rounded).filter(|level| *level >= self.start * MIN_START_FRACTION)
    }
}

fn lowest(known: &[LevelStats], of: impl Fn(&LevelStats) -> bool) -> Option<f64> {
    known.iter().filter(|known| of(known)).map(|known| known.level).min_by(f64::total_cmp)
}

impl LevelStats {
    fn is_missed(&self) -> bool {
        match self.verdict {
            _ if self.is_unsendable => false,
            CriterionVerdict::No => true,
            CriterionVerdict::Open(looks) => !looks && (self.trials >= MAX_TRIALS_PER_LEVEL || self.sustained),
            CriterionVerdict::Yes => false,
        }
    }

    fn is_uncertain(&self, growing: bool) -> bool {
        match self.verdict {
            CriterionVerdict::Open(looks) => {
                !(looks && growing || self.sustained || self.trials >= MAX_TRIALS_PER_LEVEL)
            }
            CriterionVerdict::Yes | CriterionVerdict::No => false,
        }
    }
}

fn level_stats(trials: &[LevelTrial]) -> Vec<LevelStats> {
    let mut levels: Vec<f64> = trials.iter().map(|trial| trial.level).collect();
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    let of = |level: f64| {
        let of = |valid: bool| trials.iter().filter(move |trial| trial.level == level && trial.valid == valid);
        let (valid, void): (Vec<&LevelTrial>, Vec<&LevelTrial>) = (of(true).collect(), of(false).collect());
        let long = void.iter().filter(|trial| trial.sustained).count();
        let is_unsendable = long >= MAX_TRIALS_PER_LEVEL || valid.is_empty() && void.len() >= MAX_TRIALS_PER_LEVEL;
        let saturated = valid.iter().filter(|trial| trial.saturated).count();
        let lasting = valid.iter().any(|trial| trial.saturated && trial.sustained);
        let verdict = match if valid.is_empty() { CriterionVerdict::Open(false) } else { worst(&valid) } {
            CriterionVerdict::No => CriterionVerdict::No,
            _ if lasting || saturated >= 2 && saturated * 2 > valid.len() => CriterionVerdict::No,
            // One of one or two trials: another one decides.
            _ if saturated > 0 && saturated * 2 >= valid.len() => CriterionVerdict::Open(false),
            verdict => verdict,
        };
        let sustained = valid.iter().any(|trial| trial.sustained);
        LevelStats { level, trials: valid.len(), sustained, verdict, is_unsendable }
    };
    levels.into_iter().map(of).collect()
}

/// The worst verdict over all criteria.
fn worst(trials: &[&LevelTrial]) -> CriterionVerdict {
    let goals = trials.iter().map(|trial| trial.seen.len()).min().unwrap_or(0);
    let mut worst = CriterionVerdict::Yes;
    for goal in 0..goals {
        let sum = |of: fn(&ObservedShare) -> f64| trials.iter().map(|trial| of(&trial.seen[goal])).sum();
        let share = trials[0].seen[goal].share;
        worst = match (worst, share_verdict(sum(|seen| seen.good), sum(|seen| seen.of), share)) {
            (CriterionVerdict::No, _) | (_, CriterionVerdict::No) => CriterionVerdict::No,
            (CriterionVerdict::Open(a), CriterionVerdict::Open(b)) => CriterionVerdict::Open(a && b),
            (CriterionVerdict::Open(looks), CriterionVerdict::Yes)
            | (CriterionVerdict::Yes, CriterionVerdict::Open(looks)) => CriterionVerdict::Open(looks),
            (CriterionVerdict::Yes, CriterionVerdict::Yes) => CriterionVerdict::Yes,
        };
    }
    worst
}

#[cfg(test)]
mod tests {
    use rand_distr::{Binomial, Distribution as _};

    use super::*;
    use crate::trace::rng::rng;

    fn trial(level: f64, good: u32, of: u32) -> LevelTrial {
        let seen = vec![ObservedShare { good: good.into(), of: of.into(), share: 0.95 }];
        LevelTrial { level, seen, saturated: false, valid: true, sustained: false }
    }

    /// Searches where exactly the levels up to `limit` are met; returns all levels and the result.
    fn searched(search: MaxLoadSearch, limit: f64) -> (Vec<f64>, SearchResult) {
        let (mut trials, mut levels) = (Vec::new(), Vec::new());
        loop {
            let (level, sustained) = match search.next(&trials) {
                SearchStep::End(found) => return (levels, found),
                SearchStep::Measure(level) => (level, false),
                SearchStep::Sustain(level) => (level, true),
            };
            levels.push(level);
            let good = if level <= limit { 1_000 } else { 500 };
            trials.push(LevelTrial { sustained, ..trial(level, good, 1_000) });
        }
    }

    /// A result whose levels are conclusive.
    fn sure(met: f64, missed: Option<f64>) -> SearchResult {
        let (met, high) = (Some(met), missed);
        SearchResult { met, missed, confident: true, low: met, high, ..SearchResult::default() }
    }

    const RATES: MaxLoadSearch = MaxLoadSearch { start: 1.0, max_level: 1e6, integer_levels: false };
    const SLOTS: MaxLoadSearch = MaxLoadSearch { start: 1.0, max_level: 64.0, integer_levels: true };

    #[test]
    fn levels_double_until_one_is_missed_and_then_the_space_between_is_halved() {
        let (levels, found) = searched(RATES, 10.0);
        assert_eq!(levels, [1.0, 2.0, 4.0, 8.0, 16.0, 11.3, 9.51, 10.4, 9.95, 9.95]);
        assert_eq!(found, SearchResult { met: Some(9.95), missed: Some(10.4), ..sure(9.95, Some(10.4)) });
        let (levels, found) = searched(SLOTS, 11.0);
        assert_eq!(levels, [1.0, 2.0, 4.0, 8.0, 16.0, 11.0, 13.0, 12.0, 11.0]);
        assert_eq!((found.met, found.missed), (Some(11.0), Some(12.0)));
    }

    #[test]
    fn where_the_first_level_is_missed_lower_ones_are_tried_down_to_the_lowest() {
        let (levels, found) = searched(RATES, 0.3);
        assert_eq!(levels[..3], [1.0, 0.5, 0.25]);
        assert!((0.28..=0.3).contains(&found.met.unwrap()), "{found:?}");
        let (levels, found) = searched(RATES, 0.0);
        assert_eq!((levels.len(), found.met), (11, None));
        let none = SearchResult { missed: Some(1.0), high: Some(1.0), ..SearchResult::default() };
        assert_eq!(searched(SLOTS, 0.0), (vec![1.0], none));
    }

    #[test]
    fn where_everything_is_met_the_highest_level_allowed_is_the_answer() {
        let (levels, found) = searched(SLOTS, f64::MAX);
        assert_eq!(levels, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0]);
        assert_eq!(found, SearchResult { met: Some(64.0), ..sure(64.0, None) });
    }

    #[test]
    fn a_level_in_doubt_is_measured_again_and_then_what_was_seen_decides() {
        let mut trials = vec![trial(1.0, 100, 100), trial(2.0, 93, 100)];
        assert_eq!(SLOTS.next(&trials), SearchStep::Measure(2.0));
        trials.push(trial(2.0, 94, 100));
        assert_eq!(SLOTS.next(&trials), SearchStep::Measure(2.0));
        trials.push(trial(2.0, 94, 100));
        assert_eq!(SLOTS.next(&trials), SearchStep::Sustain(1.0), "281 of 300 is less than 95 %");
        trials[3] = trial(2.0, 100, 100);
        assert_eq!(SLOTS.next(&trials), SearchStep::Measure(4.0), "287 of 300 is more");
    }

    #[test]
    fn a_level_that_cannot_be_kept_up_is_missed_and_an_answer_that_does_not_last_is_none() {
        let saturated = LevelTrial { saturated: true, ..trial(2.0, 1_000, 1_000) };
        let mut trials = vec![trial(1.0, 1_000, 1_000), saturated.clone()];
        assert_eq!(SLOTS.next(&trials), SearchStep::Measure(2.0), "one short level may look saturated by chance");
        trials.push(saturated);
        assert_eq!(SLOTS.next(&trials), SearchStep::Sustain(1.0));
        trials.push(LevelTrial { sustained: true, ..trial(1.0, 0, 1_000) });
        let none = SearchResult { missed: Some(1.0), high: Some(1.0), ..SearchResult::default() };
        assert_eq!(SLOTS.next(&trials), SearchStep::End(none));
        // Two of three are not saturated, and all are good.
        trials.truncate(2);
        trials.extend([trial(2.0, 1_000, 1_000), trial(2.0, 1_000, 1_000)]);
        assert_eq!(SLOTS.next(&trials), SearchStep::Measure(4.0));
        // Its counts alone are conclusive.
        let slow = LevelTrial { saturated: true, ..trial(2.0, 500, 1_000) };
        assert_eq!(SLOTS.next(&[trial(1.0, 1_000, 1_000), slow]), SearchStep::Sustain(1.0));
        // The long trial needs no other.
        let long = LevelTrial { sustained: true, saturated: true, ..trial(1.0, 1_000, 1_000) };
        assert_eq!(SLOTS.next(&[trial(1.0, 1_000, 1_000), trial(2.0, 0, 1_000), long]), SearchStep::End(none));
    }

    #[test]
    fn what_this_machine_cannot_send_is_not_missed_and_ends_the_search() {
        let void = |level: f64| LevelTrial { valid: false, ..trial(level, 0, 1_000) };
        let mut trials = vec![trial(1.0, 1_000, 1_000), void(2.0), void(2.0)];
        assert_eq!(SLOTS.next(&trials), SearchStep::Measure(2.0));
        trials.push(void(2.0));
        assert_eq!(SLOTS.next(&trials), SearchStep::Sustain(1.0), "two are more than can be sent");
        trials.extend([void(1.0), void(1.0)].map(|void| LevelTrial { sustained: true, ..void }));
        assert_eq!(SLOTS.next(&trials), SearchStep::Sustain(1.0));
        trials.push(LevelTrial { sustained: true, ..trial(1.0, 1_000, 1_000) });
        let found = SearchResult { not_measured: Some(2.0), ..sure(1.0, None) };
        assert_eq!(SLOTS.next(&trials), SearchStep::End(found));
        let none = SearchResult { not_measured: Some(1.0), ..SearchResult::default() };
        assert_eq!(SLOTS.next(&[void(1.0), void(1.0), void(1.0)]), SearchStep::End(none));
        // A lower rate may be sendable.
        assert_eq!(RATES.next(&[void(1.0), void(1.0), void(1.0)]), SearchStep::Measure(0.5));
        let three: Vec<LevelTrial> =
            [1.0, 0.5, 0.25].into_iter().flat_map(|level| [(); 3].map(|()| void(level))).collect();
        let none = SearchResult { not_measured: Some(0.25), ..SearchResult::default() };
        assert_eq!(RATES.next(&three), SearchStep::End(none));
    }

    #[test]
    fn an_answer_is_sure_only_if_the_level_above_surely_misses() {
        let mut trials = vec![trial(1.0, 1_000, 1_000), trial(2.0, 94, 100), trial(2.0, 94, 100), trial(2.0, 93, 100)];
        trials.push(LevelTrial { sustained: true, ..trial(1.0, 1_000, 1_000) });
        let SearchStep::End(found) = SLOTS.next(&trials) else { panic!() };
        assert_eq!((found.met, found.missed, found.confident), (Some(1.0), Some(2.0), false));
        assert_eq!((found.low, found.high), (Some(1.0), None));
    }

    #[test]
    fn no_search_takes_more_than_its_bounds() {
        for search in [RATES, SLOTS, MaxLoadSearch { start: 8.0, max_level: 256.0, integer_levels: false }] {
            let bounds = search.bounds();
            for limit in [0.0, 0.3, 1.0, 9.3, 33.3, 199.0, 9e5, f64::MAX] {
                let (mut levels, _) = searched(search, limit * search.start);
                levels.sort_by(f64::total_cmp);
                levels.dedup();
                assert!(levels.len() <= bounds.levels, "{limit}: {levels:?} of {bounds:?}");
            }
        }
        let bounds = MaxLoadSearch { start: 8.0, max_level: 256.0, integer_levels: false }.bounds();
        assert_eq!(bounds, SearchBounds { levels: 15, trials: 45 }, "8 down to 1/128, and a factor of 2 in 4 steps");
    }

    /// Good shares fall with the load: 95 % are good at a rate of 20.
    #[test]
    fn a_noisy_curve_is_searched_to_within_the_interval_it_gives() {
        let share = |rate: f64| 1.0 / (1.0 + (rate / 20.0_f64).powi(8) / 19.0);
        let (mut right, mut trials_of_all) = (0, 0);
        for seed in 0..200 {
            let (mut random, mut trials) = (rng(seed), Vec::new());
            let found = loop {
                let (level, sustained) = match RATES.next(&trials) {
                    SearchStep::End(found) => break found,
                    SearchStep::Measure(level) => (level, false),
                    SearchStep::Sustain(level) => (level, true),
                };
                let seen = (level * if sustained { 60.0 } else { 30.0 }).round() as u32;
                let good = Binomial::new(seen.into(), share(level)).unwrap().sample(&mut random) as u32;
                trials.push(LevelTrial { sustained, ..trial(level, good, seen) });
            };
            trials_of_all += trials.len();
            let (met, missed) = (found.met.unwrap(), found.missed.unwrap());
            assert!(missed / met <= MAX_LEVEL_RATIO * 1.01, "{met} {missed}");
            // The level of 95 % is itself known only to within the noise: one step either side of the interval.
            right += u32::from(met / MAX_LEVEL_RATIO <= 20.0 && 20.0 <= missed * MAX_LEVEL_RATIO);
        }
        assert!(right >= 190, "{right} of 200");
        assert!(trials_of_all / 200 <= 20, "{trials_of_all}");
    }
}
