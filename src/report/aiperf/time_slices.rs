//! AIPerf's `profile_export_aiperf_timeslices.json` and `.csv`: the summary of each time slice.
//!
//! As in AIPerf, slices begin with the first request, and a request belongs to the slice in which it was sent. Rates
//! are per second of the slice, and a slice without a request is absent. The last slice ends with the last response;
//! `is_complete` is false for it. AIPerf computes the send lag and the latency from the planned time only for a run.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::json;

use super::super::request_view::RequestView;
use super::super::source::ReportSource;
use super::super::tool_fields::ToolFields;
use super::input_config::RequestConfig;
use super::phase::{AiperfPhase, PhaseSummary};
use super::request_metrics::request_metrics;
use crate::measure::time::{Gap, Stamp, extend_span};

/// Requests by the slice in which they were sent.
#[derive(Debug)]
pub struct AiperfTimeSlices {
    first_sent: Stamp,
    length: Gap,
    /// Requests, and those that met the SLO, by slice.
    slices: BTreeMap<u64, (AiperfPhase, u64)>,
    all: AiperfPhase,
    config: RequestConfig,
}

/// One slice.
struct RenderedSlice {
    /// In nanoseconds since 1970.
    start: u64,
    end: u64,
    is_complete: bool,
    summary: PhaseSummary,
}

impl AiperfTimeSlices {
    /// Creates slices of a length. `first_sent` is the first send of all requests.
    pub fn new(first_sent: Stamp, length: Gap) -> Self {
        Self {
            first_sent,
            length,
            slices: BTreeMap::new(),
            all: AiperfPhase::default(),
            config: RequestConfig::default(),
        }
    }

    /// Adds a request. `is_good` is `true` if it met the SLO.
    pub fn add(&mut self, request: &RequestView, is_good: bool) {
        let numbers = request_metrics(request);
        let number = request.sent.since(self.first_sent).as_nanos() / self.length.as_nanos().max(1);
        let (slice, good) = self.slices.entry(number).or_default();
        slice.add(request, &numbers);
        *good += u64::from(is_good);
        self.all.add(request, &numbers);
        self.config.add(request);
    }

    /// Renders the JSON. `has_slo` is `true` if the requests were judged by exactly one SLO.
    pub fn json(&self, sources: &[ReportSource], has_slo: bool) -> String {
        let object = |slice: RenderedSlice| {
            let mut fields = ToolFields::default();
            fields.put("start_ns", json!(slice.start));
            fields.put("end_ns", json!(slice.end));
            if !slice.is_complete {
                fields.put("is_complete", json!(false));
            }
            for (tag, (_, unit, metric)) in &slice.summary {
                fields.put(tag, metric.json(unit));
            }
            fields
        };
        let mut file = ToolFields::default();
        file.put("timeslices", json!(self.render(sources, has_slo).map(object).collect::<Vec<_>>()));
        if let Some(config) = self.config.render(sources, &self.all) {
            file.put("input_config", config);
        }
        serde_json::to_string_pretty(&file).unwrap_or_default() + "\n"
    }

    /// Renders the CSV: one line per slice, metric and statistic.
    pub fn csv(&self, sources: &[ReportSource], has_slo: bool) -> String {
        let mut text = "Timeslice,Start_NS,End_NS,Metric,Unit,Stat,Value\n".to_owned();
        for (number, slice) in self.render(sources, has_slo).enumerate() {
            let (start, end) = (slice.start, slice.end);
            for (header, unit, metric) in slice.summary.values() {
                for (stat, value) in metric.stats() {
                    if let Some(value) = value {
                        _ = writeln!(text, "{number},{start},{end},{header},{unit},{stat},{value:.2}");
                    }
                }
            }
        }
        text
    }

    fn render(&self, sources: &[ReportSource], has_slo: bool) -> impl Iterator<Item = RenderedSlice> {
        let zero = sources.iter().filter_map(|source| source.started_unix_ns).min().unwrap_or(0);
        let curves = self.all.curves();
        let last = self.all.window().map_or(self.first_sent, |(_, last)| last);
        self.slices.iter().map(move |(number, (slice, good))| {
            let begin = self.first_sent.after(Gap::from_nanos(self.length.as_nanos().saturating_mul(*number)));
            let whole = begin.after(self.length);
            let window = extend_span(None, begin, whole.min(last));
            RenderedSlice {
                start: zero + window.0.as_nanos(),
                end: zero + window.1.as_nanos(),
                is_complete: whole <= last,
                summary: slice.summary_within(Some(window), &curves, has_slo.then_some(*good)),
            }
        })
    }
}
