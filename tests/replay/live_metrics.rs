//! A run with `--admin` or OTLP: its metrics agree with its summary to the last count.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use nix::pty::{OpenptyResult, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message;
use serde_json::Value;
use streamgauge::engine::{CostModel, EngineOptions};
use streamgauge::measure::time::Gap;
use streamgauge::sim::{RunningServer, SimOptions, SimServer};
use streamgauge::trace_file::reader::TraceReader;

use crate::support::captured::until;
use crate::support::client::Client;
use crate::support::metrics_parser;
use crate::support::sending::{output_of, without_self_test};
use crate::support::upstream::Upstream;

fn sim() -> RunningServer {
    let cost = CostModel {
        prefill_per_second: 500_000_000,
        step_base: Gap::from_millis(5),
        step_per_seq: Gap::ZERO,
        ..CostModel::default()
    };
    let engine = EngineOptions { cost, kv_blocks: 1 << 16, ..EngineOptions::default() };
    let options = SimOptions { engine, ..SimOptions::default() };
    SimServer::bind(options, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().spawn().unwrap()
}

/// Twenty requests within a second, and one that comes in an hour.
fn trace(folder: &Path) -> String {
    let row =
        |at: u64| format!("{{\"timestamp\":{at},\"input_length\":64,\"output_length\":10,\"hash_ids\":[{at}]}}\n");
    let path = folder.join("trace.jsonl");
    let rows: String = (0..20).map(|number| row(number * 40)).chain([row(3_600_000)]).collect();
    std::fs::write(&path, rows).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A replay of it, in which some clients leave.
fn replay(trace: &str, target: SocketAddr) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    let target = format!("http://{target}");
    command.args(["replay", trace, "--target", &target, "--no-audit", "--prompt-overhead", "0", "--max-lag", "1h"]);
    command.args(["--cancel-rate", "30%", "--cancel-after", "3tok", "--slo", "all: ttft<=1h", "--json"]);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Stops it, and gives its result.
fn stopped(mut child: Child) -> Value {
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(child.wait().unwrap().success());
    serde_json::from_str(&output).unwrap()
}

fn get(address: SocketAddr, path: &str, accept: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\nconnection: close\r\n\r\n");
    let response = Client::connect(address).send(request).response();
    (response.status(), response.text())
}

/// The sum of a family's samples, for those that have these labels.
fn sum(page: &str, name: &str, labels: &str) -> f64 {
    let of = |line: &&str| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} "));
    let lines = page.lines().filter(of).filter(|line| line.contains(labels));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[test]
fn a_scrape_of_a_run_agrees_with_its_summary() {
    let (server, folder) = (sim(), tempfile::tempdir().unwrap());
    let trace = trace(folder.path());
    let out = folder.path().join("run");
    let mut command = replay(&trace, server.local_addr());
    let mut child = command.args(["--admin", "127.0.0.1:0", "--out"]).arg(&out).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let live = lines.find_map(|line| Some(line.strip_prefix("live: http://")?.trim_end_matches('/').to_owned()));
    let admin: SocketAddr = live.unwrap().parse().unwrap();
    let metrics = || get(admin, "/metrics", "*/*").1;
    until("all requests but the last have ended, and their lags are published", || {
        let page = metrics();
        ["streamgauge_replay_requests_total", "streamgauge_replay_schedule_lag_seconds_count"]
            .iter()
            .all(|name| sum(&page, name, "") == 20.0)
    });
    let page = metrics();

    assert_eq!(get(admin, "/livez", "*/*").0, 200);
    assert_eq!(get(admin, "/readyz", "*/*").0, 200);
    assert!(get(admin, "/", "text/html").1.starts_with("<!doctype html>"));
    for path in ["/api/state", "/api/history"] {
        let document: Value = serde_json::from_str(&get(admin, path, "*/*").1).unwrap();
        let run = &document["replay"];
        assert_eq!(run["name"], trace, "{path}: {document}");
        assert_eq!(document["upstream"]["url"], format!("http://{}", server.local_addr()));
        let counts = ["planned", "sent", "in_flight", "ended", "length_s"].map(|name| run[name].as_f64().unwrap());
        assert_eq!(counts, [21.0, 20.0, 0.0, 20.0, 3_600.0], "{path}: {run}");
        assert!(path == "/api/state" || document["simulated"] == true, "the sim says so of itself");
        assert!(run["lag_ms"]["p99"].as_f64().is_some() && run["failed"].as_u64() > Some(0), "{run}");
    }

    let report = stopped(child);
    let summary = &report["summary"];
    let outcomes: BTreeMap<String, f64> = serde_json::from_value(summary["outcomes"].clone()).unwrap();
    assert!(outcomes.len() == 2 && outcomes["success"] > 5.0, "some left and some did not: {outcomes:?}");
    for (outcome, count) in &outcomes {
        let label = format!("outcome=\"{outcome}\"");
        assert_eq!(sum(&page, "streamgauge_replay_requests_total", &label), *count, "{outcome}");
    }
    let number = |path: &str| summary.pointer(path).unwrap().as_f64().unwrap();
    // Those of clients that left are counted too, and in no figure of a report.
    let tokens: u64 =
        TraceReader::open(&out.join("records.jsonl.zst")).unwrap().filter_map(|row| row.unwrap().output_tokens).sum();
    for (name, labels, expected) in [
        ("streamgauge_replay_sent_total", "", 20.0),
        ("streamgauge_replay_planned", "", 21.0),
        ("streamgauge_replay_schedule_lag_seconds_count", "", number("/metrics/send_lag/count")),
        ("gen_ai_server_request_duration_seconds_count", "", number("/requests")),
        ("gen_ai_server_time_to_first_token_seconds_count", "", number("/metrics/ttft_from_planned/count")),
        ("streamgauge_stream_inter_token_latency_seconds_count", "", number("/metrics/itl/count")),
        ("streamgauge_stream_output_tokens_total", "", tokens as f64),
        ("gen_ai_client_token_usage_sum", "gen_ai_token_type=\"input\"", number("/tokens/input")),
        ("streamgauge_slo_requests_total", "result=\"met\"", number("/goodput/0/met")),
        ("streamgauge_stream_active", "", 0.0),
        ("streamgauge_export_dropped_total", "", 0.0),
    ] {
        assert_eq!(sum(&page, name, labels), expected, "{name} {labels}");
    }
    // Latencies begin at the planned moment, and lag is what lies between.
    for (name, spread) in [
        ("gen_ai_server_time_to_first_token_seconds_sum", "ttft_from_planned"),
        ("streamgauge_replay_schedule_lag_seconds_sum", "send_lag"),
    ] {
        let expected = number(&format!("/metrics/{spread}/sum")) / 1e3;
        assert!((sum(&page, name, "") / expected - 1.0).abs() < 1e-6, "{name}: {expected}");
    }
    for of_proxy in ["http_server_", "streamgauge_proxy_", "streamgauge_capture_"] {
        assert!(!page.contains(of_proxy), "a run serves nobody: {of_proxy}");
    }
}

#[test]
fn the_otlp_export_of_a_run_agrees_with_its_summary() {
    let (server, folder) = (sim(), tempfile::tempdir().unwrap());
    let bodies: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let log = Arc::clone(&bodies);
    let collector = Upstream::start(move |mut connection| {
        while let Some(request) = connection.request() {
            log.lock().unwrap().push(request.body);
            connection.send("HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let last = || {
        let body = bodies.lock().unwrap().last().cloned()?;
        Some(metrics_parser::otlp(&ExportMetricsServiceRequest::decode(&*body).unwrap().resource_metrics[0]))
    };
    let mut command = replay(&trace(folder.path()), server.local_addr());
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.addr));
    command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf").env("OTEL_METRIC_EXPORT_INTERVAL", "100");
    let child = command.spawn().unwrap();
    let ended = |table: &metrics_parser::Table| {
        let of = table.iter().filter(|((name, _), _)| name == "streamgauge_replay_requests_total");
        of.map(|(_, series)| series.value).sum::<f64>()
    };
    until("a collector has twenty requests", || last().is_some_and(|table| ended(&table) == 20.0));
    let report = stopped(child);
    let table = last().unwrap();
    let outcomes: BTreeMap<String, f64> = serde_json::from_value(report["summary"]["outcomes"].clone()).unwrap();
    let counts: BTreeMap<String, f64> = table
        .iter()
        .filter(|((name, _), _)| name == "streamgauge_replay_requests_total")
        .map(|((_, labels), series)| (labels["outcome"].clone(), series.value))
        .collect();
    assert_eq!(counts, outcomes);
    let lag = table.iter().find(|((name, _), _)| name == "streamgauge_replay_schedule_lag_seconds").unwrap().1;
    assert_eq!(Some(lag.count), report["summary"]["metrics"]["send_lag"]["count"].as_u64());
    assert!(
        collector.heads().iter().all(|head| head.starts_with("POST /v1/metrics ")),
        "no traces: nothing is forwarded"
    );
}

#[test]
fn a_port_that_is_taken_is_wrong_usage() {
    let (server, folder) = (sim(), tempfile::tempdir().unwrap());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = replay(&trace(folder.path()), server.local_addr()).args(["--admin", &address]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(&format!("cannot listen on {address} (--admin): ")), "{stderr}");
}

#[test]
fn a_terminal_gets_a_table_in_place_and_everything_else_a_line_every_ten_seconds() {
    let server = sim();
    let target = format!("http://{}", server.local_addr());
    let load = |duration: &str| {
        let load = ["load", "--target", &target, "--rate", "5", "--duration", duration, "--isl", "8", "--osl", "4"];
        without_self_test(
            &[&load[..], &["--prompt-overhead", "0", "--max-lag", "1h", "--slo", "all: e2e<=1h"]].concat(),
        )
    };
    let piped = std::thread::spawn({
        let command = load("11s");
        move || output_of(command)
    });
    let OpenptyResult { master, slave } = openpty(None, None).unwrap();
    let mut command = load("4s");
    let mut child = command.stdout(Stdio::null()).stderr(slave).spawn().unwrap();
    // It holds the terminal's other side, which has to close with the child.
    drop(command);
    let mut shown = Vec::new();
    // Linux ends a terminal without writers with an error.
    _ = File::from(master).read_to_end(&mut shown).is_ok();
    assert!(child.wait().unwrap().success());
    let shown = String::from_utf8(shown).unwrap();
    let frames: Vec<&str> = shown.split("\u{1b}[J\u{1b}[?7l").skip(1).collect();
    assert!(frames.len() >= 3, "{shown}");
    for word in
        [" of 4 s, ", " to go", " planned", " sent", " in flight", " done", " not successful", " requests/s sent"]
    {
        assert!(frames[0].contains(word), "{word}: {}", frames[0]);
    }
    for word in ["TTFT from planned p50", "ITL p50", "lag p50", "all: "] {
        assert!(frames[0].contains(word), "{word}: {}", frames[0]);
    }
    let lines = frames[0].split("\u{1b}[?7h").next().unwrap().lines().count();
    assert!(frames[0].ends_with(&format!("\r\u{1b}[{lines}A")), "the next begins on the same line: {:?}", frames[0]);

    let done = piped.join().unwrap();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let lines: Vec<&str> = done.stderr.lines().filter(|line| line.contains(" of 11 s")).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(" planned, ") && line.contains("all: ")));
    assert!(!done.stderr.contains('\u{1b}'));
}

#[test]
fn an_admin_address_that_others_can_reach_needs_a_token_or_a_word_that_it_may_be_open() {
    let (server, folder) = (sim(), tempfile::tempdir().unwrap());
    let rows = folder.path().join("short.jsonl");
    std::fs::write(&rows, "{\"timestamp\":0,\"input_length\":64,\"output_length\":10,\"hash_ids\":[1]}\n").unwrap();
    let rows = rows.to_str().unwrap().to_owned();
    let run = |more: &[&str]| {
        let output = replay(&rows, server.local_addr()).args(["--admin", "0.0.0.0:0"]).args(more).output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, stderr) = run(&[]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("has no access control; set --admin-token-file, or --admin-insecure"), "{stderr}");
    let file = folder.path().join("token");
    let token = ["--admin-token-file", file.to_str().unwrap()];
    std::fs::write(&file, "canary7f3a").unwrap();
    let (code, stderr) = run(&token);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("token 1 of the token file") && !stderr.contains("canary7f3a"), "{stderr}");
    std::fs::write(&file, "0123456789abcdef").unwrap();
    for more in [&token[..], &["--admin-insecure"]] {
        let (code, stderr) = run(more);
        assert!(code == Some(0) && stderr.contains("live: http://0.0.0.0:"), "{stderr}");
    }
}
