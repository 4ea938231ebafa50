//! The objectives of a plan: SLOs of requests, and percentiles over requests.

use crate::measure::slo::criteria::Criteria;
use crate::measure::slo::{Slo, SloError};

/// `--slo`: a named SLO of requests, or percentiles over requests as in `sweep --find-max`.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanObjective {
    /// `chat: ttft<=500ms`.
    Slo(Slo),
    /// `ttft.p99<=500ms itl.p99<=50ms`.
    Criteria(Criteria),
}

impl std::str::FromStr for PlanObjective {
    type Err = SloError;

    fn from_str(text: &str) -> Result<Self, SloError> {
        // Only an SLO has a name.
        if text.contains(':') { text.parse().map(Self::Slo) } else { text.parse().map(Self::Criteria) }
    }
}

impl PlanObjective {
    /// The SLOs that it defines.
    pub fn slos(&self) -> Vec<Slo> {
        match self {
            Self::Slo(slo) => vec![slo.clone()],
            Self::Criteria(criteria) => criteria.slos().cloned().collect(),
        }
    }
}

/// The objectives as one set of criteria: SLOs by this goodput, unless a criterion states another.
///
/// # Errors
/// A criterion on goodput has no SLO.
pub fn criteria(objectives: &[PlanObjective], goodput: f64) -> Result<Criteria, String> {
    let criteria: Vec<&Criteria> = objectives
        .iter()
        .filter_map(|objective| match objective {
            PlanObjective::Criteria(criteria) => Some(criteria),
            PlanObjective::Slo(_) => None,
        })
        .collect();
    let has_slo = criteria.len() < objectives.len();
    let needs_slo = criteria.iter().any(|criteria| criteria.need_slos());
    if needs_slo && !has_slo {
        return Err(
            "goodput needs a second --slo that states what a good request is, e.g. 'chat: ttft<=500ms'".to_owned()
        );
    }
    let mut texts: Vec<String> = criteria.iter().map(ToString::to_string).collect();
    texts.extend((has_slo && !needs_slo).then(|| Criteria::of_goodput(goodput).to_string()));
    texts.join(" ").parse().map_err(|error: SloError| error.to_string())
}
