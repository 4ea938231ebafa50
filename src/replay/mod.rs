//! Replays a trace against another server: the same arrivals, lengths, shared prefixes, sessions and aborts.
//!
//! # The path of a row
//! [`schedule`](plan::schedule) computes its send time from the trace and the plan alone. [`prompt_text`](crate::trace::prompt_text)
//! makes its prompt from block ids, with words from [`vocabulary`](crate::trace::vocabulary) that a tokenizer or the
//! server's [`tokenize`](request::tokenize) reports as one token each. [`template`](request::template) puts the prompt into a dialect's request.
//! `feeder` encodes it ahead of time, `worker` assigns a connection, and `paced_writer` writes it when it is due.
//! `exchange` reads the response under the proxy's own [`StreamObserver`](crate::measure::observer::StreamObserver).
//! The collector passes each record to the caller, who adds it up, and to the run's [`output`](result::output).
//!
//! [`info`](server::info) queries the servers before the run. [`scrape`](server::scrape) scrapes their metrics during the run on its own
//! thread. [`max_load_search`](plan::max_load_search) finds the highest load level that meets its criteria, from the results at other levels.
//!
//! # Open loop
//! A planned send time never moves. If a server stalls, requests in flight and latencies grow, as with real users;
//! later requests are not delayed. Every record holds the planned and the actual time.
//!
//! The replay does not retry requests and does not store response text.

pub mod plan;
pub mod request;
pub mod result;
pub mod sender;
pub mod server;

pub use request::client_abort::ClientAbort;
pub use sender::config::Config;
pub use sender::feeder::no_target;
pub use sender::pool::ConnectionReuse;
pub use sender::run::ReplayRun;
