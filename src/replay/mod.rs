//! Sends a trace again: the same arrivals, lengths, shared prefixes, sessions and departures, at another server.
//!
//! # The way of a row
//! [`schedule`] says when it is sent, from the trace and the plan alone; [`content`](crate::trace::content) makes its
//! prompt from block ids, of [`words`](crate::trace::words) that a tokenizer or the server's [`tokenize`] says are one
//! token each; [`request`] puts that into the words of a dialect; `feed` has it encoded before its time, `worker` gives it
//! a connection, `pen` writes it in the moment that it is due, `exchange` reads the reply under the proxy's own
//! [`StreamObserver`](crate::measure::observer::StreamObserver), and [`summary`] and [`output`] keep what came of it.
//!
//! What servers say of themselves is asked for before by [`engine`], and meanwhile by [`scrape`], on a thread of its own.
//! [`search`] looks for the highest level of load that keeps its goals, from what runs at other levels came to.
//!
//! # Open is open
//! A moment that is planned stays planned. A server that stalls makes requests pile up in flight and latencies grow, as
//! it would with users; it never makes the next request later. Every record has the planned moment and the real one.
//!
//! What it is not: it retries nothing, and keeps no text of a reply.

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
