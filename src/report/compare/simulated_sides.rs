//! The sides of a comparison that a twin predicted.

use schemars::JsonSchema;
use serde::Serialize;

use super::ComparedRun;
use crate::trace_file::header::SIMULATED;

/// The sides with at least one run that is the prediction of a twin and no measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SimulatedSides {
    /// The first side.
    pub before: bool,
    /// The second side.
    pub after: bool,
}

impl SimulatedSides {
    pub(super) fn of(before: &[ComparedRun], after: &[ComparedRun]) -> Self {
        let [before, after] = [before, after].map(|side| side.iter().any(|run| run.source.simulated));
        Self { before, after }
    }

    /// The line of every format for people; `None` if both sides were measured.
    pub(super) fn line(self) -> Option<(&'static str, String)> {
        let sides = match self {
            Self { before: true, after: true } => "both sides are",
            Self { before: true, after: false } => "the side before is",
            Self { before: false, after: true } => "the side after is",
            Self { before: false, after: false } => return None,
        };
        Some(("simulated", format!("{sides} {SIMULATED}")))
    }
}
