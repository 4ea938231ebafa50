//! What was said in a live session: prompts as they were sent, and the server's real answers. In memory, and nowhere
//! else: it leaves in the next turn's prompt or not at all, and cannot be shown.
//!
//! # What the next turn says
//! Everything that was said before, word for word, and then new words, as many as bring the prompt to its planned length.
//! How long the past is the server has said: it counted the prompt before, and its own answer. What role headers add,
//! and an answer's tokens that come out otherwise when they are read again, is seen in the count of the next prompt, and
//! left out of the one after: no error adds up.
//!
//! # When the past is made up
//! A turn that repeats something else (the trace's blocks say so, or it is shorter than what was said), one whose
//! predecessor got no whole answer (or one in a dialect whose text is not collected), and one whose past found no room is made of words from the trace's blocks,
//! as with timed sessions. It is counted, and its answer begins the past anew.

use std::collections::BTreeMap;
use std::fmt;

use super::schedule::Planned;
use crate::measure::record::{Outcome, RequestRecord};
use crate::measure::text::ReplyText;
use crate::measure::time::Stamp;
use crate::trace::content::Content;

/// A question and its answer.
#[derive(Clone)]
pub struct Said {
    /// What the client wrote.
    pub asked: String,
    /// What the server wrote.
    pub answered: String,
}

/// The past of a session.
#[derive(Default)]
pub struct History {
    said: Vec<Said>,
    /// Bytes of all of it.
    bytes: usize,
    /// Tokens of the last prompt and of its answer.
    tokens: u64,
    /// Tokens by which prompts came out longer than these.
    more: i64,
    /// Ids of the last prompt's whole blocks.
    blocks: Vec<u64>,
}

/// One turn on its way: what was said before, and what is new.
pub struct Turn {
    history: History,
    asked: String,
    /// Whether it repeats real answers; `None` where nothing was said before.
    pub(super) real: Option<bool>,
}

impl fmt::Debug for History {
    /// How much it is. What it says is nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "History({} answers, {} bytes)", self.said.len(), self.bytes)
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Turn({:?}, {} bytes)", self.history, self.asked.len())
    }
}

/// The past of sessions that nobody speaks in, by when they fell silent: whoever was silent longest makes room.
pub(super) struct Silent {
    histories: BTreeMap<(Stamp, String), History>,
    bytes: usize,
    most: usize,
}

impl Silent {
    /// Of so many bytes at most.
    pub(super) fn new(most: usize) -> Self {
        Self { histories: BTreeMap::new(), bytes: 0, most }
    }

    /// What was said in a session that has been silent since.
    pub(super) fn take(&mut self, since: Stamp, session: String) -> Option<History> {
        let history = self.histories.remove(&(since, session))?;
        self.bytes -= history.bytes;
        Some(history)
    }

    /// Keeps what was said until the session goes on.
    pub(super) fn keep(&mut self, since: Stamp, session: String, history: History) {
        self.bytes += history.bytes;
        self.histories.insert((since, session), history);
        while self.bytes > self.most {
            let Some((_, oldest)) = self.histories.pop_first() else { return };
            self.bytes -= oldest.bytes;
        }
    }
}

impl Turn {
    /// The first turn of a session.
    pub fn first(content: &Content, send: &Planned) -> Self {
        Self { history: History::default(), asked: content.text(&send.row()), real: None }
    }

    /// A later one. `added` is what a server adds to every message, in tokens.
    pub fn later(content: &Content, send: &Planned, history: Option<History>, added: u64) -> Self {
        let goes_on = |history: &History| {
            send.entry.prompt.blocks.starts_with(&history.blocks) && content.tokens(&send.entry) > history.tokens
        };
        let Some(history) = history.filter(goes_on) else {
            return Self { real: Some(false), ..Self::first(content, send) };
        };
        let past = history.tokens.saturating_add(added).saturating_add_signed(history.more);
        let asked = content.end_of_text(&send.row(), content.tokens(&send.entry).saturating_sub(past).max(1));
        Self { history, asked, real: Some(true) }
    }

    /// What was said before, in order.
    pub(super) fn said(&self) -> &[Said] {
        &self.history.said
    }

    /// What is new.
    pub(super) fn asked(&self) -> &str {
        &self.asked
    }

    /// The past of the next turn; `None` where there is no whole answer. `planned` is how long the prompt should have
    /// been.
    pub(super) fn answered(
        self,
        content: &Content,
        send: &Planned,
        record: &RequestRecord,
        text: Option<ReplyText>,
        planned: u64,
    ) -> Option<History> {
        let text = text.filter(|_| record.outcome == Outcome::Success)?;
        let (answered, share) = text.answer();
        let mut history = self.history;
        let counted = record.usage.input;
        if let Some(counted) = counted.filter(|_| self.real == Some(true)) {
            history.more += i64::try_from(counted).unwrap_or(i64::MAX).saturating_sub_unsigned(planned);
            // What is further off than this is not what a template adds.
            history.more = history.more.clamp(-MOST_MORE, MOST_MORE);
        }
        let output = record.output_tokens.map_or(0, |count| (count.tokens as f64 * share).round() as u64);
        history.tokens = counted.unwrap_or(planned) + output;
        history.blocks = content.whole_blocks(&send.entry).to_vec();
        history.bytes += self.asked.len() + answered.len();
        history.said.push(Said { asked: self.asked, answered });
        Some(history)
    }
}

/// The most tokens that a past is taken to be longer, or shorter, than was counted.
const MOST_MORE: i64 = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::format::{BlockIds, BlockUnit, Blocks, Entry, LastBlock, Prompt, Scope};
    use crate::measure::time::Gap;
    use crate::trace::words::Words;

    fn content() -> Content {
        let blocks = Blocks {
            size: 16,
            unit: BlockUnit::Tokens,
            last: LastBlock::Kept,
            ids: BlockIds::Chained,
            scope: Scope::Trace,
            key: None,
        };
        Content::new(Words::default(), Some(blocks), None, 0)
    }

    fn send(tokens: u64, blocks: &[u64]) -> Planned {
        let prompt = Prompt { tokens: Some(tokens), blocks: blocks.to_vec(), ..Prompt::default() };
        Planned { at: Gap::ZERO, number: tokens, pass: 0, entry: Entry { prompt, ..Entry::default() } }
    }

    fn history() -> History {
        let said = vec![Said { asked: " the and".into(), answered: "Yes.".into() }];
        // A prompt of 40 tokens is two whole blocks of 16.
        History { said, bytes: 12, tokens: 50, more: 3, blocks: vec![1, 2] }
    }

    #[test]
    fn a_turn_asks_as_much_as_brings_it_to_its_length() {
        let turn = Turn::later(&content(), &send(90, &[1, 2, 5, 6, 7, 8]), Some(history()), 4);
        assert_eq!((turn.real, turn.said().len()), (Some(true), 1));
        assert_eq!(turn.asked().split(' ').skip(1).count(), 90 - 50 - 4 - 3);
        let crowded = Turn::later(&content(), &send(52, &[1, 2, 5, 6]), Some(history()), 4);
        assert_eq!((crowded.real, crowded.asked().split(' ').skip(1).count()), (Some(true), 1));
    }

    #[test]
    fn a_turn_that_repeats_something_else_is_made_of_its_own_blocks() {
        for (tokens, blocks, history) in
            [(90, &[1, 9, 5][..], Some(history())), (50, &[1, 2, 5], Some(history())), (90, &[1, 2, 5], None)]
        {
            let send = send(tokens, blocks);
            let turn = Turn::later(&content(), &send, history, 4);
            assert_eq!((turn.real, turn.said().len()), (Some(false), 0));
            assert_eq!(turn.asked(), content().text(&send.row()));
        }
    }

    #[test]
    fn who_was_silent_longest_is_forgotten_first() {
        let mut silent = Silent::new(30);
        for at in [1, 2, 3] {
            silent.keep(Stamp::from_nanos(at), at.to_string(), history());
        }
        let mut knows = |at: u64| silent.take(Stamp::from_nanos(at), at.to_string()).is_some();
        assert_eq!((knows(1), knows(2), knows(3), knows(3)), (false, true, true, false), "12 bytes each");
        assert_eq!(silent.bytes, 0);
    }

    #[test]
    fn it_cannot_be_shown() {
        let turn = Turn::later(&content(), &send(90, &[1, 2, 5]), Some(history()), 0);
        assert_eq!(format!("{turn:?}"), format!("Turn(History(1 answers, 12 bytes), {} bytes)", turn.asked().len()));
    }
}
