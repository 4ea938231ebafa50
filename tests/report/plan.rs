//! `streamgauge plan`: capacity, replicas and cost, each worked out by hand.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use streamgauge::measure::record::{CountSource, Outcome};
use streamgauge::measure::server_metrics::ServerMetric;
use streamgauge::report::context::ReportContext;
use streamgauge::report::plan::arrivals::{ArrivalWindow, Arrivals};
use streamgauge::report::plan::fleet::{Fleet, ReplicaCost, missed_requests};
use streamgauge::report::plan::load_mix::LoadMix;
use streamgauge::report::plan::measured_level::{LevelWithoutResult, MeasuredLevel};
use streamgauge::report::plan::measured_sweep::MeasuredSweep;
use streamgauge::report::plan::miss_curve::MissCurve;
use streamgauge::report::plan::replica_capacity::{NoCapacity, ReplicaCapacity};
use streamgauge::report::plan::replicas::{ReplicaTimeline, Reserves, replicas_for};
use streamgauge::report::plan::{CapacityPlan, Traffic, text};
use streamgauge::report::sweep::level_verdict::LevelVerdict;
use streamgauge::report::text_layout::TextLayout;
use streamgauge::trace_file::header::TraceHeader;
use streamgauge::trace_file::row::{PromptShape, Timing, TraceEntry};
use streamgauge::trace_file::server_metrics::{SERVER_METRICS_FILE, Scrape, ScrapesHeader, ScrapesWriter, VERSION};
use streamgauge::trace_file::writer::TraceWriter;

const MS: u64 = 1_000_000;
/// A real sweep of `streamgauge sim --max-num-seqs 8`.
const SWEEP: &str = "tests/data/runs/sweep";

fn level(rate: f64, throughput: f64, verdict: LevelVerdict, miss_share: f64) -> MeasuredLevel {
    MeasuredLevel {
        name: format!("rate-{rate}"),
        rate,
        throughput,
        requests: 1_000,
        verdict,
        miss_share: Some(miss_share),
        output_tokens_per_second: throughput * 100.0,
        good_tokens_per_request: Some(90.0),
        watts: None,
        mix: LoadMix::default(),
    }
}

/// Holds 10/s, misses 20/s with a quarter of its requests, and answers 25/s at most.
fn levels() -> Vec<MeasuredLevel> {
    vec![
        level(5.0, 5.0, LevelVerdict::Held, 0.0),
        level(10.0, 10.0, LevelVerdict::Held, 0.05),
        level(20.0, 20.0, LevelVerdict::Missed, 0.25),
        level(40.0, 25.0, LevelVerdict::Saturated, 1.0),
    ]
}

/// Minutes at these rates.
fn minutes(rates: &[f64]) -> Arrivals {
    let window = |rate: &f64| ArrivalWindow { seconds: 60.0, requests: rate * 60.0 };
    Arrivals { windows: rates.iter().map(window).collect() }
}

fn reserves(headroom: f64, failed: u32, start_up_s: f64) -> Reserves {
    Reserves { headroom, failed, start_up_s }
}

fn sweep_of(levels: Vec<MeasuredLevel>) -> MeasuredSweep {
    MeasuredSweep {
        path: "sweep".to_owned(),
        goals: "goodput>=95%".to_owned(),
        slos: vec!["chat: ttft<=1s".to_owned()],
        levels,
        left_out: Vec::new(),
        is_closed_loop: false,
        is_finished: true,
        gpus: None,
        context: ReportContext::default(),
    }
}

fn traffic(rates: &[f64]) -> Traffic {
    let mix = Some(LoadMix::default());
    Traffic { source: "day".to_owned(), arrivals: minutes(rates), mix, sample: None, simulated: false }
}

#[track_caller]
fn near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-9, "{value}, expected {expected}");
}

#[test]
fn capacity_is_the_highest_level_that_holds_below_the_first_that_misses() {
    let capacity = ReplicaCapacity::of(&levels()).unwrap();
    assert_eq!((capacity.rate, capacity.low, capacity.high, capacity.at_least), (10.0, Some(10.0), Some(20.0), false));
    let mut unsure = levels();
    (unsure[1].verdict, unsure[2].verdict) = (LevelVerdict::HeldUnsure, LevelVerdict::MissedUnsure);
    let capacity = ReplicaCapacity::of(&unsure).unwrap();
    assert_eq!((capacity.rate, capacity.low, capacity.high), (10.0, Some(5.0), Some(25.0)));
    // A saturated server that answers less than it held limits only its own rate.
    (unsure[3].throughput, unsure[2].verdict) = (8.0, LevelVerdict::Saturated);
    (unsure[2].throughput, unsure[2].rate) = (9.0, 20.0);
    assert_eq!(ReplicaCapacity::of(&unsure).unwrap().high, Some(20.0));
    // A level that holds above one that misses is chance.
    let mut contradiction = levels();
    contradiction[0].verdict = LevelVerdict::HeldUnsure;
    contradiction[1].verdict = LevelVerdict::MissedUnsure;
    contradiction[2].verdict = LevelVerdict::Held;
    let capacity = ReplicaCapacity::of(&contradiction).unwrap();
    assert_eq!((capacity.rate, capacity.low, capacity.high), (5.0, None, Some(25.0)));
}

#[test]
fn a_saturated_level_never_counts_and_without_a_level_that_misses_capacity_is_at_least_the_highest() {
    let capacity = ReplicaCapacity::of(&levels()[..2]).unwrap();
    assert_eq!((capacity.rate, capacity.high, capacity.at_least), (10.0, None, true));
    let mut saturated = levels();
    saturated.iter_mut().for_each(|level| level.verdict = LevelVerdict::Saturated);
    let error = ReplicaCapacity::of(&saturated).unwrap_err().to_string();
    assert!(error.starts_with("no level of the sweep holds the SLO: its lowest, rate-5 at 5.00 requests/s"), "{error}");
    assert_eq!(ReplicaCapacity::of(&[]), Err(NoCapacity::NothingMeasured));
}

#[test]
fn replicas_follow_the_rate_with_headroom_and_a_spare_and_are_ordered_ahead() {
    // 8 requests/s for each replica with a headroom of 20 %.
    let arrivals = minutes(&[4.0, 8.0, 8.1, 30.0, 4.0, 4.0]);
    let planned = ReplicaTimeline::with_foresight(&arrivals, 10.0, &reserves(0.2, 1, 120.0));
    assert_eq!(planned.serving, [2, 2, 3, 5, 2, 2]);
    // Two minutes ahead.
    assert_eq!(planned.paid, [3, 5, 5, 5, 2, 2]);
    assert_eq!(planned.peak(), 5);
    near(planned.mean(&arrivals), 22.0 / 6.0);
    let late = ReplicaTimeline::without_foresight(&arrivals, 10.0, &reserves(0.2, 1, 120.0));
    assert_eq!((late.paid, late.serving), (vec![2, 2, 3, 5, 2, 2], vec![2, 2, 2, 2, 2, 2]));
    let bare = ReplicaTimeline::with_foresight(&arrivals, 10.0, &reserves(0.0, 0, 0.0));
    assert_eq!((&bare.paid, &bare.serving), (&vec![1, 1, 1, 3, 1, 1], &bare.paid));
    assert_eq!((replicas_for(0.0, 1.0), replicas_for(0.3, 0.1), replicas_for(0.31, 0.1)), (1, 3, 4));
}

#[test]
fn misses_between_levels_are_on_a_straight_line_and_a_saturated_level_stands_at_its_throughput() {
    let curve = MissCurve::of(&levels()).unwrap();
    for (rate, share) in [(1.0, 0.0), (7.5, 0.025), (10.0, 0.05), (15.0, 0.15), (22.5, 0.625), (25.0, 1.0), (90.0, 1.0)]
    {
        near(curve.share(rate), share);
    }
    // 600 requests at 10/s on one replica, 1,800 at 30/s on two: 15/s each.
    let arrivals = minutes(&[10.0, 30.0]);
    near(missed_requests(&arrivals, &[1, 2], &curve, 0, 1.0), 600.0 * 0.05 + 1_800.0 * 0.15);
    // The first window has no replica left.
    near(missed_requests(&arrivals, &[1, 2], &curve, 1, 1.0), 600.0 + 1_800.0);
    near(missed_requests(&arrivals, &[1, 2], &curve, 0, 1.5), 900.0 * 0.15 + 2_700.0 * 0.625);
    let mut gaps_only = levels();
    gaps_only.iter_mut().for_each(|level| level.miss_share = None);
    assert_eq!(MissCurve::of(&gaps_only), None);
}

#[test]
fn gpu_hours_and_dollars_are_those_of_a_day() {
    let cost = ReplicaCost { gpus: Some(8), dollars_per_gpu_hour: Some(2.5) };
    let timeline = ReplicaTimeline { paid: vec![1, 4], serving: vec![1, 4] };
    let fleet = Fleet::of(&timeline, &minutes(&[1.0, 1.0]), &cost);
    assert_eq!((fleet.peak_replicas, fleet.mean_replicas, fleet.peak_gpus), (4, 2.5, Some(32)));
    // 2.5 replicas of 8 GPUs for 24 hours.
    assert_eq!((fleet.gpu_hours_per_day, fleet.dollars_per_day), (Some(480.0), Some(1_200.0)));
    assert_eq!(fleet.dollars_per_million(600e6), Some(2.0));
    let unknown = Fleet::constant(3, &ReplicaCost::default());
    assert_eq!((unknown.peak_replicas, unknown.peak_gpus, unknown.dollars_per_day), (3, None, None));
}

#[test]
fn a_plan_shows_what_throughput_would_have_bought_and_what_each_reserve_is_for() {
    let cost = ReplicaCost { gpus: Some(2), dollars_per_gpu_hour: Some(3.0) };
    let plan = CapacityPlan::of(sweep_of(levels()), &traffic(&[10.0, 10.0, 50.0, 10.0]), reserves(0.2, 1, 60.0), cost)
        .unwrap();
    // ⌈10 ÷ 8⌉ + 1 and ⌈50 ÷ 8⌉ + 1, paid a minute ahead.
    let replicas: Vec<_> = plan.over_time.iter().map(|window| (window.replicas, window.serving)).collect();
    assert_eq!(replicas, [(3, 3), (8, 3), (8, 8), (3, 3)]);
    assert_eq!((plan.fleet.peak_replicas, plan.fleet.mean_replicas, plan.fleet.peak_gpus), (8, 5.5, Some(16)));
    assert_eq!(plan.fleet.gpu_hours_per_day, Some(264.0));
    assert_eq!((plan.peak_at_low, plan.peak_at_high), (Some(8), Some(5)));
    // With one down: 5/s each in three minutes, 50 ÷ 7 in one.
    near(plan.miss_share.unwrap(), 3_000.0 * (0.05 * (50.0 / 7.0 - 5.0) / 5.0) / 4_800.0);
    // 4,800 requests in four minutes, 90 good tokens in each.
    near(plan.good_tokens_per_day.unwrap(), 4_800.0 * 360.0 * 90.0);
    near(plan.dollars_per_million_good_tokens.unwrap(), 264.0 * 3.0 / 155.52);

    let raw = plan.raw_throughput.as_ref().unwrap();
    assert_eq!((raw.requests_per_second, &*raw.level), (25.0, "rate-40"));
    // The plan, its bare one, and those by 25/s: ⌈50 ÷ 20⌉ + 1 and 50 ÷ 25.
    let peaks: Vec<u64> = plan.alternatives.iter().map(|of| of.fleet.peak_replicas).collect();
    assert_eq!(peaks, [8, 5, 4, 2]);
    // One replica at 10/s misses 5 %, and two at 25/s each miss all.
    near(plan.alternatives[3].missed_requests.unwrap(), 1_800.0 * 0.05 + 3_000.0);
    near(plan.alternatives[1].miss_share.unwrap(), 0.05);

    let [headroom, failed, start_up] = &plan.effects[..] else { panic!("{:?}", plan.effects) };
    assert_eq!(headroom.event, "25 % more requests arrive, and 1 replica is down");
    assert_eq!((headroom.with.fleet.peak_replicas, headroom.without.fleet.peak_replicas), (8, 6));
    // One replica at 12.5/s each minute, five in the peak: all at 12.5/s.
    near(headroom.without.miss_share.unwrap(), 0.1);
    assert_eq!((failed.with.fleet.peak_replicas, failed.without.fleet.peak_replicas), (8, 7));
    // 10/s on one, and 50/s on six.
    let share = 0.05 * (50.0 / 6.0 - 5.0) / 5.0;
    near(failed.without.miss_share.unwrap(), (1_800.0 * 0.05 + 3_000.0 * share) / 4_800.0);
    assert_eq!(start_up.event, "a replica serves 1m after its order, and 1 replica is down");
    assert_eq!((start_up.with.fleet.mean_replicas, start_up.without.fleet.mean_replicas), (5.5, 4.25));
    // The peak finds two replicas: 25/s each.
    near(start_up.without.miss_share.unwrap(), 3_000.0 / 4_800.0);
}

#[test]
fn a_constant_rate_needs_a_number_of_replicas_and_no_order() {
    let at = |rate| Traffic { arrivals: Arrivals::constant(rate), mix: None, ..traffic(&[1.0]) };
    let plan =
        |rate, reserves| CapacityPlan::of(sweep_of(levels()), &at(rate), reserves, ReplicaCost::default()).unwrap();
    let planned = plan(100.0, reserves(0.2, 1, 180.0));
    assert_eq!((planned.fleet.peak_replicas, planned.fleet.mean_replicas), (14, 14.0));
    assert_eq!(planned.effects.len(), 2, "start-up time has no effect");
    assert!(planned.assumptions.iter().any(|text| text.contains("start-up time has no effect")));
    assert_eq!(plan(100.0, reserves(0.0, 0, 0.0)).fleet.peak_replicas, 10);
    assert_eq!(plan(f64::MAX, reserves(0.2, 1, 0.0)).fleet.peak_replicas, u64::MAX, "absurd, and no panic");
}

#[test]
fn watts_and_tokens_per_joule_are_those_of_the_level_of_the_capacity() {
    let mut powered = levels();
    powered[1].watts = Some(500.0);
    let plan = CapacityPlan::of(sweep_of(powered), &traffic(&[10.0]), reserves(0.0, 0, 0.0), ReplicaCost::default());
    let power = plan.unwrap().power.unwrap();
    // 1,000 tokens/s at 500 W.
    assert_eq!((power.watts_per_replica, power.mean_watts, power.tokens_per_joule), (500.0, 500.0, 2.0));
}

#[test]
fn lengths_sessions_and_caches_that_differ_are_named_with_their_figures() {
    let mix = |input: u64, later_turns: u64, cached: u64| {
        let mut mix = LoadMix { requests: 100, later_turns, cached_tokens: Some(cached), ..LoadMix::default() };
        (0..100).for_each(|n| mix.input.take(input + n % 10));
        (0..100).for_each(|n| mix.output.take(50 + n % 10));
        mix
    };
    let mut measured = levels();
    measured[1].mix = mix(100, 0, 0);
    let plan = |of: LoadMix| {
        let traffic = Traffic { mix: Some(of), ..traffic(&[10.0, 10.0]) };
        CapacityPlan::of(sweep_of(measured.clone()), &traffic, reserves(0.0, 0, 0.0), ReplicaCost::default()).unwrap()
    };
    let same = plan(mix(100, 0, 0));
    assert_eq!(same.differences, []);
    let mix_line = "ISL 104, OSL 54, 0.0 % later turns, 0.0 % of prompt tokens cached";
    assert_eq!(
        (same.traffic.mix.unwrap().to_string(), same.measured.mix.to_string()),
        (mix_line.into(), mix_line.into())
    );
    let other = plan(mix(400, 60, 20_000));
    let differences: Vec<String> = other.differences.iter().map(ToString::to_string).collect();
    assert_eq!(
        differences,
        [
            "ISL differs: 404 tokens on average in the traffic, 104 in the sweep (KS distance 1.00, p < 0.001)",
            "share of later turns differs: 60.0 % in the traffic, 0.0 % in the sweep",
            "share of cached prompt tokens differs: 49.4 % in the traffic, 0.0 % in the sweep",
        ]
    );
    let warned = other.warnings.iter().filter(|warning| warning.warning == "traffic_differs").count();
    assert_eq!(warned, 3);
}

/// A run of a level: a request every `gap` ms, each with its TTFT in ms and 10 tokens.
pub(crate) fn write_run(folder: &Path, gap: u64, ttfts: impl Iterator<Item = u64>, run_file: &Value) {
    fs::create_dir_all(folder).unwrap();
    let header = TraceHeader { started_unix_ns: Some(0), ..TraceHeader::new("test") };
    let mut writer = TraceWriter::new(File::create(folder.join("records.jsonl.zst")).unwrap(), &header).unwrap();
    for (number, ttft) in (0..).zip(ttfts) {
        let row = TraceEntry {
            at: number * gap * MS,
            planned: Some(number * gap * MS),
            dialect: Some("openai.chat".to_owned()),
            stream: Some(true),
            outcome: Some(Outcome::Success),
            output_tokens: Some(10),
            output_source: Some(CountSource::Usage),
            prompt: PromptShape { tokens: Some(100), ..PromptShape::default() },
            timing: Timing { first_token: Some(ttft * MS), ended: Some(ttft * MS), ..Timing::default() },
            in_flight: Some(0),
            // Each session has four turns.
            session: Some((number / 4).to_string()),
            turn: Some((number % 4) as u32),
            ..TraceEntry::default()
        };
        writer.write(&row).unwrap();
    }
    writer.finish().unwrap();
    fs::write(folder.join("run.json"), run_file.to_string()).unwrap();
}

/// A sweep of 10/s that is good, 20/s of which a tenth is late, and 40/s that this machine could not send.
fn sweep(folder: &Path) -> PathBuf {
    let late = |every: u64| (0..400_u64).map(move |number| if number % every == every - 1 { 900 } else { 100 });
    let meta = json!({"meta": {"gpu_count": "4"}});
    write_run(&folder.join("runs/rate-10"), 100, late(1_000), &meta);
    write_run(&folder.join("runs/rate-20"), 50, late(10), &meta);
    let not_valid = json!({"valid": false, "invalid_because": ["it was sent late"]});
    write_run(&folder.join("runs/rate-40"), 25, late(1_000), &not_valid);
    let levels = [10.0, 20.0, 40.0].map(|rate| json!({"name": format!("rate-{rate}"), "rate": rate}));
    let runs = levels.clone().map(|level| {
        json!({
            "folder": format!("runs/{}", level["name"].as_str().unwrap()),
            "level": level, "target": 0, "pass": 1, "sustained": false, "seed": 1, "digest": ""
        })
    });
    let plan = json!({"verb": "load", "targets": [["http://h"]], "header_names": [], "flags": {}, "levels": levels});
    let file = json!({"streamgauge_sweep": 1, "version": "0", "plan": plan, "runs": runs});
    fs::write(folder.join("sweep.json"), file.to_string()).unwrap();
    folder.to_owned()
}

struct Done {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn plan(sweep: &Path, traffic: &str, args: &[&str]) -> Done {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    let command = command.args(["plan", "--measured"]).arg(sweep).args(["--traffic", traffic]).args(args);
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Done { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn parsed(done: &Done) -> Value {
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn levels_are_read_with_the_rate_that_was_sent_and_runs_that_are_not_valid_never_count() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = sweep(folder.path());
    let json = parsed(&plan(&sweep, "40/s", &["--slo", "chat: ttft<=500ms", "--json"]));
    assert_eq!(json["streamgauge_plan"], 1);
    let levels = json["measured"]["levels"].as_array().unwrap();
    let of = |key: &str| levels.iter().map(|level| level[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("rate"), [10.0, 20.0]);
    assert_eq!(of("verdict"), ["held", "missed"]);
    assert_eq!(of("miss_share"), [0.0, 0.1]);
    assert_eq!(json["measured"]["left_out"], json!([{"name": "rate-40", "reason": "it was sent late"}]));
    // 360 of 400 requests with 10 tokens.
    assert_eq!(of("good_tokens_per_request"), [10.0, 9.0]);
    assert_eq!(json["capacity"], json!({"rate": 10.0, "low": 10.0, "high": 20.0, "at_least": false}));
    // ⌈40 ÷ 8⌉ + 1 replicas of the GPUs that the runs state.
    assert_eq!((&json["fleet"]["peak_replicas"], &json["fleet"]["peak_gpus"]), (&json!(6), &json!(24)));
    let warnings: Vec<_> = json["warnings"].as_array().unwrap().iter().map(|of| of["warning"].clone()).collect();
    assert_eq!(warnings, ["levels_far_apart", "levels_not_measured"]);
    assert!(json["warnings"][1]["text"].as_str().unwrap().contains("rate-40 (it was sent late)"));
}

#[test]
fn an_slo_may_be_percentiles_of_requests_or_of_gaps() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = sweep(folder.path());
    // 90 % of the requests at 20/s are good.
    let json = parsed(&plan(&sweep, "40/s", &["--slo", "ttft.p85<=500ms", "--json"]));
    assert_eq!((&json["capacity"]["rate"], &json["capacity"]["at_least"]), (&json!(20.0), &json!(true)));
    assert_eq!(json["measured"]["goals"], "ttft.p85<=500ms");
    let both = ["--slo", "ttft.p85<=500ms goodput>=99%", "--slo", "chat: ttft<=500ms", "--json"];
    assert_eq!(parsed(&plan(&sweep, "40/s", &both))["capacity"]["rate"], 10.0);
    let stderr_of = |args: &[&str]| plan(&sweep, "40/s", args).stderr;
    assert!(stderr_of(&[]).contains("the sweep has no SLO; remedy: state with --slo"), "{}", stderr_of(&[]));
    assert!(stderr_of(&["--slo", "goodput>=99%"]).contains("goodput needs a second --slo"));
    assert!(stderr_of(&["--slo", "ttft<=9ms"]).contains("expected a percentile"));
}

#[test]
fn a_sweep_without_a_level_that_holds_is_an_error_of_its_own() {
    let done = plan(Path::new(SWEEP), "5/s", &["--slo", "chat: ttft<=1ms"]);
    assert_eq!((done.code, &*done.stdout), (Some(1), ""));
    assert_eq!(
        done.stderr,
        "error: no level of the sweep holds the SLO: its lowest, rate-4 at 4.93 requests/s, misses it with 100.0 % of its \
         requests; remedy: measure lower rates with `streamgauge sweep --rates`, or give another --slo\n"
    );
}

#[test]
fn wrong_inputs_are_named_with_a_remedy_and_exit_with_2() {
    let stderr_of = |sweep: &str, traffic: &str, args: &[&str]| {
        let done = plan(Path::new(sweep), traffic, args);
        assert_eq!(done.code, Some(2), "{}", done.stdout);
        done.stderr
    };
    assert!(stderr_of("tests/data/runs/chat", "5/s", &[]).contains("no sweep.json is there; remedy: name the folder"));
    assert!(stderr_of(SWEEP, "no-such-file", &[]).contains("remedy: name a capture or a trace, or give a rate"));
    assert!(stderr_of(SWEEP, "5/s", &["--price", "2/gpu-h"]).contains("state them with --gpus-per-replica"));
    assert!(stderr_of(SWEEP, "5/s", &["--price", "2"]).contains("as in 2.5/gpu-h"));
    assert!(stderr_of(SWEEP, "5/s", &["--headroom", "95%"]).contains("expected 0% to 90%"));
}

#[test]
fn sweeps_of_two_targets_or_of_different_rows_are_not_one_replica() {
    let folder = tempfile::tempdir().unwrap();
    let path = sweep(folder.path());
    let read = || serde_json::from_str::<Value>(&fs::read_to_string(path.join("sweep.json")).unwrap()).unwrap();
    let (original, slo) = (read(), ["--slo", "chat: ttft<=500ms"]);
    let plan_of = |change: &dyn Fn(&mut Value)| {
        let mut file = original.clone();
        change(&mut file);
        fs::write(path.join("sweep.json"), file.to_string()).unwrap();
        plan(&path, "5/s", &slo)
    };
    let two = plan_of(&|file| file["plan"]["targets"] = json!([["http://a"], ["http://b"]]));
    assert!(two.code == Some(2) && two.stderr.contains("the sweep compares two targets"), "{}", two.stderr);
    let rows = plan_of(&|file| file["runs"][1]["level"]["flags"] = json!({"isl": ["9"]}));
    assert!(rows.code == Some(2) && rows.stderr.contains("--series rate-10 or --series rate-20"), "{}", rows.stderr);
    let chosen = plan(&path, "5/s", &[&slo[..], &["--series", "rate-10"]].concat());
    assert!(chosen.code == Some(0), "{}", chosen.stderr);
    let unknown = plan(&path, "5/s", &[&slo[..], &["--series", "rate-11"]].concat());
    assert!(unknown.code == Some(2) && unknown.stderr.contains("no run is of a level rate-11"), "{}", unknown.stderr);
    let unfinished = plan_of(&|file| _ = file["runs"].as_array_mut().unwrap().pop());
    assert!(unfinished.stdout.contains("warning: the sweep has not run all its levels"), "{}", unfinished.stdout);
}

#[test]
fn a_request_that_misses_two_slos_is_one_that_misses() {
    let folder = tempfile::tempdir().unwrap();
    let path = sweep(folder.path());
    let slos = ["--slo", "a: ttft<=500ms", "--slo", "b: e2e<=500ms", "--json"];
    let report = parsed(&plan(&path, "5/s", &slos));
    let level =
        report["measured"]["levels"].as_array().unwrap().iter().find(|level| level["name"] == "rate-20").unwrap();
    assert_eq!(level["miss_share"], json!(0.1), "40 of 400 miss both: {level}");
}

#[test]
fn a_longer_run_that_misses_outweighs_a_pass_that_holds() {
    let folder = tempfile::tempdir().unwrap();
    let path = sweep(folder.path());
    // 100 requests, of which 20 are late: with the 400 of the pass still 96 % are good.
    let late = (0..100_u64).map(|number| if number % 5 == 0 { 900 } else { 100 });
    write_run(&path.join("runs/rate-10-sustained"), 100, late, &json!({}));
    let mut file: Value = serde_json::from_str(&fs::read_to_string(path.join("sweep.json")).unwrap()).unwrap();
    let mut run = file["runs"][0].clone();
    (run["folder"], run["sustained"]) = (json!("runs/rate-10-sustained"), json!(true));
    file["runs"].as_array_mut().unwrap().push(run);
    fs::write(path.join("sweep.json"), file.to_string()).unwrap();
    let done = plan(&path, "5/s", &["--slo", "chat: ttft<=500ms"]);
    assert!(done.code == Some(1) && done.stderr.contains("its lowest, rate-10"), "{}", done.stderr);
}

#[test]
fn power_is_the_sum_of_the_scraped_gpus_of_all_servers() {
    let folder = tempfile::tempdir().unwrap();
    let path = sweep(folder.path());
    let servers = ["http://a", "http://b"].map(str::to_owned).to_vec();
    let header = ScrapesHeader { streamgauge_server_metrics: VERSION, started_unix_ns: 0, servers };
    let mut writer = ScrapesWriter::create(&path.join("runs/rate-10").join(SERVER_METRICS_FILE), &header).unwrap();
    for (server, watts) in [(0, 300.0), (1, 100.0), (0, 500.0), (1, 100.0)] {
        let figures = [(ServerMetric::GpuPower, watts)].into();
        writer.write(&Scrape { at: 1, server, figures, ..Scrape::default() }).unwrap();
    }
    writer.finish().unwrap();
    let json = parsed(&plan(&path, "5/s", &["--slo", "chat: ttft<=500ms", "--json", "--fail", "0"]));
    assert_eq!((&json["power"]["watts_per_replica"], &json["power"]["mean_watts"]), (&json!(500.0), &json!(500.0)));
    // 4,000 tokens until the end of the last of 400 requests, 40 s after the first.
    near(json["power"]["tokens_per_joule"].as_f64().unwrap(), 4_000.0 / 40.0 / 500.0);
}

#[test]
fn a_trace_gives_arrivals_over_time_and_the_warning_that_its_lengths_are_others() {
    let trace = "tests/data/traces/azure/conv2023_first300s.csv";
    let args = ["--gpus-per-replica", "8", "--price", "2.5/gpu-h"];
    let done = plan(Path::new(SWEEP), trace, &[&args[..], &["--json"]].concat());
    let json = parsed(&done);
    assert_eq!((&json["traffic"]["requests"], &json["traffic"]["window_s"]), (&json!(1_445.0), &json!(30.0)));
    let requests = json["over_time"].as_array().unwrap().iter().map(|window| window["requests"].as_f64().unwrap());
    assert_eq!(requests.sum::<f64>(), 1_445.0);
    let properties: Vec<_> = json["differences"].as_array().unwrap().iter().map(|of| of["property"].clone()).collect();
    assert_eq!(properties, ["isl", "osl"]);
    assert!(json["assumptions"].as_array().unwrap().len() >= 10);
    let text = plan(Path::new(SWEEP), trace, &args).stdout;
    assert!(text.contains("warning: ISL differs: 1057 tokens on average in the traffic, 64 in the sweep"), "{text}");
    let plain = plan(Path::new(SWEEP), trace, &["--plain"]).stdout;
    assert!(plain.contains("replicas, paid") && plain.is_ascii(), "{plain}");
}

#[test]
fn arrivals_of_a_sampled_capture_are_those_of_all_sessions_and_the_plan_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let plan_of = |sample: Option<f64>| {
        let path = folder.path().join("traffic.jsonl.zst");
        let header = TraceHeader { sample, ..TraceHeader::new("streamgauge test") };
        let mut writer = TraceWriter::new(File::create(&path).unwrap(), &header).unwrap();
        // 2 requests/s for 100 s.
        for number in 0..=200_u64 {
            let row = TraceEntry { at: number * 500 * MS, output_tokens: Some(9), ..TraceEntry::default() };
            writer.write(&row).unwrap();
        }
        writer.finish().unwrap();
        parsed(&plan(Path::new(SWEEP), path.to_str().unwrap(), &["--json"]))["traffic"].clone()
    };
    let (all, sampled) = (plan_of(None), plan_of(Some(0.05)));
    near(all["mean_rate"].as_f64().unwrap(), 2.01);
    near(sampled["mean_rate"].as_f64().unwrap(), 40.2);
    near(sampled["peak_rate"].as_f64().unwrap(), 20.0 * all["peak_rate"].as_f64().unwrap());
    near(sampled["requests_per_day"].as_f64().unwrap(), 40.2 * 86_400.0);
    assert_eq!((&all["sample"], &sampled["sample"]), (&json!(null), &json!(0.05)));

    let traffic = Traffic { sample: Some(0.05), ..traffic(&[10.0, 10.0]) };
    let plan = CapacityPlan::of(sweep_of(levels()), &traffic, reserves(0.0, 0, 0.0), ReplicaCost::default()).unwrap();
    let expected =
        "the capture kept 5 % of the sessions, and arrivals are counted 20 times: the other sessions are like these";
    assert!(plan.assumptions.iter().any(|assumption| assumption.starts_with(expected)), "{:?}", plan.assumptions);
}

#[test]
fn turns_of_sessions_are_counted_in_the_records_of_the_sweep_and_in_the_traffic() {
    let folder = tempfile::tempdir().unwrap();
    let path = sweep(folder.path());
    let slo = ["--slo", "chat: ttft<=500ms", "--json"];
    // 1,445 requests without sessions.
    let json = parsed(&plan(&path, "tests/data/traces/azure/conv2023_first300s.csv", &slo));
    let turns = json["differences"].as_array().unwrap().iter().find(|of| of["property"] == "later_turns").unwrap();
    assert_eq!((&turns["measured"], &turns["traffic"]), (&json!(0.75), &json!(0.0)));
    // A run's own records as the traffic: nothing differs.
    let records = path.join("runs/rate-10/records.jsonl.zst");
    assert_eq!(parsed(&plan(&path, records.to_str().unwrap(), &slo))["differences"], json!([]));
}

#[test]
fn every_warning_has_its_cause_and_none_comes_without() {
    let warnings = |change: &dyn Fn(&mut MeasuredSweep)| {
        let mut sweep = sweep_of(levels());
        sweep.levels[2].rate = 12.0;
        change(&mut sweep);
        let plan = CapacityPlan::of(sweep, &traffic(&[1.0]), reserves(0.0, 0, 0.0), ReplicaCost::default()).unwrap();
        plan.warnings.iter().map(|warning| warning.warning).collect::<Vec<_>>()
    };
    assert_eq!(warnings(&|_| ()), [""; 0]);
    assert_eq!(warnings(&|sweep| sweep.is_closed_loop = true), ["closed_loop"]);
    assert_eq!(warnings(&|sweep| sweep.is_finished = false), ["sweep_unfinished"]);
    assert_eq!(warnings(&|sweep| sweep.levels[2].rate = 20.0), ["levels_far_apart"]);
    assert_eq!(warnings(&|sweep| sweep.levels.truncate(2)), ["capacity_open"]);
    assert_eq!(warnings(&|sweep| sweep.levels[1].verdict = LevelVerdict::HeldUnsure), ["capacity_uncertain"]);
    let above = |sweep: &mut MeasuredSweep| sweep.levels[3].verdict = LevelVerdict::Held;
    assert_eq!(warnings(&above), ["levels_contradict"]);
    let reason = "sent late".to_owned();
    let left_out = LevelWithoutResult { name: "rate-80".to_owned(), reason };
    assert_eq!(warnings(&|sweep| sweep.left_out = vec![left_out.clone()]), ["levels_not_measured"]);
}

#[test]
fn the_page_needs_nothing_else_and_holds_the_chart_its_values_and_every_assumption() {
    let trace = "tests/data/traces/azure/conv2023_first300s.csv";
    let json = parsed(&plan(Path::new(SWEEP), trace, &["--json"]));
    let page = plan(Path::new(SWEEP), trace, &["--html"]).stdout;
    for outside in [" src=\"", "<link", "<img", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
    assert_eq!(page.matches("<figure").count(), 2);
    let markdown = plan(Path::new(SWEEP), trace, &["--markdown"]).stdout;
    let assumptions = json["assumptions"].as_array().unwrap();
    assert_eq!(markdown.split("Assumptions\n\n").nth(1).unwrap().matches("\n- ").count() + 1, assumptions.len());
    for assumption in assumptions {
        assert!(page.contains(&format!("<li>{}.</li>", assumption.as_str().unwrap())), "{assumption}");
    }
    let windows = json["over_time"].as_array().unwrap().len();
    assert!(
        page.split("<summary>").nth(1).unwrap().split("</table>").next().unwrap().matches("<tr>").count()
            == windows + 1
    );
    assert!(page.contains("script-src 'sha256-") && !page.contains("script-src 'unsafe-inline'"));
}

#[test]
fn names_from_files_reach_no_page_and_no_terminal_unescaped() {
    let mut hostile = sweep_of(levels());
    hostile.path = "<img>\u{1b}[2J".to_owned();
    let plan = CapacityPlan::of(hostile, &traffic(&[1.0, 2.0]), reserves(0.0, 0, 0.0), ReplicaCost::default()).unwrap();
    let page = streamgauge::report::plan::html::render(&plan);
    assert!(page.contains("&lt;img&gt;") && !page.contains("<img>"));
    assert!(!text::render(&plan, TextLayout { width: 80, plain: true }).contains('\u{1b}'));
    assert!(!streamgauge::report::plan::markdown::render(&plan).contains(['\u{1b}', '<']));
}

#[test]
fn a_plan_begins_with_what_its_sweep_was_measured_with_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let path = sweep(folder.path());
    for (run, seed) in [("rate-10", 1), ("rate-20", 2)] {
        let run_file = json!({"version": "0.1.0", "meta": {"gpu": "H100", "gpu_count": "4"}, "seed": seed});
        fs::write(path.join("runs").join(run).join("run.json"), run_file.to_string()).unwrap();
    }
    let args = ["--slo", "chat: ttft<=500ms"];
    let shown = |format: &[&str]| plan(&path, "5/s", &[&args, format].concat());
    let json = parsed(&shown(&["--json"]));
    let facts = ["gpu", "gpu_count", "seed", "streamgauge_version", "engine"];
    let expected = [json!("H100"), json!("4"), json!("1, 2"), json!("0.1.0"), Value::Null];
    assert_eq!(facts.map(|fact| json["context"][fact].clone()), expected);
    let text = shown(&[]).stdout;
    assert!(text.find("GPU          H100\n").unwrap() < text.find("\nplan         ").unwrap(), "{text}");
    let markdown = shown(&["--markdown"]).stdout;
    assert!(markdown.find("- **GPU** H100\n").unwrap() < markdown.find("- **plan** ").unwrap(), "{markdown}");
    let html = shown(&["--html"]).stdout;
    assert!(html.find("<dd>H100</dd>").unwrap() < html.find("<dt>plan</dt>").unwrap());
}
