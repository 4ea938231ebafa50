//! A single HTTP request outside the load, with its complete response: for server information and tokenizers.
//!
//! Responses are untrusted: their size is limited here, and callers set the timeout.

use std::io;
use std::rc::Rc;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HOST};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;

use crate::net::io::TimestampedIo;
use crate::replay::sender::target::{TargetConnector, TargetUrl};
use crate::trace_file::PROBE_HEADER;

pub(in crate::replay) struct FetchRequest<'a> {
    /// The server. Its base path is not applied.
    pub(in crate::replay) target: &'a TargetUrl,
    pub(in crate::replay) path: &'a str,
    pub(in crate::replay) accept: &'static str,
    /// Additional header lines, as (name, value). They may hold credentials.
    pub(in crate::replay) fields: &'a [(String, String)],
    /// JSON body of a POST; `None` sends a GET.
    pub(in crate::replay) body: Option<Vec<u8>>,
}

#[derive(Debug, thiserror::Error)]
pub(in crate::replay) enum FetchError {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("the connection broke: {0}")]
    Connection(Box<dyn std::error::Error + Send + Sync>),
    #[error("answered {}", .0.as_u16())]
    Status(StatusCode),
    #[error("answered in a coding that was not asked for")]
    UnsupportedEncoding,
    #[error("the page is larger than {} MiB", .0 >> 20)]
    TooLarge(usize),
}

/// Sends the request on a new connection and returns the body of a successful response, of at most `most` bytes. It
/// needs a `LocalRuntime`.
pub(in crate::replay) async fn fetch(
    connector: &TargetConnector,
    question: FetchRequest<'_>,
    most: usize,
) -> Result<Bytes, FetchError> {
    let io = connector.connect().await.map_err(FetchError::Connect)?;
    let broken = |error: hyper::Error| FetchError::Connection(error.into());
    let io = TokioIo::new(TimestampedIo::new(io, Vec::new(), Rc::default()));
    let (mut sender, connection) = handshake::<_, Full<Bytes>>(io).await.map_err(broken)?;
    // Dropping the set stops the connection task on every path.
    let mut driven = JoinSet::new();
    driven.spawn_local(connection);
    let (head, body) = sender.send_request(question.into_http()).await.map_err(broken)?.into_parts();
    if !head.status.is_success() {
        return Err(FetchError::Status(head.status));
    }
    if head.headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return Err(FetchError::UnsupportedEncoding);
    }
    let body = Limited::new(body, most).collect().await.map_err(|error| match error.is::<LengthLimitError>() {
        true => FetchError::TooLarge(most),
        false => FetchError::Connection(error),
    })?;
    Ok(body.to_bytes())
}

impl FetchRequest<'_> {
    fn into_http(self) -> Request<Full<Bytes>> {
        let own = [
            (HeaderName::from_static(PROBE_HEADER), "1".to_owned()),
            (HOST, self.target.authority()),
            (ACCEPT, self.accept.to_owned()),
            (ACCEPT_ENCODING, "identity".to_owned()),
        ];
        let json = self.body.is_some().then(|| (CONTENT_TYPE, "application/json".to_owned()));
        let given = self.fields.iter().filter_map(|(name, value)| Some((name.parse().ok()?, value.clone())));
        let method = if self.body.is_some() { Method::POST } else { Method::GET };
        let mut request = Request::new(Full::from(self.body.unwrap_or_default()));
        *request.method_mut() = method;
        // A path from a parsed URL is valid in a request.
        *request.uri_mut() = self.path.parse().unwrap_or_default();
        for (name, value) in own.into_iter().chain(json).chain(given) {
            let name: HeaderName = name;
            if let Ok(value) = HeaderValue::try_from(value) {
                request.headers_mut().insert(name, value);
            }
        }
        request
    }
}
