//! Metrics of the scraped servers during a level.

use schemars::JsonSchema;
use serde::Serialize;

use crate::measure::server_metrics::ServerMetric;
use crate::report::servers::{ServerSummary, Trend};
use crate::report::source::ReportSource;

/// Figures of all scraped pages of a level's runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(super) struct ServerLoad {
    /// Highest mean share of the KV cache in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kv_usage: Option<f64>,
    /// Mean GPU utilization, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gpu_utilization: Option<f64>,
    /// Preempted requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) preemptions: Option<f64>,
}

impl ServerLoad {
    pub(super) fn of(runs: &[ReportSource]) -> Self {
        let servers: Vec<ServerSummary> =
            runs.iter().flat_map(|run| &run.servers).map(|of| ServerSummary::summarize(of, &|_| true)).collect();
        let levels = |metric| {
            let level = move |server: &ServerSummary| match server.figures.get(&metric) {
                Some(Trend::Level { avg, .. }) => Some(*avg),
                _ => None,
            };
            servers.iter().filter_map(level).collect::<Vec<f64>>()
        };
        let totals = |server: &ServerSummary| match server.figures.get(&ServerMetric::Preemptions) {
            Some(Trend::Counter { total, .. }) => Some(*total),
            _ => None,
        };
        let gpus = levels(ServerMetric::GpuUtilization);
        Self {
            kv_usage: levels(ServerMetric::KvUsage).into_iter().reduce(f64::max),
            gpu_utilization: (!gpus.is_empty()).then(|| gpus.iter().sum::<f64>() / gpus.len() as f64),
            preemptions: servers.iter().filter_map(totals).reduce(|all, one| all + one),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
