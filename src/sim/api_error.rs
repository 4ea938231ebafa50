//! Error responses in OpenAI's format.

use std::fmt;

use serde::Serialize;

/// An error and its HTTP status.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ApiError {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'static str>,
    code: u16,
}

#[derive(Serialize)]
struct ErrorEnvelope<'a> {
    error: &'a ApiError,
}

impl ApiError {
    fn new(code: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self { message: message.into(), kind, param: None, code }
    }

    /// 400: the request is invalid.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequestError", message)
    }

    /// 404: the server does not have this model.
    pub(super) fn no_model(model: &str) -> Self {
        let model: String = model.chars().take(128).collect();
        Self::new(404, "NotFoundError", format!("The model `{model}` does not exist.")).about("model")
    }

    /// 413: the body is larger than `most` bytes.
    pub(super) fn too_large(most: usize) -> Self {
        Self::new(413, "BadRequestError", format!("The request body is larger than {most} bytes."))
    }

    /// 503: the waiting queue is full.
    pub(super) fn queue_full() -> Self {
        Self::new(503, "ServiceUnavailableError", "The simulated waiting queue is full.")
    }

    /// 503: too many large bodies at once.
    pub(super) fn no_room() -> Self {
        Self::new(503, "ServiceUnavailableError", "There is no room for another request body.")
    }

    /// 500, in a stream or instead of a reply, for an injected fault.
    pub(super) fn injected() -> Self {
        Self::new(500, "InternalServerError", "Internal server error (simulated)")
    }

    /// Any status, for an injected fault.
    pub(super) fn with_status(code: u16) -> Self {
        let kind = if code < 500 { "BadRequestError" } else { "InternalServerError" };
        Self::new(code, kind, format!("Status {code} as asked for (simulated)"))
    }

    /// Adds the name of the invalid field.
    pub(super) fn about(self, param: &'static str) -> Self {
        Self { param: Some(param), ..self }
    }

    pub(super) fn status(&self) -> u16 {
        self.code
    }

    /// The response body, or the data of an error event.
    pub(super) fn json(&self) -> String {
        // A struct of strings and numbers cannot fail to serialize.
        serde_json::to_string(&ErrorEnvelope { error: self }).unwrap_or_default()
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_openais_shape() {
        assert_eq!(
            ApiError::no_model("a\"b").json(),
            r#"{"error":{"message":"The model `a\"b` does not exist.","type":"NotFoundError","param":"model","code":404}}"#,
        );
    }
}
