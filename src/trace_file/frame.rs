//! Frames: compressed groups of rows, each readable without the others. Pure.
//!
//! # Layout
//! ```text
//! skippable frame:  magic 0x184D2A50 | length 48 | tag "SGF1" | seq u64 | first u64 | last u64
//!                   | rows u32 | plain u32 | packed u32 | digest [u8; 8]
//! zstd frame:       `packed` bytes, which are `plain` bytes of JSON Lines
//! ```
//! Numbers are little-endian. `seq` counts the frames of a file from 0. `first` and `last` are the least and greatest
//! `at` of the rows ([`EMPTY_TIME_RANGE`] if there are none), so a reader can skip frames by time. The digest is a
//! truncated BLAKE3 of the fields between the tag and the digest, followed by the packed bytes. Every zstd decoder
//! skips skippable frames, so any zstd tool reads the file as an ordinary `.jsonl.zst`.

use std::io;

use zstd::bulk::{Compressor, Decompressor};

use super::row::TraceEntry;
use super::row_serializer;

/// Uncompressed bytes at which a frame is closed.
pub const FRAME_BYTES: usize = 256 << 10;
/// Largest frame that is read, in uncompressed bytes. A frame has at least one row, and one row may be large.
pub const MAX_FRAME_BYTES: usize = super::row::MAX_ROW_BYTES + 2 * FRAME_BYTES;
/// Size of the head before each zstd frame, in bytes.
pub const FRAME_HEAD_BYTES: usize = 8 + HEAD_PAYLOAD_BYTES as usize;
/// `first` and `last` of a frame without rows. No time lies in this range.
pub const EMPTY_TIME_RANGE: (u64, u64) = (u64::MAX, 0);

const MAGIC: u32 = 0x184D_2A50;
const HEAD_PAYLOAD_BYTES: u32 = 48;
const TAG: [u8; 4] = *b"SGF1";
/// Digests and gaps are mostly noise. Level 1 takes 2.3 times as long for frames smaller by a fifth. The zstd default
/// takes 5 times as long and saves no more.
const COMPRESSION_LEVEL: i32 = -1;

/// Metadata of a frame, readable before the frame is unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Number of the frame in its file, from 0.
    pub seq: u64,
    /// Least `at` of the rows, in nanoseconds.
    pub first: u64,
    /// Greatest `at` of the rows, in nanoseconds.
    pub last: u64,
    /// Rows of the frame, not counting the header line.
    pub rows: u32,
    /// Uncompressed size in bytes.
    pub plain_bytes: u32,
    /// Compressed size in bytes.
    pub packed_bytes: u32,
    digest: [u8; 8],
}

/// The bytes are not a valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// No frame head where one must begin.
    #[error("there is no frame where one should begin")]
    Head,
    /// The head declares more bytes than a writer ever writes.
    #[error("the frame's size field exceeds the maximum size of a frame")]
    TooLarge,
    /// The digest does not match the bytes.
    #[error("the frame's bytes are not those that were written")]
    Digest,
    /// The zstd decoder rejects the bytes.
    #[error("the frame cannot be unpacked")]
    Compression,
}

impl FrameHead {
    /// True if a file that begins with these bytes consists of frames.
    pub fn is_at_start_of(bytes: &[u8]) -> bool {
        bytes.len() >= 12
            && bytes[..4] == MAGIC.to_le_bytes()
            && bytes[4..8] == HEAD_PAYLOAD_BYTES.to_le_bytes()
            && bytes[8..12] == TAG
    }

    /// Reads a frame head.
    ///
    /// # Errors
    /// If the bytes are no head, or declare a size that no writer writes.
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

    /// Decompresses the rows that follow this head.
    ///
    /// # Errors
    /// If the digest does not match, or the bytes cannot be decompressed.
    pub fn unpack(&self, packed: &[u8], decompressor: &mut Decompressor<'_>) -> Result<Vec<u8>, FrameError> {
        if self.digest_with(packed) != self.digest {
            return Err(FrameError::Digest);
        }
        let plain = decompressor.decompress(packed, self.plain_bytes as usize).map_err(|_| FrameError::Compression)?;
        if plain.len() == self.plain_bytes as usize { Ok(plain) } else { Err(FrameError::Compression) }
    }
}

/// Collects rows into one frame.
pub struct FrameBuilder {
    plain: Vec<u8>,
    rows: u32,
    times: (u64, u64),
    compressor: Compressor<'static>,
}

impl FrameBuilder {
    /// Creates an empty frame.
    ///
    /// # Errors
    /// If the compressor cannot allocate memory.
    pub fn new() -> io::Result<Self> {
        let compressor = Compressor::new(COMPRESSION_LEVEL)?;
        Ok(Self { plain: Vec::with_capacity(FRAME_BYTES), rows: 0, times: EMPTY_TIME_RANGE, compressor })
    }

    /// Appends a header line.
    ///
    /// # Errors
    /// If the header cannot be written as JSON; the frame stays unchanged.
    pub fn push_header(&mut self, header: &super::header::TraceHeader) -> io::Result<()> {
        self.push_line(|line| serde_json::to_writer(line, header))
    }

    /// Appends a row of at most [`MAX_ROW_BYTES`](super::row::MAX_ROW_BYTES).
    ///
    /// # Errors
    /// If the row is larger, or cannot be written as JSON; the frame stays unchanged.
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

    /// Rows in the frame, not counting the header.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// True if the frame has neither a header nor rows.
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty()
    }

    /// True from [`FRAME_BYTES`] on.
    pub fn is_full(&self) -> bool {
        self.plain.len() >= FRAME_BYTES
    }

    /// Removes the header and all rows.
    pub fn clear(&mut self) {
        self.plain.clear();
        // Return the memory of one unusually large row.
        self.plain.shrink_to(2 * FRAME_BYTES);
        (self.rows, self.times) = (0, EMPTY_TIME_RANGE);
    }

    /// Returns the frame, with its head, as number `seq` of the file. The content stays until [`clear`](Self::clear),
    /// so that a caller can retry.
    ///
    /// # Errors
    /// If compression fails.
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
        let model = Some("x".repeat(crate::trace_file::row::MAX_ROW_BYTES));
        assert!(filling.push_row(&TraceEntry { model, ..TraceEntry::default() }).is_err());
        assert!(filling.is_empty());
    }
}
