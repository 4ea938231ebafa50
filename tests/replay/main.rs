//! Replays, synthetic loads and sweeps: what they send, and the results that they write.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "clippy recognizes tests by their attribute; their helpers have none, and may wait"
)]

#[path = "../support/mod.rs"]
mod support;

mod command;
mod live_metrics;
mod load;
mod open_loop;
mod privacy;
mod prompt_lengths;
mod public_traces;
mod sender;
mod server_metrics;
mod sessions;
mod sweep;
