//! The text of the simulated model: plain English words, selected by seed and position.
//!
//! It contains nothing from prompts, and no word needs escaping in JSON.

use crate::stats::hash::mix;

/// 256 words of Basic English (C. K. Ogden, 1930).
#[rustfmt::skip]
const WORDS: [&str; 256] = [
    "account", "act", "addition", "air", "amount", "animal", "answer", "apple", "arch", "area", "arm", "art",
    "attack", "attempt", "attention", "authority", "baby", "back", "balance", "ball", "band", "base", "basin",
    "basket", "bath", "bed", "bee", "behavior", "belief", "bell", "berry", "bird", "bit", "blade", "blood", "board",
    "boat", "body", "bone", "book", "boot", "bottle", "box", "boy", "brain", "brake", "branch", "brass", "bread",
    "breath", "brick", "bridge", "brother", "brush", "bucket", "building", "bulb", "burn", "business", "butter",
    "button", "cake", "camera", "canvas", "card", "care", "carriage", "cart", "cat", "cause", "chain", "chalk",
    "chance", "change", "cheese", "chest", "chin", "church", "circle", "clock", "cloth", "cloud", "coal", "coat",
    "collar", "color", "comb", "comfort", "committee", "company", "comparison", "condition", "connection", "control",
    "cook", "copper", "copy", "cord", "cork", "cotton", "cough", "country", "cover", "cow", "crack", "credit", "cry",
    "cup", "curtain", "curve", "cushion", "day", "debt", "decision", "degree", "design", "desire", "detail",
    "development", "digestion", "direction", "discovery", "discussion", "distance", "distribution", "division",
    "doctor", "dog", "door", "doubt", "drain", "drawer", "dress", "drink", "driving", "drop", "dust", "ear", "earth",
    "edge", "education", "effect", "egg", "engine", "error", "event", "example", "exchange", "existence", "expansion",
    "experience", "expert", "eye", "face", "fact", "family", "farm", "father", "feather", "feeling", "fiction",
    "field", "finger", "fire", "fish", "flag", "flame", "flight", "floor", "flower", "fly", "fold", "food", "foot",
    "force", "fork", "form", "fowl", "frame", "friend", "front", "fruit", "garden", "girl", "glass", "glove", "goat",
    "gold", "government", "grain", "grass", "grip", "group", "growth", "guide", "hair", "hammer", "hand", "harbor",
    "harmony", "hat", "head", "heart", "heat", "history", "hole", "hook", "hope", "horn", "horse", "hospital", "hour",
    "house", "humor", "ice", "idea", "impulse", "increase", "industry", "ink", "insect", "instrument", "insurance",
    "interest", "invention", "iron", "island", "jelly", "jewel", "join", "journey", "judge", "jump", "kettle", "key",
    "kick", "kiss", "knee", "knife", "knot", "knowledge", "land", "language", "laugh", "law", "lead", "leaf",
    "learning", "leather", "leg", "letter", "level", "library", "lift", "light", "limit",
];

/// One word per token; equal seed, choice and position give equal words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextGenerator {
    seed: u64,
}

impl TextGenerator {
    /// Creates the text of choice number `choice` for this seed.
    pub(super) fn new(seed: u64, choice: u32) -> Self {
        Self { seed: mix(seed ^ mix(u64::from(choice))) }
    }

    /// The id of token number `position`: its word's index in the list.
    pub(super) fn id(self, position: u32) -> u8 {
        mix(self.seed.wrapping_add(u64::from(position))).to_le_bytes()[0]
    }

    /// The word of token number `position`, without a blank.
    pub(super) fn word(self, position: u32) -> &'static str {
        WORDS[usize::from(self.id(position))]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_words_differ_and_need_no_escaping() {
        assert_eq!(WORDS.iter().collect::<HashSet<_>>().len(), WORDS.len());
        assert!(WORDS.iter().all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase())));
    }

    #[test]
    fn a_seed_is_a_text_and_another_seed_another() {
        let text = |seed, choice| (0..20).map(|at| TextGenerator::new(seed, choice).word(at)).collect::<Vec<_>>();
        assert_eq!(text(1, 0), text(1, 0));
        assert_ne!(text(1, 0), text(2, 0));
        assert_ne!(text(1, 0), text(1, 1));
    }
}
