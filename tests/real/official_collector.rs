//! The official OpenTelemetry Collector with `deploy/otel-collector.yaml`: every count and every span comes out of it.

use super::compare::{assert_same_soon, still};
use super::known_counts::{EXPECTED, KnownRun, REQUESTS};
use super::otlp_sink::OtlpSink;
use super::processes::{self, SOON, until};
use super::support::metrics_parser::{Labels, Series, Table};
use super::tools;

/// The total of the series with these labels, by the names of Prometheus; an empty label is a missing one.
fn total(table: &Table, name: &str, labels: &[(&str, &str)]) -> f64 {
    let has = |series: &Labels| labels.iter().all(|(key, value)| series.get(*key).map_or("", String::as_str) == *value);
    let is_histogram =
        |suffix: &str| name.strip_suffix(suffix).filter(|base| table.keys().any(|(name, _)| name == base));
    let over = |base: &str, read: fn(&Series) -> f64| {
        table.iter().filter(|((name, series), _)| name == base && has(series)).map(|(_, series)| read(series)).sum()
    };
    match (is_histogram("_count"), is_histogram("_sum")) {
        (Some(base), _) => over(base, |series| series.count as f64),
        (None, Some(base)) => over(base, |series| series.value),
        (None, None) => over(name, |series| series.value),
    }
}

#[test]
#[ignore = "needs the official collector: tests/run --real"]
fn the_official_collector_passes_on_every_count_and_span_by_both_protocols() {
    let _turn = processes::shared_turn();
    for protocol in ["grpc", "http/protobuf"] {
        let sink = OtlpSink::start();
        let collector = tools::otelcol(sink.grpc);
        let to = if protocol == "grpc" { collector.grpc } else { collector.http };
        let known = KnownRun::run(|command| {
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{to}"));
            command.env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol).env("OTEL_METRIC_EXPORT_INTERVAL", "300");
        });
        let scraped = known.proxy.scrape_exemplars();
        // The last of it is sent at the end.
        known.proxy.end();
        assert_same_soon(&still(&scraped), || still(&sink.metrics()), protocol);
        let metrics = sink.metrics();
        for (name, labels, value) in EXPECTED {
            assert_eq!(total(&metrics, name, labels), *value, "{protocol}: {name} {labels:?}");
        }
        until("all spans have arrived", SOON, || sink.spans().len() >= 2 * REQUESTS);
        assert_eq!(sink.spans().len(), 2 * REQUESTS);
        // What the exporter `debug` reports of them.
        let log = collector.running.log();
        let spans = log
            .lines()
            .filter_map(|line| line.rsplit_once("\"spans\": ")?.1.trim_end_matches('}').parse::<usize>().ok());
        assert_eq!(spans.sum::<usize>(), 2 * REQUESTS, "{log}");
    }
}
