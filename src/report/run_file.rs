//! The run file (`run.json`), as reports read it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::context::LoadDescription;
use crate::measure::record::LaterTurns;
use crate::measure::time::Window;

/// Version of the run file's format. Files with an older version remain readable.
pub const VERSION: u64 = 1;

/// The part of a run file that reports use.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RunFile {
    pub(super) streamgauge_run: u64,
    pub(super) targets: Vec<String>,
    pub(super) closed_loop: bool,
    pub(super) valid: Option<bool>,
    pub(super) invalid_because: Vec<String>,
    pub(super) slos: Vec<String>,
    pub(super) slots: Option<u32>,
    pub(super) seed: Option<u64>,
    pub(super) arrivals: Value,
    pub(super) version: Option<String>,
    pub(super) command: Vec<String>,
    pub(super) machine: Value,
    pub(super) meta: BTreeMap<String, String>,
    pub(super) engines: BTreeMap<String, Value>,
    pub(super) trace: Option<String>,
    pub(super) stretch: Option<f64>,
    pub(super) load: LoadDescription,
    pub(super) shard: Option<ShardOfRun>,
    pub(super) simulated: Option<Value>,
    pub(super) stopped: bool,
    pub(super) warm_prefixes: bool,
    pub(super) audit: Option<SelfTestResult>,
    pub(super) trace_digest: Option<String>,
    pub(super) trace_window: Window,
    pub(super) summary: RunFileSummary,
}

impl RunFile {
    /// Reads the content of a run file.
    ///
    /// # Errors
    /// If the content is no run file, or one of a newer version.
    pub(super) fn read(document: Value) -> serde_json::Result<Self> {
        if !document.is_object() {
            return Err(serde_json::Error::custom("expected an object"));
        }
        let run: Self = serde_json::from_value(document)?;
        if run.streamgauge_run > VERSION {
            return Err(serde_json::Error::custom(format_args!(
                "it is of version {}, and this Streamgauge reads them up to {VERSION}: use a newer one",
                run.streamgauge_run
            )));
        }
        Ok(run)
    }

    /// The part of the plan that the run sent. Runs before version 0.2 recorded it in their command line only.
    pub(super) fn sent_shard(&self) -> Option<ShardOfRun> {
        self.shard.or_else(|| shard_of_command(&self.command))
    }
}

/// One part of a plan that several machines send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShardOfRun {
    /// Number of the part, from 1.
    pub index: u64,
    /// Number of parts.
    pub count: u64,
}

/// Result of the run's self-test.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct SelfTestResult {
    #[serde(alias = "doubts")]
    pub(super) uncertain: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct RunFileSummary {
    pub(super) measured: Window,
    #[serde(alias = "held")]
    pub(super) held_back: u64,
    pub(super) later_turns: LaterTurns,
    #[serde(alias = "troubles")]
    pub(super) errors: BTreeMap<String, u64>,
}

fn shard_of_command(command: &[String]) -> Option<ShardOfRun> {
    let at = command.iter().position(|word| word == "--shard" || word.starts_with("--shard="))?;
    let text = command[at].strip_prefix("--shard=").or_else(|| command.get(at + 1).map(String::as_str))?;
    let (index, count) = text.split_once('/')?;
    Some(ShardOfRun { index: index.parse().ok()?, count: count.parse().ok()? })
}
