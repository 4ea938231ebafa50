//! The validated configuration: every value is parsed and within its bounds.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Serialize;

use super::engine_metrics_url::EngineMetricsUrl;
use super::storage_url::StorageUrl;
use super::upstream::ServerAddress;
use crate::measure::dialect::Routes;
use crate::measure::request_class::RequestClasses;
use crate::measure::sample_share::SampleShare;
use crate::measure::slo::Slos;
use crate::measure::time::Gap;

/// The configuration of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyConfig {
    /// Address for clients. Loopback by default: a sidecar shares its pod's loopback, and nothing should be reachable from
    /// outside by accident.
    pub listen: SocketAddr,
    /// Address of metrics, health and the live page. OpenTelemetry assigns port 9464 to Prometheus exporters.
    pub admin: SocketAddr,
    /// Host names that the admin port accepts besides IP addresses and `localhost`, in lower case; `*` matches any
    /// characters. None by default: the owner of another name could read the port from a browser (DNS rebinding).
    pub admin_hosts: Vec<String>,
    /// Access to the admin port. Everyone by default, which is allowed on loopback only.
    pub admin_access: AdminAccessConfig,
    /// The inference server.
    pub upstream: UpstreamConfig,
    /// The engine's own metrics, for the live page; none by default, because the upstream may be a router or a balancer.
    pub engine_metrics: Option<EngineMetricsUrl>,
    /// TLS to clients; `None` is plain text.
    pub tls: Option<TlsFiles>,
    /// Request headers to add; none by default, because the proxy is transparent.
    pub headers: ForwardingHeaders,
    /// True if the proxy requests the usage of streams whose clients do not, and strips it from their responses. Off,
    /// because it changes a request's bytes.
    pub ask_usage: bool,
    /// Forwarding threads, 1 to 64. Default: the machine's cores, at most 4. One thread carries thousands of streams,
    /// and a sidecar leaves the machine to the server.
    pub workers: usize,
    /// Memory limits and timeouts.
    pub limits: Limits,
    /// Time for open streams to end after a stop request. 10 minutes: a long answer of a slow model.
    pub drain: Gap,
    /// Dialects of paths whose end does not identify them; none by default.
    pub routes: Routes,
    /// SLOs for all requests; none by default.
    pub slos: Arc<Slos>,
    /// Request attributes that become labels; none by default: each value multiplies the series.
    pub classes: Arc<RequestClasses>,
    /// Distinct values of each class in metrics; further ones share one label value. 20: tiers and teams, not users.
    pub max_class_values: usize,
    /// Gaps from this length on count as stalls. 1 second: a reader notices.
    pub stall: Gap,
    /// Local tokenizers for streams without a token count; none by default, because counting takes a core and keeps the
    /// response's text until its end. The first one that matches a model applies.
    pub tokenizers: Vec<TokenizerFile>,
    /// Distinct models in metrics; further ones share one label value. 64: every label value multiplies the series.
    pub max_models: usize,
    /// `gen_ai.provider.name` of all exports. By default the vendor of the dialect's API ("openai"), because a proxy
    /// cannot know the server's operator.
    pub provider: Option<String>,
    /// True if `gen_ai.client.*` and the usage in spans are exported. On: a server's clients often measure nothing.
    pub gen_ai_client: bool,
    /// Traces kept in addition to the sampler's; none by default, so that the sampler alone decides.
    pub tail_keep: TailSampling,
    /// True if health probes are traced and logged too. Off: a kubelet probes every few seconds, always alike.
    pub trace_probes: bool,
    /// Capture settings; off by default.
    pub capture: CaptureConfig,
    /// True if each request is logged in one line. Off: metrics and traces show more at less cost.
    pub access_log: bool,
    /// Logging.
    pub log: LogConfig,
}

/// Capture settings. A capture holds the shape of the traffic, never its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureConfig {
    /// Where the capture goes; `None` disables it.
    pub target: Option<CaptureTarget>,
    /// Folder of segments that wait for their upload to a bucket. Beside the process: it must survive a restart.
    pub spool: PathBuf,
    /// Longest wait of a row for its write. 1 second: the loss of a kill, and enough rows for a frame to compress well.
    pub flush: Gap,
    /// Times are rounded to multiples of this, and prompts to whole blocks. Off: a replay needs exact values.
    pub round: Gap,
    /// Tokenizer for prompt blocks; without one, blocks are counted in bytes.
    pub tokenizer: Option<PathBuf>,
    /// Block length. 512 bytes: about 128 tokens, so that a long prompt's ids stay below a twentieth of its size. 16
    /// tokens: the block of a server's prefix cache, so that the cache can be simulated. Larger blocks are multiples of
    /// it.
    pub block: usize,
    /// Key file for ids, instead of the directory's own random key.
    pub key: Option<PathBuf>,
    /// True if each day has its own key. Off: sessions and prefixes live longer than a day.
    pub rotate: bool,
    /// Source of session names. Inferred by default, because no standard defines one.
    pub session: SessionKey,
    /// Successful requests before a model's name is written. 1: a name that a server has accepted is the server's.
    pub names: usize,
    /// Share of sessions that are captured. All: a replay needs the whole load.
    pub sample: SampleShare,
    /// File format of closed segments. JSON Lines: smaller, and no second pass over the rows.
    pub format: CaptureFormat,
    /// Limit on the size of all segments. 10 GiB: ten million requests, and no disk is filled by accident.
    pub keep_bytes: usize,
    /// Limit on the age of segments. One week: every kind of day once.
    pub keep_age: Gap,
}

/// Where a capture goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureTarget {
    /// A folder, which keeps the segments.
    Folder(PathBuf),
    /// A prefix of object storage, which closed segments are uploaded to.
    Bucket(StorageUrl),
}

impl CaptureConfig {
    /// The folder that segments are written to: the target, or the spool of a bucket.
    pub fn folder(&self) -> Option<&Path> {
        self.target.as_ref().map(|target| match target {
            CaptureTarget::Folder(folder) => &**folder,
            CaptureTarget::Bucket(_) => &*self.spool,
        })
    }

    /// The prefix of object storage, if the capture goes to one.
    pub fn bucket(&self) -> Option<&StorageUrl> {
        match &self.target {
            Some(CaptureTarget::Bucket(url)) => Some(url),
            _ => None,
        }
    }
}

/// File format of closed segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CaptureFormat {
    /// JSON Lines in zstd frames.
    Jsonl,
    /// Parquet, which engines for analysis read.
    Parquet,
}

/// The source of a request's session name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionKey {
    /// Inferred from the messages.
    Inferred,
    /// A header.
    Header(String),
    /// A field of the body, as in `metadata.user_id`.
    Body(String),
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inferred => f.write_str(super::defaults::INFERRED),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Body(path) => write!(f, "body:{path}"),
        }
    }
}

/// A `tokenizer.json` and the models it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerFile {
    /// Model name in requests; `*` matches any characters.
    pub model: String,
    /// Path of the file.
    pub path: PathBuf,
}

impl fmt::Display for TokenizerFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.model, self.path.display())
    }
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamTarget {
    /// All go to one server.
    Server(ServerAddress),
    /// Those of a redirected connection go to its original destination, without TLS.
    OriginalDestination,
}

/// The inference server, and how to connect to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// One server, or the destination of each connection.
    pub target: UpstreamTarget,
    /// HTTP version of the connections. Auto by default: the version that a client would use.
    pub http: UpstreamHttp,
    /// Connection timeout, including TLS. 5 seconds: a server that is up answers in milliseconds.
    pub connect_timeout: Gap,
    /// Certificates to trust instead of the system's, as PEM.
    pub ca: Option<PathBuf>,
    /// The client certificate.
    pub identity: Option<ClientIdentity>,
    /// Expected name in the server's certificate, if it is not the URL's host.
    pub server_name: Option<String>,
}

impl UpstreamConfig {
    /// The one server; `None` in transparent mode.
    pub fn server(&self) -> Option<&ServerAddress> {
        match &self.target {
            UpstreamTarget::Server(server) => Some(server),
            UpstreamTarget::OriginalDestination => None,
        }
    }
}

/// An HTTP version to the inference server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamHttp {
    /// HTTP/2 where TLS negotiates it, else HTTP/1.1.
    Auto,
    /// HTTP/1.1 always.
    Http1,
    /// HTTP/2 always, without TLS by prior knowledge.
    Http2,
}

/// A client certificate and its private key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    /// Certificate and chain.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
}

/// PEM files of TLS to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate and chain.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// Certificate authorities; if set, clients must present a certificate from one of them.
    pub client_ca: Option<PathBuf>,
}

/// Access to the admin port. A client certificate or a token suffices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminAccessConfig {
    /// TLS on the admin port; `None` is plain text. Its authorities admit a client, but do not exclude one without a
    /// certificate: a kubelet has none.
    pub tls: Option<TlsFiles>,
    /// File with the tokens that open every path.
    pub token_file: Option<PathBuf>,
    /// File with the tokens that open `/metrics` only.
    pub metrics_token_file: Option<PathBuf>,
    /// True if the port may be open to everyone beyond loopback. Off: the port shows the traffic, and changes the log
    /// level.
    pub insecure: bool,
}

impl AdminAccessConfig {
    /// True if the admin port may have this address: on loopback, protected, or open on purpose. TLS without client
    /// authentication is no protection: every client gets the replies.
    pub fn allows(&self, admin: SocketAddr) -> bool {
        admin.ip().is_loopback() || self.insecure || self.is_protected()
    }

    /// True if a client must show a certificate or a token.
    pub fn is_protected(&self) -> bool {
        self.has_tokens() || self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
    }

    /// True if a token admits a client.
    pub fn has_tokens(&self) -> bool {
        self.token_file.is_some() || self.metrics_token_file.is_some()
    }
}

/// Request headers that the proxy adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardingHeaders {
    /// `Via`.
    pub via: bool,
    /// `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host`.
    pub forwarded: bool,
}

/// Memory limits and timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest head of a request or response, in bytes, 1 KiB to 64 KiB. 64 KiB: the effective limit should be the
    /// server's, and no server in use accepts more.
    pub head_bytes: usize,
    /// Time for a client to send a complete request head. 30 seconds: enough for the slowest network of an honest
    /// client.
    pub head_timeout: Gap,
    /// Idle timeout of a client connection. 10 minutes: longer than any client's pool. So the client closes first, and
    /// never sends into a connection that the proxy is closing.
    pub idle_timeout: Gap,
    /// Requests in flight; further ones get a 503. 10,000: about 200 MiB at 20 KiB each.
    pub streams: usize,
    /// Client connections; further ones wait to be accepted. 20,000: as many idle connections as streams.
    pub connections: usize,
    /// Destinations in use at one time in transparent mode. Connections to further ones are refused. 64: as many as
    /// models, because each one multiplies the series.
    pub destinations: usize,
}

/// Traces kept in addition to the sampler's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TailSampling {
    /// Keep failed requests.
    pub failed: bool,
    /// Keep requests that missed an SLO.
    pub slo: bool,
    /// Keep requests that took at least this long.
    pub slow: Option<Gap>,
}

/// Logging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Line format. Text by default, for people.
    pub format: LogFormat,
    /// Least severe level that is logged. Info by default: starts, stops, and problems that need attention.
    pub level: LogLevel,
}

/// How a line of the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The least important level that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What has gone wrong.
    Error,
    /// What may go wrong.
    Warn,
    /// Starts, stops and changes.
    Info,
    /// What is needed to find a fault of the proxy.
    Debug,
}
