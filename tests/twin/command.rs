//! `streamgauge twin`: files, output, and what other verbs read of them.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use streamgauge::trace_file::header::TraceHeader;
use streamgauge::trace_file::row::TraceEntry;

use crate::traffic::{LOAD, Load, SCHEME};

struct CommandOutput {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn streamgauge(folder: &Path, args: &[&str]) -> CommandOutput {
    let output = Command::new(env!("CARGO_BIN_EXE_streamgauge")).current_dir(folder).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

pub(crate) fn ok(folder: &Path, args: &[&str]) -> String {
    let output = streamgauge(folder, args);
    assert_eq!(output.code, Some(0), "{args:?}: {}", output.stderr);
    output.stdout
}

/// A folder with traffic of two classes and a twin by hand.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let header = TraceHeader { blocks: Some(SCHEME), ..TraceHeader::new("test") };
    let mut rows: Vec<TraceEntry> = Load { families: 5, requests: 300, rate: 8.0, ..LOAD }.rows();
    for (row, tier) in rows.iter_mut().zip(["gold", "free", "free"].into_iter().cycle()) {
        row.class.insert(&"tier".into(), tier.as_bytes());
    }
    let lines = [serde_json::to_string(&header).unwrap()].into_iter();
    let lines = lines.chain(rows.iter().map(|row| serde_json::to_string(row).unwrap()));
    fs::write(folder.path().join("traffic.jsonl"), lines.collect::<Vec<_>>().join("\n")).unwrap();
    let twin = json!({ "streamgauge_twin": 1, "engines": [{ "model": "m" }] });
    fs::write(folder.path().join("twin.json"), twin.to_string()).unwrap();
    folder
}

const RUN: [&str; 5] = ["twin", "run", "twin.json", "--traffic", "traffic.jsonl"];

#[test]
fn a_simulated_run_is_read_like_a_run_and_marked_in_every_form() {
    let place = place();
    let folder = place.path();
    let slo = ["--slo", "chat: ttft<=200ms"];
    let stdout = ok(folder, &[&RUN[..], &slo, &["--replicas", "2", "-o", "out"]].concat());
    assert!(stdout.starts_with("SIMULATED: a twin's prediction, not a measurement. Its error is unknown"), "{stdout}");
    assert!(stdout.contains("2 x round-robin"), "{stdout}");
    for form in [&[][..], &["--json"], &["--html"], &["--markdown"], &["--csv"]] {
        let report = ok(folder, &[&["report", "out"], form].concat());
        assert!(report.contains("SIMULATED"), "{form:?}: {report}");
    }
    let report: Value = serde_json::from_str(&ok(folder, &["report", "out", "--json"])).unwrap();
    assert_eq!((&report["sources"][0]["simulated"], &report["requests"]), (&json!(true), &json!(300)));
    let warnings: Vec<&str> =
        report["warnings"].as_array().unwrap().iter().filter_map(|w| w["warning"].as_str()).collect();
    assert!(warnings.contains(&"simulated") && !warnings.contains(&"no_audit"), "{warnings:?}");
    let run: Value = serde_json::from_slice(&fs::read(folder.join("out/run.json")).unwrap()).unwrap();
    assert_eq!((&run["simulated"]["replicas"], &run["valid"]), (&json!(2), &json!(true)));
}

#[test]
fn a_comparison_and_a_history_of_simulated_runs_say_so_in_every_form() {
    let place = place();
    let folder = place.path();
    // Equal replicas and routers: the runs differ in a parameter alone.
    for (out, more) in [("s1", &[][..]), ("s2", &["--set", "kv-blocks=600"])] {
        ok(folder, &[&RUN[..], &["--replicas", "2", "-o", out], more].concat());
    }
    const BOTH: &str = "both sides are SIMULATED: a twin's prediction, not a measurement";
    const ALL: &str = "2 of 2 runs are SIMULATED: a twin's prediction, not a measurement";
    let compared = |args: &[&str]| streamgauge(folder, &[&["compare"], args].concat()).stdout;
    for form in [&[][..], &["--plain"], &["--markdown"], &["--html"]] {
        let stdout = compared(&[form, &["s1", "s2"]].concat());
        assert!(stdout.contains(BOTH), "{form:?}: {stdout}");
        let stdout = compared(&[&["--trend"], form, &["s1", "s2"]].concat());
        assert!(stdout.contains(ALL), "{form:?}: {stdout}");
    }
    let json_of = |args: &[&str]| serde_json::from_str::<Value>(&compared(args)).unwrap();
    assert_eq!(json_of(&["--json", "s1", "s2"])["simulated"], json!({ "before": true, "after": true }));
    let trend = json_of(&["--trend", "--json", "s1", "s2"]);
    assert_eq!((&trend["runs"][0]["simulated"], &trend["runs"][1]["simulated"]), (&json!(true), &json!(true)));
    // A capture was measured; the prediction beside it was not.
    let mixed = json_of(&["--json", "traffic.jsonl", "s1"]);
    assert_eq!(mixed["simulated"], json!({ "before": false, "after": true }));
    assert!(compared(&["traffic.jsonl", "s1"]).contains("the side after is SIMULATED"));
    let measured = compared(&["traffic.jsonl", "traffic.jsonl"]);
    assert!(!measured.to_lowercase().contains("simulated"), "{measured}");
}

#[test]
fn a_plan_reads_a_simulated_run_as_traffic_and_says_so_in_every_form() {
    let place = place();
    let folder = place.path();
    ok(folder, &[&RUN[..], &["-o", "out"]].concat());
    let sweep = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/runs/sweep");
    let plan = |traffic: &str, form: &[&str]| {
        ok(folder, &[&["plan", "--measured", sweep, "--slo", "ttft.p99<=500ms", "--traffic", traffic], form].concat())
    };
    for form in [&[][..], &["--plain"], &["--markdown"], &["--html"], &["--json"]] {
        let mark = "the traffic out is SIMULATED: a twin's prediction, not a measurement";
        assert!(plan("out", form).contains(mark), "{form:?}");
        assert!(!plan("traffic.jsonl", form).contains("SIMULATED"), "{form:?}");
    }
    let requests =
        |traffic| serde_json::from_str::<Value>(&plan(traffic, &["--json"])).unwrap()["traffic"]["requests"].clone();
    assert_eq!((requests("out"), requests("traffic.jsonl")), (json!(300.0), json!(300.0)));
}

#[test]
fn files_and_exports_of_a_simulated_run_keep_the_mark() {
    const MARK: &str = "SIMULATED: a twin's prediction, not a measurement";
    let place = place();
    let folder = place.path();
    ok(folder, &[&RUN[..], &["-o", "out"]].concat());
    let log = fs::read_to_string(folder.join("out/histograms.hlog")).unwrap();
    assert!(log.contains(&format!("#{MARK}\n")), "{log}");
    let exported = |format: &str| streamgauge(folder, &["report", "out", "--slice", "10s", "--out-format", format]);
    let llmd: Value = serde_json::from_str(&exported("llmd").stdout).unwrap();
    assert_eq!(llmd["run"]["description"], json!(MARK));
    for format in ["aiperf-timeslices", "aiperf-timeslices-csv"] {
        let output = exported(format);
        assert!(output.stderr.contains(&format!("note: out is {MARK}")), "{format}: {}", output.stderr);
    }
    let rows = "out/records.jsonl.zst";
    assert!(ok(folder, &["report", rows]).contains(&format!("{rows} is {MARK}")));
    assert!(ok(folder, &["trace", "info", "out"]).contains(&format!("its results are {MARK}")));
    // Verbs of `trace` keep the mark.
    ok(folder, &["trace", "scale", rows, "--rate", "2x", "-o", "twice.jsonl"]);
    ok(folder, &["trace", "merge", "traffic.jsonl", "twice.jsonl", "-o", "both.jsonl"]);
    for file in ["twice.jsonl", "both.jsonl"] {
        let info: Value = serde_json::from_str(&ok(folder, &["trace", "info", file, "--json"])).unwrap();
        let warnings = info["warnings"].as_array().unwrap();
        assert!(warnings.iter().any(|warning| warning["warning"] == "simulated"), "{file}: {warnings:?}");
    }
    let measured = ok(folder, &["trace", "info", "traffic.jsonl"]);
    assert!(!measured.contains("SIMULATED"), "{measured}");
}

#[test]
fn a_simulated_request_keeps_its_class() {
    let place = place();
    let folder = place.path();
    ok(folder, &[&RUN[..], &["-o", "out"]].concat());
    let report = ok(folder, &["report", "out", "--slo", "gold[tier=gold]: ttft<=200ms", "--by", "class", "--json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["goodput"][0]["counted"], json!(100));
    let groups = report["groups"].as_array().unwrap().iter();
    let classes: Vec<(&Value, &Value)> = groups.map(|group| (&group["by"]["class"], &group["requests"])).collect();
    assert_eq!(classes, [(&json!("tier=free"), &json!(200)), (&json!("tier=gold"), &json!(100))]);
}

#[test]
fn variants_have_folders_that_compare_reads() {
    let place = place();
    let folder = place.path();
    let stdout = ok(
        folder,
        &[&RUN[..], &["--replicas", "1..2", "--router", "prefix", "--router", "least-loaded", "-o", "v"]].concat(),
    );
    let lines: Vec<&str> = stdout.lines().skip(2).filter_map(|line| line.split("  ").next()).collect();
    assert_eq!(lines, ["1 x prefix", "1 x least-loaded", "2 x prefix", "2 x least-loaded"]);
    let compared = streamgauge(folder, &["compare", "v/1-prefix", "v/2-prefix"]);
    assert!(compared.stdout.contains("SIMULATED"), "{}{}", compared.stdout, compared.stderr);
    let again = streamgauge(folder, &[&RUN[..], &["-o", "v/1-prefix"]].concat());
    assert_eq!(again.code, Some(1));
    assert!(again.stderr.contains("it holds a result already"), "{}", again.stderr);
}

#[test]
fn equal_commands_write_equal_records() {
    let place = place();
    let folder = place.path();
    for out in ["a", "b"] {
        ok(folder, &[&RUN[..], &["--scale", "1.5x", "--seed", "3", "-o", out]].concat());
    }
    let records = |out: &str| fs::read(folder.join(out).join("records.jsonl.zst")).unwrap();
    assert_eq!(records("a"), records("b"));
}

#[test]
fn twice_the_traffic_and_half_the_cache_change_what_they_should() {
    let place = place();
    let folder = place.path();
    let variant = |more: &[&str]| -> Value {
        let result: Value = serde_json::from_str(&ok(folder, &[&RUN[..], more, &["--json"]].concat())).unwrap();
        assert_eq!(result["simulated"], json!(true));
        result["variants"][0].clone()
    };
    let (base, twice) = (variant(&[]), variant(&["--scale", "2x"]));
    assert_eq!((&base["requests"], &twice["requests"]), (&json!(300), &json!(600)));
    let slow = variant(&["--set", "step-base=40ms"]);
    let tpot = |of: &Value| of["tpot_seconds"]["p50"].as_f64().unwrap();
    assert!(tpot(&slow) > 3.0 * tpot(&base), "{slow} {base}");
    let refused = variant(&["--set", "kv-blocks=20"]);
    assert!(refused["lost"].as_u64().unwrap() > 0, "{refused}");
}

#[test]
fn each_operation_changes_what_is_lost_or_how_many_replicas_run() {
    let place = place();
    let folder = place.path();
    let variant = |more: &[&str]| -> (u64, u64) {
        let result: Value = serde_json::from_str(&ok(folder, &[&RUN[..], more, &["--json"]].concat())).unwrap();
        let of = |key: &str| result["variants"][0][key].as_u64().unwrap();
        (of("lost"), of("max_replicas"))
    };
    assert_eq!(variant(&[]), (0, 1));
    let fail = ["--fail", "replica=1,at=10s"];
    let (brief, replicas) = variant(&[&fail[..], &["--start-up", "1s"]].concat());
    assert!(brief > 0 && replicas == 1, "{brief} lost, {replicas} replicas");
    // Eight requests come per second.
    let (long, _) = variant(&[&fail[..], &["--start-up", "21s"]].concat());
    assert!((100..250).contains(&(long - brief)), "{long} and {brief}");
    let (refused, _) = variant(&["--admission", "1"]);
    assert!(refused > 100, "{refused}");
    let (lost, replicas) = variant(&["--autoscale", "in-flight>1,max=3", "--start-up", "1s"]);
    assert_eq!((lost, replicas), (0, 3));
}

#[test]
fn traffic_that_verbs_of_trace_have_changed_is_run_and_planned() {
    let place = place();
    let folder = place.path();
    let gold = ["--class", "tier=gold"];
    ok(folder, &[&["trace", "scale", "traffic.jsonl", "--rate", "2x", "-o", "busy.jsonl"], &gold[..]].concat());
    ok(folder, &[&["trace", "shift", "busy.jsonl", "--by", "1m", "-o", "later.jsonl"], &gold[..]].concat());
    ok(folder, &["trace", "merge", "later.jsonl", "traffic.jsonl", "--from-start", "-o", "both.jsonl"]);
    // 300 requests, of which 100 are gold; those twice; and all of them once more.
    let run = |traffic: &str| -> Value {
        let stdout = ok(folder, &["twin", "run", "twin.json", "--traffic", traffic, "--json"]);
        serde_json::from_str::<Value>(&stdout).unwrap()["variants"][0].clone()
    };
    let counts = ["traffic.jsonl", "busy.jsonl", "later.jsonl", "both.jsonl"].map(|of| run(of)["requests"].clone());
    assert_eq!(counts, [json!(300), json!(400), json!(400), json!(700)]);
    let rate = |of: &str| run(of)["requests_per_second"].as_f64().unwrap();
    let (busy, later) = (rate("busy.jsonl"), rate("later.jsonl"));
    assert!(later < 0.6 * busy, "half a minute of traffic ends a minute later: {busy} and {later}");
    let plan = ["plan", "--twin", "twin.json", "--traffic", "both.jsonl", "--slo", "chat: e2e<=1h", "--json"];
    let plan: Value = serde_json::from_str(&ok(folder, &plan)).unwrap();
    assert_eq!((&plan["simulated"], &plan["traffic"]["requests"]), (&json!(true), &json!(700.0)));
}

#[test]
fn batches_and_contexts_beyond_the_fit_of_a_fleet_are_noted() {
    let place = place();
    let folder = place.path();
    let engine = |model: &str, batch: u32, context: u64| {
        let fitted = json!({
            "requests": 100, "rate": 100.0, "max_in_flight": batch, "max_prompt_tokens": 100_000,
            "max_context_tokens": context,
        });
        json!({ "model": model, "fitted": fitted })
    };
    let notes = |engines: &[Value]| -> Vec<String> {
        let twin = json!({ "streamgauge_twin": 1, "engines": engines });
        fs::write(folder.join("twin.json"), twin.to_string()).unwrap();
        let output = streamgauge(folder, &RUN);
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        output.stderr.lines().filter(|line| line.contains("EXTRAPOLATED")).map(str::to_owned).collect()
    };
    let of = |notes: &[String]| -> Vec<String> {
        notes.iter().map(|note| note.split(" of ").next().unwrap().to_owned()).collect()
    };
    let small = notes(&[engine("m", 1, 50)]);
    assert_eq!(of(&small), ["note: EXTRAPOLATED: contexts", "note: EXTRAPOLATED: batches"]);
    assert!(small[0].ends_with("beyond the 50 that the twin was fitted to"), "{small:?}");
    assert_eq!(notes(&[engine("m", 1_000, 100_000)]), Vec::<String>::new());
    // The larger fit of another model is no evidence for this one.
    let two = notes(&[engine("m", 1, 50), engine("n", 1_000, 100_000)]);
    assert_eq!(of(&two), ["note: EXTRAPOLATED: m: contexts", "note: EXTRAPOLATED: m: batches"]);
}

#[test]
fn a_time_beyond_the_histogram_is_no_number_and_an_overload_is_named() {
    let place = place();
    let folder = place.path();
    // One sequence at a time, 600 s each: the 300 requests wait for up to 50 hours.
    let slow = ["--set", "max-num-seqs=1", "--set", "step-base=600s", "--set", "step-per-seq=0"];
    let result: Value = serde_json::from_str(&ok(folder, &[&RUN[..], &slow, &["--json"]].concat())).unwrap();
    let ttft = &result["variants"][0]["ttft_seconds"];
    assert_eq!((&ttft["p50"], &ttft["p90"], &ttft["p99"]), (&Value::Null, &Value::Null, &Value::Null));
    let max = ttft["max"].as_f64().unwrap();
    assert!(max > 100_000.0, "{ttft}");
    let table = ok(folder, &[&RUN[..], &slow].concat());
    let row = table.lines().last().unwrap();
    assert!(row.matches(">4096s").count() >= 3, "{table}");
    assert_eq!(result["variants"][0]["overloaded"], json!(0));

    // 300 requests, 400 times each, at a replica that serves few of them.
    let flood = [&RUN[..], &["--scale", "400x", "--set", "step-base=10s", "--set", "max-num-seqs=4"]].concat();
    let output = streamgauge(folder, &[&flood[..], &["--json"]].concat());
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let variant = serde_json::from_str::<Value>(&output.stdout).unwrap()["variants"][0].clone();
    let refused = variant["overloaded"].as_u64().unwrap();
    assert!(refused > 40_000, "{variant}");
    assert_eq!(variant["lost"], variant["overloaded"]);
    let note = format!(
        "note: OVERLOADED: 1 x round-robin refused {refused} of 120000 requests, because 65536 others waited; remedy: more --replicas"
    );
    assert!(output.stderr.contains(&note), "{}", output.stderr);
}

#[test]
fn a_twin_fitted_to_a_run_predicts_it_and_says_where_it_extrapolates() {
    let place = place();
    let folder = place.path();
    ok(folder, &[&RUN[..], &["-o", "out"]].concat());
    let stdout = ok(folder, &["twin", "fit", "out", "-o", "fitted.json"]);
    for line in ["step-base", "held-out rows", "ttft.p99", "goodput", "decode, 2 to 4 sequences"] {
        assert!(stdout.contains(line), "{line}: {stdout}");
    }
    let fitted: Value = serde_json::from_slice(&fs::read(folder.join("fitted.json")).unwrap()).unwrap();
    let base = fitted["engines"][0]["parameters"]["step_base"]["value"].as_f64().unwrap();
    assert!((base - 1e7).abs() < 5e5, "{base}");
    assert_eq!(fitted["sources"][0], json!({ "path": "out", "rows": 300 }));
    let output = streamgauge(folder, &["twin", "run", "fitted.json", "--traffic", "traffic.jsonl", "--scale", "4x"]);
    assert!(output.stdout.contains("Error on held-out rows: ttft.p50"), "{}", output.stdout);
    assert!(output.stderr.contains("EXTRAPOLATED: requests/s per replica"), "{}", output.stderr);
}

#[test]
fn a_cold_start_is_left_out_of_a_fit_and_noted() {
    let place = place();
    let folder = place.path();
    ok(folder, &["trace", "cut", "traffic.jsonl", "--to", "5s", "-o", "start.jsonl"]);
    let cold = ["twin", "run", "twin.json", "--traffic", "start.jsonl", "--set", "step-base=30ms", "-o", "cold"];
    ok(folder, &cold);
    ok(folder, &[&RUN[..], &["-o", "warm"]].concat());
    let output = streamgauge(folder, &["twin", "fit", "cold", "warm", "-o", "fitted.json"]);
    let note = "note: m at simulated-1: the steps of the first 10.0s took 2.9 times as long as later ones, as after a cold start, and are left out";
    assert!(output.stderr.contains(note), "{}", output.stderr);
    let fitted: Value = serde_json::from_slice(&fs::read(folder.join("fitted.json")).unwrap()).unwrap();
    let base = fitted["engines"][0]["parameters"]["step_base"]["value"].as_f64().unwrap();
    assert!((base - 1e7).abs() < 5e5, "{base}");
    let output = streamgauge(folder, &["twin", "fit", "warm", "-o", "fitted.json"]);
    assert!(output.code == Some(0) && !output.stderr.contains("cold start"), "{}", output.stderr);
}

#[test]
fn a_sampled_capture_is_a_part_of_the_load_and_the_notes_name_the_factor_that_restores_it() {
    let place = place();
    let folder = place.path();
    let traffic = fs::read_to_string(folder.join("traffic.jsonl")).unwrap();
    let (header, rows) = traffic.split_once('\n').unwrap();
    let mut header: TraceHeader = serde_json::from_str(header).unwrap();
    header.sample = Some(0.25);
    fs::write(folder.join("traffic.jsonl"), format!("{}\n{rows}", serde_json::to_string(&header).unwrap())).unwrap();
    let notes = |more: &[&str]| {
        let output = streamgauge(folder, &[&RUN[..], more].concat());
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        output.stderr
    };
    let part = |share: u32| {
        format!("note: the rows are {share} % of the sessions, so the load is that part of production's; ")
    };
    let remedy = "--scale 4x simulates all of it";
    assert!(notes(&[]).contains(&(part(25) + remedy)), "{}", notes(&[]));
    assert!(notes(&["--scale", "2x"]).contains(&(part(50) + remedy)), "{}", notes(&["--scale", "2x"]));
    assert!(!notes(&["--scale", "4x"]).contains("% of the sessions"));

    // `trace scale` writes what is left of the sample.
    ok(folder, &["trace", "scale", "traffic.jsonl", "--rate", "2x", "-o", "half.jsonl"]);
    let header: TraceHeader =
        serde_json::from_str(fs::read_to_string(folder.join("half.jsonl")).unwrap().lines().next().unwrap()).unwrap();
    assert_eq!(header.sample, Some(0.5));

    let plan = |twin: &str| {
        let goal = ["plan", "--twin", twin, "--traffic", "traffic.jsonl", "--slo", "chat: e2e<=1h", "--json"];
        serde_json::from_str::<Value>(&ok(folder, &goal)).unwrap()
    };
    let planned = plan("twin.json");
    assert_eq!((&planned["traffic"]["requests"], &planned["traffic"]["sample"]), (&json!(1_200.0), &json!(0.25)));
    let expected = "the capture kept 25 % of the sessions, and copies of them stand for the others";
    let assumptions = planned["assumptions"].as_array().unwrap();
    assert!(assumptions.iter().any(|of| of.as_str().unwrap().starts_with(expected)), "{assumptions:?}");
}

#[test]
fn an_error_names_the_place_and_the_remedy_and_exits_with_2() {
    let place = place();
    let folder = place.path();
    fs::write(folder.join("bad.json"), "{\"streamgauge_twin\": 1,\n \"engines\": [{\"sped\": 1}]}").unwrap();
    let bad = streamgauge(folder, &["twin", "run", "bad.json", "--traffic", "traffic.jsonl"]);
    assert_eq!(bad.code, Some(2));
    assert!(bad.stderr.contains("bad.json: unknown field `sped`") && bad.stderr.contains("line 2"), "{}", bad.stderr);
    assert!(bad.stderr.contains("remedy: see `streamgauge twin schema`"), "{}", bad.stderr);
    for (flag, value, expected) in [
        ("--router", "random", "a router is round-robin"),
        ("--set", "kv=1", "no such parameter"),
        ("--fail", "replica=1", "replica=NUMBER,at=TIME"),
        ("--autoscale", "cpu>1", "metrics are in-flight, waiting and kv"),
        ("--replicas", "3..1", "a range such as 1..8"),
    ] {
        let output = streamgauge(folder, &[&RUN[..], &[flag, value]].concat());
        assert_eq!(output.code, Some(2), "{flag}");
        assert!(output.stderr.contains(expected), "{flag}: {}", output.stderr);
    }
    let few = streamgauge(folder, &["twin", "fit", "traffic.jsonl", "-o", "none.json"]);
    assert_eq!(few.code, Some(1));
    assert!(few.stderr.contains("remedy: capture"), "{}", few.stderr);
    assert!(!folder.join("none.json").exists());
}

#[test]
fn the_schema_lists_every_parameter() {
    let place = place();
    let schema: Value = serde_json::from_str(&ok(place.path(), &["twin", "schema"])).unwrap();
    let text = schema.to_string();
    for name in ["front_end", "kv_blocks", "prefill_first", "held_out", "assumed"] {
        assert!(text.contains(name), "{name}: {text}");
    }
}
