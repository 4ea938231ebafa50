//! Scans one JSON document as it streams through: no tree, no copy of the body, memory fixed at the size of
//! [`JsonScanner`].
//!
//! Request bodies have `model` after a `messages` array of any size; replies have `usage` after megabytes of
//! embeddings. The scanner reads the bytes once, tracks the path, and passes on the scalars that its [`ScanFields`]
//! wants. It checks structure only. Consumers validate numbers and escapes when they read a value.

use std::borrow::Cow;

use super::json_path::{JsonPath, PathStep};
use super::whole_number::whole;
use super::work_budget::{OutOfBudget, WorkBudget, price};

/// Buffer for one wanted scalar, in bytes. Model names are the longest.
const MAX_VALUE: usize = 256;
/// Initial buffer size: enough for keys and most values.
const USUAL_VALUE: usize = 64;
/// Bytes to scan before the budget is charged.
const PIECE: usize = 16 << 10;
/// Maximum nesting depth; real documents stay far below.
const MAX_DEPTH: usize = 128;

/// The scalars that a caller wants. Paths have the form `usage.prompt_tokens` or `choices[].finish_reason`, as bytes,
/// because keys need not be valid UTF-8.
pub trait ScanFields {
    /// True if the scalar is collected at `path`.
    fn wants(&self, path: &[u8]) -> bool;
    /// True if a wanted scalar may be inside the container at `path`. Other containers are scanned without names.
    fn is_prefix_of_wanted(&self, path: &[u8]) -> bool;
    /// Receives a wanted scalar. `index` is the element of the outermost array on the path; 0 without one.
    fn scalar(&mut self, path: &[u8], index: u32, scalar: Scalar<'_>);
}

/// A JSON value other than array and object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar<'a> {
    /// The bytes between a string's quotes, escapes included; cut at 256 bytes.
    String(&'a [u8]),
    /// A number as written.
    Number(&'a str),
    /// `true` or `false`.
    Bool(bool),
    /// `null`.
    Null,
}

impl<'a> Scalar<'a> {
    /// The number as a count; `None` unless it is a non-negative whole number.
    pub fn as_u64(self) -> Option<u64> {
        match self {
            Self::Number(text) => whole(text),
            _ => None,
        }
    }

    /// The number as a float.
    pub fn as_f64(self) -> Option<f64> {
        match self {
            Self::Number(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// The truth value.
    pub fn as_bool(self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The string without escapes.
    pub fn to_text(self) -> Option<Cow<'a, str>> {
        let Self::String(raw) = self else { return None };
        if memchr::memchr(b'\\', raw).is_none() {
            return std::str::from_utf8(raw).ok().map(Cow::Borrowed);
        }
        let quoted = [b"\"", raw, b"\""].concat();
        serde_json::from_slice(&quoted).ok().map(Cow::Owned)
    }
}

/// Bytes of a key or of a wanted scalar from earlier reads, at most [`MAX_VALUE`]; usually empty.
#[derive(Debug, Default)]
struct ValueBuffer(Vec<u8>);

impl ValueBuffer {
    fn push(&mut self, bytes: &[u8]) {
        if self.0.capacity() == 0 {
            self.0.reserve_exact(USUAL_VALUE);
        }
        let room = MAX_VALUE - self.0.len();
        self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Returns the whole value, whose final bytes are `last`. A value within one read is not copied.
    fn whole<'a>(&'a mut self, last: &'a [u8]) -> &'a [u8] {
        if self.0.is_empty() {
            return &last[..last.len().min(MAX_VALUE)];
        }
        self.push(last);
        &self.0
    }
}

/// Progress of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentState {
    /// Only white space so far.
    Empty,
    /// Incomplete.
    Open,
    /// Complete.
    Whole,
    /// Not a single valid JSON document.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanState {
    /// A value must follow; `true` if the array that was just opened may close instead.
    Value(bool),
    /// A key must follow; `true` if the object that was just opened may close instead.
    Key(bool),
    InKey,
    Colon,
    InString,
    /// Inside a number or a literal.
    InWord,
    AfterValue,
    End,
    Broken,
}

/// Scans one document; the module documentation gives its limits.
#[derive(Debug)]
pub struct JsonScanner {
    state: ScanState,
    started: bool,
    escaped: bool,
    is_selected: bool,
    depth: usize,
    /// Bit `d` is set if the container at depth `d` is an object.
    objects: u128,
    path: JsonPath,
    value: ValueBuffer,
}

impl Default for JsonScanner {
    fn default() -> Self {
        Self {
            state: ScanState::Value(false),
            started: false,
            escaped: false,
            is_selected: false,
            depth: 0,
            objects: 0,
            path: JsonPath::default(),
            value: ValueBuffer::default(),
        }
    }
}

impl JsonScanner {
    /// Progress of the document.
    pub fn document(&self) -> DocumentState {
        match self.state {
            ScanState::Broken => DocumentState::Broken,
            ScanState::End => DocumentState::Whole,
            ScanState::InWord if self.depth == 0 => DocumentState::Whole,
            _ if self.started => DocumentState::Open,
            _ => DocumentState::Empty,
        }
    }

    /// Scans one read; returns the number of steps (brackets, commas, runs of text).
    pub fn push(&mut self, bytes: &[u8], fields: &mut impl ScanFields) -> usize {
        let (mut at, mut steps) = (0, 0);
        while at < bytes.len() {
            steps += 1;
            at += self.step(&bytes[at..], fields);
        }
        steps
    }

    /// Scans one step of `bytes`, which is not empty; returns the bytes consumed. These are none at the start and at the
    /// end of a number or a literal, and all in a broken document.
    #[inline(always)]
    pub(super) fn step(&mut self, bytes: &[u8], fields: &mut impl ScanFields) -> usize {
        match self.state {
            ScanState::InString | ScanState::InKey => self.string(bytes, fields),
            ScanState::InWord => self.word(bytes, fields),
            ScanState::Broken => bytes.len(),
            _ => self.byte(bytes[0], fields),
        }
    }

    /// Open containers.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Path of the value that must follow.
    pub(super) fn expected_path(&self) -> Option<&[u8]> {
        matches!(self.state, ScanState::Value(_)).then(|| self.path.named())?
    }

    /// True inside a number or a literal.
    pub(super) fn is_in_word(&self) -> bool {
        self.state == ScanState::InWord
    }

    /// Path of the number or literal that is being scanned.
    pub(super) fn word_path(&self) -> Option<&[u8]> {
        self.is_in_word().then(|| self.path.named())?
    }

    /// If the closing brace of an object may follow: true if the object has keys.
    pub(super) fn closable_object(&self) -> Option<bool> {
        match self.state {
            ScanState::Key(true) => Some(false),
            ScanState::AfterValue if self.in_object() => Some(true),
            _ => None,
        }
    }

    /// Scans one read like [`push`](Self::push), and charges the budget piece by piece.
    ///
    /// # Errors
    /// If the budget is exhausted; the remaining bytes are not scanned.
    pub fn push_paid(
        &mut self,
        bytes: &[u8],
        budget: &mut WorkBudget,
        fields: &mut impl ScanFields,
    ) -> Result<(), OutOfBudget> {
        for piece in bytes.chunks(PIECE) {
            let steps = self.push(piece, fields) as u64;
            budget.charge(steps * price::JSON_STEP + piece.len() as u64 / price::JSON_BYTES_PER_UNIT)?;
        }
        Ok(())
    }

    /// Scans a string up to its closing quote; returns the bytes consumed.
    fn string(&mut self, bytes: &[u8], fields: &mut impl ScanFields) -> usize {
        if std::mem::take(&mut self.escaped) {
            self.keep(&bytes[..1]);
            return 1;
        }
        let Some(stop) = memchr::memchr2(b'"', b'\\', bytes) else {
            self.keep(bytes);
            return bytes.len();
        };
        if bytes[stop] == b'\\' {
            self.escaped = true;
            self.keep(&bytes[..=stop]);
            return stop + 1;
        }
        if self.state == ScanState::InKey {
            if self.is_selected {
                let key = self.value.whole(&bytes[..stop]);
                self.path.enter(self.depth, PathStep::Key(key));
            }
            self.state = ScanState::Colon;
        } else {
            self.emit(&bytes[..stop], fields, |value| Some(Scalar::String(clean(value))));
            self.after_value();
        }
        stop + 1
    }

    /// Scans a number or a literal up to its end; returns the bytes consumed.
    fn word(&mut self, bytes: &[u8], fields: &mut impl ScanFields) -> usize {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let Some(stop) = bytes.iter().position(|byte| !is_part(byte)) else {
            self.keep(bytes);
            return bytes.len();
        };
        self.emit(&bytes[..stop], fields, word);
        self.after_value();
        stop
    }

    /// Processes one byte outside of values; returns the bytes consumed.
    fn byte(&mut self, byte: u8, fields: &impl ScanFields) -> usize {
        if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
            return 1;
        }
        self.state = match (self.state, byte) {
            (ScanState::Value(_), b'{') => self.open(true, fields),
            (ScanState::Value(_), b'[') => self.open(false, fields),
            (ScanState::Value(_), b'"') => self.begin(fields, ScanState::InString),
            // JSON lacks NaN and Infinity, but Python writes them.
            (ScanState::Value(_), b'0'..=b'9' | b'-' | b't' | b'f' | b'n' | b'N' | b'I') => {
                self.state = self.begin(fields, ScanState::InWord);
                return 0;
            }
            (ScanState::Value(true), b']') | (ScanState::Key(true), b'}') => self.close(),
            (ScanState::Key(_), b'"') => {
                self.is_selected = self.path.has_a_name();
                self.value.0.clear();
                ScanState::InKey
            }
            (ScanState::Colon, b':') => ScanState::Value(false),
            (ScanState::AfterValue, b',') if self.in_object() => {
                self.path.leave(self.depth);
                ScanState::Key(false)
            }
            (ScanState::AfterValue, b',') => {
                self.path.next(self.depth);
                ScanState::Value(false)
            }
            (ScanState::AfterValue, b'}') if self.in_object() => {
                self.path.leave(self.depth);
                self.close()
            }
            (ScanState::AfterValue, b']') if !self.in_object() => self.close(),
            _ => ScanState::Broken,
        };
        1
    }

    fn in_object(&self) -> bool {
        self.objects >> self.depth & 1 == 1
    }

    fn begin(&mut self, fields: &impl ScanFields, state: ScanState) -> ScanState {
        self.started = true;
        self.value.0.clear();
        self.is_selected = self.path.named().is_some_and(|path| fields.wants(path));
        state
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.is_selected {
            self.value.push(bytes);
        }
    }

    /// Emits the scalar that ends with `bytes`.
    fn emit(&mut self, bytes: &[u8], fields: &mut impl ScanFields, scalar: impl Fn(&[u8]) -> Option<Scalar<'_>>) {
        if !self.is_selected {
            return;
        }
        match (scalar(self.value.whole(bytes)), self.path.named()) {
            (Some(scalar), Some(path)) => fields.scalar(path, self.path.index(), scalar),
            _ => self.state = ScanState::Broken,
        }
    }

    fn after_value(&mut self) {
        if self.state != ScanState::Broken {
            self.state = if self.depth == 0 { ScanState::End } else { ScanState::AfterValue };
        }
    }

    fn open(&mut self, object: bool, fields: &impl ScanFields) -> ScanState {
        self.started = true;
        if self.depth + 1 >= MAX_DEPTH {
            return ScanState::Broken;
        }
        if self.depth > 0 && self.path.named().is_some_and(|path| !fields.is_prefix_of_wanted(path)) {
            self.path.lose(self.depth);
        }
        self.depth += 1;
        self.objects = self.objects & !(1 << self.depth) | u128::from(object) << self.depth;
        if object {
            ScanState::Key(true)
        } else {
            self.path.enter(self.depth, PathStep::Array);
            ScanState::Value(true)
        }
    }

    fn close(&mut self) -> ScanState {
        if !self.in_object() {
            self.path.leave(self.depth);
        }
        self.depth -= 1;
        if self.depth == 0 { ScanState::End } else { ScanState::AfterValue }
    }
}

/// Removes a partial character or escape from the end of a string that may have been cut at [`MAX_VALUE`].
fn clean(value: &[u8]) -> &[u8] {
    if value.len() < MAX_VALUE {
        return value;
    }
    let (mut end, mut half_pair) = (0, None);
    while end < value.len() {
        let (step, high) = match (value[end], value.get(end + 1)) {
            (b'\\', Some(b'u')) => {
                (6, matches!(value.get(end + 2..end + 4), Some([b'd' | b'D', b'8'..=b'9' | b'a'..=b'b' | b'A'..=b'B'])))
            }
            (b'\\', _) => (2, false),
            _ => (1, false),
        };
        if end + step > value.len() {
            break;
        }
        half_pair = high.then_some(end);
        end += step;
    }
    let value = &value[..half_pair.unwrap_or(end)];
    match std::str::from_utf8(value) {
        Err(error) if error.error_len().is_none() => &value[..error.valid_up_to()],
        _ => value,
    }
}

fn word(value: &[u8]) -> Option<Scalar<'_>> {
    match value {
        b"true" => Some(Scalar::Bool(true)),
        b"false" => Some(Scalar::Bool(false)),
        b"null" => Some(Scalar::Null),
        digits => {
            let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit()) || text.parse::<f64>().is_ok();
            std::str::from_utf8(digits).ok().filter(is_number).map(Scalar::Number)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::dialect::{field, leads};

    #[derive(Default)]
    struct All(Vec<String>);

    impl ScanFields for All {
        fn wants(&self, _: &[u8]) -> bool {
            true
        }
        fn is_prefix_of_wanted(&self, _: &[u8]) -> bool {
            true
        }
        fn scalar(&mut self, path: &[u8], index: u32, scalar: Scalar<'_>) {
            let path = String::from_utf8_lossy(path);
            self.0.push(match scalar {
                Scalar::String(_) => format!("{path} {index} {:?}", scalar.to_text().unwrap_or_default()),
                Scalar::Number(n) => format!("{path} {index} {n}"),
                Scalar::Bool(b) => format!("{path} {index} {b}"),
                Scalar::Null => format!("{path} {index} null"),
            });
        }
    }

    fn scan(reads: &[&[u8]]) -> (Vec<String>, DocumentState) {
        let (mut scan, mut all) = (JsonScanner::default(), All::default());
        for read in reads {
            scan.push(read, &mut all);
        }
        (all.0, scan.document())
    }

    const REPLY: &str = r#" {"id":"a\"b","choices":[{"index":0,"finish_reason":"stop","m":{"c":["x",[1]]}},
        {"index":1,"finish_reason":null}],"usage":{"d":{"cached":2},"n":-1.5e3},"ok":true,"e":{},"l":[]} "#;

    #[test]
    fn every_cut_gives_the_same_scalars_with_their_paths() {
        let expected = [
            r#"id 0 "a\"b""#,
            "choices[].index 0 0",
            r#"choices[].finish_reason 0 "stop""#,
            r#"choices[].m.c[] 0 "x""#,
            "choices[].m.c[][] 0 1",
            "choices[].index 1 1",
            "choices[].finish_reason 1 null",
            "usage.d.cached 0 2",
            "usage.n 0 -1.5e3",
            "ok 0 true",
        ];
        let body = REPLY.as_bytes();
        assert_eq!(scan(&[body]), (expected.map(String::from).to_vec(), DocumentState::Whole));
        for cut in 0..body.len() {
            assert_eq!(scan(&[&body[..cut], &body[cut..]]).0, expected, "cut at {cut}");
        }
    }

    #[test]
    fn deep_and_long_paths_are_walked_without_a_name_and_found_again_after() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(40), "}".repeat(40));
        let long = format!(r#"{{"{}":{{"x":[1,2]}},"after":{deep},"last":7}}"#, "k".repeat(200));
        assert_eq!(scan(&[long.as_bytes()]), (vec!["last 0 7".into()], DocumentState::Whole));
    }

    /// Wants one deeply nested field, and elements of an array that may be numbers or objects.
    struct Two(Vec<String>);

    const WANTED: [(&str, ()); 2] = [("a.b[].c", ()), ("n[]", ())];

    impl ScanFields for Two {
        fn wants(&self, path: &[u8]) -> bool {
            field(&WANTED, path).is_some()
        }
        fn is_prefix_of_wanted(&self, path: &[u8]) -> bool {
            leads(&WANTED, path)
        }
        fn scalar(&mut self, path: &[u8], index: u32, scalar: Scalar<'_>) {
            self.0.push(format!("{} {index} {scalar:?}", String::from_utf8_lossy(path)));
        }
    }

    #[test]
    fn what_is_in_a_value_that_nobody_asks_for_hides_nothing_that_comes_after_it() {
        let body = r#"{"x":{"a":{"b":[{"c":1}]}},"a":{"x":[[1]],"b":[{"x":{"c":2},"c":3},[4],{"c":5}],"y":{}},
            "n":[{"n":[6]},7,[8],9],"ab":{"b":[{"c":10}]}}"#;
        let expected =
            ["a.b[].c 0 Number(\"3\")", "a.b[].c 2 Number(\"5\")", "n[] 1 Number(\"7\")", "n[] 3 Number(\"9\")"];
        for cut in 0..body.len() {
            let (mut scan, mut two) = (JsonScanner::default(), Two(Vec::new()));
            scan.push(&body.as_bytes()[..cut], &mut two);
            scan.push(&body.as_bytes()[cut..], &mut two);
            assert_eq!(
                (two.0, scan.document()),
                (expected.map(str::to_owned).to_vec(), DocumentState::Whole),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn a_long_string_is_cut_where_it_is_still_text() {
        // (unit to repeat after some letters, its decoded form)
        for (unit, decoded) in [("é", "é"), ("\\n", "\n"), ("\\u00e9", "é"), ("\\ud83d\\ude00", "😀"), ("\\\\", "\\")]
        {
            for letters in 0..unit.len() {
                let mut all = All::default();
                let text = format!("\"{}{}\"", "x".repeat(letters), unit.repeat(300));
                JsonScanner::default().push(text.as_bytes(), &mut all);
                let expected = "x".repeat(letters) + &decoded.repeat((MAX_VALUE - letters) / unit.len());
                assert_eq!(all.0, [format!(" 0 {expected:?}")], "{unit} after {letters}");
            }
        }
    }

    #[test]
    fn what_is_not_one_document_is_broken() {
        for bad in ["}", "{]", "[1}", "{\"a\" 1}", "[1,,2]", "{} {}", "[1 2]", "{\"a\":tru}", "nope", "[-]"] {
            assert_eq!(scan(&[bad.as_bytes(), b" "]).1, DocumentState::Broken, "{bad}");
        }
        assert_eq!(scan(&["[".repeat(1_000).as_bytes()]).1, DocumentState::Broken);
        assert_eq!(scan(&[b"\n \n"]).1, DocumentState::Empty);
        assert_eq!(scan(&[b"{\"a\":1"]).1, DocumentState::Open);
        assert_eq!(scan(&[b"[]"]).1, DocumentState::Whole);
    }
}
