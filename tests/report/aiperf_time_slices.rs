//! `report --out-format aiperf-timeslices`: of AIPerf's own requests, the slices that AIPerf computed itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const FOLDER: &str = "tests/data/results/aiperf-timeslices";
/// The length of a slice of the run.
const SLICE: &str = "1100ms";

fn report(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.arg("report").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
}

fn printed(format: &str, more: &[&str]) -> String {
    let requests = format!("{FOLDER}/profile_export.jsonl");
    let done = report(&[&[&requests, "--slice", SLICE, "--out-format", format], more].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

fn theirs(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER).join(name)).unwrap()
}

fn slices(text: &str) -> Vec<Value> {
    serde_json::from_str::<Value>(text).unwrap()["timeslices"].as_array().unwrap().clone()
}

/// AIPerf keeps times since 1970 as floating point, which rounds them to 256 ns. Its curves are of such times.
fn near(ours: &Value, theirs: &Value, tolerance: f64, what: &str) {
    let (ours, theirs) = (ours.as_f64().unwrap(), theirs.as_f64().unwrap());
    assert!((ours - theirs).abs() <= theirs.abs() * tolerance + 1e-6, "{what}: {ours}, AIPerf said {theirs}");
}

#[test]
fn the_slices_are_those_that_aiperf_computed_of_the_same_requests() {
    let (ours, theirs) =
        (slices(&printed("aiperf-timeslices", &[])), slices(&theirs("profile_export_aiperf_timeslices.json")));
    assert_eq!(ours.len(), theirs.len());
    let complete = |slices: &[Value]| slices.iter().map(|slice| slice["is_complete"].clone()).collect::<Vec<_>>();
    assert_eq!(complete(&ours), complete(&theirs));
    assert_eq!(complete(&ours), [Value::Null, Value::Null, false.into()]);
    for (number, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        for key in ["start_ns", "end_ns"] {
            assert!(ours[key].as_u64().unwrap().abs_diff(theirs[key].as_u64().unwrap()) <= 512, "{number} {key}");
        }
        let tags = |slice: &Value| slice.as_object().unwrap().keys().cloned().collect::<BTreeSet<String>>();
        // AIPerf's file of requests has neither the times of HTTP without `trace_data` nor the requested lengths.
        let unknown: BTreeSet<String> =
            ["osl_mismatch_count", "osl_mismatch_diff_pct"].map(str::to_owned).into_iter().collect();
        let derived: BTreeSet<String> = ["http_req_duration".to_owned()].into_iter().collect();
        assert_eq!(tags(theirs).difference(&tags(ours)).cloned().collect::<BTreeSet<_>>(), unknown);
        assert_eq!(tags(ours).difference(&tags(theirs)).cloned().collect::<BTreeSet<_>>(), derived);
        for tag in tags(ours).intersection(&tags(theirs)).filter(|tag| ours[tag.as_str()].is_object()) {
            let (ours, theirs) = (ours[tag].as_object().unwrap(), theirs[tag].as_object().unwrap());
            assert_eq!(ours.keys().collect::<BTreeSet<_>>(), theirs.keys().collect::<BTreeSet<_>>(), "{tag}");
            assert_eq!(ours["unit"], theirs["unit"], "{tag}");
            let is_curve = ["effective_", "active_", "tokens_in_flight"].iter().any(|prefix| tag.starts_with(prefix));
            for (stat, value) in ours.iter().filter(|(stat, _)| *stat != "unit") {
                // The extremes of a curve last for less than the rounding of its times.
                if !(is_curve && ["min", "max"].contains(&stat.as_str())) {
                    near(value, &theirs[stat], if is_curve { 3e-3 } else { 1e-6 }, &format!("{number} {tag} {stat}"));
                }
            }
        }
    }
}

#[test]
fn the_csv_has_a_line_for_each_statistic_as_aiperf_writes_it() {
    let lines = |text: &str| -> BTreeMap<String, String> {
        let of = |line: &str| {
            let cells: Vec<&str> = line.split(',').collect();
            (format!("{},{}", cells[0], cells[3..6].join(",")), cells[6].to_owned())
        };
        text.lines().skip(1).map(of).collect()
    };
    let (ours, theirs) = (printed("aiperf-timeslices-csv", &[]), theirs("profile_export_aiperf_timeslices.csv"));
    assert_eq!(ours.lines().next(), theirs.lines().next());
    let (ours, theirs) = (lines(&ours), lines(&theirs));
    assert!(theirs.len() > 80, "{}", theirs.len());
    for (key, value) in &theirs {
        let number = |text: &str| Value::from(text.parse::<f64>().unwrap());
        near(&number(&ours[key]), &number(value), 1e-3, key);
    }
}

#[test]
fn an_slo_and_a_filter_hold_in_each_slice() {
    let all = slices(&printed("aiperf-timeslices", &["--slo", "x: ttft<=1h"]));
    for slice in &all {
        assert_eq!(slice["good_request_count"]["avg"], slice["request_count"]["avg"]);
        near(&slice["goodput"]["avg"], &slice["request_throughput"]["avg"], 1e-9, "all are good");
    }
    let short = slices(&printed("aiperf-timeslices", &["--slo", "x: ttft<=1ns", "--filter", "osl<=8"]));
    let count = |slices: &[Value], tag: &str| -> f64 { slices.iter().filter_map(|of| of[tag]["avg"].as_f64()).sum() };
    assert_eq!((count(&all, "request_count"), count(&short, "good_request_count")), (16.0, 0.0));
    assert!(count(&short, "request_count") < 16.0 && count(&short, "request_count") > 0.0);
}

#[test]
fn slices_without_a_length_are_an_error_with_a_remedy() {
    let done = report(&[FOLDER, "--out-format", "aiperf-timeslices"]);
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert_eq!((done.status.code(), done.stdout.is_empty()), (Some(2), true));
    assert!(stderr.contains("remedy: add --slice, as in --slice 10s"), "{stderr}");
}
