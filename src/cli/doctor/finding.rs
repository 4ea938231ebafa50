//! One finding: what was checked, what was seen, and what helps.

use schemars::JsonSchema;
use serde::Serialize;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::cli) enum FindingStatus {
    /// Nothing is in the way.
    Ok,
    /// The deployment works, and less well than it could.
    Warning,
    /// The deployment does not work.
    Problem,
    /// The check does not apply.
    Skipped,
}

impl FindingStatus {
    /// A mark and a word: colour alone would not reach every reader.
    const fn label(self) -> &'static str {
        match self {
            Self::Ok => "✓ ok",
            Self::Warning => "! warning",
            Self::Problem => "✗ problem",
            Self::Skipped => "- skipped",
        }
    }
}

/// One finding.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::cli) struct DoctorFinding {
    pub(super) check: &'static str,
    pub(super) status: FindingStatus,
    pub(super) evidence: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl DoctorFinding {
    pub(super) fn ok(check: &'static str, evidence: impl Into<String>) -> Self {
        Self { check, status: FindingStatus::Ok, evidence: evidence.into(), remedy: None }
    }

    pub(super) fn skipped(check: &'static str, evidence: impl Into<String>) -> Self {
        Self { check, status: FindingStatus::Skipped, evidence: evidence.into(), remedy: None }
    }

    pub(super) fn warning(check: &'static str, evidence: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (evidence, remedy) = (evidence.into(), Some(remedy.into()));
        Self { check, status: FindingStatus::Warning, evidence, remedy }
    }

    pub(super) fn problem(check: &'static str, evidence: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: FindingStatus::Problem, ..Self::warning(check, evidence, remedy) }
    }
}

/// The findings as text, each with its remedy below it.
pub(super) fn text(findings: &[DoctorFinding]) -> String {
    let row = |finding: &DoctorFinding| {
        // The column after the label and the name of the check.
        let indent = " ".repeat(27);
        let evidence = finding.evidence.replace('\n', &format!("\n{indent}"));
        let remedy = finding.remedy.as_ref().map(|remedy| format!("{indent}remedy: {remedy}\n")).unwrap_or_default();
        format!("{:<10} {:<15} {evidence}\n{remedy}", finding.status.label(), finding.check)
    };
    findings.iter().map(row).collect()
}
