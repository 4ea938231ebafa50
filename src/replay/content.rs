//! The text of prompts: from block ids and lengths, alike in every process and on every machine. Pure.
//!
//! # Words
//! A prompt is words of three letters with a blank before each. Nearly every tokenizer has those as one token; the
//! simulated server counts four bytes as one; so a prompt of n tokens is n words whoever counts. With a tokenizer's file
//! only words are used that it proves to have as one token.
//!
//! # Blocks
//! A block's text is drawn from its id and nothing else, and cut where the prompt ends: prompts share a prefix exactly
//! where the trace says that they do. What no block covers is drawn from the row's number, and is like no other prompt
//! from its first word on.

use rand::Rng as _;
use tokenizers::Tokenizer;

use super::schedule::{Planned, mix, name_hash, random};
use crate::capture::format::{BlockUnit, Blocks, Scope};

/// Common English words of three letters.
#[rustfmt::skip]
const WORDS: [&[u8; 3]; 201] = [
    b"the", b"and", b"for", b"are", b"but", b"not", b"you", b"all", b"any", b"can", b"had", b"her", b"was", b"one", b"our", b"out",
    b"day", b"get", b"has", b"him", b"his", b"how", b"man", b"new", b"now", b"old", b"see", b"two", b"way", b"who", b"boy", b"did",
    b"its", b"let", b"put", b"say", b"she", b"too", b"use", b"dad", b"mom", b"act", b"add", b"age", b"ago", b"aid", b"aim", b"air",
    b"arm", b"art", b"ask", b"bad", b"bag", b"ban", b"bar", b"bat", b"bed", b"bet", b"big", b"bit", b"box", b"bus", b"buy", b"cap",
    b"car", b"cat", b"cup", b"cut", b"dog", b"dry", b"due", b"ear", b"eat", b"egg", b"end", b"eye", b"fan", b"far", b"fee", b"few",
    b"fig", b"fit", b"fix", b"fly", b"fun", b"gap", b"gas", b"got", b"guy", b"hit", b"hot", b"ice", b"ill", b"job", b"joy", b"key",
    b"kid", b"law", b"lay", b"led", b"leg", b"lie", b"lot", b"low", b"map", b"may", b"men", b"met", b"mix", b"net", b"nor", b"nut",
    b"oil", b"own", b"pay", b"per", b"pop", b"pot", b"raw", b"red", b"rid", b"row", b"run", b"sad", b"sat", b"sea", b"set", b"sir",
    b"sit", b"six", b"sky", b"son", b"sum", b"sun", b"tax", b"tea", b"ten", b"tie", b"tip", b"top", b"toy", b"try", b"van", b"via",
    b"war", b"web", b"wet", b"why", b"win", b"won", b"yes", b"yet", b"app", b"bug", b"com", b"pen", b"pie", b"cow", b"pig", b"hen",
    b"rat", b"bee", b"ant", b"owl", b"fox", b"elk", b"jam", b"bun", b"rye", b"oat", b"fog", b"mud", b"dew", b"hay", b"hut", b"den",
    b"pit", b"log", b"rod", b"rim", b"jar", b"lid", b"mug", b"pan", b"fur", b"hem", b"lap", b"rib", b"hip", b"jaw", b"lip", b"toe",
    b"bow", b"sew", b"dye", b"gem", b"zip", b"nap", b"hug", b"wit", b"vow",
];

/// Bytes of a word and the blank before it.
const WORD: usize = 4;
/// Fewer words than this make prompts that look alike.
const LEAST_WORDS: usize = 16;
/// Tokens of a prompt of which the trace says nothing.
const UNKNOWN: u64 = 1;

/// The words that prompts are made of.
#[derive(Clone, Debug)]
pub struct Words(Vec<[u8; WORD]>);

impl Default for Words {
    fn default() -> Self {
        Self(WORDS.iter().map(|[a, b, c]| [b' ', *a, *b, *c]).collect())
    }
}

impl Words {
    /// Those of the words that are one token each, wherever they stand.
    ///
    /// # Errors
    /// When they are too few to make prompts of: what the tokenizer makes of them is in the text.
    pub fn of(tokenizer: &Tokenizer) -> Result<Self, String> {
        let count = |text: &str| tokenizer.encode_fast(text, false).map(|tokens| tokens.len()).unwrap_or(usize::MAX);
        let mut words = Self::default();
        let all = words.0.len();
        words.0.retain(|word| {
            let word = std::str::from_utf8(word).unwrap_or_default();
            (1..=3).all(|times| count(&word.repeat(times)) == times)
        });
        let sample: String = words.0.iter().map(|word| std::str::from_utf8(word).unwrap_or_default()).collect();
        if words.0.len() < LEAST_WORDS || count(&sample) != words.0.len() {
            return Err(format!(
                "of {all} short words it has {} as one token each, and {LEAST_WORDS} are needed to make prompts of an \
                 exact length",
                words.0.len()
            ));
        }
        Ok(words)
    }

    /// Appends `bytes` bytes of the text with this seed.
    fn write(&self, seed: u64, bytes: usize, out: &mut String) {
        let mut random = random(seed);
        let end = out.len() + bytes;
        out.reserve(bytes + WORD);
        while out.len() < end {
            for byte in random.next_u64().to_le_bytes() {
                let word = &self.0[(usize::from(byte) * self.0.len()) >> 8];
                out.push_str(std::str::from_utf8(word).unwrap_or_default());
            }
        }
        out.truncate(end);
    }
}

/// Makes the prompts of one trace. See the module.
#[derive(Clone, Debug)]
pub struct Content {
    words: Words,
    blocks: Option<Blocks>,
    /// Tokens for each byte of captured text, where that is how blocks or lengths were counted.
    tokens_per_byte: f64,
    seed: u64,
    /// Tokens that the server adds to each prompt by itself.
    added: u64,
}

impl Content {
    /// For a trace with these blocks. `tokens_per_byte` is the trace's own, if it knows both.
    pub fn new(words: Words, blocks: Option<Blocks>, tokens_per_byte: Option<f64>, seed: u64) -> Self {
        let tokens_per_byte = tokens_per_byte.unwrap_or(1.0 / WORD as f64);
        Self { words, blocks, tokens_per_byte, seed, added: 0 }
    }

    /// Leaves room for what the server is known to add to each prompt, in tokens.
    pub fn leaving(mut self, added: u64) -> Self {
        self.added = added;
        self
    }

    /// Tokens that the server is known to add to each prompt.
    pub fn added(&self) -> u64 {
        self.added
    }

    /// Tokens that the prompt of a row should have, as the server counts.
    pub fn tokens(&self, send: &Planned) -> u64 {
        let prompt = &send.entry.prompt;
        let by_bytes = || prompt.bytes.map(|bytes| (bytes as f64 * self.tokens_per_byte).round() as u64);
        let by_blocks = || Some(prompt.blocks.len() as u64 * self.block_tokens()).filter(|tokens| *tokens > 0);
        prompt.tokens.or_else(by_bytes).or_else(by_blocks).unwrap_or(UNKNOWN)
    }

    /// Those of them that are text. Of a prompt with images only its bytes tell how many.
    fn text_tokens(&self, send: &Planned) -> u64 {
        let (prompt, all) = (&send.entry.prompt, self.tokens(send));
        let by_bytes =
            prompt.bytes.filter(|_| !prompt.parts.is_empty()).map(|bytes| bytes as f64 * self.tokens_per_byte);
        by_bytes.map_or(all, |tokens| all.min(tokens.round() as u64))
    }

    /// Tokens of a whole block.
    fn block_tokens(&self) -> u64 {
        self.blocks.as_ref().map_or(0, |blocks| match blocks.unit {
            BlockUnit::Tokens => u64::from(blocks.size),
            BlockUnit::Bytes => (f64::from(blocks.size) * self.tokens_per_byte).round().max(1.0) as u64,
        })
    }

    /// Ids of the blocks of a row that its prompt fills.
    pub fn whole_blocks<'a>(&self, send: &'a Planned) -> &'a [u64] {
        let blocks = &send.entry.prompt.blocks;
        let whole = self.tokens(send).checked_div(self.block_tokens()).unwrap_or(0);
        &blocks[..usize::try_from(whole).unwrap_or(usize::MAX).min(blocks.len())]
    }

    /// The last words of a row's prompt, this many tokens of them.
    pub fn end_of_text(&self, send: &Planned, tokens: u64) -> String {
        let mut text = self.text(send);
        let bytes = usize::try_from(tokens).unwrap_or(usize::MAX).saturating_mul(WORD);
        text.drain(..text.len().saturating_sub(bytes));
        text
    }

    /// The prompt of a row.
    pub fn text(&self, send: &Planned) -> String {
        let bytes = |tokens: u64| usize::try_from(tokens).unwrap_or(usize::MAX).saturating_mul(WORD);
        let total = bytes(self.text_tokens(send).saturating_sub(self.added).max(1));
        let block = bytes(self.block_tokens());
        let mut text = String::with_capacity(total + 2 * WORD);
        // Another pass is another day: what the cache holds of the one before would make it look faster.
        let mut space = mix(self.seed ^ mix(u64::from(send.pass)));
        if self.blocks.as_ref().is_some_and(|blocks| blocks.scope == Scope::Session) {
            space ^= name_hash(send.entry.session.as_deref().unwrap_or_default());
        }
        for id in send.entry.prompt.blocks.iter().take_while(|_| block > 0) {
            let left = total - text.len();
            if left == 0 {
                break;
            }
            self.words.write(mix(space ^ mix(*id)), block.min(left), &mut text);
        }
        let own = mix(mix(self.seed ^ u64::from(send.pass)).wrapping_add(send.number) ^ 0x6f77_6e00);
        self.words.write(own, total - text.len(), &mut text);
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::capture::format::{BlockIds, Entry, LastBlock, Prompt};
    use crate::measure::time::Gap;

    fn content(unit: BlockUnit, size: u32, scope: Scope) -> Content {
        let blocks = Blocks { size, unit, last: LastBlock::Kept, ids: BlockIds::Chained, scope, key: None };
        Content::new(Words::default(), Some(blocks), None, 0)
    }

    fn send(number: u64, tokens: u64, blocks: &[u64]) -> Planned {
        let prompt = Prompt { tokens: Some(tokens), blocks: blocks.to_vec(), ..Prompt::default() };
        Planned { at: Gap::ZERO, number, pass: 0, entry: Entry { prompt, ..Entry::default() } }
    }

    fn shared(a: &str, b: &str) -> usize {
        a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn the_text_of_an_id_is_the_same_for_ever() {
        let text = content(BlockUnit::Tokens, 4, Scope::Trace).text(&send(0, 4, &[46]));
        assert_eq!(text, KNOWN, "whoever changes this makes results of old runs incomparable");
    }
    const KNOWN: &str = " our fox rod nor";

    #[test]
    fn every_word_is_three_letters_and_there_is_none_twice() {
        let words = Words::default().0;
        let unique: std::collections::HashSet<_> = words.iter().collect();
        assert_eq!((unique.len(), words.len() >= 128), (words.len(), true));
        assert!(words.iter().all(|word| word[0] == b' ' && word[1..].iter().all(u8::is_ascii_lowercase)));
    }

    #[test]
    fn prompts_share_what_their_blocks_share_and_no_word_more() {
        let content = content(BlockUnit::Tokens, 16, Scope::Trace);
        let (a, b) = (content.text(&send(0, 40, &[0, 1, 2])), content.text(&send(1, 60, &[0, 1, 7, 8])));
        assert_eq!((a.len(), b.len()), (40 * 4, 60 * 4));
        assert_eq!(shared(&a, &b) / 4, 32, "two blocks of 16");
        let (c, d) = (content.text(&send(2, 40, &[])), content.text(&send(3, 40, &[])));
        assert_eq!(shared(&c, &d) / 4, 0);
    }

    #[test]
    fn ids_of_sessions_are_their_own() {
        let content = content(BlockUnit::Tokens, 16, Scope::Session);
        let of = |session: &str| {
            let mut send = send(0, 16, &[1]);
            send.entry.session = Some(session.to_owned());
            content.text(&send)
        };
        assert_eq!(of("a"), of("a"));
        assert_ne!(of("a"), of("b"));
    }

    #[test]
    fn another_pass_has_other_texts_that_share_alike() {
        let content = content(BlockUnit::Tokens, 16, Scope::Trace);
        let pass = |number, blocks: &[u64]| content.text(&Planned { pass: 1, ..send(number, 40, blocks) });
        assert_ne!(pass(0, &[0, 1, 2]), content.text(&send(0, 40, &[0, 1, 2])));
        assert_eq!(shared(&pass(0, &[0, 1, 2]), &pass(1, &[0, 1, 3])) / 4, 32);
    }

    #[test]
    fn blocks_of_bytes_are_shared_and_the_length_in_tokens_is_exact() {
        let content = content(BlockUnit::Bytes, 64, Scope::Trace);
        let text = content.text(&send(0, 50, &[3, 4, 5]));
        assert_eq!(text.len(), 50 * 4);
        assert_eq!(shared(&text, &content.text(&send(1, 90, &[3, 4]))) / 4, 32);
    }

    #[test]
    fn room_is_left_for_what_the_server_adds() {
        let content = content(BlockUnit::Tokens, 16, Scope::Trace).leaving(5);
        let (a, b) = (content.text(&send(0, 40, &[0, 1, 2])), content.text(&send(0, 60, &[0, 1, 2, 3])));
        assert_eq!((a.len(), b.len()), (35 * 4, 55 * 4));
        assert_eq!(shared(&a, &b), a.len(), "the prefix stays, the end goes");
    }

    /// A tokenizer that cuts words out at blanks, and then out of them every `e`.
    fn without(pattern: &str) -> Tokenizer {
        let split =
            format!(r#"{{"type":"Split","pattern":{{"Regex":"{pattern}"}},"behavior":"Isolated","invert":false}}"#);
        let json = format!(
            r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
                "pre_tokenizer":{{"type":"Sequence","pretokenizers":[{{"type":"WhitespaceSplit"}},{split}]}},
                "post_processor":null,"decoder":null,
                "model":{{"type":"WordLevel","vocab":{{"[UNK]":0}},"unk_token":"[UNK]"}}}}"#
        );
        Tokenizer::from_bytes(json).unwrap()
    }

    #[test]
    fn with_a_tokenizer_only_words_are_used_that_are_one_token() {
        let tokenizer = without("e");
        let words = Words::of(&tokenizer).unwrap();
        assert!(words.0.len() > 100 && words.0.iter().all(|word| !word.contains(&b'e')), "{}", words.0.len());
        let content = Content::new(words, None, None, 0);
        for tokens in [1, 2, 77, 500] {
            let text = content.text(&send(tokens, tokens, &[]));
            assert_eq!(tokenizer.encode_fast(text, false).unwrap().len() as u64, tokens);
        }
        let error = Words::of(&without("[a-t]")).unwrap_err();
        assert!(error.starts_with("of 201 short words it has "), "{error}");
    }

    proptest! {
        #[test]
        fn a_prompt_has_as_many_words_as_it_should_have_tokens(
            tokens in 1_u64..3_000, ids in prop::collection::vec(0_u64..50, 0..9), size in 1_u32..600,
        ) {
            let text = content(BlockUnit::Tokens, size, Scope::Trace).text(&send(1, tokens, &ids));
            prop_assert_eq!(text.split(' ').skip(1).count() as u64, tokens);
            prop_assert!(text.split(' ').skip(1).all(|word| word.len() == 3));
        }
    }
}
