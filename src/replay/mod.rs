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

mod ask;
mod bodies;
mod counters;
mod due;
pub mod encode;
pub mod engine;
mod exchange;
mod feed;
mod history;
pub mod measured;
pub mod media;
pub mod output;
mod pen;
mod pool;
pub mod priority;
mod records;
mod reply;
pub mod request;
pub mod results;
pub mod run;
pub mod schedule;
pub mod scrape;
pub mod search;
mod session;
pub mod source;
pub mod summary;
pub mod synth;
pub mod target;
pub mod tokenize;
mod worker;

pub use exchange::Leave;
pub use feed::no_target;
pub use pool::Connections;
pub use run::{Config, Run};
