//! Hashes a prompt into block ids and message digests; the prompt text goes no further than here. Pure.
//!
//! The canonical prompt ([`measure::dialect::prompt`](crate::measure::dialect::prompt)) is its text, with the roles and
//! marks in between. It is cut into blocks ([`block_chunker`](super::block_chunker)); its bytes up to the end of each
//! message are hashed for the sessions. A prompt with images or audio has blocks but no token count, because only the
//! server knows their tokens.

use std::hash::{BuildHasher as _, Hasher as _};

use ahash::{AHasher, RandomState};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::block_chunker::{BlockChunker, BlockChunking};
use super::key::{CaptureKey, reset_hasher, truncate};
use super::media;
use crate::measure::dialect::prompt::{MediaLocation, Medium, PromptSink};
use crate::trace_file::row::PromptPart;

/// Separates the digests of messages.
const MESSAGES_PURPOSE: &[u8] = b"messages";
/// Separates the digests of conversations.
const CONVERSATION_PURPOSE: &[u8] = b"conversation";
/// Maximum non-text parts recorded per request.
const MAX_PARTS: usize = 256;
/// Maximum messages per request whose end a later turn may continue.
const MAX_MESSAGES: usize = 4_096;
/// Bytes of the canonical prompt that are hashed and cut at once.
const BUFFER_BYTES: usize = 4 << 10;
/// Maximum base64 of a part that is decoded to find the image dimensions, in bytes. Camera metadata before the
/// dimensions can be this long.
const MEDIA_HEAD_BYTES: usize = 128 << 10;

const LENIENT_BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The result of hashing one prompt; contains no text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptDigest {
    /// Bytes of the canonical prompt.
    pub bytes: u64,
    /// Tokens of the prompt; `None` unless a tokenizer counted the whole prompt.
    pub tokens: Option<u64>,
    /// Ids of the full blocks.
    pub blocks: Vec<u64>,
    /// Non-text parts.
    pub parts: Vec<PromptPart>,
    /// Hash of everything up to the end of each message. Comparable within this process only; never written.
    pub messages: Vec<u64>,
    /// Keyed digest of everything up to the end of the first message of the user, which all turns of a conversation
    /// share. Only for samples; equal in all processes with one key.
    pub conversation: Option<u64>,
}

/// Hashes prompts one after the other and reuses its hashers and buffers, which cost more than a short prompt.
pub struct PromptHasher {
    key: CaptureKey,
    /// Bytes of the canonical prompt that are neither hashed nor cut yet. A few long pieces cost less than many short
    /// ones. The piece boundaries depend only on the prompt.
    pending: Vec<u8>,
    blocks: BlockChunker,
    /// Running hash of the whole prompt, read at message ends. These hashes stay in this process, so a fast keyed hash
    /// is enough.
    message_hasher: AHasher,
    message_hash_state: RandomState,
    /// Hash of the conversation's beginning; `None` unless the capture is a sample.
    conversation: Option<Box<blake3::Hasher>>,
    digest: PromptDigest,
}

impl PromptHasher {
    /// Creates a hasher with blocks of the given unit and size.
    pub fn new(key: &CaptureKey, chunking: BlockChunking) -> Self {
        let [a, b, c, d] = key.seeds(MESSAGES_PURPOSE);
        let messages = RandomState::with_seeds(a, b, c, d);
        Self {
            key: key.clone(),
            pending: Vec::new(),
            blocks: BlockChunker::new(key, chunking),
            message_hasher: messages.build_hasher(),
            message_hash_state: messages,
            conversation: None,
            digest: PromptDigest::default(),
        }
    }

    /// Also digests the beginning of each conversation.
    pub fn with_conversations(mut self) -> Self {
        self.conversation = Some(Box::new(self.key.hasher(CONVERSATION_PURPOSE)));
        self
    }

    /// Skips tokenization of this prompt, because the capture is behind. The prompt gets no blocks of tokens.
    pub fn skip_tokens(&mut self) {
        if let BlockChunker::Tokens(blocks) = &mut self.blocks {
            blocks.skip();
        }
    }

    /// Returns the digest and prepares for the next prompt.
    pub fn finish(&mut self) -> PromptDigest {
        self.flush();
        let (blocks, tokens) = self.blocks.finish();
        self.message_hasher = self.message_hash_state.build_hasher();
        if let Some(conversation) = &mut self.conversation {
            reset_hasher(conversation, CONVERSATION_PURPOSE);
        }
        let digest = std::mem::take(&mut self.digest);
        PromptDigest { blocks, tokens: tokens.filter(|_| digest.parts.is_empty()), ..digest }
    }

    /// Receives all input, for every unit. Inlined, adding a mark costs one byte store.
    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        if self.pending.len() + bytes.len() > BUFFER_BYTES {
            self.flush();
            if bytes.len() > BUFFER_BYTES {
                return self.hash_bytes(bytes);
            }
        }
        self.pending.extend_from_slice(bytes);
    }

    /// Hashes and cuts the pending bytes. Rare, so it is kept out of the inlined `push`.
    #[inline(never)]
    fn flush(&mut self) {
        let mut walked = std::mem::take(&mut self.pending);
        self.hash_bytes(&walked);
        walked.clear();
        self.pending = walked;
    }

    fn hash_bytes(&mut self, bytes: &[u8]) {
        self.digest.bytes += bytes.len() as u64;
        self.message_hasher.write(bytes);
        if let Some(conversation) = self.conversation.as_mut().filter(|_| self.digest.conversation.is_none()) {
            conversation.update(bytes);
        }
        if let BlockChunker::Bytes(blocks) = &mut self.blocks {
            blocks.push(bytes);
        }
    }
}

impl PromptSink for PromptHasher {
    #[inline]
    fn mark(&mut self, mark: &[u8]) {
        self.push(mark);
        if let BlockChunker::Tokens(blocks) = &mut self.blocks {
            blocks.mark(mark);
        }
    }

    #[inline]
    fn text(&mut self, text: &str) {
        self.push(text.as_bytes());
        if let BlockChunker::Tokens(blocks) = &mut self.blocks {
            blocks.text(text);
        }
    }

    fn word(&mut self, word: &str) {
        self.push(word.as_bytes());
        if let BlockChunker::Tokens(blocks) = &mut self.blocks {
            blocks.word(word);
        }
    }

    fn part(&mut self, medium: Medium, place: MediaLocation<'_>) {
        let (text, inline) = match place {
            MediaLocation::Inline(text) => (text, true),
            MediaLocation::Elsewhere(text) => (text, false),
        };
        // The digest of the content represents it in the prompt. Pixels are not text and add no bytes.
        let digest = self.key.hasher(b"part").update(text.as_bytes()).finalize();
        self.push(digest.as_bytes());
        if let BlockChunker::Tokens(blocks) = &mut self.blocks {
            blocks.part(digest.as_bytes());
        }
        if self.digest.parts.len() == MAX_PARTS {
            return;
        }
        let digits = text.trim_end_matches('=').len();
        let bytes = inline.then_some(digits as u64 * 3 / 4);
        let size = inline.then(|| {
            let head = text.as_bytes().get(..MEDIA_HEAD_BYTES).unwrap_or(text.as_bytes());
            media::dimensions(&LENIENT_BASE64.decode(head).ok()?)
        });
        self.digest.parts.push(PromptPart { kind: medium.into(), bytes, size: size.flatten() });
    }

    fn message_ends(&mut self, by_user: bool) {
        self.flush();
        if let Some(conversation) = self.conversation.as_ref().filter(|_| by_user && self.digest.conversation.is_none())
        {
            self.digest.conversation = Some(truncate(conversation.finalize().as_bytes()));
        }
        if self.digest.messages.len() < MAX_MESSAGES {
            self.digest.messages.push(self.message_hasher.finish());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::capture::tokenizer::{MAX_TEXT_BYTES, PromptTokenizer};
    use crate::measure::dialect::named;
    use crate::measure::dialect::prompt::RequestBody;
    use crate::trace_file::row::PartKind;

    fn key() -> CaptureKey {
        let folder = tempfile::tempdir().unwrap();
        let given = folder.path().join("key");
        std::fs::write(&given, "a key of the tests").unwrap();
        CaptureKey::load_or_create(folder.path(), Some(&given)).unwrap()
    }

    fn digested(key: &CaptureKey, body: &str) -> PromptDigest {
        let mut hasher = PromptHasher::new(key, BlockChunking::Bytes(16));
        RequestBody::read(body.as_bytes()).unwrap().prompt(named("openai.chat").unwrap(), &mut hasher);
        hasher.finish()
    }

    fn chat(text: &str) -> String {
        format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#)
    }

    fn shared(one: &PromptDigest, other: &PromptDigest) -> usize {
        one.blocks.iter().zip(&other.blocks).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn prompts_share_ids_exactly_as_far_as_they_share_their_text() {
        let key = key();
        let base = "x".repeat(200);
        let one = digested(&key, &chat(&base));
        assert_eq!(one.blocks.len() as u64, one.bytes / 16);
        // Offset of the text in the canonical prompt.
        let head = one.bytes as usize - 200 - 4;
        for at in [0, 1, 50, 100, 199] {
            let mut changed = base.clone();
            changed.replace_range(at..=at, "y");
            let other = digested(&key, &chat(&changed));
            let expected = (head + at) / 16;
            assert!(shared(&one, &other).abs_diff(expected) <= 1 && shared(&one, &other) <= expected, "{at}");
            let after = one.blocks.iter().zip(&other.blocks).skip(shared(&one, &other));
            assert!(after.into_iter().all(|(a, b)| a != b), "nothing after the difference is shared");
        }
        assert_eq!(digested(&key, &chat(&base)), one);
    }

    #[test]
    fn of_a_prompt_nothing_is_left_in_the_next() {
        let (key, tokens) = (key(), words(b"words"));
        let bodies = [chat(&"word ".repeat(50)), chat("short"), chat(&"word ".repeat(3))];
        for cutting in [BlockChunking::Bytes(16), BlockChunking::Tokens(4, tokens)] {
            let digested = |hasher: &mut PromptHasher, body: &str| {
                RequestBody::read(body.as_bytes()).unwrap().prompt(named("openai.chat").unwrap(), hasher);
                hasher.finish()
            };
            let mut one = PromptHasher::new(&key, cutting.clone());
            for body in &bodies {
                assert_eq!(digested(&mut one, body), digested(&mut PromptHasher::new(&key, cutting.clone()), body));
                one.skip_tokens();
                assert_eq!(digested(&mut one, body).tokens, None);
            }
        }
    }

    #[test]
    fn another_key_or_another_role_shares_nothing() {
        let one = key();
        let body = chat(&"x".repeat(100));
        let today = digested(&one, &body);
        assert_eq!(shared(&today, &digested(&one.for_day(1), &body)), 0);
        let system = body.replace("user", "system");
        assert!(shared(&today, &digested(&one, &system)) <= 1);
    }

    #[test]
    fn a_message_chain_that_goes_on_begins_with_the_digests_of_the_shorter() {
        let key = key();
        let first = digested(&key, r#"{"messages":[{"role":"user","content":"a"}]}"#);
        let second = digested(
            &key,
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"content":"c"}]}"#,
        );
        assert_eq!((first.messages.len(), second.messages.len()), (1, 3));
        assert_eq!(first.messages[0], second.messages[0]);
    }

    #[test]
    fn a_part_is_told_by_kind_bytes_and_pixels_and_its_content_counts() {
        let key = key();
        let png =
            [&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], &640_u32.to_be_bytes(), &480_u32.to_be_bytes(), &[8; 20]].concat();
        let url = format!("data:image/png;base64,{}", LENIENT_BASE64.encode(&png));
        let body = |url: &str| {
            format!(r#"{{"messages":[{{"content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}]}}"#)
        };
        let one = digested(&key, &body(&url));
        let part = PromptPart { kind: PartKind::Image, bytes: Some(png.len() as u64), size: Some((640, 480)) };
        assert_eq!(one.parts, [part]);
        let elsewhere = digested(&key, &body("https://example.com/secret.png"));
        assert_eq!(elsewhere.parts, [PromptPart { kind: PartKind::Image, bytes: None, size: None }]);
        assert_ne!(one.messages, digested(&key, &body(&url.replace("CAgI", "CQkJ"))).messages);
    }

    /// A tokenizer that makes each word, with the white space before it, one token.
    fn words(name: &[u8]) -> Arc<PromptTokenizer> {
        let id = |word: &str| word.bytes().fold(7_u32, |id, byte| id.wrapping_mul(31).wrapping_add(byte.into()));
        let encode = move |text: &str| {
            let starts = text.char_indices().filter(|(at, letter)| *at > 0 && *letter == ' ').map(|(at, _)| at);
            let mut bounds: Vec<usize> = [0].into_iter().chain(starts).chain([text.len()]).collect();
            bounds.dedup();
            Some(bounds.windows(2).map(|bounds| id(&text[bounds[0]..bounds[1]])).collect())
        };
        Arc::new(PromptTokenizer::new(name, Box::new(encode)))
    }

    fn of_tokens(key: &CaptureKey, tokens: &Arc<PromptTokenizer>, dialect: &str, body: &str) -> PromptDigest {
        let mut hasher = PromptHasher::new(key, BlockChunking::Tokens(4, Arc::clone(tokens)));
        RequestBody::read(body.as_bytes()).unwrap().prompt(named(dialect).unwrap(), &mut hasher);
        hasher.finish()
    }

    #[test]
    fn tokens_are_counted_in_texts_keys_and_words_and_not_where_there_are_images() {
        let (key, tokens) = (key(), words(b"words"));
        let digested = |dialect: &str, body: &str| of_tokens(&key, &tokens, dialect, body);
        let text = digested("openai.completions", r#"{"prompt":"one two three four five"}"#);
        assert_eq!((text.tokens, text.blocks.len()), (Some(5), 1));
        let ids = digested("openai.completions", r#"{"prompt":[1,2,3,4,5,6,7,8]}"#);
        assert_eq!((ids.tokens, ids.blocks.len()), (Some(8), 2));
        // role, user, content, Hi, there.
        assert_eq!(digested("openai.chat", &chat("Hi there")).tokens, Some(5));
        let image = r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"https://a/b"}}]}]}"#;
        let image = digested("openai.chat", image);
        assert_eq!((image.tokens, image.blocks.len(), image.parts.len()), (None, 1, 1));
    }

    #[test]
    fn another_tokenizer_or_the_bytes_of_the_same_prompt_share_no_id() {
        let (key, text) = (key(), chat(&"word ".repeat(50)));
        let one = of_tokens(&key, &words(b"words"), "openai.chat", &text);
        let other = words(b"other");
        assert_eq!(shared(&one, &of_tokens(&key, &other, "openai.chat", &text)), 0);
        assert_eq!(shared(&one, &digested(&key, &text)), 0);
        let bytes = digested(&key, &text);
        assert_eq!((&one.messages, one.bytes), (&bytes.messages, bytes.bytes), "sessions are the same either way");
    }

    #[test]
    fn beyond_its_bound_a_prompt_has_the_blocks_up_to_there_and_no_number() {
        let (key, tokens) = (key(), words(b"words"));
        let prompt = |words: usize| format!(r#"{{"prompt":"{}"}}"#, "word ".repeat(words));
        let short = of_tokens(&key, &tokens, "openai.completions", &prompt(MAX_TEXT_BYTES / 10));
        let long = of_tokens(&key, &tokens, "openai.completions", &prompt(MAX_TEXT_BYTES / 4));
        assert!(short.tokens.is_some() && long.tokens.is_none());
        assert!(long.blocks.len() >= MAX_TEXT_BYTES / 5 / 4 - 4_096 && long.blocks.len() <= MAX_TEXT_BYTES / 5 / 4);
        assert!(shared(&short, &long) >= short.blocks.len() - 1);
    }

    proptest! {
        #[test]
        fn prompts_share_ids_exactly_as_far_as_they_share_whole_blocks_of_tokens(
            common in prop::collection::vec("[a-c]{1,3}", 0..40),
            one in prop::collection::vec("[a-c]{1,3}", 0..20),
            other in prop::collection::vec("[a-c]{1,3}", 0..20),
        ) {
            let (key, tokens) = (key(), words(b"words"));
            let sides = [one, other].map(|rest| {
                let texts: Vec<String> = common.iter().cloned().chain(rest).map(|word| format!(" {word}")).collect();
                let body = serde_json::json!({"prompt": texts.concat()}).to_string();
                (texts, of_tokens(&key, &tokens, "openai.completions", &body))
            });
            let [(one, a), (other, b)] = sides;
            let same = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(a.tokens, Some(one.len() as u64));
            prop_assert_eq!(a.blocks.len(), one.len() / 4);
            prop_assert_eq!(shared(&a, &b), same / 4);
            let after = a.blocks.iter().filter(|id| b.blocks.contains(id)).count();
            prop_assert_eq!(after, same / 4, "nothing after the difference is shared");
        }
    }
}
