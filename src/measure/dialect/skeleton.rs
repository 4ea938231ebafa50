//! Steady events are nearly free.
//!
//! The events of one stream differ from the one before in one string. After a full parse has shown that an event means
//! exactly one thing, its bytes around that string (its *skeleton*) are kept; an event that has the same bytes around a
//! valid, non-empty JSON string means the same, and is not parsed. OpenAI pads each event with a second random string,
//! `obfuscation`: a skeleton may have one such hole beside the text's.
//!
//! Correct first: any other difference, and anything that is not plainly a JSON string, is a mismatch, and a mismatch
//! is parsed in full.

use std::ops::Range;

/// The bytes that an event must have for its meaning to be known, and the meaning `M`.
#[derive(Debug)]
pub(super) struct Skeleton<M> {
    /// Bytes before the first hole, between the holes, after the last; quotes included.
    fixed: [Vec<u8>; 3],
    holes: usize,
    /// Which hole holds the text.
    text: usize,
    meaning: Option<M>,
}

impl<M> Default for Skeleton<M> {
    fn default() -> Self {
        Self { fixed: Default::default(), holes: 0, text: 0, meaning: None }
    }
}

impl<M: Copy> Skeleton<M> {
    /// The meaning of `data`, if only its text differs from the event that was learned.
    pub(super) fn meaning_of(&self, data: &[u8]) -> Option<M> {
        let meaning = self.meaning?;
        let mut rest = data;
        for hole in 0..self.holes {
            rest = rest.strip_prefix(&self.fixed[hole][..])?;
            let end = string_end(rest)?;
            if hole == self.text && end == 0 {
                return None;
            }
            rest = &rest[end..];
        }
        (rest == &self.fixed[self.holes][..]).then_some(meaning)
    }

    /// Learns an event of this meaning whose text (and padding, if it has any) lies at these ranges of `data`, each
    /// inside its quotes.
    pub(super) fn learn(&mut self, data: &[u8], text: Range<usize>, padding: Option<Range<usize>>, meaning: M) {
        self.meaning = Some(meaning);
        self.text = usize::from(padding.as_ref().is_some_and(|padding| padding.start < text.start));
        let (first, second) = match padding {
            Some(padding) if self.text == 1 => (padding, Some(text)),
            padding => (text, padding),
        };
        self.holes = 1 + usize::from(second.is_some());
        let mut from = 0;
        for (hole, range) in [Some(first), second].into_iter().flatten().enumerate() {
            replace(&mut self.fixed[hole], &data[from..range.start]);
            from = range.end;
        }
        replace(&mut self.fixed[self.holes], &data[from..]);
    }

    /// Forgets: the next event is parsed in full.
    pub(super) fn forget(&mut self) {
        self.meaning = None;
    }
}

fn replace(kept: &mut Vec<u8>, bytes: &[u8]) {
    kept.clear();
    kept.extend_from_slice(bytes);
}

/// Where the JSON string that `bytes` begin inside of ends (the place of its closing quote); `None` unless everything
/// before that is valid inside a JSON string.
fn string_end(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
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
            _ => at += 1,
        }
    }
    std::str::from_utf8(&bytes[..at]).is_ok().then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(event: &str, text: &str, padding: Option<&str>) -> Skeleton<u8> {
        let range = |needle: &str| {
            let at = event.find(needle).unwrap();
            at..at + needle.len()
        };
        let mut skeleton = Skeleton::default();
        skeleton.learn(event.as_bytes(), range(text), padding.map(range), 7);
        skeleton
    }

    #[test]
    fn an_event_that_differs_in_its_text_only_has_the_meaning() {
        let skeleton = learned(r#"{"c":"one","i":0}"#, "one", None);
        for same in [r#"{"c":"two","i":0}"#, r#"{"c":"\"\u00e9\n","i":0}"#, r#"{"c":"é","i":0}"#] {
            assert_eq!(skeleton.meaning_of(same.as_bytes()), Some(7), "{same}");
        }
    }

    #[test]
    fn any_other_difference_is_a_mismatch() {
        let skeleton = learned(r#"{"c":"one","i":0}"#, "one", None);
        for other in [
            r#"{"c":"","i":0}"#,
            r#"{"c":"two","i":1}"#,
            r#"{"c":"two","i":0} "#,
            r#"{"c":"two","c":"","i":0}"#,
            r#"{"c":"two\","i":0}"#,
            r#"{"c":"\x","i":0}"#,
            r#"{"c":"\u12g4","i":0}"#,
            "{\"c\":\"a\nb\",\"i\":0}",
            r#"{"c":null,"i":0}"#,
            r#"{"c":"two"#,
            "",
        ] {
            assert_eq!(skeleton.meaning_of(other.as_bytes()), None, "{other}");
        }
        assert_eq!(skeleton.meaning_of(b"{\"c\":\"\xff\",\"i\":0}"), None, "not UTF-8");
    }

    #[test]
    fn padding_may_vary_on_either_side_of_the_text() {
        for (event, other) in [
            (r#"{"c":"text","p":"pad"}"#, r#"{"c":"t2","p":""}"#),
            (r#"{"p":"pad","c":"text"}"#, r#"{"p":"","c":"t2"}"#),
        ] {
            let skeleton = learned(event, "text", Some("pad"));
            assert_eq!(skeleton.meaning_of(other.as_bytes()), Some(7));
            let empty_text = other.replace("t2", "");
            assert_eq!(skeleton.meaning_of(empty_text.as_bytes()), None);
        }
    }

    #[test]
    fn what_was_forgotten_is_not_known() {
        let mut skeleton = learned(r#"{"c":"one"}"#, "one", None);
        skeleton.forget();
        assert_eq!(skeleton.meaning_of(br#"{"c":"one"}"#), None);
    }
}
