//! The one registry: the [`catalog`] of instruments, their aggregation and its [`snapshot`].

pub mod aggregate;
mod capture_metrics;
pub mod catalog;
mod classes;
pub mod drops;
pub mod error_type;
pub(super) mod family;
pub mod gauges;
pub mod interner;
pub(super) mod models;
pub(super) mod process;
pub mod proxy_status;
pub mod scrape_bound;
pub(super) mod series_cache;
pub mod snapshot;
pub mod thread_gauges;
