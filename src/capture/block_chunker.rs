//! Cuts a canonical prompt into blocks, and gives each an id. Pure.
//!
//! An id is the keyed digest of the block and of the id chain before it. Two requests therefore share an id exactly if
//! their prompts are equal up to the end of that block.
//!
//! # Tokens
//! With a tokenizer, a block is a fixed number of tokens. Each text and key is tokenized by itself. Every other word
//! counts as one token, so a prompt sent as token ids has the right number. No chat template is applied; keys and roles
//! are about as many tokens as the template's marks. Marks count no tokens but change the id of their block.

use std::sync::Arc;

use super::key::{CaptureKey, push_purpose, reset_hasher, truncate};
use super::tokenizer::{MAX_TEXT_BYTES, PromptTokenizer, pieces};

/// Separates the digests of block ids.
const BLOCK_PURPOSE: &[u8] = b"block";

/// The unit and size of blocks.
#[derive(Clone)]
pub enum BlockChunking {
    /// Bytes per block.
    Bytes(usize),
    /// Tokens per block.
    Tokens(usize, Arc<PromptTokenizer>),
}

impl BlockChunking {
    /// Derives the key of the block ids from the key of the capture.
    pub fn key(&self, key: &CaptureKey) -> CaptureKey {
        match self {
            Self::Tokens(_, tokens) => key.for_tokenizer(tokens.identity()),
            Self::Bytes(_) => key.clone(),
        }
    }
}

/// Cuts prompts one after the other.
pub(super) enum BlockChunker {
    Bytes(ByteChunker),
    Tokens(Box<TokenChunker>),
}

impl BlockChunker {
    /// Creates a chunker; `key` is the key of the capture.
    pub(super) fn new(key: &CaptureKey, chunking: BlockChunking) -> Self {
        let key = chunking.key(key);
        match chunking {
            BlockChunking::Bytes(size) => Self::Bytes(ByteChunker::new(key, size)),
            BlockChunking::Tokens(size, tokenizer) => Self::Tokens(Box::new(TokenChunker::new(&key, size, tokenizer))),
        }
    }

    /// Returns the ids of the full blocks and the prompt's tokens, and prepares for the next prompt. The tokens are
    /// `None` unless a tokenizer counted the whole prompt.
    pub(super) fn finish(&mut self) -> (Vec<u64>, Option<u64>) {
        match self {
            Self::Bytes(blocks) => (blocks.finish(), None),
            Self::Tokens(blocks) => blocks.finish(),
        }
    }
}

/// Cuts blocks of bytes.
pub(super) struct ByteChunker {
    key: CaptureKey,
    /// Bytes per block.
    size: usize,
    /// The current block, behind its digest prefix. A full block is digested; a partial block at the end gets no id.
    partial: Vec<u8>,
    ids: Vec<u64>,
}

impl ByteChunker {
    fn new(key: CaptureKey, size: usize) -> Self {
        let mut chunker = Self { key, size, partial: Vec::new(), ids: Vec::new() };
        chunker.begin(&[0; 32]);
        chunker
    }

    /// Starts a block; `chain` is the digest of the blocks before it.
    fn begin(&mut self, chain: &[u8; 32]) {
        self.partial.clear();
        push_purpose(&mut self.partial, BLOCK_PURPOSE);
        self.partial.extend_from_slice(chain);
    }

    /// Adds bytes of the canonical prompt.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        let full = 1 + BLOCK_PURPOSE.len() + 32 + self.size;
        while let Some((now, later)) = bytes.split_at_checked(full - self.partial.len()) {
            self.partial.extend_from_slice(now);
            let chain = self.key.hash(&self.partial);
            self.ids.push(truncate(&chain));
            self.begin(&chain);
            bytes = later;
        }
        self.partial.extend_from_slice(bytes);
    }

    fn finish(&mut self) -> Vec<u64> {
        self.begin(&[0; 32]);
        std::mem::take(&mut self.ids)
    }
}

/// Prefixes of all inputs except marks.
mod tag {
    pub(super) const TOKEN: u8 = 1;
    pub(super) const WORD: u8 = 2;
    pub(super) const PART: u8 = 3;
}

/// Cuts blocks of tokens.
pub(super) struct TokenChunker {
    /// Tokens per block.
    size: usize,
    tokenizer: Arc<PromptTokenizer>,
    /// Hash of the current block and the chain before it.
    block: blake3::Hasher,
    block_tokens: usize,
    tokenized_bytes: usize,
    /// Tokens so far; `None` once some could not be counted.
    tokens: Option<u64>,
    ids: Vec<u64>,
}

impl TokenChunker {
    fn new(key: &CaptureKey, size: usize, tokenizer: Arc<PromptTokenizer>) -> Self {
        let block = key.hasher(BLOCK_PURPOSE);
        let mut chunker =
            Self { size, tokenizer, block, block_tokens: 0, tokenized_bytes: 0, tokens: None, ids: Vec::new() };
        chunker.restart();
        chunker
    }

    fn restart(&mut self) {
        reset_hasher(&mut self.block, BLOCK_PURPOSE).update(&[0; 32]);
        (self.block_tokens, self.tokenized_bytes, self.tokens) = (0, 0, Some(0));
    }

    /// Skips tokenization of this prompt. The prompt gets no further blocks.
    pub(super) fn skip(&mut self) {
        self.tokens = None;
    }

    /// Adds a mark, which counts no token.
    #[inline]
    pub(super) fn mark(&mut self, mark: &[u8]) {
        self.block.update(mark);
    }

    /// Adds the digest of a part, whose tokens only the server knows.
    pub(super) fn part(&mut self, digest: &[u8; 32]) {
        self.block.update(&[tag::PART]).update(digest);
    }

    /// Adds a word, which counts as one token.
    pub(super) fn word(&mut self, word: &str) {
        self.push(tag::WORD, word.as_bytes());
    }

    /// Tokenizes a text and adds its tokens.
    pub(super) fn text(&mut self, text: &str) {
        for piece in pieces(text) {
            self.tokenized_bytes += piece.len();
            let fits = self.tokens.is_some() && self.tokenized_bytes <= MAX_TEXT_BYTES;
            let Some(ids) = fits.then(|| self.tokenizer.encode(piece)).flatten() else {
                self.tokens = None;
                break;
            };
            ids.iter().for_each(|id| self.push(tag::TOKEN, &id.to_le_bytes()));
        }
    }

    fn push(&mut self, tag: u8, token: &[u8]) {
        let Some(tokens) = &mut self.tokens else { return };
        *tokens += 1;
        // The length marks where a word ends.
        self.block.update(&[tag]).update(&(token.len() as u32).to_le_bytes()).update(token);
        self.block_tokens += 1;
        if self.block_tokens == self.size {
            self.block_tokens = 0;
            let chain = *self.block.finalize().as_bytes();
            self.ids.push(truncate(&chain));
            reset_hasher(&mut self.block, BLOCK_PURPOSE).update(&chain);
        }
    }

    fn finish(&mut self) -> (Vec<u64>, Option<u64>) {
        let tokens = self.tokens;
        self.restart();
        (std::mem::take(&mut self.ids), tokens)
    }
}
