//! What requests came to: from records to words. A pure fold, and one file for each format.
//!
//! ```text
//! paths -> source -> request -> fold -> Report -> text, json, csv, markdown, html
//!          reads     unpacks    adds up           words
//! ```
//!
//! A [`source`] is a capture, a run directory, or one of several shards; several are one report, exactly as if all rows
//! were in one. [`definitions`] say what each number means, ours or another tool's; [`fold`] keeps every value, so that
//! percentiles are exact ([`crate::measure::spread`] has the rule and what it costs). [`warnings`] say what might mislead,
//! each with advice.
//!
//! # What is in which figure
//! Latencies, lengths and rates are of successes; what failed is counted beside them and never mixed in. Goodput alone
//! has failures in its denominator, unless its SLO says otherwise. Send lag is of all requests.
//!
//! # JSON
//! One object. `streamgauge_report` is the version of its shape; a key that is absent is unknown, never zero.
//!
//! | key | what |
//! |---|---|
//! | `definitions` | whose definitions the numbers follow |
//! | `sources[]` | `path`, `run`, `rows`, `outside` (warm-up and cool-down), `targets`, `closed_loop`, `warmed_up`, `audited`, `doubts`, `not_valid`, `held`, `later_turns` (`real`, `made`: by what they say of the past), `troubles` (those without a whole answer, by why), `damage`, `started_unix_ns` |
//! | `requests`, `outcomes`, `statuses` | how many; by what became of them; by HTTP status |
//! | `seconds` | what the rates are over: from the first beginning to the last end; of a slice what of that lies in it |
//! | `throughput` | of successes, per second: `requests`, `input_tokens`, `output_tokens`, `total_tokens` |
//! | `tokens` | of successes: `input`, `cached`, `output`, and `sources`: requests by who counted the output |
//! | `goodput[]` | `slo`, `text`, `met`, `counted`, `share`, `requests_per_second`, `tokens_per_second` |
//! | `metrics` | by name: `unit` (`ms`, `tokens`, `tokens/s`), `count`, `avg`, `min`, `p…`, `max`, `std`, `sum` |
//! | `servers[]` | with `--server-metrics` (replay, load): `url`, `scrapes`, `failed`, `figures` by name ([`Figure`](crate::capture::scrapes::Figure)): `unit`, `avg`, `min`, `max` of a level, `total`, `per_second` of a counter; `prefix_hit_rate` |
//! | `in_flight` | requests of the same source open when one was sent, that one included: `mean`, `max`, `over_time` in 60 equal parts of `seconds` |
//! | `fidelity` | of a run, planned against sent and achieved ([`fidelity`] has the definitions); see below |
//! | `warm_up` | of a run's warm-up, which is in nothing else: every key from `requests` to `metrics` |
//! | `production` | with `--source`: `path`, and of its rows `in_flight` and every key from `requests` to `metrics` |
//! | `slices[]` | with `--slice`: `from_s`, `to_s` of the shared line, and every key from `requests` to `servers` |
//! | `groups[]` | with `--by`: `by`, a value for each key, and the same |
//! | `warnings[]` | `warning` (a name for scripts), `text`, `advice` |
//!
//! | key of `fidelity` | what |
//! |---|---|
//! | `arrival_error` | sent − planned: as a metric, with p50, p90, p99 and p99.9 |
//! | `rate` | `planned_per_second`, `sent_per_second`; requests in windows of `window_s`: `planned[]`, `sent[]`; `moved_share`, the share in another window |
//! | `isl`, `osl` | `compared`, `exact_share`, `mean_error`, `mean_absolute_error`, `ks` (the KS distance) |
//! | `prefix` | `blocks`, `repeated_blocks`, `offered_share` of the prompt tokens; `cached_tokens`, `cached_share` as the server says |
//! | `think` | `planned`, `achieved`: `count`, `mean_ms`, `p50_ms`, `p90_ms`, `p99_ms`, `max_ms` |
//! | `aborts` | `planned`, `done`, and `tokens` with the keys of `osl` |
//!
//! A folder of a sweep has a report of its own: [`sweep`].
//!
//! What it is not: it reads no public trace (`streamgauge trace convert` does), and compares no two runs.

pub mod accumulate;
pub mod aiperf;
pub mod ascii_plot;
pub mod csv;
pub mod definitions;
pub mod distribution;
pub mod fidelity;
pub mod hlog;
pub mod html;
pub mod markdown;
pub mod metric;
pub mod request_view;
pub mod saturation;
pub mod servers;
pub mod source;
pub mod sweep;
pub mod text;
mod tool_column;
mod tool_fields;
pub mod vllm;
pub mod warnings;

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::measure::slo::Slos;
use crate::measure::time::{Gap, Stamp};
use accumulate::{Accumulator, RequestStats};
use definitions::Definitions;
use distribution::MetricDistribution;
use fidelity::Fidelity;
use metric::{MetricUnit, ReportMetric};
use servers::ServerSummary;
use source::ReportSource;
use warnings::WarningText;

/// The version of the JSON object.
const VERSION: u32 = 1;

/// The percentiles that are given where nobody asks for others.
pub const PERCENTILES: [f64; 10] = [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9];

/// Everything that is told.
#[derive(Debug, Serialize)]
pub struct Report {
    streamgauge_report: u32,
    /// Whose definitions the numbers follow.
    pub definitions: &'static str,
    /// What it was read from.
    pub sources: Vec<ReportSource>,
    /// What all requests came to.
    #[serde(flatten)]
    pub whole: RequestSummary,
    /// What servers said of themselves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerSummary>,
    /// Slices of time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<TimeSlice>,
    /// Groups of requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<RequestGroup>,
    /// What might mislead.
    pub warnings: Vec<WarningText>,
    /// TTFT and ITL by size, for pictures.
    #[serde(skip)]
    pub histograms: Vec<(ReportMetric, Vec<(f64, u64)>)>,
    /// Requests in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<InFlightStats>,
    /// What was sent and came beside what was planned. Runs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fidelity: Option<Fidelity>,
    /// What the warm-up of a run came to, apart from everything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_up: Option<RequestSummary>,
    /// What the trace that a run was made from came to when it was captured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub production: Option<Production>,
}

/// Requests in flight when one was sent, that one included.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct InFlightStats {
    /// The time in which requests came.
    pub seconds: f64,
    /// The mean over all requests.
    pub mean: f64,
    /// The most.
    pub max: u32,
    /// On average in equal parts of the time; a part in which none came is as the one before.
    pub over_time: Vec<f64>,
}

/// What a run was made from.
#[derive(Debug, Serialize)]
pub struct Production {
    /// As it was named.
    pub path: String,
    /// Requests in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<InFlightStats>,
    /// What its requests came to.
    #[serde(flatten)]
    pub summary: RequestSummary,
}

/// What some requests came to.
#[derive(Debug, Serialize)]
pub struct RequestSummary {
    /// How many.
    pub requests: u64,
    /// By what became of them.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// By status.
    pub statuses: BTreeMap<u16, u64>,
    /// The window of the rates.
    pub seconds: f64,
    /// Of successes.
    pub throughput: Throughput,
    /// Of successes.
    pub tokens: TokenTotals,
    /// By SLO.
    pub goodput: Vec<SloGoodput>,
    /// Every number that occurred.
    #[serde(serialize_with = "by_name")]
    pub metrics: Vec<MetricDistribution>,
}

/// Per second of the window.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Throughput {
    /// Successful requests.
    pub requests: f64,
    /// Prompt tokens.
    pub input_tokens: f64,
    /// Output tokens.
    pub output_tokens: f64,
    /// Both.
    pub total_tokens: f64,
}

/// Together.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TokenTotals {
    /// Prompt tokens.
    pub input: u64,
    /// Prompt tokens that a cache had.
    pub cached: u64,
    /// Output tokens.
    pub output: u64,
    /// Requests by who counted their output.
    pub sources: BTreeMap<&'static str, u64>,
}

/// Requests that met an SLO.
#[derive(Clone, Debug, Serialize)]
pub struct SloGoodput {
    /// Its name.
    pub slo: String,
    /// The SLO.
    pub text: String,
    /// Requests that met it.
    pub met: u64,
    /// Requests that it counts.
    pub counted: u64,
    /// The share of these; absent where it counts none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Requests that met it, per second of the window.
    pub requests_per_second: f64,
    /// Their output tokens, likewise.
    pub tokens_per_second: f64,
}

/// A slice of time.
#[derive(Debug, Serialize)]
pub struct TimeSlice {
    /// Its begin on the shared line, in seconds.
    pub from_s: f64,
    /// Its end.
    pub to_s: f64,
    /// The requests that began in it.
    #[serde(flatten)]
    pub summary: RequestSummary,
    /// What servers said of themselves in it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerSummary>,
}

/// Requests that have something in common.
#[derive(Debug, Serialize)]
pub struct RequestGroup {
    /// What.
    pub by: BTreeMap<&'static str, String>,
    /// What they came to.
    #[serde(flatten)]
    pub summary: RequestSummary,
}

/// What the servers of all sources said of themselves at these times.
fn summarize_servers(sources: &[ReportSource], times: &impl Fn(i64) -> bool) -> Vec<ServerSummary> {
    sources.iter().flat_map(|source| &source.servers).map(|watched| ServerSummary::summarize(watched, times)).collect()
}

/// From the first beginning to the last end, in seconds of the line.
fn window(whole: &RequestStats) -> (f64, f64) {
    whole.window.map_or((0.0, 0.0), |(first, last)| (secs(first), secs(last)))
}

fn secs(at: Stamp) -> f64 {
    at.since(Stamp::default()).as_secs()
}

fn by_name<S: Serializer>(metrics: &[MetricDistribution], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(metrics.iter().map(|metric| (metric.metric.key(), metric)))
}

impl RequestSummary {
    /// Sorts the values where they stand.
    fn of(figures: &mut RequestStats, seconds: f64, slos: &Slos, percentiles: &[f64]) -> Self {
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let goodput = slos.iter().zip(&figures.goodput).map(|(slo, good)| SloGoodput {
            slo: slo.name().to_owned(),
            text: slo.to_string(),
            met: good.met,
            counted: good.counted,
            share: (good.counted > 0).then(|| good.met as f64 / good.counted as f64),
            requests_per_second: per_second(good.met),
            tokens_per_second: per_second(good.tokens),
        });
        let goodput = goodput.collect();
        let mut metrics = Vec::new();
        for metric in ReportMetric::ALL {
            let sorted = figures.samples[metric as usize].sorted();
            metrics.extend(sorted.map(|sorted| MetricDistribution::of(metric, sorted, percentiles)));
        }
        let sum = |metric: ReportMetric| metrics.iter().find(|of| of.metric == metric).map_or(0, |of| of.sum as u64);
        let (input, output) = (sum(ReportMetric::Input), sum(ReportMetric::Output));
        Self {
            requests: figures.requests(),
            outcomes: figures.outcomes.clone(),
            statuses: figures.statuses.clone(),
            seconds,
            throughput: Throughput {
                requests: per_second(figures.successes()),
                input_tokens: per_second(input),
                output_tokens: per_second(output),
                total_tokens: per_second(input.saturating_add(output)),
            },
            tokens: TokenTotals { input, cached: figures.cached, output, sources: figures.sources.clone() },
            goodput,
            metrics,
        }
    }

    /// One number, if it occurred.
    pub fn metric(&self, metric: ReportMetric) -> Option<&MetricDistribution> {
        self.metrics.iter().find(|of| of.metric == metric)
    }
}

impl Report {
    /// What a fold came to.
    pub fn of(fold: &mut Accumulator, sources: Vec<ReportSource>, percentiles: &[f64]) -> Self {
        let Accumulator { settings, total: whole, slices, groups, fidelity, warm_up } = fold;
        let length = settings.slice.map_or(0.0, Gap::as_secs);
        let window = window(whole);
        let seconds = window.1 - window.0;
        let slice = |(number, figures): (&u64, &mut RequestStats)| {
            let (from_s, to_s) = (*number as f64 * length, (*number + 1) as f64 * length);
            // The first and the last are not measured over their whole length.
            let seconds = (to_s.min(window.1) - from_s.max(window.0)).max(0.0);
            let within = |at: i64| (from_s * 1e9..to_s * 1e9).contains(&(at as f64));
            let summary = RequestSummary::of(figures, seconds, &settings.slos, percentiles);
            TimeSlice { from_s, to_s, summary, servers: summarize_servers(&sources, &within) }
        };
        let group = |(values, figures): (&Vec<String>, &mut RequestStats)| RequestGroup {
            by: settings.by.iter().map(|key| key.name()).zip(values.iter().cloned()).collect(),
            summary: RequestSummary::of(figures, seconds, &settings.slos, percentiles),
        };
        let summary = RequestSummary::of(whole, seconds, &settings.slos, percentiles);
        let slices = slices.iter_mut().map(slice).collect();
        let servers = summarize_servers(&sources, &|_| true);
        let groups = groups.iter_mut().map(group).collect();
        let began = warm_up.first_sent();
        let warm_up = (warm_up.requests() > 0).then(|| {
            let (first, last) = self::window(warm_up);
            RequestSummary::of(warm_up, last - first, &settings.slos, percentiles)
        });
        let closed_loop = sources.iter().any(|source| source.closed_loop);
        let fidelity = fidelity.finish(whole, closed_loop);
        let warnings = warnings::collect(&summary, whole, &sources, (fidelity.as_ref(), began), percentiles);
        let planned = !whole.samples[ReportMetric::TtftFromPlanned as usize].is_empty();
        let ttft = if planned { ReportMetric::TtftFromPlanned } else { ReportMetric::Ttft };
        let pictures = [ttft, ReportMetric::Itl]
            .into_iter()
            .filter_map(|metric| {
                Some((metric, ascii_plot::histogram_bins(whole.samples[metric as usize].sorted()?, MetricUnit::Time)))
            })
            .collect();
        Self {
            streamgauge_report: VERSION,
            definitions: settings.definitions.name(),
            sources,
            whole: summary,
            servers,
            slices,
            groups,
            warnings: warnings.iter().map(WarningText::from_warning).collect(),
            histograms: pictures,
            in_flight: whole.in_flight(),
            fidelity,
            warm_up,
            production: None,
        }
    }

    /// With what the trace came to that the run was made from, which is called so.
    pub fn with_production(mut self, path: String, fold: &mut Accumulator, percentiles: &[f64]) -> Self {
        let Accumulator { settings, total: whole, .. } = fold;
        let (first, last) = window(whole);
        let summary = RequestSummary::of(whole, last - first, &settings.slos, percentiles);
        self.production = Some(Production { path, in_flight: whole.in_flight(), summary });
        self
    }

    /// As one JSON object.
    pub fn json(&self) -> String {
        // Numbers, names and keys that are texts: there is nothing that JSON cannot hold.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Whether the numbers are ours.
    pub fn uses_own_definitions(&self) -> bool {
        self.definitions == Definitions::Streamgauge.name()
    }

    /// Whether goodput of any SLO is less than `least`, a share of 1. Of an SLO that counts nothing it is.
    pub fn is_below(&self, least: f64) -> bool {
        self.whole.goodput.iter().any(|goodput| goodput.share.is_none_or(|share| share < least))
    }
}
