//! The variants side by side.

use serde_json::{Value, json};

use super::variant::VariantResult;
use crate::cli::terminal::{render_table, right_aligned_table};
use crate::measure::histogram::Histogram;
use crate::measure::slo::Slo;
use crate::measure::time::Gap;
use crate::report::ascii_plot::format_percent;
use crate::twin::model::TwinModel;

/// First line of every result.
const SIMULATED: &str = "SIMULATED: a twin's prediction, not a measurement.";

pub(super) fn text(model: &TwinModel, slos: &[Slo], results: &[VariantResult]) -> String {
    let columns = ["variant", "requests/s", "lost", "tokens/s", "TTFT p50", "p99", "TPOT p50", "p99", "E2E p99"];
    let goodput: Vec<String> = slos.iter().map(|slo| format!("goodput {}", slo.name())).collect();
    let header: Vec<&str> = columns.into_iter().chain(goodput.iter().map(String::as_str)).collect();
    let mut table = right_aligned_table(&header);
    for result in results {
        let figures = &result.figures;
        let seconds = result.totals.ended.as_nanos() as f64 / 1e9;
        let mut row = vec![
            result.label.clone(),
            format!("{:.2}", figures.rate()),
            figures.lost.to_string(),
            format!("{:.0}", if seconds > 0.0 { figures.tokens as f64 / seconds } else { 0.0 }),
        ];
        for (histogram, q) in [
            (&figures.ttft, 0.5),
            (&figures.ttft, 0.99),
            (&figures.tpot, 0.5),
            (&figures.tpot, 0.99),
            (&figures.e2e, 0.99),
        ] {
            row.push(time(histogram, q));
        }
        row.extend(figures.good.iter().map(|(good, of)| match of {
            0 => "-".to_owned(),
            of => format_percent(*good as f64 / *of as f64),
        }));
        table.add_row(row);
    }
    format!("{SIMULATED} {}\n{}", held_out(model), render_table(&table))
}

fn time(histogram: &Histogram, q: f64) -> String {
    histogram.quantile(q).map_or_else(|| "-".to_owned(), |seconds| Gap::from_nanos((seconds * 1e9) as u64).to_string())
}

/// The worst held-out error of each figure over all engines.
pub(in crate::cli) fn held_out(model: &TwinModel) -> String {
    let worst = model.errors();
    if worst.is_empty() {
        return "Its error is unknown: the twin has no held-out rows.".to_owned();
    }
    let shown = worst.iter().map(|(figure, error)| format!("{figure} {}", format_percent(*error)));
    format!("Error on held-out rows: {}.", shown.collect::<Vec<_>>().join(", "))
}

pub(super) fn json(model: &TwinModel, slos: &[Slo], results: &[VariantResult]) -> Value {
    let variants = results.iter().map(|result| {
        let mut figures = result.figures.json(slos);
        figures["variant"] = json!(result.label);
        figures["replicas"] = json!(result.replicas);
        figures["max_replicas"] = json!(result.totals.max_replicas);
        figures["router"] = json!(result.router);
        figures["skipped_rows"] = json!(result.totals.skipped);
        figures
    });
    let errors = model.engines.iter().map(|engine| json!({ "engine": engine.label(), "held_out": engine.held_out }));
    json!({
        "simulated": true,
        "engines": errors.collect::<Vec<_>>(),
        "variants": variants.collect::<Vec<_>>(),
    })
}
