//! Which request gets which reply.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT, ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use super::body::Body;
use super::state::State;
use super::{Admin, Seat};
use crate::export::gauges::Upstream;
use crate::export::prometheus::{accepts_gzip, negotiate};

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

const PATHS: [(&str, &str); 5] = [
    ("/metrics", "metrics, for Prometheus"),
    ("/livez", "200 while the process turns"),
    ("/readyz", "200 while requests are taken and the upstream can be reached"),
    ("/api/state", "what is going on, and the last requests"),
    ("/api/live", "rates and latencies, once a second"),
];

impl Admin {
    /// The reply to a request.
    pub(super) fn answer<B>(&self, request: &Request<B>, seat: &Arc<Seat>) -> Response<Body> {
        let is_head = *request.method() == Method::HEAD;
        if !is_head && *request.method() != Method::GET {
            let mut refused = json_reply(StatusCode::METHOD_NOT_ALLOWED, &json!({"error": "only GET and HEAD"}));
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match request.uri().path() {
            "/" => reply(StatusCode::OK, TEXT, index().into()),
            "/metrics" => self.metrics(request.headers()),
            "/livez" => json_reply(StatusCode::OK, &json!({"status": "live"})),
            "/readyz" => match self.unready() {
                None => json_reply(StatusCode::OK, &json!({"status": "ready"})),
                Some(reason) => {
                    let told = json!({"status": "not ready", "reason": reason});
                    json_reply(StatusCode::SERVICE_UNAVAILABLE, &told)
                }
            },
            "/api/state" => json_reply(StatusCode::OK, &State::of(&self.telemetry, self.upstream.as_deref())),
            "/api/live" if is_head => reply(StatusCode::OK, "text/event-stream", Vec::new()),
            "/api/live" => self.live(seat),
            _ => {
                let paths = PATHS.map(|(path, _)| path);
                json_reply(StatusCode::NOT_FOUND, &json!({"error": "no such path", "paths": paths}))
            }
        }
    }

    fn metrics(&self, asked: &HeaderMap) -> Response<Body> {
        let format = negotiate(&joined(asked, &ACCEPT));
        let encoded = format.encode(&self.telemetry.snapshot());
        let gzip = accepts_gzip(&joined(asked, &ACCEPT_ENCODING)).then(|| gzipped(&encoded)).flatten();
        let is_gzip = gzip.is_some();
        let mut response = reply(StatusCode::OK, format.content_type(), gzip.unwrap_or(encoded));
        let headers = response.headers_mut();
        headers.insert(VARY, HeaderValue::from_static("accept, accept-encoding"));
        if is_gzip {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }

    fn unready(&self) -> Option<&'static str> {
        let gauges = &self.telemetry.gauges;
        match (gauges.ready(), gauges.upstream()) {
            (false, _) => Some("the proxy takes no requests: it is starting or draining"),
            (true, Upstream::Unreachable) => Some("the upstream cannot be reached"),
            (true, Upstream::Reachable | Upstream::Unknown) => None,
        }
    }

    fn live(&self, seat: &Arc<Seat>) -> Response<Body> {
        let cut = Arc::clone(seat);
        let Some(events) = self.live.subscribe(&self.telemetry, move || cut.cut.notify_one()) else {
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
    response
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

fn gzipped(body: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 8), Compression::fast());
    encoder.write_all(body).ok()?;
    encoder.finish().ok()
}
