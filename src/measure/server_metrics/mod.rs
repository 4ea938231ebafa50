//! The metrics that servers report about themselves, in one vocabulary. Pure.
//!
//! [`exposition`] reads a page's samples, and [`metric_names`] maps each server's names to the common ones
//! ([`ServerMetric`]). [`cache_config`] reads the size of the KV cache.

pub mod cache_config;
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
    /// Requests among them that wait for room in the batch or the KV cache.
    WaitingForCapacity,
    /// Requests among them that are deferred: for a LoRA slot, a transfer of KV cache, or another request.
    WaitingDeferred,
    /// Requests that are executing.
    Running,
    /// Used share of the KV cache, from 0 to 1; the maximum over several engines.
    KvUsage,
    /// Prompt tokens found in the prefix cache.
    PrefixHits,
    /// Prompt tokens looked up in the prefix cache.
    PrefixQueries,
    /// Prompt tokens found in a cache outside the engine, which a KV connector reads.
    ExternalHits,
    /// Prompt tokens looked up there.
    ExternalQueries,
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
    /// Seconds from the first token of requests to their last.
    DecodeSeconds,
    /// Requests whose decode time is counted.
    DecodeRequests,
    /// Seconds from the arrival of requests at the server to their first token.
    FirstTokenSeconds,
    /// Requests whose time to first token is counted.
    FirstTokenRequests,
    /// Floating point operations of each GPU, as the engine estimates.
    Flops,
    /// Bytes that each GPU read from its memory, as the engine estimates.
    ReadBytes,
    /// Bytes that each GPU wrote to its memory, as the engine estimates.
    WriteBytes,
    /// Tokens that the KV cache of the engine holds; of its configuration.
    KvCapacity,
    /// LoRA adapters whose requests are executing.
    LoraRunning,
    /// LoRA adapters whose requests wait.
    LoraWaiting,
    /// Most LoRA adapters in one batch; of its configuration.
    LoraSlots,
    /// Mean GPU utilization, from 0 to 1.
    GpuUtilization,
    /// GPU memory in use, in bytes.
    GpuMemory,
    /// GPU power draw, in watts.
    GpuPower,
    /// Share of time in which the memory of the GPU transferred data, from 0 to 1.
    GpuMemoryActivity,
    /// Bytes per second that the GPUs send over PCIe.
    PcieSent,
    /// Bytes per second that the GPUs receive over PCIe.
    PcieReceived,
    /// Bytes per second that the GPUs send over NVLink.
    NvlinkSent,
    /// Bytes per second that the GPUs receive over NVLink.
    NvlinkReceived,
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
    /// The series that was updated last, by its value, a time.
    Latest,
}

impl ServerMetric {
    /// All metrics, in report order.
    pub const ALL: [Self; 35] = [
        Self::Waiting,
        Self::WaitingForCapacity,
        Self::WaitingDeferred,
        Self::Running,
        Self::KvUsage,
        Self::PrefixHits,
        Self::PrefixQueries,
        Self::ExternalHits,
        Self::ExternalQueries,
        Self::Preemptions,
        Self::PromptTokens,
        Self::GenerationTokens,
        Self::QueueSeconds,
        Self::QueueRequests,
        Self::PrefillSeconds,
        Self::PrefillRequests,
        Self::DecodeSeconds,
        Self::DecodeRequests,
        Self::FirstTokenSeconds,
        Self::FirstTokenRequests,
        Self::Flops,
        Self::ReadBytes,
        Self::WriteBytes,
        Self::KvCapacity,
        Self::LoraRunning,
        Self::LoraWaiting,
        Self::LoraSlots,
        Self::GpuUtilization,
        Self::GpuMemory,
        Self::GpuPower,
        Self::GpuMemoryActivity,
        Self::PcieSent,
        Self::PcieReceived,
        Self::NvlinkSent,
        Self::NvlinkReceived,
    ];

    /// Histograms of a server, of which the sum and the count are kept: (seconds, requests).
    pub const DURATIONS: [(Self, Self); 4] = [
        (Self::QueueSeconds, Self::QueueRequests),
        (Self::PrefillSeconds, Self::PrefillRequests),
        (Self::DecodeSeconds, Self::DecodeRequests),
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
            | Self::DecodeSeconds
            | Self::DecodeRequests
            | Self::FirstTokenSeconds
            | Self::FirstTokenRequests
            | Self::ExternalHits
            | Self::ExternalQueries
            | Self::Flops
            | Self::ReadBytes
            | Self::WriteBytes => MetricKind::Counter,
            _ => MetricKind::Gauge,
        }
    }

    /// How several series of the metric are combined.
    pub const fn aggregation(self) -> SeriesAggregation {
        match self {
            Self::KvUsage => SeriesAggregation::Max,
            Self::LoraRunning | Self::LoraWaiting | Self::LoraSlots => SeriesAggregation::Latest,
            Self::GpuUtilization | Self::GpuMemoryActivity | Self::Flops | Self::ReadBytes | Self::WriteBytes => {
                SeriesAggregation::Mean
            }
            _ => SeriesAggregation::Sum,
        }
    }

    /// Display name.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::WaitingForCapacity => "waiting for capacity",
            Self::WaitingDeferred => "waiting, deferred",
            Self::Running => "running",
            Self::KvUsage => "KV usage",
            Self::PrefixHits => "prefix hits",
            Self::PrefixQueries => "prefix queries",
            Self::ExternalHits => "external prefix hits",
            Self::ExternalQueries => "external prefix queries",
            Self::Preemptions => "preemptions",
            Self::PromptTokens => "prompt tokens",
            Self::GenerationTokens => "generated tokens",
            Self::QueueSeconds => "queue time",
            Self::QueueRequests => "requests with a queue time",
            Self::PrefillSeconds => "prefill time",
            Self::PrefillRequests => "requests with a prefill time",
            Self::DecodeSeconds => "decode time",
            Self::DecodeRequests => "requests with a decode time",
            Self::FirstTokenSeconds => "time to first token",
            Self::FirstTokenRequests => "requests with a first token",
            Self::Flops => "operations per GPU",
            Self::ReadBytes => "bytes read per GPU",
            Self::WriteBytes => "bytes written per GPU",
            Self::KvCapacity => "KV cache size",
            Self::LoraRunning => "LoRA adapters running",
            Self::LoraWaiting => "LoRA adapters waiting",
            Self::LoraSlots => "LoRA adapters at most",
            Self::GpuUtilization => "GPU utilization",
            Self::GpuMemory => "GPU memory",
            Self::GpuPower => "GPU power",
            Self::GpuMemoryActivity => "GPU memory activity",
            Self::PcieSent => "PCIe sent",
            Self::PcieReceived => "PCIe received",
            Self::NvlinkSent => "NVLink sent",
            Self::NvlinkReceived => "NVLink received",
        }
    }

    /// Display unit.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Waiting
            | Self::WaitingForCapacity
            | Self::WaitingDeferred
            | Self::Running
            | Self::Preemptions
            | Self::QueueRequests
            | Self::PrefillRequests
            | Self::DecodeRequests
            | Self::FirstTokenRequests => "requests",
            Self::KvUsage | Self::GpuUtilization | Self::GpuMemoryActivity => "1",
            Self::QueueSeconds | Self::PrefillSeconds | Self::DecodeSeconds | Self::FirstTokenSeconds => "s",
            Self::PrefixHits
            | Self::PrefixQueries
            | Self::ExternalHits
            | Self::ExternalQueries
            | Self::PromptTokens
            | Self::GenerationTokens
            | Self::KvCapacity => "tokens",
            Self::Flops => "operations",
            Self::GpuMemory | Self::ReadBytes | Self::WriteBytes => "bytes",
            Self::PcieSent | Self::PcieReceived | Self::NvlinkSent | Self::NvlinkReceived => "bytes/s",
            Self::LoraRunning | Self::LoraWaiting | Self::LoraSlots => "adapters",
            Self::GpuPower => "W",
        }
    }
}
