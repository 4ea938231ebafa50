//! Pyrra's custom resource (<https://github.com/pyrra-dev/pyrra>).

use serde_json::{Value, json};

use super::{JUDGED, MISSED, WINDOW, selector};
use crate::measure::slo::Slo;

pub(super) fn document(name: &str, slo: &Slo) -> Value {
    let metric = |results| json!({ "metric": selector(slo, results) });
    json!({
        "apiVersion": "pyrra.dev/v1alpha1",
        "kind": "ServiceLevelObjective",
        "metadata": { "name": name },
        "spec": {
            "target": slo.target().percent().to_string(),
            "window": WINDOW,
            "description": slo.to_string(),
            "indicator": { "ratio": { "errors": metric(MISSED), "total": metric(JUDGED) } },
        },
    })
}
