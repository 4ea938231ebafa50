//! The engine's own figures for the live page: its queue, cache and counts, scraped from its `/metrics` page.
//!
//! A task of the control runtime reads the page every five seconds, from start to end, and keeps 15 minutes of figures.
//! The page is untrusted: it has a timeout and a size limit, and only numbers under known names are kept
//! ([`server_metrics`](crate::measure::server_metrics)). A failure is shown and logged once, and stops nothing.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::config::EngineMetricsUrl;
use crate::measure::server_metrics::ServerMetric;
use crate::measure::server_metrics::metric_names::figures;
use crate::measure::time::Gap;
use crate::net::{byte_stream, tls};

/// Time between two scrapes. Shorter ones would cost a Python server more than they show.
const SCRAPE_INTERVAL: Gap = Gap::from_millis(5_000);
/// Timeout of a scrape, with its connection.
const SCRAPE_TIMEOUT: Gap = Gap::from_millis(4_000);
/// Page size limit: vLLM's pages have 60 KB, those of a machine with eight GPUs 100 KB.
const MAX_PAGE_BYTES: usize = 4 << 20;
/// 15 minutes, as the history of the live page.
const MAX_SAMPLES: usize = 180;

/// Where the figures come from.
#[derive(Clone, Debug)]
pub struct EngineMetricsSource {
    /// The page.
    pub url: EngineMetricsUrl,
    /// Certificates to trust for `https`, instead of the system's.
    pub ca: Option<PathBuf>,
}

impl EngineMetricsSource {
    /// Reads the page once.
    ///
    /// # Errors
    /// Why there are no figures: the page cannot be read in time, or has none that is known.
    pub async fn scrape(&self, clock: &Clock) -> Result<BTreeMap<ServerMetric, f64>, String> {
        let reply = clock.timeout(SCRAPE_TIMEOUT, self.read()).await;
        reply.unwrap_or_else(|| Err(format!("no answer within {SCRAPE_TIMEOUT}")))
    }

    async fn read(&self) -> Result<BTreeMap<ServerMetric, f64>, String> {
        let EngineMetricsUrl { server, path } = &self.url;
        let tls = server.tls.then(|| tls::client(self.ca.as_deref(), None, &["http/1.1"]).map(Arc::new));
        let tls: Option<Arc<ClientConfig>> = tls.transpose().map_err(|error| error.to_string())?;
        let stream = byte_stream::connect(&server.host, server.port, tls).await;
        let stream =
            stream.map_err(|error| format!("cannot connect: {}", tls::describe_error(error, "upstream_ca")))?;
        let broken = |error: hyper::Error| format!("the connection broke: {error}");
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // Dropping the set stops the connection task on every path.
        let mut driven = JoinSet::new();
        driven.spawn(connection);
        let request = Request::get(path)
            .header(HOST, server.authority())
            .header(USER_AGENT, concat!("streamgauge/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "text/plain;version=0.0.4")
            .header(ACCEPT_ENCODING, "identity")
            .body(Empty::<Bytes>::new());
        let request = request.map_err(|error| error.to_string())?;
        let (head, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
        if head.status != StatusCode::OK {
            return Err(format!("answered {}", head.status.as_u16()));
        }
        let body = Limited::new(body, MAX_PAGE_BYTES).collect().await;
        let body = body.map_err(|error| format!("the page cannot be read: {error}"))?.to_bytes();
        let figures = figures(&String::from_utf8_lossy(&body));
        if figures.is_empty() {
            return Err("the page has no figure of an engine that is known".to_owned());
        }
        Ok(figures)
    }
}

/// The figures of one moment.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct EngineSample {
    unix_ms: u64,
    figures: BTreeMap<ServerMetric, f64>,
}

/// The figures of the last 15 minutes.
#[derive(Debug)]
pub(super) struct EngineMetrics {
    source: EngineMetricsSource,
    state: Mutex<EngineState>,
}

#[derive(Debug, Default)]
struct EngineState {
    /// Oldest first.
    samples: VecDeque<EngineSample>,
    /// Why the last scrape failed.
    failed: Option<String>,
}

/// The response of `/api/engine`; without `--engine-metrics` it has no URL and no samples.
#[derive(Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct EngineResponse {
    url: Option<String>,
    interval_ms: u64,
    failed: Option<String>,
    samples: Vec<EngineSample>,
}

impl EngineMetrics {
    pub(super) fn new(source: EngineMetricsSource) -> Self {
        Self { source, state: Mutex::default() }
    }

    /// Returns the samples after a time in milliseconds since 1970.
    pub(super) fn since(&self, after: Option<u64>) -> EngineResponse {
        let state = self.lock();
        let is_new = |sample: &&EngineSample| after.is_none_or(|after| sample.unix_ms > after);
        EngineResponse {
            url: Some(self.source.url.to_string()),
            interval_ms: SCRAPE_INTERVAL.as_nanos() / 1_000_000,
            failed: state.failed.clone(),
            samples: state.samples.iter().filter(is_new).cloned().collect(),
        }
    }

    /// Scrapes until dropped.
    pub(super) async fn run(self: Arc<Self>, clock: Clock) {
        let mut next = clock.now();
        loop {
            self.record(self.source.scrape(&clock).await, clock.unix_nanos(clock.now()) / 1_000_000);
            next = next.after(SCRAPE_INTERVAL).max(clock.now());
            clock.sleep_until(next).await;
        }
    }

    fn record(&self, result: Result<BTreeMap<ServerMetric, f64>, String>, unix_ms: u64) {
        let mut state = self.lock();
        match result {
            Ok(figures) => {
                state.failed = None;
                if state.samples.len() == MAX_SAMPLES {
                    state.samples.pop_front();
                }
                state.samples.push_back(EngineSample { unix_ms, figures });
            }
            Err(reason) => {
                if state.failed.is_none() {
                    tracing::warn!(url = %self.source.url, reason, "no figures of the engine; remedy: check engine_metrics");
                }
                state.failed = Some(reason);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, EngineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    fn metrics(url: &str) -> EngineMetrics {
        EngineMetrics::new(EngineMetricsSource { url: url.parse().unwrap(), ca: None })
    }

    /// Answers one request with this response, and returns the request.
    async fn answer(listener: TcpListener, response: String) -> String {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4_096];
        let length = socket.read(&mut request).await.unwrap();
        socket.write_all(response.as_bytes()).await.unwrap();
        String::from_utf8(request[..length].to_vec()).unwrap()
    }

    async fn scraped(response: &str) -> (String, Result<BTreeMap<ServerMetric, f64>, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let metrics = metrics(&format!("http://{}/engine/metrics", listener.local_addr().unwrap()));
        tokio::join!(answer(listener, response.to_owned()), metrics.source.scrape(&Clock::Monotonic))
    }

    fn page(status: &str, text: &str) -> String {
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{text}", text.len())
    }

    #[tokio::test]
    async fn a_page_becomes_figures_and_a_failure_its_reason() {
        let text = "vllm:num_requests_waiting{engine=\"0\"} 3\nvllm:kv_cache_usage_perc 0.5\nother 1\n";
        let (request, figures) = scraped(&page("200 OK", text)).await;
        assert!(request.starts_with("GET /engine/metrics HTTP/1.1\r\nhost: 127.0.0.1:"), "{request}");
        assert_eq!(figures, Ok([(ServerMetric::Waiting, 3.0), (ServerMetric::KvUsage, 0.5)].into()));
        let failed = |exchange: (String, Result<_, String>)| exchange.1.unwrap_err();
        assert_eq!(failed(scraped(&page("404 Not Found", text)).await), "answered 404");
        let unknown = "the page has no figure of an engine that is known";
        assert_eq!(failed(scraped(&page("200 OK", "other 1\n")).await), unknown);
        assert!(failed(scraped("nonsense\r\n\r\n").await).starts_with("the connection broke: "));
        let refused = metrics("http://127.0.0.1:1").source.scrape(&Clock::Monotonic).await.unwrap_err();
        assert!(refused.starts_with("cannot connect: Connection refused"), "{refused}");
    }

    #[test]
    fn a_quarter_of_an_hour_is_kept_and_a_failure_is_shown_until_the_next_success() {
        let metrics = metrics("http://h:1");
        let figures = |value: f64| Ok([(ServerMetric::Waiting, value)].into());
        (0..200).for_each(|at| metrics.record(figures(at as f64), at));
        metrics.record(Err("answered 503".to_owned()), 200);
        let response = metrics.since(None);
        assert_eq!((response.samples.len(), response.samples[0].unix_ms), (MAX_SAMPLES, 20));
        assert_eq!(
            (response.url.as_deref(), response.failed.as_deref()),
            (Some("http://h:1/metrics"), Some("answered 503"))
        );
        let new = metrics.since(Some(198));
        assert_eq!(new.samples, [EngineSample { unix_ms: 199, figures: [(ServerMetric::Waiting, 199.0)].into() }]);
        metrics.record(figures(1.0), 201);
        assert_eq!(metrics.since(None).failed, None);
    }
}
