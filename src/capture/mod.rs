//! The shape of traffic on disk: all that a faithful benchmark needs, and no text of any user.
//!
//! The proxy's capture writes trace files ([`trace_file`](crate::trace_file)): one row per request.
//!
//! # From request to row
//! A request without a dialect is plain HTTP and gets no row. The recorder counts and skips probes of a load generator
//! ([`crate::trace_file::PROBE_HEADER`]).
//!
//! ```text
//! stream's task -> CaptureHandle, record -> control thread -> writer thread: digest -> row -> frame -> segments
//! ```
//! The stream's task only hands over data ([`recorder`]). A long body follows as soon as it is sent, a short one with
//! the end of the request. The control thread counts the record, adds the token count of a tokenizer if there is one,
//! and forwards it to the writer thread. The writer thread turns a body into block ids and message digests
//! ([`prompt_hasher`]), then drops the body. Blocks are of bytes, or of tokens with a [`tokenizer`]. When the request
//! has ended, the thread finds its session ([`sessions`]) and writes the row. It writes a frame when the frame is full
//! or `--capture-flush` has elapsed ([`segments`] rotates, retains and syncs). Rows are in completion order. Losses are
//! counted ([`stats`]) and logged at once, then at most once a minute. Shutdown waits at most three seconds for the
//! disk.
//!
//! Server metrics scraped during a run are stored beside the records, in rows of their own ([`server_metrics`](crate::trace_file::server_metrics)).
//!
//! # Privacy
//! The capture writes no text, headers, client addresses or user ids. A reader of the records can still learn:
//!
//! * **Lengths and times** of prompts, replies and pauses. With the same model, gaps between tokens may reveal
//!   something about the generated text. `--capture-round` rounds times, and rounds prompts to whole blocks in bytes
//!   and tokens. Reply lengths stay exact.
//! * **Shared prefixes**: how many blocks two prompts under one key share, and which requests form a session. Without
//!   the key ([`key`]), a block's text cannot be tested. The key lies in the folder, readable by its owner only; do not
//!   share it with the records. `--capture-key-rotate` breaks all links at midnight UTC. A request sent before midnight
//!   and answered after it has no ids.
//! * **The server**: its address and its model names ([`model_names`]). A name that no server has accepted is never
//!   written; `--capture-names` raises the required number of successes. Of a path, only the last segment is written. A
//!   rarely used model name can identify its users.
//! * **Images and audio**: their number, kind, size in bytes, and width and height in pixels.

mod agent_headers;
pub mod block_chunker;
mod body_decoding;
pub mod body_memory;
#[cfg(feature = "parquet")]
mod converter;
#[cfg(not(feature = "parquet"))]
#[path = "no_converter.rs"]
mod converter;
mod error;
mod folder_lock;
pub mod key;
pub mod live_sessions;
pub mod manifest;
pub mod media;
pub mod message;
pub mod model_names;
pub mod prefetch;
pub mod prompt_hasher;
pub mod recorder;
mod request_digest;
pub mod retention;
pub mod row_builder;
mod segment_ages;
mod segment_files;
pub mod segments;
pub mod sessions;
pub mod settings;
pub mod stats;
pub mod tokenizer;
pub mod upload_target;
mod uploader;
mod writer_thread;
