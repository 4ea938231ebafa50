//! The proxy between real sockets: what it forwards, rejects, survives and hands over.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "clippy recognizes tests by their attribute; their helpers have none, and may wait"
)]

#[path = "../support/mod.rs"]
mod support;

mod admin_access;
mod admin_control;
mod client_disconnect;
mod connection_reuse;
mod error_responses;
mod flow_control;
mod hostile_peers;
mod operating_metrics;
mod privacy;
mod protocols;
mod rx_timestamps;
mod stream_endings;
mod takeover;
mod token_counter;
mod transparency;
mod transparent;
mod usage_injection;
