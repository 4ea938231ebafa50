//! The bound that the memory bandwidth sets on TPOT.
//!
//! A decode step reads every weight once, and the KV cache of every sequence of the batch. So no step is faster than
//!
//! ```text
//! (params × bytes per param + batch × context × KV bytes per token) ÷ bandwidth
//! ```
//!
//! where the context of a sequence is, on average, its prompt and half of its response. The bandwidth is that of all
//! GPUs that hold one copy of the model. A mixture of experts reads only the parameters of the experts that its batch
//! uses. Where a step generates several tokens (speculative decoding), TPOT may be below the bound.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::Serialize;

use super::RequestSummary;
use super::ascii_plot::{format_percent, format_value};
use super::metric::{MetricUnit, ReportMetric};
use super::servers::{ServerSummary, Trend};
use crate::measure::server_metrics::ServerMetric;
use crate::stats::interval::Interval;

/// Hardware and model, as flags state them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hardware {
    /// Memory bandwidth of all GPUs of one copy of the model.
    pub bandwidth: MemoryBandwidth,
    /// Parameters of the model.
    pub params: f64,
    /// Bytes of a parameter.
    pub bytes_per_param: f64,
    /// Bytes that one token adds to the KV cache.
    pub kv_bytes_per_token: Option<f64>,
}

/// Memory bandwidth in bytes per second, as in `bandwidth=4.8TB/s`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct MemoryBandwidth(pub f64);

const EXPECTED: &str = "expected bandwidth=NUMBER with MB/s, GB/s or TB/s, as in bandwidth=4.8TB/s";

impl FromStr for MemoryBandwidth {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim().strip_prefix("bandwidth=").ok_or(EXPECTED)?;
        let units = [("MB/s", 1e6), ("GB/s", 1e9), ("TB/s", 1e12)];
        let (number, scale) =
            units.into_iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale))).ok_or(EXPECTED)?;
        let number: f64 = number.trim().parse().map_err(|_| EXPECTED)?;
        let bytes = number * scale;
        if bytes.is_finite() && bytes > 0.0 { Ok(Self(bytes)) } else { Err(EXPECTED) }
    }
}

/// TPOT against its bound. Times are milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct BandwidthBound {
    /// Bytes of the weights.
    pub weight_bytes: f64,
    /// Bandwidth in bytes per second.
    pub bandwidth_bytes_per_second: f64,
    /// Bound of a step that reads the weights alone.
    pub weights_ms: f64,
    /// Mean sequences in a step: running at the server, else in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<f64>,
    /// Mean tokens of a sequence in the KV cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<f64>,
    /// Bound of a step that also reads the KV cache of the batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub with_kv_ms: Option<f64>,
    /// Mean TPOT.
    pub tpot_ms: f64,
    /// Its 95 % interval, if there is enough data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpot_interval: Option<Interval>,
    /// TPOT minus the larger bound.
    pub gap_ms: f64,
    /// Larger bound ÷ TPOT: the share of the bandwidth that the reads of decode explain.
    pub share_of_bound: f64,
    /// Bytes per second and GPU that the engine estimates to have read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_read_bytes_per_second: Option<f64>,
    /// Mean share of time in which the GPU's memory transferred data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_activity: Option<f64>,
}

impl BandwidthBound {
    /// Computes the bound; `None` without a TPOT. `in_flight` is the mean number of requests in flight.
    pub(super) fn of(
        hardware: &Hardware,
        summary: &RequestSummary,
        servers: &[ServerSummary],
        in_flight: Option<f64>,
    ) -> Option<Self> {
        let tpot = summary.metric(ReportMetric::Tpot)?;
        let mean = |metric: ReportMetric| summary.metric(metric).map(|of| of.avg);
        let figure = |metric: ServerMetric| servers.iter().find_map(|server| server.figures.get(&metric));
        let level = |metric: ServerMetric| match figure(metric)? {
            Trend::Level { avg, .. } => Some(*avg),
            Trend::Counter { .. } => None,
        };
        let read = match figure(ServerMetric::ReadBytes) {
            Some(Trend::Counter { per_second, .. }) => Some(*per_second).filter(|read| *read > 0.0),
            _ => None,
        };
        let bandwidth = hardware.bandwidth.0;
        let weight_bytes = hardware.params * hardware.bytes_per_param;
        let weights_ms = weight_bytes / bandwidth * 1e3;
        let batch = level(ServerMetric::Running).filter(|running| *running > 0.0).or(in_flight);
        let context = mean(ReportMetric::Input).zip(mean(ReportMetric::Output)).map(|(isl, osl)| isl + osl / 2.0);
        let kv = hardware.kv_bytes_per_token.zip(batch).zip(context);
        let with_kv = kv.map(|((bytes, batch), context)| weights_ms + bytes * batch * context / bandwidth * 1e3);
        let bound = with_kv.unwrap_or(weights_ms);
        Some(Self {
            weight_bytes,
            bandwidth_bytes_per_second: bandwidth,
            weights_ms,
            batch,
            context_tokens: context,
            with_kv_ms: with_kv,
            tpot_ms: tpot.avg,
            tpot_interval: tpot.confidence.as_ref().and_then(|of| of.avg.ok()),
            gap_ms: tpot.avg - bound,
            share_of_bound: bound / tpot.avg,
            estimated_read_bytes_per_second: read,
            memory_activity: level(ServerMetric::GpuMemoryActivity),
        })
    }

    /// Returns named lines for people.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let time = |millis: f64| format_value(millis.max(0.0), MetricUnit::Time);
        let gigabytes = |bytes: f64| format!("{:.1} GB", bytes / 1e9);
        let mut lines = vec![(
            "bound by weights",
            format!(
                "{} of weights at {}/s: {} per step",
                gigabytes(self.weight_bytes),
                gigabytes(self.bandwidth_bytes_per_second),
                time(self.weights_ms)
            ),
        )];
        if let Some(((bound, batch), context)) = self.with_kv_ms.zip(self.batch).zip(self.context_tokens) {
            let of = format!("{batch:.1} sequences of {context:.0} tokens");
            lines.push(("bound with KV", format!("{of}: {} per step", time(bound))));
        }
        let interval = self
            .tpot_interval
            .map_or(String::new(), |Interval { low, high }| format!(", 95 % interval {}–{}", time(low), time(high)));
        lines.push(("TPOT", format!("{} on average{interval}", time(self.tpot_ms))));
        let share = format_percent(self.share_of_bound);
        lines.push((
            "gap",
            match self.gap_ms < 0.0 {
                true => "none: TPOT is below the bound; check the flags, or steps generate several tokens".to_owned(),
                false => format!("{} above the bound, which is {share} of TPOT", time(self.gap_ms)),
            },
        ));
        if let Some(read) = self.estimated_read_bytes_per_second {
            lines.push(("read per GPU", format!("{}/s, as the engine estimates", gigabytes(read))));
        }
        if let Some(activity) = self.memory_activity {
            lines.push(("memory activity", format!("{} of the time, by the GPU", format_percent(activity))));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bandwidth_has_a_unit() {
        let bandwidth = |text: &str| text.parse::<MemoryBandwidth>();
        assert_eq!(bandwidth("bandwidth=4.8TB/s"), Ok(MemoryBandwidth(4.8e12)));
        assert_eq!(bandwidth("bandwidth=900 GB/s"), Ok(MemoryBandwidth(9e11)));
        for wrong in ["4.8TB/s", "bandwidth=4.8", "bandwidth=-1TB/s", "bandwidth=NaNTB/s", "bandwidth=infTB/s", ""] {
            assert_eq!(bandwidth(wrong), Err(EXPECTED), "{wrong}");
        }
    }
}
