//! The control thread: it takes finished requests from the [`queue`], counts them, and serves every exporter.

pub mod live_view;
pub mod process_control;
pub mod queue;
pub(super) mod recent_requests;
pub mod run_status;
pub(super) mod slo_limit;
pub(super) mod state;
pub mod thread;
