//! Expands delta turns, such as AIPerf's later rows of a session, to complete prompts.
//!
//! A complete prompt is the previous prompt, its reply, and the text that the turn adds. It shares the blocks of its
//! first prompt with other sessions. All later blocks are unique to the session, because no other session has its
//! replies. Full blocks keep their ids from turn to turn, so each prompt shares all of the previous one.

use std::collections::HashMap;

use super::Trace;
use super::blocks::{chained_ids, hash_text, prompt_tokens};
use super::conversion_loss::ConversionLosses;
use crate::stats::hash::combine;
use crate::stats::locality_hash::BuildLocalityHasher;
use crate::trace_file::header::{BlockIds, BlockScheme, BlockScope, BlockUnit, LastBlock, TraceHeader, TurnContent};
use crate::trace_file::row::{BYTES_PER_TOKEN, PromptPart, TraceEntry};

/// Block size in tokens if the trace has none: the usual block size of server caches.
const BLOCK_TOKENS: u32 = 16;
/// Maximum ids of one prompt: two million tokens in blocks of 16.
const MAX_PROMPT_IDS: u64 = 1 << 17;
const MAX_PROMPT_PARTS: usize = 1_000;
/// Maximum bytes of all remembered sessions.
const MAX_HELD_BYTES: usize = 64 << 20;

/// Expands a trace with delta turns; other traces stay unchanged.
pub fn expand_turns(trace: Trace) -> Trace {
    let Trace { mut header, entries, losses } = trace;
    if header.turns == TurnContent::Full {
        return Trace { header, entries, losses };
    }
    let from = header.blocks.clone();
    let to = whole_blocks(from.as_ref());
    header = TraceHeader { blocks: Some(to.clone()), turns: TurnContent::Full, ..header };
    let mut sessions = TurnExpander { from, to, prompts: HashMap::default(), held_bytes: 0, losses: losses.clone() };
    let entries = Box::new(entries.map(move |entry| entry.map(|entry| sessions.expand(entry))));
    Trace { header, entries, losses }
}

fn whole_blocks(from: Option<&BlockScheme>) -> BlockScheme {
    let made = || BlockScheme {
        size: BLOCK_TOKENS,
        unit: BlockUnit::Tokens,
        last: LastBlock::Dropped,
        ids: BlockIds::Chained,
        scope: BlockScope::Trace,
        key: None,
    };
    BlockScheme { ids: BlockIds::Chained, scope: BlockScope::Trace, ..from.cloned().unwrap_or_else(made) }
}

#[derive(Default)]
struct SessionPrompt {
    turns: u64,
    /// Tokens and bytes of the last prompt and its reply.
    tokens: u64,
    bytes: u64,
    parts: Vec<PromptPart>,
    first: Vec<u64>,
}

impl SessionPrompt {
    fn held_bytes(&self) -> usize {
        // The table allocates more slots than entries.
        3 * size_of::<Self>()
            + self.first.capacity() * size_of::<u64>()
            + self.parts.capacity() * size_of::<PromptPart>()
    }
}

struct TurnExpander {
    from: Option<BlockScheme>,
    to: BlockScheme,
    prompts: HashMap<u64, SessionPrompt, BuildLocalityHasher>,
    held_bytes: usize,
    losses: ConversionLosses,
}

impl TurnExpander {
    /// Prepends the session's earlier turns to the request.
    fn expand(&mut self, mut entry: TraceEntry) -> TraceEntry {
        if let Some(from) = &self.from {
            entry.prompt.blocks = chained_ids(from, &entry).collect();
        }
        let Some(session) = entry.session.as_deref().map(hash_text) else { return entry };
        if self.held_bytes > MAX_HELD_BYTES {
            // Clears all entries at once, which costs nothing per row. The sessions that will continue cannot be known.
            self.losses.add("sessions whose turns were forgotten", self.prompts.len() as u64);
            self.prompts.clear();
            self.held_bytes = 0;
        }
        let conversation = self.prompts.entry(session).or_default();
        self.held_bytes =
            self.held_bytes.saturating_sub(if conversation.turns > 0 { conversation.held_bytes() } else { 0 });
        let added = prompt_tokens(&entry).unwrap_or(0);
        let prompt = &mut entry.prompt;
        let tokens = conversation.tokens.saturating_add(added);
        let bytes = conversation.bytes.saturating_add(prompt.bytes.unwrap_or(added.saturating_mul(BYTES_PER_TOKEN)));
        prompt.tokens = prompt.tokens.map(|_| tokens);
        prompt.bytes = prompt.bytes.map(|_| bytes);
        let length = if self.to.unit == BlockUnit::Tokens { tokens } else { bytes };
        let full = length / u64::from(self.to.size.max(1));
        if conversation.turns == 0 {
            let of_first = usize::try_from(full).unwrap_or(usize::MAX).min(prompt.blocks.len());
            conversation.first = prompt.blocks[..of_first].to_vec();
        }
        if conversation.turns > 0 || prompt.blocks.is_empty() {
            prompt.blocks = ids(&self.to, session, conversation, length);
        }
        let room = MAX_PROMPT_PARTS.saturating_sub(conversation.parts.len());
        conversation.parts.extend(prompt.parts.drain(..).take(room));
        prompt.parts.clone_from(&conversation.parts);
        let answer = entry.output_tokens.or(entry.params.max_tokens).unwrap_or(0);
        conversation.tokens = tokens.saturating_add(answer);
        conversation.bytes = bytes.saturating_add(answer.saturating_mul(BYTES_PER_TOKEN));
        conversation.turns += 1;
        self.held_bytes += conversation.held_bytes();
        entry
    }
}

/// Ids of a prompt of `length` units that continues a conversation.
fn ids(blocks: &BlockScheme, session: u64, conversation: &SessionPrompt, length: u64) -> Vec<u64> {
    let size = u64::from(blocks.size.max(1));
    let full = (length / size).min(MAX_PROMPT_IDS);
    let first = &conversation.first[..conversation.first.len().min(full as usize)];
    let own = (first.len() as u64..full).map(|place| combine(session, place));
    let is_partial = blocks.last == LastBlock::Kept && !length.is_multiple_of(size) && full < MAX_PROMPT_IDS;
    // The next turn fills this block with text unique to the session.
    let partial = is_partial.then(|| combine(combine(session, full), conversation.turns + 1));
    first.iter().copied().chain(own).chain(partial).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(session: &str, tokens: u64, output: u64, blocks: &[u64]) -> TraceEntry {
        let mut entry = TraceEntry { output_tokens: Some(output), ..TraceEntry::default() };
        entry.session = (!session.is_empty()).then(|| session.to_owned());
        (entry.prompt.tokens, entry.prompt.blocks) = (Some(tokens), blocks.to_vec());
        entry
    }

    fn whole(blocks: Option<BlockScheme>, rows: Vec<TraceEntry>) -> (TraceHeader, Vec<TraceEntry>) {
        let header = TraceHeader { blocks, turns: TurnContent::Delta, ..TraceHeader::new("test") };
        let rows: Vec<_> = rows.into_iter().map(Ok).collect();
        let trace = Trace { header, entries: Box::new(rows.into_iter()), losses: ConversionLosses::default() };
        let trace = expand_turns(trace);
        (trace.header.clone(), trace.entries.collect::<Result<_, _>>().unwrap())
    }

    fn shared(a: &TraceEntry, b: &TraceEntry) -> usize {
        a.prompt.blocks.iter().zip(&b.prompt.blocks).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn a_turn_has_the_prompts_and_answers_before_it_and_shares_all_full_blocks_with_them() {
        let blocks = BlockScheme { size: 10, last: LastBlock::Kept, ..whole_blocks(None) };
        let rows = vec![
            turn("a", 25, 7, &[1, 2, 3]),
            turn("b", 25, 7, &[1, 2, 3]),
            turn("a", 20, 9, &[4, 5]),
            turn("b", 20, 9, &[4, 5]),
            turn("a", 1, 1, &[6]),
            turn("", 25, 1, &[1, 2, 9]),
        ];
        let (header, rows) = whole(Some(blocks), rows);
        assert_eq!(header.turns, TurnContent::Full);
        let sizes: Vec<_> = rows.iter().map(|row| (row.prompt.tokens.unwrap(), row.prompt.blocks.len())).collect();
        // 25 + 7 + 20 = 52, and 52 + 9 + 1 = 62.
        assert_eq!(sizes, [(25, 3), (25, 3), (52, 6), (52, 6), (62, 7), (25, 3)]);
        assert_eq!((shared(&rows[0], &rows[2]), shared(&rows[2], &rows[4])), (2, 5), "a partial block is filled");
        assert_eq!((shared(&rows[0], &rows[1]), shared(&rows[2], &rows[3])), (3, 2), "answers are the session's own");
        assert_eq!(shared(&rows[0], &rows[5]), 2);
    }

    #[test]
    fn turns_without_ids_get_those_of_their_session() {
        let bytes = |bytes| {
            let mut row = turn("a", 0, 8, &[]);
            (row.prompt.tokens, row.prompt.bytes) = (None, Some(bytes));
            row
        };
        let (header, rows) = whole(None, vec![bytes(200), bytes(40), turn("", 90, 1, &[])]);
        assert_eq!(header.blocks.unwrap().size, 16);
        // 50 tokens, and 50 + 8 + 10.
        assert_eq!((rows[1].prompt.bytes, rows[1].prompt.tokens), (Some(272), None));
        assert_eq!((rows[0].prompt.blocks.len(), rows[1].prompt.blocks.len(), shared(&rows[0], &rows[1])), (3, 4, 3));
        assert!(rows[2].prompt.blocks.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_forgotten_is_counted() {
        let first: Vec<u64> = (0..1_000).collect();
        let rows: Vec<_> = (0..12_000).map(|n| Ok(turn(&n.to_string(), 16_000, 1, &first))).collect();
        let header =
            TraceHeader { blocks: Some(whole_blocks(None)), turns: TurnContent::Delta, ..TraceHeader::new("test") };
        let trace = Trace { header, entries: Box::new(rows.into_iter()), losses: ConversionLosses::default() };
        let mut trace = expand_turns(trace);
        assert_eq!(trace.entries.by_ref().count(), 12_000);
        let [(name, count)] = &trace.losses.list()[..] else { panic!("{:?}", trace.losses.list()) };
        assert!(name == "sessions whose turns were forgotten" && (7_000..9_000).contains(count), "{count}");
    }

    #[test]
    fn a_nonsense_length_makes_no_nonsense_number_of_ids() {
        let (_, rows) = whole(None, vec![turn("a", u64::MAX, u64::MAX, &[]), turn("a", u64::MAX, 1, &[])]);
        assert_eq!((rows[1].prompt.tokens, rows[1].prompt.blocks.len()), (Some(u64::MAX), MAX_PROMPT_IDS as usize));
    }
}
