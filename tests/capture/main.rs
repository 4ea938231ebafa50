//! The capture: the trace file, and the recorder behind a running proxy.

#![expect(clippy::unwrap_used, reason = "clippy recognizes tests by their attribute; their helpers have none")]

#[path = "../support/mod.rs"]
mod support;

mod bucket;
mod bucket_faults;
mod classes;
mod disk;
#[cfg(feature = "parquet")]
mod parquet;
mod probes;
mod prompts;
mod recorder;
mod sampling;
mod sessions;
mod settings;
mod trace_file;
