//! The servers' reports about themselves, before the run and during it.

pub(super) mod http_fetch;
pub mod info;
pub mod page_client;
pub mod scrape;
