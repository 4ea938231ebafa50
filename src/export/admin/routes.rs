//! Which request gets which reply.

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

use super::body::Body;
use super::history::Asked;
use super::page::{self, Asset};
use super::state::State;
use super::{Admin, Seat, host};
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

impl Admin {
    /// The reply to a request.
    pub(super) fn answer<B>(&self, request: &Request<B>, seat: &Arc<Seat>) -> Response<Body> {
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
            "/" if page::is_wanted(&joined(request.headers(), &ACCEPT)) => asset(&page::INDEX, request.headers()),
            "/" => varying(reply(StatusCode::OK, TEXT, index().into()), "accept"),
            "/metrics" => self.metrics(request.headers()),
            "/livez" => json_reply(StatusCode::OK, &json!({"status": "live"})),
            "/readyz" => match self.unready() {
                None => json_reply(StatusCode::OK, &json!({"status": "ready"})),
                Some(reason) => {
                    let told = json!({"status": "not ready", "reason": reason});
                    json_reply(StatusCode::SERVICE_UNAVAILABLE, &told)
                }
            },
            "/api/state" => json_reply(StatusCode::OK, &State::of(&self.telemetry, self.upstream())),
            "/api/live" if is_head => reply(StatusCode::OK, "text/event-stream", Vec::new()),
            "/api/live" => self.live(seat),
            "/api/history" => {
                let asked = Asked::of(request.uri().query().unwrap_or_default());
                let told = self.history.tell(&asked, &self.telemetry, self.upstream());
                packed(reply(StatusCode::OK, JSON, Vec::new()), told, request.headers())
            }
            path if let Some(found) = page::asset(path) => asset(found, request.headers()),
            _ => {
                let paths = PATHS.map(|(path, _)| path);
                json_reply(StatusCode::NOT_FOUND, &json!({"error": "no such path", "paths": paths}))
            }
        }
    }

    fn metrics(&self, asked: &HeaderMap) -> Response<Body> {
        let format = negotiate(&joined(asked, &ACCEPT));
        let encoded = format.encode(&self.telemetry.snapshot());
        let response = packed(reply(StatusCode::OK, format.content_type(), Vec::new()), encoded, asked);
        varying(response, "accept, accept-encoding")
    }

    /// Where requests go to.
    fn upstream(&self) -> Option<&str> {
        let of_run = || self.telemetry.gauges.running().map(|running| &*running.targets);
        self.upstream.as_deref().or_else(of_run)
    }

    fn unready(&self) -> Option<String> {
        let gauges = &self.telemetry.gauges;
        if gauges.ready() {
            return gauges.upstream_failure().map(|why| format!("the upstream cannot be reached: {why}"));
        }
        let why = match gauges.running() {
            Some(_) => "the run sends no more: open requests may end",
            None => "the proxy takes no requests: it is starting or draining",
        };
        Some(why.to_owned())
    }

    fn live(&self, seat: &Arc<Seat>) -> Response<Body> {
        let cut = Arc::clone(seat);
        let Some(events) = self.live.subscribe(move || cut.cut.notify_one()) else {
            let told = json!({"error": "too many live readers"});
            return json_reply(StatusCode::SERVICE_UNAVAILABLE, &told);
        };
        seat.is_stream.store(true, Relaxed);
        let mut response = reply(StatusCode::OK, "text/event-stream", Vec::new());
        *response.body_mut() = Body::Events(events);
        response
    }
}

fn index() -> String {
    let lines = PATHS.map(|(path, about)| format!("{path:<12} {about}\n"));
    format!("Streamgauge {}\n\n{}", env!("CARGO_PKG_VERSION"), lines.concat())
}

fn reply(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::Whole(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A name that a client made up is in some of these: no browser is to take it for a script or a page.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A reply with this body, packed if the client takes that.
fn packed(mut response: Response<Body>, body: Vec<u8>, asked: &HeaderMap) -> Response<Body> {
    let gzip = takes_gzip(asked).then(|| gzipped(&body)).flatten();
    if gzip.is_some() {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    *response.body_mut() = Body::Whole(gzip.unwrap_or(body).into());
    varying(response, "accept-encoding")
}

/// A part of the live page, or only that it has not changed.
fn asset(asset: &'static Asset, asked: &HeaderMap) -> Response<Body> {
    let mut response = if joined(asked, &IF_NONE_MATCH).contains(asset.tag()) {
        let mut response = reply(StatusCode::NOT_MODIFIED, asset.content_type, Vec::new());
        response.headers_mut().remove(CONTENT_TYPE);
        response
    } else if takes_gzip(asked) {
        let mut response = reply(StatusCode::OK, asset.content_type, Vec::new());
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        *response.body_mut() = Body::Whole(Bytes::from_static(asset.packed()));
        response
    } else {
        let mut response = reply(StatusCode::OK, asset.content_type, Vec::new());
        *response.body_mut() = Body::Whole(Bytes::from_static(asset.bytes));
        response
    };
    let headers = response.headers_mut();
    // Kept, and asked about each time: the next version of the program has other assets under the same names.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::try_from(format!("W/{}", asset.tag())) {
        headers.insert(ETAG, tag);
    }
    for (name, value) in page::HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    varying(response, "accept, accept-encoding")
}

fn varying(mut response: Response<Body>, by: &'static str) -> Response<Body> {
    response.headers_mut().insert(VARY, HeaderValue::from_static(by));
    response
}

fn takes_gzip(asked: &HeaderMap) -> bool {
    accepts_gzip(&joined(asked, &ACCEPT_ENCODING))
}

fn json_reply(status: StatusCode, body: &impl Serialize) -> Response<Body> {
    // Our own structures with string keys always serialise.
    reply(status, JSON, serde_json::to_vec(body).unwrap_or_default())
}

/// All values of a header as one list.
fn joined(headers: &HeaderMap, name: &HeaderName) -> String {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}

pub(super) fn gzipped(body: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 8), Compression::fast());
    encoder.write_all(body).ok()?;
    encoder.finish().ok()
}
