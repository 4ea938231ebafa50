//! What a twin is known to predict: its errors on held-out rows, and the load that it was fitted to.

use super::fleet::FleetOptions;
use super::model::{FittedLoad, TwinModel};

impl TwinModel {
    /// The largest relative error of each figure over all engines, without its sign.
    pub fn errors(&self) -> Vec<(&str, f64)> {
        let mut worst: Vec<(&str, f64)> = Vec::new();
        for error in self.engines.iter().flat_map(|engine| &engine.held_out) {
            let size = error.relative().abs();
            match worst.iter_mut().find(|(figure, _)| *figure == error.figure) {
                Some((_, known)) => *known = known.max(size),
                None => worst.push((&error.figure, size)),
            }
        }
        worst
    }

    /// The largest error of the percentiles of a metric, such as `ttft`; `None` without held-out rows.
    pub fn error_of(&self, metric: &str) -> Option<f64> {
        let errors = self.errors().into_iter();
        let of_metric = errors.filter(|(figure, _)| figure.split_once('.').is_some_and(|(name, _)| name == metric));
        of_metric.map(|(_, error)| error).reduce(f64::max)
    }

    /// The most that the fit of any engine of this fleet has seen; `None` if no engine states it.
    pub fn fitted(&self, fleet: &FleetOptions) -> Option<FittedLoad> {
        let engines = self.engines.iter().filter(|engine| fleet.model.is_none() || engine.model == fleet.model);
        let fitted = engines.filter_map(|engine| engine.fitted);
        fitted.reduce(|a, b| FittedLoad {
            requests: a.requests.saturating_add(b.requests),
            rate: a.rate.max(b.rate),
            max_in_flight: a.max_in_flight.max(b.max_in_flight),
            max_prompt_tokens: a.max_prompt_tokens.max(b.max_prompt_tokens),
            max_context_tokens: a.max_context_tokens.max(b.max_context_tokens),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::model::{HeldOutError, TwinEngine, VERSION};
    use crate::twin::router::Router;

    #[test]
    fn the_error_of_a_metric_is_its_worst_percentile_of_any_engine() {
        let error = |figure: &str, predicted| HeldOutError { figure: figure.to_owned(), measured: 1.0, predicted };
        let engine = |held_out, rate| TwinEngine {
            held_out,
            fitted: Some(FittedLoad { rate, requests: 10, ..FittedLoad::default() }),
            ..TwinEngine::default()
        };
        let engines = vec![
            engine(vec![error("ttft.p50", 1.1), error("ttft.p99", 0.75), error("goodput", 2.0)], 3.0),
            engine(vec![error("ttft.p99", 0.9)], 5.0),
        ];
        let twin = TwinModel { streamgauge_twin: VERSION, version: String::new(), sources: Vec::new(), engines };
        assert_eq!((twin.error_of("ttft"), twin.error_of("itl")), (Some(0.25), None));
        let fleets = twin.fleets(&[], None, Router::RoundRobin).unwrap();
        assert_eq!(twin.fitted(&fleets[0]).map(|load| (load.rate, load.requests)), Some((5.0, 20)));
    }

    #[test]
    fn a_fleet_knows_only_the_fits_of_its_own_model() {
        let engine = |model: &str, max_prompt_tokens| TwinEngine {
            model: Some(model.to_owned()),
            fitted: Some(FittedLoad { max_prompt_tokens, ..FittedLoad::default() }),
            ..TwinEngine::default()
        };
        let engines = vec![engine("a", 8_000), engine("b", 1_000), engine("b", 2_000)];
        let twin = TwinModel { streamgauge_twin: VERSION, version: String::new(), sources: Vec::new(), engines };
        let fleets = twin.fleets(&[], None, Router::RoundRobin).unwrap();
        let fitted: Vec<_> = fleets.iter().map(|fleet| twin.fitted(fleet).unwrap().max_prompt_tokens).collect();
        assert_eq!(fitted, [8_000, 2_000]);
    }
}
