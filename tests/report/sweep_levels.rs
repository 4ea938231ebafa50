//! Levels of a sweep that stand out, and levels compared with each other, on rows with known values.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use streamgauge::measure::record::{CountSource, Outcome};
use streamgauge::measure::server_metrics::ServerMetric;
use streamgauge::trace_file::row::TraceEntry;
use streamgauge::trace_file::server_metrics::Scrape;

use super::diagnosis::write_scrapes;
use super::results::{near, prompt, run, success};

const SECOND: i64 = 1_000_000_000;

/// One run of a level.
struct LevelRun {
    level: Value,
    rows: Vec<TraceEntry>,
    run_file: Value,
    scrapes: Vec<Scrape>,
}

fn level_run(level: Value, rows: Vec<TraceEntry>) -> LevelRun {
    LevelRun { level, rows, run_file: json!({}), scrapes: Vec::new() }
}

/// The level of a rate, with its default name.
fn open(rate: u32) -> Value {
    json!({"name": format!("rate-{rate}"), "rate": f64::from(rate)})
}

/// `count` requests, one every `gap` ms: TTFT of `ttft` ms, and 10 tokens until `e2e` ms.
fn requests(count: u64, gap: u64, [ttft, e2e]: [u64; 2], change: impl Fn(u64, &mut TraceEntry)) -> Vec<TraceEntry> {
    let row = |n: u64| {
        let mut row = success(n * gap, n * gap, ttft, e2e, &[((e2e - ttft) / 9, Some(1)); 9]);
        (row.output_tokens, row.output_source) = (Some(10), Some(CountSource::Usage));
        row.timing.first_tokens = Some(1);
        row.prompt = prompt(100, None);
        change(n, &mut row);
        row
    };
    (0..count).map(row).collect()
}

fn sweep(folder: &Path, flags: &Value, all: &[LevelRun]) -> PathBuf {
    let write = |(number, of): (usize, &LevelRun)| {
        let place = format!("runs/{number}");
        let path = run(&folder.join(&place), &of.rows, 0, &of.run_file);
        if !of.scrapes.is_empty() {
            write_scrapes(&path, &of.scrapes);
        }
        json!({"folder": place, "level": of.level, "target": 0, "pass": 1, "sustained": false, "seed": 1, "digest": ""})
    };
    let runs: Vec<Value> = all.iter().enumerate().map(write).collect();
    let mut levels: Vec<&Value> = all.iter().map(|of| &of.level).collect();
    levels.dedup();
    let plan = json!({"verb": "load", "targets": [["http://h"]], "header_names": [], "flags": flags, "levels": levels});
    let file = json!({"streamgauge_sweep": 1, "version": "0", "plan": plan, "runs": runs});
    fs::write(folder.join("sweep.json"), file.to_string()).unwrap();
    folder.to_owned()
}

/// The JSON and the text of a sweep's report.
fn report(flags: &Value, all: &[LevelRun], args: &[&str]) -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = sweep(folder.path(), flags, all);
    let [json, text] = ["--json", "--plain"].map(|format| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
        let output = command.arg("report").arg(&path).arg(format).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    });
    (serde_json::from_str(&json).unwrap(), text)
}

/// The cells of the line that begins with `first`, and of the header of its table.
fn row<'a>(text: &'a str, first: &str) -> Vec<&'a str> {
    let line = text.lines().find(|line| line.starts_with(first)).unwrap_or_else(|| panic!("no {first} in {text}"));
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

/// 400 requests a quarter of which are outstanding at the end.
fn growing(n: u64, row: &mut TraceEntry) {
    row.in_flight = Some((n / 4) as u32);
}

#[test]
fn a_saturated_or_unmeasured_level_is_never_the_knee_or_in_the_front() {
    // Power in requests per second and second of E2E: 100, 200, and 80 at last. The saturated level would have 400.
    let steady = |rate: u32, e2e| level_run(open(rate), requests(400, 1_000 / u64::from(rate), [10, e2e], |_, _| {}));
    let saturated = level_run(open(40), requests(400, 25, [10, 100], growing));
    let invalid = json!({"valid": false, "invalid_because": ["requests were sent late"]});
    let unmeasured = LevelRun { run_file: invalid, ..steady(50, 100) };
    let levels = [steady(10, 100), steady(20, 100), saturated, unmeasured, steady(100, 1_000)];
    let (json, text) = report(&json!({}), &levels, &["--slo", "chat: ttft<=500ms"]);
    let of = |key: &str| json["levels"].as_array().unwrap().iter().map(|of| of[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("knee"), [false, true, false, false, false], "{text}");
    assert_eq!(of("front"), [false, true, false, false, true], "{text}");
    assert_eq!(of("meets"), [json!(true), json!(true), json!(false), Value::Null, json!(true)], "{text}");
    assert_eq!(of("not_measured"), [false, false, false, true, false]);
    assert_eq!(of("verdict")[2], "saturated");
    assert!(text.contains("\nknee         rate-20: "), "{text}");
    assert!(text.contains("\nnot measured rate-50: requests were sent late\n"), "{text}");
    // Above an unmeasured level the knee may still lie: it bounds none.
    let [low, middle, _, unmeasured, _] = levels;
    let (json, text) = report(&json!({}), &[low, middle, unmeasured], &[]);
    assert!(
        json["levels"].as_array().unwrap().iter().all(|of| of["knee"] == false) && !text.contains("knee"),
        "{text}"
    );
}

#[test]
fn a_warm_level_is_paired_with_the_cold_one_of_its_load_with_the_difference_and_the_evictions() {
    let cache = |name: &str, cache: &str, rate: f64| json!({"name": name, "cache": cache, "rate": rate});
    let preempted = |total: f64| {
        let scrape = |second: i64, value: f64| Scrape {
            at: second * SECOND,
            figures: [(ServerMetric::Preemptions, value)].into(),
            ..Scrape::default()
        };
        vec![scrape(0, 0.0), scrape(10, total)]
    };
    let cold = LevelRun {
        scrapes: preempted(9.0),
        ..level_run(
            cache("cold", "cold", 10.0),
            requests(400, 100, [200, 290], |_, row| row.prompt = prompt(100, Some(0))),
        )
    };
    // Of a shared prefix of 80 tokens, 40 are cached at least: 50 requests have none, and one has 39.
    let cached = |n: u64| match n {
        0..50 => 0,
        50 => 39,
        51 => 40,
        _ => 80,
    };
    let rows = requests(400, 100, [50, 140], |n, row| row.prompt = prompt(100, Some(cached(n))));
    let warm = LevelRun { scrapes: preempted(2.0), ..level_run(cache("warm", "warm", 10.0), rows.clone()) };
    // Another load has no pair.
    let other = level_run(cache("other", "warm", 20.0), rows);
    let levels = [cold, warm, other];
    let (json, text) = report(&json!({"shared-prefix": ["80"]}), &levels, &[]);
    let pairs = json["cache_pairs"].as_array().unwrap();
    assert_eq!((pairs.len(), &pairs[0]["cold"], &pairs[0]["warm"]), (1, &json!("cold"), &json!("warm")));
    assert_eq!(pairs[0]["evicted_prefixes"], json!([51, 400]));
    let share = (39.0 + 40.0 + 348.0 * 80.0) / 40_000.0;
    for (figure, name, cold, warm) in [
        (0, "TTFT p50", 200.0, 50.0),
        (1, "TTFT p99", 200.0, 50.0),
        (2, "E2E p50", 290.0, 140.0),
        (3, "E2E p99", 290.0, 140.0),
        (4, "prompt tokens from the cache", 0.0, share),
        (5, "preemptions", 9.0, 2.0),
    ] {
        let figure = &pairs[0]["figures"][figure];
        assert_eq!(figure["figure"], name);
        near(figure["cold"].as_f64().unwrap(), cold);
        near(figure["warm"].as_f64().unwrap(), warm);
    }
    let levels_evicted = json["levels"].as_array().unwrap().iter().map(|of| of["evicted_prefixes"].clone());
    assert_eq!(levels_evicted.collect::<Vec<_>>(), [Value::Null, json!(51), json!(51)]);
    assert_eq!(row(&text, "warm against cold"), ["warm against cold", "cold", "warm", "difference"]);
    assert_eq!(row(&text, "TTFT p50"), ["TTFT p50", "200ms", "50.0ms", "-75.0 %"]);
    assert_eq!(row(&text, "prompt tokens from")[3], "+69.8 pt");
    assert_eq!(row(&text, "preemptions"), ["preemptions", "9", "2", "-7"]);
    assert_eq!(row(&text, "requests whose prefix")[1..], ["51 of 400"]);
    let (json, _) = report(&json!({}), &levels, &[]);
    assert_eq!(json["cache_pairs"][0]["evicted_prefixes"], Value::Null, "no prefix is shared");
}

#[test]
fn the_columns_of_the_servers_are_the_fullest_cache_and_the_mean_gpu_of_all_of_them() {
    let scrape = |second: i64, server: usize, kv: f64, gpu: f64| Scrape {
        at: second * SECOND,
        server,
        figures: [(ServerMetric::KvUsage, kv), (ServerMetric::GpuUtilization, gpu)].into(),
        ..Scrape::default()
    };
    // Means: a cache of 0.3 and 0.625, GPUs of 0.9 and 0.6.
    let two = vec![scrape(0, 0, 0.2, 0.8), scrape(0, 1, 0.5, 0.5), scrape(1, 0, 0.4, 1.0), scrape(1, 1, 0.75, 0.7)];
    let rows = |gap| requests(400, gap, [10, 100], |_, _| {});
    let scraped = LevelRun { scrapes: two, ..level_run(open(10), rows(100)) };
    let (json, text) = report(&json!({}), &[scraped, level_run(open(20), rows(50))], &[]);
    let servers = &json["levels"][0]["servers"];
    assert_eq!(servers["kv_usage"], 0.625);
    near(servers["gpu_utilization"].as_f64().unwrap(), 0.75);
    assert_eq!(json["levels"][1].get("servers"), None);
    let column = |name: &str, level: &str| {
        let at = row(&text, "offered").iter().position(|of| *of == name).unwrap();
        row(&text, level)[at]
    };
    assert_eq!([column("KV usage", "10/s"), column("GPU", "10/s")], ["62.5 %", "75.0 %"], "{text}");
    assert_eq!([column("KV usage", "20/s"), column("GPU", "20/s")], ["-", "-"], "{text}");
    let (_, text) = report(&json!({}), &[level_run(open(20), rows(50))], &[]);
    let columns = row(&text, "offered");
    assert!(!columns.contains(&"KV usage") && !columns.contains(&"GPU"), "no server was scraped: {text}");
}

#[test]
fn the_points_to_operate_at_and_the_peak_and_the_collapse_are_named() {
    let all = |_: u64, _: &mut TraceEntry| {};
    let level = |rate: u32, times: [u64; 2], change: &dyn Fn(u64, &mut TraceEntry)| {
        level_run(open(rate), requests(400, 1_000 / u64::from(rate), times, change))
    };
    // Three of four fail at 40/s.
    let mostly_fails = |n: u64, row: &mut TraceEntry| {
        if n % 4 != 3 {
            (row.outcome, row.status) = (Some(Outcome::Failed), Some(500));
        }
    };
    let levels = [
        level(1, [10, 100], &all),
        level(4, [10, 190], &all),
        level(10, [10, 1_000], &all),
        level(20, [10, 1_000], &growing),
        level(40, [10, 1_000], &mostly_fails),
    ];
    let (json, text) = report(&json!({}), &levels, &["--slo", "chat: e2e<=2s"]);
    let points: Vec<(&str, &str)> = json["operating_points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| (of["kind"].as_str().unwrap(), of["level"].as_str().unwrap()))
        .collect();
    let expected = [("user", "rate-1"), ("balanced", "rate-4"), ("cost", "rate-10"), ("peak", "rate-20")];
    assert_eq!((&points[..4], points[4]), (&expected[..], ("collapse", "rate-40")), "{text}");
    // 4,000 tokens until the end of the last of 400 requests; at 40/s 1,000 of them.
    let tokens = |point: usize| json["operating_points"][point]["output_tokens_per_second"].as_f64().unwrap();
    near(tokens(1), 4_000.0 / (399.0 * 0.25 + 0.19));
    near(tokens(3), 4_000.0 / (399.0 * 0.05 + 1.0));
    near(tokens(4), 1_000.0 / (399.0 * 0.025 + 1.0));
    near(json["operating_points"][0]["user_tokens_per_second"].as_f64().unwrap(), 100.0);
    for line in [
        "for users    rate-1: 10.0 tok/s, 100 for a user",
        "balanced     rate-4: 40.0 tok/s, 50.0 for a user",
        "peak         rate-20: 191 tok/s\n",
        "collapse     rate-40: only 91.1 tok/s\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn a_closed_loop_is_on_the_curve_of_the_open_ones_with_the_latency_that_it_hid() {
    // E2E is the gap, so that 400 requests take 400 gaps, and the rate is exact.
    let of = |level: Value, gap: u64, ttft: u64| level_run(level, requests(400, gap, [ttft, gap], |_, _| {}));
    let closed = |slots: u32, gap: u64, ttft: u64| {
        let level = json!({"name": format!("concurrency-{slots}"), "concurrency": slots});
        LevelRun { run_file: json!({"closed_loop": true}), ..of(level, gap, ttft) }
    };
    let levels =
        [of(open(1), 1_000, 100), of(open(2), 500, 300), closed(1, 625, 120), closed(2, 800, 400), closed(4, 250, 130)];
    let (json, text) = report(&json!({}), &levels, &[]);
    assert_eq!(json["loop_curves"].as_array().unwrap().len(), 1);
    let curve = &json["loop_curves"][0];
    assert_eq!(curve["metric"], "ttft_from_planned");
    let points = curve["points"].as_array().unwrap();
    let names: Vec<&str> = points.iter().map(|of| of["level"].as_str().unwrap()).collect();
    assert_eq!(names, ["rate-1", "concurrency-2", "concurrency-1", "rate-2", "concurrency-4"], "by throughput");
    assert_eq!((&points[2]["is_closed"], &points[2]["p99"]), (&json!(true), &json!(120.0)));
    // 1.6 requests/s: 100 ms + 0.6 · 200 ms.
    near(points[2]["requests_per_second"].as_f64().unwrap(), 1.6);
    near(points[2]["open_p99"].as_f64().unwrap(), 220.0);
    assert_eq!((points[0].get("open_p99"), points[4].get("open_p99")), (None, None));
    let line = |level: &str| {
        let table = text.split_once("\nopen and closed").unwrap().1;
        row(table, level)[1..].iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(line("concurrency-1"), ["closed", "1.60", "120ms", "220ms", "100ms (1.8 x)"], "{text}");
    assert_eq!(line("concurrency-2"), ["closed", "1.25", "400ms", "150ms", "nothing"], "{text}");
    assert_eq!(line("concurrency-4"), ["closed", "4.00", "130ms", "-", "-"], "beyond the open levels: {text}");
}
