//! Prompts, answers and credentials are in the stream and nowhere else, as an OTLP library and curl see it.

use super::http_client::curl;
use super::otlp_sink::OtlpSink;
use super::processes::{self, SOON, until};
use super::program::ProxyProcess;
use super::support::privacy::{assert_pages_are_silent, assert_silent, exchange_secrets, serve};
use super::support::upstream::Upstream;

#[test]
fn secrets_are_in_no_log_metric_page_span_or_error() {
    let _turn = processes::shared_turn();
    let (upstream, sink) = (Upstream::start(serve), OtlpSink::start());
    for format in ["text", "json"] {
        let proxy = ProxyProcess::with(upstream.addr, |command| {
            command.args(["--log-level=debug", "--access-log", "--slo=chat: ttft<=5s", "--log-format", format]);
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", sink.http));
            command.env("OTEL_METRIC_EXPORT_INTERVAL", "200").env("OTEL_BSP_SCHEDULE_DELAY", "50");
        });
        let before = sink.spans().len();
        exchange_secrets(proxy.addr, |path, (name, value), body| {
            let (url, field) = (format!("http://{}{path}", proxy.addr), format!("{name}: {value}"));
            curl(&["--http2-prior-knowledge", "--data", body, "--header", &field, "--cookie", "a=canary7f3a", &url]);
        });
        assert_pages_are_silent(proxy.admin);
        until("traces arrive", SOON, || sink.spans().len() >= before + 12);
        until("metrics arrive", SOON, || !sink.metrics().is_empty());
        until("the proxy logs both streams", SOON, || proxy.running.log_count("/v1/chat/completions") >= 2);
        assert_silent(proxy.running.log(), "the log");
    }
    assert_silent(sink.text(), "OTLP");
}
