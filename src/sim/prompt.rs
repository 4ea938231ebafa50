//! Counts and hashes prompts without storing them.

use std::hash::{DefaultHasher, Hasher};

use crate::engine::EnginePrompt;

/// Bytes of text per token, close to the average of tokenizers on English text.
const TOKEN_BYTES: u64 = 4;

/// Tokens of a part that is not text (an image, a sound), regardless of its size.
const OPAQUE_TOKENS: usize = 256;

#[derive(Debug)]
pub(super) struct PromptReader {
    hasher: DefaultHasher,
    chain: Vec<u64>,
    most_blocks: usize,
    /// Bytes of text per KV-cache block.
    block_bytes: usize,
    /// Bytes in the incomplete block.
    filled: usize,
    bytes: u64,
}

impl PromptReader {
    /// Starts a prompt. Prompts with equal `salt` share cached prefixes. At most `most_tokens` are hashed; the rest
    /// is only counted, because the server rejects such a prompt.
    pub(super) fn new(salt: &str, most_tokens: u32, block_tokens: u32) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(salt.as_bytes());
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let most_blocks = size(u64::from(most_tokens / block_tokens));
        let block_bytes = size(TOKEN_BYTES * u64::from(block_tokens));
        Self { hasher, chain: Vec::new(), most_blocks, block_bytes, filled: 0, bytes: 0 }
    }

    pub(super) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(super) fn id(&mut self, id: u32) {
        self.bytes(&id.to_le_bytes());
    }

    /// Adds a part that is not text.
    pub(super) fn opaque(&mut self, raw: &str) {
        let mut hasher = DefaultHasher::new();
        hasher.write(raw.as_bytes());
        let print = hasher.finish().to_le_bytes();
        for _ in 0..OPAQUE_TOKENS * TOKEN_BYTES as usize / print.len() {
            self.bytes(&print);
        }
    }

    fn bytes(&mut self, mut bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        while self.chain.len() < self.most_blocks && !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.block_bytes - self.filled));
            self.hasher.write(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == self.block_bytes {
                self.filled = 0;
                self.chain.push(self.hasher.finish());
            }
        }
    }

    /// Returns the engine's view of the prompt. An empty prompt has one token, the start-of-sequence token.
    pub(super) fn finish(self) -> EnginePrompt {
        let tokens = u32::try_from(self.bytes.div_ceil(TOKEN_BYTES)).unwrap_or(u32::MAX).max(1);
        EnginePrompt { tokens, chain: self.chain.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::BLOCK_TOKENS;

    fn read(parts: &[&str]) -> EnginePrompt {
        let mut reader = PromptReader::new("", 1_024, BLOCK_TOKENS);
        parts.iter().for_each(|part| reader.text(part));
        reader.finish()
    }

    #[test]
    fn four_bytes_are_a_token_and_sixteen_tokens_are_a_block() {
        assert_eq!(read(&[]).tokens, 1);
        assert_eq!(read(&["abcd"]).tokens, 1);
        assert_eq!(read(&["abcde"]).tokens, 2);
        assert_eq!(read(&[&"x".repeat(200)]).chain.len(), 3);
    }

    #[test]
    fn prompts_share_the_blocks_in_which_they_are_alike() {
        let (a, b) = (read(&[&"x".repeat(150), "end"]), read(&[&"x".repeat(150), "END"]));
        assert_eq!(a.chain[..2], b.chain[..2]);
        let (a, b) = (read(&["a", &"x".repeat(150)]), read(&["b", &"x".repeat(150)]));
        assert_ne!(a.chain[1], b.chain[1]);
    }

    #[test]
    fn how_the_text_is_cut_into_parts_does_not_matter() {
        assert_eq!(read(&["abcd", &"x".repeat(70)]), read(&["ab", "cd", &"x".repeat(70)]));
    }

    #[test]
    fn a_salt_keeps_prefixes_apart() {
        let text = "x".repeat(64);
        let mut salted = PromptReader::new("tenant", 1_024, BLOCK_TOKENS);
        salted.text(&text);
        assert_ne!(salted.finish().chain, read(&[&text]).chain);
    }

    #[test]
    fn a_prompt_over_the_limit_is_counted_and_not_hashed() {
        let mut reader = PromptReader::new("", 32, BLOCK_TOKENS);
        reader.text(&"x".repeat(10_000));
        let prompt = reader.finish();
        assert_eq!((prompt.tokens, prompt.chain.len()), (2_500, 2));
    }

    #[test]
    fn a_picture_has_a_fixed_price() {
        let mut reader = PromptReader::new("", 1_024, BLOCK_TOKENS);
        reader.opaque(&"pixels".repeat(10_000));
        assert_eq!(reader.finish().tokens, 256);
    }
}
