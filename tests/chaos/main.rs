//! A soak of the proxy: thousands of streams over HTTP/1, HTTP/2 and TLS with faults on both sides. Meanwhile the
//! collector fails, the servers refuse connections, the disk fills, the configuration changes, the wall clock jumps and
//! new processes take over.
//!
//! Each request carries a number, from which client and server know every byte of both directions and every fault. So
//! the client knows whether a reply is right, whole, or broken by a fault. `tests/soak --help` lists the options.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program of its own: stdout is data, stderr is talk")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test stops where it cannot go on, and takes the time of others"
)]

#[path = "../support/mod.rs"]
mod support;

mod client;
mod clock;
mod collector;
mod disturbance;
mod io;
mod listening;
mod oracle;
mod plan;
mod proxy;
mod reply;
mod report;
mod run;
mod server;
mod usage;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::server::Planted;

/// Soaks the proxy in streams and faults, and checks every byte.
#[derive(Clone, Debug, Parser)]
#[command(name = "tests/soak", max_term_width = 110)]
struct Options {
    /// Length of the run, e.g. 30m. Disturbances need at least 1m, and slopes 2m.
    #[arg(long = "for", default_value = "2m", value_parser = humantime::parse_duration)]
    length: Duration,
    /// Streams that are open at once.
    #[arg(long, default_value_t = 2_000)]
    streams: usize,
    /// Number from which all requests, faults and disturbances follow.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Plants faults that the soak does not know, and fails unless it finds each.
    #[arg(long, conflicts_with_all = ["length", "streams"])]
    drill: bool,
    /// Plants one such fault in this run.
    #[arg(long, value_enum, hide = true)]
    planted: Option<Planted>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let holds = if options.drill { drill(&options) } else { run::soak(&options) };
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// True if each planted fault fails a run, and a run without one holds.
fn drill(options: &Options) -> bool {
    let short = |planted| Options { length: Duration::from_secs(8), streams: 100, planted, ..options.clone() };
    let mut is_proof = true;
    for planted in [None, Some(Planted::WrongByte), Some(Planted::ShortReply), Some(Planted::MemoryRise)] {
        let length = Duration::from_secs(if planted == Some(Planted::MemoryRise) { 55 } else { 8 });
        let holds = run::soak(&Options { length, ..short(planted) });
        let name = planted.map_or("no planted fault".to_owned(), |planted| format!("{planted:?}"));
        let is_expected = holds == planted.is_none();
        eprintln!("drill: {name}: {}", if is_expected { "as expected" } else { "NOT as expected" });
        is_proof &= is_expected;
    }
    is_proof
}
