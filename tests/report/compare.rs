//! `streamgauge compare`: what changed between two sides, and what the exit code is.
//!
//! The runs of `tests/data/runs/compare` are of `streamgauge sim` with steps of 10 ms before and 14 ms after, and the
//! same three seeds.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use streamgauge::measure::record::{CountSource, Outcome};
use streamgauge::measure::time::Gap;
use streamgauge::measure::timeline::TokenEvent;
use streamgauge::trace_file::gaps::pack;
use streamgauge::trace_file::header::TraceHeader;
use streamgauge::trace_file::row::{Timing, TraceEntry};

use super::results::{success, write};

const MS: u64 = 1_000_000;

fn compare(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_streamgauge"))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/runs/compare"))
        .arg("compare")
        .args(arguments)
        .output()
        .unwrap()
}

fn json_of(arguments: &[&str]) -> Value {
    let output = compare(arguments);
    assert!(output.status.code() < Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn figure<'a>(comparison: &'a Value, name: &str) -> &'a Value {
    comparison["figures"].as_array().unwrap().iter().find(|of| of["figure"] == name).unwrap()
}

fn round(value: &Value) -> f64 {
    (value.as_f64().unwrap() * 1e4).round() / 1e4
}

const THREE: [&str; 7] = ["before-1", "before-2", "before-3", "--", "after-1", "after-2", "after-3"];

#[test]
fn runs_of_one_plan_are_paired_and_the_slower_side_is_worse() {
    let comparison = json_of(&[&["--json"], &THREE[..]].concat());
    assert_eq!((&comparison["method"], &comparison["verdict"]["verdict"]), (&json!("paired_runs"), &json!("worse")));
    let itl = figure(&comparison, "itl.p50");
    // Each side is the geometric mean of what `report` prints for its runs, so its change is the one that is judged.
    let reported = |side: &str| {
        let p50 = |run| {
            let path = format!("{}/tests/data/runs/compare/{side}-{run}", env!("CARGO_MANIFEST_DIR"));
            let output = Command::new(env!("CARGO_BIN_EXE_streamgauge")).args(["report", "--json", &path]).output();
            let report: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
            report["metrics"]["itl"]["p50"].as_f64().unwrap()
        };
        (p50(1) * p50(2) * p50(3)).cbrt()
    };
    for side in ["before", "after"] {
        assert!((itl[side].as_f64().unwrap() - reported(side)).abs() < 1e-9, "{side}");
    }
    let figures = comparison["figures"].as_array().unwrap();
    for figure in figures.iter().filter(|figure| figure["unit"] != "1") {
        let [before, after, change] = ["before", "after", "change"].map(|key| figure[key].as_f64().unwrap());
        assert!((after / before - 1.0 - change).abs() < 1e-9, "{figure}");
    }
    // Of the medians 14.158, 14.497 and 14.105 ms, and 19.190, 19.468 and 19.160 ms: the mean of the logarithms of the
    // ratios ± 4.3027 · s ÷ √3.
    assert_eq!(round(&itl["change"]), 0.3522);
    assert_eq!([round(&itl["ci95"][0]), round(&itl["ci95"][1])], [0.3319, 0.3728]);
    assert_eq!(itl["verdict"]["verdict"], "worse");
    assert_eq!(comparison["factors"][3]["name"], "requests in flight");
    assert_eq!(comparison["factors"][3]["notable"], true, "a batch that is a fifth larger");
}

#[test]
fn one_run_on_each_side_is_compared_by_bootstrap_and_states_what_is_too_few() {
    let comparison = json_of(&["--json", "before-1", "after-1"]);
    assert_eq!(comparison["method"], "paired_bootstrap");
    assert_eq!(json_of(&["--json", "before-1", "after-2"])["method"], "bootstrap", "the seeds differ");
    let p99 = figure(&comparison, "ttft.p99");
    assert_eq!((&p99["ci95"], &p99["verdict"]), (&Value::Null, &Value::Null));
    let reason = p99["not_enough_data"].as_str().unwrap();
    assert!(reason.starts_with("not enough data: ") && reason.contains("times as much"), "{reason}");
}

#[test]
fn each_request_of_one_plan_is_paired_with_itself_and_all_of_its_latencies() {
    let folder = tempfile::tempdir().unwrap();
    // Every latency doubles. Gaps differ between requests, and a stream of 1.5 s has them in two slices or more.
    let run = |name: &str, factor: u64| {
        let row = |number: u64| {
            let gap = factor * (10 + 10 * (number / 60 % 5) + number % 3);
            let (first, planned) = (2 * gap, number * 100);
            let gaps = vec![(gap, Some(1)); 30];
            TraceEntry {
                output_tokens: Some(31 - number % 7),
                output_source: Some(CountSource::Usage),
                ..success(planned, planned, first, first + 30 * gap, &gaps)
            }
        };
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::copy(
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/runs/compare/before-1/run.json"),
            path.join("run.json"),
        )
        .unwrap();
        write(&path.join("records.jsonl.zst"), &(0..2_400).map(row).collect::<Vec<_>>(), None);
        path.to_str().unwrap().to_owned()
    };
    let comparison = json_of(&["--json", &run("before", 1), &run("after", 2)]);
    assert_eq!(comparison["method"], "paired_bootstrap");
    for name in ["ttft.p50", "ttft.p99", "itl.p50", "itl.p90", "itl.p99", "tpot.p90", "e2e.p50", "e2e.p99"] {
        let figure = figure(&comparison, name);
        let ends = [&figure["ci95"][0], &figure["ci95"][1]].map(|end| end.as_f64().unwrap());
        // The histogram of gaps is within a thousandth.
        assert!(ends.iter().all(|end| (end - 1.0).abs() < 0.005), "{name} doubles in every resample: {ends:?}");
    }
    let rate = figure(&comparison, "output_tokens_per_second");
    let [low, high, change] = [&rate["ci95"][0], &rate["ci95"][1], &rate["change"]].map(|end| end.as_f64().unwrap());
    assert!(high - low < 1e-9 && low <= change && change <= high, "equal tokens over one more second: {rate}");
}

#[test]
fn a_side_against_itself_is_undecided_if_data_is_missing_and_never_worse() {
    let comparison = json_of(&["--json", "before-1", "before-1"]);
    // The success rate alone has an interval: it supports no "not worse" for the latencies.
    assert_eq!(comparison["verdict"]["verdict"], "undecided");
    assert!(comparison["verdict"]["data_factor"].as_f64().unwrap() > 1.0);
    let success = figure(&comparison, "success_rate");
    assert_eq!((&success["change"], &success["verdict"]["verdict"]), (&json!(0.0), &json!("not_worse")));
    let differences = &comparison["workload"]["differences"];
    assert_eq!((differences, &comparison["workload"]["same_plan"]), (&json!([]), &json!(true)));
}

#[test]
fn the_exit_code_is_1_only_if_the_whole_interval_supports_the_condition() {
    let code = |arguments: &[&str]| compare(&[arguments, &THREE[..]].concat()).status.code();
    assert_eq!(code(&["--fail-if", "itl.p50 > +5%"]), Some(1));
    assert_eq!(code(&["--fail-if", "itl.p50 > +50%"]), Some(0));
    assert_eq!(code(&["--fail-if", "ttft.p50 > +5%"]), Some(0), "undecided passes by default");
    assert_eq!(code(&["--fail-if", "ttft.p50 > +5%", "--undecided", "fail"]), Some(1));
    assert_eq!(code(&["--fail-if", "output_tokens_per_second < -5%"]), Some(1));
    assert_eq!(code(&["--fail-if", "success_rate < -1%", "--undecided", "fail"]), Some(0));
    assert_eq!(code(&["--fail-if", "itl.p50 > 5%"]), Some(2), "without a sign");
}

#[test]
fn different_workloads_have_no_verdict_unless_that_is_asked_for() {
    let comparison = json_of(&["--json", "before-1", "../chat"]);
    assert_eq!(comparison["verdict"], Value::Null);
    let differences = comparison["workload"]["differences"].as_array().unwrap();
    let of = |what: &str| differences.iter().find(|of| of["what"] == what).unwrap();
    assert_eq!(of("ISL distribution")["workload"], true);
    assert_eq!(of("target")["workload"], false);
    let text = String::from_utf8(compare(&["before-1", "../chat"]).stdout).unwrap();
    assert!(text.contains("verdict      withheld: the workloads differ"), "{text}");
    let despite = json_of(&["--json", "--although", "different", "before-1", "../chat"]);
    assert!(despite["verdict"]["verdict"].is_string(), "{}", despite["verdict"]);
    // Neither a figure nor a condition has a verdict that the comparison withholds.
    let has_verdict = |comparison: &Value| {
        let figures = comparison["figures"].as_array().unwrap();
        figures.iter().any(|of| of["verdict"].is_object() || of["better"] == true)
    };
    assert_eq!((has_verdict(&comparison), has_verdict(&despite)), (false, true));
    assert!(text.lines().any(|line| line.starts_with("success_rate") && line.ends_with("withheld")), "{text}");
    let arguments = ["--fail-if", "ttft.p50 < -5%", "before-1", "../chat"];
    let judged = compare(&arguments);
    let text = String::from_utf8(judged.stdout).unwrap();
    assert!(text.contains("ttft.p50 < -5%: undecided: the workloads differ"), "{text}");
    let strict = compare(&[&["--undecided", "fail"], &arguments[..]].concat());
    let despite = compare(&[&["--although", "different"], &arguments[..]].concat());
    let codes = [judged.status, strict.status, despite.status].map(|status| status.code());
    assert_eq!(codes, [Some(0), Some(1), Some(1)]);
}

#[test]
fn a_condition_on_what_was_not_measured_is_an_error_and_never_passes() {
    let output = compare(&["--fail-if", "goodput < -2%", "before-1", "after-1"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    let expected = "--fail-if 'goodput < -2%': a side has no value of it; remedy: add --slo, which goodput counts by";
    assert!(error.contains(expected), "{error}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("goodput < -2%: undecided: a side has no value of it") && text.contains("itl.p50"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let good = capture(folder.path(), "good", 20_000, |_| 100, Outcome::Success);
    let bad = capture(folder.path(), "bad", 20_000, |_| 100, Outcome::Failed);
    let failed = compare(&["--although", "different", "--fail-if", "ttft.p99 > +5%", &good, &bad]);
    assert_eq!(failed.status.code(), Some(2), "a server without a response has no TTFT to pass with");
}

#[test]
fn what_may_explain_a_change_names_its_direction() {
    let effect = |before: &str, after: &str| {
        let comparison = json_of(&["--json", before, after]);
        let factors = comparison["factors"].as_array().unwrap().clone();
        factors.iter().find(|of| of["name"] == "requests in flight").unwrap()["effect"].clone()
    };
    assert_eq!(effect("before-1", "after-1"), "more requests share each step");
    assert_eq!(effect("after-1", "before-1"), "fewer requests share each step");
}

#[test]
fn markdown_and_plain_text_have_the_figures_of_the_text() {
    let text = |arguments: &[&str]| String::from_utf8(compare(&[arguments, &THREE[..]].concat()).stdout).unwrap();
    let line = text(&[]).lines().find(|line| line.starts_with("itl.p50")).unwrap().to_owned();
    let markdown = text(&["--markdown"]);
    let row = markdown.lines().find(|line| line.starts_with("| itl.p50 ")).unwrap();
    let cells: Vec<&str> = row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(cells.len(), 7, "{row}");
    assert!(cells.iter().all(|cell| line.contains(cell)), "{row} and {line}");
    assert!(text(&["--plain", "--by", "isl-bucket"]).is_ascii());
}

/// Requests a second apart, from midnight of a day on; each hour has 60.
fn capture(folder: &Path, name: &str, day: u64, ttft_ms: impl Fn(usize) -> u64, outcome: Outcome) -> String {
    let header = TraceHeader { started_unix_ns: Some(day * 86_400_000_000_000), ..TraceHeader::new("test") };
    let mut text = serde_json::to_string(&header).unwrap() + "\n";
    for number in 0..120 {
        let at = number as u64 * 60_000 * MS;
        let first = ttft_ms(number) * MS;
        let entry = TraceEntry {
            at,
            model: Some(["river", "lake"][number % 2].to_owned()),
            stream: Some(true),
            status: Some(if outcome == Outcome::Success { 200 } else { 500 }),
            outcome: Some(outcome),
            output_tokens: Some(2),
            output_source: Some(CountSource::Usage),
            timing: Timing {
                sent: Some(0),
                first_token: Some(first),
                first_output: Some(first),
                ended: Some(first + 10 * MS),
                gaps: Some(pack(&[TokenEvent::new(Gap::from_millis(10), Some(1))])),
                ..Timing::default()
            },
            ..TraceEntry::default()
        };
        text += &(serde_json::to_string(&entry).unwrap() + "\n");
    }
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn two_days_of_production_are_compared_by_hour_of_the_day_and_model() {
    let folder = tempfile::tempdir().unwrap();
    let monday = capture(folder.path(), "monday", 20_000, |_| 100, Outcome::Success);
    // On the second day, one model is slower in the second hour.
    let slow = |number: usize| if number >= 60 && number % 2 == 1 { 300 } else { 100 };
    let tuesday = capture(folder.path(), "tuesday", 20_001, slow, Outcome::Success);
    let comparison = json_of(&["--json", "--by", "hour,model", &monday, &tuesday]);
    let groups: Vec<_> = comparison["groups"].as_array().unwrap().iter().collect();
    let of = |group: &Value| {
        let by = (group["by"]["hour"].as_str().unwrap().to_owned(), group["by"]["model"].as_str().unwrap().to_owned());
        let p50 = |side: &str| group[side]["ttft_p50"].as_f64().unwrap();
        (by.0, by.1, group["before"]["requests"].as_u64().unwrap(), p50("before"), p50("after"))
    };
    let expected = [("00Z", "lake", 100.0), ("00Z", "river", 100.0), ("01Z", "lake", 300.0), ("01Z", "river", 100.0)];
    let expected = expected.map(|(hour, model, after)| (hour.to_owned(), model.to_owned(), 30, 100.0, after));
    assert_eq!(groups.into_iter().map(of).collect::<Vec<_>>(), expected);
    let filtered = json_of(&["--json", "--filter", "model=river", &monday, &tuesday]);
    assert_eq!(figure(&filtered, "ttft.p99")["after"], 100.0);
}

/// A capture of 3,000 requests, ten a second, of which each has these gaps in milliseconds.
fn with_gaps(folder: &Path, name: &str, gaps: impl Fn(u64) -> Vec<(u64, Option<u32>)>) -> String {
    let jitter = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
    let row = |number: u64| TraceEntry {
        planned: None,
        ..success(0, number * 100, 50 + jitter(number), 900 + jitter(number), &gaps(number))
    };
    write(&folder.join(name), &(0..3_000).map(row).collect::<Vec<_>>(), None);
    folder.join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_figure_of_0_is_compared_by_the_resolution_of_a_microsecond() {
    let folder = tempfile::tempdir().unwrap();
    // Tokens that come together, and after the change each tenth request has a pause.
    let before = with_gaps(folder.path(), "before.jsonl.zst", |_| vec![(0, Some(1)); 4]);
    let paused = |number| [vec![(0, Some(1)); 3], vec![(if number % 10 == 0 { 200 } else { 0 }, Some(1))]].concat();
    let after = with_gaps(folder.path(), "after.jsonl.zst", paused);
    let comparison = json_of(&["--json", &before, &after]);
    let (p50, p99) = (figure(&comparison, "itl.p50"), figure(&comparison, "itl.p99"));
    assert_eq!((&p50["before"], &p50["after"], &p50["change"]), (&json!(0.0), &json!(0.0), &json!(0.0)));
    assert_eq!((&p50["ci95"], &p50["verdict"]["verdict"]), (&json!([0.0, 0.0]), &json!("not_worse")));
    assert_eq!((&p99["before"], &p99["after"]), (&json!(0.0), &json!(200.0)));
    // 200 ms ÷ 1 µs, as near as the histogram of gaps.
    let thousands = |comparison: &Value| (figure(comparison, "itl.p99")["change"].as_f64().unwrap() / 1e3).round();
    assert_eq!((thousands(&comparison), &p99["verdict"]["verdict"]), (200.0, &json!("worse")));
    assert_eq!((&comparison["verdict"]["verdict"], &comparison["one_sided"]), (&json!("worse"), &json!([])));
    let back = json_of(&["--json", &after, &before]);
    assert_eq!((round(&figure(&back, "itl.p99")["change"]), &figure(&back, "itl.p99")["better"]), (-1.0, &json!(true)));
    let runs = json_of(&["--json", &before, &before, "--", &after, &after]);
    assert_eq!(thousands(&runs), 200.0, "the same with runs as the unit");
}

#[test]
fn a_figure_that_one_side_lacks_is_named_and_allows_no_verdict_of_not_worse() {
    let folder = tempfile::tempdir().unwrap();
    let before = with_gaps(folder.path(), "before.jsonl.zst", |_| vec![(20, Some(1)); 4]);
    let after = with_gaps(folder.path(), "after.jsonl.zst", |_| Vec::new());
    let arguments = ["--although", "different", &before, &after];
    let comparison = json_of(&[&["--json"], &arguments[..]].concat());
    assert_eq!(comparison["one_sided"], json!(["itl.p50", "itl.p90", "itl.p99"]));
    assert_eq!(figure(&comparison, "ttft.p50")["verdict"]["verdict"], "not_worse", "{comparison:#}");
    assert_eq!(comparison["verdict"], json!({"verdict": "undecided", "data_factor": null}), "{comparison:#}");
    let text = String::from_utf8(compare(&arguments).stdout).unwrap();
    assert!(text.contains("verdict      undecided: one side lacks a figure of the other\n"), "{text}");
    assert!(text.contains("one-sided    only one side has values of itl.p50, itl.p90,"), "{text}");
}

#[test]
fn a_server_that_fails_every_request_is_worse_by_100_points() {
    let folder = tempfile::tempdir().unwrap();
    let good = capture(folder.path(), "good", 20_000, |_| 100, Outcome::Success);
    let bad = capture(folder.path(), "bad", 20_000, |_| 100, Outcome::Failed);
    let comparison = json_of(&["--json", "--although", "different", &good, &bad]);
    let success = figure(&comparison, "success_rate");
    assert_eq!((&success["change"], &success["verdict"]["verdict"]), (&json!(-1.0), &json!("worse")));
    assert_eq!(comparison["verdict"]["verdict"], "worse");
}

/// Nightly captures; every request of run `n` has this TTFT.
fn nightly(folder: &Path, ttft_ms: &[u64]) -> Vec<String> {
    let one = |(night, ttft): (usize, &u64)| {
        capture(folder, &format!("night-{night:02}"), 20_000 + night as u64, |_| *ttft, Outcome::Success)
    };
    ttft_ms.iter().enumerate().map(one).collect()
}

#[test]
fn a_history_names_the_run_at_which_it_changed_and_fails_while_that_is_new() {
    let folder = tempfile::tempdir().unwrap();
    let steady = [100, 101, 99, 100, 102, 98, 101, 100, 99, 100, 101, 99];
    let trend = |ttft_ms: &[u64]| {
        let mut paths = nightly(folder.path(), ttft_ms);
        // The dates order the runs, not the command line.
        let newest = paths.len() - 1;
        paths.swap(0, newest);
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let output = compare(&[&["--trend", "--json"], &paths[..]].concat());
        let history: Value = serde_json::from_slice(&output.stdout).unwrap();
        let changes = figure(&history, "ttft.p50")["changes"].clone();
        (output.status.code(), changes.as_array().unwrap().clone())
    };
    assert_eq!(trend(&steady), (Some(0), Vec::new()));
    let (code, changes) = trend(&[&steady[..], &[120, 121, 119]].concat());
    assert_eq!((code, changes.len(), &changes[0]["run"]), (Some(1), 1, &json!(12)));
    assert_eq!(
        (&changes[0]["before"], &changes[0]["after"], &changes[0]["change"]),
        (&json!(100.0), &json!(120.0), &json!(0.2))
    );
    assert_eq!((&changes[0]["is_regression"], &changes[0]["is_new"]), (&json!(true), &json!(true)));
    // Six runs later it is the state of things; and a change for the better is no regression.
    let (code, changes) = trend(&[&steady[..], &[120, 121, 119, 120, 121, 120]].concat());
    assert_eq!((code, &changes[0]["is_new"]), (Some(0), &json!(false)));
    let (code, changes) = trend(&[&steady[..], &[80, 81, 79]].concat());
    assert_eq!((code, &changes[0]["is_regression"]), (Some(0), &json!(false)));
    let (code, _) = trend(&[100, 101, 99]);
    assert_eq!(code, Some(0));
    let paths = nightly(folder.path(), &[&steady[..], &[120, 121, 119]].concat());
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let page = String::from_utf8(compare(&[&["--trend", "--html"], &paths[..]].concat()).stdout).unwrap();
    assert!(page.contains("REGRESSION in the newest runs: ttft.p50"), "the verdict stands on the page");
    // Fifteen runs: their values, and the means before and after the change.
    let means = [vec!["100"; 12], vec!["120"; 3]].concat().join(",");
    let values = "100,101,99,100,102,98,101,100,99,100,101,99,120,121,119";
    assert!(page.contains(&format!("{values}],[{means}]")), "the chart of ttft.p50");
    assert!(page.contains("night-12 (") && page.contains("from 100ms to 120ms. Less is better."));
}

#[test]
fn a_history_leaves_out_runs_of_another_load() {
    let output = compare(&["--trend", "../chat", "before-1", "before-2", "before-3"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("left out     ../chat: their load is not that of the newest run"), "{text}");
    assert!(text.contains("verdict      unknown: 3 of 6 runs that a change needs"), "{text}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_wrong_use_names_the_remedy_and_exits_with_2() {
    let error = |arguments: &[&str]| {
        let output = compare(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(error(&["before-1"]).contains("name two runs"));
    assert!(error(&["before-1", "before-2", "after-1"]).contains("`--` between them"));
    let after = error(&["before-1", "--", "after-1", "--fail-if", "itl.p50 > +5%"]);
    assert!(
        after.contains("--fail-if follows `--`, so it is a path; remedy: write options before the runs"),
        "{after}"
    );
    assert!(error(&["before-1", "nowhere"]).contains("nowhere"));
    let page = error(&["--html", "page.html", "before-1", "after-1"]);
    assert!(page.contains("page.html: no such run; remedy: a page goes to stdout, so put `> page.html`"), "{page}");
    assert!(error(&["../sweep", "before-1"]).contains("../sweep/runs/rate-1"));
}
