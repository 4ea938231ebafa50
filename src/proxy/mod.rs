//! The main job: listener, forward, observe.
//!
//! ```text
//!  acceptor ──► worker (one thread each)                       control thread
//!               ├─ downstream::h1   our HTTP/1.x server         ├─ reload, drain, probe
//!               │   └─ relay        one exchange, one task      └─ export: aggregation, admin port, OTLP
//!               ├─ downstream::h2   hyper's server
//!               ├─ upstream         our HTTP/1.1 client and pool, hyper's HTTP/2
//!               └─ observation ──── records over one bounded queue ──►
//! ```
//!
//! A request lives in the task of its client's connection, on one thread, from the first byte to the last. When the
//! client goes away the task notices and everything it owns is dropped, the upstream connection with it. A read is
//! written on before it is understood.
//!
//! Both sides of HTTP/1 are our own: hyper keeps the case of header names only when both sides are its own, cannot send
//! interim responses, and its client hands over one chunk per poll. HTTP/2, on either side, is hyper's.

mod acceptor;
mod added_headers;
mod descriptors;
mod downstream;
mod error_response;
mod flow_control;
mod health_probe;
mod reload;
mod request_observer;
mod server;
mod upstream;
mod usage_injection;
mod worker;
mod worker_shared;

pub use reload::RELOAD_CHECK_INTERVAL;
pub use server::{Proxy, StartError};

/// How far shutting down has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainState {
    /// Not at all.
    Serving,
    /// No new connections; open streams finish.
    Draining,
    /// The same beside a successor, which has the listening sockets and the admin port. Nobody waits for this process, so
    /// that connections in use end with a reply and not under a request.
    TakenOver,
    /// Time is up: what is still open is cut.
    Stop,
    /// Every worker has ended and reported its last; telemetry is flushed.
    Flush,
}

/// Runs hyper's tasks on the worker's own thread.
#[derive(Clone, Copy, Debug)]
struct LocalExecutor;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}
