//! Requests of one AIPerf phase and their summary. Pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::definitions::Definitions;
use super::super::request_view::RequestView;
use super::super::tool_column::ToolColumn;
use super::curves::{Curves, RequestSpan};
use super::error_details;
use super::metric_summary::MetricSummary;
use super::request_metrics::{ERROR_ADJUSTED_METRICS, PHASE_METRICS, REQUEST_METRICS, SUM_METRICS};
use crate::measure::time::{Stamp, extend_span};

/// Output length mismatch limits: a share of the requested length, or a number of tokens.
const OSL_MISMATCH_LIMITS: (f64, f64) = (0.05, 50.0);
/// p99 of the send lag above which AIPerf calls a schedule degraded, in milliseconds.
const DEGRADED_LAG_MS: f64 = 500.0;

/// Header, unit and statistics by tag.
pub(super) type PhaseSummary = BTreeMap<String, (String, &'static str, MetricSummary)>;

/// Aggregate of one phase.
#[derive(Debug, Default)]
pub(super) struct AiperfPhase {
    requests: u64,
    failures: u64,
    mismatches: u64,
    columns: BTreeMap<&'static str, ToolColumn>,
    spans: Vec<RequestSpan>,
    /// Lag behind the planned time, in milliseconds, for requests that had one.
    lags: ToolColumn,
    /// Failures by message: (details, count).
    errors: BTreeMap<String, (Value, u64)>,
    /// First send to last end.
    window: Option<(Stamp, Stamp)>,
    /// First send to last token of the successes.
    success_window: Option<(Stamp, Stamp)>,
}

impl AiperfPhase {
    /// Adds a request with its metrics. Returns its index in the phase, from 0.
    pub(super) fn add(&mut self, request: &RequestView, numbers: &[(&'static str, Vec<f64>)]) -> u64 {
        let whole = request.succeeded();
        let ended = request.ended.unwrap_or(request.sent);
        let nanos = |at: Stamp| at.as_nanos() as f64;
        let mut columns = |tag, values: &[f64]| self.columns.entry(tag).or_default().0.extend(values);
        numbers.iter().for_each(|(tag, values)| columns(tag, values));
        if let Some(planned) = request.planned {
            let lag = request.sent.since(planned).as_millis();
            columns("credit_to_start_latency", &[lag]);
            columns("effective_latency", &[ended.since(planned).as_millis()]);
            self.lags.0.push(lag);
        }
        self.window = Some(extend_span(self.window, request.sent, ended));
        let mut span = RequestSpan { start: nanos(request.sent), end: nanos(ended), ..RequestSpan::default() };
        if whole {
            let last = Definitions::Aiperf.end(request).unwrap_or(request.sent);
            self.success_window = Some(extend_span(self.success_window, request.sent, last));
            span.first = request.first.filter(|_| request.streamed).map(nanos);
            span.input = request.input.map(|tokens| tokens as f64);
            span.output = Definitions::Aiperf.tokens(request).map(|tokens| tokens as f64);
            span.gaps = request.events.iter().map(|event| event.gap().as_nanos() as f64).collect();
            if let Some((limit, tokens)) = request.max_tokens.filter(|limit| *limit > 0).zip(request.tokens) {
                let most = (limit as f64 * OSL_MISMATCH_LIMITS.0).min(OSL_MISMATCH_LIMITS.1);
                self.mismatches += u64::from(limit.abs_diff(tokens.tokens) as f64 > most);
            }
        } else {
            let fault = error_details(request);
            self.failures += 1;
            self.errors.entry(fault.to_string()).or_insert((fault, 0)).1 += 1;
        }
        self.spans.push(span);
        self.requests += 1;
        self.requests - 1
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    pub(super) fn window(&self) -> Option<(Stamp, Stamp)> {
        self.window
    }

    pub(super) fn mean(&self, tag: &str) -> Option<f64> {
        self.columns.get(tag).map(|column| column.stats().mean())
    }

    /// Lists each failure with its count.
    pub(super) fn errors(&self) -> Value {
        let errors = self.errors.values().map(|(fault, count)| json!({"error_details": fault, "count": count}));
        json!(errors.collect::<Vec<_>>())
    }

    /// Returns the phase's curves over time.
    pub(super) fn curves(&self) -> Curves {
        Curves::of(&self.spans)
    }

    /// Renders the phase's summary. `good` requests give goodput; `fixed` adds schedule statistics.
    pub(super) fn summary(&self, good: Option<u64>, fixed: bool) -> PhaseSummary {
        let mut summary = self.summary_within(self.window, &self.curves(), good);
        let mut put = |tag: &str, header: &str, unit, metric| {
            summary.insert(tag.to_owned(), (header.to_owned(), unit, metric));
        };
        for (tag, header, unit) in PHASE_METRICS {
            if let Some(column) = self.columns.get(tag) {
                put(tag, header, unit, MetricSummary::of(column));
            }
        }
        if fixed && !self.lags.0.is_empty() {
            // AIPerf does not know when its schedule began and treats the least late request as punctual.
            let stats = self.lags.stats();
            let late = |percent| stats.percentile(percent) - stats.min();
            for (tag, header, percent) in [
                ("replay_sched_lag_p50", "Replay Schedule Lag p50", 50.0),
                ("replay_sched_lag_p90", "Replay Schedule Lag p90", 90.0),
                ("replay_sched_lag_p99", "Replay Schedule Lag p99", 99.0),
            ] {
                put(tag, header, "ms", MetricSummary::single(late(percent)));
            }
            let degraded = f64::from(u8::from(late(99.0) > DEGRADED_LAG_MS));
            put("replay_sched_degraded", "Replay Schedule Degraded", "count", MetricSummary::single(degraded));
        }
        summary
    }

    /// Renders what the summaries of a phase and of a time slice share. Rates are per second of `window`, and `curves`
    /// are those of the whole phase.
    pub(super) fn summary_within(
        &self,
        window: Option<(Stamp, Stamp)>,
        curves: &Curves,
        good: Option<u64>,
    ) -> PhaseSummary {
        let mut summary = PhaseSummary::new();
        let mut put = |tag: &str, header: &str, unit, metric| {
            summary.insert(tag.to_owned(), (header.to_owned(), unit, metric));
        };
        for (tag, header, unit) in REQUEST_METRICS {
            let Some(column) = self.columns.get(tag) else { continue };
            put(tag, header, unit, MetricSummary::of(column));
            if self.failures > 0 && ERROR_ADJUSTED_METRICS.contains(&tag) {
                let adjusted = MetricSummary::with_failures(column, self.failures as usize);
                put(&format!("adj_{tag}"), &format!("{header} (error-adjusted)"), unit, adjusted);
            }
        }
        if let Some((first, last)) = window {
            let window = (first.as_nanos() as f64, last.as_nanos() as f64);
            curves.rows(window).into_iter().for_each(|(tag, header, unit, metric)| put(tag, header, unit, metric));
        }
        let mut one = |tag: &str, header: &str, unit, value: Option<f64>| {
            if let Some(value) = value.filter(|value| value.is_finite()) {
                put(tag, header, unit, MetricSummary::single(value));
            }
        };
        let seconds = |window: Option<(Stamp, Stamp)>| {
            window.map(|(first, last)| last.since(first).as_secs()).filter(|seconds| *seconds > 0.0)
        };
        let length = seconds(window);
        let sum = |tag: &str| self.columns.get(tag).map(|column| column.stats().sum());
        let rate = |number: Option<f64>| Some(number? / length?);
        let (input, output) = (sum("input_sequence_length"), sum("output_sequence_length"));
        let some = |count: u64| Some(count as f64).filter(|count| *count > 0.0);
        let successes = some(self.requests - self.failures);
        for (tag, of, header) in SUM_METRICS {
            one(tag, header, "tokens", sum(of));
        }
        one("benchmark_duration", "Benchmark Duration", "sec", seconds(self.success_window));
        one("completed_request_count", "Completed Requests (Success + Error)", "requests", some(self.requests));
        one("error_request_count", "Error Request Count", "requests", some(self.failures));
        one("input_token_throughput", "Input Token Throughput", "tokens/sec", rate(input));
        let compared = self.columns.get("osl_mismatch_diff_pct").map(|_| self.mismatches as f64);
        one("osl_mismatch_count", "OSL Mismatch Count", "requests", compared);
        one("output_token_throughput", "Output Token Throughput", "tokens/sec", rate(output));
        let prompts = sum("usage_prompt_tokens").filter(|tokens| *tokens > 0.0);
        let read = sum("usage_prompt_cache_read_tokens").zip(prompts).map(|(read, all)| read / all * 100.0);
        one("overall_usage_prompt_cache_read_pct", "Overall Usage Prompt Cache Read %", "%", read);
        one("request_count", "Request Count", "requests", successes);
        let share = |count: u64| some(self.requests).map(|all| count as f64 / all);
        one("request_error_rate", "Request Error Rate", "%", share(self.failures).map(|share| share * 100.0));
        one("request_throughput", "Request Throughput", "requests/sec", rate(successes));
        let both = input.zip(output).map(|(input, output)| input + output);
        one("total_token_throughput", "Total Token Throughput", "tokens/sec", rate(both));
        if let Some(good) = good {
            one("good_request_count", "Good Request Count", "requests", Some(good as f64));
            one("good_request_fraction", "GoodRequestFraction", "ratio", share(good));
            one("goodput", "Goodput", "requests/sec", rate(Some(good as f64)));
        }
        summary
    }
}
