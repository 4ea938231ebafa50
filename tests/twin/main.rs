//! The twin: fitted engines in virtual time.

#![expect(clippy::unwrap_used, reason = "clippy recognizes tests by their attribute; their helpers have none")]

mod command;
mod lost_hits;
mod plan;
mod queueing;
mod recovery;
mod traffic;
mod what_if;
