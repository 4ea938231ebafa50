//! Evidence for a simulated plan: where the twin extrapolates, assumptions and warnings.

use schemars::JsonSchema;
use serde::Serialize;

use super::goals::{SimulatedGoals, TwinView};
use super::need::NeedSearch;
use super::windows::SimulatedWindows;
use super::{SimulatedPlan, SimulatedPlanWindow};
use crate::report::plan::assumptions::{replica_price, rounded};
use crate::report::warning::WarningText;

/// A quantity is beyond the fitted one from this factor on.
const MAX_EXCESS: f64 = 1.05;

/// True if a value is beyond the most that a fit has seen.
pub fn is_beyond(value: f64, fitted: f64) -> bool {
    value > fitted * MAX_EXCESS
}

/// The most that a fit has seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FittedLimits {
    /// Requests in flight at one engine.
    pub batch: f64,
    /// Prompt and output tokens of one request.
    pub context: f64,
    /// Requests per second of one engine.
    pub rate: f64,
}

/// A quantity that goes beyond the fit.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct Extrapolation {
    pub quantity: &'static str,
    pub largest: f64,
    pub fitted: f64,
    pub windows: usize,
    pub from_s: f64,
    pub to_s: f64,
}

impl FittedLimits {
    /// Marks the windows in which a quantity is beyond the fit, and sums them up.
    pub(super) fn mark(
        self,
        windows: &mut [SimulatedPlanWindow],
        needed: &[u64],
        outcome: &SimulatedWindows,
    ) -> Vec<Extrapolation> {
        let mut list: Vec<Extrapolation> = Vec::new();
        for ((window, needed), result) in windows.iter_mut().zip(needed).zip(outcome.iter()) {
            let of = window.window;
            let quantities = [
                ("batch", f64::from(result.max_in_flight), self.batch),
                ("context", result.max_context_tokens as f64, self.context),
                ("rate", of.requests / of.seconds / (*needed).max(1) as f64, self.rate),
            ];
            for (quantity, value, fitted) in quantities.into_iter().filter(|of| is_beyond(of.1, of.2)) {
                window.extrapolates.push(quantity);
                let at = list.iter().position(|of| of.quantity == quantity).unwrap_or(list.len());
                if at == list.len() {
                    list.push(Extrapolation {
                        quantity,
                        largest: value,
                        fitted,
                        windows: 0,
                        from_s: of.from_s,
                        to_s: 0.0,
                    });
                }
                let entry = &mut list[at];
                entry.largest = entry.largest.max(value);
                entry.windows += 1;
                entry.to_s = of.from_s + of.seconds;
            }
        }
        list
    }
}

impl SimulatedPlan {
    /// Sentences without their full stops.
    pub(super) fn assumptions(&self) -> Vec<String> {
        let Self { reserves, cost, traffic, .. } = self;
        let mut list = vec![
            format!("every replica is like the twin, and a router spreads the requests over them: {}", self.twin.router),
            "a later turn comes its recorded pause after the simulated end of the turn before; missed requests are not sent again"
                .to_owned(),
            format!("each window of {:.0} s keeps the goals by itself, and at least one replica serves", traffic.window_s),
            format!(
                "a request is turned away, and misses, while {} are in flight per replica",
                self.twin.admission
            ),
        ];
        if reserves.headroom > 0.0 {
            list.push(format!(
                "headroom {:.0} %: replicas keep the goals under {:.2} times the requests, with copies of sessions",
                reserves.headroom * 100.0,
                super::headroom_factor(reserves)
            ));
        }
        list.push(match reserves.failed {
            0 => "no replica fails".to_owned(),
            1 => "1 replica may be down at any time, beyond those that the arrivals need".to_owned(),
            failed => format!("{failed} replicas may be down at any time, beyond those that the arrivals need"),
        });
        list.push(match reserves.start_up_s {
            0.0 => "a replica serves at once when it is ordered".to_owned(),
            _ => format!("a replica is ordered {} before it is needed, with an empty cache", reserves.start_up()),
        });
        list.extend(traffic.sample.map(|share| {
            format!(
                "the capture kept {} % of the sessions, and copies of them stand for the others; a copy has other prompts, so \
                 prefixes that sessions share are cached once for each copy",
                rounded(share * 100.0)
            )
        }));
        list.push(format!("every day repeats the {:.1} min of the traffic", traffic.seconds / 60.0));
        list.push(replica_price(cost));
        list
    }

    /// Threats to the plan, the gravest first.
    pub(super) fn warnings(&self, goals: &SimulatedGoals, search: &NeedSearch) -> Vec<WarningText> {
        let mut list = Vec::new();
        let mut warn = |warning, text, advice| list.push(WarningText { warning, text, advice });
        let lost = self.over_time.iter().enumerate().filter(|(at, _)| !search.is_attainable(*at, TwinView::Expected));
        let lost = lost.count();
        if lost > 0 {
            warn(
                "slo_out_of_reach",
                format!("in {lost} of {} windows no number of replicas keeps the goals", self.over_time.len()),
                "look for prompts that take longer than the limit by themselves, or state another --slo",
            );
        }
        if !self.extrapolations.is_empty() {
            let quantities: Vec<&str> = self.extrapolations.iter().map(|of| of.quantity).collect();
            warn(
                "extrapolated",
                format!("the plan extrapolates beyond what the twin was fitted to: {}", quantities.join(", ")),
                "fit the twin to a capture with such a load; no error is known beyond the fit",
            );
        }
        if self.twin.fitted.is_none() {
            warn(
                "fit_unknown",
                "the twin does not state the load that it was fitted to, so extrapolation cannot be marked".to_owned(),
                "fit the twin with `streamgauge twin fit`",
            );
        }
        if !goals.has_errors {
            warn(
                "twin_error_unknown",
                "the twin has no held-out error of a limited metric, so the plan has no interval".to_owned(),
                "fit the twin with `streamgauge twin fit`",
            );
        } else if self.peak_if_slower.is_none() {
            warn(
                "twin_error_large",
                "no number of replicas keeps the goals if the server is slower by the twin's held-out error".to_owned(),
                "fit the twin to more traffic, or leave the SLO more room",
            );
        }
        list
    }
}
