//! Exported metrics and spans, and the variables that configure the export.

#![expect(clippy::unwrap_used, reason = "clippy recognizes tests by their attribute; their helpers have none")]

#[path = "../support/mod.rs"]
mod support;

mod exposition;
mod openmetrics;
mod otlp_environment;
mod records;
mod released_metrics;
