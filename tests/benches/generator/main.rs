//! Limits of a replay on this machine, against the simulated server beside it: lag, cost, and 10,000 open streams.
//! `cargo bench --bench generator`; half a minute, on a machine that does nothing else.
//!
//! `-- --peers streamgauge,oha,wrk,vllm,aiperf` then compares it with the named generators: cost of a request and of a
//! streamed token, memory, and lag. `tests/tools/setup --bench --real` installs them; five minutes.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark stops where it cannot go on, prints, and takes the time of others"
)]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use peers::Peer;

#[path = "../side_by_side/cpu.rs"]
#[expect(dead_code, reason = "the other benchmark needs more of it")]
mod cpu;
mod peers;

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamgauge");

/// Limits at 5,000 requests a second: the rate within this share, and lags in microseconds (p50, p99, p99.9).
const RATE_ERROR: f64 = 0.001;
const LAGS: [(&str, f64); 3] = [("p50", 50.0), ("p99", 200.0), ("p99.9", 1_000.0)];
/// MiB in which 10,000 streams are to be open.
const MEMORY: u64 = 512;

/// A process that listens.
struct Served {
    process: Child,
    addr: SocketAddr,
}

/// A server that answers at once and then every `step`.
struct Sim {
    served: Served,
    /// Reads on, so that the server never waits for a reader.
    _log: JoinHandle<()>,
}

impl Sim {
    fn start(step: &str) -> Self {
        let flags = [
            "--listen=127.0.0.1:0",
            "--prefill-rate=50000000",
            "--step-per-seq=0ns",
            "--max-num-seqs=20000",
            "--max-waiting=100000",
            "--max-batched-tokens=1000000",
            "--kv-blocks=4000000",
            "--max-connections=40000",
        ];
        let mut command = Command::new(PROGRAM);
        command.arg("sim").args(flags).arg(format!("--step-base={step}")).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let listening = lines.find(|line| line.starts_with("listening on ")).unwrap();
        let addr = listening.trim_start_matches("listening on http://").trim_end_matches("/v1").parse().unwrap();
        Self { served: Served { process, addr }, _log: thread::spawn(move || lines.for_each(drop)) }
    }

    /// The summary of a load, the seconds of CPU that it took, and the most memory that it held in MiB.
    fn load(&self, flags: &[&str]) -> (Value, f64, u64) {
        let mut command = Command::new(PROGRAM);
        command.args(["load", "--json", "--max-lag=1h", "--prompt-overhead=0", "--isl=64", "--no-audit"]);
        command.arg(format!("--target=http://{}", self.served.addr));
        let mut child = command.args(flags).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        let watched = thread::spawn(move || {
            let (mut cpu, mut most) = (0.0, 0);
            // Until it has ended, and its files with it.
            while let Some((now, memory)) = looked_at(pid) {
                (cpu, most) = (now, most.max(memory));
                thread::sleep(std::time::Duration::from_millis(20));
            }
            (cpu, most)
        });
        let report: Value = serde_json::from_reader(child.stdout.take().unwrap()).unwrap();
        child.wait().unwrap();
        let (cpu, most) = watched.join().unwrap();
        (report["summary"].clone(), cpu, most)
    }
}

impl Served {
    /// Lets it end by itself.
    fn end(mut self) {
        kill(Pid::from_raw(self.process.id().cast_signed()), Signal::SIGTERM).unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Seconds of CPU so far, and the most memory so far in MiB; `None` when there is no such process any more.
fn looked_at(pid: u32) -> Option<(f64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some((ticks / 100.0, most.split_whitespace().next()?.parse::<u64>().ok()? / 1_024))
}

fn reached(is_so: bool) -> &'static str {
    if is_so { "reached" } else { "MISSED" }
}

fn main() {
    // `cargo test --benches` runs this too, and wants to know that it works.
    let seconds: u32 = if std::env::args().any(|arg| arg == "--bench") { 8 } else { 1 };
    let busy = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load average {}", busy.trim());
    let sim = Sim::start("5ms");
    println!("requests/s   sent/planned   lag p50       p99     p99.9   CPU µs per request");
    for rate in [1_000, 5_000] {
        let (rate_flag, duration) = (format!("--rate={rate}"), format!("--duration={seconds}s"));
        let (summary, cpu, _) = sim.load(&[&rate_flag, &duration, "--osl=2"]);
        let rate_of = |which: &str| summary["fidelity"]["rate"][which].as_f64().unwrap();
        let ratio = rate_of("sent_per_second") / rate_of("planned_per_second");
        let lags = LAGS.map(|(which, most)| (summary["metrics"]["send_lag"][which].as_f64().unwrap() * 1e3, most));
        let each = cpu * 1e6 / summary["requests"].as_f64().unwrap();
        let [p50, p99, p999] = lags.map(|(lag, _)| lag);
        let holds = (ratio - 1.0).abs() <= RATE_ERROR && lags.iter().all(|(lag, most)| lag <= most);
        let verdict = reached(holds);
        println!("{rate:>10}   {ratio:>12.5}   {p50:>5.0} µs  {p99:>5.0} µs  {p999:>5.0} µs   {each:>8.0}   {verdict}");
    }
    drop(sim);
    // Ten tokens a second apart, so that the streams of several seconds are open together.
    let sim = Sim::start("1s");
    let (summary, _, most) = sim.load(&["--rate=2000", &format!("--duration={seconds}s"), "--osl=10"]);
    println!("{} streams open at once took {most} MiB   {}", summary["in_flight"]["max"], reached(most <= MEMORY));
    assert_eq!(summary["outcomes"]["success"], summary["requests"], "{summary}");
    drop(sim);
    let Some(named) = std::env::args().skip_while(|arg| arg != "--peers").nth(1) else { return };
    let sim = Sim::start("1ms");
    let peers = Peer::ALL.into_iter().filter(|peer| named.split(',').any(|name| name == peer.name()));
    peers::print(&peers.map(|peer| (peer, peer.cost(&sim.served))).collect::<Vec<_>>());
}
