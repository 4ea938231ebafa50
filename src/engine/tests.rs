//! Tests of the engine against exact times.

use super::*;

const MS: u64 = 1_000_000;

/// 10 ms per step, 1 ms per sequence, 1 ms per prompt token, so that sums are easy to check.
fn options() -> EngineOptions {
    EngineOptions {
        cost: CostModel {
            prefill_per_second: 1_000,
            step_base: Gap::from_millis(10),
            step_per_seq: Gap::from_millis(1),
            ..CostModel::default()
        },
        max_num_seqs: 4,
        max_batched_tokens: 64,
        max_waiting: 2,
        kv_blocks: 64,
        ..EngineOptions::default()
    }
}

fn job(prompt: u32, output: u32) -> EngineJob {
    let prompt = EnginePrompt { tokens: prompt, chain: (0..u64::from(prompt / 16)).collect() };
    EngineJob { prompt, output_tokens: output, ending: EngineFinish::Length, stall: None, transferred: false }
}

fn unlike(salt: u64, prompt: u32, output: u32) -> EngineJob {
    let chain = (0..u64::from(prompt / 16)).map(|block| salt << 32 | block).collect();
    EngineJob { prompt: EnginePrompt { tokens: prompt, chain }, ..job(prompt, output) }
}

fn at(millis: u64) -> Stamp {
    Stamp::from_nanos(millis * MS)
}

/// Steps of a punctual caller until `until` or until the engine is idle: `(sequence, generated, milliseconds)`.
fn run(engine: &mut Engine, from: Stamp, until: Stamp) -> Vec<(u64, u32, u64)> {
    let (mut out, mut now) = (Vec::new(), from);
    while let Some(next) = engine.step(now, &mut out) {
        if next > until {
            break;
        }
        assert!(next > now, "a step has to move time");
        now = next;
    }
    out.into_iter().map(|output| (output.seq, output.generated, output.at.as_nanos() / MS)).collect()
}

const END: u64 = 1_000_000;

#[test]
fn a_lone_request_pays_for_its_prompt_once_and_then_a_step_per_token() {
    let mut engine = Engine::new(&options());
    engine.submit(at(100), vec![job(20, 3)]).unwrap();
    // Prefill: 10 + 1 + 20 ms. Decode: 10 + 1 ms each.
    assert_eq!(run(&mut engine, at(100), at(END)), [(0, 1, 131), (0, 2, 142), (0, 3, 153)]);
    assert_eq!(engine.due(), None);
}

#[test]
fn a_prompt_over_the_token_budget_is_prefilled_in_chunks() {
    let mut engine = Engine::new(&options());
    engine.submit(at(0), vec![job(150, 1)]).unwrap();
    // 64, 64 and 22 tokens: 75 + 75 + 33 ms.
    assert_eq!(run(&mut engine, at(0), at(END)), [(0, 1, 183)]);
}

#[test]
fn every_sequence_of_the_batch_slows_the_step() {
    let mut engine = Engine::new(&options());
    engine.submit(at(0), vec![unlike(1, 1, 3), unlike(2, 1, 3), unlike(3, 1, 3)]).unwrap();
    let seen = run(&mut engine, at(0), at(END));
    assert_eq!(seen.iter().map(|output| output.2).collect::<Vec<_>>(), [16, 16, 16, 29, 29, 29, 42, 42, 42]);
}

#[test]
fn who_arrives_during_a_step_joins_the_next() {
    let mut engine = Engine::new(&options());
    engine.submit(at(0), vec![unlike(1, 1, 3)]).unwrap();
    let mut out = Vec::new();
    assert_eq!(engine.step(at(0), &mut out), Some(at(12)));
    engine.submit(at(5), vec![unlike(2, 1, 1)]).unwrap();
    assert_eq!(engine.step(at(5), &mut out), Some(at(12)));
    // The second step decodes one and prefills one: 10 + 2 + 1 ms.
    assert_eq!(run(&mut engine, at(12), at(END)), [(0, 1, 12), (0, 2, 25), (1, 1, 25), (0, 3, 36)]);
}

#[test]
fn a_cached_prefix_is_not_prefilled_again() {
    let mut engine = Engine::new(&options());
    engine.submit(at(0), vec![job(40, 1)]).unwrap();
    assert_eq!(run(&mut engine, at(0), at(END)), [(0, 1, 51)]);
    engine.submit(at(100), vec![job(40, 1)]).unwrap();
    let mut out = Vec::new();
    assert_eq!(engine.step(at(100), &mut out), Some(at(119)), "8 of 40 tokens are left");
    engine.step(at(119), &mut out);
    assert_eq!(out[0].finished.unwrap().cached_tokens, 32);
    assert_eq!(engine.stats().cache_queries, 80);
    assert_eq!(engine.stats().cache_hits, 32);
}

#[test]
fn without_the_prefix_cache_it_is() {
    let mut engine = Engine::new(&EngineOptions { prefix_cache: false, ..options() });
    for start in [0, 100] {
        engine.submit(at(start), vec![job(40, 1)]).unwrap();
        assert_eq!(run(&mut engine, at(start), at(END)).last().unwrap().2, start + 51);
    }
}

#[test]
fn over_max_num_seqs_requests_wait_their_turn() {
    let mut engine = Engine::new(&EngineOptions { max_num_seqs: 1, ..options() });
    engine.submit(at(0), vec![unlike(1, 1, 2)]).unwrap();
    engine.submit(at(0), vec![unlike(2, 1, 1)]).unwrap();
    assert_eq!(run(&mut engine, at(0), at(END)), [(0, 1, 12), (0, 2, 23), (1, 1, 35)]);
    assert_eq!(engine.stats().queue.count, 2);
    assert_eq!(engine.stats().queue.sum, Gap::from_millis(23));
}

#[test]
fn a_full_queue_refuses_all_of_a_request_or_nothing() {
    let mut engine = Engine::new(&EngineOptions { max_num_seqs: 1, max_waiting: 2, ..options() });
    engine.submit(at(0), vec![job(1, 1); 2]).unwrap();
    assert_eq!(engine.submit(at(0), vec![job(1, 1); 2]), Err(QueueFull));
    assert_eq!(engine.submit(at(0), vec![job(1, 1)]), Ok(2..3));
    assert_eq!(engine.stats().refused, 1);
    assert_eq!(engine.stats().waiting, 3);
}

#[test]
fn an_aborted_sequence_frees_its_slot_at_the_next_step() {
    let mut engine = Engine::new(&EngineOptions { max_num_seqs: 1, ..options() });
    let first = engine.submit(at(0), vec![unlike(1, 1, 100)]).unwrap();
    engine.submit(at(0), vec![unlike(2, 1, 1)]).unwrap();
    assert_eq!(run(&mut engine, at(0), at(30)), [(0, 1, 12), (0, 2, 23)]);
    engine.abort(first, EngineFinish::Abort);
    assert_eq!(run(&mut engine, at(34), at(END)), [(1, 1, 46)]);
    assert_eq!(engine.stats().finished(EngineFinish::Abort), 1);
    assert_eq!(engine.stats().finished(EngineFinish::Length), 1);
    assert_eq!(engine.stats().kv_usage, 0.0);
}

#[test]
fn an_abort_is_due_at_once_when_no_step_is_in_flight() {
    let mut engine = Engine::new(&options());
    let stall = Some(Stall { before: 1, gap: Gap::from_millis(END) });
    let stalled = engine.submit(at(0), vec![EngineJob { stall, ..job(1, 2) }]).unwrap();
    assert_eq!(engine.step(at(0), &mut Vec::new()), Some(at(END)));
    engine.abort(stalled, EngineFinish::Abort);
    assert_eq!(engine.due(), Some(at(0)));
    assert_eq!(engine.step(at(1), &mut Vec::new()), None);
    assert_eq!(engine.stats().running, 0);
}

#[test]
fn aborting_what_has_ended_counts_nothing() {
    let mut engine = Engine::new(&options());
    let done = engine.submit(at(0), vec![job(1, 1)]).unwrap();
    run(&mut engine, at(0), at(END));
    engine.abort(done, EngineFinish::Abort);
    run(&mut engine, at(100), at(END));
    assert_eq!(engine.stats().finished(EngineFinish::Abort), 0);
}

#[test]
fn when_blocks_run_out_the_youngest_starts_over() {
    // 4 blocks of 16: two sequences of 30 tokens fill them; at the 33rd token the older needs a fifth.
    let few = EngineOptions { kv_blocks: 4, ..options() };
    let mut engine = Engine::new(&few);
    engine.submit(at(0), vec![unlike(1, 30, 20), unlike(2, 30, 4)]).unwrap();
    let seen = run(&mut engine, at(0), at(END));
    assert_eq!(engine.stats().preemptions, 1);
    assert_eq!(engine.stats().prompt_tokens, 60);
    assert_eq!(engine.stats().generation_tokens, 24);
    assert_eq!(seen.iter().filter(|output| output.0 == 1).map(|output| output.1).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(engine.stats().kv_usage, 0.0);
}

#[test]
fn several_tokens_per_step_come_after_the_first() {
    let mut engine = Engine::new(&EngineOptions { tokens_per_step: 4, ..options() });
    engine.submit(at(0), vec![job(1, 10)]).unwrap();
    assert_eq!(run(&mut engine, at(0), at(END)), [(0, 1, 12), (0, 5, 23), (0, 9, 34), (0, 10, 45)]);
}

#[test]
fn a_stall_holds_one_sequence_and_no_other() {
    let mut engine = Engine::new(&options());
    let stall = Some(Stall { before: 3, gap: Gap::from_millis(100) });
    engine.submit(at(0), vec![EngineJob { stall, ..unlike(1, 1, 4) }, unlike(2, 1, 4)]).unwrap();
    let seen = run(&mut engine, at(0), at(END));
    let of = |seq| seen.iter().filter(move |output| output.0 == seq).map(|output| output.2).collect::<Vec<_>>();
    assert_eq!(of(1), [14, 26, 37, 48]);
    assert_eq!(of(0), [14, 26, 26 + 100 + 11, 26 + 100 + 22]);
}

#[test]
fn a_stall_before_the_first_token_counts_from_arrival() {
    let mut engine = Engine::new(&options());
    let stall = Some(Stall { before: 1, gap: Gap::from_millis(100) });
    engine.submit(at(5), vec![EngineJob { stall, ..job(1, 2) }]).unwrap();
    assert_eq!(run(&mut engine, at(5), at(END)), [(0, 1, 117), (0, 2, 128)]);
}

#[test]
fn a_stall_is_not_jumped_by_a_step_of_several_tokens() {
    let mut engine = Engine::new(&EngineOptions { tokens_per_step: 4, ..options() });
    let stall = Some(Stall { before: 4, gap: Gap::from_millis(100) });
    engine.submit(at(0), vec![EngineJob { stall, ..job(1, 6) }]).unwrap();
    assert_eq!(run(&mut engine, at(0), at(END)), [(0, 1, 12), (0, 3, 23), (0, 6, 134)]);
}

#[test]
fn a_caller_that_is_a_little_late_does_not_shift_the_model() {
    let mut engine = Engine::new(&options());
    engine.submit(at(0), vec![job(1, 3)]).unwrap();
    let mut out = Vec::new();
    assert_eq!(engine.step(at(2), &mut out), Some(at(12)));
    assert_eq!(engine.step(at(15), &mut out), Some(at(23)));
    assert_eq!(engine.step(at(23), &mut out), Some(at(34)));
}

#[test]
fn a_caller_that_was_away_does_not_get_a_burst() {
    let mut engine = Engine::new(&options());
    engine.submit(at(0), vec![job(1, 3)]).unwrap();
    let mut out = Vec::new();
    engine.step(at(0), &mut out);
    assert_eq!(engine.step(at(5_000), &mut out), Some(at(5_011)));
    assert_eq!(out.len(), 1);
}

#[test]
fn the_cadence_is_exact_whatever_the_load() {
    let mut engine =
        Engine::new(&EngineOptions { exact_cadence: Some(Gap::from_millis(5)), max_num_seqs: 64, ..options() });
    engine.submit(at(0), vec![job(9, 4); 40]).unwrap();
    let (mut out, mut now) = (Vec::new(), at(0));
    while let Some(next) = engine.step(now, &mut out) {
        now = next;
    }
    for seq in 0..40 {
        let times: Vec<_> = out.iter().filter(|output| output.seq == seq).map(|output| output.at.as_nanos()).collect();
        assert_eq!(times.len(), 4);
        assert!(times[0] >= 20 * MS && times[0] < 25 * MS, "{}", times[0]);
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 5 * MS));
    }
    let mut firsts: Vec<_> = out.iter().filter(|output| output.generated == 1).map(|output| output.at).collect();
    firsts.dedup();
    assert_eq!(firsts.len(), 40, "50 slots are enough for 40 streams");
}

#[test]
fn a_late_caller_gets_every_beat_that_it_missed_as_its_own_output() {
    let mut engine = Engine::new(&EngineOptions { exact_cadence: Some(Gap::from_millis(5)), ..options() });
    engine.submit(at(0), vec![job(9, 4)]).unwrap();
    assert_eq!(run(&mut engine, at(60), at(END)), [(0, 1, 20), (0, 2, 25), (0, 3, 30), (0, 4, 35)]);
}

#[test]
fn a_stall_moves_the_rest_of_an_exact_stream() {
    let mut engine = Engine::new(&EngineOptions { exact_cadence: Some(Gap::from_millis(5)), ..options() });
    let stall = Some(Stall { before: 3, gap: Gap::from_millis(100) });
    engine.submit(at(0), vec![EngineJob { stall, ..job(9, 4) }]).unwrap();
    assert_eq!(run(&mut engine, at(0), at(END)), [(0, 1, 20), (0, 2, 25), (0, 3, 130), (0, 4, 135)]);
}

#[test]
fn an_exact_stream_that_was_aborted_sends_nothing_more() {
    let mut engine =
        Engine::new(&EngineOptions { exact_cadence: Some(Gap::from_millis(5)), max_num_seqs: 1, ..options() });
    let first = engine.submit(at(0), vec![job(9, 4)]).unwrap();
    assert_eq!(engine.submit(at(0), vec![job(9, 4)]), Err(QueueFull));
    assert_eq!(run(&mut engine, at(20), at(22)), [(0, 1, 20)]);
    engine.abort(first, EngineFinish::Abort);
    assert_eq!(run(&mut engine, at(25), at(END)), []);
    assert_eq!(engine.stats().finished(EngineFinish::Abort), 1);
    engine.submit(at(100), vec![job(9, 1)]).unwrap();
    assert_eq!(run(&mut engine, at(100), at(END)), [(1, 1, 120)]);
}
