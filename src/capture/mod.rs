//! The shape of traffic on disk: what a benchmark needs to be faithful, and nothing that a person said.
//!
//! A trace is one [`format::Header`] and one [`format::Entry`] per request. The proxy's capture writes it, every public
//! format is read into it (`trace`), and a replay sends what it says.
//!
//! # The format
//! JSON Lines, version [`format::VERSION`]: what each field means stands at the field. On disk they are in frames
//! ([`frame`]), each an independent piece of zstd behind its metadata, so that every zstd decoder reads the file, a
//! torn end costs itself alone, and a time can be looked for without unpacking. [`reader`] reads them, and plain `.jsonl`
//! and `.jsonl.zst` too. What an older version wrote can be read; what a newer one wrote is refused by name.
//!
//! # How much it takes
//! A row of 200 tokens with jitter takes some 420 bytes, and 9 more for each id, which is noise: up to 80 blocks it is
//! within 1.2 kB. In blocks of 16 tokens those are prompts of 1,300 tokens; where prompts are longer, or the tokenizer
//! makes many tokens of a text, `--capture-block 64` makes a quarter as many ids, and 512 is what public traces have.
//!
//! # The way of a record
//! A request of no dialect is plain HTTP, and no row. Neither is a probe of a load generator
//! ([`recorder::PROBE_HEADER`]): it is counted, and skipped.
//!
//! ```text
//! stream's task -> Following, record -> whoever counts them -> recorder's thread: digest -> row -> frame -> segments
//! ```
//! The task only hands over ([`recorder`]): a long body as soon as it is sent, a short one with the request's end. What
//! has been counted goes on to the thread, with the count of a tokenizer where there is one. The thread turns a body into
//! ids of its blocks and digests of its messages ([`digest`], blocks of bytes or of a tokenizer's [`tokens`]) and drops
//! it; when the request has ended it finds its session ([`sessions`]), writes the row, and hands the frame to the system
//! once it is full or `--capture-flush` is over ([`segments`]: rotation, retention, syncs).
//! Rows are in the order of their *ends*. What is lost is counted ([`counts`]) and logged at once, then once a minute. The
//! end of the process waits three seconds for the disk, and no longer.
//!
//! What servers said of themselves during a run is beside its records, in rows of another kind ([`scrapes`]).
//!
//! # What leaks
//! No text, header, address of a client or user's id is written. What whoever has the records can still learn:
//!
//! * **Lengths and times**: of prompts, answers and pauses; from the gaps between tokens, with the help of the same
//!   model, something of what was generated may be guessed. `--capture-round` makes times coarse and prompts whole blocks,
//!   in bytes and in tokens; the lengths of answers stay.
//! * **Equal beginnings**: that two prompts of one key share so many blocks, and that requests belong to one session. It
//!   cannot be tested what the blocks say without the key ([`key`]): it lies in the folder, readable by its owner alone,
//!   and is not to be given away with the records. `--capture-key-rotate` ends all links at midnight UTC; what was
//!   asked before and answered after it has no ids.
//! * **The server**: its address, and the names of its models ([`names`]): one that no server has accepted is never
//!   written, `--capture-names` asks for more than one success, and of a path only the last segment is kept. A name that
//!   few people use can tell who they are.
//! * **Images and sounds**: their number, kind, size, and width and height in pixels.

pub mod blocks;
mod error;
pub mod frame;
pub mod gaps;
pub mod key;
mod line_reader;
pub mod media;
pub mod model_names;
pub mod prompt_hasher;
pub mod reader;
pub mod recorder;
pub mod row;
pub mod row_builder;
mod row_serializer;
mod segment_ages;
pub mod segments;
pub mod server_metrics;
pub mod sessions;
pub mod stats;
pub mod tokenizer;
pub mod writer;
mod writer_thread;
