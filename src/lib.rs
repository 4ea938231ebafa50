//! Streamgauge measures the token streams of LLM inference servers and does not change them.
//!
//! A stream gauge is the instrument that hydrologists leave in a river. This one sits between a client and an
//! OpenAI-compatible server as a reverse proxy. Bytes go through untouched, and every streamed token is stamped when it
//! *arrived*. The results (time to first token, inter-token latency, goodput) leave as Prometheus metrics, OTLP metrics
//! and OTLP traces.
//!
//! # The way of the data
//!
//! A byte arrives ([`net`]), is forwarded ([`proxy`]), and is then understood ([`measure`]). Framing finds the events,
//! and a dialect interprets each event. One state machine, [`measure::observer::StreamObserver`], makes a
//! [`measure::record::RequestRecord`] of them. Records cross one bounded queue to [`export`], where a single
//! aggregation feeds every exporter. So a scrape and an OTLP ingest of one run have equal counts.
//!
//! # The arrows
//!
//! Each line may use what stands to its right, and nothing else of ours; `tests/repo/architecture.rs` holds them.
//!
//! ```text
//! main       -> cli
//! cli        -> proxy, replay, report, inspect, twin, sim, engine, trace, export, capture, trace_file, storage, net, config, stats, measure, clock
//! proxy      -> export, capture, storage, net, config, measure, clock
//! replay     -> trace, trace_file, net, stats, measure, clock
//! report     -> inspect, trace_file, stats, measure
//! export     -> capture, net, config, measure, clock
//! trace      -> trace_file, storage, config::StorageUrl, stats, measure
//! inspect    -> net, stats, measure
//! capture    -> trace_file, storage, config::StorageUrl, stats, measure, clock
//! twin       -> engine, trace_file, stats, measure
//! sim        -> engine, stats, measure, clock
//! engine     -> stats, measure
//! trace_file -> storage, config::StorageUrl, stats, measure
//! storage    -> config::StorageUrl, config::StorageScheme, net, measure, clock
//! net        -> measure::time, measure::record::StampSource, clock
//! config     -> measure
//! clock      -> measure::time, measure::calendar
//! stats      -> nothing of ours
//! measure    -> nothing of ours
//! ```

#![forbid(unsafe_code)]

pub mod capture;
pub mod cli;
pub mod clock;
pub mod config;
pub mod engine;
pub mod export;
pub mod inspect;
pub mod measure;
pub mod net;
pub mod proxy;
pub mod replay;
pub mod report;
pub mod sim;
pub mod stats;
pub mod storage;
pub mod trace;
pub mod trace_file;
pub mod twin;
