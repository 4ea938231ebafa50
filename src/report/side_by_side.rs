//! One run in each tool's figures: the requests are equal, and only the definitions differ.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::accumulate::Accumulator;
use super::ascii_plot::{format_percent, format_value};
use super::definitions::Definitions;
use super::distribution::{MetricDistribution, percentile_name};
use super::metric::ReportMetric;
use super::summary::by_name;
use super::{RequestSummary, SloGoodput, Throughput, window};

/// Percentiles of the view.
const PERCENTILES: [f64; 2] = [50.0, 99.0];
/// Metrics that tools define differently.
const METRICS: [ReportMetric; 4] = [ReportMetric::Ttft, ReportMetric::Itl, ReportMetric::Tpot, ReportMetric::E2e];

/// Figures of one tool's definitions.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ToolFigures {
    /// Name of the definitions.
    pub definitions: &'static str,
    /// Rates of the successes.
    pub throughput: Throughput,
    /// Goodput of each SLO.
    pub goodput: Vec<SloGoodput>,
    /// Distribution of each metric that the tool has.
    #[serde(serialize_with = "by_name")]
    #[schemars(with = "BTreeMap<String, MetricDistribution>")]
    pub metrics: Vec<MetricDistribution>,
}

impl ToolFigures {
    /// Summarizes requests that were aggregated under a tool's definitions.
    pub fn of(definitions: Definitions, fold: &mut Accumulator) -> Self {
        let Accumulator { settings, total, .. } = fold;
        let (first, last) = window(total);
        let summary = RequestSummary::of(total, last - first, &settings.slos, &PERCENTILES);
        let metrics = summary.metrics.into_iter().filter(|of| METRICS.contains(&of.metric)).collect();
        let (throughput, goodput) = (summary.throughput, summary.goodput);
        Self { definitions: definitions.name(), throughput, goodput, metrics }
    }

    fn value(&self, metric: ReportMetric, statistic: Option<f64>) -> Option<f64> {
        let of = self.metrics.iter().find(|of| of.metric == metric)?;
        match statistic {
            None => Some(of.avg),
            Some(percent) => of.percentiles.iter().find(|(known, _)| *known == percent).map(|(_, value)| *value),
        }
    }
}

/// Builds the table of figures by tool; `None` without any. The first row is the header.
pub fn table(tools: &[ToolFigures]) -> Option<Vec<Vec<String>>> {
    let first = tools.first()?;
    let cells = |name: String, cell: &dyn Fn(&ToolFigures) -> Option<String>| {
        let cell = |tool: &ToolFigures| cell(tool).unwrap_or_else(|| "-".to_owned());
        std::iter::once(name).chain(tools.iter().map(cell)).collect::<Vec<String>>()
    };
    let mut rows = vec![cells("as each tool reports it".to_owned(), &|tool| Some(tool.definitions.to_owned()))];
    for metric in METRICS {
        for statistic in std::iter::once(None).chain(PERCENTILES.map(Some)) {
            let name = statistic.map_or("avg".to_owned(), percentile_name);
            let value =
                |tool: &ToolFigures| tool.value(metric, statistic).map(|value| format_value(value, metric.unit()));
            rows.push(cells(format!("{} {name}", metric.label(false)), &value));
        }
    }
    let rate = |tool: &ToolFigures| Some(format!("{:.0}", tool.throughput.output_tokens));
    rows.push(cells("output tokens/s".to_owned(), &rate));
    for (slo, goodput) in first.goodput.iter().enumerate() {
        let share = |tool: &ToolFigures| tool.goodput.get(slo)?.share.map(format_percent);
        rows.push(cells(format!("goodput {}", goodput.slo), &share));
    }
    Some(rows)
}
