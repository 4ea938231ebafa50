//! Whether a level of a sweep held its goals.

use schemars::JsonSchema;
use serde::Serialize;

use crate::measure::slo::criteria::{CriterionVerdict, ObservedShare, share_verdict};

/// Whether a level held the SLO. *Surely* means that the 95 % interval of its share of good requests does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LevelVerdict {
    /// Surely held.
    Held,
    /// Held by the observed share; too few requests to be sure.
    HeldUnsure,
    /// Missed by the observed share; too few requests to be sure.
    MissedUnsure,
    /// Surely missed.
    Missed,
    /// The requests in flight kept growing, so the level misses any SLO in the end.
    Saturated,
}

impl LevelVerdict {
    /// True if the level held the SLO.
    pub const fn holds(self) -> bool {
        matches!(self, Self::Held | Self::HeldUnsure)
    }

    /// True if the 95 % interval decides.
    pub const fn is_sure(self) -> bool {
        matches!(self, Self::Held | Self::Missed)
    }

    /// Name for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::HeldUnsure => "held, not sure",
            Self::MissedUnsure => "missed, not sure",
            Self::Missed => "missed",
            Self::Saturated => "saturated",
        }
    }

    /// `None` if no request can be judged.
    pub(in crate::report) fn of(observed: &[ObservedShare], is_saturated: bool) -> Option<Self> {
        let verdicts = || observed.iter().map(|goal| share_verdict(goal.good, goal.of, goal.share));
        if observed.is_empty() || observed.iter().any(|goal| goal.of == 0.0) {
            return None;
        }
        Some(match () {
            () if is_saturated => Self::Saturated,
            () if verdicts().any(|verdict| verdict == CriterionVerdict::No) => Self::Missed,
            () if verdicts().all(|verdict| verdict == CriterionVerdict::Yes) => Self::Held,
            () if verdicts().any(|verdict| verdict == CriterionVerdict::Open(false)) => Self::MissedUnsure,
            () => Self::HeldUnsure,
        })
    }
}
