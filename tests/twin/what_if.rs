//! Questions with known answers: routers, failures, admission, autoscaling, sessions.

use std::collections::BTreeSet;

use streamgauge::engine::EngineOptions;
use streamgauge::measure::record::Outcome;
use streamgauge::measure::time::{Gap, Stamp};
use streamgauge::trace_file::row::{PromptShape, TraceEntry};
use streamgauge::twin::fleet::MAX_QUEUED_REQUESTS;
use streamgauge::twin::operations::{Operations, ReplicaFailure};
use streamgauge::twin::response::{TwinOutcome, TwinResponse};
use streamgauge::twin::router::Router;

use crate::traffic::{LOAD, Load, fleet, simulate};

const MS: u64 = 1_000_000;

/// A step takes 10 ms and 0.1 ms per sequence, and a token of a prompt 0.05 ms.
fn row(at: u64, prompt: u64, output: u64) -> TraceEntry {
    let prompt = PromptShape { tokens: Some(prompt), ..PromptShape::default() };
    TraceEntry { at: at * MS, prompt, output_tokens: Some(output), ..TraceEntry::default() }
}

/// A prompt of whole blocks of one family.
fn family(at: u64, family: u64) -> TraceEntry {
    let mut row = row(at, 64, 1);
    row.prompt.blocks = (0..4).map(|block| family << 32 | block).collect();
    row
}

fn run(replicas: u32, router: Router, operations: &Operations, rows: Vec<TraceEntry>) -> Vec<TwinResponse> {
    let mut responses = simulate(fleet(EngineOptions::default(), replicas, router), operations, rows).0;
    responses.sort_by_key(|response| (response.request.at, response.ended));
    responses
}

/// Milliseconds from the start of the traffic to the end of each response.
fn ends(responses: &[TwinResponse]) -> Vec<f64> {
    responses.iter().map(|response| response.ended.as_nanos() as f64 / 1e6).collect()
}

fn plain(replicas: u32, router: Router, rows: Vec<TraceEntry>) -> Vec<TwinResponse> {
    run(replicas, router, &Operations::default(), rows)
}

#[test]
fn two_replicas_serve_two_requests_as_one_serves_one() {
    let rows = vec![row(0, 100, 2), row(0, 100, 2)];
    // Prefill of 100 or 200 tokens, then one more step.
    assert_eq!(ends(&plain(2, Router::RoundRobin, rows.clone())), [25.2, 25.2]);
    assert_eq!(ends(&plain(1, Router::RoundRobin, rows)), [30.4, 30.4]);
}

#[test]
fn round_robin_puts_a_short_request_behind_a_long_one_and_least_loaded_does_not() {
    let rows = vec![row(0, 2_000, 1), row(1, 20, 1), row(100, 20, 1)];
    // 110.1 ms for 2,000 tokens: the third request waits for the end of that step.
    assert_eq!(ends(&plain(2, Router::RoundRobin, rows.clone()))[2], 121.2);
    assert_eq!(ends(&plain(2, Router::LeastLoaded, rows))[2], 111.1);
}

#[test]
fn a_prefix_router_finds_the_caches_that_round_robin_misses() {
    // Families A A B B: round robin sends each prompt to the replica that has not seen it.
    let rows = || [(0, 1), (100, 1), (200, 2), (300, 2)].map(|(at, of)| family(at, of)).to_vec();
    let cached = |router| plain(2, router, rows()).iter().map(|response| response.cached).collect::<Vec<_>>();
    assert_eq!(cached(Router::RoundRobin), [0, 0, 0, 0]);
    assert_eq!(cached(Router::Prefix), [0, 48, 0, 48], "one of four blocks is always computed");
}

#[test]
fn a_session_router_keeps_both_turns_of_a_session_and_round_robin_splits_them() {
    let turn = |session: u64, turn: u64| TraceEntry {
        session: Some(format!("session {session}")),
        turn: Some(turn as u32),
        ..row(turn * 5_000 + session * 100, 20, 2)
    };
    // Nine sessions at four replicas: round robin sends each second turn to the next replica.
    let rows = || (0..2).flat_map(|of| (0..9).map(move |session| turn(session, of))).collect::<Vec<_>>();
    let replicas = |router| {
        let responses = plain(4, router, rows());
        let names: Vec<String> = responses.iter().map(|one| one.replica.as_deref().unwrap().to_owned()).collect();
        let (first, second) = names.split_at(9);
        let same = first.iter().zip(second).filter(|(first, second)| first == second).count();
        (same, first.iter().collect::<BTreeSet<_>>().len())
    };
    assert_eq!(replicas(Router::RoundRobin), (0, 4));
    let (same, used) = replicas(Router::Session);
    assert!(same == 9 && used > 1, "{same} sessions stay, on {used} replicas");
}

#[test]
fn a_length_router_keeps_short_prompts_away_from_long_ones() {
    let rows = vec![row(0, 2_000, 1), row(1, 20, 1)];
    let responses = plain(2, Router::Length(1_000), rows);
    let names: Vec<_> = responses.iter().filter_map(|response| response.replica.as_deref()).collect();
    assert_eq!(names, ["simulated-2", "simulated-1"]);
}

#[test]
fn pools_compute_prompts_on_one_replica_and_decode_on_another() {
    let rows = vec![row(0, 100, 3), row(16, 100, 1)];
    let responses = plain(2, Router::Pools { prefill: 1, decode: 1 }, rows);
    // First tokens at 15.1 and 31.1 ms; decoding does not notice the second prompt.
    let firsts: Vec<_> = responses.iter().map(|response| response.ttft().unwrap().as_millis()).collect();
    assert_eq!(firsts, [15.1, 15.1]);
    assert_eq!(ends(&responses), [15.1 + 2.0 * 10.1, 31.1]);
    let gaps: Vec<_> = responses[0].events.iter().map(|event| event.gap().as_millis()).collect();
    assert_eq!(gaps, [10.1, 10.1]);
}

#[test]
fn a_failed_replica_loses_its_requests_and_returns_after_its_start_up() {
    let operations = Operations {
        failures: vec![ReplicaFailure { replica: 0, at: Stamp::from_nanos(1_000 * MS) }],
        start_up: Gap::from_millis(2_000),
        ..Operations::default()
    };
    let rows = vec![row(0, 20, 1_000), row(1_500, 20, 1), row(3_500, 20, 1)];
    let responses = run(1, Router::RoundRobin, &operations, rows);
    let outcomes: Vec<_> = responses.iter().map(|response| response.outcome).collect();
    assert_eq!(outcomes, [TwinOutcome::ReplicaLost, TwinOutcome::NoReplica, TwinOutcome::Complete]);
    assert_eq!(responses[0].generated, 98, "11.1 ms, then 10.1 ms each until 1 s");
    let rows: Vec<_> = responses.into_iter().map(|response| response.into_row().0).collect();
    let statuses: Vec<_> = rows.iter().map(|row| (row.status, row.outcome)).collect();
    let expected = [(200, Outcome::Truncated), (503, Outcome::Failed), (200, Outcome::Success)];
    assert_eq!(statuses, expected.map(|(status, outcome)| (Some(status), Some(outcome))));
}

#[test]
fn the_other_replicas_take_the_requests_of_a_failed_one() {
    let operations =
        Operations { failures: vec![ReplicaFailure { replica: 1, at: Stamp::from_nanos(1) }], ..Operations::default() };
    let rows = (1..=20).map(|n| row(n * 100, 20, 1)).collect();
    let responses = run(2, Router::RoundRobin, &operations, rows);
    assert!(responses.iter().all(|response| response.replica.as_deref() == Some("simulated-1")));
}

#[test]
fn an_admission_limit_refuses_what_is_too_many_at_once() {
    let operations = Operations { admission: Some(2), ..Operations::default() };
    let rows = vec![row(0, 20, 5), row(1, 20, 5), row(2, 20, 5), row(500, 20, 5)];
    let outcomes: Vec<_> =
        run(4, Router::RoundRobin, &operations, rows).iter().map(|response| response.outcome).collect();
    use TwinOutcome::{Complete, NotAdmitted};
    assert_eq!(outcomes, [Complete, Complete, NotAdmitted, Complete]);
}

#[test]
fn a_prompt_that_no_cache_holds_is_refused() {
    let rows = vec![row(0, 16_384 * 16, 1), row(0, 16_384 * 16 - 1, 1)];
    let outcomes: Vec<_> = plain(1, Router::RoundRobin, rows).iter().map(|response| response.outcome).collect();
    assert_eq!(outcomes, [TwinOutcome::TooLong, TwinOutcome::Complete]);
}

#[test]
fn a_fleet_that_serves_less_than_comes_refuses_what_is_beyond_its_queue() {
    let count = |rows: Vec<TraceEntry>| {
        let engine = EngineOptions { max_num_seqs: 8, ..EngineOptions::default() };
        let (responses, totals) = simulate(fleet(engine, 2, Router::RoundRobin), &Operations::default(), rows);
        let refused: Vec<_> = responses.into_iter().filter(|one| one.outcome == TwinOutcome::Overloaded).collect();
        assert_eq!(refused.len() as u64, totals.overloaded);
        refused
    };
    // Two replicas run eight requests each.
    let most = MAX_QUEUED_REQUESTS + 16;
    assert_eq!(count(vec![row(0, 1, 1); most]).len(), 0);
    let refused = count(vec![row(0, 1, 1); most + 100]);
    assert_eq!(refused.len(), 100);
    let rows: Vec<_> = refused.into_iter().map(|response| response.into_row().0).collect();
    assert!(rows.iter().all(|row| (row.status, row.outcome) == (Some(503), Some(Outcome::Refused))));
    // Turns that wait for their session are a queue too: the first is in flight, and the others wait.
    let turn = |turn: u32| TraceEntry {
        session: Some("s".to_owned()),
        turn: Some(turn),
        think: (turn > 0).then_some(1),
        ..row(0, 1, 1)
    };
    let turns = |count: usize| (0..count as u32).map(turn).collect();
    assert_eq!(count(turns(1 + MAX_QUEUED_REQUESTS)).len(), 0);
    assert_eq!(count(turns(1 + MAX_QUEUED_REQUESTS + 50)).len(), 50);
}

#[test]
fn autoscaling_adds_replicas_while_the_load_is_high() {
    let operations = Operations {
        autoscale: Some("in-flight>8,max=4".parse().unwrap()),
        start_up: Gap::from_millis(30_000),
        ..Operations::default()
    };
    let rows = || (0..3_000).map(|n| row(n * 50, 200, 60)).collect::<Vec<_>>();
    let mut queue = fleet(EngineOptions { max_num_seqs: 8, ..EngineOptions::default() }, 1, Router::LeastLoaded);
    let (scaled, totals) = simulate(queue.clone(), &operations, rows());
    assert_eq!(totals.max_replicas, 4);
    let mean = |responses: &[TwinResponse]| {
        responses.iter().filter_map(TwinResponse::ttft).map(Gap::as_secs).sum::<f64>() / responses.len() as f64
    };
    queue.replicas = 1;
    let (alone, totals) = simulate(queue, &Operations::default(), rows());
    assert_eq!(totals.max_replicas, 1);
    assert!(mean(&scaled) < mean(&alone) / 3.0, "{} against {}", mean(&scaled), mean(&alone));
}

#[test]
fn the_next_turn_of_a_session_waits_for_the_simulated_response() {
    let turn = |turn: u32, at: u64, think: u64| TraceEntry {
        session: Some("s".to_owned()),
        turn: Some(turn),
        think: (turn > 0).then_some(think * MS),
        ..row(at, 20, 3)
    };
    // In the trace the turns were 5 s apart; the response ends after 31.3 ms.
    let responses = plain(1, Router::RoundRobin, vec![turn(0, 0, 0), turn(1, 5_000, 100), turn(2, 9_000, 50)]);
    let arrivals: Vec<_> = responses.iter().map(|response| response.request.at.as_nanos() as f64 / 1e6).collect();
    assert_eq!(arrivals, [0.0, 131.3, 212.6]);
}

#[test]
fn a_run_depends_on_its_inputs_alone() {
    let rows = Load { families: 10, requests: 400, ..LOAD }.rows();
    let shown = |router| {
        let responses = plain(3, router, rows.clone());
        responses.into_iter().map(|response| format!("{:?}", response.into_row())).collect::<Vec<_>>()
    };
    for router in [Router::RoundRobin, Router::Prefix, Router::Pools { prefill: 1, decode: 2 }] {
        assert_eq!(shown(router), shown(router));
    }
}

#[test]
fn a_client_that_leaves_early_ends_its_response_there() {
    let mut left = row(0, 20, 100);
    left.wanted.abort_tokens = Some(4);
    let responses = plain(1, Router::RoundRobin, vec![left]);
    assert_eq!((responses[0].outcome, responses[0].generated), (TwinOutcome::Aborted, 4));
}
