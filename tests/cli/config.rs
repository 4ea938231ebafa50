//! The configuration: layers, validation, and every error message.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use proptest::prelude::*;
use serde_json::Value;
use streamgauge::config::{
    AdminAccessConfig, CaptureConfig, CaptureFormat, ClientIdentity, ConfigSource, ForwardingHeaders, Limits,
    LoadedConfig, LogConfig, LogFormat, LogLevel, ProxyConfig, RawSettings, ServerAddress, SessionKey, TailSampling,
    TlsFiles, UpstreamConfig, UpstreamHttp, UpstreamTarget, schema,
};
use streamgauge::measure::dialect::Routes;
use streamgauge::measure::sample_share::SampleShare;
use streamgauge::measure::time::Gap;
use tempfile::TempDir;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    typed: RawSettings,
}

/// A folder with a configuration file and an empty PEM file.
struct Folder(TempDir);

impl Folder {
    fn new(yaml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("gauge.yaml"), yaml).unwrap();
        std::fs::write(folder.path().join("x.pem"), "").unwrap();
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The configuration of the file with `flags` and `variables`; errors without the folder's own name.
    fn load(&self, flags: &[&str], variables: &[(&str, &str)]) -> Result<LoadedConfig, String> {
        let typed = Line::try_parse_from([&["proxy"], flags].concat()).map_err(|error| error.to_string())?.typed;
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let loaded = ConfigSource::new(typed, Some(self.file("gauge.yaml")), variables).load();
        loaded.map_err(|error| self.without_folder(&error.to_string()))
    }

    fn without_folder(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.0.path().display()), "")
    }
}

fn load(yaml: &str, flags: &[&str], variables: &[(&str, &str)]) -> Result<LoadedConfig, String> {
    Folder::new(yaml).load(flags, variables)
}

/// The error's lines.
fn problems(yaml: &str, flags: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
    let error = load(yaml, flags, variables).map(|loaded| loaded.config).unwrap_err();
    let mut lines = error.lines();
    assert_eq!(lines.next(), Some("the configuration is not valid"), "{error}");
    lines.map(|line| line.strip_prefix("  ").unwrap().to_owned()).collect()
}

const UPSTREAM: (&str, &str) = ("STREAMGAUGE_UPSTREAM", "http://127.0.0.1:8000");

/// For every setting three values that differ from its default, in their effective form. `upstream` is https
/// throughout, because certificates need it; `PEM` stands for a file that exists.
const SAMPLES: [(&str, [&str; 3]); 59] = [
    ("listen", ["0.0.0.0:1", "0.0.0.0:2", "[::1]:3"]),
    ("admin", ["127.0.0.1:4", "127.0.0.2:5", "[::1]:6"]),
    ("admin_hosts", ["gauge", "a.example,*.svc", "*"]),
    ("admin_tls_cert", ["PEM", "PEM", "PEM"]),
    ("admin_tls_key", ["PEM", "PEM", "PEM"]),
    ("admin_tls_client_ca", ["PEM", "PEM", "PEM"]),
    ("admin_token_file", ["PEM", "PEM", "PEM"]),
    ("admin_metrics_token_file", ["PEM", "PEM", "PEM"]),
    ("admin_insecure", ["true", "true", "true"]),
    ("upstream", ["https://a", "https://b:8000", "https://[::1]:8443"]),
    ("transparent", ["true", "true", "true"]),
    ("max_destinations", ["1", "2", "1000"]),
    ("upstream_http", ["http1", "http2", "http1"]),
    ("upstream_connect_timeout", ["1s", "2s", "1500ms"]),
    ("upstream_ca", ["PEM", "PEM", "PEM"]),
    ("upstream_cert", ["PEM", "PEM", "PEM"]),
    ("upstream_key", ["PEM", "PEM", "PEM"]),
    ("upstream_server_name", ["a.example", "b.example", "10.0.0.1"]),
    ("engine_metrics", ["http://a/metrics", "https://b:8000/metrics", "http://[::1]:8443/m"]),
    ("tls_cert", ["PEM", "PEM", "PEM"]),
    ("tls_key", ["PEM", "PEM", "PEM"]),
    ("tls_client_ca", ["PEM", "PEM", "PEM"]),
    ("headers", ["via", "forwarded", "via,forwarded"]),
    ("ask_usage", ["true", "true", "true"]),
    ("workers", ["5", "6", "7"]),
    ("max_head_bytes", ["1024", "2048", "4096"]),
    ("head_timeout", ["1s", "2m", "3h"]),
    ("idle_timeout", ["1s", "2s", "3s"]),
    ("max_streams", ["1", "2", "1000000"]),
    ("max_connections", ["1", "2", "1000000"]),
    ("drain", ["0", "1ms", "24h"]),
    ("routes", ["/a=openai.chat", "/b/*=tgi.stream", "*/c=gemini"]),
    ("slos", ["a: ttft<=1s", "b: e2e<=2s", "c: tpot<=3s"]),
    ("classes", ["tier=header:x-tier", "team=baggage:team", "tenant=key:sha"]),
    ("max_class_values", ["1", "2", "1000"]),
    ("stall", ["1ms", "2s", "3s"]),
    ("tokenizers", ["a=x.json", "b-*=y.json", "*=/z/tokenizer.json"]),
    ("max_models", ["1", "2", "1000"]),
    ("provider", ["vllm", "007", "true"]),
    ("gen_ai_client", ["false", "false", "false"]),
    ("tail_keep", ["failed", "slo,slow=5s", "failed,slo,slow=1m"]),
    ("trace_probes", ["true", "true", "true"]),
    ("capture", ["/a", "s3://bucket/a", "file:///d e"]),
    ("capture_spool", ["/s", "s/t", "/u v"]),
    ("capture_flush", ["10ms", "2s", "1h"]),
    ("capture_round", ["1us", "10ms", "1m"]),
    ("capture_tokenizer", ["/t.json", "t.json", "/u/tokenizer.json"]),
    ("capture_block", ["16", "64", "65536"]),
    ("capture_key", ["/k", "k", "/l"]),
    ("capture_key_rotate", ["true", "true", "true"]),
    ("capture_session", ["header:x-session-id", "body:metadata.user_id", "header:a"]),
    ("capture_names", ["2", "3", "1000000"]),
    ("capture_sample", ["5%", "0.1%", "50%"]),
    ("capture_format", ["parquet", "parquet", "parquet"]),
    ("capture_keep_bytes", ["1048576", "2000000", "1099511627776"]),
    ("capture_keep_age", ["1m", "24h", "87600h"]),
    ("access_log", ["true", "true", "true"]),
    ("log_format", ["json", "json", "json"]),
    ("log_level", ["error", "warn", "debug"]),
];

/// Settings that `key` requires in the file.
fn beside(key: &str) -> &'static str {
    match key {
        "upstream" | "transparent" => "",
        "max_destinations" => "transparent: true\n",
        "upstream_cert" => "upstream: https://c\nupstream_key: PEM\n",
        "upstream_key" => "upstream: https://c\nupstream_cert: PEM\n",
        "tls_cert" => "upstream: https://c\ntls_key: PEM\n",
        "tls_key" => "upstream: https://c\ntls_cert: PEM\n",
        "tls_client_ca" => "upstream: https://c\ntls_key: PEM\ntls_cert: PEM\n",
        "admin_tls_cert" => "upstream: https://c\nadmin_tls_key: PEM\n",
        "admin_tls_key" => "upstream: https://c\nadmin_tls_cert: PEM\n",
        "admin_tls_client_ca" => "upstream: https://c\nadmin_tls_key: PEM\nadmin_tls_cert: PEM\n",
        "capture_spool" => "upstream: https://c\ncapture: s3://b/c\n",
        of_capture if of_capture.starts_with("capture_") => "upstream: https://c\ncapture: /c\n",
        _ => "upstream: https://c\n",
    }
}

fn effective(config: &ProxyConfig, key: &str) -> String {
    let (_, value) = config.settings().into_iter().find(|(known, _)| *known == key).unwrap();
    match value {
        Value::String(text) => text,
        Value::Array(list) => list.iter().map(|item| item.as_str().unwrap()).collect::<Vec<_>>().join(";"),
        other => other.to_string(),
    }
}

#[test]
fn every_setting_is_a_flag_over_a_variable_over_a_key_over_a_default() {
    let keys: Vec<_> = load("", &[], &[UPSTREAM]).unwrap().config.settings().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, SAMPLES.map(|(key, _)| key), "every setting has its samples, in the order of the flags");
    for (key, samples) in SAMPLES {
        let folder = Folder::new("");
        let pem = folder.file("x.pem").display().to_string();
        let [in_file, in_environment, on_line] = samples.map(|sample| sample.replace("PEM", &pem));
        let yaml = format!("{}{key}: {}\n", beside(key).replace("PEM", &pem), Value::from(&*in_file));
        std::fs::write(folder.file("gauge.yaml"), yaml).unwrap();
        let variable = format!("STREAMGAUGE_{}", key.to_uppercase());
        let one = if matches!(key, "slos" | "routes" | "tokenizers") {
            key.trim_end_matches('s')
        } else if key == "classes" {
            "class"
        } else {
            key
        };
        let flag = format!("--{one}").replace('_', "-");
        let assignment = format!("{flag}={on_line}");
        let (variables, flags) = ([(&*variable, &*in_environment)], [&*assignment]);
        let line = 1 + beside(key).lines().count();
        for (flags, variables, expected, origin) in [
            (&[][..], &[][..], &in_file, format!("file gauge.yaml:{line}")),
            (&[], &variables, &in_environment, format!("env {variable}")),
            (&flags, &variables, &on_line, format!("flag {flag}")),
        ] {
            let loaded = folder.load(flags, variables).unwrap();
            assert_eq!(effective(&loaded.config, key), **expected, "{key} by {origin}");
            let explained = folder.without_folder(&loaded.config.explain(&loaded.settings));
            let explained = explained.lines().find(|line| line.starts_with(&format!("{key}:"))).unwrap().to_owned();
            assert!(explained.ends_with(&format!("  # {origin}")), "{explained} is by {origin}");
        }
    }
}

#[test]
fn the_defaults_are_those_that_are_documented() {
    let config = load("", &["--workers=3"], &[UPSTREAM]).unwrap().config;
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let seconds = |seconds: u64| Gap::from_millis(1_000 * seconds);
    let expected = ProxyConfig {
        listen: address("127.0.0.1:8080"),
        admin: address("127.0.0.1:9464"),
        admin_hosts: Vec::new(),
        admin_access: AdminAccessConfig::default(),
        upstream: UpstreamConfig {
            target: UpstreamTarget::Server(ServerAddress { tls: false, host: "127.0.0.1".into(), port: 8000 }),
            http: UpstreamHttp::Auto,
            connect_timeout: seconds(5),
            ca: None,
            identity: None,
            server_name: None,
        },
        tls: None,
        headers: ForwardingHeaders::default(),
        ask_usage: false,
        workers: 3,
        limits: Limits {
            head_bytes: 65_536,
            head_timeout: seconds(30),
            idle_timeout: seconds(600),
            streams: 10_000,
            connections: 20_000,
            destinations: 64,
        },
        drain: seconds(600),
        routes: Routes::default(),
        slos: std::sync::Arc::default(),
        classes: std::sync::Arc::default(),
        max_class_values: 20,
        stall: seconds(1),
        tokenizers: Vec::new(),
        max_models: 64,
        provider: None,
        gen_ai_client: true,
        engine_metrics: None,
        tail_keep: TailSampling::default(),
        trace_probes: false,
        capture: CaptureConfig {
            target: None,
            spool: "capture-spool".into(),
            flush: seconds(1),
            round: Gap::ZERO,
            tokenizer: None,
            block: 512,
            key: None,
            rotate: false,
            session: SessionKey::Inferred,
            names: 1,
            sample: SampleShare::ALL,
            format: CaptureFormat::Jsonl,
            keep_bytes: 10 << 30,
            keep_age: seconds(7 * 86_400),
        },
        access_log: false,
        log: LogConfig { format: LogFormat::Text, level: LogLevel::Info },
    };
    assert_eq!(config, expected);
    let workers = load("", &[], &[UPSTREAM]).unwrap().config.workers;
    assert_eq!(workers, std::thread::available_parallelism().unwrap().get().min(4));
}

#[test]
fn certificates_and_lists_are_believed_as_typed() {
    let folder = Folder::new("");
    let pem = folder.file("x.pem");
    let yaml = "upstream: https://a\nupstream_cert: P\nupstream_key: P\nupstream_ca: P\ntls_cert: P\ntls_key: P\n\
                tls_client_ca: P\nheaders: [via, forwarded]\ntail_keep:\n  - failed\n  - slow=2s\nslos: 'a: ttft<=1s'\n";
    std::fs::write(folder.file("gauge.yaml"), yaml.replace(": P", &format!(": {}", pem.display()))).unwrap();
    let config = folder.load(&["--access-log"], &[]).unwrap().config;
    assert_eq!(config.upstream.identity, Some(ClientIdentity { cert: pem.clone(), key: pem.clone() }));
    assert_eq!(config.upstream.ca, Some(pem.clone()));
    assert_eq!(config.tls, Some(TlsFiles { cert: pem.clone(), key: pem.clone(), client_ca: Some(pem) }));
    assert_eq!(config.headers, ForwardingHeaders { via: true, forwarded: true });
    assert_eq!(config.tail_keep, TailSampling { failed: true, slo: false, slow: Some(Gap::from_millis(2_000)) });
    assert_eq!(config.slos.iter().map(|slo| slo.name()).collect::<Vec<_>>(), ["a"]);
    assert!(config.access_log);
}

#[test]
fn sizes_and_times_have_the_units_that_people_write() {
    let sized = |text: &str| {
        let yaml = format!("upstream: http://a\ncapture: /c\ncapture_keep_bytes: {text}\n");
        load(&yaml, &[], &[]).ok().map(|loaded| loaded.config.capture.keep_bytes)
    };
    for (text, bytes) in [
        ("10G", 10 << 30),
        ("10GiB", 10 << 30),
        ("10Gi", 10 << 30),
        ("10g", 10 << 30),
        ("10GB", 10_000_000_000),
        ("2048K", 2 << 20),
        ("5M", 5 << 20),
        ("1T", 1 << 40),
        ("2000000", 2_000_000),
        ("2000000B", 2_000_000),
    ] {
        assert_eq!(sized(text), Some(bytes), "{text}");
    }
    for text in ["10X", "G", "1.5G", "10 G", "10Gb", "99999999999T", "-1G", "é"] {
        assert_eq!(sized(text), None, "{text}");
    }
    let flags =
        ["--upstream=http://a", "--capture=/c", "--capture-keep-age=7d", "--drain=1h30m", "--max-head-bytes=64K"];
    let config = load("", &flags, &[]).unwrap().config;
    assert_eq!(config.capture.keep_age, Gap::from_millis(7 * 86_400_000));
    assert_eq!((config.drain, config.limits.head_bytes), (Gap::from_millis(5_400_000), 65_536));
}

#[test]
fn the_variable_of_the_tests_is_no_typo() {
    let loaded = load("upstream: http://a\n", &[], &[("STREAMGAUGE_PARTS", "/parts")]).unwrap();
    assert_eq!(loaded.warnings, [""; 0]);
}

#[test]
fn an_upper_layer_replaces_a_list_and_can_empty_it() {
    let yaml = "upstream: http://a\nslos: ['a: ttft<=1s', 'b: ttft<=2s']\nheaders: via\n";
    let config = load(yaml, &["--headers=none"], &[("STREAMGAUGE_SLOS", "c: e2e<=1s; d: e2e<=2s\n\ne: e2e<=3s")]);
    let config = config.unwrap().config;
    assert_eq!(config.slos.iter().map(|slo| slo.name()).collect::<Vec<_>>(), ["c", "d", "e"]);
    assert_eq!(config.headers, ForwardingHeaders::default());
    assert_eq!(load("upstream: http://a\nslos: []\n", &[], &[]).unwrap().config.slos.iter().count(), 0);
}

#[test]
fn a_route_is_a_text_or_a_mapping() {
    let yaml = "upstream: http://a\nroutes:\n  - {path: /custom/*, dialect: openai.chat}\n  - /x=gemini\n";
    let loaded = load(yaml, &[], &[]).unwrap();
    let routes = &loaded.config.routes;
    assert_eq!(routes.iter().map(ToString::to_string).collect::<Vec<_>>(), ["/custom/*=openai.chat", "/x=gemini"]);
    assert_eq!(routes.dialect("/custom/talk").map(|dialect| dialect.name), Some("openai.chat"));
    let unknown = yaml.replace("openai.chat", "openai");
    let problem = problems(&unknown, &[], &[]).remove(0);
    assert!(
        problem.starts_with("gauge.yaml:3: routes: unknown dialect `openai`; expected one of openai.chat"),
        "{problem}"
    );
}

#[test]
fn an_empty_variable_and_a_key_without_a_value_are_not_set() {
    let loaded =
        load("upstream: http://a\nstall:\nprovider: null\nslos: ~\n", &[], &[("STREAMGAUGE_STALL", "")]).unwrap();
    assert_eq!(loaded.config.stall, Gap::from_millis(1_000));
    assert_eq!(loaded.config.provider, None);
    assert_eq!(loaded.warnings, [""; 0]);
}

#[test]
fn the_file_is_named_by_the_flag_or_else_by_the_environment() {
    let folder = Folder::new("upstream: http://a\nprovider: of-flag\n");
    std::fs::write(folder.file("other.yaml"), "upstream: http://a\nprovider: of-env\n").unwrap();
    let variable = || [("STREAMGAUGE_CONFIG".to_owned(), folder.file("other.yaml").display().to_string())];
    let provider = |file: Option<PathBuf>| {
        let source = ConfigSource::new(RawSettings::default(), file, variable());
        (source.file().unwrap().to_owned(), source.load().unwrap().config.provider.unwrap())
    };
    assert_eq!(provider(Some(folder.file("gauge.yaml"))), (folder.file("gauge.yaml"), "of-flag".to_owned()));
    assert_eq!(provider(None), (folder.file("other.yaml"), "of-env".to_owned()));
}

#[test]
fn a_source_reloads_the_file_as_it_is_then() {
    let folder = Folder::new("stall: 2s\n");
    let flags = Line::try_parse_from(["proxy", "--upstream=http://a"]).unwrap().typed;
    let source = ConfigSource::new(flags, Some(folder.file("gauge.yaml")), []);
    assert_eq!(source.load().unwrap().config.stall, Gap::from_millis(2_000));
    std::fs::write(folder.file("gauge.yaml"), "stall: 3s\n").unwrap();
    assert_eq!(source.load().unwrap().config.stall, Gap::from_millis(3_000));
}

#[test]
fn what_cannot_be_believed_is_named_with_its_place_and_the_remedy() {
    let address = "expected an address and a port, as in 127.0.0.1:8080, or 0.0.0.0:8080 for every interface, found";
    let time = "expected a time from 1ms to 24h, as in 30s, found";
    let pem = "expected the path of a PEM file; its contents are read from there";
    for (key, typed, expected) in [
        ("listen", ":8080", format!("{address} `:8080`")),
        ("admin", "localhost:9464", format!("{address} `localhost:9464`")),
        (
            "admin_hosts",
            "a/b",
            "expected host names, in which * stands for any run of characters, or none, found `a/b`".to_owned(),
        ),
        ("upstream_http", "3", "expected auto, http1 or http2, found `3`".to_owned()),
        ("upstream_connect_timeout", "5", format!("{time} `5`")),
        (
            "upstream_server_name",
            "a/b",
            "expected a host name or an IP address, as in llm.example.com, found `a/b`".to_owned(),
        ),
        (
            "engine_metrics",
            "http://u:s3cret@h/metrics",
            "expected the URL of the engine's metrics without credentials or a query, as in http://127.0.0.1:8000/metrics"
                .to_owned(),
        ),
        ("headers", "via,none", "`none` goes with nothing else; take it or the others out".to_owned()),
        ("headers", "via,x-real-ip", "expected via, forwarded or none, found `x-real-ip`".to_owned()),
        ("workers", "0", "expected a whole number from 1 to 64, found `0`".to_owned()),
        ("workers", "two", "expected a whole number from 1 to 64, found `two`".to_owned()),
        ("max_head_bytes", "1023", "expected bytes from 1024 to 65536, as in 64K or 10G, found `1023`".to_owned()),
        ("head_timeout", "0", format!("{time} `0`")),
        ("idle_timeout", "25h", format!("{time} `25h`")),
        ("max_streams", "-1", "expected a whole number from 1 to 1000000, found `-1`".to_owned()),
        ("max_connections", "1e6", "expected a whole number from 1 to 1000000, found `1e6`".to_owned()),
        ("drain", "soon", "expected a time from 0 to 24h, as in 30s, found `soon`".to_owned()),
        ("slos", "a: ttft=1s", "expected `<=` after `ttft`, at column 8\n  a: ttft=1s\n         ^".to_owned()),
        ("stall", "1", format!("{time} `1`")),
        (
            "tokenizers",
            "tokenizer.json",
            "expected MODEL=FILE, as in llama-*=/models/llama/tokenizer.json, found `tokenizer.json`".to_owned(),
        ),
        ("max_models", "1001", "expected a whole number from 1 to 1000, found `1001`".to_owned()),
        ("classes", "tier=cookie:x", "expected header:NAME, body:FIELD (as in body:metadata.tier), baggage:MEMBER or key:sha, the digest of the API key".to_owned()),
        ("slos", "a[tier=gold]: ttft<=1s", "`a[tier=gold]: ttft<=1s` selects by `tier`: expected model, route or a class; define the class, as in --class tier=header:x-tier".to_owned()),
        (
            "provider",
            "my provider",
            "expected a name of letters, digits, `.`, `-` and `_` (64 at most), as in vllm, found `my provider`"
                .to_owned(),
        ),
        ("routes", "/a", "expected a path and its dialect, as in `/custom/*=openai.chat`, found `/a`".to_owned()),
        ("tail_keep", "slow", "expected failed, slo, slow=TIME (as in slow=5s) or none, found `slow`".to_owned()),
        (
            "capture",
            "a\nb",
            "expected a bucket, as in s3://BUCKET/PREFIX, or the path of a directory, which is made if it is not there, found \
             `a\\nb`"
                .to_owned(),
        ),
        ("capture_flush", "1ms", "expected a time from 10ms to 1h, as in 30s, found `1ms`".to_owned()),
        ("capture_round", "2m", "expected a time from 0 to 1m, as in 30s, found `2m`".to_owned()),
        ("capture_block", "8", "expected a whole number from 16 to 65536, found `8`".to_owned()),
        ("capture_tokenizer", "a\nb", "expected the path of a tokenizer.json, found `a\\nb`".to_owned()),
        ("capture_key", "a\nb", "expected the path of a file that holds the key, not the key itself".to_owned()),
        ("capture_key_rotate", "daily", "expected true or false, found `daily`".to_owned()),
        (
            "capture_session",
            "cookie:a",
            "expected header:NAME, body:FIELD (as in body:metadata.user_id) or inferred, found `cookie:a`".to_owned(),
        ),
        ("capture_sample", "0%", "expected a percentage above 0% and up to 100%, as in 5% or 0.1%".to_owned()),
        ("capture_names", "0", "expected a whole number from 1 to 1000000, found `0`".to_owned()),
        (
            "capture_keep_bytes",
            "1000",
            "expected bytes from 1048576 to 1099511627776, as in 64K or 10G, found `1000`".to_owned(),
        ),
        ("capture_keep_age", "1s", "expected a time from 1m to 87600h, as in 30s, found `1s`".to_owned()),
        ("trace_probes", "1", "expected true or false, found `1`".to_owned()),
        ("access_log", "yes", "expected true or false, found `yes`".to_owned()),
        ("log_format", "xml", "expected text or json, found `xml`".to_owned()),
        ("log_level", "trace", "expected error, warn, info or debug, found `trace`".to_owned()),
        ("tls_client_ca", "\n", pem.to_owned()),
    ] {
        let yaml = format!("upstream: https://a\n{key}: {}\n", Value::from(typed));
        let in_file = problems(&yaml, &[], &[]).join("\n");
        assert_eq!(in_file, format!("gauge.yaml:2: {key}: {expected}"));
        let variable = format!("STREAMGAUGE_{}", key.to_uppercase());
        if key != "tls_client_ca" {
            let in_environment = problems("upstream: https://a\n", &[], &[(&variable, typed)]).join("\n");
            assert_eq!(in_environment, format!("{variable}: {expected}"));
        }
    }
    assert_eq!(
        problems("", &["--upstream=https://a", "--slo=a: e2e<=1s", "--slo=a: e2e<=2s", "--stall=0"], &[]),
        ["--slo: two SLOs are named `a`; give each a name of its own", &format!("--stall: {time} `0`")]
    );
    let long = "x".repeat(100);
    assert_eq!(
        problems("upstream: http://a", &[&format!("--stall={long}\u{1b}")], &[]),
        [format!("--stall: {time} `{}…`", &long[..60])]
    );
}

#[test]
fn an_upstream_is_a_server_and_nothing_else() {
    let shape = "expected http://host[:port] or https://host[:port]";
    let credentials = "expected a URL without credentials: clients send their own Authorization header, which goes \
                       through untouched";
    let path =
        "expected a URL that ends after the port: clients send the path and the query, which go through untouched";
    for (url, message) in [
        ("127.0.0.1:8000", shape),
        ("ftp://a", shape),
        ("http://", shape),
        ("http://a b", shape),
        ("http://[::1", shape),
        ("http://[::g]", shape),
        ("http://[::1]x", shape),
        ("http://::1", "expected an IPv6 address in brackets, as in http://[::1]:8000"),
        ("http://a:0", "expected a port from 1 to 65535"),
        ("http://a:65536", "expected a port from 1 to 65535"),
        ("http://a:", "expected a port from 1 to 65535"),
        ("http://me:s3cret@a", credentials),
        ("http://a/v1", path),
        ("http://a?key=s3cret", path),
        ("http://a#x", path),
    ] {
        assert_eq!(problems("", &["--upstream", url], &[]), [format!("--upstream: {message}")], "{url}");
    }
    for (url, tls, host, port, shown) in [
        ("http://a", false, "a", 80, "http://a"),
        ("HTTPS://A.Example/", true, "a.example", 443, "https://a.example"),
        ("http://a:443", false, "a", 443, "http://a:443"),
        ("https://[::1]", true, "::1", 443, "https://[::1]"),
        ("http://[2001:DB8::1]:8000", false, "2001:db8::1", 8000, "http://[2001:db8::1]:8000"),
    ] {
        let upstream = load("", &["--upstream", url], &[]).unwrap().config.upstream;
        let server = upstream.server().unwrap();
        assert_eq!((server.tls, &*server.host, server.port), (tls, host, port));
        assert_eq!(server.to_string(), shown);
    }
    let missing = "upstream: expected the inference server's URL, as in --upstream http://127.0.0.1:8000, or --transparent \
                   for redirected connections";
    assert_eq!(problems("", &[], &[]), [missing]);
}

#[test]
fn requests_go_to_one_server_or_to_the_original_destinations() {
    let config = load("", &["--transparent", "--max-destinations=3"], &[]).unwrap().config;
    assert_eq!((config.upstream.server(), config.limits.destinations), (None, 3));
    let both = "--transparent: excludes upstream: requests go to one server or to the original destinations; remove one \
                of the two";
    assert_eq!(problems("", &["--transparent", "--upstream=http://a"], &[]), [both]);
    assert_eq!(
        problems("", &["--upstream=http://a", "--max-destinations=3"], &[]),
        ["--max-destinations: needs transparent: an upstream is one destination"]
    );
    assert_eq!(
        problems("transparent: true\ntls_cert: x\ntls_key: y\nupstream_ca: z\n", &[], &[]),
        [
            "gauge.yaml:4: upstream_ca: needs an upstream that begins with https://",
            "gauge.yaml:2: tls_cert: needs upstream: in transparent mode the original destination speaks without TLS",
        ]
    );
}

#[test]
fn settings_that_contradict_each_other_are_named() {
    let file = "gauge.yaml:2: ";
    for (yaml, expected) in [
        ("upstream: http://a\nadmin: 127.0.0.1:8080", "admin: is the address of `listen`; give it a port of its own"),
        (
            "listen: 0.0.0.0:81\nupstream: http://localhost:81",
            "upstream: is the proxy's own `listen` address; name the inference server's",
        ),
        (
            "listen: 0.0.0.0:81\nupstream: http://127.0.0.1:9464",
            "upstream: is the proxy's own `admin` address; name the inference server's",
        ),
        ("upstream: http://a\ntls_cert: x", "tls_cert: needs tls_key, the file of its private key"),
        ("upstream: http://a\ntls_key: x", "tls_key: needs tls_cert, the file of its certificate"),
        (
            "upstream: http://a\ntls_client_ca: x",
            "tls_client_ca: needs tls_cert and tls_key: a client shows its certificate in TLS only",
        ),
        (
            "upstream: http://a\nadmin_tls_client_ca: x",
            "admin_tls_client_ca: needs admin_tls_cert and admin_tls_key: a client shows its certificate in TLS only",
        ),
        ("upstream: https://a\nupstream_key: x", "upstream_key: needs upstream_cert, the file of its certificate"),
        ("upstream: http://a\nupstream_ca: x", "upstream_ca: needs an upstream that begins with https://"),
        (
            "upstream: http://a\nupstream_server_name: x",
            "upstream_server_name: needs an upstream that begins with https://",
        ),
    ] {
        assert_eq!(problems(yaml, &[], &[]), [format!("{file}{expected}")], "{yaml}");
    }
    let both = load("upstream: http://a\n", &["--listen=127.0.0.1:0", "--admin=127.0.0.1:0"], &[]);
    assert!(both.is_ok(), "port 0 is another port each time");
}

#[test]
fn an_admin_address_that_others_can_reach_needs_a_credential_or_a_word_that_it_may_be_open() {
    let folder = Folder::new("upstream: http://a\n");
    let pem = folder.file("x.pem").display().to_string();
    let (cert, key) = (format!("--admin-tls-cert={pem}"), format!("--admin-tls-key={pem}"));
    let (ca, token) = (format!("--admin-tls-client-ca={pem}"), format!("--admin-token-file={pem}"));
    let metrics = format!("--admin-metrics-token-file={pem}");
    let refused = "the configuration is not valid\n  --admin: can be reached from other machines, and has no access \
                   control; set admin_token_file or admin_tls_client_ca, or admin_insecure if the network admits only those \
                   who may read it";
    for address in ["0.0.0.0:9464", "[::]:9464", "10.1.2.3:9464", "[::ffff:127.0.0.1]:9464"] {
        let admin = format!("--admin={address}");
        assert_eq!(folder.load(&[&admin], &[]).unwrap_err(), refused, "{address}");
        // TLS hides the replies from others, and still gives them to everyone who asks.
        assert_eq!(folder.load(&[&admin, &cert, &key], &[]).unwrap_err(), refused);
        let warnings = |more: &[&str]| folder.load(&[&[&*admin], more].concat(), &[]).unwrap().warnings;
        for more in
            [&[&*cert, &key, &ca][..], &[&cert, &key, &token], &["--admin-insecure"], &["--admin-insecure", &token]]
        {
            assert_eq!(warnings(more), [""; 0], "{more:?}");
        }
        for more in [&token, &metrics] {
            assert!(warnings(&[more])[0].contains("tokens cross the network in clear text"), "{more}");
        }
    }
    for address in ["127.0.0.1:9464", "127.8.8.8:9464", "[::1]:9464"] {
        assert!(folder.load(&[&format!("--admin={address}")], &[]).is_ok(), "{address}");
    }
    let missing = folder.load(&["--admin-token-file=canary7f3a"], &[]).unwrap_err();
    assert!(missing.contains("--admin-token-file: cannot read the file that it names: No such file"), "{missing}");
    assert!(!missing.contains("canary7f3a"), "someone wrote the token instead of its file");
}

#[test]
fn a_setting_of_a_capture_without_one_is_named_wherever_it_was_typed_unless_it_is_the_default() {
    let needs = "needs capture, the directory or bucket that is written to";
    for (key, [sample, ..]) in SAMPLES.into_iter().filter(|(key, _)| key.starts_with("capture_")) {
        let variable = format!("STREAMGAUGE_{}", key.to_uppercase());
        let flag = format!("--{key}").replace('_', "-");
        let of_file = problems(&format!("upstream: http://a\n{key}: {}\n", Value::from(sample)), &[], &[]);
        assert_eq!(of_file, [format!("gauge.yaml:2: {key}: {needs}")]);
        assert_eq!(problems("", &[], &[UPSTREAM, (&variable, sample)]), [format!("{variable}: {needs}")]);
        let assignment = format!("{flag}={sample}");
        assert_eq!(problems("", &[&assignment], &[UPSTREAM]), [format!("{flag}: {needs}")]);
        let capture = if key == "capture_spool" { "--capture=s3://b/c" } else { "--capture=c" };
        assert!(load("", &[&assignment, capture], &[UPSTREAM]).is_ok());
    }
    assert_eq!(
        problems("", &["--capture-spool=s", "--capture=c"], &[UPSTREAM]),
        ["--capture-spool: needs capture to be a bucket; a folder is written to directly"]
    );
    assert!(load("", &["--capture-spool=capture-spool", "--capture=c"], &[UPSTREAM]).is_ok(), "the default");
    assert!(load("", &["--capture-round=0", "--capture-block=512"], &[UPSTREAM]).is_ok());
    let one = problems("", &["--capture-round=1h"], &[UPSTREAM]);
    assert_eq!(
        one,
        ["--capture-round: expected a time from 0 to 1m, as in 30s, found `1h`"],
        "what is wrong is told once"
    );
}

#[test]
fn an_unknown_key_is_an_error_that_names_the_nearest() {
    let yaml = "upstream: http://a\nlisen: 127.0.0.1:1\nupstream-http: auto\n\nslo: [x]\nfrobnicate: {a: [1]}\n";
    assert_eq!(
        problems(yaml, &[], &[]),
        [
            "gauge.yaml:2: unknown key `lisen`; did you mean `listen`?",
            "gauge.yaml:3: unknown key `upstream-http`; did you mean `upstream_http`?",
            "gauge.yaml:5: unknown key `slo`; did you mean `slos`?",
            "gauge.yaml:6: unknown key `frobnicate`; `streamgauge config schema` lists the keys",
        ]
    );
}

#[test]
fn what_is_not_yaml_is_named_with_its_line_and_not_quoted() {
    let settings = "expected settings, as in `listen: 127.0.0.1:8080`";
    let one_value = "expected one value, found a list or a mapping; a text with a colon and a space in it needs quotes";
    for (yaml, expected) in [
        ("- listen\n", format!("gauge.yaml:1: {settings}")),
        ("s3cret", format!("gauge.yaml:1: {settings}")),
        ("stall: 1s\nstall: 2s\n", "gauge.yaml:2: this key is set a second time; keep one".to_owned()),
        ("stall: [1s]\n", format!("gauge.yaml:1: {one_value}")),
        ("slos:\n  -\n", "gauge.yaml:2: expected one value, found nothing; take the entry out".to_owned()),
        ("\nstall: {a: b}\n", format!("gauge.yaml:2: {one_value}")),
        ("stall: 1s\n---\nstall: 2s\n", "gauge.yaml:3: a second YAML document begins here; keep one".to_owned()),
        ("provider: 's3cret", "gauge.yaml:1: unclosed quote".to_owned()),
        (
            "routes: [{path: /a, dialekt: openai.chat}]\n",
            "gauge.yaml:1: unknown key `dialekt`; did you mean `dialect`?".to_owned(),
        ),
        (
            "routes:\n  - {path: /a, dialect: openai.chat, timeout: 3s}\n",
            "gauge.yaml:2: unknown key `timeout`; expected the keys `path` and `dialect`".to_owned(),
        ),
        ("routes: [{path: /a}]\n", "gauge.yaml:1: expected the keys `path` and `dialect`".to_owned()),
        ("slos:\n  - a: ttft<=1s\n", format!("gauge.yaml:2: {one_value}")),
        ("slos:\n  a: ttft<=1s\n", format!("gauge.yaml:2: {one_value}")),
    ] {
        assert_eq!(problems(yaml, &["--upstream=http://a"], &[]), [expected], "{yaml}");
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let absent = "No such file or directory (os error 2)";
    let yaml = "upstream: http://a\ntls_cert: absent.pem\ntls_key: absent.key\n";
    assert_eq!(
        problems(yaml, &[], &[]),
        [
            format!("gauge.yaml:2: tls_cert: cannot read absent.pem: {absent}"),
            format!("gauge.yaml:3: tls_key: cannot read absent.key: {absent}"),
        ]
    );
    let source = ConfigSource::new(RawSettings::default(), Some("absent.yaml".into()), []);
    assert_eq!(
        source.load().unwrap_err().to_string(),
        format!("the configuration is not valid\n  cannot read the configuration file absent.yaml: {absent}")
    );
    let endless =
        ConfigSource::new(RawSettings::default(), Some("/dev/zero".into()), []).load().unwrap_err().to_string();
    assert!(
        endless.ends_with("cannot read the configuration file /dev/zero: it is larger than 1048576 bytes"),
        "{endless}"
    );
}

#[test]
fn no_secret_is_in_an_error() {
    let flags = [
        "--upstream=https://me:s3cret@a",
        "--tls-key=-----BEGIN PRIVATE KEY-----s3cret",
        "--upstream-key=-----BEGIN PRIVATE KEY-----s3cret",
    ];
    let variables = [("STREAMGAUGE_TLS_CRT", "s3cret"), ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=s3cret%")];
    let error = problems("", &flags, &variables).join("\n");
    assert!(!error.contains("s3cret"), "{error}");
}

#[test]
fn an_unknown_variable_is_a_warning_that_names_the_nearest() {
    let warnings = |variables: &[(&str, &str)]| load("upstream: http://a", &[], variables).unwrap().warnings;
    assert_eq!(
        warnings(&[
            ("STREAMGAUGE_LISTN", "x"),
            ("STREAMGAUGE_PORT", "8080"),
            ("OTHER_LISTN", "x"),
            ("STREAMGAUGE_CONFG", "x")
        ]),
        [
            "STREAMGAUGE_LISTN is not a setting and is ignored; did you mean STREAMGAUGE_LISTEN?",
            "STREAMGAUGE_PORT is not a setting and is ignored; `streamgauge proxy --help` lists the settings",
            "STREAMGAUGE_CONFG is not a setting and is ignored; did you mean STREAMGAUGE_CONFIG?",
        ]
    );
    assert_eq!(
        problems("", &[], &[("STREAMGAUGE_UPSTREM", "http://a")]),
        [
            "upstream: expected the inference server's URL, as in --upstream http://127.0.0.1:8000, or --transparent for \
             redirected connections",
            "STREAMGAUGE_UPSTREM is not a setting and is ignored; did you mean STREAMGAUGE_UPSTREAM?",
        ]
    );
}

#[test]
fn what_kubernetes_injects_for_a_service_is_ignored() {
    let url = "tcp://10.0.0.1:80";
    let shapes = [
        ("STREAMGAUGE_SERVICE_HOST", "10.0.0.1"),
        ("STREAMGAUGE_SERVICE_PORT", "80"),
        ("STREAMGAUGE_SERVICE_PORT_HTTP", "80"),
        ("STREAMGAUGE_PORT", url),
        ("STREAMGAUGE_PORT_80_TCP", url),
        ("STREAMGAUGE_PORT_80_TCP_PROTO", "tcp"),
        ("STREAMGAUGE_PORT_80_TCP_PORT", "80"),
        ("STREAMGAUGE_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("STREAMGAUGE_PORT_53_UDP", "udp://10.0.0.1:53"),
        ("STREAMGAUGE_ADMIN_SERVICE_HOST", "10.0.0.1"),
        ("STREAMGAUGE_ADMIN_PORT", url),
        ("STREAMGAUGE_ADMIN_PORT_9464_TCP_ADDR", "10.0.0.1"),
    ];
    assert_eq!(load("upstream: http://a", &[], &shapes).unwrap().warnings, [""; 0]);
    let similar = [("STREAMGAUGE_PORT_X_TCP", "x"), ("STREAMGAUGE_PORT_80_TCP_X", "x"), ("STREAMGAUGE_PORT_80", "x")];
    assert_eq!(load("upstream: http://a", &[], &similar).unwrap().warnings.len(), 3);
}

#[test]
fn the_schema_is_the_one_that_is_published() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/config.schema.json");
    let published = std::fs::read_to_string(&path).unwrap();
    let now = format!("{:#}\n", schema());
    assert!(now == published, "write `streamgauge config schema` to tests/data/config.schema.json");
    let mut keys: Vec<_> = schema()["properties"].as_object().unwrap().keys().cloned().collect();
    keys.sort_unstable();
    let mut known = SAMPLES.map(|(key, _)| key);
    known.sort_unstable();
    assert_eq!(keys, known);
}

#[test]
fn the_explained_configuration_is_a_file_that_gives_it_again() {
    for (key, samples) in SAMPLES {
        let folder = Folder::new("");
        let pem = folder.file("x.pem").display().to_string();
        for sample in samples {
            let yaml = format!("{}{key}: {}\n", beside(key), Value::from(sample)).replace("PEM", &pem);
            std::fs::write(folder.file("gauge.yaml"), yaml).unwrap();
            let first = folder.load(&[], &[]).unwrap();
            std::fs::write(folder.file("gauge.yaml"), first.config.explain(&first.settings)).unwrap();
            let again = folder.load(&[], &[]).unwrap();
            assert_eq!(again.config, first.config, "{key}");
            assert_eq!(again.config.digest(), first.config.digest());
        }
    }
}

#[test]
fn the_default_block_length_depends_on_its_unit() {
    let block = |flags: &[&str]| load("upstream: http://a", flags, &[]).unwrap().config.capture.block;
    assert_eq!(block(&[]), 512);
    assert_eq!(block(&["--capture=c", "--capture-tokenizer=t.json"]), 16);
    assert_eq!(block(&["--capture=c", "--capture-tokenizer=t.json", "--capture-block=64"]), 64);
}

#[test]
fn the_digest_names_the_values_and_not_how_they_were_typed() {
    let digest = |flags: &[&str]| load("upstream: http://a", flags, &[]).unwrap().config.digest();
    assert_eq!(digest(&["--workers=2"]), "8e81b1c0999845e8");
    assert_eq!(digest(&["--workers=2", "--stall=1000ms"]), digest(&["--workers=2"]));
    assert_ne!(digest(&["--workers=2", "--stall=1001ms"]), digest(&["--workers=2"]));
}

#[test]
fn a_reload_takes_bounds_and_rules_and_holds_places() {
    let held_until_restart = [
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
    for (key, samples) in SAMPLES {
        let folder = Folder::new("");
        let pem = folder.file("x.pem").display().to_string();
        let yaml = format!("{}{key}: {}\n", beside(key), Value::from(samples[0])).replace("PEM", &pem);
        std::fs::write(folder.file("gauge.yaml"), "upstream: https://c").unwrap();
        let before = folder.load(&[], &[]).unwrap().config;
        std::fs::write(folder.file("gauge.yaml"), yaml).unwrap();
        let target = folder.load(&[], &[]).unwrap().config;
        // Bounds of the transparent mode change in that mode.
        let before = if key == "max_destinations" { load(beside(key), &[], &[]).unwrap().config } else { before };
        let (after, held) = before.reload(target.clone());
        if held_until_restart.contains(&key) {
            assert_eq!(after, before, "{key}");
            assert!(held.contains(&key), "{key} is not among {held:?}");
        } else {
            assert_eq!(after, target, "{key}");
            assert_eq!(held, [""; 0], "{key}");
        }
    }
}

/// Pieces of YAML, so that some of what is made of them is YAML.
const PIECES: &[&str] = &[
    "listen",
    "slos",
    "upstream",
    "workers",
    "headers",
    ": ",
    ":",
    "\n",
    "\n  - ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "'",
    "\"",
    "|",
    ">",
    "&a ",
    "*a",
    "<<: ",
    "!!binary ",
    "!x ",
    "? ",
    "---\n",
    "...\n",
    "# ",
    "null",
    "~",
    "true",
    "1",
    "0x1",
    ".inf",
    "a: ttft<=1s",
    "http://a",
    "\t",
    "%YAML",
    "é",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn no_yaml_makes_it_panic(pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..20), tail in any::<String>()) {
        let folder = Folder::new(&(pieces.concat() + &tail));
        if let Err(error) = folder.load(&[], &[]) {
            prop_assert!(error.starts_with("the configuration is not valid\n"));
        }
    }

    #[test]
    fn no_text_of_any_setting_makes_it_panic(key in proptest::sample::select(&SAMPLES[..]), text in any::<String>()) {
        let variable = format!("STREAMGAUGE_{}", key.0.to_uppercase());
        if let Err(error) = load("", &[], &[(&variable, &text)]) {
            prop_assert!(error.starts_with("the configuration is not valid\n"));
        }
    }
}
