//! OTLP export settings, from OpenTelemetry's own environment variables.
//!
//! The rules are those of the specification's *OTLP exporter*, *environment variables* and *common configuration*
//! pages, with two exceptions. A signal is on only if an endpoint is set, because a sidecar must not connect to
//! localhost by default. An invalid value causes a warning and never an exit, because telemetry must not stop traffic.
//!
//! Header values are credentials. Only [`ExportHeaders`] holds them, and it never prints them.

mod endpoint;
mod environment;
mod exporter;
mod key_value;

use self::environment::OtelEnvironment;
use self::exporter::is_selected;
use self::key_value::parse_pairs;
use super::dump::format_duration;
use super::error::expected_but_found;
use crate::measure::time::Gap;

pub use self::endpoint::Endpoint;
pub use self::exporter::{ExportHeaders, ExporterConfig, Protocol};
pub use self::key_value::percent_decode;

/// Exported signals and their settings.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpConfig {
    /// Metrics, if enabled.
    pub metrics: Option<MetricsConfig>,
    /// Traces, if enabled.
    pub traces: Option<TracesConfig>,
    /// Logs, if enabled.
    pub logs: Option<LogsConfig>,
    /// The variables that disable metrics, traces and logs, if set.
    pub disabled_by: [Option<&'static str>; 3],
    /// Resource attributes, including `service.name`.
    pub resource: Vec<(String, String)>,
    /// `gen_ai_latest_experimental`: use the latest GenAI conventions instead of the last frozen ones.
    pub latest_gen_ai: bool,
}

/// Metrics export.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricsConfig {
    /// Exporter settings.
    pub exporter: ExporterConfig,
    /// Time between the starts of two exports.
    pub interval: Gap,
    /// Timeout of one export, including retries.
    pub timeout: Gap,
    /// Aggregation temporality.
    pub temporality: Temporality,
    /// Histogram aggregation.
    pub histograms: HistogramAggregation,
}

/// Traces export.
#[derive(Clone, Debug, PartialEq)]
pub struct TracesConfig {
    /// Exporter settings.
    pub exporter: ExporterConfig,
    /// Head sampling.
    pub sampler: Sampler,
    /// Batches of spans.
    pub batch: BatchConfig,
}

/// Logs export.
#[derive(Clone, Debug, PartialEq)]
pub struct LogsConfig {
    /// Exporter settings.
    pub exporter: ExporterConfig,
    /// Batches of log records.
    pub batch: BatchConfig,
}

/// Batches of spans or log records.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchConfig {
    /// Time between two exports.
    pub schedule_delay: Gap,
    /// Timeout of one export, including retries.
    pub timeout: Gap,
    /// Limit on items that wait for export; further ones are dropped and counted.
    pub max_queue_size: usize,
    /// Items per export, at most `max_queue_size`.
    pub max_batch_size: usize,
}

/// Aggregation temporality.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temporality {
    /// Sums since the start.
    Cumulative,
    /// Counters and histograms since the last export.
    Delta,
    /// As delta, except for observable counters, which are cumulative.
    LowMemory,
}

/// Histogram aggregation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistogramAggregation {
    /// Explicit bucket bounds.
    Explicit,
    /// Base-2 exponential buckets.
    Exponential,
}

/// Head sampling: `OTEL_TRACES_SAMPLER` with its argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// True if a parent's sampling decision applies; `ratio` is then for root spans.
    pub parent_based: bool,
    /// Share of traces sampled by trace id: 0.0 none, 1.0 all.
    pub ratio: f64,
}

impl Default for Sampler {
    /// `parentbased_always_on`, as specified.
    fn default() -> Self {
        Self { parent_based: true, ratio: 1.0 }
    }
}

/// Default of `service.name`.
const SERVICE_NAME: &str = "streamgauge";

/// Defaults of the specification.
const METRIC_INTERVAL: Gap = Gap::from_millis(60_000);
const METRIC_TIMEOUT: Gap = Gap::from_millis(30_000);
const SPAN_SCHEDULE_DELAY: Gap = Gap::from_millis(5_000);
const LOG_SCHEDULE_DELAY: Gap = Gap::from_millis(1_000);
const BATCH_TIMEOUT: Gap = Gap::from_millis(30_000);
const MAX_QUEUE_SIZE: usize = 2048;
const MAX_BATCH_SIZE: usize = 512;

impl OtlpConfig {
    /// Reads the environment. Also returns one warning per invalid variable.
    pub fn from_environment(lookup: impl Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut environment = OtelEnvironment::new(&lookup);
        let disabled = environment.switch(&["OTEL_SDK_DISABLED"]).then_some("OTEL_SDK_DISABLED");
        let off = ["OTEL_METRICS_EXPORTER", "OTEL_TRACES_EXPORTER", "OTEL_LOGS_EXPORTER"]
            .map(|name| disabled.or_else(|| (!is_selected(&mut environment, name)).then_some(name)));
        let metrics = if off[0].is_none() { metrics(&mut environment) } else { None };
        let traces = if off[1].is_none() { traces(&mut environment) } else { None };
        let logs = if off[2].is_none() { logs(&mut environment) } else { None };
        let resource = resource(&mut environment);
        let opted_in = environment.text("OTEL_SEMCONV_STABILITY_OPT_IN").unwrap_or_default();
        let latest_gen_ai = opted_in.split(',').any(|name| name.trim() == "gen_ai_latest_experimental");
        (Self { metrics, traces, logs, disabled_by: off, resource, latest_gen_ai }, environment.warnings)
    }

    /// The collectors' origins, without duplicates.
    pub fn collectors(&self) -> String {
        self.exporters().iter().map(|exporter| exporter.endpoint.origin()).collect::<Vec<_>>().join(", ")
    }

    /// One exporter per collector: of the signals that share one, only the first.
    pub fn exporters(&self) -> Vec<&ExporterConfig> {
        let mut exporters = Vec::<&ExporterConfig>::new();
        for exporter in self.signals().into_iter().flatten() {
            if exporters.iter().all(|known| known.endpoint.origin() != exporter.endpoint.origin()) {
                exporters.push(exporter);
            }
        }
        exporters
    }

    /// The exporters of metrics, traces and logs.
    pub(crate) fn signals(&self) -> [Option<&ExporterConfig>; 3] {
        let metrics = self.metrics.as_ref().map(|metrics| &metrics.exporter);
        let traces = self.traces.as_ref().map(|traces| &traces.exporter);
        [metrics, traces, self.logs.as_ref().map(|logs| &logs.exporter)]
    }

    /// A readable description, one line per signal.
    pub fn explain(&self) -> String {
        let metrics = self.metrics.as_ref().map(|metrics| metrics.interval);
        let traces = self.traces.as_ref().map(|traces| traces.batch.schedule_delay);
        let logs = self.logs.as_ref().map(|logs| logs.batch.schedule_delay);
        let signals = ["metrics", "traces", "logs"].into_iter().zip([metrics, traces, logs]);
        let lines = signals.zip(self.signals()).zip(self.disabled_by).map(|(((name, every), exporter), off)| {
            match (exporter.zip(every), off) {
                (Some((exporter, every)), _) => format!("OTLP {name}: {exporter} every {}\n", format_duration(every)),
                (None, Some(variable)) => format!("OTLP {name}: off by {variable}\n"),
                (None, None) => {
                    let own = format!("OTEL_EXPORTER_OTLP_{}_ENDPOINT", name.to_ascii_uppercase());
                    format!("OTLP {name}: off; OTEL_EXPORTER_OTLP_ENDPOINT or {own} turns them on\n")
                }
            }
        });
        lines.collect()
    }
}

fn metrics(environment: &mut OtelEnvironment<'_>) -> Option<MetricsConfig> {
    let exporter = ExporterConfig::for_signal(environment, "METRICS")?;
    let temporalities =
        [("cumulative", Temporality::Cumulative), ("delta", Temporality::Delta), ("lowmemory", Temporality::LowMemory)];
    let histograms = [
        ("explicit_bucket_histogram", HistogramAggregation::Explicit),
        ("base2_exponential_bucket_histogram", HistogramAggregation::Exponential),
    ];
    Some(MetricsConfig {
        exporter,
        interval: environment.duration("OTEL_METRIC_EXPORT_INTERVAL").unwrap_or(METRIC_INTERVAL),
        timeout: environment.timeout(&["OTEL_METRIC_EXPORT_TIMEOUT"]).unwrap_or(METRIC_TIMEOUT),
        temporality: environment
            .one_of(&["OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"], &temporalities)
            .unwrap_or(Temporality::Cumulative),
        histograms: environment
            .one_of(&["OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"], &histograms)
            .unwrap_or(HistogramAggregation::Explicit),
    })
}

fn traces(environment: &mut OtelEnvironment<'_>) -> Option<TracesConfig> {
    let exporter = ExporterConfig::for_signal(environment, "TRACES")?;
    let batch = batch(environment, "BSP", SPAN_SCHEDULE_DELAY);
    Some(TracesConfig { exporter, sampler: sampler(environment), batch })
}

fn logs(environment: &mut OtelEnvironment<'_>) -> Option<LogsConfig> {
    let exporter = ExporterConfig::for_signal(environment, "LOGS")?;
    Some(LogsConfig { exporter, batch: batch(environment, "BLRP", LOG_SCHEDULE_DELAY) })
}

/// Reads the settings of a batch processor.
fn batch(environment: &mut OtelEnvironment<'_>, processor: &str, schedule_delay: Gap) -> BatchConfig {
    let name = |option| format!("OTEL_{processor}_{option}");
    let max_queue_size = environment.count(&name("MAX_QUEUE_SIZE")).unwrap_or(MAX_QUEUE_SIZE);
    let max_batch_size = match environment.count(&name("MAX_EXPORT_BATCH_SIZE")) {
        Some(size) if size > max_queue_size => {
            let (batch, queue) = (name("MAX_EXPORT_BATCH_SIZE"), name("MAX_QUEUE_SIZE"));
            environment.warn(format!("{batch} is ignored: {size} is more than {queue}, which is {max_queue_size}"));
            MAX_BATCH_SIZE
        }
        size => size.unwrap_or(MAX_BATCH_SIZE),
    };
    BatchConfig {
        schedule_delay: environment.duration(&name("SCHEDULE_DELAY")).unwrap_or(schedule_delay),
        timeout: environment.timeout(&[name("EXPORT_TIMEOUT")]).unwrap_or(BATCH_TIMEOUT),
        max_queue_size,
        max_batch_size: max_batch_size.min(max_queue_size),
    }
}

fn sampler(environment: &mut OtelEnvironment<'_>) -> Sampler {
    // (parent based, ratio; `None`: the argument sets it)
    let known = [
        ("always_on", (false, Some(1.0))),
        ("always_off", (false, Some(0.0))),
        ("traceidratio", (false, None)),
        ("parentbased_always_on", (true, Some(1.0))),
        ("parentbased_always_off", (true, Some(0.0))),
        ("parentbased_traceidratio", (true, None)),
    ];
    let (parent_based, ratio) = environment.one_of(&["OTEL_TRACES_SAMPLER"], &known).unwrap_or((true, Some(1.0)));
    let ratio = ratio.or_else(|| {
        environment.first(&["OTEL_TRACES_SAMPLER_ARG"], |text| {
            let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
            ratio.ok_or_else(|| expected_but_found("expected a number from 0 to 1", text))
        })
    });
    Sampler { parent_based, ratio: ratio.unwrap_or(1.0) }
}

/// The resource attributes. `OTEL_SERVICE_NAME` overrides `service.name` in `OTEL_RESOURCE_ATTRIBUTES`; one invalid
/// attribute discards them all, as specified.
fn resource(environment: &mut OtelEnvironment<'_>) -> Vec<(String, String)> {
    let attributes = environment.first(&["OTEL_RESOURCE_ATTRIBUTES"], |text| {
        parse_pairs(text).map_err(|at| format!("its entry {at} is not key=value with percent-encoding"))
    });
    let mut attributes = attributes.unwrap_or_default();
    let given = attributes.iter().rev().find(|(key, _)| key == "service.name").map(|(_, name)| name.clone());
    let name = environment.text("OTEL_SERVICE_NAME").or(given).unwrap_or_else(|| SERVICE_NAME.to_owned());
    attributes.retain(|(key, _)| key != "service.name");
    attributes.insert(0, ("service.name".to_owned(), name));
    attributes
}
