//! The program as a command: `replay`, `load`, `report`, and servers for them.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use streamgauge::engine::{CostModel, EngineOptions};
use streamgauge::measure::time::Gap;
use streamgauge::sim::{RunningServer, SimOptions, SimServer};
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::TraceEntry;

use super::upstream::Upstream;

/// Exit code and output of a command.
pub struct CommandOutput {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// The program without its self-test, which takes seconds.
pub fn without_self_test(args: &[&str]) -> Command {
    program(&[args, &["--no-audit"]].concat())
}

/// The program, in the root of the repository.
pub fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the program without its self-test.
pub fn run(args: &[&str]) -> CommandOutput {
    output_of(without_self_test(args))
}

/// Runs a command to its end.
pub fn output_of(mut command: Command) -> CommandOutput {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A simulated server that is never busy, with so much between two tokens.
pub fn sim(step: Gap) -> RunningServer {
    let cost =
        CostModel { prefill_per_second: 500_000_000, step_base: step, step_per_seq: Gap::ZERO, ..CostModel::default() };
    let engine = EngineOptions {
        cost,
        max_batched_tokens: 1 << 20,
        kv_blocks: 1 << 20,
        max_num_seqs: 1_024,
        ..EngineOptions::default()
    };
    let options = SimOptions { engine, ..SimOptions::default() };
    SimServer::bind(options, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().spawn().unwrap()
}

/// The rows of a result, in the order of their plan.
pub fn rows(folder: &Path) -> Vec<TraceEntry> {
    let reader = TraceReader::open(&folder.join("records.jsonl.zst")).unwrap();
    let mut rows: Vec<TraceEntry> = reader.map(Result::unwrap).collect();
    rows.sort_by_key(|row| row.planned);
    rows
}

/// The run.json of a result.
pub fn run_json(run: &Path) -> Value {
    serde_json::from_slice(&fs::read(run.join("run.json")).unwrap()).unwrap()
}

/// An upstream that answers every request with one short stream, and the bodies that it received.
pub fn recording_upstream() -> (Upstream, impl Fn() -> Vec<Vec<u8>>) {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&bodies);
    let upstream = Upstream::start(move |mut conn| {
        while let Some(request) = conn.request() {
            // A request about the server itself has no body.
            log.lock().unwrap().extend(Some(request.body).filter(|body| !body.is_empty()));
            let body = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n\
                        data: [DONE]\n\n";
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length";
            conn.send(format!("{head}: {}\r\n\r\n{body}", body.len()));
        }
    });
    let taken = move || {
        let mut bodies = std::mem::take(&mut *bodies.lock().unwrap());
        bodies.sort();
        bodies
    };
    (upstream, taken)
}
