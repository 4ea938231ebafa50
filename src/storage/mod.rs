//! Objects in storage: Amazon S3 and servers that speak its protocol, Google Cloud Storage, Azure, and folders.
//!
//! A [`Bucket`] puts, lists and reads objects, and blocks its caller. The requests run on one thread of the process
//! (`io_thread`), so a caller may itself be on a runtime. There it must not be on a thread that forwards.
//! [`ObjectReader`] reads one object like a file, with bounded memory. [`find_objects`] lists what a URL names: one
//! object, a prefix, or a pattern.
//!
//! # Credentials
//! They come from the environment, by each provider's own chain: keys, web identity, the container's or the machine's
//! metadata server. No error quotes a request, a URL with a query, or a server's text ([`StorageError`]).

mod bucket;
mod error;
mod http_client;
mod io_thread;
mod object_reader;
mod objects;

pub use bucket::Bucket;
pub use error::StorageError;
pub use object_reader::ObjectReader;
pub use objects::{FoundObject, find_objects};
