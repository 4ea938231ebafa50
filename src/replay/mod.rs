//! Replays a trace against another server: the same arrivals, lengths, shared prefixes, sessions and aborts.
//!
//! # The path of a row
//! [`schedule`] computes its send time from the trace and the plan alone. [`prompt_text`](crate::trace::prompt_text)
//! makes its prompt from block ids, with words from [`vocabulary`](crate::trace::vocabulary) that a tokenizer or the
//! server's [`tokenize`] reports as one token each. [`request_template`] puts the prompt into a dialect's request.
//! `feeder` encodes it ahead of time, `worker` assigns a connection, and `paced_writer` writes it when it is due.
//! `exchange` reads the response under the proxy's own [`StreamObserver`](crate::measure::observer::StreamObserver).
//! [`summary`] and [`output`] keep the result.
//!
//! [`server_info`] queries the servers before the run. [`scrape`] scrapes their metrics during the run on its own
//! thread. [`max_load_search`] finds the highest load level that meets its criteria, from the results at other levels.
//!
//! # Open loop
//! A planned send time never moves. If a server stalls, requests in flight and latencies grow, as with real users;
//! later requests are not delayed. Every record holds the planned and the actual time.
//!
//! The replay does not retry requests and does not store response text.

mod collector;
mod conversation;
mod counters;
pub mod encode;
mod exchange;
mod feeder;
mod http_fetch;
pub mod max_load_search;
pub mod measurement_window;
pub mod media;
pub mod output;
mod paced_writer;
mod pool;
pub mod priority;
mod request_body;
pub mod request_template;
mod response;
pub mod results;
pub mod run;
pub mod schedule;
pub mod scrape;
pub mod server_info;
mod session;
pub mod summary;
pub mod synth;
pub mod target;
mod timer_queue;
pub mod tokenize;
pub mod trace_source;
mod worker;

pub use exchange::ClientAbort;
pub use feeder::no_target;
pub use pool::ConnectionReuse;
pub use run::{Config, ReplayRun};
