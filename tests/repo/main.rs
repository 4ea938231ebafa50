//! The repository itself: the arrows between rooms, the manual, metric names, `dashboards/` and `deploy/`.

#![expect(clippy::unwrap_used, reason = "clippy recognizes tests by their attribute; their helpers have none")]

#[path = "../support/pod.rs"]
mod pod;

mod architecture;
mod boards;
mod circles;
mod data_protection;
mod deploy;
mod manual;
mod metric_names;
mod source;
