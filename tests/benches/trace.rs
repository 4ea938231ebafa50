//! Cost of `trace info` beside jq and DuckDB, which only sum the lengths of the same rows.
//!
//! `cargo bench --bench trace` prints CPU seconds and elapsed ones, the best of three; ratios within one run mean
//! something. `tests/tools/setup --bench` installs the others; those that the system has come first. With
//! `--write BYTES` it writes so much of a trace to stdout instead, for tries with traces that fit into no memory:
//!
//! ```text
//! cargo bench --bench trace -- --write 10000000000 | streamgauge trace info -
//! ```

#![expect(clippy::disallowed_methods, reason = "a benchmark asks for the time")]
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and stops where it cannot go on")]

#[path = "../support/big_trace.rs"]
mod big_trace;

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use big_trace::BigTrace;
use nix::sys::resource::{UsageWho, getrusage};

/// Bytes of the file that is read.
const SIZE: u64 = 200 << 20;

const JQ: &str = "reduce inputs as $row ([0, 0, 0]; \
    [.[0] + 1, .[1] + $row.input_length, .[2] + $row.output_length]) | @tsv";
const DUCKDB: &str = "select count(*), sum(input_length), sum(output_length) from read_json(getenv('TRACE'), \
    format = 'newline_delimited', columns = {input_length: 'BIGINT', output_length: 'BIGINT'})";

/// A program of the system, or else of the parts.
fn program(name: &str) -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/streamgauge-parts"));
    let parts = std::env::var_os("STREAMGAUGE_PARTS").map(PathBuf::from).or_else(home);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(parts.map(|parts| parts.join("bin")));
    places.map(|place| place.join(name)).find(|program| program.is_file()).unwrap_or_else(|| name.into())
}

fn cpu() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// CPU and elapsed seconds of the best of three runs; `None` where the program cannot do it.
fn measure(command: &mut Command) -> Option<(f64, f64)> {
    let runs = (0..3).map(|_| {
        let (used, started_at) = (cpu(), Instant::now());
        let done = command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        done.then(|| (cpu() - used, started_at.elapsed().as_secs_f64()))
    });
    runs.collect::<Option<Vec<_>>>()?.into_iter().min_by(|one, other| one.0.total_cmp(&other.0))
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--write") {
        let bytes = arguments.get(at + 1).and_then(|bytes| bytes.parse().ok()).expect("--write BYTES");
        // The reader that closed the pipe has read enough.
        let _closed =
            io::copy(&mut io::BufReader::with_capacity(1 << 16, BigTrace::of(bytes)), &mut io::stdout()).is_err();
        return;
    }
    // A run of all targets as tests wants no table.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.jsonl");
    let bytes = io::copy(&mut BigTrace::of(SIZE), &mut std::fs::File::create(&file).unwrap()).unwrap();
    let mut commands = [
        ("streamgauge trace info", Command::new(env!("CARGO_BIN_EXE_streamgauge"))),
        ("duckdb, sums", Command::new(program("duckdb"))),
        ("jq, sums", Command::new(program("jq"))),
    ];
    commands[0].1.args(["trace", "info", "--json"]).arg(&file);
    // One thread: more of them are no less work.
    commands[1].1.args(["-c", "set threads = 1", "-c", DUCKDB]).env("TRACE", &file);
    commands[2].1.args(["-n", "-r", JQ]).arg(&file);
    println!("{:<24} {:>8} {:>10} {:>10} {:>8}", "", "CPU, s", "elapsed, s", "MB/s CPU", "ratio");
    let mut ours = None;
    for (name, mut command) in commands {
        let Some((used, elapsed)) = measure(&mut command) else {
            println!("{name:<24} not installed; remedy: tests/tools/setup --bench");
            continue;
        };
        let ratio = used / *ours.get_or_insert(used);
        println!("{name:<24} {used:>8.2} {elapsed:>10.2} {:>10.0} {ratio:>8.2}", bytes as f64 / 1e6 / used);
    }
}
