//! Prefetches records that another core wrote into this core's cache, several at a time. Pure.
//!
//! A thread that reads another thread's record waits about 100 ns per cache line, one line after the other. That was
//! a quarter of the cost of counting and capturing a short request. Requests for several records in advance overlap.

use std::hint::black_box;

use smallvec::SmallVec;

use crate::measure::record::RequestRecord;

/// Items per batch: 32 KiB of records and short bodies.
const TOGETHER: usize = 16;

/// A value in another core's memory.
pub trait Prefetch {
    /// Touches each 64-byte cache line that will be needed.
    fn fetch(&mut self);
}

/// Collects up to 16 items and prefetches them.
pub fn together<T: Prefetch>(from: impl Iterator<Item = T>) -> SmallVec<[T; TOGETHER]> {
    let mut together: SmallVec<_> = from.take(TOGETHER).collect();
    together.iter_mut().for_each(Prefetch::fetch);
    together
}

/// Prefetches the fields of a record that counting and capturing read.
pub fn record(record: &RequestRecord) {
    black_box((record.times, record.usage, record.choices.len(), record.fault.is_some()));
    black_box((record.output_tokens, record.events, record.tokens_reported, record.ending));
    black_box((record.longest_gap, record.quality));
    let shape = &*record.shape;
    black_box((shape.max_tokens, shape.seed, shape.dialect.is_some(), shape.stream));
}
