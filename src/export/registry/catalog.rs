//! The catalog of all instruments.
//!
//! Names, units, bounds and attributes are defined only here; the aggregation and every exporter read them from
//! [`TABLE`]. A new instrument is one row.
//!
//! # Conventions
//! `gen_ai.*` and `http.*` follow the OpenTelemetry semantic conventions v1.41.1, the last version in the core
//! repository (<https://github.com/open-telemetry/semantic-conventions/tree/v1.41.1/docs/gen-ai>). Their unreleased
//! successor (<https://github.com/open-telemetry/semantic-conventions-genai>, with `docs/gen-ai` and a migration guide)
//! keeps the three server metrics and renames or replaces those of clients. Rows that exist in one version only have a
//! [`Convention`]. A proxy is a server to its clients and the client of its upstream, so it has both families.
//! Instruments without a convention are named `streamgauge.*`.
//!
//! Stream and SLO instruments carry the model too, with the usual limit on models, because two models on one server
//! differ in latency.
//!
//! Process metrics have different names in OpenTelemetry and in the Prometheus client libraries; each exporter uses its
//! own.

use crate::measure::histogram::{Layout, Unit};
use crate::measure::slo::{Metric, Slos};

/// Attribute names.
pub mod attribute {
    /// `chat`, `text_completion`, …
    pub const OPERATION: &str = "gen_ai.operation.name";
    /// Owner of the API.
    pub const PROVIDER: &str = "gen_ai.provider.name";
    /// Requested model, limited in number.
    pub const MODEL: &str = "gen_ai.request.model";
    /// `input`, `output`.
    pub const TOKEN_TYPE: &str = "gen_ai.token.type";
    /// Always `unknown`: no dialect separates its counts by modality.
    pub const TOKEN_MODALITY: &str = "gen_ai.token.modality";
    /// Host of the upstream.
    pub const SERVER_ADDRESS: &str = "server.address";
    /// Port of the upstream.
    pub const SERVER_PORT: &str = "server.port";
    /// Cause of the failure; absent for a success.
    pub const ERROR_TYPE: &str = "error.type";
    /// Request method, or `_OTHER` if unknown.
    pub const HTTP_METHOD: &str = "http.request.method";
    /// HTTP status code.
    pub const HTTP_STATUS: &str = "http.response.status_code";
    /// Route of the dialect; absent for plain HTTP.
    pub const HTTP_ROUTE: &str = "http.route";
    /// `http`, `https`.
    pub const URL_SCHEME: &str = "url.scheme";
    /// On a SERVER span: SLOs that the request met.
    pub const SLOS_MET: &str = "streamgauge.slo.met";
    /// On a SERVER span: SLOs that the request missed.
    pub const SLOS_MISSED: &str = "streamgauge.slo.missed";
    /// On a SERVER span: missed objectives, each as its SLO's name, a dot and the objective.
    pub const SLO_VIOLATIONS: &str = "streamgauge.slo.violations";
    /// Only attribute of the series that collects everything above the series limit.
    pub const OVERFLOW: &str = "otel.metric.overflow";
}
use attribute::*;

/// Version of the `gen_ai.*` names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Convention {
    /// v1.41.1.
    #[default]
    Frozen,
    /// `OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental`.
    Latest,
}

impl Convention {
    /// Returns the schema URL; the unreleased version has none.
    pub const fn schema_url(self) -> &'static str {
        match self {
            Self::Frozen => "https://opentelemetry.io/schemas/1.41.1",
            Self::Latest => "",
        }
    }
}

/// Kind of an instrument.
#[derive(Clone, Copy, Debug)]
pub enum InstrumentKind {
    /// A sum that only grows.
    Counter,
    /// A counter read from the system at export.
    ObservedCounter,
    /// A sum that grows and shrinks.
    UpDownCounter,
    /// A current value.
    Gauge,
    /// A constant 1 whose attributes are the information.
    Info,
    /// A distribution.
    Histogram(BucketSpec),
}

/// Buckets of a histogram.
#[derive(Clone, Copy, Debug)]
pub struct BucketSpec {
    /// Explicit upper bounds, in the instrument's unit.
    pub bounds: &'static [f64],
    /// Unit of recorded values.
    pub unit: Unit,
    /// Selects the objectives whose limits become bounds, so that any scrape allows goodput to be recomputed.
    pub objectives: fn(Metric) -> bool,
}

/// One row of the catalog.
#[derive(Clone, Copy, Debug)]
pub struct Instrument {
    /// OpenTelemetry name.
    pub name: &'static str,
    /// Kind of the instrument.
    pub kind: InstrumentKind,
    /// Unit in UCUM.
    pub unit: &'static str,
    /// Description in the exported metadata.
    pub description: &'static str,
    /// Attributes in the order of series keys.
    pub attributes: &'static [&'static str],
    /// Version of the names that has this row; `None` for both.
    pub only_in: Option<Convention>,
    /// Prometheus name (without `_total`) if it differs from the translated one.
    pub prometheus: Option<&'static str>,
}

impl Instrument {
    const fn new(
        kind: InstrumentKind,
        name: &'static str,
        unit: &'static str,
        description: &'static str,
        attributes: &'static [&'static str],
    ) -> Self {
        Self { name, kind, unit, description, attributes, only_in: None, prometheus: None }
    }

    const fn only_in(self, convention: Convention) -> Self {
        Self { only_in: Some(convention), ..self }
    }

    const fn in_prometheus(self, name: &'static str) -> Self {
        Self { prometheus: Some(name), ..self }
    }

    /// Returns `true` if this version of the names has the row.
    pub fn is_in(&self, convention: Convention) -> bool {
        self.only_in.is_none_or(|only| only == convention)
    }

    /// Returns `true` for a metric of the upstream's client.
    pub fn is_of_client(&self) -> bool {
        self.name.starts_with("gen_ai.client.")
    }

    /// Returns the histogram layout, with the limits of these SLOs among its bounds.
    pub fn layout(&self, slos: &Slos) -> Option<Layout> {
        let InstrumentKind::Histogram(buckets) = self.kind else { return None };
        let limits = slos.iter().flat_map(|slo| slo.limits(buckets.objectives)).map(|limit| limit.as_secs());
        Some(Layout::new(buckets.unit, buckets.bounds.iter().copied().chain(limits)))
    }
}

const fn seconds(bounds: &'static [f64], objectives: fn(Metric) -> bool) -> InstrumentKind {
    InstrumentKind::Histogram(BucketSpec { bounds, unit: Unit::Seconds, objectives })
}

const fn tokens(bounds: &'static [f64]) -> InstrumentKind {
    InstrumentKind::Histogram(BucketSpec { bounds, unit: Unit::Tokens, objectives: |_| false })
}

macro_rules! catalog {
    ($($id:ident = $kind:expr, $name:literal, $unit:literal, $attributes:expr, $about:literal $(, $set:ident($($arg:expr)?))*;)*) => {
        /// Index of a row in the catalog.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Id { $(#[doc = concat!("`", $name, "`")] $id),* }

        impl Id {
            /// Returns all ids in order.
            pub fn all() -> impl Iterator<Item = Self> {
                [$(Self::$id),*].into_iter()
            }
        }

        /// All instruments, indexed by [`Id`].
        pub static TABLE: &[Instrument] =
            &[$(Instrument::new($kind, $name, $unit, $about, $attributes)$(.$set($($arg)?))*),*];
    };
}

const REQUEST: &[f64] = &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
/// The conventions' bounds, extended to two minutes: long prompts on busy servers wait that long.
const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0,
    60.0, 120.0,
];
/// The conventions' bounds, with two smaller ones: small models exceed 100 tokens per second.
const TPOT: &[f64] = &[0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];
const USAGE: &[f64] = &[
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];
/// The conventions' bounds, extended to five minutes: a streamed response is one request.
const HTTP: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0, 120.0, 300.0];
/// Fine where today's servers emit tokens (1 to 50 ms), coarse for stalls.
const ITL: &[f64] = &[
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
    5.0, 10.0,
];
const CHUNK: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0];
const OVERHEAD: &[f64] = &[
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    2.5, 5.0, 10.0,
];
/// From a precise timer's lag to a delay that invalidates the schedule.
const LAG: &[f64] = &[0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];

const GEN_AI: &[&str] = &[OPERATION, PROVIDER, MODEL, SERVER_ADDRESS, SERVER_PORT];
const GEN_AI_ERROR: &[&str] = &[OPERATION, PROVIDER, MODEL, SERVER_ADDRESS, SERVER_PORT, ERROR_TYPE];
const GEN_AI_TYPE: &[&str] = &[OPERATION, PROVIDER, MODEL, SERVER_ADDRESS, SERVER_PORT, TOKEN_TYPE];
const GEN_AI_MODALITY: &[&str] = &[OPERATION, PROVIDER, MODEL, SERVER_ADDRESS, SERVER_PORT, TOKEN_MODALITY];
const HTTP_REQUEST: &[&str] = &[HTTP_METHOD, URL_SCHEME, HTTP_ROUTE, HTTP_STATUS, ERROR_TYPE];

use Convention::{Frozen, Latest};
use InstrumentKind::{Counter, Gauge, Info, ObservedCounter, UpDownCounter};

catalog! {
    RequestDuration = seconds(REQUEST, |m| m == Metric::E2e), "gen_ai.server.request.duration", "s", GEN_AI_ERROR,
        "Generative AI server request duration such as time-to-last byte or last output token.";
    TimeToFirstToken = seconds(TTFT, |m| m == Metric::Ttft), "gen_ai.server.time_to_first_token", "s", GEN_AI,
        "Time to generate first token for successful responses.";
    TimePerOutputToken = seconds(TPOT, |m| m == Metric::Tpot), "gen_ai.server.time_per_output_token", "s", GEN_AI,
        "Time per output token generated after the first token for successful responses.";
    ClientDuration = seconds(REQUEST, |m| m == Metric::E2e), "gen_ai.client.operation.duration", "s", GEN_AI_ERROR,
        "GenAI operation duration.", only_in(Frozen);
    ClientFirstChunk = seconds(REQUEST, |m| m == Metric::Ttft),
        "gen_ai.client.operation.time_to_first_chunk", "s", GEN_AI,
        "Time from the request to the first chunk of a successful stream; a chunk is an event with generated text.",
        only_in(Frozen);
    ClientChunkTime = seconds(REQUEST, |_| false), "gen_ai.client.operation.time_per_output_chunk", "s", GEN_AI,
        "Time from each chunk of a stream to the next.", only_in(Frozen);
    InferenceDuration = seconds(REQUEST, |m| m == Metric::E2e), "gen_ai.client.inference.duration", "s", GEN_AI_ERROR,
        "Duration of an inference operation.", only_in(Latest);
    InferenceFirstChunk = seconds(REQUEST, |m| m == Metric::Ttft),
        "gen_ai.client.inference.time_to_first_chunk", "s", GEN_AI,
        "Time from the request to the first chunk of a successful stream; a chunk is an event with generated text.",
        only_in(Latest);
    InferenceChunkTime = seconds(REQUEST, |_| false), "gen_ai.client.inference.time_per_output_chunk", "s", GEN_AI,
        "Time from each chunk of a stream to the next.", only_in(Latest);
    TokenUsage = tokens(USAGE), "gen_ai.client.token.usage", "{token}", GEN_AI_TYPE,
        "Number of input and output tokens used.", only_in(Frozen);
    InputTokens = tokens(USAGE), "gen_ai.client.inference.operation.input_tokens", "{token}", GEN_AI,
        "The number of input (prompt) tokens used per inference operation.", only_in(Latest);
    OutputTokens = tokens(USAGE), "gen_ai.client.inference.operation.output_tokens", "{token}", GEN_AI,
        "The number of output (completion) tokens used per inference operation.", only_in(Latest);
    UsageInput = Counter, "gen_ai.client.inference.usage.input_tokens", "{token}", GEN_AI_MODALITY,
        "The number of input (prompt) tokens used, including cached tokens.", only_in(Latest);
    UsageCached = Counter, "gen_ai.client.inference.usage.cache_read.input_tokens", "{token}", GEN_AI_MODALITY,
        "The number of input tokens served from a provider-managed cache.", only_in(Latest);
    UsageCacheWrite = Counter, "gen_ai.client.inference.usage.cache_write.input_tokens", "{token}", GEN_AI_MODALITY,
        "The number of input tokens written to a provider-managed cache.", only_in(Latest);
    UsageOutput = Counter, "gen_ai.client.inference.usage.output_tokens", "{token}", GEN_AI_MODALITY,
        "The number of output (completion) tokens used, including reasoning tokens.", only_in(Latest);
    UsageReasoning = Counter, "gen_ai.client.inference.usage.reasoning.output_tokens", "{token}", GEN_AI_MODALITY,
        "The number of output tokens used for reasoning (e.g. chain-of-thought, extended thinking).", only_in(Latest);
    HttpDuration = seconds(HTTP, |_| false), "http.server.request.duration", "s", HTTP_REQUEST,
        "Duration of HTTP server requests.";
    HttpResponses = Counter, "streamgauge.http.responses", "{response}",
        &[MODEL, "traffic", "status_class", "answered_by", "fault"],
        "Requests that ended, by the class of their status, by who answered, and by whose fault they failed.";
    HttpActive = UpDownCounter, "http.server.active_requests", "{request}", &[HTTP_METHOD, URL_SCHEME],
        "Number of active HTTP server requests.";
    InterTokenLatency = seconds(ITL, |m| matches!(m, Metric::Itl(_))),
        "streamgauge.stream.inter_token_latency", "s", &[MODEL, "method"],
        "Time between one token event of a stream and the next, shared out over the later event's tokens where known.";
    TokensPerChunk = tokens(CHUNK), "streamgauge.stream.tokens_per_chunk", "{token}", &[MODEL],
        "Tokens of one token event, if the server reports them.";
    TimeToPhase = seconds(TTFT, |m| matches!(m, Metric::Ttft | Metric::Ttfo)),
        "streamgauge.stream.time_to_phase", "s", &[MODEL, "phase"],
        "Time from the first byte of the request to a phase of a successful stream.";
    Stalls = Counter, "streamgauge.stream.stalls", "{stall}", &[MODEL],
        "Gaps between token events, and waits of a stream that then broke off, above the stall threshold.";
    Terminations = Counter, "streamgauge.stream.terminations", "{stream}", &[MODEL, "reason", "first_token"],
        "Streams that ended, by how, and whether a token had come.";
    StreamTokens = Counter, "streamgauge.stream.output_tokens", "{token}", &[MODEL, "source"],
        "Output tokens, counted while they stream, by where the count comes from.";
    ActiveStreams = Gauge, "streamgauge.stream.active", "{stream}", &["phase", MODEL],
        "Open streams, before and after their first token; without a model as long as none is known.";
    SloRequests = Counter, "streamgauge.slo.requests", "{request}", &[MODEL, "slo", "result"],
        "Requests judged by an SLO.";
    SloViolations = Counter, "streamgauge.slo.violations", "{violation}", &[MODEL, "slo", "objective"],
        "Objectives of an SLO that requests missed; a request can miss several.";
    SloTokens = Counter, "streamgauge.slo.output_tokens", "{token}", &[MODEL, "slo"],
        "Output tokens of requests that met an SLO.";
    SloInvalidLimits = Counter, "streamgauge.slo.invalid_limits", "{limit}", &["objective"],
        "Limits in header fields of requests that were ignored, because they are no number of milliseconds up to an hour.";
    SloTarget = Gauge, "streamgauge.slo.target", "1", &["slo"],
        "Share of requests that should meet an SLO; what is left is its error budget.";
    ProxyOverhead = seconds(OVERHEAD, |_| false), "streamgauge.proxy.overhead", "s", &["stage"],
        "Time between the arrival of bytes and their hand-over to the other side.";
    UpstreamUp = Gauge, "streamgauge.upstream.up", "", &[],
        "1 if the last attempt to connect to the upstream succeeded, 0 if it failed.";
    UpstreamConnections = Gauge, "streamgauge.proxy.upstream_connections", "{connection}", &["state"],
        "Open connections to the upstream.";
    ResourceUsage = Gauge, "streamgauge.proxy.resource.usage", "", &["resource"],
        "What the proxy uses of something that is limited.";
    ResourceLimit = Gauge, "streamgauge.proxy.resource.limit", "", &["resource"],
        "How much of it the proxy can use.";
    RefusedConnections = ObservedCounter, "streamgauge.proxy.refused_connections", "{connection}", &["reason"],
        "Connections without a destination that the proxy could dial in transparent mode, by reason.";
    ReloadSuccess = Gauge, "streamgauge.reload.success", "", &["subject"],
        "1 if the last reload succeeded, or none was needed yet, 0 if it failed and the old settings or files stay in force.";
    CertificateEnd = Gauge, "streamgauge.tls.certificate.not_after", "s", &["setting"],
        "When the first certificate of a file ends to be valid, in seconds since 1970.";
    CaptureRecords = Counter, "streamgauge.capture.records", "{record}", &["outcome", "reason"],
        "Records of the capture, written, lost or skipped, and why.";
    CaptureSize = Counter, "streamgauge.capture.size", "By", &[],
        "Bytes that the capture has written.";
    CaptureQueue = Gauge, "streamgauge.capture.queue_depth", "{record}", &[],
        "Records that wait to be captured.";
    CaptureUploads = Counter, "streamgauge.capture.uploads", "{upload}", &["outcome"],
        "Attempts to upload a file of the capture to its bucket; what failed is repeated.";
    CaptureSpool = Gauge, "streamgauge.capture.spool.size", "By", &[],
        "Bytes of closed and open segments that the capture's bucket does not have yet.";
    ReplayLag = seconds(LAG, |_| false), "streamgauge.replay.schedule_lag", "s", &[],
        "How much later than planned requests of a run were sent.";
    ReplayRequests = Counter, "streamgauge.replay.requests", "{request}", &["outcome"],
        "Requests of a run that ended, by what became of them.";
    ReplayPlanned = Gauge, "streamgauge.replay.planned", "{request}", &[],
        "Requests that a run has planned, where its end is known.";
    ReplaySent = ObservedCounter, "streamgauge.replay.sent", "{request}", &[],
        "Requests that a run has sent.";
    ExportDropped = Counter, "streamgauge.export.dropped", "{record}", &["exporter", "reason"],
        "Records that were measured and not exported.";
    BuildInfo = Info, "streamgauge.build_info", "", &["version"],
        "The program that exports this.";
    ProcessCpu = ObservedCounter, "process.cpu.time", "s", &[],
        "Total user and system CPU time spent.", in_prometheus("process_cpu_seconds");
    ProcessMemory = UpDownCounter, "process.memory.usage", "By", &[],
        "Resident memory.", in_prometheus("process_resident_memory_bytes");
    ProcessFiles = UpDownCounter, "process.unix.file_descriptor.count", "{file_descriptor}", &[],
        "Open file descriptors.", in_prometheus("process_open_fds");
    ProcessStart = Gauge, "process.start_time", "s", &[],
        "Start time of the process in seconds since 1970.";
}

impl Id {
    /// Returns the row.
    pub fn instrument(self) -> &'static Instrument {
        &TABLE[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::request_class::RequestClass;

    #[test]
    fn rows_stand_where_their_names_say_and_fit_a_key() {
        for (id, row) in Id::all().zip(TABLE) {
            assert!(std::ptr::eq(id.instrument(), row), "{id:?}");
            assert!(row.attributes.len() <= crate::export::registry::interner::MAX_ATTRIBUTES, "{}", row.name);
            let names: Vec<_> = TABLE.iter().filter(|other| other.name == row.name).collect();
            assert_eq!(names.len(), 1, "{}", row.name);
            if let InstrumentKind::Histogram(BucketSpec { bounds, unit, .. }) = row.kind {
                assert!(bounds.is_sorted() && !bounds.is_empty());
                assert_eq!(row.unit, if unit == Unit::Seconds { "s" } else { "{token}" });
            }
        }
    }

    #[test]
    fn no_class_has_the_name_of_another_label() {
        for row in TABLE.iter().filter(|row| row.attributes.contains(&MODEL)) {
            for name in row.attributes {
                let name: String = name.chars().map(|c| if c == '.' { '_' } else { c }).collect();
                assert!(format!("{name}=header:x").parse::<RequestClass>().is_err(), "{name}");
            }
        }
    }

    #[test]
    fn bounds_are_the_published_ones() {
        let bounds = |id: Id| id.instrument().layout(&Slos::default()).unwrap().bounds().to_vec();
        let doubling: Vec<f64> = (0..14).map(|i| f64::from(1 << i) / 100.0).collect();
        let client = [Id::ClientDuration, Id::ClientFirstChunk, Id::ClientChunkTime];
        let inference = [Id::InferenceDuration, Id::InferenceFirstChunk, Id::InferenceChunkTime];
        for id in [Id::RequestDuration].into_iter().chain(client).chain(inference) {
            assert_eq!(bounds(id), doubling, "{id:?}");
        }
        let fourfold: Vec<f64> = (0..14).map(|i| 4f64.powi(i)).collect();
        assert_eq!(bounds(Id::TokenUsage), fourfold);
        assert_eq!((bounds(Id::TimeToFirstToken).len(), bounds(Id::TimeToPhase).len()), (22, 22));
        assert_eq!((bounds(Id::TimePerOutputToken).len(), bounds(Id::HttpDuration).len()), (15, 18));
        assert_eq!((bounds(Id::InterTokenLatency).len(), bounds(Id::ProxyOverhead).len()), (21, 19));
        assert_eq!(bounds(Id::ReplayLag).len(), 12);
        assert_eq!(bounds(Id::TokensPerChunk), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0]);
    }
}
