//! Records in, telemetry out.

pub mod admin;
pub mod aggregate;
pub mod catalog;
pub mod control;
pub mod drops;
pub mod endings;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod gauges;
pub mod labels;
mod models;
pub mod otlp;
mod process;
pub mod prometheus;
pub mod queue;
mod series;
pub mod snapshot;
mod telemetry;
pub mod trace_context;
