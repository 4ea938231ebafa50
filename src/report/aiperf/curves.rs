//! AIPerf's curves over time (`effective_*`, `active_*`, `tokens_in_flight`). They show concurrent activity, computed
//! from each request's start, first token and end. Pure.
//!
//! A curve is a step function: a value holds until the next time, and statistics are weighted by time. The model
//! assumes that a server reads a prompt at a constant rate until the first token. Later tokens are spread evenly over
//! the gaps above zero, or until the request's end if no request has a gap. `active_*` omits times without a request in
//! the curve's phase.

use super::metric_summary::{MetricSummary, PERCENTILES};

/// Times of one request, in nanoseconds. A curve skips requests without the times that it needs.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestSpan {
    pub(super) start: f64,
    pub(super) first: Option<f64>,
    pub(super) end: f64,
    pub(super) input: Option<f64>,
    pub(super) output: Option<f64>,
    /// Gaps between chunks with text.
    pub(super) gaps: Vec<f64>,
}

/// Tag, header, unit, statistics.
pub(super) type CurveRow = (&'static str, &'static str, &'static str, MetricSummary);

const NANOS_PER_SECOND: f64 = 1e9;
/// Rounding error of a sum of rates, as a share of its peak. Smaller rests count as zero.
const ROUNDING_SHARE: f64 = 1e-9;

/// All curves of a phase. A window of the phase has a part of each.
#[derive(Debug)]
pub(super) struct Curves {
    open: StepCurve,
    decoding: StepCurve,
    reading: StepCurve,
    prompts: StepCurve,
    tokens: StepCurve,
    total: StepCurve,
    held: StepCurve,
    tokens_each: StepCurve,
    prompts_each: StepCurve,
}

impl Curves {
    pub(super) fn of(spans: &[RequestSpan]) -> Self {
        let all = || spans.iter();
        let decoding = StepCurve::of(all().filter_map(|span| Some(step(span.first?, span.end, 1.0))).flatten());
        let reading = StepCurve::of(all().filter_map(|span| Some(step(span.start, span.first?, 1.0))).flatten());
        let prompts = StepCurve::of(all().filter_map(RequestSpan::prefill).flatten());
        let by_gaps = all().any(|span| !span.gaps.is_empty());
        let tokens = match by_gaps {
            true => StepCurve::of(all().flat_map(RequestSpan::decode_by_gaps)),
            false => StepCurve::of(all().filter_map(RequestSpan::decode).flatten()),
        };
        let total =
            all().filter_map(RequestSpan::prefill).flatten().chain(all().filter_map(RequestSpan::decode).flatten());
        Self {
            open: StepCurve::of(all().flat_map(|span| step(span.start, span.end, 1.0))),
            total: StepCurve::of(total),
            held: StepCurve::of(all().flat_map(|span| span.kv_tokens(by_gaps))),
            tokens_each: tokens.per_user(&decoding),
            prompts_each: prompts.per_user(&reading),
            decoding,
            reading,
            prompts,
            tokens,
        }
    }

    /// Computes the statistics of all curves within a window, in nanoseconds.
    pub(super) fn rows(&self, window: (f64, f64)) -> Vec<CurveRow> {
        let Self { open, decoding, reading, prompts, tokens, total, held, tokens_each, prompts_each } = self;
        let of = |curve: &StepCurve, scale| curve.summarize(None, window, scale);
        let while_some = |curve: &StepCurve, phase: &StepCurve| curve.summarize(Some(phase), window, NANOS_PER_SECOND);
        let (rate, each) = ("tokens/sec", "tokens/sec/user");
        vec![
            ("effective_concurrency", "Effective Concurrency", "requests", of(open, 1.0)),
            ("effective_decode_throughput", "Effective Decode Throughput", rate, of(tokens, NANOS_PER_SECOND)),
            ("effective_prefill_throughput", "Effective Prefill Throughput", rate, of(prompts, NANOS_PER_SECOND)),
            ("effective_decode_concurrency", "Effective Decode Concurrency", "requests", of(decoding, 1.0)),
            ("effective_prefill_concurrency", "Effective Prefill Concurrency", "requests", of(reading, 1.0)),
            ("effective_total_throughput", "Effective Total Throughput", rate, of(total, NANOS_PER_SECOND)),
            (
                "effective_decode_throughput_per_user",
                "Effective Decode Throughput Per User",
                each,
                of(tokens_each, NANOS_PER_SECOND),
            ),
            (
                "effective_prefill_throughput_per_user",
                "Effective Prefill Throughput Per User",
                each,
                of(prompts_each, NANOS_PER_SECOND),
            ),
            ("tokens_in_flight", "Tokens In Flight", "tokens", of(held, 1.0)),
            ("active_decode_throughput", "Active Decode Throughput", rate, while_some(tokens, decoding)),
            ("active_prefill_throughput", "Active Prefill Throughput", rate, while_some(prompts, reading)),
            (
                "active_decode_throughput_per_user",
                "Active Decode Throughput Per User",
                each,
                while_some(tokens_each, decoding),
            ),
            (
                "active_prefill_throughput_per_user",
                "Active Prefill Throughput Per User",
                each,
                while_some(prompts_each, reading),
            ),
            ("active_total_throughput", "Active Total Throughput", rate, while_some(total, open)),
        ]
    }
}

/// Builds a step that adds `by` between `from` and `to`.
fn step(from: f64, to: f64, by: f64) -> [(f64, f64); 2] {
    [(from, by), (to, -by)]
}

impl RequestSpan {
    fn prefill(&self) -> Option<[(f64, f64); 2]> {
        let (first, input) = (self.first?, self.input?);
        (first > self.start).then(|| step(self.start, first, input / (first - self.start)))
    }

    fn decode(&self) -> Option<[(f64, f64); 2]> {
        let (first, output) = (self.first?, self.output.filter(|output| *output >= 1.0)?);
        (self.end > first).then(|| step(first, self.end, (output - 1.0) / (self.end - first)))
    }

    fn decode_by_gaps(&self) -> Vec<(f64, f64)> {
        let (Some(first), Some(output)) = (self.first, self.output.filter(|output| *output >= 1.0)) else {
            return Vec::new();
        };
        let parts = self.gaps.iter().filter(|gap| **gap > 0.0).count();
        let mut at = first;
        let of = |gap: &f64| {
            at += gap;
            (*gap > 0.0).then(|| step(at - gap, at, (output - 1.0) / parts as f64 / gap))
        };
        self.gaps.iter().filter_map(of).flatten().collect()
    }

    /// Returns the request's tokens in the KV cache: the prompt from the start, and output tokens as they arrive.
    fn kv_tokens(&self, by_gaps: bool) -> Vec<(f64, f64)> {
        let mut steps = Vec::new();
        let Some(first) = self.first else { return steps };
        let mut held = 0.0;
        if let Some(input) = self.input.filter(|_| first > self.start) {
            steps.push((self.start, input));
            held += input;
        }
        match self.output {
            Some(output) if by_gaps && output >= 1.0 && !self.gaps.is_empty() => {
                steps.push((first, 1.0));
                let mut at = first;
                for gap in &self.gaps {
                    at += gap;
                    let before_its_end = at.min(self.end.next_down());
                    steps.push((before_its_end, (output - 1.0) / self.gaps.len() as f64));
                }
                held += output;
            }
            Some(output) if !by_gaps && self.end > first => {
                steps.push((first, output));
                held += output;
            }
            _ => {}
        }
        steps.push((self.end, -held));
        steps
    }
}

/// Pairs of a time and the value from then on, ordered by time.
#[derive(Debug)]
struct StepCurve(Vec<(f64, f64)>);

impl StepCurve {
    fn of(steps: impl Iterator<Item = (f64, f64)>) -> Self {
        let mut steps: Vec<(f64, f64)> = steps.collect();
        // At equal times, ends come before starts.
        steps.sort_by(|a, b| a.0.total_cmp(&b.0).then((a.1 > 0.0).cmp(&(b.1 > 0.0))));
        let mut value = 0.0;
        for (_, by) in &mut steps {
            value += *by;
            *by = value;
        }
        let peak = steps.iter().map(|(_, value)| value.abs()).fold(0.0, f64::max);
        steps.iter_mut().filter(|(_, value)| value.abs() < ROUNDING_SHARE * peak).for_each(|(_, value)| *value = 0.0);
        Self(steps)
    }

    /// Returns the value at `time`: zero before the first step.
    fn at(&self, time: f64) -> f64 {
        let next = self.0.partition_point(|(at, _)| *at <= time);
        next.checked_sub(1).map_or(0.0, |last| self.0[last].1)
    }

    /// Returns the distinct step times of both curves within a window, in order.
    fn times(&self, other: Option<&Self>, (from, to): (f64, f64)) -> Vec<f64> {
        let within = |curve: &Self| {
            let [first, end] =
                [curve.0.partition_point(|(at, _)| *at < from), curve.0.partition_point(|(at, _)| *at <= to)];
            curve.0[first..end.max(first)].iter().map(|(at, _)| *at).collect::<Vec<f64>>()
        };
        let mut times = within(self);
        times.extend(other.map(within).unwrap_or_default());
        times.extend([from, to]);
        times.sort_by(f64::total_cmp);
        times.dedup();
        times
    }

    /// Divides by the number of users; zero where there are none.
    fn per_user(&self, users: &Self) -> Self {
        let times = self.times(Some(users), (f64::NEG_INFINITY, f64::INFINITY));
        let times = times.into_iter().filter(|at| at.is_finite());
        Self(
            times
                .map(|at| (at, (self.at(at), users.at(at))))
                .map(|(at, (all, of))| (at, if of > 0.0 { all / of } else { 0.0 }))
                .collect(),
        )
    }

    /// Summarizes the curve within a window, weighted by time and multiplied by `scale`. With `phase`, it uses only the
    /// times in which that curve is above zero.
    fn summarize(&self, phase: Option<&Self>, window: (f64, f64), scale: f64) -> MetricSummary {
        let times = self.times(phase, window);
        let pairs = times.windows(2).map(|pair| (pair[0], pair[1] - pair[0]));
        let of_phase = pairs.filter(|(at, long)| *long > 0.0 && phase.is_none_or(|phase| phase.at(*at) > 0.0));
        let mut parts: Vec<(f64, f64)> = of_phase.map(|(at, long)| (self.at(at) * scale, long)).collect();
        parts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let length: f64 = parts.iter().map(|(_, long)| long).sum();
        let weighted = |of: &dyn Fn(f64) -> f64| match length > 0.0 {
            true => parts.iter().map(|(value, long)| of(*value) * long).sum::<f64>() / length,
            false => 0.0,
        };
        let mean = weighted(&|value| value);
        let nth = |percent: u32| {
            let (mut passed, share) = (0.0, f64::from(percent) / 100.0);
            let at = parts.iter().position(|(_, long)| {
                passed += long;
                passed / length >= share
            });
            at.map_or(parts.last(), |at| parts.get(at)).map_or(0.0, |(value, _)| *value)
        };
        MetricSummary {
            avg: Some(mean),
            min: Some(parts.first().map_or(0.0, |(value, _)| *value)),
            max: Some(parts.last().map_or(0.0, |(value, _)| *value)),
            percentiles: PERCENTILES.map(|percent| [50, 90, 95, 99].contains(&percent).then(|| nth(percent))),
            std: Some(weighted(&|value| (value - mean).powi(2)).sqrt()),
            ..MetricSummary::default()
        }
    }
}
