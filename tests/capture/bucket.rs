//! A capture that goes to object storage: its layout, what a kill leaves, and what every verb reads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;
use streamgauge::trace_file::reader::TraceReader;
use tempfile::TempDir;

use crate::support::captured::{answer, run_with, run_without_capture, server, until};
use crate::support::client::chat;
use crate::support::proxy::TestProxy;

const CANARY: &str = "canary-secret-of-the-bucket";

fn streamgauge(words: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(words).envs(variables.iter().copied()).output().unwrap()
}

fn url(folder: &TempDir, prefix: &str) -> String {
    format!("file://{}/{prefix}", folder.path().display())
}

fn ask(proxy: &TestProxy, requests: usize) {
    for _ in 0..requests {
        proxy.client().send(chat(r#"{"model":"m","stream":true,"messages":[]}"#)).response();
    }
}

fn capturing(upstream: std::net::SocketAddr, capture: &str, spool: &Path, more: &[(&str, &str)]) -> TestProxy {
    let spool = spool.display().to_string();
    let settings = [("capture", capture), ("capture_spool", &*spool), ("workers", "1")];
    TestProxy::with(upstream, &settings.into_iter().chain(more.iter().copied()).collect::<Vec<_>>())
}

/// Stops a proxy, and waits for its uploads: a shutdown waits two seconds, and a disk that others fill can need longer.
fn stop(proxy: TestProxy, spool: &TempDir) {
    drop(proxy);
    until("the spool is empty", || segments(spool.path()).is_empty());
}

/// Files below a folder, from there, sorted.
fn files(folder: &Path) -> Vec<String> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for file in fs::read_dir(folder).into_iter().flatten() {
            let path = file.unwrap().path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut found = Vec::new();
    walk(folder, &mut found);
    let mut names: Vec<String> =
        found.iter().map(|path| path.strip_prefix(folder).unwrap().display().to_string()).collect();
    names.sort();
    names
}

fn segments(folder: &Path) -> Vec<String> {
    files(folder).into_iter().filter(|name| name.ends_with(".jsonl.zst") || name.ends_with(".parquet")).collect()
}

fn info(trace: &str) -> Value {
    let output = streamgauge(&["trace", "info", "--json", trace], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_closed_segment_goes_to_its_hour_and_every_verb_reads_the_prefix() {
    let (lake, spool) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let upstream = server(answer(2));
    let target = url(&lake, "captures/");
    let proxy = capturing(upstream.addr, &target, spool.path(), &[]);
    ask(&proxy, 3);
    stop(proxy, &spool);
    let stored = segments(lake.path());
    assert_eq!(stored.len(), 1, "{stored:?}");
    let parts: Vec<&str> = stored[0].split('/').collect();
    assert_eq!((parts.len(), parts[0]), (5, "captures"));
    assert!(parts[1].starts_with("dt=20") && parts[1].len() == 13 && parts[2].len() == 7, "{stored:?}");
    assert!(parts[2].starts_with("hour=") && parts[3].starts_with("instance="), "{stored:?}");
    let name: Vec<&str> = parts[4].strip_suffix(".jsonl.zst").unwrap().split('-').collect();
    assert_eq!((name.len(), name[0].len(), name[1], name[2].len()), (3, 16, "00000000", 16));
    let day = format!("{}captures/dt=20*/hour=*/", url(&lake, ""));
    for trace in [&*target, &*day, &*url(&lake, &stored[0])] {
        assert_eq!(info(trace)["requests"], 3, "{trace}");
    }
    let output = streamgauge(&["report", &target], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_start_uploads_what_a_killed_process_has_left_and_doubles_nothing() {
    let (lake, spool) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let upstream = server(answer(2));
    let flags = |target: &str| {
        [
            format!("--capture={target}"),
            format!("--capture-spool={}", spool.path().display()),
            "--capture-flush=10ms".into(),
        ]
    };
    let target = url(&lake, "c");
    let [first, second, third] = flags(&target);
    let mut proxy = run_without_capture(upstream.addr, &[&*first, &*second, &*third]);
    proxy.client().send(chat(r#"{"model":"m","stream":true,"messages":[]}"#)).response();
    until("a frame is in the spool", || {
        segments(spool.path()).iter().any(|name| fs::metadata(spool.path().join(name)).unwrap().len() > 0)
    });
    kill(proxy.pid(), Signal::SIGKILL).unwrap();
    proxy.child.wait().unwrap();
    assert_eq!((segments(lake.path()).len(), segments(spool.path()).len()), (0, 1), "the open segment stays");
    let proxy = capturing(upstream.addr, &target, spool.path(), &[]);
    until("the segment is in the bucket", || segments(lake.path()).len() == 1);
    ask(&proxy, 1);
    stop(proxy, &spool);
    assert_eq!(segments(lake.path()).len(), 2);
    assert_eq!(TraceReader::open(Path::new(&target)).unwrap().map(Result::unwrap).count(), 2);
}

#[test]
fn an_object_with_the_name_of_a_segment_is_never_replaced() {
    let (lake, spool) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let upstream = server(answer(2));
    let target = url(&lake, "c");
    let make = |lake: &TempDir| {
        let proxy = capturing(upstream.addr, &url(lake, "c"), spool.path(), &[]);
        ask(&proxy, 1);
        stop(proxy, &spool);
        segments(lake.path())
    };
    let stored = make(&lake);
    let bytes = fs::read(lake.path().join(&stored[0])).unwrap();
    // The answer to the upload was lost: the segment is in the spool and in the bucket.
    let name: Vec<&str> = stored[0].rsplit('/').next().unwrap().split('-').collect();
    let segment = spool.path().join(format!("{}-{}.jsonl.zst", name[1], name[0]));
    fs::write(&segment, &bytes).unwrap();
    stop(capturing(upstream.addr, &target, spool.path(), &[]), &spool);
    assert_eq!(segments(lake.path()), stored, "it is not stored twice");
    // Another object has the name.
    fs::write(lake.path().join(&stored[0]), "another").unwrap();
    fs::write(&segment, &bytes).unwrap();
    stop(capturing(upstream.addr, &target, spool.path(), &[]), &spool);
    let both = segments(lake.path());
    assert_eq!(both.len(), 2);
    assert_eq!(fs::read(lake.path().join(&stored[0])).unwrap(), b"another");
    let other = both.iter().find(|name| **name != stored[0]).unwrap();
    assert!(other.ends_with("-1.jsonl.zst") && fs::read(lake.path().join(other)).unwrap() == bytes, "{other}");
}

#[test]
fn a_kill_between_the_parquet_and_the_removal_of_its_frames_stores_the_rows_once() {
    let (made, upstream) = (TempDir::new().unwrap(), server(answer(2)));
    let earlier = crate::support::captured::proxy(upstream.addr, made.path(), &[]);
    ask(&earlier, 2);
    drop(earlier);
    let frames = made.path().join(&segments(made.path())[0]);
    for format in ["parquet", "jsonl"] {
        let (lake, spool) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let left = spool.path().join("00000007-20261121T101500Z");
        fs::copy(&frames, left.with_extension("jsonl.zst")).unwrap();
        let parquet = left.with_extension("parquet").display().to_string();
        let output =
            streamgauge(&["trace", "convert", frames.to_str().unwrap(), "--to=parquet", "--output", &parquet], &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        stop(capturing(upstream.addr, &url(&lake, "c"), spool.path(), &[("capture_format", format)]), &spool);
        assert_eq!(segments(lake.path()).len(), 1, "{format}: {:?}", segments(lake.path()));
        assert!(segments(lake.path())[0].ends_with(".parquet"), "{:?}", segments(lake.path()));
    }
}

#[test]
fn an_hour_that_is_over_gets_a_manifest_of_its_files() {
    let (lake, spool) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let upstream = server(answer(2));
    // A segment of an earlier hour, as a process leaves it that was down since.
    let folder = TempDir::new().unwrap();
    let earlier = crate::support::captured::proxy(upstream.addr, folder.path(), &[]);
    ask(&earlier, 2);
    drop(earlier);
    let segment = folder.path().join(&segments(folder.path())[0]);
    let bytes = fs::read(&segment).unwrap();
    fs::write(spool.path().join("00000007-20261121T101500Z.jsonl.zst"), &bytes).unwrap();
    drop(capturing(upstream.addr, &url(&lake, "c"), spool.path(), &[]));
    until("segment and manifest are in the bucket", || files(lake.path()).len() == 2);
    let stored = files(lake.path());
    let (manifest, data) = (&stored[1], &stored[0]);
    assert!(data.starts_with("c/dt=2026-11-21/hour=10/instance="), "{data}");
    assert!(manifest.contains("/_manifest-20261121T10Z-00000007-"), "{manifest}");
    let document: Value = serde_json::from_slice(&fs::read(lake.path().join(manifest)).unwrap()).unwrap();
    assert_eq!(document["hour"], "2026-11-21T10Z");
    assert_eq!((&document["rows"], &document["bytes"]), (&2.into(), &bytes.len().into()));
    assert_eq!(document["files"][0]["name"], data.rsplit('/').next().unwrap());
    assert_eq!(document["files"][0]["blake3"], blake3::hash(&bytes).to_hex().to_string());
    let schema = streamgauge(&["schema", "hour-manifest"], &[]).stdout;
    assert!(jsonschema::draft202012::is_valid(&serde_json::from_slice(&schema).unwrap(), &document));
    assert_eq!(info(&url(&lake, "c"))["requests"], 2, "a manifest is no segment");
}

#[test]
fn what_the_spool_cannot_hold_any_longer_is_lost_counted_and_logged() {
    let spool = TempDir::new().unwrap();
    let upstream = server(answer(2));
    // The port has no listener, so every attempt fails.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let folder = TempDir::new().unwrap();
    let rows = crate::support::captured::proxy(upstream.addr, folder.path(), &[]);
    ask(&rows, 2);
    drop(rows);
    let bytes = fs::read(folder.path().join(&segments(folder.path())[0])).unwrap();
    let count = (1_048_576 / bytes.len()) + 2;
    for number in 0..count {
        fs::write(spool.path().join(format!("{number:08}-20261121T101500Z.jsonl.zst")), &bytes).unwrap();
    }
    let flags = [
        "--capture=s3://bucket/prefix".to_owned(),
        format!("--capture-spool={}", spool.path().display()),
        "--capture-keep-bytes=1M".to_owned(),
    ];
    let variables = [
        ("AWS_ACCESS_KEY_ID", CANARY),
        ("AWS_SECRET_ACCESS_KEY", CANARY),
        ("AWS_ENDPOINT_URL", &*format!("http://{free}")),
    ];
    let flags: Vec<&str> = flags.iter().map(|flag| &**flag).collect();
    let proxy = run_with(&format!("http://{}", upstream.addr), &[], &flags, &variables);
    let metric = |name: &str| -> u64 {
        let page = proxy.page("/metrics");
        let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {page}"));
        line.split(' ').nth(1).unwrap().parse::<f64>().unwrap() as u64
    };
    let dropped = "streamgauge_capture_records_total{outcome=\"dropped\",reason=\"spool\"}";
    until("segments are lost", || metric(dropped) > 0);
    until("an attempt has failed", || metric("streamgauge_capture_uploads_total{outcome=\"failed\"}") > 0);
    // Two requests for each segment that is gone.
    until("every loss is counted", || metric(dropped) == 2 * (count - segments(spool.path()).len()) as u64);
    until("the loss is logged", || proxy.log().contains("a segment is lost before its upload"));
    let pages = [proxy.page("/config"), proxy.page("/metrics"), proxy.log()].concat();
    assert!(pages.contains("s3://bucket/prefix") && !pages.contains(CANARY), "{pages}");
}

#[test]
fn credentials_reach_no_log_no_page_and_no_error() {
    let with_user = format!("s3://AKIA:{CANARY}@bucket/prefix");
    for words in [
        vec!["trace", "info", &*with_user],
        vec!["proxy", "--check", "--upstream=http://127.0.0.1:1", "--capture", &*with_user],
    ] {
        let output = streamgauge(&words, &[]);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!output.status.success() && !text.contains(CANARY), "{text}");
        assert!(text.contains("remedy: give credentials in the environment"), "{text}");
    }
    // The port has no listener, so every attempt fails.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let variables = [
        ("AWS_ACCESS_KEY_ID", CANARY),
        ("AWS_SECRET_ACCESS_KEY", CANARY),
        ("AWS_ENDPOINT_URL", &*format!("http://{free}")),
        ("AWS_ALLOW_HTTP", "true"),
    ];
    let output = streamgauge(&["trace", "info", "s3://bucket/prefix"], &variables);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("cannot connect to {free}")) && !stderr.contains(CANARY), "{stderr}");
    let output = streamgauge(&["doctor", "--upstream=http://127.0.0.1:1", "--capture=s3://bucket/prefix"], &variables);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let finding = stdout.lines().find(|line| line.contains(" bucket ")).unwrap_or_else(|| panic!("{stdout}"));
    assert!(finding.contains(&format!("cannot connect to {free}")) && !stdout.contains(CANARY), "{stdout}");
}

/// The recorded captures of two pods, as a bucket has them.
fn lake_of_two_pods() -> TempDir {
    let lake = TempDir::new().unwrap();
    for pod in ["pod-a", "pod-b"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/captures").join(pod);
        let target = lake.path().join("c/dt=2026-11-24/hour=14").join(format!("instance={pod}"));
        fs::create_dir_all(&target).unwrap();
        let name = "20261124T143620Z-00000000-0123456789abcdef.jsonl.zst";
        fs::copy(folder.join(&segments(&folder)[0]), target.join(name)).unwrap();
    }
    lake
}

#[test]
fn every_verb_reads_all_instances_of_a_prefix_and_of_a_pattern() {
    let (lake, out) = (lake_of_two_pods(), TempDir::new().unwrap());
    let upstream = server(answer(2));
    let (target, twin) = (format!("http://{}", upstream.addr), out.path().join("twin.json").display().to_string());
    for (number, trace) in [url(&lake, "c"), url(&lake, "c/dt=2026-11-2*/")].iter().enumerate() {
        let stdout_of = |words: &[&str]| {
            let words: Vec<&str> = words.iter().map(|word| if *word == "TRACE" { &**trace } else { word }).collect();
            let output = streamgauge(&words, &[]);
            assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        // A header and 160 rows.
        for words in [
            &["trace", "convert", "TRACE"][..],
            &["trace", "cut", "TRACE", "--from", "0s"],
            &["trace", "scale", "TRACE", "--rate", "1x"],
            &["trace", "shift", "TRACE", "--by", "1h"],
            &["trace", "spread", "TRACE", "--grid", "1s"],
            &["trace", "anonymize", "TRACE"],
            &["trace", "merge", "TRACE"],
        ] {
            assert_eq!(stdout_of(words).lines().count(), 161, "{words:?} {trace}");
        }
        let run = out.path().join(format!("run-{number}")).display().to_string();
        let fast = ["--as-fast-as-possible", "--concurrency", "8", "--prompt-overhead", "0", "--no-audit"];
        let replay = ["replay", "TRACE", "--target", &*target, "--out", &*run, "--json"];
        for (words, figure) in [
            (&["trace", "info", "TRACE", "--json"][..], "\"requests\": 160,"),
            (&["trace", "diff", "TRACE", "TRACE"], "requests 160 160"),
            (&["trace", "reuse", "TRACE", "--json"], "\"all\": { \"requests\": 160,"),
            (&["trace", "reuse", "TRACE"], "pods 2 "),
            (&["report", "TRACE", "--json"], "\"requests\": 160,"),
            // The share of prompt tokens that both captures together have from the cache.
            (&["compare", "TRACE", "TRACE", "--json"], "\"before\": 0.4500430133956003,"),
            (&["twin", "fit", "TRACE", "-o", &twin], "pod-a 127.0.0.1:18001: 96 requests"),
            (&["twin", "run", &twin, "--traffic", "TRACE", "--json"], "\"requests\": 160,"),
            (&["plan", "--twin", &twin, "--traffic", "TRACE", "--slo", "chat: ttft<=10s"], ": 160 requests in "),
            (&[&replay[..], &fast].concat(), "\"sent\": 160,"),
        ] {
            let text = stdout_of(words).split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(figure), "{words:?} {trace}: no {figure} in {text}");
        }
    }
}
