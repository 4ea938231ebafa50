//! Generates prompt texts from block ids and lengths, identically in every process and on every machine. Pure.
//!
//! # Words
//! A prompt consists of three-letter words, each after a blank. Nearly every tokenizer encodes such a word as one
//! token, and the simulated server counts four bytes as one. So a prompt of n tokens has n words on any server. With a
//! tokenizer file or a server's `/tokenize`, only words proven to be one token are used
//! ([`vocabulary`](super::vocabulary)). If words have more tokens and no tokenizer is available, the word count is
//! chosen to give n tokens on average.
//!
//! # Blocks
//! The text of a block depends only on its id, and is cut where the next block begins or the prompt ends. Prompts
//! therefore share exactly the prefixes that they share in the trace. Text outside all blocks depends on the row
//! number, and differs from every other prompt from its first word on.

use std::sync::Arc;

use super::rng::name_hash;
use super::vocabulary::{Vocabulary, WORD_BYTES};
use crate::stats::hash::mix;
use crate::trace_file::header::{BlockScheme, BlockScope, BlockUnit};
use crate::trace_file::row::TraceEntry;

/// Prompt tokens if the trace has no prompt length.
const DEFAULT_PROMPT_TOKENS: u64 = 1;

/// How a server counts prompt tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenizationModel {
    /// Tokens that the server adds to each prompt.
    pub template_tokens: u64,
    /// Average tokens per word.
    pub tokens_per_word: f64,
}

impl Default for TokenizationModel {
    fn default() -> Self {
        Self { template_tokens: 0, tokens_per_word: 1.0 }
    }
}

impl TokenizationModel {
    /// Number of words in `tokens` tokens.
    fn words(self, tokens: u64) -> usize {
        (tokens as f64 / self.tokens_per_word).round() as usize
    }
}

/// A row of a trace, with its position in the replay.
#[derive(Clone, Copy, Debug)]
pub struct PromptRow<'a> {
    /// The request.
    pub entry: &'a TraceEntry,
    /// Row number over all passes.
    pub number: u64,
    /// Pass over the trace, from 0.
    pub pass: u32,
}

/// Generates the prompts of one trace.
#[derive(Clone, Debug)]
pub struct PromptGenerator {
    words: Vocabulary,
    blocks: Option<BlockScheme>,
    /// Tokens per byte of captured text, used if blocks or lengths are in bytes.
    tokens_per_byte: f64,
    seed: u64,
    tokenization: TokenizationModel,
    /// Exceptions for the rows of specific models.
    tokenization_by_model: Vec<(Option<String>, TokenizationModel)>,
    /// True if text outside blocks contains every word exactly as often as random draws do on average.
    even_words: bool,
    /// Real prompts, by row number; they replace generated text.
    texts: Option<Arc<[String]>>,
}

impl PromptGenerator {
    /// Creates a generator for this block scheme. `tokens_per_byte` is the trace's own ratio, if the trace has both
    /// counts.
    pub fn new(words: Vocabulary, blocks: Option<BlockScheme>, tokens_per_byte: Option<f64>, seed: u64) -> Self {
        let tokens_per_byte = tokens_per_byte.unwrap_or(1.0 / WORD_BYTES as f64);
        Self {
            words,
            blocks,
            tokens_per_byte,
            seed,
            tokenization: TokenizationModel::default(),
            tokenization_by_model: Vec::new(),
            even_words: false,
            texts: None,
        }
    }

    /// Sends these texts, row by row and again from the start.
    pub fn with_texts(self, texts: Option<Arc<[String]>>) -> Self {
        Self { texts, ..self }
    }

    /// Sets how the server counts.
    pub fn with_tokenization(self, counts: TokenizationModel) -> Self {
        Self { tokenization: counts, ..self }
    }

    /// Sets how servers count the rows of these models; other rows keep the default.
    pub fn with_tokenization_by_model(self, of_models: Vec<(Option<String>, TokenizationModel)>) -> Self {
        Self { tokenization_by_model: of_models, ..self }
    }

    /// Uses every word equally often, so that a few hundred words give the average over all prompts.
    pub fn with_even_words(self) -> Self {
        Self { even_words: true, ..self }
    }

    /// How the server of this row counts.
    fn tokenization_for(&self, entry: &TraceEntry) -> TokenizationModel {
        let own = self.tokenization_by_model.iter().find(|(model, _)| *model == entry.model);
        own.map_or(self.tokenization, |(_, counts)| *counts)
    }

    /// Tokens that the server adds to the prompt of this row.
    pub fn template_tokens(&self, entry: &TraceEntry) -> u64 {
        self.tokenization_for(entry).template_tokens
    }

    /// Target prompt tokens of this row, as counted by the server.
    pub fn tokens(&self, entry: &TraceEntry) -> u64 {
        let prompt = &entry.prompt;
        let by_bytes = || prompt.bytes.map(|bytes| (bytes as f64 * self.tokens_per_byte).round() as u64);
        let by_blocks = || Some(prompt.blocks.len() as u64 * self.block_tokens()).filter(|tokens| *tokens > 0);
        prompt.tokens.or_else(by_bytes).or_else(by_blocks).unwrap_or(DEFAULT_PROMPT_TOKENS)
    }

    /// Text tokens among these. A prompt with images has only bytes to derive them from.
    fn text_tokens(&self, entry: &TraceEntry) -> u64 {
        let (prompt, all) = (&entry.prompt, self.tokens(entry));
        let by_bytes =
            prompt.bytes.filter(|_| !prompt.parts.is_empty()).map(|bytes| bytes as f64 * self.tokens_per_byte);
        by_bytes.map_or(all, |tokens| all.min(tokens.round() as u64))
    }

    fn block_tokens(&self) -> u64 {
        self.blocks.as_ref().map_or(0, |blocks| match blocks.unit {
            BlockUnit::Tokens => u64::from(blocks.size),
            BlockUnit::Bytes => (f64::from(blocks.size) * self.tokens_per_byte).round().max(1.0) as u64,
        })
    }

    /// Ids of the blocks that the row's prompt fills completely.
    pub fn full_blocks<'a>(&self, entry: &'a TraceEntry) -> &'a [u64] {
        let blocks = &entry.prompt.blocks;
        let whole = self.tokens(entry).checked_div(self.block_tokens()).unwrap_or(0);
        &blocks[..usize::try_from(whole).unwrap_or(usize::MAX).min(blocks.len())]
    }

    /// The last `tokens` tokens of the row's prompt text.
    pub fn text_tail(&self, row: &PromptRow<'_>, tokens: u64) -> String {
        let mut text = self.text(row);
        let bytes = self.tokenization_for(row.entry).words(tokens).max(1).saturating_mul(WORD_BYTES);
        text.drain(..text.len().saturating_sub(bytes));
        text
    }

    /// The prompt text of a row.
    pub fn text(&self, row: &PromptRow<'_>) -> String {
        if let Some(texts) = self.texts.as_ref().filter(|texts| !texts.is_empty()) {
            return texts[(row.number % texts.len() as u64) as usize].clone();
        }
        let counts = self.tokenization_for(row.entry);
        let total = counts.words(self.text_tokens(row.entry).saturating_sub(counts.template_tokens)).max(1);
        let block = self.block_tokens();
        let mut text = String::with_capacity((total + 2) * WORD_BYTES);
        // Each pass gets different text, because prefixes cached in the pass before would make the server look faster.
        let mut space = mix(self.seed ^ mix(u64::from(row.pass)));
        if self.blocks.as_ref().is_some_and(|blocks| blocks.scope == BlockScope::Session) {
            space ^= name_hash(row.entry.session.as_deref().unwrap_or_default());
        }
        let mut written = 0;
        for (blocks, id) in (1..).zip(&row.entry.prompt.blocks).take_while(|_| block > 0) {
            if written == total {
                break;
            }
            // A block's end depends only on the blocks before it, so that shared prefixes stay equal to the word.
            let end = counts.words(blocks * block).min(total);
            self.words.append_words(mix(space ^ mix(*id)), end - written, &mut text);
            written = end;
        }
        let own = mix(mix(self.seed ^ u64::from(row.pass)).wrapping_add(row.number) ^ 0x6f77_6e00);
        match self.even_words {
            false => self.words.append_words(own, total - written, &mut text),
            true => self.words.append_words_evenly(own, total - written, &mut text),
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trace_file::header::{BlockIds, LastBlock};
    use crate::trace_file::row::PromptShape;

    fn content(unit: BlockUnit, size: u32, scope: BlockScope) -> PromptGenerator {
        let blocks = BlockScheme { size, unit, last: LastBlock::Kept, ids: BlockIds::Chained, scope, key: None };
        PromptGenerator::new(Vocabulary::default(), Some(blocks), None, 0)
    }

    fn entry(tokens: u64, blocks: &[u64]) -> TraceEntry {
        let prompt = PromptShape { tokens: Some(tokens), blocks: blocks.to_vec(), ..PromptShape::default() };
        TraceEntry { prompt, ..TraceEntry::default() }
    }

    fn text(content: &PromptGenerator, number: u64, tokens: u64, blocks: &[u64]) -> String {
        content.text(&PromptRow { entry: &entry(tokens, blocks), number, pass: 0 })
    }

    fn shared(a: &str, b: &str) -> usize {
        a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn the_text_of_an_id_is_the_same_for_ever() {
        let text = text(&content(BlockUnit::Tokens, 4, BlockScope::Trace), 0, 4, &[46]);
        assert_eq!(text, KNOWN, "a change makes results of old runs incomparable");
    }
    const KNOWN: &str = " our fox rod nor";

    #[test]
    fn prompts_share_what_their_blocks_share_and_no_word_more() {
        let content = content(BlockUnit::Tokens, 16, BlockScope::Trace);
        let (a, b) = (text(&content, 0, 40, &[0, 1, 2]), text(&content, 1, 60, &[0, 1, 7, 8]));
        assert_eq!((a.len(), b.len()), (40 * 4, 60 * 4));
        assert_eq!(shared(&a, &b) / 4, 32, "two blocks of 16");
        let (c, d) = (text(&content, 2, 40, &[]), text(&content, 3, 40, &[]));
        assert_eq!(shared(&c, &d) / 4, 0);
    }

    #[test]
    fn ids_of_sessions_are_their_own() {
        let content = content(BlockUnit::Tokens, 16, BlockScope::Session);
        let of = |session: &str| {
            let entry = TraceEntry { session: Some(session.to_owned()), ..entry(16, &[1]) };
            content.text(&PromptRow { entry: &entry, number: 0, pass: 0 })
        };
        assert_eq!(of("a"), of("a"));
        assert_ne!(of("a"), of("b"));
    }

    #[test]
    fn another_pass_has_other_texts_that_share_alike() {
        let content = content(BlockUnit::Tokens, 16, BlockScope::Trace);
        let pass = |number, blocks: &[u64]| content.text(&PromptRow { entry: &entry(40, blocks), number, pass: 1 });
        assert_ne!(pass(0, &[0, 1, 2]), text(&content, 0, 40, &[0, 1, 2]));
        assert_eq!(shared(&pass(0, &[0, 1, 2]), &pass(1, &[0, 1, 3])) / 4, 32);
    }

    #[test]
    fn blocks_of_bytes_are_shared_and_the_length_in_tokens_is_exact() {
        let content = content(BlockUnit::Bytes, 64, BlockScope::Trace);
        let a = text(&content, 0, 50, &[3, 4, 5]);
        assert_eq!(a.len(), 50 * 4);
        assert_eq!(shared(&a, &text(&content, 1, 90, &[3, 4])) / 4, 32);
    }

    #[test]
    fn room_is_left_for_what_the_server_adds() {
        let content = content(BlockUnit::Tokens, 16, BlockScope::Trace)
            .with_tokenization(TokenizationModel { template_tokens: 5, tokens_per_word: 1.0 });
        let (a, b) = (text(&content, 0, 40, &[0, 1, 2]), text(&content, 0, 60, &[0, 1, 2, 3]));
        assert_eq!((a.len(), b.len()), (35 * 4, 55 * 4));
        assert_eq!(shared(&a, &b), a.len(), "the prefix stays, the end goes");
    }

    #[test]
    fn prompts_of_a_server_that_counts_more_for_a_word_have_fewer_and_share_as_much() {
        let content = content(BlockUnit::Tokens, 16, BlockScope::Trace)
            .with_tokenization(TokenizationModel { template_tokens: 6, tokens_per_word: 1.5 });
        let words = |text: &str| text.len() / WORD_BYTES;
        let (a, b) = (text(&content, 0, 60, &[0, 1, 2]), text(&content, 1, 90, &[0, 1, 7, 8, 9]));
        assert_eq!((words(&a), words(&b)), (54 * 2 / 3, 84 * 2 / 3));
        assert_eq!(shared(&a, &b) / WORD_BYTES, 21, "32 tokens");
        assert_eq!(words(&content.text_tail(&PromptRow { entry: &entry(60, &[0, 1, 2]), number: 0, pass: 0 }, 30)), 20);
        // Blocks smaller than a word contribute no words.
        let byte = self::content(BlockUnit::Tokens, 1, BlockScope::Trace)
            .with_tokenization(TokenizationModel { template_tokens: 0, tokens_per_word: 4.0 });
        let ids: Vec<u64> = (0..40).collect();
        assert_eq!(words(&text(&byte, 0, 40, &ids)), 10);
    }

    #[test]
    fn rows_of_a_model_are_made_as_its_server_counts() {
        let counts = |added, each| TokenizationModel { template_tokens: added, tokens_per_word: each };
        let content = content(BlockUnit::Tokens, 16, BlockScope::Trace)
            .with_tokenization(counts(6, 1.5))
            .with_tokenization_by_model(vec![(Some("small".to_owned()), counts(0, 1.0)), (None, counts(10, 3.0))]);
        let of = |model: Option<&str>| {
            let entry = TraceEntry { model: model.map(str::to_owned), ..entry(60, &[]) };
            let row = PromptRow { entry: &entry, number: 0, pass: 0 };
            (
                content.text(&row).len() / WORD_BYTES,
                content.text_tail(&row, 30).len() / WORD_BYTES,
                content.template_tokens(&entry),
            )
        };
        assert_eq!((of(Some("small")), of(None), of(Some("other"))), ((60, 30, 0), (17, 10, 10), (36, 20, 6)));
    }

    proptest! {
        #[test]
        fn shared_blocks_are_shared_whatever_a_word_counts(
            each in 0.1_f64..16.0, added in 0_u64..50, size in 1_u32..600, shared_ids in 1_u64..9, tokens in 1_u64..6_000,
        ) {
            let content = content(BlockUnit::Tokens, size, BlockScope::Trace).with_tokenization(TokenizationModel { template_tokens: added, tokens_per_word: each });
            let ids = |own: u64| (0..shared_ids).chain([own]).collect::<Vec<u64>>();
            let text = |number, more: u64, own| text(&content, number, tokens + more, &ids(own));
            let (a, b) = (text(1, 0, 100), text(2, 2_000, 101));
            let block = shared_ids * u64::from(size);
            let common = (block as f64 / each).round().min((a.len() / WORD_BYTES) as f64);
            prop_assert!(shared(&a, &b) >= common as usize * WORD_BYTES);
            prop_assert!((a.len() / WORD_BYTES) as f64 * each - tokens.saturating_sub(added) as f64 <= each.max(each / 2.0));
        }

        #[test]
        fn a_prompt_has_as_many_words_as_it_should_have_tokens(
            tokens in 1_u64..3_000, ids in prop::collection::vec(0_u64..50, 0..9), size in 1_u32..600,
        ) {
            let text = text(&content(BlockUnit::Tokens, size, BlockScope::Trace), 1, tokens, &ids);
            prop_assert_eq!(text.split(' ').skip(1).count() as u64, tokens);
            prop_assert!(text.split(' ').skip(1).all(|word| word.len() == 3));
        }
    }
}
