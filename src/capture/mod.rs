//! The shape of traffic on disk: what a benchmark needs to be faithful, and nothing that a person said.
//!
//! A trace is one [`format::Header`] and one [`format::Entry`] per request. The proxy's capture writes it, every public
//! format is read into it (`trace`), and a replay sends what it says.

pub mod format;
pub mod frame;
pub mod gaps;
pub mod reader;
pub mod writer;

/// The longest line that is written or read, in bytes. A request of a million tokens in blocks of 16 takes 1.3 MB.
pub const MAX_ROW: usize = 8 << 20;
