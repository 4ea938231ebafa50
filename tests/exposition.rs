//! One run in every format: a scrape as text, as OpenMetrics and as protobuf, and OTLP with either kind of histogram,
//! agree to the last count.

#![expect(clippy::unwrap_used, reason = "clippy knows tests by their attribute, and these have helpers")]

#[path = "exposition/parse.rs"]
mod parse;
#[path = "exposition/records.rs"]
mod records;

use std::collections::BTreeMap;

use parse::{Series, Table};
use streamgauge::export::aggregate::{Aggregate, Settings};
use streamgauge::export::catalog::{Convention, Id};
use streamgauge::export::otlp::metrics::Encoder;
use streamgauge::export::otlp::settings::{Histograms, Temporality};
use streamgauge::export::prometheus::Format;
use streamgauge::export::snapshot::Snapshot;
use streamgauge::measure::record::Ending;
use streamgauge::measure::time::Stamp;

struct Outputs {
    text: Table,
    openmetrics: Table,
    protobuf: Table,
    explicit: Table,
    exponential: Table,
}

fn outputs(snapshot: &Snapshot) -> Outputs {
    let encode = |format: Format| String::from_utf8(format.encode(snapshot)).unwrap();
    let otlp = |histograms| {
        let resource = [("service.name".to_owned(), "gauge".to_owned())];
        let encoder = Encoder::new(&resource, Convention::Frozen, Temporality::Cumulative, histograms);
        parse::otlp(&encoder.encode(snapshot).metrics)
    };
    Outputs {
        text: parse::text(&encode(Format::Text)),
        openmetrics: parse::text(&encode(Format::OpenMetrics)),
        protobuf: parse::protobuf(&Format::Protobuf.encode(snapshot)),
        explicit: otlp(Histograms::Explicit),
        exponential: otlp(Histograms::Exponential),
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
fn every_format_tells_the_same() {
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
        Id::ExportDropped,
        Id::BuildInfo,
        Id::ProcessCpu,
        Id::ProcessMemory,
        Id::ProcessFiles,
        Id::ProcessStart,
    ];
    let unknown_to_these_records = [Id::TokensPerChunk];
    for id in Id::all() {
        let expected = id.instrument().is_in(Convention::Frozen)
            && !observed.contains(&id)
            && !unknown_to_these_records.contains(&id);
        assert_eq!(!snapshot.points(id).is_empty(), expected, "{id:?}");
    }
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
            let mut aggregate = Aggregate::new(Settings { slos: records::slos(), ..Settings::default() });
            let moment = records::now();
            progress.iter().for_each(|progress| aggregate.progress(progress, moment));
            aggregate.finished(&record, None, moment);
            let outputs = outputs(&aggregate.snapshot(moment));
            let asked = record.shape.model.clone().filter(|model| !model.is_empty());
            for table in [&outputs.text, &outputs.openmetrics, &outputs.protobuf, &outputs.explicit] {
                let ttft = table.iter().find(|((name, _), _)| name == "gen_ai_server_time_to_first_token_seconds");
                let ((_, labels), series) = ttft.unwrap();
                prop_assert_eq!(labels.get("gen_ai_request_model"), asked.as_ref());
                prop_assert_eq!((series.count, labels.len()), (1, 4 + usize::from(asked.is_some())));
                prop_assert!(table.values().all(|series| series.value.is_finite()));
                prop_assert_eq!(table.len(), outputs.text.len());
            }
            Ok(())
        })
        .unwrap();
}

/// For other people's parsers: with `STREAMGAUGE_EXPOSE=host:port` this serves the set of records on an admin port,
/// makes a few more every second, and with `STREAMGAUGE_OTLP=grpc|http,host:port[,exponential][,delta]` exports them,
/// until the process is ended.
#[test]
fn serve_for_the_judges() {
    let Ok(address) = std::env::var("STREAMGAUGE_EXPOSE") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(serve::run(&address));
}

mod serve {
    use rand::SeedableRng;
    use streamgauge::clock::Clock;
    use streamgauge::export::aggregate;
    use streamgauge::export::control::{ControlPlane, Settings};
    use streamgauge::export::otlp::settings::{self, Endpoint, Exporter, Headers, Histograms, Protocol, Temporality};
    use streamgauge::export::trace_context::{RequestTrace, Sampler};
    use streamgauge::measure::time::Gap;
    use tokio::net::TcpListener;

    use super::records;

    fn exporter(protocol: Protocol, host: &str, port: u16, target: &str) -> Exporter {
        Exporter {
            endpoint: Endpoint { tls: false, host: host.to_owned(), port, target: target.to_owned() },
            protocol,
            headers: Headers::new(vec![("x-tenant".to_owned(), "judges".to_owned())]),
            timeout: Gap::from_millis(5_000),
            gzip: true,
            ca: None,
            identity: None,
        }
    }

    fn otlp() -> Option<settings::Settings> {
        let told = std::env::var("STREAMGAUGE_OTLP").ok()?;
        let words: Vec<&str> = told.split(',').collect();
        let (host, port) = words[1].split_once(':')?;
        let port = port.parse().unwrap();
        let protocol = if words[0] == "grpc" { Protocol::Grpc } else { Protocol::HttpProtobuf };
        let prefix = std::env::var("STREAMGAUGE_OTLP_PREFIX").unwrap_or_default();
        let metrics = settings::Metrics {
            exporter: exporter(protocol, host, port, &format!("{prefix}/v1/metrics")),
            interval: Gap::from_millis(1_000),
            timeout: Gap::from_millis(5_000),
            temporality: if words.contains(&"delta") { Temporality::Delta } else { Temporality::Cumulative },
            histograms: if words.contains(&"exponential") { Histograms::Exponential } else { Histograms::Explicit },
        };
        let traces = settings::Traces {
            exporter: exporter(protocol, host, port, &format!("{prefix}/v1/traces")),
            sampler: Sampler::default(),
            schedule_delay: Gap::from_millis(1_000),
            timeout: Gap::from_millis(5_000),
            max_queue_size: 2_048,
            max_batch_size: 512,
        };
        let resource = vec![("service.name".to_owned(), "streamgauge-judged".to_owned())];
        Some(settings::Settings { metrics: Some(metrics), traces: Some(traces), resource })
    }

    pub(super) async fn run(address: &str) {
        let aggregate = aggregate::Settings { slos: records::slos(), ..aggregate::Settings::default() };
        let settings = Settings { aggregate, otlp: otlp(), ..Settings::default() };
        let plane = ControlPlane::new(settings, Clock::Monotonic).unwrap();
        let (reporter, gauges, sampler) = (plane.reporter(), plane.gauges(), plane.sampler());
        gauges.set_ready(true);
        let listener = TcpListener::bind(address).await.unwrap();
        let stop = std::future::pending();
        let running = tokio::spawn(plane.run(Some(listener), stop, Gap::from_millis(1_000)));
        let mut random = rand_pcg::Pcg64::seed_from_u64(2026);
        for number in 0.. {
            let (progress, record) = records::request(&mut random, number, Clock::Monotonic.now());
            progress.into_iter().for_each(|progress| reporter.progress(progress));
            reporter.finished(record, sampler.as_ref().map(|sampler| RequestTrace::begin(sampler, None, None)));
            if number >= 300 {
                Clock::Monotonic.sleep(Gap::from_millis(100)).await;
            }
            assert!(!running.is_finished());
        }
    }
}
