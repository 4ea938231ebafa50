//! The command line and the verbs that no other room has: `config`, `inspect`, `sim`, `demo`.

#![expect(clippy::unwrap_used, reason = "clippy recognizes tests by their attribute; their helpers have none")]

#[path = "../support/mod.rs"]
mod support;

mod command_line;
mod config;
mod demo;
mod doctor;
mod inspect;
mod releases;
mod schemas;
mod scrape_bound;
mod sim;
mod top;
mod top_screen;
