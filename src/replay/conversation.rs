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

use super::schedule::ScheduledRequest;
use crate::measure::record::{Outcome, RequestRecord};
use crate::measure::text_collector::ReplyText;
use crate::measure::time::Stamp;
use crate::trace::prompt_text::PromptGenerator;

/// A question and its answer.
#[derive(Clone)]
pub struct PastTurn {
    /// What the client wrote.
    pub user: String,
    /// What the server wrote.
    pub assistant: String,
}

/// The past of a session.
#[derive(Default)]
pub struct ConversationHistory {
    turns: Vec<PastTurn>,
    /// Bytes of all of it.
    bytes: usize,
    /// Tokens of the last prompt and of its answer.
    tokens: u64,
    /// Tokens by which prompts came out longer than these.
    overhead_tokens: i64,
    /// Ids of the last prompt's whole blocks.
    blocks: Vec<u64>,
}

/// One turn on its way: what was said before, and what is new.
pub struct ConversationTurn {
    history: ConversationHistory,
    prompt: String,
    /// Whether it repeats real answers; `None` where nothing was said before.
    pub(super) verbatim: Option<bool>,
}

impl fmt::Debug for ConversationHistory {
    /// How much it is. What it says is nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "History({} answers, {} bytes)", self.turns.len(), self.bytes)
    }
}

impl fmt::Debug for ConversationTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Turn({:?}, {} bytes)", self.history, self.prompt.len())
    }
}

/// The past of sessions that nobody speaks in, by when they fell silent: whoever was silent longest makes room.
pub(super) struct HistoryCache {
    histories: BTreeMap<(Stamp, String), ConversationHistory>,
    bytes: usize,
    max_bytes: usize,
}

impl HistoryCache {
    /// Of so many bytes at most.
    pub(super) fn new(most: usize) -> Self {
        Self { histories: BTreeMap::new(), bytes: 0, max_bytes: most }
    }

    /// What was said in a session that has been silent since.
    pub(super) fn take(&mut self, since: Stamp, session: String) -> Option<ConversationHistory> {
        let history = self.histories.remove(&(since, session))?;
        self.bytes -= history.bytes;
        Some(history)
    }

    /// Keeps what was said until the session goes on.
    pub(super) fn insert(&mut self, since: Stamp, session: String, history: ConversationHistory) {
        self.bytes += history.bytes;
        self.histories.insert((since, session), history);
        while self.bytes > self.max_bytes {
            let Some((_, oldest)) = self.histories.pop_first() else { return };
            self.bytes -= oldest.bytes;
        }
    }
}

impl ConversationTurn {
    /// The first turn of a session.
    pub fn first(content: &PromptGenerator, send: &ScheduledRequest) -> Self {
        Self { history: ConversationHistory::default(), prompt: content.text(&send.row()), verbatim: None }
    }

    /// A later one. `added` is what a server adds to every message, in tokens.
    pub fn later(
        content: &PromptGenerator,
        send: &ScheduledRequest,
        history: Option<ConversationHistory>,
        added: u64,
    ) -> Self {
        let goes_on = |history: &ConversationHistory| {
            send.entry.prompt.blocks.starts_with(&history.blocks) && content.tokens(&send.entry) > history.tokens
        };
        let Some(history) = history.filter(goes_on) else {
            return Self { verbatim: Some(false), ..Self::first(content, send) };
        };
        let past = history.tokens.saturating_add(added).saturating_add_signed(history.overhead_tokens);
        let asked = content.text_tail(&send.row(), content.tokens(&send.entry).saturating_sub(past).max(1));
        Self { history, prompt: asked, verbatim: Some(true) }
    }

    /// What was said before, in order.
    pub(super) fn past_turns(&self) -> &[PastTurn] {
        &self.history.turns
    }

    /// What is new.
    pub(super) fn prompt(&self) -> &str {
        &self.prompt
    }

    /// The past of the next turn; `None` where there is no whole answer. `planned` is how long the prompt should have
    /// been.
    pub(super) fn next_history(
        self,
        content: &PromptGenerator,
        send: &ScheduledRequest,
        record: &RequestRecord,
        text: Option<ReplyText>,
        planned: u64,
    ) -> Option<ConversationHistory> {
        let text = text.filter(|_| record.outcome == Outcome::Success)?;
        let (answered, share) = text.answer();
        let mut history = self.history;
        let counted = record.usage.input;
        if let Some(counted) = counted.filter(|_| self.verbatim == Some(true)) {
            history.overhead_tokens += i64::try_from(counted).unwrap_or(i64::MAX).saturating_sub_unsigned(planned);
            // What is further off than this is not what a template adds.
            history.overhead_tokens = history.overhead_tokens.clamp(-MAX_OVERHEAD_TOKENS, MAX_OVERHEAD_TOKENS);
        }
        let output = record.output_tokens.map_or(0, |count| (count.tokens as f64 * share).round() as u64);
        history.tokens = counted.unwrap_or(planned) + output;
        history.blocks = content.full_blocks(&send.entry).to_vec();
        history.bytes += self.prompt.len() + answered.len();
        history.turns.push(PastTurn { user: self.prompt, assistant: answered });
        Some(history)
    }
}

/// The most tokens that a past is taken to be longer, or shorter, than was counted.
const MAX_OVERHEAD_TOKENS: i64 = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::row::{BlockIds, BlockScheme, BlockScope, BlockUnit, LastBlock, PromptShape, TraceEntry};
    use crate::measure::time::Gap;
    use crate::trace::vocabulary::Vocabulary;

    fn content() -> PromptGenerator {
        let blocks = BlockScheme {
            size: 16,
            unit: BlockUnit::Tokens,
            last: LastBlock::Kept,
            ids: BlockIds::Chained,
            scope: BlockScope::Trace,
            key: None,
        };
        PromptGenerator::new(Vocabulary::default(), Some(blocks), None, 0)
    }

    fn send(tokens: u64, blocks: &[u64]) -> ScheduledRequest {
        let prompt = PromptShape { tokens: Some(tokens), blocks: blocks.to_vec(), ..PromptShape::default() };
        ScheduledRequest {
            at: Gap::ZERO,
            number: tokens,
            pass: 0,
            entry: TraceEntry { prompt, ..TraceEntry::default() },
        }
    }

    fn history() -> ConversationHistory {
        let said = vec![PastTurn { user: " the and".into(), assistant: "Yes.".into() }];
        // A prompt of 40 tokens is two whole blocks of 16.
        ConversationHistory { turns: said, bytes: 12, tokens: 50, overhead_tokens: 3, blocks: vec![1, 2] }
    }

    #[test]
    fn a_turn_asks_as_much_as_brings_it_to_its_length() {
        let turn = ConversationTurn::later(&content(), &send(90, &[1, 2, 5, 6, 7, 8]), Some(history()), 4);
        assert_eq!((turn.verbatim, turn.past_turns().len()), (Some(true), 1));
        assert_eq!(turn.prompt().split(' ').skip(1).count(), 90 - 50 - 4 - 3);
        let crowded = ConversationTurn::later(&content(), &send(52, &[1, 2, 5, 6]), Some(history()), 4);
        assert_eq!((crowded.verbatim, crowded.prompt().split(' ').skip(1).count()), (Some(true), 1));
    }

    #[test]
    fn a_turn_that_repeats_something_else_is_made_of_its_own_blocks() {
        for (tokens, blocks, history) in
            [(90, &[1, 9, 5][..], Some(history())), (50, &[1, 2, 5], Some(history())), (90, &[1, 2, 5], None)]
        {
            let send = send(tokens, blocks);
            let turn = ConversationTurn::later(&content(), &send, history, 4);
            assert_eq!((turn.verbatim, turn.past_turns().len()), (Some(false), 0));
            assert_eq!(turn.prompt(), content().text(&send.row()));
        }
    }

    #[test]
    fn who_was_silent_longest_is_forgotten_first() {
        let mut silent = HistoryCache::new(30);
        for at in [1, 2, 3] {
            silent.insert(Stamp::from_nanos(at), at.to_string(), history());
        }
        let mut knows = |at: u64| silent.take(Stamp::from_nanos(at), at.to_string()).is_some();
        assert_eq!((knows(1), knows(2), knows(3), knows(3)), (false, true, true, false), "12 bytes each");
        assert_eq!(silent.bytes, 0);
    }

    #[test]
    fn it_cannot_be_shown() {
        let turn = ConversationTurn::later(&content(), &send(90, &[1, 2, 5]), Some(history()), 0);
        assert_eq!(format!("{turn:?}"), format!("Turn(History(1 answers, 12 bytes), {} bytes)", turn.prompt().len()));
    }
}
