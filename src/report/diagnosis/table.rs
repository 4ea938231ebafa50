//! The diagnosis as lines and tables, shared by all formats for people.

use super::{Diagnosis, Evidence, Finding};

/// Returns named lines: each finding with its symptom and the next measurement.
pub fn lines(diagnosis: &Diagnosis) -> Vec<(&'static str, String)> {
    let line = |finding: &Finding| {
        let Finding { verdict, statement, symptom, next_measurement, .. } = finding;
        [
            (verdict.label(), statement.clone()),
            ("", format!("symptom: {symptom}")),
            ("", format!("next: {next_measurement}")),
        ]
    };
    if diagnosis.findings.is_empty() {
        return vec![("no verdict", "no rule's evidence passes its thresholds".to_owned())];
    }
    diagnosis.findings.iter().flat_map(line).collect()
}

/// Builds the table of the findings' evidence; `None` without findings. The first row is the header.
pub fn finding_table(diagnosis: &Diagnosis) -> Option<Vec<Vec<String>>> {
    let rows = diagnosis.findings.iter().flat_map(|finding| {
        let row = |evidence: &Evidence| {
            let name = format!("{}: {}", finding.verdict.label(), evidence.name);
            std::iter::once(name).chain(evidence.cells()).collect()
        };
        finding.evidence.iter().map(row)
    });
    table(["evidence", "value", "95 % interval", "threshold"], rows.collect())
}

/// Builds the table of relations; `None` without any. The first row is the header.
pub fn relation_table(diagnosis: &Diagnosis) -> Option<Vec<Vec<String>>> {
    let row = |evidence: &Evidence| {
        let [value, interval, _] = evidence.cells();
        vec![evidence.name.to_owned(), value, interval]
    };
    table(["relation", "value", "95 % interval"], diagnosis.relations.iter().map(row).collect())
}

fn table<const N: usize>(head: [&str; N], rows: Vec<Vec<String>>) -> Option<Vec<Vec<String>>> {
    let head = head.map(str::to_owned).to_vec();
    (!rows.is_empty()).then(|| std::iter::once(head).chain(rows).collect())
}
