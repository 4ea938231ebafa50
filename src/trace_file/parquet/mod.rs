//! Parquet files of rows, for DuckDB, Spark, ClickHouse, Trino and other engines.
//!
//! # Columns
//! One column per field of a row, named as the field with `_` for the dot: `at`, `model`, `prompt_tokens`,
//! `timing_first_token`, …. All columns except `at`, the lists and the map are nullable; null means unknown, and an
//! unknown list is empty. Times are nanoseconds as in the rows, in unsigned 64-bit integers. `ending`, `outcome`, `finish`
//! and the sources are strings; `prompt_parts` and `class` are JSON text; `prompt_blocks` is a list of ids.
//!
//! `time` is the wall-clock time of the arrival (microseconds, UTC). Gaps are unpacked to the lists `gap_ns` and
//! `gap_tokens` (0: unknown), and counted in the map `gap_sketch` ([`gap_sketch`](super::gap_sketch)). The file metadata
//! has the trace header as JSON under `streamgauge_trace`.
//!
//! Names and types stay: a later version may add columns.

mod column_buffer;
mod columns;
mod lines;
mod object;
mod writer;

pub use lines::ParquetLines;
pub use writer::ParquetWriter;

/// Key of the trace header in the file's metadata.
const HEADER_KEY: &str = "streamgauge_trace";
