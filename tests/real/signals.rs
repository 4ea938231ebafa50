//! Effects of the signals to stop and to reload the configuration, with a stream open.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::Signal::{self, SIGHUP, SIGINT, SIGTERM};
use serde_json::json;

use super::http_client::json;
use super::otlp_sink::OtlpSink;
use super::processes::{self, SOON, until};
use super::program::{ProxyProcess, count, sum};
use super::support::client::{Client, chat};
use super::support::upstream::{Upstream, reports};

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const EVENT: &str = "data: {\"id\":\"c-1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"deep\"}}]}\n\n";
const LAST: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

/// A server whose one stream continues on the test's command.
struct Slow {
    addr: SocketAddr,
    go_on: Sender<&'static str>,
    closed: Box<dyn Fn() -> bool>,
    _upstream: Upstream,
}

impl Slow {
    fn start() -> Self {
        let (go_on, pieces) = channel();
        let pieces: Arc<Mutex<Receiver<&str>>> = Arc::new(Mutex::new(pieces));
        let (close, closed) = reports();
        let upstream = Upstream::start(move |mut conn| {
            while conn.request().is_some() {
                conn.send(HEAD);
                conn.chunk(EVENT);
                while let Ok(piece) = pieces.lock().unwrap().recv() {
                    conn.chunk(piece);
                    if piece == LAST {
                        conn.send("0\r\n\r\n");
                        break;
                    }
                }
            }
            close(true);
        });
        Self { addr: upstream.addr, go_on, closed: Box::new(closed), _upstream: upstream }
    }

    /// The rest of the stream.
    fn finish(&self) {
        for piece in [EVENT, EVENT, LAST] {
            self.go_on.send(piece).unwrap();
        }
    }
}

/// A client with an open stream, of which the first event has come.
fn streaming(proxy: &ProxyProcess) -> Client {
    let mut client = proxy.client();
    client.send(chat("{\"model\":\"river\",\"stream\":true}"));
    assert!(client.head().starts_with("HTTP/1.1 200 OK\r\n"));
    until("the stream is open", SOON, || {
        sum(&proxy.scrape(), "streamgauge_stream_active", &[("phase", "streaming")]) == 1.0
    });
    client
}

/// The stream after its head; true if it was truncated.
fn rest(client: &mut Client) -> (String, bool) {
    let response = client.body_of(HEAD.to_owned());
    (response.text(), response.truncated)
}

/// A proxy that exports to `sink` at its end only.
fn flushing(server: SocketAddr, sink: &OtlpSink, flags: &[&str]) -> ProxyProcess {
    ProxyProcess::with(server, |command| {
        command.args(flags).env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", sink.grpc));
        command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
        command.env("OTEL_METRIC_EXPORT_INTERVAL", "600000").env("OTEL_BSP_SCHEDULE_DELAY", "600000");
        command.env("OTEL_BLRP_SCHEDULE_DELAY", "600000");
    })
}

/// Streams with this end, by the collector's count.
fn ended(sink: &OtlpSink, reason: &str) -> f64 {
    sum(&sink.metrics(), "streamgauge_stream_terminations_total", &[("reason", reason)])
}

#[test]
fn after_sigterm_no_connection_is_accepted_and_open_streams_finish() {
    let _turn = processes::shared_turn();
    for signal in [SIGTERM, SIGINT] {
        let (server, sink) = (Slow::start(), OtlpSink::start());
        let mut proxy = flushing(server.addr, &sink, &[]);
        until("the upstream is known to be there", SOON, || proxy.page("/readyz").status() == 200);
        let (mut client, mut idle) = (streaming(&proxy), proxy.client());
        proxy.running.signal(signal);
        until("it is no longer ready", SOON, || proxy.page("/readyz").status() == 503);
        assert_eq!(json(&proxy.page("/readyz"))["reason"], "the proxy takes no requests: it is starting or draining");
        until("nobody listens", SOON, || TcpStream::connect(proxy.addr).is_err());
        assert_eq!((idle.rest(), proxy.page("/livez").status()), (Vec::new(), 200));
        assert!(proxy.running.ended(Duration::from_millis(300)).is_none(), "a stream is open");

        server.finish();
        assert_eq!(rest(&mut client), ([EVENT, EVENT, EVENT, LAST].concat(), false));
        let (status, _) = proxy.running.ended(SOON).expect("it ends with its last stream");
        assert_eq!(status.code(), Some(0));
        let counted = sink.metrics();
        assert_eq!(count(&counted, "http_server_request_duration_seconds", &[]), 1);
        assert_eq!((ended(&sink, "done"), sink.spans().len()), (1.0, 2), "telemetry was flushed");
        assert_eq!(proxy.running.log_count("stopping: open streams may finish within 10m"), 1);
    }
}

/// The end of a drain: its time, or a second signal.
fn cut(flags: &[&str], again: Option<Signal>) {
    let (server, sink) = (Slow::start(), OtlpSink::start());
    let mut proxy = flushing(server.addr, &sink, flags);
    let mut client = streaming(&proxy);
    proxy.running.signal(SIGTERM);
    until("it is told", SOON, || proxy.running.log_count("stopping") > 0);
    if let Some(signal) = again {
        proxy.running.signal(signal);
    }
    let (status, _) = proxy.running.ended(SOON).expect("it ends though a stream is open");
    assert_eq!(status.code(), Some(0));
    assert_eq!(rest(&mut client), (EVENT.to_owned(), true));
    // Now the server looks at what its client does.
    drop(server.go_on);
    assert!((server.closed)(), "the upstream is let go");
    assert_eq!((ended(&sink, "timeout"), sink.spans().len()), (1.0, 2), "the stream that was cut is told of");
    assert_eq!(sum(&sink.metrics(), "streamgauge_stream_output_tokens_total", &[]), 1.0);
}

#[test]
fn a_second_signal_ends_it_now() {
    let _turn = processes::shared_turn();
    cut(&[], Some(SIGTERM));
    cut(&[], Some(SIGINT));
}

#[test]
fn the_time_to_drain_ends_it_too() {
    let _turn = processes::shared_turn();
    cut(&["--drain=200ms"], None);
    cut(&["--drain=0"], None);
}

fn write(file: &Path, settings: &[&str]) {
    // In one step, as an editor or a mounted volume does.
    let fresh = file.with_extension("new");
    std::fs::write(&fresh, settings.join("\n")).unwrap();
    std::fs::rename(&fresh, file).unwrap();
}

/// Waits until the log has these words at least this often.
fn until_logged(proxy: &ProxyProcess, words: &str, times: usize) {
    until(words, SOON, || proxy.running.log_count(words) >= times);
}

const LOADED: &str = "the configuration was loaded again";
const KEPT: &str = "the old configuration stays in force";
const ACCESS: &str = "streamgauge::access";

#[test]
fn it_loads_its_configuration_again_without_harm_to_an_open_stream() {
    let _turn = processes::shared_turn();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("proxy.yaml");
    write(&file, &["stall: 5s"]);
    let server = Slow::start();
    let mut proxy = ProxyProcess::with(server.addr, |command| {
        command.arg(format!("--config={}", file.display()));
    });
    let digest = || json(&proxy.page("/api/state"))["config_digest"].take();
    let (mut client, first) = (streaming(&proxy), digest());

    // On the signal.
    write(&file, &["stall: 5s", "access_log: true", "slos: ['chat: ttft<=60s']", "workers: 7"]);
    proxy.running.signal(SIGHUP);
    until_logged(&proxy, LOADED, 1);
    until_logged(&proxy, "these settings need a restart: workers", 1);
    let second = digest();
    assert_ne!(first, second);
    server.finish();
    assert_eq!(rest(&mut client), ([EVENT, EVENT, EVENT, LAST].concat(), false));
    proxy.settled(1);
    until_logged(&proxy, ACCESS, 1);

    // A bad file changes nothing.
    write(&file, &["stall: 5s", "access_log: perhaps"]);
    proxy.running.signal(SIGHUP);
    until_logged(&proxy, KEPT, 1);
    let complaint = proxy.running.log();
    let complaint = &complaint[complaint.rfind(LOADED).unwrap()..];
    assert!(complaint.contains("proxy.yaml:2") && complaint.contains("access_log"), "{complaint}");
    assert_eq!(digest(), second);
    let mut client = streaming(&proxy);
    server.finish();
    assert_eq!(rest(&mut client), ([EVENT, EVENT, EVENT, LAST].concat(), false));
    let met = [("slo", "chat"), ("result", "met")];
    assert_eq!(sum(&proxy.settled(2), "streamgauge_slo_requests_total", &met), 1.0, "only the request that came after");

    // It watches the file by itself, and logs nothing about a known one.
    let so_far = || [LOADED, KEPT].map(|words| proxy.running.log_count(words));
    let before = so_far();
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(so_far(), before);
    write(&file, &["stall: 7s", "access_log: false"]);
    until_logged(&proxy, LOADED, before[0] + 1);
    assert_ne!(digest(), second);
    let mut client = streaming(&proxy);
    server.finish();
    rest(&mut client);
    proxy.settled(3);
    let state = json(&proxy.page("/api/state"));
    let outcomes: Vec<_> = state["recent"].as_array().unwrap().iter().map(|request| &request["outcome"]).collect();
    assert_eq!(outcomes, [&json!("success"); 3]);
    proxy.running.signal(SIGTERM);
    assert!(proxy.running.ended(SOON).is_some());
    assert_eq!(proxy.running.log_count(ACCESS), 2, "of three requests two were made while access lines were on");
}

#[test]
fn it_is_gone_in_a_moment_when_nothing_is_open() {
    let _turn = processes::shared_turn();
    let server = Slow::start();
    // Signals are handled from the first moment in which the process serves.
    for _ in 0..10 {
        let mut proxy = ProxyProcess::to(server.addr);
        // Connections that are kept and owe nothing do not hold it.
        let _idle: Vec<Client> = (0..3).map(|_| proxy.client()).collect();
        proxy.running.signal(SIGTERM);
        let (status, took) = proxy.running.ended(SOON).expect("it ends");
        assert_eq!(status.code(), Some(0));
        assert!(took < SOON / 2, "nothing was waited for");
    }
}
