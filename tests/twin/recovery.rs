//! A fit recovers the parameters of the engine that served the rows.

use std::path::Path;

use streamgauge::engine::{CostModel, EngineOptions};
use streamgauge::measure::time::Gap;
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::TraceEntry;
use streamgauge::twin::fit::observation::TrafficGroups;
use streamgauge::twin::fit::{EngineFit, fit};
use streamgauge::twin::parameter::{Parameter, ParameterEstimate};

use crate::traffic::{LOAD, Load, SCHEME, capture, prefill_first, seen_by_a_busy_reader, with_jitter};

fn fitted(engine: &EngineOptions, load: Load) -> EngineFit {
    fitted_to(capture(engine.clone(), load), load)
}

fn fitted_to(rows: Vec<TraceEntry>, load: Load) -> EngineFit {
    let mut groups = TrafficGroups::default();
    rows.into_iter().for_each(|row| groups.add(row, 0));
    let [group] = &groups.finish()[..] else { panic!("one engine served all rows") };
    fit(group, (load.families > 0).then_some(&SCHEME), None).unwrap()
}

/// Slack of the interval of a value. It states what the noise allows, and steps that compute a part of a prompt are more
/// than noise.
const VALUE_SLACK: f64 = 0.05;

/// Asserts that the interval of each parameter has the truth in it.
fn assert_intervals(fit: &EngineFit, engine: &EngineOptions) {
    for (parameter, estimate) in &fit.engine.parameters {
        let truth = parameter.read(engine);
        let slack = if estimate.value.is_some() { VALUE_SLACK } else { 0.0 };
        let low = estimate.low.or(estimate.value).unwrap_or(0.0) * (1.0 - slack);
        let high = estimate.high.or(estimate.value).unwrap_or(f64::INFINITY) * (1.0 + slack);
        assert!((low..=high).contains(&truth), "{parameter:?}: {truth} is not in {estimate:?} of {fit:#?}");
    }
}

/// Asserts that the fit determines these parameters, each within 5 %, that every interval has the truth in it, and that
/// held-out figures are within 10 %.
fn assert_recovered(name: &str, engine: &EngineOptions, load: Load, expected: &[Parameter]) {
    let fit = fitted(engine, load);
    assert_intervals(&fit, engine);
    let details = format!("{name}: {:#?}", fit);
    for parameter in expected {
        let estimate = fit.engine.parameters.get(parameter).unwrap_or_else(|| panic!("no {parameter:?} in {details}"));
        let value = estimate.value.unwrap_or_else(|| panic!("{parameter:?} is a range in {details}"));
        let truth = parameter.read(engine);
        assert!((value - truth).abs() <= 0.05 * truth, "{parameter:?}: {value} instead of {truth} in {details}");
    }
    for error in &fit.engine.held_out {
        assert!(error.relative().abs() < 0.1, "{}: {:.3} in {details}", error.figure, error.relative());
    }
    assert_eq!(fit.engine.held_out.len(), 10, "{details}");
}

const COSTS: [Parameter; 3] = [Parameter::StepBase, Parameter::StepPerSeq, Parameter::PrefillRate];

fn with_cost(cost: CostModel) -> EngineOptions {
    EngineOptions { cost, ..EngineOptions::default() }
}

#[test]
fn the_default_engine_is_recovered() {
    assert_recovered("default", &EngineOptions::default(), LOAD, &COSTS);
}

#[test]
fn a_slow_engine_is_recovered() {
    let cost = CostModel {
        step_base: Gap::from_millis(45),
        step_per_seq: Gap::from_millis(3),
        prefill_per_second: 1_500,
        ..CostModel::default()
    };
    assert_recovered("slow", &with_cost(cost), Load { rate: 0.6, ..LOAD }, &COSTS);
}

#[test]
fn an_engine_that_computes_further_sequences_for_less_is_recovered() {
    let cost = CostModel {
        step_per_seq: Gap::from_millis(4),
        batch_knee: 4,
        step_per_further_seq: Gap::from_nanos(500_000),
        ..CostModel::default()
    };
    let expected = [&COSTS[..], &[Parameter::BatchKnee, Parameter::StepPerFurtherSeq]].concat();
    assert_recovered("bent", &with_cost(cost), Load { rate: 8.0, ..LOAD }, &expected);
}

#[test]
fn a_knee_between_powers_of_two_is_recovered() {
    let cost = CostModel {
        step_per_seq: Gap::from_millis(4),
        batch_knee: 6,
        step_per_further_seq: Gap::from_nanos(500_000),
        ..CostModel::default()
    };
    let expected = [&COSTS[..], &[Parameter::BatchKnee, Parameter::StepPerFurtherSeq]].concat();
    let (engine, load) = (with_cost(cost), Load { rate: 8.0, ..LOAD });
    assert_recovered("knee 6", &engine, load, &expected);
    let fit = fitted(&engine, load);
    let knee = fit.engine.parameters[&Parameter::BatchKnee];
    assert_eq!((knee.value, knee.low, knee.high), (Some(6.0), Some(6.0), Some(6.0)));
}

/// Prompts and responses of like lengths: the context grows with the sequences, so no regression tells their costs apart.
#[test]
fn costs_that_the_rows_do_not_tell_apart_are_ranges_with_the_truth_in_them() {
    let cost = CostModel { step_per_seq: Gap::from_nanos(100_000), kv_token_ns: 900.0, ..CostModel::default() };
    let engine = with_cost(cost);
    let load = Load { isl: 600.0, spread: 0.033, osl: 40.0, osl_spread: 0.1, rate: 5.0, ..LOAD };
    let fit = fitted_to(with_jitter(capture(engine.clone(), load), 250_000.0), load);
    for parameter in [Parameter::StepPerSeq, Parameter::KvToken] {
        let estimate = fit.engine.parameters[&parameter];
        assert_eq!(estimate.value, None, "{parameter:?}: {estimate:?} in {fit:#?}");
    }
    assert_intervals(&fit, &engine);
}

#[test]
fn an_engine_whose_sequences_all_cost_the_same_has_no_knee() {
    let fit = fitted_to(seen_by_a_busy_reader(capture(EngineOptions::default(), LOAD)), LOAD);
    assert_eq!(fit.engine.parameters.get(&Parameter::BatchKnee), None, "{fit:#?}");
}

#[test]
fn a_front_end_and_attention_are_recovered() {
    let cost = CostModel { prefill_square_ns: 20.0, ..CostModel::default() };
    let engine = EngineOptions { front_end: Gap::from_millis(35), max_batched_tokens: 32_768, ..with_cost(cost) };
    let expected = [&COSTS[..], &[Parameter::FrontEnd, Parameter::PrefillSquare]].concat();
    assert_recovered("front end", &engine, Load { isl: 800.0, rate: 1.5, ..LOAD }, &expected);
}

#[test]
fn the_cost_of_context_is_recovered() {
    let cost = CostModel { kv_token_ns: 900.0, ..CostModel::default() };
    let expected = [&COSTS[..], &[Parameter::KvToken]].concat();
    assert_recovered("context", &with_cost(cost), Load { isl: 600.0, rate: 3.0, ..LOAD }, &expected);
}

#[test]
fn chunked_prefill_is_recovered() {
    let engine = EngineOptions { max_batched_tokens: 512, ..EngineOptions::default() };
    let expected = [&COSTS[..], &[Parameter::MaxBatchedTokens, Parameter::PrefillFirst]].concat();
    assert_recovered("chunked", &engine, Load { isl: 1_500.0, rate: 1.2, ..LOAD }, &expected);
}

#[test]
fn prefill_before_decoding_is_recovered() {
    let expected = [&COSTS[..], &[Parameter::PrefillFirst]].concat();
    assert_recovered("prefill first", &prefill_first(), Load { isl: 500.0, rate: 5.0, ..LOAD }, &expected);
}

#[test]
fn a_full_batch_is_recovered() {
    let engine = EngineOptions { max_num_seqs: 6, ..EngineOptions::default() };
    let expected = [&COSTS[..], &[Parameter::MaxNumSeqs]].concat();
    assert_recovered("full batch", &engine, Load { osl: 80.0, rate: 5.0, ..LOAD }, &expected);
}

/// Real engines send the tokens of one step one after the other, and readers stall.
#[test]
fn a_full_batch_is_recovered_from_tokens_that_arrive_apart() {
    let engine = EngineOptions { max_num_seqs: 6, ..EngineOptions::default() };
    let load = Load { osl: 80.0, rate: 5.0, ..LOAD };
    let fit = fitted_to(seen_by_a_busy_reader(capture(engine.clone(), load)), load);
    let value = |parameter| {
        fit.engine.parameters.get(&parameter).and_then(|estimate: &ParameterEstimate| estimate.used()).unwrap()
    };
    assert_eq!(fit.engine.parameters[&Parameter::MaxNumSeqs].value, Some(6.0), "{fit:#?}");
    for (parameter, most) in [(Parameter::StepBase, 0.1), (Parameter::PrefillRate, 0.15)] {
        let truth = parameter.read(&engine);
        assert!((value(parameter) / truth - 1.0).abs() < most, "{parameter:?}: {} in {fit:#?}", value(parameter));
    }
    for figure in ["ttft.p50", "itl.p50", "e2e.p50", "e2e.p99"] {
        let error = fit.engine.held_out.iter().find(|error| error.figure == figure).unwrap().relative();
        assert!(error.abs() < 0.1, "{figure}: {error:.3} in {fit:#?}");
    }
}

#[test]
fn a_cold_start_is_left_out_and_shows_no_knee() {
    let cold = CostModel {
        step_base: Gap::from_millis(30),
        step_per_seq: Gap::from_nanos(300_000),
        prefill_per_second: 6_667,
        ..CostModel::default()
    };
    // 15 s, and then 150 s.
    let mut rows = capture(with_cost(cold), Load { requests: 60, ..LOAD });
    rows.extend(
        capture(EngineOptions::default(), Load { requests: 600, seed: 8, ..LOAD })
            .into_iter()
            .map(|row| TraceEntry { at: row.at + 15_000_000_000, ..row }),
    );
    let fit = fitted_to(rows, LOAD);
    let start = fit.cold_start.unwrap_or_else(|| panic!("{fit:#?}"));
    assert!((10.0..=20.0).contains(&start.length.as_secs()), "{start:?}");
    assert!((start.factor / 3.0 - 1.0).abs() < 0.05, "{start:?}");
    assert_eq!(fit.engine.parameters.get(&Parameter::BatchKnee), None, "{fit:#?}");
    assert_intervals(&fit, &EngineOptions::default());
    let base = fit.engine.parameters[&Parameter::StepBase].value.unwrap();
    assert!((base / 1e7 - 1.0).abs() < 0.05, "{base}");
    // Without one, nothing is left out; and an engine that changes for good has no start.
    assert_eq!(fitted(&EngineOptions::default(), LOAD).cold_start, None);
    let mut rows = capture(with_cost(CostModel { step_base: Gap::from_millis(30), ..CostModel::default() }), LOAD);
    rows.extend(
        capture(EngineOptions::default(), LOAD)
            .into_iter()
            .map(|row| TraceEntry { at: row.at + 500_000_000_000, ..row }),
    );
    assert_eq!(fitted_to(rows, LOAD).cold_start, None);
}

/// A twin that cannot be run is no use, whatever the rows were.
#[test]
fn a_fit_is_always_a_twin_that_runs() {
    let cost =
        CostModel { step_base: Gap::from_nanos(1_000), step_per_seq: Gap::from_millis(10), ..CostModel::default() };
    for rate in [0.5, 4.0] {
        let rows = seen_by_a_busy_reader(capture(with_cost(cost.clone()), Load { rate, ..LOAD }));
        let fit = fitted_to(rows, LOAD);
        assert!(fit.engine.options().is_ok(), "{:?} of {fit:#?}", fit.engine.options());
    }
}

#[test]
fn a_prefix_cache_and_its_block_size_are_recovered() {
    let cost = CostModel { cached_token_ns: 9_000.0, ..CostModel::default() };
    let engine = EngineOptions { block_tokens: 32, ..with_cost(cost) };
    let expected = [&COSTS[..], &[Parameter::CachedToken, Parameter::BlockSize, Parameter::PrefixCache]].concat();
    assert_recovered("cache", &engine, Load { families: 20, isl: 800.0, rate: 3.0, ..LOAD }, &expected);
}

#[test]
fn a_prefix_cache_that_is_off_is_recovered() {
    let engine = EngineOptions { prefix_cache: false, ..EngineOptions::default() };
    let expected = [&COSTS[..], &[Parameter::PrefixCache]].concat();
    assert_recovered("no cache", &engine, Load { families: 20, isl: 800.0, rate: 2.0, ..LOAD }, &expected);
}

#[test]
fn each_model_of_an_upstream_and_each_upstream_of_a_model_has_its_own_engine() {
    let load = Load { requests: 400, ..LOAD };
    let truth = [("a:8000", "m", 10), ("a:8000", "n", 25), ("b:8000", "m", 40)];
    let mut groups = TrafficGroups::default();
    for (upstream, model, base) in truth {
        let cost = CostModel { step_base: Gap::from_millis(base), ..CostModel::default() };
        for mut row in capture(with_cost(cost), load) {
            (row.upstream, row.model) = (Some(upstream.to_owned()), Some(model.to_owned()));
            groups.add(row, 0);
        }
    }
    let fits: Vec<EngineFit> = groups.finish().iter().map(|group| fit(group, None, None).unwrap()).collect();
    assert_eq!(fits.len(), 3);
    for (upstream, model, base) in truth {
        let of = |fit: &&EngineFit| {
            (fit.engine.upstream.as_deref(), fit.engine.model.as_deref()) == (Some(upstream), Some(model))
        };
        let found = fits.iter().find(of).unwrap().engine.parameters[&Parameter::StepBase].value.unwrap();
        assert!((found / (base as f64 * 1e6) - 1.0).abs() < 0.05, "{model} at {upstream}: {found}");
    }
}

#[test]
fn the_size_of_a_cache_that_forgets_is_recovered() {
    let engine = EngineOptions { kv_blocks: 2_500, ..EngineOptions::default() };
    let expected = [&COSTS[..], &[Parameter::KvBlocks, Parameter::BlockSize]].concat();
    let load = Load { families: 60, isl: 800.0, spread: 0.5, rate: 3.0, ..LOAD };
    assert_recovered("small cache", &engine, load, &expected);
}

#[test]
fn speculation_is_recovered() {
    let engine = EngineOptions { tokens_per_step: 3, ..EngineOptions::default() };
    let expected = [&COSTS[..], &[Parameter::TokensPerStep]].concat();
    assert_recovered("speculation", &engine, Load { osl: 90.0, ..LOAD }, &expected);
}

/// Rows of a load over real sockets (`tests/data/runs/chat`), whose server had the default costs.
#[test]
fn an_engine_behind_real_sockets_is_recovered() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/runs/chat/records.jsonl.zst");
    let mut groups = TrafficGroups::default();
    TraceReader::open(&path).unwrap().for_each(|row| groups.add(row.unwrap(), 0));
    let [group] = &groups.finish()[..] else { panic!("one engine served all rows") };
    let fit = fit(group, None, None).unwrap();
    for parameter in COSTS {
        let value = fit.engine.parameters[&parameter].value.unwrap();
        let truth = parameter.read(&EngineOptions::default());
        assert!((value / truth - 1.0).abs() <= 0.05, "{parameter:?}: {value} instead of {truth}");
    }
    let error =
        |figure: &str| fit.engine.held_out.iter().find(|error| error.figure == figure).unwrap().relative().abs();
    for (figure, most) in [("ttft.p50", 0.1), ("itl.p50", 0.1), ("e2e.p99", 0.1), ("ttft.p99", 0.2), ("itl.p99", 0.2)] {
        assert!(error(figure) < most, "{figure}: {}", error(figure));
    }
}

#[test]
fn what_the_rows_do_not_determine_is_a_range() {
    let fit = fitted(&EngineOptions::default(), Load { spread: 0.4, ..LOAD });
    for parameter in [Parameter::MaxNumSeqs, Parameter::KvBlocks, Parameter::MaxBatchedTokens, Parameter::PrefixCache] {
        let estimate = fit.engine.parameters[&parameter];
        assert_eq!(estimate.value, None, "{parameter:?}: {estimate:?}");
        assert!(estimate.used().is_some(), "{parameter:?}: {estimate:?}");
    }
}
