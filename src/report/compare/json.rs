//! A comparison as JSON.

use serde::Serialize;
use serde_json::{Value, json};

use super::{Comparison, FigureChange};

/// Version of the JSON object.
const VERSION: u32 = 1;

impl Comparison {
    /// Renders the comparison as one JSON object. A change of 0.05 is 5 % more; of a share, 5 points.
    pub fn json(&self) -> String {
        // Numbers, names and string keys always serialize.
        serde_json::to_string_pretty(&self.value()).unwrap_or_default() + "\n"
    }

    /// The comparison as JSON.
    pub(super) fn value(&self) -> Value {
        let figures: Vec<Value> = self.figures.iter().map(figure).collect();
        json!({
            "streamgauge_comparison": VERSION,
            "before": self.before,
            "after": self.after,
            "margin": self.margin,
            "method": self.method,
            "workload": self.workload,
            "verdict": self.verdict.as_ref().map(value),
            "figures": figures,
            "factors": self.factors,
            "conditions": self.conditions,
            "groups": self.groups,
        })
    }
}

fn value(of: &impl Serialize) -> Value {
    serde_json::to_value(of).unwrap_or_default()
}

fn figure(change: &FigureChange) -> Value {
    let known = change.change.as_ref().ok();
    json!({
        "figure": change.label,
        "unit": change.figure.unit(),
        "before": change.before,
        "after": change.after,
        "change": known.map_or(change.point_change(), |known| known.value()),
        "ci95": known.map(|known| [known.interval().low, known.interval().high]),
        "not_enough_data": change.change.as_ref().err().map(ToString::to_string),
        "effect_size": change.effect_size,
        "verdict": change.verdict.as_ref().map(value),
        "better": change.better,
    })
}
