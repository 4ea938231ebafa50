//! Adds `stream_options.include_usage` to a streaming request body of OpenAI's dialects that does not ask for usage.
//! Every other byte stays.
//!
//! [`StripUsage`](super::strip_usage::StripUsage) removes the resulting usage from the reply.

/// A dialect with this request field supports usage injection.
pub const FIELD: &str = "stream_options.include_usage";

/// Longest key or literal to compare, in bytes.
const MAX_WORD: usize = 24;

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
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// The next string is a key.
    before_key: bool,
    /// The current key or literal, up to [`MAX_WORD`] bytes.
    word: Vec<u8>,
    place: CurrentField,
    stream: bool,
    options: StreamOptionsField,
    /// Held-back bytes of a `null` in place of `stream_options`.
    null: usize,
    injected: InjectedUsage,
}

/// The object that contains the current bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CurrentField {
    Elsewhere,
    Stream,
    Options,
    IncludeUsage,
    Continuous,
}

/// The client's `stream_options`.
#[derive(Clone, Copy, Debug, Default)]
struct StreamOptionsField {
    present: bool,
    keys: bool,
    include: Option<bool>,
    continuous: bool,
}

impl InjectUsage {
    /// With `continuous`, also requests usage on every event, which only some servers support.
    pub fn new(continuous: bool) -> Self {
        Self {
            wants_continuous: continuous,
            depth: 0,
            in_string: false,
            escaped: false,
            before_key: false,
            word: Vec::new(),
            place: CurrentField::Elsewhere,
            stream: false,
            options: StreamOptionsField::default(),
            null: 0,
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
            if self.in_string {
                at += self.string(&bytes[at..]);
                continue;
            }
            let byte = bytes[at];
            if self.null > 0 {
                if b"null".get(self.null) == Some(&byte) {
                    (self.null, at, sent) = (self.null + 1, at + 1, at + 1);
                    continue;
                }
                send(self.in_place_of_null());
            } else if byte == b'n' && self.depth == 1 && self.place == CurrentField::Options && self.word.is_empty() {
                send(&bytes[sent..at]);
                (self.null, at, sent) = (1, at + 1, at + 1);
                continue;
            }
            if let Some(added) = self.byte(byte) {
                send(&bytes[sent..at]);
                sent = at;
                send(added.as_bytes());
            }
            at += 1;
        }
        send(&bytes[sent..]);
    }

    /// Processes bytes inside a string; returns how many belong to it.
    fn string(&mut self, bytes: &[u8]) -> usize {
        if std::mem::take(&mut self.escaped) {
            return 1;
        }
        let Some(stop) = memchr::memchr2(b'"', b'\\', bytes) else {
            self.keep(bytes);
            return bytes.len();
        };
        self.keep(&bytes[..stop]);
        if bytes[stop] == b'\\' {
            // No relevant key contains an escape.
            self.keep(b"\\");
            self.escaped = true;
        } else {
            self.in_string = false;
        }
        stop + 1
    }

    /// Processes one byte outside of strings; returns the text to insert before it.
    fn byte(&mut self, byte: u8) -> Option<&'static str> {
        match byte {
            b'"' => {
                self.in_string = true;
                self.word.clear();
                if !self.before_key {
                    // The content of a string is never a literal.
                    self.keep(b"\"");
                }
            }
            b':' if self.before_key => {
                self.before_key = false;
                self.place = match (self.depth, self.place, &self.word[..]) {
                    (1, _, b"stream") => CurrentField::Stream,
                    (1, _, b"stream_options") => CurrentField::Options,
                    (
                        2,
                        CurrentField::Options | CurrentField::IncludeUsage | CurrentField::Continuous,
                        b"include_usage",
                    ) => CurrentField::IncludeUsage,
                    (
                        2,
                        CurrentField::Options | CurrentField::IncludeUsage | CurrentField::Continuous,
                        b"continuous_usage_stats",
                    ) => CurrentField::Continuous,
                    (2, CurrentField::Options | CurrentField::IncludeUsage | CurrentField::Continuous, _) => {
                        CurrentField::Options
                    }
                    (1, ..) => CurrentField::Elsewhere,
                    (_, place, _) => place,
                };
                self.options.present |= self.place == CurrentField::Options;
                self.options.keys |= self.depth == 2 && self.place != CurrentField::Elsewhere;
                self.word.clear();
            }
            b'{' | b'[' => {
                self.depth += 1;
                self.before_key = byte == b'{' && self.depth <= 2;
                self.word.clear();
            }
            b',' => {
                self.literal();
                self.before_key = self.depth == 1 || self.depth == 2 && self.place != CurrentField::Elsewhere;
            }
            b'}' | b']' => {
                self.literal();
                let added = if byte == b'}' { self.closing() } else { None };
                self.depth = self.depth.saturating_sub(1);
                if self.depth <= 1 {
                    self.place = CurrentField::Elsewhere;
                }
                return added;
            }
            byte if !byte.is_ascii_whitespace() => self.keep(&[byte]),
            _ => {}
        }
        None
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = MAX_WORD - self.word.len();
        self.word.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Evaluates a literal at its end.
    fn literal(&mut self) {
        let truth = self.word == b"true";
        match self.place {
            CurrentField::Stream if self.depth == 1 => self.stream = truth,
            CurrentField::IncludeUsage if self.depth == 2 => self.options.include = Some(truth),
            CurrentField::Continuous if self.depth == 2 => self.options.continuous = true,
            _ => {}
        }
        self.word.clear();
    }

    /// Returns the text to insert before an object's closing brace.
    fn closing(&mut self) -> Option<&'static str> {
        let options = self.options;
        match (self.depth, self.place != CurrentField::Elsewhere) {
            (1, _) if self.stream && !options.present => {
                self.note(true);
                Some(match self.wants_continuous {
                    false => r#","stream_options":{"include_usage":true}"#,
                    true => r#","stream_options":{"include_usage":true,"continuous_usage_stats":true}"#,
                })
            }
            (2, true) if options.include.is_none() => {
                self.note(true);
                Some(match (options.keys, self.wants_continuous && !options.continuous) {
                    (false, false) => r#""include_usage":true"#,
                    (true, false) => r#","include_usage":true"#,
                    (false, true) => r#""include_usage":true,"continuous_usage_stats":true"#,
                    (true, true) => r#","include_usage":true,"continuous_usage_stats":true"#,
                })
            }
            (2, true) if options.include == Some(true) && self.wants_continuous && !options.continuous => {
                self.note(false);
                Some(r#","continuous_usage_stats":true"#)
            }
            _ => None,
        }
    }

    /// Returns the replacement for `null`, or the held-back bytes if the word is not `null`.
    fn in_place_of_null(&mut self) -> &'static [u8] {
        let held = std::mem::take(&mut self.null);
        if held < 4 || !self.stream {
            return &b"null"[..held];
        }
        self.note(true);
        match self.wants_continuous {
            false => br#"{"include_usage":true}"#,
            true => br#"{"include_usage":true,"continuous_usage_stats":true}"#,
        }
    }

    fn note(&mut self, usage: bool) {
        self.injected.usage |= usage;
        self.injected.continuous |= self.wants_continuous && !self.options.continuous;
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
    fn whoever_asks_declines_or_does_not_stream_is_left_alone() {
        for body in [
            r#"{"model":"m"}"#,
            r#"{"stream":false}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":false}}"#,
            r#"{"stream":true,"stream_options":nulL}"#,
            r#"{"stream_options":null,"stream":false}"#,
            r#"{"messages":[{"stream":true}],"stream":"true"}"#,
            r#"[{"stream":true}]"#,
            "{\"stream\":tru",
            "not JSON } , : \" {",
        ] {
            assert_eq!(edited(false, body), (body.to_owned(), InjectedUsage::default()), "{body}");
        }
    }
}
