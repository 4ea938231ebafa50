//! VictoriaMetrics that takes our OTLP, with either kind of histogram: PromQL gives the counts that were scraped.

use super::compare::{assert_same_soon, still};
use super::known_counts::{EXPECTED, KnownRun};
use super::processes;
use super::promql::{self, PromQl, summed};
use super::support::metrics_parser::Table;
use super::tools;

/// A known run whose metrics go to VictoriaMetrics, and its series there. `scraped` is the proxy's table of that run.
fn stored(histograms: &str, scraped: fn(&KnownRun) -> Table) {
    let _turn = processes::shared_turn();
    let directory = tempfile::tempdir().unwrap();
    let victoria = tools::victoria(directory.path());
    let known = KnownRun::run(|command| {
        let endpoint = format!("http://{}/opentelemetry/v1/metrics", victoria.addr);
        command.env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint).env("OTEL_METRIC_EXPORT_INTERVAL", "500");
        command.env("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", histograms);
    });
    // Left alone it holds back what is younger than half a minute.
    let promql = PromQl { addr: victoria.addr, more: "&latency_offset=1s" };
    let all = || still(&promql::table(&promql.query("{__name__!=\"\"}"), &known.table));
    assert_same_soon(&still(&scraped(&known)), all, "the scrape, and what VictoriaMetrics has stored");
    for (name, labels, value) in EXPECTED {
        assert_eq!(promql.number(&summed(name, labels)), Some(*value), "{name} {labels:?}");
    }
    for name in ["process_cpu_time_seconds_total", "process_memory_usage_bytes", "process_unix_file_descriptor_count"] {
        assert!(promql.number(name).unwrap() > 0.0, "{name}");
    }
}

#[test]
fn victoria_metrics_stores_every_count_of_explicit_histograms() {
    stored("explicit_bucket_histogram", |known| known.table.clone());
}

#[test]
fn victoria_metrics_stores_every_count_of_exponential_histograms() {
    stored("base2_exponential_bucket_histogram", |known| known.proxy.scrape_native());
}
