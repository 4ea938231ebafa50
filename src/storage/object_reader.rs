//! One object, read like a file: in parts, each with a request of its own.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use bytes::{Buf as _, Bytes};

use super::bucket::Bucket;
use super::error::StorageError;
use crate::config::StorageUrl;

/// Bytes of the first request, and the most of one. Each request of a sequential read doubles the size, so that a small
/// object costs one request and a large one few.
const FIRST_PART_BYTES: u64 = 256 << 10;
const MAX_PART_BYTES: u64 = 4 << 20;

/// An object as a stream of bytes. Holds one part of at most 4 MiB.
#[derive(Clone, Debug)]
pub struct ObjectReader {
    bucket: Bucket,
    key: String,
    size: u64,
    /// Offset of the first byte of `part`.
    at: u64,
    part: Bytes,
    next_part_bytes: u64,
    max_part_bytes: u64,
}

impl ObjectReader {
    /// Opens the object that a URL names; `None` if there is none.
    ///
    /// # Errors
    /// If the storage does not answer.
    pub fn open(url: &StorageUrl) -> Result<Option<Self>, StorageError> {
        let bucket = Bucket::open(url)?;
        let size = if url.key().is_empty() { None } else { bucket.size(url.key())? };
        Ok(size.map(|size| Self::of_size(bucket, url.key(), size)))
    }

    pub(super) fn of_size(bucket: Bucket, key: &str, size: u64) -> Self {
        Self {
            bucket,
            key: key.to_owned(),
            size,
            at: 0,
            part: Bytes::new(),
            next_part_bytes: FIRST_PART_BYTES,
            max_part_bytes: MAX_PART_BYTES,
        }
    }

    /// Limits the bytes that are held, for callers that read many objects at once.
    #[must_use]
    pub fn with_small_parts(self) -> Self {
        Self { max_part_bytes: FIRST_PART_BYTES, ..self }
    }

    /// Size of the object in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// A part of the object, beside the stream.
    ///
    /// # Errors
    /// If the storage does not return it.
    pub fn read_at(&self, start: u64, length: usize) -> io::Result<Bytes> {
        let end = start.saturating_add(length as u64);
        if end > self.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if length == 0 {
            return Ok(Bytes::new());
        }
        self.bucket.read(&self.key, start..end).map_err(io::Error::other)
    }

    fn position(&self) -> u64 {
        self.at
    }
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for ObjectReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.part.is_empty() && self.at < self.size {
            let length = self.next_part_bytes.min(self.size - self.at);
            self.part = self.read_at(self.at, usize::try_from(length).unwrap_or(usize::MAX))?;
            self.next_part_bytes = (self.next_part_bytes * 2).min(self.max_part_bytes);
        }
        Ok(&self.part)
    }

    fn consume(&mut self, bytes: usize) {
        self.part.advance(bytes);
        self.at += bytes as u64;
    }
}

impl Seek for ObjectReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
            SeekFrom::Current(by) => self.position().checked_add_signed(by),
        };
        let target = target.ok_or(io::ErrorKind::InvalidInput)?;
        match usize::try_from(target.wrapping_sub(self.at)) {
            Ok(ahead) if target >= self.at && ahead <= self.part.len() => self.part.advance(ahead),
            _ => (self.part, self.next_part_bytes) = (Bytes::new(), FIRST_PART_BYTES),
        }
        self.at = target;
        Ok(target)
    }
}
