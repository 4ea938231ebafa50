//! `sweep.json`: a sweep's plan and its completed runs. It contains no results, because those come from the runs'
//! records.
//!
//! | key | content |
//! |---|---|
//! | `streamgauge_sweep` | schema version |
//! | `version` | program version |
//! | `plan` | everything that decides a run; a sweep that resumes in the folder must have an equal plan |
//! | `plan.verb`, `trace`, `trace_digest` | `load`, or `replay` with its trace |
//! | `plan.targets` | a list of URLs, and a second list if two targets are compared (A and B) |
//! | `plan.header_names`, `plan.flags` | settings shared by all runs, by flag; header values are not stored |
//! | `plan.levels[]` | listed levels: see below |
//! | `plan.search` | or a search: `goals`, `by` (`rate`, `concurrency`), `start`, `most`, `sustain` |
//! | `runs[]` | completed runs in order: `folder`, `level`, `target` (0 is A, 1 is B), `pass`, `sustained`, `seed`, `digest` |
//! | `levels[]`, `level` | `name`, `hypothesis`, `expect`, `baseline`, `cache` (`cold`, `warm`), `rate` or `concurrency`, own `flags` |
//! | `goals` | what `--fail-if` requires of a listed level; older files have `goodput`, a share |
//! | `answer` | result of a finished search: `met`, `missed`, `not_measured` (this machine could not send it), `low` and `high` (the highest level that surely meets the goals, the lowest that surely misses them), `sure` |
//! | `ended_at` | the second listed level that missed, after which no more were run |

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::DEFAULT_GOODPUT_GOAL;
use crate::measure::slo::criteria::Criteria;
use crate::report::source_reader::SourceReader;

/// File name in the sweep's folder.
pub const FILE: &str = "sweep.json";
/// Schema version.
pub const VERSION: u32 = 1;

/// Values by flag name without dashes; a switch has an empty list.
pub type FlagValues = BTreeMap<String, Vec<String>>;

/// Content of `sweep.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct SweepFile {
    pub streamgauge_sweep: u32,
    pub version: String,
    pub plan: SweepSpec,
    pub runs: Vec<SweepRun>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goals: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<SearchOutcome>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}

/// Settings that decide every run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct SweepSpec {
    pub verb: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_digest: Option<String>,
    pub targets: Vec<Vec<String>>,
    pub header_names: Vec<String>,
    pub flags: FlagValues,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<SweepLevel>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchSpec>,
}

/// Goals and limits of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct SearchSpec {
    pub goals: String,
    pub by: LoadAxis,
    pub start: f64,
    pub most: f64,
    pub sustain: String,
}

/// Dimension in which levels differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadAxis {
    /// Requests per second.
    Rate,
    /// Concurrent requests.
    Concurrency,
}

impl LoadAxis {
    /// Describes a level for people.
    pub fn describe(self, level: f64) -> String {
        match self {
            Self::Rate => format!("{level}/s"),
            Self::Concurrency => format!("{level} at a time"),
        }
    }
}

/// One level of load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct SweepLevel {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hypothesis: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub baseline: bool,
    #[serde(default, skip_serializing_if = "CacheState::is_cold")]
    pub cache: CacheState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    #[serde(default, skip_serializing_if = "FlagValues::is_empty")]
    pub flags: FlagValues,
}

impl SweepLevel {
    /// Returns the default name of a level, derived from its load.
    pub fn default_name(by: LoadAxis, load: f64) -> String {
        match by {
            LoadAxis::Rate => format!("rate-{load}"),
            LoadAxis::Concurrency => format!("concurrency-{load}"),
        }
    }

    /// Returns `true` if the level has the default name for its load.
    pub fn has_default_name(&self) -> bool {
        let slots = self.concurrency.map(|slots| (LoadAxis::Concurrency, slots.into()));
        self.rate
            .map(|rate| (LoadAxis::Rate, rate))
            .or(slots)
            .is_some_and(|(by, load)| self.name == Self::default_name(by, load))
    }

    /// Returns the load: requests per second or concurrent requests.
    pub fn load(&self) -> f64 {
        self.rate.or(self.concurrency.map(f64::from)).unwrap_or(0.0)
    }

    /// Formats the load for people.
    pub fn offered(&self) -> String {
        let rate = self.rate.map(|rate| LoadAxis::Rate.describe(rate));
        rate.or_else(|| self.concurrency.map(|slots| LoadAxis::Concurrency.describe(slots.into()))).unwrap_or_default()
    }
}

/// Content of the server's prefix cache before a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    /// Cold: the level's prompts were never sent before.
    #[default]
    Cold,
    /// Warm: each shared prefix was sent once, just before the level.
    Warm,
}

impl CacheState {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
    fn is_cold(&self) -> bool {
        *self == Self::Cold
    }
}

/// A completed run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct SweepRun {
    pub folder: String,
    pub level: SweepLevel,
    pub target: usize,
    pub pass: u32,
    pub sustained: bool,
    pub seed: u64,
    pub digest: String,
}

/// Result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct SearchOutcome {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_measured: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    pub sure: bool,
}

impl SweepFile {
    /// Goals of listed levels.
    pub fn listed_goals(&self) -> Criteria {
        let stated = self.goals.as_ref().and_then(|goals| goals.parse().ok());
        stated.unwrap_or_else(|| Criteria::of_goodput(self.goodput.unwrap_or(DEFAULT_GOODPUT_GOAL)))
    }

    /// Folders of the valid runs of a level at a target, in the order of their passes.
    pub fn level_runs(&self, folder: &Path, level: &str, target: usize) -> Vec<PathBuf> {
        let of_level = |run: &&SweepRun| run.level.name == level && run.target == target && !run.sustained;
        let mut runs: Vec<&SweepRun> = self.runs.iter().filter(of_level).collect();
        runs.sort_by_key(|run| run.pass);
        let folders = runs.into_iter().map(|run| folder.join(&run.folder));
        folders.filter(|run| SourceReader::open(run).is_ok_and(|opened| opened.source.not_valid.is_empty())).collect()
    }

    /// Reads the file from a folder; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not a sweep's.
    pub fn read(folder: &Path) -> Result<Option<Self>, String> {
        let path = folder.join(FILE);
        let wrong =
            |why: String| format!("cannot read {}: {why}. The runs beside it can be read one by one", path.display());
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) => {
                return Ok(None);
            }
            Err(error) => return Err(wrong(error.to_string())),
        };
        let file: Self = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        match file.streamgauge_sweep {
            VERSION => Ok(Some(file)),
            other => Err(wrong(format!("its version is {other}, and this program knows {VERSION}"))),
        }
    }

    /// Writes the file into a folder atomically.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let unfinished = folder.join("sweep.json.part");
        fs::write(&unfinished, serde_json::to_vec_pretty(self)?)?;
        fs::rename(unfinished, folder.join(FILE))
    }
}
