//! Files of released versions: every later version reads them, and finds the same values.
//!
//! `tests/data/releases` has a folder per version, written by it. A format may gain fields; a test that fails here means
//! that users lose files.

use std::process::Command;

use serde_json::Value;

/// The program's output for files of a version.
fn print(version: &str, args: &str) -> String {
    let folder = format!("{}/tests/data/releases/{version}", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    let output = command.args(args.split(' ')).env_clear().current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn values(args: &str) -> Value {
    serde_json::from_str(&print("0.1.0", args)).unwrap()
}

#[test]
fn a_configuration_of_0_1_means_what_it_meant() {
    let check = print("0.1.0", "proxy --config streamgauge.yaml --check");
    for line in [
        "listen: 127.0.0.1:8080  # file streamgauge.yaml:3",
        "upstream_connect_timeout: 3s  # file streamgauge.yaml:5",
        "max_head_bytes: 32768  # file streamgauge.yaml:7",
        "drain: 90m  # file streamgauge.yaml:8",
        "headers: via,forwarded  # file streamgauge.yaml:9",
        "  - \"interactive: ttft<=500ms itl.p99<=50ms e2e<=30s target=99.5%\"",
        "  - \"batch[model=*-large]: tpot<=80ms exclude=cancelled\"",
        "  - tier=header:x-tier",
        "stall: 1500ms  # file streamgauge.yaml:17",
        "tail_keep: failed,slo  # file streamgauge.yaml:18",
        "capture_session: header:x-session  # file streamgauge.yaml:21",
        "capture_sample: 5%  # file streamgauge.yaml:22",
        "capture_keep_bytes: 10737418240  # file streamgauge.yaml:23",
        "access_log: true  # file streamgauge.yaml:25",
    ] {
        assert!(check.lines().any(|printed| printed == line), "no `{line}` in\n{check}");
    }
}

#[test]
fn captures_of_0_1_in_both_formats_have_their_rows_tokens_and_classes() {
    for folder in ["capture", "capture-parquet"] {
        let info = values(&format!("trace info {folder} --json"));
        assert_eq!(
            (&info["requests"], &info["input"]["sum"], &info["output"]["sum"]),
            (&80.into(), &19_143.into(), &1_873.into())
        );
        assert_eq!((&info["input"]["min"], &info["output"]["max"]), (&54.into(), &40.into()), "{folder}");
        let report = values(&format!("report {folder} --json --by class"));
        assert_eq!((&report["requests"], &report["outcomes"]["success"]), (&80.into(), &80.into()), "{folder}");
        assert!(report.to_string().contains("gold"), "{folder}: the class of the requests");
    }
}

#[test]
fn a_run_of_0_1_has_its_report() {
    let report = values("report run --json");
    assert_eq!((&report["requests"], &report["outcomes"]["success"]), (&80.into(), &80.into()));
    assert_eq!((&report["tokens"]["input"], &report["tokens"]["output"]), (&19_143.into(), &1_873.into()));
    assert_eq!(report["context"]["date"], "2026-11-25T19:32:22Z");
    assert_eq!((&report["context"]["seed"], &report["context"]["isl"]), (&"3".into(), &"uniform:50:400".into()));
}

#[test]
fn a_sweep_of_0_1_has_its_levels() {
    let report = values("report sweep --json");
    let levels = report["levels"].as_array().unwrap();
    let level = |at: usize| (&levels[at]["level"]["name"], &levels[at]["requests"], &levels[at]["tokens"]["output"]);
    assert_eq!(levels.len(), 2);
    assert_eq!(level(0), (&"rate-5".into(), &30.into(), &240.into()));
    assert_eq!(level(1).0, "rate-10");
}

#[test]
fn a_twin_of_0_1_runs_the_traffic_of_its_capture() {
    let run = values("twin run twin.json --traffic capture --json");
    assert_eq!((&run["simulated"], &run["engines"][0]["engine"]), (&true.into(), &"127.0.0.1:18911".into()));
    let measured = run["engines"][0]["held_out"][0]["measured"].as_f64().unwrap();
    assert!((measured - 0.068_482_786).abs() < 1e-12, "{measured}");
    assert_eq!(run["engines"].as_array().map(Vec::len), Some(1));
}
