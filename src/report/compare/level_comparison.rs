//! Two sides of a sweep, or two sweeps, compared level by level: the passes of a level are the runs of its sides. The
//! figures of all levels are one family of Holm's adjustment.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use super::super::accumulate::AccumulatorSettings;
use super::super::source_error::SourceError;
use super::super::source_reader::SourceReader;
use super::super::text_layout::{TextLayout, named_lines};
use super::json::ComparisonDocument;
use super::{ComparedRun, Comparison, ComparisonSettings, markdown, text};
use crate::stats::change::Verdict;

/// Schema version of the JSON object.
const VERSION: u32 = 1;
const LABEL: usize = 13;

/// The valid runs of one level on each side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelSides {
    /// Name of the level.
    pub level: String,
    /// Runs of the first side.
    pub before: Vec<PathBuf>,
    /// Runs of the second side.
    pub after: Vec<PathBuf>,
}

/// The comparison of one level.
#[derive(Debug)]
pub struct LevelComparison {
    /// Name of the level.
    pub level: String,
    /// The second side against the first.
    pub comparison: Comparison,
    /// Verdict of the first side against the second.
    pub reversed: Option<Verdict>,
}

/// A side that is worse on no level, where the other one is worse on at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Winner {
    /// The first side.
    Before,
    /// The second side.
    After,
}

/// Comparisons of all levels as one JSON object.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LevelComparisonsDocument<'a> {
    streamgauge_sweep_comparison: u32,
    /// Null where no side is worse, or each is worse on a level.
    winner: Option<Winner>,
    /// Names of levels that only one side has.
    unpaired: &'a [String],
    levels: Vec<LevelDocument<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LevelDocument<'a> {
    level: &'a str,
    comparison: ComparisonDocument<'a>,
    /// Verdict of the first side against the second.
    reversed_verdict: Option<Verdict>,
}

impl<'a> LevelDocument<'a> {
    fn of(of: &'a LevelComparison) -> Self {
        Self { level: &of.level, comparison: of.comparison.document(), reversed_verdict: of.reversed }
    }
}

/// Comparisons of all levels.
#[derive(Debug)]
pub struct LevelComparisons {
    /// Those with a run on each side.
    pub levels: Vec<LevelComparison>,
    /// Names of levels that only one side has.
    pub unpaired: Vec<String>,
}

impl LevelComparisons {
    /// Reads the runs and compares them. `accumulate` makes the settings of each run.
    ///
    /// # Errors
    /// A run cannot be read.
    pub fn read(
        sides: Vec<LevelSides>,
        settings: &ComparisonSettings,
        accumulate: impl Fn() -> AccumulatorSettings,
    ) -> Result<Self, SourceError> {
        let (mut names, mut forward, mut backward, mut unpaired) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let read = |paths: &[PathBuf]| -> Result<Vec<ComparedRun>, SourceError> {
            paths.iter().map(|path| ComparedRun::read(SourceReader::open(path)?, accumulate())).collect()
        };
        for LevelSides { level, before, after } in sides {
            if before.is_empty() || after.is_empty() {
                unpaired.push(level);
                continue;
            }
            let no_conditions = ComparisonSettings { conditions: Vec::new(), ..settings.clone() };
            // A comparison takes the gaps of its runs, so each direction reads them.
            backward.push(Comparison::of(&mut read(&after)?, &mut read(&before)?, &no_conditions));
            forward.push(Comparison::of(&mut read(&before)?, &mut read(&after)?, settings));
            names.push(level);
        }
        Comparison::judge_together(&mut forward, settings.margin);
        Comparison::judge_together(&mut backward, settings.margin);
        let levels = names.into_iter().zip(forward).zip(backward);
        let levels = levels.map(|((level, comparison), reversed)| LevelComparison {
            level,
            comparison,
            reversed: reversed.verdict,
        });
        Ok(Self { levels: levels.collect(), unpaired })
    }

    /// The winner, or none.
    pub fn winner(&self) -> Option<Winner> {
        let is_worse = |verdict: Option<Verdict>| verdict == Some(Verdict::Worse);
        let after = self.levels.iter().any(|level| is_worse(level.comparison.verdict));
        let before = self.levels.iter().any(|level| is_worse(level.reversed));
        match (before, after) {
            (true, false) => Some(Winner::After),
            (false, true) => Some(Winner::Before),
            (true, true) | (false, false) => None,
        }
    }

    /// A condition on a figure that a side of a level lacks.
    pub fn unmeasured(&self) -> Option<&str> {
        self.levels.iter().find_map(|level| level.comparison.unmeasured())
    }

    /// Whether a condition fails any level.
    pub fn fails(&self, undecided_fails: bool) -> bool {
        self.levels.iter().any(|level| level.comparison.fails(undecided_fails))
    }

    /// Describes the winner, with the names of the sides.
    pub fn winner_text(&self, [before, after]: [&str; 2]) -> String {
        match self.winner() {
            Some(Winner::Before) => format!("{before}: {after} is worse on at least one level, and {before} on none"),
            Some(Winner::After) => format!("{after}: {before} is worse on at least one level, and {after} on none"),
            None if self.levels.iter().any(|level| level.reversed == Some(Verdict::Worse)) => {
                "none: each is worse on a level".to_owned()
            }
            None => "none: no level shows that one is worse".to_owned(),
        }
    }

    /// The comparisons as one JSON object.
    pub fn document(&self) -> LevelComparisonsDocument<'_> {
        LevelComparisonsDocument {
            streamgauge_sweep_comparison: VERSION,
            winner: self.winner(),
            unpaired: &self.unpaired,
            levels: self.levels.iter().map(LevelDocument::of).collect(),
        }
    }

    /// Renders one JSON object.
    pub fn json(&self) -> String {
        // Numbers, names and string keys always serialize.
        serde_json::to_string_pretty(&self.document()).unwrap_or_default() + "\n"
    }

    /// Renders text.
    pub fn text(&self, layout: TextLayout) -> String {
        let mut words = String::new();
        for level in &self.levels {
            words += &format!("{:<LABEL$}{}\n{}\n", "level", level.level, text::render(&level.comparison, layout));
        }
        words + &named_lines(self.summary(), LABEL)
    }

    /// Renders Markdown.
    pub fn markdown(&self) -> String {
        let mut words = String::new();
        for level in &self.levels {
            words += &format!("## {}\n\n{}\n", level.level, markdown::render(&level.comparison));
        }
        words + &super::super::markdown::bullet_list(self.summary())
    }

    pub(super) fn summary(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("winner", self.winner_text(["before", "after"]))];
        if !self.unpaired.is_empty() {
            lines.push(("not compared", format!("{}: one side has no valid run", self.unpaired.join(", "))));
        }
        lines
    }

    /// The table of one level, with the names of the sides.
    pub(in crate::report) fn table(level: &LevelComparison, [before, after]: [&str; 2]) -> Vec<Vec<String>> {
        let mut table = text::figures(&level.comparison);
        if let Some(head) = table.first_mut() {
            head[0].clone_from(&level.level);
            (head[1], head[2]) = (before.to_owned(), after.to_owned());
        }
        table
    }

    /// The verdict of one level in words.
    pub(in crate::report) fn verdict_text(level: &LevelComparison) -> String {
        format!("{}: {}", level.level, text::verdict_line(&level.comparison))
    }
}
