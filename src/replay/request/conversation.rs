//! The history of live sessions: prompts as they were sent, and the server's real replies. It is kept in memory only,
//! leaves the process only in the next turn's prompt, and has no `Debug` output of its text.
//!
//! # The next turn's prompt
//! It repeats the history verbatim and adds new words up to the planned length. The history's length is the server's
//! own count: the last prompt plus its reply. Chat templates add tokens per message, and a reply may tokenize
//! differently when it is sent back. The count of the next prompt shows both, and the turn after it corrects for them,
//! so errors do not add up.
//!
//! # When the history is synthesized
//! A turn gets words from the trace's blocks, as with timed sessions, in any of three cases. Its blocks do not continue
//! the history, or it is shorter than the history. Its predecessor has no complete reply, or one in a dialect whose
//! text is not collected. The cache has dropped the history. Such a turn is counted, and its reply starts a new
//! history.

use std::collections::BTreeMap;
use std::fmt;

use crate::measure::record::{Outcome, RequestRecord};
use crate::measure::text_collector::ReplyText;
use crate::measure::time::Stamp;
use crate::replay::plan::schedule::ScheduledRequest;
use crate::trace::prompt_text::PromptGenerator;

/// A prompt and its reply.
#[derive(Clone)]
pub struct PastTurn {
    /// The client's text.
    pub user: String,
    /// The server's text.
    pub assistant: String,
}

/// A session's past turns.
#[derive(Default)]
pub struct ConversationHistory {
    turns: Vec<PastTurn>,
    /// Total text, in bytes.
    bytes: usize,
    /// Tokens of the last prompt and its reply.
    tokens: u64,
    /// Tokens by which prompts came out longer than planned; negative if shorter.
    overhead_tokens: i64,
    /// Ids of the last prompt's complete blocks.
    blocks: Vec<u64>,
}

/// One turn: the history and the new prompt text.
pub struct ConversationTurn {
    history: ConversationHistory,
    prompt: String,
    /// Whether the history holds real replies; `None` on a first turn.
    pub(in crate::replay) verbatim: Option<bool>,
}

impl fmt::Debug for ConversationHistory {
    /// Prints sizes only: the text is private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "History({} answers, {} bytes)", self.turns.len(), self.bytes)
    }
}

impl fmt::Debug for ConversationTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Turn({:?}, {} bytes)", self.history, self.prompt.len())
    }
}

/// Histories of idle sessions, ordered by the time since which they are idle. The longest idle one is evicted first.
pub(in crate::replay) struct HistoryCache {
    histories: BTreeMap<(Stamp, String), ConversationHistory>,
    bytes: usize,
    max_bytes: usize,
}

impl HistoryCache {
    /// `most` is the limit in bytes.
    pub(in crate::replay) fn new(most: usize) -> Self {
        Self { histories: BTreeMap::new(), bytes: 0, max_bytes: most }
    }

    pub(in crate::replay) fn take(&mut self, since: Stamp, session: String) -> Option<ConversationHistory> {
        let history = self.histories.remove(&(since, session))?;
        self.bytes -= history.bytes;
        Some(history)
    }

    pub(in crate::replay) fn insert(&mut self, since: Stamp, session: String, history: ConversationHistory) {
        self.bytes += history.bytes;
        self.histories.insert((since, session), history);
        while self.bytes > self.max_bytes {
            let Some((_, oldest)) = self.histories.pop_first() else { return };
            self.bytes -= oldest.bytes;
        }
    }
}

impl ConversationTurn {
    /// A session's first turn.
    pub fn first(content: &PromptGenerator, send: &ScheduledRequest) -> Self {
        Self { history: ConversationHistory::default(), prompt: content.text(&send.row()), verbatim: None }
    }

    /// A later turn. `added` is the server's overhead per message, in tokens.
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
        let prompt = content.text_tail(&send.row(), content.tokens(&send.entry).saturating_sub(past).max(1));
        Self { history, prompt, verbatim: Some(true) }
    }

    pub(in crate::replay) fn past_turns(&self) -> &[PastTurn] {
        &self.history.turns
    }

    pub(in crate::replay) fn prompt(&self) -> &str {
        &self.prompt
    }

    /// The history for the next turn; `None` if the reply is incomplete. `planned` is the prompt's planned length in
    /// tokens.
    pub(in crate::replay) fn next_history(
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
            // A larger difference does not come from a chat template.
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

/// Largest correction of a history's length, in tokens, up or down.
const MAX_OVERHEAD_TOKENS: i64 = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::time::Gap;
    use crate::trace::vocabulary::Vocabulary;
    use crate::trace_file::header::{BlockIds, BlockScheme, BlockScope, BlockUnit, LastBlock};
    use crate::trace_file::row::{PromptShape, TraceEntry};

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
        let turns = vec![PastTurn { user: " the and".into(), assistant: "Yes.".into() }];
        // A prompt of 40 tokens is two whole blocks of 16.
        ConversationHistory { turns, bytes: 12, tokens: 50, overhead_tokens: 3, blocks: vec![1, 2] }
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
