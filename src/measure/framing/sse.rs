//! The WHATWG event stream (`text/event-stream`), parsed as bytes.
//!
//! Line ends are LF, CRLF or a lone CR; a CR and an LF in separate reads form one line end. U+2028, U+2029 and U+0085
//! are text. Bytes are compared and never decoded, because a read may end within a character.

use super::json_array::BracketScanner;
use super::{Event, FramingError, MAX_EVENT, PayloadKind};

/// Reads server-sent events. Memory: at most one event ([`MAX_EVENT`]), and nothing while events arrive in one read.
#[derive(Debug, Default)]
pub struct SseFramer {
    /// An incomplete line, carried over to the next read.
    line: Vec<u8>,
    /// `data` of the incomplete event, if it is not one slice of the current read.
    data: Vec<u8>,
    name: Vec<u8>,
    has_data: bool,
    started: bool,
    /// The last byte was a CR, so a following LF belongs to it.
    after_cr: bool,
    too_large: bool,
    comments: u64,
    /// Lines since they were last taken, empty ones included.
    lines: u64,
    /// State for JSON outside of the SSE grammar; `None` if that is not enabled.
    bare: Option<Box<BareJson>>,
}

/// JSON without a `data:` prefix; Gemini sends errors in this form.
#[derive(Debug, Default)]
struct BareJson {
    text: Vec<u8>,
    brackets: BracketScanner,
}

/// Location of the current event's `data`.
#[derive(Clone, Copy)]
enum DataField<'a> {
    None,
    /// One line of the current read.
    Borrowed(&'a [u8]),
    /// In `SseFramer::data`.
    Carried,
}

impl SseFramer {
    /// Creates a framer for a new body.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a framer that also accepts JSON without a `data:` prefix as an event.
    pub fn with_bare_json() -> Self {
        Self { bare: Some(Box::default()), ..Self::default() }
    }

    /// Comment lines so far.
    pub fn comments(&self) -> u64 {
        self.comments
    }

    /// Complete lines since the last call, empty ones included.
    pub fn take_lines(&mut self) -> u64 {
        std::mem::take(&mut self.lines)
    }

    /// Processes one read; calls `each` for every completed event, in order.
    ///
    /// # Errors
    /// [`FramingError::TooLarge`] if an event exceeds [`MAX_EVENT`]. All later reads fail too.
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(Event<'_>)) -> Result<(), FramingError> {
        while !bytes.is_empty() {
            bytes = self.push_event(bytes, &mut each)?;
        }
        Ok(())
    }

    /// Splits an event of one `data` line off the start of `bytes`, if `length_of` knows its payload. Such an event is
    /// not searched for line ends.
    #[inline]
    pub(super) fn split_recognized<'b>(
        &mut self,
        bytes: &'b [u8],
        length_of: impl FnOnce(&'b [u8]) -> Option<usize>,
    ) -> Option<(Event<'b>, &'b [u8])> {
        let is_between_events = self.started && !self.has_data && !self.after_cr && !self.too_large;
        if !is_between_events || !self.line.is_empty() || !self.name.is_empty() || self.bare.is_some() {
            return None;
        }
        let line = bytes.strip_prefix(b"data: ").filter(|_| bytes.len() <= MAX_EVENT)?;
        let (data, rest) = line.split_at_checked(length_of(line)?)?;
        let rest = rest.strip_prefix(b"\n\n")?;
        self.lines += 2;
        Some((Event { name: b"", data, mark: PayloadKind::Recognized }, rest))
    }

    /// Processes one read up to the first empty line; returns the rest.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub(super) fn push_event<'b>(
        &mut self,
        mut bytes: &'b [u8],
        mut each: impl FnMut(Event<'_>),
    ) -> Result<&'b [u8], FramingError> {
        if self.too_large {
            return Err(FramingError::TooLarge);
        }
        let mut is_event_end = false;
        let mut data = if self.has_data { DataField::Carried } else { DataField::None };
        while !bytes.is_empty() && !is_event_end {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            // Every event ends with an empty line, which needs no search.
            let end = if bytes[0] == b'\n' { Some(0) } else { memchr::memchr2(b'\n', b'\r', bytes) };
            if self.line.len() + end.unwrap_or(bytes.len()) > MAX_EVENT {
                return Err(self.stop_reading());
            }
            let Some(end) = end else {
                self.line.extend_from_slice(bytes);
                bytes = b"";
                break;
            };
            self.after_cr = bytes[end] == b'\r';
            self.lines += 1;
            let (rest, tail) = (&bytes[..end], &bytes[end + 1..]);
            bytes = tail;
            if self.line.is_empty() {
                is_event_end = rest.is_empty();
                data = self.line_of(rest, data, &mut each);
            } else {
                // The carry buffer is moved out while its line is read, and returns empty with its capacity.
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(rest);
                let after = self.line_of(&line, data, &mut each);
                data = match after {
                    DataField::Borrowed(slice) => {
                        self.data.clear();
                        self.data.extend_from_slice(slice);
                        DataField::Carried
                    }
                    DataField::Carried => DataField::Carried,
                    DataField::None => DataField::None,
                };
                line.clear();
                self.line = line;
            }
            if self.data.len() > MAX_EVENT {
                return Err(self.stop_reading());
            }
        }
        if self.too_large {
            return Err(self.stop_reading());
        }
        match data {
            DataField::Borrowed(slice) => {
                self.data.clear();
                self.data.extend_from_slice(slice);
                self.has_data = true;
            }
            DataField::Carried => self.has_data = true,
            DataField::None => self.has_data = false,
        }
        Ok(bytes)
    }

    /// Ends a cleanly closed body. The standard drops an event without its blank line. Here the event counts if
    /// `complete` accepts it, because other tools count it and some servers omit the last line end.
    pub fn finish(&mut self, complete: impl Fn(&[u8]) -> bool) -> Option<Event<'_>> {
        let unfinished = std::mem::take(&mut self.line);
        let mut data = if self.has_data { DataField::Carried } else { DataField::None };
        match self.bare_line(&unfinished) {
            Some(true) => {
                self.data = self.bare.take().map(|bare| bare.text).unwrap_or_default();
                data = DataField::Carried;
            }
            None if !unfinished.is_empty() => data = self.line_of(&unfinished, data, &mut |_| {}),
            Some(false) | None => {}
        }
        match data {
            DataField::None => return None,
            DataField::Borrowed(slice) => self.data = slice.to_vec(),
            DataField::Carried => {}
        }
        self.has_data = false;
        complete(&self.data).then_some(Event { name: &self.name, data: &self.data, mark: PayloadKind::Plain })
    }

    /// Processes one line without its end; returns the new location of the event's data.
    fn line_of<'l>(
        &mut self,
        mut line: &'l [u8],
        data: DataField<'l>,
        each: &mut impl FnMut(Event<'_>),
    ) -> DataField<'l> {
        if !std::mem::replace(&mut self.started, true) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if self.bare.is_some()
            && let Some(closed) = self.bare_line(line)
        {
            if closed && let Some(bare) = &mut self.bare {
                each(Event { name: b"", data: &bare.text, mark: PayloadKind::Plain });
                bare.text.clear();
            }
            return data;
        }
        if line.is_empty() {
            let whole = match data {
                DataField::None => None,
                DataField::Borrowed(slice) => Some(slice),
                DataField::Carried => Some(&self.data[..]),
            };
            if let Some(whole) = whole {
                each(Event { name: &self.name, data: whole, mark: PayloadKind::Plain });
            }
            self.data.clear();
            self.name.clear();
            return DataField::None;
        }
        let of_field = |value: &'l [u8]| value.strip_prefix(b" ").unwrap_or(value);
        if let Some(value) = line.strip_prefix(b"data:") {
            return self.data_line(of_field(value), data);
        }
        match memchr::memchr(b':', line) {
            Some(0) => self.comments += 1,
            Some(colon) if &line[..colon] == b"event" => {
                self.name.clear();
                self.name.extend_from_slice(of_field(&line[colon + 1..]));
            }
            None if line == b"event" => self.name.clear(),
            None if line == b"data" => return self.data_line(b"", data),
            _ => {}
        }
        data
    }

    fn data_line<'l>(&mut self, value: &'l [u8], data: DataField<'l>) -> DataField<'l> {
        match data {
            DataField::None => DataField::Borrowed(value),
            DataField::Borrowed(first) => {
                self.data.clear();
                self.data.extend_from_slice(first);
                self.join(value)
            }
            DataField::Carried => self.join(value),
        }
    }

    /// Takes a line of bare JSON and returns whether the value is now complete; `None` for a line of the SSE grammar.
    #[cold]
    fn bare_line(&mut self, line: &[u8]) -> Option<bool> {
        let bare = self.bare.as_mut()?;
        if !bare.brackets.is_open() && !matches!(line.first(), Some(b'{' | b'[')) {
            return None;
        }
        // A value that is too large stays open and accepts nothing more.
        self.too_large |= bare.text.len() + line.len() > MAX_EVENT;
        if self.too_large {
            return Some(false);
        }
        bare.text.extend_from_slice(line);
        bare.text.push(b'\n');
        Some(bare.brackets.close(line).is_some())
    }

    fn join<'l>(&mut self, value: &[u8]) -> DataField<'l> {
        self.data.push(b'\n');
        self.data.extend_from_slice(value);
        DataField::Carried
    }

    fn stop_reading(&mut self) -> FramingError {
        *self = Self { too_large: true, comments: self.comments, ..Self::default() };
        FramingError::TooLarge
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(reads: &[&[u8]]) -> Vec<(String, String)> {
        let mut sse = SseFramer::new();
        let mut seen = Vec::new();
        let mut note = |event: Event<'_>| {
            seen.push((
                String::from_utf8_lossy(event.name).into_owned(),
                String::from_utf8_lossy(event.data).into_owned(),
            ));
        };
        for read in reads {
            sse.push(read, &mut note).unwrap();
        }
        if let Some(last) = sse.finish(|data| data == b"[DONE]") {
            note(last);
        }
        seen
    }

    fn data(reads: &[&[u8]]) -> Vec<String> {
        events(reads).into_iter().map(|(_, data)| data).collect()
    }

    #[test]
    fn every_line_end_is_a_line_end_and_a_split_crlf_is_one() {
        for body in ["data: a\n\ndata:b\n\n", "data: a\r\n\r\ndata:b\r\n\r\n", "data: a\r\rdata:b\r\r"] {
            let body = body.as_bytes();
            assert_eq!(data(&[body]), ["a", "b"]);
            for cut in 0..body.len() {
                assert_eq!(data(&[&body[..cut], &body[cut..]]), ["a", "b"], "cut at {cut}");
            }
            let singly: Vec<&[u8]> = body.chunks(1).collect();
            assert_eq!(data(&singly), ["a", "b"]);
        }
    }

    #[test]
    fn several_data_lines_join_and_the_name_may_follow_the_data() {
        let body = b"\xef\xbb\xbfdata: {\ndata:}\nid: 7\nevent: message\n\nevent: x\n\ndata\n\n";
        let expected = [("message".into(), "{\n}".into()), (String::new(), String::new())];
        assert_eq!(events(&[body]), expected);
        for cut in 0..body.len() {
            assert_eq!(events(&[&body[..cut], &body[cut..]]), expected, "cut at {cut}");
        }
    }

    #[test]
    fn comments_are_counted_and_make_no_event() {
        let mut sse = SseFramer::new();
        sse.push(b": keep-alive\n\n:\n\ndata: 1\n\n", |event| assert_eq!(event.data, b"1")).unwrap();
        assert_eq!(sse.comments(), 2);
    }

    #[test]
    fn unicode_line_separators_are_text() {
        let body = "data: a\u{2028}b\u{85}c\u{2029}\n\n";
        assert_eq!(data(&[body.as_bytes()]), ["a\u{2028}b\u{85}c\u{2029}"]);
    }

    #[test]
    fn an_unfinished_last_event_counts_only_if_it_is_whole() {
        assert_eq!(data(&[b"data: 1\n\ndata: [DONE]"]), ["1", "[DONE]"]);
        assert_eq!(data(&[b"data: 1\n\ndata: [DONE]\n"]), ["1", "[DONE]"]);
        assert_eq!(data(&[b"data: 1\n\ndata: [DO"]), ["1"]);
    }

    #[test]
    fn a_recognized_event_is_split_off_only_where_an_event_begins_and_ends() {
        let split = |before: &[u8], bytes: &[u8]| {
            let mut sse = SseFramer::new();
            sse.push(before, |_| ()).unwrap();
            let known = |data: &[u8]| data.starts_with(b"12").then_some(2);
            let split = sse.split_recognized(bytes, known).map(|(event, rest)| (event.data.to_vec(), rest.to_vec()));
            (split, sse.take_lines())
        };
        let known = Some((b"12".to_vec(), b"data".to_vec()));
        assert_eq!(split(b"data: 0\n\n", b"data: 12\n\ndata"), (known.clone(), 4));
        assert_eq!(split(b":\n", b"data: 12\n\ndata"), (known, 3));
        for before in [&b""[..], b"d", b"data: 0\n", b"event: x\n", b"data: 0\n\nevent: x\n", b"data: 0\n\r"] {
            assert_eq!(split(before, b"data: 12\n\ndata").0, None, "{}", before.escape_ascii());
        }
        for bytes in
            [&b"data:12\n\n"[..], b"data: 12", b"data: 12\n", b"data: 12\n:", b"data: 123\n\n", b"data: 12\r\n\r\n"]
        {
            assert_eq!(split(b"data: 0\n\n", bytes).0, None, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn bare_json_is_an_event_where_it_is_looked_for() {
        let body = "data: {\"a\":1}\r\n\r\n{\r\n  \"error\": {\r\n\r\n    \"x\": \"}\"\r\n  }\r\n}\r\ndata: 2\r\n\r\n[{\"b\":[]}]";
        let seen = |reads: &[&[u8]], mut sse: SseFramer| {
            let mut seen = Vec::new();
            let mut note = |event: Event<'_>| seen.push(String::from_utf8_lossy(event.data).replace(['\n', ' '], ""));
            for read in reads {
                sse.push(read, &mut note).unwrap();
            }
            sse.finish(|_| true).into_iter().for_each(note);
            seen
        };
        let expected = ["{\"a\":1}", "{\"error\":{\"x\":\"}\"}}", "2", "[{\"b\":[]}]"];
        let body = body.as_bytes();
        for cut in 0..=body.len() {
            assert_eq!(seen(&[&body[..cut], &body[cut..]], SseFramer::with_bare_json()), expected, "cut at {cut}");
        }
        assert_eq!(seen(&[body], SseFramer::new()), ["{\"a\":1}", "2"], "elsewhere the grammar holds");
        let (mut sse, mut reads) = (SseFramer::with_bare_json(), 0);
        while sse.push(b"{\n", |_| ()).is_ok() {
            reads += 1;
        }
        assert_eq!((reads, sse.bare.is_none()), (MAX_EVENT / 2, true), "bare JSON without end is given up");
    }

    #[test]
    fn an_endless_event_stops_the_reading_and_frees_the_memory() {
        let mut sse = SseFramer::new();
        let read = vec![b'x'; 64 * 1024];
        let given_up = (0..100).position(|_| sse.push(&read, |_| ()).is_err());
        assert_eq!(given_up, Some(MAX_EVENT / read.len()));
        assert_eq!(sse.line.capacity(), 0);

        let whole = [b"data: 1\n\ndata:", &read[..].repeat(20)[..], b"\n\ndata: 2\n\n"].concat();
        for cut in [whole.len(), 1 << 20, 64] {
            let (mut sse, mut seen) = (SseFramer::new(), 0);
            let outcomes: Vec<_> = whole.chunks(cut).map(|read| sse.push(read, |_| seen += 1)).collect();
            assert_eq!((seen, outcomes.last()), (1, Some(&Err(FramingError::TooLarge))), "in reads of {cut} bytes");
        }

        let mut sse = SseFramer::new();
        let given_up = (0..1_000_000).position(|_| sse.push(b"data: 0123456789\n", |_| ()).is_err());
        assert!(given_up.is_some_and(|reads| reads <= MAX_EVENT / 11 + 1));
    }
}
