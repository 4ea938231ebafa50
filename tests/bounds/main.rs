//! Bounds of memory, allocations and time.
//!
//! A binary of its own: the allocator that counts is the allocator of the whole process, and `tests/run` builds this
//! binary on the release too, where the large sizes are fast enough.

#![expect(clippy::unwrap_used, reason = "clippy recognizes tests by their attribute; their helpers have none")]

#[path = "../support/big_trace.rs"]
mod big_trace;

mod allocations;
mod comparisons;
mod counting_allocator;
mod memory;
mod reports;
