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
use super::proxy::{LogFormat, LogLevel, UpstreamHttp};

/// Settings of `streamgauge proxy`.
// No `Debug`: an unparsed text may hold a secret.
#[derive(Clone, Default, Args, Serialize, JsonSchema)]
#[schemars(title = "Streamgauge configuration", deny_unknown_fields)]
pub struct RawSettings {
    /// Address that clients connect to
    #[arg(long, help_heading = "Addresses", value_name = "IP:PORT")]
    pub listen: Option<String>,

    /// Address of metrics, health and the live page
    #[arg(long, help_heading = "Addresses", value_name = "IP:PORT")]
    pub admin: Option<String>,

    /// Host names that the admin port answers to beside IP addresses and localhost, as in 'gauge,*.svc'; none
    #[arg(long, help_heading = "Addresses", value_name = "LIST")]
    #[schemars(extend("type" = ["string", "array", "null"]))]
    pub admin_hosts: Vec<String>,

    /// URL of the inference server, as in `http://127.0.0.1:8000`; required
    #[arg(long, help_heading = "Upstream", value_name = "URL")]
    pub upstream: Option<String>,

    /// HTTP version to the inference server; auto is HTTP/2 where TLS negotiates it, else HTTP/1.1
    #[arg(long, help_heading = "Upstream", value_name = "VERSION")]
    pub upstream_http: Option<UpstreamHttp>,

    /// Time to connect to the inference server, TLS included
    #[arg(long, help_heading = "Upstream", value_name = "TIME")]
    pub upstream_connect_timeout: Option<String>,

    /// PEM file of certificates to trust for the inference server, instead of the system's
    #[arg(long, help_heading = "Upstream", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub upstream_ca: Option<String>,

    /// PEM file of the client certificate shown to the inference server
    #[arg(long, help_heading = "Upstream", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub upstream_cert: Option<String>,

    /// PEM file of that certificate's private key
    #[arg(long, help_heading = "Upstream", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub upstream_key: Option<String>,

    /// Name that the inference server's certificate must carry, if it is not the host of the URL
    #[arg(long, help_heading = "Upstream", value_name = "NAME")]
    pub upstream_server_name: Option<String>,

    /// PEM file of the certificate shown to clients; turns TLS on
    #[arg(long, help_heading = "TLS to clients", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tls_cert: Option<String>,

    /// PEM file of that certificate's private key
    #[arg(long, help_heading = "TLS to clients", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tls_key: Option<String>,

    /// PEM file of certificate authorities; clients must show a certificate of one of them
    #[arg(long, help_heading = "TLS to clients", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tls_client_ca: Option<String>,

    /// Request headers to add: via (Via), forwarded (X-Forwarded-For, -Proto and -Host), none
    #[arg(long, help_heading = "Forwarding", value_name = "LIST")]
    #[schemars(extend("type" = ["string", "array", "null"]))]
    pub headers: Vec<String>,

    /// Ask OpenAI-compatible servers for the usage of streams whose clients do not, and hide it from those
    #[arg(long, help_heading = "Forwarding", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub ask_usage: Option<bool>,

    /// Threads that forward, 1 to 64 [default: the machine's cores, at most 4]
    #[arg(long, help_heading = "Forwarding", value_name = "COUNT")]
    pub workers: Option<u64>,

    /// Largest request head, in bytes or as in 64K; a reply's may have 65536
    #[arg(long, help_heading = "Forwarding", value_name = "BYTES")]
    #[schemars(extend("type" = ["integer", "string", "null"]))]
    pub max_head_bytes: Option<String>,

    /// Time for a client to send a whole request head
    #[arg(long, help_heading = "Forwarding", value_name = "TIME")]
    pub head_timeout: Option<String>,

    /// Time a kept connection may stay unused
    #[arg(long, help_heading = "Forwarding", value_name = "TIME")]
    pub idle_timeout: Option<String>,

    /// Requests in flight; further ones are answered 503
    #[arg(long, help_heading = "Forwarding", value_name = "COUNT")]
    pub max_streams: Option<u64>,

    /// Client connections; further ones wait to be accepted
    #[arg(long, help_heading = "Forwarding", value_name = "COUNT")]
    pub max_connections: Option<u64>,

    /// Time for open streams to end when the process is told to stop; 0 cuts them
    #[arg(long, help_heading = "Forwarding", value_name = "TIME")]
    pub drain: Option<String>,

    /// Dialect of the paths that fit, as in '/custom/*=openai.chat'; may be repeated
    #[arg(long = "route", help_heading = "Measurement", value_name = "PATH=DIALECT")]
    #[schemars(schema_with = "super::schema::routes")]
    pub routes: Vec<String>,

    /// Objectives of a good request, as in 'chat: ttft<=500ms itl.p99<=50ms'; may be repeated
    #[arg(long = "slo", help_heading = "Measurement", value_name = "SLO")]
    #[schemars(extend("type" = ["string", "array", "null"]))]
    pub slos: Vec<String>,

    /// Gap between two tokens that counts as a stall
    #[arg(long, help_heading = "Measurement", value_name = "TIME")]
    pub stall: Option<String>,

    /// Local tokenizer.json that counts a model's tokens where the server does not, as in 'llama-*=FILE'; may be repeated
    #[arg(long = "tokenizer", help_heading = "Measurement", value_name = "MODEL=FILE")]
    #[schemars(extend("type" = ["string", "array", "null"]))]
    pub tokenizers: Vec<String>,

    /// Models told apart in metrics; further ones are counted as _other
    #[arg(long, help_heading = "Measurement", value_name = "COUNT")]
    pub max_models: Option<u64>,

    /// gen_ai.provider.name of everything exported, as in vllm
    #[arg(long, help_heading = "Measurement", value_name = "NAME")]
    pub provider: Option<String>,

    /// Traces kept whatever the sampler says: failed, slo (an SLO missed), slow=TIME, none
    #[arg(long, help_heading = "Measurement", value_name = "LIST")]
    #[schemars(extend("type" = ["string", "array", "null"]))]
    pub tail_keep: Vec<String>,

    /// Trace and log health probes too, which are otherwise only counted
    #[arg(long, help_heading = "Measurement", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub trace_probes: Option<bool>,

    /// Directory that the shape of the traffic is written to, never its text
    #[arg(long, help_heading = "Capture", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub capture: Option<String>,

    /// Time that a captured request may wait to be written: what a kill can lose
    #[arg(long, help_heading = "Capture", value_name = "TIME")]
    pub capture_flush: Option<String>,

    /// Round captured times to multiples of this, and prompts to whole blocks; 0 does not
    #[arg(long, help_heading = "Capture", value_name = "TIME")]
    pub capture_round: Option<String>,

    /// tokenizer.json that cuts prompts into blocks of tokens, and counts them where the server does not
    #[arg(long, help_heading = "Capture", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub capture_tokenizer: Option<String>,

    /// Length of a prompt's blocks: bytes, or tokens with --capture-tokenizer [default: 512 bytes or 16 tokens]
    #[arg(long, help_heading = "Capture", value_name = "LENGTH")]
    pub capture_block: Option<u64>,

    /// File of the key of block and session ids, instead of the directory's own
    #[arg(long, help_heading = "Capture", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub capture_key: Option<String>,

    /// Give each day a key of its own, so that nothing can be linked across days
    #[arg(long, help_heading = "Capture", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub capture_key_rotate: Option<bool>,

    /// Where requests name their session: header:NAME, body:FIELD, or inferred from their messages
    #[arg(long, help_heading = "Capture", value_name = "PLACE")]
    pub capture_session: Option<String>,

    /// Successful requests before a model's name is captured; before that it is _other
    #[arg(long, help_heading = "Capture", value_name = "COUNT")]
    pub capture_names: Option<u64>,

    /// Size of all that is kept, in bytes or as in 10G; the oldest segments go first
    #[arg(long, help_heading = "Capture", value_name = "BYTES")]
    #[schemars(extend("type" = ["integer", "string", "null"]))]
    pub capture_keep_bytes: Option<String>,

    /// Age of what is kept
    #[arg(long, help_heading = "Capture", value_name = "TIME")]
    pub capture_keep_age: Option<String>,

    /// Log one line per request, without any text
    #[arg(long, help_heading = "Logs", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub access_log: Option<bool>,

    /// How logs are written to stderr
    #[arg(long, help_heading = "Logs", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// Least important level that is logged
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
