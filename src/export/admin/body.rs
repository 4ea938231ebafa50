//! Responses and their bodies: complete, or a stream of events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body::{Frame, SizeHint};
use serde::Serialize;
use tokio::sync::mpsc;

pub(super) const JSON: &str = "application/json";

/// Body of an admin response.
#[derive(Debug)]
pub(super) enum AdminBody {
    Full(Bytes),
    Events(mpsc::Receiver<Bytes>),
}

impl http_body::Body for AdminBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Events(events) => events.poll_recv(cx).map(|event| event.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

/// Makes a complete response.
pub(super) fn reply(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<AdminBody> {
    let mut response = Response::new(AdminBody::Full(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Makes a response of JSON.
pub(super) fn json_reply(status: StatusCode, body: &impl Serialize) -> Response<AdminBody> {
    // Our own structures with string keys always serialize.
    reply(status, JSON, serde_json::to_vec(body).unwrap_or_default())
}
