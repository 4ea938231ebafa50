//! Request routing and the responses of each path.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, SERVER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;

use super::api_error::ApiError;
use super::body_limiter::BodyLimiter;
use super::engine_driver::{EngineDriver, JobHandle};
use super::events::{EventWriter, quoted};
use super::fault::{self, CutKind, Faults};
use super::metrics;
use super::options::SimOptions;
use super::reply::{ReplyCounter, SimReply, StreamAborted, StreamSettings, TokenStream};
use super::request::{SimRequest, SimRoute};
use super::send_log::SendLogs;
use super::socket::SocketControl;
use super::token_queue::TokenQueue;
use crate::clock::Clock;
use crate::engine::EngineFinish;
use crate::stats::hash::mix;

/// Sent in every response.
const LABEL: HeaderValue = HeaderValue::from_static("streamgauge-sim (simulated)");

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// The client's request id, by which `/sim/sends` finds the stream.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest accepted request id, in bytes; a longer one is ignored.
const MAX_ID: usize = 256;

/// Larger bodies, in bytes, are parsed on a separate thread: parsing a megabyte would delay every stream.
const LARGE_BODY: usize = 256 << 10;

/// State shared by all connections.
#[derive(Debug)]
pub(super) struct RouteContext {
    options: Arc<SimOptions>,
    hub: Arc<EngineDriver>,
    intake: BodyLimiter,
    logs: SendLogs,
    /// Requests so far, for seeds and ids.
    requests: AtomicU64,
    started: u64,
}

impl RouteContext {
    pub(super) fn new(options: SimOptions) -> Self {
        let hub = Arc::new(EngineDriver::new(&options));
        let intake = BodyLimiter::new(options.max_body);
        Self {
            options: Arc::new(options),
            hub,
            intake,
            logs: SendLogs::default(),
            requests: AtomicU64::new(0),
            started: unix_seconds(),
        }
    }

    pub(super) fn hub(&self) -> &EngineDriver {
        &self.hub
    }

    pub(super) fn options(&self) -> &SimOptions {
        &self.options
    }

    /// Responds to one request.
    ///
    /// # Errors
    /// [`StreamAborted`] if a fault ends the connection without a response.
    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
        wire: &Arc<SocketControl>,
    ) -> Result<Response<SimReply>, StreamAborted> {
        let path = request.uri().path();
        let route = match path {
            "/v1/chat/completions" => Some(SimRoute::Chat),
            "/v1/completions" => Some(SimRoute::Completions),
            _ => None,
        };
        let answer = match (route, request.method()) {
            (Some(route), &Method::POST) => return self.generate(route, request, wire).await,
            (None, &Method::GET) => self.page(path, request.uri().query().unwrap_or("")),
            (Some(_), _) => Some(whole(405, JSON, r#"{"detail":"Method Not Allowed"}"#)),
            (None, _) => self.page(path, "").map(|_| whole(405, JSON, r#"{"detail":"Method Not Allowed"}"#)),
        };
        Ok(answer.unwrap_or_else(|| whole(404, JSON, r#"{"detail":"Not Found"}"#)))
    }

    fn page(&self, path: &str, query: &str) -> Option<Response<SimReply>> {
        let models = &self.options.models;
        Some(match path {
            "/health" => whole(200, JSON, ""),
            "/version" => {
                whole(200, JSON, concat!(r#"{"version":""#, env!("CARGO_PKG_VERSION"), r#"+streamgauge-sim"}"#))
            }
            "/metrics" => whole(200, TEXT, self.hub.stats(|stats| metrics::page(stats, &models[0]))),
            "/v1/models" => {
                let (created, longest) = (self.started, self.options.max_model_len);
                let model = |name: &String| {
                    let name = quoted(name);
                    format!(
                        r#"{{"id":{name},"object":"model","created":{created},"owned_by":"streamgauge-sim (simulated)","root":{name},"parent":null,"max_model_len":{longest},"permission":[]}}"#
                    )
                };
                let models: Vec<String> = models.iter().map(model).collect();
                whole(200, JSON, format!(r#"{{"object":"list","data":[{}]}}"#, models.join(",")))
            }
            "/sim/sends" => {
                let id = query.split('&').find_map(|pair| pair.strip_prefix("id=")).map(unescape)?;
                let bare = id.strip_prefix("chatcmpl-").or_else(|| id.strip_prefix("cmpl-"));
                let find = |key| self.logs.page(key, self.options.engine.exact_cadence);
                whole(200, JSON, find(&id).or_else(|| bare.and_then(find))?)
            }
            _ => return None,
        })
    }

    /// Handles the two generating routes.
    async fn generate(
        &self,
        route: SimRoute,
        request: Request<Incoming>,
        wire: &Arc<SocketControl>,
    ) -> Result<Response<SimReply>, StreamAborted> {
        let (head, body) = request.into_parts();
        let parsed = async {
            let faults = faults(&head.headers)?;
            let (body, _room) = self.intake.read(body).await?;
            match faults.status {
                Some(code) => Err(ApiError::with_status(code)),
                None => Ok((faults, self.parse(body, route).await?)),
            }
        };
        let (faults, ask) = match parsed.await {
            Ok(parsed) => parsed,
            Err(error) => return Ok(refuse(&error)),
        };
        if let Some(pause) = faults.slow_headers {
            Clock::Monotonic.sleep(pause).await;
        }
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let drawn = mix(self.options.seed ^ mix(number));
        let seed = ask.seed.unwrap_or(drawn);
        let id = request_id(&head.headers).unwrap_or_else(|| format!("{drawn:016x}"));
        let interval = match (ask.stream, faults.cut) {
            (true, _) => ask.stream_interval,
            // A reply without streaming needs only the final progress, unless it is cut off early.
            (false, None) => u32::MAX,
            (false, Some(_)) => 1,
        };
        let jobs = ask.jobs(seed, faults.stall, &self.options);
        let feed = Arc::new(TokenQueue::new(jobs.len(), interval));
        let Ok(run) = self.hub.submit(jobs, &feed) else { return Ok(refuse(&ApiError::queue_full())) };
        let writer = EventWriter::new(&ask, &id, unix_seconds(), &self.options.models[ask.model], seed);
        let hangup = faults.hangup || (ask.stream && self.options.hangup_after_stream);
        let manner = StreamSettings {
            include_usage: ask.include_usage,
            continuous_usage: ask.continuous_usage,
            metrics: self.options.per_request_metrics,
            cut: faults.cut,
            hangup,
        };
        let tally = ReplyCounter::new(&ask);
        if ask.stream {
            let log = self.logs.begin(&id);
            let stream = TokenStream::new(writer, tally, manner, feed, run, wire.clone(), log);
            return Ok(response(200, EVENTS, SimReply::Stream(Box::new(stream))));
        }
        let body = collect(&writer, tally, manner, &feed, run, wire).await?;
        if hangup {
            wire.hang_up();
        }
        Ok(body.map_or_else(|error| refuse(&error), |body| whole(200, JSON, body)))
    }

    async fn parse(&self, body: Vec<u8>, route: SimRoute) -> Result<SimRequest, ApiError> {
        if body.len() < LARGE_BODY {
            return SimRequest::parse(&body, route, &self.options);
        }
        let options = self.options.clone();
        let parsed = tokio::task::spawn_blocking(move || SimRequest::parse(&body, route, &options)).await;
        parsed.unwrap_or_else(|_| Err(ApiError::bad_request("the body could not be read")))
    }
}

/// Waits for all choices of a reply without streaming.
async fn collect(
    writer: &EventWriter,
    mut tally: ReplyCounter,
    manner: StreamSettings,
    feed: &TokenQueue,
    mut run: JobHandle,
    wire: &SocketControl,
) -> Result<Result<Bytes, ApiError>, StreamAborted> {
    let mut ends = Vec::new();
    loop {
        if let Some(cut) = manner.cut.filter(|cut| tally.tokens() >= u64::from(cut.after)) {
            match cut.kind {
                CutKind::Error => {
                    run.abort(EngineFinish::Error);
                    return Ok(Err(ApiError::injected()));
                }
                CutKind::Reset => wire.reset(),
                CutKind::Close => {}
            }
            return Err(StreamAborted);
        }
        if tally.complete() {
            break;
        }
        let mut piece = tally.book(&feed.next().await);
        if piece.finish.is_some() {
            piece.from = 0;
            ends.push(piece);
        }
    }
    run.ended();
    ends.sort_by_key(|piece| piece.choice);
    let timing = tally.timing().filter(|_| manner.metrics);
    Ok(Ok(writer.whole(&ends, tally.usage(), timing)))
}

/// Combines all fault headers.
fn faults(headers: &HeaderMap) -> Result<Faults, ApiError> {
    let mut text = String::new();
    for value in headers.get_all(fault::HEADER) {
        text.push_str(&String::from_utf8_lossy(value.as_bytes()));
        text.push(',');
    }
    Faults::parse(&text).map_err(|error| ApiError::bad_request(error.to_string()))
}

fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    (!id.is_empty() && id.len() <= MAX_ID).then(|| id.to_owned())
}

fn refuse(error: &ApiError) -> Response<SimReply> {
    whole(error.status(), JSON, error.json())
}

fn whole(status: u16, kind: HeaderValue, body: impl Into<Bytes>) -> Response<SimReply> {
    response(status, kind, SimReply::Whole(Full::new(body.into())))
}

fn response(status: u16, kind: HeaderValue, body: SimReply) -> Response<SimReply> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(SERVER, LABEL);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn unix_seconds() -> u64 {
    Clock::Monotonic.unix_nanos(Clock::Monotonic.now()) / 1_000_000_000
}

/// Decodes percent-encoding; leaves invalid escapes unchanged.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| byte == b'%') {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_signs_are_undone_where_they_are_escapes() {
        assert_eq!(unescape("a%20b%2Fc"), "a b/c");
        assert_eq!(unescape("100%"), "100%");
        assert_eq!(unescape("%zz%4"), "%zz%4");
        assert_eq!(unescape("%ff"), "\u{FFFD}");
    }
}
