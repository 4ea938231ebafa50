//! OpenTelemetry's environment variables, by the specification's rules.

use std::path::PathBuf;

use streamgauge::config::ClientIdentity;
use streamgauge::config::otlp::{
    BatchConfig, ExporterConfig, HistogramAggregation, MetricsConfig, OtlpConfig, Protocol, Sampler, Temporality,
    TracesConfig,
};
use streamgauge::measure::time::Gap;

type Variables<'a> = [(&'a str, &'a str)];

fn read(variables: &Variables<'_>) -> (OtlpConfig, Vec<String>) {
    let lookup = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    OtlpConfig::from_environment(lookup)
}

/// The configuration of variables that cause no warning.
fn understood(variables: &Variables<'_>) -> OtlpConfig {
    let (otlp, warnings) = read(variables);
    assert_eq!(warnings, [""; 0], "{variables:?}");
    otlp
}

const BASE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");

fn with<'a>(variables: &Variables<'a>) -> Vec<(&'a str, &'a str)> {
    [&[BASE], variables].concat()
}

fn metrics(variables: &Variables<'_>) -> MetricsConfig {
    understood(&with(variables)).metrics.unwrap()
}

fn traces(variables: &Variables<'_>) -> TracesConfig {
    understood(&with(variables)).traces.unwrap()
}

fn millis(millis: u64) -> Gap {
    Gap::from_millis(millis)
}

/// Where each signal goes.
fn urls(variables: &Variables<'_>) -> [Option<String>; 3] {
    let otlp = understood(variables);
    let url = |exporter: &ExporterConfig| exporter.endpoint.to_string();
    [
        otlp.metrics.map(|metrics| url(&metrics.exporter)),
        otlp.traces.map(|traces| url(&traces.exporter)),
        otlp.logs.map(|logs| url(&logs.exporter)),
    ]
}

#[test]
fn a_signal_is_on_only_where_an_endpoint_is_named() {
    let (metrics_url, logs_url) =
        (("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://m/x"), ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://l/y"));
    let [m, t, l] = ["metrics", "traces", "logs"].map(|signal| format!("http://collector:4318/v1/{signal}"));
    let [m, t, l] = [Some(&*m), Some(&*t), Some(&*l)];
    for (variables, on) in [
        (&[][..], [None; 3]),
        (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], [None; 3]),
        (
            &[("OTEL_METRICS_EXPORTER", "otlp"), ("OTEL_TRACES_EXPORTER", "otlp"), ("OTEL_LOGS_EXPORTER", "otlp")],
            [None; 3],
        ),
        (&[BASE], [m, t, l]),
        (&[metrics_url], [Some("http://m:80/x"), None, None]),
        (&[logs_url], [None, None, Some("http://l:80/y")]),
        (&[BASE, metrics_url, logs_url], [Some("http://m:80/x"), t, Some("http://l:80/y")]),
        (&[BASE, ("OTEL_SDK_DISABLED", "True")], [None; 3]),
        (&[BASE, ("OTEL_SDK_DISABLED", "false")], [m, t, l]),
        (&[BASE, ("OTEL_METRICS_EXPORTER", "none")], [None, t, l]),
        (&[BASE, ("OTEL_METRICS_EXPORTER", "prometheus")], [None, t, l]),
        (&[BASE, ("OTEL_METRICS_EXPORTER", "prometheus, OTLP")], [m, t, l]),
        (&[BASE, ("OTEL_TRACES_EXPORTER", "none")], [m, None, l]),
        (&[BASE, ("OTEL_TRACES_EXPORTER", "")], [m, t, l]),
        (&[BASE, ("OTEL_LOGS_EXPORTER", "none")], [m, t, None]),
        (&[BASE, ("OTEL_LOGS_EXPORTER", "otlp")], [m, t, l]),
    ] {
        assert_eq!(urls(variables), on.map(|url| url.map(str::to_owned)), "{variables:?}");
    }
}

#[test]
fn a_base_gets_the_signals_path_and_an_endpoint_of_one_signal_is_used_as_it_is() {
    let target = |name: &str, url: &str| {
        let otlp = understood(&[(name, url)]);
        let endpoint = otlp.traces.unwrap().exporter.endpoint;
        format!("{} {} {}", if endpoint.tls { "tls" } else { "plain" }, endpoint.authority(), endpoint.target)
    };
    let base = |url| target("OTEL_EXPORTER_OTLP_ENDPOINT", url);
    assert_eq!(base("http://c:4318"), "plain c:4318 /v1/traces");
    assert_eq!(base("https://c/mine/"), "tls c:443 /mine/v1/traces");
    assert_eq!(base("http://c/mine?token=1"), "plain c:80 /mine/v1/traces?token=1");
    assert_eq!(base("http://[::1]:4318/"), "plain [::1]:4318 /v1/traces");
    let own = |url| target("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url);
    assert_eq!(own("http://c:4318"), "plain c:4318 /");
    assert_eq!(own("http://c?x=1"), "plain c:80 /?x=1");
    assert_eq!(own("https://c/v1/traces/#x"), "tls c:443 /v1/traces/");
}

#[test]
fn grpc_takes_a_host_and_port_and_defaults_to_tls() {
    let tls = |variables: &Variables<'_>| {
        let all = [&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], variables].concat();
        let exporter = understood(&all).metrics.unwrap().exporter;
        assert_eq!(exporter.protocol, Protocol::Grpc);
        (exporter.endpoint.tls, exporter.endpoint.authority())
    };
    let endpoint = |url| ("OTEL_EXPORTER_OTLP_ENDPOINT", url);
    let insecure = ("OTEL_EXPORTER_OTLP_INSECURE", "true");
    assert_eq!(tls(&[endpoint("http://c:4317")]), (false, "c:4317".to_owned()));
    assert_eq!(tls(&[endpoint("https://c:4317"), insecure]), (true, "c:4317".to_owned()));
    assert_eq!(tls(&[endpoint("c:4317")]), (true, "c:4317".to_owned()));
    assert_eq!(tls(&[endpoint("c:4317"), insecure]), (false, "c:4317".to_owned()));
}

#[test]
fn what_is_not_set_is_as_specified() {
    let OtlpConfig { metrics, traces, logs, disabled_by: off, resource, latest_gen_ai } = understood(&[BASE]);
    let (metrics, traces, logs) = (metrics.unwrap(), traces.unwrap(), logs.unwrap());
    for exporter in [&metrics.exporter, &traces.exporter, &logs.exporter] {
        assert_eq!(
            (exporter.protocol, exporter.timeout, exporter.gzip),
            (Protocol::HttpProtobuf, millis(10_000), false)
        );
        assert_eq!((&exporter.ca, &exporter.identity, exporter.headers.iter().count()), (&None, &None, 0));
    }
    assert_eq!((metrics.interval, metrics.timeout), (millis(60_000), millis(30_000)));
    assert_eq!((metrics.temporality, metrics.histograms), (Temporality::Cumulative, HistogramAggregation::Explicit));
    assert_eq!(traces.sampler, Sampler { parent_based: true, ratio: 1.0 });
    let batch = |schedule_delay| BatchConfig {
        schedule_delay: millis(schedule_delay),
        timeout: millis(30_000),
        max_queue_size: 2048,
        max_batch_size: 512,
    };
    assert_eq!((traces.batch, logs.batch), (batch(5_000), batch(1_000)));
    assert_eq!(resource, [("service.name".to_owned(), "streamgauge".to_owned())]);
    assert!(!latest_gen_ai && off == [None; 3]);
}

#[test]
fn a_disabled_signal_names_the_variable_that_disabled_it() {
    let explained = |more: &[(&str, &str)]| understood(&with(more)).explain();
    let off = ["metrics", "traces", "logs"].map(|signal| format!("OTLP {signal}: off by OTEL_SDK_DISABLED\n"));
    assert_eq!(explained(&[("OTEL_SDK_DISABLED", "true")]), off.concat());
    for (variable, line) in [
        ("OTEL_TRACES_EXPORTER", "every 1m\nOTLP traces: off by OTEL_TRACES_EXPORTER\nOTLP logs: http"),
        ("OTEL_LOGS_EXPORTER", "every 5s\nOTLP logs: off by OTEL_LOGS_EXPORTER\n"),
    ] {
        let explanation = explained(&[(variable, "none")]);
        assert!(explanation.contains(line), "{explanation}");
    }
}

#[test]
fn an_option_of_one_signal_goes_before_that_of_all() {
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4000"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "HTTP/protobuf"),
        ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "x=2"),
        ("OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE", "/lca"),
        ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "2000"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000"),
        ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "0"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "none"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20a,x=1"),
        ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "authorization=b"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca"),
        ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "/mca"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/cert"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key"),
        ("OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY", "/mkey"),
    ];
    let otlp = understood(&variables);
    let of = |exporter: ExporterConfig| {
        let headers: Vec<_> = exporter.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let ClientIdentity { cert, key } = exporter.identity.unwrap();
        (exporter.protocol, exporter.timeout, exporter.gzip, headers, exporter.ca.unwrap(), cert, key)
    };
    let path = PathBuf::from;
    let no_limit = millis(2_147_483_647);
    let b = vec!["authorization: b".to_owned()];
    assert_eq!(
        of(otlp.metrics.unwrap().exporter),
        (Protocol::HttpProtobuf, no_limit, false, b, path("/mca"), path("/cert"), path("/mkey"))
    );
    let l = vec!["x: 2".to_owned()];
    assert_eq!(
        of(otlp.logs.unwrap().exporter),
        (Protocol::HttpProtobuf, millis(2_000), true, l, path("/lca"), path("/cert"), path("/key"))
    );
    let a = vec!["authorization: Bearer a".to_owned(), "x: 1".to_owned()];
    assert_eq!(
        of(otlp.traces.unwrap().exporter),
        (Protocol::Grpc, millis(1_000), true, a, path("/ca"), path("/cert"), path("/key"))
    );
}

#[test]
fn metrics_take_their_interval_temporality_and_histograms() {
    let metrics = metrics(&[
        ("OTEL_METRIC_EXPORT_INTERVAL", "1000"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", " 500 "),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "LowMemory"),
        ("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "BASE2_exponential_bucket_histogram"),
    ]);
    assert_eq!((metrics.interval, metrics.timeout), (millis(1_000), millis(500)));
    assert_eq!((metrics.temporality, metrics.histograms), (Temporality::LowMemory, HistogramAggregation::Exponential));
    let delta = self::metrics(&[("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")]);
    assert_eq!(delta.temporality, Temporality::Delta);
}

#[test]
fn traces_take_every_standard_sampler() {
    for (name, argument, parent_based, ratio) in [
        ("always_on", "", false, 1.0),
        ("always_off", "", false, 0.0),
        ("traceidratio", "0.25", false, 0.25),
        ("traceidratio", "", false, 1.0),
        ("parentbased_always_on", "0.5", true, 1.0),
        ("parentbased_always_off", "", true, 0.0),
        ("ParentBased_TraceIdRatio", "0", true, 0.0),
    ] {
        let traces = traces(&[("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", argument)]);
        assert_eq!(traces.sampler, Sampler { parent_based, ratio }, "{name} {argument}");
    }
}

#[test]
fn traces_and_logs_take_the_bounds_of_their_batch_processors() {
    let otlp = understood(&with(&[
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "200"),
        ("OTEL_BLRP_EXPORT_TIMEOUT", "300"),
        ("OTEL_BLRP_MAX_QUEUE_SIZE", "400"),
        ("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "50"),
    ]));
    let traces = otlp.traces.unwrap().batch;
    assert_eq!((traces.schedule_delay, traces.timeout), (millis(100), millis(2_147_483_647)));
    assert_eq!((traces.max_queue_size, traces.max_batch_size), (100, 100), "a batch is never larger than the queue");
    let logs =
        BatchConfig { schedule_delay: millis(200), timeout: millis(300), max_queue_size: 400, max_batch_size: 50 };
    assert_eq!(otlp.logs.unwrap().batch, logs);
}

#[test]
fn the_resource_is_percent_decoded_and_the_service_name_has_its_own_variable() {
    let resource = |variables: &Variables<'_>| -> Vec<String> {
        understood(variables).resource.into_iter().map(|(key, value)| format!("{key}={value}")).collect()
    };
    let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "a=1%2C2,service.name=mine,b=%C3%A9");
    assert_eq!(resource(&[attributes]), ["service.name=mine", "a=1,2", "b=é"]);
    let name = ("OTEL_SERVICE_NAME", "yours");
    assert_eq!(resource(&[attributes, name]), ["service.name=yours", "a=1,2", "b=é"]);
}

#[test]
fn the_newest_gen_ai_names_are_opted_into() {
    let latest = |list| understood(&[("OTEL_SEMCONV_STABILITY_OPT_IN", list)]).latest_gen_ai;
    assert!(latest("http/dup, gen_ai_latest_experimental"));
    assert!(!latest("http,gen_ai"));
}

#[test]
fn what_is_not_understood_is_a_warning_and_then_not_set() {
    for (name, value, expected) in [
        ("OTEL_SDK_DISABLED", "yes", "OTEL_SDK_DISABLED is ignored: expected true or false, found `yes`"),
        (
            "OTEL_METRICS_EXPORTER",
            "console",
            "OTEL_METRICS_EXPORTER: `console` is not an exporter here; otlp and none are",
        ),
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER: `zipkin` is not an exporter here; otlp and none are"),
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "http/json",
            "OTEL_EXPORTER_OTLP_PROTOCOL is ignored: http/json is not spoken here; http/protobuf goes to the same \
             endpoints",
        ),
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "http",
            "OTEL_EXPORTER_OTLP_PROTOCOL is ignored: expected grpc or http/protobuf, found `http`",
        ),
        (
            "OTEL_EXPORTER_OTLP_TIMEOUT",
            "10s",
            "OTEL_EXPORTER_OTLP_TIMEOUT is ignored: expected milliseconds, found `10s`",
        ),
        (
            "OTEL_EXPORTER_OTLP_COMPRESSION",
            "zstd",
            "OTEL_EXPORTER_OTLP_COMPRESSION is ignored: expected gzip or none, found `zstd`",
        ),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "a=s3cret,s3cret",
            "OTEL_EXPORTER_OTLP_HEADERS is ignored: its entry 2 is not name=value with percent-encoding",
        ),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "a=s3cret%0A",
            "OTEL_EXPORTER_OTLP_HEADERS is ignored: its entry 1 is not name=value with percent-encoding",
        ),
        (
            "OTEL_EXPORTER_OTLP_CLIENT_KEY",
            "/key",
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY need each other; the one that is \
             set is ignored",
        ),
        (
            "OTEL_METRIC_EXPORT_INTERVAL",
            "0",
            "OTEL_METRIC_EXPORT_INTERVAL is ignored: expected a whole number from 1, found `0`",
        ),
        (
            "OTEL_METRIC_EXPORT_TIMEOUT",
            "-1",
            "OTEL_METRIC_EXPORT_TIMEOUT is ignored: expected milliseconds, found `-1`",
        ),
        (
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
            "x",
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE is ignored: expected cumulative, delta or lowmemory, \
             found `x`",
        ),
        (
            "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
            "x",
            "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION is ignored: expected explicit_bucket_histogram or \
             base2_exponential_bucket_histogram, found `x`",
        ),
        (
            "OTEL_TRACES_SAMPLER",
            "xray",
            "OTEL_TRACES_SAMPLER is ignored: expected always_on, always_off, traceidratio, parentbased_always_on, \
             parentbased_always_off or parentbased_traceidratio, found `xray`",
        ),
        (
            "OTEL_BSP_MAX_QUEUE_SIZE",
            "2147483648",
            "OTEL_BSP_MAX_QUEUE_SIZE is ignored: expected a whole number from 1, found `2147483648`",
        ),
        (
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
            "4096",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE is ignored: 4096 is more than OTEL_BSP_MAX_QUEUE_SIZE, which is 2048",
        ),
        (
            "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE",
            "2049",
            "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE is ignored: 2049 is more than OTEL_BLRP_MAX_QUEUE_SIZE, which is 2048",
        ),
        ("OTEL_LOGS_EXPORTER", "console", "OTEL_LOGS_EXPORTER: `console` is not an exporter here; otlp and none are"),
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "a=1,b",
            "OTEL_RESOURCE_ATTRIBUTES is ignored: its entry 2 is not key=value with percent-encoding",
        ),
    ] {
        let (otlp, warnings) = read(&with(&[(name, value)]));
        assert_eq!(warnings, [expected], "{name}");
        assert_eq!(otlp, understood(&[BASE]), "{name} is as if it were not set");
    }
    let ratio = with(&[("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "1.5")]);
    let (otlp, warnings) = read(&ratio);
    assert_eq!(warnings, ["OTEL_TRACES_SAMPLER_ARG is ignored: expected a number from 0 to 1, found `1.5`"]);
    assert_eq!(otlp.traces.unwrap().sampler, Sampler { parent_based: false, ratio: 1.0 });
}

#[test]
fn an_endpoint_that_is_none_is_a_warning_that_does_not_quote_it() {
    let shape = "expected http://host[:port][/path] or https://host[:port][/path]";
    let credentials = "credentials in a URL are not sent; put them into OTEL_EXPORTER_OTLP_HEADERS";
    let character = "its path has a character that a URL cannot hold; percent-encode it";
    for (url, expected) in [
        ("collector:4318", shape),
        ("http://", shape),
        ("http://a b", shape),
        ("http://u:s3cret@c", credentials),
        ("http://c/a b", character),
        ("http://c/\u{1b}[31m", character),
        ("http://c/é", character),
    ] {
        let (otlp, warnings) = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", url)]);
        assert_eq!(warnings, [format!("OTEL_EXPORTER_OTLP_ENDPOINT is ignored: {expected}")], "once for all signals");
        assert_eq!((otlp.metrics, otlp.traces, otlp.logs), (None, None, None));
    }
    let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector");
    let (otlp, warnings) = read(&with(&[own]));
    assert_eq!(warnings, [format!("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is ignored: {shape}")]);
    assert_eq!(otlp, understood(&[BASE]), "the base serves instead");
}

#[test]
fn nothing_that_is_shown_holds_a_secret() {
    let otlp = understood(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c/mine?key=s3cret"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=s3cret,x-tenant=s3cret"),
    ]);
    assert!(!format!("{otlp:?}").contains("s3cret"), "{otlp:?}");
    assert_eq!(
        otlp.explain(),
        "OTLP metrics: http/protobuf to https://c:443/mine/v1/metrics with headers authorization, x-tenant every 1m\n\
         OTLP traces: http/protobuf to https://c:443/mine/v1/traces with headers authorization, x-tenant every 5s\n\
         OTLP logs: http/protobuf to https://c:443/mine/v1/logs with headers authorization, x-tenant every 1s\n"
    );
    assert_eq!(
        understood(&[]).explain(),
        "OTLP metrics: off; OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_METRICS_ENDPOINT turns them on\n\
         OTLP traces: off; OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT turns them on\n\
         OTLP logs: off; OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_LOGS_ENDPOINT turns them on\n"
    );
}
