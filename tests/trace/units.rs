//! Detection of units in Mooncake's fields (milliseconds or seconds, blocks of 16 or 512 tokens), which every verb
//! reports.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn streamgauge(args: &[&str]) -> Output {
    let root = env!("CARGO_MANIFEST_DIR");
    Command::new(env!("CARGO_BIN_EXE_streamgauge")).args(args).current_dir(root).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A file of rows at these times, as they are written, with prompts of 1,000 tokens in blocks of that size.
fn file(folder: &TempDir, name: &str, times: impl Iterator<Item = String>, block: u32) -> String {
    let ids: Vec<u32> = (0..1_000_u32.div_ceil(block)).collect();
    let mut text = String::new();
    for at in times {
        writeln!(text, "{{\"timestamp\": {at}, \"input_length\": 1000, \"output_length\": 9, \"hash_ids\": {ids:?}}}")
            .unwrap();
    }
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Result of `trace info` for a file: its span in seconds, its warnings, and its notes.
fn info(path: &str) -> (f64, Vec<String>, String) {
    let done = streamgauge(&["trace", "info", path, "--json"]);
    let info: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{}", stderr(&done)));
    let warnings = info["warnings"].as_array().unwrap().iter();
    let warnings = warnings.map(|warning| warning["warning"].as_str().unwrap().to_owned()).collect();
    (info["span_s"].as_f64().unwrap(), warnings, stderr(&done))
}

#[test]
fn milliseconds_in_blocks_of_16_and_seconds_in_blocks_of_512_are_detected() {
    let folder = TempDir::new().unwrap();
    let millis = file(&folder, "m.jsonl", (0..200).map(|n| (n * 700).to_string()), 16);
    let (span, warnings, notes) = info(&millis);
    assert_eq!((span.round(), warnings.len()), (139.0, 0));
    assert!(notes.contains("is taken as mooncake") && notes.contains("blocks of 16 tokens"), "{notes}");
    let seconds = file(&folder, "s.jsonl", (0..200).map(|n| format!("{:.1}", f64::from(n) * 0.7)), 512);
    let (span, warnings, notes) = info(&seconds);
    assert_eq!((span.round(), warnings.len()), (139.0, 0));
    assert!(notes.contains("is taken as timed_trace") && notes.contains("blocks of 512 tokens"), "{notes}");
}

#[test]
fn a_fraction_that_only_later_rows_have_is_found_in_the_whole_file() {
    let folder = TempDir::new().unwrap();
    // Whole seconds for the first half of a megabyte and more, fractions after that, and one request in two seconds.
    let times = (0..8_000).map(|n| if n < 4_000 { (n * 2).to_string() } else { format!("{}.5", n * 2) });
    let path = file(&folder, "t.jsonl", times, 16);
    let length = std::fs::metadata(&path).unwrap().len();
    assert!(length > 1 << 20, "{length}");
    let (span, warnings, notes) = info(&path);
    assert_eq!((span.round(), warnings.len()), (15_999.0, 0), "{notes}");
    let packed = format!("{path}.zst");
    std::fs::write(&packed, zstd::encode_all(std::fs::read(&path).unwrap().as_slice(), 1).unwrap()).unwrap();
    assert_eq!(info(&packed).0.round(), 15_999.0);
}

#[test]
fn what_we_write_is_read_again_in_its_own_unit_whatever_its_blocks_and_its_rate() {
    let folder = TempDir::new().unwrap();
    for (block, step) in [(16, 20), (16, 400_000), (512, 20), (512, 400_000)] {
        let source = file(&folder, "m.jsonl", (0..100).map(|n| (n * step).to_string()), block);
        for format in ["mooncake", "timed_trace"] {
            let out = folder.path().join("out.jsonl").to_str().unwrap().to_owned();
            let convert = ["trace", "convert", &source, "--from", "mooncake", "--to", format, "-o", &out];
            assert!(streamgauge(&convert).status.success());
            let text = std::fs::read_to_string(&out).unwrap();
            let second: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
            assert_eq!(second["timestamp"].is_f64(), format == "timed_trace", "{text}");
            let (span, _, notes) = info(&out);
            assert!(notes.contains(&format!("is taken as {format}")), "{notes}");
            assert!((span - f64::from(99 * step) / 1e3).abs() < 1e-6, "{format} {block} {step}: {span}");
        }
    }
}

#[test]
fn an_absurd_rate_is_a_warning_and_the_format_can_be_named() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "t.jsonl", (0..50).map(|n| n.to_string()), 512);
    let named = |format| {
        let done = streamgauge(&["trace", "info", &path, "--input-format", format]);
        String::from_utf8(done.stdout).unwrap()
    };
    let (fast, plausible) = (named("mooncake"), named("timed_trace"));
    let expected = "warning: 1020 requests per second are more than any server has; are the times of another unit?\n  \
                    advice: name the format with --input-format, which decides the unit";
    assert!(fast.contains(expected), "{fast}");
    assert!(!plausible.contains("another unit"), "{plausible}");
}

#[test]
fn replay_load_and_sweep_report_the_detected_units_and_accept_others() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "t.jsonl", (0..50).map(|n| n.to_string()), 512);
    let server = streamgauge::sim::SimServer::bind(
        streamgauge::sim::SimOptions::default(),
        std::net::SocketAddr::from(([127, 0, 0, 1], 0)),
    );
    let server = server.unwrap().spawn().unwrap();
    let target = format!("--target=http://{}", server.local_addr());
    let quick = ["--no-audit", "--prompt-overhead=0", "--max-lag=1h", &target];
    let stderr_of = |verb: &str, args: &[&str]| stderr(&streamgauge(&[&[verb], args, &quick].concat()));
    let replayed = stderr_of("replay", &[&path, "--as-fast-as-possible", "--concurrency=4", "--duration=100ms"]);
    assert!(replayed.contains("t.jsonl is taken as mooncake (rows with"), "{replayed}");
    assert!(replayed.contains("warning: 1020 requests per second are more"), "{replayed}");
    let named = ["--input-format=timed_trace", "--block-size=1000"];
    let short = ["--as-fast-as-possible", "--concurrency=4", "--duration=100ms"];
    let replayed = stderr_of("replay", &[&[&path[..]], &named[..], &short[..]].concat());
    assert!(replayed.contains("t.jsonl is taken as timed_trace; times in seconds; blocks of 1000"), "{replayed}");
    assert!(!replayed.contains("warning: 1020"), "{replayed}");
    let lengths = ["--lengths", &path, "--concurrency=1", "--requests=1"];
    let loaded = stderr_of("load", &[&lengths[..], &named[..]].concat());
    assert!(loaded.contains("t.jsonl is taken as timed_trace; times in seconds; blocks of 1000"), "{loaded}");
    let out = folder.path().join("sweep").to_str().unwrap().to_owned();
    let swept =
        stderr_of("sweep", &[&[&path[..], "--rates=50", "--duration=100ms", "--out", &out], &named[..]].concat());
    assert!(swept.contains("t.jsonl is taken as timed_trace; times in seconds; blocks of 1000"), "{swept}");
    assert!(Path::new(&out).join("sweep.json").is_file());
}
