//! Routes admin requests to replies.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use serde_json::json;

use super::access::AdminRole;
use super::body::{AdminBody, JSON, json_reply, reply};
use super::history::HistoryQuery;
use super::log_level::{log_level, put_log_level};
use super::page::{self, Asset};
use super::requests::RequestsResponse;
use super::state::StateResponse;
use super::{AdminConnection, AdminServer};
use crate::export::prometheus::negotiate;

const TEXT: &str = "text/plain; charset=utf-8";

const PATHS: [(&str, &str); 11] = [
    ("/", "the live page, in a browser; elsewhere this list"),
    ("/metrics", "metrics, for Prometheus"),
    ("/livez", "200 while the process turns"),
    ("/readyz", "200 while requests are taken and the upstream can be reached"),
    ("/api/state", "what is going on, and the last requests"),
    ("/api/requests", "the last 500 requests, by ids and times"),
    ("/api/engine", "the engine's own figures, with --engine-metrics"),
    ("/api/live", "rates and latencies, once a second"),
    ("/api/history", "the last quarter of an hour, second by second"),
    ("/config", "the configuration in force, without secrets"),
    ("/log-level", "the log level; PUT changes it"),
];

impl AdminServer {
    /// Handles one request, reading its body if it changes something.
    pub(super) async fn respond<B>(&self, request: Request<B>, seat: &Arc<AdminConnection>) -> Response<AdminBody>
    where
        B: http_body::Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static>,
    {
        let is_put = *request.method() == Method::PUT && request.uri().path() == "/log-level";
        match self.telemetry.process_control().filter(|_| is_put) {
            Some(control) => put_log_level(control, request.into_body(), &self.telemetry.clock).await,
            None => self.handle(&request, seat),
        }
    }

    /// Handles a request that changes nothing.
    fn handle<B>(&self, request: &Request<B>, seat: &Arc<AdminConnection>) -> Response<AdminBody> {
        let is_head = *request.method() == Method::HEAD;
        if !is_head && *request.method() != Method::GET {
            let mut refused =
                json_reply(StatusCode::METHOD_NOT_ALLOWED, &json!({"error": "only GET and HEAD, and PUT /log-level"}));
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match request.uri().path() {
            "/" if page::accepts_html(&header_list(request.headers(), &ACCEPT)) => {
                asset(&page::INDEX, request.headers())
            }
            "/" => with_vary(reply(StatusCode::OK, TEXT, self.index()), "accept"),
            "/metrics" => self.metrics(request.headers()),
            "/livez" => json_reply(StatusCode::OK, &json!({"status": "live"})),
            "/readyz" => match self.not_ready_reason() {
                None => json_reply(StatusCode::OK, &json!({"status": "ready"})),
                Some(reason) => {
                    // The reason names the upstream's address, which a probe without a token does not need.
                    let is_known = request.extensions().get::<AdminRole>() > Some(&AdminRole::Probe);
                    let status = json!({"status": "not ready", "reason": is_known.then_some(reason)});
                    json_reply(StatusCode::SERVICE_UNAVAILABLE, &status)
                }
            },
            "/api/state" => json_reply(StatusCode::OK, &StateResponse::of(&self.telemetry, self.upstream())),
            "/api/requests" => {
                let query = request.uri().query().unwrap_or_default();
                json_reply(StatusCode::OK, &RequestsResponse::of(&self.telemetry, query))
            }
            "/api/engine" => {
                let query = request.uri().query().unwrap_or_default();
                let after = query.split('&').find_map(|pair| pair.strip_prefix("after=")?.parse().ok());
                let response = self.engine.as_ref().map(|engine| engine.since(after));
                json_reply(StatusCode::OK, &response.unwrap_or_default())
            }
            "/api/live" if is_head => reply(StatusCode::OK, "text/event-stream", ""),
            "/api/live" => self.live(seat),
            "/api/history" => {
                let query = HistoryQuery::parse(request.uri().query().unwrap_or_default());
                let body = self.history.render(&query, &self.telemetry, self.upstream());
                reply(StatusCode::OK, JSON, body)
            }
            "/config" if let Some(control) = self.telemetry.process_control() => {
                reply(StatusCode::OK, TEXT, control.config())
            }
            "/log-level" if let Some(control) = self.telemetry.process_control() => log_level(control),
            path if let Some(found) = page::asset(path) => asset(found, request.headers()),
            _ => {
                let paths: Vec<&str> = self.paths().map(|(path, _)| path).collect();
                json_reply(StatusCode::NOT_FOUND, &json!({"error": "no such path", "paths": paths}))
            }
        }
    }

    fn metrics(&self, headers: &HeaderMap) -> Response<AdminBody> {
        let format = negotiate(&header_list(headers, &ACCEPT));
        let encoded = format.encode(&self.telemetry.snapshot());
        with_vary(reply(StatusCode::OK, format.content_type(), encoded), "accept, accept-encoding")
    }

    fn upstream(&self) -> Option<&str> {
        let of_run = || self.telemetry.gauges.run_info().map(|running| &*running.targets);
        self.upstream.as_deref().or_else(of_run)
    }

    /// The paths that this process serves: one without control of its settings, such as a run, has neither of them.
    fn paths(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let has_control = self.telemetry.process_control().is_some();
        PATHS.into_iter().filter(move |(path, _)| has_control || !matches!(*path, "/config" | "/log-level"))
    }

    fn index(&self) -> String {
        let lines: String = self.paths().map(|(path, about)| format!("{path:<13} {about}\n")).collect();
        format!("Streamgauge {}\n\n{lines}", env!("CARGO_PKG_VERSION"))
    }

    fn not_ready_reason(&self) -> Option<String> {
        let gauges = &self.telemetry.gauges;
        if gauges.ready() {
            return gauges.upstream_failure().map(|why| format!("the upstream cannot be reached: {why}"));
        }
        let why = match gauges.run_info() {
            Some(_) => "the run sends no more: open requests may end",
            None => "the proxy takes no requests: it is starting or draining",
        };
        Some(why.to_owned())
    }

    fn live(&self, seat: &Arc<AdminConnection>) -> Response<AdminBody> {
        let cut = Arc::clone(seat);
        let Some(events) = self.live.subscribe(move || cut.disconnect.notify_one()) else {
            let message = json!({"error": "too many live readers"});
            return json_reply(StatusCode::SERVICE_UNAVAILABLE, &message);
        };
        seat.is_stream.store(true, Relaxed);
        let mut response = reply(StatusCode::OK, "text/event-stream", "");
        *response.body_mut() = AdminBody::Events(events);
        response
    }
}

/// Replies to a request whose handler panicked.
pub(super) fn internal_error(_panic: Box<dyn Any + Send>) -> Response<AdminBody> {
    json_reply(StatusCode::INTERNAL_SERVER_ERROR, &json!({"error": "internal error; the log has the panic"}))
}

/// Replies to a request of another site's page that would change something.
pub(super) fn cross_site() -> Response<AdminBody> {
    json_reply(StatusCode::FORBIDDEN, &json!({"error": "a page of another site may not change anything here"}))
}

/// Replies with a part of the live page, or 304 if the client's copy is current.
fn asset(asset: &'static Asset, request_headers: &HeaderMap) -> Response<AdminBody> {
    let tag = asset.etag();
    let mut response = if header_list(request_headers, &IF_NONE_MATCH).contains(&tag) {
        let mut response = Response::new(AdminBody::Full(Bytes::new()));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        reply(StatusCode::OK, asset.content_type, asset.bytes)
    };
    let headers = response.headers_mut();
    // Cached but always revalidated: the next version serves other assets under these names.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Weak, because the compressed form shares it.
    if let Ok(tag) = HeaderValue::try_from(format!("W/{tag}")) {
        headers.insert(ETAG, tag);
    }
    for (name, value) in page::HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    with_vary(response, "accept, accept-encoding")
}

fn with_vary(mut response: Response<AdminBody>, by: &'static str) -> Response<AdminBody> {
    response.headers_mut().insert(VARY, HeaderValue::from_static(by));
    response
}

/// Joins all values of a header into one list.
fn header_list(headers: &HeaderMap, name: &HeaderName) -> String {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}
