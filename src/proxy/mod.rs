//! The reverse proxy: it accepts, forwards and observes.
//!
//! ```text
//!  acceptor ──► worker (one thread each)                       control thread
//!               ├─ downstream::h1   our HTTP/1.x server         ├─ reload, drain, probe
//!               │   └─ relay        one exchange, one task      └─ export: aggregation, admin port, OTLP
//!               ├─ downstream::h2   hyper's server
//!               ├─ upstream         our HTTP/1.1 client and pool, hyper's HTTP/2
//!               └─ request_observer ── records over one bounded queue ──►
//! ```
//!
//! A request stays in the task of its client's connection, on one thread, from the first byte to the last. When the
//! client disconnects, the task drops everything it owns, including the upstream connection. Each read is forwarded
//! before it is parsed.
//!
//! Both sides of HTTP/1 are our own: hyper preserves the case of header names only if both sides are its own. It cannot
//! send interim responses, and its client returns one chunk per poll. HTTP/2 is hyper's on both sides.

mod acceptor;
mod added_headers;
pub mod capture_hook;
mod descriptors;
mod destinations;
mod downstream;
mod error_response;
mod flow_control;
mod health_probe;
mod reload;
mod request_observer;
mod server;
pub mod token_counter;
mod upstream;
mod upstreams;
mod usage_injection;
mod worker;
mod worker_context;
mod worker_handle;
mod worker_shared;

pub use descriptors::USUAL_RESERVED_DESCRIPTORS;
pub use destinations::accept_foreign_addresses;
pub use reload::{CredentialError, RELOAD_CHECK_INTERVAL, upstream_tls};
pub use server::{Proxy, StartError, engine_metrics};

/// Progress of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainState {
    /// Not shutting down.
    Serving,
    /// No new connections; open streams finish.
    Draining,
    /// Draining beside a successor, which has the listening sockets and the admin port. No supervisor waits for this
    /// process, so a connection in use ends with a response and never under a request.
    TakenOver,
    /// The deadline has passed: open streams are closed.
    Stop,
    /// Every worker has ended and reported its last records; telemetry is flushed.
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
