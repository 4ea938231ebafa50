//! Parses the settings: every text once, with an error that names the expected value.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use super::defaults::{self, DEFAULTS, NONE};
use super::engine_metrics_url::EngineMetricsUrl;
use super::error::{ConfigError, expected_but_found};
use super::layer::{SettingsLayer, SourcedText};
use super::proxy::{
    AdminAccessConfig, CaptureConfig, CaptureTarget, ClientIdentity, ForwardingHeaders, Limits, LogConfig, ProxyConfig,
    SessionKey, TailSampling, TlsFiles, TokenizerFile, UpstreamConfig, UpstreamTarget,
};
use super::raw_settings::SETTINGS;
use super::settings_reader::{SettingsReader, is_path};
use super::storage_url::StorageUrl;
use super::upstream::{ServerAddress, is_host};
use crate::measure::dialect::{Route, Routes};
use crate::measure::request_class::{RequestClass, RequestClasses, is_plain_name};
use crate::measure::sample_share::SampleShare;
use crate::measure::slo::{Slo, Slos};

/// Parses all settings, or returns all problems.
pub(super) fn validate(settings: &SettingsLayer) -> Result<ProxyConfig, ConfigError> {
    let mut reader = SettingsReader::new(settings);
    let config = reader.config();
    match config {
        Some(config) if reader.problems.is_empty() => Ok(config),
        _ => Err(ConfigError(reader.problems)),
    }
}

/// Parses the SLOs alone, so that a configuration without an upstream has them too.
pub(super) fn slos(settings: &SettingsLayer) -> Result<Arc<Slos>, ConfigError> {
    let mut reader = SettingsReader::new(settings);
    let slos = reader.slos();
    slos.ok_or(ConfigError(reader.problems))
}

/// Warnings of a valid configuration, one sentence each.
pub(super) fn warnings(config: &ProxyConfig) -> Vec<String> {
    let access = &config.admin_access;
    let in_clear = !config.admin.ip().is_loopback() && access.has_tokens() && access.tls.is_none() && !access.insecure;
    let warning = "admin_token_file: tokens cross the network in clear text; set admin_tls_cert and admin_tls_key, or \
                   admin_insecure if the network encrypts";
    in_clear.then(|| warning.to_owned()).into_iter().collect()
}

impl SettingsReader<'_> {
    fn config(&mut self) -> Option<ProxyConfig> {
        let address = "expected an address and a port, as in 127.0.0.1:8080, or 0.0.0.0:8080 for every interface";
        let listen = self.value("listen", address, |text| text.parse().ok());
        let admin = self.value("admin", address, |text| text.parse().ok());
        let (upstream, tls) = (self.upstream(), self.tls("tls_cert", "tls_key", "tls_client_ca"));
        if listen.is_some_and(|listen: SocketAddr| listen.port() != 0 && admin == Some(listen)) {
            self.add_problem("admin", "is the address of `listen`; give it a port of its own");
        }
        for (own, address) in [("listen", listen), ("admin", admin)] {
            if let (Some(server), Some(address)) = (upstream.as_ref().and_then(UpstreamConfig::server), address)
                && loops_back(server, address)
            {
                self.add_problem(
                    "upstream",
                    format!("is the proxy's own `{own}` address; name the inference server's"),
                );
            }
        }
        if tls.is_some() && upstream.as_ref().is_some_and(|upstream| upstream.server().is_none()) {
            self.add_problem(
                "tls_cert",
                "needs upstream: in transparent mode the original destination speaks without TLS",
            );
        }
        let (admin_hosts, admin_access) = (self.admin_hosts(), self.admin_access(admin));
        let (headers, routes, slos, tail_keep) = (self.headers(), self.routes(), self.slos(), self.tail_keep());
        let classes = self.classes(slos.as_deref());
        let max_class_values = self.number("max_class_values");
        let workers = self.number("workers");
        let limits = self.limits();
        let (drain, stall) = (self.time("drain", defaults::DRAIN_BOUNDS), self.time("stall", defaults::TIMEOUT_BOUNDS));
        let tokenizers = self.tokenizers();
        let max_models = self.number("max_models");
        let provider = self.provider();
        let gen_ai_client = self.boolean("gen_ai_client");
        let engine_metrics = self.engine_metrics();
        let trace_probes = self.boolean("trace_probes");
        let capture = self.capture();
        let access_log = self.boolean("access_log");
        let ask_usage = self.boolean("ask_usage");
        let log = (self.enum_value("log_format"), self.enum_value("log_level"));
        Some(ProxyConfig {
            listen: listen?,
            admin: admin?,
            admin_hosts: admin_hosts?,
            admin_access: admin_access?,
            upstream: upstream?,
            engine_metrics,
            tls,
            headers: headers?,
            ask_usage: ask_usage?,
            workers: workers?,
            limits: limits?,
            drain: drain?,
            routes: routes?,
            slos: slos?,
            classes: classes?,
            max_class_values: max_class_values?,
            stall: stall?,
            tokenizers,
            max_models: max_models?,
            provider,
            gen_ai_client: gen_ai_client?,
            tail_keep: tail_keep?,
            trace_probes: trace_probes?,
            capture: capture?,
            access_log: access_log?,
            log: LogConfig { format: log.0?, level: log.1? },
        })
    }

    fn boolean(&mut self, key: &'static str) -> Option<bool> {
        self.value(key, "expected true or false", |text| text.parse().ok())
    }

    fn upstream(&mut self) -> Option<UpstreamConfig> {
        let target = self.upstream_target();
        let http = self.enum_value("upstream_http");
        let connect_timeout = self.time("upstream_connect_timeout", defaults::TIMEOUT_BOUNDS);
        let (ca, server_name) = (self.file("upstream_ca"), self.server_name());
        let identity =
            self.cert_and_key("upstream_cert", "upstream_key").map(|(cert, key)| ClientIdentity { cert, key });
        let target = target?;
        if !matches!(&target, UpstreamTarget::Server(server) if server.tls) {
            for key in ["upstream_ca", "upstream_cert", "upstream_key", "upstream_server_name"] {
                if self.settings.value(key).is_some() {
                    self.add_problem(key, "needs an upstream that begins with https://");
                }
            }
        }
        let (http, connect_timeout) = (http?, connect_timeout?);
        Some(UpstreamConfig { target, http, connect_timeout, ca, identity, server_name })
    }

    /// Exactly one of a server and the transparent mode.
    fn upstream_target(&mut self) -> Option<UpstreamTarget> {
        let transparent = self.boolean("transparent")?;
        let default = DEFAULTS.iter().find(|(key, _)| *key == MAX_DESTINATIONS).map(|(_, text)| *text);
        if !transparent && self.texts(MAX_DESTINATIONS).pop().is_some_and(|text| Some(text.text.trim()) != default) {
            self.add_problem(MAX_DESTINATIONS, "needs transparent: an upstream is one destination");
        }
        match (self.texts("upstream").pop(), transparent) {
            (Some(text), false) => self.parse("upstream", &text, ServerAddress::from_str).map(UpstreamTarget::Server),
            (None, true) => Some(UpstreamTarget::OriginalDestination),
            (Some(_), true) => {
                self.add_problem(
                    "transparent",
                    "excludes upstream: requests go to one server or to the original destinations; remove one of the two",
                );
                None
            }
            (None, false) => {
                self.add_problem(
                    "upstream",
                    "expected the inference server's URL, as in --upstream http://127.0.0.1:8000, or --transparent for \
                     redirected connections",
                );
                None
            }
        }
    }

    fn engine_metrics(&mut self) -> Option<EngineMetricsUrl> {
        let text = self.texts("engine_metrics").pop()?;
        self.parse("engine_metrics", &text, EngineMetricsUrl::from_str)
    }

    fn server_name(&mut self) -> Option<String> {
        let expected = "expected a host name or an IP address, as in llm.example.com";
        self.value("upstream_server_name", expected, |text| is_host(text).then(|| text.to_owned()))
    }

    fn tls(&mut self, cert: &'static str, key: &'static str, ca: &'static str) -> Option<TlsFiles> {
        let (client_ca, pair) = (self.file(ca), self.cert_and_key(cert, key));
        if client_ca.is_some() && pair.is_none() {
            self.add_problem(ca, format!("needs {cert} and {key}: a client shows its certificate in TLS only"));
        }
        pair.map(|(cert, key)| TlsFiles { cert, key, client_ca })
    }

    /// Rejects an address that others can reach while nothing identifies them.
    fn admin_access(&mut self, admin: Option<SocketAddr>) -> Option<AdminAccessConfig> {
        let tls = self.tls("admin_tls_cert", "admin_tls_key", "admin_tls_client_ca");
        let expected = "expected the path of a file that holds the token, not the token itself";
        let token_file = self.secret_file("admin_token_file", expected);
        let metrics_token_file = self.secret_file("admin_metrics_token_file", expected);
        let insecure = self.boolean("admin_insecure")?;
        let access = AdminAccessConfig { tls, token_file, metrics_token_file, insecure };
        if admin.is_some_and(|admin| !access.allows(admin)) {
            self.add_problem(
                "admin",
                "can be reached from other machines, and has no access control; set admin_token_file or \
                 admin_tls_client_ca, or admin_insecure if the network admits only those who may read it",
            );
        }
        Some(access)
    }

    /// Requires both a certificate and its key, or neither.
    fn cert_and_key(&mut self, cert: &'static str, key: &'static str) -> Option<(PathBuf, PathBuf)> {
        match (self.file(cert), self.file(key)) {
            (Some(cert), Some(key)) => return Some((cert, key)),
            (Some(_), None) => self.add_problem(cert, format!("needs {key}, the file of its private key")),
            (None, Some(_)) => self.add_problem(key, format!("needs {cert}, the file of its certificate")),
            (None, None) => {}
        }
        None
    }

    fn admin_hosts(&mut self) -> Option<Vec<String>> {
        let expected = "expected host names, in which * stands for any run of characters, or none";
        self.word_list("admin_hosts", expected, |names: &mut Vec<String>, word| {
            let is_pattern = word != NONE && is_host(&word.replace('*', "x"));
            is_pattern.then(|| names.push(word.to_ascii_lowercase()))
        })
    }

    fn headers(&mut self) -> Option<ForwardingHeaders> {
        self.word_list("headers", "expected via, forwarded or none", |headers: &mut ForwardingHeaders, word| {
            match word {
                "via" => headers.via = true,
                "forwarded" => headers.forwarded = true,
                _ => return None,
            }
            Some(())
        })
    }

    fn tail_keep(&mut self) -> Option<TailSampling> {
        let expected = "expected failed, slo, slow=TIME (as in slow=5s) or none";
        self.word_list("tail_keep", expected, |keep: &mut TailSampling, word| {
            match word {
                "failed" => keep.failed = true,
                "slo" => keep.slo = true,
                _ => keep.slow = Some(word.strip_prefix("slow=")?.parse().ok()?),
            }
            Some(())
        })
    }

    fn routes(&mut self) -> Option<Routes> {
        let texts = self.texts("routes");
        let routes: Vec<_> = texts.iter().map(|text| self.parse("routes", text, Route::from_str)).collect();
        routes.into_iter().collect::<Option<Vec<_>>>().map(Routes::new)
    }

    fn slos(&mut self) -> Option<Arc<Slos>> {
        let texts = self.texts("slos");
        let slos: Vec<_> = texts.iter().map(|text| self.parse("slos", text, Slo::from_str)).collect();
        let slos = slos.into_iter().collect::<Option<Vec<_>>>()?;
        Slos::new(slos).map_err(|message| self.add_problem("slos", message)).ok().map(Arc::new)
    }

    /// An SLO that selects by a class which does not exist would never apply.
    fn classes(&mut self, slos: Option<&Slos>) -> Option<Arc<RequestClasses>> {
        let texts = self.texts("classes");
        let classes: Vec<_> = texts.iter().map(|text| self.parse("classes", text, RequestClass::from_str)).collect();
        let classes = RequestClasses::new(classes.into_iter().collect::<Option<Vec<_>>>()?);
        let classes = classes.map_err(|message| self.add_problem("classes", message)).ok()?;
        for slo in slos.into_iter().flat_map(Slos::iter) {
            if let Some(name) = slo.class_names().find(|name| !classes.has(name)) {
                let remedy = "expected model, route or a class; define the class, as in";
                self.add_problem(
                    "slos",
                    format!("`{slo}` selects by `{name}`: {remedy} --class {name}=header:x-{name}"),
                );
            }
        }
        Some(Arc::new(classes))
    }

    fn tokenizers(&mut self) -> Vec<TokenizerFile> {
        let expected = "expected MODEL=FILE, as in llama-*=/models/llama/tokenizer.json";
        let read = |text: &str| {
            let (model, path) = text.split_once('=').filter(|(model, path)| !model.is_empty() && !path.is_empty())?;
            Some(TokenizerFile { model: model.to_owned(), path: path.into() })
        };
        let texts = self.texts("tokenizers");
        let read = |text: &SourcedText| {
            self.parse("tokenizers", text, |text| read(text).ok_or_else(|| expected_but_found(expected, text)))
        };
        texts.iter().filter_map(read).collect()
    }

    fn limits(&mut self) -> Option<Limits> {
        let head_bytes = self.bytes("max_head_bytes");
        let head_timeout = self.time("head_timeout", defaults::TIMEOUT_BOUNDS);
        let idle_timeout = self.time("idle_timeout", defaults::TIMEOUT_BOUNDS);
        let streams = self.number("max_streams");
        let connections = self.number("max_connections");
        let destinations = self.number(MAX_DESTINATIONS);
        Some(Limits {
            head_bytes: head_bytes?,
            head_timeout: head_timeout?,
            idle_timeout: idle_timeout?,
            streams: streams?,
            connections: connections?,
            destinations: destinations?,
        })
    }

    fn capture(&mut self) -> Option<CaptureConfig> {
        let before = self.problems.len();
        let target = self.capture_target();
        let directory = "expected the path of a directory, which is made if it is not there";
        let spool = self.value("capture_spool", directory, |text| is_path(text).then(|| text.into()));
        let key_file = "expected the path of a file that holds the key, not the key itself";
        let key = self.secret_file("capture_key", key_file);
        let tokenizer_file = "expected the path of a tokenizer.json";
        let tokenizer = self.value("capture_tokenizer", tokenizer_file, |text| is_path(text).then(|| text.into()));
        let default = if tokenizer.is_some() { defaults::DEFAULT_BLOCK.1 } else { defaults::DEFAULT_BLOCK.0 };
        let block =
            if self.settings.value("capture_block").is_some() { self.number("capture_block") } else { Some(default) };
        let (flush, round) = (
            self.time("capture_flush", defaults::CAPTURE_FLUSH_BOUNDS),
            self.time("capture_round", defaults::CAPTURE_ROUND_BOUNDS),
        );
        let names = self.number("capture_names");
        let rotate = self.boolean("capture_key_rotate");
        let sample = self.texts("capture_sample").pop();
        let sample = sample.and_then(|text| self.parse("capture_sample", &text, SampleShare::from_str));
        let (session, format) = (self.session(), self.enum_value("capture_format"));
        let (keep_bytes, keep_age) =
            (self.bytes("capture_keep_bytes"), self.time("capture_keep_age", defaults::CAPTURE_KEEP_AGE_BOUNDS));
        if target.is_none() && self.problems.len() == before {
            self.reject_unused_capture_settings(default);
        }
        if matches!(target, Some(CaptureTarget::Folder(_))) && self.is_changed("capture_spool") {
            self.add_problem("capture_spool", "needs capture to be a bucket; a folder is written to directly");
        }
        Some(CaptureConfig {
            target,
            spool: spool?,
            flush: flush?,
            round: round?,
            tokenizer,
            block: block?,
            key,
            rotate: rotate?,
            session: session?,
            names: names?,
            sample: sample?,
            format: format?,
            keep_bytes: keep_bytes?,
            keep_age: keep_age?,
        })
    }

    fn capture_target(&mut self) -> Option<CaptureTarget> {
        let text = self.texts("capture").pop()?;
        let directory =
            "expected a bucket, as in s3://BUCKET/PREFIX, or the path of a directory, which is made if it is not there";
        self.parse("capture", &text, |text| match StorageUrl::parse(text) {
            Some(Ok(url)) if url.is_pattern() => Err("a capture goes to one prefix; take the `*` out".to_owned()),
            Some(Ok(url)) => Ok(CaptureTarget::Bucket(url)),
            Some(Err(error)) => Err(error.to_string()),
            None if is_path(text) => Ok(CaptureTarget::Folder(text.into())),
            None => Err(expected_but_found(directory, text)),
        })
    }

    /// Rejects capture settings without a capture, because they have no effect. Default values are allowed, as in a
    /// file that lists every setting.
    fn reject_unused_capture_settings(&mut self, block: usize) {
        let block = ("capture_block", &*block.to_string());
        for key in SETTINGS.iter().map(|setting| &*setting.key).filter(|key| key.starts_with("capture_")) {
            let is_default = key == block.0 && self.texts(key).pop().is_some_and(|text| text.text.trim() == block.1);
            if !is_default && self.is_changed(key) {
                self.add_problem(key, "needs capture, the directory or bucket that is written to");
            }
        }
    }

    /// True if a setting has another value than its default.
    fn is_changed(&self, key: &str) -> bool {
        let default = DEFAULTS.iter().find(|(known, _)| *known == key).map(|(_, text)| *text);
        self.texts(key).pop().is_some_and(|text| Some(text.text.trim()) != default)
    }

    fn session(&mut self) -> Option<SessionKey> {
        let expected = "expected header:NAME, body:FIELD (as in body:metadata.user_id) or inferred";
        self.value("capture_session", expected, |text| match text.split_once(':') {
            Some(("header", name)) if is_plain_name(name) => Some(SessionKey::Header(name.to_ascii_lowercase())),
            Some(("body", path)) if is_plain_name(path) => Some(SessionKey::Body(path.to_owned())),
            None if text == defaults::INFERRED => Some(SessionKey::Inferred),
            _ => None,
        })
    }

    fn provider(&mut self) -> Option<String> {
        let expected = "expected a name of letters, digits, `.`, `-` and `_` (64 at most), as in vllm";
        self.value("provider", expected, |text| is_plain_name(text).then(|| text.to_owned()))
    }
}

/// True if a connection to `server` would return to `own`.
fn loops_back(server: &ServerAddress, own: SocketAddr) -> bool {
    let here = own.ip().is_unspecified() || own.ip().is_loopback();
    let same_host = match server.host.parse::<IpAddr>() {
        Ok(host) => host == own.ip() || (host.is_loopback() && own.ip().is_unspecified()),
        Err(_) => &*server.host == "localhost" && here,
    };
    same_host && server.port == own.port()
}

const MAX_DESTINATIONS: &str = "max_destinations";
