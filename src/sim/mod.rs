//! A simulated inference server: an OpenAI-compatible HTTP front end in vLLM's format, over a simulated engine.
//!
//! New users have a first target, and calibration has a known cadence. The server also fails on demand, which a real
//! one does not. It does not predict any hardware. Its times come from a [`CostModel`](crate::engine::CostModel), its
//! text from a word list, and every displayed number is marked as simulated.
//!
//! # Path of a request
//!
//! `server` accepts, `routes` dispatches, and `request` reduces the body to prompt lengths and hashes.
//! `engine_driver` submits the sequences to the [`engine`](crate::engine) and paces its steps. Tokens return through one
//! `token_queue` per reply. `reply` turns them into events, `events` formats the bytes, and `socket` stamps the writes for
//! `send_log`.
//!
//! # Example
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use streamgauge::sim::{SimOptions, SimServer};
//!
//! let server = SimServer::bind(SimOptions::default(), "127.0.0.1:0".parse()?)?.spawn()?;
//! println!("simulated at http://{}/v1", server.local_addr());
//! server.stop()?;
//! # Ok(())
//! # }
//! ```

mod api_error;
mod body_limiter;
mod bounded_list;
mod engine_driver;
mod events;
mod fault;
mod length;
mod metrics;
mod options;
mod prompt;
mod reply;
mod request;
mod routes;
mod send_log;
mod server;
mod socket;
mod text_generator;
mod token_queue;

pub use options::{SimOptions, SimOptionsError};
pub use send_log::SendLogPage;
pub use server::{BindError, RunningServer, SimServer, runtime};
