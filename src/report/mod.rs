//! Reports on requests: a pure aggregation from records, and one file per output format.
//!
//! ```text
//! paths -> source -> request_view -> accumulate -> Report -> text, json, csv, markdown, page, llmd
//!          reads     unpacks         aggregates              formats
//! ```
//!
//! A [`source`] is a capture, a run directory or one of several shards. Several sources give the same report as one
//! file with all their rows. [`definitions`] defines each metric, for this tool and for others. [`accumulate`] keeps
//! every value, so percentiles are exact ([`crate::stats::samples`] documents the rule and its memory). [`warnings`]
//! lists threats to the results, each with advice.
//!
//! # Requests behind each number
//! Latencies, lengths and rates cover successes; failures are counted separately and never mixed in. Only goodput
//! includes failures in its denominator, unless its SLO excludes them. Send lag covers all requests.
//!
//! # JSON
//! One object. `streamgauge_report` is the schema version. An absent key means unknown, never zero.
//!
//! | key | content |
//! |---|---|
//! | `definitions` | name of the metric definitions |
//! | `sources[]` | `path`, `run`, `tool` (that wrote the file, if it is another one), `rows`, `outside_window` (rows in warm-up and cool-down), `targets`, `closed_loop`, `warmed_up`, `audited`, `uncertain`, `not_valid`, `held_back`, `later_turns` (`verbatim`, `synthesized`: by the origin of the history that they send), `errors` (incomplete responses by cause), `truncated`, `started_unix_ns` |
//! | `requests`, `outcomes`, `statuses` | number of requests; by outcome; by HTTP status |
//! | `seconds` | window of the rates, from the first start to the last end; in a slice, its overlap with that window |
//! | `throughput` | successes per second: `requests`, `input_tokens`, `output_tokens`, `total_tokens` |
//! | `tokens` | of successes: `input`, `cached`, `output`, and `sources`: requests by source of the output count |
//! | `goodput[]` | `slo`, `text`, `met`, `counted`, `share`, `share_interval`, `requests_per_second`, `tokens_per_second` |
//! | `metrics` | by name: `unit` (`ms`, `tokens`, `tokens/s`), `count`, `avg`, `min`, `p…`, `max`, `std`, `sum`; of latencies `tail_ratio`, p99 ÷ p50; `ci95` ([`confidence`]): `effective_count`, and `low`, `high` of `avg`, of each percentile and of `tail_ratio`; `null` without enough data |
//! | `servers[]` | with `--server-metrics` (replay, load): `url`, `scrapes`, `failed`, `figures` by name ([`ServerMetric`](crate::trace_file::server_metrics::ServerMetric)): `unit`, `avg`, `min`, `max` of a gauge, `total`, `per_second` of a counter; `prefix_hit_rate` |
//! | `in_flight` | open requests of the same source at each send, including the new one: `mean`, `max`, `over_time` in 60 equal parts of `seconds` |
//! | `fidelity` | of a run: planned compared with sent and achieved ([`fidelity`] has the definitions); see below |
//! | `warm_up` | the run's warm-up, which counts nowhere else: every key from `requests` to `metrics` |
//! | `production` | with `--source`: `path`, and `in_flight` and every key from `requests` to `metrics` of its rows |
//! | `slices[]` | with `--slice`: `from_s`, `to_s` on the shared timeline, and every key from `requests` to `servers` |
//! | `groups[]` | with `--by`: `by` with a value per key, and every key from `requests` to `metrics` |
//! | `warnings[]` | `warning` (a stable id for scripts), `text`, `advice` |
//!
//! | key of `fidelity` | content |
//! |---|---|
//! | `arrival_error` | sent − planned, as a metric with p50, p90, p99 and p99.9 |
//! | `rate` | `planned_per_second`, `sent_per_second`; requests per window of `window_s`: `planned[]`, `sent[]`; `displaced_share`, the share sent in another window |
//! | `isl`, `osl` | `compared`, `exact_share`, `mean_error`, `mean_absolute_error`, `ks` (the KS distance) |
//! | `prefix` | `blocks`, `repeated_blocks`, `offered_share` of the prompt tokens; `cached_tokens`, `cached_share` as the server reports them |
//! | `think` | `planned`, `achieved`: `count`, `mean_ms`, `p50_ms`, `p90_ms`, `p99_ms`, `max_ms` |
//! | `aborts` | `planned`, `done`, and `tokens` with the keys of `osl` |
//!
//! [`sweep`] reports on a sweep's folder, and [`plan`] computes the replicas that a traffic needs.
//!
//! [`compare`] compares finished runs.
//!
//! Reports read result files of other tools ([`peer_files`]), and no public trace formats; `streamgauge trace convert`
//! does.

pub mod accumulate;
pub mod aiperf;
pub mod ascii_plot;
pub mod compare;
pub mod condition;
pub mod confidence;
pub mod context;
pub mod csv;
pub mod definitions;
pub mod distribution;
pub mod fidelity;
pub mod filter;
pub mod group_by;
pub mod hlog;
pub mod in_flight;
pub mod lane_sample;
pub mod llmd;
pub mod markdown;
pub mod metric;
pub mod page;
pub mod peer_files;
pub mod peer_summary;
pub mod plan;
pub mod request_point;
pub mod request_view;
pub mod saturation;
pub mod servers;
pub mod slice_flow;
pub mod source;
mod source_error;
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
use crate::stats::bootstrap::BlockBootstrap;
use crate::stats::interval::Interval;
use crate::stats::slice_histogram::SliceHistogram;
use accumulate::{Accumulator, AccumulatorSettings, RequestStats};
use condition::ConditionResult;
use context::ReportContext;
use definitions::Definitions;
use distribution::MetricDistribution;
use fidelity::Fidelity;
use in_flight::InFlightStats;
use metric::{MetricUnit, ReportMetric};
use request_point::RequestPoint;
use servers::ServerSummary;
use source::ReportSource;
use warnings::WarningText;

/// Schema version of the JSON object.
const VERSION: u32 = 1;

/// Default percentiles.
pub const PERCENTILES: [f64; 10] = [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9];

/// A complete report, ready for every output format.
#[derive(Debug, Serialize)]
pub struct Report {
    streamgauge_report: u32,
    /// Name of the metric definitions.
    pub definitions: &'static str,
    /// What produced the results.
    pub context: ReportContext,
    /// Filter of the requests, as written; empty without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filter: String,
    /// The sources that were read.
    pub sources: Vec<ReportSource>,
    /// Summary of all requests.
    #[serde(flatten)]
    pub whole: RequestSummary,
    /// Metrics that servers reported.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerSummary>,
    /// Time slices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<TimeSlice>,
    /// Groups of requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<RequestGroup>,
    /// Conditions of `--fail-if`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<ConditionResult>,
    /// Threats to the results.
    pub warnings: Vec<WarningText>,
    /// Histograms of TTFT and ITL, for plots.
    #[serde(skip)]
    pub histograms: Vec<(ReportMetric, Vec<(f64, u64)>)>,
    /// Requests in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<InFlightStats>,
    /// Comparison with the plan. Runs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fidelity: Option<Fidelity>,
    /// Summary of a run's warm-up, which counts nowhere else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_up: Option<RequestSummary>,
    /// Summary of the captured trace that a run replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub production: Option<Production>,
}

/// The captured trace that a run replayed.
#[derive(Debug, Serialize)]
pub struct Production {
    /// Path as given on the command line.
    pub path: String,
    /// Requests in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<InFlightStats>,
    /// Summary of its requests.
    #[serde(flatten)]
    pub summary: RequestSummary,
}

/// Summary of a set of requests.
#[derive(Debug, Serialize)]
pub struct RequestSummary {
    /// Number of requests.
    pub requests: u64,
    /// Requests by outcome.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Responses by HTTP status.
    pub statuses: BTreeMap<u16, u64>,
    /// Window of the rates, in seconds.
    pub seconds: f64,
    /// Rates of the successes.
    pub throughput: Throughput,
    /// Tokens of the successes.
    pub tokens: TokenTotals,
    /// Goodput of each SLO.
    pub goodput: Vec<SloGoodput>,
    /// Distribution of every metric with values.
    #[serde(serialize_with = "by_name")]
    pub metrics: Vec<MetricDistribution>,
}

/// Rates per second of the window.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Throughput {
    /// Successful requests.
    pub requests: f64,
    /// Prompt tokens.
    pub input_tokens: f64,
    /// Output tokens.
    pub output_tokens: f64,
    /// Prompt and output tokens.
    pub total_tokens: f64,
}

/// Token totals.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TokenTotals {
    /// Prompt tokens.
    pub input: u64,
    /// Prompt tokens from a cache.
    pub cached: u64,
    /// Output tokens.
    pub output: u64,
    /// Requests by source of their output token count.
    pub sources: BTreeMap<&'static str, u64>,
}

/// Goodput of one SLO.
#[derive(Clone, Debug, Serialize)]
pub struct SloGoodput {
    /// Name of the SLO.
    pub slo: String,
    /// Text of the SLO.
    pub text: String,
    /// Requests that met it.
    pub met: u64,
    /// Requests that it applies to.
    pub counted: u64,
    /// Share that met it; absent if it applies to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// 95 % interval of the share, if there is enough data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_interval: Option<Interval>,
    /// Requests that met it, per second of the window.
    pub requests_per_second: f64,
    /// Output tokens of the requests that met it, per second of the window.
    pub tokens_per_second: f64,
}

/// A slice of time.
#[derive(Debug, Serialize)]
pub struct TimeSlice {
    /// Start on the shared timeline, in seconds.
    pub from_s: f64,
    /// End on the shared timeline, in seconds.
    pub to_s: f64,
    /// Requests that started in the slice.
    #[serde(flatten)]
    pub summary: RequestSummary,
    /// Metrics that servers reported in the slice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerSummary>,
}

/// Requests with equal values of the group keys.
#[derive(Debug, Serialize)]
pub struct RequestGroup {
    /// Value of each key.
    pub by: BTreeMap<&'static str, String>,
    /// Summary of the group.
    #[serde(flatten)]
    pub summary: RequestSummary,
}

/// Summarizes the server metrics of all sources at the times that `times` accepts.
fn summarize_servers(sources: &[ReportSource], times: &impl Fn(i64) -> bool) -> Vec<ServerSummary> {
    sources.iter().flat_map(|source| &source.servers).map(|watched| ServerSummary::summarize(watched, times)).collect()
}

/// Returns the first start and the last end, in seconds of the shared timeline.
fn window(whole: &RequestStats) -> (f64, f64) {
    whole.window.map_or((0.0, 0.0), |(first, last)| (secs(first), secs(last)))
}

fn secs(at: Stamp) -> f64 {
    at.since(Stamp::default()).as_secs()
}

fn by_name<S: Serializer>(metrics: &[MetricDistribution], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(metrics.iter().map(|metric| (metric.metric.key(), metric)))
}

/// Goodput of each SLO, with rates over `seconds`.
pub fn slo_goodput(figures: &RequestStats, seconds: f64, slos: &Slos) -> Vec<SloGoodput> {
    let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let goodput = slos.iter().zip(&figures.goodput).map(|(slo, good)| SloGoodput {
        slo: slo.name().to_owned(),
        text: slo.to_string(),
        met: good.met,
        counted: good.counted,
        share: (good.counted > 0).then(|| good.met as f64 / good.counted as f64),
        share_interval: None,
        requests_per_second: per_second(good.met),
        tokens_per_second: per_second(good.tokens),
    });
    goodput.collect()
}

impl RequestSummary {
    /// Sorts the values in place.
    fn of(figures: &mut RequestStats, seconds: f64, slos: &Slos, percentiles: &[f64]) -> Self {
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let goodput = slo_goodput(figures, seconds, slos);
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

    /// Adds the 95 % intervals. `points` are in the order of a report.
    fn add_confidence(&mut self, points: &[RequestPoint], gaps: SliceHistogram, settings: &AccumulatorSettings) {
        let bootstrap = BlockBootstrap::new(confidence::BOOTSTRAP_SEED);
        let gaps = gaps.finish();
        for distribution in &mut self.metrics {
            let percents: Vec<f64> = distribution.percentiles.iter().map(|(percent, _)| *percent).collect();
            distribution.confidence = match distribution.metric {
                ReportMetric::Itl => confidence::of_gaps(&gaps, &percents, &bootstrap),
                metric if settings.definitions.is_one_per_request(metric) => {
                    confidence::of_requests(points, metric, &percents, &bootstrap)
                }
                _ => None,
            };
        }
        for (slo, goodput) in self.goodput.iter_mut().enumerate() {
            let estimate = confidence::goodput(points, slo, &bootstrap);
            goodput.share_interval = estimate.and_then(|estimate| estimate.interval().ok());
        }
    }

    /// Returns the distribution of a metric, if it has values.
    pub fn metric(&self, metric: ReportMetric) -> Option<&MetricDistribution> {
        self.metrics.iter().find(|of| of.metric == metric)
    }
}

impl Report {
    /// Builds the report from the aggregate.
    pub fn of(fold: &mut Accumulator, sources: Vec<ReportSource>, percentiles: &[f64]) -> Self {
        let given = std::mem::take(&mut fold.settings.conditions);
        let conditions = given.iter().map(|condition| condition.evaluate(fold)).collect();
        fold.settings.conditions = given;
        fold.points.sort_unstable();
        let load = fold.load_samples();
        let Accumulator {
            settings, total: whole, slices, flows, groups, fidelity, warm_up, models, points, gaps, ..
        } = fold;
        let length = settings.slice.map_or(0.0, Gap::as_secs);
        let window = window(whole);
        let seconds = window.1 - window.0;
        // A slice in which no request started may still receive tokens.
        for number in flows.keys() {
            slices.entry(*number).or_default();
        }
        let slice = |(number, figures): (&u64, &mut RequestStats)| {
            let (from_s, to_s) = (*number as f64 * length, (*number + 1) as f64 * length);
            // The run covers the first and the last slice only in part.
            let seconds = (to_s.min(window.1) - from_s.max(window.0)).max(0.0);
            let within = |at: i64| (from_s * 1e9..to_s * 1e9).contains(&(at as f64));
            let mut summary = RequestSummary::of(figures, seconds, &settings.slos, percentiles);
            let flow = flows.get(number).copied().unwrap_or_default();
            if seconds > 0.0 {
                summary.throughput.requests = flow.responses as f64 / seconds;
                summary.throughput.output_tokens = flow.output_tokens() / seconds;
                summary.throughput.total_tokens = summary.throughput.input_tokens + summary.throughput.output_tokens;
            }
            TimeSlice { from_s, to_s, summary, servers: summarize_servers(&sources, &within) }
        };
        let group = |(values, figures): (&Vec<String>, &mut RequestStats)| RequestGroup {
            by: settings.by.iter().map(|key| key.name()).zip(values.iter().cloned()).collect(),
            summary: RequestSummary::of(figures, seconds, &settings.slos, percentiles),
        };
        let mut summary = RequestSummary::of(whole, seconds, &settings.slos, percentiles);
        summary.add_confidence(points, std::mem::take(gaps), settings);
        let slices = slices.iter_mut().map(slice).collect();
        let servers = summarize_servers(&sources, &|_| true);
        let groups = groups.iter_mut().map(group).collect();
        let began = warm_up.first_sent;
        let warm_up = (warm_up.requests() > 0).then(|| {
            let (first, last) = self::window(warm_up);
            RequestSummary::of(warm_up, last - first, &settings.slos, percentiles)
        });
        let closed_loop = sources.iter().any(|source| source.closed_loop);
        let fidelity = fidelity.finish(whole, closed_loop);
        let warnings = warnings::collect(&summary, (whole, &load), &sources, (fidelity.as_ref(), began), percentiles);
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
            context: ReportContext::of(&sources, models, seconds),
            filter: settings.filter.to_string(),
            sources,
            whole: summary,
            servers,
            slices,
            groups,
            conditions,
            warnings: warnings.iter().map(WarningText::from_warning).collect(),
            histograms: pictures,
            in_flight: InFlightStats::of(&load),
            fidelity,
            warm_up,
            production: None,
        }
    }

    /// Adds the summary of the captured trace at `path` that the run replayed.
    pub fn with_production(mut self, path: String, fold: &mut Accumulator, percentiles: &[f64]) -> Self {
        let load = fold.load_samples();
        let Accumulator { settings, total: whole, .. } = fold;
        let (first, last) = window(whole);
        let summary = RequestSummary::of(whole, last - first, &settings.slos, percentiles);
        self.production = Some(Production { path, in_flight: InFlightStats::of(&load), summary });
        self
    }

    /// Renders the report as one JSON object.
    pub fn json(&self) -> String {
        // Numbers, names and string keys always serialize.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Returns `true` if a condition fails the run.
    pub fn fails(&self) -> bool {
        self.conditions.iter().any(|condition| condition.fails)
    }

    /// Returns `true` for this crate's own definitions.
    pub fn uses_own_definitions(&self) -> bool {
        self.definitions == Definitions::Streamgauge.name()
    }
}
