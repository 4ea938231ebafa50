//! The error of a twin on rows that its fit has not seen.

use std::convert::Infallible;

use super::observation::ObservedRequest;
use crate::measure::time::Stamp;
use crate::trace_file::header::BlockScheme;
use crate::twin::fleet::FleetOptions;
use crate::twin::model::{HeldOutError, TwinEngine};
use crate::twin::operations::Operations;
use crate::twin::response::{TwinOutcome, TwinResponse};
use crate::twin::router::Router;
use crate::twin::simulation::Simulation;

/// Percentiles whose error is stated.
const PERCENTILES: [f64; 3] = [50.0, 90.0, 99.0];

/// Rows of which the last ones were held out.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldOut<'a> {
    pub(super) requests: &'a [ObservedRequest],
    /// First request that the fit has not seen.
    pub(super) from: usize,
    pub(super) scheme: Option<&'a BlockScheme>,
}

/// Latencies in seconds.
#[derive(Debug, Default)]
struct Latencies {
    ttft: Vec<f64>,
    itl: Vec<f64>,
    e2e: Vec<f64>,
    /// TTFT and time per output token of each request.
    pairs: Vec<(f64, f64)>,
}

impl Latencies {
    fn add(&mut self, at: u64, ended: u64, events: &[(u64, u32)]) {
        let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e9;
        self.e2e.push(seconds(at, ended));
        let (Some((first, _)), Some((last, _))) = (events.first(), events.last()) else { return };
        self.ttft.push(seconds(at, *first));
        let gaps = events.windows(2).map(|pair| seconds(pair[0].0, pair[1].0) / f64::from(pair[1].1.max(1)));
        self.itl.extend(gaps);
        let tokens: u32 = events.iter().skip(1).map(|(_, tokens)| *tokens).sum();
        self.pairs.push((seconds(at, *first), seconds(*first, *last) / f64::from(tokens.max(1))));
    }

    fn sort(&mut self) {
        for list in [&mut self.ttft, &mut self.itl, &mut self.e2e] {
            list.sort_unstable_by(f64::total_cmp);
        }
    }
}

impl HeldOut<'_> {
    /// Errors of TTFT, ITL, E2E and goodput. Goodput is the share of requests within the measured 90th percentiles of
    /// TTFT and TPOT.
    pub(super) fn errors(&self, engine: &TwinEngine) -> Vec<HeldOutError> {
        let Some(first) = self.requests.get(self.from).map(|request| request.at) else { return Vec::new() };
        let (mut measured, mut predicted) = (Latencies::default(), Latencies::default());
        for request in &self.requests[self.from..] {
            measured.add(request.at, request.ended, &request.events);
        }
        for response in simulate(engine, self.requests, self.scheme) {
            let at = response.request.at.as_nanos();
            if at < first || !matches!(response.outcome, TwinOutcome::Complete | TwinOutcome::Aborted) {
                continue;
            }
            let mut time = response.first.map_or(0, Stamp::as_nanos);
            let streamed = response.request.entry.stream != Some(false);
            let mut events: Vec<(u64, u32)> =
                response.first.filter(|_| streamed).map(|_| (time, 1)).into_iter().collect();
            events.extend(response.events.iter().filter(|_| streamed).map(|event| {
                time += event.gap().as_nanos();
                (time, event.tokens().unwrap_or(1))
            }));
            predicted.add(at, response.ended.as_nanos(), &events);
        }
        measured.sort();
        predicted.sort();
        let mut errors = Vec::new();
        for (name, of) in [
            ("ttft", (|latencies| &latencies.ttft) as fn(&Latencies) -> &Vec<f64>),
            ("itl", |latencies| &latencies.itl),
            ("e2e", |latencies| &latencies.e2e),
        ] {
            for percent in PERCENTILES {
                let both = percentile(of(&measured), percent).zip(percentile(of(&predicted), percent));
                let Some((measured, predicted)) = both else { continue };
                errors.push(HeldOutError { figure: format!("{name}.p{percent:.0}"), measured, predicted });
            }
        }
        let mut tpots: Vec<f64> = measured.pairs.iter().map(|(_, tpot)| *tpot).collect();
        tpots.sort_unstable_by(f64::total_cmp);
        if let Some((ttft, tpot)) = percentile(&measured.ttft, 90.0).zip(percentile(&tpots, 90.0)) {
            let share = |latencies: &Latencies| {
                // A nanosecond's rounding misses no objective.
                let good = latencies.pairs.iter().filter(|pair| pair.0 <= ttft * 1.000_1 && pair.1 <= tpot * 1.000_1);
                good.count() as f64 / latencies.pairs.len().max(1) as f64
            };
            let (measured, predicted) = (share(&measured), share(&predicted));
            errors.push(HeldOutError { figure: "goodput".to_owned(), measured, predicted });
        }
        errors
    }
}

fn percentile(sorted: &[f64], percent: f64) -> Option<f64> {
    crate::stats::samples::percentile(sorted.len() as u64, percent, |rank| sorted[rank as usize])
}

/// Simulates the requests on one replica of the engine.
pub(super) fn simulate(
    engine: &TwinEngine,
    requests: &[ObservedRequest],
    scheme: Option<&BlockScheme>,
) -> Vec<TwinResponse> {
    let Ok(options) = engine.options() else { return Vec::new() };
    let fleet = FleetOptions { model: None, engines: vec![options], replicas: 1, router: Router::RoundRobin };
    let simulation = Simulation::new(vec![fleet], scheme.cloned(), &Operations::default());
    let rows = requests.iter().map(|request| Ok::<_, Infallible>(request.entry.clone()));
    let mut responses = Vec::with_capacity(requests.len());
    let Ok(_) = simulation.run(rows, |response| {
        responses.push(response);
        Ok(())
    });
    responses
}
