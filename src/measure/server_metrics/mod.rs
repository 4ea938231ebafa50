//! What servers report about themselves on their metrics pages, in one vocabulary. Pure.
//!
//! [`exposition`] reads a page's samples, and [`metric_names`] maps each server's names to the common ones
//! ([`ServerMetric`]).

pub mod exposition;
pub mod metric_names;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A metric that servers report about themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServerMetric {
    /// Requests that wait for execution.
    Waiting,
    /// Requests that are executing.
    Running,
    /// Used share of the KV cache, from 0 to 1; the maximum over several engines.
    KvUsage,
    /// Prompt tokens found in the prefix cache.
    PrefixHits,
    /// Prompt tokens looked up in the prefix cache.
    PrefixQueries,
    /// Requests that were preempted and execute again later.
    Preemptions,
    /// Prompt tokens processed.
    PromptTokens,
    /// Tokens generated.
    GenerationTokens,
    /// Seconds that requests spent in the queue.
    QueueSeconds,
    /// Requests whose time in the queue is counted.
    QueueRequests,
    /// Seconds from the schedule of requests to their first token.
    PrefillSeconds,
    /// Requests whose prefill time is counted.
    PrefillRequests,
    /// Seconds from the arrival of requests at the server to their first token.
    FirstTokenSeconds,
    /// Requests whose time to first token is counted.
    FirstTokenRequests,
    /// Bytes that each GPU read from its memory, as the engine estimates.
    ReadBytes,
    /// Mean GPU utilization, from 0 to 1.
    GpuUtilization,
    /// GPU memory in use, in bytes.
    GpuMemory,
    /// GPU power draw, in watts.
    GpuPower,
    /// Share of time in which the memory of the GPU transferred data, from 0 to 1.
    GpuMemoryActivity,
}

/// How a metric changes over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A current value that rises and falls.
    Gauge,
    /// Grows until the server restarts.
    Counter,
}

/// How several series of a metric are combined: engines of one server, or GPUs of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesAggregation {
    /// Sum of the series.
    Sum,
    /// Maximum of the series.
    Max,
    /// Mean of the series.
    Mean,
}

impl ServerMetric {
    /// All metrics, in report order.
    pub const ALL: [Self; 19] = [
        Self::Waiting,
        Self::Running,
        Self::KvUsage,
        Self::PrefixHits,
        Self::PrefixQueries,
        Self::Preemptions,
        Self::PromptTokens,
        Self::GenerationTokens,
        Self::QueueSeconds,
        Self::QueueRequests,
        Self::PrefillSeconds,
        Self::PrefillRequests,
        Self::FirstTokenSeconds,
        Self::FirstTokenRequests,
        Self::ReadBytes,
        Self::GpuUtilization,
        Self::GpuMemory,
        Self::GpuPower,
        Self::GpuMemoryActivity,
    ];

    /// Histograms of a server, of which the sum and the count are kept: (seconds, requests).
    pub const DURATIONS: [(Self, Self); 3] = [
        (Self::QueueSeconds, Self::QueueRequests),
        (Self::PrefillSeconds, Self::PrefillRequests),
        (Self::FirstTokenSeconds, Self::FirstTokenRequests),
    ];

    /// How the metric changes over time.
    pub const fn kind(self) -> MetricKind {
        match self {
            Self::PrefixHits
            | Self::PrefixQueries
            | Self::Preemptions
            | Self::PromptTokens
            | Self::GenerationTokens
            | Self::QueueSeconds
            | Self::QueueRequests
            | Self::PrefillSeconds
            | Self::PrefillRequests
            | Self::FirstTokenSeconds
            | Self::FirstTokenRequests
            | Self::ReadBytes => MetricKind::Counter,
            _ => MetricKind::Gauge,
        }
    }

    /// How several series of the metric are combined.
    pub const fn aggregation(self) -> SeriesAggregation {
        match self {
            Self::KvUsage => SeriesAggregation::Max,
            Self::GpuUtilization | Self::GpuMemoryActivity | Self::ReadBytes => SeriesAggregation::Mean,
            _ => SeriesAggregation::Sum,
        }
    }

    /// Display name.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::KvUsage => "KV usage",
            Self::PrefixHits => "prefix hits",
            Self::PrefixQueries => "prefix queries",
            Self::Preemptions => "preemptions",
            Self::PromptTokens => "prompt tokens",
            Self::GenerationTokens => "generated tokens",
            Self::QueueSeconds => "queue time",
            Self::QueueRequests => "requests with a queue time",
            Self::PrefillSeconds => "prefill time",
            Self::PrefillRequests => "requests with a prefill time",
            Self::FirstTokenSeconds => "time to first token",
            Self::FirstTokenRequests => "requests with a first token",
            Self::ReadBytes => "bytes read per GPU",
            Self::GpuUtilization => "GPU utilization",
            Self::GpuMemory => "GPU memory",
            Self::GpuPower => "GPU power",
            Self::GpuMemoryActivity => "GPU memory activity",
        }
    }

    /// Display unit.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Waiting
            | Self::Running
            | Self::Preemptions
            | Self::QueueRequests
            | Self::PrefillRequests
            | Self::FirstTokenRequests => "requests",
            Self::KvUsage | Self::GpuUtilization | Self::GpuMemoryActivity => "1",
            Self::QueueSeconds | Self::PrefillSeconds | Self::FirstTokenSeconds => "s",
            Self::PrefixHits | Self::PrefixQueries | Self::PromptTokens | Self::GenerationTokens => "tokens",
            Self::GpuMemory | Self::ReadBytes => "bytes",
            Self::GpuPower => "W",
        }
    }
}
