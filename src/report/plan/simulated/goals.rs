//! The goals of a plan by simulation, in three views.
//!
//! A twin whose error on held-out rows is e predicts a latency between t · (1 − e) and t · (1 + e) where it is t. So a
//! request surely meets a limit L if its prediction meets L · (1 − e), and surely misses it above L · (1 + e). Each view
//! scales the limits by the error of their metric.

use crate::measure::slo::criteria::Criteria;
use crate::measure::slo::{Metric, Slo, Slos};
use crate::measure::time::Gap;
use crate::report::accumulate::AccumulatorSettings;
use crate::report::plan::objective::{PlanObjective, criteria};
use crate::report::sweep::DEFAULT_GOODPUT_GOAL;

/// Largest relative error of a twin's percentiles on held-out rows, by metric; `None` if it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TwinErrors {
    /// Of TTFT.
    pub ttft: Option<f64>,
    /// Of ITL; it stands for TPOT.
    pub itl: Option<f64>,
    /// Of E2E.
    pub e2e: Option<f64>,
}

impl TwinErrors {
    fn of(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::Ttft | Metric::Ttfo => self.ttft,
            Metric::Itl(_) | Metric::Tpot => self.itl,
            Metric::E2e => self.e2e,
        }
    }
}

/// How the server may differ from its twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwinView {
    /// The server is faster by the twin's error.
    Faster,
    /// The server is as predicted.
    Expected,
    /// The server is slower by the twin's error.
    Slower,
}

impl TwinView {
    /// All, in the order of [`TwinView::index`].
    pub const ALL: [Self; 3] = [Self::Faster, Self::Expected, Self::Slower];

    /// Place in lists of views.
    pub const fn index(self) -> usize {
        self as usize
    }

    fn factor(self, error: Option<f64>) -> f64 {
        let error = error.unwrap_or(0.0);
        match self {
            Self::Faster => 1.0 + error,
            Self::Expected => 1.0,
            Self::Slower => (1.0 - error).max(0.0),
        }
    }
}

/// Goals that every window of the plan must keep.
#[derive(Debug)]
pub struct SimulatedGoals {
    /// Goals as text.
    pub text: String,
    /// SLOs that the goals count.
    pub slos: Vec<Slo>,
    /// True if every limited metric has a held-out error.
    pub has_errors: bool,
    /// The SLOs of all views, one view after the other.
    pub(super) settings: AccumulatorSettings,
    /// Required share of each SLO.
    pub(super) shares: Vec<f64>,
    /// Limits on gaps and their required shares, by view.
    pub(super) gaps: [Vec<(Gap, f64)>; 3],
}

impl SimulatedGoals {
    /// Takes the objectives of `--slo`.
    ///
    /// # Errors
    /// There is none, goodput has no SLO, or two SLOs share a name.
    pub fn new(objectives: &[PlanObjective], errors: TwinErrors) -> Result<Self, String> {
        if objectives.is_empty() {
            return Err("a twin has no SLO; remedy: state with --slo what a good request is, e.g. 'chat: ttft<=500ms'"
                .to_owned());
        }
        let goals: Criteria = criteria(objectives, DEFAULT_GOODPUT_GOAL)?;
        let own = objectives.iter().flat_map(PlanObjective::slos);
        let (slos, shares): (Vec<Slo>, Vec<f64>) =
            own.filter_map(|slo| goals.share_of(slo.name()).map(|share| (slo, share))).unzip();
        Slos::new(slos.clone())?;
        let scaled = |view: TwinView, slo: &Slo| {
            slo.with_scaled_limits(format!("{} {view:?}", slo.name()), |metric| view.factor(errors.of(metric)))
        };
        let all = TwinView::ALL.iter().flat_map(|view| slos.iter().map(|slo| scaled(*view, slo))).collect();
        let gaps = TwinView::ALL.map(|view| {
            let limit = |limit: Gap| (limit.as_nanos() as f64 * view.factor(errors.itl)).round() as u64;
            goals.gaps().map(|(gap, share)| (Gap::from_nanos(limit(gap)), share)).collect::<Vec<_>>()
        });
        let is_unknown = |slo: &Slo| slo.limits(|metric| errors.of(metric).is_none()).next().is_some();
        let has_errors = !slos.iter().any(is_unknown) && (gaps[0].is_empty() || errors.itl.is_some());
        let settings = AccumulatorSettings { slos: Slos::new(all)?, ..AccumulatorSettings::default() };
        Ok(Self { text: goals.to_string(), slos, has_errors, settings, shares, gaps })
    }
}
