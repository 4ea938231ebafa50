//! OpenSLO v1 (<https://github.com/OpenSLO/OpenSLO>).

use serde_json::{Value, json};

use super::{JUDGED, MET, SERVICE, WINDOW, selector};
use crate::measure::slo::Slo;

/// The service that the SLOs are of.
pub(super) fn service() -> Value {
    json!({
        "apiVersion": "openslo/v1",
        "kind": "Service",
        "metadata": { "name": SERVICE, "displayName": "Streamgauge" },
        "spec": { "description": "Inference servers behind Streamgauge" },
    })
}

pub(super) fn document(name: &str, slo: &Slo) -> Value {
    let source = |results| {
        let query = format!("sum({})", selector(slo, results));
        json!({ "metricSource": { "type": "Prometheus", "spec": { "query": query } } })
    };
    json!({
        "apiVersion": "openslo/v1",
        "kind": "SLO",
        "metadata": { "name": name, "displayName": slo.name() },
        "spec": {
            "description": slo.to_string(),
            "service": SERVICE,
            "indicator": {
                "metadata": { "name": format!("{name}-requests") },
                "spec": { "ratioMetric": { "counter": true, "good": source(MET), "total": source(JUDGED) } },
            },
            "timeWindow": [{ "duration": WINDOW, "isRolling": true }],
            "budgetingMethod": "Occurrences",
            "objectives": [{ "displayName": slo.name(), "target": slo.target().ratio() }],
        },
    })
}
