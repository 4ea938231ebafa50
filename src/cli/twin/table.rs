//! The variants side by side.

use schemars::JsonSchema;
use serde::Serialize;

use super::figures::FigureSummary;
use super::variant::VariantResult;
use crate::cli::terminal::{render_table, right_aligned_table};
use crate::measure::slo::Slo;
use crate::report::ascii_plot::format_percent;
use crate::trace_file::header::SIMULATED;
use crate::twin::model::{HeldOutError, TwinModel};

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
        for (times, q) in [
            (&figures.ttft, 0.5),
            (&figures.ttft, 0.99),
            (&figures.tpot, 0.5),
            (&figures.tpot, 0.99),
            (&figures.e2e, 0.99),
        ] {
            row.push(times.text(q));
        }
        row.extend(figures.good.iter().map(|(good, of)| match of {
            0 => "-".to_owned(),
            of => format_percent(*good as f64 / *of as f64),
        }));
        table.add_row(row);
    }
    format!("{SIMULATED}. {}\n{}", held_out(model), render_table(&table))
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

/// The variants as one JSON object.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::cli) struct VariantsDocument<'a> {
    /// Always true: the figures are a prediction.
    simulated: bool,
    engines: Vec<EngineError<'a>>,
    variants: Vec<VariantDocument<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct EngineError<'a> {
    engine: String,
    /// Errors on rows that the fit has not seen.
    held_out: &'a [HeldOutError],
}

#[derive(Debug, Serialize, JsonSchema)]
struct VariantDocument<'a> {
    variant: &'a str,
    replicas: u32,
    max_replicas: u32,
    router: &'a str,
    /// Rows of the traffic without a prompt or output length.
    skipped_rows: u64,
    /// Requests that were refused because too many others waited; `lost` counts them too.
    overloaded: u64,
    #[serde(flatten)]
    figures: FigureSummary,
}

pub(super) fn document<'a>(model: &'a TwinModel, slos: &[Slo], results: &'a [VariantResult]) -> VariantsDocument<'a> {
    let variant = |result: &'a VariantResult| VariantDocument {
        variant: &result.label,
        replicas: result.replicas,
        max_replicas: result.totals.max_replicas,
        router: &result.router,
        skipped_rows: result.totals.skipped,
        overloaded: result.totals.overloaded,
        figures: result.figures.summary(slos),
    };
    let engines = model.engines.iter().map(|of| EngineError { engine: of.label(), held_out: &of.held_out });
    VariantsDocument { simulated: true, engines: engines.collect(), variants: results.iter().map(variant).collect() }
}
