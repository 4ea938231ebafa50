//! Bounds of the latencies: records whose cause is known, from the simulated engine and by hand.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use streamgauge::engine::{
    CostModel, Engine, EngineFinish, EngineJob, EngineOptions, EngineOutput, EnginePrompt, FinishedJob,
};
use streamgauge::measure::record::{CountSource, Outcome};
use streamgauge::measure::server_metrics::ServerMetric;
use streamgauge::measure::time::{Gap, Stamp};
use streamgauge::measure::timeline::TokenEvent;
use streamgauge::report::accumulate::{Accumulator, AccumulatorSettings};
use streamgauge::report::source_reader::{SourceReader, read};
use streamgauge::report::{PERCENTILES, Report};
use streamgauge::trace_file::gaps::pack;
use streamgauge::trace_file::row::{RequestTargets, TraceEntry};
use streamgauge::trace_file::server_metrics::{SERVER_METRICS_FILE, Scrape, ScrapesHeader, ScrapesWriter, VERSION};

use super::results::{prompt, run, success};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// The report of rows, with scrapes of the server beside them.
pub(super) fn report(rows: &[TraceEntry], run_file: &Value, scrapes: &[Scrape]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let path = run(&folder.path().join("run"), rows, 0, run_file);
    if !scrapes.is_empty() {
        write_scrapes(&path, scrapes);
    }
    let mut fold = Accumulator::new(AccumulatorSettings::default());
    let sources = read(vec![SourceReader::open(&path).unwrap()], &mut fold).unwrap();
    serde_json::from_str(&Report::of(&mut fold, sources, &PERCENTILES).json()).unwrap()
}

pub(super) fn write_scrapes(run: &Path, scrapes: &[Scrape]) {
    let last = scrapes.iter().map(|scrape| scrape.server).max().unwrap_or(0);
    let servers = (0..=last).map(|server| format!("http://h:{}/metrics", server + 1)).collect();
    let header = ScrapesHeader { streamgauge_server_metrics: VERSION, started_unix_ns: 0, servers };
    let mut writer = ScrapesWriter::create(&run.join(SERVER_METRICS_FILE), &header).unwrap();
    scrapes.iter().for_each(|scrape| writer.write(scrape).unwrap());
    writer.finish().unwrap();
}

pub(super) fn verdicts(report: &Value) -> Vec<&str> {
    let findings = report["diagnosis"]["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["verdict"].as_str().unwrap()).collect()
}

pub(super) fn finding<'a>(report: &'a Value, verdict: &str) -> &'a Value {
    let findings = report["diagnosis"]["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["verdict"] == verdict);
    found.unwrap_or_else(|| panic!("no {verdict} in {:#}", report["diagnosis"]))
}

/// A figure of a list of evidence.
pub(super) fn figure<'a>(list: &'a Value, name: &str) -> &'a Value {
    let found = list.as_array().unwrap().iter().find(|figure| figure["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list:#}"))
}

fn holds(interval: &Value, value: f64) -> bool {
    interval["low"].as_f64().unwrap() <= value && value <= interval["high"].as_f64().unwrap()
}

/// Pseudo-random numbers from 0 to 1.
fn noise(n: u64) -> f64 {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
    for _ in 0..3 {
        x ^= x >> 29;
        x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    (x >> 11) as f64 / (1_u64 << 53) as f64
}

/// (arrival in milliseconds, prompt tokens, output tokens)
type Request = (u64, u32, u32);

/// `count` requests with random gaps of a mean of `every` milliseconds.
fn poisson(count: u64, every: f64, lengths: impl Fn(u64) -> (u32, u32)) -> Vec<Request> {
    let mut at = 0.0;
    let request = |n: u64| {
        at += -every * (1.0 - noise(n)).ln();
        let (prompt, output) = lengths(n);
        (at as u64, prompt, output)
    };
    (0..count).map(request).collect()
}

/// Runs the simulated engine in virtual time. Returns a row per request and a scrape per second.
fn simulate(options: &EngineOptions, requests: &[Request]) -> (Vec<TraceEntry>, Vec<Scrape>) {
    let mut engine = Engine::new(options);
    let mut tokens: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut finished: BTreeMap<u64, (u64, FinishedJob)> = BTreeMap::new();
    let mut in_flight = Vec::new();
    let mut collect = |out: &mut Vec<EngineOutput>, finished: &mut BTreeMap<u64, (u64, FinishedJob)>| {
        for output in out.drain(..) {
            tokens.entry(output.seq).or_default().push(output.at.as_nanos());
            finished.extend(output.finished.map(|job| (output.seq, (output.at.as_nanos(), job))));
        }
    };
    let mut out = Vec::new();
    for (number, (at, isl, osl)) in requests.iter().enumerate() {
        let at = at * MS;
        while let Some(due) = engine.due().filter(|due| due.as_nanos() <= at) {
            engine.step(due, &mut out);
            collect(&mut out, &mut finished);
        }
        in_flight.push((number - finished.len()) as u32);
        let chain = (0..u64::from(isl / 16)).map(|block| (number as u64) << 32 | block).collect();
        let prompt = EnginePrompt { tokens: *isl, chain };
        let job =
            EngineJob { prompt, output_tokens: *osl, ending: EngineFinish::Length, stall: None, transferred: false };
        engine.submit(Stamp::from_nanos(at), vec![job]).unwrap();
        engine.step(Stamp::from_nanos(at), &mut out);
        collect(&mut out, &mut finished);
    }
    while let Some(due) = engine.due() {
        engine.step(due, &mut out);
        collect(&mut out, &mut finished);
    }
    let row = |(number, (at, isl, osl)): (usize, &Request)| {
        let (times, at) = (&tokens[&(number as u64)], at * MS);
        let events: Vec<TokenEvent> =
            times.windows(2).map(|two| TokenEvent::new(Gap::from_nanos(two[1] - two[0]), Some(1))).collect();
        let mut row = success(0, 0, 0, 0, &[]);
        (row.at, row.planned, row.in_flight) = (at, Some(at), Some(in_flight[number]));
        (row.timing.first_token, row.timing.first_output) = (Some(times[0] - at), Some(times[0] - at));
        row.timing.ended = Some(times[times.len() - 1] - at);
        row.timing.first_tokens = Some(1);
        row.timing.gaps = Some(pack(&events));
        (row.output_tokens, row.output_source) = (Some(u64::from(*osl)), Some(CountSource::Usage));
        row.prompt = prompt(u64::from(*isl), None);
        row
    };
    let rows: Vec<TraceEntry> = requests.iter().enumerate().map(row).collect();
    let last = finished.values().map(|(at, _)| *at).max().unwrap();
    let scrape = |second: u64| {
        let at = second * SECOND;
        let ended = || finished.values().filter(move |(ended, _)| *ended <= at).map(|(_, job)| job);
        let total = |of: fn(&FinishedJob) -> f64| ended().map(of).sum::<f64>();
        let (sent, done) = (requests.iter().filter(|request| request.0 * MS <= at).count(), ended().count());
        let running = (sent - done).min(options.max_num_seqs as usize);
        let figures = [
            (ServerMetric::Waiting, (sent - done - running) as f64),
            (ServerMetric::Running, running as f64),
            (ServerMetric::KvUsage, 0.1),
            (ServerMetric::QueueSeconds, total(|job| job.queued.as_secs())),
            (ServerMetric::QueueRequests, done as f64),
            (ServerMetric::PrefillSeconds, total(|job| job.first.as_secs())),
            (ServerMetric::PrefillRequests, done as f64),
        ];
        Scrape { at: at.cast_signed(), figures: figures.into(), ..Scrape::default() }
    };
    let scrapes = (0..=last / SECOND + 1).map(scrape).collect();
    (rows, scrapes)
}

fn options(prefill_per_second: u32, step_base: u64, step_per_seq: u64, max_num_seqs: u32) -> EngineOptions {
    let cost = CostModel {
        prefill_per_second,
        step_base: Gap::from_nanos(step_base),
        step_per_seq: Gap::from_nanos(step_per_seq),
        ..CostModel::default()
    };
    EngineOptions { cost, max_num_seqs, ..EngineOptions::default() }
}

#[test]
fn long_prompts_on_a_slow_prefill_are_prefill_bound_at_its_rate() {
    // 2,000 tokens per second, 40 % busy: 500 µs per token.
    let requests = poisson(600, 2_500.0, |n| ((200.0 + 3_600.0 * noise(n + 1_000_000)) as u32, 8));
    let (rows, scrapes) = simulate(&options(2_000, 10 * MS, 0, 64), &requests);
    let by_records = report(&rows, &json!({}), &[]);
    assert_eq!(verdicts(&by_records)[0], "prefill_bound", "{:#}", by_records["diagnosis"]);
    let slope = figure(&finding(&by_records, "prefill_bound")["evidence"], "TTFT per prompt token");
    assert!(holds(&slope["interval"], 5e-4), "{slope}");
    assert!(!verdicts(&by_records).contains(&"decode_bound"), "{:#}", by_records["diagnosis"]);
    let by_server = report(&rows, &json!({}), &scrapes);
    let share = figure(&finding(&by_server, "prefill_bound")["evidence"], "prefill in TTFT, by the server");
    assert!(share["value"].as_f64().unwrap() > 0.5 && share["at_least"] == 0.5, "{share}");
    assert!(!verdicts(&by_server).contains(&"queueing"));
}

#[test]
fn more_requests_than_are_served_are_queueing_with_and_without_the_servers_histograms() {
    // Four at a time, 0.8 s each: five per second are served and eight are sent.
    let requests = poisson(400, 125.0, |_| (64, 40));
    let (rows, scrapes) = simulate(&options(20_000, 20 * MS, 0, 4), &requests);
    let by_records = report(&rows, &json!({}), &[]);
    assert_eq!(verdicts(&by_records), ["queueing"], "{:#}", by_records["diagnosis"]);
    let by_server = report(&rows, &json!({}), &scrapes);
    assert_eq!(verdicts(&by_server), ["queueing", "scheduler_bound"], "{:#}", by_server["diagnosis"]);
    let queueing = finding(&by_server, "queueing");
    let share = figure(&queueing["evidence"], "queue time in TTFT, by the server");
    assert!(share["value"].as_f64().unwrap() > 0.95, "{share}");
    assert!(queueing["symptom"].as_str().unwrap().contains("TTFT grows with the load"));
    assert!(queueing["next_measurement"].as_str().unwrap().contains("--find-max"));
    let statement = finding(&by_server, "scheduler_bound")["statement"].as_str().unwrap();
    assert!(statement.starts_with("at most 4 requests run while others wait"), "{statement}");
    // The parts of TTFT add up.
    let relations = &by_server["diagnosis"]["relations"];
    let part = |name: &str| figure(relations, name)["value"].as_f64().unwrap();
    let parts = part("in the server's queue") + part("in prefill") + part("network and the rest");
    assert!((parts / part("TTFT at the client") - 1.0).abs() < 0.01, "{relations:#}");
}

#[test]
fn long_responses_on_an_idle_prefill_are_decode_bound_by_the_weights_or_by_the_batch() {
    let requests = poisson(400, 400.0, |n| (64, 100 + (100.0 * noise(n + 9)) as u32));
    let (rows, scrapes) = simulate(&options(100_000, 15 * MS, 0, 64), &requests);
    let weights = report(&rows, &json!({}), &scrapes);
    assert_eq!(verdicts(&weights), ["decode_bound"], "{:#}", weights["diagnosis"]);
    assert!(finding(&weights, "decode_bound")["statement"].as_str().unwrap().ends_with("memory bandwidth"));
    let (rows, scrapes) = simulate(&options(100_000, MS, 2 * MS, 64), &requests);
    let batch = report(&rows, &json!({}), &scrapes);
    let statement = finding(&batch, "decode_bound")["statement"].as_str().unwrap();
    assert!(statement.contains("grows with the batch"), "{:#}", batch["diagnosis"]);
    let decode = figure(&finding(&batch, "decode_bound")["evidence"], "decode in E2E");
    assert!(decode["value"].as_f64().unwrap() > 0.9 && decode["interval"]["low"].as_f64().unwrap() > 0.9, "{decode}");
}

#[test]
fn a_fast_server_with_short_responses_has_no_verdict_but_its_relations() {
    let requests = poisson(400, 500.0, |n| ((500.0 * noise(n + 5)) as u32 + 16, 2));
    let (rows, scrapes) = simulate(&options(100_000, 10 * MS, 0, 64), &requests);
    let report = report(&rows, &json!({}), &scrapes);
    assert_eq!(verdicts(&report), [""; 0], "{:#}", report["diagnosis"]);
    let slope = figure(&report["diagnosis"]["relations"], "TTFT against ISL: prefill");
    assert!(holds(&slope["interval"], 1e-5), "{slope}");
}

/// `count` requests, one every 50 ms, which `change` alters: TTFT 100 ms, then ten gaps of 20 ms.
pub(super) fn steady(count: u64, change: impl Fn(u64, &mut TraceEntry)) -> Vec<TraceEntry> {
    let row = |n: u64| {
        let mut row = success(n * 50, n * 50, 100 + n % 7, 320, &[(20, Some(1)); 10]);
        (row.output_tokens, row.output_source) = (Some(11), Some(CountSource::Usage));
        row.timing.first_tokens = Some(1);
        row.prompt = prompt(100, Some(0));
        row.in_flight = Some((n % 5) as u32);
        change(n, &mut row);
        row
    };
    (0..count).map(row).collect()
}

#[test]
fn a_line_that_falls_or_starts_below_nothing_is_no_prefill_and_no_latency() {
    // TTFT falls with the prompt, and grows with the square of the load: the line is below 0 at its start.
    let rows = steady(600, |n, row| {
        let load = n % 21;
        row.in_flight = Some(load as u32);
        row.prompt = prompt(1_000 - load * 10, Some(0));
        row.timing.first_token = Some((1 + load * load) * MS);
        row.timing.first_output = row.timing.first_token;
    });
    let report = report(&rows, &json!({}), &[]);
    let relations = report["diagnosis"]["relations"].as_array().unwrap();
    let names: Vec<&str> = relations.iter().map(|relation| relation["name"].as_str().unwrap()).collect();
    for absent in ["TTFT against ISL: prefill", "TTFT at an empty prompt: queue and overhead", "TTFT without others"] {
        assert!(!names.contains(&absent), "{absent} in {relations:#?}");
    }
    for present in ["R² of TTFT against ISL", "TTFT against requests in flight"] {
        assert!(names.contains(&present), "{present} in {relations:#?}");
    }
}

#[test]
fn a_cold_cache_is_found_by_the_beginning_of_the_run_with_what_a_hit_saves() {
    let rows = steady(1_000, |n, row| {
        let cold = n < 100;
        row.prompt = prompt(100, Some(if cold { 0 } else { 80 }));
        row.timing.first_token = Some(if cold { 180 } else { 100 } * MS);
    });
    let report = report(&rows, &json!({}), &[]);
    let found = finding(&report, "cache_cold");
    assert_eq!(figure(&found["evidence"], "prompt tokens from the cache")["value"], 0.72);
    let saved = figure(&found["evidence"], "TTFT of computed prompts − of cached ones");
    assert!((saved["value"].as_f64().unwrap() - 0.08).abs() < 1e-9, "{saved}");
    let warm = steady(1_000, |_, row| row.prompt = prompt(100, Some(80)));
    assert!(!verdicts(&super::diagnosis::report(&warm, &json!({}), &[])).contains(&"cache_cold"));
}

#[test]
fn a_warm_cache_has_its_effect_among_the_relations() {
    // One prompt of three is new; a computed token takes 1 ms.
    let rows = steady(900, |n, row| {
        let cached = if n % 3 == 0 { 0 } else { 80 };
        row.prompt = prompt(100, Some(cached));
        row.timing.first_token = Some((150 - cached) * MS);
    });
    let warm = report(&rows, &json!({}), &[]);
    assert!(!verdicts(&warm).contains(&"cache_cold"));
    let relations = &warm["diagnosis"]["relations"];
    for (name, value, unit) in [
        ("prompt tokens from the cache", 600.0 * 80.0 / 90_000.0, "share"),
        ("TTFT of computed prompts − of cached ones", 0.08, "seconds"),
        ("prefill that the cache saved, on average", 0.001 * 80.0 * 2.0 / 3.0, "seconds"),
    ] {
        let figure = figure(relations, name);
        assert!((figure["value"].as_f64().unwrap() - value).abs() < 1e-9, "{figure}");
        assert_eq!(figure["unit"], unit);
    }
    let names = |cached: Option<u64>| {
        let rows = steady(200, |_, row| row.prompt = prompt(100, cached));
        let report = report(&rows, &json!({}), &[]);
        let relations = report["diagnosis"]["relations"].as_array().unwrap().clone();
        let of_cache = relations.iter().filter(|figure| figure["name"].as_str().unwrap().contains("cache"));
        of_cache.map(|figure| figure["value"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(Some(80)), [json!(0.8)], "prompts that are alike show no saving");
    assert_eq!((names(Some(0)), names(None)), (vec![], vec![]));
}

#[test]
fn late_sends_are_client_bound_unless_slots_decide() {
    let late = steady(1_000, |n, row| row.at = row.planned.unwrap() + (30 + n % 3) * MS);
    let open = report(&late, &json!({}), &[]);
    let lag = figure(&finding(&open, "client_bound")["evidence"], "send lag in TTFT from planned");
    // 31 ms of about 134 ms.
    assert!((lag["value"].as_f64().unwrap() - 31.0 / 134.0).abs() < 0.002, "{lag}");
    assert!(!verdicts(&report(&late, &json!({"closed_loop": true}), &[])).contains(&"client_bound"));
}

#[test]
fn a_late_second_token_is_a_slow_handover() {
    let gaps = |second: u64| {
        let events: Vec<TokenEvent> =
            (0..10).map(|n| TokenEvent::new(Gap::from_millis(if n == 0 { second } else { 20 }), Some(1))).collect();
        steady(1_000, |_, row| row.timing.gaps = Some(pack(&events)))
    };
    // TPOT is (200 + 9 · 20) ÷ 10 = 38 ms.
    let slow = report(&gaps(200), &json!({}), &[]);
    let ratio = figure(&finding(&slow, "handover")["evidence"], "second token ÷ TPOT");
    assert!((ratio["value"].as_f64().unwrap() - 200.0 / 38.0).abs() < 1e-6, "{ratio}");
    assert!(!verdicts(&report(&gaps(30), &json!({}), &[])).contains(&"handover"));
}

#[test]
fn a_tail_has_no_cause_in_the_load_only_if_the_slowest_met_no_more_of_it() {
    let tail = |load: u32| {
        steady(4_000, |n, row| {
            if n % 97 == 0 {
                row.timing.first_token = Some((2_000 + n) * MS);
                row.timing.ended = Some((3_000 + n) * MS);
                row.in_flight = Some(load);
            }
        })
    };
    assert!(verdicts(&report(&tail(2), &json!({}), &[])).contains(&"tail_without_load"));
    assert!(!verdicts(&report(&tail(20), &json!({}), &[])).contains(&"tail_without_load"));
}

#[test]
fn preemptions_are_counted_in_the_window_of_the_figures() {
    // 100 s of requests; the server counted 7 before, 5 within, and 3 after the first scrape past the end.
    let rows = steady(1_000, |_, _| {});
    let scrape = |second: i64, preemptions: f64| Scrape {
        at: second * SECOND.cast_signed(),
        figures: [(ServerMetric::Preemptions, preemptions), (ServerMetric::KvUsage, 0.99)].into(),
        ..Scrape::default()
    };
    let scrapes = [scrape(-2, 0.0), scrape(-1, 7.0), scrape(10, 9.0), scrape(51, 12.0), scrape(60, 15.0)];
    let report = report(&rows, &json!({}), &scrapes);
    let found = finding(&report, "preempting");
    assert_eq!(found["evidence"][0]["value"], 5.0, "{:#}", report["servers"]);
    assert_eq!(found["evidence"][2]["value"], 0.99);
    assert_eq!((&report["servers"][0]["from_s"], &report["servers"][0]["to_s"]), (&json!(-1.0), &json!(51.0)));
}

#[test]
fn refusals_beyond_the_context_window_are_explained_by_it() {
    let rows = steady(40, |n, row| {
        if n % 3 == 0 {
            (row.status, row.outcome) = (Some(400), Some(Outcome::Refused));
            row.prompt = prompt(0, None);
            row.prompt.tokens = None;
            row.wanted = RequestTargets { input_tokens: Some(4_000), output_tokens: Some(97), ..Default::default() };
        }
    });
    let engine = |limit: u64| json!({"engines": {"http://h": {"/v1/models": {"id": "m", "max_model_len": limit}}}});
    let report = |limit: u64| report(&rows, &engine(limit), &[]);
    let statement = "14 of 40 requests asked for more than the server's max_model_len 4096";
    assert_eq!(finding(&report(4_096), "context_window")["statement"], statement);
    assert!(!verdicts(&report(4_097)).contains(&"context_window"), "4,097 tokens fit");
    let folder = tempfile::tempdir().unwrap();
    let path = run(&folder.path().join("run"), &rows, 0, &engine(4_096));
    let text = std::process::Command::new(env!("CARGO_BIN_EXE_streamgauge")).arg("report").arg(&path).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains(statement) && !text.contains("answered 400"), "{text}");
}
