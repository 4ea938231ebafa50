//! The tokenizer interface of the capture, and limits on the text that a tokenizer receives.
//!
//! # Bounds
//! A tokenizer receives text in pieces of at most [`MAX_PIECE_BYTES`], cut before white space where possible, which
//! bounds memory per piece. A piece boundary depends only on the text before it, so equal prefixes have equal tokens.
//! At most [`MAX_TEXT_BYTES`] of a prompt are tokenized; longer prompts keep the blocks up to there and have no token
//! count. A capture with a backlog of [`MAX_BACKLOG_BYTES`] skips tokenization until it has caught up, because complete
//! records matter more than the tokens of some prompts.

/// Maximum bytes of one prompt that are tokenized: about half a million tokens.
pub const MAX_TEXT_BYTES: usize = 2 << 20;
/// Maximum bytes of prompts queued while another is tokenized.
pub const MAX_BACKLOG_BYTES: usize = 4 << 20;
/// Maximum bytes passed to a tokenizer at a time.
pub const MAX_PIECE_BYTES: usize = 32 << 10;
/// Bytes at the end of a piece that are searched for white space.
const LOOK_BACK_BYTES: usize = 1 << 10;

/// Returns the token ids of a text without special tokens around it; `None` on failure.
pub type EncodeFn = dyn Fn(&str) -> Option<Vec<u32>> + Send + Sync;

/// A tokenizer and its identity.
pub struct PromptTokenizer {
    identity: [u8; 32],
    encode_fn: Box<EncodeFn>,
}

impl PromptTokenizer {
    /// Creates a tokenizer that is identified by the content of its `file`.
    pub fn new(file: &[u8], encode: Box<EncodeFn>) -> Self {
        Self { identity: *blake3::hash(file).as_bytes(), encode_fn: encode }
    }

    /// Digest of the tokenizer's file.
    pub fn identity(&self) -> &[u8; 32] {
        &self.identity
    }

    /// Token ids of one piece; `None` on failure.
    pub(super) fn encode(&self, piece: &str) -> Option<Vec<u32>> {
        (self.encode_fn)(piece)
    }
}

/// Splits a text into pieces of at most [`MAX_PIECE_BYTES`].
pub(super) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, later) = rest.split_at_checked(first_piece_len(rest)).filter(|(piece, _)| !piece.is_empty())?;
        rest = later;
        Some(piece)
    })
}

fn first_piece_len(text: &str) -> usize {
    if text.len() <= MAX_PIECE_BYTES {
        return text.len();
    }
    let end = text.floor_char_boundary(MAX_PIECE_BYTES);
    let from = text.floor_char_boundary(end - LOOK_BACK_BYTES);
    text[from..end].rfind([' ', '\n']).map_or(end, |space| from + space)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_before_white_space_and_equal_beginnings_alike() {
        let words = "word ".repeat(MAX_PIECE_BYTES / 2);
        let lengths = |text: &str| pieces(text).map(str::len).collect::<Vec<_>>();
        let all = lengths(&words);
        assert_eq!(all.iter().sum::<usize>(), words.len());
        assert!(all.len() >= 3 && all.iter().all(|length| *length <= MAX_PIECE_BYTES));
        assert_eq!(all[0], MAX_PIECE_BYTES / 5 * 5 + 4 - 5, "it ends with a whole word");
        let longer = lengths(&format!("{words} and more"));
        assert_eq!(longer[..all.len() - 1], all[..all.len() - 1]);
        assert_eq!(
            lengths(&"é".repeat(MAX_PIECE_BYTES)),
            [MAX_PIECE_BYTES, MAX_PIECE_BYTES],
            "without any it is cut where it must"
        );
        assert_eq!(lengths(""), [0_usize; 0]);
    }
}
