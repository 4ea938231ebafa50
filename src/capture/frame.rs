//! Frames: rows in compressed pieces that can each be read without the others. Pure.
//!
//! # Layout
//! ```text
//! skippable frame:  magic 0x184D2A50 | length 48 | tag "SGF1" | seq u64 | first u64 | last u64
//!                   | rows u32 | plain u32 | packed u32 | digest [u8; 8]
//! zstd frame:       `packed` bytes, which are `plain` bytes of JSON Lines
//! ```
//! Numbers are little-endian. `seq` counts the frames of a file from 0; `first` and `last` are the least and greatest
//! `at` of the rows ([`NO_TIME`] where there are none), so that whoever looks for a time can pass over the rest; the
//! digest is of what stands between the tag and itself, and of the packed bytes (BLAKE3, cut). Every zstd decoder passes over skippable frames, so the file is an
//! ordinary `.jsonl.zst` to everybody else.

use std::io;

use zstd::bulk::{Compressor, Decompressor};

use super::row::TraceEntry;
use super::row_serializer;

/// Plain bytes after which a frame is closed.
pub const FRAME_BYTES: usize = 256 << 10;
/// The largest frame that is read, plain: one row may be large, and a frame has at least one.
pub const MAX_FRAME_BYTES: usize = super::row::MAX_ROW_BYTES + 2 * FRAME_BYTES;
/// What stands before a frame, in bytes.
pub const FRAME_HEAD_BYTES: usize = 8 + HEAD_PAYLOAD_BYTES as usize;
/// `first` and `last` of a frame without rows: no time lies between them.
pub const EMPTY_TIME_RANGE: (u64, u64) = (u64::MAX, 0);

const MAGIC: u32 = 0x184D_2A50;
const HEAD_PAYLOAD_BYTES: u32 = 48;
const TAG: [u8; 4] = *b"SGF1";
/// Rows of digests and gaps are mostly noise: level 1 takes 2.3 times as long for frames smaller by a fifth, zstd's
/// default 5 times, for frames no smaller than that.
const COMPRESSION_LEVEL: i32 = -1;

/// What is known of a frame before it is unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Its number in the file.
    pub seq: u64,
    /// The least `at` of its rows.
    pub first: u64,
    /// The greatest `at` of its rows.
    pub last: u64,
    /// Its rows, the header not counted.
    pub rows: u32,
    /// Its bytes once unpacked.
    pub plain_bytes: u32,
    /// Its bytes as they are.
    pub packed_bytes: u32,
    digest: [u8; 8],
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// No head where one should be.
    #[error("there is no frame where one should begin")]
    Head,
    /// More than any writer writes.
    #[error("the frame says that it is larger than frames are")]
    TooLarge,
    /// The bytes are not those that were written.
    #[error("the frame's bytes are not those that were written")]
    Digest,
    /// It cannot be unpacked.
    #[error("the frame cannot be unpacked")]
    Compression,
}

impl FrameHead {
    /// Whether a file that begins with these bytes is made of frames.
    pub fn is_at_start_of(bytes: &[u8]) -> bool {
        bytes.len() >= 12
            && bytes[..4] == MAGIC.to_le_bytes()
            && bytes[4..8] == HEAD_PAYLOAD_BYTES.to_le_bytes()
            && bytes[8..12] == TAG
    }

    /// Reads a head.
    ///
    /// # Errors
    /// When it is none, or one that nobody writes.
    pub fn read(bytes: &[u8; FRAME_HEAD_BYTES]) -> Result<Self, FrameError> {
        if !Self::is_at_start_of(bytes) {
            return Err(FrameError::Head);
        }
        let eight = |at: usize| bytes[at..].first_chunk::<8>().copied().unwrap_or_default();
        let four = |at: usize| bytes[at..].first_chunk::<4>().copied().unwrap_or_default();
        let head = Self {
            seq: u64::from_le_bytes(eight(12)),
            first: u64::from_le_bytes(eight(20)),
            last: u64::from_le_bytes(eight(28)),
            rows: u32::from_le_bytes(four(36)),
            plain_bytes: u32::from_le_bytes(four(40)),
            packed_bytes: u32::from_le_bytes(four(44)),
            digest: eight(48),
        };
        let largest = zstd::zstd_safe::compress_bound(MAX_FRAME_BYTES);
        if head.plain_bytes as usize > MAX_FRAME_BYTES || head.packed_bytes as usize > largest {
            return Err(FrameError::TooLarge);
        }
        Ok(head)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&HEAD_PAYLOAD_BYTES.to_le_bytes());
        out.extend_from_slice(&TAG);
        out.extend_from_slice(&self.numbers());
        out.extend_from_slice(&self.digest);
    }

    fn numbers(&self) -> Vec<u8> {
        let long = [self.seq, self.first, self.last].map(u64::to_le_bytes);
        let short = [self.rows, self.plain_bytes, self.packed_bytes].map(u32::to_le_bytes);
        [long.as_flattened(), short.as_flattened()].concat()
    }

    fn digest_with(&self, packed: &[u8]) -> [u8; 8] {
        let digest = blake3::Hasher::new().update(&self.numbers()).update(packed).finalize();
        digest.as_bytes().first_chunk().copied().unwrap_or_default()
    }

    /// The rows of the frame that this is the head of.
    ///
    /// # Errors
    /// When the bytes are not those that were written.
    pub fn unpack(&self, packed: &[u8], decompressor: &mut Decompressor<'_>) -> Result<Vec<u8>, FrameError> {
        if self.digest_with(packed) != self.digest {
            return Err(FrameError::Digest);
        }
        let plain = decompressor.decompress(packed, self.plain_bytes as usize).map_err(|_| FrameError::Compression)?;
        if plain.len() == self.plain_bytes as usize { Ok(plain) } else { Err(FrameError::Compression) }
    }
}

/// A frame that is being filled.
pub struct FrameBuilder {
    plain: Vec<u8>,
    rows: u32,
    times: (u64, u64),
    compressor: Compressor<'static>,
}

impl FrameBuilder {
    /// An empty one.
    ///
    /// # Errors
    /// When there is no memory to compress with.
    pub fn new() -> io::Result<Self> {
        let compressor = Compressor::new(COMPRESSION_LEVEL)?;
        Ok(Self { plain: Vec::with_capacity(FRAME_BYTES), rows: 0, times: EMPTY_TIME_RANGE, compressor })
    }

    /// Adds the line of a header.
    ///
    /// # Errors
    /// When it cannot be written as JSON; nothing is added then.
    pub fn push_header(&mut self, header: &super::row::TraceHeader) -> io::Result<()> {
        self.push_line(|line| serde_json::to_writer(line, header))
    }

    /// Adds a row, which may not be larger than [`MAX_ROW`](super::format::MAX_ROW).
    ///
    /// # Errors
    /// When it is, or cannot be written as JSON; nothing is added then.
    pub fn push_row(&mut self, entry: &TraceEntry) -> io::Result<()> {
        self.push_line(|line| row_serializer::write(entry, line))?;
        self.rows += 1;
        self.times = (self.times.0.min(entry.at), self.times.1.max(entry.at));
        Ok(())
    }

    fn push_line(&mut self, write: impl FnOnce(&mut Vec<u8>) -> serde_json::Result<()>) -> io::Result<()> {
        let before = self.plain.len();
        let written = write(&mut self.plain).map_err(io::Error::from).and_then(|()| {
            let fits = self.plain.len() - before < super::row::MAX_ROW_BYTES;
            fits.then_some(()).ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, "a row is too large"))
        });
        match written {
            Ok(()) => self.plain.push(b'\n'),
            Err(_) => self.plain.truncate(before),
        }
        written
    }

    /// Rows held.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty()
    }

    /// Whether it is time to close it.
    pub fn is_full(&self) -> bool {
        self.plain.len() >= FRAME_BYTES
    }

    /// Forgets what is in it.
    pub fn clear(&mut self) {
        self.plain.clear();
        // One large row does not hold its memory for ever.
        self.plain.shrink_to(2 * FRAME_BYTES);
        (self.rows, self.times) = (0, EMPTY_TIME_RANGE);
    }

    /// Closes it: its bytes, head and all, as the file's frame number `seq`. What is in it stays until
    /// [`clear`](Self::clear), for another try.
    ///
    /// # Errors
    /// When it cannot be compressed.
    pub fn close(&mut self, seq: u64) -> io::Result<Vec<u8>> {
        let packed = self.compressor.compress(&self.plain)?;
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut head = FrameHead {
            seq,
            first: self.times.0,
            last: self.times.1,
            rows: self.rows,
            plain_bytes: length(self.plain.len()),
            packed_bytes: length(packed.len()),
            digest: [0; 8],
        };
        head.digest = head.digest_with(&packed);
        let mut bytes = Vec::with_capacity(FRAME_HEAD_BYTES + packed.len());
        head.write(&mut bytes);
        bytes.extend_from_slice(&packed);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(rows: &[u64], seq: u64) -> Vec<u8> {
        let mut filling = FrameBuilder::new().unwrap();
        rows.iter().for_each(|&at| filling.push_row(&TraceEntry { at, ..TraceEntry::default() }).unwrap());
        filling.close(seq).unwrap()
    }

    fn head(bytes: &[u8]) -> Result<FrameHead, FrameError> {
        FrameHead::read(bytes.first_chunk().unwrap())
    }

    #[test]
    fn a_frame_tells_what_is_in_it_and_gives_it_back() {
        let bytes = closed(&[30, 10, 20], 7);
        let head = head(&bytes).unwrap();
        assert_eq!((head.seq, head.first, head.last, head.rows), (7, 10, 30, 3));
        assert_eq!(head.packed_bytes as usize, bytes.len() - FRAME_HEAD_BYTES);
        let plain = head.unpack(&bytes[FRAME_HEAD_BYTES..], &mut Decompressor::new().unwrap()).unwrap();
        assert_eq!(String::from_utf8(plain).unwrap(), "{\"at\":30}\n{\"at\":10}\n{\"at\":20}\n");
    }

    #[test]
    fn everybody_elses_decoder_passes_over_the_heads() {
        let bytes = [closed(&[1], 0), closed(&[2], 1)].concat();
        assert_eq!(zstd::stream::decode_all(&bytes[..]).unwrap(), b"{\"at\":1}\n{\"at\":2}\n");
    }

    #[test]
    fn a_flipped_bit_is_noticed_wherever_it_is() {
        let bytes = closed(&[1, 2, 3], 0);
        let mut decompressor = Decompressor::new().unwrap();
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0x10;
            let read = head(&broken).and_then(|head| head.unpack(&broken[FRAME_HEAD_BYTES..], &mut decompressor));
            assert!(read.is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_frame_may_be_closed_again_after_a_failure_and_then_is_empty() {
        let mut filling = FrameBuilder::new().unwrap();
        filling.push_row(&TraceEntry::default()).unwrap();
        assert_eq!(filling.close(3).unwrap(), filling.close(3).unwrap());
        filling.clear();
        assert!(filling.is_empty() && filling.rows() == 0);
    }

    #[test]
    fn a_row_beyond_the_bound_is_refused_and_leaves_no_trace() {
        let mut filling = FrameBuilder::new().unwrap();
        let model = Some("x".repeat(crate::capture::row::MAX_ROW_BYTES));
        assert!(filling.push_row(&TraceEntry { model, ..TraceEntry::default() }).is_err());
        assert!(filling.is_empty());
    }
}
