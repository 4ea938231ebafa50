//! Answers of our own: what is wrong, whose fault it is, and in the shape that the client expects: its dialect's, or
//! gRPC's, which is a status among the fields and no body.

use std::fmt;

use super::upstream::Broken;
use crate::measure::dialect::Dialect;
use crate::measure::failure::FailureOrigin;
use crate::measure::record::Ending;
use crate::net::http1::body::BodyError;
use crate::net::http1::{Head, HeadError};

/// The field that tells our answers from the upstream's.
pub(super) const ERROR_FIELD: &str = "x-streamgauge-error";

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The client sent something that cannot be passed on.
    Downstream,
    /// The upstream gave no answer, or one that cannot be passed on.
    Upstream,
    /// A limit of ours.
    Ours,
}

impl Fault {
    /// The same, as records say it.
    pub(super) fn origin(self) -> FailureOrigin {
        match self {
            Self::Downstream => FailureOrigin::Client,
            Self::Upstream => FailureOrigin::Upstream,
            Self::Ours => FailureOrigin::Proxy,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Downstream => "downstream",
            Self::Upstream => "upstream",
            Self::Ours => "ours",
        })
    }
}

/// Why a request is answered here.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) fault: Fault,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(status: u16, fault: Fault, message: impl Into<String>) -> Self {
        Self { status, fault, message: message.into() }
    }

    /// Too many streams are open.
    pub(super) fn busy(limit: usize) -> Self {
        Self::new(503, Fault::Ours, format!("{limit} streams are open, which is the limit (--max-streams)"))
    }

    /// Somebody takes us for a forward proxy.
    pub(super) fn connect() -> Self {
        Self::new(405, Fault::Downstream, "CONNECT is for forward proxies; this one has one upstream")
    }

    /// How the exchange ends when the client has been told.
    pub(super) fn ending(&self) -> Ending {
        match self.fault {
            Fault::Upstream => Ending::UpstreamFailed,
            Fault::Downstream | Fault::Ours => Ending::Complete,
        }
    }

    /// The answer to `request`, of which `dialect` is the dialect.
    pub(super) fn answer(&self, request: &Head, dialect: Option<&'static Dialect>) -> Answer {
        let error = (ERROR_FIELD, format!("{}; {}", self.fault, self.message));
        if let Some(kind) = request.grpc() {
            return Answer {
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
        Answer { status: self.status, fields: vec![("content-type", "application/json".to_owned()), error], body }
    }

    /// The code of gRPC that says the same as the status: UNAVAILABLE and RESOURCE_EXHAUSTED may be tried again.
    fn grpc_status(&self) -> u8 {
        const INVALID_ARGUMENT: u8 = 3;
        const RESOURCE_EXHAUSTED: u8 = 8;
        const UNIMPLEMENTED: u8 = 12;
        const UNAVAILABLE: u8 = 14;
        match (self.fault, self.status) {
            (Fault::Upstream, _) => UNAVAILABLE,
            (Fault::Ours, _) | (_, 431) => RESOURCE_EXHAUSTED,
            (Fault::Downstream, 501) => UNIMPLEMENTED,
            (Fault::Downstream, _) => INVALID_ARGUMENT,
        }
    }
}

/// What is sent instead of the upstream's answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) fields: Vec<(&'static str, String)>,
    /// Empty for gRPC, whose clients take a head that ends the stream for trailers.
    pub(super) body: String,
}

impl Answer {
    /// The whole answer over HTTP/1.1, after which the connection closes.
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

/// A `grpc-message`: what is not printable ASCII, and `%` itself, as `%` and two digits.
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

impl From<HeadError> for Refusal {
    /// A request head that is refused.
    fn from(error: HeadError) -> Self {
        let status = match error {
            HeadError::TooLarge => 431,
            HeadError::UnknownCoding => 501,
            HeadError::Malformed(_) | HeadError::Ambiguous(_) => 400,
        };
        Self::new(status, Fault::Downstream, error.to_string())
    }
}

impl From<BodyError> for Refusal {
    /// A request body that is refused.
    fn from(error: BodyError) -> Self {
        Self::new(400, Fault::Downstream, error.to_string())
    }
}

impl From<&Broken> for Refusal {
    fn from(broken: &Broken) -> Self {
        let (status, fault) = match broken {
            Broken::NoDescriptor { .. } => (503, Fault::Ours),
            Broken::ConnectTimeout { .. } => (504, Fault::Upstream),
            _ => (502, Fault::Upstream),
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
        let refusal = Refusal::from(HeadError::Ambiguous("several Content-Length fields"));
        let mut out = Vec::new();
        refusal.answer(&Head::default(), dialect::for_path("/v1/chat/completions")).write(&mut out, false);
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
        let told = |refusal: Refusal| {
            let answer = refusal.answer(&request, None);
            let field = |name| answer.fields.iter().find(|field| field.0 == name).unwrap().1.clone();
            assert_eq!((answer.status, answer.body.as_str()), (200, ""));
            assert_eq!(field("content-type"), "application/grpc+proto");
            (field("grpc-status"), field("grpc-message"), field(ERROR_FIELD))
        };
        let texts =
            |status: &str, message: &str, error: &str| (status.to_owned(), message.to_owned(), error.to_owned());
        let down = Refusal::new(502, Fault::Upstream, "100 % f\u{fc}r A");
        assert_eq!(told(down), texts("14", "100 %25 f%C3%BCr A", "upstream; 100 % f\u{fc}r A"));
        assert_eq!(told(Refusal::busy(1)).0, "8");
        assert_eq!(told(Refusal::from(HeadError::TooLarge)).0, "8");
        assert_eq!(told(Refusal::from(HeadError::UnknownCoding)).0, "12");
        assert_eq!(told(Refusal::from(HeadError::Malformed("it ends early"))).0, "3");
    }
}
