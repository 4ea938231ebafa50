//! The generated text of one stream, stored until its tokens are counted.
//!
//! The observer collects text if a tokenizer is configured for the model and the server provides no better count. It
//! also does if the next turn of a replayed session repeats the answer. Each event is then walked a second time for the
//! fields in the dialect's [`TextFields`], and their content is appended here. A usage report, a running counter or a
//! list of ids ends the collection for counting.
//!
//! The text leaves the observer beside the record, is counted or repeated, and then dropped. It is in no record, and
//! [`ReplyText`] cannot print it.
//!
//! # Memory
//! At most [`MAX_TEXT`] bytes per stream and [`MAX_ALL`] bytes for all streams that share a [`TextBudget`], in
//! buffers of at most twice that size. Text that exceeds a limit is dropped, and the existing count remains.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::json_walker::{FieldState, JsonWalker};

/// Maximum text of one stream, in bytes: about 250,000 tokens, more than servers generate per request.
pub const MAX_TEXT: usize = 1 << 20;
/// Maximum text of all streams that share a budget, in bytes.
pub const MAX_ALL: usize = 64 << 20;
/// Bytes that a stream reserves from the budget at a time.
const SHARE: usize = 16 << 10;
/// Maximum separate texts per stream (choices, each with answer, reasoning, tools).
const MAX_PARTS: usize = 256;
/// Most recent matches to compare when looking for one text under several field names.
const MAX_NEAR: usize = 64;

/// Paths of generated text in a dialect's events.
#[derive(Debug)]
pub struct TextFields {
    /// Path of the choice index or its equivalent; empty if there is only one choice.
    pub choice: &'static str,
    /// Paths of text, as in `choices[].delta.content`. The paths of one group are alternative names of one text: the
    /// first non-empty one in an event counts.
    pub text: &'static [&'static [&'static str]],
    /// Paths of text in a reply that is one document.
    pub whole: &'static [&'static [&'static str]],
}

/// Memory budget of all streams. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TextBudget(Arc<AtomicUsize>);

/// The text exceeded its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextBudgetExhausted;

/// The text of one stream, in the parts that the server tokenized separately.
pub struct ReplyText {
    parts: Vec<TextPart>,
    held: usize,
    reserved: usize,
    budget: TextBudget,
}

struct TextPart {
    choice: u64,
    group: usize,
    text: String,
}

impl fmt::Debug for ReplyText {
    /// Prints the length only, never the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplyText({} bytes)", self.held)
    }
}

impl Drop for ReplyText {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.reserved, Ordering::Relaxed);
    }
}

impl ReplyText {
    fn new(budget: &TextBudget) -> Self {
        Self { parts: Vec::new(), held: 0, reserved: 0, budget: budget.clone() }
    }

    /// The parts, one string each.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| &*part.text)
    }

    /// The answer and its share of all bytes, 0 to 1. The answer is the visible text of the first choice, or all text
    /// if none is visible (a tool call, or reasoning only).
    pub fn answer(&self) -> (String, f64) {
        let all: usize = self.parts().map(str::len).sum();
        match self.parts.iter().find(|part| part.group == 0) {
            Some(part) => (part.text.clone(), part.text.len() as f64 / all.max(1) as f64),
            None => (self.parts().collect(), 1.0),
        }
    }

    /// Appends to a part.
    fn push(&mut self, choice: u64, group: usize, text: &str) -> Result<(), TextBudgetExhausted> {
        self.hold(text.len())?;
        match self.parts.iter().position(|part| (part.choice, part.group) == (choice, group)) {
            Some(at) => self.parts[at].text.push_str(text),
            None if self.parts.len() < MAX_PARTS => self.parts.push(TextPart { choice, group, text: text.to_owned() }),
            None => return Err(TextBudgetExhausted),
        }
        Ok(())
    }

    /// Reserves `bytes` more from the budget.
    fn hold(&mut self, bytes: usize) -> Result<(), TextBudgetExhausted> {
        self.held += bytes;
        if self.held > MAX_TEXT {
            return Err(TextBudgetExhausted);
        }
        if self.held > self.reserved {
            let more = (self.held - self.reserved).next_multiple_of(SHARE);
            self.reserved += more;
            if self.budget.0.fetch_add(more, Ordering::Relaxed) + more > MAX_ALL {
                return Err(TextBudgetExhausted);
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct TextCollector {
    fields: &'static TextFields,
    text: ReplyText,
    /// The text itself is needed, not only its token count.
    needs_text: bool,
    /// Bytes so far of a reply that is one document.
    document: Vec<u8>,
}

impl TextCollector {
    pub(super) fn new(fields: &'static TextFields, budget: &TextBudget, needs_text: bool) -> Self {
        Self { fields, text: ReplyText::new(budget), needs_text, document: Vec::new() }
    }

    /// True if the text is needed even if the server counts.
    pub(super) fn needs_text(&self) -> bool {
        self.needs_text
    }

    pub(super) fn into_text(mut self) -> ReplyText {
        let document = std::mem::take(&mut self.document);
        // Text that exceeds the limits is not repeated.
        let _kept = self.take(&document, self.fields.whole);
        self.text
    }

    /// Takes a piece of a reply that is one document.
    pub(super) fn document(&mut self, piece: &[u8]) -> Result<(), TextBudgetExhausted> {
        self.text.hold(piece.len())?;
        self.document.extend_from_slice(piece);
        Ok(())
    }

    /// Takes the text of one event.
    pub(super) fn event(&mut self, data: &[u8]) -> Result<(), TextBudgetExhausted> {
        self.take(data, self.fields.text)
    }

    fn take(&mut self, data: &[u8], groups: &[&[&str]]) -> Result<(), TextBudgetExhausted> {
        let found = TextMatch::of(data, self.fields.choice, groups);
        for (at, group, range) in &found.texts {
            let choice = found.choice(*at);
            self.text.push(choice, *group, &unescaped(&data[range.clone()]))?;
        }
        Ok(())
    }
}

/// Matches within one event.
#[derive(Default)]
struct TextMatch {
    /// Texts found: element of the outermost array, group, range.
    texts: Vec<(usize, usize, Range<usize>)>,
    /// For each element and group, the path of the group that matched.
    taken: Vec<(usize, usize, usize)>,
    /// Choice index of each element of the outermost array.
    choices: Vec<(usize, u64)>,
}

impl TextMatch {
    fn of(data: &[u8], choice: &str, groups: &[&[&str]]) -> Self {
        let mut found = Self::default();
        let mut paths = vec![(TextTarget::Choice, choice)];
        for (group, names) in groups.iter().enumerate() {
            paths.extend(names.iter().enumerate().map(|(name, path)| (TextTarget::Text { group, name }, *path)));
        }
        // An event that is not JSON contains no token.
        let _walked = JsonWalker::new(data).and_then(|mut walk| found.walk(&mut walk, &paths, None));
        found
    }

    /// Choice index of this element; 0 without one. Elements were walked in order.
    fn choice(&self, element: usize) -> u64 {
        let at = self.choices.partition_point(|(walked, _)| *walked < element);
        self.choices.get(at).filter(|(walked, _)| *walked == element).map_or(0, |(_, choice)| *choice)
    }

    /// Walks a value; each path is reduced to its remaining steps.
    fn walk(&mut self, walk: &mut JsonWalker<'_>, paths: &[(TextTarget, &str)], element: Option<usize>) -> Option<()> {
        walk.object(|key, walk| {
            let steps = paths.iter().filter_map(|(target, path)| {
                let (step, rest) = path.split_once('.').unwrap_or((path, ""));
                let (name, array) = step.strip_suffix("[]").map_or((step, false), |name| (name, true));
                (name.as_bytes() == key).then_some((array, (*target, rest)))
            });
            let (array, steps): (Vec<bool>, Vec<_>) = steps.unzip();
            match (array.first(), steps.first()) {
                (Some(false), Some((target, ""))) => self.take(walk, *target, element.unwrap_or(0)),
                (Some(false), Some(_)) => self.walk(walk, &steps, element),
                (Some(true), Some(_)) => {
                    let mut at = 0;
                    walk.array(|walk| {
                        at += 1;
                        self.walk(walk, &steps, element.or(Some(at - 1)))
                    })
                }
                _ => walk.skip(),
            }
        })
    }

    fn take(&mut self, walk: &mut JsonWalker<'_>, target: TextTarget, element: usize) -> Option<()> {
        let TextTarget::Text { group, name } = target else {
            let choice = walk.number()?;
            self.choices.extend(choice.map(|choice| (element, choice)));
            return Some(());
        };
        if let FieldState::String(range) = walk.shown()? {
            // Matches of the current element are near the end, and a document may have tens of thousands of elements.
            let latest = self.taken.iter().rev().take(MAX_NEAR);
            let mut taken = latest.filter(|taken| (taken.0, taken.1) == (element, group));
            match taken.next() {
                None => self.taken.push((element, group, name)),
                Some(taken) if taken.2 == name => {}
                Some(_) => return Some(()),
            }
            self.texts.push((element, group, range));
        }
        Some(())
    }
}

/// Target of a path.
#[derive(Clone, Copy, Debug)]
enum TextTarget {
    Choice,
    Text { group: usize, name: usize },
}

/// Unescapes the inside of a JSON string.
fn unescaped(raw: &[u8]) -> std::borrow::Cow<'_, str> {
    if memchr::memchr(b'\\', raw).is_none() {
        return String::from_utf8_lossy(raw);
    }
    // Half of a surrogate pair is not valid text, because the other half is in another event. It is counted in its
    // escaped form.
    serde_json::from_slice::<String>(&[b"\"", raw, b"\""].concat())
        .map_or_else(|_| String::from_utf8_lossy(raw), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    static CHAT: TextFields = TextFields {
        choice: "choices[].index",
        text: &[
            &["choices[].delta.content"],
            &["choices[].delta.reasoning", "choices[].delta.reasoning_content"],
            &["choices[].delta.tool_calls[].function.arguments"],
        ],
        whole: &[],
    };

    fn collected(fields: &'static TextFields, events: &[&str]) -> Vec<String> {
        let mut collector = TextCollector::new(fields, &TextBudget::default(), false);
        for event in events {
            collector.event(event.as_bytes()).unwrap();
        }
        collector.into_text().parts().map(str::to_owned).collect()
    }

    #[test]
    fn the_text_of_a_choice_is_joined_over_events_wherever_its_number_stands() {
        let events = [
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"one "}},{"delta":{"content":"ONE"},"index":1}]}"#,
            r#"{"choices":[{"delta":{"content":" TWO"},"index":1}],"x":[{"delta":{"content":"no"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"t\u00e9\"\nwo 🙂"}}]}"#,
        ];
        assert_eq!(collected(&CHAT, &events), ["one té\"\nwo 🙂", "ONE TWO"]);
    }

    #[test]
    fn reasoning_and_tools_are_parts_of_their_own_and_two_names_of_one_text_count_once() {
        let events = [
            r#"{"choices":[{"delta":{"reasoning_content":"a","reasoning":"a"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning":"b","reasoning_content":""}}]}"#,
            r#"{"choices":[{"delta":{"content":"c"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"d"}},{"function":{"arguments":"e"}}]}}]}"#,
        ];
        assert_eq!(collected(&CHAT, &events), ["ab", "c", "de"]);
    }

    #[test]
    fn what_is_not_text_is_not_taken_and_nothing_makes_it_panic() {
        for event in ["", "7", "{", "[DONE]", r#"{"choices":7}"#, r#"{"choices":[{"delta":{"content":["a"]}}]}"#] {
            assert_eq!(collected(&CHAT, &[event]), [""; 0], "{event}");
        }
        let half = r#"{"choices":[{"delta":{"content":"\ud83d"}}]}"#;
        assert_eq!(collected(&CHAT, &[half]), [r"\ud83d"]);
    }

    #[test]
    fn text_past_its_bounds_is_refused_and_what_was_reserved_is_given_back() {
        let budget = TextBudget::default();
        let mut text = ReplyText::new(&budget);
        assert_eq!(text.push(0, 0, &"x".repeat(MAX_TEXT)), Ok(()));
        assert_eq!(text.push(0, 0, "x"), Err(TextBudgetExhausted));
        assert_eq!(budget.0.load(Ordering::Relaxed), MAX_TEXT);
        let mut all: Vec<ReplyText> = (0..MAX_ALL / MAX_TEXT).map(|_| ReplyText::new(&budget)).collect();
        let taken = all.iter_mut().map(|text| text.push(0, 0, &"x".repeat(MAX_TEXT))).filter(Result::is_ok).count();
        assert_eq!(taken, MAX_ALL / MAX_TEXT - 1);
        drop((text, all));
        assert_eq!(budget.0.load(Ordering::Relaxed), 0);
        let mut many = ReplyText::new(&budget);
        assert!((0..256).all(|choice| many.push(choice, 0, "x").is_ok()));
        assert_eq!(many.push(256, 0, "x"), Err(TextBudgetExhausted));
    }

    #[test]
    fn it_cannot_be_shown() {
        let mut text = ReplyText::new(&TextBudget::default());
        text.push(0, 0, "a secret").unwrap();
        assert_eq!(format!("{text:?}"), "ReplyText(8 bytes)");
    }
}
