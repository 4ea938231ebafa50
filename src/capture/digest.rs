//! A prompt as ids of its blocks and digests of its messages; its text goes no further than here. Pure.
//!
//! Blocks are cut from the canonical prompt ([`measure::dialect::prompt`](crate::measure::dialect::prompt)): its text,
//! with the roles and marks between. Each id is the keyed digest of the block and of the id chain before it, so that two
//! requests share an id exactly when their prompts share everything up to there.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::format::{Part, PartKind};
use super::key::{Key, cut};
use super::media;
use crate::measure::dialect::prompt::{Medium, Place, PromptSink};

/// Parts that are told of one request.
const MAX_PARTS: usize = 256;
/// Messages whose end may turn out to be where the next turn goes on.
const MAX_MESSAGES: usize = 4_096;
/// Base64 of a part that is decoded to find its size in pixels, in bytes: cameras put that much before it.
const MEDIA_HEAD: usize = 128 << 10;

const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// What is kept of a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Digested {
    /// Bytes of the canonical prompt.
    pub bytes: u64,
    /// Ids of the blocks that are full.
    pub blocks: Vec<u64>,
    /// Parts that are not text.
    pub parts: Vec<Part>,
    /// The digest of everything up to the end of each message.
    pub messages: Vec<u64>,
}

/// Takes a prompt and keeps its digests.
pub struct Digester<'a> {
    key: &'a Key,
    size: usize,
    block: Vec<u8>,
    chain: [u8; 32],
    /// Everything so far, for the messages' ends.
    all: blake3::Hasher,
    digested: Digested,
}

impl<'a> Digester<'a> {
    /// Blocks of `size` bytes.
    pub fn new(key: &'a Key, size: usize) -> Self {
        Self {
            key,
            size,
            block: Vec::with_capacity(size),
            chain: [0; 32],
            all: key.hasher(b"messages"),
            digested: Digested::default(),
        }
    }

    /// What is kept.
    pub fn finish(self) -> Digested {
        self.digested
    }
}

impl PromptSink for Digester<'_> {
    fn bytes(&mut self, mut bytes: &[u8]) {
        self.digested.bytes += bytes.len() as u64;
        self.all.update(bytes);
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.size - self.block.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == self.size {
                let digest = self.key.hasher(b"block").update(&self.chain).update(&self.block).finalize();
                self.chain = *digest.as_bytes();
                self.digested.blocks.push(cut(&self.chain));
                self.block.clear();
            }
        }
    }

    fn part(&mut self, medium: Medium, place: Place<'_>) {
        let (text, inline) = match place {
            Place::Inline(text) => (text, true),
            Place::Elsewhere(text) => (text, false),
        };
        // The content stands in the prompt as its digest: pixels are not text, and are no bytes of it.
        let digest = self.key.hasher(b"part").update(text.as_bytes()).finalize();
        self.bytes(digest.as_bytes());
        if self.digested.parts.len() == MAX_PARTS {
            return;
        }
        let kind = match medium {
            Medium::Image => PartKind::Image,
            Medium::Audio => PartKind::Audio,
            Medium::Video => PartKind::Video,
            Medium::File => PartKind::File,
        };
        let digits = text.trim_end_matches('=').len();
        let bytes = inline.then_some(digits as u64 * 3 / 4);
        let size = inline.then(|| {
            let head = text.as_bytes().get(..MEDIA_HEAD).unwrap_or(text.as_bytes());
            media::dimensions(&LENIENT.decode(head).ok()?)
        });
        self.digested.parts.push(Part { kind, bytes, size: size.flatten() });
    }

    fn message_ends(&mut self) {
        if self.digested.messages.len() < MAX_MESSAGES {
            self.digested.messages.push(cut(self.all.finalize().as_bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::dialect::named;
    use crate::measure::dialect::prompt::RequestBody;

    fn key() -> Key {
        let folder = tempfile::tempdir().unwrap();
        let given = folder.path().join("key");
        std::fs::write(&given, "a key of the tests").unwrap();
        Key::of_folder(folder.path(), Some(&given)).unwrap()
    }

    fn digested(key: &Key, body: &str) -> Digested {
        let mut digester = Digester::new(key, 16);
        RequestBody::read(body.as_bytes()).unwrap().prompt(named("openai.chat").unwrap(), &mut digester);
        digester.finish()
    }

    fn chat(text: &str) -> String {
        format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#)
    }

    fn shared(one: &Digested, other: &Digested) -> usize {
        one.blocks.iter().zip(&other.blocks).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn prompts_share_ids_exactly_as_far_as_they_share_their_text() {
        let key = key();
        let base = "x".repeat(200);
        let one = digested(&key, &chat(&base));
        assert_eq!(one.blocks.len() as u64, one.bytes / 16);
        // Where the text begins in the canonical prompt.
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
    fn another_key_or_another_role_shares_nothing() {
        let one = key();
        let body = chat(&"x".repeat(100));
        let today = digested(&one, &body);
        assert_eq!(shared(&today, &digested(&one.of_day(1), &body)), 0);
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
        let url = format!("data:image/png;base64,{}", LENIENT.encode(&png));
        let body = |url: &str| {
            format!(r#"{{"messages":[{{"content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}]}}"#)
        };
        let one = digested(&key, &body(&url));
        let part = Part { kind: PartKind::Image, bytes: Some(png.len() as u64), size: Some((640, 480)) };
        assert_eq!(one.parts, [part]);
        let elsewhere = digested(&key, &body("https://example.com/secret.png"));
        assert_eq!(elsewhere.parts, [Part { kind: PartKind::Image, bytes: None, size: None }]);
        assert_ne!(one.messages, digested(&key, &body(&url.replace("CAgI", "CQkJ"))).messages);
    }
}
