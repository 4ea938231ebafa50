//! `streamgauge sweep` against the simulated server: levels, search, matrix, two targets, resumption.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use streamgauge::engine::{CostModel, EngineOptions};
use streamgauge::measure::time::Gap;
use streamgauge::sim::{RunningServer, SimOptions, SimServer};
use streamgauge::trace_file::reader::TraceReader;

use crate::support::sending::{CommandOutput, output_of, program};
use crate::support::upstream::Upstream;

/// A whole answer of one token.
const ANSWER: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n\
                      data: [DONE]\n\n";

fn run(args: &[&str]) -> CommandOutput {
    output_of(program(args))
}

/// A sweep of short requests that this machine can be as late with as it likes.
fn sweep(target: &str, out: &Path, args: &[&str]) -> CommandOutput {
    run(&line(target, out, args))
}

fn line<'a>(target: &'a str, out: &'a Path, args: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["sweep", "--target", target, "--out", out.to_str().unwrap(), "--no-audit", "--max-lag", "1h"];
    [&fixed[..], &["--prompt-overhead", "0", "--isl", "16", "--osl", "4"], args].concat()
}

/// A server that serves so many at a time, a token of each every `step`.
fn sim(step: u64, seats: u32) -> (RunningServer, String) {
    let cost = CostModel {
        prefill_per_second: 500_000_000,
        step_base: Gap::from_millis(step),
        step_per_seq: Gap::ZERO,
        ..CostModel::default()
    };
    let engine = EngineOptions { cost, max_num_seqs: seats, max_waiting: 1 << 16, ..EngineOptions::default() };
    let options = SimOptions { engine, ..SimOptions::default() };
    let server = SimServer::bind(options, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().spawn().unwrap();
    let target = format!("http://{}", server.local_addr());
    (server, target)
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("sweep");
    (folder, out)
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn file(out: &Path) -> Value {
    parsed(&fs::read_to_string(out.join("sweep.json")).unwrap())
}

fn folders(out: &Path) -> Vec<String> {
    file(out)["runs"].as_array().unwrap().iter().map(|run| run["folder"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn listed_levels_are_run_once_and_reported_the_same_by_report() {
    let (_server, target) = sim(1, 64);
    let (_folder, out) = place();
    let levels = ["--concurrencies", "2,4,1", "--requests", "40", "--slo", "all: e2e<=1h", "--fail-if", "goodput<100%"];
    let secret = ["--header", "authorization: Bearer very-secret"];
    let done = sweep(&target, &out, &[&levels[..], &secret].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(folders(&out), ["runs/concurrency-1", "runs/concurrency-2", "runs/concurrency-4"]);
    let report = run(&["report", out.to_str().unwrap()]);
    assert_eq!((report.code, &report.stdout), (Some(0), &done.stdout));
    let json = parsed(&run(&["report", out.to_str().unwrap(), "--json"]).stdout);
    let of = |key: &str| -> Vec<Value> {
        json["levels"].as_array().unwrap().iter().map(|level| level[key].clone()).collect()
    };
    assert_eq!(of("requests"), [40, 40, 40]);
    assert_eq!(of("meets"), [true, true, true]);
    assert_eq!((&json["goals"], &json["plan"]["header_names"]), (&json!("goodput>=100%"), &json!(["authorization"])));
    // Every level has its own texts.
    let seeds: Vec<_> = file(&out)["runs"].as_array().unwrap().iter().map(|run| run["seed"].clone()).collect();
    assert!(seeds[0] != seeds[1] && seeds[1] != seeds[2], "{seeds:?}");
    for (flag, begins) in [("--csv", "scope,metric,unit,stat,value\n"), ("--markdown", "- **date** ")] {
        let done = run(&["report", out.to_str().unwrap(), flag]);
        assert!(done.stdout.starts_with(begins) && done.stdout.contains("concurrency"), "{}", done.stdout);
    }
    // Judged now, by an SLO that no request can meet.
    let judged = run(&["report", out.to_str().unwrap(), "--slo", "x: e2e<=1ns", "--fail-if", "goodput<1%", "--json"]);
    assert_eq!((judged.code, &parsed(&judged.stdout)["levels"][0]["meets"]), (Some(1), &json!(false)));
    let wrong = run(&["report", out.to_str().unwrap(), "--slice", "1s"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains("--slice is for runs"), "{}", wrong.stderr);
    let wrong = run(&["report", out.to_str().unwrap(), "--source", "trace.jsonl"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("--source is for runs"), "{}", wrong.stderr);
    let of_runs = folders(&out).into_iter().map(|run| fs::read_to_string(out.join(run).join("run.json")).unwrap());
    let written =
        of_runs.chain([fs::read_to_string(out.join("sweep.json")).unwrap(), done.stdout.clone(), done.stderr]);
    written.for_each(|text| assert!(!text.contains("very-secret"), "{text}"));

    // A second start runs nothing, another plan is refused by its difference, and what is lost is run again.
    let again = sweep(&target, &out, &[&levels[..], &secret].concat());
    assert_eq!((again.code, &again.stdout, &*again.stderr), (Some(0), &done.stdout, ""));
    let other = sweep(&target, &out, &[&levels[..2], &["--requests", "50"]].concat());
    assert_eq!(other.code, Some(2));
    assert!(other.stderr.contains("plan.flags.requests[0] was \"40\" and is \"50\""), "{}", other.stderr);
    fs::remove_file(out.join("runs/concurrency-2/run.json")).unwrap();
    let healed = sweep(&target, &out, &[&levels[..], &secret].concat());
    assert_eq!(healed.code, Some(0), "{}", healed.stderr);
    assert!(healed.stderr.starts_with("concurrency-2 (2 of 3)\n"), "{}", healed.stderr);
    assert!(!healed.stderr.contains("concurrency-4 ("), "{}", healed.stderr);
}

#[test]
fn the_exit_code_reports_bad_invalid_and_unreachable_levels() {
    let (server, target) = sim(1, 64);
    let (folder, out) = place();
    let short = ["--concurrencies", "1", "--requests", "5"];
    let missed = sweep(&target, &out, &[&short[..], &["--slo", "x: e2e<=1ns", "--fail-if", "goodput<50%"]].concat());
    assert_eq!(missed.code, Some(1), "{}", missed.stderr);
    let late = sweep(&target, &folder.path().join("late"), &["--rates", "20", "--requests", "9"]);
    assert_eq!(late.code, Some(0), "{}", late.stderr);
    let args =
        ["sweep", "--target", &target, "--out", folder.path().to_str().unwrap(), "--rates", "20", "--requests", "9"];
    let late = run(&[&args[..], &["--no-audit", "--max-lag", "1ns"]].concat());
    assert_eq!(late.code, Some(3), "{}", late.stderr);
    assert!(late.stdout.contains("not valid"), "{}", late.stdout);
    server.stop().unwrap();
    let unreachable = sweep(&target, &folder.path().join("gone"), &short);
    assert_eq!(unreachable.code, Some(3), "{}", unreachable.stderr);
    assert!(unreachable.stderr.contains("cannot reach"), "{}", unreachable.stderr);
}

#[test]
fn the_help_states_the_default_duration_of_a_level() {
    let help = run(&["sweep", "--help"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("Send for this time at each level [default: 30s, or to the end of --requests"), "{help}");
}

#[test]
fn invalid_flags_are_rejected_before_anything_is_sent() {
    let (_folder, out) = place();
    let stderr_of = |args: &[&str]| {
        let done = sweep("http://127.0.0.1:9", &out, args);
        assert_eq!((done.code, &*done.stdout), (Some(2), ""), "{}", done.stderr);
        assert!(!out.exists());
        done.stderr
    };
    assert!(stderr_of(&[]).contains("--rates <LIST>|--concurrencies <LIST>|--find-max <GOALS>|--matrix <FILE>"));
    assert!(stderr_of(&["--rates", "4..1"]).contains("ends before it begins"));
    assert!(stderr_of(&["--find-max", "ttft.p99=1s"]).contains("or `>` after `ttft.p99`"));
    assert!(stderr_of(&["--find-max", "itl.max<=1s"]).contains("of ttft, ttfo, itl, tpot or e2e"));
    assert!(stderr_of(&["--find-max", "goodput>=95%"]).contains("define with --slo what a good request is"));
    assert!(stderr_of(&["--rates", "1", "--cancel-rate", "5%"]).contains("--cancel-after"));
    assert!(
        stderr_of(&["--rates", "1", "--num-prompts", "5"]).contains("--num-prompts of vllm bench is --requests here")
    );
    assert!(stderr_of(&["no-such-trace.jsonl", "--rates", "1"]).contains("cannot read no-such-trace.jsonl"));
    let matrix = out.with_file_name("plan.yaml");
    fs::write(&matrix, "- name: a\n  rate: 1\n  osll: 5\n").unwrap();
    let path = matrix.to_str().unwrap();
    assert!(stderr_of(&["--matrix", path]).contains("plan.yaml:3: unknown key `osll`; did you mean `osl`?"));
    fs::write(&matrix, "- {name: a, rate: 1, osl: none}\n").unwrap();
    assert!(stderr_of(&["--matrix", path]).contains("a: invalid value 'none' for '--osl <LENGTH>'"));
    fs::create_dir_all(out.with_file_name("other/runs")).unwrap();
    let other = sweep("http://127.0.0.1:9", &out.with_file_name("other"), &["--rates", "1"]);
    assert!(other.stderr.contains("holds runs and no sweep.json"), "{}", other.stderr);
}

/// Four tokens of 10 ms for each of four: no more than 100 requests a second, however fast the machine. A level of 150 leaves
/// more than a second of work behind in three.
#[test]
fn the_limit_is_found_below_a_level_that_is_saturated() {
    let (_server, target) = sim(10, 4);
    let (_folder, out) = place();
    let args = ["--find-max", "e2e.p90<=1s", "--rates", "200..400", "--duration", "2s", "--sustain", "3s", "--json"];
    let args = [&args[..], &["--arrivals", "constant"]].concat();
    let done = sweep(&target, &out, &args);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let report = parsed(&done.stdout);
    let (met, missed) = (&report["answer"]["met"], &report["answer"]["missed"]);
    let (met, missed) = (met.as_f64().unwrap(), missed.as_f64().unwrap());
    assert!(met < missed && missed / met <= 1.06 && met < 150.0, "{met} {missed}");
    let runs = file(&out)["runs"].as_array().unwrap().clone();
    assert_eq!((&runs[0]["level"]["rate"], &runs[1]["level"]["rate"]), (&json!(200.0), &json!(100.0)));
    assert!(runs.last().unwrap()["sustained"].as_bool().unwrap());
    let highest = report["levels"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&highest["level"]["rate"], &highest["meets"]), (&json!(200.0), &json!(false)));
    assert!(highest["growth"]["per_second"].as_f64().unwrap() > 10.0, "{}", highest["growth"]);
    let text = run(&["report", out.to_str().unwrap(), "--plain"]).stdout;
    assert!(text.contains(&format!("{met}/s meets it, for 3s")), "{text}");
    assert!(text.contains("-- SLO ---") && text.contains("saturated +"), "{text}");
    // A completed search prints its result again, without a run.
    let again = sweep(&target, &out, &args);
    assert_eq!((again.code, &again.stdout, &*again.stderr), (Some(0), &done.stdout, ""));
}

#[test]
fn the_search_stays_within_its_range() {
    let (_server, target) = sim(1, 64);
    let (_folder, out) = place();
    let args = ["--concurrencies", "2..3", "--find-max", "e2e.p50<=1h", "--requests", "10", "--sustain", "1s"];
    let done = sweep(&target, &out, &args);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!((&file(&out)["plan"]["search"]["most"], &file(&out)["answer"]["met"]), (&json!(3.0), &json!(3.0)));
    assert!(done.stdout.contains("no more was allowed"), "{}", done.stdout);
}

/// Every request that is open costs each token 20 ms, so four at a time have gaps of 80 ms, however fast the machine.
#[test]
fn a_limit_on_itl_is_one_on_all_gaps_and_ends_the_search_where_they_grow_too_long() {
    let cost = CostModel {
        prefill_per_second: 500_000_000,
        step_base: Gap::from_millis(1),
        step_per_seq: Gap::from_millis(20),
        ..CostModel::default()
    };
    let engine = EngineOptions { cost, ..EngineOptions::default() };
    let options = SimOptions { engine, ..SimOptions::default() };
    let server = SimServer::bind(options, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().spawn().unwrap();
    let target = format!("http://{}", server.local_addr());
    let (_folder, out) = place();
    let args = ["--find-max", "itl.p80<=70ms", "--concurrencies", "1..4", "--requests", "20", "--sustain", "3s"];
    let done = sweep(&target, &out, &[&args[..], &["--json"]].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let report = parsed(&done.stdout);
    let (met, missed) = (&report["answer"]["met"], &report["answer"]["missed"]);
    assert!((1.0..=3.0).contains(&met.as_f64().unwrap()) && missed.as_f64().unwrap() <= 4.0, "{met} {missed}");
    let judged = report["levels"].as_array().unwrap().iter().map(|level| {
        // Nothing but the gaps is judged: there is no SLO of requests.
        assert_eq!(level["goodput"], json!([]), "{level}");
        (level["level"]["concurrency"].as_f64().unwrap() <= met.as_f64().unwrap(), level["meets"].as_bool().unwrap())
    });
    let judged: Vec<_> = judged.collect();
    assert!(judged.iter().all(|(below, meets)| below == meets), "{judged:?}");
}

#[test]
fn the_exit_code_reports_that_no_level_meets_the_slo() {
    let (_server, target) = sim(1, 64);
    let (_folder, out) = place();
    let args = ["--find-max", "e2e.p90<=1ns", "--concurrencies", "1", "--requests", "40"];
    let done = sweep(&target, &out, &args);
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(done.stdout.contains("no level meets it: even 1 at a time does not"), "{}", done.stdout);
}

#[test]
fn rows_of_a_matrix_are_levels_with_flags_of_their_own_and_warm_prefixes() {
    let (_server, target) = sim(1, 64);
    let (_folder, out) = place();
    let matrix = out.with_file_name("plan.yaml");
    let rows = "- {name: short, hypothesis: the baseline, isl: 32, concurrency: 2}\n\
                - {name: cold, isl: 96, shared-prefix: 64, concurrency: 2}\n\
                - {name: warm, isl: 96, shared-prefix: 64, concurrency: 2, cache: warm}\n";
    fs::write(&matrix, rows).unwrap();
    let done = sweep(&target, &out, &["--matrix", matrix.to_str().unwrap(), "--requests", "6", "--json"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let report = parsed(&done.stdout);
    let tokens = |at: usize, key: &str| report["levels"][at]["tokens"][key].as_u64().unwrap();
    // Two tokens of the chat template in each.
    assert_eq!([0, 1, 2].map(|at| tokens(at, "input")), [34 * 6, 98 * 6, 98 * 6]);
    assert!(tokens(0, "cached") < tokens(1, "cached") && tokens(1, "cached") < tokens(2, "cached"), "{report}");
    assert!((64 - 16) * 6 <= tokens(2, "cached"), "every request finds the prefix");
    let text = run(&["report", out.to_str().unwrap()]).stdout;
    assert!(text.contains("\nhypothesis   short: the baseline\n"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("warm ")), "{text}");
}

#[test]
fn two_targets_take_turns_and_each_pass_reports_their_difference() {
    let ((_slow, slow), (_fast, fast)) = (sim(40, 64), sim(5, 64));
    let (_folder, out) = place();
    let args = ["--versus", &fast, "--concurrencies", "1", "--requests", "5"];
    let done = sweep(&slow, &out, &[&args[..], &["--json"]].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let turns = ["a-1", "b-1", "b-2", "a-2", "a-3", "b-3"].map(|turn| format!("runs/concurrency-1-{turn}"));
    assert_eq!(folders(&out), turns);
    let seeds: BTreeMap<String, Value> = file(&out)["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| (run["folder"].to_string(), run["seed"].clone()))
        .collect();
    let seeds: Vec<&Value> = seeds.values().collect();
    assert!(seeds[..3] == seeds[3..] && seeds[0] != seeds[1] && seeds[1] != seeds[2], "{seeds:?}");
    let report = parsed(&done.stdout);
    let of: Vec<_> = report["levels"].as_array().unwrap().iter().map(|of| (&of["target"], &of["requests"])).collect();
    assert_eq!(of, [(&json!("A"), &json!(15)), (&json!("B"), &json!(15))]);
    let level = &report["comparison"]["levels"][0];
    let tpot = level["comparison"]["figures"].as_array().unwrap().iter().find(|of| of["figure"] == "tpot.p50").unwrap();
    assert!((-0.95..-0.3).contains(&tpot["change"].as_f64().unwrap()), "{tpot}");
    assert!(tpot["ci95"][1].as_f64().unwrap() < 0.0, "three passes of each side decide: {tpot}");
    // Slots of a closed loop decide what is sent when, so the passes are no pairs.
    assert_eq!((&level["comparison"]["method"], &report["comparison"]["winner"]), (&json!("runs"), &json!("after")));
    let text = run(&["report", out.to_str().unwrap()]).stdout;
    assert!(text.contains("\nwinner       B: A is worse on at least one level, and B on none\n"), "{text}");
    assert!(text.contains("95 % interval") && text.contains("concurrency-1  "), "{text}");
}

#[test]
fn two_targets_alike_have_no_winner_and_rounds_and_pauses_are_for_two() {
    let ((_one, one), (_other, other)) = (sim(10, 64), sim(10, 64));
    let (folder, out) = place();
    let args = ["--versus", &other, "--concurrencies", "1", "--requests", "5", "--rounds", "2", "--pause", "10ms"];
    let done = sweep(&one, &out, &args);
    assert_eq!((done.code, folders(&out).len()), (Some(0), 4), "{}", done.stderr);
    assert!(done.stdout.contains("\nwinner       none: "), "{}", done.stdout);
    let wrong = sweep(&one, &folder.path().join("x"), &["--concurrencies", "1", "--rounds", "2"]);
    assert!(
        wrong.code == Some(2) && wrong.stderr.contains("--rounds and --pause are for --versus"),
        "{}",
        wrong.stderr
    );
}

#[test]
fn listed_levels_end_after_the_second_that_misses_and_all_goes_on() {
    let (_server, target) = sim(1, 64);
    let (folder, out) = place();
    let levels = ["--concurrencies", "1,2,3,4", "--requests", "5", "--slo", "x: e2e<=1ns"];
    let done = sweep(&target, &out, &levels);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(folders(&out), ["runs/concurrency-1", "runs/concurrency-2"]);
    assert!(
        done.stdout.contains("\nended        at concurrency-2, the second level that missed; --all"),
        "{}",
        done.stdout
    );
    let all = sweep(&target, &out, &[&levels[..], &["--all"]].concat());
    assert_eq!((all.code, folders(&out).len()), (Some(0), 4), "{}", all.stderr);
    assert!(!all.stdout.contains("\nended"), "{}", all.stdout);
    let held = sweep(&target, &folder.path().join("held"), &[&levels[..5], &["x: e2e<=1h"]].concat());
    assert!(held.stdout.contains("e2e<=3600s for 95 % holds to 4 at a time at least, not sure"), "{}", held.stdout);
    assert!(held.stdout.contains("met, not sure"), "five requests prove no 95 %: {}", held.stdout);
}

#[test]
fn what_this_machine_cannot_send_is_not_measured_and_ends_a_search_with_3() {
    let (_server, target) = sim(1, 64);
    let (folder, out) = place();
    let late = |out: &Path, args: &[&str]| {
        let fixed = ["sweep", "--target", &target, "--out", out.to_str().unwrap(), "--no-audit", "--max-lag", "1ns"];
        run(&[&fixed[..], &["--prompt-overhead", "0", "--isl", "16", "--osl", "4"], args].concat())
    };
    let args = ["--find-max", "e2e.p50<=1h", "--rates", "20..21", "--requests", "5", "--sustain", "1s"];
    let done = late(&out, &args);
    assert_eq!(done.code, Some(3), "{}", done.stderr);
    assert!(done.stderr.contains("no run is valid"), "{}", done.stderr);
    assert!(done.stderr.contains("search: at most "), "{}", done.stderr);
    let listed = folder.path().join("listed");
    let done = late(&listed, &["--rates", "20,40", "--requests", "5", "--slo", "x: e2e<=1h", "--json"]);
    let report = parsed(&done.stdout);
    for level in report["levels"].as_array().unwrap() {
        assert_eq!((&level["not_measured"], level.get("meets")), (&json!(true), None), "{level}");
        assert_eq!((&level["front"], &level["knee"]), (&json!(false), &json!(false)));
    }
    let text = run(&["report", listed.to_str().unwrap()]).stdout;
    assert!(text.contains("not measured rate-20: requests were sent late: lag adds "), "{text}");
    assert!(!text.contains("missed"), "{text}");
}

#[test]
fn rows_of_one_workload_share_a_front_and_open_and_closed_ones_a_curve() {
    let (_server, target) = sim(5, 4);
    let (_folder, out) = place();
    let matrix = out.with_file_name("plan.yaml");
    let rows = "- {name: slow, rate: 20, requests: 40}\n- {name: fast, rate: 120, requests: 240}\n\
                - {name: closed, concurrency: 2, requests: 60}\n- {name: longer, isl: 64, rate: 20, requests: 20}\n";
    fs::write(&matrix, rows).unwrap();
    let done = sweep(&target, &out, &["--matrix", matrix.to_str().unwrap(), "--json"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let report = parsed(&done.stdout);
    let level = |name: &str| {
        report["levels"].as_array().unwrap().iter().find(|of| of["level"]["name"] == name).unwrap().clone()
    };
    assert_eq!(level("longer")["front"], false, "a level alone is no front");
    assert!(["slow", "fast", "closed"].iter().any(|name| level(name)["front"] == true), "{report}");
    let points = report["loop_curves"][0]["points"].as_array().unwrap();
    let names: Vec<&str> = points.iter().map(|point| point["level"].as_str().unwrap()).collect();
    assert!(names.len() == 3 && !names.contains(&"longer"), "{names:?}");
}

#[test]
fn a_target_may_be_for_a_model_as_in_load() {
    let (_server, target) = sim(1, 64);
    let (_folder, out) = place();
    let levels = ["--concurrencies", "1", "--requests", "4", "--model", "sim"];
    let done = sweep(&format!("sim*={target}"), &out, &levels);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(file(&out)["plan"]["targets"], json!([[format!("sim*={target}")]]));
    let other = sweep(&format!("llama={target}"), &out.with_file_name("other"), &levels);
    assert_eq!(other.code, Some(2), "{}", other.stderr);
}

#[test]
fn a_trace_is_sent_at_each_rate() {
    let (_server, target) = sim(1, 64);
    let (folder, out) = place();
    let trace = folder.path().join("trace.jsonl");
    let row = |at: u64| {
        format!("{{\"timestamp\": {}, \"input_length\": 20, \"output_length\": 3, \"hash_ids\": [{at}]}}\n", at * 100)
    };
    fs::write(&trace, (0..20).map(row).collect::<String>()).unwrap();
    let args = ["sweep", trace.to_str().unwrap(), "--target", &target, "--out", out.to_str().unwrap(), "--no-audit"];
    let done = run(&[&args[..], &["--max-lag", "1h", "--rates", "20,40", "--spread"]].concat());
    assert_eq!(done.code, Some(2), "nothing to spread: {}", done.stderr);
    fs::remove_dir_all(&out).unwrap();
    let done = run(&[&args[..], &["--max-lag", "1h", "--rates", "20,40", "--json"]].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let report = parsed(&done.stdout);
    assert!(report["plan"]["trace_digest"].as_str().unwrap().starts_with("blake3:"));
    assert_eq!([0, 1].map(|at| report["levels"][at]["requests"].clone()), [20, 20]);
    let last = |level: &str| {
        let rows = TraceReader::open(&out.join(format!("runs/{level}/records.jsonl.zst"))).unwrap();
        rows.filter_map(|row| row.unwrap().planned).max().unwrap() / 1_000_000
    };
    assert_eq!((last("rate-20"), last("rate-40")), (950, 475));
    let wrong = run(&[&args[..], &["--rates", "20", "--isl", "5"]].concat());
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains("unexpected argument '--isl'"), "{}", wrong.stderr);
}

#[test]
fn a_stopped_sweep_keeps_its_runs_and_resumes() {
    let (_server, target) = sim(1, 64);
    let (_folder, out) = place();
    let args = ["--concurrencies", "1,2", "--duration", "2s"];
    let mut child = program(&line(&target, &out, &args)).spawn().unwrap();
    let mut talk = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(talk.by_ref().map(Result::unwrap).any(|line| line.starts_with("concurrency-2 (2 of 2, about ")));
    assert!(talk.by_ref().map(Result::unwrap).any(|line| line.starts_with("requests in 2.0 s to ")));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert!(talk.map(Result::unwrap).any(|line| line == "stopped: start it again to go on"));
    let mut stdout = String::new();
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(stdout.contains("1 at a time") && !stdout.contains("2 at a time"), "{stdout}");
    assert_eq!(folders(&out), ["runs/concurrency-1"]);
    let whole = parsed(&fs::read_to_string(out.join("runs/concurrency-1/run.json")).unwrap());
    assert_eq!(whole["stopped"], false, "the end of its --duration stops a closed load as planned");
    let done = sweep(&target, &out, &args);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stderr.starts_with("concurrency-2 (2 of 2, about "), "{}", done.stderr);
    assert_eq!(folders(&out), ["runs/concurrency-1", "runs/concurrency-2"]);
}

#[test]
fn what_was_not_valid_is_made_again_when_a_sweep_is_started_again() {
    let busy = Arc::new(AtomicBool::new(true));
    let turned_away = Arc::clone(&busy);
    let upstream = Upstream::start(move |mut conn| {
        while conn.request().is_some() {
            let (status, body) = match turned_away.load(Ordering::SeqCst) {
                true => ("429 Too Many Requests\r\ncontent-type: application/json", "{}"),
                false => ("200 OK\r\ncontent-type: text/event-stream", ANSWER),
            };
            conn.send(format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
        }
    });
    let target = format!("http://{}", upstream.addr);
    let (folder, listed) = place();
    let sought = folder.path().join("sought");
    let list = || sweep(&target, &listed, &["--concurrencies", "1", "--requests", "5"]);
    let goals = ["--find-max", "e2e.p50<=1h", "--rates", "20..40", "--requests", "10", "--sustain", "1s"];
    let search = || sweep(&target, &sought, &goals);
    for refused in [list(), search()] {
        assert_eq!(refused.code, Some(3), "{}", refused.stderr);
        assert!(refused.stderr.contains("were answered 429"), "{}", refused.stderr);
    }
    busy.store(false, Ordering::SeqCst);
    for answered in [list(), search()] {
        assert_eq!(answered.code, Some(0), "{}", answered.stderr);
        assert!(!answered.stdout.contains("not valid"), "{}", answered.stdout);
    }
    assert_eq!(folders(&listed), ["runs/concurrency-1"]);
}

#[test]
fn a_sweep_that_waits_for_a_silent_server_stops_at_a_signal() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("http://{}", silent.local_addr().unwrap());
    let (_folder, out) = place();
    let args = ["--rates", "2", "--duration", "1s", "--isl", "16", "--osl", "4"];
    let fixed = ["sweep", "--target", &target, "--out", out.to_str().unwrap(), "--no-audit"];
    let mut child = program(&[&fixed[..], &args].concat()).spawn().unwrap();
    let mut talk = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(talk.by_ref().map(Result::unwrap).any(|line| line.starts_with("waiting for the first answer of http://")));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert!(talk.map(Result::unwrap).any(|line| line == "stopped: start it again to go on"));
    assert_eq!((child.wait().unwrap().code(), folders(&out)), (Some(3), vec![]));
}
