//! Estimates a twin from rows alone.
//!
//! Token events of different streams that come together are one step of the engine (`steps`). Regressions over steps
//! give the cost of decoding (`decode`; on busy real servers over `windows`), regressions over first tokens that of
//! prefill (`prefill`); `limits` finds where the engine left requests waiting. A slow start of the engine is left out
//! (`cold_start`). Where several fits explain the rows about as well, a parameter is a range that spans them
//! (`estimate`). A fit of the first part of the rows
//! predicts the rest by running the twin (`held_out`); the twin itself is fitted to all rows.
//!
//! Every regression is robust: least absolute deviations first, then least squares without the outliers (`robust`).

mod cache_size;
mod cold_start;
mod context_cost;
mod decode;
mod estimate;
mod held_out;
mod limits;
pub mod observation;
mod prefill;
mod robust;
mod sequence_limit;
pub mod server_metrics;
mod steps;
mod windows;

use std::collections::BTreeMap;

use self::cache_size::kv_blocks_of_hits;
pub use self::cold_start::ColdStart;
use self::cold_start::cold_start;
use self::decode::DecodeFit;
use self::held_out::HeldOut;
use self::limits::LimitsFit;
use self::observation::{EngineTraffic, Observation, ObservedRequest};
use self::prefill::PrefillFit;
use self::server_metrics::ServerConfig;
use self::steps::{EngineStep, find_steps};
use super::model::{FittedLoad, TwinEngine};
use super::parameter::{Parameter, ParameterEstimate};
use crate::trace_file::header::BlockScheme;

/// Share of the rows, in order of time, that predicts the rest. The twin is then fitted to all.
const FITTED_SHARE: f64 = 0.7;
/// Least requests that can be fitted.
const MIN_REQUESTS: usize = 20;
/// Time over which a rate is taken, in nanoseconds.
const RATE_WINDOW: u64 = 60_000_000_000;
/// Least time from which a rate is taken, in nanoseconds.
const MIN_RATE_SPAN: u64 = 1_000_000_000;

/// A fitted engine, with what a reader needs to trust it.
#[derive(Clone, Debug)]
pub struct EngineFit {
    /// The engine.
    pub engine: TwinEngine,
    /// Steps of the engine that were found in the fitted rows.
    pub steps: usize,
    /// Residuals by regime.
    pub residuals: Vec<Residual>,
    /// The start of the rows that was left out.
    pub cold_start: Option<ColdStart>,
}

/// Residuals of a regression in one regime of the load.
#[derive(Clone, Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct Residual {
    /// The regime.
    pub regime: String,
    /// Number of points.
    pub points: usize,
    /// Median of the absolute relative residuals.
    pub median: f64,
    /// 90th percentile of the absolute relative residuals.
    pub p90: f64,
}

impl Residual {
    /// Of pairs `(measured, predicted)`; `None` without any.
    fn of(regime: impl Into<String>, pairs: &[(f64, f64)]) -> Option<Self> {
        let mut sizes: Vec<f64> =
            pairs.iter().map(|(measured, predicted)| (predicted / measured - 1.0).abs()).collect();
        sizes.retain(|size| size.is_finite());
        sizes.sort_unstable_by(f64::total_cmp);
        let at =
            |share: f64| sizes.get(((sizes.len() as f64 * share) as usize).min(sizes.len().saturating_sub(1))).copied();
        Some(Self { regime: regime.into(), points: sizes.len(), median: at(0.5)?, p90: at(0.9)? })
    }
}

/// Why an engine cannot be fitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// Too few streamed responses with lengths.
    #[error("{label}: {found} streamed responses with lengths are too few; remedy: capture at least {MIN_REQUESTS}")]
    TooFew {
        /// The engine.
        label: String,
        /// Usable responses.
        found: usize,
    },
    /// No decode step was found.
    #[error("{0}: no stream has two token events; remedy: capture streamed responses of several tokens")]
    NoSteps(String),
}

/// Fits one engine. `server` is what its server says of itself.
///
/// # Errors
/// The rows do not determine an engine at all.
pub fn fit(
    traffic: &EngineTraffic,
    scheme: Option<&BlockScheme>,
    server: Option<&ServerConfig>,
) -> Result<EngineFit, FitError> {
    let label =
        TwinEngine { upstream: traffic.upstream.clone(), model: traffic.model.clone(), ..TwinEngine::default() }
            .label();
    let usable = traffic.requests.iter().filter(|request| request.is_usable()).count();
    if usable < MIN_REQUESTS {
        return Err(FitError::TooFew { label, found: usable });
    }
    let all = &traffic.requests[..];
    let engine = |found: &FitResult, fitted: &[ObservedRequest]| TwinEngine {
        upstream: traffic.upstream.clone(),
        model: traffic.model.clone(),
        parameters: found.parameters.clone(),
        fitted: Some(load(fitted, &found.steps)),
        held_out: Vec::new(),
    };
    let split = (all.len() as f64 * FITTED_SHARE) as usize;
    let first = Observation { requests: &all[..split], from: 0, until: all[split].at };
    let errors = estimate(first, scheme, server).map(|found| {
        let held_out = HeldOut { requests: all, from: split, scheme };
        held_out.errors(&engine(&found, first.requests))
    });
    let whole = Observation { requests: all, from: 0, until: u64::MAX };
    let found = estimate(whole, scheme, server).ok_or(FitError::NoSteps(label))?;
    let engine = TwinEngine { held_out: errors.unwrap_or_default(), ..engine(&found, all) };
    let FitResult { steps, residuals, cold_start, .. } = found;
    Ok(EngineFit { engine, steps: steps.len(), residuals, cold_start })
}

struct FitResult {
    parameters: BTreeMap<Parameter, ParameterEstimate>,
    steps: Vec<EngineStep>,
    residuals: Vec<Residual>,
    cold_start: Option<ColdStart>,
}

fn estimate(
    mut seen: Observation<'_>,
    scheme: Option<&BlockScheme>,
    server: Option<&ServerConfig>,
) -> Option<FitResult> {
    let requests = seen.requests;
    let find_steps = |seen: Observation<'_>, front_end: f64| {
        let mut steps = find_steps(requests, front_end);
        steps.retain(|step| (seen.from..=seen.until).contains(&step.at));
        steps
    };
    let mut steps = find_steps(seen, 0.0);
    let cold_start = cold_start(seen, &steps);
    if let Some(cold) = &cold_start {
        seen.from = cold.until;
        steps.retain(|step| step.at >= seen.from);
    }
    let mut decode = DecodeFit::of(seen, &steps, 0.0)?;
    let mut prefill = PrefillFit::of(seen, &steps, &decode);
    // A request in the front end does not wait, so steps without prefill are known only now.
    if prefill.front_end() > 0.0 {
        steps = find_steps(seen, prefill.front_end());
        decode = DecodeFit::of(seen, &steps, prefill.front_end())?;
        prefill = PrefillFit::of(seen, &steps, &decode);
    }
    let limits = LimitsFit::of(seen, &steps, &decode, &prefill);
    let mut parameters = BTreeMap::new();
    decode.write(&mut parameters);
    prefill.write(&mut parameters);
    limits.write(&mut parameters);
    if let Some(server) = server {
        server.write(&mut parameters);
    }
    // A regression may leave out a cost that no engine is without.
    parameters.iter_mut().for_each(|(parameter, estimate)| *estimate = estimate.within(parameter.limits()));
    if let Some(blocks) = kv_blocks_of_hits(requests, scheme, &parameters) {
        parameters.insert(Parameter::KvBlocks, blocks);
    }
    let mut residuals = decode.residuals();
    residuals.extend(prefill.residuals);
    Some(FitResult { parameters, steps, residuals, cold_start })
}

/// The load that the fit has seen.
fn load(requests: &[ObservedRequest], steps: &[EngineStep]) -> FittedLoad {
    let max = |of: fn(&ObservedRequest) -> u64| requests.iter().map(of).max().unwrap_or(0);
    FittedLoad {
        requests: requests.len() as u64,
        rate: busiest_rate(requests),
        max_in_flight: steps.iter().map(|step| step.decoding + step.waiting).max().unwrap_or(0),
        max_prompt_tokens: max(|request| request.prompt_tokens.into()),
        max_context_tokens: max(|request| u64::from(request.prompt_tokens) + u64::from(request.output_tokens)),
    }
}

/// Requests per second of the busiest minute. Sources may be days apart, so pauses count for nothing: a shorter stretch
/// between them has the rate of its own length.
fn busiest_rate(requests: &[ObservedRequest]) -> f64 {
    let mut busiest = 0.0_f64;
    for stretch in requests.chunk_by(|before, after| after.at - before.at <= RATE_WINDOW) {
        let span = stretch.first().zip(stretch.last()).map_or(0, |(first, last)| last.at - first.at);
        let is_short = span <= RATE_WINDOW && stretch.len() >= MIN_REQUESTS;
        let length = if is_short { span.max(MIN_RATE_SPAN) } else { RATE_WINDOW };
        let mut from = 0;
        for (number, request) in stretch.iter().enumerate() {
            while request.at - stretch[from].at > length {
                from += 1;
            }
            busiest = busiest.max((number - from + 1) as f64 / (length as f64 / 1e9));
        }
    }
    busiest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace_file::row::TraceEntry;

    const SECOND: u64 = 1_000_000_000;

    fn at(times: impl IntoIterator<Item = u64>) -> Vec<ObservedRequest> {
        let request = |at| ObservedRequest {
            at,
            prompt_tokens: 1,
            cached: None,
            output_tokens: 1,
            events: Vec::new(),
            ended: at,
            entry: TraceEntry::default(),
        };
        times.into_iter().map(request).collect()
    }

    #[test]
    fn the_rate_is_that_of_the_busiest_minute_whatever_pauses_lie_between() {
        let source = |from: u64, seconds: u64| (0..=4 * seconds).map(move |n| from * SECOND + n * SECOND / 4);
        let close = |rate: f64, expected: f64| assert!((rate / expected - 1.0).abs() < 0.02, "{rate} not {expected}");
        close(busiest_rate(&at(source(0, 30))), 4.0);
        close(busiest_rate(&at(source(0, 600))), 4.0);
        // Two captures of half a minute, a day apart.
        close(busiest_rate(&at(source(0, 30).chain(source(86_400, 30)))), 4.0);
        // Three requests at once after an hour are no load of a minute.
        close(busiest_rate(&at(source(0, 600).chain([3_600 * SECOND; 3]))), 4.0);
        // A minute at twice the rate within ten.
        let mut busy: Vec<u64> = source(0, 600).chain(source(300, 60)).collect();
        busy.sort_unstable();
        close(busiest_rate(&at(busy)), 8.0);
        assert_eq!(busiest_rate(&at([5; 40])), 40.0);
        assert_eq!(busiest_rate(&at([0, u64::MAX])), 1.0 / 60.0);
    }
}
