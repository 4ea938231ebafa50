//! Aggregates request records and exports telemetry.
//!
//! The forwarding threads pass their records to a [`control::queue::Reporter`] and update [`registry::gauges::Gauges`]. They use nothing
//! else of this module, and neither call ever blocks. One control thread runs the [`control::thread::ControlPlane`]: it counts
//! the records in an [`registry::aggregate::Aggregate`], and all exported data is read from there.
//!
//! ```text
//! Reporter -> queue -> Aggregate -> Snapshot -> prometheus (text, OpenMetrics, protobuf)
//!                          |           |------> otlp metrics (explicit or exponential, cumulative or delta)
//!                          |           `------> /api/live, /api/history and the live page
//!                          `-> spans ---------> otlp traces
//! tracing events -> records ------------------> otlp logs
//! ```
//!
//! A [`registry::snapshot::Snapshot`] is plain data that every exporter reads. So a scrape, an OTLP export and the live page of
//! one run agree exactly (`tests/export/exposition.rs`). The [`registry::catalog`] defines every instrument.
//!
//! # Lost telemetry
//! A full queue, an unreachable collector and a rejection each lose records. They are counted in
//! `streamgauge.export.dropped` ([`registry::drops`]) and logged at most once a minute. Exporting cannot slow, fail or change a
//! stream.
//!
//! # Rules
//! Exported data contains no text of prompts or responses: a record has no field for it. There is no second registry: a
//! new number is a row in the catalog and a line in the aggregation.

pub mod admin;
pub mod control;
pub mod engine_metrics;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod identity;
pub mod otlp;
pub mod prometheus;
pub mod registry;
pub mod slo_files;
pub mod trace_context;
