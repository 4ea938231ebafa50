//! The shape of traffic on disk: what a benchmark needs to be faithful, and nothing that a person said.
//!
//! A trace is one [`format::Header`] and one [`format::Entry`] per request. The proxy's capture writes it, every public
//! format is read into it (`trace`), and a replay sends what it says.

pub mod format;
