//! Aggregates request records and exports telemetry.
//!
//! The forwarding threads pass their records to a [`queue::Reporter`] and update [`gauges::Gauges`]. They use nothing
//! else of this module, and neither call ever blocks. One control thread runs the [`control::ControlPlane`]: it counts
//! the records in an [`aggregate::Aggregate`], and all exported data is read from there.
//!
//! ```text
//! Reporter -> queue -> Aggregate -> Snapshot -> prometheus (text, OpenMetrics, protobuf)
//!                          |           |------> otlp metrics (explicit or exponential, cumulative or delta)
//!                          |           `------> /api/live, /api/history and the live page
//!                          `-> spans ---------> otlp traces
//! ```
//!
//! A [`snapshot::Snapshot`] is plain data that every exporter reads. So a scrape, an OTLP export and the live page of
//! one run agree exactly (`tests/exposition.rs`). The [`catalog`] defines every instrument.
//!
//! # Lost telemetry
//! A full queue, an unreachable collector and a rejection each lose records. They are counted in
//! `streamgauge.export.dropped` ([`drops`]) and logged at most once a minute. Exporting cannot slow, fail or change a
//! stream.
//!
//! # Rules
//! Exported data contains no text of prompts or responses: a record has no field for it. There is no second registry: a
//! new number is a row in the catalog and a line in the aggregation.

pub mod admin;
pub mod aggregate;
pub mod capture_hook;
pub mod catalog;
pub mod control;
mod control_state;
pub mod drops;
pub mod error_type;
mod family;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod gauges;
mod identity;
pub mod interner;
pub mod live_view;
mod models;
pub mod otlp;
mod process;
pub mod prometheus;
pub mod queue;
pub mod run_status;
mod series_cache;
pub mod snapshot;
pub mod thread_gauges;
pub mod token_counter;
pub mod trace_context;
