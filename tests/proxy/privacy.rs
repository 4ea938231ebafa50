//! Prompts, answers and credentials are in the stream and nowhere else: in no capture, log, metric, span, page or error
//! of the proxy.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::support::captured::{rows, run_under, until};
use crate::support::client::Client;
use crate::support::privacy::{assert_pages_are_silent, assert_silent, exchange_secrets, serve};
use crate::support::upstream::Upstream;
use crate::support::{http2, unused_address};

/// Every file of a capture, as it is and unpacked, and its name.
fn assert_capture_is_silent(folder: &Path) {
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 3, "a segment, the key and the lock: {files:?}");
    for file in files {
        let name = file.display().to_string();
        let raw = fs::read(&file).unwrap();
        let plain = zstd::stream::decode_all(&raw[..]).unwrap_or_default();
        [name.as_bytes(), &raw, &plain].iter().for_each(|bytes| assert_silent(bytes, &name));
    }
}

#[test]
fn secrets_are_in_no_capture_log_metric_page_span_or_error() {
    let upstream = Upstream::start(serve);
    for (format, session) in [("text", "header:x-session-id"), ("json", "body:metadata.user_id")] {
        let folder = TempDir::new().unwrap();
        let (collector, exports) = Upstream::collector();
        let endpoint = format!("OTEL_EXPORTER_OTLP_ENDPOINT=http://{}", collector.addr);
        let under = ["env", &endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_BSP_SCHEDULE_DELAY=50"];
        let headers = "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20canary7f3a";
        let under = [&under[..], &[headers, "OTEL_BLRP_SCHEDULE_DELAY=50"]].concat();
        let log = format!("--log-format={format}");
        let session = format!("--capture-session={session}");
        let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizers/tiny.json");
        let tokenizers = [format!("--capture-tokenizer={tokenizer}"), format!("--tokenizer=*={tokenizer}")];
        let more = ["--access-log", "--log-level=debug", "--slo=chat: ttft<=5s", &log, &session];
        let more = [&more[..], &[&tokenizers[0], &tokenizers[1]]].concat();
        let mut run = run_under(&under, upstream.addr, folder.path(), &more);

        exchange_secrets(run.listen, |path, (name, value), body| {
            let request = http::Request::post(format!("http://a{path}")).header(name, value);
            let request = request.body(body.to_owned().into()).unwrap();
            assert_eq!(http2::request(run.listen, None, request, None).status, 200);
        });
        until("the proxy logs both streams", || run.log().matches("output_tokens").count() >= 2);
        until("the sessions are on the page", || run.page("/api/state").contains("\"latest\""));
        assert_pages_are_silent(run.admin);
        run.terminate();
        assert!(run.log().contains("tokens_from"), "access lines: {}", run.log());
        assert_silent(run.log(), "the log");
        let exports = exports.lock().unwrap();
        let logs = ["streamgauge::access", "tokens_from", "forwarding"];
        for known in ["gen_ai.server.request.duration", "chat llama", "gen_ai.conversation.id"].into_iter().chain(logs)
        {
            assert!(String::from_utf8_lossy(&exports).contains(known), "{known} was not exported");
        }
        assert_silent(&*exports, "OTLP");
        assert_capture_is_silent(folder.path());
        let rows = rows(folder.path());
        // The first request names its parent in a header, if sessions are named in one.
        assert_eq!(rows[0].parent.is_some(), session.contains("header:"));
        let models: Vec<_> = rows.into_iter().filter_map(|row| row.model).collect();
        assert_eq!(models, ["llama", "_other", "llama"]);
    }
}

#[test]
fn credentials_of_the_exporter_are_in_no_log_or_page() {
    let upstream = Upstream::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    // A collector that quotes what it was sent, and one that is not there.
    let collector = Upstream::start(|mut conn| {
        while conn.request().is_some() {
            conn.send("HTTP/1.1 401 canary7f3a\r\nContent-Length: 0\r\nWWW-Authenticate: canary7f3a\r\n\r\n");
        }
    });
    let (_held, unused) = unused_address();
    let under = [
        "env",
        &format!("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://{}/v1/metrics?token=canary7f3a", collector.addr),
        &format!("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://{unused}/?token=canary7f3a"),
        "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
        "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20canary7f3a,x-canary7f3a=%zz",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS=authorization=Bearer%20canary7f3a",
        "OTEL_METRIC_EXPORT_INTERVAL=100",
        "OTEL_BSP_SCHEDULE_DELAY=50",
        "OTEL_BSP_EXPORT_TIMEOUT=100",
    ];
    let folder = TempDir::new().unwrap();
    let run = run_under(&under, upstream.addr, folder.path(), &["--log-level=debug", "--access-log"]);
    Client::connect(run.listen).send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").response();
    until("both exports fail", || run.log().matches("OTLP export failed").count() == 2);
    assert!(collector.heads()[0].contains("token=canary7f3a"));
    assert!(run.log().contains("OTEL_EXPORTER_OTLP_HEADERS is ignored"), "{}", run.log());
    assert_silent(run.log(), "the log");
    assert_silent(run.page("/api/state"), "/api/state");
}
