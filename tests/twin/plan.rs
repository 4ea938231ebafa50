//! `plan --twin`: replicas worked out by hand, with an engine that serves one request per second.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use streamgauge::trace_file::header::TraceHeader;
use streamgauge::trace_file::row::{PromptShape, TraceEntry};

/// Bursts of one, two and three requests every 4 s, for four minutes each.
const BURSTS: [u64; 3] = [1, 2, 3];
const SLO: &str = "chat: e2e<=2100ms";

/// A folder with that traffic and a twin: ten steps of 100 ms per response, one response at a time. Its held-out error of
/// E2E is 10 %.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let row = |second: u64| TraceEntry {
        at: second * 1_000_000_000,
        stream: Some(true),
        prompt: PromptShape { tokens: Some(1), ..PromptShape::default() },
        output_tokens: Some(10),
        ..TraceEntry::default()
    };
    let mut rows: Vec<TraceEntry> = Vec::new();
    for (part, requests) in (0..).zip(BURSTS) {
        let bursts = (part * 240..(part + 1) * 240).step_by(4);
        rows.extend(bursts.flat_map(|second| (0..requests).map(move |_| row(second))));
    }
    // The end of the twelfth minute.
    rows.push(row(720));
    let lines = std::iter::once(serde_json::to_string(&TraceHeader::new("test")).unwrap());
    let lines = lines.chain(rows.iter().map(|row| serde_json::to_string(row).unwrap()));
    fs::write(folder.path().join("traffic.jsonl"), lines.collect::<Vec<_>>().join("\n")).unwrap();
    let value = |value: f64| json!({ "value": value });
    let twin = json!({ "streamgauge_twin": 1, "engines": [{
        "parameters": {
            "step_base": value(1e8), "step_per_seq": value(0.0), "prefill_rate": value(1e9), "max_num_seqs": value(1.0),
        },
        "fitted": {
            "requests": 100, "rate": 0.4, "max_in_flight": 2, "max_prompt_tokens": 1, "max_context_tokens": 11,
        },
        "held_out": [
            { "figure": "e2e.p50", "measured": 1.0, "predicted": 1.0 },
            { "figure": "e2e.p99", "measured": 1.0, "predicted": 0.9 },
            { "figure": "itl.p99", "measured": 1.0, "predicted": 1.0 },
        ],
    }] });
    fs::write(folder.path().join("twin.json"), twin.to_string()).unwrap();
    folder
}

fn plan(folder: &Path, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.current_dir(folder).args(["plan", "--twin", "twin.json", "--traffic", "traffic.jsonl"]).args(args);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(folder: &Path, args: &[&str]) -> Value {
    let bare = ["--json", "--headroom", "0%", "--start-up", "0s"];
    serde_json::from_str(&plan(folder, &[&bare[..], args].concat())).unwrap()
}

#[test]
fn each_minute_has_the_fewest_replicas_that_keep_the_slo_and_the_error_of_the_twin_widens_them() {
    let place = place();
    let plan = json(place.path(), &["--slo", SLO, "--fail", "0", "--gpus-per-replica", "8", "--price", "2/gpu-h"]);
    // On one replica a burst of n ends after 1 s, 2 s … n s, so a limit of 2.1 s lets it carry bursts of two.
    let serving: Vec<&Value> = plan["over_time"].as_array().unwrap().iter().map(|of| &of["serving"]).collect();
    assert_eq!(serving, [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!((&plan["simulated"], &plan["fleet"]["peak_replicas"]), (&json!(true), &json!(2)));
    let close = |value: &Value, expected: f64| (value.as_f64().unwrap() - expected).abs() < 1e-6;
    assert!(close(&plan["fleet"]["mean_replicas"], 4.0 / 3.0), "{}", plan["fleet"]);
    assert!(close(&plan["fleet"]["gpu_hours_per_day"], 256.0) && close(&plan["fleet"]["dollars_per_day"], 512.0));
    // Slower by 10 %, 2 s are beyond 2.1 s × 0.9: a burst needs as many replicas as requests. Faster, it needs no fewer.
    assert_eq!((&plan["peak_if_faster"], &plan["peak_if_slower"]), (&json!(2), &json!(3)));
    assert!(close(&plan["mean_if_faster"], 4.0 / 3.0) && close(&plan["mean_if_slower"], 2.0));
    // Of 361 requests none misses; slower, the second of each of 60 pairs and the third of 60 bursts of three.
    assert_eq!((&plan["miss_share"], &plan["miss_share_if_faster"]), (&json!(0.0), &json!(0.0)));
    assert!(close(&plan["miss_share_if_slower"], 120.0 / 361.0), "{}", plan["miss_share_if_slower"]);
    assert_eq!(
        plan["sizes"],
        json!([
            { "replicas": 1, "kept_windows": 8, "windows": 12 },
            { "replicas": 2, "kept_windows": 12, "windows": 12 },
            { "replicas": 3, "kept_windows": 12, "windows": 12 },
            { "replicas": 4, "kept_windows": 12, "windows": 12 },
        ])
    );
    // 3,610 tokens in 720 s, and 512 dollars a day.
    assert!(close(&plan["good_tokens_per_day"], 433_200.0), "{}", plan["good_tokens_per_day"]);
    assert!(close(&plan["dollars_per_million_good_tokens"], 512.0 / 0.4332), "{plan}");
}

#[test]
fn windows_beyond_the_fit_are_marked() {
    let place = place();
    let plan = json(place.path(), &["--slo", SLO, "--fail", "0"]);
    // Pairs on one replica are 0.5 requests/s, and the fit has seen 0.4. Bursts of three have two replicas.
    let rate = json!({
        "quantity": "rate", "largest": 0.5, "fitted": 0.4, "windows": 4, "from_s": 240.0, "to_s": 480.0,
    });
    assert_eq!(plan["extrapolations"], json!([rate]));
    assert_eq!(plan["over_time"][4]["extrapolates"], json!(["rate"]));
    assert_eq!(plan["over_time"][3].get("extrapolates"), None);
    let warnings: Vec<&Value> = plan["warnings"].as_array().unwrap().iter().map(|of| &of["warning"]).collect();
    assert_eq!(warnings, ["extrapolated"]);
}

#[test]
fn batches_and_contexts_beyond_the_fit_are_marked() {
    let place = place();
    let path = place.path().join("twin.json");
    let mut twin: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    twin["engines"][0]["fitted"] = json!({
        "requests": 100, "rate": 10.0, "max_in_flight": 1, "max_prompt_tokens": 1, "max_context_tokens": 5,
    });
    fs::write(&path, twin.to_string()).unwrap();
    let plan = json(place.path(), &["--slo", SLO, "--fail", "0"]);
    // Every request has 11 tokens. Pairs, and three requests at two replicas, are two at one replica.
    let all = json!({
        "quantity": "context", "largest": 11.0, "fitted": 5.0, "windows": 12, "from_s": 0.0, "to_s": 720.0,
    });
    let pairs = json!({
        "quantity": "batch", "largest": 2.0, "fitted": 1.0, "windows": 8, "from_s": 240.0, "to_s": 720.0,
    });
    assert_eq!(plan["extrapolations"], json!([all, pairs]));
    assert_eq!(plan["over_time"][4]["extrapolates"], json!(["batch", "context"]));
}

#[test]
fn reserves_add_replicas_and_traffic() {
    let place = place();
    let spare = json(place.path(), &["--slo", SLO, "--fail", "1"]);
    assert_eq!((&spare["fleet"]["peak_replicas"], &spare["over_time"][0]["serving"]), (&json!(3), &json!(2)));
    assert_eq!(spare["miss_share"], json!(0.0), "one replica is down");
    // Twice the requests: pairs, fours and sixes, which come as bursts of one, two and three 5 s apart.
    let busy = plan(place.path(), &["--json", "--slo", SLO, "--fail", "0", "--headroom", "50%", "--start-up", "0s"]);
    let busy: Value = serde_json::from_str(&busy).unwrap();
    assert!(busy["fleet"]["mean_replicas"].as_f64().unwrap() > 4.0 / 3.0, "{}", busy["fleet"]);
    assert!(busy["assumptions"].to_string().contains("under 2.00 times the requests"));
    let ahead = plan(place.path(), &["--json", "--slo", SLO, "--fail", "0", "--headroom", "0%", "--start-up", "2m"]);
    let ahead: Value = serde_json::from_str(&ahead).unwrap();
    let paid: Vec<&Value> = ahead["over_time"].as_array().unwrap().iter().map(|of| &of["replicas"]).collect();
    assert_eq!(paid, [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2], "ordered two minutes ahead");
}

#[test]
fn the_router_decides_how_many_replicas_are_needed() {
    let place = place();
    let replicas = |router: &str| {
        let plan = json(place.path(), &["--slo", SLO, "--fail", "0", "--router", router]);
        assert_eq!(plan["twin"]["router"], router);
        let assumptions = plan["assumptions"].to_string();
        assert!(assumptions.contains(&format!("a router spreads the requests over them: {router}")), "{assumptions}");
        plan["fleet"]["peak_replicas"].as_u64().unwrap()
    };
    // Three requests at once need two replicas. As every prompt is long, only the second half of a fleet serves.
    assert_eq!(["round-robin", "least-loaded", "length:1"].map(replicas), [2, 2, 4]);
}

#[test]
fn a_goal_that_no_fleet_keeps_is_named() {
    let place = place();
    let plan = json(place.path(), &["--slo", "itl.p99<=99ms", "--fail", "0"]);
    let text = "in 12 of 12 windows no number of replicas keeps the goals";
    assert_eq!(plan["warnings"][0]["text"], text);
    assert_eq!(plan.get("miss_share"), None, "the goals limit gaps, not requests");
    let feasible_plan = json(place.path(), &["--slo", "itl.p99<=100ms", "--fail", "0"]);
    assert_eq!((&feasible_plan["fleet"]["peak_replicas"], &feasible_plan["peak_if_slower"]), (&json!(1), &json!(1)));
}

#[test]
fn every_form_says_that_it_is_simulated_and_the_wrong_question_is_answered() {
    let place = place();
    for form in [&[][..], &["--markdown"], &["--html"], &["--plain"]] {
        let text = plan(place.path(), &[&["--slo", SLO][..], form].concat());
        assert!(text.contains("SIMULATED") && text.contains("e2e.p99 10.0 %"), "{form:?}: {text}");
    }
    let wrong = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
        let output = command.current_dir(place.path()).arg("plan").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let rate = wrong(&["--twin", "twin.json", "--traffic", "12/s", "--slo", SLO]);
    assert!(rate.contains("a rate has no requests to simulate; remedy: name a capture or a trace"), "{rate}");
    let without = wrong(&["--twin", "twin.json", "--traffic", "traffic.jsonl"]);
    assert!(without.contains("--slo"), "{without}");
    let both = wrong(&["--twin", "twin.json", "--measured", "sweep", "--traffic", "traffic.jsonl", "--slo", SLO]);
    assert!(both.contains("cannot be used with"), "{both}");
    let twin = ["--twin", "twin.json", "--traffic", "traffic.jsonl", "--slo", SLO, "--router"];
    let unknown = wrong(&[&twin[..], &["random"]].concat());
    assert!(unknown.contains("--router: a router is round-robin"), "{unknown}");
    let pools = wrong(&[&twin[..], &["pools:prefill=1,decode=1"]].concat());
    assert!(pools.contains("it fixes the replicas, which a plan looks for; remedy: compare pools"), "{pools}");
}
