//! The program with real servers and backends: llama-server, Prometheus, an OpenTelemetry collector, VictoriaMetrics,
//! nginx, MinIO, curl.
//!
//! These tests repeat checks of the others over processes and sockets. A real backend stores the numbers of the
//! requests, a real server's replies pass unchanged, and no request is lost. Run `cargo test --release --test real`
//! after `tests/tools/setup`; plain `cargo test` omits it. Tests that need gigabytes of tools, or minutes, are ignored
//! unless `tests/run --real` asks for them.
//!
//! Every process is a child of its test and ends with it; every port is of 127.0.0.1. A test that measures time has the
//! machine to itself ([`processes::exclusive_turn`]).

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "clippy recognizes tests by their attribute; their helpers have none, may wait, and print logs of tools"
)]

#[path = "../support/pod.rs"]
mod pod;
#[path = "../support/mod.rs"]
mod support;

mod awake_cores;
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
mod decisions;
mod dynamo;
mod engines;
mod interleaved;
mod llama;
mod lost_hits;
mod minio;
mod official_collector;
mod parquet;
mod planned_load;
mod privacy;
mod prometheus;
mod replays;
mod reuse;
mod routers;
mod schema;
mod sidecar;
mod signals;
mod sql;
mod twin;
mod victoria;
