//! All runs of a level at a target, pooled.

use super::file::SweepLevel;
use super::level_intervals;
use super::level_result::LevelResult;
use crate::measure::slo::{Slo, Slos};
use crate::report::accumulate::RequestStats;
use crate::report::request_point::RequestPoint;
use crate::report::saturation::LoadGrowth;
use crate::report::source::ReportSource;

/// All runs of a level at a target.
pub(super) struct LevelRuns {
    pub(super) level: SweepLevel,
    pub(super) target: usize,
    pub(super) sustained: bool,
    pub(super) runs: u32,
    pub(super) figures: RequestStats,
    pub(super) seconds: f64,
    pub(super) slos: Slos,
    pub(super) objectives: Vec<Slo>,
    pub(super) sources: Vec<ReportSource>,
    growths: Vec<LoadGrowth>,
    /// The long run of a search was saturated.
    is_lasting: bool,
    /// Requests of known cached tokens whose shared prefix was not cached, and the length of that prefix.
    prefix: Option<u64>,
    evicted: Option<u64>,
    /// Requests of all runs, for intervals; empty unless these are wanted.
    pub(super) points: Vec<RequestPoint>,
}

impl LevelRuns {
    pub(super) fn new(level: SweepLevel, target: usize, prefix: Option<u64>) -> Self {
        Self {
            level,
            target,
            sustained: false,
            runs: 0,
            figures: RequestStats::default(),
            seconds: 0.0,
            slos: Slos::default(),
            objectives: Vec::new(),
            sources: Vec::new(),
            growths: Vec::new(),
            is_lasting: false,
            prefix,
            evicted: None,
            points: Vec::new(),
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        self.sources.iter().all(|run| run.not_valid.is_empty())
    }

    pub(super) fn add(&mut self, run: LevelResult, is_sustained: bool, has_intervals: bool) {
        self.figures.merge(&run.figures);
        self.seconds += run.seconds;
        self.sustained |= is_sustained;
        self.is_lasting |= is_sustained && run.growth.is_some();
        self.runs += 1;
        self.growths.extend(run.growth);
        if let Some(prefix) = self.prefix {
            let cached: Vec<u64> = run.points.iter().filter_map(|request| request.cached()).collect();
            // Caches hold whole blocks, so that a few tokens of a cached prefix are missing.
            let evicted = cached.iter().filter(|cached| **cached < prefix / 2).count() as u64;
            self.evicted = if cached.is_empty() { self.evicted } else { Some(self.evicted.unwrap_or(0) + evicted) };
        }
        if has_intervals {
            level_intervals::append(&mut self.points, run.points);
        }
        (self.slos, self.objectives) = (run.slos, run.objectives);
        self.sources.push(run.source);
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(std::mem::take(&mut self.level), self.target, self.prefix);
    }

    /// The growth of the load, if half of the runs grew, or the long one did. One run of three may look so by chance.
    pub(super) fn growth(&self) -> Option<LoadGrowth> {
        let grew = self.is_lasting || self.growths.len() * 2 >= self.runs as usize;
        self.growths.first().copied().filter(|_| grew)
    }

    /// True if more than one short run shows the growth.
    pub(super) fn is_surely_saturated(&self) -> bool {
        self.is_lasting || self.growths.len() > 1
    }

    /// Requests whose shared prefix was sent before the level and was not in the cache any more.
    pub(super) fn evicted_prefixes(&self) -> Option<u64> {
        self.evicted
    }
}
