//! Effect of a stalled or hostile client on others: the latency of short requests through one forwarding thread. Rounds
//! alternate without and with the disturbance; the result is the ratio within a round.
//!
//! Hostile bytes have two comparisons: without a neighbour, and with equal bytes on a path that is not observed. The
//! second one is the cost of the observation alone.
//!
//! `cargo bench --bench neighbours -- --help` lists the options.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program of its own: stdout is data, stderr is talk")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark stops where it cannot go on, and takes the time of others"
)]

mod disturbance;
mod server;
mod victim;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use thread_priority::ThreadPriority;
use thread_priority::unix::{
    RealtimeThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};

use crate::disturbance::{Disturbance, Row};
use crate::victim::Latencies;

/// Measures how stalled and hostile clients change the latency of others.
#[derive(Debug, Parser)]
#[command(name = "neighbours", max_term_width = 110)]
struct Options {
    /// Disturbances whose names contain one of these; all by default.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Seconds of one measurement.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Rounds; each measures with and without the disturbance.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Disturbing clients per row, except stalled ones.
    #[arg(long, default_value_t = 1)]
    clients: usize,
    /// The binary to measure, if not the one of this build.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_streamgauge"))]
    streamgauge: PathBuf,
    /// Cargo passes this to benchmarks.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A proxy with one forwarding thread, on the first core; this process has the others.
struct Proxy {
    process: Child,
    address: SocketAddr,
}

impl Proxy {
    fn start(program: &PathBuf, server: SocketAddr, is_http2: bool) -> Self {
        let mut command = Command::new(program);
        command.args(["proxy", "--workers=1", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"]);
        command
            .arg(format!("--upstream=http://{server}"))
            .arg(format!("--upstream-http={}", if is_http2 { "http2" } else { "http1" }));
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains("listen=")).unwrap();
        let address = line.split("listen=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        thread::spawn(move || lines.for_each(drop));
        Self { process, address }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Moves the proxy to the first core and this process to the others, if there are others.
fn pin(proxy: &Proxy) {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    let set = |cores: std::ops::Range<usize>| {
        let mut set = CpuSet::new();
        cores.for_each(|core| set.set(core).unwrap());
        set
    };
    if cores > 1 {
        for entry in std::fs::read_dir(format!("/proc/{}/task", proxy.process.id())).unwrap() {
            let thread = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
            sched_setaffinity(Pid::from_raw(thread), &set(0..1)).ok();
        }
        sched_setaffinity(Pid::from_raw(0), &set(1..cores)).ok();
    }
}

/// Runs this thread before all others where the system allows it: the load beside it must disturb the proxy alone.
pub(crate) fn raise_priority() {
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy).ok();
}

fn main() {
    let options = Options::parse();
    if !options.bench {
        eprintln!("neighbours: nothing to do in a test run; remedy: cargo bench --bench neighbours");
        return;
    }
    let span = Duration::from_secs(options.seconds);
    println!(
        "{:<34}{:>9}{:>9}{:>9}{:>9}{:>8}{:>7}  range",
        "beside", "p50 µs", "p99 µs", "p50", "p99", "ratio", "goal"
    );
    let (rows, replies) = disturbance::rows(options.clients);
    let replies = Arc::new(replies);
    let is_chosen =
        |name: &str| options.rows.is_empty() || options.rows.iter().any(|part| name.contains(part.as_str()));
    for row in rows.iter().filter(|row| is_chosen(&row.name)) {
        let server = server::start(row.is_http2, Arc::clone(&replies));
        let proxy = Proxy::start(&options.streamgauge, server, row.is_http2);
        pin(&proxy);
        measure(&proxy, row, row.beside.as_ref(), Duration::from_millis(300));
        let mut rounds: Vec<(Latencies, Latencies)> = (0..options.rounds)
            .map(|_| {
                let quiet = measure(&proxy, row, row.beside.as_ref(), span);
                (quiet, measure(&proxy, row, Some(&row.disturbance), span))
            })
            .collect();
        print_row(row, &mut rounds);
    }
}

fn measure(proxy: &Proxy, row: &Row, disturbance: Option<&Disturbance>, span: Duration) -> Latencies {
    let latencies = match (&row.disturbance, disturbance) {
        (Disturbance::StalledUploads(_), Some(Disturbance::StalledUploads(count))) => {
            urgently(proxy.address, |address| victim::over_http2(address, *count, span))
        }
        (Disturbance::StalledUploads(_), _) => urgently(proxy.address, |address| victim::over_http2(address, 0, span)),
        _ => {
            let _running = disturbance.map(|disturbance| disturbance.start(proxy.address));
            urgently(proxy.address, |address| victim::over_http1(address, span))
        }
    };
    // The proxy ends what is left of it.
    thread::sleep(Duration::from_millis(200));
    latencies
}

/// Measures on a thread that runs before all others.
fn urgently(address: SocketAddr, work: impl FnOnce(SocketAddr) -> Latencies + Send) -> Latencies {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            raise_priority();
            work(address)
        });
        thread.join().unwrap()
    })
}

/// Prints the medians of all rounds, and the median ratio of the 99th percentiles with its range.
fn print_row(row: &Row, rounds: &mut [(Latencies, Latencies)]) {
    let ratio = |(quiet, disturbed): &(Latencies, Latencies)| disturbed.p99 / quiet.p99;
    let median = |of: fn(&(Latencies, Latencies)) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let figures = [
        median(|(quiet, _)| quiet.p50),
        median(|(quiet, _)| quiet.p99),
        median(|(_, disturbed)| disturbed.p50),
        median(|(_, disturbed)| disturbed.p99),
    ];
    rounds.sort_by(|one, other| ratio(one).total_cmp(&ratio(other)));
    let [least, middle, most] = [0, rounds.len() / 2, rounds.len() - 1].map(|at| ratio(&rounds[at]));
    let figures: String = figures.iter().map(|figure| format!("{figure:>9.0}")).collect();
    println!("{:<34}{figures}{middle:>8.2}{:>7.1}  {least:.2}..{most:.2}", row.name, row.goal);
}
