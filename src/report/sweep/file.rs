//! `sweep.json`: what a sweep was to do, and what of it is done. No figure is in it: those come from the runs' records.
//!
//! | key | what |
//! |---|---|
//! | `streamgauge_sweep` | the version of its shape |
//! | `version` | of the program |
//! | `plan` | what decides every run: another sweep into the same folder must have the same |
//! | `plan.verb`, `trace`, `trace_digest` | `load`, or `replay` with its trace |
//! | `plan.targets` | where to: a list of URLs, and a second one where two are compared (A and B) |
//! | `plan.header_names`, `plan.flags` | what is alike in all runs, by flag; no header's value is in it |
//! | `plan.levels[]` | what was listed: see below |
//! | `plan.search` | or what is looked for: `goals`, `by` (`rate`, `concurrency`), `start`, `most`, `sustain` |
//! | `runs[]` | what is done, in its order: `folder`, `level`, `target` (0 is A, 1 is B), `pass`, `sustained`, `seed`, `digest` |
//! | `levels[]`, `level` | `name`, `hypothesis`, `cache` (`cold`, `warm`), `rate` or `concurrency`, `flags` of its own |
//! | `goodput` | the share of good requests that a listed level must have, where somebody said (`--fail-if`) |
//! | `answer` | of a search that ended: `met`, `missed`, `sure` |

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Its name in a sweep's folder.
pub const FILE: &str = "sweep.json";
/// The version of its shape.
pub const VERSION: u32 = 1;

/// Values by flag, without its dashes; a flag without a value has an empty list.
pub type FlagValues = BTreeMap<String, Vec<String>>;

/// The file. See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct SweepFile {
    pub streamgauge_sweep: u32,
    pub version: String,
    pub plan: SweepSpec,
    pub runs: Vec<SweepRun>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<SearchOutcome>,
}

/// What decides every run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct SearchSpec {
    pub goals: String,
    pub by: LoadAxis,
    pub start: f64,
    pub most: f64,
    pub sustain: String,
}

/// What makes a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadAxis {
    /// Requests a second.
    Rate,
    /// Requests open at a time.
    Concurrency,
}

impl LoadAxis {
    /// A level in words.
    pub fn describe(self, level: f64) -> String {
        match self {
            Self::Rate => format!("{level}/s"),
            Self::Concurrency => format!("{level} at a time"),
        }
    }
}

/// One level of load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct SweepLevel {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hypothesis: Option<String>,
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
    /// The name of a level that differs from others in its load alone.
    pub fn default_name(by: LoadAxis, load: f64) -> String {
        match by {
            LoadAxis::Rate => format!("rate-{load}"),
            LoadAxis::Concurrency => format!("concurrency-{load}"),
        }
    }

    /// Whether its name says no more than its load.
    pub fn has_default_name(&self) -> bool {
        let slots = self.concurrency.map(|slots| (LoadAxis::Concurrency, slots.into()));
        self.rate
            .map(|rate| (LoadAxis::Rate, rate))
            .or(slots)
            .is_some_and(|(by, load)| self.name == Self::default_name(by, load))
    }

    /// How much is sent: requests a second, or at a time.
    pub fn load(&self) -> f64 {
        self.rate.or(self.concurrency.map(f64::from)).unwrap_or(0.0)
    }

    /// The same, for people.
    pub fn offered(&self) -> String {
        let rate = self.rate.map(|rate| LoadAxis::Rate.describe(rate));
        rate.or_else(|| self.concurrency.map(|slots| LoadAxis::Concurrency.describe(slots.into()))).unwrap_or_default()
    }
}

/// What a server's cache knows of a level's prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    /// Nothing: their texts were never sent before.
    #[default]
    Cold,
    /// Their shared prefixes: each was sent once, just before.
    Warm,
}

impl CacheState {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
    fn is_cold(&self) -> bool {
        *self == Self::Cold
    }
}

/// A run that is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// What a search found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct SearchOutcome {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<f64>,
    pub sure: bool,
}

impl SweepFile {
    /// Reads it out of a folder; `None` where there is none.
    ///
    /// # Errors
    /// When it cannot be read, or is not ours.
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

    /// Writes it into a folder, in one step.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let unfinished = folder.join("sweep.json.part");
        fs::write(&unfinished, serde_json::to_vec_pretty(self)?)?;
        fs::rename(unfinished, folder.join(FILE))
    }
}
