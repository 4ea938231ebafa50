//! The real programs of `tests/tools`, and our own simulated server.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::http_client::{get, is_up};
use super::processes::{ChildProcess, MINUTE, address};

/// The longest start or run of a heavy tool.
const MINUTES: Duration = Duration::from_secs(300);

/// A tool that serves on one address.
pub(crate) struct Tool {
    pub(crate) running: ChildProcess,
    pub(crate) addr: SocketAddr,
}

/// Runs `tests/tools/start`. A tool that is not installed ends with a message that names the remedy.
pub(crate) fn start(name: &'static str, arguments: &[&str]) -> ChildProcess {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/start");
    ChildProcess::start(name, &script, |command| {
        command.arg(name).args(arguments);
    })
}

/// A tool that serves on `addr` and is ready when a GET of `path` is answered with 200. One that crashes at its start
/// is started once more, with a message, because the tests are not about its start.
fn serve(name: &'static str, addr: SocketAddr, arguments: &[&str], limit: Duration, path: &str) -> Tool {
    let ready = |running: ChildProcess| running.ready_or_ended(limit, addr, || is_up(addr, path));
    let running = ready(start(name, arguments)).or_else(|ended| {
        eprintln!("{ended}\n{name} is started once more");
        ready(start(name, arguments))
    });
    Tool { running: running.unwrap_or_else(|ended| panic!("{ended}")), addr }
}

/// A program that `tests/tools/setup` has installed, with no arguments yet.
pub(crate) fn program(name: &str) -> Command {
    let program = folder().join("bin").join(name);
    assert!(program.exists(), "{name}: not in {}/bin; remedy: tests/tools/setup", folder().display());
    Command::new(program)
}

/// llama-server with the tiny model and four slots.
pub(crate) fn llama() -> Tool {
    llama_with(&[])
}

/// llama-server with the tiny model and these flags too.
pub(crate) fn llama_with(flags: &[&str]) -> Tool {
    let addr = address();
    serve("llama", addr, &[&[addr.port().to_string().as_str(), "--"], flags].concat(), MINUTE, "/health")
}

/// Prometheus that scrapes `targets` every second and keeps its data in `directory`.
pub(crate) fn prometheus(directory: &Path, targets: &[SocketAddr]) -> Tool {
    let targets: Vec<String> = targets.iter().map(SocketAddr::to_string).collect();
    prometheus_with(directory, &targets, &[])
}

/// Starts Prometheus with targets of other jobs and paths, and with variables of `tests/tools/start`.
pub(crate) fn prometheus_with(directory: &Path, targets: &[String], environment: &[(&str, &str)]) -> Tool {
    let addr = address();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/start");
    let running = ChildProcess::start("prometheus", &script, |command| {
        command.args(["prometheus", &addr.port().to_string()]).arg(directory).args(targets);
        command.envs(environment.iter().copied());
    });
    Tool { running: running.ready(addr, || is_up(addr, "/-/ready")), addr }
}

/// The pages of `tests/data/server_metrics`, each at its name, with counters that grow.
pub(crate) fn engines() -> Tool {
    let addr = address();
    serve("engines", addr, &[&addr.port().to_string()], MINUTE, "/")
}

/// An OpenTelemetry collector that passes on.
pub(crate) struct Collector {
    /// Receives OTLP over gRPC.
    pub(crate) grpc: SocketAddr,
    /// Receives OTLP over HTTP.
    pub(crate) http: SocketAddr,
    pub(crate) running: ChildProcess,
}

/// A collector in Rust that passes on to an OTLP/gRPC address.
pub(crate) fn rotel(to: SocketAddr) -> Collector {
    collector("rotel", &format!("http://{to}"))
}

/// The official collector with the configuration of `deploy/`, which passes metrics too to where its traces go: `to`.
pub(crate) fn otelcol(to: SocketAddr) -> Collector {
    collector("otelcol", &to.to_string())
}

fn collector(name: &'static str, to: &str) -> Collector {
    let (grpc, http) = (address(), address());
    let running = start(name, &[&grpc.port().to_string(), &http.port().to_string(), to]);
    let running = running.ready(grpc, || TcpStream::connect(http).is_ok());
    Collector { grpc, http, running }
}

/// nginx before `servers`, with its files in `directory`: it speaks HTTP/2, and closes each connection after 100 requests.
/// `balance` is a directive of nginx's `upstream` block; without one the servers take turns.
pub(crate) fn nginx(servers: &[SocketAddr], balance: &str, directory: &Path) -> Tool {
    let addr = address();
    let ports: Vec<String> = servers.iter().map(|server| server.port().to_string()).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/start");
    let running = ChildProcess::start("nginx", &script, |command| {
        command.env("BALANCE", balance).args(["nginx", &addr.port().to_string(), &ports.join(",")]).arg(directory);
    });
    Tool { running: running.ready(addr, || is_up(addr, "/health")), addr }
}

/// MinIO, an S3 server, with its data in `directory` and these credentials.
pub(crate) fn minio(addr: SocketAddr, directory: &Path, [user, password]: [&str; 2]) -> ChildProcess {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/start");
    let running = ChildProcess::start("minio", &script, |command| {
        command.env("MINIO_ROOT_USER", user).env("MINIO_ROOT_PASSWORD", password);
        command.args(["minio", &addr.port().to_string()]).arg(directory);
    });
    running.ready(addr, || is_up(addr, "/minio/health/ready"))
}

/// Trino with a catalog of the files of this machine, and its own in `directory`.
pub(crate) fn trino(directory: &Path) -> Tool {
    let addr = address();
    let running = start("trino", &[&addr.port().to_string(), directory.to_str().unwrap()]);
    // It answers before it takes queries.
    let is_ready = || get(addr, "/v1/info").text().contains(r#""starting":false"#);
    let running = running.ready_or_ended(MINUTES, addr, is_ready).unwrap_or_else(|ended| panic!("{ended}"));
    Tool { running, addr }
}

/// VictoriaMetrics that keeps its data in `directory`.
pub(crate) fn victoria(directory: &Path) -> Tool {
    let addr = address();
    serve("victoria", addr, &[&addr.port().to_string(), directory.to_str().unwrap()], MINUTE, "/health")
}

/// vLLM on the CPU with the tiny model. It takes minutes to start.
pub(crate) fn vllm() -> Tool {
    vllm_with_flags(&[])
}

/// Starts vLLM with these flags too.
pub(crate) fn vllm_with_flags(flags: &[&str]) -> Tool {
    let addr = address();
    serve("vllm", addr, &[&[addr.port().to_string().as_str(), "--"], flags].concat(), MINUTES, "/health")
}

/// Starts vLLM once, with these variables too; the error has its exit status.
pub(crate) fn vllm_with(environment: &BTreeMap<String, String>) -> Result<Tool, String> {
    let addr = address();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/start");
    let running = ChildProcess::start("vllm", &script, |command| {
        command.envs(environment).args(["vllm", &addr.port().to_string()]);
    });
    let running = running.ready_or_ended(MINUTES, addr, || is_up(addr, "/health"))?;
    Ok(Tool { running, addr })
}

/// `transformers serve` on the CPU; its model's name is [`transformers_model`].
pub(crate) fn transformers() -> Tool {
    let addr = address();
    serve("transformers", addr, &[&addr.port().to_string()], MINUTES, "/health")
}

/// The folder of installed tools.
pub(crate) fn folder() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache/streamgauge-parts");
    std::env::var_os("STREAMGAUGE_PARTS").map_or_else(home, PathBuf::from)
}

/// The tokenizer of the tiny model.
pub(crate) fn tokenizer() -> PathBuf {
    folder().join("models/tokenizer/tokenizer.json")
}

/// Runs a part to its end; its log is in the panic should it fail.
pub(crate) fn run(name: &'static str, arguments: &[&str]) {
    let mut running = start(name, arguments);
    let (status, _) = running.ended(MINUTES).unwrap_or_else(|| panic!("{name} does not end:\n{}", running.log()));
    assert!(status.success(), "{name} ended with {status}:\n{}", running.log());
}

/// The simulated server with these flags.
pub(crate) fn sim(flags: &[&str]) -> Tool {
    let addr = address();
    let running = ChildProcess::start("sim", Path::new(env!("CARGO_BIN_EXE_streamgauge")), |command| {
        command.arg("sim").arg(format!("--listen={addr}")).args(flags);
    });
    Tool { running: running.ready(addr, || true), addr }
}
