//! OTLP export of metrics, traces and logs to a collector.

mod attributes;
pub(super) mod batch;
mod client;
mod connect;
pub(super) mod exporter;
mod grpc;
mod http;
pub mod logs;
pub mod metrics;
mod payload;
pub mod pending_spans;
mod protobuf_writer;
pub mod traces;

pub(super) use connect::probe_collector;
pub use connect::{check, connect_collector};

/// User agent in the form that the OTLP specification requires.
const USER_AGENT: &str = concat!("OTel-OTLP-Exporter-Streamgauge/", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests;
