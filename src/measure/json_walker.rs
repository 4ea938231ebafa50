//! Walks one complete JSON text: borrowed, in one pass, without an allocation.
//!
//! serde_json allocates for every skipped value nested deeper than two levels, and most of a stream's event is
//! skipped. Each callback receives the walker and must consume exactly the value at its position.
//!
//! The walker checks structure. It does not validate numbers or the inside of strings; UTF-8 is validated once.
//!
//! A walk can record the positions of values that affect only themselves (`value_span`).

use std::ops::Range;

use super::value_span::{MAX_VALUES, ValueKind, ValueSpan, ValueSpans};
use super::whole_number::whole;

/// Maximum nesting depth; real events stay far below.
const MAX_DEPTH: usize = 64;

/// A position before a value of a text. Methods that take a value return `None` if the text is not JSON or the value
/// has another kind; the walk must then end.
#[derive(Clone, Debug)]
pub struct JsonWalker<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    recorded: Option<ValueSpans>,
}

/// Content of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldState {
    /// `null`.
    Null,
    /// `""`, `[]` or `{}`.
    Empty,
    /// A non-empty string, with the range of its inside in the text.
    String(Range<usize>),
    /// Anything else.
    Other,
}

impl FieldState {
    /// True if the field has visible content.
    pub fn is_content(&self) -> bool {
        matches!(self, Self::String(_) | Self::Other)
    }
}

impl<'a> JsonWalker<'a> {
    /// Starts a walk; `None` if `bytes` are not UTF-8.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        std::str::from_utf8(bytes).ok().map(|text| Self { text, at: 0, depth: 0, recorded: None })
    }

    /// Records values in `spans` from here on.
    pub(super) fn recording(self, spans: ValueSpans) -> Self {
        Self { recorded: Some(spans), ..self }
    }

    /// The recorded values; `None` if the walk does not record.
    pub(super) fn into_recorded(self) -> Option<ValueSpans> {
        self.recorded
    }

    /// `None` unless only white space remains.
    pub fn end(mut self) -> Option<()> {
        self.is_at_end().then_some(())
    }

    /// True if only white space remains.
    pub fn is_at_end(&mut self) -> bool {
        self.white();
        self.at == self.text.len()
    }

    /// Offset of the next value.
    pub fn position(&mut self) -> usize {
        self.white();
        self.at
    }

    /// True if the next value is an object.
    pub fn is_object(&mut self) -> bool {
        self.white();
        self.next() == Some(b'{')
    }

    /// True if the next value is an array.
    pub fn is_array(&mut self) -> bool {
        self.white();
        self.next() == Some(b'[')
    }

    /// Takes an object; `each` must take the value of every key. `null` counts as an empty object.
    pub fn object(&mut self, mut each: impl FnMut(&'a [u8], &mut Self) -> Option<()>) -> Option<()> {
        if !self.open(b'{')? {
            return Some(());
        }
        if !self.token(b'}') {
            loop {
                let key = self.string()?;
                let key = self.text.get(key)?.as_bytes();
                self.token(b':').then_some(())?;
                each(key, self)?;
                if !self.token(b',') {
                    break;
                }
            }
            self.token(b'}').then_some(())?;
        }
        self.depth -= 1;
        Some(())
    }

    /// Takes an array; `each` must take every entry. `null` counts as an empty array.
    pub fn array(&mut self, mut each: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        if !self.open(b'[')? {
            return Some(());
        }
        if !self.token(b']') {
            loop {
                each(self)?;
                if !self.token(b',') {
                    break;
                }
            }
            self.token(b']').then_some(())?;
        }
        self.depth -= 1;
        Some(())
    }

    /// Takes an array and counts its entries; `None` inside for `null`.
    pub fn length(&mut self) -> Option<Option<u32>> {
        if self.null() {
            return Some(None);
        }
        let mut entries = 0;
        self.array(|walk| {
            entries += 1;
            walk.skip()
        })?;
        Some(Some(entries))
    }

    /// [`length`](Self::length) that records an array of numbers under `slot`, whose value is the array's length.
    pub fn length_in(&mut self, slot: u8) -> Option<Option<u32>> {
        let start = self.position();
        let length = self.unrecorded(Self::length)?;
        self.record(start..self.at, ValueKind::Numbers, slot);
        Some(length)
    }

    /// Takes any value and returns its state. In a recording walk the caller must not read the value's text.
    pub fn shown(&mut self) -> Option<FieldState> {
        self.white();
        let start = self.at;
        match self.next()? {
            b'"' => {
                let inside = self.string()?;
                self.record(inside.clone(), ValueKind::ShownString, 0);
                Some(if inside.is_empty() { FieldState::Empty } else { FieldState::String(inside) })
            }
            b'n' => self.skip().map(|()| FieldState::Null),
            b'[' | b'{' => {
                self.unrecorded(Self::skip)?;
                let empty = self.text.get(start + 1..self.at - 1)?.trim_ascii().is_empty();
                Some(if empty { FieldState::Empty } else { FieldState::Other })
            }
            _ => self.skip().map(|()| FieldState::Other),
        }
    }

    /// Takes any value. Returns the inside of a string with its escapes; `None` inside for other kinds.
    pub fn text(&mut self) -> Option<Option<&'a str>> {
        match self.unrecorded(Self::shown)? {
            FieldState::String(inside) => self.text.get(inside).map(Some),
            FieldState::Empty | FieldState::Null | FieldState::Other => Some(None),
        }
    }

    /// Takes any value. Returns a non-negative whole number; `None` inside for anything else.
    pub fn number(&mut self) -> Option<Option<u64>> {
        self.raw().map(whole)
    }

    /// [`number`](Self::number) that records a number under `slot`, with the number as the slot's value.
    pub fn number_in(&mut self, slot: u8) -> Option<Option<u64>> {
        let start = self.position();
        let number = self.number()?;
        self.record(start..self.at, ValueKind::Number, slot);
        Some(number)
    }

    /// Takes any value. Returns the byte length of a string's inside; `None` inside for other kinds. Records a string
    /// under `slot`, whose value is that length.
    pub fn text_length_in(&mut self, slot: u8) -> Option<Option<u64>> {
        let start = self.position();
        Some(match self.unrecorded(Self::shown)? {
            FieldState::String(inside) => {
                self.record(inside.clone(), ValueKind::String, slot);
                Some(inside.len() as u64)
            }
            FieldState::Empty if self.text.as_bytes().get(start) == Some(&b'"') => {
                self.record(start + 1..start + 1, ValueKind::String, slot);
                Some(0)
            }
            FieldState::Empty => Some(0),
            FieldState::Null | FieldState::Other => None,
        })
    }

    /// Takes any value and returns its source text.
    pub fn raw(&mut self) -> Option<&'a str> {
        self.white();
        let start = self.at;
        self.unrecorded(Self::skip)?;
        self.text.get(start..self.at)
    }

    /// Takes any value and discards it.
    pub fn skip(&mut self) -> Option<()> {
        self.white();
        let start = self.at;
        match self.next()? {
            b'"' => {
                let inside = self.string()?;
                self.record(inside, ValueKind::String, 0);
                Some(())
            }
            b'{' => self.object(|key, walk| {
                walk.record_key(key);
                walk.skip()
            }),
            b'[' => {
                let before = self.recorded.as_ref().map_or(0, Vec::len);
                self.array(Self::skip)?;
                self.record_numbers(start..self.at, before);
                Some(())
            }
            b'-' | b'0'..=b'9' => {
                let number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
                let rest = self.rest();
                self.at += rest.iter().position(|byte| !number(byte)).unwrap_or(rest.len());
                // The rest of `-Infinity`.
                self.word("Infinity");
                self.record(start..self.at, ValueKind::Number, 0);
                Some(())
            }
            // JSON lacks NaN and Infinity, but Python writes them.
            _ => ["true", "false", "null", "NaN", "Infinity"].iter().any(|word| self.word(word)).then_some(()),
        }
    }

    /// Records the value at `place`, if the walk records and the value is plainly of this kind.
    #[inline]
    fn record(&mut self, place: Range<usize>, kind: ValueKind, slot: u8) {
        if self.recorded.is_some() {
            self.note(place, kind, slot);
        }
    }

    #[cold]
    fn note(&mut self, place: Range<usize>, kind: ValueKind, slot: u8) {
        let Range { start, end } = place;
        let is_plain = self.text.as_bytes().get(start..).and_then(|rest| kind.end(rest)) == Some(end - start);
        if let Some(spans) = self.recorded.as_mut().filter(|spans| is_plain && spans.len() <= MAX_VALUES) {
            spans.push(ValueSpan { start, end, kind, slot });
        }
    }

    /// Records a key of a skipped object, because its name has no effect.
    #[inline]
    fn record_key(&mut self, key: &[u8]) {
        if self.recorded.is_some() {
            let start = key.as_ptr() as usize - self.text.as_ptr() as usize;
            self.note(start..start + key.len(), ValueKind::String, 0);
        }
    }

    /// Records an array of numbers as one value, replacing the entries after the first `before`.
    #[inline]
    fn record_numbers(&mut self, place: Range<usize>, before: usize) {
        if let Some(spans) = &mut self.recorded
            && ValueKind::Numbers.end(&self.text.as_bytes()[place.start..]) == Some(place.len())
        {
            spans.truncate(before);
            self.note(place, ValueKind::Numbers, 0);
        }
    }

    /// Takes a value without recording, because its reader uses more than its kind.
    #[inline]
    fn unrecorded<T>(&mut self, take: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let recorded = self.recorded.take();
        let taken = take(self);
        self.recorded = recorded;
        taken
    }

    /// The remaining text.
    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn next(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn white(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.next() {
            self.at += 1;
        }
    }

    fn token(&mut self, token: u8) -> bool {
        self.white();
        let found = self.next() == Some(token);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, word: &str) -> bool {
        let found = self.rest().starts_with(word.as_bytes());
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn null(&mut self) -> bool {
        self.white();
        self.word("null")
    }

    /// Enters a container; `false` for `null`.
    fn open(&mut self, token: u8) -> Option<bool> {
        if self.null() {
            return Some(false);
        }
        self.depth += 1;
        (self.token(token) && self.depth <= MAX_DEPTH).then_some(true)
    }

    /// Takes a string; returns the range of its inside.
    fn string(&mut self) -> Option<Range<usize>> {
        self.token(b'"').then_some(())?;
        let start = self.at;
        loop {
            let rest = self.rest();
            let stop = memchr::memchr2(b'"', b'\\', rest)?;
            if rest[stop] == b'"' {
                let end = self.at + stop;
                self.at = end + 1;
                return Some(start..end);
            }
            self.at += stop + 2;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_walk_takes_what_it_wants_and_skips_the_rest() {
        let text = br#" {"a":[1,{"b":[[]]},"x\"]"],"c":{"d":"in","e":null,"f":[]},"n":42,"t":true} "#;
        let mut walk = JsonWalker::new(text).unwrap();
        let mut seen = Vec::new();
        walk.object(|key, walk| {
            match key {
                b"a" => seen.push(format!("{:?}", walk.length()?)),
                b"c" => walk.object(|key, walk| {
                    seen.push(format!("{} {:?}", key[0] as char, walk.shown()?));
                    Some(())
                })?,
                b"n" => seen.push(format!("{:?}", walk.number()?)),
                _ => walk.skip()?,
            }
            Some(())
        })
        .unwrap();
        assert_eq!(walk.end(), Some(()));
        assert_eq!(seen, ["Some(3)", "d String(38..40)", "e Null", "f Empty", "Some(42)"]);
    }

    #[test]
    fn a_whole_number_is_one_in_whatever_form_it_is_written() {
        for (text, number) in [("7", Some(7)), ("7.0", Some(7)), ("0.7e1", Some(7)), ("-0.0", Some(0))] {
            assert_eq!(JsonWalker::new(text.as_bytes()).unwrap().number(), Some(number), "{text}");
        }
        for text in ["7.5", "-7", "1e300", "\"7\"", "null", "[7]"] {
            assert_eq!(JsonWalker::new(text.as_bytes()).unwrap().number(), Some(None), "{text}");
        }
    }

    #[test]
    fn what_python_writes_for_no_number_is_a_value_and_no_number() {
        for text in ["NaN", "Infinity", "-Infinity", "[NaN,-Infinity]"] {
            let mut walk = JsonWalker::new(text.as_bytes()).unwrap();
            assert_eq!((walk.number(), walk.end()), (Some(None), Some(())), "{text}");
        }
        for bad in ["Nan", "Inf", "-NaN", "infinity"] {
            let mut walk = JsonWalker::new(bad.as_bytes()).unwrap();
            assert!(walk.skip().and_then(|()| walk.end()).is_none(), "{bad}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_not_walked() {
        assert!(JsonWalker::new(b"{\"a\":\"\xff\"}").is_none());
    }

    #[test]
    fn null_is_an_empty_container_and_a_wrong_kind_ends_the_walk() {
        assert_eq!(JsonWalker::new(b"null").unwrap().object(|_, _| None), Some(()));
        assert_eq!(JsonWalker::new(b" null").unwrap().length(), Some(None));
        assert_eq!(JsonWalker::new(b"7").unwrap().array(JsonWalker::skip), None);
        assert_eq!(JsonWalker::new(b"[]").unwrap().object(|_, walk| walk.skip()), None);
    }

    #[test]
    fn what_is_not_json_ends_the_walk() {
        for bad in ["", "{", "{\"a\"}", "{\"a\":1,}", "[1,]", "[1 2]", "\"open", "\"\\", "tru", "{a:1}", "]"] {
            let mut walk = JsonWalker::new(bad.as_bytes()).unwrap();
            assert!(walk.skip().and_then(|()| walk.end()).is_none(), "{bad}");
        }
        assert_eq!(JsonWalker::new("[".repeat(10_000).as_bytes()).unwrap().skip(), None);
    }

    proptest! {
        #[test]
        fn every_document_that_serde_json_writes_is_walked_to_its_end(value in json(), pretty: bool) {
            let text = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) }.unwrap();
            let mut walk = JsonWalker::new(&text).unwrap();
            prop_assert_eq!(walk.raw().map(str::as_bytes), Some(&text[..]));
            prop_assert_eq!(walk.end(), Some(()));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _walked = JsonWalker::new(&bytes).and_then(|mut walk| walk.shown().and_then(|_| walk.end()));
        }
    }

    /// Generates arbitrary documents.
    pub(in crate::measure) fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<f64>().prop_filter("JSON has no infinities", |n| n.is_finite()).prop_map(Into::into),
            any::<u64>().prop_map(Into::into),
            ".*".prop_map(Into::into),
        ];
        leaf.prop_recursive(6, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                proptest::collection::hash_map(".*", inner, 0..6)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }
}
