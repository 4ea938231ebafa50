//! Adds `stream_options.include_usage` to a streaming request body of OpenAI's dialects that does not ask for usage.
//! Every other byte stays.
//!
//! [`StripUsage`](super::strip_usage::StripUsage) removes the resulting usage from the reply.

use crate::measure::json_scanner::{JsonScanner, Scalar, ScanFields};

/// A dialect with this request field supports usage injection.
pub const FIELD: &str = "stream_options.include_usage";

const OPTIONS: &[u8] = b"stream_options";
const INCLUDE: &[u8] = FIELD.as_bytes();
const CONTINUOUS: &[u8] = b"stream_options.continuous_usage_stats";
const NULL: &[u8] = b"null";

/// Options that the proxy added to the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InjectedUsage {
    /// The final usage report.
    pub usage: bool,
    /// Usage on every event.
    pub continuous: bool,
}

/// Edits one request body as it streams through.
#[derive(Debug)]
pub struct InjectUsage {
    /// Also request usage on every event.
    wants_continuous: bool,
    scan: JsonScanner,
    request: RequestedUsage,
    /// Held-back bytes of a `null` in place of `stream_options`.
    held: usize,
    injected: InjectedUsage,
}

/// What the client asked for.
#[derive(Debug, Default)]
struct RequestedUsage {
    stream: bool,
    has_options: bool,
    /// The scan is inside `stream_options`.
    in_options: bool,
    include: Option<bool>,
    continuous: bool,
}

impl RequestedUsage {
    fn set_option(&mut self, path: &[u8], value: bool) {
        match path {
            INCLUDE => self.include = Some(value),
            CONTINUOUS => self.continuous = true,
            _ => {}
        }
    }
}

impl ScanFields for RequestedUsage {
    fn wants(&self, path: &[u8]) -> bool {
        matches!(path, b"stream" | OPTIONS | INCLUDE | CONTINUOUS)
    }

    fn is_prefix_of_wanted(&self, path: &[u8]) -> bool {
        path == OPTIONS
    }

    fn scalar(&mut self, path: &[u8], _: u32, scalar: Scalar<'_>) {
        let value = scalar == Scalar::Bool(true);
        match path {
            // A key may contain a dot.
            path if self.in_options => self.set_option(path, value),
            b"stream" => self.stream = value,
            OPTIONS => self.has_options = true,
            _ => {}
        }
    }
}

impl InjectUsage {
    /// With `continuous`, also requests usage on every event, which only some servers support.
    pub fn new(continuous: bool) -> Self {
        Self {
            wants_continuous: continuous,
            scan: JsonScanner::default(),
            request: RequestedUsage::default(),
            held: 0,
            injected: InjectedUsage::default(),
        }
    }

    /// Returns the added options; final after the last byte of the body.
    pub fn injected(&self) -> InjectedUsage {
        self.injected
    }

    /// Processes one read of the body; passes its bytes and the additions to `send`.
    pub fn push(&mut self, bytes: &[u8], mut send: impl FnMut(&[u8])) {
        let mut send = |bytes: &[u8]| {
            if !bytes.is_empty() {
                send(bytes)
            }
        };
        let (mut sent, mut at) = (0, 0);
        while at < bytes.len() {
            if let Some(added) = self.before(bytes[at]) {
                send(&bytes[sent..at]);
                sent = at;
                send(added.as_bytes());
            }
            let may_be_null = self.scan.word_path() == Some(OPTIONS);
            let used = self.scan.step(&bytes[at..], &mut self.request);
            if may_be_null && used > 0 && NULL[self.held..].starts_with(&bytes[at..at + used]) {
                send(&bytes[sent..at]);
                self.held += used;
                sent = at + used;
            } else if self.held > 0 {
                send(self.in_place_of_null());
            }
            at += used;
        }
        send(&bytes[sent..]);
    }

    /// Prepares for a byte between values; returns the text to insert before it.
    fn before(&mut self, byte: u8) -> Option<&'static str> {
        match (byte, self.scan.depth()) {
            (b'{' | b'[', 1) if self.scan.expected_path() == Some(OPTIONS) => {
                self.request.has_options = true;
                self.request.in_options = byte == b'{';
            }
            (b'{' | b'[', 2) if self.request.in_options => {
                let path = self.scan.expected_path()?;
                self.request.set_option(path, false);
            }
            (b'}', 1) => {
                self.scan.closable_object()?;
                return self.new_options();
            }
            (b'}', 2) if self.request.in_options => {
                let has_keys = self.scan.closable_object()?;
                self.request.in_options = false;
                return self.more_options(has_keys);
            }
            _ => {}
        }
        None
    }

    /// Options for a stream that has none.
    fn new_options(&mut self) -> Option<&'static str> {
        if !self.request.stream || self.request.has_options {
            return None;
        }
        self.note(true);
        Some(match self.wants_continuous {
            false => r#","stream_options":{"include_usage":true}"#,
            true => r#","stream_options":{"include_usage":true,"continuous_usage_stats":true}"#,
        })
    }

    /// What the client's options lack.
    fn more_options(&mut self, has_keys: bool) -> Option<&'static str> {
        let lacks_continuous = self.wants_continuous && !self.request.continuous;
        match self.request.include {
            None => {
                self.note(true);
                Some(match (has_keys, lacks_continuous) {
                    (false, false) => r#""include_usage":true"#,
                    (true, false) => r#","include_usage":true"#,
                    (false, true) => r#""include_usage":true,"continuous_usage_stats":true"#,
                    (true, true) => r#","include_usage":true,"continuous_usage_stats":true"#,
                })
            }
            Some(true) if lacks_continuous => {
                self.note(false);
                Some(r#","continuous_usage_stats":true"#)
            }
            Some(_) => None,
        }
    }

    /// Returns the replacement for `null`, or the held-back bytes if the word is not `null`.
    fn in_place_of_null(&mut self) -> &'static [u8] {
        let held = std::mem::take(&mut self.held);
        if !self.request.stream || self.scan.is_in_word() || held < NULL.len() {
            return &NULL[..held];
        }
        self.note(true);
        match self.wants_continuous {
            false => br#"{"include_usage":true}"#,
            true => br#"{"include_usage":true,"continuous_usage_stats":true}"#,
        }
    }

    fn note(&mut self, usage: bool) {
        self.injected.usage |= usage;
        self.injected.continuous |= self.wants_continuous && !self.request.continuous;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn injected_into(continuous: bool, reads: &[&[u8]]) -> (String, InjectedUsage) {
        let (mut ask, mut out) = (InjectUsage::new(continuous), Vec::new());
        for read in reads {
            ask.push(read, |bytes| out.extend_from_slice(bytes));
        }
        (String::from_utf8(out).unwrap(), ask.injected())
    }

    /// Returns the edited body, which must not depend on how the input is split.
    fn edited(continuous: bool, body: &str) -> (String, InjectedUsage) {
        let body = body.as_bytes();
        let whole = injected_into(continuous, &[body]);
        for cut in 0..=body.len() {
            assert_eq!(injected_into(continuous, &[&body[..cut], &body[cut..]]), whole, "cut at {cut}");
        }
        assert_eq!(injected_into(continuous, &body.chunks(1).collect::<Vec<_>>()), whole);
        whole
    }

    const USAGE: InjectedUsage = InjectedUsage { usage: true, continuous: false };
    const BOTH: InjectedUsage = InjectedUsage { usage: true, continuous: true };

    #[test]
    fn a_stream_that_lacks_it_asks_for_usage_and_every_other_byte_stays() {
        for (body, expected) in [
            (
                r#" {"messages":[{"a":"}\"stream_options\":{"}] , "stream" : true }
"#,
                r#" {"messages":[{"a":"}\"stream_options\":{"}] , "stream" : true ,"stream_options":{"include_usage":true}}
"#,
            ),
            (
                r#"{"stream":true,"stream_options":{},"n":1}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true},"n":1}"#,
            ),
            (
                r#"{"stream_options":{"include_obfuscation":false },"stream":true}"#,
                r#"{"stream_options":{"include_obfuscation":false ,"include_usage":true},"stream":true}"#,
            ),
            (
                r#"{"stream":true,"stream_options": null ,"n":1}"#,
                r#"{"stream":true,"stream_options": {"include_usage":true} ,"n":1}"#,
            ),
        ] {
            assert_eq!(edited(false, body), (expected.to_owned(), USAGE));
        }
    }

    #[test]
    fn running_usage_is_asked_for_where_the_server_knows_it() {
        for (body, expected, what) in [
            (
                r#"{"stream":true}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#,
                BOTH,
            ),
            (
                r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#,
                InjectedUsage { usage: false, continuous: true },
            ),
            (
                r#"{"stream":true,"stream_options":{"continuous_usage_stats":false}}"#,
                r#"{"stream":true,"stream_options":{"continuous_usage_stats":false,"include_usage":true}}"#,
                USAGE,
            ),
        ] {
            assert_eq!(edited(true, body), (expected.to_owned(), what));
        }
    }

    #[test]
    fn a_request_that_asks_declines_or_does_not_stream_stays() {
        for body in [
            r#"{"model":"m"}"#,
            r#"{"stream":false}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":false}}"#,
            r#"{"stream":true,"stream_options":nulL}"#,
            r#"{"stream_options":null,"stream":false}"#,
            r#"{"messages":[{"stream":true}],"stream":"true"}"#,
            r#"[{"stream":true}]"#,
            r#"{"stream":{"stream_options":{},"n":1},"n":{"stream_options":{}}}"#,
            r#"{"stream_options.include_usage":true,"stream":false}"#,
            "{\"stream\":tru",
            "not JSON } , : \" {",
        ] {
            assert_eq!(edited(false, body), (body.to_owned(), InjectedUsage::default()), "{body}");
        }
    }
}
