//! Bounds of memory, allocations and time.
//!
//! A binary of its own, because the counting allocator is that of the whole process. `tests/run` builds this binary for
//! the release too, where the large sizes are fast enough.

#![expect(clippy::unwrap_used, reason = "clippy recognizes tests by their attribute; their helpers have none")]

#[path = "../support/big_trace.rs"]
mod big_trace;

mod allocations;
mod comparisons;
mod counting_allocator;
mod memory;
mod reports;
