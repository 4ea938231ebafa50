//! `/log-level`, and `/config` beside it: what a client sees and changes of the process.
//!
//! `GET /config` is the configuration in force as a configuration file, each value with its origin. Secrets are files
//! that it names, header values are left out, and URLs have no user info, so it holds none.
//!
//! `GET /log-level` is `{"level":"info"}`. `PUT /log-level` takes one word: `error`, `warn`, `info` or `debug`. The level
//! holds until the configuration is loaded again. A PUT from a page of another site gets 403: see [`tower_http::csrf`].

use bytes::Bytes;
use clap::ValueEnum as _;
use http::StatusCode;
use http_body::Body;
use http_body_util::{BodyExt as _, Limited};
use serde_json::json;

use super::body::{AdminBody, json_reply};
use crate::clock::Clock;
use crate::config::LogLevel;
use crate::export::control::process_control::ProcessControl;
use crate::measure::time::Gap;

/// Limit on the body of a request: no level is as long.
const MAX_BODY_BYTES: usize = 64;
/// Time limit for a client to send it.
const BODY_TIMEOUT: Gap = Gap::from_millis(5_000);

/// The reply to `GET /log-level`.
pub(super) fn log_level(control: &dyn ProcessControl) -> http::Response<AdminBody> {
    json_reply(StatusCode::OK, &json!({"level": control.log_level()}))
}

/// Applies a `PUT /log-level`.
pub(super) async fn put_log_level(
    control: &dyn ProcessControl,
    body: impl Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static>,
    clock: &Clock,
) -> http::Response<AdminBody> {
    let read = clock.timeout(BODY_TIMEOUT, Box::pin(Limited::new(body, MAX_BODY_BYTES).collect())).await;
    let text = read.and_then(Result::ok).map(|read| read.to_bytes());
    let word = text.as_deref().and_then(|text| std::str::from_utf8(text).ok()).map(str::trim);
    let Some(level) = word.and_then(|word| LogLevel::from_str(word, true).ok()) else {
        let message = json!({"error": "the body is no log level; send one word: error, warn, info or debug"});
        return json_reply(StatusCode::BAD_REQUEST, &message);
    };
    match control.set_log_level(level) {
        Ok(()) => log_level(control),
        Err(error) => json_reply(StatusCode::INTERNAL_SERVER_ERROR, &json!({"error": error})),
    }
}
