//! The real parts of `tests/parts`, and our own simulated server.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::machine::{Running, address};
use super::talk::get;

/// What heavy parts may take to start, or to do their work.
const MINUTES: Duration = Duration::from_secs(300);

/// A part that serves on one address.
pub(crate) struct Part {
    pub(crate) running: Running,
    pub(crate) addr: SocketAddr,
}

/// Runs `tests/parts/start`. A part that is not installed ends with a message that says what to do.
pub(crate) fn start(name: &'static str, arguments: &[&str]) -> Running {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parts/start");
    Running::start(name, &script, |command| {
        command.arg(name).args(arguments);
    })
}

/// A program that `tests/parts/setup` has installed, with no arguments yet.
pub(crate) fn program(name: &str) -> Command {
    let program = folder().join("bin").join(name);
    assert!(program.exists(), "{name}: not in {}/bin; remedy: tests/parts/setup", folder().display());
    Command::new(program)
}

/// llama-server with the tiny model and four slots.
pub(crate) fn llama() -> Part {
    llama_with(&[])
}

/// llama-server with the tiny model and these flags too.
pub(crate) fn llama_with(flags: &[&str]) -> Part {
    let addr = address();
    let running = start("llama", &[&[addr.port().to_string().as_str(), "--"], flags].concat());
    Part { running: running.ready(addr, || get(addr, "/health").status() == 200), addr }
}

/// Prometheus that scrapes `target` every second and keeps its data in `directory`.
pub(crate) fn prometheus(directory: &Path, target: &str) -> Part {
    let addr = address();
    let running = start("prometheus", &[&addr.port().to_string(), directory.to_str().unwrap(), target]);
    Part { running: running.ready(addr, || get(addr, "/-/ready").status() == 200), addr }
}

/// An OpenTelemetry collector that passes on.
pub(crate) struct Rotel {
    /// Receives OTLP over gRPC.
    pub(crate) grpc: SocketAddr,
    /// Receives OTLP over HTTP.
    pub(crate) http: SocketAddr,
    _running: Running,
}

/// A collector that passes on to an OTLP/gRPC address.
pub(crate) fn rotel(to: SocketAddr) -> Rotel {
    let (grpc, http) = (address(), address());
    let running = start("rotel", &[&grpc.port().to_string(), &http.port().to_string(), &format!("http://{to}")]);
    let running = running.ready(grpc, || TcpStream::connect(http).is_ok());
    Rotel { grpc, http, _running: running }
}

/// nginx before `server`, with its files in `directory`: it speaks HTTP/2, and closes each connection after 100 requests.
pub(crate) fn nginx(server: SocketAddr, directory: &Path) -> Part {
    let addr = address();
    let ports = [addr.port(), server.port()].map(|port| port.to_string());
    let running = start("nginx", &[&ports[0], &ports[1], directory.to_str().unwrap()]);
    Part { running: running.ready(addr, || get(addr, "/health").status() == 200), addr }
}

/// VictoriaMetrics that keeps its data in `directory`.
pub(crate) fn victoria(directory: &Path) -> Part {
    let addr = address();
    let running = start("victoria", &[&addr.port().to_string(), directory.to_str().unwrap()]);
    Part { running: running.ready(addr, || get(addr, "/health").status() == 200), addr }
}

/// vLLM on the CPU with the tiny model. It takes minutes to start.
pub(crate) fn vllm() -> Part {
    let addr = address();
    let running = start("vllm", &[&addr.port().to_string()]);
    Part { running: running.ready_within(MINUTES, addr, || get(addr, "/health").status() == 200), addr }
}

/// `transformers serve` on the CPU; its model's name is [`transformers_model`].
pub(crate) fn transformers() -> Part {
    let addr = address();
    let running = start("transformers", &[&addr.port().to_string()]);
    Part { running: running.ready_within(MINUTES, addr, || get(addr, "/health").status() == 200), addr }
}

/// The folder that parts are installed in.
pub(crate) fn folder() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache/streamgauge-parts");
    std::env::var_os("STREAMGAUGE_PARTS").map_or_else(home, PathBuf::from)
}

/// Runs a part to its end; its log is in the panic should it fail.
pub(crate) fn run(name: &'static str, arguments: &[&str]) {
    let mut running = start(name, arguments);
    let (status, _) = running.ended(MINUTES).unwrap_or_else(|| panic!("{name} does not end:\n{}", running.log()));
    assert!(status.success(), "{name} ended with {status}:\n{}", running.log());
}

/// The simulated server with these flags.
pub(crate) fn sim(flags: &[&str]) -> Part {
    let addr = address();
    let running = Running::start("sim", Path::new(env!("CARGO_BIN_EXE_streamgauge")), |command| {
        command.arg("sim").arg(format!("--listen={addr}")).args(flags);
    });
    Part { running: running.ready(addr, || true), addr }
}
