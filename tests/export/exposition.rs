//! All formats agree to the last count: text, OpenMetrics, protobuf, and OTLP with either kind of histogram.

use std::collections::BTreeMap;

use streamgauge::capture::model_names::shorten;
use streamgauge::config::otlp::{HistogramAggregation, Temporality};
use streamgauge::export::otlp::metrics::MetricsEncoder;
use streamgauge::export::prometheus::ScrapeFormat;
use streamgauge::export::registry::aggregate::{Aggregate, AggregateSettings};
use streamgauge::export::registry::catalog::{Convention, Id};
use streamgauge::export::registry::snapshot::Snapshot;
use streamgauge::measure::record::Ending;
use streamgauge::measure::time::Stamp;

use crate::records;
use crate::support::metrics_parser::{self, Series, Table};

struct Outputs {
    text: Table,
    openmetrics: Table,
    protobuf: Table,
    explicit: Table,
    exponential: Table,
}

fn outputs(snapshot: &Snapshot) -> Outputs {
    let encode = |format: ScrapeFormat| String::from_utf8(format.encode(snapshot)).unwrap();
    let otlp = |histograms| {
        let resource = opentelemetry_sdk::Resource::builder_empty().with_service_name("gauge").build();
        let encoder = MetricsEncoder::new(&resource, Convention::Frozen, Temporality::Cumulative, histograms);
        metrics_parser::otlp(&encoder.encode(snapshot).metrics)
    };
    Outputs {
        text: metrics_parser::text(&encode(ScrapeFormat::Text)),
        openmetrics: metrics_parser::text(&encode(ScrapeFormat::OpenMetrics)),
        protobuf: metrics_parser::protobuf(&ScrapeFormat::Protobuf.encode(snapshot)),
        explicit: otlp(HistogramAggregation::Explicit),
        exponential: otlp(HistogramAggregation::Exponential),
    }
}

/// The table with only what a format has.
fn only(table: &Table, keep: impl Fn(Series) -> Series) -> Table {
    table.iter().map(|(key, series)| (key.clone(), keep(series.clone()))).collect()
}

fn assert_same(one: &Table, other: &Table, what: &str) {
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>(), "{what}");
    for (key, series) in one {
        assert_eq!(*series, other[key], "{what}: {key:?}");
    }
}

#[test]
fn all_formats_agree() {
    for convention in [Convention::Frozen, Convention::Latest] {
        let outputs = outputs(&records::snapshot(convention));
        let classic = |series: Series| Series { native: None, ..series };
        let native = |series: Series| Series { buckets: BTreeMap::new(), exemplars: BTreeMap::new(), ..series };
        let plain = |series: Series| Series { exemplars: BTreeMap::new(), ..series };
        assert!(outputs.text.len() > 60, "{} series", outputs.text.len());
        assert_same(&outputs.text, &only(&outputs.openmetrics, plain), "text and OpenMetrics");
        assert_same(&outputs.openmetrics, &only(&outputs.protobuf, classic), "OpenMetrics and protobuf");
        assert_same(&outputs.openmetrics, &outputs.explicit, "OpenMetrics and OTLP");
        assert_same(&only(&outputs.protobuf, native), &outputs.exponential, "native and exponential histograms");
        let exemplars: usize = outputs.openmetrics.values().map(|series| series.exemplars.len()).sum();
        assert!(exemplars > 50, "{exemplars} exemplars");
    }
}

#[test]
fn counts_add_up_to_the_requests_that_were_made() {
    let snapshot = records::snapshot(Convention::Frozen);
    let table = outputs(&snapshot).text;
    let total = |name: &str| -> u64 {
        let of_name = table.iter().filter(|((family, _), _)| family == name);
        of_name.map(|(_, series)| if series.buckets.is_empty() { series.value as u64 } else { series.count }).sum()
    };
    assert_eq!(total("http_server_request_duration_seconds"), 300);
    let of_dialects = total("gen_ai_server_request_duration_seconds");
    assert_eq!(total("gen_ai_client_operation_duration_seconds"), of_dialects);
    let first = total("gen_ai_client_operation_time_to_first_chunk_seconds");
    assert_eq!(first, total("gen_ai_server_time_to_first_token_seconds"), "every success is a stream");
    let chunks = total("gen_ai_client_operation_time_per_output_chunk_seconds");
    assert_eq!(chunks, total("streamgauge_stream_inter_token_latency_seconds"), "one of each gap");
    let plain: u64 = table
        .iter()
        .filter(|((name, labels), _)| {
            name == "http_server_request_duration_seconds" && !labels.contains_key("http_route")
        })
        .map(|(_, series)| series.count)
        .sum();
    assert!(plain > 50);
    assert_eq!(of_dialects + plain, 300);
    assert!(total("streamgauge_stream_terminations_total") < of_dialects, "refusals are no streams");
    let models: std::collections::BTreeSet<&str> =
        table.keys().filter_map(|(_, labels)| labels.get("gen_ai_request_model")).map(String::as_str).collect();
    assert!(models.len() == 5 && models.contains("_other"), "four of six models were admitted: {models:?}");
}

#[test]
fn every_family_comes_from_the_catalog_and_counts() {
    let snapshot = records::snapshot(Convention::Frozen);
    let observed = [
        Id::HttpActive,
        Id::ActiveStreams,
        Id::UpstreamConnections,
        Id::UpstreamUp,
        Id::SloTarget,
        Id::ResourceUsage,
        Id::ResourceLimit,
        Id::RefusedConnections,
        Id::ReloadSuccess,
        Id::CertificateEnd,
        Id::CaptureRecords,
        Id::CaptureSize,
        Id::CaptureQueue,
        Id::CaptureUploads,
        Id::CaptureSpool,
        Id::ReplayLag,
        Id::ReplayRequests,
        Id::ReplayPlanned,
        Id::ReplaySent,
        Id::ExportDropped,
        Id::BuildInfo,
        Id::ProcessCpu,
        Id::ProcessMemory,
        Id::ProcessFiles,
        Id::ProcessStart,
    ];
    let unknown_to_these_records = [Id::TokensPerChunk, Id::SloInvalidLimits];
    for id in Id::all() {
        let expected = id.instrument().is_in(Convention::Frozen)
            && !observed.contains(&id)
            && !unknown_to_these_records.contains(&id);
        assert_eq!(!snapshot.points(id).is_empty(), expected, "{id:?}");
    }
}

/// A label without the escapes of what cannot be seen: `\u{d}` for a carriage return.
fn unescaped(label: &str) -> String {
    let mut parts = label.split(r"\u{");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |name, part| {
        let (code, rest) = part.split_once('}').unwrap();
        let letter = char::from_u32(u32::from_str_radix(code, 16).unwrap()).unwrap();
        format!("{name}{letter}{rest}")
    })
}

#[test]
fn whatever_a_model_is_called_every_format_keeps_it_and_nothing_else_changes() {
    use proptest::prelude::*;
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(300));
    let names =
        prop_oneof![any::<String>(), "[\"\\\\\n{}=,# a-z]{1,40}", "\\PC{1,80}", "(data: |\r\n|\u{0}|\u{feff}){1,9}"];
    runner
        .run(&names, |name| {
            let (progress, record) = records::observe(&records::Plan {
                model: &name,
                path: "/v1/chat/completions",
                status: 200,
                ttft: 120,
                gaps: &[10, 20],
                usage: true,
                finished: true,
                ending: Ending::Complete,
                begins: Stamp::from_nanos(1_000),
            });
            let mut aggregate =
                Aggregate::new(AggregateSettings { slos: records::slos(), ..AggregateSettings::default() });
            let moment = records::now();
            progress.iter().for_each(|progress| aggregate.record_progress(progress, moment));
            aggregate.record_finished(&record, None, moment);
            let outputs = outputs(&aggregate.snapshot(moment));
            // Of a path the last segment is shown.
            let model = record.shape.model.as_deref().filter(|model| !model.is_empty());
            let shown = model.map(|model| shorten(model).to_owned());
            for table in [&outputs.text, &outputs.openmetrics, &outputs.protobuf, &outputs.explicit] {
                let ttft = table.iter().find(|((name, _), _)| name == "gen_ai_server_time_to_first_token_seconds");
                let ((_, labels), series) = ttft.unwrap();
                let label = labels.get("gen_ai_request_model");
                prop_assert!(label.is_none_or(|label| !label.contains(char::is_control)));
                // A name may also spell out what another one has escaped.
                let is_plain = shown.as_ref().is_none_or(|shown| shown.contains(r"\u{"));
                let name = label.map(|label| if is_plain { label.clone() } else { unescaped(label) });
                prop_assert_eq!(name, shown.clone());
                prop_assert_eq!((series.count, labels.len()), (1, 4 + usize::from(model.is_some())));
                prop_assert!(table.values().all(|series| series.value.is_finite()));
                prop_assert_eq!(table.len(), outputs.text.len());
            }
            Ok(())
        })
        .unwrap();
}
