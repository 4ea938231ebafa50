//! Bulk steps against single steps: the same times, whatever the jobs and the limits.

use proptest::prelude::*;

use super::*;

/// What a caller sees of a sequence: number, tokens, statistics, and the time of each event.
type Seen = (u64, u32, FinishedJob, Vec<u64>);

#[derive(Clone, Debug)]
struct JobArrival {
    at: u64,
    job: EngineJob,
    /// A sequence that is aborted then, if it has arrived.
    aborts: Option<u64>,
}

fn arrival() -> impl Strategy<Value = JobArrival> {
    let aborts = prop::option::weighted(0.1, 0_u64..40);
    let job = (0_u64..2_000_000, 1_u32..200, 1_u32..120, 0_u64..4);
    (job, aborts).prop_map(|((at, prompt, output_tokens, family), aborts)| {
        let chain = (0..u64::from(prompt / 16)).map(|block| family << 32 | block).collect();
        let prompt = EnginePrompt { tokens: prompt, chain };
        JobArrival {
            at,
            job: EngineJob { prompt, output_tokens, ending: EngineFinish::Length, stall: None, transferred: false },
            aborts,
        }
    })
}

fn options() -> impl Strategy<Value = EngineOptions> {
    let limits = (1_u32..12, 8_u32..256, 400_u32..3_200, 1_u32..4, prop::sample::select(vec![1_u32, 2, 5, 16]));
    (limits, any::<bool>(), any::<bool>(), 0_u64..3).prop_map(|(limits, prefix_cache, first, front_end)| {
        let (max_num_seqs, max_batched_tokens, kv_tokens, tokens_per_step, block_tokens) = limits;
        EngineOptions {
            cost: CostModel {
                prefill_per_second: 1_000_000,
                step_base: Gap::from_nanos(10_000),
                step_per_seq: Gap::from_nanos(137),
                batch_knee: 3,
                step_per_further_seq: Gap::from_nanos(71),
                prefill_square_ns: 0.013,
                cached_token_ns: 0.7,
                kv_token_ns: 0.11,
            },
            prefill_mode: if first { PrefillMode::First } else { PrefillMode::Chunked },
            max_num_seqs,
            max_batched_tokens,
            max_waiting: 1_000,
            kv_blocks: kv_tokens / block_tokens,
            block_tokens,
            prefix_cache,
            tokens_per_step,
            front_end: Gap::from_nanos(front_end * 7_777),
            ..EngineOptions::default()
        }
    })
}

fn submit(engine: &mut Engine, arrival: &JobArrival) {
    engine.submit(Stamp::from_nanos(arrival.at), vec![arrival.job.clone()]).expect("the queue has room");
    if let Some(seq) = arrival.aborts {
        engine.abort(seq..seq + 1, EngineFinish::Abort);
    }
}

/// Each step at its time, as the server does.
fn in_steps(options: &EngineOptions, arrivals: &[JobArrival]) -> (Vec<Seen>, EngineStats) {
    let mut engine = Engine::new(options);
    let (mut times, mut seen, mut out) = (vec![Vec::new(); arrivals.len()], Vec::new(), Vec::new());
    let mut run = |engine: &mut Engine, until: Stamp| {
        while let Some(due) = engine.due().filter(|due| *due < until) {
            engine.step(due, &mut out);
            for output in out.drain(..) {
                times[output.seq as usize].push(output.at.as_nanos());
                if let Some(finished) = output.finished {
                    let times = std::mem::take(&mut times[output.seq as usize]);
                    seen.push((output.seq, output.generated, finished, times));
                }
            }
        }
    };
    for arrival in arrivals {
        run(&mut engine, Stamp::from_nanos(arrival.at));
        submit(&mut engine, arrival);
    }
    run(&mut engine, Stamp::from_nanos(u64::MAX));
    (seen, std::mem::take(&mut engine.stats))
}

fn in_bulk(options: &EngineOptions, arrivals: &[JobArrival], pieces: u64) -> (Vec<Seen>, EngineStats) {
    let mut engine = Engine::new(options);
    engine.keep_token_times();
    let mut seen = Vec::new();
    let mut run = |engine: &mut Engine, until: u64| {
        engine.advance(Stamp::from_nanos(until), |done| {
            let times = done.times.iter().map(Stamp::as_nanos).collect();
            seen.push((done.seq, done.generated, done.finished, times));
        });
    };
    for arrival in arrivals {
        for piece in 1..=pieces {
            run(&mut engine, arrival.at / pieces * piece);
        }
        run(&mut engine, arrival.at);
        submit(&mut engine, arrival);
    }
    run(&mut engine, u64::MAX);
    (seen, std::mem::take(&mut engine.stats))
}

fn sorted(mut arrivals: Vec<JobArrival>) -> Vec<JobArrival> {
    arrivals.sort_by_key(|arrival| arrival.at);
    arrivals
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn steps_in_bulk_give_the_times_of_single_steps(
        options in options(), arrivals in prop::collection::vec(arrival(), 1..40), pieces in 1_u64..4,
    ) {
        let arrivals = sorted(arrivals);
        let (single, mut single_stats) = in_steps(&options, &arrivals);
        let (bulk, mut bulk_stats) = in_bulk(&options, &arrivals, pieces);
        prop_assert_eq!(single.len() as u64 + single_stats.finished(EngineFinish::Abort), arrivals.len() as u64);
        prop_assert_eq!(bulk, single);
        // A caller in bulk reads no gauges.
        (single_stats.running, single_stats.waiting, single_stats.kv_usage) = (0, 0, 0.0);
        (bulk_stats.running, bulk_stats.waiting, bulk_stats.kv_usage) = (0, 0, 0.0);
        prop_assert_eq!(format!("{bulk_stats:?}"), format!("{single_stats:?}"));
    }

    #[test]
    fn nothing_finishes_before_the_next_finish(
        options in options(), arrivals in prop::collection::vec(arrival(), 1..40),
    ) {
        let mut engine = Engine::new(&options);
        engine.keep_token_times();
        let count = arrivals.len() as u64;
        let mut arrivals = sorted(arrivals).into_iter().peekable();
        let mut finished = 0;
        loop {
            let next = engine.next_finish();
            let arrival = arrivals.peek().map(|arrival| Stamp::from_nanos(arrival.at));
            let Some(at) = next.into_iter().chain(arrival).min() else { break };
            let mut early = None;
            engine.advance(at, |done| early = Some(done.at));
            prop_assert_eq!(early, None, "before {}", at.as_nanos());
            if arrival == Some(at) {
                submit(&mut engine, &arrivals.next().expect("it was peeked"));
            } else {
                engine.advance(at.after(Gap::from_nanos(1)), |_| finished += 1);
            }
        }
        prop_assert_eq!(engine.in_flight(), 0);
        prop_assert_eq!(finished + engine.stats.finished(EngineFinish::Abort), count);
    }
}
