//! Prints the effective configuration as it would be typed, for `--check`, the digest, and reloads.

use std::fmt;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::defaults::NONE;
use super::layer::{SettingOrigin, SettingsLayer};
use super::proxy::{CaptureTarget, ForwardingHeaders, Limits, LogConfig, ProxyConfig, TailSampling, UpstreamConfig};
use super::raw_settings::setting;
use crate::measure::time::Gap;

/// Settings that need a restart: those that name an address, a file or a protocol, and those with which threads and
/// listeners are created. Limits, rules and the named files' contents can change at run time.
const NEED_RESTART: [&str; 37] = [
    "listen",
    "admin",
    "admin_tls_cert",
    "admin_tls_key",
    "admin_tls_client_ca",
    "admin_token_file",
    "admin_metrics_token_file",
    "admin_insecure",
    "upstream",
    "transparent",
    "upstream_http",
    "upstream_ca",
    "upstream_cert",
    "upstream_key",
    "upstream_server_name",
    "engine_metrics",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "workers",
    "tokenizers",
    "max_connections",
    "capture",
    "capture_spool",
    "capture_flush",
    "capture_round",
    "capture_tokenizer",
    "capture_block",
    "capture_key",
    "capture_key_rotate",
    "capture_session",
    "capture_names",
    "capture_sample",
    "capture_format",
    "capture_keep_bytes",
    "capture_keep_age",
    "log_format",
];

impl ProxyConfig {
    /// Every setting with its effective value, in the order of [`RawSettings`](super::RawSettings). Loading these
    /// values gives this configuration again.
    pub fn settings(&self) -> Vec<(&'static str, Value)> {
        let (upstream, tls, limits) = (&self.upstream, self.tls.as_ref(), &self.limits);
        let (access, admin_tls) = (&self.admin_access, self.admin_access.tls.as_ref());
        let identity = upstream.identity.as_ref();
        let slos: Vec<String> = self.slos.iter().map(ToString::to_string).collect();
        vec![
            ("listen", json!(self.listen.to_string())),
            ("admin", json!(self.admin.to_string())),
            ("admin_hosts", json!(join_or_none(&self.admin_hosts))),
            ("admin_tls_cert", path(admin_tls.map(|tls| &tls.cert))),
            ("admin_tls_key", path(admin_tls.map(|tls| &tls.key))),
            ("admin_tls_client_ca", path(admin_tls.and_then(|tls| tls.client_ca.as_ref()))),
            ("admin_token_file", path(access.token_file.as_ref())),
            ("admin_metrics_token_file", path(access.metrics_token_file.as_ref())),
            ("admin_insecure", json!(access.insecure)),
            ("upstream", json!(upstream.server().map(ToString::to_string))),
            ("transparent", json!(upstream.server().is_none())),
            ("max_destinations", json!(limits.destinations)),
            ("upstream_http", json!(upstream.http)),
            ("upstream_connect_timeout", json!(format_duration(upstream.connect_timeout))),
            ("upstream_ca", path(upstream.ca.as_ref())),
            ("upstream_cert", path(identity.map(|identity| &identity.cert))),
            ("upstream_key", path(identity.map(|identity| &identity.key))),
            ("upstream_server_name", json!(upstream.server_name)),
            ("engine_metrics", json!(self.engine_metrics.as_ref().map(ToString::to_string))),
            ("tls_cert", path(tls.map(|tls| &tls.cert))),
            ("tls_key", path(tls.map(|tls| &tls.key))),
            ("tls_client_ca", path(tls.and_then(|tls| tls.client_ca.as_ref()))),
            ("headers", json!(self.headers.to_string())),
            ("ask_usage", json!(self.ask_usage)),
            ("workers", json!(self.workers)),
            ("max_head_bytes", json!(limits.head_bytes)),
            ("head_timeout", json!(format_duration(limits.head_timeout))),
            ("idle_timeout", json!(format_duration(limits.idle_timeout))),
            ("max_streams", json!(limits.streams)),
            ("max_connections", json!(limits.connections)),
            ("drain", json!(format_duration(self.drain))),
            ("routes", json!(self.routes.iter().map(ToString::to_string).collect::<Vec<_>>())),
            ("slos", json!(slos)),
            ("classes", json!(self.classes.iter().map(ToString::to_string).collect::<Vec<_>>())),
            ("max_class_values", json!(self.max_class_values)),
            ("stall", json!(format_duration(self.stall))),
            ("tokenizers", json!(self.tokenizers.iter().map(ToString::to_string).collect::<Vec<_>>())),
            ("max_models", json!(self.max_models)),
            ("provider", json!(self.provider)),
            ("gen_ai_client", json!(self.gen_ai_client)),
            ("tail_keep", json!(self.tail_keep.to_string())),
            ("trace_probes", json!(self.trace_probes)),
            ("capture", json!(self.capture.target.as_ref().map(ToString::to_string))),
            ("capture_spool", path(Some(&self.capture.spool))),
            ("capture_flush", json!(format_duration(self.capture.flush))),
            ("capture_round", json!(format_duration(self.capture.round))),
            ("capture_tokenizer", path(self.capture.tokenizer.as_ref())),
            ("capture_block", json!(self.capture.block)),
            ("capture_key", path(self.capture.key.as_ref())),
            ("capture_key_rotate", json!(self.capture.rotate)),
            ("capture_session", json!(self.capture.session.to_string())),
            ("capture_names", json!(self.capture.names)),
            ("capture_sample", json!(self.capture.sample.to_string())),
            ("capture_format", json!(self.capture.format)),
            ("capture_keep_bytes", json!(self.capture.keep_bytes)),
            ("capture_keep_age", json!(format_duration(self.capture.keep_age))),
            ("access_log", json!(self.access_log)),
            ("log_format", json!(self.log.format)),
            ("log_level", json!(self.log.level)),
        ]
    }

    /// A short hash of the effective configuration. Equal values give equal hashes on every machine.
    pub fn digest(&self) -> String {
        // FNV-1a, 64 bits: it identifies a configuration and is not cryptographic.
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for (key, value) in self.settings() {
            for byte in format!("{key}={value}\n").bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        format!("{hash:016x}")
    }

    /// Applies the settings of `new` that can change at run time. Also returns the changed keys that need a restart.
    pub fn reload(&self, new: Self) -> (Self, Vec<&'static str>) {
        let both = self.settings().into_iter().zip(new.settings());
        let changed = both.filter(|(before, after)| before != after).map(|((key, _), _)| key);
        let held = changed.filter(|key| NEED_RESTART.contains(key)).collect();
        let connect_timeout = new.upstream.connect_timeout;
        let config = Self {
            listen: self.listen,
            admin: self.admin,
            admin_access: self.admin_access.clone(),
            upstream: UpstreamConfig { connect_timeout, ..self.upstream.clone() },
            engine_metrics: self.engine_metrics.clone(),
            tls: self.tls.clone(),
            workers: self.workers,
            tokenizers: self.tokenizers.clone(),
            capture: self.capture.clone(),
            limits: Limits { connections: self.limits.connections, ..new.limits },
            log: LogConfig { format: self.log.format, level: new.log.level },
            ..new
        };
        (config, held)
    }

    /// The effective configuration as a configuration file, with the origin of each value.
    pub fn explain(&self, settings: &SettingsLayer) -> String {
        let lines = self.settings().into_iter().map(|(key, value)| {
            let from = describe_origin(key, &settings.origin(key));
            match value {
                Value::Array(list) if list.is_empty() => format!("{key}: []  # {from}\n"),
                Value::Array(list) => {
                    let items: String = list.iter().map(|item| format!("  - {}\n", yaml(item))).collect();
                    format!("{key}:  # {from}\n{items}")
                }
                one => format!("{key}: {}  # {from}\n", yaml(&one)),
            }
        });
        lines.collect()
    }
}

/// A value's origin, in words.
fn describe_origin(key: &str, place: &SettingOrigin) -> String {
    match (place, setting(key)) {
        (SettingOrigin::Flag, Some(setting)) => format!("flag {}", setting.flag),
        (SettingOrigin::Variable, Some(setting)) => format!("env {}", setting.variable),
        (SettingOrigin::AdminPort, _) => "the admin port".to_owned(),
        (SettingOrigin::File(path, line), _) => format!("file {}:{line}", path.display()),
        _ => "default".to_owned(),
    }
}

/// A value in one line of YAML.
fn yaml(value: &Value) -> String {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let yaml = serde_saphyr::to_string_with_options(value, options);
    yaml.map_or_else(|_| value.to_string(), |yaml| yaml.trim_end().to_owned())
}

fn path(path: Option<&PathBuf>) -> Value {
    path.map_or(Value::Null, |path| json!(path.to_string_lossy()))
}

/// A duration as it would be typed: an integer in the largest unit that divides it. `Display` of [`Gap`] rounds.
pub(super) fn format_duration(time: Gap) -> String {
    let units =
        [(3_600_000_000_000, "h"), (60_000_000_000, "m"), (1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let nanos = time.as_nanos();
    let fits = units.into_iter().find(|(scale, _)| nanos.is_multiple_of(*scale));
    match fits {
        _ if nanos == 0 => "0".to_owned(),
        Some((scale, unit)) => format!("{}{unit}", nanos / scale),
        None => format!("{nanos}ns"),
    }
}

impl fmt::Display for ForwardingHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [self.via.then(|| "via".to_owned()), self.forwarded.then(|| "forwarded".to_owned())];
        f.write_str(&join_or_none(&words.into_iter().flatten().collect::<Vec<_>>()))
    }
}

impl fmt::Display for TailSampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slow = self.slow.map(|slow| format!("slow={}", format_duration(slow)));
        let words = [self.failed.then(|| "failed".to_owned()), self.slo.then(|| "slo".to_owned()), slow];
        f.write_str(&join_or_none(&words.into_iter().flatten().collect::<Vec<_>>()))
    }
}

impl fmt::Display for CaptureTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Bucket(url) => url.fmt(f),
        }
    }
}

fn join_or_none(words: &[String]) -> String {
    if words.is_empty() { NONE.to_owned() } else { words.join(",") }
}
