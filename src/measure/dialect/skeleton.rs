//! Makes steady events nearly free to parse.
//!
//! Consecutive events of a stream differ in few values. These are the text, and with some servers numbers and short
//! arrays (running usage, times, log probabilities, token ids). After a full parse, the reader stores the event's
//! *skeleton* (the bytes around those values) and the parse result. An event with an equal skeleton and values of equal
//! kinds would give an equal result, so it is not parsed. Only the numbers that matter to the dialect are read from it.
//! Both cases then run the same code to update the stream's state.
//!
//! In an event stream the comparison comes before the search for line ends: it finds the end of such an event, too.
//!
//! Correctness comes first: any other difference is a mismatch, as is anything that is not plainly a value of its
//! kind. A mismatch is parsed in full. Visible text is open at once; any other value becomes open after it has
//! differed between two events with equal skeletons.
//!
//! # Cost
//! Learning costs about as much as a parse. [`SkeletonCredit`] bounds it: if events never match, one in 64 is
//! learned. Memory is two events of at most [`MAX_EVENT`] bytes, each with at most [`MAX_VALUES`] values.

use crate::measure::framing::{Event, PayloadKind};
use crate::measure::json_walker::JsonWalker;
use crate::measure::value_span::{MAX_VALUES, ValueKind, ValueSpans};

/// Longest event to learn, in bytes.
const MAX_EVENT: usize = 8 << 10;
/// Keys per object in an event to learn.
const MAX_KEYS: usize = 32;

/// The bytes that identify an event's meaning, and the meaning `M`.
#[derive(Debug)]
pub(super) struct Skeleton<M> {
    /// The learned event.
    event: Vec<u8>,
    /// Its values.
    values: ValueSpans,
    /// Values that may differ.
    open: ValueSpans,
    meaning: Option<M>,
    /// Reusable memory for the values of the next event.
    spare: ValueSpans,
    credit: SkeletonCredit,
}

impl<M> Default for Skeleton<M> {
    fn default() -> Self {
        Self {
            event: Vec::new(),
            values: Vec::new(),
            open: Vec::new(),
            meaning: None,
            spare: Vec::new(),
            credit: SkeletonCredit(SkeletonCredit::MAX),
        }
    }
}

impl<M> Skeleton<M> {
    /// Length of the payload at the start of `bytes` that differs from the learned event only in open values. Calls
    /// `put` with each open value that has a slot.
    #[inline]
    pub(super) fn recognize(&mut self, bytes: &[u8], mut put: impl FnMut(&mut M, u8, Option<u64>)) -> Option<usize> {
        let meaning = self.meaning.as_mut()?;
        let (mut rest, mut from) = (bytes, 0);
        for value in &self.open {
            rest = rest.strip_prefix(self.event.get(from..value.start)?)?;
            let (inside, behind) = rest.split_at_checked(value.kind.end(rest)?)?;
            if value.slot != 0 {
                // If a later value mismatches, these updates stay behind, but the next match overwrites them before use.
                put(meaning, value.slot, value.kind.reading(inside));
            }
            (rest, from) = (behind, value.end);
        }
        let rest = rest.strip_prefix(self.event.get(from..)?)?;
        Some(bytes.len() - rest.len())
    }

    /// Returns the meaning of `event` if it differs from the learned one only in open values, which `put` gets.
    #[inline]
    pub(super) fn meaning_of(&mut self, event: &Event<'_>, put: impl FnMut(&mut M, u8, Option<u64>)) -> Option<&M> {
        if event.mark != PayloadKind::Recognized && self.recognize(event.data, put)? != event.data.len() {
            return None;
        }
        self.credit.hit();
        self.meaning.as_ref()
    }

    /// Starts the full parse of an event; [`parsed`](Self::parsed) ends it.
    pub(super) fn walk<'a>(&mut self, data: &'a [u8]) -> Option<JsonWalker<'a>> {
        let walk = JsonWalker::new(data)?;
        if !self.credit.may_learn() || data.len() > MAX_EVENT {
            return Some(walk);
        }
        let mut spans = std::mem::take(&mut self.spare);
        spans.clear();
        Some(walk.recording(spans))
    }

    /// Ends the parse of `data`; learns the event if it has a `meaning` that later events may share. An event in
    /// several lines is not learned, because a line end within a recognized one would be the end of its field.
    pub(super) fn parsed(&mut self, data: &[u8], walk: JsonWalker<'_>, meaning: Option<M>) {
        let Some(values) = walk.into_recorded() else { return };
        self.spare = values;
        if let Some(meaning) = meaning
            && self.spare.len() <= MAX_VALUES
            && memchr::memchr2(b'\n', b'\r', data).is_none()
            && are_keys_unique(data)
        {
            self.learn(data, meaning);
        }
    }

    fn learn(&mut self, data: &[u8], meaning: M) {
        self.credit.learned();
        let is_same = self.has_skeleton_of(data);
        let (mut before, mut open) = (self.open.iter().peekable(), 0_u64);
        for (at, value) in self.spare.iter().enumerate() {
            let old = self.values.get(at).filter(|_| is_same);
            let was_open = old.is_some_and(|old| before.next_if(|open| open.start == old.start).is_some());
            let differs = || old.is_some_and(|old| self.event[old.range()] != data[value.range()]);
            open |= u64::from(was_open || value.kind == ValueKind::ShownString || differs()) << at;
        }
        std::mem::swap(&mut self.values, &mut self.spare);
        let is_open = |at: &usize| open >> *at & 1 == 1;
        self.open.clear();
        self.open.extend(self.values.iter().enumerate().filter(|(at, _)| is_open(at)).map(|(_, value)| *value));
        self.event.clear();
        self.event.extend_from_slice(data);
        self.meaning = Some(meaning);
    }

    /// True if `data`, with its values in `spare`, differs from the learned event only in values.
    fn has_skeleton_of(&self, data: &[u8]) -> bool {
        if self.meaning.is_none() || self.values.len() != self.spare.len() {
            return false;
        }
        let (mut old_from, mut new_from) = (0, 0);
        for (old, new) in self.values.iter().zip(&self.spare) {
            let is_same_value = (old.kind, old.slot) == (new.kind, new.slot);
            if !is_same_value || self.event[old_from..old.start] != data[new_from..new.start] {
                return false;
            }
            (old_from, new_from) = (old.end, new.end);
        }
        self.event[old_from..] == data[new_from..]
    }
}

/// Credit for learning, in 64ths of the cost of one event. Recognized events earn it; unrecognized events earn it
/// more slowly, because a stream may settle late.
#[derive(Debug)]
struct SkeletonCredit(u16);

impl SkeletonCredit {
    const PRICE: u16 = 64;
    const MAX: u16 = 16 * Self::PRICE;

    fn earn(&mut self, parts: u16) {
        self.0 = (self.0 + parts).min(Self::MAX);
    }

    fn hit(&mut self) {
        self.earn(Self::PRICE / 4);
    }

    /// Records an unrecognized event; returns whether it may be learned.
    fn may_learn(&mut self) -> bool {
        self.earn(1);
        self.0 >= Self::PRICE
    }

    fn learned(&mut self) {
        self.0 = self.0.saturating_sub(Self::PRICE);
    }
}

/// True if no object has a duplicate key: the later duplicate would decide, however the earlier one varied.
fn are_keys_unique(data: &[u8]) -> bool {
    fn walk_value(walk: &mut JsonWalker<'_>) -> Option<()> {
        if walk.is_array() {
            return walk.array(walk_value);
        }
        if !walk.is_object() {
            return walk.skip();
        }
        let mut keys: [&[u8]; MAX_KEYS] = [&[]; MAX_KEYS];
        let mut count = 0;
        walk.object(|key, walk| {
            if keys[..count].contains(&key) {
                return None;
            }
            *keys.get_mut(count)? = key;
            count += 1;
            walk_value(walk)
        })
    }
    JsonWalker::new(data).and_then(|mut walk| walk_value(&mut walk)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: u8 = 1;

    /// Reads `n` as a number that matters and `text` as content; ignores everything else.
    fn read(skeleton: &mut Skeleton<Option<u64>>, event: &str) -> bool {
        let whole = Event { name: b"", data: event.as_bytes(), mark: PayloadKind::Plain };
        let known = skeleton.meaning_of(&whole, |meaning, _, number| *meaning = number).copied();
        let mut walk = skeleton.walk(event.as_bytes()).unwrap();
        let mut parsed = None;
        let whole = walk.object(|key, walk| {
            match key {
                b"n" => parsed = walk.number_in(NUMBER)?,
                b"text" => _ = walk.shown()?,
                _ => walk.skip()?,
            }
            Some(())
        });
        let is_json = whole.is_some() && walk.is_at_end();
        if let Some(known) = known {
            assert!(is_json, "{event}");
            assert_eq!(known, parsed, "{event}");
            return true;
        }
        skeleton.parsed(event.as_bytes(), walk, is_json.then_some(parsed));
        false
    }

    /// Returns which events are recognized.
    fn recognized(events: &[&str]) -> Vec<bool> {
        let mut skeleton = Skeleton::default();
        events.iter().map(|event| read(&mut skeleton, event)).collect()
    }

    #[test]
    fn a_shown_text_may_differ_at_once_and_another_value_once_it_has_differed() {
        assert_eq!(recognized(&[r#"{"text":"a","t":1}"#, r#"{"text":"\u00e9","t":1}"#]), [false, true]);
        let events = [
            r#"{"text":"a","t":1,"n":1,"l":[{"w":"a","b":[97]}]}"#,
            r#"{"text":"b","t":-2.5,"n":9,"l":[{"w":"","b":[1, 2]}]}"#,
            r#"{"text":"c","t":1e9,"n":10,"l":[{"w":"é","b":[]}]}"#,
        ];
        assert_eq!(recognized(&events), [false, false, true]);
    }

    #[test]
    fn any_other_difference_is_a_mismatch() {
        for other in [
            r#"{"text":"","n":3}"#,
            r#"{"text":null,"n":3}"#,
            r#"{"text":"c","n":null}"#,
            r#"{"text":"c","n":"3"}"#,
            r#"{"text":"c","n":03}"#,
            r#"{"text":"c","n":3.}"#,
            r#"{"text":"c","n":NaN}"#,
            r#"{"text":"c","n":-Infinity}"#,
            r#"{"text":"c","n":3Infinity}"#,
            r#"{"text":"c","n":[3]}"#,
            r#"{"text":"c","n":3,"n":4}"#,
            r#"{"text":"c","m":3}"#,
            r#"{"text":"c","n":3} "#,
            r#"{"text":"c","text":"","n":3}"#,
            r#"{"text":"\x","n":3}"#,
            "{\"text\":\"a\nb\",\"n\":3}",
            r#"{"text":"c","n":3"#,
        ] {
            assert!(!recognized(&[r#"{"text":"a","n":1}"#, r#"{"text":"b","n":2}"#, other])[2], "{other}");
        }
        assert!(recognized(&[r#"{"text":"a","n":1}"#, r#"{"text":"b","n":2}"#, r#"{"text":"c","n":3}"#])[2]);
    }

    #[test]
    fn an_event_with_a_key_twice_too_many_values_or_several_lines_is_not_learned() {
        let twice = r#"{"n":1,"n":2}"#;
        assert_eq!(recognized(&[twice; 4]), [false; 4]);
        let many = format!("{{\"l\":[{}true]}}", "1,".repeat(MAX_VALUES + 1));
        assert_eq!(recognized(&[&many[..]; 4]), [false; 4]);
        let keys: String = (0..=MAX_KEYS).map(|n| format!("\"k{n}\":true,")).collect();
        let wide = format!("{{{keys}\"n\":1}}");
        assert_eq!(recognized(&[&wide[..]; 4]), [false; 4]);
        let long = format!("{{\"text\":\"{}\"}}", "a".repeat(MAX_EVENT));
        assert_eq!(recognized(&[&long[..]; 4]), [false; 4]);
        for event in ["{\"text\":\"a\",\n\"n\":1}", "{\"text\":\"a\"}\r", "{\"text\":\"a\",\"l\":[1,\r2]}"] {
            assert_eq!(recognized(&[event; 4]), [false; 4], "{event:?}");
        }
    }

    #[test]
    fn a_recognized_event_may_stand_at_the_start_of_others() {
        let mut skeleton = Skeleton::default();
        assert!(!read(&mut skeleton, r#"{"text":"a","n":1}"#));
        let mut length_of = |bytes: &str| skeleton.recognize(bytes.as_bytes(), |meaning, _, number| *meaning = number);
        assert_eq!(length_of("{\"text\":\"bcd\",\"n\":1}\n\ndata: "), Some(20));
        assert_eq!((length_of(r#"{"text":"bcd","n":1"#), length_of(r#"{"text":"bcd","n":2}"#)), (None, None));
    }

    #[test]
    fn what_never_matches_is_learned_ever_more_rarely() {
        let mut skeleton = Skeleton::<Option<u64>>::default();
        let mut learned = 0;
        for at in 0..6_400 {
            let event = format!("{{\"k{at}\":1,\"n\":1}}");
            let before = skeleton.credit.0;
            assert!(!read(&mut skeleton, &event));
            learned += usize::from(skeleton.credit.0 < before);
        }
        // The first credit is lost because the balance is already full.
        assert_eq!(learned, 16 + 6_400 / 64 - 1);
    }
}
