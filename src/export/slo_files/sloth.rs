//! Sloth's specification (<https://sloth.dev/specs/default/>).

use serde_json::{Value, json};

use super::{JUDGED, MISSED, SERVICE, selector};
use crate::measure::slo::Slo;

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
            "page_alert": { "labels": { "severity": "page" } },
            "ticket_alert": { "labels": { "severity": "ticket" } },
        },
    })
}
