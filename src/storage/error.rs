//! The error of a request to object storage, in our own words.
//!
//! The client's errors quote URLs, whose query may hold a signature, and the server's text, which may name an access
//! key. So only what identifies the problem is kept: its kind, the status, and the code of an error of S3.

use std::error::Error as _;
use std::io;

use object_store::client::HttpError;

/// Maximum length of a code that a server gives its error.
const MAX_CODE_CHARS: usize = 48;

/// Mark of an error of a list request, whose status the client keeps in its text alone.
const LIST_REQUEST: &str = "Error performing list request";

/// A request failed, or storage cannot be used as configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// No such object or bucket.
    #[error("there is no such object or bucket{0}")]
    NotFound(String),
    /// The credentials are missing or not accepted.
    #[error(
        "the credentials are missing or not accepted{0}; remedy: give them in the environment, as in AWS_ACCESS_KEY_ID"
    )]
    Unauthenticated(String),
    /// The credentials do not allow the operation.
    #[error("the credentials do not allow this{0}; remedy: allow it in the bucket's policy")]
    Denied(String),
    /// The settings of the storage are wrong.
    #[error("the settings of the storage cannot be used: {0}")]
    Settings(String),
    /// The server failed, or cannot be reached. A later attempt may succeed.
    #[error("{0}")]
    Failed(String),
}

impl StorageError {
    pub(super) fn new(error: &object_store::Error) -> Self {
        use object_store::Error;
        let text = error.to_string();
        let code = error_code(&text);
        let coded = code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
        let list_status = status_code(&text).filter(|_| text.contains(LIST_REQUEST));
        match (error, list_status) {
            (Error::NotFound { .. }, _) | (_, Some("404")) => Self::NotFound(coded),
            (Error::Unauthenticated { .. }, _) | (_, Some("401")) => Self::Unauthenticated(coded),
            (Error::PermissionDenied { .. }, _) | (_, Some("403")) => {
                match code.as_deref().is_some_and(is_of_credentials) {
                    true => Self::Unauthenticated(coded),
                    false => Self::Denied(coded),
                }
            }
            (Error::InvalidPath { .. } | Error::NotSupported { .. } | Error::NotImplemented { .. }, _) => {
                Self::Settings("the storage does not support this".to_owned())
            }
            (error, _) => Self::Failed(describe(error, code)),
        }
    }
}

/// Codes of S3 for credentials that are wrong, which it sends with the status of a denial.
fn is_of_credentials(code: &str) -> bool {
    ["InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"].contains(&code)
}

/// The problem, from the innermost cause that is safe to show.
fn describe(error: &object_store::Error, code: Option<String>) -> String {
    let mut cause = error.source();
    while let Some(inner) = cause {
        // Our own client made the text of this one (`http_client`).
        if let Some(http) = inner.downcast_ref::<HttpError>() {
            return http.source().map_or_else(|| "the connection failed".to_owned(), ToString::to_string);
        }
        if let Some(io) = inner.downcast_ref::<io::Error>() {
            return io.to_string();
        }
        cause = inner.source();
    }
    match (status_code(&error.to_string()), code) {
        (Some(status), Some(code)) => format!("the storage answered {status} ({code})"),
        (Some(status), None) => format!("the storage answered {status}"),
        (None, Some(code)) => format!("the storage answered with an error ({code})"),
        (None, None) => "the storage cannot be used; is every variable of its credentials set?".to_owned(),
    }
}

/// The status in the text of an error.
fn status_code(text: &str) -> Option<&str> {
    let status = text.split("status code: ").nth(1)?.get(..3)?;
    status.bytes().all(|byte| byte.is_ascii_digit()).then_some(status)
}

/// The code in the body of an error: `<Code>SlowDown</Code>`.
fn error_code(text: &str) -> Option<String> {
    let code = text.split("<Code>").nth(1)?.split("</Code>").next()?;
    let is_code = !code.is_empty() && code.len() <= MAX_CODE_CHARS && code.bytes().all(|b| b.is_ascii_alphanumeric());
    is_code.then(|| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn an_error_has_status_and_code_and_nothing_that_the_server_or_the_request_said() {
        let text = "Error performing PUT http://h/b?X-Amz-Signature=canary in 1s - Server returned non-2xx status code: \
            503 Service Unavailable: <Error><Code>SlowDown</Code><AWSAccessKeyId>canary</AWSAccessKeyId></Error>";
        assert_eq!(StorageError::new(&generic(text)).to_string(), "the storage answered 503 (SlowDown)");
        let code = "<Code>canary of a text that is no code</Code>";
        let message = StorageError::new(&generic(code)).to_string();
        assert!(!message.contains("canary"), "{message}");
    }

    #[test]
    fn wrong_credentials_are_no_missing_permission() {
        let denied = |code: &str| object_store::Error::PermissionDenied {
            path: "p".to_owned(),
            source: format!("403 Forbidden: <Code>{code}</Code>").into(),
        };
        let error_of = |code| StorageError::new(&denied(code));
        assert_eq!(
            error_of("SignatureDoesNotMatch"),
            StorageError::Unauthenticated(" (SignatureDoesNotMatch)".to_owned())
        );
        assert_eq!(error_of("AccessDenied"), StorageError::Denied(" (AccessDenied)".to_owned()));
    }
}
