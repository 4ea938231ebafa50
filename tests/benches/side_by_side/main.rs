//! Streamgauge beside nginx, HAProxy and Envoy: what each costs per event, holds per stream, adds and loses.
//!
//! Absolute times of one run on one machine prove nothing; ratios within one run do. So every peer stands in front of
//! the same scripted upstream and behind the same client. They take turns, and each figure is compared with the
//! reference's figure of the same round.
//!
//! `cargo bench --bench side_by_side -- --help` lists the options.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program of its own: stdout is data, stderr is talk")]

mod client;
mod configs;
mod connection;
mod cpu;
mod http2_client;
mod memory;
mod page;
mod peers;
mod response;
mod rows;
mod script;
mod sink;
mod table;
mod upstream;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum as _};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::client::{Plan, Work};
use crate::peers::{House, Peer};
use crate::rows::{Effort, Row, observe};
use crate::script::{Reply, Script, Varies};
use crate::sink::Sink;
use crate::upstream::Upstream;

/// Compares streamgauge with other proxies in one run.
#[derive(Debug, Parser)]
#[command(name = "side_by_side", max_term_width = 110)]
struct Options {
    /// Rows to measure; all by default.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<Row>,
    /// Peers to compare; all by default.
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Peer>,
    /// How long a run of one peer lasts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How often each peer takes its turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Threads that forward, the same number for every peer; by default streamgauge's own default, and two for the
    /// others.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Also write all figures there.
    #[arg(long)]
    json: Option<PathBuf>,
    /// The binary to measure, if not the one of this build.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_streamgauge"))]
    streamgauge: PathBuf,
    /// One more argument for `streamgauge proxy`; may be repeated.
    #[arg(long, allow_hyphen_values = true)]
    with: Vec<String>,
    /// Cargo passes this flag to benchmarks, and not when it runs all targets as tests.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if !options.bench {
        eprintln!("side_by_side: nothing to do in a test run; remedy: cargo bench --bench side_by_side");
        return Ok(());
    }
    let all_files = getrlimit(Resource::RLIMIT_NOFILE)?.1;
    setrlimit(Resource::RLIMIT_NOFILE, all_files, all_files)?;
    warn_of_load();
    let directory = tempfile::tempdir()?;
    let sink = Sink::start()?;
    let house = House {
        directory: directory.path().to_owned(),
        streamgauge: options.streamgauge,
        streamgauge_arguments: options.with,
        threads: options.threads,
        otlp: Some(sink.address),
        http2_only: false,
    };
    let mut facts = cpu::machine();
    let peers = present(&house, &chosen(options.peers, Peer::value_variants()), &mut facts);
    let effort = Effort { seconds: options.seconds, rounds: options.rounds as usize };
    let mut tables = Vec::new();
    for row in chosen(options.rows, Row::value_variants()) {
        tables.extend(row.measure(&house, &peers, effort)?);
    }
    if peers.iter().any(|peer| peer.is_ours()) {
        facts.push(("otlp exports taken".to_owned(), sink.exports.load(Ordering::Relaxed).to_string()));
    }
    for (name, fact) in &facts {
        println!("{name}: {fact}");
    }
    println!("\n{}", table::text(&tables));
    for remark in tables.iter().flat_map(table::Table::remarks) {
        println!("! {remark}");
    }
    if let Some(file) = options.json {
        let text = serde_json::to_string_pretty(&table::json(&facts, &tables))?;
        std::fs::write(&file, text).with_context(|| format!("{}: cannot be written", file.display()))?;
    }
    warn_of_load();
    Ok(())
}

fn chosen<T: Copy>(selection: Vec<T>, all: &[T]) -> Vec<T> {
    if selection.is_empty() { all.to_vec() } else { selection }
}

/// Those of `peers` that start, and that pass a stream on event by event; the others are named and left out.
fn present(house: &House, peers: &[Peer], facts: &mut Vec<(String, String)>) -> Vec<Peer> {
    let mut present = Vec::new();
    for peer in peers {
        match try_out(house, *peer) {
            Ok(version) => {
                present.push(*peer);
                facts.push((peer.name().to_owned(), version));
            }
            Err(error) => {
                eprintln!("side_by_side: {} is left out: {error:#}", peer.name());
                facts.push((peer.name().to_owned(), format!("left out: {error:#}")));
            }
        }
    }
    present
}

fn try_out(house: &House, peer: Peer) -> Result<String> {
    let reply = Arc::new(Reply::new(Script { events: 20, gap: 5_000_000, hangs_up: false, varies: Varies::Text }));
    let upstream = Upstream::start(Arc::clone(&reply))?;
    let running = house.start(peer, upstream.address)?;
    let opened = Arc::new(AtomicUsize::new(0));
    let plan = Plan {
        target: running.address,
        connections: 2,
        models: 1,
        work: Work::Total(4),
        http2_streams: None,
        reply,
        opened,
    };
    let tally = observe(&running, &plan)?.tally;
    let failures = format!("{:?}", tally.failures);
    ensure!(tally.failed() == 0, "{} of {} trial requests failed: {failures}", tally.failed(), tally.requests);
    ensure!(tally.held_back == 0, "it does not stream: the first event came after the last one had been sent");
    if peer == Peer::Direct { Ok("no proxy".to_owned()) } else { house.version(peer) }
}

fn warn_of_load() {
    let (load, cores) = (cpu::load(), cpu::cores());
    if load > 0.3 * cores as f64 {
        eprintln!(
            "side_by_side: WARNING: the load average is {load:.2} on {cores} cores; figures of a busy machine are \
             worth little; remedy: end the other work and measure again"
        );
    }
}
