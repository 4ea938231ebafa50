//! The contents of a reply: what a server should send, and what it should not.

use std::io::Write as _;
use std::sync::LazyLock;

use flate2::Compression;
use flate2::write::GzEncoder;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, RngExt as _};
use rand_pcg::Pcg64Mcg;

/// Decoded size of a bomb.
const BOMB_BYTES: usize = 16 << 20;

/// One event that decodes to [`BOMB_BYTES`].
static BOMB: LazyLock<Vec<u8>> = LazyLock::new(|| gzip(&[b"data: ", &vec![b'a'; BOMB_BYTES][..]].concat()));

/// A kind of contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Events of a chat.
    Events,
    /// Such events in a content coding.
    Coded,
    /// A body whose decoded size is a thousand times its own.
    Bomb,
    /// Events among which is one that no client expects.
    Hostile,
    /// Bytes without any structure.
    Noise,
}

/// The body of a reply.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) content: Content,
    pub(crate) media_type: &'static str,
    pub(crate) coding: Option<&'static str>,
    pub(crate) bytes: Vec<u8>,
    /// Where each piece ends.
    pub(crate) ends: Vec<usize>,
}

impl Reply {
    pub(crate) fn new(random: &mut Pcg64Mcg, seed: u64) -> Self {
        let mut reply = match random.random_range(0..80) {
            0..50 => events(random, seed),
            50..55 => coded(random, seed),
            55..56 => Self::of_bytes(random, Content::Bomb, "text/event-stream", Some("gzip"), BOMB.clone()),
            56..60 => hostile(random, seed),
            60..76 => noise(random, 200..4_000),
            _ => noise(random, 60_000..64_000),
        };
        // The bytes do not have it.
        if random.random_bool(0.05) {
            reply.coding = Some("gzip");
        }
        reply
    }

    /// Cuts bytes into pieces anywhere.
    fn of_bytes(
        random: &mut Pcg64Mcg,
        content: Content,
        media_type: &'static str,
        coding: Option<&'static str>,
        bytes: Vec<u8>,
    ) -> Self {
        let mut ends: Vec<usize> =
            (0..random.random_range(0..30)).map(|_| random.random_range(1..=bytes.len())).collect();
        ends.push(bytes.len());
        ends.sort_unstable();
        ends.dedup();
        Self { content, media_type, coding, bytes, ends }
    }
}

/// A stream of chat events.
fn events(random: &mut Pcg64Mcg, seed: u64) -> Reply {
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    let tokens = random.random_range(1..40);
    for _ in 0..tokens {
        let word: u64 = random.random();
        let choice = format!("{{\"index\":0,\"delta\":{{\"content\":\"{word:x} \"}}}}");
        bytes.extend_from_slice(format!("data: {{\"id\":\"soak-{seed:x}\",\"choices\":[{choice}]}}\n\n").as_bytes());
        ends.push(bytes.len());
    }
    let usage = format!("{{\"prompt_tokens\":7,\"completion_tokens\":{tokens}}}");
    bytes.extend_from_slice(format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n").as_bytes());
    ends.push(bytes.len());
    Reply { content: Content::Events, media_type: "text/event-stream", coding: None, bytes, ends }
}

fn coded(random: &mut Pcg64Mcg, seed: u64) -> Reply {
    let plain = events(random, seed);
    let (coding, bytes) = match random.random_bool(0.5) {
        true => ("gzip", gzip(&plain.bytes)),
        false => ("zstd", zstd::encode_all(&plain.bytes[..], 1).unwrap()),
    };
    Reply::of_bytes(random, Content::Coded, plain.media_type, Some(coding), bytes)
}

/// Events with a hostile one in their middle.
fn hostile(random: &mut Pcg64Mcg, seed: u64) -> Reply {
    let mut reply = Reply { content: Content::Hostile, ..events(random, seed) };
    let out_of_range = "data: {\"choices\":[{\"index\":18446744073709551616,\"delta\":{\"content\":1e999}}]}\n\n";
    let event = match random.random_range(0..6) {
        0 => b"data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n".to_vec(),
        1 => format!("data: {}\n\n", "[".repeat(20_000)).into_bytes(),
        2 => [b"data: {\"choices\":[{\"delta\":{\"content\":\"", &[0xff; 400][..], b"\"}}]}\n\n"].concat(),
        3 => [b"data: {\"", &vec![b'a'; 300_000][..]].concat(),
        4 => b":\n\n".repeat(5_000),
        _ => out_of_range.as_bytes().to_vec(),
    };
    let at = *reply.ends.choose(random).unwrap();
    reply.bytes.splice(at..at, event.iter().copied());
    reply.ends.iter_mut().filter(|end| **end > at).for_each(|end| *end += event.len());
    reply.ends.push(at + event.len());
    reply.ends.sort_unstable();
    reply
}

/// Bytes without any structure, in pieces of these sizes.
fn noise(random: &mut Pcg64Mcg, sizes: std::ops::Range<usize>) -> Reply {
    let pieces = random.random_range(1..30);
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..pieces {
        let size = random.random_range(sizes.clone());
        let start = bytes.len();
        bytes.resize(start + size, 0);
        random.fill_bytes(&mut bytes[start..]);
        ends.push(bytes.len());
    }
    Reply { content: Content::Noise, media_type: "application/octet-stream", coding: None, bytes, ends }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
