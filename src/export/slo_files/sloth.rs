//! Sloth's specification (<https://sloth.dev/specs/default/>).

use serde_json::{Value, json};

use super::{JUDGED, MISSED, SERVICE, selector};
use crate::measure::slo::Slo;

/// The section of the runbook that the alerts of our own rules name too.
const RUNBOOK: &str =
    concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/deploy/prometheus/README.md#streamgaugeerrorbudgetburns");

pub(super) fn document(slos: Vec<Value>) -> Value {
    json!({ "version": "prometheus/v1", "service": SERVICE, "slos": slos })
}

pub(super) fn slo(name: &str, slo: &Slo) -> Value {
    // Sloth inserts its windows.
    let query = |results| format!("sum(rate({}[{{{{.window}}}}]))", selector(slo, results));
    json!({
        "name": name,
        "objective": slo.target().percent(),
        "description": slo.to_string(),
        "sli": { "events": { "error_query": query(MISSED), "total_query": query(JUDGED) } },
        "alerting": {
            "name": "StreamgaugeErrorBudgetBurns",
            "labels": { "slo": slo.name() },
            "annotations": { "runbook_url": RUNBOOK },
            "page_alert": { "labels": { "severity": "page" } },
            "ticket_alert": { "labels": { "severity": "ticket" } },
        },
    })
}
