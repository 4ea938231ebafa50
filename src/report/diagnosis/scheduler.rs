//! The engine's scheduler or host sets the pace, not the GPU.

use super::super::servers::{ServerSummary, Trend};
use super::{DiagnosisVerdict, Evidence, EvidenceUnit, Finding, RuleInput};
use crate::measure::server_metrics::ServerMetric;

/// Mean number of requests that wait.
const MIN_WAITING: f64 = 1.0;
/// Largest use of the KV cache that leaves room for one more sequence.
const MAX_KV_USAGE: f64 = 0.8;
/// Mean running requests ÷ their maximum: at a limit, both are nearly equal.
const MIN_PLATEAU: f64 = 0.9;
/// Mean utilization of a GPU that waits for its host.
const MAX_GPU_UTILIZATION: f64 = 0.5;
/// Mean number of requests that run.
const MIN_RUNNING: f64 = 1.0;

pub(super) fn diagnose(input: &RuleInput<'_>) -> Option<Finding> {
    let (evidence, share, statement) = match (full_batch(input.servers), idle_gpu(input.servers)) {
        (Some((evidence, most)), _) => {
            let queue = input.relations.split.map_or(0.0, |split| split.queue_s / split.total_s);
            (evidence, queue, format!("at most {most:.0} requests run while others wait and the KV cache has room"))
        }
        (None, Some(evidence)) => {
            (evidence, MAX_GPU_UTILIZATION, "the GPU is idle most of the time while requests run".to_owned())
        }
        (None, None) => return None,
    };
    Some(Finding {
        verdict: DiagnosisVerdict::SchedulerBound,
        statement,
        share,
        evidence,
        symptom: "requests wait, or tokens come slowly, although the hardware could do more",
        next_measurement: "raise the batch limit (vLLM: --max-num-seqs, --max-num-batched-tokens) and compare; watch the CPU of the engine",
    })
}

fn level(server: &ServerSummary, metric: ServerMetric) -> Option<(f64, f64)> {
    match server.figures.get(&metric)? {
        Trend::Level { avg, max, .. } => Some((*avg, *max)),
        Trend::Counter { .. } => None,
    }
}

/// A batch at its limit: evidence, and the limit.
fn full_batch(servers: &[ServerSummary]) -> Option<(Vec<Evidence>, f64)> {
    servers.iter().find_map(|server| {
        let (running, most) = level(server, ServerMetric::Running)?;
        let evidence = vec![
            Evidence::new("requests waiting, mean", level(server, ServerMetric::Waiting)?.0, EvidenceUnit::Count)
                .at_least(MIN_WAITING),
            Evidence::new("KV cache in use, most", level(server, ServerMetric::KvUsage)?.1, EvidenceUnit::Share)
                .at_most(MAX_KV_USAGE),
            Evidence::new("requests running, mean ÷ most", running / most, EvidenceUnit::Share).at_least(MIN_PLATEAU),
        ];
        evidence.iter().all(Evidence::passes).then_some((evidence, most))
    })
}

/// A GPU that is idle while requests run.
pub(super) fn idle_gpu(servers: &[ServerSummary]) -> Option<Vec<Evidence>> {
    // The GPUs' page and the engine's may be two servers.
    let mean = |metric: ServerMetric| servers.iter().find_map(|server| level(server, metric)).map(|(avg, _)| avg);
    let evidence = vec![
        Evidence::new("GPU utilization, mean", mean(ServerMetric::GpuUtilization)?, EvidenceUnit::Share)
            .at_most(MAX_GPU_UTILIZATION),
        Evidence::new("requests running, mean", mean(ServerMetric::Running)?, EvidenceUnit::Count)
            .at_least(MIN_RUNNING),
    ];
    evidence.iter().all(Evidence::passes).then_some(evidence)
}
