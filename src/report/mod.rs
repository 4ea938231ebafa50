//! Reports on requests: a pure aggregation from records, and one file per output format.
//!
//! ```text
//! paths -> source -> request_view -> accumulate -> Report -> text, json, csv, markdown, page, llmd
//!          reads     unpacks         aggregates              formats
//! ```
//!
//! A [`source`] is a capture, a run directory or one of several shards. Several sources give the same report as one
//! file with all their rows. [`definitions`] defines each metric, for this tool and for others. [`accumulate`] keeps
//! every value, so percentiles are exact ([`crate::stats::samples`] documents the rule and its memory). [`warning`]
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
//! | `sources[]` | `path`, `run`, `tool` (that wrote the file, if it is another one), `rows`, `outside_window` (rows in warm-up and cool-down), `targets`, `closed_loop`, `simulated` (present and true for the run of a twin), `warmed_up`, `audited`, `uncertain`, `not_valid`, `held_back`, `later_turns` (`verbatim`, `synthesized`: by the origin of the history that they send), `errors` (incomplete responses by cause), `truncated`, `started_unix_ns`, `sample` (share of sessions that the capture kept) |
//! | `requests`, `outcomes`, `statuses` | number of requests; by outcome; by HTTP status |
//! | `seconds` | window of the rates, from the first start to the last end; in a slice, its overlap with that window |
//! | `throughput` | successes per second: `requests`, `input_tokens`, `output_tokens`, `total_tokens` |
//! | `tokens` | of successes: `input`, `cached`, `output`, and `sources`: requests by source of the output count |
//! | `goodput[]` | `slo`, `text`, `met`, `counted`, `share` (of `counted`: failures included unless the SLO excludes them), `share_interval`, `successes`, `share_of_successes`, `missed` (requests by objective; `error`: without a complete response), `requests_per_second`, `tokens_per_second` |
//! | `zero_gap_share` | share of the gaps between tokens that are 0, because their events came in one read |
//! | `per_gpu` | with `--meta gpu_count`: `gpus`, `output_tokens`, `total_tokens` per second and GPU |
//! | `bandwidth_bound` | with `--hardware`: the memory's bound on TPOT ([`hardware`]) |
//! | `side_by_side[]` | with `--definitions all`: `definitions`, and `throughput`, `goodput`, `metrics` as that tool defines them |
//! | `metrics` | by name: `unit` (`ms`, `tokens`, `tokens/s`), `count`, `avg`, `min`, `p…`, `max`, `std`, `sum`; of latencies `tail_ratio`, p99 ÷ p50; `ci95` ([`confidence`]): `effective_count`, and `low`, `high` of `avg`, of each percentile and of `tail_ratio`; `null` without enough data |
//! | `servers[]` | with `--server-metrics` (replay, load): `url`, `scrapes`, `failed`, `from_s` and `to_s` (the time that they cover), `figures` by name ([`ServerMetric`](crate::measure::server_metrics::ServerMetric)): `unit`, `avg`, `min`, `max` of a gauge, `total`, `per_second` of a counter; `durations`: `mean_s`, `requests` of the server's own histograms; `prefix_hit_rate` |
//! | `in_flight` | open requests of the same source at each send, including the new one: `mean`, `max`, `over_time` in 60 equal parts of `seconds` |
//! | `fidelity` | of a run: planned compared with sent and achieved ([`fidelity`] has the definitions); see below |
//! | `warm_up` | the run's warm-up, which counts nowhere else: every key from `requests` to `metrics` |
//! | `production` | with `--source`, or if the trace that `run.json` names is a capture and is there: `path`, and `in_flight` and every key from `requests` to `metrics` of its rows |
//! | `slices[]` | with `--slice`: `from_s`, `to_s` on the shared timeline, and every key from `requests` to `servers` |
//! | `groups[]` | with `--by`: `by` with a value per key, and every key from `requests` to `metrics` |
//! | `sessions` | if a session has several turns ([`sessions`]): `sessions`, `requests`, `without_session`, `began_before`; `turns`: `mean`, `p50`, `p90`, `max`; `model`, `tool`, `time_to_last_turn`: `count`, `mean_ms`, `p50_ms`, `p90_ms`, `p99_ms`, `max_ms`; `model_share`; `goodput[]`: `slo`, `met`, `counted`, `share`; `by_turn[]`: `turn`, `requests`, `input_tokens`, `cached_tokens`, `cached_share`, `ttft_p50_ms`; `agents`: `sub_agents`, `by_row`, `by_prompt`, `without_parent`, `jobs`, `most_per_job`, `model_share`, `job` (distributions as above), `is_incomplete` |
//! | `diagnosis` | `relations[]`: what latencies depend on; `findings[]`: `verdict`, `statement`, `share` that it explains, `evidence[]`, `symptom`, `next_measurement`. A relation or evidence: `name`, `value`, `unit`, `interval`, and the threshold that it passed, `at_least` or `at_most` ([`diagnosis`]) |
//! | `time_course` | `from_s`, `to_s` of the figures; `slices`, of equally many requests; `steady_state`: `from_s`, `to_s`, `found`, and of a warm-up in the figures `warm_up_s` (its end), `warm_up_requests`, `warm_up_metric`; `trends[]`: `metric`, `per_minute`, `interval`, `relative_rise`, `p_value`, `verdict`; `load_effect`: TTFT against requests of a slice; `slice_advice` ([`time_course`]) |
//! | `checklist[]` | ten rows: `item`, `requirement`, `answer` (`met`, `not_met`, `unknown`), `evidence` ([`checklist`]) |
//! | `warnings[]` | the worst first: `warning` (a stable id for scripts), `text`, `advice` |
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
pub mod checklist;
pub mod compare;
pub mod condition;
pub mod confidence;
pub mod context;
pub mod csv;
pub mod definitions;
pub mod diagnosis;
pub mod distribution;
mod engine_facts;
pub mod fidelity;
pub mod filter;
pub mod group_by;
pub mod hardware;
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
pub mod run_file;
pub mod saturation;
pub mod servers;
pub mod sessions;
pub mod side_by_side;
pub mod slice_flow;
pub mod source;
pub mod source_error;
pub mod source_reader;
mod summary;
pub mod sweep;
mod tables;
pub mod text;
pub mod text_layout;
pub mod time_course;
mod tool_column;
mod tool_fields;
pub mod vllm;
pub mod warning;
mod warnings;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::measure::time::{Gap, Stamp};
use accumulate::{Accumulator, RequestStats};
use checklist::{ChecklistInput, ChecklistRow};
use condition::ConditionResult;
use context::{FactName, ReportContext};
use definitions::Definitions;
use diagnosis::{Diagnosis, DiagnosisFacts};
pub use distribution::PERCENTILES;
use fidelity::Fidelity;
use hardware::{BandwidthBound, Hardware};
use in_flight::InFlightStats;
use metric::{MetricUnit, ReportMetric};
use servers::ServerSummary;
use sessions::SessionSummary;
use side_by_side::ToolFigures;
use source::ReportSource;
pub use summary::{RequestSummary, SloGoodput, Throughput, TokenTotals, slo_goodput};
use time_course::TimeCourse;
use warning::WarningText;

/// Schema version of the JSON object.
const VERSION: u32 = 1;

/// A complete report, ready for every output format.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Report {
    streamgauge_report: u32,
    /// Name of the metric definitions.
    pub definitions: &'static str,
    /// The load, the server and the machines.
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
    /// Sessions, if one has several turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<SessionSummary>,
    /// Conditions of `--fail-if`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<ConditionResult>,
    /// Throughput per GPU, if the number of GPUs is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_gpu: Option<PerGpuThroughput>,
    /// The bound of the memory bandwidth on TPOT.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_bound: Option<BandwidthBound>,
    /// The run under each tool's definitions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub side_by_side: Vec<ToolFigures>,
    /// The bounds of the latencies.
    pub diagnosis: Diagnosis,
    /// Drift, warm-up and steady state.
    pub time_course: TimeCourse,
    /// The ten questions of an honest benchmark.
    pub checklist: Vec<ChecklistRow>,
    /// Threats to the results, the worst first.
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

/// Tokens per second of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PerGpuThroughput {
    /// Number of GPUs (`--meta gpu_count`).
    pub gpus: u64,
    /// Output tokens of successes per second and GPU.
    pub output_tokens: f64,
    /// Prompt and output tokens of successes per second and GPU.
    pub total_tokens: f64,
}

impl PerGpuThroughput {
    fn of(context: &ReportContext, throughput: Throughput) -> Option<Self> {
        let gpus: u64 = context.get(FactName::GpuCount)?.trim().parse().ok().filter(|gpus| *gpus > 0)?;
        let each = |rate: f64| rate / gpus as f64;
        Some(Self { gpus, output_tokens: each(throughput.output_tokens), total_tokens: each(throughput.total_tokens) })
    }
}

/// The captured trace that a run replayed.
#[derive(Debug, Serialize, JsonSchema)]
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

/// A slice of time.
#[derive(Debug, Serialize, JsonSchema)]
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
#[derive(Debug, Serialize, JsonSchema)]
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

impl Report {
    /// Builds the report from the aggregate.
    pub fn of(fold: &mut Accumulator, sources: Vec<ReportSource>, percentiles: &[f64]) -> Self {
        let given = std::mem::take(&mut fold.settings.conditions);
        let conditions = given.iter().map(|condition| condition.evaluate(fold)).collect();
        fold.settings.conditions = given;
        fold.points.sort_unstable();
        let load = fold.load_samples();
        let Accumulator {
            settings,
            total: whole,
            slices,
            flows,
            groups,
            fidelity,
            warm_up,
            models,
            points,
            parents,
            gaps,
            refusals,
            ..
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
        let sessions = SessionSummary::of(points, parents, &settings.slos);
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
        let facts = DiagnosisFacts {
            offered_prefix_share: fidelity.as_ref().and_then(|of| of.prefix).map(|prefix| prefix.offered_share),
            max_model_len: sources.iter().filter_map(engine_facts::max_model_len).min(),
            refused_tokens: std::mem::take(&mut refusals.tokens),
            refused: refusals.count,
            closed_loop,
            itl_s: whole.samples[ReportMetric::Itl as usize]
                .sorted()
                .map(|itl| (itl.percentile(10.0) / 1e9, itl.percentile(50.0) / 1e9)),
        };
        let diagnosis = Diagnosis::of(points, &servers, &facts);
        let time_course = TimeCourse::of(points, window, settings.slice);
        let warnings = warnings::collect(&summary, (whole, &load), &sources, (fidelity.as_ref(), began), percentiles);
        let warnings = warnings::with_warm_up(warnings, &time_course);
        let context = ReportContext::of(&sources, models, seconds);
        let input = ChecklistInput { summary: &summary, context: &context, sources: &sources, course: &time_course };
        let checklist = checklist::rows(&input);
        let per_gpu = PerGpuThroughput::of(&context, summary.throughput);
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
            context,
            filter: settings.filter.to_string(),
            sources,
            whole: summary,
            servers,
            slices,
            groups,
            sessions,
            conditions,
            per_gpu,
            bandwidth_bound: None,
            side_by_side: Vec::new(),
            diagnosis,
            time_course,
            checklist,
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

    /// Adds the bound of the memory bandwidth.
    pub fn with_hardware(mut self, hardware: &Hardware) -> Self {
        let batch = self.in_flight.as_ref().map(|load| load.mean);
        self.bandwidth_bound = BandwidthBound::of(hardware, &self.whole, &self.servers, batch);
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
