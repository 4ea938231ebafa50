//! The figures of a run. Each request is added once, as it ends, with the aggregation of `report`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use crate::measure::record::LaterTurns;
use crate::measure::slo::Slos;
use crate::measure::time::{Stamp, Window, extend_span};
use crate::replay::plan::measurement_window::MeasurementWindow;
use crate::replay::result::row::CompletedRequest;
use crate::replay::sender::run::CompletionCallback;
use crate::report::accumulate::{Accumulator, AccumulatorSettings};
use crate::report::metric::ReportMetric;
use crate::report::request_view::RequestView;
use crate::report::{SloGoodput, slo_goodput};
use crate::stats::samples::Samples;
use crate::trace_file::gaps;
use crate::trace_file::header::BlockScheme;
use crate::trace_file::row::TraceEntry;

/// Requests in the latencies shown during a run.
const MAX_RECENT_REQUESTS: usize = 1_000;

/// Collects the figures of a run on its collector thread. Clones share them.
#[derive(Clone)]
pub struct RunFigures {
    totals: Arc<Mutex<RunTotals>>,
    measured: MeasurementWindow,
    blocks: Option<BlockScheme>,
}

/// Everything that a run adds up.
#[derive(Debug, Default)]
pub struct RunTotals {
    /// The requests, as a report aggregates them.
    pub requests: Accumulator,
    /// Values that no row holds.
    pub counts: RunCounts,
    recent: VecDeque<RequestView>,
}

/// Counts of requests inside the measurement window, except where noted.
#[derive(Debug, Default)]
pub struct RunCounts {
    /// Requests that ended, warm-up and cool-down included.
    pub ended: u64,
    /// Requests of the warm-up and the cool-down.
    pub outside_window: u64,
    /// Requests delayed by a lack of slots.
    pub held_back: u64,
    /// Later turns of live sessions.
    pub later_turns: LaterTurns,
    /// Requests without a complete response, by reason.
    pub errors: BTreeMap<&'static str, u64>,
    /// Send lag without connection setup, which depends on the server; in nanoseconds.
    pub own_lag: Samples,
    planned: Option<(Stamp, Stamp)>,
    sent: Option<(Stamp, Stamp)>,
    /// Complete responses, warm-up and cool-down included.
    pub(super) responses: u64,
    /// Complete responses without a token, a token count, or an end that the dialect recognizes.
    pub(super) empty_responses: u64,
}

/// Figures to show during a run.
#[derive(Clone, Debug, Default)]
pub(super) struct ProgressFigures {
    /// Requests that ended, warm-up and cool-down included.
    pub(super) ended: u64,
    pub(super) not_successful: u64,
    pub(super) sent_rate: Option<f64>,
    /// Output tokens per second.
    pub(super) output_rate: f64,
    /// Median and 99th percentile of recent requests, in nanoseconds.
    pub(super) ttft_from_planned: Option<(f64, f64)>,
    pub(super) itl: Option<(f64, f64)>,
    pub(super) lag: Option<(f64, f64)>,
    pub(super) goodput: Vec<SloGoodput>,
}

impl RunFigures {
    /// Figures of the requests inside `measured`, judged by `slos`. `blocks` is the block scheme of the trace.
    pub fn new(slos: Slos, measured: MeasurementWindow, blocks: Option<BlockScheme>) -> Self {
        Self::with_settings(AccumulatorSettings { slos, ..AccumulatorSettings::default() }, measured, blocks)
    }

    /// Figures with these settings.
    pub(super) fn with_settings(
        settings: AccumulatorSettings,
        measured: MeasurementWindow,
        blocks: Option<BlockScheme>,
    ) -> Self {
        let requests = Accumulator::new(settings);
        Self { totals: Arc::new(Mutex::new(RunTotals { requests, ..RunTotals::default() })), measured, blocks }
    }

    /// The callback that adds each request.
    pub fn callback(&self) -> CompletionCallback {
        let figures = self.clone();
        Box::new(move |done, row| figures.add(done, row))
    }

    /// The measurement window, as known so far.
    pub(super) fn measured(&self) -> Window {
        self.measured.window()
    }

    /// Reads the totals while no request is added. Percentiles sort them in place.
    pub fn read<T>(&self, read: impl FnOnce(&mut RunTotals) -> T) -> T {
        read(&mut self.totals.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, done: &CompletedRequest, row: &TraceEntry) {
        let at = row.planned.unwrap_or(row.at);
        let request = RequestView::with_events(row.clone(), gaps::rounded(&done.gaps), 0, self.blocks.as_ref());
        self.read(|totals| {
            let RunTotals { requests, counts, recent } = totals;
            counts.ended += 1;
            counts.responses += u64::from(request.succeeded());
            let empty = request.succeeded() && row.finish.is_none() && request.has_no_output();
            counts.empty_responses += u64::from(empty);
            let measured = self.measured.window();
            if measured.has(at) {
                // Only time slices are limited, and a run's report has none.
                _ = requests.add(&request);
                counts.add(done);
                if recent.len() == MAX_RECENT_REQUESTS {
                    recent.pop_front();
                }
                recent.push_back(request);
                return;
            }
            counts.outside_window += 1;
            if at < measured.from {
                requests.add_warm_up(&request);
            }
        });
    }

    pub(super) fn progress(&self) -> ProgressFigures {
        self.read(|totals| {
            let mut latest = Accumulator::default();
            for request in &totals.recent {
                _ = latest.add(request);
            }
            let mut percentiles = |metric: ReportMetric| {
                let sorted = latest.total.samples[metric as usize].sorted()?;
                Some((sorted.percentile(50.0), sorted.percentile(99.0)))
            };
            let all = &totals.requests.total;
            let seconds = all.window.map_or(0.0, |(first, last)| last.since(first).as_secs());
            let tokens = all.samples[ReportMetric::Output as usize].sum() as f64;
            ProgressFigures {
                ended: totals.counts.ended,
                not_successful: all.requests() - all.successes(),
                sent_rate: totals.counts.sent_rate(all.requests()),
                output_rate: if seconds > 0.0 { tokens / seconds } else { 0.0 },
                ttft_from_planned: percentiles(ReportMetric::TtftFromPlanned),
                itl: percentiles(ReportMetric::Itl),
                lag: percentiles(ReportMetric::Lag),
                goodput: slo_goodput(all, seconds, &totals.requests.settings.slos),
            }
        })
    }
}

impl RunCounts {
    fn add(&mut self, done: &CompletedRequest) {
        if let Some(reason) = done.failure_reason {
            *self.errors.entry(reason.name()).or_default() += 1;
        }
        self.held_back += u64::from(done.held_back);
        self.later_turns.verbatim += u64::from(done.verbatim_history == Some(true));
        self.later_turns.synthesized += u64::from(done.verbatim_history == Some(false));
        self.own_lag.push(done.lag().as_nanos().saturating_sub(done.connect_time.as_nanos()));
        self.planned = Some(extend_span(self.planned, done.planned, done.planned));
        let sent = done.record.times.received;
        self.sent = Some(extend_span(self.sent, sent, sent));
    }

    /// Planned requests per second, from the first planned time to the last.
    pub(super) fn planned_rate(&self, requests: u64) -> Option<f64> {
        rate(requests, self.planned)
    }

    /// Sent requests per second, from the first send to the last.
    pub(super) fn sent_rate(&self, requests: u64) -> Option<f64> {
        rate(requests, self.sent)
    }
}

/// The first request opens the span, so `requests - 1` intervals fill it.
fn rate(requests: u64, span: Option<(Stamp, Stamp)>) -> Option<f64> {
    let seconds = span.map(|(first, last)| last.since(first).as_secs())?;
    (requests > 1 && seconds > 0.0).then(|| (requests - 1) as f64 / seconds)
}
