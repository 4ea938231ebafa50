//! Synthesizes images and audio in place of captured ones: same kind, dimensions and size, without content. Pure, and
//! deterministic across processes.
//!
//! An image is a grey PNG of the captured width and height. Its first pixels are random per row, because servers cache
//! the embeddings of images they have seen. A chunk that decoders skip pads it to the captured size; a PNG that is
//! already larger stays larger. Audio is a WAV at 16,000 samples per second whose duration follows from its bytes.

use std::io::{self, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use rand::Rng as _;

use crate::trace::rng::rng;
use crate::trace_file::row::{PartKind, PromptPart};

/// Width and height if the capture has none: the size to which many models scale images.
const DEFAULT_SIZE_PIXELS: (u32, u32) = (512, 512);
/// Limit on width and height: a trace is untrusted.
const MAX_SIDE_PIXELS: u32 = 8_192;
/// Limit on one part, in bytes.
const MAX_PART_BYTES: u64 = 32 << 20;
/// Audio without a captured size: one second.
const DEFAULT_AUDIO_BYTES: u64 = 44 + 2 * SAMPLE_RATE_HZ as u64;
const SAMPLE_RATE_HZ: u32 = 16_000;
/// Random pixels at the start of an image.
const RANDOM_PIXELS: usize = 16;

/// A synthesized part of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Media {
    /// Image or audio.
    pub kind: PartKind,
    /// Media type.
    pub mime: &'static str,
    /// The content in base64.
    pub base64: String,
}

impl Media {
    /// Synthesizes a captured part; `None` for kinds that are not supported.
    pub fn synthesize(part: &PromptPart, seed: u64) -> Option<Self> {
        let (mime, bytes) = match part.kind {
            PartKind::Image => {
                ("image/png", png(part.size.unwrap_or(DEFAULT_SIZE_PIXELS), part.bytes.unwrap_or(0), seed))
            }
            PartKind::Audio => ("audio/wav", wav(part.bytes.unwrap_or(DEFAULT_AUDIO_BYTES), seed)),
            PartKind::Video | PartKind::File => return None,
        };
        Some(Self { kind: part.kind, mime, base64: STANDARD.encode(bytes) })
    }

    /// The part as a `data:` URL.
    pub fn url(&self) -> String {
        format!("data:{};base64,{}", self.mime, self.base64)
    }
}

/// Encodes a PNG of this width and height, padded to `bytes` if it is smaller.
fn png((width, height): (u32, u32), bytes: u64, seed: u64) -> Vec<u8> {
    let (width, height) = (width.clamp(1, MAX_SIDE_PIXELS), height.clamp(1, MAX_SIDE_PIXELS));
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    // 8-bit greyscale; compression, filter and interlace methods 0.
    header.extend([8, 0, 0, 0, 0]);
    chunk(&mut out, b"IHDR", &header);
    // Writing to memory cannot fail.
    chunk(&mut out, b"IDAT", &pixels(width as usize, height, seed).unwrap_or_default());
    const CHUNK_OVERHEAD_BYTES: u64 = 12;
    let missing = bytes.min(MAX_PART_BYTES).saturating_sub(out.len() as u64 + CHUNK_OVERHEAD_BYTES);
    if missing >= CHUNK_OVERHEAD_BYTES {
        // The case of its letters marks the chunk as ancillary, private and safe to copy.
        chunk(&mut out, b"paDd", &vec![0; usize::try_from(missing - CHUNK_OVERHEAD_BYTES).unwrap_or(0)]);
    }
    chunk(&mut out, b"IEND", &[]);
    out
}

fn pixels(width: usize, height: u32, seed: u64) -> io::Result<Vec<u8>> {
    let mut drawn = [0; RANDOM_PIXELS];
    rng(seed).fill_bytes(&mut drawn);
    let mut drawn = &drawn[..];
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    // Each row starts with its filter byte.
    let mut row = vec![0; width + 1];
    for _ in 0..height {
        let (now, later) = drawn.split_at(drawn.len().min(width));
        row[1..=RANDOM_PIXELS.min(width)].fill(0);
        row[1..=now.len()].copy_from_slice(now);
        packed.write_all(&row)?;
        drawn = later;
    }
    packed.finish()
}

fn chunk(out: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    let mut sum = Crc::new();
    sum.update(name);
    sum.update(data);
    out.extend_from_slice(&u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(name);
    out.extend_from_slice(data);
    out.extend_from_slice(&sum.sum().to_be_bytes());
}

/// Encodes quiet noise as a WAV of `bytes` bytes, rounded to whole samples.
fn wav(bytes: u64, seed: u64) -> Vec<u8> {
    let samples = usize::try_from(bytes.min(MAX_PART_BYTES).saturating_sub(44) / 2).unwrap_or(0).max(1);
    let length = u32::try_from(samples * 2).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(44 + samples * 2);
    out.extend_from_slice(b"RIFF");
    out.extend_from_slice(&(length + 36).to_le_bytes());
    out.extend_from_slice(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    out.extend_from_slice(&SAMPLE_RATE_HZ.to_le_bytes());
    out.extend_from_slice(&(SAMPLE_RATE_HZ * 2).to_le_bytes());
    out.extend_from_slice(b"\x02\0\x10\0data");
    out.extend_from_slice(&length.to_le_bytes());
    let mut random = rng(seed);
    out.extend((0..samples).flat_map(|_| (i16::from(random.next_u32().to_le_bytes()[0]) - 128).to_le_bytes()));
    out
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::ZlibDecoder;

    use super::*;

    /// Parses a PNG's chunks and checks every CRC.
    fn chunks(mut png: &[u8]) -> Vec<(String, Vec<u8>)> {
        png = png.strip_prefix(b"\x89PNG\r\n\x1a\n").unwrap();
        let mut chunks = Vec::new();
        while !png.is_empty() {
            let length = u32::from_be_bytes(png[..4].try_into().unwrap()) as usize;
            let mut sum = Crc::new();
            sum.update(&png[4..8 + length]);
            assert_eq!(sum.sum().to_be_bytes(), png[8 + length..12 + length]);
            chunks.push((String::from_utf8(png[4..8].to_vec()).unwrap(), png[8..8 + length].to_vec()));
            png = &png[12 + length..];
        }
        chunks
    }

    #[test]
    fn an_image_has_its_dimensions_and_its_bytes() {
        for (size, bytes) in [((640, 480), 50_000), ((1, 1), 500), ((3, 50), 2_000)] {
            let png = png(size, bytes, 1);
            assert_eq!(png.len() as u64, bytes, "{size:?}");
            let chunks = chunks(&png);
            let names: Vec<&str> = chunks.iter().map(|(name, _)| &**name).collect();
            assert_eq!(names, ["IHDR", "IDAT", "paDd", "IEND"]);
            assert_eq!(chunks[0].1[..8], [size.0.to_be_bytes(), size.1.to_be_bytes()].concat());
            let mut rows = Vec::new();
            ZlibDecoder::new(&chunks[1].1[..]).read_to_end(&mut rows).unwrap();
            assert_eq!(rows.len() as u32, (size.0 + 1) * size.1);
            assert!(rows.chunks(size.0 as usize + 1).all(|row| row[0] == 0), "no filter");
        }
        assert!(png((640, 480), 10, 1).len() > 10, "an image cannot be smaller than its pixels");
        let hostile = png((u32::MAX, 1), u64::MAX, 1);
        assert_eq!(hostile.len() as u64, MAX_PART_BYTES);
    }

    #[test]
    fn no_two_images_are_the_same_and_each_is_for_ever() {
        assert_eq!(png((64, 64), 0, 7), png((64, 64), 0, 7));
        assert_ne!(png((64, 64), 0, 7), png((64, 64), 0, 8));
        assert_ne!(png((2, 2), 0, 7), png((2, 2), 0, 8));
    }

    #[test]
    fn sound_has_its_bytes_and_a_header_that_says_so() {
        let wav = wav(32_044, 1);
        assert_eq!((wav.len(), &wav[..4], &wav[8..16]), (32_044, &b"RIFF"[..], &b"WAVEfmt "[..]));
        assert_eq!(wav[4..8], 32_036_u32.to_le_bytes());
        assert_eq!((&wav[36..40], &wav[40..44]), (&b"data"[..], &32_000_u32.to_le_bytes()[..]));
        assert_eq!((super::wav(0, 1).len(), super::wav(45, 1).len()), (46, 46), "one sample at least");
    }

    #[test]
    fn what_is_not_known_has_a_usual_size_and_videos_are_not_made() {
        let part = |kind| PromptPart { kind, bytes: None, size: None };
        let image = Media::synthesize(&part(PartKind::Image), 1).unwrap();
        assert!(image.url().starts_with("data:image/png;base64,iVBORw0KGgo"));
        let sound = Media::synthesize(&part(PartKind::Audio), 1).unwrap();
        assert_eq!(STANDARD.decode(&sound.base64).unwrap().len(), 32_044);
        assert_eq!(Media::synthesize(&part(PartKind::Video), 1), None);
    }
}
