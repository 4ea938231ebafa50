//! The words of generated prompts, and a test that finds the words a tokenizer encodes as one token each. Pure.
//!
//! # Single-token words
//! A probe text repeats every word three times. A word is one token exactly if its token appears three times in a row.
//! One text therefore tests all words, even if the tokenizer adds tokens before or after it. Then a sample text with
//! the words in random order must encode to exactly the tokens found by the probe.
use crate::stats::hash::mix;

use std::collections::HashMap;

use rand::Rng as _;

use super::rng::rng;

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
pub(super) const WORD_BYTES: usize = 4;
/// Words in one even run: one for each byte value that selects a word.
pub const EVEN_RUN_WORDS: usize = 256;
/// Fewer words than this would make prompts look alike.
const MIN_WORDS: usize = 16;
/// Consecutive repetitions of each word in a probe.
const PROBE_REPEATS: usize = 3;
/// Maximum tokens per word: its bytes, and one token between words.
const MAX_WORD_TOKENS: usize = WORD_BYTES + 1;
/// Maximum tokens before the words of a text, including those of its first word, and maximum tokens after them.
const MAX_FRAMING_TOKENS: usize = 8;
/// Number of words in a sample, and its seed.
const SAMPLE_WORDS_AND_SEED: (usize, u64) = (512, 0);

/// Words available for prompts.
#[derive(Clone, Debug)]
pub struct Vocabulary(Vec<[u8; WORD_BYTES]>);

impl Default for Vocabulary {
    fn default() -> Self {
        Self(WORDS.iter().map(|[a, b, c]| [b' ', *a, *b, *c]).collect())
    }
}

impl Vocabulary {
    /// Number of words in the built-in list.
    pub const COUNT: usize = WORDS.len();

    /// Selects the words that are one token each; `ids` tokenizes a text.
    ///
    /// # Errors
    /// If too few words remain for prompts; the error describes the tokenizer's result.
    pub fn from_tokenizer(ids: impl Fn(&str) -> Vec<u64>) -> Result<Self, String> {
        let drilled = SingleTokenWords::from_probe(&ids(&single_token_probe()))
            .unwrap_or(SingleTokenWords { words: Self(Vec::new()), ids: Vec::new() });
        let sample = ids(&drilled.sample_text());
        drilled.verify(&sample)
    }

    /// Number of available words.
    pub fn word_count(&self) -> usize {
        self.0.len()
    }

    /// Words in both vocabularies.
    ///
    /// # Errors
    /// If too few words remain for prompts.
    pub fn intersection(mut self, other: &Self) -> Result<Self, String> {
        self.0.retain(|word| other.0.contains(word));
        self.require_enough()
    }

    fn require_enough(self) -> Result<Self, String> {
        if self.0.len() >= MIN_WORDS {
            return Ok(self);
        }
        let (all, number) = (Self::COUNT, self.0.len());
        Err(format!(
            "of {all} short words {number} are one token each, and {MIN_WORDS} are needed to make prompts of an exact length"
        ))
    }

    /// Appends the first `words` words of the text with this seed.
    pub(super) fn append_words(&self, seed: u64, words: usize, out: &mut String) {
        let mut random = rng(seed);
        let end = out.len() + words * WORD_BYTES;
        out.reserve((words + 1) * WORD_BYTES);
        while out.len() < end {
            for byte in random.next_u64().to_le_bytes() {
                out.push_str(self.word_for(byte));
            }
        }
        out.truncate(end);
    }

    /// Appends words in runs of [`EVEN_RUN_WORDS`], each with every word as often as random draws average. The words
    /// after the last full run do not depend on the seed, so texts that differ by one run differ in exactly that run.
    pub(super) fn append_words_evenly(&self, seed: u64, words: usize, out: &mut String) {
        let share = |seed| {
            let mut bytes: Vec<u8> = (0..=u8::MAX).collect();
            bytes.sort_by_key(|byte| mix(seed ^ mix(u64::from(*byte))));
            bytes
        };
        let left = words % EVEN_RUN_WORDS;
        let shares = share(seed).into_iter().cycle().take(words - left);
        out.extend(shares.chain(share(0).into_iter().take(left)).map(|byte| self.word_for(byte)));
    }

    fn word_for(&self, byte: u8) -> &str {
        text(&self.0[(usize::from(byte) * self.0.len()) >> 8])
    }
}

fn text(word: &[u8; WORD_BYTES]) -> &str {
    std::str::from_utf8(word).unwrap_or_default()
}

/// The probe text for [`SingleTokenWords`].
pub fn single_token_probe() -> String {
    let all = Vocabulary::default().0;
    // Tokenizers may add tokens before a text or treat its first word differently.
    let first = all.last().into_iter();
    first.chain(all.iter().flat_map(|word| std::iter::repeat_n(word, PROBE_REPEATS))).map(text).collect()
}

/// Words that a probe found to be one token each.
#[derive(Clone, Debug)]
pub struct SingleTokenWords {
    words: Vocabulary,
    ids: Vec<u64>,
}

impl SingleTokenWords {
    /// Evaluates the token ids of a probe; `None` if the ids cannot belong to one.
    ///
    /// Words with equal tokens, such as words unknown to the tokenizer, are excluded because they would make all
    /// prompts equal.
    pub fn from_probe(ids: &[u64]) -> Option<Self> {
        let of_words = (1..=MAX_FRAMING_TOKENS).find_map(|front| single_token_ids(ids.get(front..)?))?;
        let mut times: HashMap<u64, usize> = HashMap::new();
        of_words.iter().flatten().for_each(|id| *times.entry(*id).or_default() += 1);
        let single = Vocabulary::default().0.into_iter().zip(of_words).filter_map(|(word, id)| Some((word, id?)));
        let (words, ids) = single.filter(|(_, id)| times[id] == 1).unzip();
        Some(Self { words: Vocabulary(words), ids })
    }

    /// A text of these words in random order.
    pub fn sample_text(&self) -> String {
        let mut sample = String::new();
        if self.words.word_count() > 0 {
            self.words.append_words(SAMPLE_WORDS_AND_SEED.1, SAMPLE_WORDS_AND_SEED.0, &mut sample);
        }
        sample
    }

    /// Returns the words if the token ids of the sample text confirm the probe.
    ///
    /// # Errors
    /// If they do not, or if too few words remain for prompts.
    pub fn verify(self, sample: &[u64]) -> Result<Vocabulary, String> {
        let text = self.sample_text();
        let id: HashMap<_, _> = self.words.0.iter().map(|word| &word[..]).zip(&self.ids).collect();
        let expected: Vec<u64> = text.as_bytes().chunks(WORD_BYTES).skip(1).map(|word| *id[word]).collect();
        let words = self.words.require_enough()?;
        let borne_out = (1..=MAX_FRAMING_TOKENS).any(|front| {
            let rest = sample.get(front..).and_then(|rest| rest.strip_prefix(&expected[..]));
            rest.is_some_and(|behind| behind.len() <= MAX_FRAMING_TOKENS)
        });
        borne_out
            .then_some(words)
            .ok_or_else(|| "words that are one token each are not when they stand together".into())
    }
}

/// Token id of each single-token word, from the ids after the first word of a probe; `None` if the ids cannot belong to
/// one.
fn single_token_ids(mut ids: &[u64]) -> Option<Vec<Option<u64>>> {
    let mut of_words = Vec::with_capacity(Vocabulary::COUNT);
    for _ in 0..Vocabulary::COUNT {
        let pieces = (1..=MAX_WORD_TOKENS).find(|pieces| {
            let row = ids.get(..pieces * PROBE_REPEATS);
            row.is_some_and(|row| row.chunks(*pieces).all(|word| word == &row[..*pieces]))
        })?;
        of_words.push(Some(ids[0]).filter(|_| pieces == 1));
        ids = &ids[pieces * PROBE_REPEATS..];
    }
    (ids.len() <= MAX_FRAMING_TOKENS).then_some(of_words)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokenizers::Tokenizer;

    use super::*;

    #[test]
    fn every_word_is_three_letters_and_there_is_none_twice() {
        let words = Vocabulary::default().0;
        let unique: std::collections::HashSet<_> = words.iter().collect();
        assert_eq!((unique.len(), words.len() >= 128), (words.len(), true));
        assert!(words.iter().all(|word| word[0] == b' ' && word[1..].iter().all(u8::is_ascii_lowercase)));
    }

    #[test]
    fn a_text_that_is_even_has_every_word_as_often_as_it_is_drawn_on_average() {
        let words = Vocabulary::default();
        let (mut even, mut other) = (String::new(), String::new());
        words.append_words_evenly(1, 2 * EVEN_RUN_WORDS, &mut even);
        words.append_words_evenly(2, 2 * EVEN_RUN_WORDS, &mut other);
        for word in &words.0 {
            let drawn_by = (0..=u8::MAX).filter(|byte| words.word_for(*byte) == text(word)).count();
            assert_eq!(even.matches(text(word)).count(), 2 * drawn_by);
        }
        assert_ne!(even[..WORD_BYTES * 8], other[..WORD_BYTES * 8], "no prefix is shared");
        let (mut short, mut longer) = (String::new(), String::new());
        words.append_words_evenly(1, 32, &mut short);
        words.append_words_evenly(2, 32 + 2 * EVEN_RUN_WORDS, &mut longer);
        assert_eq!(longer, other + &short, "two shares, and the same words");
    }

    /// Token ids from a tokenizer with the given tokens per word, and with `around` before and after every text.
    fn ids(text: &str, around: (&[u64], &[u64]), pieces: impl Fn(&str) -> Vec<u64>) -> Vec<u64> {
        let of_text = text.split(' ').skip(1).flat_map(pieces);
        around.0.iter().copied().chain(of_text).chain(around.1.iter().copied()).collect()
    }

    fn whole(word: &str) -> u64 {
        word.bytes().fold(1_000, |id, byte| id * 256 + u64::from(byte))
    }

    /// Encodes every word with an `e` in letters.
    fn without_e(word: &str) -> Vec<u64> {
        if word.contains('e') { word.bytes().map(u64::from).collect() } else { vec![whole(word)] }
    }

    fn proven(around: (&[u64], &[u64]), pieces: fn(&str) -> Vec<u64>) -> Option<Result<Vocabulary, String>> {
        let drilled = SingleTokenWords::from_probe(&ids(&single_token_probe(), around, pieces))?;
        let sample = ids(&drilled.sample_text(), around, pieces);
        Some(drilled.verify(&sample))
    }

    #[test]
    fn a_drill_tells_which_words_are_one_token_whatever_is_put_around_a_text() {
        let expected: Vec<_> = Vocabulary::default().0.into_iter().filter(|word| !word.contains(&b'e')).collect();
        for around in [(&[][..], &[][..]), (&[1], &[]), (&[1, 29_871], &[2]), (&[7, 7, 7], &[7])] {
            assert_eq!(proven(around, without_e).unwrap().unwrap().0, expected, "{around:?}");
        }
        // A tokenizer whose blank is a token, and one with no known word.
        assert!(proven((&[], &[]), |word| vec![9, whole(word)]).unwrap().unwrap_err().contains("words 0 are one"));
        assert!(proven((&[], &[]), |_| vec![0]).is_none_or(|words| words.is_err()));
    }

    /// A tokenizer that splits at blanks and knows all words except those that match, which it encodes in letters.
    fn without(pattern: &str) -> Tokenizer {
        let words = Vocabulary::default().0;
        let known = words.iter().map(|word| text(word).trim().to_owned()).chain(('a'..='z').map(String::from));
        let vocab: serde_json::Map<_, _> = known.chain(["[UNK]".to_owned()]).zip((0..).map(Value::from)).collect();
        let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, split]},
            "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"},
        });
        Tokenizer::from_bytes(json.to_string()).unwrap()
    }

    #[test]
    fn with_a_tokenizer_only_words_are_used_that_are_one_token() {
        let cut = |tokenizer: &Tokenizer, text: &str| -> Vec<u64> {
            let tokens = tokenizer.encode_fast(text, false).unwrap();
            tokens.get_ids().iter().copied().map(u64::from).collect()
        };
        let tokenizer = without("e");
        let words = Vocabulary::from_tokenizer(|text| cut(&tokenizer, text)).unwrap();
        assert!((100..201).contains(&words.word_count()), "{}", words.word_count());
        for tokens in [1, 2, 77, 500] {
            let mut text = String::new();
            words.append_words(7, tokens, &mut text);
            assert!(!text.contains('e'));
            assert_eq!(cut(&tokenizer, &text).len(), tokens);
        }
        let letters = without("[a-t]");
        let error = Vocabulary::from_tokenizer(|text| cut(&letters, text)).unwrap_err();
        assert!(error.starts_with("of 201 short words "), "{error}");
    }

    #[test]
    fn what_is_no_list_of_a_drills_tokens_tells_nothing() {
        let right = ids(&single_token_probe(), (&[1], &[]), without_e);
        assert!(SingleTokenWords::from_probe(&right).is_some());
        for wrong in [&[][..], &[0; 604], &[0; 1 << 16], &right[..right.len() - 1], &[&right[..], &[1; 9]].concat()] {
            assert!(
                SingleTokenWords::from_probe(wrong).is_none_or(|drilled| drilled.words.word_count() == 0),
                "{} ids",
                wrong.len()
            );
        }
    }

    #[test]
    fn a_sample_that_has_other_tokens_proves_nothing() {
        let drilled = SingleTokenWords::from_probe(&ids(&single_token_probe(), (&[], &[]), without_e)).unwrap();
        let right = ids(&drilled.sample_text(), (&[], &[]), without_e);
        let mut wrong = right.clone();
        wrong[200] += 1;
        for sample in [&wrong, &right[..511].to_vec(), &[&right[..], &[1; 9]].concat(), &Vec::new()] {
            assert!(drilled.clone().verify(sample).is_err());
        }
        assert!(drilled.verify(&right).is_ok());
    }

    #[test]
    fn words_of_several_models_are_those_that_all_have() {
        let half = |half: &str| {
            Vocabulary(Vocabulary::default().0.into_iter().filter(|word| text(word).contains(half)).collect())
        };
        assert_eq!(half("a").intersection(&Vocabulary::default()).unwrap().word_count(), half("a").word_count());
        assert!(
            half("a").intersection(&half("zip")).unwrap_err().starts_with("of 201 short words 0 are one token each")
        );
    }
}
