//! Statistics of samples, lengths and prefixes. Pure, and independent of where the numbers come from.

mod block_id_set;
pub mod deviation;
pub mod hash;
pub mod length_histogram;
pub mod locality_hash;
pub mod prefix_cache;
pub mod samples;
