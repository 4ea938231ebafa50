//! A simulated inference server: an OpenAI-compatible HTTP front in vLLM's shapes, over an engine that only pretends.
//!
//! What it is for: a newcomer's first target, the known cadence that the instrument is checked against, and failures
//! that a real server does not have on demand. What it is not: a prediction of any hardware. Its times come from a
//! [`CostModel`], its text from a word list, and it says so wherever it shows a number.
//!
//! # The way of a request
//!
//! `server` accepts, `routes` answers, `request` reads the body down to prompt lengths and hashes, `hub` submits the
//! sequences to the `engine` and paces its steps; tokens come back through a `feed` per reply, `reply` makes events of
//! them, `events` knows their bytes, and `socket` stamps the writes for `sends`.
//!
//! # Example
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use streamgauge::sim::{Options, Server};
//!
//! let server = Server::bind(Options::default(), "127.0.0.1:0".parse()?)?.spawn()?;
//! println!("simulated at http://{}/v1", server.local_addr());
//! server.stop()?;
//! # Ok(())
//! # }
//! ```

mod api_error;
mod body_limiter;
mod bounded_list;
mod cost;
mod engine;
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
mod stats;
mod text_generator;
mod token_queue;

pub use cost::CostModel;
pub use options::{SimOptions, SimOptionsError};
pub use server::{BindError, RunningServer, SimServer, runtime};
