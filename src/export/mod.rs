//! Records in, telemetry out.
//!
//! The proxy's threads hand what they observed to a [`queue::Reporter`] and move the levels in [`gauges::Gauges`]; that
//! is all they know of this folder, and neither ever makes them wait. One control thread runs the
//! [`control::ControlPlane`]: it counts the records in an [`aggregate::Aggregate`], and everything that leaves the
//! process is read from there.
//!
//! ```text
//! Reporter -> queue -> Aggregate -> Snapshot -> prometheus (text, OpenMetrics, protobuf)
//!                          |           |------> otlp metrics (explicit or exponential, cumulative or delta)
//!                          |           `------> /api/live, /api/history and the page that shows it
//!                          `-> spans ---------> otlp traces
//! ```
//!
//! A [`snapshot::Snapshot`] is plain data, and every exporter is a fold of it: a scrape, an OTLP ingest and the live
//! page of one run agree to the last count (`tests/exposition.rs`). The [`catalog`] names every instrument once.
//!
//! # What is lost, and when
//! A full queue, a collector that is down, one that rejects: each costs counted records
//! (`streamgauge.export.dropped`, [`drops`]) and at most one line of log a minute. Nothing here can slow, fail or change
//! a stream.
//!
//! # What is not here
//! No text, ever: a record has no place for it. And no second registry: who wants another number adds a row to the
//! catalog and a line to the aggregation.

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
