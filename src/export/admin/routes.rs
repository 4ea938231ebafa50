//! Routes admin requests to replies.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use super::body::AdminBody;
use super::history::HistoryQuery;
use super::page::{self, Asset};
use super::state::StateResponse;
use super::{AdminConnection, AdminServer, host};
use crate::export::prometheus::{accepts_gzip, negotiate};

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

const PATHS: [(&str, &str); 7] = [
    ("/", "the live page, in a browser; elsewhere this list"),
    ("/metrics", "metrics, for Prometheus"),
    ("/livez", "200 while the process turns"),
    ("/readyz", "200 while requests are taken and the upstream can be reached"),
    ("/api/state", "what is going on, and the last requests"),
    ("/api/live", "rates and latencies, once a second"),
    ("/api/history", "the last quarter of an hour, second by second"),
];

impl AdminServer {
    /// Handles one request.
    pub(super) fn handle<B>(&self, request: &Request<B>, seat: &Arc<AdminConnection>) -> Response<AdminBody> {
        if !host::is_allowed(request, &self.telemetry.admin_hosts()) {
            let told = json!({"error": "this port answers IP addresses, localhost and the names of --admin-hosts"});
            return json_reply(StatusCode::MISDIRECTED_REQUEST, &told);
        }
        let is_head = *request.method() == Method::HEAD;
        if !is_head && *request.method() != Method::GET {
            let mut refused = json_reply(StatusCode::METHOD_NOT_ALLOWED, &json!({"error": "only GET and HEAD"}));
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match request.uri().path() {
            "/" if page::accepts_html(&header_list(request.headers(), &ACCEPT)) => {
                asset(&page::INDEX, request.headers())
            }
            "/" => with_vary(reply(StatusCode::OK, TEXT, index().into()), "accept"),
            "/metrics" => self.metrics(request.headers()),
            "/livez" => json_reply(StatusCode::OK, &json!({"status": "live"})),
            "/readyz" => match self.not_ready_reason() {
                None => json_reply(StatusCode::OK, &json!({"status": "ready"})),
                Some(reason) => {
                    let told = json!({"status": "not ready", "reason": reason});
                    json_reply(StatusCode::SERVICE_UNAVAILABLE, &told)
                }
            },
            "/api/state" => json_reply(StatusCode::OK, &StateResponse::of(&self.telemetry, self.upstream())),
            "/api/live" if is_head => reply(StatusCode::OK, "text/event-stream", Vec::new()),
            "/api/live" => self.live(seat),
            "/api/history" => {
                let asked = HistoryQuery::parse(request.uri().query().unwrap_or_default());
                let told = self.history.render(&asked, &self.telemetry, self.upstream());
                compressed_reply(reply(StatusCode::OK, JSON, Vec::new()), told, request.headers())
            }
            path if let Some(found) = page::asset(path) => asset(found, request.headers()),
            _ => {
                let paths = PATHS.map(|(path, _)| path);
                json_reply(StatusCode::NOT_FOUND, &json!({"error": "no such path", "paths": paths}))
            }
        }
    }

    fn metrics(&self, asked: &HeaderMap) -> Response<AdminBody> {
        let format = negotiate(&header_list(asked, &ACCEPT));
        let encoded = format.encode(&self.telemetry.snapshot());
        let response = compressed_reply(reply(StatusCode::OK, format.content_type(), Vec::new()), encoded, asked);
        with_vary(response, "accept, accept-encoding")
    }

    fn upstream(&self) -> Option<&str> {
        let of_run = || self.telemetry.gauges.run_info().map(|running| &*running.targets);
        self.upstream.as_deref().or_else(of_run)
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
            let told = json!({"error": "too many live readers"});
            return json_reply(StatusCode::SERVICE_UNAVAILABLE, &told);
        };
        seat.is_stream.store(true, Relaxed);
        let mut response = reply(StatusCode::OK, "text/event-stream", Vec::new());
        *response.body_mut() = AdminBody::Events(events);
        response
    }
}

fn index() -> String {
    let lines = PATHS.map(|(path, about)| format!("{path:<12} {about}\n"));
    format!("Streamgauge {}\n\n{}", env!("CARGO_PKG_VERSION"), lines.concat())
}

fn reply(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Response<AdminBody> {
    let mut response = Response::new(AdminBody::Full(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Some replies contain model names chosen by clients: no browser may treat them as a script or a page.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Builds a reply with this body, in gzip if the client accepts it.
fn compressed_reply(mut response: Response<AdminBody>, body: Vec<u8>, asked: &HeaderMap) -> Response<AdminBody> {
    let gzip = takes_gzip(asked).then(|| gzipped(&body)).flatten();
    if gzip.is_some() {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    *response.body_mut() = AdminBody::Full(gzip.unwrap_or(body).into());
    with_vary(response, "accept-encoding")
}

/// Replies with a part of the live page, or 304 if the client's copy is current.
fn asset(asset: &'static Asset, asked: &HeaderMap) -> Response<AdminBody> {
    let mut response = if header_list(asked, &IF_NONE_MATCH).contains(asset.etag()) {
        let mut response = reply(StatusCode::NOT_MODIFIED, asset.content_type, Vec::new());
        response.headers_mut().remove(CONTENT_TYPE);
        response
    } else if takes_gzip(asked) {
        let mut response = reply(StatusCode::OK, asset.content_type, Vec::new());
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        *response.body_mut() = AdminBody::Full(Bytes::from_static(asset.gzipped()));
        response
    } else {
        let mut response = reply(StatusCode::OK, asset.content_type, Vec::new());
        *response.body_mut() = AdminBody::Full(Bytes::from_static(asset.bytes));
        response
    };
    let headers = response.headers_mut();
    // Cached but always revalidated: the next version serves other assets under these names.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::try_from(format!("W/{}", asset.etag())) {
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

fn takes_gzip(asked: &HeaderMap) -> bool {
    accepts_gzip(&header_list(asked, &ACCEPT_ENCODING))
}

fn json_reply(status: StatusCode, body: &impl Serialize) -> Response<AdminBody> {
    // Our own structures with string keys always serialize.
    reply(status, JSON, serde_json::to_vec(body).unwrap_or_default())
}

/// Joins all values of a header into one list.
fn header_list(headers: &HeaderMap, name: &HeaderName) -> String {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}

pub(super) fn gzipped(body: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 8), Compression::fast());
    encoder.write_all(body).ok()?;
    encoder.finish().ok()
}
