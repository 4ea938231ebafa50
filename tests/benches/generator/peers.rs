//! The other generators, and what each costs for a request, for a token, and in lateness.

use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use streamgauge::trace::format::{ReadOptions, detect};
use streamgauge::trace::input::InputSource;
use tempfile::tempdir;

use crate::cpu::{cpu_of_tree, machine_cpu, memory_of_tree};
use crate::{PROGRAM, Served};

/// Connections of the closed loads.
const CONNECTIONS: &str = "64";
/// Tokens of the replies, of short ones and of long ones.
const TOKENS: [u32; 2] = [2, 100];
/// Requests a second of the open load, evenly, and how many.
const RATE: u32 = 200;
const SENDS: u32 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Streamgauge,
    Oha,
    Wrk,
    Vllm,
    Aiperf,
}

/// A load.
#[derive(Clone, Copy)]
enum Load {
    /// As fast as [`CONNECTIONS`] allow.
    Closed { requests: u32, tokens: u32 },
    /// [`SENDS`] at [`RATE`].
    Open,
}

impl Load {
    fn requests(self) -> u32 {
        match self {
            Self::Closed { requests, .. } => requests,
            Self::Open => SENDS,
        }
    }

    fn tokens(self) -> u32 {
        match self {
            Self::Closed { tokens, .. } => tokens,
            Self::Open => TOKENS[0],
        }
    }
}

/// One run of one of them.
struct Ran {
    /// Requests that it sent.
    requests: f64,
    /// Seconds of CPU, of its whole tree.
    cpu: f64,
    /// The most that its tree held in memory, in MiB.
    memory: u64,
    /// Share of the machine that others used meanwhile.
    foreign: f64,
}

/// Cost of one peer.
pub(crate) struct Cost {
    /// CPU for a request of two tokens, in microseconds.
    request: f64,
    /// CPU for a token more, likewise.
    token: f64,
    memory: u64,
    /// How late requests came, p50 and p99 in milliseconds; none where it knows no times.
    late: Option<[f64; 2]>,
    foreign: f64,
}

impl Peer {
    pub(crate) const ALL: [Self; 5] = [Self::Streamgauge, Self::Oha, Self::Wrk, Self::Vllm, Self::Aiperf];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Streamgauge => "streamgauge",
            Self::Oha => "oha",
            Self::Wrk => "wrk",
            Self::Vllm => "vllm",
            Self::Aiperf => "aiperf",
        }
    }

    /// Requests of few, of many, and of long replies: enough that what a start costs is less than what they cost.
    const fn sizes(self) -> [u32; 3] {
        match self {
            Self::Streamgauge | Self::Oha | Self::Wrk => [2_000, 20_000, 2_000],
            Self::Vllm | Self::Aiperf => [200, 2_000, 400],
        }
    }

    /// CPU of its start is taken off by the difference of two runs.
    pub(crate) fn cost(self, sim: &Served) -> Cost {
        let [few, many, long] = self.sizes();
        let run = |requests, tokens| self.run(Load::Closed { requests, tokens }, sim.addr, sim);
        let (small, large, long) = (run(few, TOKENS[0]), run(many, TOKENS[0]), run(long, TOKENS[1]));
        let request = (large.cpu - small.cpu) / (large.requests - small.requests);
        let start = small.cpu - small.requests * request;
        let more = f64::from(TOKENS[1] - TOKENS[0]);
        let token = (long.cpu - start - long.requests * request) / (long.requests * more);
        let foreign = small.foreign.max(large.foreign).max(long.foreign);
        let late = (self != Self::Wrk).then(|| self.late(sim));
        Cost { request: request * 1e6, token: token * 1e6, memory: long.memory, late, foreign }
    }

    /// How late its requests come to a proxy that captures them, by their own earliest: p50 and p99 in milliseconds.
    fn late(self, sim: &Served) -> [f64; 2] {
        let folder = tempdir().unwrap();
        let (capture, addr) = (folder.path().join("capture"), free());
        let mut command = Command::new(PROGRAM);
        command.arg("proxy").arg(format!("--listen={addr}")).arg(format!("--admin={}", free()));
        command.arg(format!("--upstream=http://{}", sim.addr)).arg("--capture").arg(&capture);
        let proxy = Served { process: command.stderr(Stdio::null()).spawn().unwrap(), addr };
        proxy.wait();
        self.run(Load::Open, addr, sim);
        proxy.end();
        let source = InputSource::open(&capture).unwrap();
        let trace = (detect(&source).unwrap().read.unwrap())(source, &ReadOptions::default()).unwrap();
        let mut at: Vec<f64> = trace.entries.map(|row| row.unwrap().at as f64 / 1e6).collect();
        at.sort_by(f64::total_cmp);
        // One of them tries the server first.
        let at = &at[at.len() - SENDS as usize..];
        let planned = at.iter().enumerate().map(|(number, at)| at - number as f64 * 1e3 / f64::from(RATE));
        let mut late: Vec<f64> = planned.collect();
        late.sort_by(f64::total_cmp);
        [50, 99].map(|percent| late[late.len() * percent / 100] - late[0])
    }

    fn run(self, load: Load, to: SocketAddr, sim: &Served) -> Ran {
        let folder = tempdir().unwrap();
        let mut command = self.command(load, to, folder.path());
        let cpu_of_children = || {
            let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
            (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6
        };
        let others = || machine_cpu().saturating_sub(cpu_of_tree(sim.process.id())) as f64 / 1e9;
        let (before, machine, started_at) = (cpu_of_children(), others(), std::time::Instant::now());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let reader = thread::spawn(move || {
            let mut bytes = Vec::new();
            stderr.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let mut memory = 0;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            memory = memory.max(memory_of_tree(child.id()).1 / 1_024);
            thread::sleep(Duration::from_millis(100));
        };
        let log = reader.join().unwrap();
        assert!(status.success(), "{} ended with {status}:\n{log}", self.name());
        let (cpu, cores) = (cpu_of_children() - before, thread::available_parallelism().unwrap().get() as f64);
        let foreign = (others() - machine - cpu).max(0.0) / started_at.elapsed().as_secs_f64() / cores;
        let requests = if self == Self::Wrk { sent_by_wrk(&log) } else { f64::from(load.requests()) };
        Ran { requests, cpu, memory, foreign }
    }

    fn command(self, load: Load, to: SocketAddr, folder: &Path) -> Command {
        let (requests, tokens) = (load.requests().to_string(), load.tokens().to_string());
        let (url, rate) = (format!("http://{to}"), RATE.to_string());
        let whole = format!("{url}/v1/chat/completions");
        let (tokenizer, folder) = (parts().join("models/tokenizer"), folder.to_str().unwrap());
        let tokenizer = tokenizer.to_str().unwrap();
        let body = format!(
            r#"{{"model":"sim","stream":true,"max_tokens":{tokens},"min_tokens":{tokens},"ignore_eos":true,"stream_options":{{"include_usage":true}},"messages":[{{"role":"user","content":"{}"}}]}}"#,
            " cat".repeat(32)
        );
        let closed = matches!(load, Load::Closed { .. });
        let either = |of_closed: &[&'static str], of_open: &[&'static str]| -> Vec<&'static str> {
            if closed { of_closed } else { of_open }.to_vec()
        };
        if self == Self::Streamgauge {
            let mut command = Command::new(PROGRAM);
            let out = format!("{folder}/run");
            let flags =
                ["load", "--target", &url, "--model=sim", "--requests", &requests, "--osl", &tokens, "--out", &out];
            command.args(flags).args(["--isl=32", "--prompt-overhead=0", "--no-audit", "--max-lag=1h"]);
            let concurrency = ["--concurrency", CONNECTIONS];
            command.args(either(&concurrency, &["--arrivals=constant", "--rate"]));
            command.args((!closed).then_some(&rate));
            return command;
        }
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/start"));
        command.args(["client", self.name(), "--"]);
        match self {
            Self::Oha => {
                command.args(["-n", &requests, "--no-tui", "-m", "POST", "-T", "application/json", "-d", &body]);
                command
                    .args(["-c", CONNECTIONS])
                    .args(either(&[], &["-q"]))
                    .args((!closed).then_some(&rate))
                    .arg(&whole);
            }
            Self::Wrk => {
                // It counts seconds and not requests.
                let seconds = if load.requests() > self.sizes()[0] { "4s" } else { "2s" };
                let script = format!("{folder}/post.lua");
                let lua = format!(
                    "wrk.method = 'POST'\nwrk.headers['content-type'] = 'application/json'\nwrk.body = '{body}'\n"
                );
                fs::write(&script, lua).unwrap();
                command.args(["-t", "1", "-c", CONNECTIONS, "-d", seconds, "-s", &script, &whole]);
            }
            Self::Vllm => {
                command.args(["bench", "serve", "--backend=openai-chat", "--endpoint=/v1/chat/completions"]);
                command.args(["--model=sim", "--dataset-name=random", "--random-input-len=32", "--ignore-eos"]);
                command.args(["--base-url", &url, "--tokenizer", tokenizer, "--random-output-len", &tokens]);
                command.args(["--num-prompts", &requests, "--save-result", "--save-detailed", "--result-dir", folder]);
                // As good as even.
                command.args(either(&["--max-concurrency", CONNECTIONS], &["--burstiness=1000000", "--request-rate"]));
                command.args((!closed).then_some(&rate));
            }
            _ => {
                command.args(["profile", "--model=sim", "--endpoint-type=chat", "--streaming", "--ui=none"]);
                command.args(["--synthetic-input-tokens-mean=32", "--synthetic-input-tokens-stddev=0"]);
                command.args([
                    "--output-tokens-stddev=0",
                    "--extra-inputs=ignore_eos:true",
                    "--use-server-token-count",
                ]);
                command.args(["--url", &url, "--tokenizer", tokenizer, "--output-tokens-mean", &tokens]);
                command.args(["--request-count", &requests, "--artifact-dir", folder]);
                command
                    .args(either(&["--concurrency", CONNECTIONS], &["--arrival-pattern=constant", "--request-rate"]));
                command.args((!closed).then_some(&rate));
            }
        }
        command
    }
}

/// The table, each beside ours.
pub(crate) fn print(costs: &[(Peer, Cost)]) {
    println!("client         requests/s per core   tokens/s per core    MiB   late p50       p99   others' CPU");
    let ours = costs.iter().find(|(peer, _)| *peer == Peer::Streamgauge).map(|(_, cost)| (cost.request, cost.token));
    for (peer, cost) in costs {
        let per_core = |micros: f64, ours: Option<f64>| {
            let ratio = ours.map_or(String::new(), |ours| format!("{:.3} x", ours / micros));
            format!("{:>9.0} {ratio:>9}", 1e6 / micros)
        };
        let [p50, p99] =
            cost.late.map_or(["-".to_owned(), "-".to_owned()], |late| late.map(|ms| format!("{ms:.3} ms")));
        println!(
            "{:<12} {} {} {:>6} {p50:>10} {p99:>9} {:>11.0} %",
            peer.name(),
            per_core(cost.request, ours.map(|(request, _)| request)),
            per_core(cost.token, ours.map(|(_, token)| token)),
            cost.memory,
            cost.foreign * 100.0
        );
    }
}

/// From its report: `  20000 requests in 4.00s, …`.
fn sent_by_wrk(report: &str) -> f64 {
    let line =
        report.lines().find(|line| line.contains(" requests in ")).unwrap_or_else(|| panic!("wrk said:\n{report}"));
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Where `tests/tools/setup` installs.
fn parts() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache/streamgauge-parts");
    std::env::var_os("STREAMGAUGE_PARTS").map_or_else(home, PathBuf::from)
}

/// An address that nothing listens on.
fn free() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

impl Served {
    /// Until it listens.
    fn wait(&self) {
        while TcpStream::connect(self.addr).is_err() {
            thread::sleep(Duration::from_millis(10));
        }
    }
}
