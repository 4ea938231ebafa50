//! Reports of sweeps, and two sweeps compared, on records with known values.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::plan::write_run;

fn streamgauge(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_streamgauge")).args(args).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = streamgauge(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// 400 TTFTs of `base` to `base` + 19 ms, in an order that repeats every 20 requests.
fn ttfts(base: u64) -> impl Iterator<Item = u64> {
    (0..400_u64).map(move |number| base + number * 7 % 20)
}

/// A sweep of levels, each with its passes of (name, base of the TTFTs).
fn sweep(folder: &Path, levels: &[Value], runs: &[(&str, u32, u64)]) -> PathBuf {
    let run = |(level, pass, base): &(&str, u32, u64)| {
        let place = format!("runs/{level}-{pass}");
        write_run(&folder.join(&place), 50, ttfts(*base), &json!({}));
        let level = levels.iter().find(|of| of["name"] == *level).unwrap();
        json!({"folder": place, "level": level, "target": 0, "pass": pass, "sustained": false, "seed": 1, "digest": ""})
    };
    let runs: Vec<Value> = runs.iter().map(run).collect();
    let plan = json!({"verb": "load", "targets": [["http://h"]], "header_names": [], "flags": {}, "levels": levels});
    let file = json!({"streamgauge_sweep": 1, "version": "0", "plan": plan, "runs": runs});
    fs::write(folder.join("sweep.json"), file.to_string()).unwrap();
    folder.to_owned()
}

#[test]
fn an_expectation_is_confirmed_refuted_or_undecided_and_the_record_states_what_next() {
    let folder = tempfile::tempdir().unwrap();
    let levels = [
        json!({"name": "base", "rate": 20.0, "baseline": true, "hypothesis": "as today"}),
        json!({"name": "alike", "rate": 20.0, "flags": {"isl": ["9"]}, "expect": "ttft.p95 < baseline + 10%"}),
        json!({"name": "slower", "rate": 20.0, "flags": {"isl": ["99"]}, "expect": "ttft.p95 < baseline + 10%"}),
        json!({"name": "alone", "rate": 20.0, "flags": {"isl": ["5"]}, "expect": "ttft.p95<=200ms"}),
        json!({"name": "missing", "rate": 20.0, "flags": {"isl": ["6"]}, "expect": "ttft.p95 < baseline"}),
    ];
    let runs = [("base", 1, 100), ("alike", 1, 101), ("slower", 1, 150), ("alone", 1, 300)];
    let path = sweep(folder.path(), &levels, &runs);
    let shown = path.to_str().unwrap();
    let report: Value = serde_json::from_str(&stdout(&["report", shown, "--json"])).unwrap();
    let verdicts: Vec<(&str, &str)> = report["expectations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| (of["level"].as_str().unwrap(), of["verdict"].as_str().unwrap()))
        .collect();
    let expected = [("alike", "confirmed"), ("slower", "refuted"), ("alone", "refuted"), ("missing", "undecided")];
    assert_eq!(verdicts, expected, "{}", report["expectations"]);
    let text = stdout(&["report", shown]);
    assert!(text.contains("\nexpectation  alike: ttft.p95 < baseline + 10%: confirmed ("), "{text}");
    let record = stdout(&["report", shown, "--markdown"]);
    for line in [
        "## Decision record: ",
        "### What was tried",
        "\n- base (baseline) at 20/s: as today",
        "\n- slower at 20/s; expected: ttft.p95 < baseline + 10%",
        "### What was learned",
        "\n- alone: ttft.p95<=200ms: REFUTED (ttft.p95<=200ms is 318ms)",
        "### What next",
        "\n- find out why slower is not as expected, and state a new hypothesis",
        "\n- run missing, which has no result yet",
    ] {
        assert!(record.replace('\\', "").replace("&lt;", "<").contains(line), "{line}: {record}");
    }
}

#[test]
fn two_sweeps_are_compared_level_by_level_with_their_passes_as_runs() {
    let folder = tempfile::tempdir().unwrap();
    let level = |rate: f64| json!({"name": format!("rate-{rate}"), "rate": rate});
    let levels = [level(10.0), level(20.0), level(40.0)];
    let three = |name: &'static str, base: u64| (1..=3).map(move |pass| (name, pass, base + u64::from(pass % 2)));
    let before: Vec<_> = three("rate-10", 100).chain(three("rate-20", 100)).chain([("rate-40", 1, 100)]).collect();
    let after: Vec<_> = three("rate-10", 100).chain(three("rate-20", 150)).collect();
    let [before, after] = [("before", before), ("after", after)].map(|(name, runs)| {
        let folder = folder.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        sweep(&folder, &levels, &runs)
    });
    let (before, after) = (before.to_str().unwrap(), after.to_str().unwrap());
    let report: Value = serde_json::from_str(&stdout(&["compare", "--json", before, "--", after])).unwrap();
    assert_eq!((&report["winner"], &report["unpaired"]), (&json!("before"), &json!(["rate-40"])));
    let verdict = |at: usize| {
        let of = &report["levels"][at];
        (
            of["level"].as_str().unwrap(),
            of["comparison"]["method"].as_str().unwrap(),
            of["comparison"]["verdict"].clone(),
        )
    };
    let (name, method, worse) = verdict(1);
    assert_eq!((name, method, worse["verdict"].as_str().or(worse.as_str())), ("rate-20", "runs", Some("worse")));
    assert_ne!(verdict(0).2, worse);
    let fails = streamgauge(&["compare", "--fail-if", "ttft.p95 > +5%", before, "--", after]);
    assert_eq!(fails.status.code(), Some(1), "{}", String::from_utf8_lossy(&fails.stdout));
    let text = stdout(&["compare", before, after]);
    assert!(
        text.contains("level        rate-20\n") && text.contains("\nwinner       before: after is worse"),
        "{text}"
    );
    let page = stdout(&["compare", "--html", before, "--", after]);
    for part in ["<!doctype html>", "before: after is worse", "rate-40: one side has no valid run", "Level rate-20"] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page.matches("data-kind=\"forest\"").count(), 2, "a chart of each level that both have");
    let wrong = streamgauge(&["compare", before, &format!("{after}/runs/rate-10-1")]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("compare two sweeps, A -- B, or name runs of one load"));
}

#[test]
fn a_sweep_is_judged_by_any_percentile_in_the_language_of_find_max() {
    let folder = tempfile::tempdir().unwrap();
    let level = |rate: f64| json!({"name": format!("rate-{rate}"), "rate": rate});
    let path = sweep(folder.path(), &[level(10.0), level(20.0)], &[("rate-10", 1, 100), ("rate-20", 1, 150)]);
    let shown = path.to_str().unwrap();
    // TTFTs are 100 to 119 ms and 150 to 169 ms, each 20 times of 400.
    let code = |condition: &str| streamgauge(&["report", shown, "--fail-if", condition]).status.code();
    assert_eq!(code("ttft.p95 <= 168ms"), Some(0));
    assert_eq!(code("ttft.p95<=167ms"), Some(1));
    assert_eq!(code("ttft.p95 > 167ms"), Some(1), "what must not be");
    assert_eq!(code("osl.avg>=1"), Some(2), "no figure of a share of requests");
    let of = streamgauge(&["report", shown, "--fail-if", "osl.avg>=1"]);
    assert!(String::from_utf8_lossy(&of.stderr).contains("A sweep is judged by shares of requests"));
    let report = streamgauge(&["report", shown, "--json", "--fail-if", "ttft.p95<=120ms"]).stdout;
    let report: Value = serde_json::from_slice(&report).unwrap();
    let meets: Vec<&Value> = report["levels"].as_array().unwrap().iter().map(|level| &level["meets"]).collect();
    assert_eq!((meets, &report["goals"]), (vec![&json!(true), &json!(false)], &json!("ttft.p95<=120ms")));
    // The sweep's own goals are in its file.
    let file = path.join("sweep.json");
    let mut own: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    own["goals"] = json!("ttft.p95<=120ms");
    fs::write(&file, own.to_string()).unwrap();
    let report: Value = serde_json::from_slice(&streamgauge(&["report", shown, "--json"]).stdout).unwrap();
    assert_eq!(report["levels"][1]["meets"], json!(false));
}

#[test]
fn series_are_told_apart_by_what_the_others_lack() {
    let folder = tempfile::tempdir().unwrap();
    let level = |rate: u32, osl: u32| json!({"name": format!("{osl}-at-{rate}"), "rate": rate, "flags": {"osl": [osl.to_string()]}});
    let levels = [level(10, 32), level(20, 32), level(10, 64), level(20, 64)];
    let runs = [("32-at-10", 1, 100), ("32-at-20", 1, 100), ("64-at-10", 1, 100), ("64-at-20", 1, 150)];
    let path = sweep(folder.path(), &levels, &runs);
    let shown = path.to_str().unwrap();
    let report = |format: &str| {
        let output = streamgauge(&["report", shown, format, "--fail-if", "ttft.p95<=120ms"]);
        assert_eq!(output.status.code(), Some(1), "a level misses: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = report("--plain");
    for line in [
        "--osl 32: ttft<=120ms for 95 % holds to 20/s at least",
        "--osl 64: ttft<=120ms for 95 % holds to 10/s, not to 20/s",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains("peak         64-at-10, --osl 64: "), "{text}");
    let json: Value = serde_json::from_str(&report("--json")).unwrap();
    let series = |key: &str| json[key].as_array().unwrap().iter().map(|of| of["series"].clone()).collect::<Vec<_>>();
    assert_eq!(series("objectives"), ["--osl 32", "--osl 64"]);
    assert!(series("operating_points").contains(&json!("--osl 64")), "{}", json["operating_points"]);
    let page = report("--html");
    assert!(page.contains("data-series=\"[&quot;--osl 32&quot;,&quot;--osl 64&quot;]\""), "{page}");
    assert!(page.contains("The SLO allows 120ms."), "{page}");
}

/// Writes the same `run.json` to each run, with its own rate and settings of the server.
fn describe(sweep: &Path, runs: &[(&str, &str, u32)]) {
    for (run, rate, max_running_requests) in runs {
        let run_file = json!({
            "version": "0.1.0", "targets": ["http://h"], "meta": {"gpu": "H100"}, "seed": 7,
            "engines": {"http://h": {"/server_info": {"version": "0.5.9", "max_running_requests": max_running_requests}}},
            "load": {"arrivals": "poisson", "rate": rate},
        });
        fs::write(sweep.join("runs").join(run).join("run.json"), run_file.to_string()).unwrap();
    }
}

#[test]
fn a_report_begins_with_what_its_levels_share_and_states_where_they_differ_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let levels = [json!({"name": "slow", "rate": 10.0}), json!({"name": "fast", "rate": 20.0})];
    let path = sweep(folder.path(), &levels, &[("slow", 1, 100), ("fast", 1, 100)]);
    describe(&path, &[("slow-1", "10/s", 64), ("fast-1", "20/s", 32)]);
    let shown = path.to_str().unwrap();
    let report: Value = serde_json::from_str(&stdout(&["report", shown, "--json"])).unwrap();
    let facts = ["engine", "engine_version", "engine_flags", "gpu", "rate", "seed", "streamgauge_version", "machine"];
    let expected = [
        json!("SGLang"),
        json!("0.5.9"),
        json!("max_running_requests=64, max_running_requests=32"),
        json!("H100"),
        json!("10/s, 20/s"),
        json!("7"),
        json!("0.1.0"),
        Value::Null,
    ];
    assert_eq!(facts.map(|fact| report["context"][fact].clone()), expected);
    let text = stdout(&["report", shown]);
    let [engine, sweep] = ["engine       SGLang 0.5.9\n", "\nsweep        "].map(|line| text.find(line).unwrap());
    assert!(engine < sweep && text.contains("\nrate         10/s, 20/s\n"), "{text}");
    let markdown = stdout(&["report", shown, "--markdown"]);
    assert!(markdown.find("- **rate** 10/s, 20/s\n").unwrap() < markdown.find("- **sweep** ").unwrap(), "{markdown}");
    let csv = stdout(&["report", shown, "--csv"]);
    assert!(
        csv.contains("\ncontext,rate,,,\"10/s, 20/s\"\n") && csv.contains("\ncontext,machine,,,unknown\n"),
        "{csv}"
    );
    let html = stdout(&["report", shown, "--html"]);
    assert!(html.find("<dd>10/s, 20/s</dd>").unwrap() < html.find("<dt>sweep</dt>").unwrap());
}
