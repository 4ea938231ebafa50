//! The running replay: connections, paced writes, responses, and the counters of the run.

pub(super) mod collector;
pub(super) mod config;
pub(super) mod counters;
pub(super) mod exchange;
pub(super) mod feeder;
pub(super) mod job;
pub(super) mod paced_writer;
pub(super) mod pool;
pub mod priority;
pub(super) mod response;
pub mod run;
pub(super) mod session;
pub mod target;
pub(super) mod timer_queue;
pub(super) mod worker;
pub(super) mod worker_context;
