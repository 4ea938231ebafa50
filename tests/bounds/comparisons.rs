//! Verdicts on captures of the simulated engine in virtual time: a server against itself, and against a slower one.

use std::path::{Path, PathBuf};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand_distr::{Distribution as _, Exp, LogNormal};
use streamgauge::engine::{CostModel, Engine, EngineFinish, EngineJob, EngineOptions, EnginePrompt};
use streamgauge::measure::record::{CountSource, Outcome};
use streamgauge::measure::time::{Gap, Stamp};
use streamgauge::measure::timeline::TokenEvent;
use streamgauge::report::accumulate::AccumulatorSettings;
use streamgauge::report::compare::{ComparedRun, Comparison, ComparisonSettings};
use streamgauge::report::source_reader::SourceReader;
use streamgauge::stats::change::Verdict;
use streamgauge::trace_file::gaps::pack;
use streamgauge::trace_file::header::TraceHeader;
use streamgauge::trace_file::row::{Timing, TraceEntry};

/// Comparisons of equal servers; without optimization they take minutes.
const TRIES: u64 = if cfg!(debug_assertions) { 5 } else { 100 };
/// Virtual seconds of a run.
const SECONDS: f64 = 150.0;
/// Time of a step of the server.
const STEP: Gap = Gap::from_millis(10);
/// Requests per second: the engine is half busy.
const RATE: f64 = 6.0;

/// Runs the engine under Poisson arrivals and writes what a client would have seen.
fn capture(folder: &Path, name: &str, seed: u64, step_base: Gap) -> PathBuf {
    let mut random = StdRng::seed_from_u64(seed);
    let gap = Exp::new(RATE).unwrap();
    let (isl, osl) = (LogNormal::new(6.0, 0.8).unwrap(), LogNormal::new(2.5, 0.5).unwrap());
    let mut engine = Engine::new(&EngineOptions {
        cost: CostModel { step_base, ..EngineOptions::default().cost },
        prefix_cache: false,
        ..EngineOptions::default()
    });
    let (mut entries, mut ends) = (Vec::<TraceEntry>::new(), Vec::<Vec<u64>>::new());
    let mut output = Vec::new();
    let mut arrival = gap.sample(&mut random);
    while arrival < SECONDS || engine.due().is_some() {
        let next = (arrival < SECONDS).then(|| Stamp::from_nanos((arrival * 1e9) as u64));
        match (engine.due(), next) {
            (Some(due), next) if next.is_none_or(|next| due <= next) => {
                engine.step(due, &mut output);
                for token in output.drain(..) {
                    ends[token.seq as usize].push(token.at.as_nanos());
                }
            }
            (_, Some(next)) => {
                let tokens = (isl.sample(&mut random) as u32).clamp(1, 8_000);
                let output_tokens = (osl.sample(&mut random) as u32).clamp(2, 200);
                let prompt = EnginePrompt { tokens, ..EnginePrompt::default() };
                let job =
                    EngineJob { prompt, output_tokens, ending: EngineFinish::Length, stall: None, transferred: false };
                engine.submit(next, vec![job]).unwrap();
                engine.step(next, &mut output);
                let mut entry = TraceEntry {
                    at: next.as_nanos(),
                    stream: Some(true),
                    status: Some(200),
                    outcome: Some(Outcome::Success),
                    output_tokens: Some(output_tokens.into()),
                    output_source: Some(CountSource::Usage),
                    ..TraceEntry::default()
                };
                entry.prompt.tokens = Some(tokens.into());
                entries.push(entry);
                ends.push(Vec::new());
                arrival += gap.sample(&mut random);
            }
            _ => break,
        }
    }
    let path = folder.join(name);
    let mut text = serde_json::to_string(&TraceHeader::new("simulation")).unwrap() + "\n";
    for (mut entry, tokens) in entries.into_iter().zip(&ends) {
        let since = |at: u64| at - entry.at;
        let events: Vec<TokenEvent> =
            tokens.windows(2).map(|pair| TokenEvent::new(Gap::from_nanos(pair[1] - pair[0]), Some(1))).collect();
        let first = since(tokens[0]);
        entry.timing = Timing {
            sent: Some(0),
            evidence: Some(first),
            first_token: Some(first),
            first_output: Some(first),
            ended: Some(since(*tokens.last().unwrap())),
            first_tokens: Some(1),
            gaps: Some(pack(&events)),
            lost_gaps: None,
        };
        text += &(serde_json::to_string(&entry).unwrap() + "\n");
    }
    std::fs::write(&path, text).unwrap();
    path
}

fn compared(paths: &[PathBuf]) -> Vec<ComparedRun> {
    let read =
        |path: &PathBuf| ComparedRun::read(SourceReader::open(path).unwrap(), AccumulatorSettings::default()).unwrap();
    paths.iter().map(read).collect()
}

fn verdict(before: &[PathBuf], after: &[PathBuf]) -> Comparison {
    let settings = ComparisonSettings { margin: 0.05, although_different: true, conditions: Vec::new() };
    Comparison::of(&mut compared(before), &mut compared(after), &settings)
}

/// Of `tries` comparisons with a server that has other steps, how many are worse.
fn worse(tries: u64, runs: u64, after_step: Gap) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let side = |try_number: u64, name: &str, step_base: Gap| -> Vec<PathBuf> {
        let seed = |run: u64| try_number * 1_000 + run * 2 + u64::from(name == "after");
        (0..runs).map(|run| capture(folder.path(), &format!("{name}-{run}.jsonl"), seed(run), step_base)).collect()
    };
    let is_worse = |try_number: &u64| {
        let (before, after) = (side(*try_number, "before", STEP), side(*try_number, "after", after_step));
        verdict(&before, &after).verdict == Some(Verdict::Worse)
    };
    (0..tries).filter(is_worse).count()
}

#[test]
fn of_100_comparisons_of_a_server_with_itself_at_most_5_are_worse() {
    for runs in [1, 3] {
        let worse = worse(TRIES, runs, STEP);
        assert!(worse * 20 <= TRIES as usize, "{worse} of {TRIES}");
    }
}

#[test]
fn a_server_with_steps_that_take_40_percent_longer_is_worse_in_every_comparison() {
    let tries = TRIES.min(20);
    for runs in [1, 3] {
        assert_eq!(worse(tries, runs, Gap::from_millis(14)), tries as usize, "{runs} runs");
    }
}
