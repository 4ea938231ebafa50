//! The real program between real parts: llama-server, Prometheus, an OpenTelemetry collector, VictoriaMetrics, nginx, curl.
//!
//! What the other tests hold in one process is held here over processes and sockets: that the numbers which a real
//! backend stores are those of the requests that were made, that a real server's answers come through as they were, and
//! that no request is lost. `cargo test --release --test real` runs it once `tests/tools/setup` has installed the
//! parts; plain `cargo test` leaves it out. Tests that need gigabytes of parts, or minutes, are ignored unless
//! `tests/run --real` asks for them.
//!
//! Every process is a child of the test that started it and ends with it, however that ends; every port is of
//! 127.0.0.1. A test that measures time has the machine to itself ([`processes::exclusive_turn`]).

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "clippy knows tests by their attribute, and these have helpers; they may wait, and say what parts said"
)]

#[path = "../support/pod.rs"]
mod pod;
#[path = "../support/mod.rs"]
mod support;

mod compare;
mod http_client;
mod known_counts;
mod otlp_sink;
mod processes;
mod program;
mod promql;
mod tools;

mod aiperf_trace;
mod client_disconnect;
mod clients;
mod collector;
mod curl;
mod dashboard;
mod engines;
mod interleaved;
mod llama;
mod parquet;
mod privacy;
mod prometheus;
mod replays;
mod reuse;
mod schema;
mod sidecar;
mod signals;
mod victoria;
