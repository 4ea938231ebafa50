//! The raw settings: the single list of everything that can be configured.
//!
//! A field is a flag (`--upstream-http`), a key of the configuration file (`upstream_http`), and an environment
//! variable (`STREAMGAUGE_UPSTREAM_HTTP`). Its doc comment is the flag's help text and the key's description in the
//! JSON Schema. Values stay text in every layer until [`validate`](super::validate) parses them.

use std::sync::LazyLock;

use clap::{Args, Command, ValueHint};
use schemars::JsonSchema;
use serde::Serialize;

use super::defaults::DEFAULTS;
use super::proxy::{CaptureFormat, LogFormat, LogLevel, UpstreamHttp};

/// Settings of `streamgauge proxy`.
// No `Debug`: an unparsed text may hold a secret.
#[derive(Clone, Default, Args, Serialize, JsonSchema)]
#[schemars(title = "Streamgauge configuration", deny_unknown_fields)]
pub struct RawSettings {
    /// Listen for clients on this address
    #[arg(long, help_heading = "Addresses", value_name = "IP:PORT")]
    pub listen: Option<String>,

    /// Serve metrics, health and the live page on this address
    #[arg(long, help_heading = "Addresses", value_name = "IP:PORT")]
    pub admin: Option<String>,

    /// Answer these host names on the admin port, besides IP addresses and localhost, e.g. 'gauge,*.svc'
    #[arg(long, help_heading = "Addresses", value_name = "LIST")]
    #[schemars(extend("type" = ["string", "array", "null"]))]
    pub admin_hosts: Vec<String>,

    /// Serve the admin port over TLS with the certificate in this PEM file
    #[arg(long, help_heading = "Admin port", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub admin_tls_cert: Option<String>,

    /// Read that certificate's private key from this PEM file
    #[arg(long, help_heading = "Admin port", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub admin_tls_key: Option<String>,

    /// Admit clients whose certificate is from an authority in this PEM file
    #[arg(long, help_heading = "Admin port", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub admin_tls_client_ca: Option<String>,

    /// Admit clients that send a bearer token of this file, which has one token per line
    #[arg(long, help_heading = "Admin port", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub admin_token_file: Option<String>,

    /// Let clients that send a bearer token of this file read /metrics, and nothing else
    #[arg(long, help_heading = "Admin port", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub admin_metrics_token_file: Option<String>,

    /// Allow an admin address beyond loopback without a token or client certificates
    #[arg(long, help_heading = "Admin port", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub admin_insecure: Option<bool>,

    /// Forward to the inference server at this URL, e.g. `http://127.0.0.1:8000`
    #[arg(long, help_heading = "Upstream", value_name = "URL")]
    pub upstream: Option<String>,

    /// Forward each connection that the kernel redirects here to its original destination, instead of --upstream
    #[arg(long, help_heading = "Upstream", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub transparent: Option<bool>,

    /// With --transparent, refuse connections to more destinations than this at a time
    #[arg(long, help_heading = "Upstream", value_name = "COUNT")]
    pub max_destinations: Option<u64>,

    /// Use this HTTP version to the inference server; auto is HTTP/2 if TLS negotiates it, else HTTP/1.1
    #[arg(long, help_heading = "Upstream", value_name = "VERSION")]
    pub upstream_http: Option<UpstreamHttp>,

    /// Fail a request if connecting to the inference server, TLS included, takes longer
    #[arg(long, help_heading = "Upstream", value_name = "TIME")]
    pub upstream_connect_timeout: Option<String>,

    /// Trust the certificates in this PEM file for the inference server, instead of the system's
    #[arg(long, help_heading = "Upstream", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub upstream_ca: Option<String>,

    /// Send the client certificate in this PEM file to the inference server
    #[arg(long, help_heading = "Upstream", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub upstream_cert: Option<String>,

    /// Read that certificate's private key from this PEM file
    #[arg(long, help_heading = "Upstream", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub upstream_key: Option<String>,

    /// Require this name in the inference server's certificate, instead of the URL's host
    #[arg(long, help_heading = "Upstream", value_name = "NAME")]
    pub upstream_server_name: Option<String>,

    /// Show the engine's own figures on the live page, from its metrics at this URL
    #[arg(long, help_heading = "Upstream", value_name = "URL", value_hint = ValueHint::Url)]
    pub engine_metrics: Option<String>,

    /// Serve clients over TLS with the certificate in this PEM file
    #[arg(long, help_heading = "TLS to clients", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tls_cert: Option<String>,

    /// Read that certificate's private key from this PEM file
    #[arg(long, help_heading = "TLS to clients", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tls_key: Option<String>,

    /// Require client certificates from an authority in this PEM file
    #[arg(long, help_heading = "TLS to clients", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tls_client_ca: Option<String>,

    /// Add request headers: via (Via), forwarded (X-Forwarded-For, -Proto and -Host), none
    #[arg(long, help_heading = "Forwarding", value_name = "LIST")]
    #[schemars(extend("type" = ["string", "array", "null"]))]
    pub headers: Vec<String>,

    /// Request usage in streams of OpenAI-compatible servers, and remove it if the client did not request it
    #[arg(long, help_heading = "Forwarding", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub ask_usage: Option<bool>,

    /// Number of forwarding threads, 1 to 64 [default: the machine's cores, at most 4]
    #[arg(long, help_heading = "Forwarding", value_name = "COUNT")]
    pub workers: Option<u64>,

    /// Reject larger request heads, in bytes or e.g. 64K; response heads may have 65536 bytes
    #[arg(long, help_heading = "Forwarding", value_name = "BYTES")]
    #[schemars(extend("type" = ["integer", "string", "null"]))]
    pub max_head_bytes: Option<String>,

    /// Close a connection if its client takes longer to send a request head
    #[arg(long, help_heading = "Forwarding", value_name = "TIME")]
    pub head_timeout: Option<String>,

    /// Close a kept-alive connection after this time without a request
    #[arg(long, help_heading = "Forwarding", value_name = "TIME")]
    pub idle_timeout: Option<String>,

    /// Allow at most this many requests in flight; answer 503 to further ones
    #[arg(long, help_heading = "Forwarding", value_name = "COUNT")]
    pub max_streams: Option<u64>,

    /// Accept at most this many client connections; further ones wait
    #[arg(long, help_heading = "Forwarding", value_name = "COUNT")]
    pub max_connections: Option<u64>,

    /// Wait this time for open streams on shutdown; 0 ends them at once
    #[arg(long, help_heading = "Forwarding", value_name = "TIME")]
    pub drain: Option<String>,

    /// Parse matching paths as this dialect, e.g. '/custom/*=openai.chat'; may be repeated
    #[arg(long = "route", help_heading = "Measurement", value_name = "PATH=DIALECT")]
    #[schemars(schema_with = "super::schema::routes")]
    pub routes: Vec<String>,

    /// Define a good request, e.g. 'chat: ttft<=500ms itl.p99<=50ms'; may be repeated
    #[arg(long = "slo", help_heading = "Measurement", value_name = "SLO")]
    #[schemars(extend("type" = ["string", "array", "null"]))]
    pub slos: Vec<String>,

    /// Make a request attribute a label, e.g. tier=header:x-tier or team=body:metadata.team; may be repeated
    #[arg(long = "class", help_heading = "Measurement", value_name = "NAME=SOURCE")]
    #[schemars(extend("type" = ["string", "array", "null"]))]
    pub classes: Vec<String>,

    /// Distinguish at most this many values of each class in metrics; count further ones as _other
    #[arg(long, help_heading = "Measurement", value_name = "COUNT")]
    pub max_class_values: Option<u64>,

    /// Count a longer gap between two tokens as a stall
    #[arg(long, help_heading = "Measurement", value_name = "TIME")]
    pub stall: Option<String>,

    /// Count a model's tokens with this tokenizer.json if the server does not, e.g. 'llama-*=FILE'; may be repeated
    #[arg(long = "tokenizer", help_heading = "Measurement", value_name = "MODEL=FILE")]
    #[schemars(extend("type" = ["string", "array", "null"]))]
    pub tokenizers: Vec<String>,

    /// Distinguish at most this many models in metrics; count further ones as _other
    #[arg(long, help_heading = "Measurement", value_name = "COUNT")]
    pub max_models: Option<u64>,

    /// Export this gen_ai.provider.name, e.g. vllm
    #[arg(long, help_heading = "Measurement", value_name = "NAME")]
    pub provider: Option<String>,

    /// Export token usage and latencies as the server's client too; false where the clients' own telemetry has them
    #[arg(long, help_heading = "Measurement", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub gen_ai_client: Option<bool>,

    /// Keep these traces whatever the sampler decides: failed, slo (missed an SLO), slow=TIME, none
    #[arg(long, help_heading = "Measurement", value_name = "LIST")]
    #[schemars(extend("type" = ["string", "array", "null"]))]
    pub tail_keep: Vec<String>,

    /// Trace and log health probes, instead of only counting them
    #[arg(long, help_heading = "Measurement", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub trace_probes: Option<bool>,

    /// Record the shape of the traffic, never its text, into this folder, or a bucket as s3://BUCKET/PREFIX
    #[arg(long, help_heading = "Capture", value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    pub capture: Option<String>,

    /// Keep segments in this folder until they are in the bucket
    #[arg(long, help_heading = "Capture", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub capture_spool: Option<String>,

    /// Write captured requests to disk within this time; a kill loses at most that much
    #[arg(long, help_heading = "Capture", value_name = "TIME")]
    pub capture_flush: Option<String>,

    /// Round captured times to multiples of this, and prompts to whole blocks; 0 keeps both exact
    #[arg(long, help_heading = "Capture", value_name = "TIME")]
    pub capture_round: Option<String>,

    /// Split prompts into blocks of tokens with this tokenizer.json, and count tokens if the server does not
    #[arg(long, help_heading = "Capture", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub capture_tokenizer: Option<String>,

    /// Set the length of a prompt block in bytes, or in tokens with --capture-tokenizer [default: 512 bytes or 16 tokens]
    #[arg(long, help_heading = "Capture", value_name = "LENGTH")]
    pub capture_block: Option<u64>,

    /// Read the key of block and session ids from this file, instead of the capture folder
    #[arg(long, help_heading = "Capture", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub capture_key: Option<String>,

    /// Change the key every day, so that ids cannot be linked across days
    #[arg(long, help_heading = "Capture", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub capture_key_rotate: Option<bool>,

    /// Read session ids from header:NAME or body:FIELD, or use inferred ones, from the messages
    #[arg(long, help_heading = "Capture", value_name = "PLACE")]
    pub capture_session: Option<String>,

    /// Capture a model's name after this many successful requests; before that it is _other
    #[arg(long, help_heading = "Capture", value_name = "COUNT")]
    pub capture_names: Option<u64>,

    /// Capture this share of sessions, whole and the same with one key in every proxy, e.g. 5%
    #[arg(long, help_heading = "Capture", value_name = "SHARE")]
    pub capture_sample: Option<String>,

    /// Keep closed segments of the capture in this format
    #[arg(long, help_heading = "Capture", value_name = "FORMAT")]
    pub capture_format: Option<CaptureFormat>,

    /// Delete the oldest captured segments above this total size, in bytes or e.g. 10G
    #[arg(long, help_heading = "Capture", value_name = "BYTES")]
    #[schemars(extend("type" = ["integer", "string", "null"]))]
    pub capture_keep_bytes: Option<String>,

    /// Delete captured segments above this age
    #[arg(long, help_heading = "Capture", value_name = "TIME")]
    pub capture_keep_age: Option<String>,

    /// Log one line per request, without any text
    #[arg(long, help_heading = "Logs", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub access_log: Option<bool>,

    /// Write logs to stderr in this format
    #[arg(long, help_heading = "Logs", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// Log events of this level and above
    #[arg(long, help_heading = "Logs", value_name = "LEVEL")]
    pub log_level: Option<LogLevel>,
}

/// The names of one setting.
#[derive(Debug)]
pub(super) struct SettingNames {
    /// Key in the file.
    pub(super) key: String,
    /// Flag, with its dashes.
    pub(super) flag: String,
    /// Environment variable.
    pub(super) variable: String,
    /// It accepts several values.
    pub(super) list: bool,
    /// The two keys of a value that may be a mapping. Such a value equals the text `first=second`.
    pub(super) pair: Option<[&'static str; 2]>,
}

/// Settings whose values may be mappings.
const PAIR_SETTINGS: [(&str, [&str; 2]); 1] = [("routes", ["path", "dialect"])];

/// The names of every setting, in the order of [`RawSettings`].
pub(super) static SETTINGS: LazyLock<Vec<SettingNames>> = LazyLock::new(|| {
    let command = RawSettings::augment_args(Command::new("proxy"));
    let setting = |arg: &clap::Arg| {
        let key = arg.get_id().as_str().to_owned();
        SettingNames {
            flag: format!("--{}", arg.get_long().unwrap_or(&key)),
            variable: format!("{PREFIX}{}", key.to_ascii_uppercase()),
            pair: PAIR_SETTINGS.iter().find(|(paired, _)| *paired == key).map(|(_, keys)| *keys),
            list: matches!(arg.get_action(), clap::ArgAction::Append),
            key,
        }
    };
    command.get_arguments().map(setting).collect()
});

/// Prefix of the settings' environment variables.
pub(super) const PREFIX: &str = "STREAMGAUGE_";

/// Finds a setting by its key.
pub(super) fn setting(key: &str) -> Option<&'static SettingNames> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

impl RawSettings {
    /// Appends its default to each setting's help text.
    pub fn add_defaults_to_help(command: Command) -> Command {
        command.mut_args(|arg| {
            let default = DEFAULTS.iter().find(|(key, _)| arg.get_id() == *key);
            match (default, arg.get_help()) {
                (Some((_, default)), Some(help)) => {
                    let help = format!("{help} [default: {default}]");
                    arg.help(help)
                }
                _ => arg,
            }
        })
    }
}
