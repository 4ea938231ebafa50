//! What cuts a prompt's text into tokens, handed in by whoever has a tokenizer, and how much it is given.
//!
//! # Bounds
//! A text goes to the tokenizer in pieces of [`PIECE`], cut before white space where there is some, so that no text takes
//! more memory than a piece does. Where a piece ends depends on nothing that comes after it: equal beginnings have equal
//! tokens. Of one prompt [`MAX_TEXT`] is cut into tokens; the blocks up to there stay, and the number of tokens is
//! unknown. A capture that is behind by [`MAX_BACKLOG`] cuts nothing until it has caught up: the tokens of some prompts
//! are worth less than the records of all.

/// The text of one prompt that is cut into tokens, in bytes: half a million tokens.
pub const MAX_TEXT_BYTES: usize = 2 << 20;
/// Prompts that may wait while another is cut into tokens, in bytes.
pub const MAX_BACKLOG_BYTES: usize = 4 << 20;
/// The text that a tokenizer is given at a time, in bytes.
pub const MAX_PIECE_BYTES: usize = 32 << 10;
/// White space is looked for in so many of a piece's last bytes.
const LOOK_BACK_BYTES: usize = 1 << 10;

/// Gives the ids of a text's tokens, without any that frame it; `None` where it cannot.
pub type EncodeFn = dyn Fn(&str) -> Option<Vec<u32>> + Send + Sync;

/// A tokenizer.
pub struct PromptTokenizer {
    identity: [u8; 32],
    encode_fn: Box<EncodeFn>,
}

impl PromptTokenizer {
    /// A tokenizer that is told from others by the file it was made of.
    pub fn new(file: &[u8], encode: Box<EncodeFn>) -> Self {
        Self { identity: *blake3::hash(file).as_bytes(), encode_fn: encode }
    }

    /// Which it is: a digest of its file.
    pub fn identity(&self) -> &[u8; 32] {
        &self.identity
    }

    /// The ids of the tokens of a piece; `None` where they cannot be told.
    pub(super) fn encode(&self, piece: &str) -> Option<Vec<u32>> {
        (self.encode_fn)(piece)
    }
}

/// The pieces of a text.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, later) = rest.split_at_checked(first_piece_len(rest)).filter(|(piece, _)| !piece.is_empty())?;
        rest = later;
        Some(piece)
    })
}

/// The length of a text's first piece.
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
