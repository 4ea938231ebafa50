//! A proxy that captures, in this process or in one of its own, and the rows that it wrote.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use serde_json::json;
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::TraceEntry;

use super::PATIENCE;
use super::client::{Client, chat};
use super::proxy::TestProxy;
use super::upstream::Upstream;

pub const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A server that answers each request with these chunks, and closes nothing.
pub fn server(chunks: Vec<String>) -> Upstream {
    Upstream::start(move |mut conn| {
        while conn.request().is_some() {
            conn.send(HEAD);
            chunks.iter().for_each(|chunk| _ = conn.chunk(chunk));
            conn.send("0\r\n\r\n");
        }
    })
}

pub fn event(text: &str) -> String {
    format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {"content": text}}]}))
}

/// An answer of so many tokens.
pub fn answer(tokens: usize) -> Vec<String> {
    let mut chunks: Vec<String> = (0..tokens).map(|n| event(&format!("t{n} "))).collect();
    chunks.push("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n".to_owned());
    let usage = json!({"prompt_tokens": 7, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": tokens / 3}});
    chunks.push(format!("data: {}\n\n", json!({"choices": [], "usage": usage})));
    chunks.push("data: [DONE]\n\n".to_owned());
    chunks
}

/// One thread answers. Of two, the one that answers first may hand its record over last, which would change the order
/// of turns and names.
pub fn proxy(upstream: SocketAddr, folder: &Path, settings: &[(&str, &str)]) -> TestProxy {
    let folder = folder.display().to_string();
    let all: Vec<_> = [("capture", &*folder), ("workers", "1")].into_iter().chain(settings.iter().copied()).collect();
    TestProxy::with(upstream, &all)
}

/// The rows in the order of arrival; they are written in the order of their ends.
pub fn rows(folder: &Path) -> Vec<TraceEntry> {
    let mut rows: Vec<TraceEntry> = TraceReader::open(folder).unwrap().map(Result::unwrap).collect();
    rows.sort_by_key(|row| row.at);
    rows
}

pub fn page(proxy: &TestProxy, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    Client::connect(proxy.admin).send(request).response().text()
}

/// A proxy in a process of its own: its memory, limits and signals are not those of the tests.
pub struct RunningProxy {
    pub child: Child,
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    /// The log so far. While a test holds the lock, the reader waits.
    pub log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// A proxy that captures into `folder`, with these arguments besides.
pub fn run(upstream: SocketAddr, folder: &Path, more: &[&str]) -> RunningProxy {
    run_under(&[], upstream, folder, more)
}

/// The same, started by another program: `under` is that and its arguments.
pub fn run_under(under: &[&str], upstream: SocketAddr, folder: &Path, more: &[&str]) -> RunningProxy {
    run_to(&format!("http://{upstream}"), under, folder, more)
}

/// The same, in front of a URL.
pub fn run_to(upstream: &str, under: &[&str], folder: &Path, more: &[&str]) -> RunningProxy {
    let capture = format!("--capture={}", folder.display());
    run_with(upstream, under, &[&[&*capture], more].concat(), &[])
}

/// A proxy that captures nothing.
pub fn run_without_capture(upstream: SocketAddr, more: &[&str]) -> RunningProxy {
    run_with(&format!("http://{upstream}"), &[], more, &[])
}

/// A proxy in front of a URL, started by another program, with these arguments and variables of the environment.
pub fn run_with(upstream: &str, under: &[&str], more: &[&str], variables: &[(&str, &str)]) -> RunningProxy {
    let mut words = under.iter().copied().chain([env!("CARGO_BIN_EXE_streamgauge")]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.envs(variables.iter().copied());
    command.args(["proxy", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--workers=1"]);
    if !more.iter().any(|word| word.starts_with("--log-format")) {
        command.arg("--log-format=json");
    }
    command.arg(format!("--upstream={upstream}")).args(more);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let log = Arc::<Mutex<String>>::default();
    let shared_log = Arc::clone(&log);
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(|line| line.unwrap());
    let mut lines = lines.inspect(move |line| *shared_log.lock().unwrap() += &format!("{line}\n"));
    let forwarding = lines.find(|line| line.contains("forwarding")).unwrap();
    let reader = std::thread::spawn(move || lines.for_each(drop));
    // In both formats the address stands behind its name.
    let address = |name: &str| {
        let rest = forwarding.split(name).nth(1).unwrap().split("127.0.0.1:").nth(1).unwrap();
        let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
        format!("127.0.0.1:{port}").parse().unwrap()
    };
    RunningProxy { listen: address("listen"), admin: address("admin"), child, log, reader: Some(reader) }
}

impl RunningProxy {
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    /// The most resident memory that it has had.
    pub fn peak_bytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    }

    pub fn client(&self) -> Client {
        Client::connect(self.listen)
    }

    /// The log so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub fn page(&self, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        Client::connect(self.admin).send(request).response().text()
    }

    pub fn terminate(&mut self) {
        nix::sys::signal::kill(self.pid(), nix::sys::signal::Signal::SIGTERM).unwrap();
        self.ended();
    }

    /// Waits until it has ended with status 0; its log is then complete.
    pub fn ended(&mut self) {
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
    }
}

/// A request with a number, its `max_tokens`, which its row repeats. The row has some 13 KB however well it is packed:
/// ids of blocks are noise, in blocks of 16 bytes.
pub fn numbered(number: u64) -> String {
    let part = |part: u64| blake3::hash(&[number, part].map(u64::to_le_bytes).concat()).to_hex().to_string();
    let message = json!({"role": "user", "content": (0..200).map(part).collect::<String>()});
    chat(&json!({"model": "m", "stream": true, "max_tokens": number, "messages": [message]}).to_string())
}

/// Sends the numbered requests; every answer is whole.
pub fn ask_numbered(listen: SocketAddr, numbers: std::ops::Range<u64>) {
    let mut client = Client::connect(listen);
    for number in numbers {
        assert!(client.send(numbered(number)).response().text().ends_with("data: [DONE]\n\n"));
    }
}

/// The words that start a program with a small disk at this folder, which only that program sees. `None` if no disk can
/// be made here.
pub fn small_disk(folder: &Path, size: &str) -> Option<Vec<String>> {
    let folder = folder.to_str().unwrap();
    let namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"];
    let may = Command::new(namespace[0]).args(&namespace[1..]).args(["mount -t tmpfs none \"$0\"", folder]).output();
    let mount = format!("mount -t tmpfs -o size={size} none \"$0\" && exec \"$@\"");
    let words = namespace.into_iter().chain([&*mount, folder]).map(str::to_owned);
    may.is_ok_and(|done| done.status.success()).then(|| words.collect())
}

/// The capture's records on a page of metrics, by their reason.
pub fn counted(metrics: &str, reason: &str) -> u64 {
    let of_reason = |line: &&str| {
        line.starts_with("streamgauge_capture_records_total") && line.contains(&format!("reason=\"{reason}\""))
    };
    metrics.lines().find(of_reason).unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !holds() {
        assert!(started_at.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Drop for RunningProxy {
    fn drop(&mut self) {
        let _ended = self.child.kill().and_then(|()| self.child.wait()).is_ok();
    }
}
