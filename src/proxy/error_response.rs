//! The proxy's own error responses: status, message and origin, in the format of the client's dialect. gRPC clients get
//! a status in the headers and no body.

use std::fmt;

use super::destinations::Refusal;
use super::upstream::UpstreamError;
use crate::measure::dialect::Dialect;
use crate::measure::failure::FailureOrigin;
use crate::measure::record::Ending;
use crate::net::http1::body::BodyError;
use crate::net::http1::{Head, HeadError};

/// Distinguishes the proxy's responses from the upstream's.
pub(super) const ERROR_HEADER: &str = "x-streamgauge-error";

/// The origin of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorOrigin {
    /// The client sent an invalid request.
    Downstream,
    /// The upstream sent no response, or an invalid one.
    Upstream,
    /// A limit of the proxy.
    Proxy,
}

impl ErrorOrigin {
    /// The origin in records.
    pub(super) fn failure_origin(self) -> FailureOrigin {
        match self {
            Self::Downstream => FailureOrigin::Client,
            Self::Upstream => FailureOrigin::Upstream,
            Self::Proxy => FailureOrigin::Proxy,
        }
    }
}

impl fmt::Display for ErrorOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Downstream => "downstream",
            Self::Upstream => "upstream",
            Self::Proxy => "proxy",
        })
    }
}

/// An error that the proxy answers itself.
#[derive(Debug)]
pub(super) struct ProxyError {
    pub(super) status: u16,
    pub(super) origin: ErrorOrigin,
    pub(super) message: String,
}

impl ProxyError {
    pub(super) fn new(status: u16, fault: ErrorOrigin, message: impl Into<String>) -> Self {
        Self { status, origin: fault, message: message.into() }
    }

    /// The stream limit is reached.
    pub(super) fn too_many_streams(limit: usize) -> Self {
        Self::new(503, ErrorOrigin::Proxy, format!("{limit} streams are open, which is the limit (--max-streams)"))
    }

    /// The client uses the proxy as a forward proxy.
    pub(super) fn connect_unsupported() -> Self {
        Self::new(405, ErrorOrigin::Downstream, "CONNECT is for forward proxies; this one has one upstream")
    }

    /// The exchange's ending after the response.
    pub(super) fn ending(&self) -> Ending {
        match self.origin {
            ErrorOrigin::Upstream => Ending::UpstreamFailed,
            ErrorOrigin::Downstream | ErrorOrigin::Proxy => Ending::Complete,
        }
    }

    /// Formats the response to `request` in the client's `dialect`.
    pub(super) fn to_response(&self, request: &Head, dialect: Option<&'static Dialect>) -> ErrorResponse {
        let error = (ERROR_HEADER, format!("{}; {}", self.origin, self.message));
        if let Some(kind) = request.grpc() {
            return ErrorResponse {
                status: 200,
                fields: vec![
                    ("content-type", String::from_utf8_lossy(kind).into_owned()),
                    ("grpc-status", self.grpc_status().to_string()),
                    ("grpc-message", percent_encoded(&self.message)),
                    error,
                ],
                body: String::new(),
            };
        }
        let body = match dialect {
            Some(dialect) => (dialect.error_body)(self.status, &self.message),
            None => serde_json::json!({"error": {"message": self.message, "code": self.status}}).to_string(),
        };
        ErrorResponse {
            status: self.status,
            fields: vec![("content-type", "application/json".to_owned()), error],
            body,
        }
    }

    /// The gRPC status code for the HTTP status. Clients may retry after UNAVAILABLE and RESOURCE_EXHAUSTED.
    fn grpc_status(&self) -> u8 {
        const INVALID_ARGUMENT: u8 = 3;
        const RESOURCE_EXHAUSTED: u8 = 8;
        const UNIMPLEMENTED: u8 = 12;
        const UNAVAILABLE: u8 = 14;
        match (self.origin, self.status) {
            (ErrorOrigin::Upstream, _) => UNAVAILABLE,
            (ErrorOrigin::Proxy, _) | (_, 431) => RESOURCE_EXHAUSTED,
            (ErrorOrigin::Downstream, 501) => UNIMPLEMENTED,
            (ErrorOrigin::Downstream, _) => INVALID_ARGUMENT,
        }
    }
}

/// An error response.
#[derive(Debug)]
pub(super) struct ErrorResponse {
    pub(super) status: u16,
    pub(super) fields: Vec<(&'static str, String)>,
    /// Empty for gRPC: its clients read a head that ends the stream as trailers.
    pub(super) body: String,
}

impl ErrorResponse {
    /// Writes the response for HTTP/1.1; the connection closes after it.
    pub(super) fn write(&self, out: &mut Vec<u8>, to_head: bool) {
        let reason = http::StatusCode::from_u16(self.status).ok().and_then(|status| status.canonical_reason());
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, reason.unwrap_or_default());
        for (name, value) in &self.fields {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("content-length: {}\r\nconnection: close\r\n\r\n", self.body.len());
        out.extend_from_slice(head.as_bytes());
        if !to_head {
            out.extend_from_slice(self.body.as_bytes());
        }
    }
}

/// Encodes a `grpc-message`: percent-encodes `%` and everything outside printable ASCII.
fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

impl From<HeadError> for ProxyError {
    /// An invalid request head.
    fn from(error: HeadError) -> Self {
        let status = match error {
            HeadError::TooLarge => 431,
            HeadError::UnknownCoding => 501,
            HeadError::Malformed(_) | HeadError::Ambiguous(_) => 400,
        };
        Self::new(status, ErrorOrigin::Downstream, error.to_string())
    }
}

impl From<Refusal> for ProxyError {
    /// A connection without a destination.
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.status, ErrorOrigin::Proxy, refusal.message)
    }
}

impl From<BodyError> for ProxyError {
    /// An invalid request body.
    fn from(error: BodyError) -> Self {
        Self::new(400, ErrorOrigin::Downstream, error.to_string())
    }
}

impl From<&UpstreamError> for ProxyError {
    fn from(broken: &UpstreamError) -> Self {
        let (status, fault) = match broken {
            UpstreamError::NoDescriptor { .. } => (503, ErrorOrigin::Proxy),
            UpstreamError::ConnectTimeout { .. } => (504, ErrorOrigin::Upstream),
            _ => (502, ErrorOrigin::Upstream),
        };
        Self::new(status, fault, broken.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::dialect;

    #[test]
    fn a_refusal_speaks_the_dialect_and_names_the_fault() {
        let refusal = ProxyError::from(HeadError::Ambiguous("several Content-Length fields"));
        let mut out = Vec::new();
        refusal.to_response(&Head::default(), dialect::for_path("/v1/chat/completions")).write(&mut out, false);
        let text = String::from_utf8(out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"));
        assert!(
            head.contains("x-streamgauge-error: downstream; ambiguous body length: several Content-Length fields\r\n")
        );
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())));
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["type"], "invalid_request_error");
        assert_eq!(body["error"]["code"], 400);
    }
    #[test]
    fn a_refusal_of_a_grpc_call_is_a_status_of_grpc() {
        let mut request = Head::default();
        request.compose_request("POST", "/a.B/C");
        request.push(b"content-type", b"application/grpc+proto; x=y");
        let grpc_status_of = |refusal: ProxyError| {
            let answer = refusal.to_response(&request, None);
            let field = |name| answer.fields.iter().find(|field| field.0 == name).unwrap().1.clone();
            assert_eq!((answer.status, answer.body.as_str()), (200, ""));
            assert_eq!(field("content-type"), "application/grpc+proto");
            (field("grpc-status"), field("grpc-message"), field(ERROR_HEADER))
        };
        let texts =
            |status: &str, message: &str, error: &str| (status.to_owned(), message.to_owned(), error.to_owned());
        let down = ProxyError::new(502, ErrorOrigin::Upstream, "100 % f\u{fc}r A");
        assert_eq!(grpc_status_of(down), texts("14", "100 %25 f%C3%BCr A", "upstream; 100 % f\u{fc}r A"));
        assert_eq!(grpc_status_of(ProxyError::too_many_streams(1)).0, "8");
        assert_eq!(grpc_status_of(ProxyError::from(HeadError::TooLarge)).0, "8");
        assert_eq!(grpc_status_of(ProxyError::from(HeadError::UnknownCoding)).0, "12");
        assert_eq!(grpc_status_of(ProxyError::from(HeadError::Malformed("it ends early"))).0, "3");
    }
}
