//! Answers of our own: what is wrong, whose fault it is, and in the dialect's own shape.

use std::fmt;

use super::upstream::Broken;
use crate::measure::dialect::Dialect;
use crate::net::http1::HeadError;
use crate::net::http1::body::BodyError;

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

    /// The body, and its `Content-Type` is `application/json`.
    pub(super) fn body(&self, dialect: Option<&'static Dialect>) -> String {
        match dialect {
            Some(dialect) => (dialect.error_body)(self.status, &self.message),
            None => serde_json::json!({"error": {"message": self.message, "code": self.status}}).to_string(),
        }
    }

    /// The value of [`ERROR_FIELD`].
    pub(super) fn field(&self) -> String {
        format!("{}; {}", self.fault, self.message)
    }

    /// The whole answer over HTTP/1.1, after which the connection closes.
    pub(super) fn write(&self, out: &mut Vec<u8>, dialect: Option<&'static Dialect>, to_head: bool) {
        let reason = http::StatusCode::from_u16(self.status).ok().and_then(|status| status.canonical_reason());
        let body = self.body(dialect);
        let head = format!(
            "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{ERROR_FIELD}: {}\r\nconnection: close\r\n\r\n",
            self.status,
            reason.unwrap_or_default(),
            body.len(),
            self.field(),
        );
        out.extend_from_slice(head.as_bytes());
        if !to_head {
            out.extend_from_slice(body.as_bytes());
        }
    }
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
        let status = if matches!(broken, Broken::ConnectTimeout { .. }) { 504 } else { 502 };
        Self::new(status, Fault::Upstream, broken.to_string())
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
        refusal.write(&mut out, dialect::for_path("/v1/chat/completions"), false);
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
}
