//! OTLP: metrics and traces to a collector.

mod attributes;
mod client;
mod connect;
mod grpc;
mod http;
pub mod metrics;
pub(super) mod run;
pub mod traces;
mod wire;

pub use connect::check;
pub(super) use connect::first_contact;

/// As the protocol asks of every exporter.
const USER_AGENT: &str = concat!("OTel-OTLP-Exporter-Streamgauge/", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests;
