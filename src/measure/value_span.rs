//! Positions of JSON values that affect only themselves.
//!
//! A recording [`JsonWalker`](super::json_walker::JsonWalker) records each value whose reader uses only its kind, or
//! one number derived from it. Texts that differ only in such values, with equal [kinds](ValueKind), give equal
//! results; event skeletons rely on this. A value that is not plainly of its kind is never recorded.

use std::ops::Range;

use super::whole_number::whole;

/// Maximum values recorded per text; the top-5 log probabilities of a token take 22. One more entry marks an
/// overflow.
pub(super) const MAX_VALUES: usize = 64;

/// Kind of a value, which determines the possible replacements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// The inside of a string.
    String,
    /// The inside of a non-empty string.
    ShownString,
    Number,
    /// An array of numbers in one line, possibly empty.
    Numbers,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ValueSpan {
    pub(super) start: usize,
    /// Exclusive.
    pub(super) end: usize,
    pub(super) kind: ValueKind,
    /// Meaning for the reader; `0` for none.
    pub(super) slot: u8,
}

impl ValueSpan {
    pub(super) fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// Values in text order.
pub(super) type ValueSpans = Vec<ValueSpan>;

impl ValueKind {
    /// End of the value of this kind at the start of `bytes`; `None` if there is no such value. The rules are JSON's,
    /// so they accept no more than a walk does. A string ends at its closing quote.
    #[inline]
    pub(super) fn end(self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::String => string_end(bytes),
            Self::ShownString => string_end(bytes).filter(|end| *end > 0),
            Self::Number => number_end(bytes),
            Self::Numbers => numbers(bytes).map(|(end, _)| end),
        }
    }

    /// The number that a value stands for: a whole number, the length of an array, the byte length of a string.
    pub(super) fn reading(self, value: &[u8]) -> Option<u64> {
        match self {
            Self::String | Self::ShownString => Some(value.len() as u64),
            Self::Number => digits(value).or_else(|| std::str::from_utf8(value).ok().and_then(whole)),
            Self::Numbers => numbers(value).map(|(_, entries)| entries),
        }
    }
}

/// The number that some digits denote; `None` for other bytes and for more digits than always fit.
fn digits(bytes: &[u8]) -> Option<u64> {
    let number = |sum: u64, byte: &u8| byte.is_ascii_digit().then(|| sum * 10 + u64::from(byte - b'0'));
    Some(bytes).filter(|bytes| bytes.len() < 20)?.iter().try_fold(0, number)
}

/// Strings from this length on, in bytes, use memchr.
const LONG: usize = 48;

fn string_end(bytes: &[u8]) -> Option<usize> {
    let at = plain_text_end(bytes);
    if bytes.get(at) == Some(&b'"') { Some(at) } else { other_string_end(bytes, at) }
}

/// End of a string whose first `at` bytes are plain.
fn other_string_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut is_ascii = true;
    loop {
        if at >= LONG {
            // A long string may contain all text so far, so it is searched in large steps.
            let plain = &bytes[at..at + memchr::memchr2(b'"', b'\\', &bytes[at..])?];
            if plain.iter().fold(u8::MAX, |least, byte| least.min(*byte)) < 0x20 {
                return None;
            }
            is_ascii &= plain.is_ascii();
            at += plain.len();
        }
        match *bytes.get(at)? {
            b'"' => break,
            b'\\' => match *bytes.get(at + 1)? {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => at += 2,
                b'u' => {
                    let digits = bytes.get(at + 2..at + 6)?;
                    if !digits.iter().all(u8::is_ascii_hexdigit) {
                        return None;
                    }
                    at += 6;
                }
                _ => return None,
            },
            0..0x20 => return None,
            byte => {
                is_ascii &= byte < 0x80;
                at += 1;
            }
        }
    }
    (is_ascii || std::str::from_utf8(&bytes[..at]).is_ok()).then_some(at)
}

fn number_end(bytes: &[u8]) -> Option<usize> {
    // Most numbers are whole and positive.
    if let Some(b'1'..=b'9') = bytes.first() {
        let end = digits_end(bytes, 0);
        if !matches!(bytes.get(end), Some(b'.' | b'e' | b'E')) {
            return Some(end);
        }
    }
    let digits = |from: usize| Some(digits_end(bytes, from)).filter(|end| *end > from);
    let mut at = usize::from(bytes.first() == Some(&b'-'));
    at = if bytes.get(at) == Some(&b'0') { at + 1 } else { digits(at)? };
    if bytes.get(at) == Some(&b'.') {
        at = digits(at + 1)?;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        let signed = matches!(bytes.get(at + 1), Some(b'+' | b'-'));
        at = digits(at + 1 + usize::from(signed))?;
    }
    Some(at)
}

/// One bit for each byte of a word, its highest.
const HIGH_BITS: u64 = u64::MAX / 0xff * 0x80;

/// This byte, eight times.
const fn each(byte: u8) -> u64 {
    u64::MAX / 0xff * byte as u64
}

/// Length of the ASCII text at the start of `bytes` that needs no escape in a string. May end early after
/// [`LONG`] bytes, or near the end of `bytes`.
///
/// Token texts vary in length, so a loop over bytes pays for a mispredicted branch in most strings; a loop over words
/// seldom does.
#[inline]
fn plain_text_end(bytes: &[u8]) -> usize {
    let mut at = 0;
    while at < LONG
        && let Some((word, _)) = bytes[at..].split_first_chunk()
    {
        let word = u64::from_le_bytes(*word);
        // A byte below a limit borrows from its high bit. A borrow spoils only the bytes after it.
        let below = |word: u64, limit: u8| word.wrapping_sub(each(limit)) & !word;
        let special = below(word, 0x20) | below(word ^ each(b'"'), 1) | below(word ^ each(b'\\'), 1) | word;
        let first = first_high_bit(special);
        at += first;
        if first < 8 {
            break;
        }
    }
    at
}

/// End of the decimal digits from `at` on.
#[inline]
fn digits_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some((word, _)) = bytes.get(at..).and_then(<[u8]>::split_first_chunk) {
        // The digits become 0 to 9; a carry spoils only the bytes after it.
        let word = u64::from_le_bytes(*word) ^ each(b'0');
        let first = first_high_bit(word.wrapping_add(each(0x80 - 10)) | word);
        at += first;
        if first < 8 {
            return at;
        }
    }
    while bytes.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    at
}

/// The first byte of a little-endian word whose high bit is set; 8 if there is none.
#[inline]
fn first_high_bit(word: u64) -> usize {
    ((word & HIGH_BITS).trailing_zeros() / 8) as usize
}

/// End and length of an array of numbers.
fn numbers(bytes: &[u8]) -> Option<(usize, u64)> {
    let white = |mut at: usize| {
        while let Some(b' ' | b'\t') = bytes.get(at) {
            at += 1;
        }
        at
    };
    if bytes.first() != Some(&b'[') {
        return None;
    }
    let (mut at, mut entries) = (white(1), 0);
    if bytes.get(at) == Some(&b']') {
        return Some((at + 1, 0));
    }
    loop {
        entries += 1;
        at += number_end(bytes.get(at..)?)?;
        at = white(at);
        match bytes.get(at)? {
            b',' => at = white(at + 1),
            b']' => return Some((at + 1, entries)),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_ends_where_its_grammar_says() {
        for (text, end) in
            [("7,", 1), ("-0}", 2), ("10.25]", 5), ("1e5 ", 3), ("-1.5E-3,", 7), ("0123", 1), ("1Infinity", 1)]
        {
            assert_eq!(ValueKind::Number.end(text.as_bytes()), Some(end), "{text}");
        }
        for text in ["", "-", ".5", "+1", "1.", "1.e5", "1e", "1e+", "NaN", "-Infinity", "null", "\"7\""] {
            assert_eq!(ValueKind::Number.end(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn an_array_of_numbers_says_how_many_it_has() {
        for (text, end, entries) in [("[]x", 2, 0), ("[ ]", 3, 0), ("[7]", 3, 1), ("[1, -2 ,3.5]]", 12, 3)] {
            assert_eq!(ValueKind::Numbers.end(text.as_bytes()), Some(end), "{text}");
            assert_eq!(ValueKind::Numbers.reading(&text.as_bytes()[..end]), Some(entries), "{text}");
        }
        for text in ["", "[", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "[1,\n2]", "[null]", "[[1]]", "[\"1\"]", "1"] {
            assert_eq!(ValueKind::Numbers.end(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn words_and_single_bytes_give_the_same_ends() {
        for length in 0..=2 * LONG {
            for byte in [0, 0x1f, b' ', b'"', b'/', b'\\', b'[', b':', 0x7f, 0x80, 0xa0, 0xff] {
                let mut text = vec![b'7'; length];
                text.extend_from_slice(&[byte, b'"', b'1', b'"', 0, 0x9f, b'7', b'8', b'9', b'}']);
                assert_eq!(string_end(&text), other_string_end(&text, 0), "{byte} at {length}");
                assert_eq!(digits_end(&text, 0), length, "{byte} at {length}");
                assert_eq!(digits_end(&text[..length], 0), length);
            }
        }
    }

    #[test]
    fn a_string_ends_at_its_quote_if_all_before_it_is_valid() {
        for (text, end) in [("a\"", 1), (r#"\"\u00e9\n""#, 10), ("é\"", 2), ("\"", 0)] {
            assert_eq!(ValueKind::String.end(text.as_bytes()), Some(end), "{text}");
        }
        for text in ["open", "\\", "\\\"", "\\x\"", "\\u12g4\"", "\\u12", "a\nb\""] {
            assert_eq!(ValueKind::String.end(text.as_bytes()), None, "{text}");
        }
        assert_eq!(ValueKind::String.end(b"\xff\""), None, "not UTF-8");
        let long = |middle: &[u8]| [&[b'a'; 3 * LONG][..], middle, b"b\"c\""].concat();
        for (middle, end) in [("", Some(145)), ("é", Some(147)), ("\\n", Some(147)), ("\n", None), ("\\x", None)] {
            assert_eq!(ValueKind::String.end(&long(middle.as_bytes())), end, "{middle:?}");
        }
        assert_eq!(ValueKind::String.end(&long(b"\xff")), None, "not UTF-8");
        assert_eq!(ValueKind::ShownString.end(b"\""), None, "empty");
    }
}
