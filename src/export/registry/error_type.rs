//! Attribute values for the way in which a request ended.

use std::borrow::Cow;

use crate::measure::record::{Ending, Outcome, RequestRecord};

/// The HTTP conventions' value for an unknown method or status.
pub const OTHER_VALUE: &str = "_OTHER";

/// Returns `error.type` of the operation: the status code if the server refused, otherwise the failure. Absent for a
/// complete response.
pub fn error_type(record: &RequestRecord) -> Option<Cow<'static, str>> {
    match (record.outcome, record.status) {
        (Outcome::Success, _) => None,
        (_, Some(status @ 400..)) => Some(status_label(status)),
        _ => Some(failure_reason(record).into()),
    }
}

/// Returns `error.type` of the HTTP exchange. A 4xx is the client's error, not the server's. A response that ends as
/// its framing announced is complete whatever it contains.
pub fn http_error_type(record: &RequestRecord) -> Option<Cow<'static, str>> {
    match (record.outcome, record.ending, record.status) {
        (Outcome::Success, ..) => None,
        (_, _, Some(status @ 500..)) => Some(status_label(status)),
        (_, Ending::Complete, Some(_)) => None,
        (_, Ending::DownstreamGone, _) => Some(CLIENT_DISCONNECT.into()),
        (_, Ending::TimedOut, _) => Some(TIMEOUT.into()),
        (_, Ending::UpstreamFailed | Ending::Complete, _) => Some(UPSTREAM_RESET.into()),
    }
}

/// Returns the status as an attribute value: a known one unchanged, any other as its class's `x00`, as clients must
/// treat it (RFC 9110, section 15). Invented statuses therefore create no series.
pub fn known_status(status: u16) -> u16 {
    let is_registered = http::StatusCode::from_u16(status).is_ok_and(|status| status.canonical_reason().is_some());
    match status {
        _ if is_registered || UNREGISTERED_STATUSES.contains(&status) => status,
        100..=599 => status / 100 * 100,
        // Invalid statuses are to be treated as 5xx.
        _ => 500,
    }
}

/// Common unregistered statuses: nginx's and Cloudflare's for broken connections, and Anthropic's for overload.
const UNREGISTERED_STATUSES: [u16; 9] = [499, 520, 521, 522, 523, 524, 525, 526, 529];

/// Returns the exported class of a status.
pub fn status_class(status: Option<u16>) -> &'static str {
    match status {
        None => "none",
        Some(100..=199) => "1xx",
        Some(200..=299) => "2xx",
        Some(300..=399) => "3xx",
        Some(400..=499) => "4xx",
        Some(500..=599) => "5xx",
        Some(_) => "other",
    }
}

/// Returns how a stream ended; absent for other responses. A request for a stream without a response head counts as a
/// stream.
pub fn termination(record: &RequestRecord) -> Option<&'static str> {
    let awaited = record.status.is_none() && record.shape.stream == Some(true);
    match record.outcome {
        _ if !record.streamed && !awaited => None,
        Outcome::Success => Some(DONE),
        _ => Some(failure_reason(record)),
    }
}

/// Value for a complete response.
const DONE: &str = "done";
const CLIENT_DISCONNECT: &str = "client_disconnect";
const UPSTREAM_RESET: &str = "upstream_reset";
const EOF_WITHOUT_FINISH: &str = "eof_without_finish";
const ERROR_EVENT: &str = "error_event";
const TIMEOUT: &str = "timeout";

/// Every value of [`termination`].
pub const TERMINATIONS: [&str; 6] = [DONE, CLIENT_DISCONNECT, UPSTREAM_RESET, EOF_WITHOUT_FINISH, ERROR_EVENT, TIMEOUT];

/// Returns the cause of an incomplete response. An error event precedes the end of the bytes and therefore caused it.
fn failure_reason(record: &RequestRecord) -> &'static str {
    match (record.ending, record.status) {
        (_, Some(400..)) => ERROR_EVENT,
        _ if record.fault.is_some() => ERROR_EVENT,
        (Ending::DownstreamGone, _) => CLIENT_DISCONNECT,
        (Ending::TimedOut, _) => TIMEOUT,
        (Ending::UpstreamFailed, _) | (_, None) => UPSTREAM_RESET,
        (Ending::Complete, Some(_)) => EOF_WITHOUT_FINISH,
    }
}

fn status_label(status: u16) -> Cow<'static, str> {
    if status < 600 { known_status(status).to_string().into() } else { OTHER_VALUE.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::fixtures::record;
    use crate::measure::record::Fault;

    fn ended(ending: Ending, status: Option<u16>, fault: bool, finished: bool) -> RequestRecord {
        let outcome = Outcome::decide(ending, status, fault, finished, finished);
        let fault = fault.then_some(Fault { event: 0, kind: None });
        RequestRecord { ending, status, outcome, fault, ..record() }
    }

    #[test]
    fn every_ending_has_its_words() {
        use Ending::*;
        for (record, error, http, stream) in [
            (ended(Complete, Some(200), false, true), None, None, "done"),
            (ended(DownstreamGone, Some(200), false, true), None, None, "done"),
            (ended(Complete, Some(200), false, false), Some("eof_without_finish"), None, "eof_without_finish"),
            (ended(Complete, Some(200), true, true), Some("error_event"), None, "error_event"),
            (ended(UpstreamFailed, Some(200), true, false), Some("error_event"), Some("upstream_reset"), "error_event"),
            (
                ended(UpstreamFailed, Some(200), false, false),
                Some("upstream_reset"),
                Some("upstream_reset"),
                "upstream_reset",
            ),
            (
                ended(UpstreamFailed, None, false, false),
                Some("upstream_reset"),
                Some("upstream_reset"),
                "upstream_reset",
            ),
            (
                ended(DownstreamGone, None, false, false),
                Some("client_disconnect"),
                Some("client_disconnect"),
                "client_disconnect",
            ),
            (ended(TimedOut, Some(200), false, false), Some("timeout"), Some("timeout"), "timeout"),
            (ended(Complete, Some(404), true, true), Some("404"), None, "error_event"),
            (ended(Complete, Some(503), true, true), Some("503"), Some("503"), "error_event"),
            (ended(Complete, Some(999), true, true), Some("_OTHER"), Some("_OTHER"), "error_event"),
        ] {
            assert_eq!(error_type(&record).as_deref(), error, "{:?} {:?}", record.ending, record.status);
            assert_eq!(http_error_type(&record).as_deref(), http, "{:?} {:?}", record.ending, record.status);
            assert_eq!(termination(&record), Some(stream));
            assert!(TERMINATIONS.contains(&stream));
        }
    }

    #[test]
    fn only_streams_terminate_and_one_that_never_got_a_head_was_one() {
        let mut plain = ended(Ending::UpstreamFailed, None, false, false);
        plain.streamed = false;
        assert_eq!(termination(&plain), Some("upstream_reset"), "a stream was asked for");
        plain.status = Some(500);
        assert_eq!(termination(&plain), None);
    }
}
