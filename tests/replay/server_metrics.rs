//! `--server-metrics`: scrapes are aligned with the records, and a slow, large or missing page stops nothing.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use streamgauge::engine::{CostModel, EngineOptions};
use streamgauge::measure::server_metrics::ServerMetric;
use streamgauge::measure::time::Gap;
use streamgauge::sim::{RunningServer, SimOptions, SimServer};
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::server_metrics::{SERVER_METRICS_FILE, Scrape, ScrapesHeader, ScrapesWriter, read};
use streamgauge::trace_file::writer::TraceWriter;

use crate::support::client::Client;
use crate::support::upstream::Upstream;

fn sim(step: Gap, max_num_seqs: u32) -> RunningServer {
    let cost =
        CostModel { prefill_per_second: 500_000_000, step_base: step, step_per_seq: Gap::ZERO, ..CostModel::default() };
    let engine = EngineOptions { cost, kv_blocks: 1 << 16, max_num_seqs, ..EngineOptions::default() };
    let options = SimOptions { engine, ..SimOptions::default() };
    SimServer::bind(options, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().spawn().unwrap()
}

fn load(target: SocketAddr, out: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(["load", "--no-audit", "--prompt-overhead", "0", "--max-lag", "1h", "--isl", "64", "--json"]);
    command.args(["--target", &format!("http://{target}"), "--out", out.to_str().unwrap()]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ended(mut command: Command) -> (Value, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{stderr}");
    (serde_json::from_slice(&stdout).unwrap(), stderr)
}

fn scrapes(out: &Path) -> (ScrapesHeader, Vec<Scrape>) {
    read(&out.join(SERVER_METRICS_FILE)).unwrap().unwrap()
}

fn report(out: &Path, more: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_streamgauge")).args(["report", out.to_str().unwrap()]).args(more).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// A figure of the sim's own page, by its name there.
fn own(server: SocketAddr, name: &str) -> f64 {
    let mut client = Client::connect(server);
    let page = client.send("GET /metrics HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").response().text();
    let line = page.lines().find(|line| line.starts_with(&format!("vllm:{name}{{"))).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn server_metrics_match_the_records_in_time_and_tokens() {
    // Two run at a time, and each takes two seconds. At the first second two run and one waits, at the third the last
    // one runs.
    let server = sim(Gap::from_millis(20), 2);
    let (folder, address) = (tempfile::tempdir().unwrap(), server.local_addr());
    let out = folder.path().join("run");
    let url = format!("http://{address}");
    let flags = ["--concurrency", "3", "--requests", "3", "--osl", "100", "--server-metrics", &url];
    let (run, stderr) = ended(load(address, &out, &flags));
    let (header, rows) = scrapes(&out);
    assert_eq!(header.servers, [format!("{url}/metrics")]);
    let records = TraceReader::open(&out.join("records.jsonl.zst")).unwrap();
    let began = records.header().started_unix_ns.unwrap();
    assert!(header.started_unix_ns.abs_diff(began) < 1_000_000_000, "one line of time");
    let requests: Vec<_> = records.map(Result::unwrap).collect();
    let last_end = requests.iter().map(|row| row.at + row.timing.ended.unwrap()).max().unwrap().cast_signed();
    assert!(rows.is_sorted_by_key(|row| row.at) && rows.iter().all(|row| row.failed.is_none()), "{rows:?}");
    assert!(rows[0].at < 0 && rows.last().unwrap().at >= last_end, "before the first request and after the last");
    let at = |second: i64| {
        let row = rows.iter().find(|row| row.at >= second * 1_000_000_000).unwrap();
        [ServerMetric::Running, ServerMetric::Waiting].map(|figure| row.figures[&figure])
    };
    assert_eq!((at(1), at(3)), ([2.0, 1.0], [1.0, 0.0]), "{rows:?}");
    for (figure, name) in [
        (ServerMetric::PromptTokens, "prompt_tokens_total"),
        (ServerMetric::GenerationTokens, "generation_tokens_total"),
        (ServerMetric::PrefixQueries, "prefix_cache_queries_total"),
        (ServerMetric::PrefixHits, "prefix_cache_hits_total"),
        (ServerMetric::KvUsage, "kv_cache_usage_perc"),
        (ServerMetric::Running, "num_requests_running"),
        (ServerMetric::Waiting, "num_requests_waiting"),
        (ServerMetric::Preemptions, "num_preemptions_total"),
    ] {
        assert!((rows.last().unwrap().figures[&figure] - own(address, name)).abs() < 1e-9, "{name}");
    }
    assert_eq!(
        run["server_metrics"],
        json!([{"url": format!("{url}/metrics"), "scrapes": rows.len(), "failed": 0}]),
        "{stderr}"
    );
    let document: Value = serde_json::from_str(&report(&out, &["--json", "--slice", "2s"])).unwrap();
    let figures = &document["servers"][0]["figures"];
    assert_eq!(figures["prompt_tokens"]["total"], run["summary"]["tokens"]["input"].as_f64().unwrap(), "{figures}");
    assert_eq!(figures["generation_tokens"]["total"], 300.0);
    let most = |figure: ServerMetric, until: i64| {
        rows.iter().filter(|row| row.at < until).map(|row| row.figures[&figure]).fold(0.0, f64::max)
    };
    let whole = [most(ServerMetric::Running, i64::MAX), most(ServerMetric::Waiting, i64::MAX)];
    assert_eq!([&figures["running"]["max"], &figures["waiting"]["max"]], whole.map(Value::from).each_ref());
    let (slice, first) = (&document["slices"][0], most(ServerMetric::Waiting, 2_000_000_000));
    assert_eq!((&slice["to_s"], &slice["servers"][0]["figures"]["waiting"]["max"]), (&2.0.into(), &first.into()));
    let text = report(&out, &["--slice", "2s"]);
    // Those from the first start on, and the first one after the last end: the window of the figures.
    let first = requests.iter().map(|row| row.planned.unwrap_or(row.at)).min().unwrap().cast_signed();
    let after = rows.iter().map(|row| row.at).filter(|at| *at >= last_end).min().unwrap();
    let counted = rows.iter().filter(|row| (first..=after).contains(&row.at)).count();
    assert!(text.contains(&format!("servers      {url}/metrics: {counted} scrapes\n")), "{text}");
    assert!(text.contains("; the servers' figures cover "), "{text}");
    for (figure, cells) in [("running", ["2"].as_slice()), ("generated tokens", &["300"])] {
        let line = text.lines().find(|line| line.starts_with(figure)).unwrap_or_else(|| panic!("{text}"));
        assert!(cells.iter().all(|cell| line.split_whitespace().any(|word| word == *cell)), "{line}");
    }
    assert!(text.lines().any(|line| line.starts_with("from") && line.contains("waiting  running  KV usage")), "{text}");
    assert!(report(&out, &["--csv"]).contains(&format!("server={url}/metrics,generated tokens,tokens,total,300\n")));
    assert!(report(&out, &["--markdown"]).contains("| generated tokens |  |  |  | 300 |"));
    assert!(report(&out, &["--html"]).contains("<th scope=\"row\">generated tokens</th>"));
}

#[test]
fn a_missing_metrics_page_is_reported_once_and_stops_nothing() {
    let server = sim(Gap::from_millis(10), 8);
    let (folder, address) = (tempfile::tempdir().unwrap(), server.local_addr());
    let out = folder.path().join("run");
    let large =
        Upstream::answering(format!("HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n{}", "x".repeat(5 << 20)));
    let other = Upstream::answering("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nup 1\n");
    let pages = [
        "http://127.0.0.1:9/metrics".to_owned(),
        format!("http://{address}/none"),
        format!("http://{}", large.addr),
        format!("http://{}", other.addr),
    ];
    let mut flags = vec!["--rate", "20", "--arrivals", "constant", "--requests", "30", "--osl", "10"];
    flags.extend(pages.iter().flat_map(|page| ["--server-metrics", page]));
    let (run, stderr) = ended(load(address, &out, &[&flags[..], &["--header", "x-tenant: very-secret"]].concat()));
    assert_eq!(run["summary"]["outcomes"], json!({"success": 30}));
    let expected =
        ["cannot connect: ", "answered 404", "the page is larger than 4 MiB", "the page has no figure of a server"];
    for ((page, why), entry) in pages.iter().zip(expected).zip(run["server_metrics"].as_array().unwrap()) {
        assert!(entry["url"].as_str().unwrap().starts_with(page.as_str()), "{entry}");
        assert!(entry["first_failure"].as_str().unwrap().starts_with(why), "{entry}");
        assert!(entry["scrapes"] == 0 && entry["failed"].as_u64().unwrap() >= 3, "{entry}");
        let url = entry["url"].as_str().unwrap();
        assert_eq!(stderr.matches(&format!("note: no figures from {url} ")).count(), 1, "{stderr}");
    }
    assert!(other.heads().iter().all(|head| !head.contains("very-secret")), "only a target is told what requests are");
    assert!(other.heads()[0].starts_with("GET /metrics HTTP/1.1\r\n"), "{:?}", other.heads());
    assert_eq!(report(&out, &[]).matches("could not be scraped").count(), 4);
}

#[test]
fn a_signal_ends_the_scrapes_with_the_run_even_where_a_server_never_answers() {
    let server = sim(Gap::from_millis(20), 8);
    let (folder, address) = (tempfile::tempdir().unwrap(), server.local_addr());
    let out = folder.path().join("run");
    let silent = Upstream::start(|mut connection| {
        connection.request();
        connection.closed();
    });
    let pages = [format!("http://{address}"), format!("http://{}", silent.addr)];
    let flags = ["--rate", "20", "--duration", "2h", "--osl", "5"];
    let pages = ["--server-metrics", &pages[0], "--server-metrics", &pages[1]];
    let mut child = load(address, &out, &[&flags[..], &pages].concat()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    while scrapes_so_far(&out) < 3 {
        std::thread::sleep(Duration::from_millis(50));
    }
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && run["stopped"] == true, "{run}");
    let (_, rows) = scrapes(&out);
    let of = |server: usize| rows.iter().filter(move |row| row.server == server);
    let tokens = of(0).next_back().map(|row| row.figures[&ServerMetric::GenerationTokens]);
    assert_eq!(tokens, run["summary"]["tokens"]["output"].as_f64(), "the last row is of the end");
    let why: Vec<_> = of(1).map(|row| row.failed.clone().unwrap()).collect();
    assert!(!why.is_empty() && why.iter().all(|why| why.starts_with("no answer within")), "{why:?}");
}

/// Rows of servers that answered, while the run still writes.
fn scrapes_so_far(out: &Path) -> usize {
    match read(&out.join(SERVER_METRICS_FILE)) {
        Ok(Some((_, rows))) => rows.iter().filter(|row| row.failed.is_none()).count(),
        _ => 0,
    }
}

#[test]
fn a_queue_that_grows_and_requests_that_are_put_off_are_warnings() {
    let server = sim(Gap::from_millis(1), 8);
    let (folder, address) = (tempfile::tempdir().unwrap(), server.local_addr());
    let (out, url) = (folder.path().join("run"), format!("http://{address}"));
    let flags = ["--rate", "20", "--requests", "3", "--osl", "2", "--server-metrics", &url];
    ended(load(address, &out, &flags));
    assert!(!report(&out, &[]).contains("waited at"));
    let (header, _) = scrapes(&out);
    // The figures cover 50 s: the last response ends that late.
    let path = out.join("records.jsonl.zst");
    let records = TraceReader::open(&path).unwrap();
    let records_header = records.header().clone();
    let mut rows: Vec<_> = records.map(Result::unwrap).collect();
    rows[2].timing.ended = Some(50_000_000_000);
    rows[0].planned = Some(0);
    let mut records = TraceWriter::new(File::create(&path).unwrap(), &records_header).unwrap();
    rows.iter().for_each(|row| records.write(row).unwrap());
    records.finish().unwrap();
    let mut writer = ScrapesWriter::create(&out.join(SERVER_METRICS_FILE), &header).unwrap();
    for second in 0..48_u32 {
        let figures =
            [(ServerMetric::Waiting, f64::from(second)), (ServerMetric::Preemptions, f64::from(second / 24))].into();
        writer.write(&Scrape { at: i64::from(second) * 1_000_000_000, figures, ..Scrape::default() }).unwrap();
    }
    writer.finish().unwrap();
    let text = report(&out, &[]);
    let grew = format!("warning: more and more requests waited at {url}/metrics, 1.00 more each second: ");
    assert!(text.contains(&grew), "{text}");
    assert!(text.contains(&format!("warning: {url}/metrics put off 1 requests that it had begun")), "{text}");
    let document: Value = serde_json::from_str(&report(&out, &["--json"])).unwrap();
    let names: Vec<_> =
        document["warnings"].as_array().unwrap().iter().map(|warning| warning["warning"].clone()).collect();
    assert!(names.contains(&json!("queue_grew")) && names.contains(&json!("preempted")), "{names:?}");
}

#[test]
fn wrong_usage_names_the_flag_and_no_secret() {
    for (args, message) in [
        (
            ["--out", "x", "--server-metrics", "http://u:very-secret@h"],
            "--server-metrics: expected a URL without credentials",
        ),
        (["--seed", "1", "--server-metrics", "http://h"], "--out <DIR>"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
        command.args(["load", "--target", "http://127.0.0.1:9", "--rate", "1", "--requests", "1"]).args(args);
        let output = command.current_dir(tempfile::tempdir().unwrap().path()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(message) && !stderr.contains("very-secret"), "{stderr}");
    }
}
