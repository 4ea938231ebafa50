//! What the program believes: every value in here has been parsed and is within its bounds.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Serialize;

use crate::measure::dialect::Routes;
use crate::measure::slo::Slos;
use crate::measure::time::Gap;

/// The configuration of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyConfig {
    /// Where clients connect. Loopback unless told otherwise: a sidecar shares its pod's loopback, and nothing should
    /// be reachable from outside by accident.
    pub listen: SocketAddr,
    /// Where metrics, health and the live page are. 9464 is the port that OpenTelemetry gives Prometheus exporters.
    pub admin: SocketAddr,
    /// Host names that the admin port answers to beside IP addresses and `localhost`, in lower case, `*` for any run of
    /// characters. None by default: whoever owns another name could read the port from a browser (DNS rebinding).
    pub admin_hosts: Vec<String>,
    /// The inference server.
    pub upstream: UpstreamConfig,
    /// TLS to clients; `None` is plain text.
    pub tls: Option<TlsFiles>,
    /// Request headers added on the way; none by default, since the proxy is transparent.
    pub headers: ForwardingHeaders,
    /// Whether streams that do not ask for their usage do so all the same, which the client does not see. Off, because it
    /// changes a request's bytes.
    pub ask_usage: bool,
    /// Threads that forward, 1 to 64. The machine's cores by default, 4 at most: one thread carries thousands of
    /// streams, and a sidecar leaves the machine to the server.
    pub workers: usize,
    /// What bounds memory and patience.
    pub limits: Limits,
    /// How long open streams may go on when the process is told to stop. 10 minutes: a long answer of a slow model.
    pub drain: Gap,
    /// The dialects of paths that do not tell them by their end; none by default.
    pub routes: Routes,
    /// Objectives that requests are judged by; none by default.
    pub slos: Arc<Slos>,
    /// The gap between two tokens that counts as a stall. 1 second: a reader notices.
    pub stall: Gap,
    /// Local tokenizers, for streams whose server gives no count; none by default, since counting costs a core and needs
    /// the reply's text until its end. The first that fits a model counts.
    pub tokenizers: Vec<TokenizerFile>,
    /// Models told apart in metrics; further ones share one label value. 64: every label value multiplies the series.
    pub max_models: usize,
    /// `gen_ai.provider.name` of everything exported; by default whose API the dialect is ("openai"), since a proxy
    /// cannot know who runs the server.
    pub provider: Option<String>,
    /// Traces kept whatever the sampler says; none by default, so that the sampler alone decides.
    pub tail_keep: TailSampling,
    /// Whether health probes are traced and logged too. Off: a kubelet asks every few seconds, and all answers are alike.
    pub trace_probes: bool,
    /// What is written of the traffic; nothing by default.
    pub capture: CaptureConfig,
    /// Whether each request is logged in one line. Off: metrics and traces tell more for less.
    pub access_log: bool,
    /// How the process logs.
    pub log: LogConfig,
}

/// What is written of the traffic: its shape, never its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureConfig {
    /// Where; `None` writes nothing.
    pub folder: Option<PathBuf>,
    /// How long a row may wait to be written. 1 second: what a kill can lose, and enough rows for a frame to pack well.
    pub flush: Gap,
    /// Times are rounded to multiples of this, and prompts to whole blocks. Off: a replay wants them as they were.
    pub round: Gap,
    /// What cuts prompts into tokens; none by default, and then blocks are of bytes.
    pub tokenizer: Option<PathBuf>,
    /// Length of a block. 512 bytes: some 128 tokens, so that a long prompt's ids stay below a twentieth of it. 16 tokens:
    /// what a server's prefix cache shares, so that it can be simulated; larger blocks are made of them.
    pub block: usize,
    /// The key of ids, instead of the directory's own random one.
    pub key: Option<PathBuf>,
    /// Whether each day has a key of its own. Off: sessions and prefixes live longer than a day.
    pub rotate: bool,
    /// Where requests name their session. Inferred by default, since nothing standard names it.
    pub session: SessionKey,
    /// Successes before a model's name is written. 1: a name that a server has accepted is the server's.
    pub names: usize,
    /// Bytes of all that is kept. 10 GiB: ten million requests, and no disk is filled by accident.
    pub keep_bytes: usize,
    /// Age of what is kept. A week: every kind of day once.
    pub keep_age: Gap,
}

/// Where requests name their session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionKey {
    /// Nowhere: it is inferred from their messages.
    Inferred,
    /// In a header.
    Header(String),
    /// In a field of the body, as in `metadata.user_id`.
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

/// A `tokenizer.json`, and whose tokens it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerFile {
    /// The model, as requests name it; `*` stands for any run of characters.
    pub model: String,
    /// The file.
    pub path: PathBuf,
}

impl fmt::Display for TokenizerFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.model, self.path.display())
    }
}

/// The inference server, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// Whether it speaks TLS.
    pub tls: bool,
    /// Its name or address, an IPv6 address without brackets.
    pub host: Arc<str>,
    /// Its port.
    pub port: u16,
    /// The HTTP version spoken to it. Auto by default: what a client would speak.
    pub http: UpstreamHttp,
    /// Time to connect, TLS included. 5 seconds: a server that is there answers in milliseconds.
    pub connect_timeout: Gap,
    /// Certificates to trust instead of the system's, as PEM.
    pub ca: Option<PathBuf>,
    /// The client certificate shown to it.
    pub identity: Option<ClientIdentity>,
    /// The name its certificate must carry, if that is not `host`.
    pub server_name: Option<String>,
}

impl UpstreamConfig {
    /// Host and port as `Host` and `:authority` write them: IPv6 in brackets, the scheme's own port left out.
    pub fn authority(&self) -> String {
        let host = match self.host.parse() {
            Ok(IpAddr::V6(address)) => format!("[{address}]"),
            _ => self.host.to_string(),
        };
        let usual = if self.tls { 443 } else { 80 };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for UpstreamConfig {
    /// The URL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
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
    /// The certificate and its chain.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// The PEM files of TLS to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and its chain.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// Certificate authorities; where given, a client must show a certificate of one of them.
    pub client_ca: Option<PathBuf>,
}

/// Request headers added on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardingHeaders {
    /// `Via`.
    pub via: bool,
    /// `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host`.
    pub forwarded: bool,
}

/// What bounds memory and patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest head of a request or response, in bytes, 1 KiB to 64 KiB. 64 KiB: the limit should be the server's,
    /// and no server in use takes more.
    pub head_bytes: usize,
    /// Time for a client to send a whole request head. 30 seconds: the slowest honest network, and no more.
    pub head_timeout: Gap,
    /// Time that a kept connection may stay unused. 10 minutes: longer than any client's pool keeps one, so that the
    /// client closes it and never sends into a connection that we are closing.
    pub idle_timeout: Gap,
    /// Requests in flight; further ones are answered 503. 10,000: some 200 MiB at 20 KiB each.
    pub streams: usize,
    /// Client connections; further ones wait to be accepted. 20,000: as many idle ones as streams.
    pub connections: usize,
}

/// Traces kept whatever the sampler says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TailSampling {
    /// Those of requests that failed.
    pub failed: bool,
    /// Those of requests that missed an SLO.
    pub slo: bool,
    /// Those of requests that took at least this long.
    pub slow: Option<Gap>,
}

/// How the process logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// How a line is written. Text by default, for people.
    pub format: LogFormat,
    /// The least important level that is written. Info by default: starts, stops and what needs attention.
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
