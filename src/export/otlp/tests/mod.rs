//! The exporters against a misbehaving scripted collector, over real sockets.

mod collector;
mod logs;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::{ScopeSpans, Span};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use self::collector::{Collector, CollectorReply};
use super::batch::BatchQueue;
use super::client::{Delivery, OtlpClient};
use super::connect::CollectorConnector;
use super::exporter::{MetricsExporter, StopSignal};
use super::payload::{ExportPayload, OtlpSignal};
use super::traces::{self, RequestSpans, SpanEncoder};
use crate::clock::Clock;
use crate::config::otlp::Sampler;
use crate::config::otlp::{self, ExporterConfig, HistogramAggregation, OtlpConfig, Protocol, Temporality};
use crate::export::control::thread::{ControlPlane, RuntimeSettings};
use crate::export::registry::catalog::{Convention, Id};
use crate::export::registry::drops::{DropReason, Drops};
use crate::export::registry::snapshot::{PointValue, Snapshot};
use crate::measure::time::{Gap, Stamp};
use crate::net::tls;

const BOTH: [Protocol; 2] = [Protocol::HttpProtobuf, Protocol::Grpc];

fn ms(millis: u64) -> Gap {
    Gap::from_millis(millis)
}

/// A snapshot with three data points.
fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot { unix: 10, families: Vec::new() };
    snapshot.observe(Id::ActiveStreams, ["waiting".into()], 1, PointValue::Gauge(1));
    snapshot.observe(Id::ActiveStreams, ["streaming".into()], 1, PointValue::Gauge(2));
    snapshot.observe(Id::Stalls, ["tiny".into()], 1, PointValue::Count(5));
    snapshot
}

struct TestExporter {
    drops: Arc<Drops>,
    order: watch::Sender<Option<Stamp>>,
    task: tokio::task::JoinHandle<()>,
}

impl TestExporter {
    /// Stops the exporter, which exports once more.
    async fn stop(self, flush: Gap) -> Arc<Drops> {
        self.order.send_replace(Some(Clock::Monotonic.now().after(flush)));
        self.task.await.unwrap();
        self.drops
    }
}

fn no_resource() -> opentelemetry_sdk::Resource {
    opentelemetry_sdk::Resource::builder_empty().build()
}

fn metrics(exporter: ExporterConfig, interval: Gap, timeout: Gap) -> TestExporter {
    let (temporality, histograms) = (Temporality::Cumulative, HistogramAggregation::Explicit);
    let settings = otlp::MetricsConfig { exporter, interval, timeout, temporality, histograms };
    let drops = Arc::<Drops>::default();
    let clock = Clock::Monotonic;
    let exporter = MetricsExporter::new(&settings, &no_resource(), Convention::Frozen, &clock, &drops);
    let (order, stop) = StopSignal::new();
    TestExporter { drops, order, task: tokio::spawn(async move { exporter.run(snapshot, stop).await }) }
}

fn batch() -> otlp::BatchConfig {
    otlp::BatchConfig { schedule_delay: ms(60_000), timeout: ms(10_000), max_queue_size: 8, max_batch_size: 4 }
}

fn traces(exporter: ExporterConfig) -> (TestExporter, Arc<BatchQueue<SpanEncoder>>) {
    let settings = otlp::TracesConfig { exporter, sampler: Sampler::default(), batch: batch() };
    let (drops, clock) = (Arc::<Drops>::default(), Clock::Monotonic);
    let (exporter, queue) = traces::exporter(&settings, &no_resource(), Convention::Frozen, &clock, &drops);
    let (order, stop) = StopSignal::new();
    let task = tokio::spawn(async move { exporter.run(|| (), stop).await });
    (TestExporter { drops, order, task }, queue)
}

fn pair(name: &str) -> RequestSpans {
    let spans = vec![Span { name: name.to_owned(), ..Span::default() }; 2];
    RequestSpans { bytes: ScopeSpans { spans, ..ScopeSpans::default() }.encode_to_vec(), client: 0 }
}

/// Waits until the condition holds.
async fn until(what: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if what() {
            return;
        }
        Clock::Monotonic.sleep(ms(10)).await;
    }
    panic!("it never happened");
}

fn losses(drops: &Drops) -> [u64; 5] {
    [
        DropReason::PointsFailed,
        DropReason::PointsRejected,
        DropReason::Spans,
        DropReason::SpansFailed,
        DropReason::SpansRejected,
    ]
    .map(|loss| drops.count(loss))
}

#[tokio::test]
async fn metrics_arrive_by_the_interval_and_at_the_end_over_one_connection() {
    for (protocol, gzip) in BOTH.into_iter().flat_map(|protocol| [(protocol, false), (protocol, true)]) {
        let collector = Collector::start(protocol, vec![]).await;
        let running = metrics(ExporterConfig { gzip, ..collector.exporter() }, ms(50), ms(5_000));
        until(|| collector.seen.lock().unwrap().len() >= 3).await;
        assert_eq!(losses(&*running.stop(ms(5_000)).await), [0; 5]);
        let seen = collector.seen.lock().unwrap();
        assert!(seen.len() >= 4);
        assert!(seen.iter().all(|request| request.connection == 0), "one connection is kept");
        for request in &*seen {
            assert_eq!(request.headers["x-tenant"], "one");
            let sent = ExportMetricsServiceRequest::decode(&request.message[..]).unwrap();
            assert_eq!(sent.resource_metrics[0].scope_metrics[0].metrics.len(), 2);
            let (path, agent) = match protocol {
                Protocol::HttpProtobuf => ("/v1/anything", super::USER_AGENT),
                Protocol::Grpc => ("/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", "OTel-OTLP"),
            };
            assert_eq!(request.path, path);
            assert!(request.headers["user-agent"].to_str().unwrap().starts_with(agent));
            let encoding = if protocol == Protocol::Grpc { "grpc-encoding" } else { "content-encoding" };
            assert_eq!(request.headers.get(encoding).is_some_and(|encoding| encoding == "gzip"), gzip);
        }
    }
}

#[tokio::test]
async fn two_instances_that_push_to_one_collector_are_two() {
    let collector = Collector::start(Protocol::HttpProtobuf, vec![]).await;
    let endpoint = format!("http://{}/v1/metrics", collector.address);
    let variable = |name: &str| (name == "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT").then(|| endpoint.clone());
    let (otlp, _) = OtlpConfig::from_environment(variable);
    for _ in 0..2 {
        let plane = ControlPlane::new(RuntimeSettings::default(), &otlp, None, None, Clock::Monotonic);
        plane.run(None, async {}, ms(30_000)).await;
    }
    let seen = collector.seen.lock().unwrap();
    let instances: BTreeSet<String> = seen
        .iter()
        .map(|request| {
            let sent = ExportMetricsServiceRequest::decode(&request.message[..]).unwrap();
            let resource = sent.resource_metrics[0].resource.clone().unwrap();
            let attribute = |key: &str| resource.attributes.iter().find(|attribute| attribute.key == key).cloned();
            assert!(attribute("host.name").is_some());
            format!("{:?}", attribute("service.instance.id").unwrap().value)
        })
        .collect();
    assert_eq!(instances.len(), 2, "{instances:?}");
}

#[tokio::test]
async fn spans_arrive_by_the_batch_and_the_rest_at_the_end() {
    for protocol in BOTH {
        let collector = Collector::start(protocol, vec![]).await;
        let (running, queue) = traces(collector.exporter());
        ["a", "b"].iter().for_each(|name| queue.push(|| pair(name)));
        until(|| collector.seen.lock().unwrap().len() == 1).await;
        queue.push(|| pair("c"));
        assert_eq!(losses(&*running.stop(ms(5_000)).await), [0; 5]);
        let names: Vec<Vec<String>> = collector
            .seen
            .lock()
            .unwrap()
            .iter()
            .map(|request| {
                let sent = ExportTraceServiceRequest::decode(&request.message[..]).unwrap();
                sent.resource_spans[0].scope_spans[0].spans.iter().map(|span| span.name.clone()).collect()
            })
            .collect();
        assert_eq!(names, [vec!["a", "a", "b", "b"], vec!["c", "c"]]);
    }
}

#[tokio::test]
async fn a_full_queue_drops_spans_and_counts_them() {
    let collector =
        Collector::start(Protocol::HttpProtobuf, vec![CollectorReply { hang: true, ..CollectorReply::default() }])
            .await;
    let (running, queue) = traces(collector.exporter());
    (0..2).for_each(|_| queue.push(|| pair("in flight")));
    until(|| collector.seen.lock().unwrap().len() == 1).await;
    (0..7).for_each(|_| queue.push(|| pair("queued")));
    assert_eq!(running.drops.count(DropReason::Spans), 6);
    // The order to stop interrupts the hanging request; its data is sent again.
    assert_eq!(losses(&*running.stop(ms(5_000)).await), [0, 0, 6, 0, 0]);
    assert_eq!(collector.seen.lock().unwrap().len(), 4);
}

#[tokio::test]
async fn a_busy_collector_is_asked_again_when_it_says() {
    let busy = |protocol| match protocol {
        Protocol::HttpProtobuf => {
            CollectorReply { status: 503, fields: vec![("retry-after", "1".to_owned())], ..CollectorReply::default() }
        }
        // Without a retry delay the client pauses on its own.
        Protocol::Grpc => CollectorReply { status: 14, ..CollectorReply::default() },
    };
    for protocol in BOTH {
        let collector = Collector::start(protocol, vec![busy(protocol)]).await;
        let running = metrics(collector.exporter(), ms(60_000), ms(10_000));
        let started_at = Clock::Monotonic.now();
        assert_eq!(losses(&*running.stop(ms(10_000)).await), [0; 5]);
        let waited = Clock::Monotonic.now().since(started_at);
        assert!(waited >= ms(500) && waited < ms(5_000), "{waited}");
        assert_eq!(collector.seen.lock().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_collector_that_refuses_is_not_asked_again() {
    let unauthenticated = |protocol| if protocol == Protocol::Grpc { 16 } else { 401 };
    for protocol in BOTH {
        let reply = CollectorReply { status: unauthenticated(protocol), ..CollectorReply::default() };
        let collector = Collector::start(protocol, vec![reply.clone(), reply]).await;
        let running = metrics(collector.exporter(), ms(60_000), ms(10_000));
        assert_eq!(losses(&*running.stop(ms(10_000)).await), [3, 0, 0, 0, 0], "three points, once");
        assert_eq!(collector.seen.lock().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn what_a_collector_rejects_is_counted() {
    for protocol in BOTH {
        let partial = ExportMetricsPartialSuccess { rejected_data_points: 2, error_message: "too old".to_owned() };
        let message = ExportMetricsServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        let collector = Collector::start(protocol, vec![CollectorReply { message, ..CollectorReply::default() }]).await;
        let running = metrics(collector.exporter(), ms(60_000), ms(10_000));
        assert_eq!(losses(&*running.stop(ms(5_000)).await), [0, 2, 0, 0, 0]);

        let partial = ExportTracePartialSuccess { rejected_spans: 1, error_message: String::new() };
        let message = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        let collector = Collector::start(protocol, vec![CollectorReply { message, ..CollectorReply::default() }]).await;
        let (running, queue) = traces(collector.exporter());
        queue.push(|| pair("one"));
        assert_eq!(losses(&*running.stop(ms(5_000)).await), [0, 0, 0, 0, 1]);
    }
}

#[tokio::test]
async fn a_collector_that_speaks_the_other_protocol_is_told_with_the_variable() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let writer = Arc::new(log.reopen().unwrap());
    let _logging = tracing::subscriber::set_default(tracing_subscriber::fmt().with_writer(writer).finish());
    let payload = ExportPayload { signal: OtlpSignal::Metrics, message: Bytes::new() };
    let grpc = Collector::start(Protocol::Grpc, vec![]).await.exporter();
    let http = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut other = grpc.clone();
    other.endpoint.port = http.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = http.accept().await {
            socket.read_u8().await.unwrap();
            socket.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request").await.unwrap();
            // Closing with unread data would reset the connection.
            while matches!(socket.read(&mut [0; 1024]).await, Ok(1..)) {}
        }
    });
    for (exporter, protocol, advice) in
        [(grpc, Protocol::HttpProtobuf, "grpc"), (other, Protocol::Grpc, "http/protobuf")]
    {
        let mut client = OtlpClient::new(&ExporterConfig { protocol, ..exporter }, Clock::Monotonic);
        assert_eq!(client.deliver(&payload, ms(500)).await, Delivery::Failed);
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert!(text.lines().last().unwrap().contains(&format!("OTEL_EXPORTER_OTLP_PROTOCOL={advice}\"")), "{text}");
    }
}

#[tokio::test]
async fn what_was_taken_is_not_told_as_a_failure() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let writer = Arc::new(log.reopen().unwrap());
    let _logging = tracing::subscriber::set_default(tracing_subscriber::fmt().with_writer(writer).finish());
    for (rejected_data_points, expected) in
        [(0, "OTLP export was taken with a warning"), (2, "OTLP export failed in part")]
    {
        let partial = ExportMetricsPartialSuccess { rejected_data_points, error_message: "too old".to_owned() };
        let message = ExportMetricsServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        let collector =
            Collector::start(Protocol::HttpProtobuf, vec![CollectorReply { message, ..CollectorReply::default() }])
                .await;
        let mut client = OtlpClient::new(&collector.exporter(), Clock::Monotonic);
        let payload = ExportPayload { signal: OtlpSignal::Metrics, message: Bytes::new() };
        let taken = Delivery::Accepted { rejected: rejected_data_points as u64 };
        assert_eq!(client.deliver(&payload, ms(10_000)).await, taken);
        let text = std::fs::read_to_string(log.path()).unwrap();
        let last = text.lines().last().unwrap();
        assert!(last.contains(expected) && last.contains("too old"), "{text}");
    }
}

#[tokio::test]
async fn a_collector_that_is_down_costs_counted_points_and_the_time_allowed() {
    for protocol in BOTH {
        let collector = Collector::start(protocol, vec![]).await;
        let mut exporter = collector.exporter();
        // Bound but not listening, so that no other process gets the port.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        exporter.endpoint.port = held.local_addr().unwrap().port();
        let running = metrics(exporter, ms(60_000), ms(10_000));
        let started_at = Clock::Monotonic.now();
        assert_eq!(losses(&*running.stop(ms(300)).await), [3, 0, 0, 0, 0]);
        assert!(Clock::Monotonic.now().since(started_at) < ms(3_000));
    }
}

#[tokio::test]
async fn a_collector_that_hangs_is_given_up() {
    for protocol in BOTH {
        let hang = CollectorReply { hang: true, ..CollectorReply::default() };
        let collector = Collector::start(protocol, vec![hang]).await;
        let running = metrics(ExporterConfig { timeout: ms(1_000), ..collector.exporter() }, ms(60_000), ms(10_000));
        assert_eq!(losses(&*running.stop(ms(10_000)).await), [0; 5], "the second attempt is answered");
        assert_eq!(collector.seen.lock().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_connection_over_which_nobody_answers_is_not_used_again() {
    for protocol in BOTH {
        let collector =
            Collector::start(protocol, vec![CollectorReply { hang: true, ..CollectorReply::default() }]).await;
        let exporter = ExporterConfig { timeout: ms(200), ..collector.exporter() };
        let running = metrics(exporter, ms(50), ms(5_000));
        until(|| collector.seen.lock().unwrap().len() >= 2).await;
        assert_eq!(losses(&*running.stop(ms(5_000)).await), [0; 5]);
        assert!(collector.seen.lock().unwrap()[1..].iter().all(|request| request.connection == 1), "{protocol:?}");
    }
}

#[tokio::test]
async fn a_collector_that_wants_to_be_asked_again_at_once_is_not_asked_without_a_pause() {
    let at_once =
        CollectorReply { status: 503, fields: vec![("retry-after", "0".to_owned())], ..CollectorReply::default() };
    let collector = Collector::start(Protocol::HttpProtobuf, vec![at_once; 100_000]).await;
    let running = metrics(collector.exporter(), ms(50), ms(1_200));
    until(|| running.drops.count(DropReason::PointsFailed) > 0).await;
    assert!(collector.seen.lock().unwrap().len() <= 3, "two pauses of half a second fill it");
}

#[tokio::test]
async fn both_protocols_speak_tls_with_a_certificate_of_their_own() {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let mut authority = CertificateParams::new(vec![]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let ca = write("ca.pem", authority.pem());
    let issue = |name: &str, subject: &str| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![subject.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        (write(&format!("{name}.pem"), certificate.pem()), write(&format!("{name}.key"), key.serialize_pem()))
    };
    let strangers = rcgen::generate_simple_self_signed(vec!["gauge".to_owned()]).unwrap();
    let (server, client) = (issue("server", "127.0.0.1"), issue("client", "gauge"));
    let identity = tls::TlsIdentity { cert: &server.0, key: &server.1 };
    let config = Arc::new(tls::server(identity, tls::ClientCertificates::Required(&ca), &["h2", "http/1.1"]).unwrap());
    for protocol in BOTH {
        let collector = Collector::start_with(protocol, vec![], Some(Arc::clone(&config))).await;
        let mut exporter = ExporterConfig { ca: Some(ca.clone()), ..collector.exporter() };
        exporter.endpoint.tls = true;
        let doubtful = ExporterConfig { ca: Some(client.0.clone()), ..exporter.clone() };
        let error = CollectorConnector::new(&doubtful).connect().await.err().unwrap().to_string();
        assert!(error.ends_with("; OTEL_EXPORTER_OTLP_CERTIFICATE names the certificates to trust"), "{error}");
        // Missing files do not stop the exporter: it logs them and tries again.
        let late = folder.path().join(format!("{protocol:?}.pem"));
        let connector = CollectorConnector::new(&ExporterConfig { ca: Some(late.clone()), ..exporter.clone() });
        let error = connector.clone().connect().await.err().unwrap().to_string();
        assert!(
            error.contains(late.to_str().unwrap()) && error.contains("; OTEL_EXPORTER_OTLP_CERTIFICATE"),
            "{error}"
        );
        std::fs::copy(&ca, &late).unwrap();
        assert!(connector.connect().await.is_ok());
        let anonymous = metrics(exporter.clone(), ms(60_000), ms(10_000));
        assert_eq!(losses(&*anonymous.stop(ms(400)).await), [3, 0, 0, 0, 0], "it asks for our certificate");
        // A certificate from another authority, until it is replaced.
        let (cert, key) =
            (write("ours.pem", strangers.cert.pem()), write("ours.key", strangers.signing_key.serialize_pem()));
        exporter.identity = Some(crate::config::ClientIdentity { cert: cert.clone(), key: key.clone() });
        let known = metrics(exporter, ms(60_000), ms(10_000));
        std::fs::copy(&client.0, cert).unwrap();
        std::fs::copy(&client.1, key).unwrap();
        assert_eq!(losses(&*known.stop(ms(10_000)).await), [0; 5]);
        assert_eq!(collector.seen.lock().unwrap().len(), 1);
    }
}
