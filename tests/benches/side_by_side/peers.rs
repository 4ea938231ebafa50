//! The peers, their command lines and their settings.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::ValueEnum;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::configs;
use crate::cpu::tree;

/// Threads of a peer without a flag.
const DEFAULT_THREADS: u32 = 2;

/// A way from the client to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Peer {
    /// No proxy: what the bench itself costs and adds.
    Direct,
    Nginx,
    /// HAProxy that reads HTTP.
    Haproxy,
    /// HAProxy that only copies bytes.
    HaproxyTcp,
    Envoy,
    Streamgauge,
    /// Streamgauge with a capture.
    Capturing,
}

impl Peer {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::HaproxyTcp => "haproxy-tcp",
            Self::Envoy => "envoy",
            Self::Streamgauge => "streamgauge",
            Self::Capturing => "capturing",
        }
    }

    /// True if it takes HTTP/2 from clients, with an upstream that speaks HTTP/1.1.
    pub(crate) const fn takes_http2(self) -> bool {
        !matches!(self, Self::Direct | Self::HaproxyTcp)
    }

    /// True if goals are set for it.
    pub(crate) const fn is_ours(self) -> bool {
        matches!(self, Self::Streamgauge | Self::Capturing)
    }
}

/// Where peers run, and what streamgauge is given.
#[derive(Clone)]
pub(crate) struct House {
    /// Configuration and logs of all peers.
    pub(crate) directory: PathBuf,
    pub(crate) streamgauge: PathBuf,
    pub(crate) streamgauge_arguments: Vec<String>,
    /// Threads that forward, of each peer. Streamgauge decides for itself where this is none.
    pub(crate) threads: Option<u32>,
    /// Where it pushes metrics and traces to, if it does.
    pub(crate) otlp: Option<SocketAddr>,
    /// The clients speak HTTP/2 in clear, which nginx before 1.25 does on no port that takes HTTP/1.1.
    pub(crate) http2_only: bool,
}

impl House {
    /// This house with more arguments for streamgauge.
    pub(crate) fn with<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        let mut house = self.clone();
        house.streamgauge_arguments.extend(arguments.into_iter().map(str::to_owned));
        house
    }

    /// The program of `peer`, and what it calls its version.
    pub(crate) fn version(&self, peer: Peer) -> Result<String> {
        let argument = if peer == Peer::Envoy || peer.is_ours() { "--version" } else { "-v" };
        let output = Command::new(self.program(peer)?).arg(argument).output()?;
        let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
        let line = String::from_utf8_lossy(&text).trim().lines().next().unwrap_or_default().to_owned();
        Ok(line)
    }

    fn program(&self, peer: Peer) -> Result<PathBuf> {
        if peer.is_ours() {
            return Ok(self.streamgauge.clone());
        }
        let name = if peer == Peer::HaproxyTcp { "haproxy" } else { peer.name() };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let parts = std::env::var_os("STREAMGAUGE_PARTS").map(PathBuf::from).or_else(|| {
            let home = std::env::var_os("HOME")?;
            Some(Path::new(&home).join(".cache/streamgauge-parts"))
        });
        // Debian keeps servers where an ordinary user's PATH does not look. The parts come last: they bring their own
        // copies of the system's libraries, and weigh more for it.
        let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
        let mut programs = places.chain(parts.map(|parts| parts.join("bin"))).map(|place| place.join(name));
        let missing = || anyhow!("{name} is not installed; remedy: tests/tools/setup --bench");
        programs.find(|program| program.is_file()).with_context(missing)
    }

    fn command(
        &self,
        peer: Peer,
        (listen, admin): (SocketAddr, SocketAddr),
        upstream: SocketAddr,
        place: &Path,
    ) -> Result<Command> {
        let mut command = Command::new(self.program(peer)?);
        let threads = self.threads.unwrap_or(DEFAULT_THREADS);
        let write = |name: &str, text: String| -> Result<PathBuf> {
            let file = place.join(name);
            std::fs::write(&file, text).with_context(|| format!("{}: cannot be written", file.display()))?;
            Ok(file)
        };
        match peer {
            Peer::Direct => bail!("direct has no program"),
            Peer::Nginx => {
                let file = write("nginx.conf", configs::nginx(listen, upstream, threads, self.http2_only))?;
                command.arg("-p").arg(place).arg("-e").arg("stderr").arg("-c").arg(file);
            }
            Peer::Haproxy | Peer::HaproxyTcp => {
                let text = configs::haproxy(listen, upstream, threads, peer == Peer::HaproxyTcp);
                let file = write("haproxy.cfg", text)?;
                command.arg("-db").arg("-f").arg(file);
            }
            Peer::Envoy => {
                let file = write("envoy.yaml", configs::envoy(listen, upstream))?;
                command.args(["--concurrency", &threads.to_string()]);
                command.args(["--disable-hot-restart", "--log-level", "error", "-c"]).arg(file);
            }
            Peer::Streamgauge | Peer::Capturing => {
                command.args(["proxy", "--upstream", &format!("http://{upstream}"), "--listen", &listen.to_string()]);
                command.args(["--admin", &admin.to_string()]).args(&self.streamgauge_arguments);
                command.args(self.threads.map(|threads| format!("--workers={threads}")));
                if let Some(otlp) = self.otlp {
                    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{otlp}"));
                }
                command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
                if peer == Peer::Capturing {
                    command.arg("--capture").arg(place.join("capture"));
                }
                // Several exports fall into every run, so that their cost is in the figures.
                command.env("OTEL_METRIC_EXPORT_INTERVAL", "1000").env("OTEL_BSP_SCHEDULE_DELAY", "500");
            }
        }
        Ok(command)
    }

    /// Starts `peer` in front of `upstream` and waits until it accepts connections.
    ///
    /// # Errors
    /// When the program is missing, ends, or does not listen within ten seconds; with the end of its log.
    pub(crate) fn start(&self, peer: Peer, upstream: SocketAddr) -> Result<Running> {
        if peer == Peer::Direct {
            return Ok(Running { peer, address: upstream, admin: None, child: None });
        }
        let (address, admin) = (free_port()?, free_port()?);
        let place = self.directory.join(format!("{}-{}", peer.name(), address.port()));
        std::fs::create_dir_all(&place)?;
        let log = place.join("log");
        let mut command = self.command(peer, (address, admin), upstream, &place)?;
        let file = File::create(&log)?;
        let child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn();
        let child = child.with_context(|| format!("{}: cannot be started", peer.name()))?;
        let admin = (peer == Peer::Streamgauge).then_some(admin);
        let mut running = Running { peer, address, admin, child: Some(child) };
        for _ in 0..200 {
            if TcpStream::connect(address).is_ok() {
                return Ok(running);
            }
            if let Some(status) = running.child.as_mut().and_then(|child| child.try_wait().ok()?) {
                bail!("{} ended at once ({status}): {}", peer.name(), tail(&log));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("{} does not listen on {address} after 10 s: {}", peer.name(), tail(&log))
    }
}

/// A started peer; stopped when dropped.
pub(crate) struct Running {
    pub(crate) peer: Peer,
    pub(crate) address: SocketAddr,
    /// The admin port, of one that has it.
    pub(crate) admin: Option<SocketAddr>,
    child: Option<Child>,
}

impl Running {
    /// The root of the process tree; none for the direct way.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        let family = tree(child.id());
        // SIGTERM first: a killed nginx would leave its workers behind.
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            for pid in &family {
                // An ended process cannot be signalled.
                let _sent = kill(Pid::from_raw(*pid as i32), signal).is_ok();
            }
            for _ in 0..100 {
                if matches!(child.try_wait(), Ok(Some(_))) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn free_port() -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?)
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}
