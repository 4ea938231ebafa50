//! A real Prometheus that scrapes a run of which every count is known.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Stdio;

use streamgauge::export::registry::catalog::{Convention, Id};

use super::compare::{assert_same, assert_same_soon, only, still};
use super::known_counts::{EXPECTED, KnownRun, MODEL, TRACE};
use super::otlp_sink::{OtlpSink, hex};
use super::processes::{self, SOON, until};
use super::promql::{self, PromQl, summed};
use super::support::metrics_parser::Series;
use super::tools::{self, program};

const TTFT: &str = "gen_ai_server_time_to_first_token_seconds";

#[test]
fn prometheus_stores_every_count_of_a_known_run() {
    let _turn = processes::shared_turn();
    let sink = OtlpSink::start();
    let directory = tempfile::tempdir().unwrap();
    let mut prometheus = None;
    let known = KnownRun::run(|command| {
        command.env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("http://{}/v1/traces", sink.http));
        command.env("OTEL_BSP_SCHEDULE_DELAY", "50");
        let admin = command.get_args().find_map(|flag| flag.to_str()?.strip_prefix("--admin=")).unwrap();
        prometheus = Some(tools::prometheus(directory.path(), &[admin.parse().unwrap()]));
    });
    let prometheus = prometheus.unwrap();
    let promql = PromQl { addr: prometheus.addr, more: "" };
    let stored = || {
        let samples = promql.query("{job=\"streamgauge\"}");
        let ours = |name: &str| !name.starts_with("scrape_") && name != "up";
        let samples: Vec<_> = samples.into_iter().filter(|sample| ours(&sample.name)).collect();
        (still(&promql::table(&samples, &known.table)), promql::native(&samples))
    };
    let expected = still(&known.table);
    assert_same_soon(&expected, || stored().0, "the scrape as text, and what Prometheus has stored");
    let native = stored().1;

    for (name, labels, value) in EXPECTED {
        assert_eq!(promql.number(&summed(name, labels)), Some(*value), "{name} {labels:?}");
    }
    for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"] {
        assert!(promql.number(name).unwrap() > 0.0, "{name}");
    }
    let started = promql.number("time() - process_start_time_seconds").unwrap();
    assert!((0.0..600.0).contains(&started), "{started} s ago");

    // Native histograms: every bucket, and what is made from them.
    let ours = only(&known.proxy.scrape_native(), |_, series| series.native.is_some().then(|| series.clone()));
    assert_same(&ours, &native, "the scrape as protobuf, and the native histograms in Prometheus");
    let chat = format!("{TTFT}{{gen_ai_operation_name=\"chat\"}}");
    let of_chat = native.iter().find(|((name, labels), _)| name == TTFT && labels["gen_ai_operation_name"] == "chat");
    let of_chat = of_chat.unwrap().1;
    assert_eq!(promql.number(&format!("histogram_count({chat})")), Some(13.0));
    assert_eq!(promql.number(&format!("histogram_sum({chat})")), Some(of_chat.value));
    for quantile in [0.1, 0.5, 0.9, 0.99] {
        let (above, below) = bucket_of(of_chat, quantile);
        let value = promql.number(&format!("histogram_quantile({quantile}, {chat})")).unwrap();
        assert!((above..=below).contains(&value), "q{quantile} is {value}, which is not within {above}..{below}");
    }

    exemplars_lead_to_the_trace(&promql, &sink);
}

/// The bounds of the bucket in which a quantile lies.
fn bucket_of(series: &Series, quantile: f64) -> (f64, f64) {
    let (zero, buckets) = series.native.as_ref().unwrap();
    assert_eq!(*zero, 0);
    let rank = quantile * series.count as f64;
    let mut below = 0;
    let index = buckets.iter().find_map(|(index, count)| {
        below += count;
        (below as f64 >= rank).then_some(*index)
    });
    let bound = |index: i32| (f64::from(index) / 8.0).exp2();
    (bound(index.unwrap()) * (1.0 - 1e-12), bound(index.unwrap() + 1) * (1.0 + 1e-12))
}

fn exemplars_lead_to_the_trace(promql: &PromQl, sink: &OtlpSink) {
    let span = "&start=0&end=9999999999";
    let exemplars = PromQl { more: span, ..*promql }.api("query_exemplars", &format!("{TTFT}_bucket"));
    let leads = |series: &&serde_json::Value| {
        let exemplars = series["exemplars"].as_array().unwrap();
        exemplars.iter().any(|exemplar| exemplar["labels"]["trace_id"] == TRACE)
    };
    let series = exemplars.as_array().unwrap().iter().find(leads).expect("an exemplar of the trace that was sent");
    assert_eq!(series["seriesLabels"]["gen_ai_request_model"], MODEL);
    let is_there = || sink.client_spans().iter().any(|span| hex(&span.trace_id) == TRACE);
    until("the trace is at the collector", SOON, is_there);
}

#[test]
fn promtool_finds_no_fault_and_every_family_of_the_catalog_is_there() {
    let _turn = processes::shared_turn();
    let directory = tempfile::tempdir().unwrap();
    let known = KnownRun::run(|command| {
        command.arg("--capture").arg(directory.path());
    });
    let text = known.proxy.page("/metrics").text();
    let mut check = program("promtool");
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().unwrap();
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let messages = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && messages.is_empty(), "{}: {messages}", output.status);

    let families: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    // A proxy sends nothing by itself: the instruments of a run are for tests/replay/live_metrics.rs.
    // Without TLS there is no certificate, no SLO here reads limits from a header, no connection is redirected, and the
    // capture has no bucket.
    let others = [
        "streamgauge.replay.",
        "streamgauge.tls.",
        "streamgauge.slo.invalid_limits",
        "streamgauge.proxy.refused_connections",
        "streamgauge.capture.uploads",
        "streamgauge.capture.spool.",
    ];
    let of_proxy = |id: &Id| !others.iter().any(|begin| id.instrument().name.starts_with(begin));
    let frozen = Id::all().filter(|id| id.instrument().is_in(Convention::Frozen)).filter(of_proxy).count();
    assert_eq!(families.len(), frozen, "{families:?}");
    let is_queried = |family: &&&str| EXPECTED.iter().any(|(name, ..)| name.starts_with(**family));
    let unasked: Vec<&&str> = families.iter().filter(|family| !is_queried(family)).collect();
    let of_process = [
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        // The tests of the capture cover these.
        "streamgauge_capture_queue_depth",
        "streamgauge_capture_records_total",
        "streamgauge_capture_size_bytes_total",
        // tests/proxy/operating_metrics.rs covers these.
        "streamgauge_proxy_resource_limit",
        "streamgauge_proxy_resource_usage",
        "streamgauge_reload_success",
        "streamgauge_slo_target_ratio",
    ];
    assert_eq!(unasked, of_process.iter().collect::<Vec<_>>());
}
