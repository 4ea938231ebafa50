//! The trace file: our own format of captures, traces and runs on disk. Reading and writing need no clock and no thread.
//!
//! A trace is one [`header::TraceHeader`] and one [`row::TraceEntry`] per request. The proxy's capture writes traces,
//! `trace` converts public formats to them, and `replay` sends them.
//!
//! # The format
//! JSON Lines, version [`header::VERSION`]; each field's documentation defines it. On disk, rows are stored in frames
//! ([`frame`]): independent zstd frames, each behind its metadata. Every zstd decoder reads the file, a torn end loses
//! only the last frame, and readers find a time without unpacking. [`reader`] reads frames, plain `.jsonl` and
//! `.jsonl.zst`. Older versions stay readable; newer versions are rejected with an error that names the version.
//!
//! # Size
//! A row of 200 tokens with jitter takes about 770 bytes, plus 21 bytes per block id. Ids do not compress, and the fast
//! frames leave their digits as they are. With blocks of 16 tokens, a prompt of 1,300 tokens adds 1.7 kB. For longer
//! prompts `--capture-block 64` writes a quarter as many ids; public traces use 512.

pub mod blocks;
pub mod frame;
pub mod gap_sketch;
pub mod gaps;
pub mod header;
mod line_reader;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod read_error;
pub mod reader;
pub mod response_fields;
pub mod row;
mod row_serializer;
pub mod run_files;
pub mod segment_list;
mod segment_reader;
pub mod server_metrics;
pub mod writer;

/// First bytes of a Parquet file.
pub const PARQUET_MAGIC: &[u8] = b"PAR1";

/// Header (value `1`) of a request that a load generator sends to learn about the server. The capture skips and counts
/// such requests, because they are no part of the load.
pub const PROBE_HEADER: &str = "x-streamgauge-probe";
