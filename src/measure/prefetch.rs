//! Brings what another core wrote into this one's cache, several things at a time. Pure.
//!
//! Whoever reads a record that another thread has made waits some 100 ns for each of its lines, one after the other: that
//! was a quarter of what counting and capturing a short request cost. What is asked for of several records before any of it
//! is needed comes at once.

use std::hint::black_box;

use smallvec::SmallVec;

use super::record::RequestRecord;

/// Things that are fetched together: 32 KiB of records and short bodies.
const TOGETHER: usize = 16;

/// What lies in the memory of another core.
pub trait Prefetch {
    /// Reads something of each of its lines of 64 bytes that will be needed, and forgets it.
    fn fetch(&mut self);
}

/// Takes up to 16 of what comes, fetched.
pub fn together<T: Prefetch>(from: impl Iterator<Item = T>) -> SmallVec<[T; TOGETHER]> {
    let mut together: SmallVec<_> = from.take(TOGETHER).collect();
    together.iter_mut().for_each(Prefetch::fetch);
    together
}

/// Fetches what is counted and written of a record.
pub fn record(record: &RequestRecord) {
    black_box((record.times, record.usage, record.choices.len(), record.fault.is_some()));
    black_box((record.output_tokens, record.events, record.tokens_reported, record.ending));
    black_box((record.longest_gap, record.quality));
    let shape = &*record.shape;
    black_box((shape.max_tokens, shape.seed, shape.dialect.is_some(), shape.stream));
}
