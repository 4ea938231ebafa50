//! Results of one simulation by window of the arrivals.

use super::goals::{SimulatedGoals, TwinView};
use crate::report::accumulate::verdicts;
use crate::report::plan::arrivals::Arrivals;
use crate::report::request_view::RequestView;

/// Results of one simulated fleet.
#[derive(Clone, Debug)]
pub struct SimulatedWindows {
    window_s: f64,
    list: Vec<SimulatedWindow>,
    /// Requests that an SLO judges, and those that missed one, by view.
    judged: [(u64, u64); 3],
    /// Output tokens of requests that meet every SLO as predicted.
    pub good_tokens: u64,
    /// Requests that were turned away because too many others waited.
    pub refused: u64,
}

/// Results of the requests that arrived in one window.
#[derive(Clone, Debug, Default)]
pub struct SimulatedWindow {
    /// Most requests in flight at one replica.
    pub max_in_flight: u32,
    /// Longest context.
    pub max_context_tokens: u64,
    /// Requests that meet each SLO, and those that it judges: one view after the other.
    slos: Vec<(u64, u64)>,
    /// Gaps within each limit, by view.
    within: [Vec<u64>; 3],
    gaps: u64,
    /// Requests with gaps, and those without a complete response.
    with_gaps: u64,
    incomplete: u64,
}

/// Simulated state of a request, beyond its row.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimulatedRequest {
    /// Arrival since the first request, in seconds.
    pub at_s: f64,
    /// Requests of its replica when it came.
    pub in_flight: u32,
    /// Prompt and output tokens.
    pub context_tokens: u64,
    /// True if it was turned away because too many others waited.
    pub is_refused: bool,
}

impl SimulatedWindows {
    /// Results without requests.
    pub fn new(arrivals: &Arrivals, goals: &SimulatedGoals) -> Self {
        let empty = SimulatedWindow {
            slos: vec![(0, 0); goals.shares.len() * TwinView::ALL.len()],
            within: goals.gaps.clone().map(|limits| vec![0; limits.len()]),
            ..SimulatedWindow::default()
        };
        Self {
            window_s: arrivals.window_s(),
            list: vec![empty; arrivals.windows.len().max(1)],
            judged: [(0, 0); 3],
            good_tokens: 0,
            refused: 0,
        }
    }

    /// Adds a response.
    pub fn add(&mut self, request: &RequestView, of: SimulatedRequest, goals: &SimulatedGoals) {
        let place = (of.at_s / self.window_s) as usize;
        let last = self.list.len() - 1;
        let window = &mut self.list[place.min(last)];
        window.max_in_flight = window.max_in_flight.max(of.in_flight);
        window.max_context_tokens = window.max_context_tokens.max(of.context_tokens);
        self.refused += u64::from(of.is_refused);
        let verdicts = verdicts(request, &goals.settings);
        for (counts, verdict) in window.slos.iter_mut().zip(&verdicts) {
            counts.0 += u64::from(verdict.met == Some(true));
            counts.1 += u64::from(verdict.met.is_some());
        }
        for (view, verdicts) in TwinView::ALL.into_iter().zip(verdicts.chunks(goals.shares.len().max(1))) {
            let judged = || verdicts.iter().filter_map(|verdict| verdict.met);
            let counts = &mut self.judged[view.index()];
            counts.0 += u64::from(judged().next().is_some());
            let missed = judged().any(|met| !met);
            counts.1 += u64::from(missed);
            if view == TwinView::Expected && !missed && judged().next().is_some() {
                self.good_tokens += request.tokens.map_or(0, |count| count.tokens);
            }
        }
        if !request.succeeded() {
            window.incomplete += 1;
        } else if !request.events.is_empty() {
            window.with_gaps += 1;
            window.gaps += request.events.len() as u64;
            for (within, limits) in window.within.iter_mut().zip(&goals.gaps) {
                for (count, (limit, _)) in within.iter_mut().zip(limits) {
                    *count += request.events.iter().filter(|event| event.latency().0 <= *limit).count() as u64;
                }
            }
        }
    }

    /// Results of each window.
    pub fn iter(&self) -> impl Iterator<Item = &SimulatedWindow> {
        self.list.iter()
    }

    /// Good requests that each window lacks, by view; 0 if it keeps the goals.
    pub fn shortfalls(&self, goals: &SimulatedGoals) -> Vec<[f64; 3]> {
        self.list.iter().map(|window| TwinView::ALL.map(|view| window.shortfall(view, goals))).collect()
    }

    /// Share of requests that miss an SLO; `None` if the goals limit gaps only.
    pub fn miss_share(&self, view: TwinView) -> Option<f64> {
        let (judged, missed) = self.judged[view.index()];
        (judged > 0).then(|| missed as f64 / judged as f64)
    }
}

impl SimulatedWindow {
    fn shortfall(&self, view: TwinView, goals: &SimulatedGoals) -> f64 {
        // A share such as 0.95 has no exact double.
        let lacks = |good: f64, of: f64, share: f64| (share * of - good - 1e-9 * of).max(0.0);
        let count = goals.shares.len();
        let slos = self.slos[view.index() * count..][..count].iter().zip(&goals.shares);
        let of_slos: f64 = slos.map(|((good, of), share)| lacks(*good as f64, *of as f64, *share)).sum();
        let (with_gaps, all) = (self.with_gaps as f64, (self.with_gaps + self.incomplete) as f64);
        let gaps = self.within[view.index()].iter().zip(&goals.gaps[view.index()]);
        let of_gaps = gaps.map(|(within, (_, share))| {
            let good = *within as f64 / self.gaps.max(1) as f64 * with_gaps;
            lacks(good, all, *share)
        });
        of_slos + of_gaps.sum::<f64>()
    }
}
